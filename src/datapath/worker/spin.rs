//! Policy of an idle worker: to keep looking at its sources, or to arm the sources and sleep.
//!
//! By default the worker spins for a while, when that is likely to be shorter than going to sleep:
//! kicks stay suppressed and the rings are polled. The longest time of a spin, the *window*,
//! follows the last idle times, like KVM's `halt_poll_ns` for a halted vCPU
//! (Documentation/virt/kvm/halt-polling.rst). The window doubles after an idle time that a spin
//! could have covered, and halves, down to none, after an idle time longer than any spin. So a
//! guest that sends a frame a second costs no more than without spinning.
//!
//! Two limits bound the CPU time that spinning takes from others. The first limit is a token
//! bucket: spinning earns a tenth of the passing time, or two thirds of the worker's working time,
//! whichever is more, and pays for every cycle of a spin. A worker under load has gaps of one or
//! two microseconds between bursts; a sleep in each gap would cost the worker, and the guest that
//! must kick, more than the wait. The second limit is the worker's run-queue delay: if more threads
//! than CPUs want to run, a spinning worker takes the CPU from the guest that it waits for, so
//! spinning ends for a while. Without this limit two busy guests on the worker's CPU took 1.4 times
//! as long. (The number of preemptions says less: a monitor that wakes up every 10 ms counts like a
//! rival.)
//!
//! Turns in which frames wait for a receiver count as work: the receiver mostly takes frames within
//! microseconds, and a kick for them would cost the receiver a system call each time.
//!
//! Poll mode never sleeps and has no window and no limits. A ring that has been empty for long is
//! not *read* any more: its kick is enabled and arrives with the other kernel events, so silent
//! guests cost nothing per turn.
//!
//! This module reads no clock and does not ask the kernel: time, in cycles, and counts are
//! arguments. If the cycle counter steps back, the affected comparison ends (see `sys::clock`).

use base::budget::Budget;
use base::limits::{
    BUSY_LOOKS_BEFORE_ARM, EVENT_CHECK_NANOS, IDLE_LOOKS_BEFORE_ARM, SPIN_CREDIT_NANOS,
    SPIN_EVENT_CHECK_NANOS, SPIN_MAX_NANOS, SPIN_MIN_NANOS, SPIN_OFF_NANOS, SPIN_SHARE,
    SPIN_WAIT_NANOS, SPIN_WORK_THIRDS,
};
use sys::clock::since;

/// Next step of a worker that found no frames although it holds sources with suppressed kicks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Instead {
    /// Look at the sources again.
    Look,
    /// Arm the sources: a spin does not pay, or is not permitted, now.
    Arm,
    /// Arm the sources: a spin ended without frames.
    GiveUp,
}

/// Phase of the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Working,
    /// Spinning since this cycle.
    Spinning(u64),
    /// Idle since this cycle; the spin has ended.
    Spun(u64),
}

/// Limits, in cycles.
#[derive(Debug, Clone, Copy)]
struct Cycles {
    event_check: u64,
    spin_event_check: u64,
    min: u64,
    max: u64,
    off: u64,
    wait: u64,
}

/// Idle policy of one worker.
#[derive(Debug, Clone)]
pub(crate) struct SpinPolicy {
    /// Poll mode: the worker never sleeps.
    pub(crate) poll: bool,
    cycles: Cycles,
    /// Cycle of the last check for kernel events.
    checked: u64,
    phase: Phase,
    /// Longest time of a spin, in cycles; 0: no spin.
    window: u64,
    /// Cycles that spins may spend, and the cycle at which the credit was updated.
    credit: Budget,
    credited: u64,
    /// Cycles of work since `credited`.
    worked: u64,
    /// Milliseconds of run-queue delay, and the cycle at which the delay was read.
    waited: u64,
    asked: u64,
    /// Other threads wanted the worker's CPU at cycle `asked`: no spin for a while.
    rivals: bool,
}

impl SpinPolicy {
    /// Creates the policy at cycle `now`: for poll mode if `poll`, otherwise adaptive. `cycles`
    /// converts nanoseconds to cycles.
    pub(crate) fn new(poll: bool, now: u64, cycles: impl Fn(u64) -> u64) -> SpinPolicy {
        let credit = Budget::empty(cycles(SPIN_CREDIT_NANOS));
        let cycles = Cycles {
            event_check: cycles(EVENT_CHECK_NANOS),
            spin_event_check: cycles(SPIN_EVENT_CHECK_NANOS),
            min: cycles(SPIN_MIN_NANOS),
            max: cycles(SPIN_MAX_NANOS),
            off: cycles(SPIN_OFF_NANOS),
            wait: cycles(SPIN_WAIT_NANOS),
        };
        SpinPolicy {
            poll,
            cycles,
            checked: now,
            phase: Phase::Working,
            window: 0,
            credit,
            credited: now,
            worked: 0,
            waited: 0,
            asked: now,
            rivals: false,
        }
    }

