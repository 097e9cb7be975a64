//! Threads that stand still in the middle of their work.
//!
//! A worker that touches a guest's memory may wait there for as long as its front-end likes (a hole
//! that is being punched: 140 ms for each GiB), and the kernel offers no access that does not wait.
//! So that is not prevented but noticed: a thread says in its [`Presence`] what it is at, and
//! counts its steps. The watchdog, which looks at all threads that are not asleep, reports one that
//! has made no step between two looks and is blocked in the kernel, or used the processor for many
//! times as long as a step takes. One that only waits for a CPU is left alone: another thread would
//! wait for it, too.
//!
//! A thread pays a store for each, and nothing is asked of the kernel about one that goes on but
//! its processor time.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering, fence};

use sys::usage::{State, cpu_nanos_of};

/// Processor time that no step takes, by far: a turn of a worker takes 50 µs. Less than the time
/// between two looks, as the thread may have to share its CPU.
const BUSY_NANOS: u64 = 1_000_000;

/// What a thread says of itself; on its own cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Presence {
    /// Its number in the kernel; 0 if it has not been awake yet.
    thread: AtomicI32,
    state: OnceLock<State>,
    awake: AtomicBool,
    steps: AtomicU64,
    at: [AtomicU32; 2],
}

/// A thread that stands still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stalled {
    /// Its number in the kernel.
    pub thread: i32,
    /// What it said last that it is at, two things or [`NOWHERE`].
    pub at: [u32; 2],
    /// The step that it is in.
    pub step: u64,
}

/// Whether a stalled thread is still in the step in which it was seen. To be asked after the thread
/// was told something: if the answer is yes, the thread has not looked yet at what it was told, and
/// will before it sleeps.
pub type IsStalled<'a> = &'a dyn Fn() -> bool;

/// Is told of a thread that stands still, at each look, in the watchdog's thread.
pub type OnStall = Box<dyn Fn(Stalled, IsStalled<'_>) + Send + Sync>;

/// What the watchdog knows of a thread.
pub(super) struct Watched {
    on_stall: OnStall,
    /// Its steps at the last look; none if it was asleep.
    seen: AtomicU64,
    /// Its processor time then.
    used: AtomicU64,
}

/// A thread is there that is at nothing that has a number.
pub const NOWHERE: u32 = u32::MAX;

/// No step.
const ASLEEP: u64 = u64::MAX;

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched").field("seen", &self.seen).finish_non_exhaustive()
    }
}

impl Presence {
    /// The calling thread, with that number, is awake.
    pub fn awake(&self, thread: i32) {
        if self.thread.load(Ordering::Relaxed) != thread {
            self.thread.store(thread, Ordering::Relaxed);
            self.state.get_or_init(State::of_this_thread);
        }
        self.awake.store(true, Ordering::Release);
    }

    /// It is about to sleep.
    pub fn asleep(&self) {
        self.awake.store(false, Ordering::Relaxed);
    }

    /// It is at that from here on.
    #[inline(always)]
    pub fn at(&self, at: [u32; 2]) {
        self.at[0].store(at[0], Ordering::Relaxed);
        self.also_at(at[1]);
    }

    /// The second of what it is at is that from here on.
    #[inline(always)]
    pub fn also_at(&self, second: u32) {
        // What is touched then may be this very word, for all that a compiler knows: it stays in
        // front. A fence would cost ten instructions a run.
        self.at[1].store(second, Ordering::Relaxed);
    }

    /// True if the thread is awake and in that step.
    fn is_in(&self, step: u64) -> bool {
        // With the fence of a thread between `asleep` and its look at what it was told.
        fence(Ordering::SeqCst);
        self.steps.load(Ordering::Relaxed) == step && self.awake.load(Ordering::Relaxed)
    }

    /// It begins that step.
    #[inline(always)]
    pub fn step(&self, step: u64) {
        self.steps.store(step, Ordering::Relaxed);
    }
}

impl Watched {
    pub fn new(on_stall: OnStall) -> Watched {
        Watched { on_stall, seen: AtomicU64::new(ASLEEP), used: AtomicU64::new(0) }
    }

