//! Waiting for threads to end.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Joins threads as they end; one that hangs (a front-end can make its own session wait in the
/// kernel) is left to the end of the process.
pub fn join_until(threads: &mut Vec<JoinHandle<()>>, end: Instant) {
    while !threads.is_empty() && Instant::now() < end {
        let (done, running): (Vec<_>, Vec<_>) = threads.drain(..).partition(|t| t.is_finished());
        for thread in done {
            // Panics were contained and logged inside.
            let _ = thread.join();
        }
        *threads = running;
        if !threads.is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
