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
//! A thread that comes to work for a worker, a reserve or that worker's own again, cannot ask the
//! one before, which may stand still for long. So it looks at all sources, and sends all signals
//! that the other may owe ([`super::run`]). The other finds out when it goes on: for a moment both
//! may work, as any two workers may, under the rings' locks.
//!
//! The ports whose memory the thread is at are kept apart meanwhile: their rings are suspended, for
//! all workers, or each of them would be the next to stand still. If it is clear which one it was,
//! it pays when that is over: its rings pause for many times as long. A front-end whose memory
//! *blocked* a thread twice (that is the time in which it neither ran nor wanted a CPU nor waited
//! for a disk) endangers the others: it is dropped and its port stays closed for a while.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::handle::{Duty, Suspended, Takeover, WorkerHandle, lock};
use crate::guard::{IsStalled, Stalled};
use crate::pipeline::stalls::At;
use crate::port::Ports;
use base::limits::{LOCK_WAIT_STEP, MAX_SUSPECTS, SUSPICION};
use sys::affinity;

/// How long a worker waits for a reserve to end its turn, which takes some microseconds.
const HANDOVER: Duration = Duration::from_millis(2);

/// All threads of the data path by number: workers, then reserves.
pub struct Reserves {
    threads: Vec<Arc<WorkerHandle>>,
    workers: usize,
    ports: Arc<Ports>,
    /// Sessions whose memory has blocked a thread, and since when.
    suspects: Mutex<Vec<(u64, Instant)>>,
}

impl Reserves {
    /// For so many workers and, behind them, reserves.
    pub(super) fn new(
        threads: Vec<Arc<WorkerHandle>>,
        workers: usize,
        ports: Arc<Ports>,
    ) -> Reserves {
        Reserves { threads, workers, ports, suspects: Mutex::default() }
    }

    /// All threads.
    pub(super) fn threads(&self) -> &[Arc<WorkerHandle>] {
        &self.threads
    }

    /// The number of workers.
    pub(super) fn workers(&self) -> usize {
        self.workers
    }

    /// Thread `number` stands still: a reserve that is free works for the worker it works for. In
    /// the watchdog's thread, which is the only one to give reserves something to do.
    ///
    /// The thread may go on at any moment. It looks at what it is told here before it sleeps at the
    /// latest. So it is asked at the end whether it stood still all the time: if not, it may have
    /// looked too early, so it is woken to look again. A worker then ends the reserve's duty before
    /// that has begun; a reserve that went on has retired, or will.
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
        // While it sleeps: a thread that moves itself gets behind all that wait for that CPU, one
        // that wakes there in front of them. Where it may not it works where it is.
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

    /// Keeps all workers away from the memory that a thread is at, whether another works for it or
    /// not: the next one there would stand still as well.
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
            if port.log.allow() {
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

    /// A worker's own thread works for it again; waits a moment for the one that did to end its
    /// turn. The number of that one if it does not, as it may stand still itself.
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

    /// The memory of a front-end has blocked a thread, at `now`; true if it has lately done so
    /// before.
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
