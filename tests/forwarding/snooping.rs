//! `--multicast-snooping`: frames of a group reach members and routers while a querier is heard,
//! and all else reaches all. Members are Linux network stacks, which join and answer queries by
//! themselves; the querier's frames are built here.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base::limits::SNOOPING_SWEEP_PAUSE;
use testkit::SOON;
use testkit::host::{Host, in_namespace, index_of, ip};
use testkit::proc::{Daemon, Dir, program, wait_for};
use testkit::relay::{INTERFACE, Stack};
use testkit::skip;
use testkit::stream::Peer;

const UPLINK: &str = "vio0";
const STREAMS: [&str; 5] = ["m1", "m2", "other", "late", "raw"];
/// The querier behind the TAP, and a guest whose frames are built here.
const QUERIER: [u8; 6] = [2, 0x77, 0, 0, 0, 1];
const RAW: [u8; 6] = [2, 0x77, 0, 0, 0, 9];
const ALL_HOSTS: [u8; 4] = [224, 0, 0, 1];
const GROUP: [u8; 4] = [239, 1, 1, 1];
const GROUP6: [u8; 16] = [0xff, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4];
/// A query counts for hosts that came some seconds before it, by whole seconds.
const ATTACHED: Duration = Duration::from_millis(2_100);
/// A query's answers have a second; a group-specific one is sent twice; the switch adds two.
const ANSWERED: Duration = Duration::from_secs(5);
const EXPIRED: Duration = Duration::from_secs(7);

/// Says which probes come in on an interface, and is a member of groups until it gets a line.
const LISTENER: &str = r#"
import select, socket, struct, sys
name, joins = sys.argv[1], sys.argv[2] == "join"
at = socket.if_nametoindex(name)
packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
packets.bind((name, 0))
members = []
if joins:
    four = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    group = socket.inet_aton("239.1.1.1") + bytes(4) + struct.pack("i", at)
    four.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
    six = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    group = socket.inet_pton(socket.AF_INET6, "ff05::102:304") + struct.pack("i", at)
    six.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group)
    members = [four, six]
print("ready", flush=True)
inputs = [packets, sys.stdin]
while True:
    for one in select.select(inputs, [], [])[0]:
        if one is packets:
            try:
                frame = packets.recv(2000)
            except OSError:
                continue  # The interface went down.
            if frame[12:14] == b"\x08\0" and frame[23] == 2 and frame[38] == 0x11:
                print("query from", frame[11], flush=True)
            if frame[12:14] == b"\x86\xdd" and frame[20] == 0 and frame[62] == 130:
                print("query of MLD from", frame[11], flush=True)
            probe = frame.find(b"probe-")
            if probe >= 0:
                print(frame[probe:probe + 10].decode(), flush=True)
        else:
            one.readline()
            [member.close() for member in members]
            inputs = [packets]
            print("left", flush=True)
"#;

pub fn sum(parts: &[&[u8]]) -> [u8; 2] {
    let bytes = parts.concat();
    let word = |pair: &[u8]| u64::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| (*low).into());
    let mut sum: u64 = bytes.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

/// A frame for an IPv4 group. IGMP has a router alert.
fn ipv4(from: [u8; 6], to: [u8; 4], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let alert: &[u8] = if protocol == 2 { &[0x94, 4, 0, 0] } else { &[] };
    let words = 5 + alert.len() / 4;
    let total = (4 * words + payload.len()) as u16;
    let [high, low] = total.to_be_bytes();
    let mut header = vec![0x40 | words as u8, 0, high, low, 0, 0, 0, 0, 1, protocol, 0, 0];
    header.extend([10, 77, 0, from[5]]);
    header.extend(to);
    header.extend(alert);
    let right = sum(&[&header]);
    header[10..12].copy_from_slice(&right);
    let mac = [1, 0, 0x5e, to[1] & 0x7f, to[2], to[3]];
    [&mac[..], &from, &[8, 0], &header, payload].concat()
}

