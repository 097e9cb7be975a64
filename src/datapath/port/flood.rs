//! The slot for a source's flood that takes several turns. A source has at most one such flood; the
//! source's next flood waits for its end. The source pays for the worker's time.
//!
//! A worker serves the receivers of a flood from private memory, some in each turn
//! (`pipeline::flood`). All transmit rings of a guest are one source, because their floods take the
//! switch's memory; each queue of a device is a source.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// State of a source's flood, and the time that the source's floods took.
#[derive(Debug, Default)]
pub struct FloodSlot {
    /// Cycle at which the slot was taken, or at which the present part began; 0 while the slot is
    /// free, [`FloodSlot::RESTS`] between parts.
    taken_at: AtomicU64,
    /// Cycles that the source's floods took and no burst has paid for.
    owed: AtomicU64,
}

/// Permit for a flood of several turns. Dropping the permit frees the slot.
#[derive(Debug)]
pub struct FloodPermit(Arc<FloodSlot>);

impl FloodSlot {
    /// Value between the parts of a flood: no thread serves the flood.
    pub(crate) const RESTS: u64 = 1;

    /// Takes the slot at cycle `now`.
    ///
    /// # Errors
    /// The value of [`FloodSlot::taken_at`], if another flood has the slot.
    pub(crate) fn take(self: &Arc<FloodSlot>, now: u64) -> Result<FloodPermit, u64> {
        let taken = self.taken_at.compare_exchange(
            0,
            now.max(FloodSlot::RESTS + 1),
            Ordering::Acquire,
            Ordering::Relaxed,
        );
        taken.map(|_| FloodPermit(Arc::clone(self)))
    }

    /// Returns the cycle at which a flood took the slot or began its present part, or
    /// [`FloodSlot::RESTS`] between parts; none if the slot is free.
    pub(crate) fn taken_at(&self) -> Option<u64> {
        Some(self.taken_at.load(Ordering::Acquire)).filter(|&cycle| cycle != 0)
    }

    /// Charges `cycles` to the next burst of the source.
    pub(crate) fn owe(&self, cycles: u64) {
        self.owed.fetch_add(cycles, Ordering::Relaxed);
    }

    /// True if the next burst pays for floods.
    #[inline(always)]
    pub(crate) fn owes(&self) -> bool {
        self.owed.load(Ordering::Relaxed) != 0
    }

    /// Takes the cycles that the next burst pays for.
    pub(crate) fn take_owed(&self) -> u64 {
        self.owed.swap(0, Ordering::Relaxed)
    }
}

impl FloodPermit {
    /// Records that a part of the flood begins at cycle `now`.
    pub(crate) fn begin_part(&self, now: u64) {
        self.0.taken_at.store(now.max(FloodSlot::RESTS + 1), Ordering::Release);
    }

    /// Records that the flood waits for its next part.
    pub(crate) fn rest(&self) {
        self.0.taken_at.store(FloodSlot::RESTS, Ordering::Release);
    }
}

impl Drop for FloodPermit {
    fn drop(&mut self) {
        self.0.taken_at.store(0, Ordering::Release);
    }
}
