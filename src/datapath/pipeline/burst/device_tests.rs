//! Bursts of a device whose floods take more than a turn: later receivers get all frames in order,
//! once. Each frame is counted and charged once, whatever happens to the device meanwhile.

use std::sync::Arc;

use super::tests::{fdb, start_receiving};
use super::*;
use crate::guard::BlockedWriterWatch;
use crate::port::device::fake::Fake;
use crate::port::{DevicePort, Endpoint};
use crate::ring::tests::{DATA, Guest};
use base::frame::samples::{asking, tcp};
use base::frame::{MacAddr, Offloads, VnetHdr};
use base::limits::{BURST_FLOOD_COPIES, BURST_FRAMES};
use switch::{FloodLimits, Limit, PortId, Rate, Size};
use sys::frame_io::Transfer;

const GUESTS: usize = 24;
/// Bytes of a guest's buffer.
const BUFFER: u64 = 2048;
/// Number of guests that get a full burst in one turn.
const AT_ONCE: usize = BURST_FLOOD_COPIES / BURST_FRAMES;
/// Bytes of a frame; more than a snapshot.
const LEN: usize = 400;

/// A TAP, and guests with as many buffers as a burst has frames.
struct Lab {
    pipelines: [Pipeline; 2],
    ports: PortTable,
    stats: WorkerStats,
    memory: Vec<Guest>,
    fake: Arc<Fake>,
    _watch: BlockedWriterWatch,
}

/// Returns a broadcast frame that carries `mark`.
fn frame(mark: u8) -> Vec<u8> {
    let mut bytes = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 0], &[0x88, 0xb5]].concat();
    bytes.resize(LEN, mark);
    bytes
}

impl Lab {
    /// Creates a lab whose TAP holds `frames` broadcasts.
    fn new(frames: u8) -> Lab {
        let lab = Lab::limited(Limit::default());
        (0..frames).for_each(|mark| lab.queue(VnetHdr::plain(0), &frame(mark)));
        lab
    }

    /// Creates a lab with the rate `input` for frames from the TAP.
    fn limited(input: Limit) -> Lab {
        let up = Port::device(0, "up", DevicePort::tap("up", 1));
        up.rates.set([input, Limit::default()], FloodLimits::default());
        let guests = (1..=GUESTS as PortId).map(|id| Port::guest(id, &id.to_string(), 1));
        let ports: PortTable = std::iter::once(up).chain(guests).map(Arc::new).collect();
        let fake = Fake::new(Transfer::WouldBlock);
        let Endpoint::Device(device) = &ports[0].endpoint else { unreachable!() };
        device.attach(vec![Arc::clone(&fake) as _], Offloads::ALL);
        let memory: Vec<Guest> = (0..GUESTS).map(|_| Guest::new()).collect();
        for (port, memory) in ports.iter().skip(1).zip(&memory) {
            start_receiving(port.as_guest().unwrap(), memory, BUFFER);
        }
        let (fdb, watch) = (Arc::new(fdb(ports.numbers())), BlockedWriterWatch::start().unwrap());
        let pipeline =
            |worker| Pipeline::new(worker, Arc::clone(&fdb), Rules::default(), watch.register());
        let (pipelines, stats) = ([0, 1].map(pipeline), WorkerStats::default());
        Lab { pipelines, ports, stats, memory, fake, _watch: watch }
    }

    fn queue(&self, header: VnetHdr, frame: &[u8]) {
        self.fake.queue(&[&header.to_bytes()[..], frame].concat());
    }

    /// Runs a turn of a worker that looks at the TAP.
    fn look(&mut self, worker: usize) -> Polled {
        let Lab { pipelines, ports, stats, .. } = self;
        let pipeline = &mut pipelines[worker];
        pipeline.begin_turn(clock::cycles(), false, false);
        (0..pipeline.floods.len()).for_each(|_| _ = pipeline.go_on(ports, stats));
        let next = pipeline.device_burst(ports, 0, 0, stats);
        pipeline.end_turn(ports, stats);
        next
    }

    /// Returns the number of guests that got `count` frames, which are the TAP's frames in order;
    /// the other guests got none.
    fn received(&self, count: usize) -> usize {
        let frames = |port: &Port| port.as_guest().unwrap().rx[0].stats.frames.get() as usize;
        let guests = self.ports.iter().filter(|port| port.as_guest().is_some());
        let mut served = 0;
        for (port, memory) in guests.zip(&self.memory) {
            let got = frames(port);
            assert!(got == count || got == 0, "port {}: {got}", port.name);
            served += usize::from(got == count);
            for mark in 0..got {
                let bytes = memory.read(DATA + BUFFER * mark as u64 + 12, LEN);
                assert_eq!(bytes, frame(mark as u8), "port {}", port.name);
            }
        }
        served
    }

    fn input(&self) -> &QueueStats {
        let Endpoint::Device(device) = &self.ports[0].endpoint else { unreachable!() };
        &device.queues()[0].input
    }

    /// Returns the frames, bytes, copies and drops that the TAP counted.
    fn counted(&self) -> [u64; 4] {
        let QueueStats { frames, bytes, copies, drops, .. } = self.input();
        let copies = copies.get() + self.ports[0].stats.copies.get();
        [frames.get(), bytes.get(), copies, drops.total()]
    }
}

/// Returns the TAP's counters after `frames` broadcasts and `copies` copies.
fn counts(frames: usize, copies: usize) -> [u64; 4] {
    [frames, frames * LEN, copies, 0].map(|count| count as u64)
}

