//! Frames that wait in their sender's ring for a receiver without buffers: `port::admission` says
//! for how long.
//!
//! What waits is always the end of a burst, given back to its ring as if never taken: a ring is
//! completed in order, so nothing behind a frame that waits may be delivered before it. It is found
//! in three places, from the cheapest to the most expensive:
//!
//! 1. before a burst is taken, if the ring's first frames waited already: one look at the receiver;
//! 2. before a burst for several receivers is delivered, if one of them was lately short: what can
//!    be delivered in front of the first frame that finds no buffer is, and the rest is given back;
//! 3. while delivering, where a receiver turns out to be short: its frames, if they are the end of
//!    the burst.

pub mod rate;

use super::plan::{Plan, Run};
use super::stalls::At;
use crate::frame::ethernet;
use crate::limits::BACKPRESSURE_NANOS;
use crate::port::admission::Answer;
use crate::port::gate::{Blocked, Waiting};
use crate::port::{Next, Port, PortTable, Queue, Rx, RxState, Tx, TxState};
use crate::ring::{Burst, SplitRing};
use crate::switch::{Fdb, PortId, Station};
use crate::sys::clock;

/// How frames of one burst may wait.
pub struct Backpressure<'a> {
    /// All ports.
    pub ports: &'a PortTable,
    /// Where frames behind those that wait would go.
    pub fdb: &'a Fdb,
    /// Cycles after which to look again at what no event reports.
    pub retry: u64,
    /// The turn's cycle.
    pub now: u64,
    /// The sender.
    pub from: PortId,
    /// Its ring; none if its frames cannot wait.
    pub ring: Option<(&'a mut TxState, &'a Queue<Tx>)>,
    /// The first frame of the burst that waits, and what to do next.
    pub left: Option<(u8, Next)>,
    /// The end of the burst may not wait.
    pub refused: bool,
}

/// What the receiver of frames at the end of a burst says, if they may wait.
#[derive(Clone, Copy)]
pub struct Offer {
    answer: Answer,
    /// It has buffers again.
    again: bool,
}

impl Offer {
    /// The ring's lock is held by another thread.
    pub const LOCKED: Offer = Offer { answer: Answer::YES, again: false };
}

