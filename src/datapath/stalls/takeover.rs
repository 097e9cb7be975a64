//! Reserve threads, which relieve a stuck worker, and the ports that pay for this.
//!
//! Reserves are workers without sources. When the watchdog finds a thread that is stuck in the
//! middle of a turn, a reserve *relieves* the stuck worker. No ring changes its worker, as a worker
//! is only a number in the states of rings, and a handle. Locks of the stuck thread stay locked: of
//! the ring of the burst's sender, of a receive ring, or of a device's queue.
//!
//! A thread that begins to work for a worker (a reserve, or the worker's own thread after its
//! return) cannot ask the thread before, which may be stuck for long. So the new thread looks at
//! all sources, and sends all signals that the old thread may owe. The old thread learns of the
//! change when it continues. For a moment both threads may work, under the rings' locks like any
//! two workers.
//!
//! The rings of the VMs whose memory the stuck thread touches are suspended for all workers;
//! otherwise each worker would get stuck there. The rings of VDUSE devices, whose memory is the
//! kernel's, go on; no worker waits for a lock that the stuck thread holds there. If it is clear
//! which port caused the delay, this port pays when the delay ends: its rings pause for many times
//! the length of the delay. *Blocked* time is time in which a thread neither ran, nor waited for a
//! CPU, nor for a disk. A front-end whose memory blocked threads twice endangers other ports: its
//! session ends, and its port stays closed for a while.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::thread::gettid;
use vmm_sys_util::eventfd::EventFd;

use super::Stall;
use crate::guard::{IsStuck, StuckThread};
use crate::port::{Port, Ports, Queue};
use base::limits::{HARMFUL_STALL_NANOS, LOCK_WAIT_STEP, MAX_SUSPECTS, SUSPICION};
use switch::PortId;
use sys::threads::lock;
use sys::{affinity, clock};

/// Time for which a worker waits for a reserve to end its turn, which takes some microseconds.
const HANDOVER: Duration = Duration::from_millis(2);

/// Task of a reserve.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Duty {
    /// The worker to relieve.
    pub(crate) worker: usize,
    /// The stuck thread.
    pub(crate) instead_of: usize,
    /// State of the thread when it was found stuck.
    pub(crate) stuck: StuckThread,
}

/// A port whose rings are suspended.
#[derive(Debug)]
struct Suspended {
    port: Arc<Port>,
    session: Option<u64>,
    /// The thread touched no other port.
    alone: bool,
}

/// Takeover state of a thread: of a worker that is relieved, or of a reserve.
#[derive(Debug)]
pub struct Takeover {
    /// Wakes the thread.
    wake: Arc<EventFd>,
    /// Kernel thread id; 0 until the thread runs.
    thread: AtomicI32,
    /// One of the following fields changed.
    news: AtomicBool,
    /// For a worker: the number of the thread that works for it.
    acting: AtomicUsize,
    /// For a reserve: its task.
    duty: Mutex<Option<Duty>>,
    /// The ports whose memory the stuck thread touches.
    suspended: Mutex<Vec<Suspended>>,
}

impl Takeover {
    /// Creates the state of thread `number`, which `wake` wakes.
    pub(crate) fn new(number: usize, wake: Arc<EventFd>) -> Takeover {
        Takeover {
            wake,
            thread: AtomicI32::new(0),
            news: AtomicBool::new(false),
            acting: AtomicUsize::new(number),
            duty: Mutex::default(),
            suspended: Mutex::default(),
        }
    }

    /// Records the calling thread as the thread of this state.
    pub(crate) fn begin(&self) {
        self.thread.store(gettid().as_raw_pid(), Ordering::Relaxed);
    }

    /// True once after each change.
    #[inline(always)]
    pub(crate) fn has_news(&self) -> bool {
        self.news.load(Ordering::Relaxed) && self.news.swap(false, Ordering::Acquire)
    }

    /// True if there is a change. Called after the thread published that it is about to sleep: a
    /// thread that notifies, and then finds this thread awake, need not wake it.
    pub(crate) fn has_news_before_sleep(&self) -> bool {
        fence(Ordering::SeqCst);
        self.news.load(Ordering::Relaxed)
    }

