//! One burst, top to bottom: take, admit and learn, decide, deliver, complete.
//!
//! This is the one place that knows both the switch and the ports. The source's lock is held from
//! taking to completing, so nothing is half done when a session finds it free; the receive locks
//! inside are leaves.

mod abandon;
pub mod announce;
mod discard;
mod wait;

use std::sync::{Arc, MutexGuard};

use self::wait::may_wait;
use super::classify::{Classifier, prefetch, reason};
use super::deliver::{Delivery, Flooded, Tried, report_broken};
use super::fit::drop_too_big;
use super::guest_of;
use super::plan::{Plan, Run};
use super::signals::Signals;
use super::stalls::Stalls;
use crate::frame::{Offloads, flow_hash};
use crate::limits::{
    BACKPRESSURE_NANOS, BACKPRESSURE_OTHERS_NANOS, BURST_FLOOD_COPIES, BURST_FRAMES,
    MAX_DEFICIT_NANOS, MAX_PORTS, MAX_SEGMENTS, QUANTUM_NANOS, RETRY_NANOS,
};
use crate::port::backpressure::Terms;
use crate::port::moderation::Completed;
use crate::port::mtu::NO_LIMIT;
use crate::port::quantum::{self, Quantum};
use crate::port::steering::Steering;
use crate::port::tap::{TapReader, TapState, TapWriter};
use crate::port::{Endpoint, GuestPort, Port, PortTable, Queue, RingState};
use crate::ring::{Burst, RingError, RxScratch, SplitRing};
use crate::stats::{DropReason, QueueStats, WorkerStats};
use crate::switch::{BurstMemo, Decision, Fdb, Ingress, Policy, PortId, Rules, SourceMemo};
use crate::sys::clock;
use crate::sys::eventfd::SignalSlot;

/// What came of looking at a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Serviced {
    /// A burst was forwarded; there may be more.
    More,
    /// A burst was forwarded, and the source is known to be empty now.
    Last,
    /// A session wants the ring, or has it: look again next turn.
    Busy,
    /// Nothing can be forwarded before this cycle, as far as is known: look again in each turn, and
    /// then at the latest.
    RetryAt(u64),
    /// Nothing there.
    Idle,
    /// Stopped, disabled or broken: somebody will say when to look again.
    Gone,
}

/// The part of a worker that forwards.
pub struct Pipeline {
    worker: usize,
    fdb: Arc<Fdb>,
    rules: Rules,
    burst: Burst,
    /// Flow hashes of the burst's frames, if `hashed`.
    hashes: [u32; BURST_FRAMES],
    hashed: bool,
    plan: Plan,
    memo: BurstMemo,
    flood_run: Run,
    flooded: Flooded,
    targets: Vec<PortId>,
    scratch: RxScratch,
    writer: TapWriter,
    reader: TapReader,
    signals: Signals,
    stalls: Stalls,
    now: u32,
    /// The present turn's cycle.
    cycle: u64,
    /// For how long frames may wait for a full receiver.
    hold: Terms,
    /// [`RETRY_NANOS`] in cycles.
    retry_cycles: u64,
    /// Work that the receivers of the present burst made beyond copying, in bytes.
    extra: u32,
    /// When the last burst ended, or the turn began.
    charged_until: u64,
    /// Several sources had work in the last turn.
    contended: bool,
    quantum: Quantum,
    /// What a ring may take of a turn, and may owe.
    terms: quantum::Terms,
    /// The present burst has a plan and is not counted yet, and the copies it asks for.
    planned: bool,
    copies: u64,
}

/// What classifying a burst counted.
#[derive(Default)]
struct Tally {
    bytes: u64,
    copies: u64,
}

