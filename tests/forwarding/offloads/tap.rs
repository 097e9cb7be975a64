//! Offloads to and from the kernel: what guests leave to it, what it leaves to guests, and what
//! really leaves the host, in a network namespace of the test's own.

use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};

use super::lab::{
    LEVELS, QUIET, SOON, Sent, Work, connect, exchange, exchange_by, finish, introduce, send,
};
use testkit::frontend::feat;
use testkit::host::{HEADER_LEN, Host, in_namespace, ip};
use testkit::packet::{
    Ask, Kind, MAX_DATAGRAMS, Packet, finish as finish_sum, payload, verify, verify_received,
};
use testkit::proc::{Daemon, wait_for};
use testkit::skip;
use testkit::vm::{Vm, mac_of};
use testkit::vnet::{DATA_VALID, GSO_NONE, Header, NEEDS_CSUM};

/// The station on the host's side.
pub const HOST: u8 = 9;

/// From this length on the kernel segments packets itself (`gso_max_size`, Ethernet included).
const GSO_MAX: usize = 65_536;

fn daemon(ports: usize) -> Daemon {
    Daemon::with(ports, &["--tap", "up,ifname=tap0"])
}

/// Guests of each level with merged buffers and without, known to the switch.
fn guests(d: &Daemon) -> Vec<Vm> {
    let shapes = LEVELS.iter().flat_map(|level| [(level, true), (level, false)]);
    let mut vms: Vec<Vm> = (0..)
        .zip(shapes)
        .map(|(id, (level, mergeable))| connect(d, id, level.features(), mergeable))
        .collect();
    let mut all: Vec<&mut Vm> = vms.iter_mut().collect();
    introduce(&mut all);
    vms
}

/// Sends one frame with its header out of the host.
pub fn send_out(host: &Host, header: &Header, frame: &[u8]) {
    if let Err(e) = host.try_send(&[&header.bytes(HEADER_LEN)[..], frame].concat()) {
        panic!("host: {e}: {header:?}, {} bytes: {:02x?}", frame.len(), &frame[..60]);
    }
}

/// The host's station tells the switch where it is.
pub fn introduce_host(host: &Host, vms: &mut [Vm]) {
    let hello = [&[0xff; 6][..], &mac_of(HOST), &[0x88, 0xb5], &[0; 46]].concat();
    send_out(host, &Header::default(), &hello);
    for vm in vms {
        let got = vm.rx[0].take(1, SOON);
        assert!(got.len() == 1 && got[0].1 == hello, "guest {}", vm.cfg.id);
    }
    host.drain();
}

/// A header of the kernel's: its `hdr_len` is what it happens to hold in one piece.
pub fn from_kernel(bytes: &[u8]) -> Header {
    let mut header = Header::parse(&bytes[..HEADER_LEN]);
    header.hdr_len = 0;
    if header.flags == DATA_VALID {
        header.flags = 0;
    }
    header
}

/// Guests leave to the kernel what they like: it gets that as it is.
#[test]
fn guests_to_the_kernel() {
    in_namespace(|| {
        let d = daemon(6);
        let mut vms = guests(&d);
        let host = Host::open_with_headers("tap0");
        introduce_host(&host, &mut vms);
        let cwr = Kind::plain().filter(|k| !k.udp).map(|k| Kind { cwr: true, ..k });
        // The kernel takes VLAN tags out of what a packet socket gets to see.
        let kinds: Vec<Kind> = Kind::all().filter(|k| k.tags == 0).chain(cwr).collect();
        for from in &mut vms {
            for &kind in &kinds {
                for sent in Sent::all(kind, from.cfg.features, from.mac(), mac_of(HOST)) {
                    let (header, frame) = sent.packet.sent(sent.ask);
                    send(from, &header, &frame);
                    let what = format!("{kind:?} {:?} {}", sent.ask, sent.packet.payload.len());
                    let got = host.receive(SOON).unwrap_or_else(|| panic!("missing: {what}"));
                    let mut want = sent.packet.received(sent.ask, u64::MAX);
                    assert_eq!(want.len(), 1);
                    let (mut want_header, want) = want.remove(0);
                    want_header.hdr_len = 0;
                    assert_eq!(from_kernel(&got), want_header, "{what}");
                    assert!(got[HEADER_LEN..] == want, "{what}: bytes");
                }
            }
        }
        assert_eq!(Work::counted(&d.counters(), "up"), Work::default(), "nothing to do");
        finish(d, vms);
    });
}