    /// Tells the thread of a change, which the thread reads before it sleeps at the latest.
    pub(crate) fn notify(&self) {
        self.news.store(true, Ordering::SeqCst);
    }

    /// Tells the thread of a change, and wakes the thread.
    pub(crate) fn wake(&self) {
        self.notify();
        // EAGAIN means that the counter is full: the thread wakes up anyway.
        let _ = self.wake.write(1);
    }

    /// True once after each wake-up.
    #[cfg(test)]
    pub(crate) fn is_woken(&self) -> bool {
        self.wake.read().is_ok()
    }

    /// Returns the task of the reserve.
    pub(crate) fn duty(&self) -> Option<Duty> {
        *lock(&self.duty)
    }

    /// Ends the task of the reserve.
    pub(crate) fn end_duty(&self) {
        *lock(&self.duty) = None;
    }
}

/// Takeover states of all threads of the data path by number: first workers, then reserves.
pub struct Takeovers {
    threads: Vec<Arc<Takeover>>,
    workers: usize,
    ports: Arc<Ports>,
    /// Sessions whose memory has blocked a thread, and the time of the first block.
    suspects: Mutex<Vec<(u64, Instant)>>,
}

impl Takeovers {
    /// Combines `threads`, of which the first `workers` are workers, and the others reserves.
    pub(crate) fn new(threads: Vec<Arc<Takeover>>, workers: usize, ports: Arc<Ports>) -> Takeovers {
        Takeovers { threads, workers, ports, suspects: Mutex::default() }
    }

    /// Returns the number of workers.
    pub(crate) fn workers(&self) -> usize {
        self.workers
    }

    /// Assigns a free reserve to the worker that thread `number`, which is stuck, works for.
    /// Returns the worker if a reserve relieves it now. Called only by the watchdog's thread, so no
    /// other thread assigns reserves.
    ///
    /// The stuck thread may continue at any moment, and reads the takeover state before it sleeps
    /// at the latest. So this function asks at the end whether the thread was stuck all the time.
    /// If not, the thread may have read the state too early, and is woken to read the state again.
    /// A worker then ends the reserve's duty before the duty began; a reserve that continued has
    /// retired, or will retire.
    pub(crate) fn relieve(
        &self,
        number: usize,
        stuck: StuckThread,
        is_stuck: IsStuck<'_>,
    ) -> Option<usize> {
        let takeover = &self.threads[number];
        let worker = if number < self.workers { number } else { takeover.duty()?.worker };
        self.suspend(takeover, stuck.at, worker);
        let acting = &self.threads[worker].acting;
        let free = |&reserve: &usize| self.threads[reserve].duty().is_none();
        let reserve = (self.workers..self.threads.len()).find(free);
        let is_first = acting.load(Ordering::Acquire) == number;
        let Some(reserve) = reserve.filter(|_| is_first) else {
            if !is_stuck() {
                takeover.wake();
            }
            return None;
        };
        let substitute = &self.threads[reserve];
        // Moved while the reserve sleeps: a thread that moves itself queues behind all threads that
        // wait for the CPU, and a thread that wakes there runs before these threads. If the move is
        // not permitted, the reserve runs on its present CPU.
        let _ = affinity::follow(substitute.thread.load(Ordering::Relaxed), stuck.thread);
        *lock(&substitute.duty) = Some(Duty { worker, instead_of: number, stuck });
        acting.store(reserve, Ordering::Release);
        takeover.notify();
        let is_stuck = is_stuck();
        if is_stuck || number != worker {
            substitute.wake();
        }
        if !is_stuck {
            takeover.wake();
        }
        is_stuck.then_some(worker)
    }

