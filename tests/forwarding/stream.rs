//! Streams carry frames both ways: the real daemon, guests on one side and on the other a test that
//! speaks QEMU's `-netdev stream`, as client and as server. Frames of every length arrive unchanged
//! in both roles, however the bytes are cut.

use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::Duration;

use testkit::SOON;
use testkit::counters::Counters;
use testkit::dgram::DgramPeer;
use testkit::host::{Host, in_namespace};
use testkit::packet::{Ask, Kind, Packet, payload, verify};
use testkit::proc::{Daemon, Dir, wait_for};
use testkit::stream::{Peer, packed};
use testkit::traffic::{self, Stream, To};
use testkit::vm::{Vm, VmConfig, mac_of};

/// The station behind the stream, and another.
pub(super) const FAR: u8 = 9;
const FAR2: u8 = 10;
pub(super) const BROADCAST: [u8; 6] = [0xff; 6];
/// How long nothing may come where nothing must.
const QUIET: Duration = Duration::from_millis(30);

/// A switch whose streams have sockets of this directory.
struct Lab {
    d: Daemon,
    dir: Dir,
}

impl Lab {
    /// With guests' ports, streams by name and further keys, and more arguments.
    fn new(ports: usize, streams: &[(&str, &str)], extra: &[&str]) -> Lab {
        let dir = Dir::new();
        let streams = streams.iter().map(|(name, keys)| {
            format!("--stream={name},socket={}{keys}", dir.path().join(name).display())
        });
        let args: Vec<String> = streams.chain(extra.iter().map(|arg| arg.to_string())).collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        Lab { d: Daemon::with(ports, &args), dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A peer that the switch knows by its broadcast.
    fn peer(&self, name: &str, station: u8) -> Peer {
        let mut peer = Peer::connect(&self.path(name));
        peer.send(&plain(BROADCAST, mac_of(station), station));
        peer
    }

    fn guest(&self, id: u8) -> Vm {
        let mut cfg = VmConfig::new(id);
        cfg.tx.max_frame = 65_557;
        Vm::connect(&self.d.socket(id.into()), cfg)
    }

    /// Until a line of the log says so, so many times.
    fn said(&self, words: &str, times: usize) {
        let said = || self.d.log().matches(words).count() >= times;
        assert!(wait_for(SOON, said), "{words}\n{}", self.d.log());
    }
}

/// Frame `seq` from one station to another, `len` bytes.
pub(super) fn traced(sender: u8, to: u8, seq: usize, len: usize) -> Vec<u8> {
    let mut frame = Vec::new();
    let stream = Stream { sender, queue: 0, to: To::Vm(to), flow: 0 };
    traffic::build(&stream, seq as u32, len, &mut frame);
    frame
}

pub(super) fn plain(dst: [u8; 6], src: [u8; 6], mark: u8) -> Vec<u8> {
    let mut frame = [&dst[..], &src, &[0x88, 0xb5, mark]].concat();
    frame.resize(60 + usize::from(mark), mark);
    frame
}

/// The guest gets this frame next, beside broadcasts.
pub(super) fn reaches(vm: &mut Vm, frame: &[u8]) {
    loop {
        let came = vm.rx[0].take(1, SOON);
        let [(_, got)] = &came[..] else { panic!("{} bytes missed", frame.len()) };
        if got[..6] != BROADCAST {
            assert!(got == frame, "{} bytes, {} came", frame.len(), got.len());
            return;
        }
    }
}

/// The other end of a stream.
pub(super) trait FarEnd {
    fn send(&mut self, frame: &[u8]);

    /// The next frame from this station.
    fn receive_from(&mut self, mac: [u8; 6], limit: Duration) -> Option<Vec<u8>>;
}

impl FarEnd for Peer {
    fn send(&mut self, frame: &[u8]) {
        Peer::send(self, frame);
    }

    fn receive_from(&mut self, mac: [u8; 6], limit: Duration) -> Option<Vec<u8>> {
        Peer::receive_from(self, mac, limit)
    }
}

impl FarEnd for DgramPeer {
    fn send(&mut self, frame: &[u8]) {
        DgramPeer::send(self, frame);
    }

    fn receive_from(&mut self, mac: [u8; 6], limit: Duration) -> Option<Vec<u8>> {
        DgramPeer::receive_from(self, mac, limit)
    }
}

/// Frames of these lengths pass between a guest and a peer, unchanged and in order.
pub(super) fn exchange(vm: &mut Vm, peer: &mut impl FarEnd, lens: &[usize]) {
    let id = vm.cfg.id;
    for (n, &len) in lens.iter().enumerate() {
        let frame = traced(id, FAR, n, len);
        vm.tx[0].send_waiting(&frame, SOON);
        let got = peer.receive_from(vm.mac(), SOON);
        assert!(got.as_ref() == Some(&frame), "{len} bytes out");
        let frame = traced(FAR, id, n, len);
        peer.send(&frame);
        reaches(vm, &frame);
    }
}

/// Both sides tell where they are. The peer is the first: nobody knows when it has been let in.
pub(super) fn introduce(vm: &mut Vm, peer: &mut impl FarEnd) {
    peer.send(&plain(BROADCAST, mac_of(FAR), FAR));
    let came = vm.rx[0].take(1, SOON);
    assert!(came.len() == 1 && came[0].1[6..12] == mac_of(FAR));
    let hello = plain(BROADCAST, vm.mac(), vm.cfg.id);
    vm.tx[0].send_waiting(&hello, SOON);
    assert_eq!(peer.receive_from(vm.mac(), SOON), Some(hello));
}

pub(super) fn lengths() -> Vec<usize> {
    let mut lens: Vec<usize> = (14..=200).chain((201..=9_014).step_by(127)).collect();
    lens.extend([1514, 4095, 4096, 4097, 32_768, 65_535]);
    lens
}

#[test]
fn frames_pass_both_ways_unchanged() {
    for workers in ["1", "2"] {
        let lab = Lab::new(1, &[("net", "")], &["--workers", workers]);
        let (mut vm, mut peer) = (lab.guest(0), Peer::connect(&lab.path("net")));
        introduce(&mut vm, &mut peer);
        exchange(&mut vm, &mut peer, &lengths());
        let c = lab.d.counters();
        c.balance();
        assert_eq!(c.drops(None, "in") + c.drops(None, "out") + c.drops(None, ""), 0, "{c:?}");
        assert_eq!(c.sum(Some("net"), "out", "frames"), 1 + lengths().len() as u64);
        lab.d.stop();
        assert!(!lab.dir.path().join("net").exists(), "its socket is left behind");
    }
}

/// The switch connects, waits for a peer that is not there yet, and comes back to one that left.
#[test]
fn a_client_connects_again_and_again() {
    let dir = Dir::new();
    let path = dir.path().join("far");
    let stream = format!("--stream=net,socket={},mode=client", path.display());
    let d = Daemon::with(1, &[&stream]);
    let mut vm = Vm::connect(&d.socket(0), VmConfig::new(0));
    let listener = UnixListener::bind(&path).expect("listen");
    for _ in 0..3 {
        let mut peer = Peer::accept(&listener);
        introduce(&mut vm, &mut peer);
        exchange(&mut vm, &mut peer, &[60, 1514]);
    }
    // Nobody is there: what goes to the station that was is counted by its name.
    drop(listener);
    std::fs::remove_file(&path).expect("remove");
    let gone = wait_for(SOON, || {
        vm.tx[0].send_waiting(&traced(0, FAR, 0, 60), SOON);
        d.counters().sum(None, "", "drop.stream_gone")
            + d.counters().sum(Some("net"), "out", "drop.stream_gone")
            > 0
    });
    assert!(gone, "{:?}", d.counters());
    d.counters().balance();
    d.stop();
}

/// Whoever connects while another one is served waits, and has its turn.
#[test]
fn one_peer_at_a_time() {
    let lab = Lab::new(1, &[("net", "")], &[]);
    let mut vm = lab.guest(0);
    let mut first = Peer::connect(&lab.path("net"));
    introduce(&mut vm, &mut first);
    let mut second = Peer::connect(&lab.path("net"));
    let waits = traced(FAR, 0, 7, 100);
    second.send(&waits);
    exchange(&mut vm, &mut first, &[60, 1514]);
    assert!(vm.rx[0].take(1, QUIET).is_empty(), "a second peer is heard");
    drop(first);
    reaches(&mut vm, &waits);
    exchange(&mut vm, &mut second, &[60, 1514]);
    let met = || lab.d.log().matches("port net: connected (pid ").count();
    assert!(wait_for(SOON, || met() == 2), "{}", lab.d.log());
    lab.d.counters().balance();
    lab.d.stop();
}

/// Frames in pieces, and many in one.
#[test]
fn the_stream_may_be_cut_anywhere() {
    let lab = Lab::new(1, &[("net", "")], &[]);
    let mut vm = lab.guest(0);
    let mut peer = Peer::connect(&lab.path("net"));
    introduce(&mut vm, &mut peer);
    let frame = traced(FAR, 0, 1, 77);
    let bytes = packed(&frame);
    for cut in 1..bytes.len() {
        peer.write(&bytes[..cut]);
        // The switch looks at the first part by itself, most of the time.
        std::thread::sleep(Duration::from_micros(300));
        peer.write(&bytes[cut..]);
        reaches(&mut vm, &frame);
    }
    bytes.iter().for_each(|byte| peer.write(&[*byte]));
    reaches(&mut vm, &frame);
    let frames: Vec<Vec<u8>> = (0..200).map(|n| traced(FAR, 0, n, 60 + 7 * n)).collect();
    let all: Vec<u8> = frames.iter().flat_map(|frame| packed(frame)).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| peer.write(&all));
        frames.iter().for_each(|frame| reaches(&mut vm, frame));
    });
    lab.d.counters().balance();
    lab.d.stop();
}

