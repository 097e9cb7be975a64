//! The end of a burst waits in its sender's ring only if the whole burst goes to one receive ring,
//! or no other receiver has room; for at most a millisecond; and for at most the time that the
//! receiver earned by taking frames of the sender. Other frames are dropped and counted.

use super::*;
use crate::pipeline::burst::tests::Lab;
use crate::port::admission::Admission;
use crate::port::gate::{Gate, LastReceiver};
use crate::ring::tests::Guest;
use base::frame::VnetHdr;
use base::limits::{
    BACKPRESSURE_ALONE_NANOS, BACKPRESSURE_FRAME_BYTES, BACKPRESSURE_FRAMES,
    BACKPRESSURE_MIXED_PRICE, BACKPRESSURE_NANOS, BACKPRESSURE_ROOM_NANOS,
};
use base::stats::DropReason;
use switch::{Limit, Rate, Size};

/// Port and receive queue that the frames wait for.
const SLOW: (PortId, u8) = (1, 0);
/// Another receive queue.
const OTHER: (PortId, u8) = (2, 0);
/// Cycles until the next look.
const RETRY: u64 = 7;

/// A sender's ring that has sent to [`SLOW`] alone, and the state of that queue, which has taken
/// frames of the sender.
struct Rule {
    ports: PortTable,
    sender: TxState,
    queue: Queue<Tx>,
    receiver: RxState,
    now: u64,
    _memory: Guest,
}

impl Rule {
    fn new() -> Rule {
        let memory = Guest::new();
        let (mut sender, mut receiver) = (TxState::default(), RxState::default());
        sender.vring.ring = Some(memory.start(&memory.queue()));
        sender.side.gate.last.note(Some(SLOW), 1);
        receiver.side.admission.record(0, (BACKPRESSURE_FRAMES, 0), 0, false);
        let now = 1 + clock::cycles_in(BACKPRESSURE_ALONE_NANOS);
        let (ports, queue) = (PortTable::default(), Queue::default());
        Rule { ports, sender, queue, receiver, now, _memory: memory }
    }

    /// Plans a burst with a frame for each receiver, and asks whether the frames of the run `run`
    /// may wait. Returns the first frame that waits, and the number of frames of the last run that
    /// stay with it.
    fn waits(&mut self, receivers: &[(PortId, u8)], run: usize) -> Option<(u8, Polled, usize)> {
        let (mut plan, mut burst) = (Plan::default(), Burst::default());
        for (i, (port, queue)) in receivers.iter().enumerate() {
            assert!(burst.push_small(VnetHdr::plain(0), &[0; 60]));
            plan.unicast(i as u8, *port, *queue);
        }
        plan.close();
        let ring = Some((&mut self.sender, &self.queue));
        let mut backpressure = Backpressure::new(&self.ports, 0, ring, (self.now, RETRY));
        backpressure.begin(&plan);
        // All other runs are delivered.
        for (at, other) in plan.runs().iter_mut().enumerate() {
            if at < run {
                other.advance(receivers.len());
                backpressure.note_settled(other);
            }
        }
        if !backpressure.wait(&plan.runs()[run], &mut self.receiver) {
            assert!(backpressure.left.is_none());
            return None;
        }
        let (at, next) = backpressure.left.expect("frames wait");
        let last = plan.runs().last_mut().expect("a run");
        let before = last.left().len();
        backpressure.keeps_back(&burst, last);
        Some((at, next, before - last.left().len()))
    }
}

#[test]
fn a_burst_for_one_ring_waits() {
    let mut rule = Rule::new();
    let look = Polled::WaitsForReceiver(rule.now + RETRY);
    assert_eq!(rule.waits(&[SLOW; 3], 0), Some((0, look, 3)));
    assert_eq!(rule.queue.stats.waits.get(), 1);
    assert_eq!(rule.waits(&[SLOW; 3], 0), Some((0, look, 3)), "nothing new");
    assert_eq!(rule.queue.stats.waits.get(), 1, "the frames wait already");
}

/// Frames that another receiver could take would wait behind the tail.
#[test]
fn a_tail_does_not_wait_beside_a_receiver_with_room() {
    let mut rule = Rule::new();
    let now = rule.now;
    rule.sender.side.gate.roomy.note(OTHER, now);
    assert!(rule.waits(&[SLOW; 2], 0).is_some(), "nothing goes to the other");
    assert_eq!(rule.waits(&[OTHER, SLOW], 1), None);
    rule.now += clock::cycles_in(BACKPRESSURE_ROOM_NANOS);
    let look = Polled::WaitsForReceiver(rule.now + RETRY);
    assert_eq!(rule.waits(&[OTHER, SLOW], 1), Some((1, look, 1)), "its room is gone");
}

