//! The runs of a plan into their ports.
//!
//! A contended receive ring never holds up the others: its run is set aside and tried again after
//! all other destinations of the burst, then by a short spin, and only then, with every signal
//! owed sent first, by parking. Frames that find no buffer get that one later try too and are
//! then counted drops, unless the burst may wait in its sender's ring (`port::patience`); nothing
//! here waits for a guest.
//!
//! Nothing that may sleep happens while a receive lock is held: signals and log lines are put off.

use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use super::WorkerStats;
use super::fit::{keep_fitting, longest};
use super::plan::Run;
use super::signals::Signals;
use crate::frame::flow_hash;
use crate::limits::{
    BURST_FRAMES, CRUMB_BYTES, LOCK_SPIN_NANOS, MAX_FLOOD_SEGMENTS, SEGMENT_BYTES,
};
use crate::port::patience::Wait;
use crate::port::tap::TapWriter;
use crate::port::{Endpoint, Eviction, GuestPort, Port, Queue, RingState};
use crate::ring::{Burst, Cut, Delivered, RingError, RxScratch, SplitRing};
use crate::stats::{DropReason, QueueStats};
use crate::switch::PortId;

/// What becomes of frames that find no buffer.
#[derive(Clone, Copy)]
enum Short {
    /// Another try follows.
    Retry,
    /// They may stay in their sender's ring.
    Wait(Wait),
    /// They are counted drops.
    Drop,
}

/// How far the flooding of a burst has come.
#[derive(Default)]
pub struct Flooded {
    /// Targets dealt with.
    pub targets: usize,
    /// Frames that the present one has counted.
    pub frames: usize,
}

/// What delivering needs besides the burst.
pub struct Delivery<'a> {
    /// All ports.
    pub ports: &'a [Port],
    /// Where the burst came from.
    pub ingress: PortId,
    /// Index of this worker, which chooses a TAP's queue.
    pub worker: usize,
    /// Its counters.
    pub stats: &'a WorkerStats,
    /// Room for the receive rings' general path.
    pub scratch: &'a mut RxScratch,
    /// Room for writing to a TAP.
    pub writer: &'a mut TapWriter,
    /// Signals owed.
    pub signals: &'a mut Signals,
    /// The present second.
    pub now: u32,
    /// Set if frames wait for a receiver that has buffers again.
    pub again: bool,
    /// Work beyond copying frames, in bytes: segments that were cut for receivers, or tried to, and
    /// the crumbs that receivers posted.
    pub extra: u32,
    /// Segments that a frame may be cut into.
    pub most_segments: u32,
}

