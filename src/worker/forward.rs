//! One burst, top to bottom: take, admit and learn, decide, deliver, complete.
//!
//! This is the one place that knows both the switch and the ports. The source's lock is held from
//! taking to completing, so nothing is half done when a session finds it free; the receive locks
//! inside are leaves.

mod abandon;

use std::sync::Arc;

use super::deliver::{Delivery, Flooded, report_broken};
use super::fit::drop_too_big;
use super::judge::{Judge, reason};
use super::plan::{Plan, Run};
use super::signals::Signals;
use super::{Announcement, Shared, WorkerStats};
use crate::frame::ethernet;
use crate::frame::{Offloads, VnetHdr, flow_hash, rarp};
use crate::limits::{
    BURST_FLOOD_COPIES, BURST_FRAMES, DISCARD_MILLIS, HOLD_NANOS, MAX_SEGMENTS,
    MAX_TURN_DEBT_NANOS, TURN_PART_NANOS,
};
use crate::port::debt::{Part, Terms};
use crate::port::moderation::Completed;
use crate::port::mtu::NO_LIMIT;
use crate::port::patience::Wait;
use crate::port::steering::Steering;
use crate::port::tap::{TapReader, TapState, TapWriter};
use crate::port::{Endpoint, GuestPort, Port, Queue, RingState};
use crate::ring::{Burst, RxScratch, SplitRing};
use crate::stats::{DropReason, QueueStats};
use crate::switch::{BurstMemo, Decision, Ingress, Policy, PortId, Rules, SourceMemo};
use crate::sys::clock;

/// What came of looking at a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Serviced {
    /// A burst was forwarded; there may be more.
    More,
    /// A burst was forwarded, and the source is known to be empty now.
    Last,
    /// A session wants the ring, or has it: look again next turn.
    Busy,
    /// Nothing could be forwarded: the receiver is full, and the frames wait for it.
    Waiting,
    /// Nothing there.
    Idle,
    /// Stopped, disabled or broken: somebody will say when to look again.
    Gone,
}

/// The part of a worker that forwards.
pub struct Forwarder {
    worker: usize,
    fdb: Arc<crate::switch::Fdb>,
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
    now: u32,
    /// The present turn's cycle.
    cycle: u64,
    /// Patience with a full receiver at most, in cycles.
    patience: u64,
    /// Work that the receivers of the present burst made beyond copying, in bytes.
    extra: u32,
    /// When the last burst ended, or the turn began.
    lap: u64,
    /// Several sources had work in the last turn.
    contended: bool,
    part: Part,
    /// A ring's part of a turn.
    terms: Terms,
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

impl Forwarder {
    /// The forwarder of worker `worker`.
    pub fn new(worker: usize, shared: &Shared) -> Forwarder {
        Forwarder {
            worker,
            fdb: Arc::clone(&shared.fdb),
            rules: shared.rules,
            burst: Burst::default(),
            hashes: [0; BURST_FRAMES],
            hashed: false,
            plan: Plan::default(),
            memo: BurstMemo::new(),
            flood_run: Run::EMPTY,
            flooded: Flooded::default(),
            targets: Vec::with_capacity(shared.ports.len()),
            scratch: RxScratch::default(),
            writer: TapWriter::default(),
            reader: TapReader::default(),
            signals: Signals::new(worker, shared.watch.register()),
            now: 0,
            cycle: 0,
            patience: clock::cycles_in(HOLD_NANOS),
            extra: 0,
            lap: 0,
            contended: false,
            part: Part::new(
                clock::cycles_in(*TURN_PART_NANOS.start()),
                clock::cycles_in(*TURN_PART_NANOS.end()),
            ),
            terms: Terms { part: 0, pay: 0, most: clock::cycles_in(MAX_TURN_DEBT_NANOS) },
            planned: false,
            copies: 0,
        }
    }

