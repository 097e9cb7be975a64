//! Limits of the start of the sandbox.

use std::time::Duration;

/// Tuning: time in which all threads are to confine themselves at the start. One that the kernel
/// holds up confines itself before it gets any further.
pub const CONFINE_PATIENCE: Duration = Duration::from_secs(2);

/// Tuning: the same for each thread, so that one leaves time for the others.
pub const CONFINE_PATIENCE_EACH: Duration = Duration::from_millis(200);
