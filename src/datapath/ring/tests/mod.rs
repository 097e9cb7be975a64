//! Tests rings against virtio-queue's mock driver, over memory that both sides map.
//!
//! The tests place the parts of a ring by hand: `MockSplitQueue` (0.18) counts the available ring's
//! elements as bytes, so that the used ring overlaps the available ring.

mod notify;
mod offload;
mod rx;
mod scratch;
mod staging;
mod tx;

use std::fs::File;
use std::sync::Arc;

use virtio_queue::desc::RawDescriptor;
use virtio_queue::desc::split::Descriptor;
use virtio_queue::mock::{AvailRing, DescriptorTable, UsedRing};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};

use super::{RingConfig, SplitRing};
use crate::memory::{Mapping, MemTable, Region};
use base::frame::Offloads;
use sys::fs::memfd;

const MEMORY: u64 = 1 << 21;
/// Address of a test's own buffers; rings lie below.
pub(crate) const DATA: u64 = 0x2_0000;
pub(crate) const SIZE: u16 = 64;

const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// A guest's memory as the driver and as the device see the memory.
pub(crate) struct Guest {
    driver: GuestMemoryMmap<()>,
    table: Arc<MemTable>,
}

type Memory = GuestMemoryMmap<()>;

/// A driver's queue: 64 KiB from its start, each part on pages of its own.
pub(crate) struct Queue<'a> {
    start: u64,
    size: u16,
    table: DescriptorTable<'a, Memory>,
    avail: AvailRing<'a, Memory>,
    used: UsedRing<'a, Memory>,
}

impl<'a> Queue<'a> {
    fn create(memory: &'a Memory, start: u64, size: u16) -> Queue<'a> {
        Queue {
            start,
            size,
            table: DescriptorTable::new(memory, GuestAddress(start), size),
            avail: AvailRing::new(memory, GuestAddress(start + 0x4000), size),
            used: UsedRing::new(memory, GuestAddress(start + 0x8000), size),
        }
    }

    fn desc_table(&self) -> &DescriptorTable<'a, Memory> {
        &self.table
    }

    fn avail(&self) -> &AvailRing<'a, Memory> {
        &self.avail
    }

    fn used(&self) -> &UsedRing<'a, Memory> {
        &self.used
    }

    fn avail_addr(&self) -> GuestAddress {
        GuestAddress(self.start + 0x4000)
    }

    fn used_addr(&self) -> GuestAddress {
        GuestAddress(self.start + 0x8000)
    }
}

impl Guest {
    pub(crate) fn new() -> Guest {
        let fd = memfd("guest", MEMORY).unwrap();
        let file = File::from(fd.try_clone().unwrap());
        let ranges = [(GuestAddress(0), MEMORY as usize, Some(FileOffset::new(file, 0)))];
        let driver = GuestMemoryMmap::from_ranges_with_files(ranges).unwrap();
        // Two adjacent regions, so that buffers can cross the border.
        let half = MEMORY / 2;
        let truncated = Arc::default();
        let region = |start: u64| Region {
            gpa: start,
            uva: start,
            offset: start,
            mapping: Arc::new(
                Mapping::new(fd.try_clone().unwrap(), start, half, &truncated).unwrap(),
            ),
        };
        let table = Arc::new(MemTable::new(vec![region(0), region(half)], &truncated).unwrap());
        Guest { driver, table }
    }

    pub(crate) fn queue(&self) -> Queue<'_> {
        Queue::create(&self.driver, 0x1000, SIZE)
    }

    fn config(&self, queue: &Queue<'_>) -> RingConfig {
        RingConfig {
            size: queue.size,
            desc: queue.start,
            avail: queue.avail_addr().0,
            used: queue.used_addr().0,
            event_idx: false,
            header_len: 12,
            mergeable: true,
            offloads: Offloads::NONE,
        }
    }

    pub(crate) fn start(&self, queue: &Queue<'_>) -> SplitRing {
        SplitRing::start(Arc::clone(&self.table), &self.config(queue)).unwrap()
    }

    pub(crate) fn write(&self, at: u64, bytes: &[u8]) {
        self.driver.write_slice(bytes, GuestAddress(at)).unwrap();
    }

    pub(crate) fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.driver.read_slice(&mut bytes, GuestAddress(at)).unwrap();
        bytes
    }

    /// Writes a table of descriptors anywhere in memory.
    fn indirect(&self, at: u64, descriptors: &[Descriptor]) {
        for (i, d) in descriptors.iter().enumerate() {
            self.driver
                .write_obj(RawDescriptor::from(*d), GuestAddress(at + 16 * i as u64))
                .unwrap();
        }
    }
}

pub(crate) fn desc(addr: u64, len: u32, flags: u16, next: u16) -> Descriptor {
    Descriptor::new(addr, len, flags, next)
}

/// Writes descriptors `first..` of the queue's table.
pub(crate) fn describe(queue: &Queue<'_>, first: u16, descriptors: &[Descriptor]) {
    for (i, d) in descriptors.iter().enumerate() {
        queue.desc_table().store(first + i as u16, RawDescriptor::from(*d)).unwrap();
    }
}

/// Makes heads available, behind the heads made available before.
pub(crate) fn offer(queue: &Queue<'_>, heads: &[u16]) {
    let mut idx = u16::from_le(queue.avail().idx().load());
    for &head in heads {
        let slot = usize::from(idx % queue.size);
        queue.avail().ring().ref_at(slot).unwrap().store(head.to_le());
        idx = idx.wrapping_add(1);
    }
    queue.avail().idx().store(idx.to_le());
}

/// Returns head and length of all used elements published so far.
fn used(queue: &Queue<'_>) -> Vec<(u32, u32)> {
    let count = u16::from_le(queue.used().idx().load());
    (0..count)
        .map(|i| {
            let elem = queue.used().ring().ref_at(usize::from(i % queue.size)).unwrap().load();
            (elem.id(), elem.len())
        })
        .collect()
}

/// Returns a frame of `len` bytes whose content depends on `seed`.
fn frame(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(7).wrapping_add(seed)).collect()
}
