//! Hostile descriptors of front-ends.
//!
//! A write to an eventfd blocks where its counter is full and O_NONBLOCK is not set, which the
//! front-end shares with us. The kernel wakes whoever waits on an eventfd within the writer's
//! system call, one after the other and with interrupts off: with thousands of pollers on a call
//! descriptor each signal takes milliseconds of a worker that others need too. And a file of a FUSE
//! file system answers nothing, not even what kind of file it is, unless its server wants to.

use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::alone;
use testkit::SOON;
use testkit::frontend::{Acks, Error, Frontend, feat, proto, req};
use testkit::hostile::refill;
use testkit::mem::RegionSpec;
use testkit::net::{Job, Net, Sizes};
use testkit::proc::{Daemon, wait_for};
use testkit::sys::{Crowd, EventFd, Gate, own_cpu_time, poll_in, set_blocking};
use testkit::traffic::To;
use testkit::vm::{Vm, VmConfig};
use testkit::{long, silent};

/// The hostile guest's port; 0 and 1 are honest.
const EVIL: usize = 2;

/// By when a front-end that harms others is dropped, on a machine too that has little time for its
/// attack: a few slow writes a second are forgiven.
const LATEST: Duration = Duration::from_secs(30);

/// A new descriptor, which nobody else owns.
fn owned(fd: i32) -> OwnedFd {
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the callers just got it from the kernel.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn trio() -> (Daemon, Net, Vm) {
    let d = Daemon::with(3, &[]);
    let mut net = Net::connect(&d, 2, |c| c);
    let evil = attacker(&d, EVIL);
    chat(&mut net, 100);
    (d, net, evil)
}

/// Without EVENT_IDX it is signalled for whatever it gets.
fn attacker(d: &Daemon, port: usize) -> Vm {
    let mut cfg = VmConfig::new(port as u8);
    cfg.features &= !feat::EVENT_IDX;
    Vm::connect(&d.socket(port), cfg)
}

/// Honest traffic goes on as if nothing were.
fn chat(net: &mut Net, frames: u32) {
    net.run(&[
        Job::new(0, To::Vm(1), frames, Sizes::Range(60, 1514)),
        Job::new(1, To::Vm(0), frames, Sizes::Range(60, 1514)),
    ]);
}

/// The attacker is gone, and honest traffic goes on.
fn finish<T>(d: Daemon, mut net: Net, evil: T) {
    drop(evil);
    chat(&mut net, 1000);
    net.finish();
    drop(net);
    d.stop();
}

fn set_call(evil: &mut Vm, call: &EventFd) {
    evil.fe.acks = Acks::Never;
    evil.fe.set_vring_fd(req::SET_VRING_CALL, 0, Some(call.raw())).expect("set");
    evil.settle();
}

/// Broadcasts until the hostile port is dropped.
fn signal_until_dropped(net: &mut Net, evil: &mut Vm) {
    let dropped = wait_for(LATEST, || {
        net.run(&[Job::new(0, To::Broadcast, 1, Sizes::Fixed(60))]);
        refill(&evil.guest.rx[0].ring);
        evil.fe.closed_within(Duration::from_millis(1))
    });
    assert!(dropped, "still connected");
}

/// P5: eight call descriptors that block whoever writes to them. The pair beside them pauses for
/// 100 ms at most, and all eight are dropped.
#[test]
fn p5_calls_that_block() {
    let _alone = alone();
    const HOSTILE: usize = 8;
    let d = Daemon::with(EVIL + HOSTILE, &[]);
    let mut net = Net::connect(&d, 2, |c| c);
    let mut evil = Vec::new();
    for i in 0..HOSTILE {
        let mut vm = attacker(&d, EVIL + i);
        let call = EventFd::with_flags(0);
        call.write(u64::MAX - 1);
        set_call(&mut vm, &call);
        set_blocking(&call);
        evil.push((vm, call));
    }
    let mut longest = Duration::ZERO;
    let waited = d.run_queue_wait();
    for _ in 0..200 {
        let began = Instant::now();
        net.run(&[Job::new(0, To::Broadcast, 1, Sizes::Fixed(60))]);
        longest = longest.max(began.elapsed());
    }
    // What the machine had no processor for is not the switch's fault.
    let waited = d.run_queue_wait().saturating_sub(waited);
    println!("longest pause {longest:?}, of which the daemon waited for a CPU {waited:?} at most");
    assert!(longest <= Duration::from_millis(100) + waited, "{longest:?} {waited:?}");
    for (vm, _) in &mut evil {
        assert!(vm.fe.closed_within(Duration::from_secs(2)), "not dropped");
    }
    finish(d, net, evil);
}

/// Slow writes that are forgiven by now, one every 200 ms: a busy machine spreads them.
fn forgiven(began: Instant) -> u64 {
    (began.elapsed().as_millis() / 200) as u64
}

/// A front-end whose call descriptor has too many waiters is dropped after a few signals.
#[test]
fn a_crowded_call_descriptor_is_dropped() {
    let _alone = alone();
    let (d, mut net, mut evil) = trio();
    let call = EventFd::new();
    set_call(&mut evil, &call);
    // After the daemon has tried it out. Each signal costs some milliseconds from here on.
    let _crowd = Crowd::around(&call, 30_000);
    let began = Instant::now();
    signal_until_dropped(&mut net, &mut evil);
    let (signals, most) = (call.take(), 20 + forgiven(began));
    println!("dropped after {signals} signals");
    assert!(signals <= most, "{signals} slow signals, not {most}");
    let said = || d.log().contains("p2: closed for 10s: its front-end harmed others");
    assert!(wait_for(Duration::from_secs(2), said), "{}", d.log());
    finish(d, net, evil);
}

/// A guest whose call descriptor costs the writer milliseconds is dropped after a few signals, by a
/// worker or, if the crowd was there before, by its own session; and it cannot come back at once.
/// Its port is closed for 10 s.
#[test]
fn a_crowd_at_the_call_descriptor() {
    let _alone = alone();
    let d = Daemon::with(4, &[]);
    let mut net = Net::connect(&d, 2, |c| c);
    // A write that takes more than 50 ms of processor time counts four times, and the time that
    // forgets it passes on a busy machine too.
    let waiters = if long() { 1_000_000 } else { 400_000 };

    // The session finds out.
    let call = EventFd::new();
    let there_before = Crowd::around(&call, waiters);
    let began = Instant::now();
    call.write(1);
    let slow = began.elapsed();
    println!("a write that wakes {waiters} takes {slow:?}");
    call.take();
    let mut early = Frontend::connect(&d.socket(3), SOON).expect("connect");
    early.set_vring_fd(req::SET_VRING_CALL, 0, Some(call.raw())).expect("sent");
    assert!(early.closed_within(LATEST), "not dropped by its session, {slow:?} a signal");
    let (signals, most) = (call.take(), 16 + forgiven(began));
    assert!(signals <= most, "{signals} slow signals, not {most}");
    drop(there_before);

    // A worker finds out.
    let mut evil = attacker(&d, EVIL);
    let call = EventFd::new();
    set_call(&mut evil, &call);
    call.take();
    let waiting = Crowd::around(&call, waiters);
    let began = Instant::now();
    // Some broadcasts find its signals put off.
    let dropped = wait_for(LATEST, || {
        net.run(&[Job::new(0, To::Broadcast, 1, Sizes::Fixed(60))]);
        refill(&evil.guest.rx[0].ring);
        evil.fe.closed_within(Duration::from_millis(5))
    });
    assert!(dropped, "not dropped by a worker\n{}", d.log());
    let (signals, most) = (call.take(), 17 + forgiven(began));
    assert!((1..=most).contains(&signals), "{signals} slow signals, not {most}");
    drop(waiting);

    // It is not taken again for a while, and its port does not keep the daemon from ending.
    let mut again = Frontend::connect(&d.socket(EVIL), SOON).expect("connect");
    let sent = again.send(req::GET_FEATURES, testkit::frontend::VERSION, &[], &[]);
    sent.expect("sent, and not read");
    assert!(!again.closed_within(Duration::from_secs(1)));
    if long() {
        assert!(again.reply(req::GET_FEATURES).is_err(), "too soon");
        let back = wait_for(Duration::from_secs(30), || again.reply(req::GET_FEATURES).is_ok());
        assert!(back, "never taken again");
    }
    net.run(&[Job::new(0, To::Vm(1), 500, Sizes::Range(60, 1514))]);
    net.finish();
    drop(net);
    d.stop();
}

/// Honest signals are never that slow, however busy the machine: a guest that is signalled for each
/// frame stays.
#[test]
fn honest_calls_are_not_taken_for_a_crowd() {
    let _alone = alone();
    let d = Daemon::with(2, &[]);
    let mut net = Net::connect(&d, 2, |mut cfg| {
        cfg.features &= !feat::EVENT_IDX;
        cfg
    });
    for _ in 0..200 {
        net.run(&[Job::new(0, To::Vm(1), 20, Sizes::Fixed(60))]);
    }
    net.books(&d);
    net.finish();
    assert!(!d.log().contains("dropped"), "{}", d.log());
    drop(net);
    d.stop();
}

/// A crowd that every fourth write does not wake: somebody waits before it then. What is slow adds
/// up all the same, and the front-end is dropped after as many slow writes as one whose writes are
/// all slow, and a few more for the time between them.
#[test]
fn a_crowd_that_some_writes_do_not_wake_is_dropped() {
    let _alone = alone();
    let (d, mut net, mut evil) = trio();
    let call = EventFd::new();
    set_call(&mut evil, &call);
    let gate = Gate::before(&call);
    let _crowd = Crowd::behind(&gate, &call, 200_000);
    let (over, slow, quick) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    call.take();
    let (began, waited) = (Instant::now(), d.run_queue_wait());
    let dropped = std::thread::scope(|s| {
        s.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                if gate.wait(Duration::from_millis(100)) {
                    quick.fetch_add(call.take(), Ordering::Relaxed);
                }
                // Away for three writes.
                let mut seen = 0;
                while seen < 3 && !over.load(Ordering::Relaxed) {
                    seen += call.take();
                    std::thread::sleep(Duration::from_micros(500));
                }
                slow.fetch_add(seen, Ordering::Relaxed);
            }
        });
        let dropped = wait_for(LATEST, || {
            net.run(&[Job::new(0, To::Broadcast, 1, Sizes::Fixed(60))]);
            refill(&evil.guest.rx[0].ring);
            evil.fe.closed_within(Duration::from_millis(1))
        });
        over.store(true, Ordering::Relaxed);
        dropped
    });
    let (took, waited) = (began.elapsed(), d.run_queue_wait().saturating_sub(waited));
    let (slow, quick) = (slow.into_inner(), quick.into_inner());
    println!(
        "dropped {dropped} after {slow} slow writes and {quick} that woke one, within {took:.1?} \
         ({waited:.1?} of that without a CPU)"
    );
    assert!(dropped, "still connected after {slow} slow writes and {quick} others");
    assert!(slow <= 20 + forgiven(began), "{slow} slow writes");
    assert!(took <= Duration::from_secs(2) + waited, "dropped after {took:?} {waited:?}");
    finish(d, net, evil);
}

