//! Maps whole pages: of a shared file, or of private memory.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::{self, NonNull};

/// Readable and writable pages; unmapped on drop.
#[derive(Debug)]
pub struct Pages {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: the pointer is only handed out as a raw pointer; code that uses it must expect that other
// threads and processes write there.
unsafe impl Send for Pages {}
// SAFETY: as above; a `Pages` value itself never changes.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps `len` bytes of a file from `offset`, with `flags` of mmap(2) beside MAP_SHARED.
    pub fn of(
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        flags: libc::c_int,
    ) -> io::Result<Pages> {
        let offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        Pages::map(file.as_raw_fd(), offset, len, libc::MAP_SHARED | flags)
    }

    /// Maps private memory, all zero.
    pub(crate) fn anonymous(len: usize) -> io::Result<Pages> {
        Pages::map(-1, 0, len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS)
    }

    fn map(fd: RawFd, offset: libc::off_t, len: usize, flags: libc::c_int) -> io::Result<Pages> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses the address, so the new mapping replaces no other.
        let at = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, fd, offset) };
        match NonNull::new(at.cast::<u8>()) {
            Some(at) if at.as_ptr().cast() != libc::MAP_FAILED => Ok(Pages { at, len }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Excludes the pages from a core dump.
    #[must_use]
    pub fn without_dump(self) -> Pages {
        // SAFETY: `self` owns the whole mapping; its contents stay.
        unsafe { libc::madvise(self.at.as_ptr().cast(), self.len, libc::MADV_DONTDUMP) };
        self
    }

    /// Advises the kernel to use huge pages, each of which takes one entry of the TLB. The kernel
    /// may ignore the advice.
    #[must_use]
    pub(crate) fn in_huge_pages(self) -> Pages {
        // SAFETY: `self` owns the whole mapping; its contents stay.
        unsafe { libc::madvise(self.at.as_ptr().cast(), self.len, libc::MADV_HUGEPAGE) };
        self
    }

    /// Returns the address of the first byte.
    pub fn at(&self) -> NonNull<u8> {
        self.at
    }

    /// Returns the length in bytes.
    pub fn bytes(&self) -> usize {
        self.len
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: `self` owns the whole mapping, and no pointer into it is left: pointers are
        // reachable only through the owner of `self`.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.len) };
    }
}