    /// One look.
    pub fn look(&self, presence: &Presence) {
        if !presence.awake.load(Ordering::Acquire) {
            self.seen.store(ASLEEP, Ordering::Relaxed);
            return;
        }
        let thread = presence.thread.load(Ordering::Relaxed);
        let (step, used) = (presence.steps.load(Ordering::Relaxed), cpu_nanos_of(thread));
        let before = self.seen.swap(step, Ordering::Relaxed);
        let took = used.saturating_sub(self.used.swap(used, Ordering::Relaxed));
        if before != step {
            return;
        }
        let is_stuck = took >= BUSY_NANOS || presence.state.get().is_some_and(State::is_blocked);
        // One that has fallen asleep meanwhile is blocked too.
        if is_stuck && presence.is_in(step) {
            let at = presence.at.each_ref().map(|at| at.load(Ordering::Relaxed));
            (self.on_stall)(Stalled { thread, at, step }, &|| presence.is_in(step));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, mpsc};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::guard::BlockedWriterWatch;
    use crate::guard::blocked_writers::SignalSlot;
    use base::limits::WATCH_TICK_MILLIS;
    use sys::affinity;

    /// What is reported of a thread that does `work`, before it ends.
    fn reported(
        work: impl FnOnce(&SignalSlot, &mpsc::Receiver<()>) + Send,
        until: Duration,
    ) -> Vec<Stalled> {
        let watch = BlockedWriterWatch::start().unwrap();
        let stalls = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&stalls);
        let on_stall = move |stall, _: IsStalled<'_>| told.lock().unwrap().push(stall);
        let slot = watch.register_watched(Box::new(on_stall));
        let (end, ended) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || work(&slot, &ended));
            let start = Instant::now();
            while start.elapsed() < until && stalls.lock().unwrap().is_empty() {
                std::thread::sleep(Duration::from_millis(1));
            }
            drop(end);
        });
        stalls.lock().unwrap().clone()
    }

    const LONG: Duration = Duration::from_secs(30);
    const SHORT: Duration = Duration::from_millis(20 * WATCH_TICK_MILLIS);

    #[test]
    fn a_thread_that_is_blocked_is_reported_with_what_it_is_at() {
        let stalls = reported(
            |slot, ended| {
                slot.active();
                slot.step(7);
                slot.at([42, NOWHERE]);
                let _ = ended.recv();
            },
            LONG,
        );
        assert_eq!((stalls[0].at, stalls[0].step), ([42, NOWHERE], 7));
        assert_ne!(stalls[0].thread, 0);
    }

    #[test]
    fn a_thread_that_is_busy_with_one_step_is_reported() {
        let work = |slot: &SignalSlot, ended: &mpsc::Receiver<()>| {
            slot.active();
            while ended.try_recv() == Err(mpsc::TryRecvError::Empty) {}
        };
        assert!(!reported(work, LONG).is_empty());
    }

    /// It has a quarter of that CPU.
    #[test]
    fn a_thread_that_is_busy_with_one_step_beside_others_is_reported() {
        let cpu = *affinity::allowed().unwrap().first().unwrap();
        let over = AtomicBool::new(false);
        let work = |slot: &SignalSlot, ended: &mpsc::Receiver<()>| {
            affinity::pin(cpu).unwrap();
            slot.active();
            while ended.try_recv() == Err(mpsc::TryRecvError::Empty) {}
        };
        let stalls = std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    affinity::pin(cpu).unwrap();
                    while !over.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let stalls = reported(work, LONG);
            over.store(true, Ordering::Relaxed);
            stalls
        });
        assert!(!stalls.is_empty());
    }

    #[test]
    fn a_thread_that_sleeps_or_goes_on_is_not_reported() {
        let asleep = |slot: &SignalSlot, ended: &mpsc::Receiver<()>| {
            slot.active();
            slot.asleep();
            let _ = ended.recv();
        };
        assert_eq!(reported(asleep, SHORT), []);
        // A busy machine may stop one in the middle of a step.
        let goes_on = |slot: &SignalSlot, ended: &mpsc::Receiver<()>| {
            slot.active();
            for step in 0.. {
                slot.step(step);
                if ended.recv_timeout(Duration::from_micros(200))
                    == Err(mpsc::RecvTimeoutError::Disconnected)
                {
                    return;
                }
            }
        };
        assert!((0..5).any(|_| reported(goes_on, SHORT).is_empty()));
    }
}
