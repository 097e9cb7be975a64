//! One mapped file of guest memory.
//!
//! Checked before mapping: the descriptor is a file on tmpfs (memfd included) or hugetlbfs, never a
//! disk file, whose pages could fault for as long as the disk likes; the range lies inside the
//! file; all arithmetic is checked. Memory of a VDUSE device is the kernel's own, and not examined.
//! The result is an [`Extent`], which knows how many bytes will be mapped. Limits count the mapped
//! bytes, not the bytes asked for: hugetlbfs rounds two bytes over the border of two 1 GiB pages up
//! to 2 GiB. The descriptor is closed once the file is mapped: 509 regions of one port would
//! otherwise leave no descriptors for other ports. (`vm-memory` keeps the descriptor open and is
//! therefore not used here.) `guard::sigbus` handles a file that is truncated later.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::ledger::Lease;
use crate::guard::sigbus;
use base::limits::MAX_PORT_MAPPED_BYTES;
use base::words::counted;
use sys::fs::{self, FileFacts, FileKind};
use sys::pages::Pages;

/// Why a file cannot serve as guest memory.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// The length is zero, or offset plus length overflows.
    #[error("empty or overflowing range")]
    BadRange,
    /// Longer than a port's memory may be. Refused before mapping: such a mapping could, even for a
    /// moment, take address space that the rest of the process needs.
    #[error("range of {0} bytes is larger than {MAX_PORT_MAPPED_BYTES}")]
    TooLarge(u64),
    /// The file ends before offset plus length, the first number; the second is the file's size.
    #[error(
        "range of {} lies beyond the end of the file ({})",
        counted(.0, "byte"),
        counted(.1, "byte")
    )]
    BeyondEnd(u64, u64),
    /// Not tmpfs, memfd or hugetlbfs.
    #[error("not memory-backed: only memfd, tmpfs and hugetlbfs files are accepted")]
    NotMemory,
    /// Some pages of the range are not allocated yet.
    #[error("not all of its pages are there, which memory=prealloc needs")]
    Sparse,
    /// `fstat` or `fstatfs` failed.
    #[error("cannot examine the file: {0}")]
    Stat(#[source] io::Error),
    /// `mmap` failed.
    #[error("cannot map: {0}")]
    Mmap(#[source] io::Error),
    /// The SIGBUS guard of the mapping failed.
    #[error("cannot guard the mapping: {0}")]
    Guard(#[source] sigbus::GuardError),
}

/// A mapped range of a front-end's file; unmapped on drop.
#[derive(Debug)]
pub struct Mapping {
    // Fields are dropped in order: the guard must be gone before the range is unmapped, or the
    // SIGBUS handler could map zero pages over a later mapping.
    _guard: sigbus::Guard,
    pages: Pages,
    /// Offset in `pages` of the first byte asked for (page or huge-page alignment).
    delta: usize,
    len: usize,
    identity: (u64, u64),
    backing: Backing,
    // Dropped after `pages`: the lease ends when the pages are unmapped.
    _lease: Option<Lease>,
}

/// A range of a file that may be mapped.
#[derive(Debug)]
pub struct Extent {
    file: OwnedFd,
    /// Offset in the file of the first page.
    first: u64,
    /// Bytes of whole pages.
    whole: usize,
    /// Offset in the first page of the first byte asked for (page or huge-page alignment).
    delta: usize,
    len: usize,
    facts: FileFacts,
}

impl Extent {
    /// Checks `len` bytes of `file` from `offset`.
    ///
    /// The kernel maps and unmaps whole huge pages of hugetlbfs only, so the range is widened to
    /// the file system's page size.
    pub fn new(file: OwnedFd, offset: u64, len: u64) -> Result<Extent, MapError> {
        let end = offset.checked_add(len).filter(|_| len > 0).ok_or(MapError::BadRange)?;
        if len > MAX_PORT_MAPPED_BYTES {
            return Err(MapError::TooLarge(len));
        }
        let facts = fs::examine(&file).map_err(MapError::Stat)?;
        let FileFacts { kind, size, page, .. } = facts;
        if kind == FileKind::Other {
            return Err(MapError::NotMemory);
        }
        if end > size {
            return Err(MapError::BeyondEnd(end, size));
        }
        let first = offset / page * page;
        let last = end.checked_next_multiple_of(page).ok_or(MapError::BadRange)?;
        let whole = usize::try_from(last - first).map_err(|_| MapError::BadRange)?;
        let (delta, len) = ((offset - first) as usize, len as usize);
        Ok(Extent { file, first, whole, delta, len, facts })
    }

    /// Returns `len` bytes of a file of the kernel's VDUSE module from `offset`. The file has no
    /// size: the kernel, which is trusted, says which range is memory.
    pub(crate) fn of_vduse(file: OwnedFd, offset: u64, len: u64) -> Result<Extent, MapError> {
        if len > MAX_PORT_MAPPED_BYTES {
            return Err(MapError::TooLarge(len));
        }
        let page = fs::page_size();
        let end = offset.checked_add(len).filter(|_| len > 0 && offset.is_multiple_of(page));
        let whole = end.and_then(|_| len.checked_next_multiple_of(page));
        let whole = whole.ok_or(MapError::BadRange)? as usize;
        let facts = FileFacts { page, ..FileFacts::default() };
        Ok(Extent { file, first: offset, whole, delta: 0, len: len as usize, facts })
    }

    /// Returns the extent if all of its pages are allocated, and [`MapError::Sparse`] otherwise.
    /// The kernel would charge a missing page to this process, which touches the page first. The
    /// front-end can free the pages again later.
    pub(crate) fn preallocated(self) -> Result<Extent, MapError> {
        let range = self.first..self.first + (self.delta + self.len) as u64;
        match fs::is_allocated(&self.file, &self.facts, range) {
            Ok(true) => Ok(self),
            Ok(false) => Err(MapError::Sparse),
            Err(error) => Err(MapError::Stat(error)),
        }
    }

    /// Returns the bytes asked for, and the bytes of the whole pages.
    pub(crate) fn size(&self) -> Size {
        Size { asked: self.len as u64, mapped: self.whole as u64 }
    }

    /// Maps the extent, shared and writable. `truncated` becomes true if a later access finds the
    /// file shorter than it is now.
    pub(crate) fn map(self, truncated: &Arc<AtomicBool>) -> Result<Mapping, MapError> {
        let Extent { file, first, whole, delta, len, facts } = self;
        let FileFacts { identity, kind, page, named, .. } = facts;
        let pages = Pages::of(file.as_fd(), first, whole, libc::MAP_NORESERVE);
        // A user who may read the daemon's core dump must not read guest memory.
        let pages = pages.map_err(MapError::Mmap)?.without_dump();
        let guard = sigbus::guard(pages.at().as_ptr() as usize, whole, Arc::clone(truncated))
            .map_err(MapError::Guard)?;
        let backing = Backing { kind, page, named };
        Ok(Mapping { _guard: guard, pages, delta, len, identity, backing, _lease: None })
    }
}

/// The kind of a mapping's pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backing {
    /// File system of the file.
    pub(crate) kind: FileKind,
    /// Bytes of a page.
    pub(crate) page: u64,
    /// The file has a name in a file system.
    pub(crate) named: bool,
}

/// Size of a range, as asked for and in whole pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Bytes asked for.
    pub(crate) asked: u64,
    /// Bytes mapped.
    pub(crate) mapped: u64,
}

