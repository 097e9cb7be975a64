//! Delivery of the runs of a plan to their ports.
//!
//! A contended receive ring never delays the other receivers: its run is set aside, tried again
//! after all other runs of the burst, and then tried in a short spin. A thread that holds the lock
//! for longer was preempted, or waits for a page of a hostile guest, which may take long. Frames at
//! the end of a burst then stay in their sender's ring. For other frames the worker sends all
//! pending signals, waits for one or two time slices of the scheduler, and then drops the frames.
//! *Measured* with two workers and a mesh of four ports on two CPUs that had other work as well:
//! 428 of 295,000 bursts met a holder that did not run, for less than 4 ms each time; none of 10.8
//! million frames was dropped for that reason.
//!
//! Frames without a buffer wait in their sender's ring if `backpressure` permits; other frames are
//! tried once more in the second round, and then dropped. Delivery never waits for a guest.
//!
//! The worker does nothing that may sleep while it holds a receive lock: signals and log lines are
//! sent later.

mod storm;

use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use super::backpressure::Backpressure;
use super::egress::Copies;
use super::filter::Filters;
use super::flood::limit_part;
use super::plan::{FloodGroup, Plan, Run};
use super::screen::VlanTransit;
use super::signals::Signals;
use crate::capture::outcomes::Outcomes;
use crate::events::{What, reason};
use crate::port::{DevicePort, Endpoint, Eviction, GuestPort, Port, Queue, Rx, RxState};
use crate::ring::{Burst, Delivered, RingError, RxScratch, Segmentation};
use crate::stalls::Stalls;
use base::frame::flow_hash;
use base::limits::{
    BURST_FRAMES, LOCK_WAIT_NANOS, LOCK_WAIT_STEP, MAX_FLOOD_SEGMENTS, MAX_SEGMENTS,
};
use base::stats::{DropReason, Drops, WorkerStats};
use switch::{PortId, Tick};
use sys::clock;
use sys::frame_io::FrameBatch;

/// Kind of a delivery attempt.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Try {
    /// The first attempt; a last attempt may follow.
    First,
    /// The last attempt, for frames that the first attempt left.
    Last,
    /// The only attempt of a flooded copy.
    Flood,
    /// The only attempt of a copy that waits for no lock holder; a reason replaces that of a loss.
    AtOnce(Option<DropReason>),
}

/// Fate of the frames of a run that were not delivered.
#[derive(Clone, Copy)]
enum Rest {
    /// No frame is left.
    Nothing,
    /// The frames wait in their sender's ring.
    Waits,
    /// The frames are tried again; after the last attempt they are dropped for this reason.
    Left(DropReason),
    /// The frames are dropped.
    Drop(DropReason),
}

/// A guest's receive queue to which a run is delivered.
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

/// Buffers for delivering; allocated once for each worker.
#[derive(Default)]
pub struct Room {
    /// Buffers for the general path of receive rings.
    pub(crate) scratch: RxScratch,
    /// Batch of frames for a device.
    pub(crate) batch: FrameBatch,
    /// Buffer for the first bytes of a captured frame.
    pub(crate) beginning: Vec<u8>,
    /// Burst of frames that a mirror shortens; none before the first use.
    pub(crate) excerpts: Option<Box<Burst>>,
}

/// State for delivering a burst.
pub(crate) struct Delivery<'a> {
    /// Index of this worker, which selects a queue of a device.
    pub(crate) worker: usize,
    /// Counters of this worker.
    pub(crate) stats: &'a WorkerStats,
    /// Source of the burst, and how frames may wait in the source's ring.
    pub(crate) backpressure: Backpressure<'a>,
    /// End of the time for waiting for locks that another thread holds; none before the first wait.
    pub(crate) wait_until: &'a mut Option<Instant>,
    /// Buffers.
    pub(crate) room: &'a mut Room,
    /// Record of delays by guests' memory.
    pub(crate) stalls: &'a mut Stalls,
    /// Signals to send.
    pub(crate) signals: &'a mut Signals,
    /// Outcome of each copy, if the ports are observed.
    pub(crate) outcomes: &'a mut Outcomes,
}

