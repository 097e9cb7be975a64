//! Parts of the crate with loom's atomics: its forwarding table, with limits that make it small, so
//! that everything meets everything (one shard of one bucket); and the rings of AF_XDP.
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
    pub const FDB_SILENCE_SECONDS: u32 = 1;
    pub const FDB_MAX_BRIDGES: usize = 2;
    pub const FDB_MAX_PORTS: usize = 1 << 10;
    pub const FDB_PREFETCH_ENTRIES: u32 = 1536;
    pub const FDB_SHARDS: usize = 1;
    pub const FDB_SWEEP_BUCKETS: usize = 1;
    pub const FDB_VLANS: usize = 8;
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
    pub mod segment;
}
