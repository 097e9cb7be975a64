//! What a front-end shares of its guest's memory, as far as that is a fault.
//!
//! The session writes it, and the diagnosis reads it, which waits for no session.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Faults of a guest's memory, as a session last saw them.
#[derive(Debug, Default)]
pub struct MemoryFaults {
    missing: AtomicBool,
    all_on_disk: AtomicBool,
    on_disk: AtomicU64,
}

impl MemoryFaults {
    /// Takes note of a session's memory. `missing`: the driver's features are acknowledged, and no
    /// memory was ever mapped; `all_on_disk`: the front-end sent nothing but files on disks;
    /// `on_disk`: bytes of such files beside other memory.
    pub fn set(&self, missing: bool, all_on_disk: bool, on_disk: u64) {
        self.missing.store(missing, Ordering::Relaxed);
        self.all_on_disk.store(all_on_disk, Ordering::Relaxed);
        self.on_disk.store(on_disk, Ordering::Relaxed);
    }

    /// True if the driver cannot be served, as no memory is shared.
    pub fn is_missing(&self) -> bool {
        self.missing.load(Ordering::Relaxed)
    }

    /// True if the front-end sent memory, all of it in files on disks.
    pub fn is_all_on_disk(&self) -> bool {
        self.all_on_disk.load(Ordering::Relaxed)
    }

    /// Bytes that are left out, as they lie in files on disks.
    pub fn on_disk(&self) -> u64 {
        self.on_disk.load(Ordering::Relaxed)
    }
}
