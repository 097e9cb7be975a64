//! Threads that are stuck in the middle of a step.
//!
//! A worker that touches a guest's memory may wait for as long as the front-end likes (while the
//! front-end punches a hole into the memory: 140 ms for each GiB), and the kernel offers no access
//! that does not wait. So the switch detects such a wait instead of preventing it. Each thread
//! stores in its [`Presence`] whose memory it is at, and counts its steps. The watchdog looks at
//! all threads that are not asleep. It reports a thread that has made no step between two looks and
//! is blocked in the kernel, or has used the processor for many times as long as a step takes. It
//! does not report a thread that only waits for a CPU: another thread would wait for the CPU too.
//!
//! A thread pays one store for each step and each place. Of a thread that makes steps, the watchdog
//! asks the kernel for the processor time only.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering, fence};

use sys::usage::{State, cpu_nanos_of};

/// Processor time that no step takes: a turn of a worker takes 50 µs. Less than the time between
/// two looks, as the thread may have to share its CPU.
const BUSY_NANOS: u64 = 1_000_000;

/// The state that a thread publishes for the watchdog; on its own cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Presence {
    /// The thread's id in the kernel; 0 before the thread is awake for the first time.
    thread: AtomicI32,
    state: OnceLock<State>,
    awake: AtomicBool,
    steps: AtomicU64,
    at: [AtomicU32; 2],
}

/// A thread that is stuck.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StuckThread {
    /// The thread's id in the kernel.
    pub(crate) thread: i32,
    /// The two places that the thread stored last, each a number or [`NOWHERE`].
    pub(crate) at: [u32; 2],
    /// Number of the step that the thread is in.
    pub(crate) step: u64,
}

/// Returns true while a stuck thread is still in the step in which the watchdog saw it. A caller
/// that leaves a message for the thread asks afterwards: if the answer is yes, the thread has not
/// looked for messages yet, and will look before it sleeps.
pub(crate) type IsStuck<'a> = &'a dyn Fn() -> bool;

/// Called in the watchdog's thread, at each look at which a thread is stuck.
pub(crate) type OnStuck = Box<dyn Fn(StuckThread, IsStuck<'_>) + Send + Sync>;

/// The watchdog's records of a thread.
pub(super) struct Watched {
    on_stuck: OnStuck,
    /// The thread's step at the last look; [`ASLEEP`] if the thread was asleep.
    seen: AtomicU64,
    /// The thread's processor time at the last look, in nanoseconds.
    used: AtomicU64,
}

/// Stored by a thread that is at no place with a number.
pub(crate) const NOWHERE: u32 = u32::MAX;

/// Stands for a sleeping thread among the step numbers.
const ASLEEP: u64 = u64::MAX;

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched").field("seen", &self.seen).finish_non_exhaustive()
    }
}

impl Presence {
    /// Notes that the calling thread, whose id is `thread`, is awake.
    pub(super) fn awake(&self, thread: i32) {
        if self.thread.load(Ordering::Relaxed) != thread {
            self.thread.store(thread, Ordering::Relaxed);
            self.state.get_or_init(State::of_this_thread);
        }
        self.awake.store(true, Ordering::Release);
    }

    /// Notes that the thread is about to sleep.
    pub(super) fn asleep(&self) {
        self.awake.store(false, Ordering::Relaxed);
    }

    /// Notes the two places that the thread is at from here on.
    #[inline(always)]
    pub(crate) fn at(&self, at: [u32; 2]) {
        // The memory accessed next may be these very words, for all that the compiler knows, so the
        // compiler keeps these stores in front. A fence would cost ten instructions a run.
        self.at[0].store(at[0], Ordering::Relaxed);
        self.at[1].store(at[1], Ordering::Relaxed);
    }

    /// True if the thread is awake and in step `step`.
    fn is_in(&self, step: u64) -> bool {
        // Pairs with the fence of a thread between `asleep` and its look for messages.
        fence(Ordering::SeqCst);
        self.steps.load(Ordering::Relaxed) == step && self.awake.load(Ordering::Relaxed)
    }

    /// Notes that the thread begins step `step`, which differs from the last step.
    #[inline(always)]
    pub(crate) fn step(&self, step: u64) {
        self.steps.store(step, Ordering::Relaxed);
    }
}

impl Watched {
    pub(crate) fn new(on_stuck: OnStuck) -> Watched {
        Watched { on_stuck, seen: AtomicU64::new(ASLEEP), used: AtomicU64::new(0) }
    }

    /// Looks at the thread once and calls `on_stuck` if the thread is stuck.
    pub(crate) fn look(&self, presence: &Presence) {
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
        // A thread that has fallen asleep meanwhile is blocked too, so `is_in` is asked last.
        if is_stuck && presence.is_in(step) {
            let at = presence.at.each_ref().map(|at| at.load(Ordering::Relaxed));
            (self.on_stuck)(StuckThread { thread, at, step }, &|| presence.is_in(step));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, mpsc};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::guard::BlockedWriterWatch;
    use crate::guard::SignalSlot;
    use base::limits::WATCH_TICK_MILLIS;
    use sys::affinity;

    /// Returns the reports about a thread that runs `work`.
    fn reported(
        work: impl FnOnce(&SignalSlot, &mpsc::Receiver<()>) + Send,
        until: Duration,
    ) -> Vec<StuckThread> {
        let watch = BlockedWriterWatch::start().unwrap();
        let stalls = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&stalls);
        let on_stuck = move |stall, _: IsStuck<'_>| told.lock().unwrap().push(stall);
        let slot = watch.register_watched(Box::new(on_stuck));
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
                slot.presence.step(7);
                slot.presence.at([42, NOWHERE]);
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

    /// Four threads share one CPU, so that the busy one gets a quarter of the CPU's time.
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
        // A busy machine may stop the thread in the middle of a step.
        let goes_on = |slot: &SignalSlot, ended: &mpsc::Receiver<()>| {
            slot.active();
            for step in 0.. {
                slot.presence.step(step);
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
