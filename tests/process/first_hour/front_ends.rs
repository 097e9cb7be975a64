//! Front-ends that do not get what they came for: and what the log says of them.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::process::{Process, SOON, vioswitchd};
use testkit::frontend::{Frontend, VringAddr, req};
use testkit::proc::{Daemon, Dir, wait_for};
use testkit::sys::EventFd;
use testkit::vm::{Vm, VmConfig};

/// A port writes four lines at once and then one a second.
const MORE_LINES: Duration = Duration::from_millis(3_500);

/// Longer than a connection may be silent and no front-end.
const SILENCE: Duration = Duration::from_millis(1500);

fn lines(d: &Daemon, what: &str) -> usize {
    d.log().lines().filter(|line| line.contains(what)).count()
}

fn waits_for(d: &Daemon, what: &str) {
    assert!(wait_for(SOON, || lines(d, what) > 0), "no {what:?}\n{}", d.log());
}

fn connect(d: &Daemon) -> Frontend {
    Frontend::connect(&d.socket(0), SOON).expect("connect")
}

/// `-m 256` alone: QEMU starts its rings without having sent a table.
#[test]
fn a_guest_without_shared_memory_is_one_line() {
    let d = Daemon::with(1, &[]);
    for round in 1..=2 {
        let mut frontend = connect(&d);
        let features = frontend.get_features().expect("answers");
        frontend.set_features(features).expect("sent");
        for _ in 0..3 {
            for index in 0..2 {
                let addr = VringAddr {
                    index,
                    desc: 0x1000,
                    used: 0x3000,
                    avail: 0x2000,
                    ..Default::default()
                };
                let kick = EventFd::new();
                frontend.set_vring_num(index, 256).expect("sent");
                frontend.set_vring_addr(&addr).expect("sent");
                frontend.set_vring_fd(req::SET_VRING_KICK, index, Some(kick.raw())).expect("sent");
            }
        }
        assert!(frontend.still_served());
        assert_eq!(lines(&d, "has sent no guest memory"), round, "{}", d.log());
        assert!(frontend.leave(SOON));
        std::thread::sleep(MORE_LINES);
    }
    assert!(d.log().contains("memory-backend-memfd,id=mem,size=SIZE,share=on"), "{}", d.log());
    d.stop();
}

#[test]
fn a_guest_with_memory_is_told_nothing_of_it() {
    let d = Daemon::with(1, &[]);
    let vm = Vm::connect(&d.socket(0), VmConfig::new(0));
    drop(vm);
    waits_for(&d, "front-end disconnected");
    for what in ["guest memory", "want more", "another front-end"] {
        assert_eq!(lines(&d, what), 0, "{}", d.log());
    }
    d.stop();
}

/// QEMU with `queues=3` on a port with one pair: it asks, says so on its own side, and leaves.
#[test]
fn one_that_wants_more_queue_pairs_is_told_of_the_option() {
    let d = Daemon::with(1, &[]);
    let mut frontend = connect(&d);
    frontend.get_features().expect("answers");
    assert_eq!(frontend.get_queue_num().expect("answers"), 2);
    assert!(frontend.leave(SOON));
    waits_for(&d, "offered 2 queue pairs at most");
    waits_for(&d, "front-end disconnected");
    d.stop();
}

/// A second VM on a taken socket sees a connection that is not answered.
#[test]
fn a_second_front_end_is_one_line() {
    let d = Daemon::with(1, &[]);
    let mut first = connect(&d);
    first.get_features().expect("answers");
    let mut waiting: Vec<Frontend> = (0..3).map(|_| connect(&d)).collect();
    waits_for(&d, "another front-end has connected to its socket");
    assert!(first.still_served());
    assert_eq!(lines(&d, "another front-end"), 1, "{}", d.log());
    std::thread::sleep(MORE_LINES);
    // It is served when the first leaves, and hears of the next in its turn.
    assert!(first.leave(SOON));
    waiting[0].get_features().expect("answers");
    assert!(wait_for(SOON, || lines(&d, "another front-end") == 2), "{}", d.log());
    drop(waiting);
    d.stop();
}

/// Whoever only asks whether the socket is in use was no front-end; whoever stays is one.
#[test]
fn who_leaves_in_silence_was_not_attached() {
    let d = Daemon::with(1, &[]);
    for _ in 0..3 {
        let dir = Dir::new();
        let mut other = vioswitchd();
        other.arg(format!("--port=other,socket={}", d.socket(0).display()));
        let mut other = Process::start(dir, other);
        assert_eq!(other.ended().code(), Some(1), "{}", other.log());
        assert!(other.log().contains("is in use by "), "{}", other.log());
        drop(UnixStream::connect(d.socket(0)).expect("connect"));
    }
    let silent = UnixStream::connect(d.socket(0)).expect("connect");
    std::thread::sleep(SILENCE);
    waits_for(&d, "front-end connected");
    assert_eq!(d.counters().sum(Some("p0"), "", "attaches"), 1, "{}", d.log());
    drop(silent);
    waits_for(&d, "front-end disconnected");
    assert_eq!(lines(&d, "front-end connected"), 1, "{}", d.log());
    d.stop();
}
