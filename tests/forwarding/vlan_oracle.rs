//! VLANs by Open vSwitch's own test: each frame of its test `VLAN handling` comes in by a guest, a
//! stream and a TAP in turn, and leaves by the ports and with the tags that it names. What this
//! switch leaves out, and where it differs, is listed; the lists are exact.

mod book;

use std::collections::BTreeMap;
use std::time::Duration;

use testkit::SOON;
use testkit::end::End;
use testkit::host::{Host, in_namespace, ip};
use testkit::openvswitch;
use testkit::proc::{Daemon, Dir, wait_for};
use testkit::stream::Peer;
use testkit::vm::{Vm, VmConfig};

use book::{Book, Mode, Row, Tag, Tags};

/// How long nothing may come where nothing must.
const QUIET: Duration = Duration::from_millis(10);
/// Of each frame that is sent, with and without a tag.
const LEN: usize = 100;
/// Where a tag stands.
const TAG_AT: usize = 12;

/// Ports of modes that this switch does not have: the native VLAN with a tag, and tunnels of tags
/// in tags.
const LEFT_OUT: [(u16, &str); 6] = [
    (5, "native-tagged"),
    (6, "native-tagged"),
    (9, "dot1q-tunnel"),
    (10, "dot1q-tunnel"),
    (11, "dot1q-tunnel"),
    (12, "dot1q-tunnel"),
];
/// Frames that come in by those, and by the others.
const ROWS_LEFT_OUT: usize = 27;
const ROWS: usize = 63;

/// Copies that differ: port and tag of the frame, and the port where it leaves. There is no
/// `priority-tags=if-nonzero` here: a frame leaves an access port and a native VLAN without a tag,
/// and its priority ends there.
const DIFFERENT: [(u16, Tag, u16); 13] = [
    (100, (12, 1), 3),
    (100, (12, 1), 8),
    (1, (12, 1), 3),
    (1, (12, 1), 8),
    (3, (0, 1), 8),
    (4, (0, 1), 3),
    (4, (0, 1), 8),
    (7, (0, 1), 3),
    (7, (0, 1), 8),
    (7, (12, 1), 3),
    (7, (12, 1), 8),
    (8, (0, 1), 3),
    (8, (12, 1), 3),
];

/// The keys of a port; none of one that is left out.
fn keys(mode: &Mode) -> Option<String> {
    let list = |trunks: &Option<Vec<u16>>| match trunks {
        Some(list) => list.iter().map(u16::to_string).collect::<Vec<_>>().join(","),
        None => "all".to_owned(),
    };
    match mode {
        Mode::Access(vlan) => Some(format!("vlan={vlan}")),
        Mode::Trunk(trunks) => Some(format!("trunk={}", list(trunks))),
        Mode::NativeUntagged(vlan, trunks) => Some(format!("trunk={},native={vlan}", list(trunks))),
        Mode::LeftOut(_) => None,
    }
}

/// A switch with these ports, of which each third one is a guest, a stream and a TAP in turn.
struct Lab {
    d: Daemon,
    ends: BTreeMap<u16, End>,
    _dir: Dir,
}

impl Lab {
    fn new(book: &Book, turn: usize) -> Lab {
        let dir = Dir::new();
        let socket = |port: u16| dir.path().join(format!("q{port}"));
        let (mut extra, mut kinds) = (vec!["--uplink-to-uplink".to_owned()], BTreeMap::new());
        let ours = book.ports.iter().filter_map(|(port, of)| Some((*port, keys(&of.mode)?)));
        for (at, (port, keys)) in ours.enumerate() {
            let (kind, path) = ((at + turn) % 3, socket(port));
            let path = path.display();
            let (option, place) = match kind {
                0 => ("--port", format!("socket={path}")),
                1 => ("--stream", format!("socket={path}")),
                _ => ("--tap", format!("ifname=t{port}")),
            };
            extra.extend([option.to_owned(), format!("q{port},{place},{keys}")]);
            kinds.insert(port, kind);
        }
        let extra: Vec<&str> = extra.iter().map(String::as_str).collect();
        let d = Daemon::with_ports(&[], &extra);
        let end = |(&port, &kind): (&u16, &usize)| {
            let end = match kind {
                0 => {
                    assert!(wait_for(SOON, || socket(port).exists()), "{}", d.log());
                    End::Guest(Vm::connect(&socket(port), VmConfig::new(port as u8)).into())
                }
                1 => End::Peer(Peer::connect(&socket(port))),
                _ => {
                    let name = format!("t{port}");
                    assert!(wait_for(SOON, || testkit::host::index_of(&name).is_some()));
                    ip(&format!("link set {name} up"));
                    End::Host(Host::open(&name))
                }
            };
            (port, end)
        };
        let ends = kinds.iter().map(end).collect();
        let ready = || {
            let log = d.log();
            let taps = kinds.values().filter(|kind| **kind == 2).count();
            let mut peers = kinds.iter().filter(|(_, kind)| **kind == 1);
            log.matches("came up").count() == taps
                && peers.all(|(port, _)| log.contains(&format!("port q{port}: ")))
        };
        assert!(wait_for(SOON, ready), "{}", d.log());
        Lab { d, ends, _dir: dir }
    }

