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
//! Only sessions park on a ring's lock. Its holder writes to a guest's memory, and its
//! front-end can make that last: a page that is not there, a hole that is being punched. A worker
//! would make its own guests wait for that, so it tries ([`Queue::lock_for_burst`]), and goes on
//! without the lock.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use super::admission::Admission;
use super::gate::{Gate, Waiting};
use super::moderation::Moderation;
use super::quantum::Deficit;
use crate::ring::{CallFd, SplitRing};
use base::limits::{
    BURST_FRAMES, LOCK_SPIN_NANOS, LOCK_WAIT_NANOS, LOCK_WAIT_STEP, MAX_PAUSE_NANOS,
    SLOW_PAUSE_PARTS,
};
use base::stats::QueueStats;
use switch::SourceMemo;
use sys::clock;

/// What came of looking at a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// A burst was forwarded; there may be more.
    More,
    /// A burst was forwarded, and the source is known to be empty now.
    Last,
    /// Nothing there.
    Empty,
    /// Stopped, disabled or broken: a session will say when to look again.
    Gone,
    /// Another thread has the ring, or the one that its frames wait for: look again next turn.
    Locked,
    /// Others have to have as much of the worker's time first: it skips turns.
    Throttled,
    /// There may be more, or what its frames wait for came in this moment, and no event tells: look
    /// again next turn.
    Again,
    /// Nothing can be forwarded before this cycle, as far as is known: look again in each turn, and
    /// then at the latest.
    At(u64),
    /// The same, and what comes before is buffers of a receiver that takes frames.
    Receiver(u64),
}

/// What a ring's memory made workers wait, which the guest pays for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pause {
    /// The cycle from which on the ring gets or sends frames again; 0 if it does.
    until: u64,
}

impl Pause {
    /// True while the ring gets or sends nothing.
    #[inline(always)]
    pub fn is_paused(&mut self, now: impl FnOnce() -> u64) -> bool {
        self.until != 0 && self.lasts(now())
    }

    /// True if the ring was paused and nobody has found the pause over yet.
    pub fn is_set(&self) -> bool {
        self.until != 0
    }

    #[cold]
    fn lasts(&mut self, now: u64) -> bool {
        if now >= self.until {
            self.until = 0;
        }
        self.until != 0
    }

    /// Makes the guest pay `slow` cycles, up to cycle `now`, with a pause many times as long, up to
    /// [`MAX_PAUSE_NANOS`]: a worker that a debugger stops in a page fault looks slow too.
    #[cold]
    pub fn charge(&mut self, slow: u64, now: u64) {
        let long = slow.saturating_mul(SLOW_PAUSE_PARTS).min(clock::cycles_in(MAX_PAUSE_NANOS));
        self.until = now.saturating_add(long).max(1);
    }
}

/// What a session and the worker that serves it know of a ring of either direction.
#[derive(Debug, Default)]
pub struct Vring {
    /// The ring while it is started.
    pub ring: Option<SplitRing>,
    /// The worker that serves the ring, by number. Any other that still has it among its sources
    /// lets go of it; see `worker::assignment`.
    pub owner: Option<usize>,
    /// The session that started the ring, as [`GuestPort::session`] counts them.
    ///
    /// [`GuestPort::session`]: super::GuestPort::session
    pub session: u64,
    /// `SET_VRING_ENABLE`, or implied without protocol features.
    pub enabled: bool,
    /// The driver broke the ring; it is not touched again before a restart.
    pub broken: bool,
    /// The front-end gave no kick descriptor: the ring is polled for good.
    pub kickless: bool,
    /// Signals the driver.
    pub call: Option<Arc<CallFd>>,
    /// Reports a broken ring to the front-end.
    pub err: Option<Arc<CallFd>>,
    /// Worker and turn in which a signal for this ring was last queued: one a turn is enough.
    pub signalled: (usize, u64),
}

impl Vring {
    /// The ring, if frames may cross it now.
    #[inline(always)]
    pub fn running(&mut self) -> Option<&mut SplitRing> {
        if self.broken || !self.enabled { None } else { self.ring.as_mut() }
    }
}

/// What the lock of a queue protects.
#[derive(Debug, Default)]
pub struct RingState<Side> {
    /// The ring.
    pub vring: Vring,
    /// What its memory made workers wait.
    pub memory: Pause,
    /// What only rings of this direction have.
    pub side: Side,
}

/// What only transmit rings have.
#[derive(Debug, Default)]
pub struct Tx {
    /// What keeps its frames from being taken.
    pub gate: Gate,
    /// The source this ring last taught the switch.
    pub source: SourceMemo,
    /// What its bursts took beyond its quantum of the worker's time.
    pub deficit: Deficit,
    /// When its driver is signalled.
    pub moderation: Moderation,
}

