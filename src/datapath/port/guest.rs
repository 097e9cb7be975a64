//! The rings of one VM.
//!
//! Ring `2n` of the device is the receive queue of pair n, ring `2n + 1` its transmit queue
//! (virtio 1.2 section 5.1.2). Which receive rings can take frames is a bit mask, so that a sender
//! chooses one without a lock; it is only ever a hint, checked again under the ring's lock. Among
//! several the guest's own sending chooses (`port::steering`), and for a flow that it has not sent
//! the flow's hash.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::flood::FloodSlot;
use super::inspect::{Inspection, SessionFacts};
use super::queue::{Queue, QueueRef, Rx, Tx};
use super::session_waker::SessionWaker;
use super::shared_memory::MemoryFaults;
use super::steering::Steering;
use crate::guard::SignalCost;
use crate::guard::bucket::Bucket;
use base::limits::{ANNOUNCEMENT_EVERY, ANNOUNCEMENTS, MAX_QUEUE_PAIRS};
use sys::waker::Waker;

// One bit per receive queue, of which a port has twice its pairs.
const _: () = assert!(2 * MAX_QUEUE_PAIRS <= 32);

/// Sessions of the process so far.
static SESSIONS: AtomicU64 = AtomicU64::new(0);

/// A VM's port.
#[derive(Debug)]
pub struct GuestPort {
    /// Transmit queues: from the VM into the switch.
    pub tx: Box<[Queue<Tx>]>,
    /// Receive queues: from the switch to the VM.
    pub rx: Box<[Queue<Rx>]>,
    /// Announcements that its front-ends may still ask for.
    pub announcements: Bucket,
    /// The floods of its rings.
    pub floods: Arc<FloodSlot>,
    active_rx: AtomicU32,
    received: AtomicU32,
    /// Made when two receive queues are active for the first time.
    steering: OnceLock<Steering>,
    /// What notifying its front-ends took, in this session and those before it.
    pub signal_cost: Arc<SignalCost>,
    /// What is wrong with the memory that its front-end shares.
    pub memory_faults: MemoryFaults,
    session: SessionState,
}

/// The session of a port with its front-end.
#[derive(Debug, Default)]
struct SessionState {
    /// Wakes the session; none if no front-end is attached.
    waker: Mutex<Option<Arc<SessionWaker>>>,
    /// The number of the last session; changed with the lock of `waker` held.
    last: AtomicU64,
    /// The last session that `evict` ended; changed with the lock of `waker` held.
    evicted: AtomicU64,
    /// That front-end made a thread wait that others need.
    harmful: AtomicBool,
    /// The process that is connected to the port's socket.
    front_end: Mutex<Option<FrontEnd>>,
    inspection: Inspection,
}

/// The process at the other end of a port's socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrontEnd {
    /// Process number; 0 if it lives outside our PID namespace.
    pub pid: i32,
    /// User number.
    pub uid: u32,
}

impl fmt::Display for FrontEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pid {} uid {}", self.pid, self.uid)
    }
}

/// Why a front-end is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Eviction {
    /// It took memory away that it had handed over. That costs no other port anything.
    Truncated,
    /// Its call descriptor, or its memory, made a thread wait that others need.
    Harmful,
}

impl GuestPort {
    /// A port with `pairs` queue pairs, nothing attached.
    pub fn new(pairs: u16) -> GuestPort {
        GuestPort {
            tx: (0..pairs).map(|_| Queue::default()).collect(),
            rx: (0..pairs).map(|_| Queue::default()).collect(),
            announcements: Bucket::new(ANNOUNCEMENTS, ANNOUNCEMENT_EVERY),
            floods: Arc::default(),
            active_rx: AtomicU32::new(0),
            received: AtomicU32::new(0),
            steering: OnceLock::new(),
            signal_cost: Arc::default(),
            memory_faults: MemoryFaults::default(),
            session: SessionState::default(),
        }
    }

    /// Comes in the place of another one: what its front-ends cost is not forgotten.
    pub fn succeed(&mut self, before: &GuestPort) {
        self.signal_cost = Arc::clone(&before.signal_cost);
    }

    /// Records which process is connected to the port's socket, or that none is any more.
    pub fn set_front_end(&self, who: Option<FrontEnd>) {
        *self.session.front_end.lock().unwrap_or_else(PoisonError::into_inner) = who;
    }

    /// The process that is connected to the port's socket.
    pub fn front_end(&self) -> Option<FrontEnd> {
        *self.session.front_end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The queue of ring `index` of the device.
    pub fn queue(&self, index: usize) -> Option<QueueRef<'_>> {
        match index % 2 {
            0 => self.rx.get(index / 2).map(QueueRef::Rx),
            _ => self.tx.get(index / 2).map(QueueRef::Tx),
        }
    }

