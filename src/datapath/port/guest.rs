//! The rings of one VM.
//!
//! Ring `2n` of the device is the receive queue of pair n, ring `2n + 1` its transmit queue (virtio
//! 1.2 section 5.1.2). A bit mask has the receive rings that can take frames, so that a sender
//! chooses a ring without a lock; the choice is a hint, checked again under the ring's lock. Among
//! several rings, the guest's own frames choose the ring of a flow (`port::steering`); the flow's
//! hash chooses for a flow that the guest has not sent.

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

// One bit for each receive queue; a port has two rings for each pair.
const _: () = assert!(2 * MAX_QUEUE_PAIRS <= 32);

/// Number of sessions of the process so far.
static SESSIONS: AtomicU64 = AtomicU64::new(0);

/// The port of a VM.
#[derive(Debug)]
pub struct GuestPort {
    /// Transmit queues: from the VM into the switch.
    pub tx: Box<[Queue<Tx>]>,
    /// Receive queues: from the switch to the VM.
    pub rx: Box<[Queue<Rx>]>,
    /// Announcements that the port's front-ends may still request.
    pub(crate) announcements: Bucket,
    /// The slot for floods of the port's rings.
    pub(crate) floods: Arc<FloodSlot>,
    active_rx: AtomicU32,
    received: AtomicU32,
    /// Created when two receive queues are active for the first time.
    steering: OnceLock<Steering>,
    /// Cost of signals to the port's front-ends, in this session and earlier sessions.
    pub(crate) signal_cost: Arc<SignalCost>,
    /// Faults of the memory that the front-end shares.
    pub memory_faults: MemoryFaults,
    /// Name of the interface of the kernel's driver behind a VDUSE device; none for a VM.
    pub(crate) interface: Option<String>,
    session: SessionState,
}

/// The session of a port with its front-end.
#[derive(Debug, Default)]
struct SessionState {
    /// Wakes the session; none without a front-end.
    waker: Mutex<Option<Arc<SessionWaker>>>,
    /// Number of the last session; changed with `waker` locked.
    last: AtomicU64,
    /// Number of the last session that `evict` ended; changed with `waker` locked.
    evicted: AtomicU64,
    /// A front-end was dropped as [`Eviction::Harmful`].
    harmful: AtomicBool,
    /// The process that is connected to the port's socket.
    front_end: Mutex<Option<FrontEnd>>,
    inspection: Inspection,
}

/// The process at the other end of a port's socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrontEnd {
    /// Process id; 0 if the process is outside this PID namespace.
    pub pid: i32,
    /// User id.
    pub uid: u32,
}

impl fmt::Display for FrontEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pid {} uid {}", self.pid, self.uid)
    }
}

/// Why the switch drops a front-end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Eviction {
    /// The front-end truncated memory that it had shared. No other port is harmed.
    Truncated,
    /// The front-end's descriptors or memory delayed a thread that other ports need.
    Harmful,
}