/// More datagrams in one packet than Linux takes, of a sender to whom nothing forbids it, arrive
/// one by one; as many as it takes stay one packet. The kernel refuses what it does not take.
#[test]
fn trains_of_more_datagrams_than_linux_takes() {
    in_namespace(|| {
        let d = daemon(2);
        let mut vms: Vec<Vm> = (0..2).map(|id| connect(&d, id, feat::OFFLOADS, true)).collect();
        let host = Host::open_with_headers("tap0");
        introduce_host(&host, &mut vms);
        let [from, to] = &mut vms[..] else { panic!() };
        introduce(&mut [from, to]);
        host.drain();
        let mut work = Work::default();
        for (v6, more) in [(false, 0), (false, 1), (true, 0), (true, 1)] {
            let kind = Kind { udp: true, v6, ..Kind::default() };
            let packet =
                |dst| Sent::new(kind, from.mac(), dst, MAX_DATAGRAMS * 9 + more, Ask::Segments(9));
            let (to_host, to_guest) = (packet(mac_of(HOST)), packet(to.mac()));
            let (header, frame) = to_host.packet.sent(Ask::Segments(9));
            send(from, &header, &frame);
            let frames = if more == 0 { 1 } else { MAX_DATAGRAMS + 1 };
            for n in 0..frames {
                let got = host.receive(SOON).unwrap_or_else(|| panic!("missing: {n} of {frames}"));
                let (header, frame) = got.split_at(HEADER_LEN);
                verify_received(&Header::parse(header), frame).expect("in order");
            }
            exchange(from, to, &[to_guest], &mut work);
        }
        let c = d.counters();
        let cut = Work { segmented: 2, segments: 2 * (MAX_DATAGRAMS as u64 + 1), ..work };
        assert_eq!((Work::counted(&c, "up"), Work::counted(&c, "p1")), (cut, work));
        assert_eq!((work.segmented, work.segments), (cut.segmented, cut.segments));
        finish(d, vms);
    });
}

/// Of packets with less than two segments to segment the kernel makes an error; packets beyond its
/// limit it segments itself.
pub fn kernel_sends(sent: &Sent) -> bool {
    let segments = match sent.ask {
        Ask::Segments(size) => sent.packet.payload.len().div_ceil(size.into()),
        _ => 2,
    };
    segments > 1 && sent.packet.bytes.len() < GSO_MAX
}

/// The kernel leaves to guests what it likes: each gets what it can take.
#[test]
fn the_kernel_to_guests() {
    in_namespace(|| {
        let d = daemon(6);
        let mut vms = guests(&d);
        let host = Host::open_with_headers("tap0");
        introduce_host(&host, &mut vms);
        let cwr = Kind::plain().filter(|k| !k.udp).map(|k| Kind { cwr: true, ..k });
        let kinds: Vec<Kind> = Kind::all().chain(cwr).collect();
        for to in &mut vms {
            let mut work = Work::default();
            for &kind in &kinds {
                let mut packets = Sent::all(kind, u64::MAX, mac_of(HOST), to.mac());
                packets.retain(kernel_sends);
                exchange_by(|h, frame| send_out(&host, h, frame), to, &packets, &mut work);
            }
            let port = format!("p{}", to.cfg.id);
            assert_eq!(Work::counted(&d.counters(), &port), work, "{port}");
        }
        finish(d, vms);
    });
}

/// Between a guest in a VLAN and a TAP that is its trunk the tag comes and goes, and what is left
/// to the receiver begins where the headers are then.
#[test]
fn offloads_move_with_the_tag_of_a_trunk() {
    in_namespace(|| {
        let d = Daemon::with_ports(&[",vlan=10"], &["--tap", "up,ifname=tap0,trunk=10"]);
        let mut vms = [connect(&d, 0, feat::OFFLOADS, true)];
        let host = Host::open_with_headers("tap0");
        let tagged = |header: &Header, frame: &[u8]| {
            let (summed, cut) = (header.flags & NEEDS_CSUM != 0, header.gso_type != GSO_NONE);
            let csum_start = header.csum_start + if summed { 4 } else { 0 };
            let hdr_len = header.hdr_len + if cut { 4 } else { 0 };
            let frame = [&frame[..12], &[0x81, 0, 0, 10], &frame[12..]].concat();
            (Header { csum_start, hdr_len, ..*header }, frame)
        };
        let packets = |from, to| {
            Kind::plain().flat_map(move |kind| {
                [(700, Ask::Nothing), (700, Ask::Sum), (9000, Ask::Segments(kind.mss()))]
                    .map(|(len, ask)| Sent::new(kind, from, to, len, ask))
            })
        };
        let from = vms[0].mac();
        for sent in packets(from, mac_of(HOST)) {
            let (header, frame) = sent.packet.sent(sent.ask);
            send(&mut vms[0], &header, &frame);
            let got = host.receive(SOON).unwrap_or_else(|| panic!("missing: {:?}", sent.ask));
            let (mut want, bytes) = sent.packet.received(sent.ask, u64::MAX).remove(0);
            want.hdr_len = 0;
            // The kernel has taken the tag out again.
            assert_eq!(from_kernel(&got), want, "{:?}", sent.packet.kind);
            assert!(got[HEADER_LEN..] == bytes, "{:?} {:?}: bytes", sent.packet.kind, sent.ask);
        }
        let back: Vec<Sent> = packets(mac_of(HOST), from).collect();
        let out = |header: &Header, frame: &[u8]| {
            let (header, frame) = tagged(header, frame);
            send_out(&host, &header, &frame);
        };
        exchange_by(out, &mut vms[0], &back, &mut Work::default());
        finish(d, vms.into());
    });
}

