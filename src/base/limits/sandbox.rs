//! Limits of the start of the sandbox.

use std::time::Duration;

/// Tuning: time that the start waits for threads that the kernel holds up. They confine themselves
/// before they get any further.
pub const CONFINE_PATIENCE: Duration = Duration::from_secs(2);

/// Time for each other thread to confine itself, on however busy a machine: then the start fails,
/// as a thread is outside of the sandbox.
pub const CONFINE_LIMIT: Duration = Duration::from_secs(20);

/// Tuning: pause of a thread that could not confine itself, as memory is short, until it tries
/// again.
pub const CONFINE_RETRY: Duration = Duration::from_millis(10);

/// Threads that the kernel may hold up at the start: more than a switch has without guests.
pub const MAX_LATE_THREADS: usize = 4096;
