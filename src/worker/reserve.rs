//! Who works for a worker that stands still.
//!
//! A worker that touches a guest's memory may wait there for as long as its front-end likes, and
//! with it all rings that it serves. So there are reserve threads: workers without sources. When
//! the watchdog finds a thread that stands still in the middle of a turn (`guard::presence`), a
//! reserve works *for* it: on the same sources, out of the same epoll set, with the notes that are
//! left for it, until it is back. Nothing moves, as a worker is only a number in the rings' states
//! and a [`WorkerHandle`]; what the thread that stands still has locked stays with it, the ring of
//! the burst's sender and that of its receiver, or a queue of a device.
//!
//! Whoever comes to work for a worker, a reserve or that worker's own thread again, cannot ask the
//! one before, who may stand still for long. So it looks at all sources, and sends all signals that
//! the other may owe ([`super::run`]). The other finds out when it goes on: for a moment both may
//! work, as any two workers may, under the rings' locks.
//!
//! The ports whose memory the thread is at are kept apart meanwhile: their rings are suspended, for
//! all workers, or each of them would be the next to stand still. They pay for it when it is over,
//! if it is clear which one it was.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::thread::gettid;

use super::WorkerHandle;
use crate::guard::Stalled;
use crate::limits::LOCK_WAIT_STEP;
use crate::pipeline::at::At;
use crate::port::{Port, Ports};
use crate::stats::WorkerStats;
use crate::sys::affinity;

/// How long a worker waits for a reserve to end its turn, which takes some microseconds.
const HANDOVER: Duration = Duration::from_millis(2);

/// What a reserve is to do.
#[derive(Debug, Clone, Copy)]
pub(super) struct Duty {
    /// Work for that worker, …
    pub worker: usize,
    /// … in the place of that thread, …
    pub instead_of: usize,
    /// … which stands still.
    pub stalled: Stalled,
}

/// A port whose rings are suspended.
#[derive(Debug)]
pub(super) struct Suspended {
    pub port: Arc<Port>,
    pub session: Option<u64>,
}

/// What a thread knows of others that work for it, or for which it works.
#[derive(Debug, Default)]
pub(super) struct Seat {
    /// The thread's number in the kernel, once it runs.
    thread: AtomicI32,
    /// Something of the following is new.
    news: AtomicBool,
    /// Of a worker: the number of the thread that works for it.
    actor: AtomicUsize,
    /// Of a reserve.
    duty: Mutex<Option<Duty>>,
    /// The ports whose memory the thread is at, since it stands still.
    suspended: Mutex<Vec<Suspended>>,
    /// Of a worker: what others counted for it.
    pub counted: WorkerStats,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Seat {
    /// That of thread `number`.
    pub fn new(number: usize) -> Seat {
        Seat { actor: AtomicUsize::new(number), ..Seat::default() }
    }

    /// True if there is something new, each time once.
    #[inline(always)]
    pub fn has_news(&self) -> bool {
        self.news.load(Ordering::Relaxed) && self.news.swap(false, Ordering::Acquire)
    }

    fn tell(&self) {
        self.news.store(true, Ordering::Release);
    }

    /// Its thread is the calling one.
    pub fn begin(&self) {
        self.thread.store(gettid().as_raw_pid(), Ordering::Relaxed);
    }

    /// What the reserve is to do.
    pub fn duty(&self) -> Option<Duty> {
        *lock(&self.duty)
    }

    /// The reserve has done its duty.
    pub fn end_duty(&self) {
        *lock(&self.duty) = None;
    }

    /// The ports that were suspended since the thread stood still.
    pub fn take_suspended(&self) -> Vec<Suspended> {
        std::mem::take(&mut lock(&self.suspended))
    }
}

impl WorkerHandle {
    /// Has its thread look who works for whom.
    pub(super) fn tell_seat(&self) {
        self.seat.tell();
        // EAGAIN means the counter is full: it wakes all the same.
        let _ = self.wake.write(1);
    }
}

/// All threads of the data path by number: workers, then reserves.
pub struct Reserves {
    threads: Vec<Arc<WorkerHandle>>,
    workers: usize,
    ports: Arc<Ports>,
}

impl Reserves {
    /// For so many workers and, behind them, reserves.
    pub(super) fn new(
        threads: Vec<Arc<WorkerHandle>>,
        workers: usize,
        ports: Arc<Ports>,
    ) -> Reserves {
        Reserves { threads, workers, ports }
    }

