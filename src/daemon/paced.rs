//! A count that grows with frames of a guest, that an event reports now and then.

/// What of a count was reported, and when.
#[derive(Debug)]
pub struct Paced {
    /// How many were reported, or came before; unknown while counters of before are being carried
    /// over.
    told: Option<u64>,
    /// The second of the last time.
    second: Option<u32>,
}

impl Paced {
    /// Those so far need not be reported.
    pub fn new(told: Option<u64>) -> Paced {
        Paced { told, second: None }
    }

    /// True if all of `count` were reported.
    pub fn is_over(&self, count: u64) -> bool {
        self.told.is_none_or(|told| told == count)
    }

    /// How many of `count` are to be told in second `now`, if any: once in `pause` seconds at most.
    /// They count as reported then.
    pub fn due(&mut self, count: u64, now: u32, pause: u32) -> Option<u64> {
        let more = count.wrapping_sub(*self.told.get_or_insert(count));
        let lately = self.second.is_some_and(|told| now.abs_diff(told) < pause);
        if more == 0 || lately {
            return None;
        }
        (self.told, self.second) = (Some(count), Some(now));
        Some(more)
    }
}