impl Delivery<'_> {
    /// Delivers every run, each destination once and what is left over once more. With `wait` given
    /// a run may then still have frames left, which are neither delivered nor dropped.
    pub fn unicast(&mut self, burst: &Burst, runs: &mut [Run], wait: Option<Wait>) {
        let mut left = false;
        for run in runs.iter_mut() {
            left |= !self.first_try(burst, run);
        }
        if left {
            for run in runs.iter_mut().filter(|run| !run.left().is_empty()) {
                self.last_try(burst, run, wait);
            }
        }
    }

    /// True if the run is settled.
    #[inline(always)]
    fn first_try(&mut self, burst: &Burst, run: &mut Run) -> bool {
        let ports = self.ports;
        let port = &ports[usize::from(run.port)];
        match &port.endpoint {
            Endpoint::Guest(guest) => {
                let queue = &guest.rx[usize::from(run.queue)];
                let Some(state) = queue.lock_for_burst() else {
                    self.stats.lock_misses.add(1);
                    return false;
                };
                let done = self.fill_ring(port, guest, run, state, burst, Short::Retry);
                run.settle(done);
                run.left().is_empty()
            }
            Endpoint::Tap(tap) => {
                let segments = tap.send(self.worker, burst, run.take_left(), self.writer, port);
                self.add_extra(segments, 0);
                true
            }
        }
    }

    fn last_try(&mut self, burst: &Burst, run: &mut Run, wait: Option<Wait>) {
        let ports = self.ports;
        let port = &ports[usize::from(run.port)];
        let Endpoint::Guest(guest) = &port.endpoint else {
            return;
        };
        let short = wait.map_or(Short::Drop, Short::Wait);
        let done = self.fill_locked(port, guest, run, burst, short);
        run.settle(done);
    }

    /// As [`Delivery::fill_ring`] for a ring whose lock is waited for. If the ring went out of
    /// service after it was chosen, the run turns to another one of the guest.
    fn fill_locked(
        &mut self,
        port: &Port,
        guest: &GuestPort,
        run: &mut Run,
        burst: &Burst,
        short: Short,
    ) -> usize {
        let mut state = self.lock(&guest.rx[usize::from(run.queue)]);
        if state.running().is_none()
            && let Some(queue) = guest.any_receiver()
        {
            drop(state);
            run.queue = queue as u8;
            state = self.lock(&guest.rx[queue]);
        }
        self.fill_ring(port, guest, run, state, burst, short)
    }

    #[inline(always)]
    fn add_extra(&mut self, segments: u32, crumbs: u32) {
        let bytes = u64::from(segments) * u64::from(SEGMENT_BYTES)
            + u64::from(crumbs) * u64::from(CRUMB_BYTES);
        self.extra = self.extra.saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX));
    }

    /// A contended lock: spin about as long as a burst takes, then settle debts and park.
    fn lock<'q>(&mut self, queue: &'q Queue) -> MutexGuard<'q, RingState> {
        let end = Instant::now() + Duration::from_nanos(LOCK_SPIN_NANOS);
        loop {
            if let Some(state) = queue.lock_for_burst() {
                return state;
            }
            if Instant::now() >= end {
                break;
            }
            std::hint::spin_loop();
        }
        self.stats.lock_parks.add(1);
        // The holder may be preempted for milliseconds; guests that were promised a signal at the
        // end of this turn shall not wait for that.
        self.signals.flush(self.ports, self.stats);
        queue.lock()
    }

    /// Delivers what is left of a run into a locked ring; returns how many frames are settled,
    /// which is all of them unless `short` keeps them.
    fn fill_ring(
        &mut self,
        port: &Port,
        guest: &GuestPort,
        run: &Run,
        mut state: MutexGuard<'_, RingState>,
        burst: &Burst,
        short: Short,
    ) -> usize {
        let index = usize::from(run.queue);
        let stats = &guest.rx[index].stats;
        let frames = run.left();
        let down = if state.broken { DropReason::RingBroken } else { DropReason::PortDown };
        let RingState { ring: Some(ring), enabled: true, broken: false, shares, .. } = &mut *state
        else {
            if matches!(short, Short::Retry) && guest.any_receiver().is_some() {
                return 0;
            }
            stats.drops.add(down, frames.len() as u64);
            return frames.len();
        };
        let allowed = shares.allow(self.ingress, frames.len(), || ring.offered().into());
        let allowed = allowed.min(frames.len());
        let base = ring.base();
        let cut = match short {
            Short::Retry | Short::Wait(_) => Cut::Whole,
            Short::Drop => Cut::Part(self.most_segments),
        };
        let done = ring.deliver(burst, &frames[..allowed], self.scratch, cut);
        let taken = ring.base().wrapping_sub(base);
        shares.settle(done.frames, taken, done.settled < allowed);
        count(stats, &done, burst.asks());
        self.add_extra(done.segments_tried, done.crumbs);
        if done.frames + done.bad_buffers > 0 {
            self.signals.note(port.id, done.signal, &mut state, stats);
            if done.signal {
                guest.count_received();
            }
        }
        let left = (frames.len() - done.settled) as u64;
        if let Some(error) = done.broken {
            stats.drops.add(DropReason::RingBroken, left);
            state.broken = true;
            guest.set_active(index, false);
            self.signals.note_error(port.id, &state);
            let error = state.ring.as_ref().map_or(error, |ring| ring.cause(error));
            let session = state.session;
            drop(state);
            report_broken(port, session, 2 * index, error);
            return frames.len();
        }
        if done.frames > 0 {
            state.patience.took();
        }
        match short {
            Short::Retry => return done.settled,
            Short::Wait(wait) if left > 0 && state.patience.allows(wait) => {
                // The driver's next buffers end the waiting, unless they came just before it could
                // see that we ask.
                self.again |= state.running().is_some_and(SplitRing::enable_kicks);
                return done.settled;
            }
            _ if left > 0 => stats.drops.add(DropReason::NoBuffer, left),
            _ => {}
        }
        frames.len()
    }

    /// Delivers the frames `floods` to every port of `targets`: one copy each and no retry, after
    /// all unicast of the burst.
    pub fn flood(
        &mut self,
        burst: &Burst,
        floods: &[u8],
        targets: &[u16],
        run: &mut Run,
        flooded: &mut Flooded,
    ) {
        let ports = self.ports;
        self.most_segments = MAX_FLOOD_SEGMENTS;
        let longest = longest(burst, floods);
        let mut kept = [0; BURST_FRAMES];
        for &target in targets {
            let port = &ports[usize::from(target)];
            let max_len = port.mtu.max_len(self.now);
            let fitting = match longest <= max_len {
                true => floods,
                false => keep_fitting(burst, floods, port, max_len, &mut kept),
            };
            flooded.frames = floods.len() - fitting.len();
            match &port.endpoint {
                Endpoint::Guest(guest) => {
                    self.flood_guest(port, guest, burst, fitting, run, flooded);
                }
                Endpoint::Tap(tap) => {
                    flooded.frames = floods.len();
                    let segments = tap.send(self.worker, burst, fitting, self.writer, port);
                    self.add_extra(segments, 0);
                }
            }
            flooded.targets += 1;
        }
    }

    fn flood_guest(
        &mut self,
        port: &Port,
        guest: &GuestPort,
        burst: &Burst,
        floods: &[u8],
        run: &mut Run,
        flooded: &mut Flooded,
    ) {
        let mut receivers = guest.receivers();
        // One queue for each frame, and what queues that makes.
        let (mut chosen, mut queues) = ([0; BURST_FRAMES], 0u32);
        for (place, &frame) in chosen.iter_mut().zip(floods) {
            let snapshot = &burst.frames()[usize::from(frame)].snapshot;
            let Some(queue) = receivers.choose(|| flow_hash(snapshot)) else {
                port.stats.drops.add_shared(DropReason::PortDown, floods.len() as u64);
                return;
            };
            *place = queue as u8;
            queues |= 1 << queue;
        }
        while queues != 0 {
            let queue = queues.trailing_zeros() as u8;
            queues &= queues - 1;
            run.restart(port.id, queue);
            floods.iter().zip(chosen).filter(|of| of.1 == queue).for_each(|of| run.push(*of.0));
            self.fill_locked(port, guest, run, burst, Short::Drop);
            flooded.frames += run.left().len();
        }
    }
}

/// Books what became of a run; `asks` if its burst asked for offloads.
#[inline(always)]
fn count(stats: &QueueStats, done: &Delivered, asks: bool) {
    stats.frames.add(done.frames);
    stats.bytes.add(done.bytes);
    if asks {
        let fallbacks = &stats.fallbacks;
        fallbacks.checksummed.add(done.checksummed);
        fallbacks.segmented.add(done.segmented);
        fallbacks.segments.add(done.segments);
        fallbacks.segments_lost.add(done.segments_lost);
    }
    if done.no_fit > 0 {
        stats.drops.add(DropReason::NoFit, done.no_fit);
    }
    if done.bad_offload > 0 {
        stats.drops.add(DropReason::BadOffload, done.bad_offload);
    }
    if done.bad_buffers > 0 {
        stats.bad_buffers.add(done.bad_buffers);
    }
}

/// Says once that a ring, which conversation `session` had started, was found broken.
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
    if port.log.allow() {
        log::warn!("port {}: ring {ring} is broken and left alone: {why}", port.name);
    }
}
