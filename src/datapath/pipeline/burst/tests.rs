//! The charges for looks at rings, the rate of a port, and the counting of bursts.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::*;
use crate::guard::BlockedWriterWatch;
use crate::pipeline::plan::Scope;
use crate::port::GuestPort;
use crate::ring::tests::{DATA, Guest, SIZE, WRITE, desc, describe, offer};
use base::frame::{MacAddr, VnetHdr};
use switch::filter::PortFilter;
use switch::{FdbConfig, FloodLimits, Limit, PortId, PortPolicy, Rate, Size};

/// Returns a forwarding table for `ports` ports.
pub(crate) fn fdb(ports: usize) -> Fdb {
    Fdb::new(FdbConfig::limited(ports, 300, [1, 2]))
}

/// Starts a guest's receive ring, full of buffers of `buffer` bytes that lie one behind the other.
pub(crate) fn start_receiving(guest: &GuestPort, memory: &Guest, buffer: u64) {
    let queue = memory.queue();
    for head in 0..SIZE {
        let at = DATA + buffer * u64::from(head);
        describe(&queue, head, &[desc(at, buffer as u32, WRITE, 0)]);
        offer(&queue, &[head]);
    }
    let mut state = guest.rx[0].lock();
    state.vring.ring = Some(memory.start(&queue));
    state.vring.enabled = true;
    drop(state);
    guest.set_active(0, true);
}

/// A guest that sends to another guest, which has no buffers and has taken frames before.
pub(crate) struct Lab {
    pub(crate) pipeline: Pipeline,
    pub(crate) ports: PortTable,
    pub(crate) stats: WorkerStats,
    pub(crate) memory: [Guest; 3],
    pub(crate) cycle: u64,
    _watch: BlockedWriterWatch,
}

impl Lab {
    pub(crate) fn new() -> Lab {
        Lab::limited(Limit::default())
    }

    /// Creates a lab with the rate `input` for frames from the sender.
    pub(crate) fn limited(input: Limit) -> Lab {
        Lab::with(input, Limit::default())
    }

    /// Creates a lab with the rate `input` for frames from the sender and the rate `output` for
    /// frames to port 2, which gets no frame and has no ring at first.
    pub(crate) fn with(input: Limit, output: Limit) -> Lab {
        Lab::filtered(input, output, |_| None)
    }

    /// Creates a lab with filters of ports.
    pub(crate) fn filtered(
        input: Limit,
        output: Limit,
        filter: impl Fn(PortId) -> Option<Arc<PortFilter>>,
    ) -> Lab {
        let fdb = fdb(3);
        let [from, to] = [[2, 0, 0, 0, 0, 0], [2, 0, 0, 0, 0, 1]];
        fdb.insert_static(MacAddr(to), 1).unwrap();
        fdb.insert_static(MacAddr([2, 0, 0, 0, 0, 2]), 2).unwrap();
        let watch = BlockedWriterWatch::start().unwrap();
        let pipeline = Pipeline::new(0, Arc::new(fdb), Rules::default(), watch.register());
        let none = Limit::default();
        let limits = [[input, none], [none; 2], [none, output]];
        let port = |id: PortId| {
            let port = Port::guest(id, &id.to_string(), 1);
            port.rates.set(limits[usize::from(id)], FloodLimits::default());
            port.policy.set(PortPolicy { filter: filter(id), ..PortPolicy::PLAIN });
            Arc::new(port)
        };
        let ports: PortTable = (0..3).map(port).collect();
        let memory = std::array::from_fn(|_| Guest::new());
        let [sender, receiver] = [0, 1].map(|id| ports[id].as_guest().unwrap());
        let queue = memory[0].queue();
        for head in 0..64 {
            let at = DATA + 128 * u64::from(head);
            memory[0].write(at + 12, &[to, from].concat());
            describe(&queue, head, &[desc(at, 72, 0, 0)]);
            offer(&queue, &[head]);
        }
        let mut state = sender.tx[0].lock();
        state.vring.ring = Some(memory[0].start(&queue));
        (state.vring.enabled, state.vring.owner) = (true, Some(0));
        state.side.gate.last.note(Some((1, 0)), 0);
        drop(state);
        let mut state = receiver.rx[0].lock();
        state.vring.ring = Some(memory[1].start(&memory[1].queue()));
        state.vring.enabled = true;
        state.side.admission.record(0, (64, 0), 0, false);
        drop(state);
        receiver.set_active(0, true);
        drop(queue);
        let (stats, cycle) = (WorkerStats::default(), clock::cycles());
        Lab { pipeline, ports, stats, memory, cycle, _watch: watch }
    }

