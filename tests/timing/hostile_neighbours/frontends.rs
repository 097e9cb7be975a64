//! Front-ends that storm, block and loop: two other guests lose neither rate nor latency.

use std::os::fd::RawFd;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::rings::honest;
use crate::alone;
use testkit::frontend::{Acks, feat, req};
use testkit::hostile::{one_buffer, refill, restart_with};
use testkit::long;
use testkit::neighbours::{LONGEST_GAP, Lab, While, in_one_of_a_few_tries, nobody};
use testkit::proc::{Daemon, wait_for};
use testkit::shares::{frame, whole};
use testkit::sys::{Crowd, EventFd, signal_raw};
use testkit::vm::{Vm, VmConfig};

const EVIL: u8 = 2;
const PAUSE: Duration = Duration::from_micros(150);

/// Writes descriptors as fast as it can, and keeps the worker busy with two honest guests.
fn storm<'a>(fds: Vec<RawFd>, from: &'a Vm, to: &'a Vm) -> impl FnMut(&While<'_>) + Send + 'a {
    move |phase: &While<'_>| {
        while phase.on() {
            (0..16).for_each(|_| fds.iter().for_each(|&fd| signal_raw(fd)));
            refill(&to.guest.rx[0].ring);
            refill(&from.guest.tx[0].ring);
        }
    }
}

/// Kicks on all rings, behind which there is nothing. The control kicks descriptors that nobody
/// hears; beside both the worker is kept busy, as one that never sleeps waits longer for its CPU on
/// a machine with other work.
#[test]
#[ignore = "full"]
fn kick_storm() {
    let _alone = alone();
    let mut lab = Lab::with_ports(&["", "", ",queues=8", "", ""], &[]);
    let evil = lab.guest(EVIL, |cfg| cfg.pairs = 8);
    let (from, to) = honest(&mut lab, 3);
    let unheard: Vec<EventFd> = (0..16).map(|_| EventFd::new()).collect();
    let control = storm(unheard.iter().map(EventFd::raw).collect(), &from, &to);
    let attack = storm(evil.rings().map(|ring| ring.kick.raw()).collect(), &from, &to);
    lab.unharmed("a storm of kicks on 16 rings", control, attack);
    drop((evil, from, to));
    lab.finish();
}

/// A guest that asks for a signal for each burst it sends to itself, on so many queues.
fn asks_for_signals(lab: &mut Lab, pairs: u16) -> Vm {
    let mut evil = lab.guest(EVIL, |cfg| {
        cfg.pairs = pairs.into();
        cfg.features &= !feat::EVENT_IDX;
    });
    let bytes = frame(&evil, evil.mac(), 60);
    for ring in transmit(pairs) {
        restart_with(&mut evil, ring, |ring| one_buffer(ring, whole(&bytes), 0));
    }
    evil
}

/// Numbers of the transmit rings.
fn transmit(pairs: u16) -> impl Iterator<Item = u32> {
    (0..u32::from(pairs)).map(|pair| 2 * pair + 1)
}

/// What a hostile call descriptor costs, shared by all transmit rings of so many pairs, in one
/// phase: the front-end is dropped for it. `spoil` says how long a write then takes. What is judged
/// in tries is how long others waited.
fn dropped_for_its_call(
    what: &str,
    pairs: u16,
    call: &EventFd,
    spoil: impl Fn() -> Duration + Sync,
) -> Result<(), String> {
    let mut lab = Lab::with_ports(&["", "", &format!(",queues={pairs}")], &[]);
    let mut evil = asks_for_signals(&mut lab, pairs);
    for ring in transmit(pairs) {
        evil.fe.set_vring_fd(req::SET_VRING_CALL, ring, Some(call.raw())).expect("call");
    }
    evil.settle();
    let write = spoil();
    let attack = |phase: &While<'_>| {
        phase.every(PAUSE, || evil.guest.tx.iter().for_each(|tx| refill(&tx.ring)));
    };
    let seen = lab.measure(nobody, attack);
    println!("{what}, {write:.1?} a write: alone {} | beside {}", seen.alone, seen.attacked);
    // Its dear signals keep apart, so it may go on for longer than is measured.
    let dropped = wait_for(Duration::from_secs(5), || {
        evil.guest.tx.iter().for_each(|tx| refill(&tx.ring));
        evil.fe.closed_within(Duration::from_millis(1))
    });
    assert!(dropped, "{what}: not dropped");
    // The first two of a port come at once. A write that takes longer than the gap may be cannot
    // be made shorter.
    let verdict = seen.judge(seen.short_gaps(LONGEST_GAP.max(3 * write)));
    // Its successor cannot do the same at once.
    let again = VmConfig::new(EVIL);
    let mut fe = testkit::frontend::Frontend::connect(&lab.d.socket(EVIL.into()), PAUSE)
        .expect("the socket still listens");
    fe.acks = Acks::Never;
    fe.send(req::GET_FEATURES, 1, &[], &[]).expect("send");
    let answered = testkit::sys::poll_in(&[fe.raw()], Duration::from_millis(300));
    assert!(!answered, "{what}: guest {} is served again at once", again.id);
    drop(evil);
    lab.finish();
    verdict
}

