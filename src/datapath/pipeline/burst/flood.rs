//! Service of the receivers of a flood: the first receivers after the burst, the others in later
//! turns.

use std::sync::Arc;

use super::{BurstContext, Pipeline};
use crate::pipeline::flood::{AT_ONCE, PendingFlood, find, limit_part};
use crate::port::quantum::Deficit;
use crate::port::{FloodSlot, Port, PortTable};
use base::stats::{DropReason, WorkerStats};
use switch::Policy;

/// Counts copies that a panic prevented as `panicked` drops. The source counts copies before they
/// are made.
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
    /// Floods a completed burst, which the source has counted: serves the first receivers, and
    /// keeps the flood for the other receivers.
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
        let permit = context.flood.permit.take().map(Arc::new);
        for (group, next) in context.plan.unserved() {
            let (frames, scope) = (context.burst.keep(group.frames()), group.scope());
            let (slot, permit) = (slot.cloned(), permit.clone());
            let deficit = Deficit::default();
            self.floods.push(PendingFlood { frames, scope, next, slot, permit, deficit });
        }
        context.plan.clear();
    }

    /// Serves the next receivers of the flood that has waited longest. False if there is none, if
    /// the flood's port is gone, or if the flood's deficit makes it wait.
    #[cold]
    pub(crate) fn go_on(&mut self, ports: &PortTable, stats: &WorkerStats) -> bool {
        let Some(mut flood) = self.floods.pop() else { return false };
        let Some(from) = ports.get(flood.scope.from.port).filter(|port| flood.is_of(port)) else {
            return false;
        };
        if self.account.throttles(&mut flood.deficit) {
            self.floods.push(flood);
            return false;
        }
        flood.permit.iter().for_each(|permit| permit.begin_part(self.time.cycle));
        let mut context = self.context.take().unwrap_or_default();
        let BurstContext { burst, plan, .. } = &mut *context;
        burst.restore(&mut flood.frames);
        let policy = Policy { fdb: &self.fdb, ports, rules: self.rules };
        let find =
            |targets: &mut Vec<_>| find(&policy, (flood.scope, flood.next), AT_ONCE, targets);
        let group = plan.flood_group(0, flood.scope, find);
        (0..burst.frames().len() as u8).for_each(|frame| group.push(frame));
        limit_part(plan, burst);
        from.stats.copies.add_shared(plan.flood_copies_left() as u64);
        let spent = self.serve(ports, (from, flood.slot.as_ref()), &mut context, stats);
        self.account.charge_part(&mut flood.deficit, spent);
        let next = context.plan.unserved().map(|(_, next)| next).next();
        context.burst.clear();
        context.plan.clear();
        self.context = Some(context);
        if let Some(next) = next {
            flood.next = next;
            self.floods.push(flood);
        }
        true
    }

    /// Delivers the floods of the plan, whose frames are private. Charges the source, and returns
    /// the cycles spent.
    fn serve(
        &mut self,
        ports: &PortTable,
        (from, slot): (&Port, Option<&Arc<FloodSlot>>),
        context: &mut BurstContext,
        stats: &WorkerStats,
    ) -> u64 {
        self.account.end_look();
        self.stalls.at_nothing();
        let unsettled = Unsettled { context, from };
        let context = &mut *unsettled.context;
        context.flood.is_continued = true;
        if ports.is_observed() {
            context.outcomes.begin();
            // The result is not needed: frames of a flood are private already.
            let _ = self.frames_for_observers(ports, from.id, context);
        }
        self.deliver_floods(ports, from, context, stats);
        if context.outcomes.are_wanted {
            self.observe(ports, from, context, stats);
        }
        drop(unsettled);
        self.account.forgive(self.stalls.take_delay());
        let spent = self.account.lap();
        slot.into_iter().for_each(|slot| slot.owe(spent));
        spent
    }

    fn deliver_floods(
        &mut self,
        ports: &PortTable,
        from: &Port,
        context: &mut BurstContext,
        stats: &WorkerStats,
    ) {
        let now = self.time.tick;
        let BurstContext { burst, plan, filters, room, outcomes, wait_until, .. } = context;
        let mut delivery = self.delivery((ports, from.id), (room, wait_until), outcomes, stats);
        delivery.flood(burst, plan, filters, now);
        burst.keep_tags();
    }
}
