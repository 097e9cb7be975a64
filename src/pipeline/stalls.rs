//! Whose memory made a worker wait.
//!
//! A front-end can take away pages of the memory that it shares. A thread that then reads or writes
//! there waits for the kernel: until a huge page is cleared (0.1 to 0.9 ms), or as long as a hole
//! is being punched around it (*measured*: 90 ms for 0.5 GiB, 0.9 s for 6 GiB). The kernel offers
//! no access that does not wait. A burst reads its sender's memory and writes to that of its
//! receivers, often in one copy, so that a slow burst does not tell whose page was missing.
//!
//! So a turn that took far too long, as page faults explain, makes the worker *watch* for a while,
//! many times as long as it waited. As long as it watches,
//!
//! * frames are copied to private memory before they are delivered, in their sender's time,
//! * a run is delivered in its receiver's time,
//! * everything else that touches guest memory, kicks and looks at idle rings, is timed alone.
//!
//! A ring whose memory was slow gets or sends nothing for many times as long
//! (`port::queue::Pause`). A front-end whose memory *blocked* a worker repeatedly, which is the
//! time in which that neither ran nor wanted a CPU nor waited for a disk, endangers the others: it
//! is dropped and its port stays closed for a while.
//!
//! A port that is not watched pays one comparison a turn and a few a burst.
//!
//! Each worker also says whose memory it is at ([`At`]), one store a burst and one a run, so that
//! another thread knows which ports to keep away from while that worker waits there. What completes
//! a burst counts as its last receiver's, too.

use std::time::Duration;

use super::signals::evict;
use crate::guard::NOWHERE;
use crate::limits::{
    HARMFUL_STALL_NANOS, HARMFUL_STALLS, MAX_SUSPECTS, SLOW_TURN_NANOS, TOUCH_NANOS, WATCH_NANOS,
    WATCH_PARTS,
};
use crate::port::Port;
use crate::switch::PortId;
use crate::sys::clock;
use crate::sys::usage::Usage;

/// The ports whose memory a worker is at: that of a burst's sender, that of a receiver, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct At(pub [u32; 2]);

impl At {
    /// At no guest's.
    pub const NOTHING: At = At([NOWHERE; 2]);

    /// At that of the guest that sends, or whose ring is looked at. A port without memory may be
    /// named too.
    #[inline(always)]
    pub fn sender(id: PortId) -> At {
        At([id.into(), NOWHERE])
    }

    /// And at that of a guest that receives.
    #[inline(always)]
    pub fn and(self, receiver: PortId) -> At {
        At([self.0[0], receiver.into()])
    }

    /// The ports, each once.
    pub fn ports(self) -> impl Iterator<Item = PortId> {
        let [sender, receiver] = self.0;
        let receiver = if receiver == sender { NOWHERE } else { receiver };
        [sender, receiver].into_iter().filter_map(|port| port.try_into().ok())
    }
}

/// How long one guest's memory made the worker wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stall {
    /// Cycles, without those that page faults do not explain.
    pub cycles: u64,
    /// Of these, nanoseconds in which the worker slept in the kernel, and not for a disk.
    pub blocked: u64,
}

/// A front-end whose memory blocked the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Suspect {
    port: u16,
    session: u64,
    stalls: u32,
}

/// What a worker knows of waiting for guests' memory.
pub struct Stalls {
    /// Cycles that a turn may take.
    slow_turn: u64,
    /// Cycles that a part may take.
    slow_part: u64,
    /// The worker watches until this cycle …
    until: u64,
    /// … and in this turn.
    watching: bool,
    /// Cycle and usage when they were last compared.
    base: (u64, Usage),
    /// When the part that is being timed began.
    start: u64,
    suspects: Vec<Suspect>,
    /// What the last slow turn waited for.
    last: Option<Stall>,
}

impl Default for Stalls {
    fn default() -> Stalls {
        Stalls {
            slow_turn: clock::cycles_for_work(SLOW_TURN_NANOS),
            slow_part: clock::cycles_for_work(TOUCH_NANOS),
            until: 0,
            watching: false,
            base: Default::default(),
            start: 0,
            suspects: Vec::new(),
            last: None,
        }
    }
}

impl Stalls {
    /// Begins a turn at cycle `now`.
    #[inline(always)]
    pub fn begin_turn(&mut self, now: u64) {
        self.watching = now < self.until;
        if self.watching {
            self.rebase(now);
        }
    }

    /// Compares anew from cycle `now` on; to be called now and then, as page faults and run-queue
    /// delays of long ago explain nothing.
    #[cold]
    pub fn rebase(&mut self, now: u64) {
        self.base = (now, Usage::now());
        if !self.watching {
            self.suspects.clear();
        }
    }

    /// True if guests' memory is to be touched in separate, timed parts.
    #[inline(always)]
    pub fn is_watching(&self) -> bool {
        self.watching
    }

    /// Ends a turn that took `spent` cycles up to cycle `now`.
    #[inline(always)]
    pub fn end_turn(&mut self, spent: u64, now: u64) {
        if spent > self.slow_turn {
            self.end_slow_turn(spent, now);
        }
    }

    #[cold]
    fn end_slow_turn(&mut self, spent: u64, now: u64) {
        self.last = self.judge(spent, now, Usage::now());
        if let Some(stall) = self.last.filter(|stall| stall.cycles > self.slow_turn) {
            self.watch(stall, now);
        }
    }

