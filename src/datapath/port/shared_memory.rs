//! Faults of the memory that a front-end shares.
//!
//! The session writes the faults; the diagnosis reads them without waiting for a session.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Faults of a guest's memory, as last seen by a session.
#[derive(Debug, Default)]
pub struct MemoryFaults {
    missing: AtomicBool,
    all_on_disk: AtomicBool,
    on_disk: AtomicU64,
}

impl MemoryFaults {
    /// Records the faults of a session's memory. `missing`: the driver's features are acknowledged,
    /// and no memory was ever mapped. `all_on_disk`: the front-end sent only files on disks.
    /// `on_disk`: bytes of files on disks beside other memory.
    pub(crate) fn set(&self, missing: bool, all_on_disk: bool, on_disk: u64) {
        self.missing.store(missing, Ordering::Relaxed);
        self.all_on_disk.store(all_on_disk, Ordering::Relaxed);
        self.on_disk.store(on_disk, Ordering::Relaxed);
    }

    /// True if the driver cannot be served, since no memory is shared.
    pub fn is_missing(&self) -> bool {
        self.missing.load(Ordering::Relaxed)
    }

    /// True if the front-end sent memory only in files on disks.
    pub fn is_all_on_disk(&self) -> bool {
        self.all_on_disk.load(Ordering::Relaxed)
    }

    /// Returns the bytes that are not mapped because they are in files on disks.
    pub fn on_disk(&self) -> u64 {
        self.on_disk.load(Ordering::Relaxed)
    }
}
