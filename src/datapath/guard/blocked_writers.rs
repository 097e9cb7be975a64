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

use super::presence::{OnStall, Presence, Watched};
use super::{CallFd, SignalResult, WriteCost};
use base::limits::{
    EXPENSIVE_SIGNAL_MICROS, SIGNAL_MICROS, SLOW_WRITES, WATCH_ALERT_TICKS, WATCH_TICK_MILLIS,
};
use sys::clock;
use sys::logging::never_wait;
use sys::threads::{lock, run_again_after_panic};
use sys::usage::cpu_micros;

/// Signal that interrupts a blocked write. The default action ignores SIGURG, so a SIGURG does
/// nothing in a process without the handler.
pub(super) const RESCUE: libc::c_int = libc::SIGURG;

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
struct Entry {
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
struct Shared {
    entries: Mutex<Vec<Arc<Entry>>>,
    /// Number of slots whose threads are not asleep.
    awake: AtomicU32,
    /// Ticks for which the watch stays alert.
    alert: AtomicU32,
    rescues: AtomicU64,
    ticks: AtomicU64,
    stop: AtomicBool,
    watchdog: OnceLock<std::thread::Thread>,
    /// Makes the next look panic.
    #[cfg(test)]
    broken: AtomicBool,
}

/// The watchdog thread; stopped and joined on drop.
#[derive(Debug)]
pub struct BlockedWriterWatch {
    shared: Arc<Shared>,
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

