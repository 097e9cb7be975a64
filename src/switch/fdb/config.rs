//! Size limits of a table: of the whole, of a port and of a segment.

use base::limits::{
    FDB_MAX_ENTRIES, FDB_MAX_PER_PORT, FDB_MAX_PER_SEGMENT, FDB_RESERVED_PER_PORT,
    FDB_RESERVED_PER_SEGMENT,
};

/// Configuration of a table. Has no `Debug`, since the key is secret.
#[derive(Clone, Copy)]
pub struct FdbConfig {
    /// Entries that the table learns; a full table still learns reserved entries.
    pub max_entries: u32,
    /// Entries that one port may learn, unless [`super::Fdb::set_port_cap`] changes the number.
    pub max_per_port: u32,
    /// Entries that a port may learn although the table is full.
    pub reserved_per_port: u32,
    /// Entries that a segment may hold; the default segment has no such limit.
    pub max_per_segment: u32,
    /// Entries that a segment may hold although the table is full.
    pub reserved_per_segment: u32,
    /// Seconds after which an idle entry is removed; 0: never.
    pub age_seconds: u32,
    /// An address that flaps between ports is held at one of them for a while.
    pub damping: bool,
    /// Number of ports; port numbers are below it.
    pub ports: usize,
    /// Secret key of the hash: random per table in service, fixed in tests.
    pub key: [u64; 2],
}

impl FdbConfig {
    /// Makes a configuration with the switch's limits.
    pub fn limited(ports: usize, age_seconds: u32, key: [u64; 2]) -> FdbConfig {
        FdbConfig {
            max_entries: FDB_MAX_ENTRIES,
            max_per_port: FDB_MAX_PER_PORT,
            reserved_per_port: FDB_RESERVED_PER_PORT,
            max_per_segment: FDB_MAX_PER_SEGMENT,
            reserved_per_segment: FDB_RESERVED_PER_SEGMENT,
            age_seconds,
            damping: true,
            ports,
            key,
        }
    }
}
