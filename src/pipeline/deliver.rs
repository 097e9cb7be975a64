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
//! are the end of the burst and may wait in their sender's ring (`port::backpressure`); nothing
//! here waits for a guest.
//!
//! Nothing that may sleep happens while a receive lock is held: signals and log lines are put off.

use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use super::fit::{keep_fitting, longest};
use super::plan::{Fan, Plan, Run};
use super::signals::Signals;
use super::stalls::Stalls;
use crate::capture::outcomes::Outcomes;
use crate::events::{What, reason};
use crate::frame::flow_hash;
use crate::limits::{BURST_FRAMES, LOCK_WAIT_NANOS, LOCK_WAIT_STEP, MAX_FLOOD_SEGMENTS};
use crate::port::backpressure::{Answer, Behind, Terms};
use crate::port::device::FrameWriter;
use crate::port::{
    DevicePort, Endpoint, Eviction, GuestPort, Memory, Port, PortTable, Queue, Rx, RxState, TxState,
};
use crate::ring::{Burst, Cut, Delivered, RingError, RxScratch};
use crate::stats::{DropReason, Drops, QueueStats, WorkerStats};
use crate::switch::PortId;
use crate::sys::clock;

/// What becomes of frames that find no buffer.
#[derive(Clone, Copy)]
enum Short {
    /// Another try follows.
    Retry,
    /// They may stay in their sender's ring, or another try follows.
    WaitOrRetry,
    /// They may stay in their sender's ring.
    Wait,
    /// They are counted drops.
    Drop,
}

/// What came of delivering runs.
#[derive(Clone, Copy, Default)]
pub struct Tried {
    /// Frames are left that wait for their receiver.
    pub left: bool,
    /// Whether they may.
    pub answer: Answer,
    /// They may not wait, at the first try.
    refused: bool,
    /// That receiver has buffers again.
    pub again: bool,
}

/// What delivering needs besides the burst.
pub struct Delivery<'a> {
    /// All ports.
    pub ports: &'a PortTable,
    /// Where the burst came from.
    pub ingress: PortId,
    /// Index of this worker, which chooses a TAP's queue.
    pub worker: usize,
    /// Its counters.
    pub stats: &'a WorkerStats,
    /// Room for the receive rings' general path.
    pub scratch: &'a mut RxScratch,
    /// Room for writing to a TAP.
    pub writer: &'a mut FrameWriter,
    /// Whose memory makes the worker wait.
    pub stalls: &'a mut Stalls,
    /// Signals owed.
    pub signals: &'a mut Signals,
    /// For how long frames may wait for a full receiver.
    pub backpressure: &'a Terms,
    /// The ring whose frames may wait, if any.
    pub sender: Option<&'a mut TxState>,
    /// The turn's cycle.
    pub now: u64,
    /// What came of it.
    pub tried: Tried,
    /// Until when the burst may wait here for rings that somebody else holds, once it does.
    pub wait_until: &'a mut Option<Instant>,
    /// Cycles that receivers' memory took to come, which is not the sender's to pay.
    pub slow: u64,
    /// Segments that a frame may be cut into.
    pub most_segments: u32,
    /// What became of each copy, if somebody wants to know.
    pub outcomes: &'a mut Outcomes,
}

