//! Frees threads that a front-end blocked in a write to the front-end's eventfd.
//!
//! The attack: the front-end clears `O_NONBLOCK` on the open file description that it shares with
//! this process, and sets the counter to 2^64-2. The next write of this process waits for ever, and
//! the writing thread is the worker of other ports too. The front-end can clear the flag at any
//! moment between a check and the write, so the write is watched instead of prevented.
//!
//! The defence: a thread announces each write in its [`SignalSlot`]. The watchdog looks at all
//! slots every [`WATCH_TICK_MILLIS`]. If the watchdog sees a write pending at two looks, it sends
//! the thread SIGURG. The empty SIGURG handler is installed without SA_RESTART, so the write
//! returns EINTR, and the thread knows whose descriptor it was writing to
//! ([`SignalResult::Blocked`]).
//!
//! Why a signal and not a read of the eventfd, which would free the writer too: 32 threads that
//! refill the counter kept a writer blocked through all 250 reads of a five-second trial, since
//! everybody who waits for room races for it; a read takes an event from a guest when the writer
//! was only preempted; and the descriptor's number might belong to another file by then. A signal
//! does not harm a slow thread: a write that finds room does not look for signals.
//!
//! After a rescue the watch is *alert* for some seconds: threads check a descriptor before they
//! write, so that a hundred accomplices do not cost two ticks each.
//!
//! Rules:
//! - A slot belongs to one thread between `active` and `asleep`.
//! - A thread calls `asleep` before it sleeps, and `active` afterwards. While all threads are
//!   asleep the watchdog is parked without a timeout: an idle process has no timer.
//! - The watchdog never accesses a descriptor, so the watchdog cannot block.

use std::cell::Cell;
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::thread::gettid;
use vmm_sys_util::signal::unblock_signal;

use super::{CallFd, SignalResult, WriteCost};
use crate::guard::presence::{OnStuck, Presence, Watched};
use base::limits::{
    EXPENSIVE_SIGNAL_MICROS, SIGNAL_MICROS, SLOW_WRITES, WATCH_ALERT_TICKS, WATCH_TICK_MILLIS,
};
use sys::clock;
use sys::logging::never_wait;
use sys::threads::{lock, run_again_after_panic};
use sys::usage::cpu_micros;

/// Signal that interrupts a blocked write. The default action ignores SIGURG, so a SIGURG does
/// nothing in a process without the handler.
pub(in crate::guard) const RESCUE: libc::c_int = libc::SIGURG;

/// Mask of the phase in `Entry::state`; the other bits count writes.
const PHASE: u64 = 3;
/// No write.
const IDLE: u64 = 0;
/// A write was begun and has not returned.
const PENDING: u64 = 1;
/// The write is pending and the watchdog is sending the signal: the writer waits in `leave`.
const RESCUING: u64 = 2;

/// State that a slot and the watchdog share; on its own cache lines, as the writer stores to it
/// twice per signal.
#[repr(align(128))]
#[derive(Debug)]
pub(super) struct Entry {
    state: AtomicU64,
    /// Thread id of the slot's thread.
    thread: AtomicI32,
    /// `state` at the watchdog's last look.
    seen: AtomicU64,
    presence: Arc<Presence>,
    /// Called if the slot's thread is stuck; `None` if nobody wants to know.
    watched: Option<Watched>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) entries: Mutex<Vec<Arc<Entry>>>,
    /// Number of slots whose threads are not asleep.
    pub(super) awake: AtomicU32,
    /// Ticks for which the watch stays alert.
    pub(super) alert: AtomicU32,
    rescues: AtomicU64,
    ticks: AtomicU64,
    stop: AtomicBool,
    watchdog: OnceLock<std::thread::Thread>,
    /// Makes the next look panic.
    #[cfg(test)]
    pub(super) broken: AtomicBool,
}

/// The watchdog thread; stopped and joined on drop.
#[derive(Debug)]
pub struct BlockedWriterWatch {
    pub(super) shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// A thread's place to announce its writes.
#[derive(Debug)]
pub struct SignalSlot {
    shared: Arc<Shared>,
    entry: Arc<Entry>,
    /// Record in which the thread publishes its places and steps.
    pub(crate) presence: Arc<Presence>,
    awake: Cell<bool>,
    /// Cycles of a write beyond which the port's next writes are measured.
    long: u64,
    /// Cost of the last write.
    last_cost: Cell<WriteCost>,
}

impl BlockedWriterWatch {
    /// Installs the handler and starts the thread.
    pub fn start() -> io::Result<BlockedWriterWatch> {
        install()?;
        let shared = Arc::new(Shared {
            entries: Mutex::new(Vec::new()),
            awake: AtomicU32::new(0),
            alert: AtomicU32::new(0),
            rescues: AtomicU64::new(0),
            ticks: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            watchdog: OnceLock::new(),
            #[cfg(test)]
            broken: AtomicBool::new(false),
        });
        let watched = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("watchdog".into()).spawn(move || {
            never_wait();
            let stopped = || watched.stop.load(Ordering::SeqCst);
            run_again_after_panic("the watchdog", stopped, || watched.run());
        })?;
        let _ = shared.watchdog.set(thread.thread().clone());
        Ok(BlockedWriterWatch { shared, thread: Some(thread) })
    }

