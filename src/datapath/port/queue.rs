//! One ring of a port and the state under its lock.
//!
//! The worker that owns a transmit ring takes its lock for one burst at a time. The lock is
//! uncontended, and lets a session make the ring quiet. The lock of a receive ring is a leaf: any
//! worker with frames for the ring takes it, never two receive locks at once, and makes no system
//! call under it.
//!
//! A session makes a ring quiet by taking its lock: no burst is half done while the lock is free.
//! The session announces itself first ([`Queue::quiet`]); otherwise the worker would win the lock
//! again and again.
//!
//! Only sessions park on a ring's lock. The holder of the lock writes to a guest's memory, and the
//! guest's front-end can prolong the write: with a missing page, or with a hole that is being
//! punched. A worker that parked would make its own guests wait as well, so a worker only tries the
//! lock ([`Queue::lock_for_burst`]), and goes on without the lock if the try fails.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use super::admission::Admission;
use super::gate::{Gate, Waiting};
use super::moderation::Moderation;
use super::quantum::Deficit;
use crate::ring::{CallFd, SplitRing};
use base::limits::{
    LOCK_SPIN_NANOS, LOCK_WAIT_NANOS, LOCK_WAIT_STEP, MAX_PAUSE_NANOS, SLOW_PAUSE_PARTS,
};
use base::stats::QueueStats;
use switch::SourceMemo;
use sys::clock;

/// Result of a look at a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Polled {
    /// A burst was forwarded; the source may have more frames.
    More,
    /// A burst was forwarded, and the source is empty.
    Drained,
    /// The source is empty.
    Empty,
    /// The source is stopped, disabled or broken: a session will say when to look again.
    Unavailable,
    /// Another thread holds the lock of the ring, or of the receive ring that the ring's frames
    /// wait for: look again in the next turn.
    Locked,
    /// The source skips turns until other sources have had as much of the worker's time.
    Throttled,
    /// There may be more frames, or the wait of the frames may just have ended, and no event
    /// reports this: look again in the next turn.
    RetryNow,
    /// No frame can be forwarded before this cycle, as far as is known: look again in each turn,
    /// and at this cycle at the latest.
    RetryAt(u64),
    /// Frames wait for buffers of a receiver that takes frames: look again in each turn, and at
    /// this cycle at the latest.
    WaitsForReceiver(u64),
}

/// Pause of a ring whose memory delayed workers.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pause {
    /// Cycle at which the pause ends; 0 without a pause.
    pub(crate) until: u64,
}

impl Pause {
    /// True while the ring is paused.
    #[inline(always)]
    pub(crate) fn is_paused(&mut self, now: impl FnOnce() -> u64) -> bool {
        self.until != 0 && self.lasts(now())
    }

    /// True if the ring was paused and no thread has found the end of the pause yet.
    pub(crate) fn is_set(&self) -> bool {
        self.until != 0
    }

    #[cold]
    fn lasts(&mut self, now: u64) -> bool {
        if now >= self.until {
            self.until = 0;
        }
        self.until != 0
    }

    /// Pauses the ring from cycle `now` on, for many times the `slow` cycles of delay, up to
    /// [`MAX_PAUSE_NANOS`]: a worker that a debugger stops in a page fault looks slow, too.
    #[cold]
    pub(crate) fn charge(&mut self, slow: u64, now: u64) {
        let long = slow.saturating_mul(SLOW_PAUSE_PARTS).min(clock::cycles_in(MAX_PAUSE_NANOS));
        self.until = now.saturating_add(long).max(1);
    }
}

/// State of a ring of either direction, for its session and its worker.
#[derive(Debug, Default)]
pub struct Vring {
    /// The ring while it is started.
    pub ring: Option<SplitRing>,
    /// Number of the worker that serves the ring. Any other worker that still has the ring among
    /// its sources drops the ring; see `worker::assignment`.
    pub owner: Option<usize>,
    /// The session that started the ring, as counted by [`GuestPort::session`].
    ///
    /// [`GuestPort::session`]: super::GuestPort::session
    pub(crate) session: u64,
    /// Set by `SET_VRING_ENABLE`, or implied without protocol features.
    pub enabled: bool,
    /// The driver broke the ring, which is not used again before a restart.
    pub(crate) broken: bool,
    /// The front-end gave no kick descriptor: the ring is polled permanently.
    pub(crate) kickless: bool,
    /// Call descriptor, which signals the driver.
    pub(crate) call: Option<Arc<CallFd>>,
    /// Error descriptor, which reports a broken ring to the front-end.
    pub(crate) err: Option<Arc<CallFd>>,
    /// Worker and turn in which a signal for this ring was last noted: one signal a turn is enough.
    pub(crate) signalled: (usize, u64),
}

