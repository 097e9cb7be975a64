//! One burst, top to bottom: take, classify, plan, deliver, complete.
//!
//! A guest's ring, a queue of a TAP and an announcement are sources of the same story, which
//! `Pipeline::forward` tells. This is the one place that knows both the switch and the ports. The
//! source's lock is held from taking to completing, so nothing is half done when a session finds it
//! free; the receive locks inside are leaves.
//!
//! A worker has one [`BurstContext`] and uses it again for each burst; one in which a panic ended a
//! burst is thrown away, so that nothing of it can meet the next one, another guest's: a header
//! that was to be taken back after a write, flow hashes, segments to be charged.
//!
//! [`BurstGuard`] is the one place where a burst is counted at its source: by
//! [`BurstGuard::finish`] when it is complete, and in a panic when the guard is dropped. Then the
//! source counts the copies that ports have counted, and as lost the frames that have others. Its
//! lock is still held.

pub mod announce;
mod capture;
mod device;
mod flood;
mod guest;
mod mirror;
mod rate;

use std::iter::repeat_n;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Instant;

use super::arrival::Arrival;
use super::backpressure::{self, Backpressure};
use super::deliver::{Delivery, Room, report_broken};
use super::flood::{FloodList, Floods};
use super::guard::Violations;
use super::multicast::Snooped;
use super::plan::Plan;
use super::rate_out;
use super::signals::{Broken, Signals};
use super::stalls::{At, Stalls};
use crate::capture::outcomes::Outcomes;
use crate::guard::SignalSlot;
use crate::port::device::FrameReader;
use crate::port::quantum::Account;
use crate::port::steering::Steering;
use crate::port::{FloodPermit, FloodSlot, Next, Port, PortTable, Queue, Tx, TxState};
use crate::ring::Burst;
use base::frame::flow_hash;
use base::limits::{BURST_FRAMES, RETRY_NANOS};
use base::stats::{DropReason, QueueStats, WorkerStats};
use switch::{BurstMemo, Fdb, Policy, PortId, Rules, SourceMemo, Tick};
use sys::clock;

/// Where a burst comes from.
trait Source<'p>: Sized {
    /// The port it belongs to.
    fn port(&self) -> &'p Port;

    /// Where its bursts are counted; the caller is the only writer.
    fn counters(&self) -> &'p QueueStats;

    /// Its last address.
    fn memo(&mut self) -> &mut SourceMemo;

    /// Fills the burst; if nothing was taken, what there is to do instead.
    fn take(&mut self, on: &mut Pipeline, context: &mut BurstContext) -> Result<(), Next>;

    /// The ring whose frames may wait for their receivers; none if they are dropped instead.
    fn ring(&mut self) -> Option<(&mut TxState, &'p Queue<Tx>)> {
        None
    }

    /// The slot for its floods; none for frames of the switch itself.
    fn floods(&self) -> Option<&'p Arc<FloodSlot>> {
        None
    }

    /// Gives back what was taken and delivered, and counts it. If all of it waits: `next`.
    fn complete(
        &mut self,
        on: &mut Pipeline,
        guard: BurstGuard<'_>,
        stats: &WorkerStats,
        next: Next,
    ) -> Next;
}

/// The part of a worker that forwards.
pub struct Pipeline {
    worker: usize,
    /// In the place of its own thread, which stands still.
    relieves: bool,
    fdb: Arc<Fdb>,
    rules: Rules,
    /// None while it is in use, and after a panic.
    context: Option<Box<BurstContext>>,
    reader: FrameReader,
    signals: Signals,
    stalls: Stalls,
    account: Account,
    /// Floods whose receivers are not all served.
    floods: Arc<FloodList>,
    time: Time,
}

/// The present turn.
struct Time {
    /// The turn's tick of the forwarding table's time.
    tick: Tick,
    /// Its cycle.
    cycle: u64,
    /// When to look again at what no event reports.
    retry: u64,
}

impl Pipeline {
    /// The pipeline of worker `worker`, whose blocked writes are watched through `slot`.
    pub fn new(worker: usize, fdb: Arc<Fdb>, rules: Rules, slot: SignalSlot) -> Pipeline {
        Pipeline {
            worker,
            relieves: false,
            fdb,
            rules,
            context: Some(Box::default()),
            reader: FrameReader::default(),
            signals: Signals::new(worker, slot),
            stalls: Stalls::default(),
            account: Account::default(),
            floods: Arc::default(),
            time: Time { tick: Tick::default(), cycle: 0, retry: clock::cycles_in(RETRY_NANOS) },
        }
    }