    /// All queues.
    pub fn queues(&self) -> impl Iterator<Item = QueueRef<'_>> {
        self.rx.iter().map(QueueRef::Rx).chain(self.tx.iter().map(QueueRef::Tx))
    }

    /// Marks receive queue `queue` as one that can take frames (started, enabled, and has held
    /// buffers), or not. Called with the queue's lock held.
    pub fn set_active(&self, queue: usize, active: bool) {
        let bit = 1u32.checked_shl(queue as u32).unwrap_or(0);
        if active {
            let others = self.active_rx.fetch_or(bit, Ordering::Release) & !bit;
            if others != 0 {
                self.steering.get_or_init(Steering::default);
            }
        } else {
            self.active_rx.fetch_and(!bit, Ordering::Release);
        }
    }

    /// Counts a signal of a receive queue: the guest will be woken.
    #[inline(always)]
    pub fn count_received(&self) {
        self.received.fetch_add(1, Ordering::Relaxed);
    }

    /// Signals of the receive queues so far.
    #[inline(always)]
    pub fn received(&self) -> u32 {
        self.received.load(Ordering::Relaxed)
    }

    /// Bit mask of the receive queues that can take frames.
    #[inline(always)]
    pub fn active(&self) -> u32 {
        self.active_rx.load(Ordering::Relaxed)
    }

    /// Any receive queue that can take frames.
    pub fn any_receiver(&self) -> Option<usize> {
        self.receivers().any()
    }

    /// Where to record what the guest sends; none while it has no choice of receive queues.
    #[inline(always)]
    pub fn steering(&self) -> Option<&Steering> {
        if is_one_or_none(self.active()) { None } else { self.steering.get() }
    }

    /// The receive queues to choose from for a burst.
    #[inline(always)]
    pub fn receivers(&self) -> Receivers<'_> {
        let active = self.active();
        let steering = if is_one_or_none(active) { None } else { self.steering.get() };
        Receivers { active, steering, last: None }
    }

    /// Records that a front-end came, and how its session can be told to drop it.
    pub fn attach(&self, waker: Arc<SessionWaker>) {
        let mut place = self.session_waker();
        let session = SESSIONS.fetch_add(1, Ordering::Relaxed) + 1;
        self.session.last.store(session, Ordering::Relaxed);
        *place = Some(waker);
    }

    /// Records that the front-end left; its rings are stopped.
    pub fn detach(&self) {
        if let Some(steering) = self.steering.get() {
            steering.clear();
        }
        self.session.inspection.clear();
        self.memory_faults.set(false, false, 0);
        *self.session_waker() = None;
    }

    /// True while a front-end is connected.
    pub fn is_attached(&self) -> bool {
        self.session_waker().is_some()
    }

    /// The number of the present session, which no other has, not of another port either; none
    /// while no front-end is connected.
    pub fn session(&self) -> Option<u64> {
        let leave = self.session_waker();
        leave.as_ref().map(|_| self.session.last.load(Ordering::Relaxed))
    }

    /// Ends the session with the front-end: its thread is told to close the connection and
    /// to take the port out of service. For peers that endanger others; any thread may call it,
    /// as it touches nothing that the peer shares: to shut its socket down would wake all that
    /// waits at the other end, see `guard::signal_cost`.
    ///
    /// `session` is the number of the session that is meant: a worker may find out when it is
    /// over, and the next front-end is not to pay for it.
    ///
    /// True for the first to find out: several workers may, and more than once until the session
    /// has left, and one line about it is enough.
    pub fn evict(&self, session: u64, why: Eviction) -> bool {
        let leave = self.session_waker();
        let Some(leave) = &*leave else { return false };
        if self.session.last.load(Ordering::Relaxed) != session {
            return false;
        }
        if why == Eviction::Harmful {
            self.session.harmful.store(true, Ordering::Relaxed);
        }
        leave.end();
        self.session.evicted.swap(session, Ordering::Relaxed) != session
    }

    /// True if a front-end was dropped as [`Eviction::Harmful`] since this was asked last.
    pub fn was_harmful(&self) -> bool {
        self.session.harmful.swap(false, Ordering::Relaxed)
    }

    /// Asks the session to report its state, and has `waker` woken then; the number of the
    /// question. None while no front-end is connected.
    pub fn inspect(&self, waker: &Arc<Waker>) -> Option<u64> {
        let leave = self.session_waker();
        let session = leave.as_ref()?;
        let question = self.session.inspection.ask(waker);
        session.wake();
        Some(question)
    }

    /// What the session reported in answer to a question, once it has.
    pub fn inspected(&self, question: u64) -> Option<SessionFacts> {
        self.session.inspection.answer(question)
    }

    /// The session reports its state, if it was asked to.
    pub fn tell(&self, facts: impl FnOnce() -> SessionFacts) {
        if self.session.inspection.is_asked() {
            self.session.inspection.tell(facts());
        }
    }

    fn session_waker(&self) -> MutexGuard<'_, Option<Arc<SessionWaker>>> {
        self.session.waker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The receive queues of a guest that can take frames, and what is known of its flows. A copy of
/// the mask: one burst sees one set of queues.
#[derive(Debug, Clone, Copy)]
pub struct Receivers<'a> {
    active: u32,
    steering: Option<&'a Steering>,
    /// The flow asked for last, and the answer: bursts are mostly one flow.
    last: Option<(u32, u8)>,
}

