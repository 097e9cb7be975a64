//! What becomes of frames in a transmit ring that is disabled.

use std::sync::MutexGuard;

use super::{Pipeline, Serviced};
use crate::limits::DISCARD_MILLIS;
use crate::port::{Queue, RingState};
use crate::stats::DropReason;
use crate::switch::PortId;
use crate::sys::clock;

impl Pipeline {
    /// Discards what a disabled transmit ring holds: the guest kicked it, so it wants its
    /// descriptors back, and a disabled ring has no side effects (vhost-user, "Ring states"). Not
    /// at once, though: cloud-hypervisor enables the rings of a resumed guest when it runs already.
    pub fn discard(
        &mut self,
        id: PortId,
        queue: &Queue,
        mut state: MutexGuard<'_, RingState>,
    ) -> Serviced {
        if !state.discard || state.broken {
            // Enabled in the meantime, which came with a note to look.
            return Serviced::Gone;
        }
        let now = clock::cycles();
        let keep = clock::cycles_in(DISCARD_MILLIS * 1_000_000);
        let from = *state.discard_from.get_or_insert(now.saturating_add(keep));
        if state.ring.is_none() {
            // Its memory is away; that it was kicked is kept for when it is back.
            return Serviced::Gone;
        }
        if now < from {
            return Serviced::RetryAt(from);
        }
        // A driver that refills as fast as we discard ends this loop at one ring's worth.
        let mut left = state.ring.as_ref().map_or(0, |ring| usize::from(ring.size()));
        while left > 0 {
            let Some(ring) = &mut state.ring else { break };
            match ring.discard(left) {
                // The driver kicks for the next frame only if asked to, or was just before us.
                Ok((0, _)) if ring.enable_kicks() => left -= 1,
                Ok((0, _)) | Err(_) => break,
                Ok((taken, wanted)) => {
                    left -= taken;
                    queue.stats.frames.add(taken as u64);
                    queue.stats.drops.add(DropReason::Disabled, taken as u64);
                    self.signals.note(id, wanted, &mut state, &queue.stats);
                }
            }
        }
        Serviced::Gone
    }
}
