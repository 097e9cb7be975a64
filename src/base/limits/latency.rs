//! Limits of the request for CPUs that wake up soon.

use std::time::Duration;

// --- CPUs that wake up soon ---------------------------------------------------------------

/// Pause between looks for frames, so that the request ends 30 to 60 ms after the last frame. Each
/// beginning and end of the request interrupts the idle CPUs of the host: a guest can cause 33
/// interruptions a second.
pub const LATENCY_LOOK: Duration = Duration::from_millis(30);

/// Highest value of `latency`, as no idle state takes longer to leave.
pub const MAX_LATENCY_MICROS: u16 = 1_000;

/// Tuning: time that the end of the daemon waits for the end of the request.
pub const LATENCY_STOP_TIMEOUT: Duration = Duration::from_millis(100);
