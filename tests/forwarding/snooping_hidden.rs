//! `--multicast-snooping` against guests that hide messages of IGMP and MLD from the switch and not
//! from hosts: behind other Ethernet addresses, tags and headers, in fragments. A host that heard
//! another's report would not report itself, and lose its group; a querier that heard a guest's
//! query would give up. Streams stand for the guests; all frames are built here.

use std::process::Command;
use std::time::Duration;

use base::limits::MEMBERSHIP_RECORDS_PER_SECOND;
use testkit::SOON;
use testkit::host::in_namespace;
use testkit::proc::{Daemon, Dir, wait_for};
use testkit::relay::{INTERFACE, Stack};
use testkit::skip;
use testkit::stream::Peer;

use crate::snooping::sum;

/// A port with a router, a member, the attacker, whose port has a guard, and a sender.
const NAMES: [&str; 4] = ["r", "v", "x", "s"];
const ALL_HOSTS: [u8; 4] = [224, 0, 0, 1];
const GROUP: [u8; 4] = [239, 1, 1, 1];
const ALL_NODES: [u8; 16] = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const GROUP6: [u8; 16] = [0xff, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 2];
const ALERT: [u8; 8] = [58, 0, 5, 2, 0, 0, 1, 0];
/// Ethernet destinations, none of which is a group's.
const OTHERS: [[u8; 6]; 4] =
    [[0xff; 6], [3, 0, 0, 0, 0, 1], [0x33, 0x33, 0, 0, 9, 9], [2, 0x79, 0, 0, 0, 1]];

fn mac(n: usize) -> [u8; 6] {
    [2, 0x79, 0, 0, 0, n as u8]
}

/// A packet of IGMP from a port, with these bits in the place of the fragment's.
fn igmp_packet(n: usize, to: [u8; 4], fragment: u16, message: &[u8]) -> Vec<u8> {
    let [high, low] = (24 + message.len() as u16).to_be_bytes();
    let [more, offset] = fragment.to_be_bytes();
    let mut header = vec![0x46, 0, high, low, 0, 1, more, offset, 1, 2, 0, 0, 10, 79, 0, n as u8];
    header.extend(to);
    header.extend([0x94, 4, 0, 0]);
    let right = sum(&[&header]);
    header[10..12].copy_from_slice(&right);
    [&header, message].concat()
}

fn igmp_message(kind: u8, code: u8, group: [u8; 4], more: &[u8]) -> Vec<u8> {
    let mut message = [&[kind, code, 0, 0][..], &group, more].concat();
    let right = sum(&[&message]);
    message[2..4].copy_from_slice(&right);
    message
}

fn eth(to: [u8; 6], n: usize, tags: &[u8], kind: [u8; 2], packet: &[u8]) -> Vec<u8> {
    let mut frame = [&to[..], &mac(n), tags, &kind, packet].concat();
    frame.resize(frame.len().max(60), 0);
    frame
}

fn mac4(to: [u8; 4]) -> [u8; 6] {
    [1, 0, 0x5e, to[1] & 0x7f, to[2], to[3]]
}

fn mac6(to: [u8; 16]) -> [u8; 6] {
    [0x33, 0x33, to[12], to[13], to[14], to[15]]
}

/// A packet of MLD from a port, behind these headers, of which the first is of this kind.
fn mld_packet(n: usize, to: [u8; 16], (first, headers): (u8, &[u8]), message: &[u8]) -> Vec<u8> {
    let from = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, n as u8];
    let mut message = message.to_vec();
    let len = (message.len() as u16).to_be_bytes();
    let right = sum(&[&from, &to, &len, &[0, 58], &message]);
    message[2..4].copy_from_slice(&right);
    let [high, low] = ((headers.len() + message.len()) as u16).to_be_bytes();
    let header = [0x60, 0, 0, 0, high, low, first, 1];
    [&header[..], &from, &to, headers, &message].concat()
}