#[test]
fn all_receivers_get_a_burst_in_order_and_once() {
    let mut lab = Lab::new(64);
    for served in [AT_ONCE, 2 * AT_ONCE, GUESTS] {
        // The TAP is not read before all guests have the frames; after that, the TAP is empty.
        match (lab.look(0), served) {
            (Polled::More, AT_ONCE) | (Polled::RetryAt(_), _) | (Polled::Empty, GUESTS) => {}
            (next, served) => panic!("{next:?} with {served} served"),
        }
        assert_eq!((lab.received(64), lab.counted()), (served, counts(64, 64 * served)));
        assert_eq!(lab.fake.counts().0, if served == GUESTS { 65 } else { 64 });
    }
    assert_eq!((lab.look(0), lab.pipelines[0].floods.len()), (Polled::Empty, 0));
    assert_eq!((lab.stats.bursts.get(), lab.stats.frames.get()), (1, 64));
}

/// A device is polled while its flood is unfinished, because no event reports the frames behind the
/// flood.
#[test]
fn the_next_frames_of_a_tap_come_behind_its_flood() {
    let mut lab = Lab::new(30);
    assert_eq!((lab.look(0), lab.received(30)), (Polled::Drained, BURST_FLOOD_COPIES / 30));
    lab.queue(VnetHdr::plain(0), &frame(30));
    assert_eq!((lab.look(0), lab.received(31)), (Polled::Drained, GUESTS));
    assert_eq!(lab.counted(), counts(31, 31 * GUESTS));
}

/// Frames that were read do not depend on the interface any more.
#[test]
fn a_lost_device_changes_nothing() {
    let mut lab = Lab::new(30);
    *lab.fake.answer.lock().unwrap() = Transfer::Gone;
    assert!(matches!(lab.look(0), Polled::Drained | Polled::Unavailable));
    assert!(matches!(lab.look(1), Polled::RetryAt(_)), "another worker does not read");
    assert_eq!((lab.look(0), lab.received(30)), (Polled::Unavailable, GUESTS));
    assert_eq!(lab.counted(), counts(30, 30 * GUESTS));
}

#[test]
fn a_removed_port_takes_its_flood_with_it() {
    let mut lab = Lab::new(64);
    assert_eq!(lab.look(0), Polled::More);
    let port = Arc::clone(lab.ports.iter().next().unwrap());
    lab.ports = lab.ports.iter().skip(1).cloned().collect();
    lab.pipelines[0].floods.forget_gone(&lab.ports);
    assert_eq!((lab.look(0), Arc::strong_count(&port)), (Polled::Unavailable, 1));
    assert_eq!(lab.received(64), AT_ONCE);
    let Endpoint::Device(device) = &port.endpoint else { unreachable!() };
    let queue = &device.queues()[0];
    assert_eq!((queue.input.frames.get(), queue.floods.taken_at()), (64, None));
}

/// The rate of a port counts a frame when the frame is read; a frame that was read always passes.
#[test]
fn a_rate_counts_each_frame_once() {
    let rate = Rate { bits: 0, packets: 1 };
    let mut lab = Lab::limited(Limit { rate, burst: Size { bytes: 0, packets: 60 } });
    (0..64).for_each(|mark| lab.queue(VnetHdr::plain(0), &frame(mark)));
    for served in [AT_ONCE, 2 * AT_ONCE, GUESTS] {
        lab.look(0);
        assert_eq!(lab.received(60), served);
    }
    assert!(matches!(lab.look(0), Polled::RetryAt(_)));
    assert_eq!((lab.fake.counts().0, lab.counted()), (60, counts(60, 60 * GUESTS)));
}

/// The rate counts data from a device that is not a frame.
#[test]
fn a_rate_counts_what_is_no_frame() {
    let rate = Rate { bits: 0, packets: 1 };
    let mut lab = Lab::limited(Limit { rate, burst: Size { bytes: 0, packets: 60 } });
    (0..64).for_each(|_| lab.fake.queue(&[0; 12 + 9]));
    lab.look(0);
    assert!(matches!(lab.look(0), Polled::RetryAt(_)));
    assert_eq!(lab.input().drops.total(), 60);
}

/// The burst includes data that is not a frame, and a unicast frame that asks for an offload.
#[test]
fn all_sorts_of_frames_are_in_a_burst() {
    let mut lab = Lab::new(30);
    lab.fake.queue(&[0; 12 + 9]);
    let mut packet = tcp(false, 500);
    packet[..12].copy_from_slice(&[2, 0, 0, 0, 0, 5, 2, 0, 0, 0, 0, 1]);
    lab.pipelines[0].fdb.insert_static(MacAddr([2, 0, 0, 0, 0, 5]), 5).unwrap();
    lab.queue(asking(false, 0), &packet);
    lab.queue(VnetHdr::plain(0), &frame(30));
    let mut state = lab.ports[5].as_guest().unwrap().rx[0].lock();
    state.vring.ring.as_mut().unwrap().set_offloads(Offloads::ALL);
    drop(state);
    assert_eq!(lab.look(0), Polled::Drained);
    assert_eq!((lab.input().frames.get(), lab.input().drops.total()), (33, 1));
    // Floods are delivered last.
    let bytes = lab.memory[4].read(DATA, 12 + packet.len());
    assert_eq!(bytes[..10], asking(false, 0).to_bytes()[..10]);
    assert_eq!(bytes[12..], packet);
    assert_eq!(lab.look(0), Polled::Empty);
    assert_eq!(lab.counted()[2], (GUESTS * 31 + 1) as u64);
    let last = lab.memory[GUESTS - 1].read(DATA + BUFFER * 30 + 12, LEN);
    assert_eq!(last, frame(30));
}
