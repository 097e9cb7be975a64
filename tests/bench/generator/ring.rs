//! The driver's half of a split virtqueue (virtio 1.2, 2.7), made for speed.
//!
//! Descriptor `i` always points at buffer `i`. A descriptor that comes back at used position `p` is
//! made available again at position `p + size`, the same slot; as long as the device keeps the
//! order the available ring and the descriptors never change after the start, so that of all ring
//! memory only the indices and the used elements travel between the two CPUs. A device that
//! reorders is followed through `ids` and `posted`.
//!
//! Each descriptor must come back exactly once; the ring is at fault for good if not.

use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use super::mem::Memory;
use testkit::frontend::VringAddr;

const DESC_WRITE: u64 = 2;
/// In avail.flags: the driver polls. In used.flags: the device polls.
const NO_EVENT: u16 = 1;

/// What of a buffer goes into its descriptor.
#[derive(Clone, Copy)]
pub struct Buffers {
    /// Bytes from one buffer to the next.
    pub stride: u64,
    /// Where in the buffer the virtio-net header begins.
    pub start: u64,
    /// Bytes from there on.
    pub len: u32,
    /// For the device to write (receive), or to read.
    pub device_writes: bool,
}

/// One ring and its buffers.
pub struct Ring {
    size: u16,
    mask: u16,
    event_idx: bool,
    desc: *mut u8,
    avail: *mut u8,
    used: *mut u8,
    buffers: *mut u8,
    stride: usize,
    /// The descriptor to post, or posted, at each slot: always a permutation.
    ids: Vec<u16>,
    /// What the available ring holds.
    posted: Vec<u16>,
    /// `ids` may differ from `posted`.
    shuffled: bool,
    /// Next position to make available, to publish from, and to take back.
    next_avail: u16,
    published: u16,
    last_used: u16,
    offsets: [u64; 3],
    /// The rule of virtio that the device broke.
    pub fault: Option<&'static str>,
    /// Kicks the device wanted.
    pub kicks: u64,
}

impl Ring {
    /// Bytes of guest memory that [`Ring::new`] takes.
    pub fn footprint(size: u16, stride: u64) -> u64 {
        u64::from(size) * (16 + 2 + 8 + stride) + 4 * 4096
    }

    /// A ring whose descriptors are written and whose buffers are all with the driver.
    pub fn new(memory: &mut Memory, size: u16, event_idx: bool, b: Buffers) -> Ring {
        let n = u64::from(size);
        let (desc, desc_at) = memory.alloc(16 * n, 4096);
        let (avail, avail_at) = memory.alloc(6 + 2 * n, 4096);
        let (used, used_at) = memory.alloc(6 + 8 * n, 4096);
        let (buffers, buffers_at) = memory.alloc(n * b.stride, 4096);
        let ring = Ring {
            size,
            mask: size - 1,
            event_idx,
            desc,
            avail,
            used,
            buffers,
            stride: b.stride as usize,
            ids: (0..size).collect(),
            posted: (0..size).collect(),
            shuffled: false,
            next_avail: 0,
            published: 0,
            last_used: 0,
            offsets: [desc_at, avail_at, used_at],
            fault: None,
            kicks: 0,
        };
        let flags = if b.device_writes { DESC_WRITE } else { 0 };
        for i in 0..n {
            let addr = memory.gpa(buffers_at + i * b.stride + b.start);
            // SAFETY: `i` is below the size of the table and of the ring, both allocated above.
            unsafe {
                desc.add(16 * i as usize).cast::<u64>().write(addr);
                desc.add(16 * i as usize + 8).cast::<u64>().write(u64::from(b.len) | flags << 32);
                avail.add(4 + 2 * i as usize).cast::<u16>().write(i as u16);
            }
        }
        if event_idx {
            // used_event: one signal each 65,536 buffers, which nobody looks at.
            ring.at16(ring.avail, 4 + 2 * n as usize).store(u16::MAX, Ordering::Relaxed);
        } else {
            ring.at16(ring.avail, 0).store(NO_EVENT, Ordering::Relaxed);
        }
        ring
    }

    /// For `SET_VRING_ADDR`.
    pub fn addr(&self, memory: &Memory, index: u32) -> VringAddr {
        let [desc, avail, used] = self.offsets.map(|at| memory.uva(at));
        VringAddr { index, flags: 0, desc, used, avail, log: 0 }
    }

    /// A 16-bit field of a ring, shared with the device.
    #[inline(always)]
    fn at16(&self, base: *mut u8, offset: usize) -> &AtomicU16 {
        // SAFETY: callers pass offsets of 16-bit fields inside the ring they name, which lives as
        // long as the port's memory and is aligned to a page.
        unsafe { &*base.add(offset).cast::<AtomicU16>() }
    }

    /// Where buffer `id` begins.
    #[inline(always)]
    pub fn buffer(&self, id: u16) -> *mut u8 {
        // SAFETY: `id` was checked against the size, and so lies within the buffers' allocation.
        unsafe { self.buffers.add(usize::from(id) * self.stride) }
    }

    /// Bytes from buffer to buffer.
    #[inline(always)]
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Descriptors with the device, published or about to be.
    #[inline(always)]
    pub fn outstanding(&self) -> u16 {
        self.next_avail.wrapping_sub(self.last_used)
    }

    /// Descriptors with the driver.
    #[inline(always)]
    pub fn free(&self) -> u16 {
        self.size - self.outstanding()
    }

