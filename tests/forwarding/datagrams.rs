//! Streams of `type=dgram` carry a frame in each datagram: the real daemon, a guest on one side,
//! and on the other a peer like vfkit or libkrun, or a program in Python that listens like gvproxy.

use std::process::{Child, Command, Stdio};

use testkit::dgram::{DgramPeer, HELLO};
use testkit::proc::{Daemon, Dir, wait_for};
use testkit::vm::{Vm, VmConfig, mac_of};
use testkit::{SOON, skip};

use super::stream::{FAR, exchange, introduce, lengths, loses_its_frames, reaches, traced};

/// A switch with guests, and a stream at "net" in this directory.
struct Lab {
    d: Daemon,
    dir: Dir,
}

impl Lab {
    fn new(guests: usize, keys: &str, extra: &[&str]) -> Lab {
        let dir = Dir::new();
        let path = dir.path().join("net");
        let stream = format!("--stream=net,socket={},type=dgram{keys}", path.display());
        Lab { d: Daemon::with(guests, &[&[stream.as_str()], extra].concat()), dir }
    }

    fn guest(&self, id: u8) -> Vm {
        let mut cfg = VmConfig::new(id);
        cfg.tx.max_frame = 65_557;
        Vm::connect(&self.d.socket(id.into()), cfg)
    }

    fn peer(&self) -> DgramPeer {
        DgramPeer::connect(&self.dir.path().join("vm.sock"), &self.dir.path().join("net"))
    }
}

/// A peer that says where it is, after this first datagram.
fn met(vm: &mut Vm, mut peer: DgramPeer, first: Option<&[u8]>) -> DgramPeer {
    first.into_iter().for_each(|first| peer.send(first));
    introduce(vm, &mut peer);
    peer
}

/// Also after a restart of the peer, with the handshake and without: the first frame counts.
#[test]
fn frames_pass_both_ways_unchanged() {
    for workers in ["1", "2"] {
        let lab = Lab::new(1, "", &["--workers", workers]);
        let mut vm = lab.guest(0);
        for first in [Some(HELLO), None] {
            let mut peer = met(&mut vm, lab.peer(), first);
            exchange(&mut vm, &mut peer, &lengths());
        }
        let c = lab.d.counters();
        c.balance();
        assert_eq!(c.drops(None, "in") + c.drops(None, "out"), 0, "{c:?}");
        let frames = 2 * (1 + lengths().len() as u64);
        assert_eq!(c.sum(Some("net"), "out", "frames"), frames);
        assert_eq!(c.sum(Some("net"), "in", "frames"), frames);
        lab.d.stop();
        assert!(!lab.dir.path().join("net").exists(), "its socket is left behind");
    }
}

/// gvproxy's side: learns the peer's path from the handshake, and echoes frames.
const GVPROXY: &str = r#"
import os, socket, sys
path, station = sys.argv[1], bytes.fromhex(sys.argv[2])
if os.path.exists(path):
    os.unlink(path)
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind(path)
magic, peer = s.recvfrom(4)
assert magic == b"VFKT" and peer.startswith("/"), (magic, peer)
s.sendto(b"\xff" * 6 + station + b"\x88\xb5" + bytes(46), peer)
while True:
    frame = s.recv(70000)
    if frame[:6] == station:
        s.sendto(frame[6:12] + frame[:6] + frame[12:], peer)
"#;

fn gvproxy(path: &std::path::Path) -> Child {
    let station: String = mac_of(FAR).iter().map(|byte| format!("{byte:02x}")).collect();
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", GVPROXY, path.to_str().expect("UTF-8"), &station]);
    command.stdin(Stdio::null()).spawn().expect("python3")
}

/// The switch connects, waits for a peer that is not there yet, and finds one that starts again.
#[test]
fn a_client_finds_its_peer_again_and_again() {
    if !std::path::Path::new("/usr/bin/python3").exists() {
        return skip("needs python3");
    }
    let lab = Lab::new(1, ",mode=client", &[]);
    let (mut vm, path) = (lab.guest(0), lab.dir.path().join("net"));
    for round in 0..2 {
        let mut far = gvproxy(&path);
        let came = vm.rx[0].take(1, SOON);
        assert!(came.len() == 1 && came[0].1[6..12] == mac_of(FAR), "{round}: {}", lab.d.log());
        for (n, len) in [60, 1514, 9014, 65_535].into_iter().enumerate() {
            let frame = traced(0, FAR, n, len);
            vm.tx[0].send_waiting(&frame, SOON);
            let echo = [&frame[6..12], &frame[..6], &frame[12..]].concat();
            reaches(&mut vm, &echo);
        }
        far.kill().expect("kill");
        far.wait().expect("wait");
        let left = || lab.d.log().matches("port net: disconnected").count() == round + 1;
        assert!(wait_for(SOON, left), "{}", lab.d.log());
    }
    lab.d.counters().balance();
    lab.d.stop();
    assert!(!lab.dir.path().join("net.vioswitch").exists(), "its socket is left behind");
}

/// A peer that does not read costs its own frames and nobody else's.
#[test]
fn a_peer_that_does_not_read_loses_its_frames() {
    let lab = Lab::new(2, "", &["--workers", "2"]);
    let mut peer = lab.peer();
    peer.send(HELLO);
    loses_its_frames(&lab.d, [lab.guest(0), lab.guest(1)], &mut peer);
    lab.d.stop();
}

/// Too short and too long ones are dropped by name, and the next frame passes.
#[test]
fn what_is_no_frame_is_dropped_by_name() {
    let lab = Lab::new(1, "", &[]);
    let mut vm = lab.guest(0);
    let mut peer = met(&mut vm, lab.peer(), Some(HELLO));
    for len in [0, 1, 13, 65_558, 69_632, 150_000] {
        peer.send(&vec![0; len]);
    }
    exchange(&mut vm, &mut peer, &[60, 65_535]);
    let c = lab.d.counters();
    c.balance();
    assert_eq!(c.sum(Some("net"), "in", "drop.too_short"), 3, "{c:?}");
    assert_eq!(c.sum(Some("net"), "in", "drop.too_long"), 3, "{c:?}");
    lab.d.stop();
}