impl Pipeline {
    /// The pipeline of worker `worker`, whose blocked writes are watched through `slot`.
    pub fn new(worker: usize, fdb: Arc<Fdb>, rules: Rules, slot: SignalSlot) -> Pipeline {
        Pipeline {
            worker,
            fdb,
            rules,
            burst: Burst::default(),
            hashes: [0; BURST_FRAMES],
            hashed: false,
            plan: Plan::default(),
            memo: BurstMemo::new(),
            flood_run: Run::EMPTY,
            flooded: Flooded::default(),
            targets: Vec::with_capacity(MAX_PORTS),
            scratch: RxScratch::default(),
            writer: TapWriter::default(),
            reader: TapReader::default(),
            signals: Signals::new(worker, slot),
            stalls: Stalls::default(),
            now: 0,
            cycle: 0,
            hold: Terms {
                most: clock::cycles_in(BACKPRESSURE_NANOS),
                most_others: clock::cycles_in(BACKPRESSURE_OTHERS_NANOS),
            },
            retry_cycles: clock::cycles_in(RETRY_NANOS),
            extra: 0,
            charged_until: 0,
            contended: false,
            quantum: Quantum::new(
                clock::cycles_in(*QUANTUM_NANOS.start()),
                clock::cycles_in(*QUANTUM_NANOS.end()),
            ),
            terms: quantum::Terms { quantum: 0, pay: 0, most: clock::cycles_in(MAX_DEFICIT_NANOS) },
            planned: false,
            copies: 0,
        }
    }

    /// Starts a turn at `cycle`; `contended` if several sources had work in the last one, `idle` if
    /// all of them were throttled.
    pub fn begin_turn(&mut self, cycle: u64, contended: bool, idle: bool) {
        self.stalls.begin_turn(cycle);
        let now = clock::coarse_seconds();
        if now != self.now {
            self.now = now;
            self.stalls.rebase(cycle);
        }
        (self.cycle, self.charged_until, self.contended) = (cycle, cycle, contended);
        (self.terms.quantum, self.terms.pay) = self.quantum.next_turn(idle);
    }

    /// Nothing can be forwarded until somebody else has done something, of which no event tells.
    pub fn retry(&self) -> Serviced {
        Serviced::RetryAt(self.cycle.saturating_add(self.retry_cycles))
    }

    /// Charges a ring for the time since the last burst ended.
    #[inline(always)]
    fn charge_time(&mut self, state: &mut RingState, stats: &QueueStats) {
        let now = clock::cycles();
        let spent = clock::since(self.charged_until, now);
        state.deficit.charge(spent, self.terms);
        stats.cycles.add(spent);
        self.quantum.saw(spent, state.ring.as_ref().is_some_and(SplitRing::has_more));
        self.charged_until = now;
    }

    /// Ends a turn: sends the signals it owes.
    #[inline]
    pub fn end_turn(&mut self, ports: &PortTable, stats: &WorkerStats) {
        self.signals.end_turn(ports, stats, self.cycle);
    }

    /// Forgets what is owed to ports that `stays` says no to.
    pub fn forget(&mut self, stays: impl Fn(PortId) -> bool) {
        self.signals.forget(stays);
    }

    /// What is known of waiting for guests' memory.
    #[inline(always)]
    pub fn stalls(&mut self) -> &mut Stalls {
        &mut self.stalls
    }

    /// Where this worker announces that it sleeps.
    pub fn signals(&self) -> &Signals {
        &self.signals
    }

    /// Reports a broken ring to its front-end.
    pub fn note_error(&mut self, id: PortId, state: &RingState) {
        self.signals.note_error(id, state);
    }

