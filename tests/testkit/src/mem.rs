//! Guest memory: memfd regions at chosen guest-physical addresses, and [`Span`], a checked window
//! into them.
//!
//! Guest-physical address, front-end ("user") address and the address here are three different
//! numbers on purpose, so that a daemon that mixes them up finds nothing. The other side writes
//! this memory at any moment, hence raw pointers behind volatile or atomic accesses.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use super::sys;

/// Front-end addresses start here unless a test gives its own.
const UVA_BASE: u64 = 0x7e00_0000_0000;

/// Where one region lies, in the terms of `VhostUserMemoryRegion`.
#[derive(Clone, Copy, Debug)]
pub struct RegionSpec {
    pub gpa: u64,
    pub len: u64,
    pub uva: u64,
    /// Offset of the region in its file.
    pub offset: u64,
}

impl RegionSpec {
    pub fn new(gpa: u64, len: u64) -> RegionSpec {
        RegionSpec { gpa, len, uva: UVA_BASE + gpa, offset: 0 }
    }
}

struct Region {
    spec: RegionSpec,
    file: OwnedFd,
    host: *mut u8,
    /// Bytes handed out by the allocator so far; never reset.
    used: AtomicU64,
}

/// The memory of one test guest.
pub struct GuestMem {
    regions: Vec<Region>,
}

// SAFETY: the mappings live as long as the struct and are accessed only through volatile, atomic
// or copying operations, which is all that memory shared with another process allows anyway.
unsafe impl Send for GuestMem {}
// SAFETY: as above; the allocator's mark is atomic.
unsafe impl Sync for GuestMem {}

impl GuestMem {
    /// One memfd per region.
    pub fn new(specs: &[RegionSpec]) -> Arc<GuestMem> {
        let regions = specs
            .iter()
            .map(|&spec| {
                let file = sys::memfd(spec.offset + spec.len);
                let host = sys::map_shared(&file, spec.offset, spec.len);
                Region { spec, file, host, used: AtomicU64::new(0) }
            })
            .collect();
        Arc::new(GuestMem { regions })
    }

    /// The regions with their descriptors, as the protocol sends them.
    pub fn table(&self) -> Vec<(RegionSpec, RawFd)> {
        self.regions.iter().map(|r| (r.spec, r.file.as_raw_fd())).collect()
    }

    pub fn region_count(&self) -> usize {
        self.regions.len()
    }

    /// Takes `len` bytes out of one region; the marks never go back.
    pub fn alloc_in(self: &Arc<Self>, region: usize, len: u64, align: u64) -> Span {
        let r = &self.regions[region % self.regions.len()];
        let at = r.used.load(Ordering::Relaxed).next_multiple_of(align);
        assert!(at + len <= r.spec.len, "test guest memory too small: {at:#x} + {len:#x}");
        r.used.store(at + len, Ordering::Relaxed);
        self.span(r.spec.gpa + at, len)
    }

    /// The window `gpa .. gpa + len`, which must lie in one region.
    pub fn span(self: &Arc<Self>, gpa: u64, len: u64) -> Span {
        let r = self
            .regions
            .iter()
            .find(|r| gpa >= r.spec.gpa && gpa - r.spec.gpa + len <= r.spec.len)
            .unwrap_or_else(|| panic!("no region holds {gpa:#x} + {len:#x}"));
        // SAFETY: the find above keeps the offset inside the mapping.
        let ptr = unsafe { r.host.add((gpa - r.spec.gpa) as usize) };
        Span { mem: self.clone(), ptr, len: len as usize, gpa }
    }

    /// The front-end address of a guest-physical one, for SET_VRING_ADDR.
    pub fn uva(&self, gpa: u64) -> u64 {
        let r = self.regions.iter().find(|r| gpa.wrapping_sub(r.spec.gpa) < r.spec.len);
        r.map(|r| r.spec.uva + (gpa - r.spec.gpa)).unwrap_or_else(|| panic!("no region: {gpa:#x}"))
    }

    /// All bytes handed out, as they stand.
    pub fn snapshot(self: &Arc<Self>) -> Vec<u8> {
        let mut out = Vec::new();
        for r in &self.regions {
            let len = r.used.load(Ordering::Relaxed);
            self.span(r.spec.gpa, len).read_into(0, len as usize, &mut out);
        }
        out
    }

    /// Searches everything that was handed out for a byte string (I4).
    pub fn contains(&self, needle: &[u8]) -> bool {
        self.regions.iter().any(|r| {
            let len = r.used.load(Ordering::Relaxed) as usize;
            // SAFETY: `len` bytes of a live mapping. The callers have stopped all traffic, so
            // nobody writes while the slice lives.
            sys::contains(unsafe { std::slice::from_raw_parts(r.host, len) }, needle)
        })
    }
}

