//! One ring of a port and what its lock protects.
//!
//! A transmit queue's lock is taken by the worker that owns the ring, for one burst at a time; it
//! is uncontended and exists so that a session can make the ring quiet. A receive queue's lock is
//! a leaf: taken by any worker with frames for it, never two at once, no system call inside.
//!
//! Making a ring quiet is taking its lock: nothing is half done while the lock is free. A session
//! announces itself first ([`Queue::quiet`]), because the worker would otherwise win the lock
//! again and again.
//!
//! Only sessions park on a ring's lock. Whoever holds it writes to a guest's memory, and its
//! front-end can make that last: a page that is not there, a hole that is being punched. A worker
//! would make its own guests wait for that, so it tries ([`Queue::lock_for_burst`]), and goes on
//! without the lock.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use super::backpressure::{Credit, Waiting};
use super::moderation::Moderation;
use super::quantum::Deficit;
use super::share::Shares;
use crate::limits::{
    DISTRUST_NANOS, LOCK_SPIN_NANOS, LOCK_WAIT_NANOS, LOCK_WAIT_STEP, MAX_PAUSE_NANOS,
    SLOW_PAUSE_PARTS,
};
use crate::ring::{CallFd, SplitRing};
use crate::stats::QueueStats;
use crate::switch::SourceMemo;
use crate::sys::clock;

/// What the lock of a queue protects.
#[derive(Debug, Default)]
pub struct RingState {
    /// The ring while it is started.
    pub ring: Option<SplitRing>,
    /// The worker that serves this transmit ring, by number. Any other that still has it among its
    /// sources lets go of it; see `worker::assignment`.
    pub owner: Option<usize>,
    /// The session that started the ring, as [`GuestPort::session`] counts them.
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
    pub credit: Credit,
    /// Of a ring whose memory made a worker wait: the cycle from which on it gets or sends frames
    /// again; 0 if it never did, or, of a receive ring, if that is long ago.
    pub paused_until: u64,
    /// Of a transmit ring: its first frames wait for their receiver.
    pub waiting: Option<Waiting>,
    /// Of a transmit ring: what its bursts took beyond its quantum of the worker's time.
    pub deficit: Deficit,
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

impl RingState {
    /// What there is to say against writing to the receive ring's memory.
    #[inline(always)]
    pub fn memory(&mut self, now: impl FnOnce() -> u64) -> Memory {
        if self.paused_until == 0 { Memory::Prompt } else { self.slow_memory(now()) }
    }

    #[cold]
    fn slow_memory(&mut self, now: u64) -> Memory {
        if now < self.paused_until {
            return Memory::Paused;
        }
        if clock::since(self.paused_until, now) < clock::cycles_in(DISTRUST_NANOS) {
            return Memory::Distrusted;
        }
        self.paused_until = 0;
        Memory::Prompt
    }

    /// The ring's place for whoever starts it next, which may be another session: only what its
    /// memory made a worker wait stays, or to come back would be the way around the pause.
    pub fn renewed(&self) -> RingState {
        RingState { paused_until: self.paused_until, ..RingState::default() }
    }

    /// Makes the guest pay `slow` cycles, up to cycle `now`, with a pause many times as long, up to
    /// [`MAX_PAUSE_NANOS`]: a worker that a debugger stops in a page fault looks slow too.
    #[cold]
    pub fn pause(&mut self, slow: u64, now: u64) {
        let long = slow.saturating_mul(SLOW_PAUSE_PARTS).min(clock::cycles_in(MAX_PAUSE_NANOS));
        self.paused_until = now.saturating_add(long).max(1);
    }
}

/// How a receive ring's memory answered lately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// At once, as memory does.
    Prompt,
    /// It made a worker wait a while ago: its pages are touched before they are written to.
    Distrusted,
    /// It made a worker wait: the ring gets nothing now.
    Paused,
}

/// One direction of a queue pair.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Queue {
    state: Mutex<RingState>,
    /// Sessions waiting for the lock, to which workers yield, and [`STALLED`]: one word, as each
    /// burst looks at it.
    waiting: AtomicU32,
    drained: Condvar,
    /// Of a receive ring: it lately had too few buffers. A hint, read without the lock.
    short: AtomicBool,
    /// Counters, written under the lock.
    pub stats: QueueStats,
}