/// A frame for an IPv6 group. ICMPv6 of type 130 has a router alert.
fn ipv6(from: [u8; 6], to: [u8; 16], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let source = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, from[5]];
    let mut payload = payload.to_vec();
    let at = if protocol == 58 { 2 } else { 6 };
    let len = (payload.len() as u16).to_be_bytes();
    let right = sum(&[&source, &to, &len, &[0, protocol], &payload]);
    payload[at..at + 2].copy_from_slice(&right);
    let is_query = protocol == 58 && payload[0] == 130;
    let alert: &[u8] = if is_query { &[58, 0, 5, 2, 0, 0, 1, 0] } else { &[] };
    let [high, low] = ((alert.len() + payload.len()) as u16).to_be_bytes();
    let next = if is_query { 0 } else { protocol };
    let header = [0x60, 0, 0, 0, high, low, next, 1];
    let mac = [0x33, 0x33, to[12], to[13], to[14], to[15]];
    [&mac[..], &from, &[0x86, 0xdd], &header, &source, &to, alert, &payload].concat()
}

/// IGMPv3, of all groups or of one.
fn query(from: [u8; 6], group: [u8; 4]) -> Vec<u8> {
    let mut message = [&[0x11, 10, 0, 0][..], &group, &[2, 125, 0, 0]].concat();
    let right = sum(&[&message]);
    message[2..4].copy_from_slice(&right);
    ipv4(from, if group == [0; 4] { ALL_HOSTS } else { group }, 2, &message)
}

/// MLDv2, the same.
fn query6(from: [u8; 6], group: [u8; 16]) -> Vec<u8> {
    let [high, low] = 1000u16.to_be_bytes();
    let message = [&[130, 0, 0, 0, high, low, 0, 0][..], &group, &[2, 125, 0, 0]].concat();
    let all = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    ipv6(from, if group == [0; 16] { all } else { group }, 58, &message)
}

/// An IGMPv3 report of `count` groups from `first` on.
fn report(from: [u8; 6], first: u32, count: u16) -> Vec<u8> {
    let [high, low] = count.to_be_bytes();
    let mut message = vec![0x22, 0, 0, 0, 0, 0, high, low];
    for group in (first..).take(count.into()) {
        message.extend([4, 0, 0, 0]);
        message.extend(group.to_be_bytes());
    }
    let right = sum(&[&message]);
    message[2..4].copy_from_slice(&right);
    ipv4(from, [224, 0, 0, 22], 2, &message)
}

/// A program that ends with the test, and what it says.
struct Listener {
    child: Child,
    log: PathBuf,
}

