//! A token bucket: a burst of tokens at once, and a bounded number of tokens a second.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use base::budget::Budget;
use sys::threads::lock;

/// Hands out tokens up to a bound; a token returns after a fixed time.
#[derive(Debug)]
pub struct Bucket {
    /// Nanoseconds in which one token returns.
    every: u64,
    /// The tokens left, and the time up to which returned tokens are credited.
    state: Mutex<(Budget, Instant)>,
}

impl Bucket {
    /// Makes a full bucket of `size` tokens; one token returns after each `every`.
    pub fn new(size: u32, every: Duration) -> Bucket {
        let every = nanos(every).max(1);
        let mut budget = Budget::empty(every.saturating_mul(size.into()));
        budget.earn(budget.cap);
        Bucket { every, state: Mutex::new((budget, Instant::now())) }
    }

    /// Takes a token; false if none is left.
    pub fn take(&self) -> bool {
        self.take_at(Instant::now())
    }

    fn take_at(&self, now: Instant) -> bool {
        let mut state = lock(&self.state);
        let (budget, since) = &mut *state;
        budget.earn(nanos(now.saturating_duration_since(*since)));
        *since = now.max(*since);
        budget.take(self.every)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_then_one_at_a_time() {
        let bucket = Bucket::new(3, Duration::from_secs(1));
        let start = Instant::now();
        let taken = |at: u64| {
            let now = start + Duration::from_millis(at);
            (0..10).filter(|_| bucket.take_at(now)).count()
        };
        assert_eq!(taken(0), 3);
        assert_eq!(taken(900), 0);
        assert_eq!(taken(1_100), 1);
        // Frequent attempts do not delay the next token.
        assert_eq!((1_101..=2_100).map(&taken).sum::<usize>(), 1);
        assert_eq!(taken(1_000_000), 3);
    }

    #[test]
    fn time_that_runs_backwards_gives_nothing() {
        let start = Instant::now();
        let bucket = Bucket::new(1, Duration::from_secs(1));
        assert!(bucket.take_at(start + Duration::from_secs(100)));
        assert!(!bucket.take_at(start));
        assert!(bucket.take_at(start + Duration::from_secs(101)));
    }
}
