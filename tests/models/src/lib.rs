//! Parts of the crate with loom's atomics: its forwarding table, the table of groups and the table
//! of connections, with limits that make them small, so that everything meets everything; and the
//! rings of AF_XDP.
#![allow(dead_code, reason = "a model uses a part of each module")]

// The files name their crates as they do at home.
extern crate self as base;
pub use switch::segment;
pub use sys::pages;

#[path = "../../../src/base/frame"]
pub mod frame {
    pub mod checksum;
    pub mod ethernet;
    pub mod fold;
    pub mod mac;
    pub mod multicast;
    pub mod protocol;
    pub use mac::MacAddr;
}

pub mod loomed;

#[path = "../../../src/base/limits/connection_timeouts.rs"]
mod connection_timeouts;

pub mod limits {
    pub use crate::connection_timeouts::*;

    pub const FDB_LOCK_ATTEMPTS: u32 = 1;
    pub const FDB_MAX_ENTRIES: u32 = 64;
    pub const FDB_MAX_ENTRIES_LIMIT: u32 = 1 << 20;
    pub const FDB_MAX_PER_PORT: u32 = 64;
    pub const FDB_MAX_PER_SEGMENT: u32 = 64;
    pub const FDB_RESERVED_PER_PORT: u32 = 1;
    pub const FDB_RESERVED_PER_SEGMENT: u32 = 0;
    pub const FDB_FLAPS: u32 = 5;
    pub const FDB_HOLD_SECONDS: u32 = 10;
    pub const FDB_SILENCE_SECONDS: u32 = 1;
    pub const FDB_MAX_BRIDGES: usize = 2;
    pub const FDB_MAX_PORTS: usize = 1 << 10;
    pub const FDB_PREFETCH_ENTRIES: u32 = 1536;
    pub const FDB_SHARDS: usize = 1;
    pub const FDB_SWEEP_BUCKETS: usize = 1;
    pub const FDB_VLANS: usize = 8;

    pub const CONNECTION_LOCK_ATTEMPTS: u32 = 1;
    pub const CONNECTION_SHARDS: usize = 1;
    pub const CONNECTION_SLOTS: u32 = 1;
    pub const CONNECTION_SWEEP_BUCKETS: usize = 1;
    pub const CONNECTIONS_EVICTED: usize = 1;
    pub const HALF_OPEN_LOOKS: usize = 2;
    pub const MAX_HALF_OPEN_PER_PORT: usize = 2;
    pub const MAX_CONNECTIONS: u32 = 8;
    pub const MAX_CONNECTIONS_PER_PORT: u32 = 8;
    pub const RESERVED_CONNECTIONS_PER_PORT: u32 = 1;
    pub const MAX_NAME_LEN: usize = 64;

    pub const SNAPSHOT_LEN: usize = 64;
    pub const MAX_HEADERS_LEN: usize = 256;
    pub const MAX_MESSAGE_LEN: usize = 2048;

    pub const MAX_PORTS: usize = 64;
    pub const MAX_GROUPS: usize = 2;
    pub const MAX_GROUPS_PER_SEGMENT: usize = 2;
    pub const MAX_GROUPS_PER_PORT: u16 = 2;
    pub const MAX_SNOOPED_SEGMENTS: usize = 1;
    pub const RESERVED_GROUPS_PER_SEGMENT: usize = 0;
    pub const MEMBERSHIP_RECORDS_PER_SECOND: u32 = 8;
    pub const SNOOPING_LOCK_ATTEMPTS: u32 = 1;
    pub const QUERIER_SECONDS: u32 = 255;
    pub const MEMBERSHIP_SECONDS: u32 = 260;
    pub const MAX_QUERY_INTERVAL_SECONDS: u32 = 125;
    pub const MAX_QUERY_RESPONSE_SECONDS: u32 = 10;
    pub const QUERY_GRACE_SECONDS: u32 = 2;
}

pub mod stats {
    /// The reasons for which snooping drops a frame.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum DropReason {
        Querier,
        Membership,
    }
}

#[path = "../../../src/sys"]
pub mod sys {
    pub mod pages;

    pub mod xdp {
        pub mod ring;

        use std::ptr::NonNull;

        use crate::loomed::AtomicU32;

        /// Our side of a ring into which we write: numbers.
        pub struct Producer(ring::Producer<u64>);
        /// Our side of one from which we read.
        pub struct Consumer(ring::Consumer<u64>);

        /// Both sides of a ring.
        pub fn ring(
            indices: [&AtomicU32; 2],
            entries: NonNull<u64>,
            at: (u32, u32),
        ) -> (Producer, Consumer) {
            let ring = || ring::Ring::of(indices, entries, at);
            (Producer(ring::Producer(ring())), Consumer(ring::Consumer(ring())))
        }

        impl Producer {
            pub fn push(&mut self, entry: u64) -> bool {
                self.0.push(entry)
            }

            pub fn publish(&self) {
                self.0.publish();
            }
        }

        impl Consumer {
            pub fn pop(&mut self) -> Option<u64> {
                self.0.pop()
            }

            pub fn release(&self) {
                self.0.release();
            }
        }
    }
}

#[path = "../../../src/switch"]
pub mod switch {
    pub mod fdb;
    pub mod filter {
        pub mod connections;
    }
    pub mod multicast;
    pub mod segment;
    mod sync;
}