fn mld_message(kind: u8, code: u16, group: [u8; 16]) -> Vec<u8> {
    let [high, low] = code.to_be_bytes();
    [&[kind, 0, 0, 0, high, low, 0, 0][..], &group].concat()
}

/// The frames of a message of IGMP of port `n` in each wrapping, the canonical one first.
fn igmp(n: usize, to: [u8; 4], message: &[u8]) -> Vec<(String, Vec<u8>)> {
    let packet = igmp_packet(n, to, 0, message);
    let own = mac4(to);
    let mut all = vec![("canonical".to_owned(), eth(own, n, &[], [8, 0], &packet))];
    for other in OTHERS {
        all.push((format!("to {other:02x?}"), eth(other, n, &[], [8, 0], &packet)));
        let tag = [0x81, 0, 0, 0];
        all.push((format!("to {other:02x?}, a tag"), eth(other, n, &tag, [8, 0], &packet)));
    }
    for (word, bits) in [("first", 0x2000), ("later", 2)] {
        let packet = igmp_packet(n, to, bits, message);
        all.push((format!("{word} fragment"), eth(own, n, &[], [8, 0], &packet)));
    }
    let mut long = message.to_vec();
    long.resize(3_000, 0);
    all.push(("3,000 bytes".into(), eth(own, n, &[], [8, 0], &igmp_packet(n, to, 0, &long))));
    all
}

fn mld(n: usize, to: [u8; 16], message: &[u8]) -> Vec<(String, Vec<u8>)> {
    let own = mac6(to);
    let frame =
        |to_mac, headers| eth(to_mac, n, &[], [0x86, 0xdd], &mld_packet(n, to, headers, message));
    let mut all = vec![("canonical".to_owned(), frame(own, (0, &ALERT)))];
    let others = OTHERS.map(|other| (format!("to {other:02x?}"), frame(other, (0, &ALERT))));
    all.extend(others);
    let options = [58, 0, 1, 4, 0, 0, 0, 0];
    for (word, first, headers) in [
        ("no hop-by-hop", 58, &[][..]),
        ("destination options", 60, &options),
        ("routing", 43, &options),
        ("alert and options", 0, &[60, 0, 5, 2, 0, 0, 1, 0, 58, 0, 1, 4, 0, 0, 0, 0]),
        ("atomic fragment", 44, &[58, 0, 0, 0, 0, 0, 0, 1]),
        ("first fragment", 44, &[58, 0, 0, 1, 0, 0, 0, 1]),
    ] {
        all.push((word.to_owned(), frame(own, (first, headers))));
    }
    all
}

struct Lab {
    peers: Vec<Peer>,
    d: Daemon,
    _dir: Dir,
}

