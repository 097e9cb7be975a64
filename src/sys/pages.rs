//! Whole pages in memory, of a file that others have too or of nothing but ours.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::{self, NonNull};

/// Pages that may be read and written; unmapped on drop.
#[derive(Debug)]
pub struct Pages {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: the pointer is only handed out as a raw pointer; code that follows it must expect that
// others write there, on this side too.
unsafe impl Send for Pages {}
// SAFETY: as above; the value itself never changes.
unsafe impl Sync for Pages {}

impl Pages {
    /// `len` bytes of a file from `offset` on, by `flags` of mmap(2) beside MAP_SHARED.
    pub fn of(
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        flags: libc::c_int,
    ) -> io::Result<Pages> {
        let offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        Pages::map(file.as_raw_fd(), offset, len, libc::MAP_SHARED | flags)
    }

    /// Memory of our own, all zero.
    pub fn anonymous(len: usize) -> io::Result<Pages> {
        Pages::map(-1, 0, len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS)
    }

    fn map(fd: RawFd, offset: libc::off_t, len: usize, flags: libc::c_int) -> io::Result<Pages> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping where the kernel chooses replaces nothing of ours.
        let at = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, fd, offset) };
        match NonNull::new(at.cast::<u8>()) {
            Some(at) if at.as_ptr().cast() != libc::MAP_FAILED => Ok(Pages { at, len }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Keeps them out of a core dump.
    #[must_use]
    pub fn without_dump(self) -> Pages {
        // SAFETY: the mapping is ours and whole; its contents stay.
        unsafe { libc::madvise(self.at.as_ptr().cast(), self.len, libc::MADV_DONTDUMP) };
        self
    }

    /// Advises the kernel to use huge pages, each of which takes one entry of the TLB. It need not.
    #[must_use]
    pub fn in_huge_pages(self) -> Pages {
        // SAFETY: the mapping is ours and whole; its contents stay.
        unsafe { libc::madvise(self.at.as_ptr().cast(), self.len, libc::MADV_HUGEPAGE) };
        self
    }

    /// The first byte.
    pub fn at(&self) -> NonNull<u8> {
        self.at
    }

    /// Bytes of the whole.
    pub fn bytes(&self) -> usize {
        self.len
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, whole, and there is no pointer into it any more: those are
        // only reachable through what owns this.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.len) };
    }
}