impl Vring {
    /// Returns the ring if it is started, enabled and not broken.
    #[inline(always)]
    pub(crate) fn running(&mut self) -> Option<&mut SplitRing> {
        if self.broken || !self.enabled { None } else { self.ring.as_mut() }
    }
}

/// State under the lock of a queue.
#[derive(Debug, Default)]
pub struct RingState<Side> {
    /// The ring.
    pub vring: Vring,
    /// Pause because of slow memory.
    pub(crate) memory: Pause,
    /// State of this direction only.
    pub(crate) side: Side,
}

/// State of transmit rings only.
#[derive(Debug, Default)]
pub struct Tx {
    /// Conditions that keep frames in the ring.
    pub(crate) gate: Gate,
    /// The source address that this ring last taught the switch.
    pub(crate) source: SourceMemo,
    /// Time that the ring's bursts took beyond its quantum.
    pub(crate) deficit: Deficit,
    /// Moderation of signals to the driver.
    pub(crate) moderation: Moderation,
}

/// State of receive rings only.
#[derive(Debug, Default)]
pub struct Rx {
    /// Admission of frames to the ring.
    pub(crate) admission: Admission,
    /// Workers that wait for the ring's next buffers.
    pub(crate) awaited: Awaited,
    /// Kick events to ignore when judging whether the driver's memory is shared.
    pub(crate) stale_kicks: u32,
}

/// Workers that wait for a receive ring's next buffers, by their numbers modulo 64: the kick for
/// new buffers goes to one worker, which wakes the others.
#[derive(Debug, Clone, Copy, Default)]
pub struct Awaited(u64);

impl Awaited {
    /// Records that a worker waits.
    pub(crate) fn add(&mut self, worker: usize) {
        self.0 |= 1 << (worker % 64);
    }

    /// True if a worker may wait.
    pub(crate) fn has(self, worker: usize) -> bool {
        self.0 >> (worker % 64) & 1 != 0
    }
}

/// State of a transmit ring.
pub(crate) type TxState = RingState<Tx>;

/// State of a receive ring.
pub(crate) type RxState = RingState<Rx>;

impl TxState {
    /// Returns the number of frames that a draining ring still has to forward; none if the ring is
    /// not draining. At 0, disables the ring and tells the waiting session.
    #[inline(always)]
    pub(crate) fn drain_left(&mut self, queue: &Queue<Tx>) -> Option<u16> {
        self.side.gate.drain_to.map(|target| self.drain(target, queue))
    }

    #[cold]
    fn drain(&mut self, target: u16, queue: &Queue<Tx>) -> u16 {
        let left = match self.vring.running() {
            Some(ring) => target.wrapping_sub(ring.base()),
            None => 0,
        };
        if left == 0 {
            self.end_drain(queue);
        }
        left
    }

    /// Disables a draining ring, and tells the waiting session.
    #[cold]
    pub(crate) fn end_drain(&mut self, queue: &Queue<Tx>) {
        self.side.gate.drain_to = None;
        self.vring.enabled = false;
        if let Some(ring) = &mut self.vring.ring {
            // Later frames are discarded on a kick. Frames that are there already are discarded at
            // the driver's next kick.
            let _ = ring.enable_kicks();
        }
        queue.notify_drained();
    }
}

/// One direction of a queue pair.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Queue<Side> {
    state: Mutex<RingState<Side>>,
    /// Number of sessions that wait for the lock, to which workers yield; suspensions; and
    /// [`GIVEN_UP`]. One word, because each burst reads it.
    waiting: AtomicU32,
    drained: Condvar,
    /// Counters, written under the lock.
    pub stats: QueueStats,
}