/// A kick descriptor with a crowd that is woken all the time: whoever begins or ends to watch it
/// waits for that. A front-end that hands it over again and again is dropped, as one that does so
/// with its call descriptor is.
#[test]
fn a_crowded_kick_descriptor_is_dropped() {
    let _alone = alone();
    // What is slow, and how many are dropped for if they do not come at once.
    const SLOW: Duration = Duration::from_millis(1);
    const FEW: u32 = 16 + 15 * 5;
    let (d, net, mut evil) = trio();
    let kick = EventFd::new();
    let _crowd = Crowd::around(&kick, 100_000);
    let over = AtomicBool::new(false);
    let (mut said, mut slow) = (0, 0);
    let dropped = std::thread::scope(|s| {
        s.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                kick.write(1);
            }
        });
        evil.fe.acks = Acks::Never;
        let dropped = wait_for(Duration::from_secs(15), || {
            said += 1;
            let told = evil.fe.set_vring_fd(req::SET_VRING_KICK, 0, Some(kick.raw()));
            let dropped = told.is_err() || evil.fe.get_features().is_err();
            // On a busy machine whoever wakes the crowd seldom runs beside who watches the kick.
            let begun = own_cpu_time();
            drop(Crowd::around(&kick, 1));
            slow += u32::from(own_cpu_time() - begun > 2 * SLOW);
            dropped
        });
        over.store(true, Ordering::Relaxed);
        dropped
    });
    println!("dropped {dropped} after {said} kick descriptors; {slow} slow ones of our own");
    if !dropped && slow < FEW {
        return println!("not judged: it costs nothing to watch such a descriptor here");
    }
    assert!(dropped, "still connected after {said} crowded kick descriptors");
    let closed = || d.log().contains("p2: closed for 10s: its front-end harmed others");
    assert!(wait_for(Duration::from_secs(2), closed), "{}", d.log());
    finish(d, net, evil);
}