impl Drop for GuestMem {
    fn drop(&mut self) {
        for r in &self.regions {
            // SAFETY: each Span holds the Arc of this struct, so none is left.
            unsafe { sys::unmap(r.host, r.spec.len) };
        }
    }
}

/// A window into guest memory; every access is checked against its length.
#[derive(Clone)]
pub struct Span {
    mem: Arc<GuestMem>,
    ptr: *mut u8,
    len: usize,
    gpa: u64,
}

// SAFETY: see GuestMem; the pointer stays valid while the Arc lives.
unsafe impl Send for Span {}
// SAFETY: as above; what two threads do to it at once is what two CPUs of a guest may do.
unsafe impl Sync for Span {}

macro_rules! field {
    ($get:ident, $set:ident, $t:ty) => {
        /// Volatile little-endian read at a byte offset.
        pub fn $get(&self, off: usize) -> $t {
            let p = self.at::<$t>(off);
            // SAFETY: `at` checked bounds and alignment; the mapping lives as long as `self`.
            <$t>::from_le(unsafe { p.read_volatile() })
        }
        /// Volatile little-endian write at a byte offset.
        pub fn $set(&self, off: usize, v: $t) {
            let p = self.at::<$t>(off);
            // SAFETY: as above.
            unsafe { p.write_volatile(v.to_le()) };
        }
    };
}

impl Span {
    field!(get16, set16, u16);
    field!(get32, set32, u32);
    field!(get64, set64, u64);

    fn check(&self, off: usize, n: usize) {
        assert!(off <= self.len && n <= self.len - off, "span: {off} + {n} > {}", self.len);
    }

    fn at<T>(&self, off: usize) -> *mut T {
        self.check(off, size_of::<T>());
        let p = self.ptr.wrapping_add(off).cast::<T>();
        assert!(p.is_aligned());
        p
    }

    pub fn gpa(&self) -> u64 {
        self.gpa
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// A ring index, which the other side reads and writes concurrently.
    pub fn index(&self, off: usize) -> &AtomicU16 {
        let p = self.at::<AtomicU16>(off);
        // SAFETY: in bounds and aligned by `at`; the mapping lives as long as `self.mem`.
        unsafe { &*p }
    }

    /// A part of this window.
    pub fn sub(&self, off: usize, len: usize) -> Span {
        self.check(off, len);
        let (ptr, gpa) = (self.ptr.wrapping_add(off), self.gpa + off as u64);
        Span { mem: self.mem.clone(), ptr, len, gpa }
    }

    pub fn write(&self, off: usize, bytes: &[u8]) {
        self.check(off, bytes.len());
        // SAFETY: in bounds by `check`; `bytes` is private memory and cannot overlap a mapping.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.ptr.add(off), bytes.len()) };
    }

    /// Appends `n` bytes to `out`.
    pub fn read_into(&self, off: usize, n: usize, out: &mut Vec<u8>) {
        self.check(off, n);
        out.reserve(n);
        // SAFETY: in bounds by `check`; the bytes were reserved and are initialised by the copy
        // before the length grows.
        unsafe {
            let end = out.as_mut_ptr().add(out.len());
            std::ptr::copy_nonoverlapping(self.ptr.add(off), end, n);
            out.set_len(out.len() + n);
        }
    }

    pub fn read(&self, off: usize, n: usize) -> Vec<u8> {
        let mut out = Vec::new();
        self.read_into(off, n, &mut out);
        out
    }

    /// Fills a range with a pattern tied to the guest-physical address, so that any piece of it
    /// can be checked alone.
    pub fn poison(&self, off: usize, n: usize, tag: u64) {
        self.check(off, n);
        let (mut at, end) = (off, off + n);
        while at < end {
            let g = self.gpa + at as u64;
            if g.is_multiple_of(8) && end - at >= 8 {
                self.set64(at, tag);
                at += 8;
            } else {
                self.write(at, &[tag.to_le_bytes()[(g % 8) as usize]]);
                at += 1;
            }
        }
    }

    /// Offset of the first byte in a range that is no longer poison.
    pub fn find_unpoisoned(&self, off: usize, n: usize, tag: u64) -> Option<usize> {
        self.check(off, n);
        let (mut at, end) = (off, off + n);
        while at < end {
            let g = self.gpa + at as u64;
            if g.is_multiple_of(8) && end - at >= 8 && self.get64(at) == tag {
                at += 8;
                continue;
            }
            // SAFETY: `at` is below `end`, which `check` allowed.
            let byte = unsafe { self.ptr.add(at).read_volatile() };
            if byte != tag.to_le_bytes()[(g % 8) as usize] {
                return Some(at);
            }
            at += 1;
        }
        None
    }
}
