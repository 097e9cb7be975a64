//! Limits of the search for the process that has a TAP.

use std::time::Duration;

/// Tuning: processes among which the holder of a TAP is looked for, as a hostile user may have as
/// many as the host permits.
pub const HOLDER_PROCESSES: usize = 16_384;

/// Tuning: descriptors that are looked at of each process.
pub const HOLDER_DESCRIPTORS: usize = 1_024;

/// Tuning: time for the search.
pub const HOLDER_TIMEOUT: Duration = Duration::from_millis(100);
