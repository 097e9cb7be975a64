//! Locks of rings: waiting, yielding, and repair after a panic.

use super::*;
use base::limits::{MAX_PAUSE_NANOS, SLOW_PAUSE_PARTS};
use sys::clock;

#[test]
fn a_pause_outlasts_the_session() {
    let queue: Queue<Tx> = Queue::default();
    let mut state = queue.lock();
    (state.vring.session, state.vring.enabled) = (7, true);
    state.memory.charge(10, 1_000);
    drop(state);
    queue.renew(Vring::default(), |vring| assert!(!vring.enabled && vring.session == 0));
    let mut state = queue.lock();
    assert!(state.memory.is_paused(|| 1_500));
    assert!(!state.memory.is_paused(|| 1_000 + 10 * SLOW_PAUSE_PARTS));
    let longest = clock::cycles_in(MAX_PAUSE_NANOS);
    state.memory.charge(longest, 1_000);
    assert!(state.memory.is_paused(|| longest));
    assert!(!state.memory.is_paused(|| 1_000 + longest));
}

#[test]
fn a_suspended_ring_is_a_sessions_alone() {
    let queue: Queue<Rx> = Queue::default();
    queue.suspend();
    queue.suspend();
    queue.resume();
    assert!(queue.must_not_wait() && queue.lock_for_burst().is_none());
    assert!(queue.lock_soon().is_none() && queue.must_not_wait());
    drop(queue.quiet());
    QueueRef::Rx(&queue).resume(10, 1_000);
    assert!(!queue.must_not_wait());
    assert!(queue.lock_for_burst().unwrap().memory.is_paused(|| 1_500));
}

#[test]
fn a_lock_that_a_panic_let_go_is_mended_by_the_next_to_take_it() {
    let queue: Queue<Rx> = Queue::default();
    for by_worker in [true, false] {
        let panicked = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let mut state = queue.lock();
                state.vring.enabled = true;
                panic!("injected: with the lock held");
            });
            thread.join().is_err()
        });
        assert!(panicked && queue.state.is_poisoned());
        let state = if by_worker { queue.lock_for_burst().unwrap() } else { queue.quiet() };
        assert!(state.vring.enabled);
        assert!(!queue.state.is_poisoned(), "mended once");
    }
}
