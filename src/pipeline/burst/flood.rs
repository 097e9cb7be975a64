//! The receivers of a flood: the first ones behind the burst, the others in the next turns.

use std::sync::Arc;

use super::{BurstContext, Pipeline};
use crate::pipeline::backpressure::Backpressure;
use crate::pipeline::deliver::Delivery;
use crate::pipeline::flood::{AT_ONCE, PendingFlood, find, limit_part};
use crate::pipeline::stalls::At;
use crate::port::{FloodSlot, Port, PortTable};
use crate::stats::{DropReason, WorkerStats};
use crate::switch::{Policy, PortId};
use crate::sys::clock;

/// Counts what a panic leaves of a part's copies as dropped. Copies are counted as asked for before
/// they are made.
pub(super) struct Unsettled<'a> {
    pub(super) context: &'a mut BurstContext,
    pub(super) from: &'a Port,
}

impl Drop for Unsettled<'_> {
    fn drop(&mut self) {
        let left = self.context.plan.flood_copies_left() as u64;
        if left > 0 {
            self.from.stats.drops.add_shared(DropReason::Panicked, left);
        }
    }
}

impl Pipeline {
    /// True if floods go on.
    #[inline(always)]
    pub fn has_floods(&self) -> bool {
        !self.floods.is_empty()
    }

    /// How many floods go on.
    pub fn floods(&self) -> usize {
        self.floods.len()
    }

    /// The port whose flood goes on next.
    pub fn next_flood(&self) -> Option<PortId> {
        self.floods.front().map(|flood| flood.scope.from.port)
    }

    /// Forgets the floods of ports that `stays` says no to.
    pub fn forget_floods(&mut self, stays: impl Fn(PortId) -> bool) {
        self.floods.retain(|flood| stays(flood.scope.from.port));
    }

    /// Serves the first receivers of a burst that its source has back, and that is counted there.
    #[cold]
    #[inline(never)]
    pub(super) fn flood(
        &mut self,
        ports: &PortTable,
        (from, slot): (&Port, Option<&Arc<FloodSlot>>),
        context: &mut BurstContext,
        stats: &WorkerStats,
    ) {
        self.serve(ports, (from, slot), context, stats);
        let permit = context.permit.take().map(Arc::new);
        for (fan, next) in context.plan.unserved() {
            let (frames, scope) = (context.burst.keep(fan.frames()), fan.scope());
            let (slot, permit) = (slot.cloned(), permit.clone());
            self.keep_flood(PendingFlood { frames, scope, next, slot, permit });
        }
        context.plan.clear();
    }

    /// Keeps a flood for the next turns.
    pub fn keep_flood(&mut self, flood: PendingFlood) {
        self.floods.push_back(flood);
    }

    /// Serves the next receivers of the flood that waits longest.
    #[cold]
    pub fn go_on(&mut self, ports: &PortTable, stats: &WorkerStats) {
        let Some(mut flood) = self.floods.pop_front() else { return };
        let Some(from) = ports.get(flood.scope.from.port) else { return };
        let mut context = self.context.take().unwrap_or_default();
        let BurstContext { burst, plan, .. } = &mut *context;
        burst.restore(&mut flood.frames);
        let policy = Policy { fdb: &self.fdb, ports, rules: self.rules };
        let find =
            |targets: &mut Vec<_>| find(&policy, (flood.scope, flood.next), AT_ONCE, targets);
        let fan = plan.fan(0, flood.scope, find);
        (0..burst.frames().len() as u8).for_each(|frame| fan.push(frame));
        limit_part(plan, burst);
        from.stats.copies.add_shared(plan.flood_copies_left() as u64);
        self.serve(ports, (from, flood.slot.as_ref()), &mut context, stats);
        let next = context.plan.unserved().map(|(_, next)| next).next();
        context.burst.clear();
        context.plan.clear();
        self.context = Some(context);
        if let Some(next) = next {
            flood.next = next;
            self.keep_flood(flood);
        }
    }

    /// Delivers the floods of the plan, whose frames are private, and has their source pay.
    fn serve(
        &mut self,
        ports: &PortTable,
        (from, slot): (&Port, Option<&Arc<FloodSlot>>),
        context: &mut BurstContext,
        stats: &WorkerStats,
    ) {
        let began = self.account.end_look();
        self.is_at(At::NOTHING);
        let unsettled = Unsettled { context, from };
        let context = &mut *unsettled.context;
        context.is_continued = true;
        if ports.is_observed() {
            context.outcomes.begin();
            self.find_mirrored(ports, from.id, context);
        }
        let slow = self.deliver_floods(ports, from, context, stats);
        if context.outcomes.are_wanted() {
            self.observe(ports, from, context, stats);
        }
        drop(unsettled);
        let spent = clock::since(began, self.account.end_look());
        slot.into_iter().for_each(|slot| slot.owe(spent.saturating_sub(slow)));
    }

    /// Cycles that receivers' memory took to come.
    fn deliver_floods(
        &mut self,
        ports: &PortTable,
        from: &Port,
        context: &mut BurstContext,
        stats: &WorkerStats,
    ) -> u64 {
        let BurstContext { burst, plan, room, outcomes, wait_until, .. } = context;
        let Pipeline { worker, fdb, time, signals, stalls, .. } = self;
        let mut delivery = Delivery {
            worker: *worker,
            stats,
            backpressure: Backpressure::new(ports, fdb, time.cycle, time.retry, from.id),
            wait_until,
            room,
            stalls,
            slow: 0,
            signals,
            outcomes,
        };
        delivery.flood(burst, plan);
        burst.keep_tags();
        delivery.slow
    }
}