    /// Runs a turn, 10 cycles after the last turn, with a look at the sender's ring.
    pub(crate) fn turn(&mut self) -> Polled {
        self.cycle += 10;
        self.pipeline.begin_turn(self.cycle, false, false);
        self.pipeline.guest_burst(&self.ports, 0, 0, &self.stats)
    }

    /// Runs a turn while this thread holds the lock of the receive ring.
    pub(crate) fn turn_beside_a_holder(&mut self) -> Polled {
        self.cycle += 10;
        let _held = self.ports[1].as_guest().unwrap().rx[0].lock();
        self.pipeline.begin_turn(self.cycle, false, false);
        self.pipeline.guest_burst(&self.ports, 0, 0, &self.stats)
    }

    /// Makes the buffers of port 1 `all` in number.
    pub(crate) fn offer_buffers(&self, all: u16) {
        self.offer_buffers_of(1, all);
    }

    /// Makes the buffers of port `id` `all` in number.
    pub(crate) fn offer_buffers_of(&self, id: usize, all: u16) {
        let queue = self.memory[id].queue();
        let heads: Vec<u16> = (0..all).collect();
        for &head in &heads {
            describe(&queue, head, &[desc(DATA + 128 * u64::from(head), 128, WRITE, 0)]);
        }
        offer(&queue, &heads);
    }

    /// Sends all frames but the first to port 2, and starts a receive ring with 64 buffers there.
    pub(crate) fn send_to_another(&self) {
        for head in 1..64 {
            self.memory[0].write(DATA + 128 * head + 12, &[2, 0, 0, 0, 0, 2]);
        }
        let receiver = self.ports[2].as_guest().unwrap();
        let mut state = receiver.rx[0].lock();
        state.vring.ring = Some(self.memory[2].start(&self.memory[2].queue()));
        state.vring.enabled = true;
        drop(state);
        receiver.set_active(0, true);
        self.offer_buffers_of(2, 64);
    }

    /// Makes the last `bad_of_four` of every four chains of the sender too short to be frames.
    pub(crate) fn spoil(&self, bad_of_four: u16) {
        let queue = self.memory[0].queue();
        let is_bad = |head: &u16| head % 4 >= 4 - bad_of_four;
        for head in (0..64).filter(is_bad) {
            describe(&queue, head, &[desc(DATA + 128 * u64::from(head), 12, 0, 0)]);
        }
        offer(&queue, &(0..64).collect::<Vec<u16>>());
    }

    /// Returns the number of chains taken from the sender, and the number of chains that were not
    /// frames.
    pub(crate) fn sent(&self) -> (u64, u64) {
        let stats = &self.ports[0].as_guest().unwrap().tx[0].stats;
        (stats.frames.get(), stats.drops.total())
    }
}

/// A ring whose frames wait for their receiver takes hardly any time of a turn, which must not
/// shorten the turns of other rings.
#[test]
fn a_refused_look_is_no_cheap_burst() {
    let mut lab = Lab::new();
    lab.pipeline.begin_turn(clock::cycles(), false, false);
    let before = lab.pipeline.account.quantum();
    for turn in 0..100 {
        let next = lab.turn();
        assert!(matches!(next, Polled::WaitsForReceiver(_)), "{next:?} in turn {turn}");
        assert!(lab.pipeline.account.quantum() >= before);
    }
    assert!(lab.stats.bursts.get() == 0 && lab.pipeline.account.quantum() > before);
}

/// A worker does not spin for the lock of a transmit ring that a stuck thread may hold: a ring of a
/// VDUSE device is not suspended meanwhile.
#[test]
fn a_worker_may_sleep_beside_a_lock_that_a_stuck_thread_holds() {
    let mut lab = Lab::new();
    lab.ports = [Port::guest(0, "vm1", 1), Port::vduse(1, "web", "eth0")]
        .map(Arc::new)
        .into_iter()
        .collect();
    lab.pipeline.begin_turn(lab.cycle, false, false);
    let mut look = |id: PortId| {
        let _held = lab.ports[id].as_guest().unwrap().tx[0].lock();
        lab.pipeline.guest_burst(&lab.ports, id, 0, &lab.stats)
    };
    assert_eq!(look(0), Polled::Locked);
    assert!(matches!(look(1), Polled::RetryAt(_)));
}

