//! Limits of what is told of the switch: events.

// --- Events -------------------------------------------------------------------------------

/// Events kept for later readers: less than 2 MiB, and most of a day of a quiet switch.
pub const EVENTS_KEPT: usize = 2_048;

/// Tuning: characters of a reason in an event: what the log says in a line.
pub const EVENT_TEXT_CHARS: usize = 240;

/// Tuning: events in one part of a reply, less than a kilobyte each.
pub const EVENTS_A_REPLY: usize = 64;

/// Events of a port at once: a front-end that comes and goes some times, or a migration. More are
/// counted in its next event.
pub const PORT_EVENT_BURST: u32 = 16;

/// Pause between a port's events; with less, one hostile guest would displace
/// those of others within the hour.
pub const PORT_EVENT_EVERY: std::time::Duration = std::time::Duration::from_secs(2);

/// Tuning: events that may come during a read, which takes microseconds unless the reader loses its
/// CPU. More are lost, with a count.
pub const EVENTS_QUEUED: usize = 64;

/// Pause between reports of moved addresses.
pub const MOVES_TOLD_SECONDS: u32 = 10;

/// Pause between reports of a guard: with a port's other events these do not
/// use up what it may report.
pub const VIOLATIONS_TOLD_SECONDS: u32 = 4;

/// Time without a drop that ends a reason, and its next drop a new beginning.
pub const DROPS_QUIET_SECONDS: u32 = 5;
