//! Limits of the control socket: the cost of a client.

// --- Control socket -----------------------------------------------------------------------

/// Bytes of one message of a client, without the final zero byte. The longest useful message adds a
/// group of 4,096 IPv6 addresses and has 170 KiB.
pub const CONTROL_MESSAGE_BYTES: usize = 256 << 10;

/// Clients at a time: people, a monitoring system, a script for each VM that starts. The switch
/// closes further clients at once, with a count.
pub const CONTROL_CONNECTIONS: usize = 32;

/// Clients reserved for root, so that an administrator can connect.
pub const CONTROL_KEPT_FOR_ROOT: usize = 4;

/// Clients reserved for change rights: for the daemon's user, as whom `systemctl reload` connects,
/// and for the admin group.
pub const CONTROL_KEPT_FOR_ADMINS: usize = 4;

/// Time for a whole message, as for messages of front-ends.
pub const CONTROL_MESSAGE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(2);

/// Bytes of unread replies; the switch closes a client with more. A change of all rules of a filter
/// is twice [`MAX_FILTER_BYTES`](super::filter::MAX_FILTER_BYTES).
pub const CONTROL_UNREAD_BYTES: usize = 1 << 20;

/// Tuning: bytes of unread replies up to which the switch makes the next part of a reply.
pub const CONTROL_STREAM_BYTES: usize = 64 << 10;

/// Tuning: bytes taken from one client at a time: some hundred short messages. Each turn carries
/// out one message.
pub const CONTROL_READ_BYTES: usize = 16 << 10;

/// Tuning: clients refused between two turns. A client for whom there is a place is accepted alone.
pub const CONTROL_ACCEPTS: usize = 8;

/// Tuning: one turn of so many belongs to the first client in line, whatever the client's rank, so
/// that other clients have a part of the thread beside root and administrators.
pub const CONTROL_COMMON_TURN: u64 = 4;

/// Tuning: ports in one part of a reply. Each port has its reasons for drops, 3 KiB at most.
pub const CONTROL_PORTS_A_REPLY: usize = 16;

/// Tuning: addresses in one part of a reply, about 60 bytes each.
pub const CONTROL_ADDRESSES_A_REPLY: usize = 256;

/// Tuning: places of the table of connections that one part of a reply looks at.
pub const CONTROL_SLOTS_A_REPLY: usize = 64 << 10;

/// Tuning: reasons shown why the switch is degraded; each port may have a reason.
pub const CONTROL_SHOWN_REASONS: usize = 16;

/// Tuning: pause between looks at a removal, which takes a few milliseconds unless the port's
/// front-end delays the removal.
pub const CONTROL_STEP: std::time::Duration = std::time::Duration::from_millis(2);

/// Tuning: time that the end of the daemon waits for the thread `control`, which may be opening an
/// interface.
pub const CONTROL_STOP_TIMEOUT: std::time::Duration = std::time::Duration::from_millis(100);

/// Tuning: pause between looks at an awaited port.
pub const CONTROL_WAIT_STEP: std::time::Duration = std::time::Duration::from_millis(20);

/// Longest wait for a port in one call.
pub const CONTROL_WAIT_MAX: std::time::Duration = std::time::Duration::from_secs(86_400);

/// Tuning: time for a session's answer: microseconds, unless the session maps memory or the guest's
/// memory delays the session.
pub const CONTROL_INSPECT_TIMEOUT: std::time::Duration = std::time::Duration::from_millis(250);

/// Time for the file system of a port's socket: microseconds, unless the server of the file system
/// does not answer.
pub const CONTROL_LOOK_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(1);

/// Tuning: threads that look at the files of sockets, one for each path. Only threads that never
/// end accumulate.
pub const CONTROL_LOOKS: usize = 16;

/// Tuning: differences in the answer of a reload; `DiffConfig` lists all.
pub const CONTROL_SHOWN_CHANGES: usize = 256;

/// Tuning: bytes of the differences in the answer of a reload, not counting the difference that
/// exceeds the limit: a change of all addresses of a port is 3 KiB, and a reply of one part does
/// not wait for its reader.
pub const CONTROL_CHANGES_BYTES: usize = 64 << 10;

/// Longest wait of a reload for its confirmation.
pub const CONTROL_CONFIRM_SECONDS: u64 = 86_400;
