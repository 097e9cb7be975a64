//! Limits of the control socket: what a client can cost.

// --- Control socket -----------------------------------------------------------------------

/// Bytes of one message of a client, its end not counted. The longest useful one adds a port with
/// 64 addresses and is 2 KiB.
pub const CONTROL_MESSAGE_BYTES: usize = 64 << 10;

/// Clients at a time: people, a monitoring system, a script for each VM that starts. More are
/// closed at once, with a count.
pub const CONTROL_CONNECTIONS: usize = 32;

/// Those kept for root, so that an administrator gets in.
pub const CONTROL_KEPT_FOR_ROOT: usize = 4;

/// Those kept for change rights: the daemon's user, as whom `systemctl reload`
/// connects, and the admin group.
pub const CONTROL_KEPT_FOR_ADMINS: usize = 4;

/// Time for a whole message, as with front-ends.
pub const CONTROL_MESSAGE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(2);

/// Bytes of unread replies; one with more is closed.
pub const CONTROL_UNREAD_BYTES: usize = 256 << 10;

/// Tuning: the same for the next part of a reply.
pub const CONTROL_STREAM_BYTES: usize = 64 << 10;

/// Tuning: bytes taken from one client at a time: some hundred short messages, of which each turn
/// carries out one.
pub const CONTROL_READ_BYTES: usize = 16 << 10;

/// Tuning: clients refused between two turns. One that has a place is accepted alone.
pub const CONTROL_ACCEPTS: usize = 8;

/// Tuning: one turn of so many is the first client's, whatever its rank, so that others have a part
/// of the thread beside root and administrators.
pub const CONTROL_COMMON_TURN: u64 = 4;

/// Tuning: ports in one part of a reply: each has its reasons for drops, 3 KiB at most.
pub const CONTROL_PORTS_A_REPLY: usize = 16;

/// Tuning: addresses in one part of a reply, about 60 bytes each.
pub const CONTROL_ADDRESSES_A_REPLY: usize = 256;

/// Tuning: reasons shown why the switch is degraded; there may be one for each port.
pub const CONTROL_SHOWN_REASONS: usize = 16;

/// Tuning: pause between looks at a removal, which takes a few milliseconds unless its front-end
/// holds it up.
pub const CONTROL_STEP: std::time::Duration = std::time::Duration::from_millis(2);

/// Tuning: time that the end waits for the thread, which may be opening an interface.
pub const CONTROL_STOP_TIMEOUT: std::time::Duration = std::time::Duration::from_millis(100);

/// Tuning: pause between looks at an awaited port.
pub const CONTROL_WAIT_STEP: std::time::Duration = std::time::Duration::from_millis(20);

/// Longest wait for a port in one call.
pub const CONTROL_WAIT_MAX: std::time::Duration = std::time::Duration::from_secs(86_400);

/// Tuning: time for a session's answer: microseconds, unless it maps memory or its guest's memory
/// makes it wait.
pub const CONTROL_INSPECT_TIMEOUT: std::time::Duration = std::time::Duration::from_millis(250);

/// Time for the file system of a port's socket: microseconds, unless it has a server that does not
/// answer.
pub const CONTROL_LOOK_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(1);

/// Tuning: threads that look at such files, one for each path. Only those that never end add up.
pub const CONTROL_LOOKS: usize = 16;

/// Tuning: differences in the answer of a reload; `DiffConfig` lists all.
pub const CONTROL_SHOWN_CHANGES: usize = 256;

/// Tuning: bytes of them, but for the one that crosses the line: a port's change of all addresses
/// is 3 KiB, and a reply of one part does not wait for its reader.
pub const CONTROL_CHANGES_BYTES: usize = 64 << 10;

/// Longest wait of a reload for its confirmation.
pub const CONTROL_CONFIRM_SECONDS: u64 = 86_400;
