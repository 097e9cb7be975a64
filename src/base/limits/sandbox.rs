//! Limits of the start of the sandbox.

use std::time::Duration;

/// Tuning: time that the start waits for threads that the kernel delays. These threads confine
/// themselves before they run any other code.
pub const CONFINE_PATIENCE: Duration = Duration::from_secs(2);

/// Time for each other thread to confine itself, on however busy a machine. After this time the
/// start fails, as a thread is outside of the sandbox.
pub const CONFINE_LIMIT: Duration = Duration::from_secs(20);

/// Tuning: pause after which a thread that could not confine itself, because memory is short, tries
/// again.
pub const CONFINE_RETRY: Duration = Duration::from_millis(10);

/// Threads that the kernel may delay at the start: more than a switch without guests has.
pub const MAX_LATE_THREADS: usize = 4096;