impl Receivers<'_> {
    /// No queue at all.
    pub const NONE: Receivers<'static> = Receivers { active: 0, steering: None, last: None };

    /// True if flows have a choice of queues.
    #[inline(always)]
    pub fn are_many(&self) -> bool {
        !is_one_or_none(self.active)
    }

    /// The first queue, if there is one.
    #[inline(always)]
    pub fn any(&self) -> Option<usize> {
        (self.active != 0).then_some(self.active.trailing_zeros() as usize)
    }

    /// The queue for a flow: the one the guest last sent it on, if that is known and can take
    /// frames, or else the n-th of those that can, n following from the flow's hash. None if no
    /// queue can.
    #[inline(always)]
    pub fn choose(&mut self, hash: impl FnOnce() -> u32) -> Option<usize> {
        if !self.are_many() {
            return self.any();
        }
        let hash = hash();
        match self.last {
            Some((last, queue)) if last == hash => Some(queue.into()),
            _ => {
                let queue = self.choose_of_many(hash);
                self.last = Some((hash, queue as u8));
                Some(queue)
            }
        }
    }

    fn choose_of_many(&self, hash: u32) -> usize {
        if let Some(queue) = self.steering.and_then(|flows| flows.queue(hash))
            && self.active >> queue & 1 != 0
        {
            return queue;
        }
        // The hash's upper bits, as a fraction; the table of flows takes the lower ones.
        let nth = (u64::from(hash) * u64::from(self.active.count_ones())) >> 32;
        let mut left = self.active;
        for _ in 0..nth {
            left &= left - 1;
        }
        left.trailing_zeros() as usize
    }
}

/// True unless two bits are set. Counting them takes a dozen instructions on the oldest x86-64 we
/// build for.
#[inline(always)]
const fn is_one_or_none(mask: u32) -> bool {
    mask & mask.wrapping_sub(1) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(active: u32, hash: u32) -> Option<usize> {
        Receivers { active, ..Receivers::NONE }.choose(|| hash)
    }

    #[test]
    fn an_eviction_means_one_session() {
        let port = GuestPort::new(1);
        let leave = |port: &GuestPort| {
            let leave = Arc::new(SessionWaker::new().unwrap());
            port.attach(Arc::clone(&leave));
            (leave, port.session().unwrap())
        };
        let (first, one) = leave(&port);
        port.detach();
        assert_eq!(port.session(), None);
        assert!(!port.evict(one, Eviction::Harmful));
        let (second, two) = leave(&port);
        assert!(!port.evict(one, Eviction::Harmful));
        assert!(!first.take() && !second.take() && !port.was_harmful());
        assert!(port.evict(two, Eviction::Truncated), "the first to find out");
        assert!(second.take() && !port.was_harmful());
        assert!(!port.evict(two, Eviction::Harmful));
        assert!(second.take() && port.was_harmful() && !port.was_harmful());
    }

    #[test]
    fn a_flow_goes_to_one_of_the_active_queues() {
        assert_eq!(choose(0, 7), None);
        let mut one = Receivers { active: 0b1000, ..Receivers::NONE };
        assert_eq!(one.choose(|| panic!("not needed")), Some(3));
        assert_eq!(choose(0b1010_0001, 0), Some(0));
        assert_eq!(choose(0b1010_0001, u32::MAX / 3), Some(0));
        assert_eq!(choose(0b1010_0001, u32::MAX / 3 + 1), Some(5));
        assert_eq!(choose(0b1010_0001, u32::MAX), Some(7));
        assert_eq!(choose(u32::MAX, u32::MAX), Some(31));
        assert_eq!(choose(u32::MAX, 1 << 27), Some(1));
    }

    #[test]
    fn a_flow_follows_its_guest_while_that_queue_is_active() {
        let port = GuestPort::new(4);
        let hash = 0x8765_4321;
        port.set_active(0, true);
        assert!(port.steering().is_none(), "one queue, nothing to choose");
        port.set_active(0, true);
        assert!(port.steering.get().is_none(), "one queue, no table");
        port.set_active(2, true);
        assert_eq!(port.receivers().choose(|| hash), Some(2), "the hash's upper half");
        let flows = port.steering().expect("two queues");
        flows.note(hash, 0);
        assert_eq!(port.receivers().choose(|| hash), Some(0));
        // Sent on a pair whose receive queue takes nothing, or is none: the hash decides.
        for queue in [1, 3, 31] {
            flows.note(hash, queue);
            assert_eq!(port.receivers().choose(|| hash), Some(2));
        }
        flows.note(hash, 0);
        port.set_active(0, false);
        assert!(port.steering().is_none());
        assert_eq!(port.receivers().choose(|| hash), Some(2));
        port.set_active(0, true);
        assert_eq!(port.receivers().choose(|| hash), Some(0), "it comes back");
        port.detach();
        assert_eq!(port.receivers().choose(|| hash), Some(2), "the next guest begins anew");
    }

    #[test]
    fn even_rings_receive_and_odd_rings_transmit() {
        let port = GuestPort::new(2);
        assert!(matches!(port.queue(0), Some(QueueRef::Rx(_))));
        assert!(matches!(port.queue(3), Some(QueueRef::Tx(_))));
        assert!(port.queue(4).is_none());
    }
}
