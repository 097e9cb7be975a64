//! Limits of the search for the process that has a TAP.

use std::time::Duration;

/// Tuning: processes that the search for the holder of a TAP examines; a hostile user may have as
/// many processes as the host permits.
pub const HOLDER_PROCESSES: usize = 16_384;

/// Tuning: descriptors that the search examines in each process.
pub const HOLDER_DESCRIPTORS: usize = 1_024;

/// Tuning: time for the search for the holder of a TAP.
pub const HOLDER_TIMEOUT: Duration = Duration::from_millis(100);
