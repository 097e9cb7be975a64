//! The part of a worker that other threads use: epoll set, notes, takeover state, sleep state and
//! counters.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::Thread;

use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;

use crate::guard::BlockedWriterWatch;
use crate::pipeline::Announcement;
use crate::pipeline::flood::FloodList;
use crate::port::Ports;
use crate::stalls::Takeover;
use base::limits::MAX_NOTES;
use base::stats::WorkerStats;
use switch::{Fdb, PortId, Rules};

/// Subject of an event in a worker's epoll set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Token {
    /// Another thread left a note, or asks the worker to stop.
    Wake,
    /// A guest kicked its transmit queue.
    Transmit(PortId, u16),
    /// A guest kicked its receive queue: buffers were posted.
    Receive(PortId, u16),
    /// A queue of a device is readable, or the device changed.
    Device(PortId, u16),
}

impl Token {
    pub(super) fn to_bits(self) -> u64 {
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

    /// Returns the port of the source.
    pub(super) fn port(self) -> Option<PortId> {
        match self {
            Token::Wake => None,
            Token::Transmit(port, _) | Token::Receive(port, _) | Token::Device(port, _) => {
                Some(port)
            }
        }
    }

    pub(super) fn from_bits(bits: u64) -> Token {
        let (port, queue) = ((bits >> 16) as PortId, bits as u16);
        match bits >> 32 {
            1 => Token::Transmit(port, queue),
            2 => Token::Receive(port, queue),
            3 => Token::Device(port, queue),
            _ => Token::Wake,
        }
    }
}

/// A request by another thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Note {
    /// Look at a source once, without waiting for its event.
    Look(Token),
    /// Announce a guest's address to the network.
    Announce(Announcement),
}

/// The part of a worker that other threads use.
#[derive(Debug)]
pub struct WorkerHandle {
    pub(super) epoll: Epoll,
    pub(super) wake: Arc<EventFd>,
    pub(super) notes: Mutex<Vec<Note>>,
    pub(super) noted: AtomicBool,
    pub(super) stop: AtomicBool,
    /// Serial number of the table of ports that the worker has adopted.
    pub(super) adopted: AtomicU64,
    pub(super) sleep_state: SleepState,
    /// Unfinished floods of the worker.
    pub(super) floods: Arc<FloodList>,
    /// Takeover state of the thread.
    pub(super) takeover: Arc<Takeover>,
    /// For a worker: counts by threads that relieved it.
    pub(super) counted: WorkerStats,
    /// Counters.
    pub stats: WorkerStats,
}