    /// The descriptor that the next [`Ring::post`] makes available; `ahead` of it for prefetching.
    #[inline(always)]
    pub fn next_id(&self, ahead: u16) -> u16 {
        // SAFETY: a masked index is below the length, which is the power of two `size`.
        unsafe {
            *self.ids.get_unchecked(usize::from(self.next_avail.wrapping_add(ahead) & self.mask))
        }
    }

    /// Makes the next descriptor available with its next [`Ring::publish`]. There must be one
    /// [`Ring::free`].
    #[inline(always)]
    pub fn post(&mut self) {
        if self.shuffled {
            self.post_shuffled();
        }
        self.next_avail = self.next_avail.wrapping_add(1);
    }

    #[cold]
    fn post_shuffled(&mut self) {
        let slot = usize::from(self.next_avail & self.mask);
        let id = self.ids[slot];
        if self.posted[slot] != id {
            self.posted[slot] = id;
            self.at16(self.avail, 4 + 2 * slot).store(id, Ordering::Relaxed);
        }
    }

    /// Makes all free descriptors available.
    pub fn post_all(&mut self) {
        for _ in 0..self.free() {
            self.post();
        }
    }

    /// Sets the length in a descriptor that is with the driver.
    #[inline(always)]
    pub fn set_len(&mut self, id: u16, len: u32) {
        // SAFETY: `id` is below the size; the field is aligned and the device reads it atomically
        // at most.
        let field = unsafe { &*self.desc.add(16 * usize::from(id) + 8).cast::<AtomicU32>() };
        field.store(len, Ordering::Relaxed);
    }

    /// Posted, not yet published.
    #[inline(always)]
    pub fn unpublished(&self) -> u16 {
        self.next_avail.wrapping_sub(self.published)
    }

    /// Shows the device what was posted. A full fence and [`Ring::wants_kick`] must follow.
    #[inline(always)]
    pub fn publish(&self) {
        self.at16(self.avail, 2).store(self.next_avail, Ordering::Release);
    }

    /// Whether the device wants a kick for what was published since the last call.
    #[inline(always)]
    pub fn wants_kick(&mut self) -> bool {
        let (old, new) = (self.published, self.next_avail);
        if old == new {
            return false;
        }
        self.published = new;
        let wanted = if self.event_idx {
            let event =
                self.at16(self.used, 4 + 8 * usize::from(self.size)).load(Ordering::Relaxed);
            new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
        } else {
            self.at16(self.used, 0).load(Ordering::Relaxed) & NO_EVENT == 0
        };
        self.kicks += u64::from(wanted);
        wanted
    }

    /// Descriptors that came back and were not taken yet.
    #[inline(always)]
    pub fn returned(&mut self) -> u16 {
        let used = self.at16(self.used, 2).load(Ordering::Acquire);
        let n = used.wrapping_sub(self.last_used);
        if n > self.outstanding() {
            return self.fail("used index is ahead of the available index");
        }
        if self.fault.is_some() { 0 } else { n }
    }

    /// The descriptor returned `ahead` of the next one, for prefetching: not checked.
    #[inline(always)]
    pub fn peek(&self, ahead: u16) -> u16 {
        self.used_element(self.last_used.wrapping_add(ahead)) as u16 & self.mask
    }

    #[inline(always)]
    fn used_element(&self, position: u16) -> u64 {
        let slot = usize::from(position & self.mask);
        // SAFETY: a masked slot lies in the used ring. Elements begin at 4, so 64 bits at once are
        // not aligned to 8; two halves are aligned to 4.
        unsafe {
            let element = self.used.add(4 + 8 * slot);
            let id = (*element.cast::<AtomicU32>()).load(Ordering::Relaxed);
            let len = (*element.add(4).cast::<AtomicU32>()).load(Ordering::Relaxed);
            u64::from(id) | u64::from(len) << 32
        }
    }

    /// Takes the next descriptor back: its number and the bytes written. At most
    /// [`Ring::returned`] times.
    #[inline(always)]
    pub fn take(&mut self) -> Option<(u16, u32)> {
        let element = self.used_element(self.last_used);
        let (id, len) = (element as u32, (element >> 32) as u32);
        let slot = usize::from(self.last_used & self.mask);
        // SAFETY: a masked index is below the length.
        if id != u32::from(unsafe { *self.ids.get_unchecked(slot) }) && !self.follow(slot, id) {
            return None;
        }
        self.last_used = self.last_used.wrapping_add(1);
        Some((id as u16, len))
    }

    /// The device returned `id` before the one posted in `slot`: they change places.
    #[cold]
    fn follow(&mut self, slot: usize, id: u32) -> bool {
        let other = self.ids.iter().position(|&i| u32::from(i) == id);
        let Some(other) = other else {
            return self.fail("used element names no descriptor") != 0;
        };
        let ahead = (other as u16).wrapping_sub(self.last_used) & self.mask;
        if ahead >= self.outstanding() {
            return self.fail("descriptor returned twice") != 0;
        }
        self.ids.swap(slot, other);
        self.shuffled = true;
        true
    }

    #[cold]
    fn fail(&mut self, what: &'static str) -> u16 {
        self.fault.get_or_insert(what);
        0
    }
}

/// Brings a line into the cache for reading; any address will do.
#[inline(always)]
pub fn prefetch(p: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch does not fault.
    unsafe {
        std::arch::x86_64::_mm_prefetch(p.cast(), std::arch::x86_64::_MM_HINT_T0)
    };
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}
