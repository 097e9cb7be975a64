//! Held signals, each with an eventfd that counts, and ports that send.

use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::*;
use crate::guard::BlockedWriterWatch;
use crate::port::{GuestPort, Port};
use base::limits::{MAX_HELD_SIGNALS, MAX_HELD_SIGNALS_OF_PORT, TX_COALESCED_NANOS};
use sys::descriptor::from_eventfd;

#[test]
fn who_sent_lately_is_known_for_a_while() {
    let mut senders = Senders::default();
    let span = clock::cycles_in(SENDERS_NANOS);
    assert_eq!(senders.others(1, 0), 0);
    senders.now = 0b1110;
    assert_eq!([senders.others(1, 1), senders.others(0, 2), senders.others(65, 3)], [2, 3, 2]);
    assert_eq!(senders.others(1, span), 2);
    assert_eq!(senders.others(1, 2 * span - 1), 2, "not forgotten at once");
    assert_eq!(senders.others(1, 2 * span), 2);
    assert_eq!(senders.others(1, 2 * span + 1), 0, "but twice as long after it");
}

const BURST: Completed = Completed { wanted: true, slots: 1, bytes: 1000, size: 256, received: 0 };

/// The signals of a worker, with transmit rings of different ports.
struct Lab {
    signals: Signals,
    watch: BlockedWriterWatch,
    ports: PortTable,
    worker: WorkerStats,
    stats: QueueStats,
    now: u64,
}

impl Lab {
    fn new() -> Lab {
        let watch = BlockedWriterWatch::start().unwrap();
        let signals = Signals::new(0, watch.register());
        let ports = (0..4).map(|id| Arc::new(Port::guest(id, &id.to_string(), 1))).collect();
        let (worker, stats) = Default::default();
        let lab = Lab { signals, watch, ports, worker, stats, now: 1_000 };
        // Each guest was woken to receive once.
        lab.ports.iter().for_each(|port| port.as_guest().unwrap().count_received());
        lab
    }

    fn sent(&mut self, id: PortId, ring: &mut Ring, burst: Completed) {
        let received = self.guest(id).received();
        let burst = Completed { received, ..burst };
        self.signals.note_sent(id, burst, &mut ring.state, &self.stats);
    }

    fn guest(&self, id: PortId) -> &GuestPort {
        self.ports[id].as_guest().unwrap()
    }

    fn end_turn(&mut self) {
        self.signals.flush(&self.ports, &self.worker, self.now);
    }
}

/// A transmit ring, and the eventfd by which its driver is signalled.
struct Ring {
    state: TxState,
    called: EventFd,
}

impl Ring {
    fn new() -> Ring {
        let called = EventFd::new(EFD_NONBLOCK).unwrap();
        let call = from_eventfd(called.try_clone().unwrap());
        let mut state = TxState::default();
        state.vring.call = Some(Arc::new(CallFd::new(call, Arc::default(), 0)));
        Ring { state, called }
    }

    /// Returns the number of signals since the last call.
    fn signals(&self) -> u64 {
        self.called.read().unwrap_or(0)
    }
}

#[test]
fn a_signal_leaves_with_the_next_one_of_its_guest() {
    let (mut lab, mut ring, mut other) = (Lab::new(), Ring::new(), Ring::new());
    let mut receives = Ring::new();
    lab.sent(1, &mut ring, BURST);
    lab.sent(2, &mut other, BURST);
    lab.end_turn();
    // The driver does not ask again before it is signalled.
    lab.sent(1, &mut ring, Completed { wanted: false, ..BURST });
    lab.end_turn();
    assert_eq!((ring.signals(), other.signals()), (0, 0));
    lab.signals.note(1, true, &mut receives.state.vring, &lab.stats);
    lab.guest(1).count_received();
    lab.end_turn();
    assert_eq!((receives.signals(), ring.signals(), other.signals()), (1, 1, 0));
    lab.end_turn();
    assert_eq!(ring.signals(), 0, "once");
}

#[test]
fn a_guest_that_is_woken_in_this_turn_is_signalled_for_what_it_sent_too() {
    let (mut lab, mut ring, mut receives) = (Lab::new(), Ring::new(), Ring::new());
    lab.signals.note(1, true, &mut receives.state.vring, &lab.stats);
    lab.guest(1).count_received();
    lab.sent(1, &mut ring, BURST);
    lab.end_turn();
    assert_eq!((receives.signals(), ring.signals()), (1, 1));
}