    /// Suspends the rings of ports whose memory a stuck thread touches, whether or not a reserve
    /// relieves the thread: the next thread there would get stuck, too. Rings of a VDUSE device go
    /// on: only a slow machine makes a thread wait there, and suspended rings lose frames. But the
    /// stuck thread may hold the lock of a receive ring, for which each worker would wait in vain.
    /// The locks of transmit rings stay: a transmit ring has one worker, which never takes a lock
    /// that was given up.
    fn suspend(&self, takeover: &Takeover, at: [u32; 2], worker: usize) {
        let present = self.ports.present();
        let guest = |id| {
            let port = present.shared(id)?;
            Some((port, port.as_guest()?))
        };
        let alone = named(at).count() == 1;
        let whose = if alone { "its memory" } else { "its memory or another port" };
        let mut suspended = lock(&takeover.suspended);
        for (port, guest) in named(at).filter_map(guest) {
            if !guest.may_block() {
                guest.rx.iter().for_each(Queue::give_up_lock);
                continue;
            }
            if suspended.iter().any(|before| Arc::ptr_eq(&before.port, port)) {
                continue;
            }
            if port.reports.log.allow() {
                log::warn!("port {}: {whose} makes worker {worker} wait", port.name);
            }
            guest.queues().for_each(|queue| queue.suspend());
            let (port, session) = (Arc::clone(port), guest.session());
            suspended.push(Suspended { port, session, alone });
            takeover.notify();
        }
    }

    /// Ends the suspension of ports whose memory delayed the calling thread. `takeover` is the
    /// state of the calling thread, and `stall` the longest delay of its last turn. If only one
    /// port can have caused the delay, the rings of this port pause; the second long delay ends the
    /// port's session.
    pub(crate) fn resume(&self, takeover: &Takeover, stall: impl FnOnce() -> Option<Stall>) {
        let suspended = std::mem::take(&mut *lock(&takeover.suspended));
        if suspended.is_empty() {
            return;
        }
        let clear = matches!(suspended[..], [Suspended { alone: true, .. }]);
        let stall = stall().filter(|_| clear);
        for Suspended { port, session, .. } in suspended {
            let Some(guest) = port.as_guest() else { continue };
            let stall = stall.and_then(|stall| guest.charged(stall));
            let slow = stall.map_or(0, |stall| stall.cycles);
            guest.queues().for_each(|queue| queue.resume(slow, clock::cycles()));
            if let (Some(Stall { blocked: blocked @ HARMFUL_STALL_NANOS.., .. }), Some(session)) =
                (stall, session)
                && self.is_harmful(session, Instant::now())
            {
                let long = Duration::from_nanos(blocked);
                port.evict(session, &format!("its memory made a worker wait for {long:.0?}"));
            }
        }
    }

    /// True if thread `number` works for worker `worker`.
    pub(crate) fn works_for(&self, number: usize, worker: usize) -> bool {
        self.threads[worker].acting.load(Ordering::Acquire) == number
    }

    /// Makes a worker's own thread work again, and waits a moment for the relieving thread to end
    /// its turn. Returns the number of the relieving thread if it does not end, since it may be
    /// stuck itself.
    pub(crate) fn come_back(&self, worker: usize) -> Option<usize> {
        let before = self.threads[worker].acting.swap(worker, Ordering::AcqRel);
        let other = self.threads.get(before).filter(|_| before != worker)?;
        other.wake();
        let end = Instant::now() + HANDOVER;
        while other.duty().is_some() {
            if Instant::now() >= end {
                return Some(before);
            }
            std::thread::sleep(LOCK_WAIT_STEP);
        }
        None
    }

    /// Records that the memory of a front-end blocked a thread at `now`. True if there is an
    /// earlier record of the session, not older than [`SUSPICION`].
    pub(super) fn is_harmful(&self, session: u64, now: Instant) -> bool {
        let mut suspects = lock(&self.suspects);
        suspects.retain(|&(_, since)| now.saturating_duration_since(since) < SUSPICION);
        let before = suspects.iter().any(|&(suspect, _)| suspect == session);
        if !before {
            if suspects.len() == MAX_SUSPECTS {
                suspects.remove(0);
            }
            suspects.push((session, now));
        }
        before
    }

    /// Returns the number of suspicious sessions.
    #[cfg(test)]
    pub(super) fn suspects(&self) -> usize {
        lock(&self.suspects).len()
    }
}

/// Returns the ports that a thread published, each once.
pub(super) fn named([first, second]: [u32; 2]) -> impl Iterator<Item = PortId> {
    let second = Some(second).filter(|second| *second != first);
    [Some(first), second].into_iter().flatten().filter_map(|port| port.try_into().ok())
}
