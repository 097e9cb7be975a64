//! How large a table may become, as a whole, for a port and for a segment.

use base::limits::{
    FDB_MAX_ENTRIES, FDB_MAX_PER_PORT, FDB_MAX_PER_SEGMENT, FDB_RESERVED_PER_PORT,
    FDB_RESERVED_PER_SEGMENT,
};

/// Shape of a table. Not printable: it holds the key.
#[derive(Clone, Copy)]
pub struct FdbConfig {
    /// Entries the table learns; beyond it only `reserved_per_port` applies.
    pub max_entries: u32,
    /// Entries one port may learn, unless [`super::Fdb::set_port_cap`] says otherwise.
    pub max_per_port: u32,
    /// Entries a port may learn although the table is full.
    pub reserved_per_port: u32,
    /// Entries a segment may hold; the default one as many as the table.
    pub max_per_segment: u32,
    /// Entries a segment may hold although the table is full.
    pub reserved_per_segment: u32,
    /// An entry idle for more than this many seconds is removed; 0: never.
    pub age_seconds: u32,
    /// An address that flaps between ports is held at one for a while.
    pub damping: bool,
    /// Ports are numbered from 0 up to this, exclusive.
    pub ports: usize,
    /// Secret of the hash: random per table in service, fixed in tests.
    pub key: [u64; 2],
}

impl FdbConfig {
    /// With the switch's limits.
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
