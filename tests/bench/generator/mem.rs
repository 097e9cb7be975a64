//! One port's guest memory: a single memfd mapping, handed out from its start to its end.
//!
//! The back-end writes here at any moment, so nobody makes a reference to it: raw pointers only.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use testkit::mem::RegionSpec;
use testkit::sys;

/// Guest-physical and front-end addresses differ from each other and from ours, so that a back-end
/// that mixes them up fails at once.
const GPA_BASE: u64 = 1 << 30;
const UVA_BASE: u64 = 0x7e00_0000_0000;

/// Mappings are a multiple of this, which suits `MFD_HUGETLB` too.
const HUGE_PAGE: u64 = 2 << 20;

/// A mapping of `spec.len` bytes.
pub struct Memory {
    spec: RegionSpec,
    file: OwnedFd,
    host: *mut u8,
    used: u64,
}

impl Memory {
    /// At least `len` bytes, all of them backed by pages, from huge pages if `huge`.
    pub fn new(len: u64, huge: bool) -> io::Result<Memory> {
        let len = len.next_multiple_of(HUGE_PAGE);
        let flags = libc::MFD_CLOEXEC | if huge { libc::MFD_HUGETLB } else { 0 };
        // SAFETY: the name is a NUL-terminated literal.
        let fd = unsafe { libc::memfd_create(c"loadgen".as_ptr(), flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else owns it.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        // Allocating now turns "no memory" into an error here instead of a SIGBUS later.
        // SAFETY: plain system calls, no memory involved.
        let ret = unsafe {
            libc::ftruncate(fd, len as libc::off_t) | libc::fallocate(fd, 0, 0, len as libc::off_t)
        };
        if ret < 0 {
            return Err(io::Error::last_os_error());
        }
        let host = sys::map_shared(&file, 0, len);
        let spec = RegionSpec { gpa: GPA_BASE, len, uva: UVA_BASE, offset: 0 };
        Ok(Memory { spec, file, host, used: 0 })
    }

    /// The region and its descriptor, as `SET_MEM_TABLE` sends them.
    pub fn region(&self) -> (RegionSpec, RawFd) {
        (self.spec, self.file.as_raw_fd())
    }

    /// The next `len` zeroed bytes at a multiple of `align`: where they are here, and their offset.
    pub fn alloc(&mut self, len: u64, align: u64) -> (*mut u8, u64) {
        let at = self.used.next_multiple_of(align);
        self.used = at + len;
        assert!(self.used <= self.spec.len, "guest memory was sized too small");
        // SAFETY: `at + len` lies inside the mapping, by the assertion.
        (unsafe { self.host.add(at as usize) }, at)
    }

    /// The guest-physical address of an offset.
    pub fn gpa(&self, offset: u64) -> u64 {
        self.spec.gpa + offset
    }

    /// The front-end address of an offset, for `SET_VRING_ADDR`.
    pub fn uva(&self, offset: u64) -> u64 {
        self.spec.uva + offset
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the rings that point into the mapping live in the same port and end with it.
        unsafe { sys::unmap(self.host, self.spec.len) };
    }
}