impl GuestPort {
    /// Creates a port with `pairs` queue pairs and without a front-end.
    pub(crate) fn new(pairs: u16) -> GuestPort {
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
            interface: None,
            session: SessionState::default(),
        }
    }

    /// Takes over the signal cost of the port that this port replaces.
    pub(crate) fn succeed(&mut self, before: &GuestPort) {
        self.signal_cost = Arc::clone(&before.signal_cost);
    }

    /// True if the kernel's driver is behind the port, and no VM.
    pub fn is_vduse(&self) -> bool {
        self.interface.is_some()
    }

    /// True if the port's memory may make one thread after another wait. The kernel's memory is
    /// slow only while the whole machine is.
    pub(crate) fn may_block(&self) -> bool {
        !self.is_vduse()
    }

    /// Returns a delay with which the port's memory is to be charged; none if the kernel owns the
    /// memory.
    pub(crate) fn charged<T>(&self, delay: T) -> Option<T> {
        self.may_block().then_some(delay)
    }

    /// Records the process that is connected to the port's socket, or none.
    pub fn set_front_end(&self, who: Option<FrontEnd>) {
        *self.session.front_end.lock().unwrap_or_else(PoisonError::into_inner) = who;
    }

    /// Returns the process that is connected to the port's socket.
    pub fn front_end(&self) -> Option<FrontEnd> {
        *self.session.front_end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the queue of ring `index` of the device.
    pub(crate) fn queue(&self, index: usize) -> Option<QueueRef<'_>> {
        match index % 2 {
            0 => self.rx.get(index / 2).map(QueueRef::Rx),
            _ => self.tx.get(index / 2).map(QueueRef::Tx),
        }
    }

    /// Returns all queues.
    pub fn queues(&self) -> impl Iterator<Item = QueueRef<'_>> {
        self.rx.iter().map(QueueRef::Rx).chain(self.tx.iter().map(QueueRef::Tx))
    }

    /// Marks receive queue `queue` as able to take frames (started, enabled, and has held buffers),
    /// or as unable. Called with the queue's lock held.
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

    /// Counts a signal of a receive queue, which wakes the guest.
    #[inline(always)]
    pub(crate) fn count_received(&self) {
        self.received.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of signals of the receive queues so far.
    #[inline(always)]
    pub(crate) fn received(&self) -> u32 {
        self.received.load(Ordering::Relaxed)
    }

    /// Returns the receive queues that can take frames, as bits.
    #[inline(always)]
    pub fn active(&self) -> u32 {
        self.active_rx.load(Ordering::Relaxed)
    }

    /// Returns a receive queue that can take frames, if there is one.
    pub(crate) fn any_receiver(&self) -> Option<usize> {
        self.receivers().any()
    }

    /// Returns the table that records the guest's flows; none while at most one receive queue is
    /// active.
    #[inline(always)]
    pub(crate) fn steering(&self) -> Option<&Steering> {
        self.receivers().steering
    }

    /// Returns the receive queues to choose from for a burst.
    #[inline(always)]
    pub(crate) fn receivers(&self) -> Receivers<'_> {
        let active = self.active();
        let receivers = Receivers { active, ..Receivers::NONE };
        let steering = if receivers.are_many() { self.steering.get() } else { None };
        Receivers { steering, ..receivers }
    }

    /// Records that a front-end came, and the waker of its session.
    pub(crate) fn attach(&self, waker: Arc<SessionWaker>) {
        let mut place = self.session_waker();
        let session = SESSIONS.fetch_add(1, Ordering::Relaxed) + 1;
        self.session.last.store(session, Ordering::Relaxed);
        *place = Some(waker);
    }

    /// Records that the front-end left, whose rings are stopped.
    pub(crate) fn detach(&self) {
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

    /// Returns the number of the present session, unique in the process; none without a front-end.
    pub fn session(&self) -> Option<u64> {
        let leave = self.session_waker();
        leave.as_ref().map(|_| self.session.last.load(Ordering::Relaxed))
    }

    /// Ends the session with a front-end that endangers others: tells the session's thread to close
    /// the connection and to take the port out of service. Any thread may call this function,
    /// because it touches nothing that the peer shares: a shutdown of the socket would wake all
    /// waiters at the other end; see `guard::eventfd`.
    ///
    /// Only session `session` is ended: a worker may find the fault after the session's end, and
    /// the next front-end must not pay for the fault.
    ///
    /// True at the first call for a session. Several workers may find the fault, and more than once
    /// until the session has ended; one report is enough.
    pub(crate) fn evict(&self, session: u64, why: Eviction) -> bool {
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

    /// True if a front-end was dropped as [`Eviction::Harmful`] since the last call.
    pub fn was_harmful(&self) -> bool {
        self.session.harmful.swap(false, Ordering::Relaxed)
    }

    /// Asks the session to report its state, and to wake `waker` then. Returns the number of the
    /// question; none without a front-end.
    pub fn inspect(&self, waker: &Arc<Waker>) -> Option<u64> {
        let leave = self.session_waker();
        let session = leave.as_ref()?;
        let question = self.session.inspection.ask(waker);
        session.wake();
        Some(question)
    }

    /// Has the session, if there is one, look at the port's settings.
    pub fn wake(&self) {
        self.session_waker().iter().for_each(|session| session.wake());
    }

    /// Returns the session's answer to a question, if there is an answer.
    pub fn inspected(&self, question: u64) -> Option<SessionFacts> {
        self.session.inspection.answer(question)
    }

    /// Reports the session's state if there is a question. Called by the session.
    pub(crate) fn tell(&self, facts: impl FnOnce() -> SessionFacts) {
        if self.session.inspection.is_asked() {
            self.session.inspection.tell(facts());
        }
    }

    fn session_waker(&self) -> MutexGuard<'_, Option<Arc<SessionWaker>>> {
        self.session.waker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The receive queues of a guest that can take frames, and the guest's flows. A copy of the mask,
/// so that a burst sees one set of queues.
#[derive(Debug, Clone, Copy)]
pub struct Receivers<'a> {
    active: u32,
    steering: Option<&'a Steering>,
    /// The last flow and its queue: most bursts are one flow.
    last: Option<(u32, u8)>,
}

impl Receivers<'_> {
    /// No queue.
    pub(crate) const NONE: Receivers<'static> = Receivers { active: 0, steering: None, last: None };

    /// True if flows have a choice of queues.
    #[inline(always)]
    pub(crate) fn are_many(&self) -> bool {
        // A population count takes a dozen instructions on the oldest supported x86-64.
        self.active & self.active.wrapping_sub(1) != 0
    }

    /// Returns the first queue, if there is a queue.
    #[inline(always)]
    pub(crate) fn any(&self) -> Option<usize> {
        (self.active != 0).then_some(self.active.trailing_zeros() as usize)
    }

    /// Returns the queue for a flow: the queue of the pair on which the guest last sent the flow,
    /// if this queue can take frames; otherwise the n-th queue that can take frames, with n from
    /// the flow's hash. None if no queue can take frames.
    #[inline(always)]
    pub(crate) fn choose(&mut self, hash: impl FnOnce() -> u32) -> Option<usize> {
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
        // The hash's upper bits, as a fraction; the table of flows uses the lower bits.
        let nth = (u64::from(hash) * u64::from(self.active.count_ones())) >> 32;
        let mut left = self.active;
        for _ in 0..nth {
            left &= left - 1;
        }
        left.trailing_zeros() as usize
    }
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
        // The pair's receive queue is inactive or does not exist: the hash decides.
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
