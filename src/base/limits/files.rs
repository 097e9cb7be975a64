//! Limits of configuration files, and of files of the state directory.

/// Bytes of a configuration file: [`MAX_PORTS`](super::MAX_PORTS) entries of a kilobyte each.
pub const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// Bytes of all configuration files together.
pub const MAX_CONFIG_TOTAL_BYTES: u64 = 4 << 20;

/// Files in `conf.d`: a provisioning tool writes one file for each port, and some more.
pub const MAX_CONFIG_FILES: usize = 2048;

/// Bytes of a file in the state directory. The longest file holds the configuration's files twice,
/// in force and unconfirmed, with two bytes for each quote and line's end.
pub const MAX_STATE_BYTES: u64 = 32 << 20;

/// Errors of a file that are shown; further errors are only counted.
pub const MAX_CONFIG_ERRORS: usize = 100;

/// Tuning: characters of a rejected value in an error message.
pub const MAX_QUOTED_CHARS: usize = 80;
