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
//! * [`kick`] kick descriptors, and how workers hear of them;
//! * [`spin`] whether an idle worker keeps looking.
//!
//! Kick descriptors are watched edge-triggered and never read: every write to an eventfd wakes its
//! watchers whatever its counter says, so a read would only add a system call, and one that a
//! front-end could make block by clearing O_NONBLOCK on the descriptor it shares with us.

pub mod assignment;
pub mod balance;
pub mod balancer;
pub mod kick;
pub mod reserve;
pub mod run;
pub mod spin;

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Instant;

use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;

use self::assignment::Assignment;
use self::balancer::Doze;
use self::reserve::{Reserves, Seat};
use crate::guard::BlockedWriterWatch;
use crate::limits::{ADOPTION_STEP, MAX_NOTES, RESERVES, STOP_TIMEOUT};
use crate::pipeline::Announcement;
use crate::port::{Port, Ports};
use crate::stats::WorkerStats;
use crate::switch::{Fdb, PortId, Rules};
use crate::sys::affinity;
use crate::sys::clock;
use crate::sys::threads::join_until;
use crate::sys::usage;

/// What an event of a worker's epoll set is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Token {
    /// A note was left, or the worker shall stop.
    Wake,
    /// A guest kicked its transmit queue.
    Transmit(PortId, u16),
    /// A guest kicked its receive queue: it posted buffers.
    Receive(PortId, u16),
    /// A queue of a device is readable, or the device changed.
    Device(PortId, u16),
}

impl Token {
    fn to_bits(self) -> u64 {
        let pack = |kind: u64, port: PortId, queue: u16| {
            kind << 32 | u64::from(port) << 16 | u64::from(queue)
        };
        match self {
            Token::Wake => 0,
            Token::Transmit(port, queue) => pack(1, port, queue),
            Token::Receive(port, queue) => pack(2, port, queue),
            Token::Device(port, queue) => pack(3, port, queue),
        }
    }

    /// The port whose source it is.
    fn port(self) -> Option<PortId> {
        match self {
            Token::Wake => None,
            Token::Transmit(port, _) | Token::Receive(port, _) | Token::Device(port, _) => {
                Some(port)
            }
        }
    }

    fn from_bits(bits: u64) -> Token {
        let (port, queue) = ((bits >> 16) as PortId, bits as u16);
        match bits >> 32 {
            1 => Token::Transmit(port, queue),
            2 => Token::Receive(port, queue),
            3 => Token::Device(port, queue),
            _ => Token::Wake,
        }
    }
}

/// What another thread asks of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Note {
    /// Look at a source once, without waiting for its event.
    Look(Token),
    /// Announce a guest's address to the network.
    Announce(Announcement),
}

/// The part of a worker that other threads see.
#[derive(Debug)]
pub struct WorkerHandle {
    epoll: Epoll,
    wake: EventFd,
    notes: Mutex<Vec<Note>>,
    noted: AtomicBool,
    stop: AtomicBool,
    /// Serial number of the table of ports that the worker goes by.
    adopted: AtomicU64,
    doze: Doze,
    /// Who works for it.
    seat: Seat,
    /// Counters.
    pub stats: WorkerStats,
}

impl WorkerHandle {
    fn new(number: usize) -> io::Result<WorkerHandle> {
        let epoll = Epoll::new()?;
        let wake = EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)?;
        let handle = WorkerHandle {
            epoll,
            wake,
            notes: Mutex::new(Vec::new()),
            noted: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            adopted: AtomicU64::new(0),
            doze: Doze::default(),
            seat: Seat::new(number),
            stats: WorkerStats::default(),
        };
        handle.watch(handle.wake.as_raw_fd(), Token::Wake)?;
        Ok(handle)
    }

    /// Reports events of `fd` as `token` from now on, starting with the present state.
    pub fn watch(&self, fd: RawFd, token: Token) -> io::Result<()> {
        self.watch_for(EventSet::IN, fd, token)
    }

    /// The same, and when there is room to write again.
    pub fn watch_both(&self, fd: RawFd, token: Token) -> io::Result<()> {
        self.watch_for(EventSet::IN | EventSet::OUT, fd, token)
    }

    fn watch_for(&self, events: EventSet, fd: RawFd, token: Token) -> io::Result<()> {
        let events = events | EventSet::EDGE_TRIGGERED;
        let event = EpollEvent::new(events, token.to_bits());
        match self.epoll.ctl(ControlOperation::Add, fd, event) {
            // Watching it could not be ended when it was to be, and a front-end has it open: it
            // comes under the same number again.
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
                self.epoll.ctl(ControlOperation::Modify, fd, event)
            }
            result => result,
        }
    }

    /// Stops reporting `fd`. Must precede its closing: the front-end holds the same description,
    /// so closing our number alone would leave it in the set.
    pub fn unwatch(&self, fd: RawFd) {
        // Fails only if it is not in the set, which is what the caller wants.
        let _ = self.epoll.ctl(ControlOperation::Delete, fd, EpollEvent::default());
    }

    /// Makes the worker look at a source once, without waiting for a kick.
    pub fn look(&self, token: Token) {
        self.leave(Note::Look(token));
    }

    /// Makes the worker announce an address.
    pub fn announce(&self, announcement: Announcement) {
        self.leave(Note::Announce(announcement));
    }

    fn leave(&self, note: Note) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        // One note of a kind is enough. Looks are bounded by the number of sources; a front-end
        // that announces ever new addresses loses what a worker is too slow to send.
        let room = matches!(note, Note::Look(_)) || notes.len() < MAX_NOTES;
        if room && !notes.contains(&note) {
            notes.push(note);
        }
        self.noted.store(true, Ordering::Release);
        drop(notes);
        // EAGAIN means the counter is full: the worker will wake all the same.
        let _ = self.wake.write(1);
    }

    fn take_notes(&self, into: &mut Vec<Note>) {
        if !self.noted.load(Ordering::Relaxed) {
            return;
        }
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        self.noted.store(false, Ordering::Relaxed);
        into.append(&mut notes);
    }
}

/// What all workers share.
#[derive(Clone)]
pub struct Shared {
    /// The ports.
    pub ports: Arc<Ports>,
    /// Where addresses live.
    pub fdb: Arc<Fdb>,
    /// What the administrator allows.
    pub rules: Rules,
    /// Spin for good instead of sleeping.
    pub poll: bool,
    /// Frees a worker whose write to a call descriptor blocks.
    pub watch: Arc<BlockedWriterWatch>,
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_the_kernel() {
        for token in [
            Token::Wake,
            Token::Transmit(0, 0),
            Token::Transmit(u16::MAX, 15),
            Token::Receive(3, u16::MAX),
            Token::Device(1000, 2),
        ] {
            assert_eq!(Token::from_bits(token.to_bits()), token);
        }
    }

    #[test]
    fn notes_are_taken_once_and_not_repeated() {
        let handle = WorkerHandle::new(0).unwrap();
        for _ in 0..3 {
            handle.look(Token::Transmit(1, 0));
        }
        let mut notes = Vec::new();
        handle.take_notes(&mut notes);
        assert_eq!(notes, [Note::Look(Token::Transmit(1, 0))]);
        notes.clear();
        handle.take_notes(&mut notes);
        assert!(notes.is_empty());
    }
}
