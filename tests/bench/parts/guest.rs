//! A guest's memory with one ring, and the little its driver does: fill the ring's slots once, then
//! move the available index.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use base::frame::Offloads;
use datapath::memory::{Mapping, MemTable, Region};
use datapath::ring::{Burst, RingConfig, SplitRing};
use sys::fs::memfd;

/// Descriptors of every ring here: QEMU's default.
pub const SIZE: u16 = 256;
/// Bytes of the virtio-net header.
pub const HEADER: u64 = 12;

const DESC: u64 = 0;
const AVAIL: u64 = 0x2000;
const USED: u64 = 0x3000;
const TABLES: u64 = 0x4000;
const HEADERS: u64 = 0x8000;
const DATA: u64 = 0x1_0000;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// How a driver lays a frame into descriptors.
#[derive(Clone, Copy)]
pub enum Form {
    /// Header and frame in one.
    Direct,
    /// The header in one of its own, the frame in the next.
    Split,
    /// One that points to a table of two as in `Split`.
    Indirect,
}

/// Memory and ring of a guest.
pub struct Guest {
    driver: Driver,
    /// The running ring.
    pub ring: SplitRing,
}

/// The driver's side of a ring.
pub struct Driver {
    /// Both indices, in this memory.
    avail: *const AtomicU16,
    used: *const AtomicU16,
    _table: Arc<MemTable>,
}

// SAFETY: the indices are accessed atomically, in memory that stays mapped.
unsafe impl Send for Driver {}
// SAFETY: as above.
unsafe impl Sync for Driver {}

impl Driver {
    fn avail(&self) -> &AtomicU16 {
        // SAFETY: two bytes of the mapping that `_table` keeps, aligned to two; the device accesses
        // them atomically too.
        unsafe { &*self.avail }
    }

    fn used(&self) -> u16 {
        // SAFETY: as in `avail`.
        u16::from_le(unsafe { &*self.used }.load(Ordering::Acquire))
    }

    /// Makes `count` more slots available, if there are as many.
    #[inline(always)]
    pub fn send(&self, count: u16) {
        let avail = u16::from_le(self.avail().load(Ordering::Relaxed));
        if avail.wrapping_sub(self.used()) <= SIZE - count {
            self.avail().store(avail.wrapping_add(count).to_le(), Ordering::Release);
        }
    }

    /// Makes all slots available, once half of them are not. Threads may do so at once.
    #[inline(always)]
    pub fn refill(&self) {
        let (avail, used) = (self.avail().load(Ordering::Relaxed), self.used());
        if u16::from_le(avail).wrapping_sub(used) <= SIZE / 2 {
            let full = used.wrapping_add(SIZE).to_le();
            // Another one has done it otherwise.
            let _ =
                self.avail().compare_exchange(avail, full, Ordering::Release, Ordering::Relaxed);
        }
    }
}

impl Guest {
    /// A receive ring full of mergeable buffers of `len` bytes each.
    pub fn receiver(len: u64) -> Guest {
        Guest::receiver_with(len, Offloads::NONE)
    }

    /// The same of a driver that takes `offloads`.
    pub fn receiver_with(len: u64, offloads: Offloads) -> Guest {
        Guest::new(len, offloads, |memory, slot, at| {
            // It is there from here on.
            memory.write(at, &[0]);
            memory.descriptor(DESC, slot, at, len, WRITE);
            slot
        })
    }

    /// A transmit ring whose slots all hold frames of `len` bytes.
    pub fn sender(len: u64, form: Form) -> Guest {
        Guest::new(HEADER + len, Offloads::ALL, |memory, slot, at| {
            memory.frame(at + HEADER, len);
            let header = HEADERS + 64 * u64::from(slot);
            let table = TABLES + 32 * u64::from(slot);
            match form {
                Form::Direct => {
                    memory.descriptor(DESC, slot, at, HEADER + len, 0);
                    slot
                }
                Form::Split => {
                    // Half as many chains as slots: bursts are shorter than that.
                    let head = 2 * slot % SIZE;
                    memory.descriptor(DESC, head, header, HEADER, NEXT);
                    memory.descriptor(DESC, head + 1, at + HEADER, len, 0);
                    head
                }
                Form::Indirect => {
                    memory.descriptor(table, 0, header, HEADER, NEXT);
                    memory.descriptor(table, 1, at + HEADER, len, 0);
                    memory.descriptor(DESC, slot, table, 32, INDIRECT);
                    slot
                }
            }
        })
    }

