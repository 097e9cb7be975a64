//! Whose bursts took how much of the worker's time.

use crate::limits::{MAX_DEFICIT_NANOS, QUANTUM_NANOS};
use crate::port::TxState;
use crate::port::quantum::{Quantum, Terms};
use crate::ring::SplitRing;
use crate::stats::QueueStats;
use crate::sys::clock;

/// A worker's account of its time.
pub struct Account {
    /// When the last burst ended, or the turn began.
    charged_until: u64,
    /// Several sources had work in the last turn.
    contended: bool,
    quantum: Quantum,
    /// What a ring may take of a turn, and may owe.
    terms: Terms,
}

impl Default for Account {
    fn default() -> Account {
        let (least, most) = (*QUANTUM_NANOS.start(), *QUANTUM_NANOS.end());
        Account {
            charged_until: 0,
            contended: false,
            quantum: Quantum::new(clock::cycles_in(least), clock::cycles_in(most)),
            terms: Terms { quantum: 0, pay: 0, most: clock::cycles_in(MAX_DEFICIT_NANOS) },
        }
    }
}

impl Account {
    /// Begins a turn at `cycle`; `contended` if several sources had work in the last one, `idle` if
    /// all of them were throttled.
    pub fn begin_turn(&mut self, cycle: u64, contended: bool, idle: bool) {
        (self.charged_until, self.contended) = (cycle, contended);
        (self.terms.quantum, self.terms.pay) = self.quantum.next_turn(idle);
    }

    /// True if a transmit ring has to skip this turn for what its bursts took before.
    #[inline(always)]
    pub fn throttles(&self, state: &mut TxState) -> bool {
        state.side.deficit.is_throttled(self.contended, self.terms)
    }

    /// Charges a transmit ring for the time since the last burst ended.
    #[inline(always)]
    pub fn charge_ring(&mut self, state: &mut TxState, stats: &QueueStats) {
        let more = state.vring.ring.as_ref().is_some_and(SplitRing::has_more);
        let spent = self.charge(stats);
        state.side.deficit.charge(spent, self.terms);
        self.quantum.saw(spent, more);
    }

    /// Counts the time since the last burst ended for a source that owes nothing for it, as the
    /// ring after it does not; the cycles.
    #[inline(always)]
    pub fn charge(&mut self, stats: &QueueStats) -> u64 {
        let now = clock::cycles();
        let spent = clock::since(self.charged_until, now);
        stats.cycles.add(spent);
        self.charged_until = now;
        spent
    }

    /// Nobody is charged for so many cycles of the present burst.
    #[inline(always)]
    pub fn forgive(&mut self, cycles: u64) {
        self.charged_until = self.charged_until.wrapping_add(cycles);
    }
}
