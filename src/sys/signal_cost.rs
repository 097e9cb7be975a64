//! Telling a call descriptor that is made to be slow from one that wakes a guest.
//!
//! The attack: the kernel wakes everybody who polls an eventfd within the writer's `write`, one
//! after the other, with interrupts off. A front-end can register its call descriptor with a
//! thousand epoll instances by a thousand numbers each; *measured*, a write then takes 1 ms for
//! 10,000 pollers and 110 to 140 ms for 300,000, every time, in a thread that serves other ports
//! too.
//!
//! How it is told: by the processor time of the write, since time alone says nothing: whoever is
//! woken may take the processor from the writer for milliseconds. Asking for processor time is a
//! system call, so only after a write that lasted long are the next ones measured. What exceeds
//! an honest share adds to a debt, what stays below pays it back, and none counts for more than a
//! third of what is needed, so that one interruption that a hypervisor hides is never enough.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::limits::{SIGNAL_DEBT_MICROS, SIGNAL_MICROS, SIGNALS_MEASURED, SLOW_SIGNALS};

/// What is known of the writes to a port's call descriptors. All of them, as a front-end can give
/// one after the other, and in one connection after the other. Several threads write; what they
/// overwrite of each other is a measurement of many.
#[derive(Debug, Default)]
pub struct SignalCost {
    /// Writes still to be measured.
    measure: AtomicU32,
    /// Microseconds beyond an honest share.
    debt: AtomicU32,
}

impl SignalCost {
    /// True if the next write is to be measured.
    #[inline(always)]
    pub(super) fn is_watched(&self) -> bool {
        self.measure.load(Ordering::Relaxed) != 0
    }

    /// A write lasted long, for whatever reason: the next ones are measured.
    #[cold]
    pub(super) fn watch(&self) {
        self.measure.store(SIGNALS_MEASURED, Ordering::Relaxed);
    }

    /// True if measured writes took more than their share.
    pub(super) fn is_owing(&self) -> bool {
        self.debt.load(Ordering::Relaxed) != 0
    }

    /// A measured write took so much processor time; true if the front-end is to be dropped.
    #[cold]
    pub(super) fn took(&self, micros: u64) -> bool {
        let most = u64::from(SIGNAL_DEBT_MICROS / SLOW_SIGNALS);
        let share = u64::from(SIGNAL_MICROS);
        let debt = u64::from(self.debt.load(Ordering::Relaxed));
        let debt = (debt + micros.min(most + share)).saturating_sub(share) as u32;
        self.debt.store(debt, Ordering::Relaxed);
        if micros > share {
            self.watch();
        } else {
            let left = self.measure.load(Ordering::Relaxed);
            self.measure.store(left.saturating_sub(1), Ordering::Relaxed);
        }
        debt >= SIGNAL_DEBT_MICROS / SLOW_SIGNALS * SLOW_SIGNALS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes of so many microseconds until the front-end is dropped, if it is.
    fn dropped_after(micros: impl Iterator<Item = u64>) -> Option<usize> {
        let cost = SignalCost::default();
        cost.watch();
        micros.take(10_000).position(|micros| cost.took(micros))
    }

    #[test]
    fn slow_ones_are_found_soon() {
        assert_eq!(dropped_after(std::iter::repeat(100_000)), Some(2));
        let slightly = dropped_after(std::iter::repeat(2 * u64::from(SIGNAL_MICROS)));
        let found = slightly.expect("found");
        assert!(found < 2 * (SIGNAL_DEBT_MICROS / SIGNAL_MICROS) as usize, "{found}");
    }

    #[test]
    fn honest_ones_are_left_alone() {
        assert_eq!(dropped_after(std::iter::repeat(u64::from(SIGNAL_MICROS))), None);
        // Now and then one has an interruption in it.
        let now_and_then = (0..).map(|i| if i % 32 == 0 { 20_000 } else { 10 });
        assert_eq!(dropped_after(now_and_then), None);
    }

    #[test]
    fn measuring_ends() {
        let cost = SignalCost::default();
        assert!(!cost.is_watched());
        cost.watch();
        for _ in 0..SIGNALS_MEASURED {
            assert!(cost.is_watched());
            assert!(!cost.took(5));
        }
        assert!(!cost.is_watched());
        cost.watch();
        assert!(!cost.took(1_000_000));
        for _ in 0..SIGNALS_MEASURED {
            assert!(cost.is_watched(), "a slow one begins anew");
            assert!(!cost.took(5));
        }
        assert!(!cost.is_watched());
    }
}
