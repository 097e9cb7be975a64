//! Limits of findings, and of the samples that findings are made from.

// --- Findings -----------------------------------------------------------------------------

/// Findings reported at a time, the worst first: series of one family of metrics, and less than 128
/// KiB of an answer. Guests can cause some findings for each port.
pub const FINDINGS_TOLD: usize = 256;

/// Tuning: seconds between samples of a port's counters.
pub const SAMPLES_SPACING: u32 = 5;

/// Tuning: samples kept of a port, for five minutes: 4.5 KiB.
pub const SAMPLES_KEPT: usize = 61;

/// Tuning: senders remembered of a port without room.
pub const SENDERS_KEPT: usize = 16;

/// Tuning: senders reported for a port without room.
pub const SENDERS_TOLD: usize = 5;
