//! `coalesce=on`: TCP segments of a guest that leave by a TAP as one packet, beside Linux's own
//! merging of frames that come in through an interface (GRO), and a transfer through it.
//!
//! Linux merges here on a pair of veth devices, by its NAPI, which is told to hold what it merges
//! for some milliseconds. What Linux leaves apart the switch leaves apart; what the switch merges
//! is cut again and compared byte for byte with what the guest sent.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use testkit::SOON;
use testkit::host::{HEADER_LEN, Host, in_namespace, index_of, ip, veth_up};
use testkit::packet::payload;
use testkit::proc::{Daemon, Dir, wait_for};
use testkit::relay::{INTERFACE, Stack};
use testkit::vm::{Vm, VmConfig};
use testkit::vnet::{GSO_TCPV4, GSO_TCPV6, Header, NEEDS_CSUM};
use testkit::{Rng, rounds, skip};

const UPLINK: &str = "vio0";
/// How long Linux holds a packet that may grow.
const HELD: &str = "5000000";
const STATION: [u8; 6] = [2, 0, 0, 0, 0, 9];
const ACK: u8 = 0x10;

/// A TCP segment, as a guest's stack has it.
#[derive(Debug, Clone)]
struct Segment {
    v6: bool,
    service: u8,
    hops: u8,
    id: u16,
    flags_of_ip: u16,
    port: u16,
    sequence: u32,
    acknowledged: u32,
    flags: u8,
    window: u16,
    urgent: u16,
    options: Vec<u8>,
    payload: Vec<u8>,
    /// Added to the checksums.
    wrong: [u16; 2],
    /// Bytes behind the packet.
    padding: usize,
}

/// 0 to `n` - 1.
fn below(rng: &mut Rng, n: usize) -> usize {
    rng.below(n as u64) as usize
}

fn sum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    let sum: u32 = words.map(word).sum();
    let sum = (sum >> 16) + (sum & 0xffff);
    !((sum >> 16) + sum) as u16
}

