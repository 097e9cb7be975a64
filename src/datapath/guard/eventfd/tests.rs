//! Writes to eventfds of hostile front-ends: writes that block, that are repeated, and that wake a
//! crowd.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use vmm_sys_util::eventfd::EventFd;

use super::cost::millis;
use super::*;
use base::limits::{
    EXPENSIVE_SIGNAL_MICROS, SIGNAL_MICROS, SIGNAL_PAUSE_MILLIS, SIGNAL_PAUSE_PARTS,
    SIGNALS_MEASURED_MILLIS, SLOW_WRITE_LEAK_MILLIS, WATCH_TICK_MILLIS,
};
use sys::clock;
use sys::descriptor::from_eventfd;
use sys::eventfd::drain;
use sys::threads::lock;

const FULL: u64 = u64::MAX - 1;

/// Returns an eventfd that a front-end made blocking and full, and the switch's `CallFd` of it.
fn hostile() -> (EventFd, CallFd) {
    let eventfd = EventFd::new(0).unwrap();
    let call = CallFd::new(from_eventfd(eventfd.try_clone().unwrap()), Arc::default(), 0);
    fcntl_setfl(call.eventfd(), OFlags::RDWR).unwrap();
    eventfd.write(FULL).unwrap();
    (eventfd, call)
}

/// Signals `call` and returns how long that took; the write must have been interrupted.
fn blocked(slot: &SignalSlot, call: &CallFd) -> Duration {
    let start = Instant::now();
    assert_eq!(slot.signal(call), SignalResult::Blocked);
    start.elapsed()
}

/// Longest pause of other ports on the thread. The test compares the median, as one round may
/// have waited for a busy machine's CPU.
const BOUND: Duration = Duration::from_millis(100);

fn median(mut lasted: Vec<Duration>) -> Duration {
    lasted.sort_unstable();
    println!("blocked for {lasted:?}");
    lasted[lasted.len() / 2]
}

#[test]
fn a_blocked_writer_is_freed_fifty_times() {
    let watch = BlockedWriterWatch::start().unwrap();
    let (_eventfd, call) = hostile();
    let slot = watch.register();
    let rounds = (0..50).map(|_| {
        // Without this only the first round would block.
        watch.shared.alert.store(0, Ordering::Relaxed);
        blocked(&slot, &call)
    });
    assert!(median(rounds.collect()) < BOUND);
    assert_eq!(watch.rescues(), 50);
}

#[test]
fn the_watchdog_goes_on_after_a_panic() {
    let watch = BlockedWriterWatch::start().unwrap();
    let (_eventfd, call) = hostile();
    let slot = watch.register();
    for _ in 0..3 {
        watch.shared.broken.store(true, Ordering::Relaxed);
        watch.shared.alert.store(0, Ordering::Relaxed);
        assert!(blocked(&slot, &call) < Duration::from_secs(5));
        assert!(!watch.shared.broken.load(Ordering::Relaxed), "it panicked");
    }
}

#[test]
fn refilling_the_counter_does_not_keep_the_writer() {
    let watch = BlockedWriterWatch::start().unwrap();
    let (eventfd, call) = hostile();
    let eventfd = Arc::new(eventfd);
    let over = Arc::new(AtomicBool::new(false));
    let refillers: Vec<_> = (0..8)
        .map(|_| {
            let (eventfd, over) = (Arc::clone(&eventfd), Arc::clone(&over));
            std::thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let _ = eventfd.write(FULL);
                }
            })
        })
        .collect();
    let slot = watch.register();
    let rounds = (0..9).map(|_| {
        watch.shared.alert.store(0, Ordering::Relaxed);
        blocked(&slot, &call)
    });
    let median = median(rounds.collect());
    over.store(true, Ordering::Relaxed);
    for refiller in refillers {
        while !refiller.is_finished() {
            drain(call.number());
            std::thread::yield_now();
        }
        refiller.join().unwrap();
    }
    assert!(median < BOUND, "{median:?}");
}

#[test]
fn accomplices_do_not_cost_a_tick_each() {
    let watch = BlockedWriterWatch::start().unwrap();
    let slot = watch.register();
    let ports: Vec<_> = (0..100).map(|_| hostile()).collect();
    for (_, call) in &ports {
        assert_eq!(slot.signal(call), SignalResult::Blocked);
    }
    // The other descriptors were checked before a write.
    assert_eq!(watch.rescues(), 1);
}

