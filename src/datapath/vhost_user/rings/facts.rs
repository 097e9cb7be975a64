//! What the rings of a session and its guest's memory are like, for people who look for a fault.

use std::sync::Arc;

use super::{Kick, Life, Rings};
use crate::memory::{Backing, Mapping, MemTable};
use crate::port::{QueueRef, RegionFacts, RingFacts};
use crate::ring::SplitRing;
use sys::fs::FileKind;

impl Rings<'_> {
    /// The rings that the port serves, by their index. Reads from the guest's memory where they
    /// stand, and has each ring's lock for a moment, without that.
    pub fn facts(&self, memory: &Arc<MemTable>) -> Vec<RingFacts> {
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
            standing: matches!(ring.life, Life::Standing { .. }),
            enabled: self.enabled(index),
            broken,
            polled: matches!(ring.kick, Kick::Poll),
            available: running
                .then(|| SplitRing::outstanding(memory, &self.config(index, 0)))
                .flatten(),
        }
    }
}

/// What a region of the guest's memory lies in.
pub fn region((gpa, mapping): (u64, &Mapping)) -> RegionFacts {
    let Backing { kind, page, named } = mapping.backing();
    let backing = match kind {
        FileKind::Huge => "hugetlb",
        FileKind::Shmem if named => "file",
        FileKind::Shmem => "anonymous",
        FileKind::Other => "unknown",
    };
    RegionFacts { gpa, len: mapping.len() as u64, backing, page }
}
