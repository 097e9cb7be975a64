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

use super::{Pipeline, Serviced, Tally};
use crate::frame::ethernet;
use crate::pipeline::guest_of;
use crate::pipeline::plan::Run;
use crate::port::backpressure::{Wait, Waiting};
use crate::port::{Endpoint, PortTable, Queue, RingState};
use crate::ring::SplitRing;
use crate::stats::WorkerStats;
use crate::switch::PortId;
use crate::sys::clock;

/// How the frames of a ring may wait: not at all if somebody waits for the ring itself.
pub(super) fn may_wait(state: &RingState, now: u64, others: bool) -> Option<Wait> {
    let (None, Some(ring)) = (state.drain_to, &state.ring) else { return None };
    let waited = |waiting: Waiting| clock::since(waiting.charged_until, now);
    let waited = state.waiting.map_or(0, waited);
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
        state: &mut RingState,
        limit: usize,
    ) -> Result<usize, Serviced> {
        let (Some(mut waiting), Some(mut wait)) =
            (state.waiting, may_wait(state, self.cycle, false))
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
        let RingState { ring: Some(ring), enabled: true, broken: false, shares, credit, .. } =
            &mut *receiver
        else {
            return Ok(limit);
        };
        let wanted = limit.min(state.ring.as_mut().map_or(0, |ring| ring.offered().into()));
        let granted = shares.grant(id, wanted, ring.offered());
        if granted > 0 {
            // Where others' frames are among them as many as usual are taken: they need not wait.
            return Ok(if waiting.others { limit } else { granted });
        }
        // Once others were seen nothing behind them needs a look.
        waiting.others = waiting.others || looks_behind(state.ring.as_mut(), &mut waiting);
        wait.others = waiting.others;
        if !credit.allows(wait, &self.hold) {
            return Ok(limit);
        }
        waiting.charged_until = self.cycle;
        state.waiting = Some(waiting);
        // The driver's next buffers end the waiting, unless they came just before it could see that
        // we ask.
        Err(if ring.enable_kicks() { Serviced::Busy } else { self.retry() })
    }

    /// Somebody else holds the ring of the receiver, and may have been stopped in the middle of it,
    /// by the scheduler or by a page of a hostile guest that is not there. When that has lasted as
    /// long as anybody is waited for, nobody waits for this ring before its lock was free again.
    #[cold]
    fn look_again_or_stall(&self, state: &mut RingState, receiver: &Queue) -> Result<(), Serviced> {
        let Some(waiting) = &mut state.waiting else { return Ok(()) };
        let since = *waiting.blocked_since.get_or_insert(self.cycle);
        if clock::since(since, self.cycle) < self.hold.most && !receiver.is_stalled() {
            return Err(Serviced::Busy);
        }
        receiver.stall();
        Ok(())
    }

    /// Delivers a transmit ring's burst but for what waits: whether there may be more to take, or
    /// what else to do next.
    #[inline(always)]
    pub(super) fn deliver_or_wait(
        &mut self,
        to: (&PortTable, PortId),
        (state, queue): (&mut RingState, &Queue),
        stats: &WorkerStats,
        tally: &mut Tally,
    ) -> Serviced {
        // Who is watched is asked nothing beside being delivered to.
        let cut = match self.stalls.is_watching() {
            true => None,
            false => self.cut_to_room(to.0, to.1, state, queue, tally),
        };
        let mut next = cut.unwrap_or(Serviced::More);
        let tried = self.deliver(to.0, to.1, stats, Some((state, false)));
        if tried.left {
            let left = self.leave_waiting(to, (state, queue), stats, tally, tried.again);
            next = left.unwrap_or(next);
        }
        if next == Serviced::More {
            state.waiting = None;
        }
        next
    }

    /// Of a burst for several receivers of which one was lately short: gives back what is behind
    /// the first frame that would find no buffer, that one included. If so, what to do next.
    #[inline(always)]
    fn cut_to_room(
        &mut self,
        ports: &PortTable,
        id: PortId,
        state: &mut RingState,
        queue: &Queue,
        tally: &mut Tally,
    ) -> Option<Serviced> {
        let alone = self.plan.runs().len() + usize::from(!self.plan.floods().is_empty()) < 2;
        if alone || !self.plan.runs().iter().any(|run| is_short(ports, run)) {
            return None;
        }
        self.cut_short_burst(ports, id, state, queue, tally)
    }

    #[inline(never)]
    fn cut_short_burst(
        &mut self,
        ports: &PortTable,
        id: PortId,
        state: &mut RingState,
        queue: &Queue,
        tally: &mut Tally,
    ) -> Option<Serviced> {
        let planned = self.plan.runs().iter().map(|run| run.left().len()).sum::<usize>();
        // A frame that was dropped is counted, and would be again when it came back.
        if planned + self.plan.floods().len() != self.burst.frames().len() {
            return None;
        }
        let wait = may_wait(state, self.cycle, true)?;
        let mut cut: Option<(u8, PortId, u8)> = None;
        let mut next = self.retry();
        for run in self.plan.runs() {
            let Endpoint::Guest(guest) = &ports[run.port].endpoint else { continue };
            let receiver = &guest.rx[usize::from(run.queue)];
            if !receiver.is_short() {
                continue;
            }
            let Some(mut locked) = receiver.lock_for_burst() else { continue };
            let RingState {
                ring: Some(ring), enabled: true, broken: false, shares, credit, ..
            } = &mut *locked
            else {
                continue;
            };
            let (wanted, free) = (run.left().len(), ring.offered());
            let granted = shares.allow(id, wanted, || free.into()).min(shares.frames_in(free));
            run.grant(granted);
            let Some(&at) = run.left().get(granted) else {
                // An overloaded receiver has room for one burst now and then.
                receiver.set_short(free < ring.size() / 2);
                continue;
            };
            if cut.is_none_or(|(first, ..)| at < first) && credit.allows(wait, &self.hold) {
                cut = Some((at, run.port, run.queue));
                next = if ring.enable_kicks() { Serviced::Busy } else { next };
            }
        }
        let (at, port, receive_queue) = cut?;
        let waiting = self.waiting(state, at, (port, receive_queue), true);
        self.give_back(at, tally);
        note(state, queue, waiting);
        Some(next)
    }

    /// Frames that are left when a burst was delivered wait for their receiver, and if others are
    /// behind them only for as long as it has earned that; what may not wait is dropped. If some
    /// are left, what there is to do next.
    #[inline(never)]
    fn leave_waiting(
        &mut self,
        (ports, id): (&PortTable, PortId),
        (state, queue): (&mut RingState, &Queue),
        stats: &WorkerStats,
        tally: &mut Tally,
        mut again: bool,
    ) -> Option<Serviced> {
        let (at, to) = self.first_left()?;
        let mut waiting = self.waiting(state, at, to, false);
        if looks_behind(state.ring.as_mut(), &mut waiting) {
            waiting.others = true;
            again = self.deliver(ports, id, stats, Some((state, true))).again;
        }
        let (at, _) = self.first_left()?;
        self.give_back(at, tally);
        note(state, queue, waiting);
        Some(if again { Serviced::Busy } else { self.retry() })
    }

    /// The first frame of the burst that is left in a run, and where it goes.
    fn first_left(&mut self) -> Option<(u8, (PortId, u8))> {
        let left = |run: &Run| run.left().first().map(|&at| (at, (run.port, run.queue)));
        self.plan.runs().iter().find_map(left)
    }

    /// What is to be noted if frame `at` of the burst waits for `to`.
    fn waiting(&self, state: &RingState, at: u8, to: (PortId, u8), others: bool) -> Waiting {
        let base = state.ring.as_ref().map_or(0, SplitRing::base);
        Waiting {
            port: to.0,
            queue: to.1,
            to: ethernet::destination(&self.burst.frames()[usize::from(at)].snapshot),
            looked: base.wrapping_add(self.burst.taken() as u16),
            others,
            charged_until: self.cycle,
            blocked_since: None,
        }
    }

    /// Gives frame `at` of the burst and what is behind it back to the ring.
    fn give_back(&mut self, at: u8, tally: &mut Tally) {
        let back = &self.burst.frames()[usize::from(at)..];
        tally.bytes -= back.iter().map(|frame| u64::from(frame.len)).sum::<u64>();
        let floods = self.plan.truncate(at);
        tally.copies -= (back.len() - floods + floods * self.targets.len()) as u64;
        self.burst.cut(usize::from(at));
        self.copies = tally.copies;
    }
}

fn note(state: &mut RingState, queue: &Queue, waiting: Waiting) {
    if state.waiting.replace(waiting).is_none() {
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
