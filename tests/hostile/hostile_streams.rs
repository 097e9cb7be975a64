//! Hostile peers of a stream: what they can end is their own connection, what they lose is
//! their own, and nothing of them is left.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use testkit::SOON;
use testkit::net::{Job, Net, Sizes};
use testkit::proc::{Daemon, Dir, wait_for};
use testkit::stream::{Peer, packed};
use testkit::sys::Crowd;
use testkit::traffic::To;
use testkit::vm::mac_of;
use testkit::{Rng, rounds};
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

/// A switch forwards no frame for it, so no guest gets what its checker would not know.
pub(super) const RESERVED: [u8; 6] = [1, 0x80, 0xc2, 0, 0, 0];

pub(super) fn frame() -> Vec<u8> {
    let mut frame = [&RESERVED[..], &mac_of(9), &[0x88, 0xb6]].concat();
    frame.resize(60, 0);
    frame
}

/// Two honest guests beside the stream "evil".
pub(super) struct Lab {
    pub(super) d: Daemon,
    pub(super) net: Net,
    dir: Dir,
}

impl Lab {
    fn new(extra: &[&str]) -> Lab {
        Lab::with_keys("", extra)
    }

    /// The stream has these keys more.
    pub(super) fn with_keys(keys: &str, extra: &[&str]) -> Lab {
        let dir = Dir::new();
        let stream = format!("--stream=evil,socket={}{keys}", dir.path().join("evil").display());
        let d = Daemon::with(2, &[&[stream.as_str()], extra].concat());
        let net = Net::connect(&d, 2, |c| c);
        let mut lab = Lab { d, net, dir };
        lab.chat(100);
        lab
    }

    fn path(&self) -> PathBuf {
        self.at("evil")
    }

    pub(super) fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Honest traffic goes on as if nothing were.
    pub(super) fn chat(&mut self, frames: u32) {
        self.net.run(&[
            Job::new(0, To::Vm(1), frames, Sizes::Range(60, 1514)),
            Job::new(1, To::Vm(0), frames, Sizes::Range(60, 1514)),
        ]);
    }

    pub(super) fn frames(&self) -> u64 {
        self.d.counters().sum(Some("evil"), "in", "frames")
    }

    fn finish(self) {
        let mut peer = Peer::connect(&self.path());
        self.serves(|| peer.send(&frame()));
    }

    /// A peer that sends a frame is served.
    pub(super) fn takes(&self, send: impl FnOnce()) {
        let before = self.frames();
        send();
        assert!(wait_for(SOON, || self.frames() > before), "not served\n{}", self.d.log());
    }

    /// The stream is there for the next peer, which sends a frame, and the guests go on.
    pub(super) fn serves(mut self, send: impl FnOnce()) {
        self.takes(send);
        self.chat(500);
        self.net.finish();
        self.d.counters().assert_balanced();
        drop(self.net);
        self.d.stop();
    }
}

#[test]
fn lengths_that_cannot_be_end_the_connection() {
    let mut lab = Lab::new(&[]);
    for length in [69_633, 1 << 20, 1 << 31, u32::MAX] {
        let mut peer = Peer::connect(&lab.path());
        peer.write(&length.to_be_bytes());
        assert!(peer.closed_within(SOON), "{length}");
    }
    lab.chat(100);
    lab.finish();
}

#[test]
fn garbage_costs_its_sender_alone() {
    let mut lab = Lab::new(&["--workers", "2"]);
    let mut rng = Rng::new(7);
    for _ in 0..rounds(50, 300, 3_000) {
        let mut peer = Peer::connect(&lab.path());
        let _ = peer.socket.set_write_timeout(Some(Duration::from_secs(1)));
        for _ in 0..rng.below(20) {
            let len = rng.below(2_000) as usize;
            let mut bytes: Vec<u8> = (0..len).map(|_| rng.next() as u8).collect();
            if rng.below(2) == 0 {
                bytes.iter_mut().zip(RESERVED).for_each(|(byte, reserved)| *byte = reserved);
                bytes = packed(&bytes);
            }
            // It may have been ended by then.
            if std::io::Write::write_all(&mut peer.socket, &bytes).is_err() {
                break;
            }
        }
    }
    let c = lab.d.counters();
    assert_eq!(c.drops(Some("p0"), "in") + c.drops(Some("p1"), "in"), 0, "{c:?}");
    lab.chat(100);
    lab.finish();
}