    /// Starts a turn at `cycle`; `contended` if several sources had work in the last one, `idle` if
    /// all of them sat it out.
    pub fn begin_turn(&mut self, cycle: u64, contended: bool, idle: bool) {
        self.now = clock::coarse_seconds();
        (self.cycle, self.lap, self.contended) = (cycle, cycle, contended);
        (self.terms.part, self.terms.pay) = self.part.next_turn(idle);
    }

    /// Charges a ring for the time since the last burst ended.
    #[inline(always)]
    fn charge_time(&mut self, state: &mut RingState) {
        let now = clock::cycles();
        let spent = clock::since(self.lap, now);
        state.debt.charge(spent, self.terms);
        self.part.saw(spent, state.ring.as_ref().is_some_and(SplitRing::has_more));
        self.lap = now;
    }

    /// Ends a turn: sends the signals it owes.
    #[inline]
    pub fn end_turn(&mut self, ports: &[Port], stats: &WorkerStats) {
        self.signals.end_turn(ports, stats, self.cycle);
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
        ports: &[Port],
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
        let limit = match drain_left(&mut state, queue) {
            Some(0) => return Serviced::Gone,
            Some(left) => usize::from(left),
            None => BURST_FRAMES,
        };
        let RingState { ring: Some(ring), enabled: true, broken: false, debt, .. } = &mut *state
        else {
            let kept = state.discard_from.is_some();
            drop(state);
            return if kept { self.discard(id, guest, index) } else { Serviced::Gone };
        };
        if ring.sits_out() || debt.sits_out(self.contended, self.terms) {
            return Serviced::Busy;
        }
        match ring.take(&mut self.burst, limit) {
            Ok(0) => return Serviced::Idle,
            Ok(_) => {}
            Err(error) => {
                state.broken = true;
                state.drain_to = None;
                self.signals.note_error(id, &state);
                let error = state.ring.as_ref().map_or(error, |ring| ring.cause(error));
                let session = state.session;
                drop(state);
                queue.notify_drained();
                report_broken(port, session, 2 * index + 1, error);
                return Serviced::Gone;
            }
        }
        if let Some(flows) = guest.steering() {
            self.note_flows(flows, index);
        }
        let ingress = Ingress { port: id, kind: port.kind() };
        let mut tally = self.classify(ports, port, ingress, &mut state.source, &queue.stats);
        let wait = self.may_wait(&state);
        let mut again = self.deliver(ports, id, stats, wait);
        if self.others_wait_behind(&mut state) {
            again = self.deliver(ports, id, stats, None);
        }
        if self.extra > 0
            && let Some(ring) = &mut state.ring
        {
            // Also if the burst goes on waiting: each try costs.
            ring.charge(self.extra);
        }
        if !self.leave_unsettled(&mut state, queue, &mut tally) {
            self.charge_time(&mut state);
            return if again { Serviced::Busy } else { Serviced::Waiting };
        }
        self.finish((id, index), &mut state, &queue.stats, tally, guest.received());
        drain_left(&mut state, queue);
        self.charge_time(&mut state);
        stats.bursts.add(1);
        // After classifying, which may have cut the burst: what was cut comes again.
        stats.frames.add(self.burst.taken() as u64);
        Serviced::More
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

    /// Whether the burst may wait for its receiver: if it goes to one only, so that nobody else's
    /// frames are known to wait with it, and nobody waits for the ring itself.
    #[inline(always)]
    fn may_wait(&mut self, state: &RingState) -> Option<Wait> {
        let whole = match self.plan.runs() {
            [run] => run.left().len() == self.burst.frames().len(),
            _ => false,
        };
        (whole && state.drain_to.is_none()).then(|| Wait {
            now: self.cycle,
            waited: state.waiting_since.map_or(0, |then| clock::since(then, self.cycle)),
            most: self.patience,
        })
    }

    /// True if frames are left that wait for their receiver, and behind the burst is one for
    /// somebody else: that one shall not wait.
    #[inline(always)]
    fn others_wait_behind(&mut self, state: &mut RingState) -> bool {
        let Some(&first) = self.plan.runs().first().and_then(|run| run.left().first()) else {
            return false;
        };
        let to = ethernet::destination(&self.burst.frames()[usize::from(first)].snapshot);
        let taken = self.burst.taken();
        state.ring.as_mut().is_some_and(|ring| !ring.all_go_to(to, taken))
    }

    /// Gives frames that wait for their receiver back to the ring; true if any others are left to
    /// be completed.
    #[inline(always)]
    fn leave_unsettled(&mut self, state: &mut RingState, queue: &Queue, tally: &mut Tally) -> bool {
        let Some(&first) = self.plan.runs().first().and_then(|run| run.left().first()) else {
            state.waiting_since = None;
            return true;
        };
        let back = &self.burst.frames()[usize::from(first)..];
        tally.copies -= back.len() as u64;
        self.planned = false;
        tally.bytes -= back.iter().map(|frame| u64::from(frame.len)).sum::<u64>();
        self.burst.cut(usize::from(first));
        if state.waiting_since.replace(self.cycle).is_none() {
            queue.stats.waits.add(1);
        }
        self.burst.taken() > 0
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
        ports: &[Port],
        id: PortId,
        index: usize,
        stats: &WorkerStats,
    ) -> Serviced {
        let Some(port) = ports.get(usize::from(id)) else {
            return Serviced::Gone;
        };
        let Endpoint::Tap(tap) = &port.endpoint else {
            return Serviced::Gone;
        };
        let Some(queue) = tap.queues().get(index) else {
            return Serviced::Gone;
        };
        let state = queue.receive(&mut self.reader, &mut self.burst, tap);
        // What the kernel forwards comes from strangers too.
        self.burst.examine(Offloads::ALL, true);
        let taken = self.burst.taken();
        if taken > 0 {
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
            self.lap = clock::cycles();
        }
        match state {
            TapState::More => Serviced::More,
            TapState::Empty if taken > 0 => Serviced::Last,
            TapState::Empty => Serviced::Idle,
            TapState::Later if taken > 0 => Serviced::More,
            TapState::Later => Serviced::Waiting,
            TapState::Gone => Serviced::Gone,
        }
    }

    /// Tells the network where a guest is now: a RARP request from its address, forwarded as if it
    /// had come from its port (vhost-user, `SEND_RARP`).
    pub fn announce(&mut self, ports: &[Port], what: Announcement, stats: &WorkerStats) {
        let Announcement { port: id, mac, session } = what;
        let Some((port, guest)) = guest_of(ports, id) else {
            return;
        };
        let counters = &port.stats.announced;
        let asked = || guest.session() == Some(session);
        self.burst.clear();
        if !asked() {
            counters.frames.add(1);
            counters.drops.add(DropReason::PortDown, 1);
        } else if self.burst.push_small(VnetHdr::plain(0), &rarp::request(mac)) {
            let ingress = Ingress { port: id, kind: port.kind() };
            let mut source = SourceMemo::default();
            let tally = self.classify(ports, port, ingress, &mut source, counters);
            if !asked() {
                // The front-end left meanwhile, and its addresses may have been forgotten before
                // this one was learned.
                self.fdb.flush_port(id);
            }
            self.deliver(ports, id, stats, None);
            self.planned = false;
            counters.frames.add(1);
            counters.bytes.add(tally.bytes);
            counters.copies.add(tally.copies);
        }
        self.burst.clear();
    }

    /// Discards what a disabled transmit ring holds: the guest kicked it, so it wants its
    /// descriptors back, and a disabled ring has no side effects (vhost-user, "Ring states"). Not
    /// at once, though: cloud-hypervisor enables the rings of a resumed guest when it runs already.
    pub fn discard(&mut self, id: PortId, guest: &GuestPort, index: usize) -> Serviced {
        let Some(queue) = guest.tx.get(index) else {
            return Serviced::Gone;
        };
        let mut state = queue.lock();
        if !state.discard || state.broken || state.ring.is_none() {
            // Enabled in the meantime, which came with a note to look.
            return Serviced::Gone;
        }
        let now = clock::cycles();
        let keep = clock::cycles_in(DISCARD_MILLIS * 1_000_000);
        if now < *state.discard_from.get_or_insert(now.saturating_add(keep)) {
            return Serviced::Waiting;
        }
        // A driver that refills as fast as we discard ends this loop at one ring's worth.
        let mut left = state.ring.as_ref().map_or(0, |ring| usize::from(ring.size()));
        while left > 0 {
            let Some(ring) = &mut state.ring else { break };
            match ring.discard(left) {
                // The driver kicks for the next frame only if asked to, or was just before us.
                Ok((0, _)) if ring.enable_kicks() => left -= 1,
                Ok((0, _)) | Err(_) => break,
                Ok((taken, wanted)) => {
                    left -= taken;
                    queue.stats.frames.add(taken as u64);
                    queue.stats.drops.add(DropReason::Disabled, taken as u64);
                    self.signals.note(id, wanted, &mut state, &queue.stats);
                }
            }
        }
        Serviced::Gone
    }

    /// Admits, learns and decides every frame of the burst; fills the plan. May cut the burst.
    #[inline(always)]
    fn classify(
        &mut self,
        ports: &[Port],
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
        let policy = Policy { fdb: &self.fdb, ports, rules: self.rules };
        let mut judge = Judge::new(policy, port, ingress, source, &mut self.memo, self.now);
        judge.hashes = std::mem::take(&mut self.hashed).then_some(&self.hashes);
        let mut cut = None;
        let mut fan = None;
        for (i, frame) in self.burst.frames().iter().enumerate() {
            match judge.decide(frame) {
                Ok(Decision::Unicast(egress)) => {
                    tally.copies += 1;
                    self.plan.unicast(i as u8, egress, judge.queue(i, frame));
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
        let least = judge.least;
        if let Some(at) = cut {
            self.burst.cut(at);
        }
        (self.planned, self.copies) = (true, tally.copies);
        if least < NO_LIMIT {
            drop_too_big(&self.burst, &mut self.plan, ports, least, self.now);
        }
        tally
    }

    /// Delivers the plan: unicast first, then floods. True if frames that wait may be tried again
    /// at once.
    #[inline(always)]
    fn deliver(
        &mut self,
        ports: &[Port],
        ingress: PortId,
        stats: &WorkerStats,
        wait: Option<Wait>,
    ) -> bool {
        let mut delivery = Delivery {
            ports,
            ingress,
            worker: self.worker,
            stats,
            scratch: &mut self.scratch,
            writer: &mut self.writer,
            signals: &mut self.signals,
            now: self.now,
            again: false,
            extra: 0,
            most_segments: MAX_SEGMENTS,
        };
        delivery.unicast(&self.burst, self.plan.runs(), wait);
        if !self.plan.floods().is_empty() {
            let floods = self.plan.floods();
            let run = &mut self.flood_run;
            delivery.flood(&self.burst, floods, &self.targets, run, &mut self.flooded);
        }
        self.extra = self.extra.saturating_add(delivery.extra);
        delivery.again
    }
}

/// The guest behind port `id`.
pub fn guest_of(ports: &[Port], id: PortId) -> Option<(&Port, &GuestPort)> {
    let port = ports.get(usize::from(id))?;
    port.as_guest().map(|guest| (port, guest))
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
fn flood_targets(ports: &[Port], ingress: Ingress, rules: Rules, targets: &mut Vec<PortId>) {
    for port in ports {
        let up = match &port.endpoint {
            Endpoint::Guest(guest) => guest.active() != 0,
            Endpoint::Tap(tap) => tap.is_up(),
        };
        if up && rules.flood_reaches(ingress, port.id, port.kind()) {
            targets.push(port.id);
        }
    }
}
