//! From the start to the end of the real binary: readiness, what signals do to it, what it leaves.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use testkit::counters::Counters;
use testkit::frontend::Frontend;
use testkit::net::{Job, Net, Sizes};
use testkit::proc::{Daemon, Dir, STOP_LIMIT, wait_for};
use testkit::sys;
use testkit::traffic::To;
use testkit::vm::mac_of;

use super::lab::{Process, SOON, exchange, plain, port, vm};

// --- Signals ------------------------------------------------------------------------------

#[test]
fn both_signals_end_it_in_every_state() {
    let client = |dir: &Path| format!("--port=c,socket={},mode=client", dir.join("c").display());
    for signal in [libc::SIGTERM, libc::SIGINT] {
        for poll in [false, true] {
            let dir = Dir::new();
            let mut args = vec![
                port(dir.path(), "idle", ""),
                port(dir.path(), "half", ""),
                client(dir.path()),
            ];
            args.push(port(dir.path(), "served", ",queues=4"));
            args.extend(poll.then(|| "--poll".to_owned()));
            let mut d = Process::start(dir, &args, plain);
            d.wait_ready();
            let served = vm(&d.path("served"), 0);
            // In the middle of a message, and of a negotiation.
            let mut half = Frontend::connect(&d.path("half"), SOON).expect("connect");
            half.get_features().expect("answers");
            half.send_raw(&[1, 0, 0], &[]).expect("sent");
            d.stop(signal, &["idle", "half", "served"]);
            drop(served);
        }
    }
}

/// The guests' rings are consistent at the end: the next daemon goes on where this one stopped. It
/// ends within a second.
#[test]
fn both_signals_end_it_under_traffic() {
    for (signal, workers) in [(libc::SIGTERM, "1"), (libc::SIGINT, "2")] {
        let dir = Dir::new();
        let args = [port(dir.path(), "p0", ""), port(dir.path(), "p1", "")];
        let args = [&args[..], &[format!("--workers={workers}")]].concat();
        let mut d = Process::start(dir, &args, plain);
        d.wait_ready();
        let mut vms = [vm(&d.path("p0"), 0), vm(&d.path("p1"), 1)];
        let frame = |from: usize| {
            let mut frame =
                [&mac_of(1 - from as u8)[..], &mac_of(from as u8), &[0x88, 0xb5]].concat();
            frame.resize(1000, from as u8);
            frame
        };
        let frames = [frame(0), frame(1)];
        let mut moved = [0; 2];
        std::thread::scope(|scope| {
            let stopping = scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(200));
                assert!(sys::kill(d.child.id(), signal));
                d.ended(STOP_LIMIT)
            });
            while !stopping.is_finished() {
                for (i, vm) in vms.iter_mut().enumerate() {
                    while vm.tx[0].send(&frames[i]) {}
                    moved[i] += vm.rx[0].recv(64, |_, got| assert!(got == frames[1 - i]));
                }
            }
            let status = stopping.join().unwrap_or_else(|p| std::panic::resume_unwind(p));
            assert_eq!(status.code(), Some(0));
        });
        assert!(moved.iter().all(|&n| n > 1000), "{moved:?} frames");
        assert!(!d.path("p0").exists() && !d.path("p1").exists());
        let dir = Dir::new();
        let args = [port(dir.path(), "p0", ""), port(dir.path(), "p1", "")];
        let mut next = Process::start(dir, &args, plain);
        next.wait_ready();
        for (i, vm) in vms.iter_mut().enumerate() {
            vm.reconnect(&next.path(&format!("p{i}")));
        }
        for i in 0..2 {
            // What was left on the ring, and something new behind it; room for all is ensured by
            // taking what comes.
            let end = Instant::now() + SOON;
            while vms[i].tx[0].ring.in_flight() > 0 {
                assert!(Instant::now() < end, "guest {i}: frames not taken");
                vms[1 - i].rx[0].recv(64, |_, got| assert!(got == frames[i]));
                vms[i].tx[0].reclaim();
            }
            vms[i].tx[0].send_waiting(&frames[i], SOON);
            assert!(vms[1 - i].rx[0].wait(SOON), "guest {i}: nothing arrives");
        }
        next.stop(signal, &["p0", "p1"]);
    }
}

#[test]
fn sigusr1_logs_the_counters_and_nothing_else_happens() {
    let d = Daemon::with(2, &[]);
    let mut net = Net::connect(&d, 2, |cfg| cfg);
    let job = |from: u8| Job::new(from.into(), To::Vm(1 - from), 300, Sizes::Fixed(100));
    net.run(&[job(0), job(1)]);
    let counted =
        |c: &Counters| (c.sum(Some("p0"), "in", "frames"), c.sum(Some("p1"), "out", "frames"));
    // Two hellos: each guest's broadcast is a frame of its own and one for the other.
    assert_eq!(counted(&d.counters()), (301, 301));
    for _ in 0..100 {
        d.signal(libc::SIGUSR1);
    }
    net.run(&[job(0), job(1)]);
    let c = d.counters();
    assert_eq!(counted(&c), (601, 601));
    c.balance();
    net.finish();
    d.stop();
}

/// The last word in the log is the counters.
#[test]
fn counters_are_logged_at_the_end() {
    let dir = Dir::new();
    let args = [port(dir.path(), "p0", ""), port(dir.path(), "p1", "")];
    let mut d = Process::start(dir, &args, plain);
    d.wait_ready();
    exchange([vm(&d.path("p0"), 0), vm(&d.path("p1"), 1)]);
    assert!(sys::kill(d.child.id(), libc::SIGTERM));
    assert_eq!(d.ended(STOP_LIMIT).code(), Some(0));
    let c = Counters::parse(&d.log());
    assert_eq!(c.sum(Some("p0"), "in", "frames"), 201, "{}", d.log());
    assert_eq!(c.sum(Some("p0"), "", "attaches"), 1);
    c.balance();
}