    /// Starts a turn at `cycle`; `contended` if several sources had work in the last one, `idle` if
    /// all of them were throttled.
    pub fn begin_turn(&mut self, cycle: u64, contended: bool, idle: bool) {
        self.stalls.begin_turn(cycle);
        let (seconds, nanos) = clock::coarse();
        let now = Tick::new(seconds, nanos);
        if now != self.time.tick {
            if now.second() != self.time.tick.second() {
                self.stalls.rebase(cycle);
            }
            self.time.tick = now;
        }
        self.time.cycle = cycle;
        if let Some(context) = &mut self.context {
            // The floods of a turn share what a burst may wait for locks.
            context.wait_until = None;
        }
        self.account.begin_turn(cycle, contended, idle);
    }

    /// Ends a look at a source; the present cycle.
    #[inline(always)]
    pub fn end_look(&mut self) -> u64 {
        self.account.end_look()
    }

    /// Ends a turn: tells what broke and sends the signals it owes.
    #[inline]
    pub fn end_turn(&mut self, ports: &PortTable, stats: &WorkerStats) {
        self.is_at(At::NOTHING);
        for Broken { port, session, ring, error } in self.signals.broken() {
            report_broken(&ports[port], session, ring, error);
        }
        self.signals.flush(ports, stats, self.time.cycle);
    }

    /// Works the sources and floods of that worker from here on; `relieves` if its own thread is
    /// stuck.
    pub fn work_for(&mut self, worker: usize, floods: &Arc<FloodList>, relieves: bool) {
        (self.worker, self.relieves) = (worker, relieves);
        self.floods = Arc::clone(floods);
    }

    /// Says whose memory is touched from here on.
    #[inline(always)]
    pub fn is_at(&self, at: At) {
        self.signals.slot().at(at.0);
    }

    /// Nothing can be forwarded until another thread has done something that no event reports.
    pub fn retry(&self) -> Next {
        // Before the end of the shortest sleep: it may be done any moment, and a spin finds it.
        Next::At(self.time.cycle.saturating_add(self.time.retry - 1))
    }

    /// Before a sleep: asks for a kick where buffers end the waiting of a ring's frames; see
    /// [`backpressure::listen`].
    pub fn listen(&self, ports: &PortTable, state: &TxState) -> bool {
        backpressure::listen(self.worker, ports, state, |at| self.is_at(at))
    }

    /// What is known of waiting for guests' memory.
    #[inline(always)]
    pub fn stalls(&mut self) -> &mut Stalls {
        &mut self.stalls
    }

    /// The signals owed, and where this worker announces that it sleeps.
    pub fn signals(&mut self) -> &mut Signals {
        &mut self.signals
    }