    /// Makes a slot, asleep, for one thread; the slot ends on drop.
    pub fn register(&self) -> SignalSlot {
        self.slot(None)
    }

    /// Makes a slot, asleep, for one thread; calls `on_stuck` when the thread is stuck.
    pub(crate) fn register_watched(&self, on_stuck: OnStuck) -> SignalSlot {
        self.slot(Some(Watched::new(on_stuck)))
    }

    fn slot(&self, watched: Option<Watched>) -> SignalSlot {
        let presence = Arc::<Presence>::default();
        let entry = Arc::new(Entry {
            state: AtomicU64::new(IDLE),
            thread: AtomicI32::new(0),
            seen: AtomicU64::new(IDLE),
            presence: Arc::clone(&presence),
            watched,
        });
        lock(&self.shared.entries).push(Arc::clone(&entry));
        SignalSlot {
            shared: Arc::clone(&self.shared),
            entry,
            presence,
            awake: Cell::new(false),
            long: clock::cycles_in(EXPENSIVE_SIGNAL_MICROS * 1_000),
            last_cost: Cell::default(),
        }
    }

    /// Signals `call` from a thread that signals too rarely to keep a slot. The write is measured,
    /// and repeated if it was slow: a slow call descriptor then delays this thread, and its
    /// front-end is dropped before a worker is delayed.
    pub(crate) fn signal_once(&self, call: &CallFd) -> SignalResult {
        let slot = self.register();
        call.watch_cost(clock::cycles());
        let mut result = slot.signal(call);
        for _ in 1..SLOW_WRITES {
            let slow = slot.last_cost().micros.is_some_and(|micros| micros > SIGNAL_MICROS);
            if result == SignalResult::Sent && slow {
                result = slot.signal(call);
            }
        }
        result
    }

    /// Returns the number of blocked writes interrupted so far.
    #[cfg(test)]
    pub(crate) fn rescues(&self) -> u64 {
        self.shared.rescues.load(Ordering::Relaxed)
    }

    /// Returns the number of looks so far; it does not grow while all slots are asleep.
    #[cfg(test)]
    pub(crate) fn ticks(&self) -> u64 {
        self.shared.ticks.load(Ordering::Relaxed)
    }
}

impl Drop for BlockedWriterWatch {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The thread ends within one tick.
            let _ = thread.join();
        }
    }
}

impl SignalSlot {
    /// Notes that the calling thread is awake. Wakes the watchdog if the watchdog was parked, which
    /// happens at most once a tick.
    #[inline]
    pub(crate) fn active(&self) {
        if self.awake.replace(true) {
            return;
        }
        let thread = prepare_thread();
        self.entry.thread.store(thread, Ordering::Relaxed);
        if self.entry.watched.is_some() {
            self.presence.awake(thread);
        }
        // Sequentially consistent with the watchdog's load before it parks: either the watchdog
        // sees this count, or this thread unparks it; an unpark before the park leaves a token.
        let is_first = self.shared.awake.fetch_add(1, Ordering::SeqCst) == 0;
        if is_first && let Some(watchdog) = self.shared.watchdog.get() {
            // Cheap if the watchdog is not parked.
            watchdog.unpark();
        }
    }

