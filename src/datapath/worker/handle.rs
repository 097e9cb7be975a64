//! The part of a worker that other threads see: its epoll set, the notes that they leave for it,
//! who works for it, whether it sleeps, and its counters.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;

use rustix::thread::gettid;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;

use crate::guard::{BlockedWriterWatch, Stalled};
use crate::pipeline::Announcement;
use crate::pipeline::flood::FloodList;
use crate::port::{Port, Ports};
use base::limits::MAX_NOTES;
use base::stats::WorkerStats;
use switch::{Fdb, PortId, Rules};

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

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

    /// The port whose source it is.
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
    pub(super) epoll: Epoll,
    pub(super) wake: EventFd,
    pub(super) notes: Mutex<Vec<Note>>,
    pub(super) noted: AtomicBool,
    pub(super) stop: AtomicBool,
    /// Serial number of the table of ports that the worker goes by.
    pub(super) adopted: AtomicU64,
    pub(super) sleep_state: SleepState,
    /// Its floods that go on.
    pub(super) floods: Arc<FloodList>,
    /// Who works for it.
    pub(super) takeover: Takeover,
    /// Counters.
    pub stats: WorkerStats,
}

impl WorkerHandle {
    pub(super) fn new(number: usize) -> io::Result<WorkerHandle> {
        let epoll = Epoll::new()?;
        let wake = EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)?;
        let handle = WorkerHandle {
            epoll,
            wake,
            notes: Mutex::new(Vec::new()),
            noted: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            adopted: AtomicU64::new(0),
            sleep_state: SleepState::default(),
            floods: Arc::default(),
            takeover: Takeover::new(number),
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

    pub(super) fn leave(&self, note: Note) {
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

    /// Notes that were taken, for the next turn.
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
        if !self.noted.load(Ordering::Relaxed) {
            return;
        }
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        self.noted.store(false, Ordering::Relaxed);
        into.append(&mut notes);
    }
}

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
    /// The thread was at no other port than this.
    pub alone: bool,
}

/// What a thread knows of others that work for it, or for which it works.
#[derive(Debug, Default)]
pub(super) struct Takeover {
    /// The thread's number in the kernel, once it runs.
    pub(super) thread: AtomicI32,
    /// Something of the following is new.
    pub(super) news: AtomicBool,
    /// Of a worker: the number of the thread that works for it.
    pub(super) acting: AtomicUsize,
    /// Of a reserve.
    pub(super) duty: Mutex<Option<Duty>>,
    /// The ports whose memory the thread is at, since it stands still.
    pub(super) suspended: Mutex<Vec<Suspended>>,
    /// Of a worker: what others counted for it.
    pub counted: WorkerStats,
}

impl Takeover {
    /// That of thread `number`.
    pub fn new(number: usize) -> Takeover {
        Takeover { acting: AtomicUsize::new(number), ..Takeover::default() }
    }

    /// True if there is something new, each time once.
    #[inline(always)]
    pub fn has_news(&self) -> bool {
        self.news.load(Ordering::Relaxed) && self.news.swap(false, Ordering::Acquire)
    }

    /// Has the thread look what is new, before it sleeps at the latest.
    pub(super) fn notify(&self) {
        self.news.store(true, Ordering::SeqCst);
    }

    /// True if something is new, for a thread that has said that it is about to sleep: whoever
    /// notifies and then finds that the thread does not sleep yet need not wake it.
    pub fn has_news_before_sleep(&self) -> bool {
        fence(Ordering::SeqCst);
        self.news.load(Ordering::Relaxed)
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
    pub(super) fn notify_takeover(&self) {
        self.takeover.notify();
        // EAGAIN means the counter is full: it wakes all the same.
        let _ = self.wake.write(1);
    }
}

/// Threads that look from time to time at what workers did, and park while all of these sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Helper {
    /// Moves rings by their load.
    Balancer,
    /// Samples counters.
    Sampler,
    /// Keeps CPUs from deep idle states.
    Latency,
}

impl Helper {
    const COUNT: usize = 3;

    pub(super) fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// Whether a worker sleeps, and whom it wakes when it does no longer.
#[derive(Debug, Default)]
pub struct SleepState {
    pub(super) asleep: AtomicBool,
    /// A bit for each helper that is parked, or about to be.
    pub(super) parked: AtomicU8,
    pub(super) helpers: [OnceLock<Thread>; Helper::COUNT],
}

impl SleepState {
    /// The worker is about to sleep.
    pub fn asleep(&self) {
        self.asleep.store(true, Ordering::Relaxed);
    }

    /// The worker is back, before it takes anything.
    pub fn awake(&self) {
        self.asleep.store(false, Ordering::Relaxed);
        // With the fence in `park_while_asleep`: either this sees that the thread parks, or the
        // thread sees that this worker is awake.
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