impl Listener {
    fn start(mut command: Command, interface: &str, log: PathBuf, joins: bool) -> Listener {
        let output = File::create(&log).expect("a log");
        command.args(["-c", LISTENER, interface, if joins { "join" } else { "listen" }]);
        command.stdin(Stdio::piped()).stdout(output.try_clone().expect("a log")).stderr(output);
        let listener = Listener { child: command.spawn().expect("start python3"), log };
        assert!(wait_for(SOON, || listener.says("ready")), "{}", listener.said());
        listener
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn says(&self, line: &str) -> bool {
        self.said().lines().any(|one| one == line)
    }

    fn leave(&mut self) {
        self.child.stdin.as_mut().expect("a pipe").write_all(b"\n").expect("say it");
        assert!(wait_for(SOON, || self.says("left")), "{}", self.said());
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A switch with snooping, streams, and a TAP with a querier behind it.
struct Lab {
    querier: Host,
    raw: Peer,
    listeners: Vec<(&'static str, Listener)>,
    stacks: Vec<Stack>,
    probes: u32,
    d: Daemon,
    dir: Dir,
}

impl Lab {
    /// `m1` and `m2` are members of the groups; `other` is not, nor is what the TAP leads to.
    fn new() -> Lab {
        let dir = Dir::new();
        let socket = |name: &str| dir.path().join(name).display().to_string();
        let streams = STREAMS.map(|name| format!("--stream={name},socket={}", socket(name)));
        let up = format!("--tap=up,ifname={UPLINK}");
        let control = format!("--control={}", socket("control"));
        let all = [&streams[..], &[up, control, "--multicast-snooping".to_owned()]].concat();
        let d = Daemon::with(0, &all.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(wait_for(SOON, || index_of(UPLINK).is_some()), "{}", d.log());
        ip(&format!("link set {UPLINK} up"));
        let (querier, raw) = (Host::open(UPLINK), Peer::connect(&dir.path().join("raw")));
        let (listeners, stacks) = Default::default();
        let mut lab = Lab { querier, raw, listeners, stacks, probes: 1000, d, dir };
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "python3"]);
        let up = Listener::start(command, UPLINK, lab.dir.path().join("up.log"), false);
        lab.listeners.push(("up", up));
        for (name, joins) in [("m1", true), ("m2", true), ("other", false)] {
            lab.attach(name, joins);
        }
        lab
    }

    fn attach(&mut self, name: &'static str, joins: bool) {
        let n = STREAMS.iter().position(|one| *one == name).expect("a stream");
        let stack = Stack::attach(&self.dir.path().join(name), &format!("02:77:00:00:00:1{n}"));
        stack.sh(&format!(
            "ip link set lo up; ip link set {INTERFACE} up
             ip address add 10.77.0.1{n}/24 dev {INTERFACE}"
        ));
        let log = self.dir.path().join(format!("{name}.log"));
        let listener = Listener::start(stack.command("python3"), INTERFACE, log, joins);
        self.listeners.push((name, listener));
        self.stacks.push(stack);
    }

    fn listener(&mut self, name: &str) -> &mut Listener {
        let found = self.listeners.iter_mut().find(|(one, _)| *one == name);
        &mut found.expect("a listener").1
    }

    fn tag(&mut self) -> String {
        self.probes += 1;
        format!("probe-{}", self.probes)
    }

    /// Who gets a datagram that `raw` sends in a frame of `make`: not before all had another one.
    fn reached(&mut self, make: impl Fn(&[u8]) -> Vec<u8>) -> Vec<&'static str> {
        let [probe, last] = [self.tag(), self.tag()];
        let [datagram, end] = [&probe, &last].map(|tag| {
            [&[0x13, 0x88, 0x13, 0x88, 0, 8 + tag.len() as u8, 0, 0], tag.as_bytes()].concat()
        });
        self.raw.send(&make(&datagram));
        std::thread::sleep(Duration::from_millis(20));
        let mut everyone = ipv4(RAW, [255; 4], 17, &end);
        everyone[..6].fill(0xff);
        self.raw.send(&everyone);
        let have = |line: &str| {
            let got = self.listeners.iter().filter(|(_, listener)| listener.says(line));
            got.map(|(name, _)| *name).collect::<Vec<_>>()
        };
        assert!(wait_for(SOON, || have(&last).len() == self.listeners.len()), "{:?}", have(&last));
        have(&probe)
    }

    fn group(&mut self, group: [u8; 4]) -> Vec<&'static str> {
        self.reached(|datagram| ipv4(RAW, group, 17, datagram))
    }

    fn group6(&mut self, group: [u8; 16]) -> Vec<&'static str> {
        self.reached(|datagram| ipv6(RAW, group, 17, datagram))
    }

    /// The querier asks for all groups, and hosts have answered.
    fn ask(&self) {
        std::thread::sleep(ATTACHED);
        self.querier.send(&query(QUERIER, [0; 4]));
        self.querier.send(&query6(QUERIER, [0; 16]));
        std::thread::sleep(ANSWERED);
    }

    /// What `vioswitchctl` says.
    fn ctl(&self, words: &[&str]) -> String {
        let control = self.dir.path().join("control");
        let mut command = Command::new(program().with_file_name("vioswitchctl"));
        let output = command.arg("--control").arg(control).args(words).output();
        let output = output.expect("run vioswitchctl");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{words:?}: {said}{output:?}");
        said
    }

    /// Those that ended count until they are removed.
    fn memberships(&self) -> u64 {
        let metrics = self.ctl(&["metrics"]);
        let found = metrics
            .lines()
            .find_map(|line| line.strip_prefix("vioswitch_multicast_memberships ")?.parse().ok());
        found.unwrap_or_else(|| panic!("no count of memberships: {metrics}"))
    }

    fn counter(&self, port: &str, name: &str) -> u64 {
        self.d.counters().get(port, name)
    }
}

fn with(test: impl FnOnce(Lab) + Send) {
    let found = Command::new("python3").arg("-V").output();
    if !found.is_ok_and(|output| output.status.success()) {
        return skip("needs python3");
    }
    in_namespace(|| test(Lab::new()));
}

const ALL: [&str; 4] = ["up", "m1", "m2", "other"];

