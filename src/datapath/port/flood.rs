//! A source has at most one flood that takes several turns. Its next flood waits until that one is
//! over. The source pays for the worker's time.
//!
//! A worker serves the receivers of a flood from private memory, some in each turn
//! (`pipeline::flood`). All transmit rings of a guest are one source, as the frames take the
//! switch's memory; each queue of a device is one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Whether a flood of a source goes on, and the time that its floods took.
#[derive(Debug, Default)]
pub struct FloodSlot {
    /// The cycle at which the slot was taken, or the present part begun; 0 while the slot is free,
    /// [`FloodSlot::RESTS`] between parts.
    taken_at: AtomicU64,
    /// Cycles of a worker that no burst of the source was charged for.
    owed: AtomicU64,
}

/// The right to flood in several turns. Dropping the permit frees the slot.
#[derive(Debug)]
pub struct FloodPermit(Arc<FloodSlot>);

impl FloodSlot {
    /// No thread is at a part of the flood.
    pub const RESTS: u64 = 1;

    /// Takes the slot at cycle `now`.
    ///
    /// # Errors
    /// The cycle at which another flood took the slot.
    pub fn take(self: &Arc<FloodSlot>, now: u64) -> Result<FloodPermit, u64> {
        let taken = self.taken_at.compare_exchange(
            0,
            now.max(FloodSlot::RESTS + 1),
            Ordering::Acquire,
            Ordering::Relaxed,
        );
        taken.map(|_| FloodPermit(Arc::clone(self)))
    }

    /// The cycle at which a flood took the slot, or its present part began, or
    /// [`FloodSlot::RESTS`], if a flood goes on.
    pub fn taken_at(&self) -> Option<u64> {
        Some(self.taken_at.load(Ordering::Acquire)).filter(|&cycle| cycle != 0)
    }

    /// Has the next burst of the source pay for so many cycles.
    pub fn owe(&self, cycles: u64) {
        self.owed.fetch_add(cycles, Ordering::Relaxed);
    }

    /// True if the next burst pays for floods.
    #[inline(always)]
    pub fn owes(&self) -> bool {
        self.owed.load(Ordering::Relaxed) != 0
    }

    /// Takes the cycles that the next burst pays for.
    pub fn take_owed(&self) -> u64 {
        self.owed.swap(0, Ordering::Relaxed)
    }
}

impl FloodPermit {
    /// A part of the flood begins at cycle `now`.
    pub fn begin_part(&self, now: u64) {
        self.0.taken_at.store(now.max(FloodSlot::RESTS + 1), Ordering::Release);
    }

    /// The flood waits for its next part.
    pub fn rest(&self) {
        self.0.taken_at.store(FloodSlot::RESTS, Ordering::Release);
    }
}

impl Drop for FloodPermit {
    fn drop(&mut self) {
        self.0.taken_at.store(0, Ordering::Release);
    }
}
