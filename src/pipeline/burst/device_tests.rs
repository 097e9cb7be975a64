//! A burst of a device whose floods are more than a turn makes: what is behind the cut comes later,
//! in order, once, and is counted and charged once, whatever becomes of the device meanwhile.

use std::sync::Arc;

use super::tests::{fdb, start_receiving};
use super::*;
use crate::frame::samples::{asking, tcp};
use crate::frame::{MacAddr, Offloads, VnetHdr};
use crate::guard::BlockedWriterWatch;
use crate::limits::BURST_FLOOD_COPIES;
use crate::port::device::fake::Fake;
use crate::port::{DevicePort, Endpoint};
use crate::ring::tests::{DATA, Guest};
use crate::switch::{FloodLimits, Limit, PortId, Rate, Size};
use crate::sys::frame_io::Transfer;

const GUESTS: usize = 24;
/// Bytes of a buffer of the guests.
const BUFFER: u64 = 2048;
/// Frames of a burst that are flooded at once.
const AT_ONCE: usize = BURST_FLOOD_COPIES / GUESTS;
/// Bytes of a frame, more than a snapshot.
const LEN: usize = 400;

/// A TAP before guests, which have as many buffers as a burst has frames.
struct Lab {
    pipelines: [Pipeline; 2],
    ports: PortTable,
    stats: WorkerStats,
    memory: Vec<Guest>,
    fake: Arc<Fake>,
    _watch: BlockedWriterWatch,
}

/// A broadcast that is told from others by `mark`.
fn frame(mark: u8) -> Vec<u8> {
    let mut bytes = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 0], &[0x88, 0xb5]].concat();
    bytes.resize(LEN, mark);
    bytes
}

impl Lab {
    /// Its TAP holds so many broadcasts.
    fn new(frames: u8) -> Lab {
        let lab = Lab::limited(Limit::default());
        (0..frames).for_each(|mark| lab.queue(VnetHdr::plain(0), &frame(mark)));
        lab
    }