impl<'a> Backpressure<'a> {
    /// Of port `from`, whose frames cannot wait before it has a ring, in the turn of cycle `now`.
    #[inline(always)]
    pub fn new(
        ports: &'a PortTable,
        fdb: &'a Fdb,
        now: u64,
        retry: u64,
        from: PortId,
    ) -> Backpressure<'a> {
        Backpressure { ports, fdb, retry, now, from, ring: None, left: None, refused: false }
    }

    /// Looks at the receiver that a ring's first frames wait for: how many frames, `limit` at most,
    /// are worth taking now, or what there is to do instead. Calls `is_at` with whose memory it
    /// looks at, the sender's in the end.
    #[inline(never)]
    pub fn look(&mut self, limit: usize, is_at: impl Fn(At)) -> Result<usize, Next> {
        let Some((state, _)) = &mut self.ring else { return Ok(limit) };
        let TxState { vring, side: Tx { gate, .. }, .. } = &mut **state;
        let (Some(waiting), None, Some(ring)) = (gate.receiver, gate.drain_to, &mut vring.ring)
        else {
            return Ok(limit);
        };
        if !ring.next_goes_to(waiting.to, waiting.looked) {
            gate.receiver = None;
            return Ok(limit);
        }
        if let Some(next) = self.look_at_rate(waiting) {
            return Err(next);
        }
        self.look_at_buffers(waiting, limit, is_at)
    }

    fn look_at_buffers(
        &mut self,
        waiting: Waiting,
        limit: usize,
        is_at: impl Fn(At),
    ) -> Result<usize, Next> {
        let Some(queue) = receiver_of(self.ports, waiting) else { return Ok(limit) };
        let Some(mut receiver) = queue.lock_again() else {
            return self.look_again_or_stall(queue).map(|()| limit);
        };
        let Some((receive_ring, admission)) = receiver.admission() else { return Ok(limit) };
        let Some((state, _)) = &mut self.ring else { return Ok(limit) };
        let Some(ring) = &mut state.vring.ring else { return Ok(limit) };
        let wanted = limit.min(ring.offered().into());
        is_at(At::NOTHING.and(waiting.port));
        let free = receive_ring.offered();
        is_at(At::sender(self.from));
        let granted = admission.admit_waiting(self.from, wanted, free);
        let alone = waiting.behind == Blocked::Unknown;
        let gathers = alone
            && (1..wanted).contains(&granted)
            && admission.gathers(free, receive_ring.size(), self.now);
        let wait = state.wait(self.now, waiting.behind);
        if let Some(waiting) = &mut state.side.gate.receiver {
            (waiting.blocked_since, waiting.granted) = (None, granted as u16);
        }
        // Where others' frames are among them as many as usual are taken: they need not wait.
        let worth = if granted > 0 && alone { granted } else { limit };
        if granted > 0 && !gathers {
            return Ok(worth);
        }
        let answer = wait.map(|wait| admission.may_wait(self.from, wait));
        drop(receiver);
        if !self.allows(answer.unwrap_or_default()) {
            return Ok(worth);
        }
        if let Some((state, _)) = &mut self.ring
            && let Some(waiting) = &mut state.side.gate.receiver
        {
            waiting.charged_until = self.now;
        }
        Err(self.next_look(free > 0))
    }

    /// When to look again at a receiver: at once if it has buffers, which others come first for.
    /// Its next ones end the waiting, as [`listen`] asks for before the worker sleeps.
    fn next_look(&self, has_buffers: bool) -> Next {
        let later = Next::Receiver(self.now.saturating_add(self.retry));
        if has_buffers { Next::Again } else { later }
    }

    /// Another thread holds the ring of the receiver, and may have been stopped in the middle of
    /// it, by the scheduler or by a page of a hostile guest that is not there. When that has lasted
    /// as long as frames wait at most, no worker waits for this ring before its lock is free again.
    #[cold]
    fn look_again_or_stall(&mut self, receiver: &Queue<Rx>) -> Result<(), Next> {
        let Some((state, _)) = &mut self.ring else { return Ok(()) };
        let Some(waiting) = &mut state.side.gate.receiver else { return Ok(()) };
        let since = *waiting.blocked_since.get_or_insert(self.now);
        if clock::since(since, self.now) < clock::cycles_in(BACKPRESSURE_NANOS)
            && !receiver.is_stalled()
        {
            return Err(Next::Locked);
        }
        receiver.stall();
        Ok(())
    }

    /// Before a burst is delivered: what a look has granted, and of a burst for several receivers
    /// of which one was lately short, the first frame that would find no buffer; it and what is
    /// behind it are to be given back, and [`Backpressure::left`] is set. Calls `is_at` as
    /// [`Backpressure::look`] does.
    #[inline(always)]
    pub fn begin(&mut self, burst: &Burst, plan: &mut Plan, is_at: impl Fn(At)) -> Option<u8> {
        let (state, _) = self.ring.as_ref()?;
        if let Some(Waiting { port, queue, granted: granted @ 1.., .. }) = state.side.gate.receiver
        {
            plan.grant(port, queue, granted.into());
        }
        if plan.goes_one_way() || !plan.runs().iter().any(|run| self.is_short(run)) {
            return None;
        }
        let first = self.cut(burst, plan, |receiver| is_at(At::NOTHING.and(receiver)));
        is_at(At::sender(self.from));
        first
    }

    #[inline(never)]
    fn cut(&mut self, burst: &Burst, plan: &mut Plan, is_at: impl Fn(PortId)) -> Option<u8> {
        // A frame that was dropped is counted, and would be again when it came back.
        if plan.unsettled().count_ones() as usize != burst.frames().len() {
            return None;
        }
        // Floods and devices are never short.
        let short = !plan.is_fanned() && plan.runs().iter().all(|run| self.is_short(run));
        let behind = if short { Blocked::Short } else { Blocked::Others };
        let (state, _) = self.ring.as_mut()?;
        let wait = state.wait(self.now, behind)?;
        let mut first: Option<(u8, (PortId, u8), bool)> = None;
        for run in plan.runs() {
            let Some(receiver) = queue_of(self.ports, run.port, run.queue) else { continue };
            if !receiver.is_short() {
                continue;
            }
            is_at(run.port);
            let Some(mut locked) = receiver.lock_for_burst() else { continue };
            let Some((ring, admission)) = locked.admission() else { continue };
            let (wanted, free) = (run.left().len(), ring.offered());
            let room = admission.frames_in(free);
            let admit = || admission.admit(self.from, wanted, || free);
            let granted = run.granted().unwrap_or_else(admit).min(room);
            run.grant(granted);
            let Some(&at) = run.left().get(granted) else {
                receiver.set_short(locked.is_short());
                continue;
            };
            if first.is_none_or(|(before, ..)| at < before)
                && admission.may_wait(self.from, wait).allows(behind)
            {
                first = Some((at, (run.port, run.queue), room > granted));
            }
        }
        let (at, to, has_buffers) = first?;
        let began = self.note(burst, at, to, behind);
        self.leave_from(at, began, self.next_look(has_buffers));
        Some(at)
    }

    /// True if what is left of a run is the end of the burst, which may wait.
    #[inline]
    pub fn is_end(&self, burst: &Burst, run: &Run) -> bool {
        self.is_tail(burst, run.left())
    }

    /// True if these frames are the end of the burst, which may wait.
    fn is_tail(&self, burst: &Burst, left: &[u8]) -> bool {
        let is_end =
            left.first().is_some_and(|&at| usize::from(at) + left.len() == burst.frames().len());
        let drains = |state: &TxState| state.side.gate.drain_to.is_some();
        is_end && !self.refused && self.ring.as_ref().is_some_and(|(state, _)| !drains(state))
    }

    /// Asks the receiver of a run whether what is left of it may wait.
    pub fn ask(&mut self, burst: &Burst, run: &Run, receiver: &mut RxState) -> Option<Offer> {
        if !self.is_end(burst, run) {
            return None;
        }
        let (state, _) = self.ring.as_mut()?;
        let wait = state.wait(self.now, Blocked::Unknown)?;
        let answer = receiver.side.admission.may_wait(self.from, wait);
        self.refused = !answer.is_maybe();
        let again = receiver.vring.running().is_some_and(|ring| ring.has_work());
        answer.is_maybe().then_some(Offer { answer, again })
    }

    /// Leaves what is left of a run, the end of the burst, in its ring; false if it may not wait
    /// there in front of what is behind it.
    #[inline(never)]
    pub fn leave(&mut self, burst: &Burst, run: &Run, offer: Offer) -> bool {
        let Some(&at) = run.left().first() else { return false };
        let began = self.note(burst, at, (run.port, run.queue), Blocked::Unknown);
        self.refused = !self.allows(offer.answer);
        if self.refused {
            return false;
        }
        self.leave_from(at, began, self.next_look(offer.again));
        true
    }

    /// The burst waits from frame `at` on, which `began` with this.
    fn leave_from(&mut self, at: u8, began: bool, next: Next) {
        if let Some((_, queue)) = &self.ring {
            queue.stats.waits.add(u64::from(began));
        }
        self.left = Some((at, next));
    }

    /// Puts off a burst that goes nowhere but to a ring that another thread has; false if it is not
    /// to wait for more frames.
    pub fn put_off(&mut self, burst: &Burst, run: &Run) -> bool {
        let Some((state, _)) = &mut self.ring else { return false };
        let (count, gate) = (burst.taken(), &mut state.side.gate);
        if run.left().len() != count || gate.receiver.is_some() {
            return false;
        }
        let waits = gate.collecting.begin(count, self.now);
        if waits {
            self.left = Some((0, Next::Locked));
        }
        waits
    }

    /// Nothing of the burst waits. If it was what a receiver had granted to frames that waited, the
    /// next frames do: most likely they find no more buffers, and a look is cheaper than a burst.
    #[inline(always)]
    pub fn go_on(&mut self, plan: &Plan) {
        let Some((state, _)) = &mut self.ring else { return };
        let TxState { vring, side: Tx { gate, .. }, .. } = &mut **state;
        if let Some(waiting) = &mut gate.receiver {
            let more = vring.ring.as_ref().is_some_and(SplitRing::has_more);
            if more && waiting.granted > 0 && plan.goes_one_way() {
                (waiting.granted, waiting.charged_until) = (0, self.now);
            } else {
                gate.receiver = None;
            }
        }
    }

    /// True if frames may wait, as far as the answer of their receiver and what is behind them say.
    fn allows(&mut self, answer: Answer) -> bool {
        answer.is_maybe() && (!answer.depends() || answer.allows(self.look_behind()))
    }

    /// Looks at what is behind frames that wait, as far as it was not looked at.
    fn look_behind(&mut self) -> Blocked {
        let Backpressure { ports, fdb, .. } = *self;
        let Some((state, _)) = &mut self.ring else { return Blocked::Others };
        let TxState { vring, side: Tx { gate, .. }, .. } = &mut **state;
        let (Some(waiting), Some(ring)) = (&mut gate.receiver, &mut vring.ring) else {
            return Blocked::Others;
        };
        let (to, mut last) = (waiting.to, (waiting.to, true));
        // Of a trunk only frames without a tag are known to be in one.
        let segment = ports.policy(self.from).untagged();
        if waiting.behind == Blocked::Unknown
            && let Some(looked) = ring.all_go(waiting.looked, |next| next == to)
        {
            waiting.looked = looked;
            gate.allowance.refund();
            return Blocked::Unknown;
        }
        let short = |next| {
            if next != last.0 {
                let station = segment.map(|segment| Station::new(segment, next));
                let short = station.is_some_and(|station| leads_to_short(ports, fdb, station));
                last = (next, next == to || short);
            }
            last.1
        };
        waiting.behind = match ring.all_go(waiting.looked, short) {
            Some(looked) => {
                waiting.looked = looked;
                Blocked::Short
            }
            None => Blocked::Others,
        };
        waiting.behind
    }

    /// Notes that frame `at` of the burst waits for `to`; true if none waited before.
    fn note(&mut self, burst: &Burst, at: u8, to: (PortId, u8), behind: Blocked) -> bool {
        let Some((state, _)) = &mut self.ring else { return false };
        let base = state.vring.ring.as_ref().map_or(0, SplitRing::base);
        let waiting = Waiting {
            port: to.0,
            queue: to.1,
            to: ethernet::destination(&burst.frames()[usize::from(at)].snapshot),
            looked: base.wrapping_add(burst.taken() as u16),
            granted: 0,
            behind,
            charged_until: self.now,
            blocked_since: None,
            booked: None,
        };
        let before = state.side.gate.receiver.replace(waiting);
        // What is booked stays so when it waits for buffers.
        if let (Some(before), Some(now)) = (&before, &mut state.side.gate.receiver) {
            now.booked = before.booked.filter(|_| before.port == now.port);
        }
        before.is_none()
    }

    fn is_short(&self, run: &Run) -> bool {
        queue_of(self.ports, run.port, run.queue).is_some_and(Queue::is_short)
    }
}

