//! One burst, step by step: take, classify, plan, deliver, complete.
//!
//! `Pipeline::forward` runs these steps for each source: a guest's transmit ring, a queue of a
//! device, or an announcement. Only this module knows both the switch and the ports. The source's
//! lock is held from taking to completing, so that a session that gets the lock finds no burst half
//! done. The receive locks are leaves of the lock order.
//!
//! A worker uses one [`BurstContext`] for all bursts. A panic in a burst drops the context: the
//! next burst may be another guest's, and must not meet a header to be restored after a write, flow
//! hashes, or segments to be charged of the burst that panicked.
//!
//! [`BurstGuard`] counts a burst at its source: [`BurstGuard::finish`] counts a complete burst, and
//! the drop of the guard counts a burst that a panic ended. After a panic the source counts the
//! copies that ports have counted, and counts frames with other copies as `panicked` drops. The
//! source's lock is still held then.

pub mod announce;
mod answer;
mod device;
mod flood;
mod guest;
mod observe;
mod rate;

use std::iter::repeat_n;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Instant;

use super::arrival::{Arrival, Barred};
use super::backpressure::{self, Backpressure};
use super::deliver::{Delivery, Room, report_broken};
use super::filter::Filters;
use super::flood::{FloodList, Floods};
use super::guard::Violations;
use super::multicast::Snooped;
use super::plan::Plan;
use super::rate_out;
use super::signals::{Broken, Signals};
use crate::capture::outcomes::Outcomes;
use crate::guard::SignalSlot;
use crate::port::device::FrameReader;
use crate::port::quantum::Account;
use crate::port::steering::Steering;
use crate::port::{FloodPermit, FloodSlot, Polled, Port, PortTable, Queue, Tx, TxState};
use crate::ring::Burst;
use crate::stalls::Stalls;
use base::frame::flow_hash;
use base::limits::{BURST_FRAMES, RETRY_NANOS};
use base::stats::{DropReason, QueueStats, WorkerStats};
use switch::{BurstMemo, Fdb, Policy, PortId, Rules, SourceMemo, Tick};
use sys::clock;

/// Place to which a source of bursts belongs.
#[derive(Clone, Copy)]
struct Origin<'p> {
    /// The port.
    port: &'p Port,
    /// Counters of the source's bursts; the worker is the only writer.
    counters: &'p QueueStats,
    /// Slot for floods of the source; none for frames of the switch itself.
    floods: Option<&'p Arc<FloodSlot>>,
}

/// A source of bursts.
trait Source<'p>: Sized {
    /// Returns the place to which the source belongs.
    fn origin(&self) -> Origin<'p>;

    /// Returns the memo of the source's last address.
    fn memo(&mut self) -> &mut SourceMemo;

    /// Fills the burst. An error says what the worker does next because nothing was taken.
    fn take(&mut self, on: &mut Pipeline, context: &mut BurstContext) -> Result<(), Polled>;

    /// Returns the ring in which frames may wait for their receivers; none if frames cannot wait.
    fn ring(&mut self) -> Option<(&mut TxState, &'p Queue<Tx>)> {
        None
    }

    /// Gives delivered frames back and counts the burst. Returns `next` if all frames wait.
    fn complete(
        &mut self,
        on: &mut Pipeline,
        guard: BurstGuard<'_>,
        stats: &WorkerStats,
        next: Polled,
    ) -> Polled;
}

/// The forwarding part of a worker.
pub struct Pipeline {
    worker: usize,
    /// The thread works in place of the worker's own thread, which is stuck.
    relieves: bool,
    fdb: Arc<Fdb>,
    rules: Rules,
    /// None while a burst uses the context, and after a panic.
    context: Option<Box<BurstContext>>,
    reader: FrameReader,
    /// Signals to send.
    pub(crate) signals: Signals,
    /// Record of delays by guests' memory.
    pub(crate) stalls: Stalls,
    account: Account,
    /// Floods with receivers that are not served yet.
    pub(crate) floods: Arc<FloodList>,
    time: Time,
}

/// Time of the present turn.
struct Time {
    /// Tick of the forwarding table's time.
    tick: Tick,
    /// Cycle at which the turn began.
    cycle: u64,
    /// Cycles after which a worker retries a condition that no event reports.
    retry: u64,
}