impl Lab {
    fn new(more: &[&str]) -> Lab {
        let dir = Dir::new();
        let socket = |name: &str| dir.path().join(name).display().to_string();
        let keys = [
            "multicast-router=on",
            "guard=off",
            "guard=on,allowed-macs=02:79:00:00:00:03,ethertypes=0x88b5",
            "guard=off",
        ];
        let streams = NAMES
            .iter()
            .zip(keys)
            .map(|(name, keys)| format!("--stream={name},socket={},{keys}", socket(name)));
        let all: Vec<String> = streams.chain(["--multicast-snooping".to_owned()]).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).chain(more.iter().copied()).collect();
        let d = Daemon::with(0, &all);
        let peers = NAMES.iter().map(|name| Peer::connect(&dir.path().join(name))).collect();
        let mut lab = Lab { peers, d, _dir: dir };
        for n in 1..=NAMES.len() {
            let hello = eth([0xff; 6], n, &[], [0x88, 0xb5], b"hello");
            lab.peers[n - 1].send(&hello);
        }
        // A query counts for hosts that came some seconds before it.
        std::thread::sleep(Duration::from_millis(2_100));
        lab
    }

    /// The names of the ports that a frame of port `n` reaches.
    fn reached(&mut self, n: usize, frame: &[u8]) -> Vec<&'static str> {
        // Behind it, one that reaches all. Streams have frames in order.
        let end = eth([0xff; 6], 4, &[], [0x88, 0xb5], b"the end of a step");
        let mut own_end = end.clone();
        own_end[6..12].copy_from_slice(&mac(n));
        self.peers[n - 1].send(frame);
        self.peers[n - 1].send(&own_end);
        let mut names = Vec::new();
        for (at, name) in NAMES.iter().enumerate().filter(|(at, _)| at + 1 != n) {
            loop {
                let got = self.peers[at].receive(SOON).expect("the end of the step");
                if got == own_end {
                    break;
                }
                if got == frame && !names.contains(name) {
                    names.push(*name);
                }
            }
        }
        names
    }

    /// A querier asks for all groups, and the member and the attacker report one.
    fn begin(&mut self) {
        let query = igmp(1, ALL_HOSTS, &igmp_message(0x11, 10, [0; 4], &[])).swap_remove(0).1;
        assert_eq!(self.reached(1, &query), ["v", "x", "s"]);
        let zero = mld_message(130, 1000, [0; 16]);
        let query = mld(1, ALL_NODES, &zero).swap_remove(0).1;
        assert_eq!(self.reached(1, &query), ["v", "x", "s"]);
        for n in [2, 3] {
            let report = igmp(n, GROUP, &igmp_message(0x16, 0, GROUP, &[])).swap_remove(0).1;
            assert_eq!(self.reached(n, &report), ["r"]);
            let report = mld(n, GROUP6, &mld_message(131, 0, GROUP6)).swap_remove(0).1;
            assert_eq!(self.reached(n, &report), ["r"]);
        }
    }
}

/// Each case twice: before a querier is heard, and while one is.
#[test]
fn no_report_of_a_guest_reaches_a_host_and_no_query_anybody() {
    let mut lab = Lab::new(&[]);
    let reports = [
        igmp(3, GROUP, &igmp_message(0x12, 0, GROUP, &[])),
        igmp(3, GROUP, &igmp_message(0x16, 0, GROUP, &[])),
        igmp(3, [224, 0, 0, 2], &igmp_message(0x17, 0, GROUP, &[])),
        igmp(3, [224, 0, 0, 22], &igmp_message(0x22, 0, [0, 0, 0, 1], &[4, 0, 0, 0, 239, 1, 1, 1])),
        mld(3, GROUP6, &mld_message(131, 0, GROUP6)),
        mld(3, GROUP6, &mld_message(132, 0, GROUP6)),
        mld(3, GROUP6, &[&[143, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0][..], &GROUP6].concat()),
    ];
    let queries = [
        igmp(3, ALL_HOSTS, &igmp_message(0x11, 10, [0; 4], &[])),
        igmp(3, ALL_HOSTS, &igmp_message(0x11, 0, [0; 4], &[])),
        igmp(3, GROUP, &igmp_message(0x11, 10, GROUP, &[2, 125, 0, 0])),
        mld(3, ALL_NODES, &mld_message(130, 1000, [0; 16])),
        mld(3, GROUP6, &mld_message(130, 1000, GROUP6)),
    ];
    for step in ["before a querier is heard", "after"] {
        let mut dropped = [0, 0];
        let before = ["querier", "membership"]
            .map(|name| lab.d.counters().get("x", &format!("in drop.{name}")));
        let guarded = lab.d.counters().get("x", "in drop.guard");
        for (word, frame) in reports.iter().flatten() {
            let reached = lab.reached(3, frame);
            let may_be_read = word == "canonical" || word == "3,000 bytes";
            assert_eq!(
                reached.is_empty(),
                !may_be_read,
                "{step}, {word}: {reached:?}, {frame:02x?}"
            );
            assert!(reached.iter().all(|name| *name == "r"), "{step}, {word}: {reached:?}");
            dropped[1] += u64::from(!may_be_read);
        }
        for (word, frame) in queries.iter().flatten() {
            let reached = lab.reached(3, frame);
            assert!(reached.is_empty(), "{step}, {word}: {reached:?}, {frame:02x?}");
            dropped[usize::from(word != "canonical")] += 1;
        }
        let after = ["querier", "membership"]
            .map(|name| lab.d.counters().get("x", &format!("in drop.{name}")));
        let guarded = lab.d.counters().get("x", "in drop.guard") - guarded;
        assert_eq!(after[0] - before[0], dropped[0], "{step}");
        assert_eq!(after[1] - before[1] + guarded, dropped[1], "{step}");
        // A router's queries reach all; what it hides reaches nobody.
        for (word, frame) in igmp(1, ALL_HOSTS, &igmp_message(0x11, 10, [0; 4], &[])) {
            let reached = lab.reached(1, &frame);
            let expected: &[_] = if word == "canonical" { &["v", "x", "s"] } else { &[] };
            assert_eq!(reached, expected, "{step}, {word}");
        }
        lab.begin();
    }
}

