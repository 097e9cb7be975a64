//! A guest's transmit ring as a source.

use std::sync::MutexGuard;

use super::{Pipeline, Serviced, Source};
use crate::limits::BURST_FRAMES;
use crate::pipeline::context::{BurstContext, BurstGuard};
use crate::pipeline::deliver::report_broken;
use crate::pipeline::guest_of;
use crate::port::moderation::Completed;
use crate::port::{GuestPort, Port, PortTable, Queue, RingState};
use crate::ring::RingError;
use crate::stats::{QueueStats, WorkerStats};
use crate::switch::{PortId, SourceMemo};
use crate::sys::clock;

/// A transmit ring that may send now, locked.
struct TransmitRing<'p> {
    port: &'p Port,
    guest: &'p GuestPort,
    queue: &'p Queue,
    index: usize,
    state: MutexGuard<'p, RingState>,
    /// Frames that may be taken.
    limit: usize,
    /// What its driver was found to have broken in this burst.
    broken: Option<RingError>,
}

impl Pipeline {
    /// Forwards one burst of a guest's transmit queue.
    pub fn guest_burst(
        &mut self,
        ports: &PortTable,
        id: PortId,
        index: usize,
        stats: &WorkerStats,
    ) -> Serviced {
        let Some((port, guest)) = guest_of(ports, id) else {
            return Serviced::Gone;
        };
        let Some(queue) = guest.tx.get(index) else {
            return Serviced::Gone;
        };
        let Some(mut state) = queue.lock_for_burst() else {
            return Serviced::Busy;
        };
        if state.owner != Some(self.worker) {
            return Serviced::Gone;
        }
        let mut limit = match drain_left(&mut state, queue) {
            Some(0) => return Serviced::Gone,
            Some(left) => usize::from(left),
            None => BURST_FRAMES,
        };
        if state.running().is_none() {
            let kept = state.discard_from.is_some();
            return if kept { self.discard(id, queue, state) } else { Serviced::Gone };
        }
        if state.paused_until > self.time.cycle {
            return Serviced::RetryAt(state.paused_until);
        }
        if self.account.throttles(&mut state) {
            return Serviced::Busy;
        }
        if state.waiting.is_some() && !self.stalls.is_watching() {
            match self.look_at_receiver(ports, id, &mut state, limit) {
                Ok(worth) => limit = worth,
                Err(serviced) => {
                    self.account.charge_ring(&mut state, &queue.stats);
                    return serviced;
                }
            }
        }
        self.forward(
            ports,
            TransmitRing { port, guest, queue, index, state, limit, broken: None },
            stats,
        )
    }
}

impl<'p> Source<'p> for TransmitRing<'p> {
    #[inline(always)]
    fn port(&self) -> &'p Port {
        self.port
    }

    #[inline(always)]
    fn counters(&self) -> &'p QueueStats {
        &self.queue.stats
    }

    #[inline(always)]
    fn memo(&mut self) -> &mut SourceMemo {
        &mut self.state.source
    }

    #[inline(always)]
    fn ring(&mut self) -> Option<(&mut RingState, &'p Queue)> {
        Some((&mut self.state, self.queue))
    }

    #[inline(always)]
    fn take(&mut self, on: &mut Pipeline, context: &mut BurstContext) -> Result<(), Serviced> {
        let Some(ring) = &mut self.state.ring else { return Err(Serviced::Gone) };
        match ring.take(&mut context.burst, self.limit) {
            Ok(0) => return Err(Serviced::Idle),
            Ok(_) => {}
            Err(error) => return Err(self.break_ring(on, error)),
        }
        if on.stalls.is_watching() {
            on.stalls.end_part(self.port, self.state.session);
        }
        if let Some(flows) = self.guest.steering() {
            context.flows.note(&context.burst, flows, self.index);
        }
        Ok(())
    }

    #[inline(always)]
    fn before_delivery(&mut self, on: &mut Pipeline, context: &mut BurstContext) {
        if on.stalls.is_watching() {
            self.stage(on, context);
        }
    }

    #[inline(always)]
    fn complete(
        &mut self,
        on: &mut Pipeline,
        guard: BurstGuard<'_>,
        stats: &WorkerStats,
        next: Serviced,
    ) -> Serviced {
        let taken = guard.burst.taken();
        let state = &mut *self.state;
        if taken == 0 {
            guard.finish();
            on.account.charge_ring(state, &self.queue.stats);
            return next;
        }
        if let Some(ring) = &mut state.ring {
            let completed = Completed {
                wanted: ring.complete(&guard.burst),
                slots: guard.burst.slots(),
                bytes: guard.bytes,
                size: ring.size(),
                received: self.guest.received(),
            };
            let from = (self.port.id, self.index);
            on.signals.note_sent(from, completed, state, &self.queue.stats, on.time.cycle);
        }
        guard.finish();
        drain_left(state, self.queue);
        on.account.charge_ring(state, &self.queue.stats);
        stats.bursts.add(1);
        // After classifying, which may have cut the burst: what was cut comes again.
        stats.frames.add(taken as u64);
        Serviced::More
    }

    #[inline(always)]
    fn end(self) {
        if self.broken.is_some() {
            self.report();
        }
    }
}

impl TransmitRing<'_> {
    /// Copies what is to be delivered of the burst to private memory, in the time of its sender. A
    /// guest has written what it sends, so that its pages are there; one whose pages are not sends
    /// nothing for many times as long as they took.
    #[cold]
    fn stage(&mut self, on: &mut Pipeline, context: &mut BurstContext) {
        on.stalls.begin_part();
        context.burst.stage(context.plan.frame_bits());
        if let Some(stall) = on.stalls.end_part(self.port, self.state.session) {
            self.state.pause(stall.cycles, clock::cycles());
        }
    }

    /// Takes the ring out of service, which its driver broke.
    #[cold]
    fn break_ring(&mut self, on: &mut Pipeline, error: RingError) -> Serviced {
        let state = &mut *self.state;
        state.broken = true;
        state.drain_to = None;
        on.signals.note_error(self.port.id, state);
        self.broken = Some(state.ring.as_ref().map_or(error, |ring| ring.cause(error)));
        Serviced::Gone
    }

    /// Says that the ring is broken, which is no longer locked then.
    #[cold]
    fn report(self) {
        let TransmitRing { port, queue, index, state, broken, .. } = self;
        let session = state.session;
        drop(state);
        queue.notify_drained();
        if let Some(error) = broken {
            report_broken(port, session, 2 * index + 1, error);
        }
    }
}

/// Frames a ring that is being disabled still has to forward; none if it is not. Disables the ring
/// and tells the waiting session when there are none left.
fn drain_left(state: &mut RingState, queue: &Queue) -> Option<u16> {
    let target = state.drain_to?;
    let left = match state.running() {
        Some(ring) => target.wrapping_sub(ring.base()),
        None => 0,
    };
    if left == 0 {
        state.drain_to = None;
        state.enabled = false;
        if let Some(ring) = &mut state.ring {
            // Later frames are discarded on a kick; whether some are there already is the
            // driver's affair until it kicks again.
            let _ = ring.enable_kicks();
        }
        queue.notify_drained();
    }
    Some(left)
}