/// A queue of either direction.
#[derive(Debug, Clone, Copy)]
pub enum QueueRef<'q> {
    /// Into the switch.
    Tx(&'q Queue<Tx>),
    /// To the guest.
    Rx(&'q Queue<Rx>),
}

/// Evaluates one expression for a queue of either direction.
macro_rules! either {
    ($this:expr, $queue:ident => $does:expr) => {
        match $this {
            QueueRef::Tx($queue) => $does,
            QueueRef::Rx($queue) => $does,
        }
    };
}

impl<'q> QueueRef<'q> {
    /// Returns the counters.
    pub(crate) fn stats(self) -> &'q QueueStats {
        either!(self, queue => &queue.stats)
    }

    /// Calls [`Queue::suspend`].
    pub(crate) fn suspend(self) {
        either!(self, queue => queue.suspend())
    }

    /// Calls [`Queue::resume`], and pauses the ring for `slow` cycles of delay up to cycle `now`.
    pub(crate) fn resume(self, slow: u64, now: u64) {
        either!(self, queue => {
            if slow > 0 {
                queue.charge(None, slow, now);
            }
            queue.resume();
        })
    }

    /// Sets the call descriptor, which is owed no signal.
    pub(crate) fn set_call(self, call: Option<Arc<CallFd>>) {
        match self {
            QueueRef::Tx(queue) => {
                let TxState { vring, side, .. } = &mut *queue.quiet();
                vring.call = call;
                side.moderation.release();
            }
            QueueRef::Rx(queue) => queue.quiet().vring.call = call,
        }
    }

    /// Makes the ring quiet, like [`Queue::quiet`], and calls `with` with the state of either
    /// direction, and the receiver that the first frames of a transmit ring wait for.
    pub fn quiet<R>(self, with: impl FnOnce(&mut Vring, &mut Option<Waiting>) -> R) -> R {
        match self {
            QueueRef::Tx(queue) => {
                let TxState { vring, side, .. } = &mut *queue.quiet();
                with(vring, &mut side.gate.receiver)
            }
            QueueRef::Rx(queue) => with(&mut queue.quiet().vring, &mut None),
        }
    }

    /// Replaces the ring of the queue, and calls `then` before the ring is used.
    pub(crate) fn renew(self, vring: Vring, then: impl FnOnce(&mut Vring)) {
        either!(self, queue => queue.renew(vring, then))
    }
}

/// One suspension; the lower bits count sessions.
const SUSPENDED: u32 = 1 << 16;

/// A worker waited for the lock in vain, and no thread has had the lock since.
const GIVEN_UP: u32 = 1 << 31;

