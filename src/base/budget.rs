//! A budget that is earned, spent and capped: the arithmetic of every token bucket, credit and
//! deficit of the switch. The caller chooses the unit, mostly a cycle or a nanosecond, and decides
//! when units are earned and for what they are spent.

/// A token bucket: a level between zero and a cap. Only [`Budget::overdraw`] makes the level
/// negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    level: i64,
    /// The highest level, in units.
    pub cap: u64,
}

impl Budget {
    /// Makes an empty budget.
    pub const fn empty(cap: u64) -> Budget {
        Budget { level: 0, cap }
    }

    /// Returns the level; 0 if the budget is overdrawn.
    #[inline(always)]
    pub fn level(&self) -> u64 {
        u64::try_from(self.level).unwrap_or(0)
    }

    /// Raises the level by `amount`, at most to the cap.
    #[inline(always)]
    pub fn earn(&mut self, amount: u64) {
        let cap = i64::try_from(self.cap).unwrap_or(i64::MAX);
        self.level = self.level.saturating_add_unsigned(amount).min(cap);
    }

    /// Lowers the level by `amount`, at least to 0; an overdrawn budget comes to 0 too.
    #[inline(always)]
    pub fn spend(&mut self, amount: u64) {
        self.level = self.level.saturating_sub_unsigned(amount).max(0);
    }

    /// Lowers the level by `amount`, below 0 if necessary; later earnings pay the debt first.
    pub fn overdraw(&mut self, amount: u64) {
        self.level = self.level.saturating_sub_unsigned(amount);
    }

    /// Spends `amount` if the level is at least `amount`; returns true if so.
    #[inline(always)]
    pub fn take(&mut self, amount: u64) -> bool {
        let enough = self.level() >= amount;
        if enough {
            self.spend(amount);
        }
        enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(cap: u64) -> Budget {
        let mut budget = Budget::empty(cap);
        budget.earn(cap);
        budget
    }

    #[test]
    fn no_more_is_saved_up_than_the_cap() {
        let mut budget = Budget::empty(10);
        assert_eq!(budget.level(), 0);
        for (earned, level) in [(4, 4), (5, 9), (5, 10), (u64::MAX, 10)] {
            budget.earn(earned);
            assert_eq!(budget.level(), level);
        }
        budget.cap = 7;
        budget.earn(0);
        assert_eq!(budget.level(), 7);
    }

    #[test]
    fn what_is_spent_is_gone_and_no_more_than_there_was() {
        let mut budget = full(10);
        assert!(budget.take(4) && !budget.take(7) && budget.take(6) && budget.take(0));
        budget.earn(5);
        budget.spend(8);
        assert_eq!(budget.level(), 0);
        budget.earn(1);
        assert_eq!(budget.level(), 1, "nothing is owed");
        budget.spend(u64::MAX);
        budget.earn(10);
        assert_eq!(budget.level(), 10);
    }

    #[test]
    fn what_is_overdrawn_is_earned_first() {
        let mut budget = full(10);
        budget.overdraw(14);
        assert!(budget.level() == 0 && !budget.take(1));
        budget.earn(6);
        assert_eq!(budget.level(), 2);
    }

    #[test]
    fn amounts_of_any_size_are_no_trouble() {
        let mut budget = Budget::empty(u64::MAX);
        budget.earn(u64::MAX);
        budget.earn(u64::MAX);
        assert_eq!(budget.level(), i64::MAX as u64);
        for _ in 0..3 {
            budget.overdraw(u64::MAX);
        }
        assert_eq!(budget.level(), 0);
    }
}