#[test]
fn a_signal_leaves_after_a_millisecond_and_the_next_ones_at_once() {
    let (mut lab, mut ring) = (Lab::new(), Ring::new());
    let longest = clock::cycles_in(TX_COALESCED_NANOS);
    lab.sent(1, &mut ring, BURST);
    lab.end_turn();
    assert_eq!(lab.signals.due(), Some(lab.now + longest));
    lab.now += longest - 1;
    lab.end_turn();
    assert_eq!(ring.signals(), 0);
    lab.now += 1;
    lab.end_turn();
    assert_eq!((ring.signals(), lab.signals.due()), (1, None));
    // The guest received nothing meanwhile.
    for _ in 0..3 {
        lab.sent(1, &mut ring, BURST);
        lab.end_turn();
        assert_eq!(ring.signals(), 1);
    }
    lab.guest(1).count_received();
    lab.sent(1, &mut ring, BURST);
    lab.end_turn();
    assert_eq!(ring.signals(), 0);
}

#[test]
fn a_signal_for_much_leaves_at_once_also_if_it_was_held() {
    let (mut lab, mut ring) = (Lab::new(), Ring::new());
    let much = Completed { slots: 32, ..BURST };
    lab.sent(1, &mut ring, much);
    lab.end_turn();
    assert_eq!(ring.signals(), 1);
    lab.sent(1, &mut ring, BURST);
    lab.sent(1, &mut ring, Completed { wanted: false, ..much });
    lab.end_turn();
    assert_eq!(ring.signals(), 1);
    assert!(lab.signals.held.signals.is_empty());
    // Frames that were completed before a held signal was sent no longer count.
    lab.sent(1, &mut ring, Completed { slots: 31, ..BURST });
    lab.end_turn();
    lab.now += clock::cycles_in(TX_COALESCED_NANOS);
    lab.end_turn();
    assert_eq!(ring.signals(), 1, "the one that was held");
    lab.guest(1).count_received();
    lab.sent(1, &mut ring, BURST);
    lab.end_turn();
    assert!(ring.signals() == 0 && !lab.signals.held.signals.is_empty());
}

#[test]
fn a_driver_that_wants_no_signal_gets_none() {
    let (mut lab, mut ring) = (Lab::new(), Ring::new());
    for _ in 0..100 {
        lab.sent(1, &mut ring, Completed { wanted: false, slots: 100, ..BURST });
    }
    lab.end_turn();
    assert_eq!((ring.signals(), lab.stats.signals.get()), (0, 0));
}

#[test]
fn no_more_signals_are_held_than_fit() {
    let (mut lab, ports) = (Lab::new(), 4);
    let mut rings: Vec<Ring> = (0..2 * MAX_HELD_SIGNALS).map(|_| Ring::new()).collect();
    for (n, ring) in rings.iter_mut().enumerate() {
        lab.sent((n / MAX_HELD_SIGNALS_OF_PORT) as PortId % ports, ring, BURST);
    }
    lab.end_turn();
    let sent: Vec<u64> = rings.iter().map(Ring::signals).collect();
    assert!(sent[..MAX_HELD_SIGNALS].iter().all(|signals| *signals == 0));
    assert!(sent[MAX_HELD_SIGNALS..].iter().all(|signals| *signals == 1));
    let gone = rings.remove(0);
    drop(gone.state);
    lab.now += clock::cycles_in(TX_COALESCED_NANOS);
    lab.end_turn();
    assert_eq!(gone.called.read().unwrap_or(0), 0, "its descriptor was closed");
    assert!(rings[..MAX_HELD_SIGNALS - 1].iter().all(|ring| ring.signals() == 1));
}

#[test]
fn one_port_does_not_fill_the_list_of_a_worker() {
    let mut lab = Lab::new();
    let mut rings: Vec<Ring> = (0..=MAX_HELD_SIGNALS_OF_PORT).map(|_| Ring::new()).collect();
    rings.iter_mut().for_each(|ring| lab.sent(1, ring, BURST));
    lab.end_turn();
    let sent: Vec<u64> = rings.iter().map(Ring::signals).collect();
    assert_eq!(sent.iter().sum::<u64>(), 1);
    assert_eq!(sent[MAX_HELD_SIGNALS_OF_PORT], 1);
}

/// The worker before may stand still in another guest's memory, with the signal in its list.
#[test]
fn a_ring_that_moved_is_signalled_by_its_new_worker() {
    let (mut lab, mut ring) = (Lab::new(), Ring::new());
    lab.sent(1, &mut ring, BURST);
    lab.end_turn();
    assert_eq!(ring.signals(), 0);
    let mut other = Signals::new(1, lab.watch.register());
    let much = Completed { wanted: false, slots: 32, received: 1, ..BURST };
    other.note_sent(1, much, &mut ring.state, &lab.stats);
    other.flush(&lab.ports, &lab.worker, lab.now);
    assert_eq!(ring.signals(), 1);
}