/// Datagrams between a guest and a socket of the kernel, which checks what it gets.
#[test]
fn datagrams_to_and_from_a_socket() {
    in_namespace(|| {
        let d = daemon(6);
        let mut vms = guests(&d);
        ip("link set dev tap0 address 02:56:53:00:00:09");
        ip("addr add 10.0.0.73/24 dev tap0");
        let host = Host::open_with_headers("tap0");
        introduce_host(&host, &mut vms);
        let socket = UdpSocket::bind("10.0.0.73:5000").expect("bind");
        socket.set_read_timeout(Some(SOON)).expect("time limit");
        for vm in &mut vms {
            let id = vm.cfg.id;
            let mac = format!("02:56:53:00:00:{id:02x}");
            ip(&format!("neigh replace 10.0.0.{} lladdr {mac} dev tap0", 100 + id));
            to_socket(vm, &socket);
            from_socket(&socket, vm);
        }
        // The packet socket saw all that, too.
        drop(host);
        finish(d, vms);
    });
}

/// Each datagram of each packet comes out of the socket, whole and in order.
fn to_socket(vm: &mut Vm, socket: &UdpSocket) {
    let kind = Kind { udp: true, ..Kind::default() };
    let mut buffer = vec![0; 1 << 16];
    for sent in Sent::all(kind, vm.cfg.features, vm.mac(), mac_of(HOST)) {
        let (header, frame) = sent.packet.sent(sent.ask);
        send(vm, &header, &frame);
        let size = match header.gso_type {
            GSO_NONE => sent.packet.payload.len(),
            _ => header.gso_size.into(),
        };
        for (n, want) in sent.packet.payload.chunks(size).enumerate() {
            let len = socket.recv(&mut buffer).unwrap_or_else(|e| {
                panic!("guest {}: datagram {n}: {e}: {:?}", vm.cfg.id, sent.ask)
            });
            assert!(buffer[..len] == *want, "datagram {n} of {:?}: {len} bytes", sent.ask);
        }
    }
}

/// The same the other way, with `UDP_SEGMENT` and without.
fn from_socket(socket: &UdpSocket, vm: &mut Vm) {
    let to = format!("10.0.0.{}:4000", 100 + vm.cfg.id);
    for (size, len) in [(0, 1), (0, 1472), (1472, 1473), (1000, 60_000), (1472, 50 * 1472)] {
        let len = len.min(65_507);
        udp_segment(socket, size);
        let bytes = payload(len as u64, len);
        assert_eq!(socket.send_to(&bytes, &to).expect("send"), len);
        let mut got: Vec<u8> = Vec::new();
        while got.len() < len {
            let Some((header, frame)) = vm.rx[0].take(1, SOON).pop() else {
                panic!("guest {}: {} bytes of {len} came", vm.cfg.id, got.len());
            };
            // A large one, finished, has a checksum for all of it: none that is on any wire.
            let whole = finish_sum(&header, &frame);
            got.extend(verify(&whole).expect("a packet in order").payload);
        }
        assert!(got == bytes, "guest {}: other bytes", vm.cfg.id);
    }
    udp_segment(socket, 0);
}

fn udp_segment(socket: &UdpSocket, size: libc::c_int) {
    let at = (&raw const size).cast();
    let len = size_of_val(&size) as libc::socklen_t;
    // SAFETY: `at` points to a live value of `len` bytes.
    let done =
        unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, at, len) };
    assert_eq!(done, 0, "UDP_SEGMENT: {}", std::io::Error::last_os_error());
}

