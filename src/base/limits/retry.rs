//! Limits of trying again to open sockets, interfaces and services that were missing at the start.

use std::time::Duration;

// --- Retries ------------------------------------------------------------------------------

/// First pause between tries; the pause doubles up to [`RETRY_MAX`]. Most missing things appear
/// within seconds, made by another unit.
pub const RETRY_MIN: Duration = Duration::from_secs(1);

/// Longest pause between tries: the switch serves a repaired port while the administrator is still
/// looking. A try of a socket is a few system calls.
pub const RETRY_MAX: Duration = Duration::from_secs(30);

/// Tuning: pause between looks for due tries, and for news for the service manager, while something
/// is missing.
pub const RETRY_TICK: Duration = Duration::from_secs(1);

/// Tuning: pause between looks while nothing is missing: only unkept changes, or bad files, can be
/// new then.
pub const RETRY_IDLE_TICK: Duration = Duration::from_secs(5);

/// Tuning: pause between looks at lasting removals, so that names and sockets of removed ports are
/// free soon.
pub const REMOVE_TICK: Duration = Duration::from_millis(100);

/// Tuning: time that the end of the daemon waits for a try, which a file system may delay.
pub const RETRY_STOP_TIMEOUT: Duration = Duration::from_millis(100);

/// Tuning: time that the start waits for the first look at ports by plug before the switch reports
/// ready. The file system of the directory may delay this look.
pub const PLUG_FIRST_LOOK: Duration = Duration::from_secs(1);