/// Only the end of a burst can go back to its ring: frames are completed in their order.
#[test]
fn frames_in_front_of_delivered_frames_do_not_wait() {
    let mut rule = Rule::new();
    assert_eq!(rule.waits(&[OTHER, SLOW, OTHER], 1), None);
    assert!(rule.waits(&[OTHER, OTHER, SLOW], 1).is_some());
    // Frames for a third receiver stay behind the first frame that waits.
    let (at, _, kept) = rule.waits(&[OTHER, SLOW, (3, 0), (3, 0)], 1).expect("the end waits");
    assert_eq!((at, kept), (1, 2));
}

#[test]
fn frames_of_a_draining_ring_and_of_a_device_do_not_wait() {
    let mut rule = Rule::new();
    rule.sender.side.gate.drain_to = Some(9);
    assert_eq!(rule.waits(&[SLOW], 0), None);
    let mut run = Run::EMPTY;
    run.restart(SLOW.0, SLOW.1);
    run.push(0);
    let mut device = Backpressure::new(&rule.ports, 0, None, (rule.now, RETRY));
    assert!(!device.wait(&run, &mut rule.receiver) && device.left.is_none());
}

/// Another sender's frames, and time, earn nothing.
#[test]
fn a_receiver_that_took_nothing_of_the_sender_is_not_waited_for() {
    let mut rule = Rule::new();
    rule.receiver.side.admission = Admission::default();
    rule.receiver.side.admission.record(5, (1_000, 60_000), 0, false);
    rule.now += clock::cycles_in(BACKPRESSURE_ALONE_NANOS);
    assert_eq!(rule.waits(&[SLOW], 0), None);
    rule.receiver.side.admission.record(0, (1, 60), 0, false);
    assert!(rule.waits(&[SLOW], 0).is_some());
}

/// Each frame, or 4 KiB of a frame, earns a sixteenth of a millisecond, up to a millisecond.
#[test]
fn frames_wait_for_the_time_that_deliveries_earned() {
    let most = clock::cycles_in(BACKPRESSURE_NANOS);
    let each = most / BACKPRESSURE_FRAMES;
    for (frames, bytes, earned) in [
        (1, 60, each),
        (5, 300, 5 * each),
        (16, 960, 16 * each),
        (1_000, 60_000, most),
        (1, 3 * BACKPRESSURE_FRAME_BYTES, 4 * each),
    ] {
        let mut lab = Lab::new();
        let mut state = lab.ports[1].as_guest().unwrap().rx[0].lock();
        state.side.admission = Admission::default();
        state.side.admission.record(0, (frames, bytes), 0, false);
        drop(state);
        let start = lab.cycle;
        while matches!(lab.turn(), Polled::WaitsForReceiver(_)) {
            lab.cycle += most / 1_000;
        }
        let waited = lab.cycle - start;
        assert!(waited.abs_diff(earned) <= most / 100, "{frames}: {waited} of {earned}");
        assert_eq!((no_buffer(&lab), lab.sent()), (64, (64, 0)), "the others are dropped");
    }
}

fn no_buffer(lab: &Lab) -> u64 {
    lab.ports[1].as_guest().unwrap().rx[0].stats.drops.get(DropReason::NoBuffer)
}

/// Frames that wait for a receiver are unfinished work, for which the worker may spin; a ring with
/// paused memory is not.
#[test]
fn a_paused_ring_waits_for_no_receiver() {
    let mut lab = Lab::new();
    assert!(matches!(lab.turn(), Polled::WaitsForReceiver(_)));
    let mut state = lab.ports[0].as_guest().unwrap().tx[0].lock();
    state.memory.charge(clock::cycles_in(1_000_000), clock::cycles());
    drop(state);
    assert!(matches!(lab.turn(), Polled::RetryAt(_)));
}

/// Runs turns as long as frames wait, and checks that they wait for `most` cycles.
fn waits_for(lab: &mut Lab, most: u64, is_waiting: impl Fn(&mut Lab) -> bool) {
    let start = lab.cycle;
    while is_waiting(lab) {
        lab.cycle += most / 100;
    }
    let waited = lab.cycle - start;
    assert!((most * 98 / 100..=most * 103 / 100).contains(&waited), "{waited} of {most}");
}

/// Frames wait for a receiver that takes nothing only as long as the receiver has earned.
#[test]
fn frames_wait_for_a_millisecond_at_most() {
    let mut lab = Lab::new();
    waits_for(&mut lab, clock::cycles_in(BACKPRESSURE_NANOS), |lab| {
        matches!(lab.turn(), Polled::WaitsForReceiver(_))
    });
    assert_eq!(no_buffer(&lab), 64);
}

/// A thread that holds the receiver's lock may have lost its CPU: frames wait for more than a time
/// slice of the scheduler.
#[test]
fn frames_wait_for_the_lock_of_their_receiver() {
    let mut lab = Lab::new();
    waits_for(&mut lab, clock::cycles_in(LOCK_WAIT_NANOS), |lab| {
        lab.turn_beside_a_holder() == Polled::Locked
    });
    assert_eq!(lab.ports[1].stats.drops.get(DropReason::RingBusy), 64);
}