    /// With a limit to what comes of its TAP.
    fn limited(input: Limit) -> Lab {
        let up = Port::device(0, "up", DevicePort::tap("up", 1))
            .limited([input, Limit::default()], FloodLimits::default());
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

    /// A look of a worker at the TAP.
    fn look(&mut self, worker: usize) -> Next {
        let Lab { pipelines, ports, stats, .. } = self;
        pipelines[worker].begin_turn(clock::cycles(), false, false);
        let next = pipelines[worker].device_burst(ports, 0, 0, stats);
        pipelines[worker].end_turn(ports, stats);
        next
    }

    /// How many frames each guest has; they are those that the TAP has given, in order.
    fn received(&self) -> usize {
        let frames = |port: &Port| port.as_guest().unwrap().rx[0].stats.frames.get();
        let count = frames(&self.ports[1]);
        for (port, memory) in self.ports.iter().skip(1).zip(&self.memory) {
            assert_eq!(frames(port), count, "port {}", port.name);
            for mark in 0..count {
                let bytes = memory.read(DATA + BUFFER * mark + 12, LEN);
                assert_eq!(bytes, frame(mark as u8), "port {}", port.name);
            }
        }
        count as usize
    }

    fn input(&self) -> &QueueStats {
        let Endpoint::Device(device) = &self.ports[0].endpoint else { unreachable!() };
        &device.queues()[0].input
    }

    /// Frames, bytes, copies and drops that are counted at the TAP.
    fn counted(&self) -> [u64; 4] {
        let QueueStats { frames, bytes, copies, drops, .. } = self.input();
        [frames.get(), bytes.get(), copies.get(), drops.total()]
    }
}

/// What is counted of so many broadcasts.
fn counts(frames: usize) -> [u64; 4] {
    [frames, frames * LEN, frames * GUESTS, 0].map(|count| count as u64)
}

#[test]
fn what_is_cut_off_comes_in_order_and_once() {
    let mut lab = Lab::new(64);
    for done in [AT_ONCE, 2 * AT_ONCE, 3 * AT_ONCE, 64] {
        assert_eq!((lab.look(0), lab.received()), (Next::More, done));
        assert_eq!((lab.counted(), lab.fake.counts().0), (counts(done), 64));
    }
    assert_eq!((lab.look(0), lab.received(), lab.counted()), (Next::Empty, 64, counts(64)));
    assert_eq!((lab.stats.bursts.get(), lab.stats.frames.get()), (4, 64));
}

/// No event tells of frames that the kernel has not any more.
#[test]
fn the_last_frames_of_a_tap_are_not_forgotten() {
    let mut lab = Lab::new(30);
    assert_eq!((lab.look(0), lab.received()), (Next::More, AT_ONCE));
    lab.queue(VnetHdr::plain(0), &frame(30));
    assert_eq!((lab.look(0), lab.received()), (Next::More, 30));
    assert_eq!((lab.look(0), lab.received(), lab.counted()), (Next::Last, 31, counts(31)));
}

/// What was read does not depend on the interface any more, nor on the worker that has read it.
#[test]
fn a_lost_device_and_another_worker_change_nothing() {
    let mut lab = Lab::new(30);
    *lab.fake.answer.lock().unwrap() = Transfer::Gone;
    assert_eq!((lab.look(0), lab.received()), (Next::More, AT_ONCE));
    assert_eq!((lab.look(1), lab.received()), (Next::More, 30));
    assert_eq!((lab.look(1), lab.received(), lab.counted()), (Next::Gone, 30, counts(30)));
}

/// They are not counted then, as those that are in the kernel's queue are not.
#[test]
fn a_removed_port_takes_what_it_has_left_with_it() {
    let mut lab = Lab::new(64);
    assert_eq!(lab.look(0), Next::More);
    let port = Arc::clone(lab.ports.iter().next().unwrap());
    lab.ports = lab.ports.iter().skip(1).cloned().collect();
    assert_eq!((lab.look(0), Arc::strong_count(&port)), (Next::Gone, 1));
    let Endpoint::Device(device) = &port.endpoint else { unreachable!() };
    assert_eq!(device.queues()[0].input.frames.get(), AT_ONCE as u64, "as if never read");
}

/// The rate of a port counts a frame when it is read, and what is read passes.
#[test]
fn a_rate_counts_each_frame_once() {
    let rate = Rate { bits: 0, packets: 1 };
    let mut lab = Lab::limited(Limit { rate, burst: Size { bytes: 0, packets: 60 } });
    (0..64).for_each(|mark| lab.queue(VnetHdr::plain(0), &frame(mark)));
    for done in [AT_ONCE, 2 * AT_ONCE, 60] {
        assert_eq!((lab.look(0), lab.received()), (Next::More, done));
    }
    assert_eq!(lab.fake.counts().0, 60);
    assert!(matches!(lab.look(0), Next::At(_)));
    assert_eq!((lab.received(), lab.counted()), (60, counts(60)));
}

/// What was no frame is counted with the burst it came in; what asks for an offload asks for it
/// later too; and what is behind a cut goes where it would have gone.
#[test]
fn all_sorts_of_frames_are_behind_a_cut() {
    let mut lab = Lab::new(AT_ONCE as u8 + 1);
    lab.fake.queue(&[0; 12 + 9]);
    let mut packet = tcp(false, 500);
    packet[..12].copy_from_slice(&[2, 0, 0, 0, 0, 5, 2, 0, 0, 0, 0, 1]);
    lab.pipelines[0].fdb.insert_static(MacAddr([2, 0, 0, 0, 0, 5]), 5).unwrap();
    lab.queue(asking(false, 0), &packet);
    let mut state = lab.ports[5].as_guest().unwrap().rx[0].lock();
    state.vring.ring.as_mut().unwrap().set_offloads(Offloads::ALL);
    drop(state);
    assert_eq!((lab.look(0), lab.received()), (Next::More, AT_ONCE));
    assert_eq!((lab.input().frames.get(), lab.input().drops.total()), (AT_ONCE as u64 + 1, 1));
    assert_eq!(lab.look(0), Next::More);
    // What floods comes last of a burst.
    let at = DATA + BUFFER * AT_ONCE as u64;
    let bytes = lab.memory[4].read(at, 12 + packet.len());
    assert_eq!(bytes[..10], asking(false, 0).to_bytes()[..10]);
    assert_eq!(bytes[12..], packet);
    assert_eq!(lab.look(0), Next::Empty);
    let counts = (lab.input().frames.get(), lab.input().copies.get());
    assert_eq!(counts, (AT_ONCE as u64 + 3, (GUESTS * (AT_ONCE + 1) + 1) as u64));
}
