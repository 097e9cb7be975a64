//! Equal shares of a worker's time for the sources that compete for it: transmit rings and queues
//! of devices.
//!
//! This module is the only account of the cost of bursts. A burst is bounded in frames and bytes,
//! but its cost depends on more than can be counted: rejected chains, packets cut into segments, a
//! receiver's tiny buffers, cache misses, page faults, a TAP that needs a system call for each
//! frame. So the time of each burst is measured. A ring whose burst took longer than its
//! [`Quantum`] is *throttled*: the ring skips turns until the other sources have had as much time
//! (deficit round robin, Shreedhar and Varghese 1995, in time).
//!
//! The quantum is the time of the cheapest burst of a ring that has more to send. With a fixed
//! quantum, rings with cheaper bursts would get less time than their share, and the time of a burst
//! depends on the machine: 2.5 µs, right for one machine, left a bystander half of its share on
//! another machine whose copies are twice as fast.
//!
//! Only competing rings are throttled. A turn in which only one ring had work clears its deficit,
//! so a ring that is alone pays nothing. A worker that loses its CPU in a burst charges the guest
//! of the burst; on a busy host this hits each guest as often as it is served, and
//! [`MAX_DEFICIT_NANOS`] bounds the charge.
//!
//! Time is an argument, in cycles; an [`Account`] reads the clock.

use base::budget::Budget;
use base::limits::{MAX_DEFICIT_NANOS, QUANTUM_NANOS, SHARED_NANOS};
use base::stats::QueueStats;
use sys::clock;

/// Terms of a turn, in cycles.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    /// Time that a ring may take of a turn.
    pub(crate) quantum: u64,
    /// Time by which a skipped turn reduces a deficit.
    pub(crate) pay: u64,
}

/// The time that each competing ring may take of a turn, in cycles.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Quantum {
    now: u64,
    cheapest: u64,
    least: u64,
    most: u64,
    /// Consecutive turns in which all sources were throttled.
    idle_turns: u32,
    /// A ring was emptied. Such a ring is to be served often, so `most` bounds the quantum.
    drained: bool,
}

/// Factor for the bound of the quantum while all rings have more frames: 50 µs, a turn.
const GREEDY_QUANTA: u64 = 20;

/// Number of idle turns after which a skipped turn pays four thousand quanta, more than any
/// deficit.
const MAX_IDLE_TURNS: u32 = 6;

impl Quantum {
    /// Creates a quantum that begins at `most` and stays between `least` and `most`.
    pub(crate) fn new(least: u64, most: u64) -> Quantum {
        Quantum { now: most, cheapest: u64::MAX, least, most, idle_turns: 0, drained: false }
    }

    /// Records that a burst took `spent` cycles. `more`: the ring has more frames.
    #[inline(always)]
    pub(crate) fn saw(&mut self, spent: u64, more: bool) {
        if more {
            self.cheapest = self.cheapest.min(spent);
        } else {
            self.drained = true;
        }
    }

    /// Returns the terms of the turn that begins. The quantum falls at once and rises slowly,
    /// because rings with cheap bursts are throttled themselves in some turns. `idle`: all sources
    /// were throttled in the last turn. After each idle turn a skipped turn pays four times as
    /// much, so that the common part of all deficits is soon paid, and the differences stay.
    #[inline(always)]
    pub(crate) fn next_turn(&mut self, idle: bool) -> Terms {
        if idle {
            self.idle_turns = (self.idle_turns + 1).min(MAX_IDLE_TURNS);
            return Terms { quantum: self.now, pay: self.now << (2 * self.idle_turns) };
        }
        self.idle_turns = 0;
        let seen = std::mem::replace(&mut self.cheapest, u64::MAX);
        let drained = std::mem::replace(&mut self.drained, false);
        let most = if drained { self.most } else { GREEDY_QUANTA * self.most };
        self.now = seen.min(self.now + self.now / 16).clamp(self.least, most);
        Terms { quantum: self.now, pay: self.now }
    }
}

/// Time that a source took beyond its quantum.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deficit(Budget);

impl Default for Deficit {
    fn default() -> Deficit {
        Deficit(Budget::empty(clock::cycles_in(MAX_DEFICIT_NANOS)))
    }
}

impl Deficit {
    /// True if the source skips this turn. `contended`: other sources had work in the last turn.
    #[inline(always)]
    pub(crate) fn is_throttled(&mut self, contended: bool, terms: Terms) -> bool {
        if !contended {
            self.0.spend(u64::MAX);
        }
        self.0.take(terms.pay)
    }

    /// Adds the time of floods.
    pub(crate) fn owe(&mut self, spent: u64) {
        self.0.earn(spent);
    }

    /// Adds the time of a burst, less the quantum.
    #[inline(always)]
    pub(crate) fn charge(&mut self, spent: u64, terms: Terms) {
        self.0.earn(spent);
        self.0.spend(terms.quantum);
    }
}

/// A worker's account of its time.
pub struct Account {
    /// Cycle at which the last look at a source ended, or the turn began.
    charged_until: u64,
    /// Several sources had work in the last turn.
    contended: bool,
    /// Cycle up to which other sources may have work again, since several sources lately had work.
    shared_until: u64,
    /// [`SHARED_NANOS`] in cycles.
    shared: u64,
    quantum: Quantum,
    /// Terms of the present turn.
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
            terms: Terms { quantum: 0, pay: 0 },
        }
    }
}