/// Before worker `worker` sleeps: asks for kicks at what comes behind frames that wait in a ring,
/// which may be for another receiver, and at the next buffers of theirs. True if something came
/// already. Calls `is_at` with the receiver whose memory it looks at.
pub fn listen(worker: usize, ports: &PortTable, state: &mut TxState, is_at: impl Fn(At)) -> bool {
    let (Some(waiting), Some(ring)) = (state.side.gate.receiver, state.vring.running()) else {
        return false;
    };
    let more = ring.enable_kicks_behind();
    if waiting.booked.is_some() {
        // Its time comes without an event.
        return more;
    }
    let Some(receiver) = receiver_of(ports, waiting) else { return true };
    is_at(At::NOTHING.and(waiting.port));
    let came = match receiver.lock_again() {
        Some(mut state) => {
            state.side.awaited.add(worker);
            state.vring.running().is_none_or(SplitRing::enable_kicks_behind)
        }
        None => !receiver.is_stalled(),
    };
    more || came
}

/// The receive queue that frames wait for. The port may be gone since, and its number another's.
fn receiver_of(ports: &PortTable, waiting: Waiting) -> Option<&Queue<Rx>> {
    queue_of(ports, waiting.port, waiting.queue)
}

#[inline(always)]
fn queue_of(ports: &PortTable, id: PortId, queue: u8) -> Option<&Queue<Rx>> {
    let (_, guest) = ports.guest(id)?;
    guest.rx.get(usize::from(queue))
}

/// True if frames for this address would find no buffers either.
fn leads_to_short(ports: &PortTable, fdb: &Fdb, station: Station) -> bool {
    let port = fdb.lookup(station).and_then(|id| ports.get(id));
    port.and_then(Port::as_guest).is_some_and(|guest| guest.rx.iter().all(Queue::is_short))
}
