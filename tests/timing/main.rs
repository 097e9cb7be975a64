//! Tests that measure: rates and shares, latencies, wake-ups, CPU time; and those that disturb what
//! others measure, as a write does that wakes 100,000 waiters with interrupts off. One at a time,
//! of all of them: each takes [`alone`] first.

mod fairness;
mod hostile_descriptors;
mod hostile_neighbours;
mod notifications;
mod rates;
mod workers;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Holds off the other tests of this program. A failed one poisons nothing.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