/// What only receive rings have.
#[derive(Debug, Default)]
pub struct Rx {
    /// Which frames it takes.
    pub admission: Admission,
    /// Who waits for its next buffers.
    pub awaited: Awaited,
    /// Kick events to ignore when judging whether the driver's memory is shared.
    pub stale_kicks: u32,
}

/// Workers that wait for a receive ring's next buffers, by their numbers modulo 64: the kick that
/// tells of them goes to one worker, and is to wake the others.
#[derive(Debug, Clone, Copy, Default)]
pub struct Awaited(u64);

impl Awaited {
    /// A worker waits.
    pub fn add(&mut self, worker: usize) {
        self.0 |= 1 << (worker % 64);
    }

    /// True if a worker may wait.
    pub fn has(self, worker: usize) -> bool {
        self.0 >> (worker % 64) & 1 != 0
    }
}

/// A transmit ring's.
pub type TxState = RingState<Tx>;

/// A receive ring's.
pub type RxState = RingState<Rx>;

impl TxState {
    /// How many frames may be taken at cycle `now`, or what there is to do instead. Whether others
    /// are to be served first, or the receiver has no buffers, is not asked here.
    #[inline(always)]
    pub fn may_take(&mut self, queue: &Queue<Tx>, now: u64) -> Result<usize, Next> {
        let limit = match self.drain_left(queue) {
            Some(0) => return Err(Next::Gone),
            Some(left) => left.into(),
            None => BURST_FRAMES,
        };
        if self.vring.running().is_none() {
            return Err(Next::Gone);
        }
        if self.memory.until > now { Err(Next::At(self.memory.until)) } else { Ok(limit) }
    }

    /// Frames that a ring that is being disabled still has to forward; none if it is not. Disables
    /// it and tells the waiting session when there are none left.
    #[inline(always)]
    pub fn drain_left(&mut self, queue: &Queue<Tx>) -> Option<u16> {
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

    /// Disables a ring that is being disabled, and tells the waiting session.
    #[cold]
    pub fn end_drain(&mut self, queue: &Queue<Tx>) {
        self.side.gate.drain_to = None;
        self.vring.enabled = false;
        if let Some(ring) = &mut self.vring.ring {
            // Later frames are discarded on a kick; whether some are there already is the
            // driver's affair until it kicks again.
            let _ = ring.enable_kicks();
        }
        queue.notify_drained();
    }
}

impl RxState {
    /// The ring, if frames may cross it now, and what admits them.
    #[inline(always)]
    pub fn admission(&mut self) -> Option<(&mut SplitRing, &mut Admission)> {
        Some((self.vring.running()?, &mut self.side.admission))
    }
}

/// One direction of a queue pair.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Queue<Side> {
    state: Mutex<RingState<Side>>,
    /// Sessions waiting for the lock, to which workers yield, suspensions, and [`STALLED`]: one
    /// word, as each burst looks at it.
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

/// Does the same with a queue of either direction.
macro_rules! either {
    ($this:expr, $queue:ident => $does:expr) => {
        match $this {
            QueueRef::Tx($queue) => $does,
            QueueRef::Rx($queue) => $does,
        }
    };
}

impl<'q> QueueRef<'q> {
    /// Its counters.
    pub fn stats(self) -> &'q QueueStats {
        either!(self, queue => &queue.stats)
    }

    /// [`Queue::suspend`].
    pub fn suspend(self) {
        either!(self, queue => queue.suspend())
    }

    /// [`Queue::resume`], and the ring pays for `slow` cycles up to cycle `now`.
    pub fn resume(self, slow: u64, now: u64) {
        either!(self, queue => {
            if slow > 0 {
                queue.charge(None, slow, now);
            }
            queue.resume();
        })
    }

    /// Signals go to another descriptor, which is owed none.
    pub fn set_call(self, call: Option<Arc<CallFd>>) {
        match self {
            QueueRef::Tx(queue) => {
                let TxState { vring, side, .. } = &mut *queue.quiet();
                vring.call = call;
                side.moderation.release();
            }
            QueueRef::Rx(queue) => queue.quiet().vring.call = call,
        }
    }

    /// As [`Queue::quiet`], for what both directions have, and for what the first frames of a
    /// transmit ring wait for.
    pub fn quiet<R>(self, with: impl FnOnce(&mut Vring, &mut Option<Waiting>) -> R) -> R {
        match self {
            QueueRef::Tx(queue) => {
                let TxState { vring, side, .. } = &mut *queue.quiet();
                with(vring, &mut side.gate.receiver)
            }
            QueueRef::Rx(queue) => with(&mut queue.quiet().vring, &mut None),
        }
    }