/// What is left to the kernel really gets done: behind a bridge and a pair of virtual interfaces
/// without offloads, every packet is an ordinary one with the right checksum. tcpdump is the judge.
#[test]
fn what_leaves_the_host_is_in_order() {
    for tool in ["tcpdump", "ethtool"] {
        if Command::new(tool).arg("--version").output().is_err() {
            return skip(&format!("needs {tool}"));
        }
    }
    in_namespace(|| {
        let d = daemon(6);
        let mut vms = guests(&d);
        behind_a_bridge();
        let host = Host::open_with_headers("far");
        introduce_host(&host, &mut vms);
        let mut tcpdump = Tcpdump::start("far");
        let mut frames = 0;
        let kinds: Vec<Kind> = Kind::all().collect();
        for from in &mut vms {
            for &kind in &kinds {
                for sent in Sent::all(kind, from.cfg.features, from.mac(), mac_of(HOST)) {
                    let (header, frame) = sent.packet.sent(sent.ask);
                    send(from, &header, &frame);
                    // As for a receiver without offloads.
                    let expected = sent.packet.received(sent.ask, 0).len();
                    take_all(&host, &sent.packet, expected);
                    frames += expected;
                }
            }
        }
        let (seen, bad) = tcpdump.finish(frames);
        assert!(bad.is_empty(), "{} lines like {}", bad.len(), bad[0]);
        assert_eq!(seen, frames, "checksums that tcpdump found right");
        finish(d, vms);
    });
}

/// tap0 and one end of the pair in a bridge; the pair's near end leaves nothing to the far one.
fn behind_a_bridge() {
    for words in [
        // Without news of its own (IGMP).
        "link add br0 type bridge mcast_snooping 0",
        "link add near type veth peer name far",
        "link set tap0 master br0",
        "link set near master br0",
        "link set near up",
        "link set far up",
        "link set br0 up",
    ] {
        ip(words);
    }
    let off = "-K near tx off tso off gso off sg off tx-udp-segmentation off";
    let run = Command::new("ethtool").args(off.split(' ')).output().expect("run ethtool");
    assert!(run.status.success(), "ethtool: {}", String::from_utf8_lossy(&run.stderr));
    // The kernel tells a bridge of its ports' carriers when it finds the time.
    let ports = || ip("-d -o link show master br0").matches("state forwarding").count();
    assert!(wait_for(SOON, || ports() == 2), "{}", ip("-d -o link show master br0"));
}

/// The far end's packets make up what was sent: payloads in order, each packet complete.
fn take_all(host: &Host, packet: &Packet, frames: usize) {
    let mut got: Vec<u8> = Vec::new();
    for n in 0..frames {
        let frame = host.receive(SOON);
        let frame = frame.unwrap_or_else(|| panic!("{:?}: {n} of {frames} came", packet.kind));
        let (header, frame) = frame.split_at(HEADER_LEN);
        assert_eq!(from_kernel(header), Header::default(), "{:?}", packet.kind);
        match verify(frame) {
            Ok(parts) => got.extend(parts.payload),
            Err(e) => panic!("{:?}, frame {n} of {frames}: {e}", packet.kind),
        }
    }
    assert!(got == packet.payload, "{:?}: payload", packet.kind);
}

/// A capture whose verdicts on checksums are counted.
struct Tcpdump {
    child: Child,
    lines: std::sync::mpsc::Receiver<String>,
}

impl Tcpdump {
    fn start(ifname: &str) -> Tcpdump {
        let mut child = Command::new("tcpdump")
            .args(["-i", ifname, "-n", "-vv", "-l", "-B", "65536", "-Q", "in"])
            .args(["ether", "dst", "02:56:53:00:00:09"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("run tcpdump");
        let (send, lines) = std::sync::mpsc::channel();
        let out = BufReader::new(child.stdout.take().expect("piped"));
        std::thread::spawn(move || {
            out.lines().map_while(Result::ok).try_for_each(|l| send.send(l))
        });
        // It says so when it listens.
        let mut told = String::new();
        let mut complaints = BufReader::new(child.stderr.take().expect("piped"));
        while !told.contains("listening on") {
            told.clear();
            let n = complaints.read_line(&mut told).expect("read");
            assert!(n > 0, "tcpdump ended");
        }
        Tcpdump { child, lines }
    }

    /// Waits for the verdicts on `frames` packets; how many were right, and the other lines.
    fn finish(&mut self, frames: usize) -> (usize, Vec<String>) {
        let (mut seen, mut bad) = (0, Vec::new());
        while seen + bad.len() < frames {
            let Ok(line) = self.lines.recv_timeout(SOON) else { break };
            if line.contains("(correct)") || line.contains("udp sum ok") {
                seen += 1;
            }
            if ["incorrect", "bad cksum", "bad udp"].iter().any(|bad| line.contains(bad)) {
                bad.push(line);
            }
        }
        std::thread::sleep(QUIET);
        // A packet too many is as wrong as a bad one.
        bad.extend(self.lines.try_iter());
        (seen, bad)
    }
}

impl Drop for Tcpdump {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