#[test]
fn members_and_routers_get_a_group_while_a_querier_is_heard() {
    with(|mut lab| {
        assert_eq!(lab.group(GROUP), ALL, "without a querier");
        assert_eq!(lab.group6(GROUP6), ALL, "without a querier");
        lab.ask();
        assert_eq!(lab.group(GROUP), ["up", "m1", "m2"]);
        assert_eq!(lab.group6(GROUP6), ["up", "m1", "m2"]);
        assert_eq!(lab.counter("raw", "multicast_limited"), 2);
        let shown = lab.ctl(&["mdb", "show"]);
        let rows = shown.lines().skip(1).map(|row| row.split_whitespace().collect::<Vec<_>>());
        let rows: Vec<_> = rows.map(|row| [&row[..3], &row[row.len() - 1..]].concat()).collect();
        let members = [("239.1.1.1", "m1"), ("239.1.1.1", "m2"), ("ff05::102:304", "m1")];
        let members = members.into_iter().chain([("ff05::102:304", "m2")]);
        let members = members.map(|(group, port)| ["member", group, port, "limited"]);
        let first = [
            ["querier", "igmp", "up", "heard"],
            ["querier", "mld", "up", "heard"],
            ["router", "all", "up", "-"],
        ];
        assert_eq!(rows, first.into_iter().chain(members).collect::<Vec<_>>(), "{shown}");
        let shown = lab.ctl(&["--json", "mdb", "show", "m1"]);
        assert_eq!(shown.matches(r#""role": "member""#).count(), 2, "{shown}");
        assert!(shown.contains(r#""age": "#) && !shown.contains("querier"), "{shown}");
        let told = lab.ctl(&["trace", "raw", "src=02:77:00:00:00:09", "dst=01:00:5e:01:01:01"]);
        let members = "group 239.1.1.1: members, routers, and ports not asked yet are";
        assert!(told.contains(&format!("{members} 'up', 'm1', 'm2'")), "{told}");
        assert!(told.contains("not to 'other': it is no member of the group"), "{told}");
        assert!(told.contains("it reaches 3 ports"), "{told}");

        // Groups of a link: mDNS, LLMNR, VRRP, neighbour discovery. And one without members.
        for group in [[224, 0, 0, 251], [224, 0, 0, 252], [224, 0, 0, 18], [239, 9, 9, 9]] {
            assert_eq!(lab.group(group), ALL, "{group:?}");
        }
        let solicited = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 0x12];
        let mdns = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xfb];
        let unknown = [0xff, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 9, 9, 9];
        for group in [solicited, mdns, unknown] {
            assert_eq!(lab.group6(group), ALL, "{group:?}");
        }
        // The Ethernet address of the group, and another one's in IP.
        let twin = lab.reached(|datagram| ipv4(RAW, [239, 129, 1, 1], 17, datagram));
        assert_eq!(twin, ALL, "a group that shares the Ethernet address");

        // Who leaves is a member until the querier asked about the group.
        lab.listener("m1").leave();
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(lab.group(GROUP), ["up", "m1", "m2"]);
        lab.querier.send(&query(QUERIER, GROUP));
        lab.querier.send(&query6(QUERIER, GROUP6));
        std::thread::sleep(EXPIRED);
        assert_eq!(lab.group(GROUP), ["up", "m2"]);
        assert_eq!(lab.group6(GROUP6), ["up", "m2"]);
    });
}

#[test]
fn a_port_that_hears_no_query_gets_all() {
    with(|mut lab| {
        lab.ask();
        lab.attach("late", false);
        assert_eq!(lab.group(GROUP), ["up", "m1", "m2", "late"]);
        // The queries reach no other port than it now.
        lab.ctl(&["stream", "set", "other", "isolated=on"]);
        lab.ctl(&["tap", "set", "up", "isolated=on"]);
        lab.ask();
        assert_eq!(lab.group(GROUP), ["up", "m1", "m2", "other"]);
        assert_eq!(lab.group6(GROUP6), ["up", "m1", "m2", "other"]);
    });
}

#[test]
fn a_port_that_was_in_another_bridge_gets_all() {
    with(|mut lab| {
        lab.ask();
        assert_eq!(lab.group(GROUP), ["up", "m1", "m2"]);
        assert_eq!(lab.memberships(), 4);
        lab.ctl(&["stream", "set", "m2", "bridge=elsewhere"]);
        assert_eq!(lab.memberships(), 2);
        lab.ctl(&["stream", "set", "other", "bridge=elsewhere"]);
        for back in ["m2", "other"] {
            lab.ctl(&["stream", "set", back, "bridge=default"]);
        }
        assert_eq!(lab.memberships(), 2, "it is not known what the ports are members of");
        assert_eq!(lab.group(GROUP), ALL);
    });
}

#[test]
#[ignore = "full"]
fn memberships_that_ended_are_removed() {
    with(|mut lab| {
        lab.ask();
        assert_eq!(lab.memberships(), 4);
        lab.listener("m1").leave();
        lab.querier.send(&query(QUERIER, GROUP));
        lab.querier.send(&query6(QUERIER, GROUP6));
        assert!(wait_for(2 * SNOOPING_SWEEP_PAUSE, || lab.memberships() == 2));
    });
}

/// The query in a packet that says that more follows: no host obeys it, and Linux's bridge does.
fn fragment(mut query: Vec<u8>) -> Vec<u8> {
    query[20] |= 0x20;
    query[24..26].fill(0);
    let right = sum(&[&query[14..38]]);
    query[24..26].copy_from_slice(&right);
    query
}

/// Ethernet addresses at which hosts and bridges read a message, and which are no group's.
const ELSEWHERE: [[u8; 6]; 2] = [[0xff; 6], [3, 0, 0, 0, 0, 1]];

/// Kernels answer a querier of IGMPv2, and do not once they heard another's report. A guest that
/// leaves, and reports so that hosts hear it, ends no membership of others.
#[test]
fn a_member_stays_one_while_a_guest_reports_to_hosts() {
    with(|mut lab| {
        let message = |kind: u8, code: u8, group: [u8; 4]| {
            let mut message = [&[kind, code, 0, 0][..], &group].concat();
            let right = sum(&[&message]);
            message[2..4].copy_from_slice(&right);
            message
        };
        std::thread::sleep(ATTACHED);
        lab.querier.send(&ipv4(QUERIER, ALL_HOSTS, 2, &message(0x11, 10, [0; 4])));
        let report = ipv4(RAW, GROUP, 2, &message(0x16, 0, GROUP));
        lab.raw.send(&report);
        std::thread::sleep(ANSWERED);
        assert_eq!(lab.group(GROUP), ["up", "m1", "m2"]);
        lab.raw.send(&ipv4(RAW, [224, 0, 0, 2], 2, &message(0x17, 0, GROUP)));
        let ask = ipv4(QUERIER, GROUP, 2, &message(0x11, 10, GROUP));
        // Before the question and until it is over.
        for step in 0..60 {
            if step % 20 == 5 {
                lab.querier.send(&ask);
            }
            for to in ELSEWHERE {
                lab.raw.send(&[&to[..], &report[6..]].concat());
            }
            lab.raw.send(&fragment(report.clone()));
            lab.raw.send(&report);
            std::thread::sleep(Duration::from_millis(50));
        }
        std::thread::sleep(EXPIRED);
        assert_eq!(lab.group(GROUP), ["up", "m1", "m2"]);
    });
}

#[test]
fn a_guest_is_no_querier() {
    with(|mut lab| {
        lab.raw.send(&query(RAW, [0; 4]));
        lab.raw.send(&query6(RAW, [0; 16]));
        std::thread::sleep(ANSWERED);
        assert_eq!(lab.group(GROUP), ALL, "its query does not count");
        lab.ask();
        // Its query about the group is neither counted nor heard by hosts, nor is one of IGMPv1.
        lab.raw.send(&query(RAW, GROUP));
        let mut old = vec![0x11, 0, 0xee, 0xff, 0, 0, 0, 0];
        old[2..4].copy_from_slice(&(!0x1100u16).to_be_bytes());
        lab.raw.send(&ipv4(RAW, ALL_HOSTS, 2, &old));
        lab.raw.send(&fragment(query(RAW, [0; 4])));
        lab.raw.send(&query6(RAW, [0; 16]));
        std::thread::sleep(EXPIRED);
        let said = lab.listener("m1").said();
        for query in ["query from", "query of MLD from"] {
            assert!(!said.contains(&format!("{query} 9")), "{said}");
            assert!(said.contains(&format!("{query} 1")), "{said}");
        }
        // Where a querier is, or may be, none of it is heard: the lower address wins an election.
        let said = lab.listener("up").said();
        assert!(!said.contains(" from 9"), "{said}");
        assert_eq!(lab.counter("raw", "in drop.querier"), 5);
        assert_eq!(lab.counter("raw", "in drop.membership"), 1, "the fragment");
        assert_eq!(lab.group(GROUP), ["up", "m1", "m2"]);
    });
}

#[test]
fn a_guest_that_joins_a_hundred_thousand_groups_costs_others_nothing() {
    with(|mut lab| {
        lab.ask();
        let before = lab.d.private_kib();
        for first in (0..100_000).step_by(100) {
            lab.raw.send(&report(RAW, 0xe101_0000 + first, 100));
        }
        assert!(wait_for(SOON, || lab.counter("raw", "multicast_messages") >= 1_000));
        let refused =
            ["refused", "too_many"].map(|n| lab.counter("raw", &format!("multicast_{n}")));
        assert!(refused[0] > 0 && refused[1] > 0 && refused[0] + refused[1] > 990, "{refused:?}");
        let more = lab.d.private_kib().saturating_sub(before);
        assert!(more < 2_048, "{more} KiB more");
        // Groups of others are limited still, and so is one that another host joins now.
        assert_eq!(lab.group(GROUP), ["up", "m1", "m2"]);
        let stack = Stack::attach(&lab.dir.path().join("late"), "02:77:00:00:00:13");
        stack.sh(&format!(
            "ip link set {INTERFACE} up; ip address add 239.5.5.5/32 dev {INTERFACE} autojoin"
        ));
        lab.ask();
        assert_eq!(lab.group([239, 5, 5, 5]), ["up"]);
    });
}

/// What comes behind a TAP whose link was down, or that is in another bridge now, was not asked.
#[test]
fn a_tap_that_is_no_router_gets_all_after_its_link_was_down() {
    with(|mut lab| {
        lab.ctl(&["tap", "set", "up", "multicast-router=off"]);
        lab.ctl(&["stream", "set", "raw", "multicast-router=on"]);
        let ask = |lab: &mut Lab| {
            std::thread::sleep(ATTACHED);
            lab.raw.send(&query(RAW, [0; 4]));
            std::thread::sleep(ANSWERED);
        };
        ask(&mut lab);
        assert_eq!(lab.group(GROUP), ["m1", "m2"]);
        let before = lab.d.log().matches("came up").count();
        ip(&format!("link set {UPLINK} down"));
        assert!(wait_for(SOON, || lab.d.log().contains("is down")), "{}", lab.d.log());
        ip(&format!("link set {UPLINK} up"));
        assert!(wait_for(SOON, || lab.d.log().matches("came up").count() > before));
        assert_eq!(lab.group(GROUP), ["up", "m1", "m2"]);
        ask(&mut lab);
        assert_eq!(lab.group(GROUP), ["m1", "m2"]);
        ip("link add br0 type bridge");
        ip(&format!("link set {UPLINK} master br0"));
        let is_seen = || lab.ctl(&["tap", "show", "up"]).contains("br0");
        wait_for(Duration::from_secs(2), is_seen);
        assert_eq!(lab.group(GROUP), ["up", "m1", "m2"]);
    });
}

/// The kernel's bridge asks, behind the TAP, and kernels answer.
#[test]
fn a_kernels_bridge_is_the_querier() {
    with(|mut lab| {
        ip("link add br0 type bridge mcast_snooping 1 mcast_querier 1 \
            mcast_query_response_interval 100 mcast_query_interval 500 \
            mcast_startup_query_interval 500");
        let _ = fs::write("/proc/sys/net/ipv6/conf/br0/disable_ipv6", "0");
        ip(&format!("link set {UPLINK} master br0"));
        ip("link set br0 up");
        let heard = |lab: &Lab| {
            let shown = lab.ctl(&["mdb", "show", "up"]);
            shown.lines().filter(|row| row.starts_with("querier") && row.contains("heard")).count()
        };
        let is_heard = || heard(&lab) == 2;
        assert!(wait_for(3 * SOON, is_heard), "{}", lab.ctl(&["mdb", "show"]));
        assert_eq!(lab.group(GROUP), ["up", "m1", "m2"]);
        assert_eq!(lab.group6(GROUP6), ["up", "m1", "m2"]);
        // It asks on, and members stay members.
        let asked = lab.counter("up", "multicast_messages");
        assert!(wait_for(SOON, || lab.counter("up", "multicast_messages") >= asked + 4));
        assert_eq!(lab.group(GROUP), ["up", "m1", "m2"]);
        // Nor does a guest end that, to which it would yield.
        let queries = [query(RAW, [0; 4]), query6(RAW, [0; 16])];
        for query in &queries {
            lab.raw.send(query);
            for to in ELSEWHERE {
                lab.raw.send(&[&to[..], &query[6..]].concat());
            }
        }
        lab.raw.send(&fragment(query(RAW, [0; 4])));
        let asked = lab.counter("up", "multicast_messages");
        assert!(wait_for(SOON, || lab.counter("up", "multicast_messages") >= asked + 4));
    });
}
