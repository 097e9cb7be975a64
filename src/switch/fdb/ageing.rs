//! Removal of entries that nobody uses any more.

use super::super::sync::Ordering;
use super::{EXPIRING, Fdb, LAST_TICK, Tick};

impl Fdb {
    /// Removes entries that were idle for more than the configured age. Returns how many.
    ///
    /// For a thread that is no worker: it visits the whole table, one short run of buckets locked
    /// at a time.
    pub fn age(&self, now: impl Into<Tick>) -> usize {
        if self.age == 0 {
            return 0;
        }
        let now = now.into().min(LAST_TICK).to_bits();
        self.sweep(|found| !found.word.is_static() && self.claim_if_idle(found.slot, now))
    }

    /// The second in which [`Fdb::age`] may first find an entry to remove. A visit as `age`'s.
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

    /// Claims an entry for removal unless it is refreshed in time.
    pub(super) fn claim_if_idle(&self, slot: usize, now: u32) -> bool {
        let seen = self.slots.stamp(slot).load(Ordering::Relaxed);
        let Some(idle) = now.checked_sub(seen) else {
            // A little ahead, and this sweep merely read the clock before that frame came in.
            // Far ahead, and time has stepped back: count the age from here, so that a step
            // neither empties the table nor keeps an entry for ever.
            if seen - now > self.age {
                self.restamp(slot, seen, now);
            }
            return false;
        };
        // More than, not at least: stamps are whole ticks, and an entry must get its full time.
        idle > self.age && self.restamp(slot, seen, EXPIRING)
    }
}