/// Frames that go back to their ring to wait for their receiver cost no rate, nor do the rejected
/// chains behind these frames.
#[test]
fn frames_that_go_back_to_their_ring_are_not_charged() {
    let rate = Rate { bits: 0, packets: 1 };
    for bad_of_four in [0, 3] {
        let mut lab = Lab::limited(Limit { rate, burst: Size { bytes: 0, packets: 64 } });
        lab.spoil(bad_of_four);
        assert!(matches!(lab.turn(), Polled::WaitsForReceiver(_)));
        for all in [10u16, 30, 64] {
            lab.offer_buffers(all);
            for _ in 0..10 {
                lab.turn();
            }
            let received = lab.ports[1].as_guest().unwrap().rx[0].stats.frames.get();
            assert_eq!(received, u64::from(all.min(64 - 16 * bad_of_four)));
        }
        assert_eq!(lab.sent(), (64, 16 * u64::from(bad_of_four)));
    }
}

/// Chains that are not frames count as packets of 60 bytes, alone or among frames.
#[test]
fn a_rate_counts_chains_that_are_no_frames() {
    let packets = (Rate { bits: 0, packets: 1 }, Size { bytes: 0, packets: 20 });
    let bytes = (Rate { bits: 8, packets: 0 }, Size { bytes: 20 * 60, packets: 0 });
    for (rate, burst) in [packets, bytes] {
        for bad_of_four in 0..=4 {
            let mut lab = Lab::limited(Limit { rate, burst });
            lab.spoil(bad_of_four);
            lab.offer_buffers(64);
            for _ in 0..10 {
                lab.turn();
            }
            let case = format!("{rate:?}, {bad_of_four} of 4");
            assert_eq!(lab.sent(), (20, 5 * u64::from(bad_of_four)), "{case}");
        }
    }
}

/// Prepares a burst of four frames, of which `classified` are planned: one is dropped, one floods
/// to two ports, the others go to port 0.
fn burst(context: &mut BurstContext, classified: usize) {
    for _ in 0..4 {
        assert!(context.burst.push_small(VnetHdr::plain(0), &[0; 60]));
    }
    for frame in 0..classified as u8 {
        match frame {
            0 => context.plan.drop(frame, DropReason::BadSource),
            1 => context
                .plan
                .flood_group(0, Scope::FOR_TESTS, |targets| targets.extend([0, 1]))
                .push(1),
            _ => context.plan.unicast(frame, 0, 0),
        }
    }
    context.plan.close();
}

/// Each frame is dropped, lost or has all its copies; the source counts copies that ports have
/// counted, wherever the burst ended.
#[test]
fn a_burst_that_ends_in_a_panic_is_counted_to_the_last_frame() {
    for (classified, settled, flooded, lost) in
        [(0, 0, 0, 4), (2, 0, 0, 3), (4, 0, 0, 3), (4, 1, 0, 2), (4, 2, 1, 1), (4, 2, 2, 0)]
    {
        let from = QueueStats::default();
        let mut context = BurstContext::default();
        let ended = catch_unwind(AssertUnwindSafe(|| {
            let mut guard = BurstGuard::new(&mut context, &from);
            burst(&mut guard, classified);
            if classified == 4 {
                guard.plan.runs()[0].advance(settled);
            }
            *guard.plan.floods_left().2 += flooded;
            panic!("injected: in the middle of a burst");
        }));
        assert!(ended.is_err());
        let case = (classified, settled, flooded);
        assert_eq!((from.frames.get(), from.bytes.get()), (4, 240));
        assert_eq!(from.copies.get(), (settled + flooded) as u64, "{case:?}");
        assert_eq!(from.drops.get(DropReason::BadSource), u64::from(classified > 0));
        assert_eq!(from.drops.get(DropReason::Panicked), lost, "{case:?}");
    }
}

#[test]
fn a_burst_that_is_complete_is_counted_once() {
    let from = QueueStats::default();
    let mut context = BurstContext::default();
    for round in 1..3 {
        let mut guard = BurstGuard::new(&mut context, &from);
        guard.burst.clear();
        burst(&mut guard, 4);
        guard.bytes = 240;
        guard.finish();
        context.plan.clear();
        assert_eq!((from.frames.get(), from.bytes.get()), (4 * round, 240 * round));
        assert_eq!((from.copies.get(), from.drops.total()), (4 * round, round));
        BurstGuard::new(&mut context, &from).nothing();
    }
    assert_eq!((context.plan.copies(), context.plan.drops().count()), (0, 0));
}