    /// Puts another ring in the queue's place, and has `then` done before it is used.
    pub fn renew(self, vring: Vring, then: impl FnOnce(&mut Vring)) {
        either!(self, queue => queue.renew(vring, then))
    }
}

/// One suspension; below it sessions are counted.
const SUSPENDED: u32 = 1 << 16;

/// Some worker waited for the lock in vain, and no thread has had it since.
const STALLED: u32 = 1 << 31;

impl<Side: Default> Queue<Side> {
    /// The lock, if free.
    #[inline(always)]
    fn try_lock(&self) -> Option<MutexGuard<'_, RingState<Side>>> {
        match self.state.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(self.after_panic(poisoned)),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The lock that a thread held when it panicked. What the driver was not shown is undone: a
    /// receive ring that another port's burst was being copied into is as good as before, and its
    /// guest does not pay for it. Whose burst it was pays, see `worker::run`.
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

    /// The lock; parks until it is free. Not for workers, but after a panic.
    pub fn lock(&self) -> MutexGuard<'_, RingState<Side>> {
        self.state.lock().unwrap_or_else(|poisoned| self.after_panic(poisoned))
    }

    /// The lock for a worker's burst or run: none while a session wants the ring quiet, or it would
    /// lose against a busy worker again and again. None either if the ring is stalled, which
    /// [`Queue::lock_again`] finds out.
    #[inline(always)]
    pub fn lock_for_burst(&self) -> Option<MutexGuard<'_, RingState<Side>>> {
        if self.waiting.load(Ordering::Relaxed) != 0 { None } else { self.try_lock() }
    }

    /// The same for a worker that was refused the lock before: one that gets it ends the stall.
    #[cold]
    pub fn lock_again(&self) -> Option<MutexGuard<'_, RingState<Side>>> {
        if self.waiting.load(Ordering::Relaxed) & !STALLED != 0 {
            return None;
        }
        let state = self.try_lock()?;
        self.waiting.fetch_and(!STALLED, Ordering::Relaxed);
        Some(state)
    }

    /// The same within a short spin, about as long as a burst takes, unless that is known to be no
    /// use.
    pub fn lock_soon(&self) -> Option<MutexGuard<'_, RingState<Side>>> {
        if self.is_stalled() {
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

    /// Records that the lock was waited for in vain: no worker waits again before it was free.
    #[cold]
    pub fn stall(&self) {
        self.waiting.fetch_or(STALLED, Ordering::Relaxed);
    }

    /// No worker uses the ring, nor waits for it, until [`Queue::resume`]: its guest's memory makes
    /// one wait. Several may suspend it.
    pub fn suspend(&self) {
        self.waiting.fetch_add(SUSPENDED, Ordering::Relaxed);
    }

    /// Ends a [`Queue::suspend`].
    pub fn resume(&self) {
        self.waiting.fetch_sub(SUSPENDED, Ordering::Relaxed);
    }

    /// Makes the ring pay for `slow` cycles up to cycle `now`, if it is still that session's, and
    /// its lock is free.
    #[cold]
    pub fn charge(&self, session: Option<u64>, slow: u64, now: u64) {
        if let Some(mut state) = self.try_lock()
            && session.is_none_or(|session| session == state.vring.session)
        {
            state.memory.charge(slow, now);
        }
    }

    /// True if it is no use to wait for the lock.
    pub fn is_stalled(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) >= SUSPENDED
    }

    /// The lock for a session: makes the ring quiet.
    pub fn quiet(&self) -> MutexGuard<'_, RingState<Side>> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let guard = self.lock();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    /// The same for a thread that does not wait for a guest's memory: none within the time for
    /// which a preempted worker is waited for.
    pub fn quiet_soon(&self) -> Option<MutexGuard<'_, RingState<Side>>> {
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

    /// Puts another ring in this one's place, which may be another session's, and has `then` done
    /// before it is used. What its memory made a worker wait stays, or to come back would be the
    /// way around the pause.
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
    /// True if the driver broke the ring, as far as can be told without waiting: a ring that is in
    /// use at the moment is not.
    pub fn is_broken(&self) -> bool {
        self.try_lock().is_some_and(|state| state.vring.broken)
    }
}

impl Queue<Tx> {
    /// Waits until the owner has forwarded up to `drain_to`, at most `limit`; true if it has.
    pub fn wait_drained(&self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        let mut state = self.quiet();
        while state.side.gate.drain_to.is_some() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.drained.wait_timeout(state, left);
            // If the thread that had the lock panicked, the next to take it mends the ring.
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
mod tests;
