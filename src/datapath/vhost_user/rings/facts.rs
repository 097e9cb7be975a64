//! Facts about a session's rings and guest memory, for operators who look for a fault.

use std::sync::Arc;

use super::{Kick, Life, Rings};
use crate::memory::{Backing, Mapping, MemTable};
use crate::port::{QueueRef, RegionFacts, RingFacts};
use crate::ring::SplitRing;
use sys::fs::FileKind;

impl Rings<'_> {
    /// Returns the facts of the rings that the port serves, by ring index. Reads the rings' indices
    /// from guest memory without a lock, and takes each ring's lock for a moment before.
    pub(crate) fn facts(&self, memory: &Arc<MemTable>) -> Vec<RingFacts> {
        (0..self.guest.tx.len() * 2).map(|index| self.fact(index, memory)).collect()
    }

    fn fact(&self, index: usize, memory: &Arc<MemTable>) -> RingFacts {
        let ring = &self.rings[index];
        let running = matches!(ring.life, Life::Running { .. });
        let broken = self.guest.queue(index).and_then(|queue| match queue {
            QueueRef::Tx(queue) => Some(queue.lock_soon()?.vring.broken),
            QueueRef::Rx(queue) => Some(queue.lock_soon()?.vring.broken),
        });
        RingFacts {
            size: ring.size,
            started: ring.is_started(),
            no_memory: matches!(ring.life, Life::MemoryGone { .. }),
            enabled: self.enabled(index),
            broken,
            polled: matches!(ring.kick, Kick::Poll),
            available: running
                .then(|| SplitRing::outstanding(memory, &self.config(index, 0)))
                .flatten(),
        }
    }
}

/// Returns the facts of a memory region: address, length and kind of memory.
pub fn region((gpa, mapping): (u64, &Mapping)) -> RegionFacts {
    let Backing { kind, page, named } = mapping.backing();
    let backing = match kind {
        FileKind::Huge => "hugetlb",
        FileKind::Shmem if named => "file",
        FileKind::Shmem => "anonymous",
        // Files on disks are not mapped.
        FileKind::Other => "vduse",
    };
    RegionFacts { gpa, len: mapping.len() as u64, backing, page }
}