impl Pipeline {
    /// Creates the pipeline of worker `worker`, whose blocked writes are watched through `slot`.
    pub fn new(worker: usize, fdb: Arc<Fdb>, rules: Rules, slot: SignalSlot) -> Pipeline {
        Pipeline {
            worker,
            relieves: false,
            fdb,
            rules,
            context: Some(Box::default()),
            reader: FrameReader::default(),
            stalls: Stalls::new(Arc::clone(&slot.presence)),
            signals: Signals::new(worker, slot),
            account: Account::default(),
            floods: Arc::default(),
            time: Time { tick: Tick::default(), cycle: 0, retry: clock::cycles_in(RETRY_NANOS) },
        }
    }

    /// Starts a turn at `cycle`. `contended`: several sources had work in the last turn. `idle`:
    /// all of these sources were throttled.
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
            // The floods of a turn share the time that a burst may wait for locks.
            context.wait_until = None;
        }
        self.account.begin_turn(cycle, contended, idle);
    }

    /// Ends the look at a source. Returns the present cycle.
    #[inline(always)]
    pub(crate) fn end_look(&mut self) -> u64 {
        self.account.end_look()
    }

    /// Ends a turn: reports broken rings and sends the turn's signals.
    #[inline]
    pub fn end_turn(&mut self, ports: &PortTable, stats: &WorkerStats) {
        self.stalls.at_nothing();
        for Broken { port, session, ring, error } in self.signals.broken.drain(..) {
            report_broken(&ports[port], session, ring, error);
        }
        self.signals.flush(ports, stats, self.time.cycle);
    }

    /// Makes this thread serve the sources and floods of worker `worker`; `relieves` if the
    /// worker's own thread is stuck.
    pub(crate) fn work_for(&mut self, worker: usize, floods: &Arc<FloodList>, relieves: bool) {
        (self.worker, self.relieves) = (worker, relieves);
        self.floods = Arc::clone(floods);
    }

    /// Returns when to retry a condition that another thread ends and no event reports.
    pub(crate) fn retry(&self) -> Polled {
        // One cycle less than the shortest sleep: the worker spins, since the condition may end
        // soon.
        Polled::RetryAt(self.time.cycle.saturating_add(self.time.retry - 1))
    }

    /// Asks for a kick, before a sleep, from the receiver whose buffers a ring's frames wait for;
    /// see [`backpressure::listen`].
    pub(crate) fn listen(&self, ports: &PortTable, state: &TxState) -> bool {
        backpressure::listen(self.worker, ports, state, &self.stalls)
    }

    /// Forwards one burst of a source.
    #[inline(always)]
    fn forward<'p>(
        &mut self,
        ports: &'p PortTable,
        mut source: impl Source<'p>,
        stats: &WorkerStats,
    ) -> Polled {
        let mut context = self.context.take().unwrap_or_default();
        let origin = source.origin();
        let mut guard = BurstGuard::new(&mut context, origin.counters);
        let next = match source.take(self, &mut guard) {
            Ok(()) => self.carry(ports, &mut source, guard, stats),
            Err(instead) => {
                guard.nothing();
                instead
            }
        };
        drop(source);
        if context.plan.is_fanned() {
            self.flood(ports, (origin.port, origin.floods), &mut context, stats);
        }
        self.context = Some(context);
        next
    }

    /// Carries a burst to its receivers, and completes the burst at its source.
    #[inline(always)]
    fn carry<'p>(
        &mut self,
        ports: &'p PortTable,
        source: &mut impl Source<'p>,
        mut guard: BurstGuard<'_>,
        stats: &WorkerStats,
    ) -> Polled {
        let (from, mut passed) = (source.origin().port, None);
        if ports.is_limited {
            match self.limit_input(source, &mut guard) {
                Ok(all) => passed = Some(all),
                Err(next) => return source.complete(self, guard, stats, next),
            }
        }
        if ports.is_observed() {
            guard.outcomes.begin();
        }
        debug_assert!(!guard.filters.is_due(), "each burst is settled");
        self.classify(ports, source, &mut guard);
        self.stage(ports, source, &mut guard);
        let mut next = self.deliver_or_wait(ports, source, &mut guard, stats);
        if guard.flood.waits {
            next = self.retry();
        }
        if let Some(passed) = passed {
            passed.refund_cut(from, &guard.burst);
        }
        self.report(ports, from, &mut guard, stats);
        self.account.forgive(self.stalls.take_delay());
        if guard.filters.is_due() {
            self.settle_filters(ports, from, &mut guard, stats);
        }
        self.stalls.at_sender(from.id);
        source.complete(self, guard, stats, next)
    }

    /// Copies frames to private memory if observers or floods read the frames later, or if the
    /// sender's memory may make the worker wait.
    #[inline(always)]
    fn stage<'p>(
        &mut self,
        ports: &PortTable,
        source: &mut impl Source<'p>,
        context: &mut BurstContext,
    ) {
        let mut frames = 0;
        if context.outcomes.are_wanted {
            frames |= self.frames_for_observers(ports, source.origin().port.id, context);
        }
        if self.stalls.is_watching && source.ring().is_some() {
            frames |= context.plan.unsettled();
        }
        if context.plan.is_fanned() {
            frames |= context.plan.flooded_frames();
        }
        if frames != 0 {
            context.burst.stage(frames);
        }
    }

    /// Reports the outcome of a delivered burst to guards, multicast snooping and observers.
    #[inline(always)]
    fn report(
        &mut self,
        ports: &PortTable,
        from: &Port,
        context: &mut BurstContext,
        stats: &WorkerStats,
    ) {
        if !context.violations.list.is_empty() {
            let kept = context.burst.frames().len();
            context.violations.count(kept, from);
        }
        if let Some(snooping) = ports.snooping() {
            let BurstContext { snooped, burst, .. } = &mut *context;
            snooped.note(snooping, burst, (ports, from), self.time.tick.second());
        }
        if context.outcomes.are_wanted {
            self.observe(ports, from, context, stats);
        }
    }

    /// Decides about every frame of the burst and plans the destinations.
    #[inline(always)]
    fn classify<'p>(
        &self,
        ports: &'p PortTable,
        source: &mut impl Source<'p>,
        context: &mut BurstContext,
    ) {
        let policy = &Policy { fdb: &self.fdb, ports, rules: self.rules };
        let (Origin { port, floods, .. }, now) = (source.origin(), self.time.tick);
        let floods = Floods::new(floods, source.ring().is_some(), self.time.cycle);
        let arrival = Arrival { policy, port, source: source.memo(), now };
        let own_policy = ports.policy(port.id);
        // Barred frames must not be learned from.
        let refused = match own_policy.checks() {
            true => {
                let BurstContext { burst, violations, filters, .. } = &mut *context;
                Barred::find(burst, (violations, filters), own_policy, port, now)
            }
            false => Barred::NONE,
        };
        match (own_policy.screens() || refused != Barred::NONE, ports.snooping().is_some()) {
            (false, false) => context.classify::<false, false>(arrival, floods, refused),
            (false, true) => context.classify::<false, true>(arrival, floods, refused),
            (true, _) => context.classify::<true, true>(arrival, floods, refused),
        }
    }

    /// Returns a delivery for copies that never wait in a ring: copies of floods and mirrors,
    /// and answers.
    fn delivery<'a>(
        &'a mut self,
        (ports, from): (&'a PortTable, PortId),
        (room, wait_until): (&'a mut Room, &'a mut Option<Instant>),
        outcomes: &'a mut Outcomes,
        stats: &'a WorkerStats,
    ) -> Delivery<'a> {
        let Pipeline { worker, time, signals, stalls, .. } = self;
        let backpressure = Backpressure::new(ports, from, None, (time.cycle, time.retry));
        let worker = *worker;
        Delivery { worker, stats, backpressure, wait_until, room, stalls, signals, outcomes }
    }

    /// Delivers a burst, and gives frames that wait back to the source's ring. Returns what the
    /// worker does next: [`Polled::More`] if no frame waits.
    #[inline(always)]
    fn deliver_or_wait<'p>(
        &mut self,
        ports: &'p PortTable,
        source: &mut impl Source<'p>,
        context: &mut BurstContext,
        stats: &WorkerStats,
    ) -> Polled {
        let from = source.origin().port.id;
        let Pipeline { worker, time, signals, stalls, .. } = self;
        let (now, retry) = (time.cycle, time.retry);
        let mut backpressure = Backpressure::new(ports, from, source.ring(), (now, retry));
        backpressure.begin(&context.plan);
        if ports.is_limited {
            let BurstContext { burst, plan, outcomes, .. } = &mut *context;
            let waits = backpressure.limit(burst, plan, outcomes);
            backpressure.note_limited(plan);
            if let Some(at) = waits {
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
            signals,
            outcomes,
        };
        delivery.deliver(burst, plan);
        let Delivery { mut backpressure, .. } = delivery;
        let Some((at, next)) = backpressure.left else {
            backpressure.complete();
            return Polled::More;
        };
        if ports.is_limited {
            rate_out::refund(ports, &context.burst, &mut context.plan, at);
        }
        context.give_back(at);
        next
    }
}

