//! The runs of a plan into their ports.
//!
//! A contended receive ring never holds up the others: its run is set aside and tried again after
//! all other destinations of the burst, then by a short spin. Who holds it for longer was preempted
//! or waits for a page of a hostile guest, which may last. So frames at the end of a burst stay in
//! their sender's ring and are tried again; others wait for a slice or two of the scheduler, with
//! every signal owed sent first, and are then counted drops. *Measured* with two workers and a mesh
//! of four ports on two CPUs that had other work as well: 428 of 295,000 bursts met a holder that
//! did not run, for less than 4 ms each time; none of 10.8 million frames was dropped for that.
//!
//! Frames that find no buffer get that one later try too and are then counted drops, unless they
//! are the end of the burst and may wait in their sender's ring (`backpressure`); nothing
//! here waits for a guest.
//!
//! Nothing that may sleep happens while a receive lock is held: signals and log lines are put off.

mod storm;

use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use super::backpressure::Backpressure;
use super::egress::Copies;
use super::flood::limit_part;
use super::plan::{Fan, Plan, Run};
use super::screen::Passage;
use super::signals::Signals;
use super::stalls::{At, Stalls};
use crate::capture::outcomes::Outcomes;
use crate::events::{What, reason};
use crate::port::{DevicePort, Endpoint, Eviction, GuestPort, Port, Queue, Rx, RxState};
use crate::ring::{Burst, Cut, Delivered, RingError, RxScratch};
use base::frame::flow_hash;
use base::limits::{
    BURST_FRAMES, LOCK_WAIT_NANOS, LOCK_WAIT_STEP, MAX_FLOOD_SEGMENTS, MAX_SEGMENTS,
};
use base::stats::{DropReason, Drops, WorkerStats};
use sys::clock;
use sys::frame_io::FrameBatch;

/// Which try of a run it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Try {
    /// Another one may follow.
    First,
    /// Of a run that is left over.
    Last,
    /// The only one of a flooded copy.
    Flood,
    /// The only one of a mirrored copy, for which nothing waits.
    Mirror,
}

/// What becomes of the frames of a run that were not delivered.
#[derive(Clone, Copy)]
enum Rest {
    /// There are none.
    Nothing,
    /// They wait in their sender's ring.
    Waits,
    /// They are tried again or dropped.
    Left(DropReason),
    /// They are dropped.
    Drop(DropReason),
}

/// A receive queue that frames go to.
#[derive(Clone, Copy)]
struct Egress<'p> {
    port: &'p Port,
    guest: &'p GuestPort,
    index: usize,
}

impl<'p> Egress<'p> {
    fn queue(self) -> &'p Queue<Rx> {
        &self.guest.rx[self.index]
    }
}

/// Room for delivering; allocated once for each worker.
#[derive(Default)]
pub struct Room {
    /// For the receive rings' general path.
    pub scratch: RxScratch,
    /// For frames to a device.
    pub batch: FrameBatch,
    /// For the beginning of a frame that is captured.
    pub beginning: Vec<u8>,
    /// For the frames that mirrors shorten; none before it was needed.
    pub excerpts: Option<Box<Burst>>,
}

/// What delivering needs besides the burst.
pub struct Delivery<'a> {
    /// Index of this worker, which chooses a TAP's queue.
    pub worker: usize,
    /// Its counters.
    pub stats: &'a WorkerStats,
    /// Where the burst came from, and how its frames may wait there.
    pub backpressure: Backpressure<'a>,
    /// Until when it may wait here for rings that another thread holds, once it does.
    pub wait_until: &'a mut Option<Instant>,
    /// Room.
    pub room: &'a mut Room,
    /// Whose memory makes the worker wait.
    pub stalls: &'a mut Stalls,
    /// Cycles that receivers' memory took to come, which is not the sender's to pay.
    pub slow: u64,
    /// Signals owed.
    pub signals: &'a mut Signals,
    /// What became of each copy, if that is captured.
    pub outcomes: &'a mut Outcomes,
}