impl Mapping {
    /// Checks and maps `len` bytes of `file` from `offset`; see [`Extent`].
    pub fn new(
        file: OwnedFd,
        offset: u64,
        len: u64,
        truncated: &Arc<AtomicBool>,
    ) -> Result<Mapping, MapError> {
        Extent::new(file, offset, len)?.map(truncated)
    }

    /// Keeps `lease`, from which the mapping was taken, as long as the mapping lives.
    pub(crate) fn leased(self, lease: Lease) -> Mapping {
        Mapping { _lease: Some(lease), ..self }
    }

    /// Returns the address of the first byte asked for.
    pub fn as_ptr(&self) -> *mut u8 {
        // `delta` lies inside the pages by construction.
        self.pages.at().as_ptr().wrapping_add(self.delta)
    }

    /// Returns the number of bytes asked for.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the bytes asked for, and the bytes of the whole pages.
    pub(crate) fn size(&self) -> Size {
        Size { asked: self.len as u64, mapped: self.pages.bytes() as u64 }
    }

    /// Returns the kind of the mapping's pages.
    pub(crate) fn backing(&self) -> Backing {
        self.backing
    }

    /// Returns device and inode of the file.
    pub(crate) fn identity(&self) -> (u64, u64) {
        self.identity
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use sys::fs::memfd;

    #[test]
    fn a_range_beyond_the_file_is_refused() {
        let file = memfd("t", 8192).unwrap();
        let err = Mapping::new(file, 4096, 8192, &Arc::default()).unwrap_err();
        assert!(matches!(err, MapError::BeyondEnd(12288, 8192)), "{err}");
        let short = MapError::BeyondEnd(4096, 1).to_string();
        assert_eq!(short, "range of 4096 bytes lies beyond the end of the file (1 byte)");
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
    fn no_more_than_a_port_may_have_is_mapped_even_for_a_moment() {
        let file = memfd("t", 64 << 40).unwrap();
        let err = Mapping::new(file, 0, MAX_PORT_MAPPED_BYTES + 1, &Arc::default()).unwrap_err();
        assert!(matches!(err, MapError::TooLarge(_)), "{err}");
    }

    #[test]
    fn guest_memory_is_no_part_of_a_core_dump() {
        let map = Mapping::new(memfd("t", 8192).unwrap(), 0, 8192, &Arc::default()).unwrap();
        let flags = fs::vm_flags(map.as_ptr() as usize);
        assert!(flags.contains(&"dd".to_owned()), "{flags:?}");
    }

    #[test]
    fn an_unaligned_offset_points_at_its_byte() {
        let file = memfd("t", 8192).unwrap();
        let map = Mapping::new(file, 100, 50, &Arc::default()).unwrap();
        assert_eq!(map.as_ptr() as usize % 4096, 100);
        assert_eq!(map.len(), 50);
    }
}
