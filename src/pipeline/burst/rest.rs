//! The rest of a flood, in the turns behind that of its burst.
//!
//! The burst is complete: its descriptors are back in the sender's ring, and its frames are counted
//! there. Private copies of those that are flooded on are kept, so that the sender changes nothing
//! of them any more. They come from the same source until all receivers are served, one after the
//! other: the ring waits, which keeps the order, takes its turns as with bursts, and is charged for
//! them. Each copy is counted when it is made. A port that went before its turn came gets none, as
//! if it had gone before the flood.

use std::sync::MutexGuard;

use super::{BurstContext, BurstGuard, Flooding, Pipeline, Source};
use crate::pipeline::backpressure::Backpressure;
use crate::pipeline::deliver::Delivery;
use crate::pipeline::flood;
use crate::pipeline::stalls::At;
use crate::port::device::Reading;
use crate::port::{DeviceQueue, Endpoint, Next, Port, PortTable, Queue, Remainder, Tx, TxState};
use crate::stats::{QueueStats, WorkerStats};
use crate::switch::{Policy, PortId};

impl Pipeline {
    /// Keeps what a burst leaves of its flood.
    #[cold]
    pub(super) fn keep_rest<'p>(&self, source: &mut impl Source<'p>, context: &mut BurstContext) {
        let BurstContext { burst, plan, place, .. } = context;
        let place = place.take();
        if let Some((fan, scope, next)) = plan.unserved() {
            let (worker, frames) = (self.worker, burst.keep(fan.frames()));
            source.keep(Box::new(Remainder { worker, frames, scope, next, place }));
            plan.all_served();
        }
    }

    /// True if a flood from that queue of a port is to go on.
    pub fn has_rest(&self, ports: &PortTable, id: PortId, index: usize) -> bool {
        match ports.get(id).map(|port| &port.endpoint) {
            Some(Endpoint::Guest(guest)) => {
                let state = guest.tx.get(index).and_then(Queue::lock_for_burst);
                let rest = state.as_ref().and_then(|state| state.flood.as_ref());
                rest.is_some_and(|rest| rest.worker == self.worker)
            }
            Some(Endpoint::Device(device)) => {
                let reading = device.queues().get(index).and_then(DeviceQueue::reading);
                reading.is_some_and(|it| it.flood.is_some() || it.later.is_some())
            }
            None => false,
        }
    }

    /// Goes on with a flood from a guest's ring.
    #[cold]
    pub(super) fn flood_from_ring(
        &mut self,
        ports: &PortTable,
        (port, queue): (&Port, &Queue<Tx>),
        mut state: MutexGuard<'_, TxState>,
        stats: &WorkerStats,
    ) -> Next {
        let TxState { vring, flood, side, .. } = &mut *state;
        let began_here = flood.as_ref().is_some_and(|rest| rest.worker == self.worker);
        // The lock keeps the order where the ring moved meanwhile and both workers look.
        if !began_here && vring.owner != Some(self.worker) {
            return Next::Gone;
        }
        if self.account.throttles(&mut side.deficit) {
            return Next::Throttled;
        }
        self.flood_on(ports, (port, &queue.stats), flood, stats);
        self.account.charge(&mut side.deficit, &queue.stats, Some(true));
        Next::More
    }

    /// The same from a queue of a device.
    #[cold]
    pub(super) fn flood_from_device(
        &mut self,
        ports: &PortTable,
        (port, queue): (&Port, &DeviceQueue),
        reading: &mut Reading,
        stats: &WorkerStats,
    ) -> Next {
        self.flood_on(ports, (port, &queue.input), &mut reading.flood, stats);
        self.account.charge(&mut reading.deficit, &queue.input, Some(true));
        Next::More
    }

    /// Serves the next receivers of a flood. What is left of it then is put back.
    fn flood_on(
        &mut self,
        ports: &PortTable,
        (port, counters): (&Port, &QueueStats),
        place: &mut Option<Box<Remainder>>,
        stats: &WorkerStats,
    ) {
        let Some(mut rest) = place.take() else { return };
        self.is_at(At::NOTHING);
        let mut context = self.context.take().unwrap_or_default();
        let mut guard = BurstGuard::new(&mut context, counters);
        guard.flooding = Flooding::Rest;
        guard.burst.restore(&mut rest.frames);
        self.plan_rest(ports, &rest, &mut guard);
        if ports.is_observed() {
            self.begin_observing(ports, &mut guard);
            self.find_mirrored(ports, port.id, &mut guard);
        }
        self.deliver_rest(ports, port, &mut guard, stats);
        if guard.outcomes.are_wanted() {
            self.observe(ports, port.id, counters, &mut guard, stats);
        }
        let next = guard.plan.unserved().map(|(_, _, next)| next);
        guard.burst.clear();
        guard.finish();
        self.context = Some(context);
        *place = next.map(|next| {
            rest.next = next;
            rest
        });
    }

    fn plan_rest(&self, ports: &PortTable, rest: &Remainder, context: &mut BurstContext) {
        let BurstContext { burst, plan, .. } = context;
        let policy = Policy { fdb: &self.fdb, ports, rules: self.rules };
        let bytes = burst.frames().iter().map(|frame| frame.len as usize).sum();
        let fan = plan.fan(0, |targets| {
            flood::find(&policy, (rest.scope, rest.next), flood::AT_ONCE, targets);
        });
        fan.limit(flood::receivers_of(bytes), rest.scope);
        (0..burst.frames().len() as u8).for_each(|frame| fan.push(frame));
    }

    fn deliver_rest(
        &mut self,
        ports: &PortTable,
        port: &Port,
        context: &mut BurstContext,
        stats: &WorkerStats,
    ) {
        let BurstContext { burst, plan, room, outcomes, wait_until, .. } = context;
        let Pipeline { worker, fdb, time, signals, stalls, account, .. } = self;
        let mut delivery = Delivery {
            worker: *worker,
            stats,
            backpressure: Backpressure::new(ports, fdb, time.cycle, time.retry, port.id),
            wait_until,
            room,
            stalls,
            slow: 0,
            signals,
            outcomes,
        };
        delivery.flood(burst, plan);
        burst.keep_tags();
        account.forgive(delivery.slow);
    }
}
