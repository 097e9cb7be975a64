//! The threads of the data path.
//!
//! A worker owns a set of sources: transmit rings of guests and queues of TAPs. It sleeps in
//! `epoll_wait` without a timeout until a kick, a readable TAP or a note from a session; a timer
//! would hide a lost wake-up. Only a source or a signal that has to wait for a time gives it one,
//! and it sleeps until the first of these. Awake, it makes *turns*: one pass over its ready
//! sources, one burst each, then the signals the turn owes, once per ring.
//!
//! * [`assignment`] which worker serves which ring, and moving them;
//! * [`balance`] which rings should move for their load, [`balancer`] the thread that asks;
//! * [`reserve`] threads that work for a worker that stands still;
//! * [`run`] the loop: which sources are ready, when to sleep;
//! * [`handle`] what other threads see of a worker, and what they leave for it;
//! * [`kick`] kick descriptors, and how workers hear of them;
//! * [`spin`] whether an idle worker keeps looking.
//!
//! Kick descriptors are watched edge-triggered and never read: every write to an eventfd wakes its
//! watchers whatever its counter says, so a read would only add a system call, and one that a
//! front-end could make block by clearing O_NONBLOCK on the descriptor it shares with us.

pub mod assignment;
pub mod balance;
pub mod balancer;
pub mod handle;
pub mod kick;
pub mod reserve;
pub mod run;
pub mod spin;

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Instant;

use self::assignment::Assignment;
use self::reserve::Reserves;
use crate::port::Port;
use base::limits::{ADOPTION_STEP, RESERVES, STOP_TIMEOUT};
use switch::PortId;
use sys::affinity;
use sys::clock;
use sys::threads::join_until;
use sys::usage;

pub use handle::{Helper, Note, Shared, Token, WorkerHandle};

/// All workers of the process.
pub struct Workers {
    rings: Assignment,
    reserves: Arc<Reserves>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Workers {
    /// Starts `count` workers, bound to `cpus` in turn if there are any.
    pub fn start(count: usize, cpus: &[usize], shared: &Shared) -> io::Result<Workers> {
        // Measured here once: the workers only use it.
        let rate = clock::cycles_per_second();
        log::debug!("the cycle counter makes {rate} ticks a second");
        let handle = |number| WorkerHandle::new(number).map(Arc::new);
        let threads = (0..count + RESERVES).map(handle).collect::<io::Result<Vec<_>>>()?;
        let handles = threads[..count].to_vec();
        let workers = Workers {
            rings: Assignment::new(handles, Arc::clone(&shared.ports)),
            reserves: Arc::new(Reserves::new(threads, count, Arc::clone(&shared.ports))),
            threads: Mutex::new(Vec::new()),
        };
        for number in 0..count + RESERVES {
            let worker = run::Worker::new(number, &workers.reserves, shared.clone());
            // A reserve goes where the worker is that it works for.
            let cpu = cpus.get(number % cpus.len().max(1)).copied().filter(|_| number < count);
            let name = match number.checked_sub(count) {
                None => format!("worker-{number}"),
                Some(reserve) => format!("reserve-{reserve}"),
            };
            if let Err(error) = workers.spawn(name, cpu, worker) {
                workers.stop(Instant::now() + STOP_TIMEOUT);
                return Err(error);
            }
        }
        Ok(workers)
    }

    /// Starts a worker's thread. A thread can only bind itself, so it says how that went.
    fn spawn(&self, name: String, cpu: Option<usize>, mut worker: run::Worker) -> io::Result<()> {
        let (tell, told) = mpsc::sync_channel(1);
        let thread = std::thread::Builder::new().name(name.clone()).spawn(move || {
            let bound = cpu.map_or(Ok(()), affinity::pin);
            // Its files are open from here on, whenever they are read first.
            usage::run_queue_delay_millis();
            worker.begin();
            let ready = bound.is_ok();
            let _ = tell.send(bound);
            if ready {
                worker.run();
            }
        })?;
        self.threads().push(thread);
        // A thread that ended without a word panicked, which was printed.
        let bound = told.recv().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
        bound.map_err(|error| {
            let cpu = cpu.unwrap_or_default();
            io::Error::new(error.kind(), format!("{name} cannot use CPU {cpu}: {error}"))
        })
    }

    fn threads(&self) -> std::sync::MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who serves which ring of a guest.
    pub fn rings(&self) -> &Assignment {
        &self.rings
    }

    /// The worker that serves queue `queue` of the device behind `port`.
    pub fn for_device(&self, port: &Port, queue: usize) -> &Arc<WorkerHandle> {
        &self.handles()[port.device_worker(queue, self.handles().len())]
    }

    /// All workers, for their counters.
    pub fn handles(&self) -> &[Arc<WorkerHandle>] {
        self.rings.workers()
    }

    /// True if every worker goes by the table of ports with this serial number, or a later one.
    pub fn have_adopted(&self, serial: u64) -> bool {
        let threads = self.reserves.threads();
        threads.iter().all(|handle| handle.adopted.load(Ordering::Acquire) >= serial)
    }

    /// Forgets what groups a port is a member of: what is behind it left.
    pub fn forget_memberships(&self, port: PortId) {
        let ports = self.rings.ports().present();
        ports.snooping().into_iter().for_each(|snooping| snooping.forget(port));
    }

    /// Wakes the workers and waits, until `end` at most, for all of them to go by that table. True
    /// if they do: no worker then has anything of a port that went before it.
    pub fn wait_adopted(&self, serial: u64, end: Instant) -> bool {
        for handle in self.reserves.threads() {
            let _ = handle.wake.write(1);
        }
        while !self.have_adopted(serial) {
            if Instant::now() >= end {
                return false;
            }
            std::thread::sleep(ADOPTION_STEP);
        }
        true
    }

    /// Ends all workers after their turn and waits for them, at most until `end`.
    pub fn stop(&self, end: Instant) {
        for handle in self.reserves.threads() {
            handle.stop.store(true, Ordering::Release);
            let _ = handle.wake.write(1);
        }
        join_until(&mut self.threads(), end);
    }
}
