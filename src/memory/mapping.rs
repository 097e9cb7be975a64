//! One mapped file of guest memory.
//!
//! Checked before mapping: the descriptor is a file on tmpfs (memfd included) or hugetlbfs, never a
//! disk file whose pages could fault for as long as the disk likes; the range lies inside the file;
//! all arithmetic is checked. A file that is truncated later is `sys::sigbus`' affair.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use vm_memory::{FileOffset, MmapRegion};

use crate::sys::fs::{self, FileFacts, FileKind};
use crate::sys::sigbus;

/// Why a file cannot serve as guest memory.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// The length is zero, or offset plus length overflows.
    #[error("empty or overflowing range")]
    BadRange,
    /// The file ends before offset plus length.
    #[error("range of {end} bytes lies beyond the end of the file ({size} bytes)")]
    BeyondEnd {
        /// Offset plus length as the front-end gave them.
        end: u64,
        /// Size of the file now.
        size: u64,
    },
    /// Not tmpfs, memfd or hugetlbfs.
    #[error("not memory-backed: only memfd, tmpfs and hugetlbfs files are accepted")]
    NotMemory,
    /// `fstat` or `fstatfs` failed.
    #[error("cannot examine the file: {0}")]
    Stat(#[source] std::io::Error),
    /// `mmap` failed.
    #[error("cannot map: {0}")]
    Mmap(String),
    /// The registry of guarded ranges is full.
    #[error("too many mappings in this process")]
    TooMany,
}

/// A mapped range of a front-end's file; unmapped on drop.
#[derive(Debug)]
pub struct Mapping {
    // Order of fields is order of drop: the guard must be gone before the range is unmapped, or
    // the SIGBUS handler could map zero pages over somebody else's later mapping.
    _guard: sigbus::Guard,
    region: MmapRegion<()>,
    /// Offset of the front-end's first byte inside `region` (page or huge-page alignment).
    delta: usize,
    len: usize,
    identity: (u64, u64),
}

impl Mapping {
    /// Maps `len` bytes of `file` from `offset`, shared and writable.
    ///
    /// hugetlbfs maps whole huge pages only, and unmaps only whole ones, so the range is widened to
    /// the file system's page size; [`Mapping::as_ptr`] still points at the first byte asked for.
    /// `truncated` becomes true if an access later finds the file shorter than it is now.
    pub fn new(
        file: OwnedFd,
        offset: u64,
        len: u64,
        truncated: &Arc<AtomicBool>,
    ) -> Result<Mapping, MapError> {
        let end = offset.checked_add(len).filter(|_| len > 0).ok_or(MapError::BadRange)?;
        let FileFacts { kind, size, page, identity } =
            fs::examine(file.as_raw_fd()).map_err(MapError::Stat)?;
        if kind == FileKind::Other {
            return Err(MapError::NotMemory);
        }
        if end > size {
            return Err(MapError::BeyondEnd { end, size });
        }
        let first = offset / page * page;
        let last = end.checked_next_multiple_of(page).ok_or(MapError::BadRange)?;
        let whole = usize::try_from(last - first).map_err(|_| MapError::BadRange)?;
        let region = MmapRegion::<()>::build(
            Some(FileOffset::new(File::from(file), first)),
            whole,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_NORESERVE,
        )
        .map_err(|e| MapError::Mmap(e.to_string()))?;
        let guard = sigbus::guard(region.as_ptr() as usize, whole, Arc::clone(truncated))
            .map_err(|_| MapError::TooMany)?;
        let delta = (offset - first) as usize;
        Ok(Mapping { _guard: guard, region, delta, len: len as usize, identity })
    }

    /// First byte of the range asked for.
    pub fn as_ptr(&self) -> *mut u8 {
        // `delta` lies inside the region by construction.
        self.region.as_ptr().wrapping_add(self.delta)
    }

    /// Length of the range asked for, in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Device and inode of the file.
    pub fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// Never true: empty ranges are refused.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::fs::memfd;

    #[test]
    fn a_range_beyond_the_file_is_refused() {
        let file = memfd("t", 8192).unwrap();
        let err = Mapping::new(file, 4096, 8192, &Arc::default()).unwrap_err();
        assert!(matches!(err, MapError::BeyondEnd { end: 12288, size: 8192 }), "{err}");
    }

    #[test]
    fn overflow_and_emptiness_are_refused() {
        for (offset, len) in [(u64::MAX, 1), (1, u64::MAX), (0, 0)] {
            let file = memfd("t", 4096).unwrap();
            assert!(matches!(
                Mapping::new(file, offset, len, &Arc::default()),
                Err(MapError::BadRange)
            ));
        }
    }

    #[test]
    fn a_disk_file_is_refused() {
        let file = File::open("/proc/self/exe").unwrap();
        let err = Mapping::new(OwnedFd::from(file), 0, 4096, &Arc::default()).unwrap_err();
        assert!(matches!(err, MapError::NotMemory), "{err}");
    }

    #[test]
    fn an_unaligned_offset_points_at_its_byte() {
        let file = memfd("t", 8192).unwrap();
        let map = Mapping::new(file, 100, 50, &Arc::default()).unwrap();
        assert_eq!(map.as_ptr() as usize % 4096, 100);
        assert_eq!(map.len(), 50);
    }
}
