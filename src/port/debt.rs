//! Equal parts of a worker's time for transmit rings that compete for it.
//!
//! A burst is bounded in frames and bytes, and what is known to be dear counts as more bytes
//! (`SplitRing::charge`). But what a burst costs depends on more than can be counted: chains that
//! are walked and rejected, addresses that miss every cache, pages that fault, a receiver whose
//! every frame is a system call. So it is timed as well. A ring whose burst took longer than its
//! part, [`TURN_PART_NANOS`], sits out turns until the others have had as much (deficit round
//! robin, Shreedhar and Varghese 1995, in time).
//!
//! Only rings that compete sit out: a turn in which nobody else had work forgives everything, so
//! this costs a ring that is alone nothing. A worker that loses its CPU in a burst charges the
//! guest for it; on a busy host that hits each as often as it is served, and
//! [`MAX_TURN_DEBT_NANOS`] bounds it.
//!
//! Time is an argument, in cycles.
//!
//! [`TURN_PART_NANOS`]: crate::limits::TURN_PART_NANOS
//! [`MAX_TURN_DEBT_NANOS`]: crate::limits::MAX_TURN_DEBT_NANOS

/// The limits, in cycles.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// A ring's part of a turn.
    pub part: u64,
    /// The most it can owe.
    pub most: u64,
}

/// What a transmit ring took beyond its part.
#[derive(Debug, Clone, Copy, Default)]
pub struct Debt(u64);

impl Debt {
    /// True if the ring sits out this turn; `contended` if others had work in the last one.
    #[inline(always)]
    pub fn sits_out(&mut self, contended: bool, terms: Terms) -> bool {
        if !contended {
            self.0 = 0;
        }
        let sits = self.0 >= terms.part;
        if sits {
            self.0 -= terms.part;
        }
        sits
    }

    /// Records what a burst took.
    #[inline(always)]
    pub fn charge(&mut self, spent: u64, terms: Terms) {
        self.0 = (self.0.saturating_add(spent)).saturating_sub(terms.part).min(terms.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: Terms = Terms { part: 10, most: 1000 };

    /// Time that two rings got in so many turns whose bursts take `costs`.
    fn run(costs: [u64; 2], turns: usize) -> [u64; 2] {
        let mut debts = [Debt::default(); 2];
        let mut got = [0; 2];
        for _ in 0..turns {
            for (i, debt) in debts.iter_mut().enumerate() {
                if !debt.sits_out(true, TERMS) {
                    debt.charge(costs[i], TERMS);
                    got[i] += costs[i];
                }
            }
        }
        got
    }

    #[test]
    fn dear_bursts_get_as_much_time_as_others() {
        for cost in [10, 11, 35, 400] {
            let [dear, other] = run([cost, 10], 10_000);
            assert!(dear.abs_diff(other) <= other / 20 + cost, "{cost}: {dear} and {other}");
        }
        let [cheap, other] = run([3, 10], 1000);
        assert_eq!((cheap, other), (3000, 10_000), "nobody is made to wait for less");
    }

    #[test]
    fn a_ring_that_is_alone_owes_nothing() {
        let mut debt = Debt::default();
        for _ in 0..100 {
            debt.charge(400, TERMS);
            assert!(!debt.sits_out(false, TERMS));
        }
    }

    #[test]
    fn debts_are_bounded() {
        let mut debt = Debt::default();
        debt.charge(u64::MAX, TERMS);
        let turns = (0..10_000).take_while(|_| debt.sits_out(true, TERMS)).count();
        assert_eq!(turns as u64, TERMS.most / TERMS.part);
    }
}
