//! Delays of a worker by guests' memory.
//!
//! A front-end can take away pages of the memory that it shares. A thread that then touches such a
//! page waits for the kernel: until a huge page is cleared (0.1 to 0.9 ms), or until a hole around
//! the page has been punched (*measured*: 90 ms for 0.5 GiB, 0.9 s for 6 GiB). The kernel offers no
//! access that does not wait. A burst reads its sender's memory and writes its receivers' memory,
//! often in one copy, so the duration of a burst does not tell whose page was missing.
//!
//! Each worker publishes whose memory it touches ([`At`]), with a few stores a burst and one store
//! a run. While the worker is stuck, another thread reads which ports to avoid, and charges one of
//! them when the worker returns (`worker::reserve`). During a copy, either of two ports may have
//! caused the delay.
//!
//! After a turn that took far too long, as page faults explain, the worker *watches* for many times
//! the length of the delay. A watching worker copies frames to private memory before delivery, so
//! it touches only one guest's memory at a time and times each run. A receive ring with slow memory
//! gets nothing for many times the length of the delay (`port::queue::Pause`), even if the delay is
//! too short for the watchdog.
//!
//! Without watching, the costs are one comparison a turn and a few a burst.

use crate::guard::NOWHERE;
use base::limits::{SLOW_TURN_NANOS, WATCH_NANOS, WATCH_PARTS};
use switch::PortId;
use sys::clock;
use sys::usage::Usage;

/// The ports whose memory a worker touches: a burst's sender, a receiver, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct At(pub [u32; 2]);

impl At {
    /// No guest's memory.
    pub const NOTHING: At = At([NOWHERE; 2]);

    /// The memory of the guest that sends, or whose ring is looked at. The port may be a device,
    /// which has no memory.
    #[inline(always)]
    pub fn sender(id: PortId) -> At {
        At([id.into(), NOWHERE])
    }

    /// Adds the memory of a guest that receives.
    #[inline(always)]
    pub fn and(self, receiver: PortId) -> At {
        At([self.0[0], receiver.into()])
    }

    /// Returns the ports, each once.
    pub fn ports(self) -> impl Iterator<Item = PortId> {
        let [sender, receiver] = self.0;
        let receiver = if receiver == sender { NOWHERE } else { receiver };
        [sender, receiver].into_iter().filter_map(|port| port.try_into().ok())
    }
}

/// A delay of the worker by one guest's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stall {
    /// Cycles of the delay that page faults explain.
    pub cycles: u64,
    /// Nanoseconds of the delay in which the worker slept in the kernel; 0 if a disk was read.
    pub blocked: u64,
}

/// A worker's record of delays by guests' memory.
pub struct Stalls {
    /// Cycles of a turn or a run from which on the duration is judged.
    slow: u64,
    /// Cycle until which the worker watches.
    until: u64,
    /// The worker watches in this turn.
    watching: bool,
    /// Cycle and usage at the last comparison.
    base: (u64, Usage),
    /// The longest delay of the last slow turn.
    last: Option<Stall>,
}

impl Default for Stalls {
    fn default() -> Stalls {
        let slow = clock::cycles_for_work(SLOW_TURN_NANOS);
        Stalls { slow, until: 0, watching: false, base: Default::default(), last: None }
    }
}

impl Stalls {
    /// Begins a turn at cycle `now`.
    #[inline(always)]
    pub fn begin_turn(&mut self, now: u64) {
        self.watching = now < self.until;
        if self.watching {
            self.rebase(now);
            self.last = None;
        }
    }

    /// Starts a new comparison at cycle `now`. Called regularly, since old page faults and
    /// run-queue delays do not explain a present delay.
    #[cold]
    pub fn rebase(&mut self, now: u64) {
        self.base = (now, Usage::now());
    }

    /// True if frames are to be copied to private memory before delivery.
    #[inline(always)]
    pub fn is_watching(&self) -> bool {
        self.watching
    }

    /// Ends a turn that took `spent` cycles up to cycle `now`.
    #[inline(always)]
    pub fn end_turn(&mut self, spent: u64, now: u64) {
        if spent > self.slow {
            self.end_slow_turn(spent, now);
        }
    }

    #[cold]
    fn end_slow_turn(&mut self, spent: u64, now: u64) {
        if !self.watching {
            self.last = None;
        }
        self.note(spent, now);
    }

    /// Ends a run that began at cycle `start` and touched only its receiver's memory. Returns the
    /// delay, if there was a long one.
    #[cold]
    pub fn end_run(&mut self, start: u64) -> Option<Stall> {
        let now = clock::cycles();
        let spent = clock::since(start, now);
        if spent < self.slow { None } else { self.note(spent, now) }
    }

    fn note(&mut self, spent: u64, now: u64) -> Option<Stall> {
        let stall = self.judge(spent, now, Usage::now())?;
        self.watch(stall, now);
        self.last = self.last.into_iter().chain([stall]).max_by_key(|stall| stall.cycles);
        Some(stall)
    }

    /// Takes the longest delay of the last slow turn.
    pub fn last_turn(&mut self) -> Option<Stall> {
        self.last.take()
    }