    /// Forwards one burst of a guest's transmit queue.
    pub fn guest_burst(
        &mut self,
        ports: &PortTable,
        id: PortId,
        index: usize,
        stats: &WorkerStats,
    ) -> Serviced {
        let Some((port, guest)) = guest_of(ports, id) else {
            return Serviced::Gone;
        };
        let Some(queue) = guest.tx.get(index) else {
            return Serviced::Gone;
        };
        let Some(mut state) = queue.lock_for_burst() else {
            return Serviced::Busy;
        };
        if state.owner != Some(self.worker) {
            return Serviced::Gone;
        }
        let mut limit = match drain_left(&mut state, queue) {
            Some(0) => return Serviced::Gone,
            Some(left) => usize::from(left),
            None => BURST_FRAMES,
        };
        let RingState {
            ring: Some(ring), enabled: true, broken: false, deficit, paused_until, ..
        } = &mut *state
        else {
            let kept = state.discard_from.is_some();
            return if kept { self.discard(id, queue, state) } else { Serviced::Gone };
        };
        if *paused_until > self.cycle {
            return Serviced::RetryAt(*paused_until);
        }
        if ring.is_throttled() || deficit.is_throttled(self.contended, self.terms) {
            return Serviced::Busy;
        }
        let watching = self.stalls.is_watching();
        if state.waiting.is_some() && !watching {
            match self.look_at_receiver(ports, id, &mut state, limit) {
                Ok(worth) => limit = worth,
                Err(serviced) => {
                    self.charge_time(&mut state, &queue.stats);
                    return serviced;
                }
            }
        }
        let Some(ring) = &mut state.ring else { return Serviced::Gone };
        match ring.take(&mut self.burst, limit) {
            Ok(0) => return Serviced::Idle,
            Ok(_) => {}
            Err(error) => return self.break_ring(port, queue, index, state, error),
        }
        if watching {
            self.stalls.end_part(port, state.session);
        }
        if let Some(flows) = guest.steering() {
            self.note_flows(flows, index);
        }
        let ingress = Ingress { port: id, kind: port.kind() };
        let mut tally = self.classify(ports, port, ingress, &mut state.source, &queue.stats);
        if watching {
            self.stage(port, &mut state);
        }
        let next = self.deliver_or_wait((ports, id), (&mut state, queue), stats, &mut tally);
        let from = (id, index, guest.received());
        self.end_burst(from, (&mut state, queue), stats, tally, next)
    }

    /// Returns and counts what was taken of a transmit ring; if nothing was, what to do `next`.
    #[inline(always)]
    fn end_burst(
        &mut self,
        (id, index, received): (PortId, usize, u32),
        (state, queue): (&mut RingState, &Queue),
        stats: &WorkerStats,
        tally: Tally,
        next: Serviced,
    ) -> Serviced {
        if self.extra > 0
            && let Some(ring) = &mut state.ring
        {
            // Also if the burst goes on waiting: each try costs.
            ring.charge(self.extra);
        }
        if self.burst.taken() == 0 {
            self.planned = false;
            self.charge_time(state, &queue.stats);
            return next;
        }
        self.finish((id, index), state, &queue.stats, tally, received);
        drain_left(state, queue);
        self.charge_time(state, &queue.stats);
        stats.bursts.add(1);
        // After classifying, which may have cut the burst: what was cut comes again.
        stats.frames.add(self.burst.taken() as u64);
        Serviced::More
    }

    /// Copies what is to be delivered of the burst to private memory, in the time of its sender. A
    /// guest has written what it sends, so that its pages are there; one whose pages are not sends
    /// nothing for many times as long as they took.
    #[cold]
    fn stage(&mut self, port: &Port, state: &mut RingState) {
        let bits = |frames: &[u8]| frames.iter().fold(0u64, |bits, &at| bits | 1 << at);
        let floods = bits(self.plan.floods());
        let planned = self.plan.runs().iter().fold(floods, |all, run| all | bits(run.left()));
        self.stalls.begin_part();
        self.burst.stage(planned);
        if let Some(stall) = self.stalls.end_part(port, state.session) {
            state.pause(stall.cycles, clock::cycles());
        }
    }

    /// Takes a transmit ring out of service that its driver broke.
    #[cold]
    fn break_ring(
        &mut self,
        port: &Port,
        queue: &Queue,
        index: usize,
        mut state: MutexGuard<'_, RingState>,
        error: RingError,
    ) -> Serviced {
        state.broken = true;
        state.drain_to = None;
        self.signals.note_error(port.id, &state);
        let error = state.ring.as_ref().map_or(error, |ring| ring.cause(error));
        let session = state.session;
        drop(state);
        queue.notify_drained();
        report_broken(port, session, 2 * index + 1, error);
        Serviced::Gone
    }

