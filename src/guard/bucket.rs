//! A token bucket: so many at once, and so many a second in the long run.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Hands out tokens; each comes back after a time, up to a number.
#[derive(Debug)]
pub struct Bucket {
    size: u32,
    every: Duration,
    /// Tokens there, and when the last one came back.
    state: Mutex<(u32, Instant)>,
}

impl Bucket {
    /// `size` tokens at first and at most, one more after each `every`.
    pub fn new(size: u32, every: Duration) -> Bucket {
        Bucket { size, every, state: Mutex::new((size, Instant::now())) }
    }

    /// Takes a token if there is one.
    pub fn take(&self) -> bool {
        self.take_at(Instant::now())
    }

    fn take_at(&self, now: Instant) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (tokens, since) = *state;
        let passed = now.saturating_duration_since(since).as_nanos();
        let back = passed / self.every.as_nanos().max(1);
        let there = u128::from(tokens) + back;
        *state = if there >= u128::from(self.size) {
            (self.size, now)
        } else {
            // `back` is below `size` here; what is left of the time counts on.
            (there as u32, since + self.every * back as u32)
        };
        let left = state.0.checked_sub(1);
        state.0 = left.unwrap_or(0);
        left.is_some()
    }
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
        // Looking often does not put the next one off.
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
