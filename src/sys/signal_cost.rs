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
//!
//! What it costs until then: a front-end can give such a descriptor for each of its rings, and a
//! turn that signals eight would take eight times as long (*measured*: nobody was served for 0.6 s,
//! at 23 ms a write). So after a dear write the port's next signals wait for three times as long,
//! or 100 ms: [`SignalPace`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::clock;
use crate::limits::{
    DEAR_PAUSE_MILLIS, DEAR_PAUSE_PARTS, DEAR_SIGNALS, SIGNAL_MICROS, SIGNALS_MEASURED,
};

/// What the rings of one port have in common: when it may be signalled again. Only ever a hint
/// between workers, so relaxed.
#[derive(Debug, Default)]
pub struct SignalPace {
    /// Writes still to be measured, of whatever ring: a long one makes those of all rings suspect.
    measure: AtomicU32,
    /// The cycle of the clock from which on.
    from: AtomicU64,
}

impl SignalPace {
    /// A dear write of so many cycles has ended at cycle `now`.
    #[cold]
    fn pause(&self, took: u64, now: u64) {
        let longest = clock::cycles_in(DEAR_PAUSE_MILLIS * 1_000_000);
        let pause = took.saturating_mul(DEAR_PAUSE_PARTS).min(longest);
        self.from.store(now.saturating_add(pause), Ordering::Relaxed);
    }
}

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
    /// The port's.
    pace: Arc<SignalPace>,
}

impl SignalCost {
    /// Of a ring of the port with this pace.
    pub fn new(pace: Arc<SignalPace>) -> SignalCost {
        SignalCost { pace, ..SignalCost::default() }
    }

    /// True if the next write is to be measured.
    #[inline(always)]
    pub(super) fn is_watched(&self) -> bool {
        (self.measure.load(Ordering::Relaxed) | self.pace.measure.load(Ordering::Relaxed)) != 0
    }

    /// A write lasted long, for whatever reason: the next ones are measured.
    #[cold]
    pub(super) fn watch(&self) {
        self.measure.store(SIGNALS_MEASURED, Ordering::Relaxed);
        self.pace.measure.store(SIGNALS_MEASURED, Ordering::Relaxed);
    }

    /// True if the last measured write was dear.
    pub(super) fn was_dear(&self) -> bool {
        self.row() != 0
    }

    /// How near the row of dear writes is to its end.
    pub(super) fn row(&self) -> u32 {
        self.row.load(Ordering::Relaxed)
    }

    /// True if the port's signals have to wait at cycle `now`.
    pub(super) fn waits(&self, now: u64) -> bool {
        now < self.pace.from.load(Ordering::Relaxed)
    }

    /// A measured write took so much processor time, and so many cycles until cycle `now`; true if
    /// the front-end is to be dropped.
    #[cold]
    pub(super) fn took(&self, micros: u64, cycles: u64, now: u64) -> bool {
        let weight = match micros {
            m if m <= SIGNAL_MICROS => 0,
            m if m < 5 * SIGNAL_MICROS => 1,
            m if m < 50 * SIGNAL_MICROS => 2,
            _ => 4,
        };
        if weight == 0 {
            for measure in [&self.measure, &self.pace.measure] {
                let left = measure.load(Ordering::Relaxed);
                measure.store(left.saturating_sub(1), Ordering::Relaxed);
            }
            self.row.store(0, Ordering::Relaxed);
            return false;
        }
        self.watch();
        self.pace.pause(cycles, now);
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
        micros.take(10_000).position(|micros| cost.took(micros, 1, 0)).map(|at| at + 1)
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
            assert!(!cost.took(5, 1, 0));
        }
        assert!(!cost.is_watched());
        cost.watch();
        assert!(!cost.took(1_000_000, 1, 0));
        assert!(cost.was_dear());
        for _ in 0..SIGNALS_MEASURED {
            assert!(cost.is_watched(), "a dear one begins anew");
            assert!(!cost.took(5, 1, 0));
        }
        assert!(!cost.is_watched() && !cost.was_dear());
    }

    #[test]
    fn a_dear_write_of_one_ring_holds_up_its_port_only() {
        let pace = Arc::default();
        let [one, other] = [0; 2].map(|_| SignalCost::new(Arc::clone(&pace)));
        let stranger = SignalCost::default();
        one.watch();
        assert!(other.is_watched() && !stranger.is_watched());
        assert!(!one.waits(1_000), "a long write alone says nothing");
        assert!(!one.took(2_000, 5_000, 6_000));
        let end = 6_000 + 5_000 * DEAR_PAUSE_PARTS;
        for cost in [&one, &other] {
            assert!(cost.waits(6_000) && cost.waits(end - 1) && !cost.waits(end));
        }
        assert!(!stranger.waits(6_000));
        // However long it took, and whatever was taken for it.
        one.took(2_000, u64::MAX, 6_000);
        let longest = clock::cycles_in(DEAR_PAUSE_MILLIS * 1_000_000);
        assert!(one.waits(6_000 + longest - 1) && !one.waits(6_000 + longest));
        one.took(2_000, 1, u64::MAX);
    }
}