/// Whoever was dropped for what it did to others waits before it is served again; others are not
/// concerned.
#[test]
#[ignore = "full"]
fn whoever_was_dropped_waits() {
    let _alone = alone();
    let (d, mut net, mut evil) = trio();
    let call = EventFd::with_flags(0);
    call.write(u64::MAX - 1);
    set_call(&mut evil, &call);
    set_blocking(&call);
    signal_until_dropped(&mut net, &mut evil);
    let began = Instant::now();
    let mut again = Frontend::connect(&d.socket(EVIL), Duration::from_secs(30)).expect("again");
    chat(&mut net, 100);
    again.send(req::GET_FEATURES, 1, &[], &[]).expect("sent");
    let answered = poll_in(&[again.raw()], Duration::from_secs(30));
    assert!(answered, "served in the end");
    let waited = began.elapsed();
    println!("waited {waited:?}");
    assert!(waited >= Duration::from_secs(9), "{waited:?}");
    drop((evil, again));
    net.finish();
    drop(net);
    d.stop();
}

/// The root of a FUSE file system whose server never answers, and its server's end. None where that
/// may not be mounted.
fn silent_file_system() -> Option<(OwnedFd, OwnedFd)> {
    let dir = std::env::temp_dir().join(format!("silent-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("directory");
    let over = dir.clone();
    let mounted = move || {
        let server = silent::own_mounts().then(|| silent::mount(&over, 0, libc::S_IFDIR))??;
        let path = CString::new(over.as_os_str().as_encoded_bytes()).expect("path");
        // SAFETY: plain system call on a string that lives across it. This thread ends soon.
        let root = unsafe { libc::open(path.as_ptr(), libc::O_PATH | libc::O_CLOEXEC) };
        Some((owned(root), server))
    };
    let found = std::thread::spawn(mounted).join().expect("mount");
    std::fs::remove_dir(&dir).expect("directory");
    found
}

/// P8: asking a file what it is must not ask its file system. The daemon's thread for the port
/// would hang in that, and the port be lost to the next front-end too.
#[test]
fn p8_files_that_never_answer() {
    let _alone = alone();
    let Some((root, _server)) = silent_file_system() else {
        return testkit::skip("FUSE cannot be mounted");
    };
    let d = Daemon::with(1, &[]);
    let mut fe = Frontend::connect(&d.socket(0), Duration::from_secs(5)).expect("connect");
    fe.get_features().expect("features");
    fe.set_protocol_features(proto::REPLY_ACK | proto::CONFIGURE_MEM_SLOTS).expect("protocol");
    fe.acks = Acks::Always;
    let refused = fe.add_mem_reg(&RegionSpec::new(0, 4096), root.as_raw_fd());
    assert!(matches!(refused, Err(Error::Nack(_))), "{refused:?}");
    drop(fe);
    let vm = Vm::connect(&d.socket(0), VmConfig::new(0));
    drop(vm);
    d.stop();
}
