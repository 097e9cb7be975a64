//! How long a full receive ring may keep frames waiting in their sender's ring.
//!
//! A receiver whose virtual CPU is off for some milliseconds has no free buffer for that long, and
//! dropping what comes meanwhile makes TCP send it again and slow down. So a burst that goes
//! nowhere else may stay where it is, in its sender's transmit ring, and be tried again: that costs
//! no memory, and the sender's own queue discipline holds the rest back.
//!
//! No third port may be held up by that. A burst waits only if all of it, and all that is seen
//! behind it in its ring, goes to the one full receiver; a frame for somebody else ends the waiting
//! at the next try, after [`HOLD_SLEEP_MILLIS`] at most. Where a ring is longer than what is looked
//! at there is a second bound: a receiver has *patience* as a credit of time, [`HOLD_NANOS`] at
//! most, spent while senders wait for it (by each of them) and earned back at a tenth of the time
//! that passes. A receiver that took nothing while its credit ran out, one that is stopped or
//! hostile, gets no more before it takes a frame; one that takes less than it is sent for good
//! falls back to drops, and saves up half of its credit before it is waited for again, as slivers
//! of patience would help nobody.
//!
//! Time is an argument, in cycles.
//!
//! [`HOLD_NANOS`]: crate::limits::HOLD_NANOS
//! [`HOLD_SLEEP_MILLIS`]: crate::limits::HOLD_SLEEP_MILLIS

use crate::limits::HOLD_SHARE;
use crate::sys::clock::since;

/// What a burst that may wait knows of time.
#[derive(Debug, Clone, Copy)]
pub struct Wait {
    /// Now, in cycles.
    pub now: u64,
    /// Cycles for which the burst has been waiting and that nobody was charged for.
    pub waited: u64,
    /// The most credit there is.
    pub most: u64,
}

/// The patience of one receive ring's senders.
#[derive(Debug, Clone, Copy, Default)]
pub struct Patience {
    credit: u64,
    reckoned: u64,
    /// It ran out, and half of it must be there again.
    spent: bool,
    /// Nothing was taken since it ran out.
    stuck: bool,
}

impl Patience {
    /// True if a burst may go on waiting.
    pub fn allows(&mut self, wait: Wait) -> bool {
        let earned = since(self.reckoned, wait.now) / HOLD_SHARE;
        self.reckoned = wait.now;
        self.credit = (self.credit.saturating_add(earned)).min(wait.most);
        if !self.spent {
            self.credit = self.credit.saturating_sub(wait.waited);
            self.spent = self.credit == 0;
            self.stuck = self.spent;
        } else if self.credit >= wait.most / 2 && !self.stuck {
            self.spent = false;
        }
        !self.spent
    }

    /// The receiver took frames.
    #[inline(always)]
    pub fn took(&mut self) {
        self.stuck = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u64 = 10_000;

    fn ask(patience: &mut Patience, now: u64, waited: u64) -> bool {
        patience.allows(Wait { now, waited, most: MOST })
    }

    #[test]
    fn patience_ends_after_its_credit() {
        let mut patience = Patience::default();
        let start = 1_000_000;
        let mut now = start;
        assert!(ask(&mut patience, now, 0));
        while ask(&mut patience, now + 100, 100) {
            now += 100;
        }
        // A tenth was earned meanwhile.
        assert!((MOST..MOST * 12 / 10).contains(&(now - start)), "{}", now - start);
    }

    #[test]
    fn who_takes_nothing_is_not_waited_for_again() {
        let mut patience = Patience::default();
        assert!(!ask(&mut patience, 1_000_000, MOST));
        assert!(!ask(&mut patience, 100_000_000, 0));
        patience.took();
        assert!(ask(&mut patience, 100_000_001, 0));
    }

    #[test]
    fn a_slow_receiver_holds_its_senders_a_tenth_of_the_time() {
        let mut patience = Patience::default();
        let (mut held, mut now) = (0, 1_000_000);
        let mut waiting = false;
        for _ in 0..100_000 {
            now += 100;
            held += if waiting { 100 } else { 0 };
            waiting = ask(&mut patience, now, if waiting { 100 } else { 0 });
            patience.took();
        }
        let all = 100_000 * 100;
        assert!((all / 12..=all / 10 + 2 * MOST).contains(&held), "{held} of {all}");
    }

    #[test]
    fn two_senders_spend_it_together() {
        let mut patience = Patience::default();
        assert!(ask(&mut patience, 1_000_000, MOST / 2 - 1));
        assert!(ask(&mut patience, 1_000_000, MOST / 2 - 1));
        assert!(!ask(&mut patience, 1_000_000, 2));
    }
}