    /// Watches for so long that a delay of the length of `stall` is a small part of the time.
    fn watch(&mut self, stall: Stall, now: u64) {
        let (least, most) = (*WATCH_NANOS.start(), *WATCH_NANOS.end());
        let long = stall.cycles.saturating_mul(WATCH_PARTS);
        let long = long.clamp(clock::cycles_in(least), clock::cycles_in(most));
        self.until = self.until.max(now.saturating_add(long));
    }

    /// Returns the delay within `spent` cycles up to cycle `now`; none if page faults do not
    /// explain a long delay.
    fn judge(&mut self, spent: u64, now: u64, usage: Usage) -> Option<Stall> {
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

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn stalls() -> (Stalls, u64) {
        let mut stalls = Stalls::default();
        let start = clock::cycles();
        stalls.base = (start, Usage { run_delay: Some(0), ..Usage::default() });
        (stalls, start)
    }

    fn after(start: u64, nanos: u64) -> u64 {
        start + clock::cycles_in(nanos)
    }

    fn near(got: u64, wanted: u64) -> bool {
        got.abs_diff(wanted) < wanted / 100 + 1000
    }

    #[test]
    fn only_page_faults_are_stalls() {
        let (mut stalls, start) = stalls();
        let usage = Usage { cpu: 30 * MS, run_delay: Some(0), ..Usage::default() };
        let spent = clock::cycles_in(30 * MS);
        assert_eq!(stalls.judge(spent, after(start, 30 * MS), usage), None);
    }

    #[test]
    fn blocked_is_what_neither_ran_nor_wanted_a_cpu() {
        let (mut stalls, start) = stalls();
        let usage =
            Usage { cpu: 5 * MS, run_delay: Some(10 * MS), sleeps: 1, faults: 9, major_faults: 0 };
        let spent = clock::cycles_in(100 * MS);
        let stall = stalls.judge(spent, after(start, 100 * MS), usage).unwrap();
        assert!(near(stall.blocked, 85 * MS), "{stall:?}");
        assert!(near(clock::time_of(stall.cycles).as_nanos() as u64, 90 * MS), "{stall:?}");
    }

    #[test]
    fn a_disk_is_no_fault_of_the_guest() {
        let (mut stalls, start) = stalls();
        let usage = Usage { cpu: MS, run_delay: Some(0), sleeps: 1, faults: 2, major_faults: 1 };
        let stall = stalls.judge(clock::cycles_in(50 * MS), after(start, 50 * MS), usage).unwrap();
        assert_eq!(stall.blocked, 0);
    }

    #[test]
    fn a_kernel_that_does_not_count_delays_blames_nobody() {
        let (mut stalls, start) = stalls();
        let usage = Usage { cpu: 9 * MS, run_delay: None, sleeps: 1, faults: 9, major_faults: 0 };
        let stall = stalls.judge(clock::cycles_in(50 * MS), after(start, 50 * MS), usage).unwrap();
        assert_eq!(stall.blocked, 0);
    }

    #[test]
    fn what_a_hypervisor_steals_is_no_fault_of_the_guest() {
        let (mut stalls, start) = stalls();
        let usage = Usage { cpu: MS, run_delay: Some(0), faults: 1, ..Usage::default() };
        assert_eq!(stalls.judge(clock::cycles_in(50 * MS), after(start, 50 * MS), usage), None);
    }

    /// A run with a page fault that was long because the worker had no CPU. The fault itself is
    /// rarely long, on a busy machine only.
    #[test]
    fn a_run_that_faults_do_not_explain_is_nobodys() {
        let is_nobodys = || {
            let mut stalls = Stalls::default();
            let ago = clock::cycles().saturating_sub(2 * stalls.slow);
            stalls.base = (ago, Usage::now());
            // A new page, so that the write faults.
            std::hint::black_box(vec![0u8; 64 << 20])[1 << 20] = 1;
            assert!(Usage::now().since(&stalls.base.1).faults > 0);
            stalls.end_run(ago).is_none() && stalls.until == 0
        };
        assert!((0..20).any(|_| is_nobodys()));
    }

    #[test]
    fn a_turn_without_faults_is_not_followed_by_watching() {
        let mut stalls = Stalls::default();
        let now = clock::cycles();
        stalls.rebase(now);
        stalls.end_turn(clock::cycles_in(500), now);
        assert_eq!(stalls.until, 0);
        stalls.watch(Stall { cycles: clock::cycles_in(2 * MS), blocked: 0 }, now);
        stalls.begin_turn(now);
        assert!(stalls.is_watching());
        stalls.begin_turn(after(now, 199 * MS));
        assert!(stalls.is_watching());
        stalls.begin_turn(after(now, 201 * MS));
        assert!(!stalls.is_watching());
    }

    #[test]
    fn ports_are_named_once() {
        let named = |at: At| at.ports().collect::<Vec<_>>();
        assert!(named(At::NOTHING).is_empty());
        assert_eq!(named(At::sender(0)), [0]);
        assert_eq!(named(At::NOTHING.and(PortId::MAX)), [PortId::MAX]);
        assert_eq!(named(At::sender(3).and(0)), [3, 0]);
        assert_eq!(named(At::sender(3).and(3)), [3]);
    }
}