/// What is no message passes: a large ping in fragments, multicast routing's IGMP.
#[test]
fn other_frames_pass() {
    let mut lab = Lab::new(&[]);
    lab.begin();
    let ping = mld_message(128, 0, GROUP6);
    let unknown = igmp_message(0x13, 1, [0; 4], &[]);
    let to = |address: [u8; 6], headers| {
        let packet = mld_packet(3, ALL_NODES, headers, &ping);
        eth(address, 3, &[], [0x86, 0xdd], &packet)
    };
    let own = mac6(ALL_NODES);
    for frame in [
        to(own, (58, &[])),
        to(own, (44, &[58, 0, 0, 1, 0, 0, 0, 1])),
        to(own, (44, &[17, 0, 0, 16, 0, 0, 0, 1])),
        to(own, (44, &[58, 0, 0, 16, 0, 0, 0, 1])),
        eth(mac4([224, 0, 0, 4]), 3, &[], [8, 0], &igmp_packet(3, [224, 0, 0, 4], 0, &unknown)),
        eth([0xff; 6], 3, &[], [8, 0], &igmp_packet(3, [224, 0, 0, 4], 0, &unknown)),
    ] {
        assert_eq!(lab.reached(3, &frame), ["r", "v", "s"], "{frame:02x?}");
    }
    let mut later = to(mac(2), (44, &[58, 0, 0, 16, 0, 0, 0, 1]));
    later[38] = 0xfe;
    assert_eq!(lab.reached(3, &later), ["v"], "to a station");
}

/// Pings a group with a message of so many bytes, three times, and says how many hosts answered.
/// `ping` itself does not ask a group by fragments.
const PING: &str = r#"
import socket, sys
interface, group, length = sys.argv[1], sys.argv[2], int(sys.argv[3])
icmp = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
at = socket.if_nametoindex(interface)
icmp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, at)
icmp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 0)
icmp.settimeout(1)
payload = bytes(range(256)) * (length // 256 + 1)
answers = 0
for number in range(3):
    message = bytes([128, 0, 0, 0, 7, 7, 0, number]) + payload[:length]
    icmp.sendto(message, (group, 0, 0, at))
    try:
        while True:
            came = icmp.recv(65536)
            if came[0] == 129 and came[4:] == message[4:]:
                answers += 1
                break
    except TimeoutError:
        pass
print(answers)
"#;

/// Linux asks all nodes of its link, and a group with one member, by a packet that takes three
/// frames.
#[test]
fn a_ping_to_a_group_that_is_longer_than_a_frame_is_answered() {
    if !Command::new("python3").arg("-V").output().is_ok_and(|output| output.status.success()) {
        return skip("needs python3");
    }
    in_namespace(|| {
        let dir = Dir::new();
        let path = |name: &str| dir.path().join(name);
        let stream = |name| format!("--stream={name},socket={}", path(name).display());
        let [one, other] = ["one", "other"].map(stream);
        let d = Daemon::with(0, &[&one, &other, "--multicast-snooping"]);
        let stacks = ["one", "other"].map(|name| {
            let stack = Stack::attach(&path(name), &format!("02:79:00:00:01:{:02x}", name.len()));
            stack.sh(&format!(
                "sysctl -qw net.ipv6.conf.{INTERFACE}.disable_ipv6=0
                 sysctl -qw net.ipv6.conf.{INTERFACE}.accept_dad=0
                 ip link set lo up; ip link set {INTERFACE} up"
            ));
            stack
        });
        let ping = |len: &str, group: &str| {
            let args = ["-c", PING, INTERFACE, group, len];
            let output = stacks[0].command("python3").args(args).output().expect("run python3");
            String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).trim().to_owned()
        };
        for group in ["ff02::1", "ff02::1:ff00:105"] {
            let came = wait_for(SOON, || ping("56", group) == "3");
            assert!(came, "control, {group}: {}", ping("56", group));
            assert_eq!(ping("3000", group), "3", "{group}");
        }
        assert_eq!(d.counters().get("one", "in drop.membership"), 0);
    });
}