/// Half a frame, and gone; nothing is left of a thousand of them.
#[test]
fn nothing_is_left_of_those_who_come_and_go() {
    let lab = Lab::new(&[]);
    let visit = |bytes: &[u8]| {
        let mut peer = Peer::connect(&lab.path());
        peer.write(bytes);
    };
    let frame = packed(&frame());
    (0..20).for_each(|n| visit(&frame[..n]));
    let before = lab.d.settled_usage();
    (0..rounds(200, 1_000, 10_000)).for_each(|n| visit(&frame[..n as usize % frame.len()]));
    // The last of them may wait in the queue yet.
    let settled = wait_for(SOON, || {
        let now = lab.d.settled_usage();
        now.fds <= before.fds && now.threads <= before.threads
    });
    assert!(settled, "{before:?} {:?}", lab.d.usage());
    assert!(lab.d.settled_usage().mappings <= before.mappings + 16);
    lab.finish();
}

/// More than can be served or wait; the one who is served notices nothing.
#[test]
fn a_crowd_that_connects_waits() {
    let mut lab = Lab::new(&[]);
    let mut peer = Peer::connect(&lab.path());
    let before = lab.d.settled_usage();
    let crowd: Vec<UnixStream> = (0..300)
        .map_while(|_| {
            let socket = nonblocking_connect(&lab.path())?;
            Some(socket)
        })
        .collect();
    assert!(crowd.len() > 1 && crowd.len() < 300, "{} wait", crowd.len());
    lab.chat(100);
    assert_eq!(lab.d.settled_usage(), before);
    let sent = lab.frames();
    peer.send(&frame());
    assert!(wait_for(SOON, || lab.frames() > sent));
    drop(crowd);
    drop(peer);
    lab.finish();
}

/// Without waiting for a place in the queue.
fn nonblocking_connect(path: &std::path::Path) -> Option<UnixStream> {
    let (sender, receiver) = std::sync::mpsc::channel();
    let path = path.to_owned();
    std::thread::spawn(move || {
        let _ = sender.send(UnixStream::connect(path));
    });
    receiver.recv_timeout(Duration::from_millis(200)).ok()?.ok()
}

/// Descriptors end the connection where the kernel lets them through, and none is kept.
#[test]
fn descriptors_are_not_taken() {
    let mut lab = Lab::new(&[]);
    let before = lab.d.settled_usage();
    for _ in 0..20 {
        let peer = Peer::connect(&lab.path());
        let file = std::fs::File::open("/dev/null").expect("open");
        let sent = peer.socket.send_with_fds(&[&packed(&frame())[..]], &[file.as_raw_fd(); 16]);
        let mut peer = peer;
        if sent.is_ok() {
            assert!(peer.closed_within(SOON), "descriptors are taken");
        } else {
            let sent = lab.frames();
            peer.send(&frame());
            assert!(wait_for(SOON, || lab.frames() > sent), "refused, and the stream is dead");
        }
    }
    assert!(wait_for(SOON, || lab.d.settled_usage().fds <= before.fds), "{:?}", lab.d.usage());
    lab.chat(100);
    lab.finish();
}

/// A peer that floods, dribbles, and never reads what is flooded to it.
#[test]
fn a_peer_that_never_reads_stops_nobody() {
    let mut lab = Lab::new(&[]);
    let mut peer = Peer::connect(&lab.path());
    peer.send(&frame());
    for _ in 0..5 {
        lab.net.run(&[Job::new(0, To::Broadcast, 500, Sizes::Fixed(1514))]);
        packed(&frame()).iter().for_each(|byte| peer.write(&[*byte]));
    }
    let c = lab.d.counters();
    assert!(c.sum(Some("evil"), "out", "drop.stream_full") > 0, "{c:?}");
    lab.chat(500);
    drop(peer);
    lab.finish();
}

/// Thousands who wait for the peer's socket are woken by each frame that goes there, in our time:
/// the connection is ended and the port closed for a while, as for a front-end that does so.
#[test]
fn a_socket_with_a_crowd_is_dropped() {
    let mut lab = Lab::new(&[]);
    let peer = Peer::connect(&lab.path());
    let _crowd = Crowd::around_any(peer.socket.as_raw_fd(), 100_000);
    let mut sent = 0;
    let Lab { d, net, .. } = &mut lab;
    let dropped = wait_for(SOON, || {
        net.run(&[Job::new(0, To::Broadcast, 1, Sizes::Fixed(60))]);
        sent += 1;
        d.log().contains("port evil: closed for 10s")
    });
    println!("dropped {dropped} after {sent} frames");
    assert!(dropped, "{}", lab.d.log());
    assert!(lab.d.log().contains("its socket has too many waiters"), "{}", lab.d.log());
    lab.chat(500);
    lab.net.finish();
    drop(lab.net);
    lab.d.stop();
}