impl Delivery<'_> {
    /// Delivers the runs of the plan: each destination once, then again what is left over. Its
    /// floods come when the burst is complete.
    #[inline(always)]
    pub fn deliver(&mut self, burst: &mut Burst, plan: &mut Plan) {
        let mut settled = true;
        for run in plan.runs() {
            settled &= self.first_try(burst, run);
        }
        if !settled {
            self.last_tries(burst, plan.runs());
        }
        if plan.is_fanned() {
            let Backpressure { ports, from, .. } = self.backpressure;
            if ports.policy(from).limits_floods {
                self.limit_floods(burst, plan);
            }
            limit_part(plan, burst);
        }
        burst.keep_tags();
    }

    /// Has frames leave by a port with the tags that they should have there.
    #[inline(always)]
    fn tag(&self, burst: &mut Burst, to: &Port, frames: &[u8]) {
        let ports = self.backpressure.ports;
        if !ports.is_plain() {
            Passage::new(ports, self.backpressure.from, to.id).tag(burst, frames);
        }
    }

    /// True if the run is settled, or stays in its sender's ring.
    #[inline(always)]
    fn first_try(&mut self, burst: &mut Burst, run: &mut Run) -> bool {
        let port = &self.backpressure.ports[run.port];
        self.tag(burst, port, run.left());
        match &port.endpoint {
            Endpoint::Guest(guest) => {
                let to = Egress { port, guest, index: usize::from(run.queue) };
                let Some(state) = to.queue().lock_for_burst() else {
                    self.stats.lock_misses.add(1);
                    return false;
                };
                match self.fill_timed(to, run, state, burst, Try::First) {
                    Rest::Nothing | Rest::Waits => true,
                    rest => self.settle(to, run, rest, Try::First),
                }
            }
            Endpoint::Device(device) => {
                let (frames, mut settled) = run.settling();
                self.send(port, device, burst, frames, &mut settled);
                true
            }
        }
    }

    /// Tries once more what is left over, but for the end of the burst, if that waits.
    #[inline(never)]
    fn last_tries(&mut self, burst: &mut Burst, runs: &mut [Run]) {
        for run in runs.iter_mut().filter(|run| !run.left().is_empty()) {
            let waits = self.backpressure.left.is_some_and(|(at, _)| run.left()[0] == at);
            let port = &self.backpressure.ports[run.port];
            if let (false, Endpoint::Guest(guest)) = (waits, &port.endpoint) {
                self.tag(burst, port, run.left());
                self.last_try(port, guest, burst, run, Try::Last);
            }
        }
    }

    /// Delivers what is left of a run into a ring whose lock is waited for. If the ring went out of
    /// service after it was chosen, the run turns to another one of the guest.
    fn last_try(&mut self, port: &Port, guest: &GuestPort, burst: &Burst, run: &mut Run, how: Try) {
        let mut to = Egress { port, guest, index: usize::from(run.queue) };
        let may_stay = how == Try::Last && self.backpressure.is_end(burst, run);
        let mut state = if may_stay { to.queue().lock_again() } else { None };
        if state.is_none() {
            state = match how {
                Try::Mirror => to.queue().lock_soon(),
                _ => self.lock(to.queue(), may_stay),
            };
        }
        if let (Some(there), true) = (&mut state, how != Try::Mirror)
            && there.vring.running().is_none()
            && let Some(index) = guest.any_receiver()
        {
            drop(state);
            (to.index, run.queue) = (index, index as u8);
            state = self.lock(to.queue(), may_stay);
        }
        let rest = match state {
            Some(state) => self.fill_timed(to, run, state, burst, how),
            None if may_stay && self.backpressure.wait_for_lock(run, to.queue()) => Rest::Waits,
            None => Rest::Left(DropReason::RingBusy),
        };
        self.settle(to, run, rest, how);
    }

    /// A contended lock: spin about as long as a burst takes. If the frames cannot stay in their
    /// sender's ring, settle debts and wait here, unless a worker did so in vain.
    fn lock<'q>(
        &mut self,
        queue: &'q Queue<Rx>,
        may_stay: bool,
    ) -> Option<MutexGuard<'q, RxState>> {
        let state = queue.lock_soon();
        if state.is_some() || may_stay || queue.is_stalled() {
            return state;
        }
        self.wait_for(queue)
    }

    /// At the memory of the guest that sends, if one does.
    fn sender(&self) -> At {
        let Backpressure { from, ring, .. } = &self.backpressure;
        if ring.is_some() { At::sender(*from) } else { At::NOTHING }
    }

    /// Waits for a lock whose holder does not run, within what the burst has left of that.
    #[cold]
    fn wait_for<'q>(&mut self, queue: &'q Queue<Rx>) -> Option<MutexGuard<'q, RxState>> {
        self.stats.lock_parks.add(1);
        self.signals.slot().at(At::NOTHING.0);
        // Guests that were promised a signal at the end of this turn shall not wait for that.
        self.signals.flush(self.backpressure.ports, self.stats, self.backpressure.now);
        let most = Duration::from_nanos(LOCK_WAIT_NANOS);
        let end = *self.wait_until.get_or_insert_with(|| Instant::now() + most);
        while Instant::now() < end {
            std::thread::sleep(LOCK_WAIT_STEP);
            let state = queue.lock_again();
            if state.is_some() {
                self.signals.slot().at(self.sender().0);
                return state;
            }
        }
        queue.stall();
        None
    }

    /// As [`Delivery::fill`]. What a ring's memory makes the worker wait while frames are private
    /// is the ring's own time.
    #[inline(always)]
    fn fill_timed(
        &mut self,
        to: Egress<'_>,
        run: &mut Run,
        state: MutexGuard<'_, RxState>,
        burst: &Burst,
        how: Try,
    ) -> Rest {
        self.signals.slot().also_at(to.port.id.into());
        let (session, slow) = (state.vring.session, self.slow);
        let start = self.stalls.is_watching().then(clock::cycles);
        if start.is_some() {
            self.signals.slot().at(At::NOTHING.and(to.port.id).0);
        }
        let rest = self.fill(to, run, state, burst, how);
        if let Some(stall) = start.and_then(|start| self.stalls.end_run(start)) {
            self.slow = slow.saturating_add(stall.cycles);
            to.queue().charge(Some(session), stall.cycles, clock::cycles());
        }
        rest
    }

    /// Delivers what is left of a run into a locked ring.
    fn fill(
        &mut self,
        to: Egress<'_>,
        run: &mut Run,
        mut state: MutexGuard<'_, RxState>,
        burst: &Burst,
        how: Try,
    ) -> Rest {
        if state.memory.is_paused(clock::cycles) {
            return Rest::Drop(DropReason::SlowMemory);
        }
        let down = if state.vring.broken { DropReason::RingBroken } else { DropReason::PortDown };
        let Some((ring, admission)) = state.admission() else {
            let others = to.guest.any_receiver().is_some();
            return if others { Rest::Left(down) } else { Rest::Drop(down) };
        };
        let (from, frames) = (self.backpressure.from, run.left());
        let admitted = admission.admit(from, frames.len(), || ring.offered()).min(frames.len());
        let cut = match how {
            Try::First => Cut::Whole,
            Try::Last if self.backpressure.may_wait(burst, run) => Cut::Whole,
            Try::Last => Cut::Part(MAX_SEGMENTS),
            Try::Flood | Try::Mirror => Cut::Part(MAX_FLOOD_SEGMENTS),
        };
        let base = ring.base();
        let done = ring.deliver(burst, &frames[..admitted], &mut self.room.scratch, cut);
        let taken = ring.base().wrapping_sub(base);
        admission.record(from, (done.frames, done.bytes), taken, done.settled < admitted);
        self.count(to, frames, &done, burst.needs_offloads());
        if done.frames + done.bad_buffers > 0 {
            self.signals.note(to.port.id, done.signal, &mut state.vring, &to.queue().stats);
            if done.signal {
                to.guest.count_received();
            }
        }
        run.advance(done.settled);
        if done.broken.is_some() || done.slow > 0 {
            return self.give_up(to, &mut state, &done);
        }
        if run.left().is_empty() {
            return Rest::Nothing;
        }
        match how {
            Try::Flood | Try::Mirror => Rest::Drop(DropReason::NoBuffer),
            _ if self.backpressure.wait(burst, run, &mut state) => Rest::Waits,
            _ => Rest::Left(DropReason::NoBuffer),
        }
    }

    /// A ring that was found broken, or whose memory came too slowly, takes no more of a run: its
    /// ring is left alone for good, or for a time.
    #[cold]
    fn give_up(&mut self, to: Egress<'_>, state: &mut RxState, done: &Delivered) -> Rest {
        let Some(error) = done.broken else {
            state.memory.charge(done.slow, clock::cycles());
            self.slow = self.slow.saturating_add(done.slow);
            return Rest::Drop(DropReason::SlowMemory);
        };
        to.guest.set_active(to.index, false);
        self.signals.note_broken((to.port.id, 2 * to.index), &mut state.vring, error);
        Rest::Drop(DropReason::RingBroken)
    }

    /// What becomes of what is left of a run; true if that is known now.
    #[inline(never)]
    fn settle(&mut self, to: Egress<'_>, run: &mut Run, rest: Rest, how: Try) -> bool {
        let reason = match rest {
            Rest::Nothing | Rest::Waits => return true,
            Rest::Left(_) if how == Try::First => return false,
            Rest::Left(_) | Rest::Drop(_) if how == Try::Mirror => DropReason::Mirror,
            Rest::Left(reason) | Rest::Drop(reason) => reason,
        };
        let at = match reason {
            DropReason::RingBusy => &to.port.stats.drops,
            _ => &to.queue().stats.drops,
        };
        self.drop(to.port, at, run.left(), reason);
        run.advance(run.left().len());
        true
    }

    /// Counts frames as dropped on their way to a port.
    #[inline(never)]
    fn drop(&mut self, port: &Port, at: &Drops, frames: &[u8], reason: DropReason) {
        port.drop_copies(at, (self.backpressure.from, frames), reason, self.outcomes);
    }

    /// Counts what became of a run; `asks` if its burst asked for offloads.
    #[inline(always)]
    fn count(&mut self, to: Egress<'_>, frames: &[u8], done: &Delivered, asks: bool) {
        let stats = &to.queue().stats;
        stats.frames.add(done.frames);
        stats.bytes.add(done.bytes);
        if asks {
            let fallbacks = &stats.fallbacks;
            fallbacks.checksummed.add(done.fallbacks.checksummed);
            fallbacks.segmented.add(done.fallbacks.segmented);
            fallbacks.segments.add(done.fallbacks.segments);
            fallbacks.segments_lost.add(done.fallbacks.segments_lost);
        }
        if done.bad_buffers > 0 {
            stats.bad_buffers.add(done.bad_buffers);
        }
        if done.no_fit | done.bad_offload != 0 || self.outcomes.are_wanted() {
            self.note_settled(to, &frames[..done.settled], done);
        }
    }

    /// Notes what became of the frames of a run that are settled, and counts those that were
    /// dropped.
    #[cold]
    fn note_settled(&mut self, to: Egress<'_>, frames: &[u8], done: &Delivered) {
        for (place, frame) in frames.iter().enumerate() {
            let among = |bits: u64| bits >> place & 1 != 0;
            let reason = match (among(done.no_fit), among(done.bad_offload)) {
                (true, _) => DropReason::NoFit,
                (_, true) => DropReason::BadOffload,
                _ => {
                    self.outcomes.delivered(*frame, to.port.id);
                    continue;
                }
            };
            self.drop(to.port, &to.queue().stats.drops, &[*frame], reason);
        }
    }

    /// Delivers the floods of `plan`: one copy for each target and no retry, after all unicast of
    /// the burst.
    pub fn flood(&mut self, burst: &mut Burst, plan: &mut Plan) {
        let (fans, run, settled) = plan.floods_left();
        for fan in fans {
            self.fan_out(burst, fan, run, settled);
        }
    }

    /// Delivers a copy of a fan's frames to each of its targets; `settled` copies are counted.
    fn fan_out(&mut self, burst: &mut Burst, fan: &Fan, run: &mut Run, settled: &mut usize) {
        let Backpressure { ports, from, now, .. } = self.backpressure;
        let frames = fan.frames();
        let (copies, mut kept) = (Copies::new(burst, from, frames), [0; BURST_FRAMES]);
        for &target in fan.targets() {
            let (port, passage) = (&ports[target], Some(Passage::new(ports, from, target)));
            let fitting = copies.for_port(burst, (port, passage), now, &mut kept, self.outcomes);
            *settled += frames.len() - fitting.len();
            self.tag(burst, port, fitting);
            self.copy_to(port, burst, fitting, (run, settled), Try::Flood);
        }
    }

    /// Delivers copies of frames to a port; `settled` counts copies that need no more.
    fn copy_to(
        &mut self,
        port: &Port,
        burst: &Burst,
        frames: &[u8],
        (run, settled): (&mut Run, &mut usize),
        how: Try,
    ) {
        match &port.endpoint {
            Endpoint::Guest(guest) => {
                self.flood_guest((port, guest), burst, frames, (run, settled), how);
            }
            Endpoint::Device(device) => {
                self.send(port, device, burst, frames, &mut |count| *settled += count);
            }
        }
    }

    /// Sends frames to a device; calls `settled` with how many are.
    fn send(
        &mut self,
        port: &Port,
        device: &DevicePort,
        burst: &Burst,
        frames: &[u8],
        settled: &mut dyn FnMut(usize),
    ) {
        // A peer's socket or the host's network may take long, too. What is watched was copied out
        // of its sender's memory.
        let from = if self.stalls.is_watching() { At::NOTHING } else { self.sender() };
        self.signals.slot().at(from.and(port.id).0);
        let frames = (self.backpressure.from, frames);
        let batch = &mut self.room.batch;
        device.send(self.worker, burst, frames, batch, (port, self.outcomes), settled);
        self.signals.slot().at(self.sender().0);
    }

    /// Delivers copies of frames to the port of a mirror, as they are; how many there are. A port
    /// that does not take them at once loses them.
    #[cold]
    pub fn mirror(&mut self, burst: &Burst, frames: &[u8], port: &Port, run: &mut Run) -> usize {
        let (from, now) = (self.backpressure.from, self.backpressure.now);
        let (mut kept, mut settled) = ([0; BURST_FRAMES], 0);
        let copies = Copies::new(burst, from, frames);
        let fitting = copies.for_port(burst, (port, None), now, &mut kept, self.outcomes);
        self.copy_to(port, burst, fitting, (run, &mut settled), Try::Mirror);
        frames.len()
    }

    fn flood_guest(
        &mut self,
        (port, guest): (&Port, &GuestPort),
        burst: &Burst,
        floods: &[u8],
        (run, settled): (&mut Run, &mut usize),
        how: Try,
    ) {
        let mut receivers = guest.receivers();
        // One queue for each frame, and what queues that makes.
        let (mut chosen, mut queues) = ([0; BURST_FRAMES], 0u32);
        for (place, &frame) in chosen.iter_mut().zip(floods) {
            let snapshot = &burst.frames()[usize::from(frame)].snapshot;
            // Of one that has none any more, the first says why: it may just have broken.
            let queue = receivers.choose(|| flow_hash(snapshot)).unwrap_or(0);
            *place = queue as u8;
            queues |= 1 << queue;
        }
        while queues != 0 {
            let queue = queues.trailing_zeros() as u8;
            queues &= queues - 1;
            run.restart(port.id, queue);
            floods.iter().zip(chosen).filter(|of| of.1 == queue).for_each(|of| run.push(*of.0));
            let copies = run.left().len();
            self.last_try(port, guest, burst, run, how);
            *settled += copies;
        }
    }
}

/// Says once that a ring, which session `session` had started, was found broken.
pub fn report_broken(port: &Port, session: u64, ring: usize, error: RingError) {
    if error == RingError::Truncated
        && let Some(guest) = port.as_guest()
    {
        // Nothing of this guest can be trusted to be its memory any more.
        guest.evict(session, Eviction::Truncated);
    }
    count_broken(port, ring, error);
}

/// Counts a ring that is left alone from here on, and says why.
pub fn count_broken(port: &Port, ring: usize, why: impl std::fmt::Display) {
    port.stats.rings_broken.add_shared(1);
    port.tell(What::RingBroken { ring, why: reason(why) });
}

#[cfg(test)]
mod tests;