impl WorkerHandle {
    pub(super) fn new(number: usize) -> io::Result<WorkerHandle> {
        let epoll = Epoll::new()?;
        let wake = Arc::new(EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)?);
        let handle = WorkerHandle {
            epoll,
            takeover: Arc::new(Takeover::new(number, Arc::clone(&wake))),
            wake,
            notes: Mutex::new(Vec::new()),
            noted: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            adopted: AtomicU64::new(0),
            sleep_state: SleepState::default(),
            floods: Arc::default(),
            counted: WorkerStats::default(),
            stats: WorkerStats::default(),
        };
        handle.watch(handle.wake.as_raw_fd(), Token::Wake)?;
        Ok(handle)
    }

    /// Watches `fd` for input: events carry `token`. The first event reports the present state.
    pub fn watch(&self, fd: RawFd, token: Token) -> io::Result<()> {
        self.watch_for(EventSet::IN, fd, token)
    }

    /// Watches `fd` for input and for room to write: events carry `token`.
    pub fn watch_both(&self, fd: RawFd, token: Token) -> io::Result<()> {
        self.watch_for(EventSet::IN | EventSet::OUT, fd, token)
    }

    fn watch_for(&self, events: EventSet, fd: RawFd, token: Token) -> io::Result<()> {
        let events = events | EventSet::EDGE_TRIGGERED;
        let event = EpollEvent::new(events, token.to_bits());
        match self.epoll.ctl(ControlOperation::Add, fd, event) {
            // The earlier watch was not removed before the descriptor was closed, and a front-end
            // kept the open file description: the number is still in the set.
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
                self.epoll.ctl(ControlOperation::Modify, fd, event)
            }
            result => result,
        }
    }

    /// Stops watching `fd`. Called before `fd` is closed: the front-end has the same open file
    /// description, so closing `fd` alone would leave the description in the set.
    pub fn unwatch(&self, fd: RawFd) {
        // Fails only if `fd` is not in the set, as the caller wants.
        let _ = self.epoll.ctl(ControlOperation::Delete, fd, EpollEvent::default());
    }

    /// Makes the worker look at a source once, without waiting for a kick.
    pub fn look(&self, token: Token) {
        self.leave(Note::Look(token));
    }

    /// Makes the worker announce an address.
    pub(crate) fn announce(&self, announcement: Announcement) {
        self.leave(Note::Announce(announcement));
    }

    pub(super) fn leave(&self, note: Note) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        // A note that is left already is not repeated. The number of sources bounds the looks. A
        // front-end that announces ever new addresses loses announcements that the worker is too
        // slow to send.
        let room = matches!(note, Note::Look(_)) || notes.len() < MAX_NOTES;
        if room && !notes.contains(&note) {
            notes.push(note);
        }
        self.noted.store(true, Ordering::Release);
        drop(notes);
        // EAGAIN means that the counter is full: the worker wakes up anyway.
        let _ = self.wake.write(1);
    }

    /// Puts notes that were taken back, for the next turn.
    #[cold]
    pub(super) fn put_back(&self, mut left: Vec<Note>) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        left.append(&mut notes);
        *notes = left;
        self.noted.store(true, Ordering::Release);
        drop(notes);
        let _ = self.wake.write(1);
    }

    pub(super) fn take_notes(&self, into: &mut Vec<Note>) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        self.noted.store(false, Ordering::Relaxed);
        into.append(&mut notes);
    }
}

impl WorkerHandle {
    /// True while the thread sleeps.
    pub(super) fn is_asleep(&self) -> bool {
        self.sleep_state.asleep.load(Ordering::Relaxed)
    }
}

/// Threads that regularly read the workers' counters, and park while all workers sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Helper {
    /// Moves rings by their load.
    Balancer,
    /// Samples counters.
    Sampler,
    /// Keeps CPUs out of deep idle states.
    Latency,
}

impl Helper {
    const COUNT: usize = 3;

    pub(super) fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// Sleep state of a worker, and the helpers that the worker wakes.
#[derive(Debug, Default)]
pub(crate) struct SleepState {
    pub(super) asleep: AtomicBool,
    /// One bit for each helper that is parked, or about to park.
    pub(super) parked: AtomicU8,
    pub(super) helpers: [OnceLock<Thread>; Helper::COUNT],
}

impl SleepState {
    /// Publishes that the worker is about to sleep.
    pub(crate) fn asleep(&self) {
        self.asleep.store(true, Ordering::Relaxed);
    }

    /// Publishes that the worker is awake, before the worker takes events.
    pub(crate) fn awake(&self) {
        self.asleep.store(false, Ordering::Relaxed);
        // Pairs with the fence in `park_while_asleep`: either this worker sees the parked bit, or
        // the helper sees that this worker is awake.
        fence(Ordering::SeqCst);
        if self.parked.load(Ordering::Relaxed) != 0 {
            self.wake_helpers();
        }
    }

    #[cold]
    fn wake_helpers(&self) {
        let parked = self.parked.swap(0, Ordering::Relaxed);
        for (number, helper) in self.helpers.iter().enumerate() {
            if parked >> number & 1 != 0 {
                helper.get().into_iter().for_each(Thread::unpark);
            }
        }
    }
}

/// Objects that all workers share.
#[derive(Clone)]
pub struct Shared {
    /// The ports.
    pub ports: Arc<Ports>,
    /// The forwarding table.
    pub fdb: Arc<Fdb>,
    /// Forwarding rules of the administrator.
    pub rules: Rules,
    /// Poll mode: workers never sleep.
    pub poll: bool,
    /// Watchdog that frees a worker whose write to a call descriptor blocks.
    pub watch: Arc<BlockedWriterWatch>,
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
