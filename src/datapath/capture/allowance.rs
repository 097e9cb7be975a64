//! Bounds the time that a capture may take from a worker.
//!
//! A capture earns time as time passes, and pays for the work done for it: the instructions of a
//! filter, the bytes read and kept. The work is counted, not measured: measured time would include
//! pauses in which the kernel stopped the worker.

use base::budget::Budget;
use base::limits::{
    CAPTURE_BYTES_A_NANO, CAPTURE_INSTRUCTION_NANOS, CAPTURE_NANOS, CAPTURE_SHARE,
    CAPTURE_STEP_NANOS,
};

/// Time that a capture may still take from one worker.
#[derive(Debug)]
pub struct Allowance {
    /// Nanoseconds left.
    budget: Budget,
    /// Time up to which nanoseconds are earned.
    since: u64,
}

impl Default for Allowance {
    fn default() -> Allowance {
        Allowance { budget: Budget::empty(CAPTURE_NANOS), since: 0 }
    }
}

impl Allowance {
    /// Earns the share of one of `captures` captures until `now`, in nanoseconds of any clock.
    pub(crate) fn earn(&mut self, now: u64, captures: usize) {
        let captures = captures.max(1) as u64;
        self.budget.cap = CAPTURE_NANOS / captures;
        self.budget.earn(now.saturating_sub(self.since) / CAPTURE_SHARE / captures);
        self.since = now;
    }

    /// True while time is left.
    pub(crate) fn is_left(&self) -> bool {
        self.budget.level() > 0
    }

    /// Pays for a step of `instructions` and `bytes`; the last step may be on credit.
    pub(crate) fn spend(&mut self, instructions: u64, bytes: usize) {
        let bytes = bytes as u64 / CAPTURE_BYTES_A_NANO;
        self.budget.overdraw(CAPTURE_STEP_NANOS + instructions * CAPTURE_INSTRUCTION_NANOS + bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of frames that can be examined, with so many instructions each.
    fn frames(allowance: &mut Allowance, instructions: u64) -> u64 {
        let looks = std::iter::repeat_with(|| {
            let left = allowance.is_left();
            if left {
                allowance.spend(instructions, 0);
            }
            left
        });
        looks.take_while(|left| *left).count() as u64
    }

    /// The share holds over a second of bursts.
    #[test]
    fn captures_have_their_share_of_the_time_together() {
        let nanos = CAPTURE_STEP_NANOS + 512 * CAPTURE_INSTRUCTION_NANOS;
        for captures in 1..=4 {
            let mut allowance = Allowance::default();
            let mut now = 1 << 60;
            allowance.earn(now, captures);
            let at_once = frames(&mut allowance, 512);
            assert!(at_once * nanos < CAPTURE_NANOS / captures as u64 + nanos);
            assert_eq!(frames(&mut allowance, 512), 0);
            // A second in bursts.
            let mut looked = 0;
            for _ in 0..50_000 {
                now += 20_000;
                allowance.earn(now, captures);
                looked += frames(&mut allowance, 512);
            }
            let share = looked * nanos * CAPTURE_SHARE * captures as u64;
            assert!((990_000_000..=1_010_000_000).contains(&share), "{share}");
        }
    }

    #[test]
    fn a_clock_that_stands_or_goes_back_earns_nothing() {
        let mut allowance = Allowance::default();
        allowance.earn(1 << 60, 1);
        frames(&mut allowance, 1);
        for now in [1 << 60, 1, 1] {
            allowance.earn(now, 1);
            assert!(!allowance.is_left());
        }
        allowance.earn(1 << 61, 0);
        assert!(allowance.is_left());
    }
}
