//! The crate's forwarding table with loom's atomics, and limits that make it small: one shard of
//! one bucket, so that everything meets everything.
#![allow(dead_code, reason = "a model uses a part of each module")]

#[path = "../../../src/frame"]
pub mod frame {
    pub mod fold;
    pub mod mac;
    pub use mac::MacAddr;
}

pub mod loomed;

pub mod limits {
    pub const FDB_LOCK_ATTEMPTS: u32 = 1;
    pub const FDB_MAX_ENTRIES: u32 = 64;
    pub const FDB_MAX_ENTRIES_LIMIT: u32 = 1 << 20;
    pub const FDB_MAX_PER_PORT: u32 = 64;
    pub const FDB_MAX_PER_SEGMENT: u32 = 64;
    pub const FDB_RESERVED_PER_PORT: u32 = 1;
    pub const FDB_RESERVED_PER_SEGMENT: u32 = 0;
    pub const FDB_FLAPS: u32 = 5;
    pub const FDB_HOLD_SECONDS: u32 = 10;
    pub const FDB_MAX_BRIDGES: usize = 2;
    pub const FDB_MAX_PORTS: usize = 1 << 10;
    pub const FDB_PREFETCH_ENTRIES: u32 = 1536;
    pub const FDB_SHARDS: usize = 1;
    pub const FDB_SWEEP_BUCKETS: usize = 1;
    pub const FDB_VLANS: usize = 8;
}

#[path = "../../../src/switch"]
pub mod switch {
    pub mod fdb;
    pub mod segment;
}