impl<Side: Default> Queue<Side> {
    /// Returns the lock, if it is free.
    #[inline(always)]
    fn try_lock(&self) -> Option<MutexGuard<'_, RingState<Side>>> {
        match self.state.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(self.after_panic(poisoned)),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Returns the lock that a thread held when it panicked. Undoes changes that the driver has not
    /// seen: a receive ring is as good as before the copy, and its guest does not pay for a panic
    /// in another port's burst. The port of the burst pays; see `worker::run`.
    #[cold]
    #[inline(never)]
    fn after_panic<'q>(
        &'q self,
        poisoned: PoisonError<MutexGuard<'q, RingState<Side>>>,
    ) -> MutexGuard<'q, RingState<Side>> {
        let mut state = poisoned.into_inner();
        self.state.clear_poison();
        if let Some(ring) = &mut state.vring.ring {
            ring.roll_back();
        }
        state
    }

    /// Returns the lock; parks until the lock is free. Workers call this only after a panic.
    pub fn lock(&self) -> MutexGuard<'_, RingState<Side>> {
        self.state.lock().unwrap_or_else(|poisoned| self.after_panic(poisoned))
    }

    /// Returns the lock for a worker's burst or run. None while a session wants the ring quiet,
    /// because the session would lose against a busy worker again and again. None also while the
    /// lock is given up, which [`Queue::lock_again`] ends.
    #[inline(always)]
    pub(crate) fn lock_for_burst(&self) -> Option<MutexGuard<'_, RingState<Side>>> {
        if self.waiting.load(Ordering::Relaxed) != 0 { None } else { self.try_lock() }
    }

    /// Returns the lock for a worker that was refused the lock before, and undoes
    /// [`Queue::give_up_lock`]. None while a session wants the ring quiet, or the ring is
    /// suspended.
    #[cold]
    pub(crate) fn lock_again(&self) -> Option<MutexGuard<'_, RingState<Side>>> {
        if self.waiting.load(Ordering::Relaxed) & !GIVEN_UP != 0 {
            return None;
        }
        let state = self.try_lock()?;
        self.waiting.fetch_and(!GIVEN_UP, Ordering::Relaxed);
        Some(state)
    }

    /// Returns the lock after a short spin, about as long as a burst takes. Does not spin if the
    /// lock is given up or the ring is suspended.
    pub(crate) fn lock_soon(&self) -> Option<MutexGuard<'_, RingState<Side>>> {
        if self.must_not_wait() {
            return self.lock_again();
        }
        let end = Instant::now() + Duration::from_nanos(LOCK_SPIN_NANOS);
        loop {
            let state = self.lock_again();
            if state.is_some() || Instant::now() >= end {
                return state;
            }
            std::hint::spin_loop();
        }
    }

    /// Records that a worker waited for the lock in vain: no worker waits until the lock has been
    /// free once.
    #[cold]
    pub(crate) fn give_up_lock(&self) {
        self.waiting.fetch_or(GIVEN_UP, Ordering::Relaxed);
    }

    /// Keeps workers from using the ring, and from waiting for it, until [`Queue::resume`], since
    /// the memory of the ring's guest delays a thread. Suspensions by several threads are counted.
    pub(crate) fn suspend(&self) {
        self.waiting.fetch_add(SUSPENDED, Ordering::Relaxed);
    }

    /// Ends one [`Queue::suspend`].
    pub(crate) fn resume(&self) {
        self.waiting.fetch_sub(SUSPENDED, Ordering::Relaxed);
    }

    /// Pauses the ring for `slow` cycles of delay up to cycle `now`, if `session` (any, if none)
    /// still has the ring, and if the ring's lock is free.
    #[cold]
    pub(crate) fn charge(&self, session: Option<u64>, slow: u64, now: u64) {
        if let Some(mut state) = self.try_lock()
            && session.is_none_or(|session| session == state.vring.session)
        {
            state.memory.charge(slow, now);
        }
    }

    /// True if waiting for the lock is useless: the lock is given up, or the ring is suspended.
    pub(crate) fn must_not_wait(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) >= SUSPENDED
    }

    /// Returns the lock for a session: makes the ring quiet.
    pub(crate) fn quiet(&self) -> MutexGuard<'_, RingState<Side>> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let guard = self.lock();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    /// Returns the lock for a thread that must not wait for a guest's memory: makes the ring quiet.
    /// None after [`LOCK_WAIT_NANOS`], the time for which a preempted worker is waited for.
    pub(crate) fn quiet_soon(&self) -> Option<MutexGuard<'_, RingState<Side>>> {
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

    /// Replaces the ring, perhaps by another session's ring, and calls `then` before the ring is
    /// used. The pause stays; otherwise a reconnect would end the pause.
    fn renew(&self, vring: Vring, then: impl FnOnce(&mut Vring)) {
        let mut state = self.quiet();
        let renewed = RingState { vring, memory: state.memory, side: Side::default() };
        let old = std::mem::replace(&mut *state, renewed);
        then(&mut state.vring);
        drop(state);
        drop(old);
    }
}

impl<Side: Default> Queue<Side> {
    /// True if the driver broke the ring. False also if the ring is in use at the moment, since
    /// this function does not wait.
    pub fn is_broken(&self) -> bool {
        self.try_lock().is_some_and(|state| state.vring.broken)
    }
}

impl Queue<Tx> {
    /// Waits until the owner has forwarded frames up to `drain_to`, at most for `limit`. True if
    /// the ring is drained.
    pub(crate) fn wait_drained(&self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        let mut state = self.quiet();
        while state.side.gate.drain_to.is_some() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.drained.wait_timeout(state, left);
            // After a panic of the lock's holder, the next thread that takes the lock repairs the
            // ring.
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Wakes a session that waits in [`Queue::wait_drained`].
    pub(crate) fn notify_drained(&self) {
        self.drained.notify_all();
    }
}

#[cfg(test)]
mod tests;