/// A peer that does not read costs its own frames and nobody else's, and those that it gets in the
/// end are whole.
#[test]
fn a_peer_that_does_not_read_loses_its_frames() {
    let lab = Lab::new(2, &[("net", "")], &["--workers", "2"]);
    let mut peer = Peer::connect(&lab.path("net"));
    loses_its_frames(&lab.d, [lab.guest(0), lab.guest(1)], &mut peer);
    lab.d.stop();
}

/// The peer at "net" of a switch with these guests does not read for a while.
pub(super) fn loses_its_frames(d: &Daemon, guests: [Vm; 2], peer: &mut impl FarEnd) {
    let [mut one, mut two] = guests;
    introduce(&mut one, peer);
    introduce(&mut two, peer);
    one.rx[0].take(16, QUIET);
    const SENT: usize = 3_000;
    let len = |n: usize| 60 + n * 37 % 9_000;
    for n in 0..SENT {
        one.tx[0].send_waiting(&traced(0, FAR, n, len(n)), SOON);
        if n % 100 == 0 {
            let frame = traced(0, 1, n, 200);
            one.tx[0].send_waiting(&frame, SOON);
            reaches(&mut two, &frame);
        }
    }
    one.tx[0].drain(SOON);
    let c = d.counters();
    c.balance();
    let (full, sent) =
        (c.sum(Some("net"), "out", "drop.stream_full"), c.sum(Some("net"), "out", "frames"));
    assert!(full > 0, "{c:?}");
    assert_eq!(c.drops(None, "in") + c.drops(None, "out"), full, "{c:?}");
    // What was taken comes in its order, without a tear; the last of it by an event alone.
    let (mut came, mut last) = (0, None);
    while let Some(frame) = peer.receive_from(mac_of(0), Duration::from_millis(300)) {
        if frame[..6] == BROADCAST {
            continue;
        }
        let (_, n) = traffic::parse(&frame).expect("a whole frame");
        assert_eq!(frame.len(), len(n as usize));
        assert!(last.is_none_or(|last| last < n), "{n} after {last:?}");
        (came, last) = (came + 1, Some(n));
    }
    // And the two broadcasts.
    assert_eq!(came + 2, sent, "{full} were refused");
    assert_eq!(came + full, SENT as u64);
    exchange(&mut one, peer, &[60, 9_000]);
}

