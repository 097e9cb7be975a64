//! One ring of a port and what its lock protects.
//!
//! A transmit queue's lock is taken by the worker that owns the ring, for one burst at a time; it
//! is uncontended and exists so that a session can make the ring quiet. A receive queue's lock is
//! a leaf: taken by any worker with frames for it, never two at once, no system call inside.
//!
//! Making a ring quiet is taking its lock: nothing is half done while the lock is free. A session
//! announces itself first ([`Queue::quiet`]), because the worker would otherwise win the lock
//! again and again.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use super::debt::Debt;
use super::moderation::Moderation;
use super::patience::Patience;
use super::share::Shares;
use crate::ring::{CallFd, SplitRing};
use crate::stats::QueueStats;
use crate::switch::SourceMemo;

/// What the lock of a queue protects.
#[derive(Debug, Default)]
pub struct RingState {
    /// The ring while it is started.
    pub ring: Option<SplitRing>,
    /// The worker that serves this transmit ring, by number. Any other that still has it among its
    /// sources lets go of it; see `worker::assignment`.
    pub owner: Option<usize>,
    /// The conversation that started the ring, as [`GuestPort::session`] counts them.
    ///
    /// [`GuestPort::session`]: super::GuestPort::session
    pub session: u64,
    /// `SET_VRING_ENABLE`, or implied without protocol features.
    pub enabled: bool,
    /// The driver broke the ring; it is not touched again before a restart.
    pub broken: bool,
    /// Signals the driver.
    pub call: Option<Arc<CallFd>>,
    /// Reports a broken ring to the front-end.
    pub err: Option<Arc<CallFd>>,
    /// A disabled transmit ring: forward up to this index, then stop.
    pub drain_to: Option<u16>,
    /// The source this transmit ring last taught the switch.
    pub source: SourceMemo,
    /// Worker and turn in which a signal for this ring was last queued: one a turn is enough.
    pub signalled: (usize, u64),
    /// The ring ran and was disabled: what a new kick brings is discarded. A ring that was never
    /// enabled keeps its frames for the time it is.
    pub discard: bool,
    /// Of such a ring, once it was kicked: the cycle from which on its frames are discarded. Until
    /// then they are kept for the case that it is enabled again.
    pub discard_from: Option<u64>,
    /// The front-end gave no kick descriptor: the ring is polled for good.
    pub kickless: bool,
    /// Of a receive ring: who gets its buffers when there are too few.
    pub shares: Shares,
    /// Of a receive ring: how long senders may wait for it.
    pub patience: Patience,
    /// Of a transmit ring: its first burst waits for its receiver; the cycle up to which that was
    /// charged.
    pub waiting_since: Option<u64>,
    /// Of a transmit ring: what its bursts took beyond its part of the worker's time.
    pub debt: Debt,
    /// Of a transmit ring: when its driver is signalled.
    pub moderation: Moderation,
    /// Of a receive ring: kick events to ignore when judging whether the driver's memory is shared.
    pub stale_kicks: u32,
}

impl RingState {
    /// The ring, if frames may cross it now.
    #[inline(always)]
    pub fn running(&mut self) -> Option<&mut SplitRing> {
        if self.broken || !self.enabled { None } else { self.ring.as_mut() }
    }
}

/// One direction of a queue pair.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Queue {
    state: Mutex<RingState>,
    /// Sessions waiting for the lock; a worker yields to them.
    waiting: AtomicU32,
    drained: Condvar,
    /// Counters, written under the lock.
    pub stats: QueueStats,
}

impl Queue {
    /// The lock, if free.
    #[inline(always)]
    fn try_lock(&self) -> Option<MutexGuard<'_, RingState>> {
        match self.state.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(self.after_panic(poisoned)),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The lock that a thread held when it panicked. What the driver was not shown is undone: a
    /// receive ring that somebody else's burst was being copied into is as good as before, and its
    /// guest does not pay for it. Whose burst it was pays, see `worker::run`.
    #[cold]
    #[inline(never)]
    fn after_panic<'q>(
        &'q self,
        poisoned: PoisonError<MutexGuard<'q, RingState>>,
    ) -> MutexGuard<'q, RingState> {
        let mut state = poisoned.into_inner();
        self.state.clear_poison();
        if let Some(ring) = &mut state.ring {
            ring.roll_back();
        }
        state
    }

    /// The lock; parks until it is free, which a bounded hold guarantees to be soon.
    pub fn lock(&self) -> MutexGuard<'_, RingState> {
        self.state.lock().unwrap_or_else(|poisoned| self.after_panic(poisoned))
    }

    /// The lock for a worker's burst or run: none while a session wants the ring quiet, or it would
    /// lose against a busy worker again and again.
    #[inline(always)]
    pub fn lock_for_burst(&self) -> Option<MutexGuard<'_, RingState>> {
        if self.waiting.load(Ordering::Relaxed) != 0 { None } else { self.try_lock() }
    }

    /// The lock for a session: makes the ring quiet.
    pub fn quiet(&self) -> MutexGuard<'_, RingState> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let guard = self.lock();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    /// Waits until the owner has forwarded up to `drain_to`, at most `limit`; true if it has.
    pub fn wait_drained(&self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        let mut state = self.quiet();
        while state.drain_to.is_some() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.drained.wait_timeout(state, left);
            // If whoever had the lock panicked, the next to take it mends the ring.
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Tells a session that waits in [`Queue::wait_drained`].
    pub fn notify_drained(&self) {
        self.drained.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_a_panic_let_go_is_mended_by_the_next_to_take_it() {
        let queue = Queue::default();
        for by_worker in [true, false] {
            let panicked = std::thread::scope(|scope| {
                let thread = scope.spawn(|| {
                    let mut state = queue.lock();
                    state.enabled = true;
                    panic!("injected: with the lock held");
                });
                thread.join().is_err()
            });
            assert!(panicked && queue.state.is_poisoned());
            let state = if by_worker { queue.lock_for_burst().unwrap() } else { queue.quiet() };
            assert!(state.enabled);
            assert!(!queue.state.is_poisoned(), "mended once");
        }
    }
}
