//! Whose bursts took how much of the worker's time.

use crate::limits::{MAX_DEFICIT_NANOS, QUANTUM_NANOS, SHARED_NANOS};
use crate::port::quantum::{Deficit, Quantum, Terms};
use crate::stats::QueueStats;
use crate::sys::clock;

/// A worker's account of its time.
pub struct Account {
    /// When the last look at a source ended, or the turn began.
    charged_until: u64,
    /// Several sources had work in the last turn.
    contended: bool,
    /// The cycle up to which others may have work again, as they had some lately.
    shared_until: u64,
    /// [`SHARED_NANOS`] in cycles.
    shared: u64,
    quantum: Quantum,
    /// What a source may take of a turn, and may owe.
    terms: Terms,
}

impl Default for Account {
    fn default() -> Account {
        let (least, most) = (*QUANTUM_NANOS.start(), *QUANTUM_NANOS.end());
        Account {
            charged_until: 0,
            contended: false,
            shared_until: 0,
            shared: clock::cycles_in(SHARED_NANOS),
            quantum: Quantum::new(clock::cycles_in(least), clock::cycles_in(most)),
            terms: Terms { quantum: 0, pay: 0, most: clock::cycles_in(MAX_DEFICIT_NANOS) },
        }
    }
}

impl Account {
    /// Begins a turn at `cycle`, unless a look has ended since; `contended` if several sources had
    /// work in the last one, `idle` if all of them were throttled.
    pub fn begin_turn(&mut self, cycle: u64, contended: bool, idle: bool) {
        (self.charged_until, self.contended) = (self.charged_until.max(cycle), contended);
        if contended {
            self.shared_until = cycle.saturating_add(self.shared);
        }
        (self.terms.quantum, self.terms.pay) = self.quantum.next_turn(idle);
    }

    /// What a source may take of this turn, in cycles.
    #[cfg(test)]
    pub fn quantum(&self) -> u64 {
        self.terms.quantum
    }

    /// True if a source has to skip this turn for what its bursts took before.
    #[inline(always)]
    pub fn throttles(&self, deficit: &mut Deficit) -> bool {
        deficit.is_throttled(self.contended, self.terms)
    }

    /// Charges a source for the time since the last look ended. Of one whose frames were forwarded
    /// it is known whether it has `more`, and what a burst takes.
    #[inline(always)]
    pub fn charge(&mut self, deficit: &mut Deficit, stats: &QueueStats, more: Option<bool>) {
        let spent = clock::since(self.charged_until, self.end_look());
        stats.cycles.add(spent);
        deficit.charge(spent, self.terms);
        if let Some(more) = more {
            self.quantum.saw(spent, more);
        }
    }

    /// The cycle at which to read no more of a device for a burst, each of whose frames is a system
    /// call: after a quantum, if others have work or lately had some.
    pub fn reading_ends(&self) -> Option<u64> {
        let shared = self.charged_until < self.shared_until;
        shared.then(|| self.charged_until.saturating_add(self.terms.quantum))
    }

    /// Ends a look at a source: what was not charged by now is nobody's to pay. The present cycle.
    #[inline(always)]
    pub fn end_look(&mut self) -> u64 {
        self.charged_until = clock::cycles();
        self.charged_until
    }

    /// Nobody is charged for so many cycles of the present burst.
    #[inline(always)]
    pub fn forgive(&mut self, cycles: u64) {
        self.charged_until = self.charged_until.wrapping_add(cycles);
    }
}