impl Delivery<'_> {
    /// Delivers the runs of the plan: each run once, then the frames that are left once more. The
    /// floods follow when the burst is complete.
    #[inline(always)]
    pub(crate) fn deliver(&mut self, burst: &mut Burst, plan: &mut Plan) {
        let mut settled = true;
        for run in plan.runs() {
            if self.backpressure.keeps_back(burst, run) {
                continue;
            }
            settled &= self.first_try(burst, run);
            if self.backpressure.is_mixed {
                self.backpressure.note_settled(run);
            }
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

    /// Sets the VLAN tags with which frames leave by port `to`.
    #[inline(always)]
    fn tag(&self, burst: &mut Burst, to: &Port, frames: &[u8]) {
        let ports = self.backpressure.ports;
        if !ports.is_plain() {
            VlanTransit::new(ports, self.backpressure.from, to.id).tag(burst, frames);
        }
    }

    /// Tries to deliver a run. True if all frames are settled, or wait in their sender's ring.
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
                self.backpressure.note_room((run.port, run.queue));
                let (frames, mut settled) = run.settling();
                self.send(port, device, burst, frames, &mut settled);
                true
            }
        }
    }

    /// Tries runs with frames left once more, except frames that wait in their sender's ring.
    #[inline(never)]
    fn last_tries(&mut self, burst: &mut Burst, runs: &mut [Run]) {
        for run in runs {
            if self.backpressure.keeps_back(burst, run) || run.left().is_empty() {
                continue;
            }
            let port = &self.backpressure.ports[run.port];
            if let Endpoint::Guest(guest) = &port.endpoint {
                self.tag(burst, port, run.left());
                self.last_try(port, guest, burst, run, Try::Last);
                self.backpressure.note_settled(run);
            }
        }
    }

    /// Delivers the frames left of a run, and waits for the lock of the ring if necessary. If the
    /// ring went out of service after it was chosen, another receive ring of the guest gets the
    /// frames of the run, except copies that are tried once.
    fn last_try(&mut self, port: &Port, guest: &GuestPort, burst: &Burst, run: &mut Run, how: Try) {
        let mut to = Egress { port, guest, index: usize::from(run.queue) };
        let may_stay = how == Try::Last && self.backpressure.is_end(run);
        let mut state = if may_stay { to.queue().lock_again() } else { None };
        if state.is_none() {
            state = match how {
                Try::AtOnce(_) => to.queue().lock_soon(),
                _ => self.lock(to.queue(), may_stay),
            };
        }
        if let (Some(there), true) = (&mut state, !matches!(how, Try::AtOnce(_)))
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

    /// Locks a contended ring: spins for about the time of a burst. After the spin, if frames
    /// cannot stay in their sender's ring, waits for the holder, unless a worker waited for this
    /// lock in vain.
    fn lock<'q>(
        &mut self,
        queue: &'q Queue<Rx>,
        may_stay: bool,
    ) -> Option<MutexGuard<'q, RxState>> {
        let state = queue.lock_soon();
        if state.is_some() || may_stay || queue.must_not_wait() {
            return state;
        }
        self.wait_for(queue)
    }

    /// Returns the port in whose memory the frames may lie; none for copies of private frames and
    /// for frames of devices.
    fn sender(&self) -> Option<PortId> {
        self.backpressure.ring.is_some().then_some(self.backpressure.from)
    }

    /// Sleeps until the lock is free, at most for the rest of the burst's time for waiting.
    #[cold]
    fn wait_for<'q>(&mut self, queue: &'q Queue<Rx>) -> Option<MutexGuard<'q, RxState>> {
        self.stats.lock_parks.add(1);
        self.stalls.at_nothing();
        // Guests are owed a signal at the end of this turn, which the sleep would delay.
        self.signals.flush(self.backpressure.ports, self.stats, self.backpressure.now);
        let most = Duration::from_nanos(LOCK_WAIT_NANOS);
        let end = *self.wait_until.get_or_insert_with(|| Instant::now() + most);
        while Instant::now() < end {
            std::thread::sleep(LOCK_WAIT_STEP);
            let state = queue.lock_again();
            if state.is_some() {
                return state;
            }
        }
        queue.give_up_lock();
        None
    }

    /// Delivers frames with [`Delivery::fill`]. While the worker watches, the frames are private,
    /// so a long delay is caused by the receiver's memory: the receive queue is charged.
    #[inline(always)]
    fn fill_timed(
        &mut self,
        to: Egress<'_>,
        run: &mut Run,
        state: MutexGuard<'_, RxState>,
        burst: &Burst,
        how: Try,
    ) -> Rest {
        let start = self.stalls.begin_run(self.sender(), to.port.id);
        let session = state.vring.session;
        let rest = self.fill(to, run, state, burst, how);
        let stall = start.and_then(|start| self.stalls.end_run(start));
        if let Some(stall) = stall.and_then(|stall| to.guest.charged(stall)) {
            to.queue().charge(Some(session), stall.cycles, clock::cycles());
        }
        rest
    }

    /// Delivers the frames left of a run into a locked ring.
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
        let RxState { vring, side: Rx { admission, .. }, .. } = &mut *state;
        let Some(ring) = vring.running() else {
            let others = to.guest.any_receiver().is_some();
            return if others { Rest::Left(down) } else { Rest::Drop(down) };
        };
        let (from, frames) = (self.backpressure.from, run.left());
        let admitted = admission.admit(from, frames.len(), || ring.offered()).min(frames.len());
        let segmentation = match how {
            Try::First => Segmentation::Whole,
            Try::Last if self.backpressure.price(run).is_some() => Segmentation::Whole,
            Try::Last => Segmentation::Part(MAX_SEGMENTS),
            Try::Flood | Try::AtOnce(_) => Segmentation::Part(MAX_FLOOD_SEGMENTS),
        };
        let done = ring.deliver(burst, &frames[..admitted], &mut self.room.scratch, segmentation);
        let has_room = self.backpressure.is_shared() && ring.offered() > ring.size() / 2;
        admission.record(from, (done.frames, done.bytes), done.buffers, done.settled < admitted);
        self.count(to, frames, &done, burst.needs_offloads());
        if done.frames + done.bad_buffers > 0 {
            self.signals.note(to.port.id, done.signal, vring, &to.queue().stats);
            if done.signal {
                to.guest.count_received();
            }
        }
        if has_room {
            self.backpressure.note_room((run.port, run.queue));
        }
        run.advance(done.settled);
        if done.broken.is_some() || done.slow > 0 {
            return self.give_up(to, &mut state, &done);
        }
        if run.left().is_empty() {
            return Rest::Nothing;
        }
        match how {
            Try::Flood | Try::AtOnce(_) => Rest::Drop(DropReason::NoBuffer),
            _ if self.backpressure.wait(run, &mut state) => Rest::Waits,
            _ => Rest::Left(DropReason::NoBuffer),
        }
    }

    /// Stops the delivery of a run to a ring that is broken, or whose memory is slow. A broken ring
    /// is out of service; a ring with slow memory pauses.
    #[cold]
    fn give_up(&mut self, to: Egress<'_>, state: &mut RxState, done: &Delivered) -> Rest {
        let Some(error) = done.broken else {
            if let Some(slow) = to.guest.charged(done.slow) {
                state.memory.charge(slow, clock::cycles());
            }
            self.stalls.note_delay(done.slow);
            return Rest::Drop(DropReason::SlowMemory);
        };
        to.guest.set_active(to.index, false);
        self.signals.note_broken((to.port.id, 2 * to.index), &mut state.vring, error);
        Rest::Drop(DropReason::RingBroken)
    }

    /// Settles the frames left of a run. False if the frames are to be tried again.
    #[inline(never)]
    fn settle(&mut self, to: Egress<'_>, run: &mut Run, rest: Rest, how: Try) -> bool {
        let reason = match rest {
            Rest::Nothing | Rest::Waits => return true,
            Rest::Left(_) if how == Try::First => return false,
            Rest::Left(reason) | Rest::Drop(reason) => match how {
                Try::AtOnce(Some(lost)) => lost,
                _ => reason,
            },
        };
        let at = match reason {
            DropReason::RingBusy => &to.port.stats.drops,
            _ => &to.queue().stats.drops,
        };
        self.drop(to.port, at, run.left(), reason);
        run.advance(run.left().len());
        true
    }

    /// Counts copies to a port as dropped.
    #[inline(never)]
    fn drop(&mut self, port: &Port, at: &Drops, frames: &[u8], reason: DropReason) {
        port.drop_copies(at, (self.backpressure.from, frames), reason, self.outcomes);
    }

    /// Counts the outcome of a run; `asks` if its burst asks for offloads.
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
        if done.no_fit | done.bad_offload != 0 || self.outcomes.are_wanted {
            self.note_settled(to, &frames[..done.settled], done);
        }
    }

    /// Records the outcome of the settled frames of a run, and counts the dropped frames.
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

    /// Delivers the floods of `plan` in one attempt, a copy to each target, after all unicast
    /// frames of the burst.
    pub(crate) fn flood(
        &mut self,
        burst: &mut Burst,
        plan: &mut Plan,
        filters: &mut Filters,
        now: Tick,
    ) {
        let (flood_groups, run, settled) = plan.floods_left();
        for group in flood_groups {
            self.deliver_flood(burst, group, (run, settled), (filters, now));
        }
    }

    /// Delivers a copy of a group's frames to each of the group's targets; adds the copies to
    /// `settled`.
    fn deliver_flood(
        &mut self,
        burst: &mut Burst,
        group: &FloodGroup,
        (run, settled): (&mut Run, &mut usize),
        (filters, tick): (&mut Filters, Tick),
    ) {
        let Backpressure { ports, from, now, .. } = self.backpressure;
        let frames = group.frames();
        let (copies, mut kept) = (Copies::new(burst, from, frames), [0; BURST_FRAMES]);
        let mut passing = [0; BURST_FRAMES];
        for &target in group.targets() {
            let (port, transit) = (&ports[target], Some(VlanTransit::new(ports, from, target)));
            let fitting = copies.for_port(burst, (port, transit), now, &mut kept, self.outcomes);
            let way = (from, ports, port, false);
            let fitting = filters.that_pass(burst, fitting, way, tick, &mut passing, self.outcomes);
            if filters.is_due() {
                filters.settle(ports, burst, burst.bytes(), tick);
            }
            *settled += frames.len() - fitting.len();
            self.tag(burst, port, fitting);
            self.copy_to(port, burst, fitting, (run, settled), Try::Flood);
        }
    }

    /// Delivers copies of frames to a port; adds the copies to `settled`.
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

    /// Sends frames to a device; passes the number of settled frames to `settled`.
    fn send(
        &mut self,
        port: &Port,
        device: &DevicePort,
        burst: &Burst,
        frames: &[u8],
        settled: &mut dyn FnMut(usize),
    ) {
        // Sending may take long: the peer of a socket or the host's network may be slow.
        self.stalls.begin_run(self.sender(), port.id);
        let frames = (self.backpressure.from, frames);
        let batch = &mut self.room.batch;
        device.send(self.worker, burst, frames, batch, (port, self.outcomes), settled);
    }

    /// Delivers copies of frames to a port without a change of tags: to the port of a mirror, or
    /// answers to their port. Returns the number of copies. Copies that the port cannot take at
    /// once are dropped; `lost` replaces the reason of such drops.
    #[cold]
    pub(crate) fn copy_as_is(
        &mut self,
        burst: &Burst,
        frames: &[u8],
        (port, lost): (&Port, Option<DropReason>),
        run: &mut Run,
    ) -> usize {
        let (from, now) = (self.backpressure.from, self.backpressure.now);
        let (mut kept, mut settled) = ([0; BURST_FRAMES], 0);
        let copies = Copies::new(burst, from, frames);
        let fitting = copies.for_port(burst, (port, None), now, &mut kept, self.outcomes);
        self.copy_to(port, burst, fitting, (run, &mut settled), Try::AtOnce(lost));
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
        // The queue of each frame, and the set of chosen queues as bits.
        let (mut chosen, mut queues) = ([0; BURST_FRAMES], 0u32);
        for (place, &frame) in chosen.iter_mut().zip(floods) {
            let snapshot = &burst.frames()[usize::from(frame)].snapshot;
            // Without a running queue, queue 0 gives the reason: the ring may just have broken.
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

/// Reports once that a ring, which session `session` had started, is broken.
pub(crate) fn report_broken(port: &Port, session: u64, ring: usize, error: RingError) {
    if error == RingError::Truncated
        && let Some(guest) = port.as_guest()
    {
        // The guest's memory is a truncated file: no page of the mapping can be trusted any more.
        guest.evict(session, Eviction::Truncated);
    }
    count_broken(port, ring, error);
}

/// Counts a broken ring, which stays out of service, and reports the reason.
pub(crate) fn count_broken(port: &Port, ring: usize, why: impl std::fmt::Display) {
    port.stats.rings_broken.add_shared(1);
    port.tell(What::RingBroken { ring, why: reason(why) });
}

#[cfg(test)]
mod tests;
