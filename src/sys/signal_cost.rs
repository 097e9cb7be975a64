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
//! system call, so only after a write that lasted long are the next ones measured.
//!
//! Processor time says little either where a hypervisor takes the processor away: to wake somebody
//! is to wake another virtual CPU, and the host may run that one in the place of ours, which looks
//! like our own time. Seen on such a machine: an honest guest's signals added up to 3 ms beyond
//! 0.1 ms each. But not every one is dear, while a crowd has to be woken by each write. So only a
//! row of dear writes counts, and one that was not dear ends it; the dearer they are, the shorter
//! the row.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::limits::{DEAR_SIGNALS, SIGNAL_MICROS, SIGNALS_MEASURED};

/// What is known of the writes to a ring's call descriptors. All of them, as a front-end can give
/// one after the other, and in one connection after the other; but of one ring, or a second one
/// with an honest descriptor would end each row. Several threads write; what they overwrite of each
/// other is a measurement of many.
#[derive(Debug, Default)]
pub struct SignalCost {
    /// Writes still to be measured.
    measure: AtomicU32,
    /// Weight of the dear writes in a row.
    row: AtomicU32,
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

    /// True if the last measured write was dear.
    pub(super) fn was_dear(&self) -> bool {
        self.row.load(Ordering::Relaxed) != 0
    }

    /// A measured write took so much processor time; true if the front-end is to be dropped.
    #[cold]
    pub(super) fn took(&self, micros: u64) -> bool {
        let weight = match micros {
            m if m <= SIGNAL_MICROS => 0,
            m if m < 5 * SIGNAL_MICROS => 1,
            m if m < 50 * SIGNAL_MICROS => 2,
            _ => 4,
        };
        if weight == 0 {
            let left = self.measure.load(Ordering::Relaxed);
            self.measure.store(left.saturating_sub(1), Ordering::Relaxed);
            self.row.store(0, Ordering::Relaxed);
            return false;
        }
        self.watch();
        let row = self.row.load(Ordering::Relaxed).saturating_add(weight);
        self.row.store(row, Ordering::Relaxed);
        row >= DEAR_SIGNALS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes of so many microseconds until the front-end is dropped, if it is.
    fn dropped_after(micros: impl Iterator<Item = u64>) -> Option<usize> {
        let cost = SignalCost::default();
        cost.watch();
        micros.take(10_000).position(|micros| cost.took(micros)).map(|at| at + 1)
    }

    #[test]
    fn a_crowd_is_found_the_sooner_the_larger_it_is() {
        let found = |micros| dropped_after(std::iter::repeat(micros));
        assert_eq!(
            [1_001, 4_999, 5_000, 49_999, 50_000, 2_000_000].map(found),
            [Some(16), Some(16), Some(8), Some(8), Some(4), Some(4)]
        );
    }

    #[test]
    fn honest_ones_are_left_alone() {
        assert_eq!(dropped_after(std::iter::repeat(SIGNAL_MICROS)), None);
        // Most have something in them that is not ours, and now and then a long one.
        let stolen = (0..).map(|i| if i % 4 == 0 { 10 } else { 20_000 });
        assert_eq!(dropped_after(stolen), None);
        let half = (0..).map(|i| if i % 2 == 0 { 200_000 } else { 10 });
        assert_eq!(dropped_after(half), None);
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
        assert!(cost.was_dear());
        for _ in 0..SIGNALS_MEASURED {
            assert!(cost.is_watched(), "a dear one begins anew");
            assert!(!cost.took(5));
        }
        assert!(!cost.is_watched() && !cost.was_dear());
    }
}