// --- The service manager ------------------------------------------------------------------

/// What the manager is told next, but for what it is asked to keep.
fn told(manager: &UnixDatagram, limit: Duration) -> Option<String> {
    manager.set_read_timeout(Some(limit)).expect("time limit");
    let mut buffer = [0; 512];
    loop {
        let len = match manager.recv(&mut buffer) {
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => panic!("{error}"),
        };
        let said = String::from_utf8(buffer[..len].to_vec()).expect("UTF-8");
        if !said.starts_with("FDSTORE") {
            return Some(said);
        }
    }
}

/// `Type=notify`: ready means that every socket exists.
#[test]
fn readiness_is_told_when_all_sockets_exist() {
    // A manager that reads too late is not waited for; on a busy machine we may be one.
    let (mut round, mut late) = (0, 0);
    while round < 4 {
        let dir = Dir::new();
        let path = dir.path().join("notify");
        let (manager, name) = if round % 2 == 0 {
            (UnixDatagram::bind(&path), path.display().to_string())
        } else {
            let name = format!("vioswitch-cli-{}-{round}-{late}", std::process::id());
            let address = SocketAddr::from_abstract_name(&name).expect("name");
            (UnixDatagram::bind_addr(&address), format!("@{name}"))
        };
        let manager = manager.expect("bind");
        let names: Vec<String> = (0..100).map(|i| format!("p{i}")).collect();
        let args: Vec<String> = names.iter().map(|name| port(dir.path(), name, "")).collect();
        let mut d = Process::start(dir, &args, |command| command.env("NOTIFY_SOCKET", &name));
        let state = told(&manager, SOON);
        if state.is_none() && d.log().contains("cannot notify") && late < 8 {
            late += 1;
            continue;
        }
        let state = state.unwrap_or_else(|| panic!("round {round}: not ready: {}", d.log()));
        for name in &names {
            UnixStream::connect(d.path(name)).expect("ready, so each accepts");
        }
        assert!(state.lines().any(|line| line == "READY=1"), "{state}");
        assert!(sys::kill(d.child.id(), libc::SIGTERM));
        let state = told(&manager, SOON).expect("the end");
        assert!(state.lines().any(|line| line == "STOPPING=1"), "{state}");
        // The process waits for a manager that does not read.
        thread::spawn(move || while told(&manager, STOP_LIMIT).is_some() {});
        assert_eq!(d.ended(STOP_LIMIT).code(), Some(0));
        round += 1;
    }
}

/// How long 700 ports take to end, and what was said, with a manager at this socket.
fn end_of_many_ports(manager: Option<&Path>) -> (Duration, String) {
    let dir = Dir::new();
    let args: Vec<String> = (0..700).map(|i| port(dir.path(), &format!("p{i}"), "")).collect();
    let mut d = Process::start(dir, &args, |command| match manager {
        Some(path) => command.env("NOTIFY_SOCKET", path),
        None => command,
    });
    let last = d.path("p699");
    let is_served = |mut fe: Frontend| fe.get_features().is_ok();
    let up = wait_for(4 * SOON, || Frontend::connect(&last, SOON).is_ok_and(is_served));
    assert!(up && sys::kill(d.child.id(), libc::SIGTERM), "{}", d.log());
    let start = Instant::now();
    let status = d.child.wait().expect("wait");
    let took = start.elapsed();
    assert!(status.success() && !last.exists(), "{}", d.log());
    (took, d.log())
}

/// A manager that does not read holds up neither start nor end for long; what it did not take is
/// removed at the end, as without one. 0.3 s each at most.
#[test]
fn a_manager_that_hangs_is_done_without() {
    let dir = Dir::new();
    let path = dir.path().join("notify");
    let _deaf = UnixDatagram::bind(&path).expect("bind");
    let (without, _) = end_of_many_ports(None);
    let (took, said) = end_of_many_ports(Some(&path));
    assert!(said.contains("does not keep the sockets"), "{said}");
    // It is waited for 0.3 s at a time; and the CPUs may have other things to do.
    let limit = Duration::from_secs(1) + 2 * without;
    println!("left after {took:?}, without a manager after {without:?}");
    assert!(took < limit, "left after {took:?}, without a manager after {without:?}");
}

#[test]
fn a_failed_start_is_never_told_as_ready() {
    let dir = Dir::new();
    let path = dir.path().join("notify");
    let manager = UnixDatagram::bind(&path).expect("bind");
    let args = [port(&dir.path().join("none"), "p0", ""), "--tap=up,ifname=lo".to_owned()];
    let mut d = Process::start(dir, &args, |command| command.env("NOTIFY_SOCKET", &path));
    assert_eq!(d.ended(SOON).code(), Some(1));
    while let Some(state) = told(&manager, Duration::from_millis(10)) {
        assert!(!state.lines().any(|line| line == "READY=1"), "{state}");
    }
}

/// A service manager that cannot be reached is a warning, not the end.
#[test]
fn a_missing_service_manager_is_survived() {
    let dir = Dir::new();
    let args = [port(dir.path(), "p0", "")];
    let nobody = dir.path().join("nobody");
    let mut d = Process::start(dir, &args, |command| command.env("NOTIFY_SOCKET", &nobody));
    d.wait_ready();
    assert!(d.log().contains("cannot notify the service manager"), "{}", d.log());
    d.stop(libc::SIGTERM, &["p0"]);
}
