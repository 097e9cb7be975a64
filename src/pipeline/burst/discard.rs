//! What becomes of frames in a transmit ring that is disabled.

use std::sync::MutexGuard;

use super::Pipeline;
use crate::limits::DISCARD_MILLIS;
use crate::port::{Discard, Next, Queue, Tx, TxState};
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
        queue: &Queue<Tx>,
        mut state: MutexGuard<'_, TxState>,
    ) -> Next {
        let TxState { vring, side: Tx { gate, .. }, .. } = &mut *state;
        let now = clock::cycles();
        let from = match gate.discard {
            Discard::Never => return Next::Gone,
            // Enabled in the meantime, which came with a note to look.
            _ if vring.broken => return Next::Gone,
            Discard::OnKick => now.saturating_add(clock::cycles_in(DISCARD_MILLIS * 1_000_000)),
            Discard::From(from) => from,
        };
        gate.discard = Discard::From(from);
        // If its memory is away, that it was kicked is kept for when it is back.
        let Some(ring) = &mut vring.ring else { return Next::Gone };
        if now < from {
            return Next::At(from);
        }
        // A driver that refills as fast as we discard ends this loop at one ring's worth.
        let mut left = usize::from(ring.size());
        while let (1.., Some(ring)) = (left, &mut vring.ring) {
            match ring.discard(left) {
                // The driver kicks for the next frame only if asked to, or was just before us.
                Ok((0, _)) if ring.enable_kicks() => left -= 1,
                Ok((0, _)) | Err(_) => break,
                Ok((taken, wanted)) => {
                    left -= taken;
                    queue.stats.frames.add(taken as u64);
                    queue.stats.drops.add(DropReason::Disabled, taken as u64);
                    self.signals.note(id, wanted, vring, &queue.stats);
                }
            }
        }
        Next::Gone
    }
}