impl Delivery<'_> {
    /// Delivers every run, each destination once. True if frames are left to be tried again. Those
    /// of a burst for one receiver are not, if they may wait: it had no buffers in this moment.
    #[inline(always)]
    pub fn first_tries(&mut self, burst: &Burst, runs: &mut [Run]) -> bool {
        let short = match runs {
            [run] if run.left().len() == burst.frames().len() => Short::WaitOrRetry,
            _ => Short::Retry,
        };
        let mut left = false;
        for run in runs.iter_mut() {
            left |= !self.first_try(burst, run, short);
        }
        left && !self.tried.left
    }

    /// Tries once more what is left over. The end of the burst may then still be left, neither
    /// delivered nor dropped, if it may wait.
    #[inline(never)]
    pub fn last_tries(&mut self, burst: &Burst, runs: &mut [Run]) {
        let may_wait = self.sender.is_some() && !self.tried.refused;
        for run in runs.iter_mut().filter(|run| !run.left().is_empty()) {
            let short = match run.left() {
                // Nothing behind them is settled.
                left @ &[first, ..]
                    if may_wait && usize::from(first) + left.len() == burst.frames().len() =>
                {
                    Short::Wait
                }
                _ => Short::Drop,
            };
            self.last_try(burst, run, short);
            self.tried.left |= !run.left().is_empty();
        }
    }

    /// True if the run is settled.
    #[inline(always)]
    fn first_try(&mut self, burst: &Burst, run: &mut Run, short: Short) -> bool {
        let ports = self.ports;
        let port = &ports[run.port];
        match &port.endpoint {
            Endpoint::Guest(guest) => {
                let queue = &guest.rx[usize::from(run.queue)];
                let Some(state) = queue.lock_for_burst() else {
                    self.stats.lock_misses.add(1);
                    return false;
                };
                let done = self.fill_ring(port, guest, run, state, burst, short);
                run.advance(done);
                run.left().is_empty()
            }
            Endpoint::Device(device) => {
                let (frames, mut settled) = run.settling();
                self.send(port, device, burst, frames, &mut settled);
                true
            }
        }
    }

    fn last_try(&mut self, burst: &Burst, run: &mut Run, short: Short) {
        let ports = self.ports;
        let port = &ports[run.port];
        let Endpoint::Guest(guest) = &port.endpoint else {
            return;
        };
        let done = self.fill_locked(port, guest, run, burst, short);
        run.advance(done);
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
        let mut state = self.lock(&guest.rx[usize::from(run.queue)], short);
        if let Some(there) = &mut state
            && there.vring.running().is_none()
            && let Some(queue) = guest.any_receiver()
        {
            drop(state);
            run.queue = queue as u8;
            state = self.lock(&guest.rx[queue], short);
        }
        match state {
            Some(state) => self.fill_ring(port, guest, run, state, burst, short),
            None => self.leave_or_drop(port, &guest.rx[usize::from(run.queue)], run, short),
        }
    }

    /// What becomes of a run whose ring somebody else holds; returns how many frames are settled.
    #[cold]
    fn leave_or_drop(&mut self, port: &Port, queue: &Queue<Rx>, run: &Run, short: Short) -> usize {
        if matches!(short, Short::Wait) && !queue.is_stalled() {
            return 0;
        }
        self.drop_all(port, &port.stats.drops, run.left(), DropReason::RingBusy)
    }

    /// A contended lock: spin about as long as a burst takes. If the burst cannot wait in its
    /// sender's ring, settle debts and wait here, unless somebody did so in vain.
    fn lock<'q>(&mut self, queue: &'q Queue<Rx>, short: Short) -> Option<MutexGuard<'q, RxState>> {
        let state = queue.lock_soon();
        if state.is_some() || matches!(short, Short::Wait) || queue.is_stalled() {
            return state;
        }
        self.wait_for(queue)
    }

    /// Waits for a lock whose holder does not run, within what the burst has left of that.
    #[cold]
    fn wait_for<'q>(&mut self, queue: &'q Queue<Rx>) -> Option<MutexGuard<'q, RxState>> {
        self.stats.lock_parks.add(1);
        // Guests that were promised a signal at the end of this turn shall not wait for that.
        self.signals.flush(self.ports, self.stats);
        let most = Duration::from_nanos(LOCK_WAIT_NANOS);
        let end = *self.wait_until.get_or_insert_with(|| Instant::now() + most);
        while Instant::now() < end {
            std::thread::sleep(LOCK_WAIT_STEP);
            let state = queue.lock_again();
            if state.is_some() {
                return state;
            }
        }
        queue.stall();
        None
    }

    /// Delivers what is left of a run into a locked ring; returns how many frames are settled,
    /// which is all of them unless `short` keeps them. If receivers are watched, in its own time.
    #[inline(always)]
    fn fill_ring(
        &mut self,
        port: &Port,
        guest: &GuestPort,
        run: &Run,
        state: MutexGuard<'_, RxState>,
        burst: &Burst,
        short: Short,
    ) -> usize {
        let (watching, session, slow) = (self.stalls.is_watching(), state.vring.session, self.slow);
        if watching {
            self.stalls.begin_part();
        }
        let settled = self.fill(port, guest, run, state, burst, short);
        if watching && let Some(stall) = self.stalls.end_part(port, session) {
            self.slow = slow.saturating_add(stall.cycles);
            pause(&guest.rx[usize::from(run.queue)], session, stall.cycles);
        }
        settled
    }

    fn fill(
        &mut self,
        port: &Port,
        guest: &GuestPort,
        run: &Run,
        mut state: MutexGuard<'_, RxState>,
        burst: &Burst,
        short: Short,
    ) -> usize {
        let stats = &guest.rx[usize::from(run.queue)].stats;
        let frames = run.left();
        let memory = state.memory.answers(clock::cycles);
        if memory == Memory::Paused {
            return self.drop_all(port, &stats.drops, frames, DropReason::SlowMemory);
        }
        self.scratch.touch = self.stalls.is_watching() || memory == Memory::Distrusted;
        let RxState { vring, side: Rx { shares, credit, .. }, .. } = &mut *state;
        let down = if vring.broken { DropReason::RingBroken } else { DropReason::PortDown };
        let Some(ring) = vring.running() else {
            if matches!(short, Short::Retry | Short::WaitOrRetry) && guest.any_receiver().is_some()
            {
                return 0;
            }
            return self.drop_all(port, &stats.drops, frames, down);
        };
        let ask = || shares.allow(self.ingress, frames.len(), || ring.offered().into());
        let allowed = run.granted().unwrap_or_else(ask).min(frames.len());
        let base = ring.base();
        let cut = match short {
            Short::Retry | Short::WaitOrRetry | Short::Wait => Cut::Whole,
            Short::Drop => Cut::Part(self.most_segments),
        };
        let done = ring.deliver(burst, &frames[..allowed], self.scratch, cut);
        let taken = ring.base().wrapping_sub(base);
        shares.record(self.ingress, done.frames, taken, done.settled < allowed);
        self.count(port, stats, frames, &done, burst.needs_offloads());
        if done.frames + done.bad_buffers > 0 {
            self.signals.note(port.id, done.signal, vring, stats);
            if done.signal {
                guest.count_received();
            }
        }
        if done.broken.is_some() || done.slow > 0 {
            return self.give_up(port, guest, run, state, (done.settled, done.broken, done.slow));
        }
        if done.frames > 0 {
            credit.took(self.ingress, done.frames, done.bytes);
        }
        let left = &frames[done.settled..];
        let queue = &guest.rx[usize::from(run.queue)];
        if left.is_empty() {
            if queue.is_short() {
                queue.set_short(state.is_short());
            }
            return frames.len();
        }
        if self.keeps(queue, &mut state, short) {
            return done.settled;
        }
        port.dropped_from.add(self.ingress, left.len());
        self.drop_all(port, &stats.drops, left, DropReason::NoBuffer);
        frames.len()
    }

    /// A ring that was found broken, or whose memory came too slowly, takes no more of a run: its
    /// ring is left alone for good, or for a time. All frames are settled.
    #[cold]
    fn give_up(
        &mut self,
        port: &Port,
        guest: &GuestPort,
        run: &Run,
        mut state: MutexGuard<'_, RxState>,
        (settled, broken, slow): (usize, Option<RingError>, u64),
    ) -> usize {
        let index = usize::from(run.queue);
        let stats = &guest.rx[index].stats;
        let frames = run.left();
        let left = &frames[settled..];
        let Some(error) = broken else {
            self.drop_all(port, &stats.drops, left, DropReason::SlowMemory);
            state.memory.charge(slow, clock::cycles());
            self.slow = self.slow.saturating_add(slow);
            return frames.len();
        };
        self.drop_all(port, &stats.drops, left, DropReason::RingBroken);
        guest.set_active(index, false);
        self.signals.note_broken((port.id, 2 * index), &mut state.vring, error);
        frames.len()
    }

    /// Counts frames as dropped on their way to a port; returns how many.
    #[inline(never)]
    fn drop_all(&mut self, port: &Port, at: &Drops, frames: &[u8], reason: DropReason) -> usize {
        port.drop_copies(at, frames, reason, self.outcomes);
        frames.len()
    }

    /// Books what became of a run; `asks` if its burst asked for offloads.
    #[inline(always)]
    fn count(
        &mut self,
        port: &Port,
        stats: &QueueStats,
        frames: &[u8],
        done: &Delivered,
        asks: bool,
    ) {
        stats.frames.add(done.frames);
        stats.bytes.add(done.bytes);
        if asks {
            let fallbacks = &stats.fallbacks;
            fallbacks.checksummed.add(done.checksummed);
            fallbacks.segmented.add(done.segmented);
            fallbacks.segments.add(done.segments);
            fallbacks.segments_lost.add(done.segments_lost);
        }
        if done.bad_buffers > 0 {
            stats.bad_buffers.add(done.bad_buffers);
        }
        if done.no_fit | done.bad_offload != 0 || self.outcomes.are_wanted() {
            self.note_settled(port, stats, &frames[..done.settled], done);
        }
    }

    /// Notes what became of the frames of a run that are settled, and counts those that were
    /// dropped.
    #[cold]
    fn note_settled(&mut self, port: &Port, stats: &QueueStats, frames: &[u8], done: &Delivered) {
        for (place, frame) in frames.iter().enumerate() {
            let among = |bits: u64| bits >> place & 1 != 0;
            let reason = match (among(done.no_fit), among(done.bad_offload)) {
                (true, _) => DropReason::NoFit,
                (_, true) => DropReason::BadOffload,
                _ => {
                    self.outcomes.delivered(*frame, port.id);
                    continue;
                }
            };
            self.drop_all(port, &stats.drops, std::slice::from_ref(frame), reason);
        }
    }

    /// True if frames that found no buffer are neither delivered nor dropped now.
    fn keeps(&mut self, queue: &Queue<Rx>, state: &mut RxState, short: Short) -> bool {
        let retry = matches!(short, Short::Retry | Short::WaitOrRetry);
        if retry {
            queue.set_short(true);
        }
        let sender = match short {
            Short::WaitOrRetry | Short::Wait => self.sender.as_deref_mut(),
            Short::Retry | Short::Drop => None,
        };
        let wait = sender.and_then(|of| of.wait(self.now, Behind::Unknown, self.backpressure));
        let Some(wait) = wait else { return retry };
        let answer = state.side.credit.ask(self.ingress, wait, self.backpressure);
        if !answer.is_maybe() {
            self.tried.refused = true;
            return retry;
        }
        (self.tried.left, self.tried.answer) = (true, answer);
        self.tried.again |= state.vring.running().is_some_and(|ring| ring.has_work());
        true
    }

    /// Delivers the floods of `plan`: one copy for each target and no retry, after all unicast of
    /// the burst.
    pub fn flood(&mut self, burst: &Burst, plan: &mut Plan) {
        self.most_segments = MAX_FLOOD_SEGMENTS;
        let (fans, run, settled) = plan.floods_left();
        for fan in fans {
            self.fan_out(burst, fan, run, settled);
        }
    }

    /// Delivers a copy of a fan's frames to each of its targets; `settled` copies are counted.
    fn fan_out(&mut self, burst: &Burst, fan: &Fan, run: &mut Run, settled: &mut usize) {
        let (ports, frames) = (self.ports, fan.frames());
        let longest = longest(burst, frames);
        let mut kept = [0; BURST_FRAMES];
        for &target in fan.targets() {
            let port = &ports[target];
            let max_len = port.mtu.max_len();
            let fitting = match longest <= max_len {
                true => frames,
                false => keep_fitting(burst, frames, port, max_len, &mut kept, self.outcomes),
            };
            *settled += frames.len() - fitting.len();
            match &port.endpoint {
                Endpoint::Guest(guest) => {
                    self.flood_guest(port, guest, burst, fitting, run, settled);
                }
                Endpoint::Device(device) => {
                    self.send(port, device, burst, fitting, &mut |count| *settled += count);
                }
            }
        }
    }

    /// Sends frames to a device; `settled` is told how many are.
    fn send(
        &mut self,
        port: &Port,
        device: &DevicePort,
        burst: &Burst,
        frames: &[u8],
        settled: &mut dyn FnMut(usize),
    ) {
        let outcomes = &mut *self.outcomes;
        let without_room =
            device.send(self.worker, burst, frames, self.writer, (port, outcomes), settled);
        if without_room > 0 {
            port.dropped_from.add(self.ingress, without_room);
        }
    }

    fn flood_guest(
        &mut self,
        port: &Port,
        guest: &GuestPort,
        burst: &Burst,
        floods: &[u8],
        run: &mut Run,
        settled: &mut usize,
    ) {
        let mut receivers = guest.receivers();
        // One queue for each frame, and what queues that makes.
        let (mut chosen, mut queues) = ([0; BURST_FRAMES], 0u32);
        for (place, &frame) in chosen.iter_mut().zip(floods) {
            let snapshot = &burst.frames()[usize::from(frame)].snapshot;
            let Some(queue) = receivers.choose(|| flow_hash(snapshot)) else {
                *settled += self.drop_all(port, &port.stats.drops, floods, DropReason::PortDown);
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
            *settled += run.left().len();
        }
    }
}

/// Makes a receive ring pay, if it is still that session's.
#[cold]
fn pause(queue: &Queue<Rx>, session: u64, slow: u64) {
    if let Some(mut state) = queue.lock_again().filter(|state| state.vring.session == session) {
        state.memory.charge(slow, clock::cycles());
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
    port.tell(What::RingBroken { ring, why: reason(why) });
}

#[cfg(test)]
mod tests;
