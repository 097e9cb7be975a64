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
use crate::frame::{MacAddr, ethernet};
use crate::pipeline::context::BurstContext;
use crate::pipeline::deliver::Tried;
use crate::pipeline::guest_of;
use crate::pipeline::plan::{Plan, Run};
use crate::port::backpressure::{Answer, Behind, Waiting};
use crate::port::{Endpoint, Next, Port, PortTable, Queue, Rx, RxState, Tx, TxState};
use crate::ring::{Burst, SplitRing};
use crate::stats::WorkerStats;
use crate::switch::PortId;
use crate::sys::clock;

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
        let TxState { vring, side: Tx { gate, .. }, .. } = &mut *state;
        let (Some(Waiting { port, queue, behind, to, looked, .. }), None, Some(ring)) =
            (gate.receiver, gate.drain_to, &mut vring.ring)
        else {
            return Ok(limit);
        };
        if !ring.next_goes_to(to, looked) {
            gate.receiver = None;
            return Ok(limit);
        }
        // It may be gone since, and its number another port's.
        let receivers = guest_of(ports, port).map(|(_, guest)| &guest.rx);
        let Some(receiver_queue) = receivers.and_then(|rx| rx.get(usize::from(queue))) else {
            return Ok(limit);
        };
        let Some(mut receiver) = receiver_queue.lock_again() else {
            return self.look_again_or_stall(state, receiver_queue).map(|()| limit);
        };
        let RxState { vring, side: Rx { shares, credit, .. }, .. } = &mut *receiver;
        let Some(ring) = vring.running() else { return Ok(limit) };
        let terms = &self.time.backpressure;
        let wait = state.wait(self.time.cycle, behind, terms);
        let wanted = limit.min(state.vring.ring.as_mut().map_or(0, |ring| ring.offered().into()));
        let free = ring.offered();
        let granted = shares.grant(id, wanted, free);
        if let Some(waiting) = &mut state.side.gate.receiver {
            (waiting.blocked_since, waiting.granted) = (None, granted as u16);
        }
        if granted > 0 {
            // Where others' frames are among them as many as usual are taken: they need not wait.
            return Ok(if behind == Behind::Unknown { granted } else { limit });
        }
        let answer = wait.map_or_else(Answer::default, |wait| credit.ask(id, wait, terms));
        if !answer.is_maybe() {
            return Ok(limit);
        }
        drop(receiver);
        if answer.depends() && !answer.allows(self.look_behind(ports, state)) {
            return Ok(limit);
        }
        if let Some(waiting) = &mut state.side.gate.receiver {
            waiting.charged_until = self.time.cycle;
        }
        Err(self.next_look(free > 0))
    }

    /// When to look again at a receiver: at once if it has buffers, which others come first for.
    /// Its next ones end the waiting, as [`Pipeline::listen`] asks for before the worker sleeps.
    fn next_look(&self, has_buffers: bool) -> Next {
        if has_buffers { Next::Again } else { self.retry() }
    }

    /// Before a sleep: asks for kicks at what comes behind frames that wait in a ring, which may be
    /// for another receiver, and at the next buffers of theirs. True if something came already.
    pub fn listen(&self, ports: &PortTable, state: &mut TxState) -> bool {
        let (Some(waiting), Some(ring)) = (state.side.gate.receiver, state.vring.running()) else {
            return false;
        };
        let more = ring.enable_kicks_behind();
        let receivers = guest_of(ports, waiting.port).map(|(_, guest)| &guest.rx);
        let Some(receiver) = receivers.and_then(|rx| rx.get(usize::from(waiting.queue))) else {
            return true;
        };
        let came = match receiver.lock_again() {
            Some(mut state) => {
                state.side.awaited.add(self.worker);
                state.vring.running().is_none_or(SplitRing::enable_kicks_behind)
            }
            None => !receiver.is_stalled(),
        };
        more || came
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
        if let Some(Waiting { port, queue, granted: granted @ 1.., .. }) = state.side.gate.receiver
        {
            context.plan.grant(port, queue, granted.into());
        }
        // Who is watched is asked nothing beside being delivered to.
        let cut = match self.stalls.is_watching() {
            true => None,
            false => self.cut_to_room((ports, port), state, queue, context),
        };
        let mut next = cut.unwrap_or(Next::More);
        let sender = state.side.gate.drain_to.is_none().then_some(&mut *state);
        let tried = self.deliver(ports, port, context, stats, sender);
        if tried.left {
            let left = self.leave_waiting((ports, port), (state, queue), context, stats, tried);
            next = left.unwrap_or(next);
        }
        if next == Next::More {
            self.go_on(state, context);
        }
        next
    }

    /// Nothing of the burst waits. If it was what a receiver had granted to frames that waited, the
    /// next frames do: most likely they find no more buffers, and a look is cheaper than a burst.
    #[inline(always)]
    fn go_on(&self, state: &mut TxState, context: &BurstContext) {
        let TxState { vring, side: Tx { gate, .. }, .. } = state;
        if let Some(waiting) = &mut gate.receiver {
            let more = vring.ring.as_ref().is_some_and(SplitRing::has_more);
            if more && waiting.granted > 0 && context.plan.goes_one_way() {
                (waiting.granted, waiting.charged_until) = (0, self.time.cycle);
            } else {
                gate.receiver = None;
            }
        }
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
        // Floods and devices are never short.
        let short = !plan.is_fanned() && plan.runs().iter().all(|run| is_short(ports, run));
        let behind = if short { Behind::Short } else { Behind::Others };
        let wait = state.wait(self.time.cycle, behind, &self.time.backpressure)?;
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
            let ask = || shares.allow(port.id, wanted, || free.into());
            let granted = run.granted().unwrap_or_else(ask).min(shares.frames_in(free));
            run.grant(granted);
            let Some(&at) = run.left().get(granted) else {
                receiver.set_short(locked.is_short());
                continue;
            };
            if cut.is_none_or(|(first, ..)| at < first)
                && credit.ask(port.id, wait, &self.time.backpressure).allows(behind)
            {
                cut = Some((at, run.port, run.queue));
                next = self.next_look(shares.frames_in(free) > granted);
            }
        }
        let (at, to, receive_queue) = cut?;
        let waiting = self.waiting(state, &context.burst, at, (to, receive_queue), behind);
        context.give_back(at);
        note(state, queue, waiting);
        Some(next)
    }

    /// Frames that are left when a burst was delivered wait for their receiver; what may not, as
    /// others are behind it, is dropped. If some are left, what there is to do next.
    #[inline(never)]
    fn leave_waiting(
        &mut self,
        (ports, port): (&PortTable, &Port),
        (state, queue): (&mut TxState, &Queue<Tx>),
        context: &mut BurstContext,
        stats: &WorkerStats,
        tried: Tried,
    ) -> Option<Next> {
        let (at, to) = first_left(&mut context.plan)?;
        let waiting = self.waiting(state, &context.burst, at, to, Behind::Unknown);
        let before = state.side.gate.receiver.replace(waiting);
        let answer = tried.answer;
        if answer.depends() && !answer.allows(self.look_behind(ports, state)) {
            self.deliver_rest(ports, port, context, stats);
            return None;
        }
        queue.stats.waits.add(u64::from(before.is_none()));
        context.give_back(at);
        Some(self.next_look(tried.again))
    }

    /// Looks at what is behind frames that wait, as far as it was not looked at.
    fn look_behind(&self, ports: &PortTable, state: &mut TxState) -> Behind {
        let TxState { vring, side: Tx { gate, .. }, .. } = state;
        let (Some(waiting), Some(ring)) = (&mut gate.receiver, &mut vring.ring) else {
            return Behind::Others;
        };
        let (to, mut last) = (waiting.to, (waiting.to, true));
        if waiting.behind == Behind::Unknown
            && let Some(looked) = ring.all_go(waiting.looked, |next| next == to)
        {
            waiting.looked = looked;
            gate.allowance.refund(&self.time.backpressure);
            return Behind::Unknown;
        }
        let short = |next| {
            if next != last.0 {
                last = (next, next == to || self.leads_to_short(ports, next));
            }
            last.1
        };
        waiting.behind = match ring.all_go(waiting.looked, short) {
            Some(looked) => {
                waiting.looked = looked;
                Behind::Short
            }
            None => Behind::Others,
        };
        waiting.behind
    }

    /// True if frames for this address would find no buffers either.
    fn leads_to_short(&self, ports: &PortTable, address: MacAddr) -> bool {
        let port = self.fdb.lookup(address).and_then(|id| ports.get(id));
        port.and_then(Port::as_guest).is_some_and(|guest| guest.rx.iter().all(Queue::is_short))
    }

    /// What is to be noted if frame `at` of the burst waits for `to`.
    fn waiting(
        &self,
        state: &TxState,
        burst: &Burst,
        at: u8,
        to: (PortId, u8),
        behind: Behind,
    ) -> Waiting {
        let base = state.vring.ring.as_ref().map_or(0, SplitRing::base);
        Waiting {
            port: to.0,
            queue: to.1,
            to: ethernet::destination(&burst.frames()[usize::from(at)].snapshot),
            looked: base.wrapping_add(burst.taken() as u16),
            granted: 0,
            behind,
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

fn is_short(ports: &PortTable, run: &Run) -> bool {
    let guest = ports[run.port].as_guest();
    guest.is_some_and(|guest| guest.rx[usize::from(run.queue)].is_short())
}
