//! Cost of notifying a front-end, and the port's payment for the cost.
//!
//! The attack: the kernel wakes all pollers of an eventfd within the writer's `write`, one after
//! the other, with interrupts off. A front-end can register its call descriptor with a thousand
//! epoll instances by a thousand numbers each; each write then takes 1 ms for 10,000 pollers, in a
//! thread that serves other ports too. A kick descriptor with a crowd of pollers that is woken all
//! the time delays, in the same way, a thread that begins or ends to watch the kick descriptor.
//!
//! The measurement: the processor time of the write. Elapsed time says nothing, since a woken
//! thread may take the processor from the writer for milliseconds. Reading the processor time is a
//! system call. So a port's writes are measured, for a second, only after one write of the port
//! that lasted long, or several writes of the port at the end of a turn that lasted long together.
//!
//! **Slow** writes, of more than 1 ms, add up until the front-end is dropped; longer writes weigh
//! more. Processor time is unreliable under a hypervisor: the host may run the woken virtual CPU in
//! place of the writer's, and the guest kernel counts this time as the writer's. So slow writes are
//! forgotten, but by the passing of time only: a front-end can make any of its writes fast at will
//! (with a sleeping thread in front of an exclusive crowd). After a slow write the port's next
//! writes wait for three times as long as the write took, at most 100 ms.
//!
//! **Expensive** writes, of more than 0.1 ms, occur with honest front-ends too, where each wake-up
//! passes through two hypervisors. The port pays for them: its next writes wait until other ports
//! have had as much time of the worker. With one other port the wait is as long as the write took,
//! which is less than an answer takes. With two or more it is three times as long, or as many times
//! as there are other ports.

use std::sync::atomic::{AtomicU64, Ordering};

use base::limits::{
    EXPENSIVE_SIGNAL_MICROS, SIGNAL_MICROS, SIGNAL_PAUSE_MILLIS, SIGNAL_PAUSE_MOST_PARTS,
    SIGNAL_PAUSE_PARTS, SIGNALS_MEASURED_MILLIS, SLOW_WRITE_LEAK_MILLIS, SLOW_WRITES,
};
use sys::clock;
use sys::usage::cpu_micros;

/// Measurements of the writes to a port's call descriptors. They are shared by all of the port's
/// rings and connections, as a front-end can replace descriptors and reconnect. Several threads
/// store with relaxed ordering; a lost store loses one measurement of many. Times are in cycles of
/// the clock.
#[derive(Debug, Default)]
pub struct SignalCost {
    /// Cycle until which writes are measured; 0 if they are not measured.
    measured_until: AtomicU64,
    /// Cycle at which all slow writes are forgotten. Minus the present cycle: the weight of the
    /// slow writes not yet forgotten, times the cycles in which a weight of one is forgotten.
    slow_until: AtomicU64,
    /// The port may be notified again [`EXPENSIVE_SIGNAL_MICROS`] before this cycle.
    from: AtomicU64,
}

/// Cost of one write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WriteCost {
    /// Cycles of the clock.
    pub(crate) cycles: u64,
    /// Processor time, if it was measured.
    pub(crate) micros: Option<u64>,
}

pub(super) fn millis(millis: u64) -> u64 {
    clock::cycles_in(millis * 1_000_000)
}

/// Cycles that a pause may be shortened by; added to the longest pause, which is kept whole.
fn tolerance() -> u64 {
    clock::cycles_in(EXPENSIVE_SIGNAL_MICROS * 1_000)
}

impl SignalCost {
    /// True if the next write is to be measured.
    #[inline(always)]
    pub(crate) fn is_watched(&self) -> bool {
        self.measured_until.load(Ordering::Relaxed) != 0
    }

    /// Measures the next writes, for a second from cycle `now`: earlier writes lasted long.
    #[cold]
    pub(crate) fn watch(&self, now: u64) {
        let until = now.saturating_add(millis(SIGNALS_MEASURED_MILLIS));
        self.measured_until.store(until, Ordering::Relaxed);
    }

    /// Returns how near the port is to being dropped: the cycles until its slow writes are
    /// forgotten.
    pub(super) fn level(&self, now: u64) -> u64 {
        self.slow_until.load(Ordering::Relaxed).saturating_sub(now)
    }

    /// True if the port's signals have to wait at cycle `now`.
    pub(super) fn waits(&self, now: u64) -> bool {
        self.left(now) > 0
    }

    /// Returns the number of cycles, from cycle `now` on, that the port's signals have to wait.
    pub(crate) fn left(&self, now: u64) -> u64 {
        self.from.load(Ordering::Relaxed).saturating_sub(now.saturating_add(tolerance()))
    }

    /// Notes a measured write, or a measured start or end of watching a kick descriptor, which took
    /// `micros` of processor time and `cycles` until cycle `now`. True if the front-end is to be
    /// dropped.
    #[cold]
    pub(crate) fn record(&self, micros: u64, cycles: u64, now: u64) -> bool {
        if micros >= EXPENSIVE_SIGNAL_MICROS {
            self.watch(now);
        } else if now > self.measured_until.load(Ordering::Relaxed) {
            self.measured_until.store(0, Ordering::Relaxed);
        }
        let weight = match micros {
            m if m <= SIGNAL_MICROS => return false,
            m if m < 5 * SIGNAL_MICROS => 1,
            m if m < 50 * SIGNAL_MICROS => 2,
            _ => 4,
        };
        let pause = cycles.saturating_mul(SIGNAL_PAUSE_PARTS).min(millis(SIGNAL_PAUSE_MILLIS));
        self.from.store(now.saturating_add(pause + tolerance()), Ordering::Relaxed);
        let one = millis(SLOW_WRITE_LEAK_MILLIS);
        let level = self.level(now).saturating_add(weight * one);
        self.slow_until.store(now.saturating_add(level), Ordering::Relaxed);
        level >= u64::from(SLOW_WRITES) * one
    }

    /// Does `work`, a call on a peer's socket, which wakes the waiters of the socket. Returns the
    /// result, and true if the peer is to be dropped.
    pub(crate) fn measured<T>(&self, work: impl FnOnce() -> T) -> (T, bool) {
        let watched = self.is_watched();
        let used = if watched { cpu_micros() } else { 0 };
        let began = clock::cycles();
        let done = work();
        let now = clock::cycles();
        let took = clock::since(began, now);
        if watched {
            return (done, self.record(cpu_micros().saturating_sub(used), took, now));
        }
        if took > clock::cycles_in(EXPENSIVE_SIGNAL_MICROS * 1_000) {
            self.watch(now);
        }
        (done, false)
    }

    /// True if the peer's socket is not to be used now, since its use was lately slow.
    pub(crate) fn pauses(&self) -> bool {
        self.is_watched() && self.left(clock::cycles()) > 0
    }

    /// Charges the port for a measured write that ended at cycle `now`, while `others` other ports
    /// use the worker.
    #[cold]
    pub(crate) fn charge(&self, micros: u64, others: u32, now: u64) {
        let parts = match u64::from(others) {
            0 | 1 => 1,
            others => others.clamp(SIGNAL_PAUSE_PARTS, SIGNAL_PAUSE_MOST_PARTS),
        };
        let took = clock::cycles_in(micros.saturating_mul(1_000));
        let began = now.saturating_sub(took);
        let due = self.from.load(Ordering::Relaxed).max(began);
        let next = due.saturating_add(took.saturating_mul(1 + parts));
        let longest = millis(SIGNAL_PAUSE_MILLIS) + tolerance();
        self.from.store(next.min(now.saturating_add(longest)), Ordering::Relaxed);
    }
}
