//! Whether a worker that found nothing keeps looking, or arms its sources and sleeps.
//!
//! By default it spins for a while, when that promises to be shorter than going to sleep: kicks
//! stay suppressed and its rings are polled. The length of a spin, the *window*, follows what
//! the last idle times were, as KVM's `halt_poll_ns` does for a halted vCPU
//! (Documentation/virt/kvm/halt-polling.rst): it doubles when an idle time was short enough that
//! a spin could have found its end, and halves, down to none, when it was longer than any spin
//! would be. So a guest that sends a frame a second costs what it did without spinning.
//!
//! Two things bound what spinning takes from others. A token bucket: spinning earns a tenth of the
//! time that passes, or two thirds of what the worker works, whichever is more, and pays for every
//! cycle, found or not: a worker under load has gaps of a microsecond or two between bursts, and to
//! sleep through each of them costs it, and the guest that has to kick, more than to wait. And a
//! look at the worker's run-queue delay: where more threads than CPUs want to run, a spinning
//! worker is in the way of the guest it waits for, so spinning ends for a while. Without that two
//! busy guests on the worker's CPU took 1.4 times as long. (How often it was preempted says less: a
//! monitor that wakes up every 10 ms counts like a rival.)
//!
//! Turns in which frames wait for a receiver count as work: it mostly takes some within
//! microseconds, and to be kicked for them would cost it a system call each time.
//!
//! Poll mode never sleeps and has none of that, but stops *reading* a ring that has been empty for
//! long: its kick is enabled and looked for with the other kernel events, so that silent guests
//! cost nothing per turn.
//!
//! Nothing here reads a clock or asks the kernel: time, in cycles, and counts are arguments. A
//! counter of cycles that steps back ends what it is compared for (see `sys::clock`).

use base::budget::Budget;
use base::limits::{
    BUSY_LOOKS_BEFORE_ARM, EVENT_CHECK_NANOS, IDLE_LOOKS_BEFORE_ARM, SPIN_CREDIT_NANOS,
    SPIN_EVENT_CHECK_NANOS, SPIN_MAX_NANOS, SPIN_MIN_NANOS, SPIN_OFF_NANOS, SPIN_SHARE,
    SPIN_WAIT_NANOS, SPIN_WORK_THIRDS,
};
use sys::clock::since;

/// What a worker does that found nothing although it holds sources whose kicks are suppressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instead {
    /// Look again.
    Look,
    /// Arm them: no spin is worth it, or allowed, now.
    Arm,
    /// Arm them: a spin ended and found nothing.
    GiveUp,
}

/// Where the worker stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Working,
    /// Spinning, since then.
    Spinning(u64),
    /// Idle since then, and done with spinning.
    Spun(u64),
}

/// The limits, in cycles.
#[derive(Debug, Clone, Copy)]
struct Cycles {
    event_check: u64,
    spin_event_check: u64,
    min: u64,
    max: u64,
    off: u64,
    wait: u64,
}

/// The idle policy of one worker.
#[derive(Debug, Clone)]
pub struct SpinPolicy {
    poll: bool,
    cycles: Cycles,
    /// When kernel events were looked for last.
    checked: u64,
    phase: Phase,
    /// How long a spin lasts at most; 0: none is made.
    window: u64,
    /// What may be spent, and when that was reckoned.
    credit: Budget,
    credited: u64,
    /// Cycles of work since then.
    worked: u64,
    /// Milliseconds of its run-queue delay, and when that was read.
    waited: u64,
    asked: u64,
    /// Others wanted its CPU then: no spin for a while.
    rivals: bool,
}

impl SpinPolicy {
    /// Polling for good, or adaptive. `cycles` tells how many some nanoseconds have, `now` is the
    /// present cycle.
    pub fn new(poll: bool, now: u64, cycles: impl Fn(u64) -> u64) -> SpinPolicy {
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

    /// A source was found empty, `looks` times in a row by now: true if it is to be looked at again
    /// without its kick.
    #[inline]
    pub fn hold(&mut self, now: u64, looks: u32) -> bool {
        if self.poll {
            return looks < IDLE_LOOKS_BEFORE_ARM;
        }
        // A spin ends by itself; a worker that is busy elsewhere would look for ever.
        self.is_spinning() || (looks < BUSY_LOOKS_BEFORE_ARM && self.may_spin(now))
    }

    /// A turn found frames; true if that ended a spin.
    #[inline]
    pub fn found(&mut self, now: u64) -> bool {
        match self.phase {
            Phase::Working => false,
            phase => self.end_idle(now, phase),
        }
    }

    #[cold]
    fn end_idle(&mut self, now: u64, phase: Phase) -> bool {
        self.phase = Phase::Working;
        let Phase::Spinning(start) = phase else {
            // Found while arming, which is as good as a short sleep.
            self.woke(now, now);
            return false;
        };
        let spent = since(start, now);
        self.pay(now, spent);
        if spent > self.window / 2 {
            // A little later and it would have been missed.
            self.grow();
        }
        true
    }

    /// A turn found nothing, and sources are held. `waits` tells for how many milliseconds the
    /// worker has waited in a run queue so far; it is read rarely.
    #[inline]
    pub fn next(&mut self, now: u64, waits: impl FnOnce() -> u64) -> Instead {
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

    /// The worker slept from `asleep` to `awake`.
    pub fn woke(&mut self, asleep: u64, awake: u64) {
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

    /// True if the worker may sleep when nothing is ready.
    #[inline]
    pub fn may_sleep(&self) -> bool {
        !self.poll
    }

    /// Called once a turn; true if kernel events shall be looked for now. Without that one busy
    /// guest would starve the kicks of all others.
    #[inline]
    pub fn check_events(&mut self, now: u64) -> bool {
        // A spinning worker has nothing better to do, and those it does not hold rely on it.
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

    /// True if a whole window can be paid for; a part of one would mostly find nothing.
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
        // What is too short to earn anything is not lost.
        if earned > 0 || now < self.credited {
            self.credit.earn(earned);
            self.credited = now;
            self.worked = 0;
        }
    }

    /// The worker spent `cycles` on frames.
    #[inline]
    pub fn work(&mut self, cycles: u64) {
        self.worked = self.worked.saturating_add(cycles);
    }

    fn pay(&mut self, now: u64, spent: u64) {
        self.earn(now);
        self.credit.spend(spent);
    }

    fn grow(&mut self) {
        self.window = (2 * self.window).clamp(self.cycles.min, self.cycles.max);
    }

    /// Asks now and then how long the worker waited for a CPU: true if that was more than a
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
