//! Frames that wait in their sender's ring for a receiver without buffers: `port::backpressure`.
//!
//! What waits is always the end of a burst, given back to its ring as if never taken: a ring is
//! completed in order, so nothing behind a frame that waits may be delivered before it. It is found
//! in three places, from the cheapest to the most expensive:
//!
//! 1. before a burst is taken, if the ring's first frames waited already: one look at the receiver;
//! 2. before a burst for several receivers is delivered, if one of them was lately short: what can
//!    be delivered in front of the first frame that finds no buffer is, and the rest is given back;
//! 3. after delivering, where a receiver turned out to be short: its frames, if they are the end of
//!    the burst.

use super::{Pipeline, Source};
use crate::frame::ethernet;
use crate::pipeline::context::BurstContext;
use crate::pipeline::guest_of;
use crate::pipeline::plan::{Plan, Run};
use crate::port::backpressure::{Wait, Waiting};
use crate::port::{Endpoint, Next, Port, PortTable, Queue, Rx, RxState, Tx, TxState};
use crate::ring::{Burst, SplitRing};
use crate::stats::WorkerStats;
use crate::switch::PortId;
use crate::sys::clock;

/// How the frames of a ring may wait: not at all if somebody waits for the ring itself.
pub(super) fn may_wait(state: &TxState, now: u64, others: bool) -> Option<Wait> {
    let (None, Some(ring)) = (state.side.gate.drain_to, &state.vring.ring) else { return None };
    let waited = |waiting: Waiting| clock::since(waiting.charged_until, now);
    let waited = state.side.gate.receiver.map_or(0, waited);
    Some(Wait { now, waited, ring_size: ring.size(), others })
}

impl Pipeline {
    /// Looks at the receiver that a ring's first frames wait for: how many frames, `limit` at most,
    /// are worth taking now, or what there is to do instead.
    #[inline(never)]
    pub(super) fn look_at_receiver(
        &mut self,
        ports: &PortTable,
        id: PortId,
        state: &mut TxState,
        limit: usize,
    ) -> Result<usize, Next> {
        let (Some(mut waiting), Some(mut wait)) =
            (state.side.gate.receiver, may_wait(state, self.time.cycle, false))
        else {
            return Ok(limit);
        };
        // It may be gone since, and its number another port's.
        let receivers = guest_of(ports, waiting.port).map(|(_, guest)| &guest.rx);
        let Some(receiver_queue) = receivers.and_then(|rx| rx.get(usize::from(waiting.queue)))
        else {
            return Ok(limit);
        };
        let Some(mut receiver) = receiver_queue.lock_again() else {
            return self.look_again_or_stall(state, receiver_queue).map(|()| limit);
        };
        waiting.blocked_since = None;
        let RxState { vring, side: Rx { shares, credit, .. }, .. } = &mut *receiver;
        let Some(ring) = vring.running() else { return Ok(limit) };
        let wanted = limit.min(state.vring.ring.as_mut().map_or(0, |ring| ring.offered().into()));
        let granted = shares.grant(id, wanted, ring.offered());
        if granted > 0 {
            // Where others' frames are among them as many as usual are taken: they need not wait.
            return Ok(if waiting.others { limit } else { granted });
        }
        // Once others were seen nothing behind them needs a look.
        waiting.others = waiting.others || looks_behind(state.vring.ring.as_mut(), &mut waiting);
        wait.others = waiting.others;
        if !credit.allows(wait, &self.time.backpressure) {
            return Ok(limit);
        }
        waiting.charged_until = self.time.cycle;
        state.side.gate.receiver = Some(waiting);
        // The driver's next buffers end the waiting, unless they came just before it could see that
        // we ask.
        Err(if ring.enable_kicks() { Next::Again } else { self.retry() })
    }

    /// Somebody else holds the ring of the receiver, and may have been stopped in the middle of it,
    /// by the scheduler or by a page of a hostile guest that is not there. When that has lasted as
    /// long as anybody is waited for, nobody waits for this ring before its lock was free again.
    #[cold]
    fn look_again_or_stall(&self, state: &mut TxState, receiver: &Queue<Rx>) -> Result<(), Next> {
        let Some(waiting) = &mut state.side.gate.receiver else { return Ok(()) };
        let since = *waiting.blocked_since.get_or_insert(self.time.cycle);
        if clock::since(since, self.time.cycle) < self.time.backpressure.most
            && !receiver.is_stalled()
        {
            return Err(Next::Locked);
        }
        receiver.stall();
        Ok(())
    }