/// One burst and its state.
#[derive(Default)]
pub(crate) struct BurstContext {
    /// Frames of the burst.
    pub(crate) burst: Burst,
    /// Flow hashes of the frames.
    pub(crate) flows: FlowHashes,
    /// Forwarding decisions about destinations of the burst.
    pub(crate) memo: BurstMemo,
    /// Destinations of the frames.
    pub(crate) plan: Plan,
    /// Port-security rules that frames broke.
    pub(crate) violations: Violations,
    /// Frames that filters judge.
    pub(crate) filters: Filters,
    /// Frames that multicast snooping notes or limits.
    pub(crate) snooped: Snooped,
    /// Bytes of the classified frames.
    pub(crate) bytes: u64,
    /// State of the burst's floods.
    pub(crate) flood: FloodState,
    /// End of the time for waiting for locks of receive rings; none before the first wait.
    pub(crate) wait_until: Option<Instant>,
    /// Outcome of each copy, if the ports are observed.
    pub(crate) outcomes: Outcomes,
    /// Buffers for delivering.
    pub(crate) room: Room,
}

/// State of a burst's floods.
#[derive(Default)]
pub(crate) struct FloodState {
    /// The burst's first frame is flooded and waits for the end of an earlier flood of the source.
    pub(crate) waits: bool,
    /// The frames continue a flood: already counted, captured and mirrored when they came in.
    pub(crate) is_continued: bool,
    /// The source's permit for a flood of several turns, if the burst needs a permit.
    pub(crate) permit: Option<FloodPermit>,
}