/// Frames of a group reach its member alone, also while another guest, served by another worker,
/// reports 180 groups a frame without a pause.
#[test]
fn a_guest_that_reports_without_a_pause_floods_nobodys_groups() {
    let mut lab = Lab::new(&["--workers=2"]);
    lab.begin();
    std::thread::sleep(Duration::from_secs(4));
    let datagram = |tag: u32| {
        let mut packet = igmp_packet(4, GROUP, 0, &tag.to_be_bytes());
        packet[9] = 17;
        packet[10..12].fill(0);
        let right = sum(&[&packet[..24]]);
        packet[10..12].copy_from_slice(&right);
        eth(mac4(GROUP), 4, &[], [8, 0], &packet)
    };
    // Who gets a limited frame beside the router and members: the attacker does once it has
    // reported more than it may.
    assert_eq!(lab.reached(4, &datagram(0)), ["r", "v", "x"], "control");
    let leave = |lab: &mut Lab| lab.d.counters().get("s", "multicast_limited");
    let before = leave(&mut lab);
    let mut reporter = lab.peers[2].socket.try_clone().expect("a socket");
    let frames: Vec<Vec<u8>> = (0..8u32)
        .map(|k| {
            let records = (0..180u32).flat_map(|n| {
                [&[4, 0, 0, 0][..], &(0xefc8_0000 + 180 * k + n).to_be_bytes()].concat()
            });
            let message = igmp_message(0x22, 0, [0, 0, 0, 180], &records.collect::<Vec<_>>());
            igmp(3, [224, 0, 0, 22], &message).swap_remove(0).1
        })
        .collect();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let is_over = || stop.load(std::sync::atomic::Ordering::Relaxed);
    let sent = std::thread::scope(|scope| {
        scope.spawn(|| {
            use std::io::Write;
            while !is_over() {
                for frame in &frames {
                    reporter.write_all(&testkit::stream::packed(frame)).expect("write");
                }
            }
        });
        // The router reads, so that its stream does not fill.
        let (mut router, others) = {
            let mut peers = std::mem::take(&mut lab.peers).into_iter();
            (peers.next().expect("a router"), peers.collect::<Vec<_>>())
        };
        lab.peers = others;
        let reading = scope.spawn(move || while router.receive(SOON).is_some() {});
        let frames = 2_000;
        for n in 0..frames {
            lab.peers[2].send(&datagram(n));
            std::thread::sleep(Duration::from_millis(1));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let _ = reading.join();
        u64::from(frames)
    });
    let limited = || lab.d.counters().get("s", "multicast_limited") - before;
    assert!(wait_for(SOON, || limited() >= sent), "{} of {sent} frames were limited", limited());
    assert!(lab.d.counters().get("x", "multicast_too_many") > 0);
    assert!(u64::from(MEMBERSHIP_RECORDS_PER_SECOND) > 180);
}
