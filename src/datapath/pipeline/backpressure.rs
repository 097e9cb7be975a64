//! Frames that wait in their sender's ring for a receiver without buffers.
//!
//! The worker gives the end of a burst back to its ring, as if never taken, if both conditions
//! hold:
//!
//! - For some time, all bursts of the ring, this burst included, went to the same receive ring
//!   ([`LastReceiver`](crate::port::gate::LastReceiver)), or no other receiver of the ring's frames
//!   had room ([`RoomyReceivers`](crate::port::gate::RoomyReceivers)). So frames that could be
//!   delivered hardly ever wait behind the end of the burst.
//! - The receive ring took enough frames of this sender to have earned the waiting
//!   ([`Admission::may_wait`](crate::port::admission::Admission::may_wait)), a millisecond at most,
//!   and an eighth of a millisecond if frames for other receivers wait, too.
//!
//! All other frames without a buffer are dropped and counted.
//!
//! The end of any burst also waits while another thread holds the lock of its receive ring: the
//! holder delivers a burst, or lost its CPU. After [`LOCK_WAIT_NANOS`] the worker
//! gives the lock up.

use super::plan::{Plan, Run};
use super::rate_out;
use crate::port::gate::Waiting;
use crate::port::{Polled, PortTable, Queue, Rx, RxState, Tx, TxState};
use crate::ring::{Burst, SplitRing};
use crate::stalls::Stalls;
use base::limits::LOCK_WAIT_NANOS;
use switch::PortId;
use sys::clock;

/// Whether and how the frames of one burst may wait.
pub(crate) struct Backpressure<'a> {
    /// All ports.
    pub(crate) ports: &'a PortTable,
    /// The sender's port.
    pub(crate) from: PortId,
    /// Cycle at which the turn began.
    pub(crate) now: u64,
    /// Cycles after which to look again at a receiver that sends no event.
    retry: u64,
    /// The sender's ring; none if the burst's frames cannot wait.
    pub(crate) ring: Option<(&'a mut TxState, &'a Queue<Tx>)>,
    /// The only receiver of the burst, if the ring's earlier bursts went there too.
    only: Option<(PortId, u8)>,
    /// The burst has several receivers.
    pub(crate) is_mixed: bool,
    /// All settled frames of the burst have smaller indices.
    settled_end: u8,
    /// The first frame of the burst that waits, and what the worker does next.
    pub(crate) left: Option<(u8, Polled)>,
}

