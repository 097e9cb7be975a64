//! A guest's transmit ring as a source.

use std::sync::MutexGuard;

use super::{BurstContext, BurstGuard, Origin, Pipeline, Source, Time};
use crate::pipeline::backpressure::Backpressure;
use crate::port::moderation::Completed;
use crate::port::{Discard, GuestPort, Polled, Port, PortTable, Queue, Tx, TxState};
use crate::ring::{RingError, SplitRing};
use base::limits::{BURST_FRAMES, DISCARD_MILLIS};
use base::stats::{DropReason, WorkerStats};
use switch::{PortId, SourceMemo};
use sys::clock;

/// A locked transmit ring from which frames may be taken now.
struct TransmitRing<'p> {
    port: &'p Port,
    guest: &'p GuestPort,
    queue: &'p Queue<Tx>,
    index: usize,
    state: MutexGuard<'p, TxState>,
    /// Number of frames that may be taken.
    limit: usize,
}

impl Pipeline {
    /// Forwards one burst of a guest's transmit queue.
    pub fn guest_burst(
        &mut self,
        ports: &PortTable,
        id: PortId,
        index: usize,
        stats: &WorkerStats,
    ) -> Polled {
        let Some((port, guest)) = ports.guest(id) else { return Polled::Unavailable };
        let Some(queue) = guest.tx.get(index) else { return Polled::Unavailable };
        let Some(mut state) = queue.lock_for_burst() else {
            // A stuck thread may hold the lock for long; no suspension tells so of a ring in memory
            // that blocks no thread.
            let stalled = self.relieves || queue.must_not_wait() || !guest.may_block();
            return if stalled { self.retry() } else { Polled::Locked };
        };
        if state.vring.owner != Some(self.worker) {
            return Polled::Unavailable;
        }
        if guest.floods.owes() {
            self.account.collect(&mut state.side.deficit, &queue.stats, guest.floods.take_owed());
        }
        self.stalls.at_sender(id);
        match self.may_take(ports, port, queue, &mut state) {
            Ok(limit) => {
                let ring = TransmitRing { port, guest, queue, index, state, limit };
                self.forward(ports, ring, stats)
            }
            Err(Polled::Unavailable) if matches!(state.side.gate.discard, Discard::From(_)) => {
                self.discard(id, queue, state)
            }
            Err(next) => next,
        }
    }

    /// Returns the number of frames that may be taken from a transmit ring now. An error says what
    /// the worker does instead.
    #[inline(always)]
    fn may_take(
        &mut self,
        ports: &PortTable,
        port: &Port,
        queue: &Queue<Tx>,
        state: &mut TxState,
    ) -> Result<usize, Polled> {
        let id = port.id;
        let limit = match state.drain_left(queue) {
            Some(0) => return Err(Polled::Unavailable),
            Some(left) => left.into(),
            None => BURST_FRAMES,
        };
        if state.vring.running().is_none() {
            return Err(Polled::Unavailable);
        }
        if state.memory.until > self.time.cycle {
            return Err(Polled::RetryAt(state.memory.until));
        }
        if state.side.gate.booked.is_some()
            && let Some(next) = self.waits_for_rate(port, queue, state)
        {
            return Err(next);
        }
        if self.account.throttles(&mut state.side.deficit) {
            return Err(Polled::Throttled);
        }
        if state.side.gate.receiver.is_none() {
            return Ok(limit);
        }
        let Time { cycle, retry, .. } = self.time;
        let ring = Some((&mut *state, queue));
        let mut backpressure = Backpressure::new(ports, id, ring, (cycle, retry));
        let worth = backpressure.look(limit, &self.stalls);
        if worth.is_err() {
            self.account.charge(&mut state.side.deficit, &queue.stats, None);
        }
        worth
    }

