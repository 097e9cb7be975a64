//! Whether an idle worker keeps looking or arms its sources and sleeps.
//!
//! Interrupt mode arms a source as soon as it is empty: nothing is spent on idle guests. Poll mode
//! never sleeps, but stops *reading* a ring that has been empty for long: its kick is enabled and
//! looked for with the other kernel events, so that silent guests cost nothing per turn.

use std::time::{Duration, Instant};

use crate::limits::{EVENT_CHECK_NANOS, IDLE_LOOKS_BEFORE_ARM};

/// The idle policy of one worker.
#[derive(Debug, Clone, Copy)]
pub struct SpinPolicy {
    poll: bool,
    checked: Option<Instant>,
}

impl SpinPolicy {
    /// Polling for good, or interrupt-driven.
    pub fn new(poll: bool) -> SpinPolicy {
        SpinPolicy { poll, checked: None }
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
    pub fn check_events(&mut self, now: Instant) -> bool {
        let pause = Duration::from_nanos(EVENT_CHECK_NANOS);
        let due = self.checked.is_none_or(|at| now.duration_since(at) >= pause);
        if due {
            self.checked = Some(now);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupt_mode_arms_at_once_and_poll_mode_after_long_silence() {
        assert!(SpinPolicy::new(false).arm(1));
        assert!(!SpinPolicy::new(true).arm(IDLE_LOOKS_BEFORE_ARM - 1));
        assert!(SpinPolicy::new(true).arm(IDLE_LOOKS_BEFORE_ARM));
    }

    #[test]
    fn events_are_looked_for_at_a_bounded_distance() {
        let mut spin = SpinPolicy::new(true);
        let start = Instant::now();
        let step = Duration::from_nanos(EVENT_CHECK_NANOS / 10);
        let looks = (0..1000).filter(|&i| spin.check_events(start + i * step)).count();
        assert_eq!(looks, 100);
    }
}