    /// Forwards one burst of a source.
    #[inline(always)]
    fn forward<'p>(
        &mut self,
        ports: &'p PortTable,
        mut source: impl Source<'p>,
        stats: &WorkerStats,
    ) -> Next {
        let mut context = self.context.take().unwrap_or_default();
        let mut guard = BurstGuard::new(&mut context, source.counters());
        let (from, slot) = (source.port(), source.floods());
        let next = match source.take(self, &mut guard) {
            Ok(()) => self.carry(ports, &mut source, guard, stats),
            Err(instead) => {
                guard.nothing();
                instead
            }
        };
        drop(source);
        if context.plan.is_fanned() {
            self.flood(ports, (from, slot), &mut context, stats);
        }
        self.context = Some(context);
        next
    }

    /// Carries a burst that was taken to its receivers, and completes the burst at its source.
    #[inline(always)]
    fn carry<'p>(
        &mut self,
        ports: &'p PortTable,
        source: &mut impl Source<'p>,
        mut guard: BurstGuard<'_>,
        stats: &WorkerStats,
    ) -> Next {
        let mut passed = Default::default();
        if ports.is_limited() {
            match self.limit_input(source, &mut guard) {
                Ok(all) => passed = all,
                Err(next) => return source.complete(self, guard, stats, next),
            }
        }
        if ports.is_observed() {
            guard.outcomes.begin();
        }
        self.classify(ports, source, &mut guard);
        self.stage(ports, source, &mut guard);
        let mut next = self.deliver_or_wait(ports, source, &mut guard, stats);
        if guard.flood.waits {
            next = self.retry();
        }
        if passed.exceeds(&guard.burst) {
            passed.refund_cut(source.port(), &guard.burst);
        }
        self.report(ports, source.port(), &mut guard, stats);
        self.is_at(At::sender(source.port().id));
        source.complete(self, guard, stats, next)
    }

    /// Copies frames to private memory that observers or floods read later, or whose sender's
    /// memory may make the worker wait.
    #[inline(always)]
    fn stage<'p>(
        &mut self,
        ports: &PortTable,
        source: &mut impl Source<'p>,
        context: &mut BurstContext,
    ) {
        let mut frames = 0;
        if context.outcomes.are_wanted() {
            if ports.is_captured() {
                context.outcomes.may_look = self.may_capture(ports);
            }
            frames |= context.frames_for_observers(ports, source.port().id);
        }
        if self.stalls.is_watching() && source.ring().is_some() {
            frames |= context.plan.unsettled();
        }
        if context.plan.is_fanned() {
            frames |= context.plan.flooded_frames();
        }
        if frames != 0 {
            context.burst.stage(frames);
        }
    }

    /// Tells guards, groups and observers what became of a burst that was delivered.
    #[inline(always)]
    fn report(
        &mut self,
        ports: &PortTable,
        from: &Port,
        context: &mut BurstContext,
        stats: &WorkerStats,
    ) {
        if !context.violations.is_empty() {
            let kept = context.burst.frames().len();
            context.violations.count(kept, from);
        }
        if let Some(snooping) = ports.snooping() {
            let BurstContext { snooped, burst, .. } = &mut *context;
            snooped.note(snooping, burst, (ports, from), self.time.tick.second());
        }
        if context.outcomes.are_wanted() {
            self.observe(ports, from, context, stats);
        }
    }

    /// Decides about every frame of the burst and plans where it goes.
    #[inline(always)]
    fn classify<'p>(
        &self,
        ports: &'p PortTable,
        source: &mut impl Source<'p>,
        context: &mut BurstContext,
    ) {
        let policy = &Policy { fdb: &self.fdb, ports, rules: self.rules };
        let (port, now) = (source.port(), self.time.tick);
        let floods = Floods::new(source.floods(), source.ring().is_some(), self.time.cycle);
        let arrival = Arrival { policy, port, source: source.memo(), now };
        match (ports.policy(port.id).screens(), ports.snooping().is_some()) {
            (false, false) => context.classify::<false, false>(arrival, floods),
            (false, true) => context.classify::<false, true>(arrival, floods),
            (true, _) => context.classify::<true, true>(arrival, floods),
        }
    }

    /// For copies that wait in no ring: those of floods and mirrors.
    fn delivery<'a>(
        &'a mut self,
        (ports, from): (&'a PortTable, PortId),
        (room, wait_until): (&'a mut Room, &'a mut Option<Instant>),
        outcomes: &'a mut Outcomes,
        stats: &'a WorkerStats,
    ) -> Delivery<'a> {
        let Pipeline { worker, time, signals, stalls, .. } = self;
        let backpressure = Backpressure::none(ports, from, time.cycle);
        let (worker, slow) = (*worker, 0);
        Delivery { worker, stats, backpressure, wait_until, room, stalls, slow, signals, outcomes }
    }

    /// Delivers a burst but for what waits in its ring: whether there may be more to take, or what
    /// else to do next.
    #[inline(always)]
    fn deliver_or_wait<'p>(
        &mut self,
        ports: &'p PortTable,
        source: &mut impl Source<'p>,
        context: &mut BurstContext,
        stats: &WorkerStats,
    ) -> Next {
        let from = source.port().id;
        let Pipeline { worker, time, signals, stalls, account, .. } = self;
        let (now, retry) = (time.cycle, time.retry);
        let mut backpressure = Backpressure::of_ring(ports, from, source.ring(), (now, retry));
        backpressure.begin(&context.plan);
        if ports.is_limited() {
            let BurstContext { burst, plan, outcomes, .. } = &mut *context;
            if let Some(at) = backpressure.limit(burst, plan, outcomes) {
                context.give_back(at);
            }
        }
        let BurstContext { burst, plan, room, outcomes, wait_until, .. } = &mut *context;
        let mut delivery = Delivery {
            worker: *worker,
            stats,
            backpressure,
            wait_until,
            room,
            stalls,
            slow: 0,
            signals,
            outcomes,
        };
        delivery.deliver(burst, plan);
        let Delivery { mut backpressure, slow, .. } = delivery;
        account.forgive(slow);
        let Some((at, next)) = backpressure.left else {
            backpressure.complete();
            return Next::More;
        };
        if ports.is_limited() {
            rate_out::refund(ports, &context.burst, &mut context.plan, at);
        }
        context.give_back(at);
        next
    }
}

/// One burst and all that is known of it.
#[derive(Default)]
pub struct BurstContext {
    /// Its frames.
    pub burst: Burst,
    /// What hashing their flows gave.
    pub flows: FlowHashes,
    /// Decisions about its destinations.
    pub memo: BurstMemo,
    /// Where its frames go.
    pub plan: Plan,
    /// What its frames broke of the rules of their port's guard.
    pub violations: Violations,
    /// What snooping has to do with its frames.
    pub snooped: Snooped,
    /// Bytes of the frames that were classified.
    pub bytes: u64,
    /// What its floods need.
    pub flood: FloodState,
    /// Until when it may wait for rings that another worker holds, once it does.
    pub wait_until: Option<Instant>,
    /// What became of its copies, if it is captured.
    pub outcomes: Outcomes,
    /// Room for delivering.
    pub room: Room,
}

