//! The dirty log: a bitmap shared with the front-end, one bit per 4 KiB page of guest-physical
//! memory. The switch sets the bit of every page that it writes during a migration (vhost-user,
//! `SET_LOG_BASE`).
//!
//! Order matters: the switch marks a page *after* writing the page, and marks the page of an index
//! after storing the index but before releasing the ring's lock. QEMU takes the log by atomic
//! exchange and copies pages later, so QEMU could consume an early mark before the write.
//!
//! The bitmap of `vhost-user-backend` cannot serve here: its log region is constructible only
//! inside that crate, and its mark takes an `RwLock` and clones an `Arc` per access (measured
//! 167–458 ns a frame against 1.4–3 ns for the whole ring access of this crate).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use super::ledger::Lease;
use super::mapping::{Extent, MapError, Mapping};
use base::limits::MAX_LOG_BYTES;

/// Page size of the log in bytes, fixed by the protocol (`VHOST_LOG_PAGE`).
const LOG_PAGE: u64 = 4096;

/// Why a log cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// Larger than [`MAX_LOG_BYTES`].
    #[error("dirty log of {0} bytes is larger than {MAX_LOG_BYTES}")]
    TooLarge(u64),
    /// The file cannot be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
}

/// A mapped dirty log.
#[derive(Debug)]
pub struct DirtyLog {
    mapping: Mapping,
}

impl DirtyLog {
    /// Maps `extent` as a log. `truncated` becomes true if the front-end truncates the file.
    pub fn new(extent: Extent, truncated: &Arc<AtomicBool>) -> Result<DirtyLog, LogError> {
        match extent.size().asked {
            len if len > MAX_LOG_BYTES => Err(LogError::TooLarge(len)),
            _ => Ok(DirtyLog { mapping: extent.map(truncated)? }),
        }
    }

    /// Keeps `lease`, from which the mapping was taken, as long as the log lives.
    pub(crate) fn leased(self, lease: Lease) -> DirtyLog {
        DirtyLog { mapping: self.mapping.leased(lease) }
    }

    /// Marks the pages of `len` bytes at guest-physical `gpa`. Ignores pages beyond the end of the
    /// log, since the front-end chose the log's size.
    pub(crate) fn mark(&self, gpa: u64, len: u64) {
        let Some(last) = gpa.checked_add(len.saturating_sub(1)).filter(|_| len > 0) else {
            return;
        };
        for page in gpa / LOG_PAGE..=last / LOG_PAGE {
            let Ok(byte) = usize::try_from(page / 8) else {
                return;
            };
            if byte >= self.mapping.len() {
                return;
            }
            let at = self.mapping.as_ptr().wrapping_add(byte).cast::<AtomicU8>();
            // SAFETY: `byte` is inside the mapping, which `self` owns; AtomicU8 has no alignment
            // requirement and the front-end accesses these bytes atomically.
            let bits = unsafe { &*at };
            // Release: the front-end that takes the bit must see the write that the bit stands for.
            bits.fetch_or(1 << (page % 8), Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;
    use sys::fs::memfd;

    fn log(len: u64) -> (DirtyLog, std::fs::File) {
        let fd = memfd("log", len).unwrap();
        let file = std::fs::File::from(fd.try_clone().unwrap());
        (DirtyLog::new(Extent::new(fd, 0, len).unwrap(), &Arc::default()).unwrap(), file)
    }

    #[test]
    fn the_pages_of_a_range_are_marked_and_no_others() {
        let (log, file) = log(16);
        log.mark(4096 * 3 + 4095, 2);
        let mut bytes = [0u8; 16];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes[0], 0b0001_1000);
        assert!(bytes[1..].iter().all(|&b| b == 0));
    }

    #[test]
    fn what_the_log_has_no_bit_for_is_ignored() {
        let (log, file) = log(1);
        log.mark(4096 * 7, 4096 * 100);
        log.mark(u64::MAX, 10);
        log.mark(0, 0);
        let mut bytes = [0u8; 1];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes[0], 0x80);
    }
}