/// In a ring that sends to several receivers without room, frames wait for an eighth of the time.
#[test]
fn frames_in_front_of_others_wait_an_eighth_as_long() {
    let mut lab = Lab::new();
    let (cycle, most) = (lab.cycle, clock::cycles_in(BACKPRESSURE_NANOS));
    lab.ports[0].as_guest().unwrap().tx[0].lock().side.gate.last.note(None, cycle);
    waits_for(&mut lab, most / BACKPRESSURE_MIXED_PRICE, |lab| {
        matches!(lab.turn(), Polled::WaitsForReceiver(_))
    });
    assert_eq!(no_buffer(&lab), 64);
}

/// Frames do not wait in a ring that lately sent to another receiver with room, nor for a receiver
/// that has taken nothing of their port.
#[test]
fn frames_that_may_not_wait_are_dropped() {
    for others in [false, true] {
        let mut lab = Lab::new();
        if others {
            let cycle = lab.cycle;
            let mut state = lab.ports[0].as_guest().unwrap().tx[0].lock();
            state.side.gate.last.note(None, cycle);
            state.side.gate.roomy.note((7, 0), cycle);
        } else {
            let mut state = lab.ports[1].as_guest().unwrap().rx[0].lock();
            state.side.admission = Admission::default();
        }
        assert_eq!(lab.turn(), Polled::More);
        assert_eq!((no_buffer(&lab), lab.turn()), (64, Polled::Empty));
    }
}

/// A frame waits for a receiver without buffers in front of frames for a receiver with a rate. If
/// the rate drops frames at the end of the burst, no frame waits, and each frame is counted once;
/// if the rate admits all frames, the frames that wait cost no rate.
#[test]
fn a_frame_in_front_of_frames_for_a_rate_is_counted_once() {
    for packets in [10, 63] {
        let rate = Rate { bits: 0, packets: 1 };
        let output = Limit { rate, burst: Size { bytes: 0, packets } };
        let mut lab = Lab::with(Limit::default(), output);
        lab.send_to_another();
        lab.ports[0].as_guest().unwrap().tx[0].lock().side.gate.last.note(None, lab.cycle);
        let waits = matches!(lab.turn(), Polled::WaitsForReceiver(_));
        assert_eq!(waits, packets == 63);
        lab.cycle += clock::cycles_in(2 * BACKPRESSURE_NANOS);
        for _ in 0..3 {
            lab.turn();
        }
        let got = |id: PortId| lab.ports[id].as_guest().unwrap().rx[0].stats.frames.get();
        let lost = lab.ports[2].stats.drops.get(DropReason::Rate);
        assert_eq!((got(1), got(2), lost, no_buffer(&lab)), (0, packets, 63 - packets, 1));
        assert_eq!(lab.sent(), (64, 0));
    }
}

#[test]
fn frames_wait_in_front_of_others_only_if_no_other_receiver_has_room() {
    let (mut gate, long) = (Gate::default(), clock::cycles_in(BACKPRESSURE_ROOM_NANOS));
    let (slow, roomy) = ((1, 0), (2, 0));
    gate.last.note(None, 1_000);
    assert_eq!(gate.price(slow, 1_000), Some(BACKPRESSURE_MIXED_PRICE), "nobody has room");
    gate.roomy.note(slow, 1_000);
    assert_eq!(gate.price(slow, 1_000), Some(BACKPRESSURE_MIXED_PRICE), "its own room");
    gate.roomy.note(roomy, 2_000);
    gate.roomy.note(slow, 2_001);
    assert_eq!(gate.price(slow, 1_999 + long), None);
    assert_eq!(gate.price(roomy, 2_000 + long), None);
    assert_eq!(gate.price(slow, 2_000 + long), Some(BACKPRESSURE_MIXED_PRICE));
    let alone = 3_000 + clock::cycles_in(BACKPRESSURE_ALONE_NANOS);
    gate.last.note(Some(slow), 3_000);
    gate.roomy.note(roomy, alone);
    assert_eq!(gate.price(slow, alone - 1), None, "the other had room");
    assert_eq!(gate.price(slow, alone), Some(1), "nothing goes to the other");
}

#[test]
fn a_ring_waits_only_where_all_its_bursts_have_gone() {
    let (mut last, long) = (LastReceiver::default(), clock::cycles_in(BACKPRESSURE_ALONE_NANOS));
    let (one, other) = ((1, 0), (2, 0));
    last.note(Some(one), 1_000);
    assert!(!last.is_only(one, 999 + long) && last.is_only(one, 1_000 + long));
    last.note(Some(one), 2_000 + long);
    assert!(last.is_only(one, 2_000 + long) && !last.is_only(other, 2_000 + long));
    for others in [Some(other), Some((1, 1)), None] {
        last.note(others, 3_000 + long);
        last.note(Some(one), 4_000 + long);
        assert!(!last.is_only(one, 3_999 + 2 * long) && last.is_only(one, 4_000 + 2 * long));
    }
}
