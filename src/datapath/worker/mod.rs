//! The threads of the data path.
//!
//! A worker owns a set of sources: transmit rings of guests and queues of devices. The worker
//! sleeps in `epoll_wait` without a timeout until a kick, a readable device or a note from another
//! thread; a timer would hide a lost wake-up. Only a source or a signal that waits for a time sets
//! a timeout. An awake worker runs *turns*: one pass over its ready sources with one burst each,
//! then the signals of the turn, once per ring.
//!
//! * [`assignment`] which worker serves which ring, and moves of rings;
//! * [`balance`] the choice of rings that move for their load; [`balancer`] the thread that moves
//!   rings;
//! * [`run`] the loop of a worker;
//! * [`handle`] the part of a worker that other threads use;
//! * [`kick`] kick descriptors and their events;
//! * [`spin`] whether an idle worker polls or sleeps.
//!
//! Kick descriptors are watched edge-triggered and never read: every write to an eventfd wakes its
//! waiters, whatever its counter is. A read would be one more system call, and a front-end could
//! make the read block by clearing O_NONBLOCK on the shared descriptor.

pub(crate) mod assignment;
pub mod balance;
pub(crate) mod balancer;
pub mod handle;
pub mod kick;
pub mod run;
pub mod spin;

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Instant;

use self::assignment::Assignment;
use crate::port::Port;
use crate::stalls::Takeovers;
use base::limits::{ADOPTION_STEP, RESERVES, STOP_TIMEOUT};
use switch::PortId;
use sys::affinity;
use sys::clock;
use sys::threads::join_until;
use sys::usage;

pub(crate) use handle::WorkerHandle;
pub use handle::{Helper, Note, Shared, Token};

/// All workers and reserves of the process.
pub struct Workers {
    rings: Assignment,
    /// Handles of workers and reserves, by number.
    handles: Arc<[Arc<WorkerHandle>]>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Workers {
    /// Starts `count` workers, and binds them to `cpus` in turn, if `cpus` is not empty.
    pub fn start(count: usize, cpus: &[usize], shared: &Shared) -> io::Result<Workers> {
        // Measured here once; the workers only use the rate.
        let rate = clock::cycles_per_second();
        log::debug!("the cycle counter makes {rate} ticks a second");
        let handle = |number| WorkerHandle::new(number).map(Arc::new);
        let handles = (0..count + RESERVES).map(handle).collect::<io::Result<Arc<[_]>>>()?;
        let takeovers = handles.iter().map(|handle| Arc::clone(&handle.takeover)).collect();
        let takeovers = Arc::new(Takeovers::new(takeovers, count, Arc::clone(&shared.ports)));
        let workers = Workers {
            rings: Assignment::new(handles[..count].to_vec(), Arc::clone(&shared.ports)),
            handles,
            threads: Mutex::new(Vec::new()),
        };
        for number in 0..count + RESERVES {
            let worker = run::Worker::new(number, &workers.handles, &takeovers, shared.clone());
            // A reserve is not bound: it moves to the CPUs of the stuck thread.
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

    /// Starts a thread. The new thread binds itself to `cpu`, since no other thread can, and
    /// reports the result.
    fn spawn(&self, name: String, cpu: Option<usize>, mut worker: run::Worker) -> io::Result<()> {
        let (tell, told) = mpsc::sync_channel(1);
        let thread = std::thread::Builder::new().name(name.clone()).spawn(move || {
            let bound = cpu.map_or(Ok(()), affinity::pin);
            // Opens the files of this thread now, whenever they are read first.
            usage::run_queue_delay_millis();
            worker.begin();
            let ready = bound.is_ok();
            let _ = tell.send(bound);
            if ready {
                worker.run();
            }
        })?;
        self.threads().push(thread);
        // A thread that ended without a report panicked, and the panic was printed.
        let bound = told.recv().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
        bound.map_err(|error| {
            let cpu = cpu.unwrap_or_default();
            io::Error::new(error.kind(), format!("{name} cannot use CPU {cpu}: {error}"))
        })
    }

    fn threads(&self) -> std::sync::MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the assignment of rings to workers.
    pub fn rings(&self) -> &Assignment {
        &self.rings
    }

    /// Returns the worker that serves queue `queue` of the device behind `port`.
    pub fn for_device(&self, port: &Port, queue: usize) -> &Arc<WorkerHandle> {
        &self.handles()[port.device_worker(queue, self.handles().len())]
    }

    /// Returns all workers, for their counters.
    pub fn handles(&self) -> &[Arc<WorkerHandle>] {
        self.rings.workers()
    }

    /// True if every thread has adopted the table of ports with serial number `serial` or a later
    /// table.
    pub fn have_adopted(&self, serial: u64) -> bool {
        self.handles.iter().all(|handle| handle.adopted.load(Ordering::Acquire) >= serial)
    }

    /// Forgets a port's memberships in multicast groups: the hosts behind the port have left.
    pub fn forget_memberships(&self, port: PortId) {
        let ports = self.rings.ports().present();
        ports.snooping().into_iter().for_each(|snooping| snooping.forget(port));
    }

    /// Wakes all threads and waits, until `end` at most, for all of them to adopt the table with
    /// serial number `serial`. True if they did: no thread then has state of a port that is gone
    /// from the table.
    pub fn wait_adopted(&self, serial: u64, end: Instant) -> bool {
        for handle in self.handles.iter() {
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

    /// Ends all threads after their turn, and waits for them until `end` at most.
    pub fn stop(&self, end: Instant) {
        for handle in self.handles.iter() {
            handle.stop.store(true, Ordering::Release);
            let _ = handle.wake.write(1);
        }
        join_until(&mut self.threads(), end);
    }
}