    /// A transmit ring whose slots all hold this header and frame in one piece.
    pub fn sender_of(header: &[u8], frame: &[u8]) -> Guest {
        let len = HEADER + frame.len() as u64;
        Guest::new(len, Offloads::ALL, |memory, slot, at| {
            memory.write(at, header);
            memory.write(at + HEADER, frame);
            memory.descriptor(DESC, slot, at, len, 0);
            slot
        })
    }

    /// A guest with `len` bytes of data for each slot; `fill` writes a slot's descriptors and data
    /// and returns its head.
    fn new(len: u64, offloads: Offloads, fill: impl Fn(&Memory, u16, u64) -> u16) -> Guest {
        let stride = len.next_multiple_of(2048);
        let bytes = DATA + stride * u64::from(SIZE);
        let truncated = Arc::default();
        let fd = memfd("guest", bytes).expect("memfd");
        let mapping = Arc::new(Mapping::new(fd, 0, bytes, &truncated).expect("mapping"));
        let memory = Memory { start: mapping.as_ptr(), len: bytes };
        let region = Region { gpa: 0, uva: 0, offset: 0, mapping };
        let table = Arc::new(MemTable::new(vec![region], &truncated).expect("table"));
        for slot in 0..SIZE {
            let head = fill(&memory, slot, DATA + stride * u64::from(slot));
            memory.write(AVAIL + 4 + 2 * u64::from(slot), &head.to_le_bytes());
        }
        let config = RingConfig {
            size: SIZE,
            desc: DESC,
            avail: AVAIL,
            used: USED,
            event_idx: false,
            header_len: HEADER as u8,
            mergeable: true,
            offloads,
        };
        let index = |at| table.at_user_address(at + 2, 2).expect("mapped").cast_const().cast();
        let (avail, used) = (index(AVAIL), index(USED));
        let driver = Driver { avail, used, _table: Arc::clone(&table) };
        let ring = SplitRing::start(table, &config).expect("ring");
        Guest { driver, ring }
    }

    /// Its driver, which polls, and its ring.
    pub fn apart(self) -> (Driver, SplitRing) {
        // VIRTQ_AVAIL_F_NO_INTERRUPT: the flags are in front of the index.
        // SAFETY: as in `Driver::avail`.
        unsafe { &*self.driver.avail.sub(1) }.store(1u16.to_le(), Ordering::Relaxed);
        (self.driver, self.ring)
    }

    /// Makes `count` slots available, from the ring's position.
    #[inline(always)]
    pub fn offer(&self, count: u16) {
        let idx = self.ring.base().wrapping_add(count);
        self.driver.avail().store(idx.to_le(), Ordering::Release);
    }

    /// A burst of up to `count` of this sender's frames. It refers to the guest's memory, which
    /// must outlive it.
    pub fn burst(&mut self, count: u16) -> Burst {
        let mut burst = Burst::default();
        self.offer(count);
        self.ring.take(&mut burst, usize::from(count)).expect("an honest ring");
        burst
    }
}

/// Memory being prepared; nobody else knows of it yet.
struct Memory {
    start: *mut u8,
    len: u64,
}

impl Memory {
    fn write(&self, at: u64, bytes: &[u8]) {
        assert!(at + bytes.len() as u64 <= self.len);
        // SAFETY: inside the mapping of `len` bytes at `start`, by the assertion.
        unsafe {
            let to = self.start.add(at as usize);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }

    fn descriptor(&self, table: u64, index: u16, addr: u64, len: u64, flags: u16) {
        let next = if flags & NEXT == 0 { 0 } else { index + 1 };
        let mut bytes = [0u8; 16];
        bytes[..8].copy_from_slice(&addr.to_le_bytes());
        bytes[8..12].copy_from_slice(&(len as u32).to_le_bytes());
        bytes[12..14].copy_from_slice(&flags.to_le_bytes());
        bytes[14..].copy_from_slice(&next.to_le_bytes());
        self.write(table + 16 * u64::from(index), &bytes);
    }

    /// An IPv4 UDP frame as far as anybody looks, and touched to its end.
    fn frame(&self, at: u64, len: u64) {
        let mut bytes = vec![0x5a; len as usize];
        bytes[..12].copy_from_slice(&[0x52, 0x54, 0, 0, 0, 2, 0x52, 0x54, 0, 0, 0, 1]);
        bytes[12..14].copy_from_slice(&[8, 0]);
        self.write(at, &bytes);
    }
}

/// Burst sizes to measure for frames of `len` bytes: a burst also ends after 64 KiB.
pub fn counts(len: u64) -> Vec<u16> {
    let most = (u64::from(base::limits::BURST_BYTES) / (HEADER + len)).max(1);
    let mut counts: Vec<u16> = [1, 8, 32, 64].map(|n: u16| n.min(most as u16)).to_vec();
    counts.dedup();
    counts
}
