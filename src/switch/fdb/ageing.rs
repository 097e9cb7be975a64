//! Removal of idle entries.

use super::super::sync::Ordering;
use super::{EXPIRING, Fdb, LAST_TICK, Tick};

impl Fdb {
    /// Removes entries that were idle for more than the configured age. Returns their number.
    ///
    /// For a thread that is no worker: visits the whole table, and locks one short run of buckets
    /// at a time.
    pub fn age(&self, now: impl Into<Tick>) -> usize {
        if self.age == 0 {
            return 0;
        }
        let now = now.into().min(LAST_TICK).to_bits();
        self.sweep(|found| !found.word.is_static() && self.claim_if_idle(found.slot, now))
    }

    /// Returns the second in which [`Fdb::age`] may first find an entry to remove. Visits the whole
    /// table too.
    pub fn next_expiry(&self, now: u32) -> u32 {
        let mut oldest = Tick::from(now);
        self.sweep(|found| {
            if !found.word.is_static() {
                oldest = oldest.min(self.seen(found.slot));
            }
            false
        });
        let ends = Tick::from_bits(oldest.to_bits().saturating_add(self.age));
        ends.second().saturating_add(1).max(now + 1)
    }

    /// Claims an entry for removal; false if the entry is not idle long enough or is refreshed
    /// meanwhile.
    pub(super) fn claim_if_idle(&self, slot: usize, now: u32) -> bool {
        let seen = self.slots.stamp(slot).load(Ordering::Relaxed);
        let Some(idle) = now.checked_sub(seen) else {
            // A stamp a little ahead: this sweep read the clock before the frame came in. A stamp
            // far ahead: time has stepped back. Then the age is counted from now, so that the step
            // neither empties the table nor keeps an entry for ever.
            if seen - now > self.age {
                self.restamp(slot, seen, now);
            }
            return false;
        };
        // More than, not equal: stamps are whole ticks, and an entry must get its full time.
        idle > self.age && self.restamp(slot, seen, EXPIRING)
    }
}