/// P5: a call descriptor that blocks its writers.
#[test]
#[ignore = "full"]
fn p5_a_call_descriptor_that_blocks() {
    let _alone = alone();
    let what = "a call that blocks";
    in_one_of_a_few_tries(what, || {
        let call = EventFd::new();
        dropped_for_its_call(what, 1, &call, || {
            testkit::sys::set_blocking(&call);
            call.write(u64::MAX - 1 - call.take());
            Duration::ZERO
        })
    });
}

/// So many watchers that a write takes 20 ms, five times that in the long run; and how long it is.
fn crowd(call: &EventFd) -> (Crowd, Duration) {
    const FIRST: usize = 20_000;
    let write = || {
        let begun = Instant::now();
        call.write(1);
        begun.elapsed()
    };
    let wanted = Duration::from_millis(if long() { 100 } else { 20 });
    let mut crowd = Crowd::around(call, FIRST);
    let took = (0..3).map(|_| write()).min().expect("three");
    let more = (FIRST as f64 * (wanted.as_secs_f64() / took.as_secs_f64() - 1.0)) as usize;
    crowd.join(Crowd::around(call, more.min(1_500_000)));
    let took = (0..3).map(|_| write()).min().expect("three");
    (crowd, took)
}

/// A call descriptor with so many watchers that a write takes milliseconds: they are woken in the
/// writer's time.
fn watched_by_a_crowd(what: &str, pairs: u16) {
    let _alone = alone();
    in_one_of_a_few_tries(what, || {
        let call = EventFd::new();
        let watchers = OnceLock::new();
        // After the session has tried it out.
        dropped_for_its_call(what, pairs, &call, || watchers.get_or_init(|| crowd(&call)).1)
    });
}

/// Its front-end is dropped after some slow signals, which keep apart: a neighbour waits for two of
/// them at most.
#[test]
#[ignore = "full"]
fn a_call_descriptor_with_a_crowd_of_watchers() {
    watched_by_a_crowd("a call with a crowd of watchers", 1);
}

/// The same descriptor for eight rings: eight such writes a turn, each of another ring.
#[test]
#[ignore = "full"]
fn a_crowd_at_the_calls_of_eight_rings() {
    watched_by_a_crowd("eight calls with a crowd of watchers", 8);
}

/// What a front-end says again and again.
#[derive(Clone, Copy, Debug)]
enum Loop {
    Enable,
    Restart,
    Memory,
}

/// One round of a loop.
fn round(vm: &mut Vm, what: Loop) {
    let Vm { fe, guest } = vm;
    match what {
        Loop::Enable => {
            for on in [false, true] {
                (0..2).for_each(|ring| fe.set_vring_enable(ring, on).expect("enable"));
            }
        }
        Loop::Restart => {
            for ring in [1, 0] {
                fe.get_vring_base(ring).expect("base");
            }
            for ring in guest.rings() {
                guest.start_ring(fe, ring).expect("start");
            }
        }
        Loop::Memory => fe.set_mem_table(&guest.mem.table()).expect("table"),
    }
    fe.get_features().expect("an answer");
}

/// A front-end that enables and disables, stops and starts, maps and unmaps without end. The
/// control does the same to another switch.
#[test]
#[ignore = "full"]
fn front_ends_that_loop() {
    let _alone = alone();
    for what in [Loop::Enable, Loop::Restart, Loop::Memory] {
        let other = Daemon::with(1, &["--workers", "2"]);
        let mut lab = Lab::new(1, &["--workers", "2"]);
        let mut evil = lab.guest(EVIL, |_| ());
        let mut elsewhere = Vm::connect(&other.socket(0), VmConfig::new(0));
        let mut rounds = 0;
        lab.unharmed(
            &format!("a front-end that loops: {what:?}"),
            |phase| {
                while phase.on() {
                    round(&mut elsewhere, what);
                }
            },
            |phase| {
                while phase.on() {
                    round(&mut evil, what);
                    rounds += 1;
                }
            },
        );
        assert!(rounds > 100, "{what:?}: {rounds} rounds");
        drop((evil, elsewhere));
        other.stop();
        lab.finish();
    }
}

/// A port whose log flood would fill a disk: 2,000 front-ends that each break a rule.
#[test]
#[ignore = "full"]
fn log_flood() {
    let _alone = alone();
    let d = Daemon::with(1, &[]);
    let before = d.log().lines().count();
    let start = std::time::Instant::now();
    for n in 0..2000u32 {
        let mut fe = testkit::frontend::Frontend::connect(&d.socket(0), Duration::from_secs(5))
            .expect("connect");
        // Ring sizes that are none, and bits that were not offered.
        let _ = fe.set_vring_num(0, 3 + 2 * n);
        let _ = fe.set_features(1 << 63);
        assert!(fe.closed_within(Duration::from_secs(5)));
    }
    let lines = d.log().lines().count() - before;
    // Four at once, one a second after that, and the one that says the daemon is ready.
    let most = 4 + 2 + start.elapsed().as_secs() as usize;
    assert!(lines <= most, "{lines} lines in {:?}", start.elapsed());
    assert!(
        wait_for(Duration::from_secs(1), || d.counters().sum(Some("p0"), "", "attaches") == 2000)
    );
    d.stop();
}
