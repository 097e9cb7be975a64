//! Tests that measure: rates and shares, latencies, wake-ups, CPU time. One at a time, of all of
//! them: each takes [`alone`] first.

mod fairness;
mod hostile_neighbours;
mod notifications;
mod workers;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Holds off the other tests of this program. A failed one poisons nothing.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
