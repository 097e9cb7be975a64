//! Whether an idle worker keeps looking or arms its sources and sleeps.
//!
//! Interrupt mode arms a source as soon as it is empty: nothing is spent on idle guests. Poll mode
//! never sleeps, but stops *reading* a ring that has been empty for long: its kick is enabled and
//! looked for with the other kernel events, so that silent guests cost nothing per turn.

use crate::limits::{EVENT_CHECK_NANOS, IDLE_LOOKS_BEFORE_ARM};

/// The idle policy of one worker.
#[derive(Debug, Clone, Copy)]
pub struct SpinPolicy {
    poll: bool,
    /// Cycles between two looks for kernel events.
    pause: u64,
    checked: u64,
}

impl SpinPolicy {
    /// Polling for good, or interrupt-driven. Time is given in cycles; `cycles` tells how many
    /// of them some nanoseconds have.
    pub fn new(poll: bool, cycles: impl Fn(u64) -> u64) -> SpinPolicy {
        SpinPolicy { poll, pause: cycles(EVENT_CHECK_NANOS), checked: 0 }
    }

    /// True if a source that was found empty `looks` times in a row shall wait for its kick.
    #[inline]
    pub fn arm(&self, looks: u32) -> bool {
        !self.poll || looks >= IDLE_LOOKS_BEFORE_ARM
    }

    /// True if the worker may sleep when nothing is ready.
    pub fn may_sleep(&self) -> bool {
        !self.poll
    }

    /// Called once a turn; true if kernel events shall be looked for now. Without that one busy
    /// guest would starve the kicks of all others.
    #[inline]
    pub fn check_events(&mut self, now: u64) -> bool {
        // A counter that went backwards makes it due: see `sys::clock`.
        let due = now.wrapping_sub(self.checked) >= self.pause;
        if due {
            self.checked = now;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three cycles a nanosecond.
    fn policy(poll: bool) -> SpinPolicy {
        SpinPolicy::new(poll, |nanos| 3 * nanos)
    }

    #[test]
    fn interrupt_mode_arms_at_once_and_poll_mode_after_long_silence() {
        assert!(policy(false).arm(1));
        assert!(!policy(true).arm(IDLE_LOOKS_BEFORE_ARM - 1));
        assert!(policy(true).arm(IDLE_LOOKS_BEFORE_ARM));
    }

    #[test]
    fn events_are_looked_for_at_a_bounded_distance() {
        let mut spin = policy(true);
        let (start, step) = (1 << 40, 3 * EVENT_CHECK_NANOS / 10);
        let looks = (0..1000).filter(|&i| spin.check_events(start + i * step)).count();
        assert_eq!(looks, 100);
        assert!(spin.check_events(start), "a counter that went backwards must not end the looks");
    }
}
