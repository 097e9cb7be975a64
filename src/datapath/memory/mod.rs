//! Guest memory: which bytes of this process belong to which guest-physical address.
//!
//! * [`mapping`] maps one file descriptor of a front-end, after checking what it is;
//! * [`table`] is the immutable set of mappings of one guest, and [`table::Translator`] the
//!   per-ring view of it that the data path uses;
//! * [`ledger`] bounds what a port may map, so that something is left for the others;
//! * [`log`] marks pages that migration must send again.
//!
//! The rules for pointers into guest memory are in `docs/architecture.md`.

pub mod ledger;
pub mod log;
pub mod mapping;
pub mod table;

pub use ledger::{Account, Exhausted, Lease, Ledger};
pub use log::{DirtyLog, LogError};
pub use mapping::{Backing, Extent, MapError, Mapping, Size};
pub use table::{MemTable, Region, TableError, Translator};
