//! Keeps rings alive while their memory changes.
//!
//! A front-end that changes a region removes the region and adds it again, whole or in parts: QEMU
//! sends every REM_MEM_REG before the first ADD_MEM_REG, whenever a guest changes the layout of its
//! memory (PAM registers, overlay pages, memory that grows). QEMU sends no ring address again. So a
//! ring whose memory disappears *stands still*: the ring keeps its kick, call, size, addresses,
//! enable state and position; the ring's worker receives kicks and finds nothing to serve. The ring
//! releases the memory table, so that the memory is unmapped. When a region contains the ring
//! again, the ring goes on at its position, and its worker looks at the ring once for buffers made
//! available meanwhile.
//!
//! Frames in a transmit ring without memory stay there. Frames for a receive ring without memory
//! are dropped, as for any receive ring that takes none.

use std::sync::Arc;

use super::super::features;
use super::super::message::VringAddr;
use super::super::refusal::Refusal;
use super::{Life, Rings, open_receive, ring_log};
use crate::memory::{DirtyLog, MemTable};
use crate::ring::split::RingLog;
use crate::ring::{RingError, SplitRing};

impl Rings<'_> {
    /// `SET_VRING_ADDR`. On a started ring, equal addresses change the log flag only; other
    /// addresses mean another ring, whose indices are taken from its used ring. A refused address
    /// changes nothing; a stopped ring keeps any address until there is memory.
    pub(crate) fn set_addr(
        &mut self,
        addr: VringAddr,
        memory: &Arc<MemTable>,
    ) -> Result<(), Refusal> {
        if addr.flags & !1 != 0 {
            return Err(Refusal::Flags(addr.flags));
        }
        let ring = self.ring(addr.index)?;
        let (life, index) = (ring.life, addr.index as usize);
        let old = ring.addr.replace(addr);
        let moved = old.is_none_or(|old| places(&old) != places(&addr));
        let found = SplitRing::check_place(memory, &self.config(index, 0));
        match (life, found) {
            (Life::Stopped, _) => Ok(()),
            (Life::Running { .. }, Ok(())) => self.move_running(index, moved, &addr, memory),
            // The ring's memory is away, so there is nothing to check the address against.
            (Life::MemoryGone { features, at }, Ok(()) | Err(RingError::NotMapped { .. })) => {
                let at = at.filter(|_| !moved);
                self.rings[index].life = Life::MemoryGone { features, at };
                Ok(())
            }
            (_, Err(error)) => {
                self.rings[index].addr = old;
                Err(error.into())
            }
        }
    }

    fn move_running(
        &mut self,
        index: usize,
        moved: bool,
        addr: &VringAddr,
        memory: &Arc<MemTable>,
    ) -> Result<(), Refusal> {
        let config = self.config(index, 0);
        let Some(queue) = self.guest.queue(index) else { return Ok(()) };
        queue.quiet(|vring, waiting| {
            let Some(ring) = &mut vring.ring else {
                return Ok(());
            };
            ring.rebase(Arc::clone(memory), &config)?;
            let log = ring.take_log().map(|log| ring_log(log.log, addr));
            ring.set_log(log);
            if moved {
                ring.begin_at_used();
                *waiting = None;
                if index.is_multiple_of(2) {
                    self.guest.set_active(index / 2, false);
                }
                open_receive(vring, self.guest, index);
            }
            Ok::<(), Refusal>(())
        })?;
        if moved {
            self.look(index);
        }
        Ok(())
    }

    /// Moves every running ring to another memory table; a ring whose parts are not in `memory`
    /// stands still from now on. When this returns, no ring holds another table.
    pub(crate) fn rebase(&mut self, memory: &Arc<MemTable>) {
        let count = self.rings.len();
        let mut stand = Vec::new();
        for index in (1..count).step_by(2).chain((0..count).step_by(2)) {
            let Life::Running { features } = self.rings[index].life else {
                continue;
            };
            let config = self.config(index, features);
            let Some(queue) = self.guest.queue(index) else { continue };
            let at = queue.quiet(|vring, waiting| {
                let ring = vring.ring.as_mut()?;
                ring.rebase(Arc::clone(memory), &config).err()?;
                let at = ring.position();
                (vring.ring, *waiting) = (None, None);
                if index.is_multiple_of(2) {
                    self.guest.set_active(index / 2, false);
                }
                Some(at)
            });
            if at.is_some() {
                self.rings[index].life = Life::MemoryGone { features, at };
                stand.push(index);
            }
        }
        if !stand.is_empty() && self.port.reports.log.allow() {
            stand.sort_unstable();
            log::info!("port {}: the memory of rings {stand:?} is taken away", self.port.name);
        }
    }

    /// Starts or resumes every ring that can run after memory has changed. Fails if a ring lacked
    /// resources: no later request would start the ring.
    pub(crate) fn refresh_all(
        &mut self,
        features: u64,
        memory: &Arc<MemTable>,
        log: &Option<Arc<DirtyLog>>,
    ) -> Result<(), Refusal> {
        let before = self.without_memory();
        for index in 0..self.rings.len() as u32 {
            // A ring whose addresses are in no region yet may start with the next region.
            match self.refresh(index, features, memory, log) {
                Err(refusal) if refusal.is_resource_exhaustion() => return Err(refusal),
                _ => {}
            }
        }
        let after = self.without_memory();
        if after < before && self.port.reports.log.allow() {
            let resumed = before - after;
            log::info!(
                "port {}: rings that go on: {resumed}, still without memory: {after}",
                self.port.name
            );
        }
        Ok(())
    }

    fn without_memory(&self) -> usize {
        self.rings.iter().filter(|ring| matches!(ring.life, Life::MemoryGone { .. })).count()
    }

    /// Resumes a ring without memory if the memory contains the ring. Takes from the features
    /// acknowledged `now` the offloads that may have changed for running rings meanwhile.
    pub(super) fn resume(
        &mut self,
        index: usize,
        now: u64,
        memory: &Arc<MemTable>,
        log: Option<RingLog>,
    ) -> Result<(), Refusal> {
        let Life::MemoryGone { features, at } = self.rings[index].life else {
            return Ok(());
        };
        let config = self.config(index, features);
        let ring = match at {
            Some(at) => SplitRing::resume(Arc::clone(memory), &config, at),
            None => SplitRing::start(Arc::clone(memory), &config),
        };
        let mut ring = match ring {
            Err(RingError::NotMapped { .. }) => return Ok(()),
            ring => ring?,
        };
        ring.set_log(log);
        if index.is_multiple_of(2) {
            ring.set_offloads(features::takes(now));
        }
        self.with_ring(index, |vring, guest| {
            vring.ring = Some(ring);
            open_receive(vring, guest, index);
        });
        self.rings[index].life = Life::Running { features };
        self.look(index);
        Ok(())
    }
}

/// Returns the addresses of a ring's three parts.
fn places(addr: &VringAddr) -> [u64; 3] {
    [addr.descriptor, addr.available, addr.used]
}