#[test]
fn honest_signals_pass_and_are_counted_by_their_eventfd() {
    let watch = BlockedWriterWatch::start().unwrap();
    let slot = watch.register();
    let call = CallFd::new(from_eventfd(EventFd::new(0).unwrap()), Arc::default(), 0);
    let start = Instant::now();
    for _ in 0..100_000 {
        assert_eq!(slot.signal(&call), SignalResult::Sent);
    }
    println!("{:?} per signal", start.elapsed() / 100_000);
    assert_eq!(drain(call.number()), Some(100_000));
    assert_eq!(watch.signal_once(&call), SignalResult::Sent);
    assert_eq!(watch.rescues(), 0);
}

#[test]
fn the_watchdog_rests_while_all_are_asleep() {
    let watch = BlockedWriterWatch::start().unwrap();
    let (one, two) = (watch.register(), watch.register());
    let pause = Duration::from_millis(10 * WATCH_TICK_MILLIS);
    // True if the watchdog takes no look during one pause; repeated, as a last look may be due.
    let rests = || {
        (0..10).any(|_| {
            let ticks = watch.ticks();
            std::thread::sleep(pause);
            watch.ticks() == ticks
        })
    };
    assert!(rests() && watch.ticks() == 0, "never active");
    one.active();
    two.active();
    one.asleep();
    let deadline = Instant::now() + Duration::from_secs(30);
    while watch.ticks() < 5 {
        assert!(Instant::now() < deadline, "one slot is active");
        std::thread::sleep(pause);
    }
    two.asleep();
    two.asleep();
    assert!(rests(), "all asleep");
    // Dropping an active slot counts as falling asleep.
    one.active();
    drop(one);
    assert_eq!(watch.shared.awake.load(Ordering::SeqCst), 0);
    assert_eq!(lock(&watch.shared.entries).len(), 1);
}

#[test]
fn a_thread_with_all_signals_blocked_is_freed_too() {
    let watch = Arc::new(BlockedWriterWatch::start().unwrap());
    let (_eventfd, call) = hostile();
    let watched = Arc::clone(&watch);
    let writer = std::thread::spawn(move || {
        // SAFETY: the set is initialized by sigfillset and lives across the calls.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&mut set);
            libc::pthread_sigmask(libc::SIG_SETMASK, &set, ptr::null_mut());
        }
        watched.signal_once(&call)
    });
    assert_eq!(writer.join().unwrap(), SignalResult::Blocked);
}

#[test]
fn a_call_descriptor_is_made_non_blocking_and_reports_full() {
    let eventfd = EventFd::new(0).unwrap();
    let call = CallFd::new(from_eventfd(eventfd.try_clone().unwrap()), Arc::default(), 0);
    assert!(fcntl_getfl(call.eventfd()).unwrap().contains(OFlags::NONBLOCK));
    assert_eq!(call.write(), SignalResult::Sent);
    assert_eq!(call.write(), SignalResult::Sent);
    assert_eq!(drain(call.number()), Some(2));
    eventfd.write(u64::MAX - 1).unwrap();
    assert_eq!(call.look(), Some(SignalResult::Full));
    assert_eq!(call.write(), SignalResult::Full);
    assert_eq!(drain(call.number()), Some(u64::MAX - 1));
    assert_eq!(call.look(), None);
}

#[test]
fn a_full_blocking_descriptor_is_seen_without_writing() {
    let eventfd = EventFd::new(0).unwrap();
    let call = CallFd::new(from_eventfd(eventfd.try_clone().unwrap()), Arc::default(), 0);
    eventfd.write(u64::MAX - 1).unwrap();
    fcntl_setfl(call.eventfd(), OFlags::RDWR).unwrap();
    assert_eq!(call.look(), Some(SignalResult::Blocked));
}

const ONE: u64 = SLOW_WRITE_LEAK_MILLIS * 1_000;

fn cycles(micros: u64) -> u64 {
    clock::cycles_in(1_000 * micros)
}

/// Returns the number of writes until the front-end is dropped, if it is. `writes` has the
/// microseconds that each write takes, and the microseconds since the write before.
fn dropped_after(writes: impl Iterator<Item = (u64, u64)>) -> Option<usize> {
    let cost = SignalCost::default();
    let mut now = 0;
    writes
        .take(10_000)
        .position(|(micros, pause)| {
            now += cycles(pause);
            cost.record(micros, 1, now)
        })
        .map(|at| at + 1)
}

