//! Front-ends that are killed or stopped: at any moment, with traffic in both directions. They are
//! processes of their own: this binary again, with the environment saying so.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::lab::{chat, plain};
use testkit::frontend::{Frontend, message, req};
use testkit::net::{Job, Net, Sizes};
use testkit::proc::{Daemon, wait_for};
use testkit::sys;
use testkit::traffic::To;
use testkit::vm::{Guest, Vm, VmConfig};
use testkit::{Rng, SOON};

const SOCKET: &str = "VIOSWITCH_TEST_SOCKET";
const MODE: &str = "VIOSWITCH_TEST_MODE";
/// The port of the front-ends that suffer; 0 and 1 are honest.
const EVIL: usize = 2;
/// The promise after a front-end's death.
const FREE_LIMIT: Duration = Duration::from_millis(100);

/// Not a test: what the child processes do. Without the environment it has nothing to do.
#[test]
fn child_process() {
    let (Some(socket), Some(mode)) = (std::env::var_os(SOCKET), std::env::var_os(MODE)) else {
        return;
    };
    let (socket, mode) = (PathBuf::from(socket), mode.to_string_lossy().into_owned());
    let say = || {
        let mut out = std::io::stdout();
        let _ = out.write_all(b"\nunder way\n").and_then(|()| out.flush());
    };
    match mode.as_str() {
        "load" => load(&socket, say),
        "handshake" => handshake(&socket, say),
        "half" => {
            let mut fe = Frontend::connect(&socket, SOON).expect("connect");
            fe.get_features().expect("features");
            // Half of a message, and no more.
            fe.send_raw(&message(req::SET_FEATURES, 1, &[0; 8])[..7], &[]).expect("send");
            say();
            std::thread::sleep(Duration::from_secs(60));
        }
        other => panic!("mode {other}"),
    }
}

/// Sends as fast as it can, to itself, and takes what comes, until it is killed.
fn load(socket: &Path, say: impl Fn()) {
    let mut vm = Vm::connect(socket, VmConfig::new(EVIL as u8));
    let mac = vm.mac();
    let frame = plain(mac, mac, 1, 1000);
    say();
    loop {
        for _ in 0..64 {
            vm.tx[0].queue(&frame);
        }
        vm.tx[0].ring.publish();
        vm.rx[0].recv(64, |_, _| {});
        vm.tx[0].reclaim();
    }
}

/// Comes up and leaves, over and over.
fn handshake(socket: &Path, say: impl Fn()) {
    let guest = Guest::new(VmConfig::new(EVIL as u8));
    let mut fe = Frontend::connect(socket, SOON).expect("connect");
    say();
    loop {
        guest.bring_up(&mut fe).expect("bring up");
        drop(fe);
        fe = Frontend::connect(socket, SOON).expect("connect");
    }
}

struct FrontEnd(Child);

impl FrontEnd {
    fn start(socket: &Path, mode: &str) -> FrontEnd {
        let mut command = Command::new(std::env::current_exe().expect("this binary"));
        command.args(["front_ends::child_process", "--exact", "--nocapture", "--test-threads=1"]);
        command.env(SOCKET, socket).env(MODE, mode);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("start a front-end");
        let out = child.stdout.take().expect("pipe");
        let said = BufReader::new(out).lines().map_while(Result::ok).any(|l| l == "under way");
        assert!(said, "the front-end did not come up");
        FrontEnd(child)
    }

    fn signal(&self, signal: libc::c_int) {
        assert!(sys::kill(self.0.id(), signal), "the front-end is gone");
    }

    /// SIGKILL; everything of it is closed when this returns.
    fn kill(&mut self) {
        self.signal(libc::SIGKILL);
        self.0.wait().expect("wait");
    }
}