    /// Records that a guest sends the flows of the burst on pair `queue`. Their hashes are kept for
    /// the receivers' sake.
    #[inline(never)]
    fn note_flows(&mut self, flows: &Steering, queue: usize) {
        let mut last = None;
        for (frame, place) in self.burst.frames().iter().zip(&mut self.hashes) {
            *place = flow_hash(&frame.snapshot);
            if last.replace(*place) != Some(*place) {
                flows.note(*place, queue);
            }
        }
        self.hashed = true;
    }

    /// Returns the burst's descriptors and counts it.
    #[inline(always)]
    fn finish(
        &mut self,
        from: (PortId, usize),
        state: &mut RingState,
        stats: &QueueStats,
        tally: Tally,
        received: u32,
    ) {
        self.planned = false;
        for reason in self.burst.rejected() {
            stats.drops.add(reason, 1);
        }
        stats.frames.add(self.burst.taken() as u64);
        stats.bytes.add(tally.bytes);
        stats.copies.add(tally.copies);
        let Some(ring) = &mut state.ring else { return };
        let burst = Completed {
            wanted: ring.complete(&self.burst),
            slots: self.burst.slots(),
            bytes: tally.bytes,
            size: ring.size(),
            received,
        };
        self.signals.note_sent(from, burst, state, stats, self.cycle);
    }

    /// Reads and forwards one burst of a TAP queue.
    pub fn tap_burst(
        &mut self,
        ports: &PortTable,
        id: PortId,
        index: usize,
        stats: &WorkerStats,
    ) -> Serviced {
        let Some(port) = ports.get(id) else {
            return Serviced::Gone;
        };
        let Endpoint::Tap(tap) = &port.endpoint else {
            return Serviced::Gone;
        };
        let Some(queue) = tap.queues().get(index) else {
            return Serviced::Gone;
        };
        let state = queue.receive(&mut self.reader, &mut self.burst, tap);
        // What the kernel forwards comes from outside too.
        self.burst.examine(Offloads::ALL, true);
        let taken = self.burst.taken();
        if taken > 0 {
            self.signals.note_sender(id);
            let ingress = Ingress { port: id, kind: port.kind() };
            let mut source = queue.source();
            let tally = self.classify(ports, port, ingress, &mut source, &queue.input);
            queue.set_source(source);
            self.deliver(ports, id, stats, None);
            self.planned = false;
            for reason in self.burst.rejected() {
                queue.input.drops.add(reason, 1);
            }
            queue.input.frames.add(self.burst.taken() as u64);
            queue.input.bytes.add(tally.bytes);
            queue.input.copies.add(tally.copies);
            stats.bursts.add(1);
            stats.frames.add(taken as u64);
            // A TAP owes nothing for its burst, and the ring after it not for the TAP's.
            let now = clock::cycles();
            queue.input.cycles.add(clock::since(self.charged_until, now));
            self.charged_until = now;
        }
        match state {
            TapState::More => Serviced::More,
            TapState::Empty if taken > 0 => Serviced::Last,
            TapState::Empty => Serviced::Idle,
            TapState::Later if taken > 0 => Serviced::More,
            TapState::Later => self.retry(),
            TapState::Gone => Serviced::Gone,
        }
    }