    /// Notes that the calling thread is about to sleep; it sends no signal before
    /// [`SignalSlot::active`].
    #[inline]
    pub(crate) fn asleep(&self) {
        if self.awake.replace(false) {
            self.presence.asleep();
            self.shared.awake.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Adds one to the eventfd of `call`. Lasts at most two ticks, whatever the front-end does.
    /// Calls [`SignalSlot::active`].
    #[inline]
    pub(crate) fn signal(&self, call: &CallFd) -> SignalResult {
        self.active();
        if self.shared.alert.load(Ordering::Relaxed) != 0
            && let Some(result) = call.look()
        {
            self.last_cost.set(WriteCost::default());
            return result;
        }
        let idle = self.entry.state.load(Ordering::Relaxed);
        // Before the write in program order; the system call makes the store visible long before
        // the watchdog's next look, which is milliseconds away.
        self.entry.state.store(idle | PENDING, Ordering::Release);
        let result = self.write(call);
        self.leave(idle);
        if result == SignalResult::Blocked {
            self.shared.rescues.fetch_add(1, Ordering::Relaxed);
            self.shared.alert.store(WATCH_ALERT_TICKS, Ordering::Relaxed);
        }
        result
    }

    /// Writes once and records the cost; see [`SignalCost`](super::SignalCost).
    #[inline]
    fn write(&self, call: &CallFd) -> SignalResult {
        let used = (call.cost.is_watched() && call.is_measured()).then(cpu_micros);
        let began = clock::cycles();
        let result = call.write();
        let now = clock::cycles();
        let cycles = clock::since(began, now);
        let micros = used.map(|used| cpu_micros().saturating_sub(used));
        self.last_cost.set(WriteCost { cycles, micros });
        match micros {
            Some(micros) if call.cost.record(micros, cycles, now) => match result {
                SignalResult::Blocked => result,
                _ => SignalResult::ManyWaiters,
            },
            None if cycles > self.long => {
                call.watch_cost(now);
                result
            }
            _ => result,
        }
    }

    /// Returns the cost of the last write.
    #[inline(always)]
    pub(crate) fn last_cost(&self) -> WriteCost {
        self.last_cost.get()
    }

    /// Returns the cycles of a write beyond which the port's next writes are measured.
    pub(crate) fn long(&self) -> u64 {
        self.long
    }

    /// Ends the announcement. If the watchdog is about to send the signal, waits until it is sent:
    /// the signal must reach this thread here, and not in a later system call.
    #[inline]
    fn leave(&self, idle: u64) {
        let next = idle.wrapping_add(PHASE + 1);
        let state = &self.entry.state;
        while state
            .compare_exchange(idle | PENDING, next, Ordering::AcqRel, Ordering::Relaxed)
            .is_err()
        {
            std::thread::yield_now();
        }
    }
}

impl Drop for SignalSlot {
    fn drop(&mut self) {
        self.asleep();
        // The watchdog signals threads under this lock, so none of its signals can be under way
        // to a thread that is about to end.
        lock(&self.shared.entries).retain(|entry| !Arc::ptr_eq(entry, &self.entry));
    }
}

impl Shared {
    /// The watchdog's loop.
    fn run(&self) {
        while !self.stop.load(Ordering::SeqCst) {
            if self.awake.load(Ordering::SeqCst) == 0 {
                std::thread::park();
                continue;
            }
            std::thread::sleep(Duration::from_millis(WATCH_TICK_MILLIS));
            self.ticks.fetch_add(1, Ordering::Relaxed);
            self.look();
        }
    }

    /// Looks at all slots once.
    fn look(&self) {
        #[cfg(test)]
        assert!(!self.broken.swap(false, Ordering::Relaxed), "injected: look");
        let alert = self.alert.load(Ordering::Relaxed);
        self.alert.store(alert.saturating_sub(1), Ordering::Relaxed);
        for entry in lock(&self.entries).iter() {
            let state = entry.state.load(Ordering::Relaxed);
            let seen = entry.seen.swap(state, Ordering::Relaxed);
            if state & PHASE == PENDING && seen == state {
                entry.rescue(state);
            } else if let Some(watched) = &entry.watched {
                watched.look(&entry.presence);
            }
        }
    }
}

impl Entry {
    /// Interrupts the write that `state` announced, unless the write is over. A write that has not
    /// yet entered the kernel may block after the signal; the next look interrupts such a write.
    fn rescue(&self, state: u64) {
        let claimed = state & !PHASE | RESCUING;
        let (done, over) = (Ordering::Acquire, Ordering::Relaxed);
        if self.state.compare_exchange(state, claimed, done, over).is_err() {
            return;
        }
        let thread = self.thread.load(Ordering::Relaxed);
        // SAFETY: no memory is involved; the claim keeps the thread in `SignalSlot::leave`, so
        // the id is that of a living thread of this process, which has the handler.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, RESCUE) };
        self.state.store(state, Ordering::Release);
    }
}

/// Does nothing; a signal interrupts a system call only if the signal has a handler.
extern "C" fn on_rescue(_signal: libc::c_int) {}

/// Installs the handler for [`RESCUE`].
fn install() -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid `sigaction`: no flags (SA_RESTART would undo the
    // purpose, SA_SIGINFO is not wanted), empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(libc::c_int) = on_rescue;
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_ONSTACK;
    // SAFETY: `action` lives across the call and names a handler of the plain signature.
    match unsafe { libc::sigaction(RESCUE, &action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the calling thread's id. Unblocks [`RESCUE`] once per thread: a thread may inherit a
/// mask that blocks every signal.
pub(in crate::guard) fn prepare_thread() -> i32 {
    thread_local!(static ID: Cell<i32> = const { Cell::new(0) });
    ID.with(|id| {
        if id.get() == 0 {
            // Fails only for numbers that are no signal.
            let _ = unblock_signal(RESCUE);
            id.set(gettid().as_raw_pid());
        }
        id.get()
    })
}
