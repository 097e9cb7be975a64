//! Limits of what is tried again that could not be had at the start.

use std::time::Duration;

// --- What is tried again ------------------------------------------------------------------

/// First pause between tries; the pause doubles up to [`RETRY_MAX`]. Most of it comes within
/// seconds, by another unit.
pub const RETRY_MIN: Duration = Duration::from_secs(1);

/// The longest one: what an administrator mends is served while he is still looking. A try of a
/// socket is a few system calls.
pub const RETRY_MAX: Duration = Duration::from_secs(30);

/// Tuning: pause between looks for what is due, and for what to report to the service manager,
/// while something is missing.
pub const RETRY_TICK: Duration = Duration::from_secs(1);

/// Tuning: the same while nothing is missing: only changes that are not kept, or bad files, can be
/// new then.
pub const RETRY_IDLE_TICK: Duration = Duration::from_secs(5);

/// Tuning: pause between looks at lasting removals, so that what they had is free soon.
pub const REMOVE_TICK: Duration = Duration::from_millis(100);

/// Tuning: time that the end waits for a try, which a file system may hold up.
pub const RETRY_STOP_TIMEOUT: Duration = Duration::from_millis(100);

/// Tuning: time that the start waits for the first look at ports by plug, which its file system may
/// hold up, before it reports ready.
pub const PLUG_FIRST_LOOK: Duration = Duration::from_secs(1);