    /// Admits, learns and decides every frame of the burst; fills the plan. May cut the burst. Its
    /// loop has all registers to itself: inlined it took 2 % more instructions a frame.
    #[inline(never)]
    fn classify(
        &mut self,
        ports: &PortTable,
        port: &Port,
        ingress: Ingress,
        source: &mut SourceMemo,
        stats: &QueueStats,
    ) -> Tally {
        // Those of a burst from a TAP are nobody's.
        self.extra = 0;
        self.planned = false;
        self.plan.clear();
        self.memo.start_burst();
        self.targets.clear();
        self.flooded = Flooded::default();
        let mut tally = Tally::default();
        if self.fdb.is_large() {
            prefetch(&self.fdb, self.burst.frames());
        }
        let policy = Policy { fdb: &self.fdb, ports, rules: self.rules };
        let mut classifier =
            Classifier::new(policy, port, ingress, source, &mut self.memo, self.now);
        classifier.hashes = std::mem::take(&mut self.hashed).then_some(&self.hashes);
        let mut cut = None;
        let mut fan = None;
        for (i, frame) in self.burst.frames().iter().enumerate() {
            match classifier.decide(frame) {
                Ok(Decision::Unicast(egress)) => {
                    tally.copies += 1;
                    self.plan.unicast(i as u8, egress, classifier.queue(i, frame));
                }
                Ok(Decision::Flood) => {
                    let fan = *fan.get_or_insert_with(|| {
                        flood_targets(ports, ingress, self.rules, &mut self.targets);
                        self.targets.len()
                    });
                    if i > 0 && (self.plan.floods().len() + 1) * fan > BURST_FLOOD_COPIES {
                        cut = Some(i);
                        break;
                    }
                    if fan == 0 {
                        stats.drops.add(DropReason::NoReceiver, 1);
                    } else {
                        tally.copies += fan as u64;
                        self.plan.flood(i as u8);
                    }
                }
                Ok(Decision::Drop(cause)) => stats.drops.add(reason(cause), 1),
                Err(reason) => stats.drops.add(reason, 1),
            }
            tally.bytes += u64::from(frame.len);
        }
        let least = classifier.least;
        if let Some(at) = cut {
            self.burst.cut(at);
        }
        (self.planned, self.copies) = (true, tally.copies);
        if least < NO_LIMIT {
            drop_too_big(&self.burst, &mut self.plan, ports, least, self.now);
        }
        tally
    }

    /// Delivers the plan: unicast, then floods. Of a transmit ring frames may then be left, which
    /// wait; given that frames for others are behind these, it is asked about them once more.
    #[inline(always)]
    fn deliver(
        &mut self,
        ports: &PortTable,
        ingress: PortId,
        stats: &WorkerStats,
        from: Option<(&RingState, bool)>,
    ) -> Tried {
        let mut delivery = Delivery {
            ports,
            ingress,
            worker: self.worker,
            stats,
            scratch: &mut self.scratch,
            writer: &mut self.writer,
            stalls: &mut self.stalls,
            signals: &mut self.signals,
            now: self.now,
            hold: &self.hold,
            tried: Tried::default(),
            wait_until: None,
            extra: 0,
            slow: 0,
            most_segments: MAX_SEGMENTS,
        };
        if delivery.first_tries(&self.burst, self.plan.runs()) {
            let wait = from.and_then(|(state, others)| may_wait(state, self.cycle, others));
            delivery.last_tries(&self.burst, self.plan.runs(), wait);
        }
        let retry = from.is_some_and(|(_, others)| others);
        if !retry && !self.plan.floods().is_empty() {
            let (floods, run) = (self.plan.floods(), &mut self.flood_run);
            delivery.flood(&self.burst, floods, &self.targets, run, &mut self.flooded);
        }
        self.extra = self.extra.saturating_add(delivery.extra);
        self.charged_until = self.charged_until.wrapping_add(delivery.slow);
        let tried = delivery.tried;
        if self.stalls.is_watching() {
            self.stalls.begin_part();
        }
        tried
    }
}

/// Frames a ring that is being disabled still has to forward; none if it is not. Disables the ring
/// and tells the waiting session when there are none left.
fn drain_left(state: &mut RingState, queue: &Queue) -> Option<u16> {
    let target = state.drain_to?;
    let left = match state.running() {
        Some(ring) => target.wrapping_sub(ring.base()),
        None => 0,
    };
    if left == 0 {
        state.drain_to = None;
        state.enabled = false;
        if let Some(ring) = &mut state.ring {
            // Later frames are discarded on a kick; whether some are there already is the
            // driver's affair until it kicks again.
            let _ = ring.enable_kicks();
        }
        queue.notify_drained();
    }
    Some(left)
}

/// The ports that a flood from `ingress` reaches and that are up.
#[inline(never)]
fn flood_targets(ports: &PortTable, ingress: Ingress, rules: Rules, targets: &mut Vec<PortId>) {
    for port in ports.iter() {
        let up = match &port.endpoint {
            Endpoint::Guest(guest) => guest.active() != 0,
            Endpoint::Tap(tap) => tap.is_up(),
        };
        if up && rules.flood_reaches(ingress, port.id, port.kind()) {
            targets.push(port.id);
        }
    }
}
