//! Limits of events.

// --- Events -------------------------------------------------------------------------------

/// Events kept for later readers: less than 2 MiB, and most of a day of a quiet switch.
pub const EVENTS_KEPT: usize = 2_048;

/// Tuning: characters of a reason in an event: one line of the log.
pub const EVENT_TEXT_CHARS: usize = 240;

/// Tuning: events in one part of a reply, less than a kilobyte each.
pub const EVENTS_A_REPLY: usize = 64;

/// Events of a port at once: a front-end that connects and disconnects several times, or a
/// migration. Further events are counted in the port's next event.
pub const PORT_EVENT_BURST: u32 = 16;

/// Pause between a port's events; with a shorter pause one hostile guest would displace the events
/// of other ports within an hour.
pub const PORT_EVENT_EVERY: std::time::Duration = std::time::Duration::from_secs(2);

/// Tuning: events that may be added during a read, which takes microseconds unless the reader loses
/// its CPU. Further events are lost, with a count.
pub const EVENTS_QUEUED: usize = 64;

/// Pause between reports of moved addresses.
pub const MOVES_TOLD_SECONDS: u32 = 10;

/// Pause between reports of a guard: together with other events of the port these reports do not
/// use up the port's events.
pub const VIOLATIONS_TOLD_SECONDS: u32 = 4;

/// Time without a drop that ends a reason; the next drop for the reason is a new beginning.
pub const DROPS_QUIET_SECONDS: u32 = 5;