/// How far the floods of a burst are.
#[derive(Default)]
pub struct FloodState {
    /// The burst's first frame is flooded and waits, as another flood of the source goes on.
    pub waits: bool,
    /// The frames are a flood's, which were counted, captured and mirrored when they came in.
    pub is_continued: bool,
    /// The source's right to a flood of several turns, if the burst needs one.
    pub permit: Option<FloodPermit>,
}

/// Flow hashes of a burst's frames, where its source needed them.
pub struct FlowHashes {
    hashes: [u32; BURST_FRAMES],
    known: bool,
}

impl Default for FlowHashes {
    fn default() -> FlowHashes {
        FlowHashes { hashes: [0; BURST_FRAMES], known: false }
    }
}

impl FlowHashes {
    /// Records that a guest sends the flows of a burst on pair `queue`. The hashes are kept for the
    /// receivers' sake.
    #[inline(never)]
    pub fn note(&mut self, burst: &Burst, flows: &Steering, queue: usize) {
        let mut last = None;
        for (frame, place) in burst.frames().iter().zip(&mut self.hashes) {
            *place = flow_hash(&frame.snapshot);
            if last.replace(*place) != Some(*place) {
                flows.note(*place, queue);
            }
        }
        self.known = true;
    }

    /// The hashes, if they are known; for the burst that is being classified.
    #[inline(always)]
    pub fn take(&mut self) -> Option<&[u32; BURST_FRAMES]> {
        std::mem::take(&mut self.known).then_some(&self.hashes)
    }
}

impl BurstContext {
    /// Gives frame `at` and what is behind it back to the source.
    pub fn give_back(&mut self, at: u8) {
        self.plan.truncate(at);
        self.burst.cut(usize::from(at));
        self.bytes = bytes_of(&self.burst);
    }
}

/// Counts a burst, whatever becomes of it.
pub struct BurstGuard<'a> {
    context: &'a mut BurstContext,
    from: &'a QueueStats,
}

impl<'a> BurstGuard<'a> {
    /// For the burst that `context` is used for from here on. Its counters at its source are
    /// `from`, and the caller is their only writer.
    #[inline(always)]
    pub fn new(context: &'a mut BurstContext, from: &'a QueueStats) -> BurstGuard<'a> {
        (context.bytes, context.wait_until) = (0, None);
        (context.flood.waits, context.flood.is_continued) = (false, false);
        BurstGuard { context, from }
    }

    /// Nothing was taken, so nothing is counted.
    #[inline(always)]
    pub fn nothing(self) {
        std::mem::forget(self);
    }

    /// Counts the burst, which is complete, or waits as a whole.
    #[inline(always)]
    pub fn finish(mut self) {
        let BurstContext { plan, bytes, .. } = &*self.context;
        self.count(*bytes, plan.copies(), 0);
        self.context.plan.clear_runs();
        std::mem::forget(self);
    }

    /// Counts a burst that a panic ended.
    #[cold]
    fn count_lost(&mut self) {
        let BurstContext { burst, plan, .. } = &*self.context;
        let (frames, copies) = plan.settled();
        let lost = burst.frames().len().saturating_sub(frames);
        self.count(bytes_of(burst), copies, lost);
    }

    /// Counts the frames, `lost` of which have copies that nothing has counted; `copies` were.
    #[inline(always)]
    fn count(&mut self, bytes: u64, copies: usize, lost: usize) {
        let (BurstContext { burst, plan, .. }, from) = (&*self.context, self.from);
        let planned = plan.drops().map(|(_, reason)| reason);
        let lost = repeat_n(DropReason::Panicked, lost);
        for reason in burst.rejected().chain(planned).chain(lost) {
            from.drops.add(reason, 1);
        }
        from.frames.add(burst.taken() as u64);
        from.bytes.add(bytes);
        from.copies.add(copies as u64);
    }
}

/// Bytes of a burst's frames.
pub fn bytes_of(burst: &Burst) -> u64 {
    burst.frames().iter().map(|frame| u64::from(frame.len)).sum()
}

impl Deref for BurstGuard<'_> {
    type Target = BurstContext;

    #[inline(always)]
    fn deref(&self) -> &BurstContext {
        self.context
    }
}

impl DerefMut for BurstGuard<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut BurstContext {
        self.context
    }
}

/// Dropped only by a panic; see [`BurstGuard::finish`].
impl Drop for BurstGuard<'_> {
    fn drop(&mut self) {
        self.count_lost();
    }
}

#[cfg(test)]
mod device_tests;
#[cfg(test)]
mod flood_tests;
#[cfg(test)]
pub(crate) mod tests;