impl<'a> Backpressure<'a> {
    /// For frames of port `from`, which may wait in `ring` if there is a ring, in the turn that
    /// began at cycle `now`. A worker looks at waiting frames again after `retry` cycles.
    #[inline(always)]
    pub(crate) fn new(
        ports: &'a PortTable,
        from: PortId,
        ring: Option<(&'a mut TxState, &'a Queue<Tx>)>,
        (now, retry): (u64, u64),
    ) -> Backpressure<'a> {
        let (only, left, is_mixed, settled_end) = (None, None, false, 0);
        Backpressure { ports, from, now, retry, ring, only, is_mixed, settled_end, left }
    }

    /// Looks at the receiver that the ring's first frames wait for. Returns how many frames, at
    /// most `limit`, are worth taking now; an error says what the worker does instead.
    #[inline(never)]
    pub(crate) fn look(&mut self, limit: usize, stalls: &Stalls) -> Result<usize, Polled> {
        let Some((state, _)) = &mut self.ring else { return Ok(limit) };
        let TxState { vring, side: Tx { gate, .. }, .. } = &mut **state;
        let price = gate.receiver.and_then(|to| gate.price((to.port, to.queue), self.now));
        let (Some(waiting), None, Some(ring)) =
            (&mut gate.receiver, gate.drain_to, &mut vring.ring)
        else {
            return Ok(limit);
        };
        let wanted = limit.min(ring.offered().into());
        if wanted == 0 {
            // The last burst took the ring's last frames.
            gate.receiver = None;
            return Ok(limit);
        }
        if waiting.booked.is_some() {
            return rate_out::look(self.ports, waiting, self.now).map_or(Ok(limit), Err);
        }
        let Some(queue) = receiver_of(self.ports, waiting) else { return Ok(limit) };
        let Some(mut receiver) = queue.lock_again() else {
            return wait_for_lock(waiting, queue, self.now).map(|()| limit);
        };
        waiting.locked_since = None;
        let RxState { vring, side: Rx { admission, .. }, .. } = &mut *receiver;
        let Some(receive_ring) = vring.running() else { return Ok(limit) };
        stalls.at_receiver(waiting.port);
        let free = receive_ring.offered();
        stalls.at_sender(self.from);
        let waited = waiting.charge(self.now, price.unwrap_or(1));
        let may_wait = admission.may_wait(self.from, waited) && price.is_some();
        let mut granted = admission.grant(self.from, wanted, free);
        if granted == 0 && !may_wait {
            granted = admission.grant_late(self.from, wanted, free);
        }
        waiting.granted = granted > 0;
        match (granted, may_wait) {
            (1.., _) => Ok(granted),
            (0, true) => {
                waiting.left = free;
                Err(self.next_look())
            }
            (0, false) => Ok(limit),
        }
    }

    /// Returns when to look at a receiver again. More buffers may end the waiting earlier:
    /// [`listen`] asks for a kick before a sleep.
    fn next_look(&self) -> Polled {
        Polled::WaitsForReceiver(self.now.saturating_add(self.retry))
    }

    /// Records the receivers of a burst, before the burst is delivered.
    #[inline(always)]
    pub(crate) fn begin(&mut self, plan: &Plan) {
        let (Some((state, _)), true) = (&mut self.ring, plan.has_copies()) else { return };
        let (last, to) = (&mut state.side.gate.last, plan.only_receiver());
        last.note(to, self.now);
        self.only = to.filter(|to| last.is_only(*to, self.now));
        (self.is_mixed, self.settled_end) = (to.is_none(), plan.settled_end());
    }

    /// Records that the receive queue `to` has room for more frames.
    #[inline(always)]
    pub(crate) fn note_room(&mut self, to: (PortId, u8)) {
        if let Some((state, _)) = &mut self.ring {
            state.side.gate.roomy.note(to, self.now);
        }
    }

    /// Records the frames of a run that are settled.
    #[inline(always)]
    pub(crate) fn note_settled(&mut self, run: &Run) {
        self.settled_end = self.settled_end.max(run.settled_end());
    }

    /// Removes the frames from a run that stay in their ring behind the first frame that waits.
    /// True if no frame is left.
    #[inline(always)]
    pub(crate) fn keeps_back(&self, burst: &Burst, run: &mut Run) -> bool {
        let Some((at, _)) = self.left else { return false };
        if self.ports.is_limited {
            rate_out::refund_run(self.ports, burst, run, at);
        }
        run.truncate(at);
        run.left().is_empty()
    }

    /// Records the frames that rates of their receivers have dropped.
    pub(crate) fn note_limited(&mut self, plan: &Plan) {
        self.settled_end = plan.settled_end();
    }

    /// True if the frames come from a ring that lately sent to several receivers.
    #[inline(always)]
    pub(crate) fn is_shared(&self) -> bool {
        self.ring.is_some() && self.only.is_none()
    }

    /// True if no frame behind the first frame left of a run is settled, and the ring is not
    /// draining: all these frames may be given back.
    #[inline]
    pub(crate) fn is_end(&self, run: &Run) -> bool {
        let settled_end = self.settled_end.max(run.settled_end());
        let is_end = run.left().first().is_some_and(|&at| at >= settled_end);
        let drains = |state: &TxState| state.side.gate.drain_to.is_some();
        is_end && self.ring.as_ref().is_some_and(|(state, _)| !drains(state))
    }

    /// Returns the price of waiting for the receiver of a run ([`Gate::price`]); none if the frames
    /// left of the run may not wait.
    ///
    /// [`Gate::price`]: crate::port::gate::Gate::price
    pub(super) fn price(&self, run: &Run) -> Option<u64> {
        let (to, (state, _)) = ((run.port, run.queue), self.ring.as_ref()?);
        let price = match self.only == Some(to) {
            true => Some(1),
            false => state.side.gate.price(to, self.now),
        };
        price.filter(|_| self.is_end(run))
    }

    /// True if the frames left of a run are the end of a burst with one receiver, and if this
    /// receiver got all recent bursts of the ring.
    pub(super) fn may_wait_alone(&self, run: &Run) -> bool {
        self.only == Some((run.port, run.queue)) && self.is_end(run)
    }

    /// Returns the number of frames in the sender's ring, including the burst.
    pub(super) fn frames_held(&mut self) -> usize {
        let ring = self.ring.as_mut().and_then(|(state, _)| state.vring.running());
        ring.map_or(0, |ring| ring.offered().into())
    }

    /// Returns the record of the receive queue that the ring's first frames wait for, if the queue
    /// belongs to `port`.
    pub(super) fn waiting_for(&mut self, port: PortId) -> Option<&mut Waiting> {
        let (state, _) = self.ring.as_mut()?;
        state.side.gate.receiver.as_mut().filter(|waiting| waiting.port == port)
    }

    /// Leaves the frames left of a run in their ring until `receiver` has buffers. False if the
    /// frames may not wait.
    #[inline(never)]
    pub(crate) fn wait(&mut self, run: &Run, receiver: &mut RxState) -> bool {
        let (Some(price), Some((state, _))) = (self.price(run), &mut self.ring) else {
            return false;
        };
        let waiting = state.side.gate.receiver.as_mut();
        let waited = waiting.map_or(0, |waiting| waiting.charge(self.now, price));
        if !receiver.side.admission.may_wait(self.from, waited) {
            return false;
        }
        let left = receiver.vring.running().map_or(0, |ring| ring.offered());
        let waits = run.left().first().is_some_and(|&at| self.leave(run, at, self.next_look()));
        if let Some(waiting) = self.waiting_for(run.port) {
            waiting.left = left;
        }
        waits
    }

    /// Leaves the frames left of a run, the end of the burst, in their ring until the lock of
    /// `queue` is free. False if a worker waited for the lock in vain.
    pub(crate) fn wait_for_lock(&mut self, run: &Run, queue: &Queue<Rx>) -> bool {
        if queue.must_not_wait() {
            return false;
        }
        run.left().first().is_some_and(|&at| self.leave(run, at, Polled::Locked))
    }

    /// Leaves the frames of a run from `at` on in their ring. False if the source is not a ring.
    pub(super) fn leave(&mut self, run: &Run, at: u8, next: Polled) -> bool {
        let Some((state, queue)) = &mut self.ring else { return false };
        let gate = &mut state.side.gate;
        let mut waiting = Waiting::new((run.port, run.queue), self.now);
        // Frames that wait for buffers keep their booking at the receiver's rate.
        let booked = gate.receiver.filter(|before| before.port == run.port);
        waiting.booked = booked.and_then(|before| before.booked);
        let before = gate.receiver.replace(waiting);
        queue.stats.waits.add(u64::from(before.is_none()));
        self.left = Some((at, next));
        true
    }

    /// Ends a burst whose frames were all delivered. If the receiver had granted buffers to frames
    /// that waited, the next frames wait too: most likely there are no buffers for them, and a look
    /// is cheaper than a burst.
    #[inline(always)]
    pub(crate) fn complete(&mut self) {
        let Some((state, _)) = &mut self.ring else { return };
        let TxState { vring, side: Tx { gate, .. }, .. } = &mut **state;
        if let Some(waiting) = &mut gate.receiver {
            let more = vring.ring.as_ref().is_some_and(SplitRing::has_more);
            let granted = std::mem::take(&mut waiting.granted);
            if !(more && granted && self.only.is_some()) {
                gate.receiver = None;
            }
        }
    }
}