    /// Sends the frame of a row; its copies by the ports where they leave.
    fn run(&mut self, row: &Row, number: u8) -> BTreeMap<u16, Tags> {
        let sent = frame(row.tag, number);
        assert_eq!(sent.len(), LEN);
        self.ends.get_mut(&row.from).expect("a port").send(&sent);
        let mut copies = BTreeMap::new();
        for (port, end) in &mut self.ends {
            let limit = if row.copies.contains_key(port) { SOON } else { Duration::ZERO };
            let Some(got) = end.receive(limit) else { continue };
            copies.insert(*port, tags_of(&sent, row.tag.is_some(), &got));
        }
        std::thread::sleep(QUIET);
        for (port, end) in &mut self.ends {
            let more = end.receive(Duration::ZERO);
            assert_eq!(more, None, "port {port} got one more of {row:?}");
        }
        copies
    }
}

/// A frame to all, of the same length with and without a tag.
fn frame(tag: Option<Tag>, number: u8) -> Vec<u8> {
    let mut frame = [0xff; 6].to_vec();
    frame.extend([0x50, 0x54, 0, 0, 0, 1]);
    if let Some((vlan, priority)) = tag {
        frame.extend([0x81, 0]);
        frame.extend((priority << 13 | vlan).to_be_bytes());
    }
    frame.extend([0xab, 0xcd, number]);
    frame.extend((0..).take(LEN - frame.len()).map(|at: u8| at ^ 0x5a));
    frame
}

/// The tags of a copy, which must be as long as they make it and otherwise as it was sent.
fn tags_of(sent: &[u8], has_tag: bool, got: &[u8]) -> Tags {
    let behind = TAG_AT + if has_tag { 4 } else { 0 };
    let (mut at, mut tags) = (TAG_AT, Tags::new());
    while got[at..at + 2] == [0x81, 0] {
        let tag = u16::from_be_bytes([got[at + 2], got[at + 3]]);
        tags.push((tag & 0xfff, tag >> 13));
        at += 4;
    }
    assert!(got[..TAG_AT] == sent[..TAG_AT] && got[at..] == sent[behind..], "{got:02x?}");
    tags
}

/// What of a row concerns ports that this switch has.
fn ours(book: &Book, row: &Row) -> Row {
    let has = |port: &u16| keys(&book.ports[port].mode).is_some();
    let mut row = row.clone();
    row.copies.retain(|port, _| has(port));
    row
}

#[test]
fn frames_leave_as_open_vswitch_says() {
    let Some(text) = openvswitch::tests() else { return };
    let book = Book::read(&text);
    let left_out: Vec<(u16, &str)> = (book.ports.iter())
        .filter_map(|(port, of)| match &of.mode {
            Mode::LeftOut(mode) => Some((*port, mode.as_str())),
            _ => None,
        })
        .collect();
    assert_eq!((book.ports.len(), &left_out[..]), (13, &LEFT_OUT[..]));
    let comes_in = |row: &&Row| keys(&book.ports[&row.from].mode).is_some();
    let rows: Vec<Row> = book.rows.iter().filter(comes_in).map(|row| ours(&book, row)).collect();
    assert_eq!((rows.len(), book.rows.len() - rows.len()), (ROWS, ROWS_LEFT_OUT));
    let mut copies = 0;
    in_namespace(|| {
        for turn in 0..3 {
            let mut lab = Lab::new(&book, turn);
            let mut different = Vec::new();
            for (number, row) in rows.iter().enumerate() {
                let got = lab.run(row, number as u8);
                let ports: Vec<_> = got.keys().collect();
                assert_eq!(ports, row.copies.keys().collect::<Vec<_>>(), "{turn}: {row:?}");
                copies += got.len();
                for (port, tags) in got.iter().filter(|(port, tags)| row.copies[port] != **tags) {
                    // A priority that ends here is all that may differ.
                    let priority = row.tag.map_or(0, |tag| tag.1);
                    assert!(tags.is_empty() && row.copies[port] == [(0, priority)], "{row:?}");
                    assert!(book.ports[port].keeps_priority && priority > 0, "{row:?}");
                    different.push((row.from, row.tag.expect("a priority"), *port));
                }
            }
            assert_eq!(different, DIFFERENT, "{turn}");
            let dropped = rows.iter().filter(|row| row.copies.is_empty()).count();
            assert!(lab.d.counters().sum(None, "in", "drop.vlan") <= dropped as u64);
            lab.d.stop();
        }
    });
    let different = DIFFERENT.len();
    println!("{ROWS} frames, {copies} copies in 3 turns, {different} of each turn differ");
}