/// What a guest leaves to its device is done before a frame goes to a stream.
#[test]
fn offloads_are_finished() {
    let lab = Lab::new(1, &[("net", "")], &[]);
    let features = Kind::plain().fold(0, |all, kind| all | kind.host_features());
    let mut vm = Vm::connect(&lab.d.socket(0), VmConfig::with_offloads(0, features, true));
    let mut peer = Peer::connect(&lab.path("net"));
    introduce(&mut vm, &mut peer);
    for kind in Kind::plain() {
        for (ask, len) in [(Ask::Sum, 1_000), (Ask::Segments(kind.mss()), 40_000)] {
            let packet = Packet::new(kind, vm.mac(), mac_of(FAR), &payload(1, len));
            let (header, frame) = packet.sent(ask);
            vm.tx[0].header = header.bytes(vm.cfg.header_len());
            vm.tx[0].send_waiting(&frame, SOON);
            for (_, expected) in packet.received(ask, 0) {
                let got = peer.receive_from(vm.mac(), SOON).expect("a segment");
                assert!(got == expected, "{kind:?} {ask:?}: {} bytes", got.len());
                verify(&got).expect("valid");
            }
        }
    }
    lab.d.counters().balance();
    lab.d.stop();
}

/// Too short and too long ones are dropped by name, and the stream goes on.
#[test]
fn what_is_no_frame_is_dropped_by_name() {
    let lab = Lab::new(1, &[("net", "")], &[]);
    let mut vm = lab.guest(0);
    let mut peer = Peer::connect(&lab.path("net"));
    introduce(&mut vm, &mut peer);
    for len in [0, 1, 13, 65_558, 69_632] {
        peer.send(&vec![0; len]);
    }
    exchange(&mut vm, &mut peer, &[60, 65_535]);
    let c = lab.d.counters();
    c.balance();
    assert_eq!(c.sum(Some("net"), "in", "drop.too_short"), 3, "{c:?}");
    assert_eq!(c.sum(Some("net"), "in", "drop.too_long"), 2, "{c:?}");
    peer.write(&69_633u32.to_be_bytes());
    assert!(peer.closed_within(SOON));
    lab.said("port net: disconnected: a frame of 69633 bytes is announced", 1);
    let mut peer = Peer::connect(&lab.path("net"));
    introduce(&mut vm, &mut peer);
    exchange(&mut vm, &mut peer, &[60]);
    lab.d.stop();
}