    /// What the last slow turn waited for, but for what was charged to a port in it; once.
    pub fn last_turn(&mut self) -> Option<Stall> {
        self.last.take().filter(|stall| stall.cycles > self.slow_turn)
    }

    /// Watches for a time that makes what such a stall costs little.
    fn watch(&mut self, stall: Stall, now: u64) {
        let (least, most) = (*WATCH_NANOS.start(), *WATCH_NANOS.end());
        let long = stall.cycles.saturating_mul(WATCH_PARTS);
        let long = long.clamp(clock::cycles_in(least), clock::cycles_in(most));
        self.until = self.until.max(now.saturating_add(long));
    }

    /// What was waited for in `spent` cycles up to cycle `now`; none without page faults.
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
    }

    /// Begins a part that touches one guest's memory.
    #[cold]
    pub fn begin_part(&mut self) {
        self.start = clock::cycles();
    }

    /// Ends a part that touched the memory of `port`'s guest, and begins the next: how long it made
    /// the worker wait, if it was long. A front-end that goes too far is dropped, if `session` is
    /// still its present one.
    #[cold]
    pub fn end_part(&mut self, port: &Port, session: u64) -> Option<Stall> {
        let now = clock::cycles();
        let spent = clock::since(std::mem::replace(&mut self.start, now), now);
        if spent < self.slow_part {
            return None;
        }
        let stall = self.judge(spent, now, Usage::now())?;
        if stall.cycles < self.slow_part {
            return None;
        }
        self.watch(stall, now);
        self.hold_against(port, session, stall);
        Some(stall)
    }

    /// Holds a stall against the front-end whose memory it was.
    pub fn hold_against(&mut self, port: &Port, session: u64, stall: Stall) {
        if self.is_harmful(port.id, session, stall) {
            let long = Duration::from_nanos(stall.blocked);
            evict(port, session, &format!("its memory made a worker wait for {long:.0?}"));
        }
    }

    /// True if the front-end's memory has blocked the worker too often. A single time may be an
    /// accident of the kernel's.
    fn is_harmful(&mut self, port: u16, session: u64, stall: Stall) -> bool {
        if stall.blocked < HARMFUL_STALL_NANOS {
            return false;
        }
        let place = self.suspects.iter().position(|s| (s.port, s.session) == (port, session));
        let place = place.unwrap_or_else(|| {
            if self.suspects.len() == MAX_SUSPECTS {
                self.suspects.remove(0);
            }
            self.suspects.push(Suspect { port, session, stalls: 0 });
            self.suspects.len() - 1
        });
        let suspect = &mut self.suspects[place];
        suspect.stalls += 1;
        suspect.stalls >= HARMFUL_STALLS
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
        let usage = Usage { cpu: MS, run_delay: None, sleeps: 1, faults: 2, major_faults: 0 };
        let stall = stalls.judge(clock::cycles_in(50 * MS), after(start, 50 * MS), usage).unwrap();
        assert_eq!(stall.blocked, 0);
    }

    #[test]
    fn what_a_hypervisor_steals_is_no_fault_of_the_guest() {
        let (mut stalls, start) = stalls();
        let usage = Usage { cpu: MS, run_delay: Some(0), faults: 1, ..Usage::default() };
        let stall = stalls.judge(clock::cycles_in(50 * MS), after(start, 50 * MS), usage).unwrap();
        assert!(stall.blocked == 0 && stall.cycles <= clock::cycles_in(MS), "{stall:?}");
    }

    /// A page fault in a part that was long because the worker had no CPU. That its fault takes
    /// long as well is the machine's doing, and rare.
    #[test]
    fn a_part_that_faults_do_not_explain_is_nobodys() {
        let port = Port::guest(0, "innocent", 1);
        let is_nobodys = || {
            let mut stalls = Stalls::default();
            let ago = clock::cycles().saturating_sub(2 * stalls.slow_part);
            stalls.base = (ago, Usage::now());
            stalls.start = ago;
            // A page that nobody has had.
            std::hint::black_box(vec![0u8; 64 << 20])[1 << 20] = 1;
            assert!(Usage::now().since(&stalls.base.1).faults > 0);
            stalls.end_part(&port, 1).is_none() && stalls.until == 0
        };
        assert!((0..20).any(|_| is_nobodys()));
    }

    #[test]
    fn a_front_end_is_harmful_at_its_second_stall() {
        let (mut stalls, _) = stalls();
        let long = Stall { cycles: 1, blocked: HARMFUL_STALL_NANOS };
        let short = Stall { cycles: 1, blocked: HARMFUL_STALL_NANOS - 1 };
        for _ in 0..10 {
            assert!(!stalls.is_harmful(1, 7, short));
        }
        assert!(!stalls.is_harmful(1, 7, long));
        assert!(!stalls.is_harmful(2, 7, long), "another port");
        assert!(!stalls.is_harmful(1, 8, long), "another session");
        assert!(stalls.is_harmful(1, 7, long));
        for port in 0..2 * MAX_SUSPECTS as u16 {
            stalls.is_harmful(port, 1, long);
        }
        assert_eq!(stalls.suspects.len(), MAX_SUSPECTS);
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