/// Lets frames wait for a lock that another thread holds. The scheduler or a page of a hostile
/// guest may have stopped the holder. After [`LOCK_WAIT_NANOS`] no worker waits for this lock until
/// the lock has been free once.
#[cold]
fn wait_for_lock(waiting: &mut Waiting, queue: &Queue<Rx>, now: u64) -> Result<(), Polled> {
    let since = *waiting.locked_since.get_or_insert(now);
    if since.abs_diff(now) < clock::cycles_in(LOCK_WAIT_NANOS) && !queue.must_not_wait() {
        return Err(Polled::Locked);
    }
    queue.give_up_lock();
    Ok(())
}

/// Asks for a kick at the next buffers of the receiver that a ring's frames wait for, before worker
/// `worker` sleeps. True if buffers came already. Frames that wait for a rate need no kick: their
/// waiting ends at a known time.
pub fn listen(worker: usize, ports: &PortTable, state: &TxState, stalls: &Stalls) -> bool {
    let gate = &state.side.gate;
    if gate.booked.is_some() || state.memory.is_set() {
        // The ring is not looked at before a known time, whatever comes.
        return false;
    }
    let Some(waiting) = gate.receiver.filter(|waiting| waiting.booked.is_none()) else {
        return false;
    };
    let Some(receiver) = receiver_of(ports, &waiting) else { return true };
    stalls.at_receiver(waiting.port);
    match receiver.lock_again() {
        Some(mut state) => {
            state.side.awaited.add(worker);
            // Another worker may have seen more buffers and not needed them.
            let came =
                |ring: &mut SplitRing| ring.enable_kicks_behind() || ring.offered() > waiting.left;
            state.vring.running().is_none_or(came)
        }
        None => !receiver.must_not_wait(),
    }
}

/// Returns the receive queue that frames wait for; none if the port is gone.
fn receiver_of<'p>(ports: &'p PortTable, waiting: &Waiting) -> Option<&'p Queue<Rx>> {
    let (_, guest) = ports.guest(waiting.port)?;
    guest.rx.get(usize::from(waiting.queue))
}

#[cfg(test)]
mod tests;