/// Some worker waited for the lock in vain, and nobody has had it since.
const STALLED: u32 = 1 << 31;

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

    /// The lock; parks until it is free. Not for workers, but after a panic.
    pub fn lock(&self) -> MutexGuard<'_, RingState> {
        self.state.lock().unwrap_or_else(|poisoned| self.after_panic(poisoned))
    }

    /// The lock for a worker's burst or run: none while a session wants the ring quiet, or it would
    /// lose against a busy worker again and again. None either if the ring is stalled, which
    /// [`Queue::lock_again`] finds out.
    #[inline(always)]
    pub fn lock_for_burst(&self) -> Option<MutexGuard<'_, RingState>> {
        if self.waiting.load(Ordering::Relaxed) != 0 { None } else { self.try_lock() }
    }

    /// The same for a worker that was refused the lock before: one that gets it ends the stall.
    #[cold]
    pub fn lock_again(&self) -> Option<MutexGuard<'_, RingState>> {
        if self.waiting.load(Ordering::Relaxed) & !STALLED != 0 {
            return None;
        }
        let state = self.try_lock()?;
        self.waiting.fetch_and(!STALLED, Ordering::Relaxed);
        Some(state)
    }

    /// The same within a short spin, about as long as a burst takes.
    pub fn lock_soon(&self) -> Option<MutexGuard<'_, RingState>> {
        let end = Instant::now() + Duration::from_nanos(LOCK_SPIN_NANOS);
        loop {
            let state = self.lock_again();
            if state.is_some() || Instant::now() >= end {
                return state;
            }
            std::hint::spin_loop();
        }
    }

    /// Records that the lock was waited for in vain: nobody waits again before it was free.
    #[cold]
    pub fn stall(&self) {
        self.waiting.fetch_or(STALLED, Ordering::Relaxed);
    }

    /// True if it is no use to wait for the lock.
    pub fn is_stalled(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) & STALLED != 0
    }

    /// The lock for a session: makes the ring quiet.
    pub fn quiet(&self) -> MutexGuard<'_, RingState> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let guard = self.lock();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    /// The same for whoever does not wait for a guest's memory: none within the time for which a
    /// preempted worker is waited for.
    pub fn quiet_soon(&self) -> Option<MutexGuard<'_, RingState>> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let end = Instant::now() + Duration::from_nanos(LOCK_WAIT_NANOS);
        let mut guard = self.try_lock();
        while guard.is_none() && Instant::now() < end {
            std::thread::sleep(LOCK_WAIT_STEP);
            guard = self.try_lock();
        }
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

    /// True if the driver broke the ring, as far as can be told without waiting: a ring that
    /// somebody uses at the moment is not.
    pub fn is_broken(&self) -> bool {
        self.try_lock().is_some_and(|state| state.broken)
    }

    /// Whether the receive ring lately had too few buffers.
    #[inline(always)]
    pub fn is_short(&self) -> bool {
        self.short.load(Ordering::Relaxed)
    }

    /// Notes whether the receive ring has too few buffers.
    #[inline(always)]
    pub fn set_short(&self, short: bool) {
        self.short.store(short, Ordering::Relaxed);
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
    fn a_pause_outlasts_the_session() {
        let mut state = RingState { session: 7, enabled: true, ..RingState::default() };
        state.pause(10, 1_000);
        let mut next = state.renewed();
        assert!(!next.enabled && next.session == 0);
        assert_eq!(next.memory(|| 1_500), Memory::Paused);
        assert_eq!(next.memory(|| 1_000 + 10 * SLOW_PAUSE_PARTS), Memory::Distrusted);
        let longest = clock::cycles_in(MAX_PAUSE_NANOS);
        state.pause(longest, 1_000);
        assert_eq!(state.memory(|| longest), Memory::Paused);
        assert_eq!(state.memory(|| 1_000 + longest), Memory::Distrusted);
    }

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
