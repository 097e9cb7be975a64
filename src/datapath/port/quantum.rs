//! Equal shares of a worker's time for the sources that compete for it: transmit rings, and queues
//! of TAPs and streams.
//!
//! This is the one account of what bursts cost. A burst is bounded in frames and bytes, but what it
//! costs depends on more than can be counted: chains that are walked and rejected, packets cut into
//! segments, a receiver's tiny buffers, addresses that miss every cache, pages that fault, a TAP
//! whose every frame is a system call. So it is timed. A ring whose burst took longer than its
//! [`Quantum`] is *throttled*, it skips turns, until the others have had as much (deficit round
//! robin, Shreedhar and Varghese 1995, in time).
//!
//! The quantum is what the cheapest burst takes of a ring that has more to send. With a fixed one
//! those whose bursts are cheaper would have less time than they are due, and how long a burst
//! takes is the machine's to say: 2.5 µs, right for one, left a bystander half of its share on
//! another whose copies are twice as fast.
//!
//! Only rings that compete are throttled: a turn in which no other had work forgives everything, so
//! this costs a ring that is alone nothing. A worker that loses its CPU in a burst charges the
//! guest for it; on a busy host that hits each as often as it is served, and
//! [`MAX_DEFICIT_NANOS`] bounds it.
//!
//! Time is an argument, in cycles; an [`Account`] reads the clock.

use base::budget::Budget;
use base::limits::{MAX_DEFICIT_NANOS, QUANTUM_NANOS, SHARED_NANOS};
use base::stats::QueueStats;
use sys::clock;

/// The limits, in cycles.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// What a ring may take of a turn.
    pub quantum: u64,
    /// What a skipped turn pays.
    pub pay: u64,
}

/// What each ring that competes for a worker may take of a turn, in cycles.
#[derive(Debug, Clone, Copy)]
pub struct Quantum {
    now: u64,
    cheapest: u64,
    least: u64,
    most: u64,
    /// Turns in a row in which all were throttled.
    idle_turns: u32,
    /// A ring had no more: it is to be served often, which `most` is for.
    drained: bool,
}

/// How many times as long a quantum may be while all rings have more: a turn, 50 µs.
const GREEDY_QUANTA: u64 = 20;

/// By then a turn pays four thousand quanta, more than it can be that are owed.
const MAX_IDLE_TURNS: u32 = 6;

impl Quantum {
    /// One that begins at `most` and stays within both.
    pub fn new(least: u64, most: u64) -> Quantum {
        Quantum { now: most, cheapest: u64::MAX, least, most, idle_turns: 0, drained: false }
    }

    /// A burst took so long of a ring that has `more`.
    #[inline(always)]
    pub fn saw(&mut self, spent: u64, more: bool) {
        if more {
            self.cheapest = self.cheapest.min(spent);
        } else {
            self.drained = true;
        }
    }

    /// The quantum in the turn that begins, and what skipping it pays. The quantum falls at once
    /// and rises slowly: in some turns those with the cheap bursts are throttled themselves. After
    /// turns in which all were, `idle`, a skipped turn pays four times as much each time: what all
    /// owe is soon paid, and the difference stays.
    #[inline(always)]
    pub fn next_turn(&mut self, idle: bool) -> Terms {
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

/// What a source took beyond its quantum.
#[derive(Debug, Clone, Copy)]
pub struct Deficit(Budget);

impl Default for Deficit {
    fn default() -> Deficit {
        Deficit(Budget::empty(clock::cycles_in(MAX_DEFICIT_NANOS)))
    }
}

impl Deficit {
    /// True if the source skips this turn; `contended` if others had work in the last one.
    #[inline(always)]
    pub fn is_throttled(&mut self, contended: bool, terms: Terms) -> bool {
        if !contended {
            self.0.spend(u64::MAX);
        }
        self.0.take(terms.pay)
    }

    /// Records what the floods of bursts took.
    pub fn owe(&mut self, spent: u64) {
        self.0.earn(spent);
    }

    /// Records what a burst took.
    #[inline(always)]
    pub fn charge(&mut self, spent: u64, terms: Terms) {
        self.0.earn(spent);
        self.0.spend(terms.quantum);
    }
}

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
            terms: Terms { quantum: 0, pay: 0 },
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
        self.terms = self.quantum.next_turn(idle);
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

    /// Charges a flood for a part that took so many cycles.
    #[cold]
    pub fn charge_part(&mut self, deficit: &mut Deficit, spent: u64) {
        deficit.charge(spent, self.terms);
        self.quantum.saw(spent, true);
    }

    /// Ends a look: the cycles since the last one ended that are to be charged.
    pub fn lap(&mut self) -> u64 {
        let began = self.charged_until;
        clock::since(began, self.end_look())
    }

    /// Has a source pay for floods of its bursts, which took so many cycles of a worker.
    #[cold]
    pub fn collect(&self, deficit: &mut Deficit, stats: &QueueStats, owed: u64) {
        stats.cycles.add(owed);
        deficit.owe(owed);
    }

    /// The cycle at which to read no more of a device for a burst, each of whose frames is a system
    /// call: after a quantum, if others have work or lately had some.
    pub fn reading_ends(&self) -> Option<u64> {
        let shared = self.charged_until < self.shared_until;
        shared.then(|| self.charged_until.saturating_add(self.terms.quantum))
    }

    /// Ends a look at a source: what was not charged by now no source pays for. The present cycle.
    #[inline(always)]
    pub fn end_look(&mut self) -> u64 {
        self.charged_until = clock::cycles();
        self.charged_until
    }

    /// No source is charged for so many cycles of the present burst.
    #[inline(always)]
    pub fn forgive(&mut self, cycles: u64) {
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

    /// Time that two rings got in so many turns whose bursts take `costs`.
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

    /// Whatever bursts cost, on whatever machine, each ring gets its half of the time.
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