impl Segment {
    fn frame(&self, from: [u8; 6]) -> Vec<u8> {
        let len = (20 + self.options.len() + self.payload.len()) as u16;
        let mut tcp = [self.port.to_be_bytes(), 80u16.to_be_bytes()].concat();
        tcp.extend([self.sequence.to_be_bytes(), self.acknowledged.to_be_bytes()].concat());
        tcp.extend([((5 + self.options.len() / 4) << 4) as u8, self.flags]);
        tcp.extend([self.window, 0, self.urgent].map(u16::to_be_bytes).concat());
        tcp.extend(&self.options);
        let mut ip = if self.v6 {
            let mut ip = vec![0x60 | self.service >> 4, self.service << 4, 0, 7];
            ip.extend(len.to_be_bytes());
            ip.extend([6, self.hops]);
            ip.extend([0xfd; 31]);
            ip.push(1);
            ip
        } else {
            let mut ip = vec![0x45, self.service];
            ip.extend([20 + len, self.id, self.flags_of_ip].map(u16::to_be_bytes).concat());
            ip.extend([self.hops, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
            let right = sum(&[&ip]).wrapping_add(self.wrong[0]);
            ip[10..12].copy_from_slice(&right.to_be_bytes());
            ip
        };
        let addresses = if self.v6 { &ip[8..40] } else { &ip[12..20] };
        let rest = [&[0, 6][..], &len.to_be_bytes()].concat();
        let right = sum(&[addresses, &rest, &tcp, &self.payload]).wrapping_add(self.wrong[1]);
        tcp[16..18].copy_from_slice(&right.to_be_bytes());
        let kind = if self.v6 { [0x86, 0xdd] } else { [8, 0] };
        ip.extend([&tcp[..], &self.payload, &vec![0; self.padding]].concat());
        [&STATION[..], &from, &kind, &ip].concat()
    }

    /// Changes one thing that a stack, or somebody else, may change.
    fn disturb(&mut self, rng: &mut Rng) {
        match rng.below(18) {
            0 => self.service ^= 1 << rng.below(8),
            1 => self.hops ^= 1,
            2 => self.id = self.id.wrapping_add(1 + rng.below(3) as u16),
            3 => self.flags_of_ip ^= 0x4000,
            4 => self.flags_of_ip |= 0x2000,
            5 => self.sequence = self.sequence.wrapping_add(1 + rng.below(2000) as u32),
            6 => self.acknowledged ^= 1,
            7 => self.flags |= 1 << rng.below(8),
            8 => self.flags &= !(1 << rng.below(8)),
            9 => self.flags |= 8,
            10 => self.window ^= 1 << rng.below(16),
            11 => self.urgent = 7,
            12 => {
                self.options = [vec![1, 1, 8, 10], vec![7; 8], vec![1; 4 * below(rng, 3)]].concat()
            }
            13 => self.options.clear(),
            14 => self.wrong[0] = 1,
            15 => self.wrong[1] = 1,
            16 => self.padding = 1 + below(rng, 6),
            _ => {
                let len = 8 + below(rng, self.payload.len());
                self.payload.resize(len, 9);
            }
        }
    }
}

/// The segments of some streams that take turns; each payload begins with the segment's number.
fn burst(rng: &mut Rng) -> Vec<Segment> {
    let streams = 1 + below(rng, 4);
    let mut next: Vec<Segment> = (0..streams)
        .map(|stream| Segment {
            v6: rng.below(3) == 0,
            service: 0,
            hops: 64,
            id: rng.below(1 << 16) as u16,
            flags_of_ip: 0x4000,
            port: 1000 + stream as u16,
            sequence: rng.below(1 << 32) as u32,
            acknowledged: 5,
            flags: ACK,
            window: 500,
            urgent: 0,
            options: if rng.below(2) == 0 {
                vec![]
            } else {
                vec![1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8]
            },
            payload: vec![0; [100, 536, 1400][below(rng, 3)]],
            wrong: [0; 2],
            padding: 0,
        })
        .collect();
    let count = 2 + below(rng, 34);
    let mut all = vec![];
    for number in 0..count {
        let at = below(rng, streams);
        let mut segment = next[at].clone();
        segment.payload = payload(number as u64, segment.payload.len());
        if rng.below(8) == 0 {
            segment.disturb(rng);
        }
        segment.payload[..4].copy_from_slice(&(number as u32).to_be_bytes());
        // The stream goes on behind what was sent, whatever came of it.
        next[at].sequence = segment.sequence.wrapping_add(segment.payload.len() as u32);
        next[at].id = segment.id.wrapping_add(1);
        all.push(segment);
    }
    all
}

/// What a packet with a header as an interface has it is made of: its segments, as frames.
fn cut(header: &Header, packet: &[u8]) -> Vec<Vec<u8>> {
    if header.gso_type == 0 {
        return vec![packet.to_vec()];
    }
    let (v6, l4) = (header.gso_type == GSO_TCPV6, usize::from(header.csum_start));
    assert!(v6 || header.gso_type == GSO_TCPV4, "{header:?}");
    assert_eq!((header.flags, header.csum_offset), (NEEDS_CSUM, 16));
    let (headers, payload) = packet.split_at(l4 + usize::from(packet[l4 + 12] >> 4) * 4);
    let chunks: Vec<&[u8]> = payload.chunks(header.gso_size.into()).collect();
    let segment = |(index, chunk): (usize, &&[u8])| {
        let mut head = headers.to_vec();
        let len = (head.len() - l4 + chunk.len()) as u16;
        let place = index as u32 * u32::from(header.gso_size);
        let add = |head: &mut [u8], at: usize, more: u16| {
            let old = u16::from_be_bytes([head[at], head[at + 1]]);
            head[at..at + 2].copy_from_slice(&old.wrapping_add(more).to_be_bytes());
        };
        let addresses = if v6 {
            head[18..20].copy_from_slice(&len.to_be_bytes());
            22..54
        } else {
            head[16..18].copy_from_slice(&(20 + len).to_be_bytes());
            add(&mut head, 18, index as u16);
            head[24..26].fill(0);
            let right = sum(&[&head[14..34]]);
            head[24..26].copy_from_slice(&right.to_be_bytes());
            26..34
        };
        let sequence = u32::from_be_bytes(head[l4 + 4..l4 + 8].try_into().unwrap());
        head[l4 + 4..l4 + 8].copy_from_slice(&sequence.wrapping_add(place).to_be_bytes());
        if index + 1 < chunks.len() {
            head[l4 + 13] &= !8;
        }
        head[l4 + 16..l4 + 18].fill(0);
        let rest = [&[0, 6][..], &len.to_be_bytes()].concat();
        let right = sum(&[&head[addresses], &rest, &head[l4..], chunk]);
        head[l4 + 16..l4 + 18].copy_from_slice(&right.to_be_bytes());
        [&head[..], chunk].concat()
    };
    chunks.iter().enumerate().map(segment).collect()
}

/// What came in through an interface until all `sent` frames are there, each packet as its
/// segments.
fn received(host: &Host, sent: &[Vec<u8>]) -> Vec<Vec<Vec<u8>>> {
    let (mut packets, mut count, began) = (vec![], 0, Instant::now());
    while count < sent.len() {
        let limit = SOON.saturating_sub(began.elapsed());
        let packet = host.receive(limit).unwrap_or_else(|| panic!("{count} of {}", sent.len()));
        let (header, frame) = packet.split_at(HEADER_LEN);
        // Linux's own frames do not come from there.
        if frame[..6] != STATION {
            continue;
        }
        let segments = cut(&Header::parse(header), frame);
        count += segments.len();
        packets.push(segments);
    }
    packets
}

/// Which frames lie behind which in one packet.
fn joined(packets: &[Vec<Vec<u8>>], sent: &[Vec<u8>]) -> BTreeSet<(usize, usize)> {
    // Frames differ in the number at the beginning of their payload; the frame of Linux's, cut
    // again, may differ from the sent one in what Linux keeps otherwise, as a fixed identification.
    let number = |frame: &[u8]| {
        let l4 = if frame[12] == 8 { 34 } else { 54 };
        let at = l4 + usize::from(frame[l4 + 12] >> 4) * 4;
        u32::from_be_bytes(frame[at..at + 4].try_into().unwrap()) as usize
    };
    let pairs = packets.iter().flat_map(|packet| packet.windows(2));
    let pairs: BTreeSet<_> = pairs.map(|two| (number(&two[0]), number(&two[1]))).collect();
    assert!(pairs.iter().all(|(a, b)| a < b && *b < sent.len()), "{pairs:?}");
    pairs
}

/// A pair of interfaces of which Linux merges what comes in through the second.
fn linux() -> Option<[Host; 2]> {
    ip("link add near type veth peer name far");
    let script = format!(
        "mount -t sysfs none /sys
         ethtool -K far gro on; ethtool -K near tso off gso off
         ip link set near up; ip link set far up
         echo {HELD} >/sys/class/net/far/gro_flush_timeout
         echo 100 >/sys/class/net/far/napi_defer_hard_irqs"
    );
    let done = Command::new("unshare").args(["--mount", "sh", "-ec", &script]).output();
    match done {
        Ok(output) if output.status.success() => {
            veth_up(["near", "far"]);
            Some([Host::open("near"), Host::open_with_headers("far")])
        }
        other => {
            skip(&format!("Linux cannot be told to merge: {other:?}"));
            None
        }
    }
}

/// A guest whose driver has no offloads, and a TAP.
fn guest() -> (Daemon, Vm, Host) {
    let d = Daemon::with(1, &["--tap", &format!("up,ifname={UPLINK}")]);
    assert!(wait_for(SOON, || index_of(UPLINK).is_some()), "{}", d.log());
    ip(&format!("link set {UPLINK} up"));
    let vm = Vm::connect(&d.socket(0), VmConfig::new(0));
    (d, vm, Host::open_with_headers(UPLINK))
}

#[test]
fn segments_are_merged_as_linux_merges_them_and_no_others() {
    in_namespace(|| {
        let Some([near, far]) = linux() else { return };
        let (d, mut vm, host) = guest();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock");
        let seed = rounds(1, 2, now.as_nanos() as u64);
        let mut rng = Rng::new(seed);
        let (mut ours, mut theirs) = (0, 0);
        for round in 0..rounds(60, 400, 4000) {
            let segments = burst(&mut rng);
            let frames: Vec<_> = segments.iter().map(|one| one.frame(vm.mac())).collect();
            frames.iter().for_each(|frame| assert!(vm.tx[0].queue(frame)));
            vm.tx[0].ring.publish();
            let packets = received(&host, &frames);
            vm.tx[0].drain(SOON);
            let mut all: Vec<_> = packets.concat();
            // A stream stays in order.
            for port in segments.iter().map(|one| one.port.to_be_bytes()) {
                let is_of = |frame: &&Vec<u8>| {
                    let l4 = if frame[12] == 8 { 34 } else { 54 };
                    frame[l4..l4 + 2] == port
                };
                let sent: Vec<_> = frames.iter().filter(is_of).collect();
                let came: Vec<_> = all.iter().filter(is_of).collect();
                assert!(sent == came, "seed {seed} round {round}: a stream's frames");
            }
            all.sort();
            let mut sent = frames.clone();
            sent.sort();
            assert!(all == sent, "seed {seed} round {round}: {segments:?}");
            let merged = joined(&packets, &frames);
            // A machine that stands still ends what Linux holds.
            let mut linux = BTreeSet::new();
            for _ in 0..10 {
                frames.iter().for_each(|frame| near.send(frame));
                linux.extend(joined(&received(&far, &frames), &frames));
                if merged.is_subset(&linux) {
                    break;
                }
            }
            let more: Vec<_> = merged.difference(&linux).collect();
            assert!(more.is_empty(), "seed {seed} round {round}: {more:?} of {segments:?}");
            (ours, theirs) = (ours + merged.len(), theirs + linux.len());
        }
        println!("{ours} segments behind another one, by Linux {theirs}");
        assert!(ours * 10 >= theirs * 8, "{ours} of {theirs}");
        assert!(d.counters().sum(Some("up"), "out", "coalesced") as usize > ours);
    });
}

/// A stack without offloads sends through a stream, and a program of the host receives it.
#[test]
fn a_transfer_arrives_whole() {
    let found = Command::new("python3").arg("-V").output();
    if !found.is_ok_and(|output| output.status.success()) {
        return skip("needs python3");
    }
    in_namespace(|| {
        let dir = Dir::new();
        let socket = dir.path().join("vm");
        let stream = format!("--stream=vm,socket={}", socket.display());
        let d = Daemon::with(0, &[&stream, &format!("--tap=up,ifname={UPLINK}")]);
        assert!(wait_for(SOON, || index_of(UPLINK).is_some()), "{}", d.log());
        ip(&format!("link set {UPLINK} up"));
        ip(&format!("address add 10.77.0.1/24 dev {UPLINK}"));
        let stack = Stack::attach(&socket, "02:77:00:00:00:02");
        stack.sh(&format!(
            "ip link set {INTERFACE} up; ip address add 10.77.0.2/24 dev {INTERFACE}"
        ));
        let listener = TcpListener::bind("10.77.0.1:7000").expect("listen");
        let bytes = rounds(8 << 20, 64 << 20, 512 << 20);
        let program = format!(
            "import socket
s = socket.create_connection(('10.77.0.1', 7000))
part = bytes((7 * i + 3) % 251 for i in range(251 * 64))
left = {bytes}
while left:
    left -= s.send(part[({bytes} - left) % 251:][:left])
s.recv(1)"
        );
        let mut sender = stack.command("python3").args(["-c", &program]).spawn().expect("python3");
        let (mut connection, _) = listener.accept().expect("a connection");
        connection.set_read_timeout(Some(SOON)).expect("a limit");
        let (mut buffer, mut got) = (vec![0; 1 << 16], 0);
        while got < bytes {
            let len = connection.read(&mut buffer).expect("more of it");
            assert!(len > 0, "{got} of {bytes} bytes");
            for (at, byte) in buffer[..len].iter().enumerate() {
                assert_eq!(*byte, ((7 * ((got + at) % 251) + 3) % 251) as u8, "byte {}", got + at);
            }
            got += len;
        }
        connection.write_all(&[1]).expect("an answer");
        assert!(sender.wait().expect("its end").success());
        let coalesced = d.counters().sum(Some("up"), "out", "coalesced");
        let frames = d.counters().sum(Some("up"), "out", "frames");
        println!("{coalesced} of {frames} frames in packets");
        assert!(coalesced > 0, "none of {frames} frames");
    });
}