#[test]
fn a_crowd_is_found_the_sooner_the_larger_it_is() {
    let found = |micros| dropped_after(std::iter::repeat((micros, 0)));
    assert_eq!(
        [1_001, 4_999, 5_000, 49_999, 50_000, 2_000_000].map(found),
        [Some(16), Some(16), Some(8), Some(8), Some(4), Some(4)]
    );
}

#[test]
fn honest_ones_are_left_alone() {
    assert_eq!(dropped_after(std::iter::repeat((SIGNAL_MICROS, 0))), None);
    // Writes five times a second, with a long one now and then.
    assert_eq!(dropped_after(std::iter::repeat((4_000, ONE))), None);
    let stolen = |i| if i % 4 == 0 { 20_000 } else { 1_500 };
    assert_eq!(dropped_after((0..).map(|i| (stolen(i), 5 * ONE / 4))), None);
    assert_eq!(dropped_after(std::iter::repeat((200_000, 4 * ONE))), None);
}

/// The pauses between the writes are those that `SignalCost` demands.
#[test]
fn fast_writes_between_slow_ones_do_not_help() {
    for slow in [1_500, 6_000, 50_000, 100_000] {
        for fast in [1, 10, 100] {
            let mut spent = 0;
            let writes = (0..).map(|i| match i % (3 + fast) {
                n if n < 3 => (slow, (3 * slow).min(100_000) + slow),
                _ => (10, 10),
            });
            let writes = writes.inspect(|(_, pause)| spent += pause);
            assert!(dropped_after(writes).is_some(), "{slow} {fast}");
            assert!(spent < 2_000_000, "{slow} {fast}: in {spent} µs");
        }
    }
}

#[test]
fn measuring_ends() {
    let cost = SignalCost::default();
    assert!(!cost.is_watched());
    cost.watch(0);
    let end = millis(SIGNALS_MEASURED_MILLIS);
    for now in [0, end - 1, end] {
        assert!(!cost.record(5, 1, now) && cost.is_watched());
    }
    assert!(!cost.record(EXPENSIVE_SIGNAL_MICROS, 1, end) && cost.is_watched());
    assert!(!cost.record(5, 1, end + 1) && cost.is_watched(), "an expensive one begins anew");
    assert!(!cost.record(5, 1, 2 * end + 1) && !cost.is_watched());
}

#[test]
fn a_slow_write_holds_up_its_port() {
    let cost = SignalCost::default();
    cost.watch(0);
    assert!(!cost.waits(1_000), "a long write alone says nothing");
    assert!(!cost.record(2_000, 5_000, 6_000));
    let end = 6_000 + 5_000 * SIGNAL_PAUSE_PARTS;
    assert!(cost.waits(6_000) && cost.waits(end - 1) && !cost.waits(end));
    // The pause is bounded however long a write took.
    cost.record(2_000, u64::MAX, 6_000);
    let longest = 6_000 + millis(SIGNAL_PAUSE_MILLIS);
    assert!(cost.waits(longest - 1) && !cost.waits(longest));
    cost.record(2_000, 1, u64::MAX);
}

/// Returns the share of time that the notifications of a port get if the port always has one.
fn share(micros: u64, others: u32) -> f64 {
    let cost = SignalCost::default();
    let (mut now, mut spent) = (0, 0);
    for _ in 0..1_000 {
        now += cost.left(now) + cycles(micros);
        spent += cycles(micros);
        cost.charge(micros, others, now);
    }
    spent as f64 / now as f64
}

#[test]
fn expensive_ones_get_no_more_than_others() {
    for micros in [20, 150, 900] {
        for (others, wanted) in [(0, 0.5), (1, 0.5), (2, 0.25), (3, 0.25), (7, 0.125)] {
            let share = share(micros, others);
            assert!((share - wanted).abs() < 0.02, "{micros} {others}: {share}");
        }
    }
    // The pause is bounded however many ports there are, and however long a write took.
    let cost = SignalCost::default();
    cost.charge(u64::MAX, u32::MAX, 0);
    assert!(cost.left(0) <= millis(SIGNAL_PAUSE_MILLIS));
    cost.charge(1, 1, u64::MAX);
}
