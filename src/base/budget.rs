//! What is earned and spent, and not saved up beyond a cap: the arithmetic of every token bucket,
//! credit and deficit of the switch. What a unit is, when it is earned and what it pays for is the
//! caller's: mostly a cycle, or a nanosecond.

/// An amount with a cap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    level: i64,
    /// The most there can be.
    pub cap: u64,
}

impl Budget {
    /// With nothing in it.
    pub const fn empty(cap: u64) -> Budget {
        Budget { level: 0, cap }
    }

    /// What is there; nothing if it is overdrawn.
    #[inline(always)]
    pub fn level(&self) -> u64 {
        u64::try_from(self.level).unwrap_or(0)
    }

    /// Earns so much, up to the cap.
    #[inline(always)]
    pub fn earn(&mut self, amount: u64) {
        let cap = i64::try_from(self.cap).unwrap_or(i64::MAX);
        self.level = self.level.saturating_add_unsigned(amount).min(cap);
    }

    /// Spends so much, or all there is.
    #[inline(always)]
    pub fn spend(&mut self, amount: u64) {
        self.level = self.level.saturating_sub_unsigned(amount).max(0);
    }

    /// Spends so much, if need be of what is earned later.
    pub fn overdraw(&mut self, amount: u64) {
        self.level = self.level.saturating_sub_unsigned(amount);
    }

    /// Spends so much if there is as much; true if so.
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