    /// True if an empty source is to be looked at again without its kick. `looks` is the number of
    /// consecutive looks that found the source empty.
    #[inline]
    pub(crate) fn hold(&mut self, now: u64, looks: u32) -> bool {
        if self.poll {
            return looks < IDLE_LOOKS_BEFORE_ARM;
        }
        // A spin ends by itself; a worker that is busy with other sources would look for ever.
        self.is_spinning() || (looks < BUSY_LOOKS_BEFORE_ARM && self.may_spin(now))
    }

    /// Records that a turn found frames. True if that ended a spin.
    #[inline]
    pub(crate) fn found(&mut self, now: u64) -> bool {
        match self.phase {
            Phase::Working => false,
            phase => self.end_idle(now, phase),
        }
    }

    #[cold]
    fn end_idle(&mut self, now: u64, phase: Phase) -> bool {
        self.phase = Phase::Working;
        let Phase::Spinning(start) = phase else {
            // Frames that are found while arming are as good as a short sleep.
            self.woke(now, now);
            return false;
        };
        let spent = since(start, now);
        self.pay(now, spent);
        if spent > self.window / 2 {
            // A slightly shorter window would have missed the frames.
            self.grow();
        }
        true
    }

    /// Records that a turn found no frames, while sources are held. `waits` returns the
    /// milliseconds that the worker has waited in run queues; it is called rarely.
    #[inline]
    pub(crate) fn next(&mut self, now: u64, waits: impl FnOnce() -> u64) -> Instead {
        if self.poll {
            return Instead::Look;
        }
        match self.phase {
            Phase::Spinning(start) if now.wrapping_sub(start) < self.window => Instead::Look,
            Phase::Spinning(start) => {
                self.pay(now, since(start, now));
                self.phase = Phase::Spun(start);
                Instead::GiveUp
            }
            Phase::Spun(_) => Instead::Arm,
            Phase::Working => self.begin(now, waits),
        }
    }

    fn begin(&mut self, now: u64, waits: impl FnOnce() -> u64) -> Instead {
        if !self.may_spin(now) || self.has_rivals(now, waits) {
            return Instead::Arm;
        }
        self.phase = Phase::Spinning(now);
        Instead::Look
    }

    /// Records that the worker slept from cycle `asleep` to `awake`.
    pub(crate) fn woke(&mut self, asleep: u64, awake: u64) {
        if let Phase::Spinning(start) = self.phase {
            self.pay(asleep, since(start, asleep));
        }
        let start = match std::mem::replace(&mut self.phase, Phase::Working) {
            Phase::Spinning(start) | Phase::Spun(start) => start,
            Phase::Working => asleep,
        };
        if since(start, awake) < self.cycles.max {
            self.grow();
        } else {
            self.window /= 2;
            if self.window < self.cycles.min {
                self.window = 0;
            }
        }
    }

    /// True if kernel events are to be checked in this turn; called once a turn. Without these
    /// checks one busy guest would starve the kicks of all other guests.
    #[inline]
    pub(crate) fn check_events(&mut self, now: u64) -> bool {
        // A spinning worker has time for checks, and sources that it does not hold depend on them.
        let spinning = self.is_spinning();
        let pause = if spinning { self.cycles.spin_event_check } else { self.cycles.event_check };
        let due = now.wrapping_sub(self.checked) >= pause;
        if due {
            self.checked = now;
        }
        due
    }

    #[inline]
    fn is_spinning(&self) -> bool {
        matches!(self.phase, Phase::Spinning(_))
    }

    /// True if there is credit for a whole window; a part of a window would mostly find no frames.
    #[inline]
    fn may_spin(&mut self, now: u64) -> bool {
        let pause = self.rivals && now.wrapping_sub(self.asked) < self.cycles.off;
        if self.window == 0 || pause {
            return false;
        }
        self.earn(now);
        self.credit.level() >= self.window
    }

    fn earn(&mut self, now: u64) {
        let passed = since(self.credited, now) / SPIN_SHARE;
        let earned = passed.max(self.worked / 3 * SPIN_WORK_THIRDS);
        // Time that is too short to earn anything is kept.
        if earned > 0 || now < self.credited {
            self.credit.earn(earned);
            self.credited = now;
            self.worked = 0;
        }
    }

    /// Records that the worker spent `cycles` on frames.
    #[inline]
    pub(crate) fn work(&mut self, cycles: u64) {
        self.worked = self.worked.saturating_add(cycles);
    }

    fn pay(&mut self, now: u64, spent: u64) {
        self.earn(now);
        self.credit.spend(spent);
    }

    fn grow(&mut self) {
        self.window = (2 * self.window).clamp(self.cycles.min, self.cycles.max);
    }

    /// Checks now and then how long the worker waited for a CPU. True if the wait was more than a
    /// millisecond per [`SPIN_WAIT_NANOS`].
    fn has_rivals(&mut self, now: u64, waits: impl FnOnce() -> u64) -> bool {
        let passed = now.wrapping_sub(self.asked);
        if passed < self.cycles.wait {
            return false;
        }
        let waited = waits();
        self.rivals = waited.saturating_sub(self.waited) > passed / self.cycles.wait.max(1);
        (self.waited, self.asked) = (waited, now);
        self.rivals
    }
}

#[cfg(test)]
mod tests;