    /// Discards the frames of a disabled transmit ring: the guest kicked the ring, so the guest
    /// wants its descriptors back, and a disabled ring has no side effects (vhost-user, "Ring
    /// states"). The frames are discarded after [`DISCARD_MILLIS`], because cloud-hypervisor
    /// enables the rings of a resumed guest after the guest has started to run.
    pub(crate) fn discard(
        &mut self,
        id: PortId,
        queue: &Queue<Tx>,
        mut state: MutexGuard<'_, TxState>,
    ) -> Polled {
        let TxState { vring, side: Tx { gate, .. }, .. } = &mut *state;
        let now = clock::cycles();
        let from = match gate.discard {
            Discard::Never => return Polled::Unavailable,
            // Enabled in the meantime, which came with a note to look.
            _ if vring.broken => return Polled::Unavailable,
            Discard::OnKick => now.saturating_add(clock::cycles_in(DISCARD_MILLIS * 1_000_000)),
            Discard::From(from) => from,
        };
        gate.discard = Discard::From(from);
        // Without memory, the gate keeps the kick until the memory is back.
        let Some(ring) = &mut vring.ring else { return Polled::Unavailable };
        if now < from {
            return Polled::RetryAt(from);
        }
        // If the driver refills the ring as fast as the worker discards, the loop ends after one
        // ring size.
        let mut left = usize::from(ring.size());
        while let (1.., Some(ring)) = (left, &mut vring.ring) {
            let count = |taken: usize| {
                queue.stats.frames.add(taken as u64);
                queue.stats.drops.add(DropReason::Disabled, taken as u64);
            };
            match ring.discard(left, count) {
                // The driver kicks for the next frame only if asked to, so frames may have come
                // just before.
                Ok((0, _)) if ring.enable_kicks() => left -= 1,
                Ok((0, _)) | Err(_) => break,
                Ok((taken, wanted)) => {
                    left -= taken;
                    self.signals.note(id, wanted, vring, &queue.stats);
                }
            }
        }
        Polled::Unavailable
    }
}

impl<'p> Source<'p> for TransmitRing<'p> {
    #[inline(always)]
    fn origin(&self) -> Origin<'p> {
        Origin { port: self.port, counters: &self.queue.stats, floods: Some(&self.guest.floods) }
    }

    #[inline(always)]
    fn memo(&mut self) -> &mut SourceMemo {
        &mut self.state.side.source
    }

    #[inline(always)]
    fn ring(&mut self) -> Option<(&mut TxState, &'p Queue<Tx>)> {
        Some((&mut self.state, self.queue))
    }

    #[inline(always)]
    fn take(&mut self, on: &mut Pipeline, context: &mut BurstContext) -> Result<(), Polled> {
        let Some(ring) = &mut self.state.vring.ring else { return Err(Polled::Unavailable) };
        match ring.take(&mut context.burst, self.limit) {
            Ok(0) => return Err(Polled::Empty),
            Ok(_) => {}
            Err(error) => return Err(self.break_ring(on, error)),
        }
        if let Some(flows) = self.guest.steering() {
            context.flows.note(&context.burst, flows, self.index);
        }
        Ok(())
    }

    #[inline(always)]
    fn complete(
        &mut self,
        on: &mut Pipeline,
        guard: BurstGuard<'_>,
        stats: &WorkerStats,
        next: Polled,
    ) -> Polled {
        let taken = guard.burst.taken();
        let state = &mut *self.state;
        if taken == 0 {
            guard.finish();
            on.account.charge(&mut state.side.deficit, &self.queue.stats, None);
            return next;
        }
        if let Some(ring) = &mut state.vring.ring {
            let completed = Completed {
                wanted: ring.complete(&guard.burst),
                slots: guard.burst.slots(),
                bytes: guard.bytes,
                size: ring.size(),
                received: self.guest.received(),
            };
            on.signals.note_sent(self.port.id, completed, state, &self.queue.stats);
        }
        guard.finish();
        state.drain_left(self.queue);
        let more = state.vring.ring.as_ref().is_some_and(SplitRing::has_more);
        on.account.charge(&mut state.side.deficit, &self.queue.stats, Some(more));
        stats.bursts.add(1);
        // Counted after classification, which may shorten the burst: the other frames are taken
        // again.
        stats.frames.add(taken as u64);
        Polled::More
    }
}

impl TransmitRing<'_> {
    /// Takes a ring that its driver broke out of service.
    #[cold]
    fn break_ring(&mut self, on: &mut Pipeline, error: RingError) -> Polled {
        let TxState { vring, side, .. } = &mut *self.state;
        side.gate.drain_to = None;
        on.signals.note_broken((self.port.id, 2 * self.index + 1), vring, error);
        self.queue.notify_drained();
        Polled::Unavailable
    }
}
