//! Delays of a worker by guests' memory.
//!
//! A burst reads its sender's memory and writes its receivers' memory, often in one copy, so the
//! duration of a burst does not tell whose page was missing.
//!
//! Each worker publishes whose memory it touches, with two stores for each step: looks at a ring,
//! and each run of frames to a receiver. While the worker is stuck, the watchdog reads which ports
//! to avoid (`takeover`). During a copy, either of two ports may have caused the delay.
//!
//! After a turn that took far too long, as page faults explain, the worker *watches* for many times
//! the length of the delay. A watching worker copies frames to private memory before delivery, so
//! it touches only one guest's memory at a time and times each run. A receive ring with slow memory
//! gets nothing for many times the length of the delay (`port::queue::Pause`), even if the delay is
//! too short for the watchdog.
//!
//! Without watching, the costs are one comparison a turn and a few a burst.

use std::sync::Arc;

use crate::guard::{NOWHERE, Presence};
use base::limits::{SLOW_TURN_NANOS, WATCH_NANOS, WATCH_PARTS};
use switch::PortId;
use sys::clock;
use sys::usage::Usage;

/// A delay of the worker by one guest's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stall {
    /// Cycles of the delay that page faults explain.
    pub(crate) cycles: u64,
    /// Nanoseconds of the delay in which the worker slept in the kernel; 0 if a disk was read.
    pub(crate) blocked: u64,
}

/// A worker's publication of the ports whose memory it touches, and its record of delays by this
/// memory.
pub struct Stalls {
    presence: Arc<Presence>,
    /// Cycles of a turn or a run from which on the duration is judged.
    pub(super) slow: u64,
    /// Cycle until which the worker watches.
    pub(super) until: u64,
    /// The worker watches in this turn: frames are to be copied to private memory before delivery.
    pub(crate) is_watching: bool,
    /// Cycle and usage at the last comparison.
    pub(super) base: (u64, Usage),
    /// The longest delay of the last slow turn.
    last: Option<Stall>,
    /// Cycles of delay by receivers since [`Stalls::take_delay`].
    delay: u64,
}

/// Begin of a run that is timed.
#[derive(Clone, Copy)]
pub(crate) struct RunStart {
    pub(super) cycle: u64,
    /// The delays noted before the run.
    pub(super) delay: u64,
}

impl Stalls {
    /// Creates a worker's record of delays. The worker publishes in `presence` the ports whose
    /// memory the worker touches.
    pub(crate) fn new(presence: Arc<Presence>) -> Stalls {
        Stalls {
            presence,
            slow: clock::cycles_for_work(SLOW_TURN_NANOS),
            until: 0,
            is_watching: false,
            base: Default::default(),
            last: None,
            delay: 0,
        }
    }

    /// The worker touches no guest's memory from here on.
    #[inline(always)]
    pub(crate) fn at_nothing(&self) {
        self.presence.at([NOWHERE; 2]);
    }

    /// The worker touches the memory of port `id` alone from here on: the port's ring is looked at,
    /// or is the source of a burst. The port may be a device, which has no memory.
    #[inline(always)]
    pub(crate) fn at_sender(&self, id: PortId) {
        self.presence.at([id.into(), NOWHERE]);
    }

    /// The worker touches the memory of guest `id` alone from here on, which receives.
    #[inline(always)]
    pub(crate) fn at_receiver(&self, id: PortId) {
        self.presence.at([NOWHERE, id.into()]);
    }

    /// Begins to pass frames to port `id`, a guest or a device. The worker touches the memory of
    /// the receiver, and of the `sender` if the frames may lie there. While the worker watches,
    /// frames are private, so the receiver alone is touched, and the run is timed: returns the
    /// begin for [`Stalls::end_run`].
    #[inline(always)]
    pub(crate) fn begin_run(&self, sender: Option<PortId>, id: PortId) -> Option<RunStart> {
        if self.is_watching {
            self.at_receiver(id);
            return Some(RunStart { cycle: clock::cycles(), delay: self.delay });
        }
        self.presence.at([sender.map_or(NOWHERE, u32::from), id.into()]);
        None
    }

