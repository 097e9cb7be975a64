//! Limits of what is told of the switch: events.

// --- Events -------------------------------------------------------------------------------

/// Events that are kept for those who ask later. They take less than 2 MiB, and most of a day of a
/// switch of which little is to be told.
pub const EVENTS_KEPT: usize = 2_048;

/// Characters of a reason in an event: what the log says in a line.
pub const EVENT_TEXT_CHARS: usize = 240;

/// Events in one part of a reply, less than a kilobyte each.
pub const EVENTS_A_REPLY: usize = 64;

/// Events of a port that are told at once: a front-end that comes and goes some times, or a guest
/// that is migrated. More are counted in its next event.
pub const PORT_EVENT_BURST: u32 = 16;

/// A port's event that is told in the long run; with less, one hostile guest would push those of
/// others out of what is kept within the hour.
pub const PORT_EVENT_EVERY: std::time::Duration = std::time::Duration::from_secs(2);

/// Events that may come while a client's are being read, which takes microseconds unless the reader
/// loses its CPU. More are lost, with a count.
pub const EVENTS_QUEUED: usize = 64;

/// Seconds after which a port's addresses that moved there are told of again.
pub const MOVES_TOLD_SECONDS: u32 = 10;

/// Seconds without a drop after which a reason is over, and its next drop a new beginning. A guest
/// that is short of buffers now and then is told of as one.
pub const DROPS_QUIET_SECONDS: u32 = 5;