/// Flow hashes of a burst's frames, if the source computed them.
pub(crate) struct FlowHashes {
    hashes: [u32; BURST_FRAMES],
    known: bool,
}

impl Default for FlowHashes {
    fn default() -> FlowHashes {
        FlowHashes { hashes: [0; BURST_FRAMES], known: false }
    }
}

impl FlowHashes {
    /// Records that a guest sends the flows of a burst on queue pair `queue`. Keeps the hashes for
    /// choosing receive queues.
    #[inline(never)]
    pub(crate) fn note(&mut self, burst: &Burst, flows: &Steering, queue: usize) {
        let mut last = None;
        for (frame, place) in burst.frames().iter().zip(&mut self.hashes) {
            *place = flow_hash(&frame.snapshot);
            if last.replace(*place) != Some(*place) {
                flows.note(*place, queue);
            }
        }
        self.known = true;
    }

    /// Takes the hashes of the burst that is being classified, if the hashes are known.
    #[inline(always)]
    pub(crate) fn take(&mut self) -> Option<&[u32; BURST_FRAMES]> {
        std::mem::take(&mut self.known).then_some(&self.hashes)
    }
}

impl BurstContext {
    /// Gives frame `at` and all later frames of the burst back to the source.
    pub(crate) fn give_back(&mut self, at: u8) {
        self.plan.truncate(at);
        self.burst.give_back_from(usize::from(at));
        self.bytes = self.burst.bytes();
    }
}

/// Counts a burst at its source, also if a panic ends the burst.
pub(crate) struct BurstGuard<'a> {
    context: &'a mut BurstContext,
    from: &'a QueueStats,
}

impl<'a> BurstGuard<'a> {
    /// Guards the burst that is about to use `context`. `from` are the source's counters, which
    /// only the caller writes.
    #[inline(always)]
    pub(crate) fn new(context: &'a mut BurstContext, from: &'a QueueStats) -> BurstGuard<'a> {
        (context.bytes, context.wait_until) = (0, None);
        (context.flood.waits, context.flood.is_continued) = (false, false);
        BurstGuard { context, from }
    }

    /// Ends a burst without frames, and counts nothing.
    #[inline(always)]
    pub(crate) fn nothing(self) {
        std::mem::forget(self);
    }

    /// Counts a burst that is complete, or that waits as a whole.
    #[inline(always)]
    pub(crate) fn finish(mut self) {
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
        self.count(burst.bytes(), copies, lost);
    }

    /// Counts the frames and `copies`; `lost` frames have copies that no port has counted.
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

/// Runs only in a panic; see [`BurstGuard::finish`].
impl Drop for BurstGuard<'_> {
    fn drop(&mut self) {
        self.count_lost();
    }
}

#[cfg(test)]
mod device_tests;
#[cfg(test)]
mod filter_tests;
#[cfg(test)]
mod flood_tests;
#[cfg(test)]
pub(crate) mod tests;