    /// Makes a slot, asleep, for one thread; calls `on_stall` when the thread is stuck.
    pub(crate) fn register_watched(&self, on_stall: OnStall) -> SignalSlot {
        self.slot(Some(Watched::new(on_stall)))
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
        call.cost.watch(clock::cycles());
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

    /// Writes once and records the cost; see `signal_cost`.
    #[inline]
    fn write(&self, call: &CallFd) -> SignalResult {
        let used = call.cost.is_watched().then(cpu_micros);
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
                call.cost.watch(now);
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
pub(super) fn prepare_thread() -> i32 {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::time::Instant;

    use vmm_sys_util::eventfd::EventFd;

    use sys::descriptor::from_eventfd;
    use sys::eventfd::drain;

    const FULL: u64 = u64::MAX - 1;

    /// Returns an eventfd that a front-end made blocking and full, and the switch's `CallFd` of it.
    fn hostile() -> (EventFd, CallFd) {
        let eventfd = EventFd::new(0).unwrap();
        let call = CallFd::new(from_eventfd(eventfd.try_clone().unwrap()), Arc::default(), 0);
        // SAFETY: F_SETFL touches no memory.
        unsafe { libc::fcntl(eventfd.as_raw_fd(), libc::F_SETFL, libc::O_RDWR) };
        eventfd.write(FULL).unwrap();
        (eventfd, call)
    }

    /// Signals `call` and returns how long that took; the write must have been interrupted.
    fn blocked(slot: &SignalSlot, call: &CallFd) -> Duration {
        let start = Instant::now();
        assert_eq!(slot.signal(call), SignalResult::Blocked);
        start.elapsed()
    }

    /// Longest pause of other ports on the thread. The test compares the median, as one round may
    /// have waited for a busy machine's CPU.
    const BOUND: Duration = Duration::from_millis(100);

    fn median(mut lasted: Vec<Duration>) -> Duration {
        lasted.sort_unstable();
        println!("blocked for {lasted:?}");
        lasted[lasted.len() / 2]
    }

    #[test]
    fn a_blocked_writer_is_freed_fifty_times() {
        let watch = BlockedWriterWatch::start().unwrap();
        let (_eventfd, call) = hostile();
        let slot = watch.register();
        let rounds = (0..50).map(|_| {
            // Without this only the first round would block.
            watch.shared.alert.store(0, Ordering::Relaxed);
            blocked(&slot, &call)
        });
        assert!(median(rounds.collect()) < BOUND);
        assert_eq!(watch.rescues(), 50);
    }

    #[test]
    fn the_watchdog_goes_on_after_a_panic() {
        let watch = BlockedWriterWatch::start().unwrap();
        let (_eventfd, call) = hostile();
        let slot = watch.register();
        for _ in 0..3 {
            watch.shared.broken.store(true, Ordering::Relaxed);
            watch.shared.alert.store(0, Ordering::Relaxed);
            assert!(blocked(&slot, &call) < Duration::from_secs(5));
            assert!(!watch.shared.broken.load(Ordering::Relaxed), "it panicked");
        }
    }

    #[test]
    fn refilling_the_counter_does_not_keep_the_writer() {
        let watch = BlockedWriterWatch::start().unwrap();
        let (eventfd, call) = hostile();
        let eventfd = Arc::new(eventfd);
        let over = Arc::new(AtomicBool::new(false));
        let refillers: Vec<_> = (0..8)
            .map(|_| {
                let (eventfd, over) = (Arc::clone(&eventfd), Arc::clone(&over));
                std::thread::spawn(move || {
                    while !over.load(Ordering::Relaxed) {
                        let _ = eventfd.write(FULL);
                    }
                })
            })
            .collect();
        let slot = watch.register();
        let rounds = (0..9).map(|_| {
            watch.shared.alert.store(0, Ordering::Relaxed);
            blocked(&slot, &call)
        });
        let median = median(rounds.collect());
        over.store(true, Ordering::Relaxed);
        for refiller in refillers {
            while !refiller.is_finished() {
                drain(call.number());
                std::thread::yield_now();
            }
            refiller.join().unwrap();
        }
        assert!(median < BOUND, "{median:?}");
    }

    #[test]
    fn accomplices_do_not_cost_a_tick_each() {
        let watch = BlockedWriterWatch::start().unwrap();
        let slot = watch.register();
        let ports: Vec<_> = (0..100).map(|_| hostile()).collect();
        for (_, call) in &ports {
            assert_eq!(slot.signal(call), SignalResult::Blocked);
        }
        // The other descriptors were checked before a write.
        assert_eq!(watch.rescues(), 1);
    }

    #[test]
    fn honest_signals_pass_and_are_counted_by_their_eventfd() {
        let watch = BlockedWriterWatch::start().unwrap();
        let slot = watch.register();
        let call = CallFd::new(from_eventfd(EventFd::new(0).unwrap()), Arc::default(), 0);
        let start = Instant::now();
        for _ in 0..100_000 {
            assert_eq!(slot.signal(&call), SignalResult::Sent);
        }
        println!("{:?} per signal", start.elapsed() / 100_000);
        assert_eq!(drain(call.number()), Some(100_000));
        assert_eq!(watch.signal_once(&call), SignalResult::Sent);
        assert_eq!(watch.rescues(), 0);
    }

    #[test]
    fn the_watchdog_rests_while_all_are_asleep() {
        let watch = BlockedWriterWatch::start().unwrap();
        let (one, two) = (watch.register(), watch.register());
        let pause = Duration::from_millis(10 * WATCH_TICK_MILLIS);
        // True if the watchdog takes no look during one pause; repeated, as a last look may be due.
        let rests = || {
            (0..10).any(|_| {
                let ticks = watch.ticks();
                std::thread::sleep(pause);
                watch.ticks() == ticks
            })
        };
        assert!(rests() && watch.ticks() == 0, "never active");
        one.active();
        two.active();
        one.asleep();
        let deadline = Instant::now() + Duration::from_secs(30);
        while watch.ticks() < 5 {
            assert!(Instant::now() < deadline, "one slot is active");
            std::thread::sleep(pause);
        }
        two.asleep();
        two.asleep();
        assert!(rests(), "all asleep");
        // Dropping an active slot counts as falling asleep.
        one.active();
        drop(one);
        assert_eq!(watch.shared.awake.load(Ordering::SeqCst), 0);
        assert_eq!(lock(&watch.shared.entries).len(), 1);
    }

    #[test]
    fn a_thread_with_all_signals_blocked_is_freed_too() {
        let watch = Arc::new(BlockedWriterWatch::start().unwrap());
        let (_eventfd, call) = hostile();
        let watched = Arc::clone(&watch);
        let writer = std::thread::spawn(move || {
            // SAFETY: the set is initialized by sigfillset and lives across the calls.
            unsafe {
                let mut set: libc::sigset_t = std::mem::zeroed();
                libc::sigfillset(&mut set);
                libc::pthread_sigmask(libc::SIG_SETMASK, &set, ptr::null_mut());
            }
            watched.signal_once(&call)
        });
        assert_eq!(writer.join().unwrap(), SignalResult::Blocked);
    }
}
