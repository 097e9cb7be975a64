//! Guest memory: maps guest-physical addresses to bytes of this process.
//!
//! * [`mapping`] checks one file descriptor of a front-end and maps the file;
//! * [`table`] is the immutable set of mappings of one guest; [`table::Translator`] is a ring's
//!   view of the table, which the data path uses;
//! * [`ledger`] bounds the memory that a port may map, so that other ports can map theirs;
//! * [`log`] marks pages that a migration must send again.
//!
//! The rules for pointers into guest memory are in `docs/architecture.md`.

pub mod ledger;
pub mod log;
pub mod mapping;
pub mod table;

pub use ledger::{Account, Exhausted, Ledger};
pub use log::{DirtyLog, LogError};
pub(crate) use mapping::MapError;
pub use mapping::{Backing, Extent, Mapping, Size};
pub use table::{MemTable, Region};
pub(crate) use table::{TableError, Translator};