impl Drop for FrontEnd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How long the next front-end waits for its first answer, less what the machine had no CPU for.
fn time_to_free(d: &Daemon) -> Duration {
    let (start, waited) = (Instant::now(), d.run_queue_wait());
    let mut fe = Frontend::connect(&d.socket(EVIL), SOON).expect("connect");
    fe.get_features().expect("the port is free");
    let took = start.elapsed();
    took.saturating_sub(d.run_queue_wait().saturating_sub(waited))
}

/// Killed under load and at any moment of a handshake, and with half a message said: no exit, the
/// port is free at once, the others lose nothing and nothing stays behind. The port is free within
/// 100 ms. 1,000 times with `VIOSWITCH_LONG=1`.
#[test]
fn front_ends_are_killed() {
    let d = Daemon::with(3, &["--workers", "2"]);
    let mut net = Net::connect(&d, 2, |cfg| cfg);
    chat(&mut net, 100);
    let before = d.settled_usage();
    let mut rng = Rng::new(7);
    let rounds = if testkit::long() { 1000 } else { 40 };
    let mut worst = Duration::ZERO;
    for round in 0..rounds {
        let mode = ["load", "handshake", "load", "handshake", "half"][round % 5];
        let mut front_end = FrontEnd::start(&d.socket(EVIL), mode);
        net.send_only(&Job::new(0, To::Broadcast, 8, Sizes::Fixed(200)));
        std::thread::sleep(Duration::from_micros(rng.below(5_000)));
        front_end.kill();
        let free = time_to_free(&d);
        assert!(free < FREE_LIMIT, "{mode}: free after {free:?}\n{}", d.log());
        worst = worst.max(free);
        net.run(&[Job::new(1, To::Vm(0), 50, Sizes::Range(60, 1514))]);
    }
    println!("{rounds} killed, port free after {worst:?} at most");
    drop(Vm::connect(&d.socket(EVIL), VmConfig::new(EVIL as u8)));
    let gone = wait_for(SOON, || d.settled_usage() == before);
    assert!(gone, "{before:?} before, {:?} after (I6)", d.settled_usage());
    net.finish();
    d.counters().balance();
    drop(net);
    d.stop();
}

/// Stopped for ten seconds under load, in the middle of a message, and in a handshake: the others
/// lose nothing, and it goes on, or comes again if its message took too long.
#[test]
#[ignore = "full"]
fn front_ends_are_stopped() {
    let d = Daemon::with(3, &["--workers", "1"]);
    let mut net = Net::connect(&d, 2, |cfg| cfg);
    let pause = Duration::from_secs(if testkit::long() { 10 } else { 3 });
    for mode in ["load", "half", "handshake"] {
        let mut front_end = FrontEnd::start(&d.socket(EVIL), mode);
        front_end.signal(libc::SIGSTOP);
        // Once it stands still.
        std::thread::sleep(Duration::from_millis(50));
        let end = Instant::now() + pause;
        let mut runs = 0;
        while Instant::now() < end {
            // Frames for it as well, more than its ring holds.
            net.send_only(&Job::new(0, To::Broadcast, 8, Sizes::Fixed(200)));
            // Panics if a frame is missing or the switch stands still for 3 s.
            chat(&mut net, 200);
            runs += 1;
        }
        println!("{mode}: {runs} runs of 400 frames in {pause:?}");
        if mode == "half" {
            // Its message was given up: the port is free although it is there.
            let free = time_to_free(&d);
            assert!(free < FREE_LIMIT, "free after {free:?}");
        }
        let sent = d.counters().sum(Some("p2"), "in", "frames");
        front_end.signal(libc::SIGCONT);
        if mode == "load" {
            let more = || d.counters().sum(Some("p2"), "in", "frames") > sent + 64;
            assert!(wait_for(SOON, more), "it does not go on\n{}", d.log());
        }
        chat(&mut net, 100);
        front_end.kill();
        drop(Vm::connect(&d.socket(EVIL), VmConfig::new(EVIL as u8)));
    }
    net.finish();
    d.counters().balance();
    drop(net);
    d.stop();
}
