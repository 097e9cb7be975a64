//! Limits of multicast snooping.

/// Time that a silent querier counts: "other querier present
/// interval", RFC 3376 section 8.5.
pub const QUERIER_SECONDS: u32 = 255;

/// Time that a silent member counts: "group membership
/// interval", RFC 3376 section 8.4.
pub const MEMBERSHIP_SECONDS: u32 = 260;

/// Longest interval between queries: a querier that says
/// that it asks more rarely does not count.
pub const MAX_QUERY_INTERVAL_SECONDS: u32 = 125;

/// Longest time for answers.
pub const MAX_QUERY_RESPONSE_SECONDS: u32 = 10;

/// Time for late answers.
pub const QUERY_GRACE_SECONDS: u32 = 2;

/// Groups in all.
pub const MAX_GROUPS: usize = 2_048;

/// Groups of one bridge or VLAN: a quarter, so that no tenant's network fills the table.
pub const MAX_GROUPS_PER_SEGMENT: usize = MAX_GROUPS / 4;

/// Groups kept for each in a full table.
pub const RESERVED_GROUPS_PER_SEGMENT: usize = 16;

/// Groups of one port: Linux joins 20 for each socket.
pub const MAX_GROUPS_PER_PORT: u16 = 256;

/// Bridges and VLANs with a querier.
pub const MAX_SNOOPED_SEGMENTS: usize = 128;

/// Groups that reports of one port name in a second: eight times what one port
/// may be a member of, as all hosts behind an uplink may answer a query in one second.
pub const MEMBERSHIP_RECORDS_PER_SECOND: u32 = 2_048;

/// Tuning: attempts of a worker at the lock of those who write, before a record is not noted.
pub const SNOOPING_LOCK_ATTEMPTS: u32 = 128;

/// Tuning: removes groups that ended so often, at least.
pub const SNOOPING_SWEEP_PAUSE: std::time::Duration = std::time::Duration::from_secs(30);
