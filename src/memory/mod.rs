//! Guest memory: which bytes of this process belong to which guest-physical address.
//!
//! * [`mapping`] maps one file descriptor handed over by a front-end, after checking what it is;
//! * [`table`] is the immutable set of mappings of one guest, and [`table::Translator`] the
//!   per-ring view of it that the data path uses;
//! * [`ledger`] bounds what a port may map, so that something is left for the others;
//! * [`log`] marks pages that migration must send again.
//!
//! Rules. Guest memory changes under us at any moment, so it is never a Rust reference: the data
//! path holds raw pointers, reads every ring field once, volatile or atomic, and copies payload
//! with `copy_nonoverlapping`. A pointer is only reachable through an `Arc` of the table it came
//! from, so nothing unmapped can be touched. A table is never changed: a session builds the next
//! one, swaps it into each ring under that ring's lock, and the last ring to let go unmaps.

pub mod ledger;
pub mod log;
pub mod mapping;
pub mod table;

pub use ledger::{Account, Exhausted, Lease, Ledger};
pub use log::{DirtyLog, LogError};
pub use mapping::{Backing, Extent, MapError, Mapping, Size};
pub use table::{MemTable, Region, TableError, Translator};
