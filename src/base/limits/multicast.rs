//! Limits of multicast snooping.

/// Time that a silent querier counts: "other querier present interval", RFC 3376 section 8.5.
pub const QUERIER_SECONDS: u32 = 255;

/// Time that a silent member counts: "group membership interval", RFC 3376 section 8.4.
pub const MEMBERSHIP_SECONDS: u32 = 260;

/// Longest interval between queries: a querier that announces a longer interval does not count.
pub const MAX_QUERY_INTERVAL_SECONDS: u32 = 125;

/// Longest time for answers to a query.
pub const MAX_QUERY_RESPONSE_SECONDS: u32 = 10;

/// Further time for late answers to a query.
pub const QUERY_GRACE_SECONDS: u32 = 2;

/// Groups of all bridges and VLANs.
pub const MAX_GROUPS: usize = 2_048;

/// Groups of one bridge or VLAN: a quarter of all, so that no tenant's network fills the table.
pub const MAX_GROUPS_PER_SEGMENT: usize = MAX_GROUPS / 4;

/// Groups reserved for each bridge or VLAN in a full table.
pub const RESERVED_GROUPS_PER_SEGMENT: usize = 16;

/// Groups of one port: Linux joins 20 for each socket.
pub const MAX_GROUPS_PER_PORT: u16 = 256;

/// Bridges and VLANs with a querier.
pub const MAX_SNOOPED_SEGMENTS: usize = 128;

/// Groups that reports of one port name in a second: eight times the groups of one port, as all
/// hosts behind an uplink may answer a query in one second.
pub const MEMBERSHIP_RECORDS_PER_SECOND: u32 = 2_048;

/// Tuning: attempts of a worker at the writers' lock, before the worker leaves a record out.
pub const SNOOPING_LOCK_ATTEMPTS: u32 = 128;

/// Tuning: longest pause between two sweeps that remove ended groups.
pub const SNOOPING_SWEEP_PAUSE: std::time::Duration = std::time::Duration::from_secs(30);