    /// All threads.
    pub(super) fn threads(&self) -> &[Arc<WorkerHandle>] {
        &self.threads
    }

    /// The number of workers.
    pub(super) fn workers(&self) -> usize {
        self.workers
    }

    /// Thread `number` stands still: a reserve that is free works for whoever it works for. In the
    /// watchdog's thread, which is the only one to give reserves something to do.
    pub(super) fn relieve(&self, number: usize, stalled: Stalled) {
        let seat = &self.threads[number].seat;
        let worker = if number < self.workers {
            number
        } else {
            match seat.duty() {
                Some(duty) => duty.worker,
                None => return,
            }
        };
        self.suspend(seat, At(stalled.at), worker);
        let relieved = &self.threads[worker];
        if relieved.seat.actor.load(Ordering::Acquire) != number {
            return;
        }
        let free = |&reserve: &usize| lock(&self.threads[reserve].seat.duty).is_none();
        let Some(reserve) = (self.workers..self.threads.len()).find(free) else { return };
        let substitute = &self.threads[reserve];
        // While it sleeps: a thread that moves itself gets behind all that wait for that CPU, one
        // that wakes there in front of them. Where it may not it works where it is.
        let _ = affinity::follow(substitute.seat.thread.load(Ordering::Relaxed), stalled.thread);
        *lock(&substitute.seat.duty) = Some(Duty { worker, instead_of: number, stalled });
        relieved.seat.actor.store(reserve, Ordering::Release);
        relieved.stats.stalls.add_shared(1);
        seat.tell();
        substitute.tell_seat();
    }

    /// Keeps all workers away from the memory that a thread is at, whether somebody works for it or
    /// not: the next one there would stand still as well.
    fn suspend(&self, seat: &Seat, at: At, worker: usize) {
        let present = self.ports.present();
        let guest = |id| present.shared(id).and_then(|port| Some((port, port.as_guest()?)));
        let guests: Vec<_> = at.ports().filter_map(guest).collect();
        let whose = if guests.len() == 1 { "its memory" } else { "its memory or another port's" };
        let mut suspended = lock(&seat.suspended);
        for (port, guest) in guests {
            if suspended.iter().any(|before| Arc::ptr_eq(&before.port, port)) {
                continue;
            }
            if port.log.allow() {
                log::warn!("port {}: {whose} makes worker {worker} wait", port.name);
            }
            guest.queues().for_each(|queue| queue.suspend());
            suspended.push(Suspended { port: Arc::clone(port), session: guest.session() });
            seat.tell();
        }
    }

    /// True if thread `number` works for worker `worker`.
    pub(super) fn works_for(&self, number: usize, worker: usize) -> bool {
        self.threads[worker].seat.actor.load(Ordering::Acquire) == number
    }

    /// A worker's own thread works for it again; waits a moment for the one that did to end its
    /// turn. The number of that one if it does not, as it may stand still itself.
    pub(super) fn come_back(&self, worker: usize) -> Option<usize> {
        let before = self.threads[worker].seat.actor.swap(worker, Ordering::AcqRel);
        let other = self.threads.get(before).filter(|_| before != worker)?;
        other.tell_seat();
        let end = Instant::now() + HANDOVER;
        while other.seat.duty().is_some() {
            if Instant::now() >= end {
                return Some(before);
            }
            std::thread::sleep(LOCK_WAIT_STEP);
        }
        None
    }
}
