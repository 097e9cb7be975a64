//! Reserve threads, which relieve a stuck worker.
//!
//! A worker that touches a guest's memory may wait as long as the guest's front-end likes, and all
//! rings of the worker wait as well. So there are reserve threads: workers without sources. When
//! the watchdog finds a thread that is stuck in the middle of a turn (`guard::presence`), a reserve
//! *relieves* the stuck worker: the reserve serves the worker's sources, epoll set and notes until
//! the worker's own thread is back. No ring changes its worker, as a worker is only a number in the
//! states of rings, and a [`WorkerHandle`]. Locks of the stuck thread stay locked: of the ring of
//! the burst's sender, of a receive ring, or of a device's queue.
//!
//! A thread that begins to work for a worker (a reserve, or the worker's own thread after its
//! return) cannot ask the thread before, which may be stuck for long. So the new thread looks at
//! all sources, and sends all signals that the old thread may owe ([`super::run`]). The old thread
//! learns of the change when it continues. For a moment both threads may work, under the rings'
//! locks like any two workers.
//!
//! The rings of the ports whose memory the stuck thread touches are suspended for all workers;
//! otherwise each worker would get stuck there. If it is clear which port caused the delay, this
//! port pays when the delay ends: its rings pause for many times the length of the delay. *Blocked*
//! time is time in which a thread neither ran, nor waited for a CPU, nor for a disk. A front-end
//! whose memory blocked threads twice endangers other ports: its session ends, and its port stays
//! closed for a while.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::handle::{Duty, Suspended, Takeover, WorkerHandle, lock};
use crate::guard::{IsStalled, Stalled};
use crate::pipeline::stalls::At;
use crate::port::Ports;
use base::limits::{LOCK_WAIT_STEP, MAX_SUSPECTS, SUSPICION};
use sys::affinity;

/// Time for which a worker waits for a reserve to end its turn, which takes some microseconds.
const HANDOVER: Duration = Duration::from_millis(2);

/// All threads of the data path by number: first the workers, then the reserves.
pub struct Reserves {
    threads: Vec<Arc<WorkerHandle>>,
    workers: usize,
    ports: Arc<Ports>,
    /// Sessions whose memory has blocked a thread, and the time of the first block.
    suspects: Mutex<Vec<(u64, Instant)>>,
}

impl Reserves {
    /// Combines `threads`, of which the first `workers` are workers, and the others reserves.
    pub(super) fn new(
        threads: Vec<Arc<WorkerHandle>>,
        workers: usize,
        ports: Arc<Ports>,
    ) -> Reserves {
        Reserves { threads, workers, ports, suspects: Mutex::default() }
    }

    /// Returns the handles of all threads.
    pub(super) fn threads(&self) -> &[Arc<WorkerHandle>] {
        &self.threads
    }

    /// Returns the number of workers.
    pub(super) fn workers(&self) -> usize {
        self.workers
    }

    /// Assigns a free reserve to the worker that thread `number`, which is stuck, works for. Called
    /// only by the watchdog's thread, so no other thread assigns reserves.
    ///
    /// The stuck thread may continue at any moment, and reads the takeover state before it sleeps
    /// at the latest. So this function asks at the end whether the thread was stuck all the time.
    /// If not, the thread may have read the state too early, and is woken to read the state again.
    /// A worker then ends the reserve's duty before the duty began; a reserve that continued has
    /// retired, or will retire.
    pub(super) fn relieve(&self, number: usize, stalled: Stalled, is_stalled: IsStalled<'_>) {
        let takeover = &self.threads[number].takeover;
        let worker = if number < self.workers {
            number
        } else {
            match takeover.duty() {
                Some(duty) => duty.worker,
                None => return,
            }
        };
        self.suspend(takeover, At(stalled.at), worker);
        let acting = &self.threads[worker].takeover.acting;
        let free = |&reserve: &usize| lock(&self.threads[reserve].takeover.duty).is_none();
        let reserve = (self.workers..self.threads.len()).find(free);
        let is_first = acting.load(Ordering::Acquire) == number;
        let Some(reserve) = reserve.filter(|_| is_first) else {
            if !is_stalled() {
                self.threads[number].notify_takeover();
            }
            return;
        };
        let substitute = &self.threads[reserve];
        // Moved while the reserve sleeps: a thread that moves itself queues behind all threads that
        // wait for the CPU, and a thread that wakes there runs before these threads. If the move is
        // not permitted, the reserve runs on its present CPU.
        let _ =
            affinity::follow(substitute.takeover.thread.load(Ordering::Relaxed), stalled.thread);
        *lock(&substitute.takeover.duty) = Some(Duty { worker, instead_of: number, stalled });
        acting.store(reserve, Ordering::Release);
        takeover.notify();
        let is_stalled = is_stalled();
        self.threads[worker].stats.stalls.add_shared(is_stalled.into());
        if is_stalled || number != worker {
            substitute.notify_takeover();
        }
        if !is_stalled {
            self.threads[number].notify_takeover();
        }
    }

    /// Suspends the rings of ports whose memory a stuck thread touches, whether or not a reserve
    /// relieves the thread: the next thread there would get stuck, too.
    fn suspend(&self, takeover: &Takeover, at: At, worker: usize) {
        let present = self.ports.present();
        let guest = |id| present.shared(id).and_then(|port| Some((port, port.as_guest()?)));
        let alone = at.ports().count() == 1;
        let whose = if alone { "its memory" } else { "its memory or another port" };
        let mut suspended = lock(&takeover.suspended);
        for (port, guest) in at.ports().filter_map(guest) {
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

    /// True if thread `number` works for worker `worker`.
    pub(super) fn works_for(&self, number: usize, worker: usize) -> bool {
        self.threads[worker].takeover.acting.load(Ordering::Acquire) == number
    }

    /// Makes a worker's own thread work again, and waits a moment for the relieving thread to end
    /// its turn. Returns the number of the relieving thread if it does not end, since it may be
    /// stuck itself.
    pub(super) fn come_back(&self, worker: usize) -> Option<usize> {
        let before = self.threads[worker].takeover.acting.swap(worker, Ordering::AcqRel);
        let other = self.threads.get(before).filter(|_| before != worker)?;
        other.notify_takeover();
        let end = Instant::now() + HANDOVER;
        while other.takeover.duty().is_some() {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_front_end_is_harmful_the_second_time() {
        let reserves = Reserves::new(Vec::new(), 0, Arc::new(Ports::new([].into_iter().collect())));
        let start = Instant::now();
        assert!(!reserves.is_harmful(7, start));
        assert!(!reserves.is_harmful(8, start), "another session");
        assert!(reserves.is_harmful(7, start + SUSPICION / 2));
        assert!(!reserves.is_harmful(7, start + SUSPICION), "long ago");
        for session in 0..2 * MAX_SUSPECTS as u64 {
            reserves.is_harmful(session, start + SUSPICION);
        }
        assert_eq!(lock(&reserves.suspects).len(), MAX_SUSPECTS);
    }
}