    /// Delivers a burst but for what waits in its ring: whether there may be more to take, or what
    /// else to do next.
    #[inline(always)]
    pub(super) fn deliver_or_wait<'p>(
        &mut self,
        ports: &'p PortTable,
        source: &mut impl Source<'p>,
        context: &mut BurstContext,
        stats: &WorkerStats,
    ) -> Next {
        let port = source.port();
        let Some((state, queue)) = source.ring() else {
            self.deliver(ports, port, context, stats, None);
            return Next::More;
        };
        // Who is watched is asked nothing beside being delivered to.
        let cut = match self.stalls.is_watching() {
            true => None,
            false => self.cut_to_room((ports, port), state, queue, context),
        };
        let mut next = cut.unwrap_or(Next::More);
        let tried = self.deliver(ports, port, context, stats, Some((state, false)));
        if tried.left {
            let to = (ports, port);
            let left = self.leave_waiting(to, (state, queue), context, stats, tried.again);
            next = left.unwrap_or(next);
        }
        if next == Next::More {
            state.side.gate.receiver = None;
        }
        next
    }

    /// Of a burst for several receivers of which one was lately short: gives back what is behind
    /// the first frame that would find no buffer, that one included. If so, what to do next.
    #[inline(always)]
    fn cut_to_room(
        &mut self,
        (ports, port): (&PortTable, &Port),
        state: &mut TxState,
        queue: &Queue<Tx>,
        context: &mut BurstContext,
    ) -> Option<Next> {
        let plan = &mut context.plan;
        if plan.goes_one_way() || !plan.runs().iter().any(|run| is_short(ports, run)) {
            return None;
        }
        self.cut_short_burst((ports, port), state, queue, context)
    }

    #[inline(never)]
    fn cut_short_burst(
        &mut self,
        (ports, port): (&PortTable, &Port),
        state: &mut TxState,
        queue: &Queue<Tx>,
        context: &mut BurstContext,
    ) -> Option<Next> {
        let BurstContext { burst, plan, .. } = context;
        // A frame that was dropped is counted, and would be again when it came back.
        if plan.frames() != burst.frames().len() {
            return None;
        }
        let wait = may_wait(state, self.time.cycle, true)?;
        let mut cut: Option<(u8, PortId, u8)> = None;
        let mut next = self.retry();
        for run in plan.runs() {
            let Endpoint::Guest(guest) = &ports[run.port].endpoint else { continue };
            let receiver = &guest.rx[usize::from(run.queue)];
            if !receiver.is_short() {
                continue;
            }
            let Some(mut locked) = receiver.lock_for_burst() else { continue };
            let RxState { vring, side: Rx { shares, credit, .. }, .. } = &mut *locked;
            let Some(ring) = vring.running() else { continue };
            let (wanted, free) = (run.left().len(), ring.offered());
            let granted = shares.allow(port.id, wanted, || free.into()).min(shares.frames_in(free));
            run.grant(granted);
            let Some(&at) = run.left().get(granted) else {
                // An overloaded receiver has room for one burst now and then.
                receiver.set_short(free < ring.size() / 2);
                continue;
            };
            if cut.is_none_or(|(first, ..)| at < first)
                && credit.allows(wait, &self.time.backpressure)
            {
                cut = Some((at, run.port, run.queue));
                next = if ring.enable_kicks() { Next::Again } else { next };
            }
        }
        let (at, to, receive_queue) = cut?;
        let waiting = self.waiting(state, &context.burst, at, (to, receive_queue), true);
        context.give_back(at);
        note(state, queue, waiting);
        Some(next)
    }

    /// Frames that are left when a burst was delivered wait for their receiver, and if others are
    /// behind them only for as long as it has earned that; what may not wait is dropped. If some
    /// are left, what there is to do next.
    #[inline(never)]
    fn leave_waiting(
        &mut self,
        (ports, port): (&PortTable, &Port),
        (state, queue): (&mut TxState, &Queue<Tx>),
        context: &mut BurstContext,
        stats: &WorkerStats,
        mut again: bool,
    ) -> Option<Next> {
        let (at, to) = first_left(&mut context.plan)?;
        let mut waiting = self.waiting(state, &context.burst, at, to, false);
        if looks_behind(state.vring.ring.as_mut(), &mut waiting) {
            waiting.others = true;
            again = self.deliver(ports, port, context, stats, Some((state, true))).again;
        }
        let (at, _) = first_left(&mut context.plan)?;
        context.give_back(at);
        note(state, queue, waiting);
        Some(if again { Next::Again } else { self.retry() })
    }

    /// What is to be noted if frame `at` of the burst waits for `to`.
    fn waiting(
        &self,
        state: &TxState,
        burst: &Burst,
        at: u8,
        to: (PortId, u8),
        others: bool,
    ) -> Waiting {
        let base = state.vring.ring.as_ref().map_or(0, SplitRing::base);
        Waiting {
            port: to.0,
            queue: to.1,
            to: ethernet::destination(&burst.frames()[usize::from(at)].snapshot),
            looked: base.wrapping_add(burst.taken() as u16),
            others,
            charged_until: self.time.cycle,
            blocked_since: None,
        }
    }
}

/// The first frame of a burst that is left in a run, and where it goes.
fn first_left(plan: &mut Plan) -> Option<(u8, (PortId, u8))> {
    let left = |run: &Run| run.left().first().map(|&at| (at, (run.port, run.queue)));
    plan.runs().iter().find_map(left)
}

fn note(state: &mut TxState, queue: &Queue<Tx>, waiting: Waiting) {
    if state.side.gate.receiver.replace(waiting).is_none() {
        queue.stats.waits.add(1);
    }
}

/// True if frames for another address are behind those that wait, as far as that can be seen.
fn looks_behind(ring: Option<&mut SplitRing>, waiting: &mut Waiting) -> bool {
    match ring.and_then(|ring| ring.all_go_to(waiting.to, waiting.looked)) {
        Some(looked) => {
            waiting.looked = looked;
            false
        }
        None => true,
    }
}

fn is_short(ports: &PortTable, run: &Run) -> bool {
    let guest = ports[run.port].as_guest();
    guest.is_some_and(|guest| guest.rx[usize::from(run.queue)].is_short())
}