impl Account {
    /// Begins a turn at `cycle`, unless a look has ended since. `contended`: several sources had
    /// work in the last turn. `idle`: all of these sources were throttled.
    pub(crate) fn begin_turn(&mut self, cycle: u64, contended: bool, idle: bool) {
        (self.charged_until, self.contended) = (self.charged_until.max(cycle), contended);
        if contended {
            self.shared_until = cycle.saturating_add(self.shared);
        }
        self.terms = self.quantum.next_turn(idle);
    }

    /// Returns the time that a source may take of this turn, in cycles.
    #[cfg(test)]
    pub(crate) fn quantum(&self) -> u64 {
        self.terms.quantum
    }

    /// True if a source must skip this turn because of earlier bursts.
    #[inline(always)]
    pub(crate) fn throttles(&self, deficit: &mut Deficit) -> bool {
        deficit.is_throttled(self.contended, self.terms)
    }

    /// Charges a source for the time since the last look ended. `more`, for a source whose frames
    /// were forwarded: the source has more frames.
    #[inline(always)]
    pub(crate) fn charge(&mut self, deficit: &mut Deficit, stats: &QueueStats, more: Option<bool>) {
        let spent = clock::since(self.charged_until, self.end_look());
        stats.cycles.add(spent);
        deficit.charge(spent, self.terms);
        if let Some(more) = more {
            self.quantum.saw(spent, more);
        }
    }

    /// Charges a flood for a part that took `spent` cycles.
    #[cold]
    pub(crate) fn charge_part(&mut self, deficit: &mut Deficit, spent: u64) {
        deficit.charge(spent, self.terms);
        self.quantum.saw(spent, true);
    }

    /// Ends a look, and returns the cycles to charge since the end of the last look.
    pub(crate) fn lap(&mut self) -> u64 {
        let began = self.charged_until;
        clock::since(began, self.end_look())
    }

    /// Charges a source for floods of its bursts, which took `owed` cycles of a worker.
    #[cold]
    pub(crate) fn collect(&self, deficit: &mut Deficit, stats: &QueueStats, owed: u64) {
        stats.cycles.add(owed);
        deficit.owe(owed);
    }

    /// Returns the cycle at which to stop reading a device for a burst, since each frame may be a
    /// system call: after a quantum. None if no other source lately had work.
    pub(crate) fn reading_ends(&self) -> Option<u64> {
        let shared = self.charged_until < self.shared_until;
        shared.then(|| self.charged_until.saturating_add(self.terms.quantum))
    }

    /// Ends a look at a source: time that is not charged by now is charged to no source. Returns
    /// the present cycle.
    #[inline(always)]
    pub(crate) fn end_look(&mut self) -> u64 {
        self.charged_until = clock::cycles();
        self.charged_until
    }

    /// Exempts `cycles` of the present burst from the charge.
    #[inline(always)]
    pub(crate) fn forgive(&mut self, cycles: u64) {
        self.charged_until = self.charged_until.wrapping_add(cycles);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: Terms = Terms { quantum: 10, pay: 10 };
    const MOST: u64 = 1000;

    fn deficit(most: u64) -> Deficit {
        Deficit(Budget::empty(most))
    }

    /// Returns the time that two rings got in `turns` turns, with bursts that take `costs`.
    fn run(costs: [u64; 2], turns: usize) -> [u64; 2] {
        let mut deficits = [(); 2].map(|()| deficit(MOST));
        let mut got = [0; 2];
        for _ in 0..turns {
            for (i, deficit) in deficits.iter_mut().enumerate() {
                if !deficit.is_throttled(true, TERMS) {
                    deficit.charge(costs[i], TERMS);
                    got[i] += costs[i];
                }
            }
        }
        got
    }

    #[test]
    fn expensive_bursts_get_as_much_time_as_others() {
        for cost in [10, 11, 35, 400] {
            let [expensive, other] = run([cost, 10], 10_000);
            assert!(
                expensive.abs_diff(other) <= other / 20 + cost,
                "{cost}: {expensive} and {other}"
            );
        }
        let [cheap, other] = run([3, 10], 1000);
        assert_eq!((cheap, other), (3000, 10_000), "none is made to wait for less");
    }

    /// Whatever bursts cost, and on any machine, each ring gets half of the time.
    #[test]
    fn the_quantum_follows_the_cheapest_burst() {
        for costs in [[300, 1000], [700, 90_000], [3000, 9000], [400, 401], [20_000, 20_000]] {
            let mut quantum = Quantum::new(200, 2500);
            let mut deficits = [(); 2].map(|()| deficit(4_000_000));
            let mut got = [0; 2];
            let mut idle = false;
            for _ in 0..100_000 {
                let terms = quantum.next_turn(idle);
                idle = true;
                for (i, deficit) in deficits.iter_mut().enumerate() {
                    if !deficit.is_throttled(true, terms) {
                        deficit.charge(costs[i], terms);
                        quantum.saw(costs[i], true);
                        got[i] += costs[i];
                        idle = false;
                    }
                }
            }
            let [a, b] = got;
            assert!(a.abs_diff(b) <= a.max(b) / 10, "{costs:?}: {got:?}");
        }
    }

    #[test]
    fn a_ring_that_is_alone_owes_nothing() {
        let mut deficit = deficit(MOST);
        for _ in 0..100 {
            deficit.charge(400, TERMS);
            assert!(!deficit.is_throttled(false, TERMS));
        }
    }

    #[test]
    fn deficits_are_bounded() {
        let mut deficit = deficit(MOST);
        deficit.charge(u64::MAX, TERMS);
        let turns = (0..10_000).take_while(|_| deficit.is_throttled(true, TERMS)).count();
        assert_eq!(turns as u64, MOST / TERMS.quantum - 1);
    }
}