/// An MTU and static addresses are a stream's as any port's.
#[test]
fn mtu_and_addresses_are_kept_to() {
    let keys = format!(",mtu=1400,mac={}", written(FAR));
    let lab = Lab::new(1, &[("net", &keys), ("other", "")], &[]);
    let mut vm = lab.guest(0);
    let mut peer = Peer::connect(&lab.path("net"));
    introduce(&mut vm, &mut peer);
    // Another one with its address moves nothing.
    let mut thief = lab.peer("other", FAR);
    vm.tx[0].send_waiting(&traced(0, FAR, 0, 1_415), SOON);
    exchange(&mut vm, &mut peer, &[60, 1_414]);
    assert!(thief.receive_from(mac_of(0), QUIET).is_none_or(|frame| frame[..6] == BROADCAST));
    let c = lab.d.counters();
    c.balance();
    assert_eq!(
        c.sum(Some("net"), "out", "drop.too_big") + c.sum(Some("net"), "", "drop.too_big"),
        1,
        "{c:?}"
    );
    lab.d.stop();
}

fn written(station: u8) -> String {
    mac_of(station).map(|byte| format!("{byte:02x}")).join(":")
}

/// From stream to stream, of which each has a worker, and between a stream and the host's network.
#[test]
fn streams_reach_each_other_and_an_uplink() {
    in_namespace(|| {
        let more = ["--tap", "up,ifname=tap0", "--workers=2"];
        let lab = Lab::new(1, &[("a", ""), ("b", "")], &more);
        let host = Host::open("tap0");
        let mut a = Peer::connect(&lab.path("a"));
        let mut b = Peer::connect(&lab.path("b"));
        lab.said(": connected (pid ", 2);
        let hello = plain(BROADCAST, mac_of(FAR), 1);
        a.send(&hello);
        assert_eq!(b.receive(SOON), Some(hello.clone()));
        assert_eq!(host.receive(SOON), Some(hello));
        let hello = plain(BROADCAST, mac_of(FAR2), 2);
        b.send(&hello);
        assert_eq!(a.receive(SOON), Some(hello.clone()));
        assert_eq!(host.receive(SOON), Some(hello));
        for (n, len) in [14, 60, 1514].into_iter().enumerate() {
            let frame = traced(FAR, FAR2, n, len);
            a.send(&frame);
            assert_eq!(b.receive(SOON), Some(frame));
            let frame = traced(1, FAR, n, len);
            host.send(&frame);
            assert_eq!(a.receive(SOON), Some(frame));
            let frame = traced(FAR2, 1, n, len);
            b.send(&frame);
            assert_eq!(host.receive(SOON), Some(frame));
        }
        let c = lab.d.counters();
        c.balance();
        assert_eq!(c.drops(None, "in") + c.drops(None, "out") + c.drops(None, ""), 0, "{c:?}");
        // A worker counts frames after they have arrived, and may lose its CPU in between.
        let counted = |c: &Counters| [0, 1].map(|worker| c.worker(worker, "frames"));
        let both = wait_for(SOON, || counted(&lab.d.counters()).iter().all(|n| *n >= 4.0));
        assert!(both, "{:?}", lab.d.counters());
        lab.d.stop();
    });
}