    /// Begins a turn at cycle `now`.
    #[inline(always)]
    pub(crate) fn begin_turn(&mut self, now: u64) {
        (self.is_watching, self.delay) = (now < self.until, 0);
        if self.is_watching {
            self.rebase(now);
            self.last = None;
        }
    }

    /// Starts a new comparison at cycle `now`. Called regularly, since old page faults and
    /// run-queue delays do not explain a present delay.
    #[cold]
    pub(crate) fn rebase(&mut self, now: u64) {
        self.base = (now, Usage::now());
    }

    /// Ends a turn that took `spent` cycles up to cycle `now`.
    #[inline(always)]
    pub(crate) fn end_turn(&mut self, spent: u64, now: u64) {
        if spent > self.slow {
            self.end_slow_turn(spent, now);
        }
    }

    #[cold]
    fn end_slow_turn(&mut self, spent: u64, now: u64) {
        if !self.is_watching {
            self.last = None;
        }
        self.note(spent, now);
    }

    /// Ends a run that began at `start` and touched only its receiver's memory. Returns the delay,
    /// if there was a long one, which the sender does not pay for.
    #[cold]
    pub(crate) fn end_run(&mut self, start: RunStart) -> Option<Stall> {
        let now = clock::cycles();
        let spent = clock::since(start.cycle, now);
        let stall = if spent < self.slow { None } else { self.note(spent, now) }?;
        self.delay = start.delay.saturating_add(stall.cycles);
        Some(stall)
    }

    /// Notes `cycles` of delay by a receiver's memory, which the sender does not pay for.
    pub(crate) fn note_delay(&mut self, cycles: u64) {
        self.delay = self.delay.saturating_add(cycles);
    }

    /// Takes the cycles of delay by receivers since the last call.
    #[inline(always)]
    pub(crate) fn take_delay(&mut self) -> u64 {
        std::mem::take(&mut self.delay)
    }

    fn note(&mut self, spent: u64, now: u64) -> Option<Stall> {
        let stall = self.judge(spent, now, Usage::now())?;
        self.watch(stall, now);
        self.last = self.last.into_iter().chain([stall]).max_by_key(|stall| stall.cycles);
        Some(stall)
    }

    /// Takes the longest delay of the last slow turn.
    pub(crate) fn last_turn(&mut self) -> Option<Stall> {
        self.last.take()
    }

    /// Watches for so long that a delay of the length of `stall` is a small part of the time.
    pub(super) fn watch(&mut self, stall: Stall, now: u64) {
        let (least, most) = (*WATCH_NANOS.start(), *WATCH_NANOS.end());
        let long = stall.cycles.saturating_mul(WATCH_PARTS);
        let long = long.clamp(clock::cycles_in(least), clock::cycles_in(most));
        self.until = self.until.max(now.saturating_add(long));
    }

    /// Returns the delay within `spent` cycles up to cycle `now`; none if page faults do not
    /// explain a long delay.
    pub(super) fn judge(&mut self, spent: u64, now: u64, usage: Usage) -> Option<Stall> {
        let (then, before) = std::mem::replace(&mut self.base, (now, usage));
        let used = usage.since(&before);
        if used.faults == 0 {
            return None;
        }
        let nanos = |cycles| clock::time_of(cycles).as_nanos() as u64;
        let (passed, most) = (nanos(clock::since(then, now)), nanos(spent));
        let waited = used.waited_for_memory(passed).min(most);
        let slept = used.slept(passed).min(most);
        let blocked = if used.major_faults > 0 { 0 } else { slept };
        Some(Stall { cycles: clock::cycles_in(waited), blocked })
            .filter(|stall| stall.cycles >= self.slow)
    }
}
