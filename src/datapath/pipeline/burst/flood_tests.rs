//! A flood to more ports than a turn serves: receivers of a turn, order and counters, and changes
//! of ports, rings and workers during the flood.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::tests::{fdb, start_receiving};
use super::*;
use crate::capture::{Capture, Wanted};
use crate::guard::BlockedWriterWatch;
use crate::pipeline::Announcement;
use crate::pipeline::flood::PendingFlood;
use crate::pipeline::plan::Scope;
use crate::port::device::fake::Fake;
use crate::port::table::Ports;
use crate::port::{DevicePort, Endpoint, GuestPort, QueueRef, SessionWaker, Vring};
use crate::ring::tests::{DATA, Guest, desc, describe, offer};
use base::frame::{MacAddr, Offloads};
use base::limits::{BURST_FLOOD_COPIES, FLOOD_RECEIVERS, FLOOD_WAIT_NANOS};
use base::stats::Direction;
use switch::mirror::{Copied, Mirror, Way};
use switch::{FloodLimits, Limit, PortId, PortPolicy, Rate, Size};
use sys::frame_io::Transfer;

const ALL: [u8; 6] = [0xff; 6];
/// Bytes of a guest's buffer.
pub(super) const BUFFER: u64 = 8192;
/// Number of receivers for three parts; the last part is smaller.
const MANY: usize = 2 * FLOOD_RECEIVERS + 40;

/// Port 0, which sends, and guests that receive.
pub(super) struct Lab {
    pub(super) pipelines: [Pipeline; 2],
    pub(super) ports: PortTable,
    stats: WorkerStats,
    pub(super) memory: Vec<Guest>,
    sent: u16,
    /// Cycle of all turns.
    now: u64,
    _watch: BlockedWriterWatch,
}

pub(super) fn mac_of(port: PortId) -> [u8; 6] {
    let [high, low] = port.to_be_bytes();
    [2, 0, 0, 0, high, low]
}

/// Returns a frame that carries `mark`.
fn frame(to: [u8; 6], mark: u8, len: usize) -> Vec<u8> {
    let mut bytes = [&to[..], &mac_of(0), &[0x88, 0xb5]].concat();
    bytes.resize(len, mark);
    bytes
}

impl Lab {
    fn new(receivers: usize) -> Lab {
        Lab::with((0..=receivers as PortId).map(|id| Port::guest(id, &id.to_string(), 1)))
    }

    pub(super) fn with(ports: impl Iterator<Item = Port>) -> Lab {
        let ports: PortTable = ports.map(Arc::new).collect();
        let fdb = Arc::new(fdb(ports.numbers()));
        let watch = BlockedWriterWatch::start().unwrap();
        let pipeline =
            |worker| Pipeline::new(worker, Arc::clone(&fdb), Rules::default(), watch.register());
        let memory: Vec<Guest> = ports.iter().map(|_| Guest::new()).collect();
        for (port, memory) in ports.iter().zip(&memory) {
            if port.as_guest().is_some() {
                start(port, memory);
            }
        }
        let (pipelines, stats) = ([0, 1].map(pipeline), WorkerStats::default());
        Lab { pipelines, ports, stats, memory, sent: 0, now: clock::cycles(), _watch: watch }
    }

    pub(super) fn guest(&self, port: PortId) -> &GuestPort {
        self.ports[port].as_guest().unwrap()
    }

    /// Puts a frame into the sender's ring, which takes 64 frames.
    pub(super) fn send(&mut self, bytes: &[u8]) {
        let (queue, head) = (self.memory[0].queue(), self.sent);
        let at = DATA + BUFFER * u64::from(head);
        self.memory[0].write(at, &[&[0; 12], bytes].concat());
        describe(&queue, head, &[desc(at, 12 + bytes.len() as u32, 0, 0)]);
        self.sent += 1;
        // The mock writes all ring entries again.
        offer(&queue, &(0..self.sent).collect::<Vec<u16>>());
    }

    /// Runs a turn of a worker that looks at the sender's ring. Returns `More` if there may be more
    /// to do.
    fn look(&mut self, worker: usize) -> Polled {
        self.turn(worker, |pipeline, ports, stats| pipeline.guest_burst(ports, 0, 0, stats))
    }

    fn turn(
        &mut self,
        worker: usize,
        look: impl FnOnce(&mut Pipeline, &PortTable, &WorkerStats) -> Polled,
    ) -> Polled {
        let Lab { pipelines, ports, stats, now, .. } = self;
        let pipeline = &mut pipelines[worker];
        pipeline.begin_turn(*now, false, false);
        let goes_on = !pipeline.floods.is_empty();
        (0..pipeline.floods.len()).for_each(|_| _ = pipeline.go_on(ports, stats));
        let next = look(pipeline, ports, stats);
        pipeline.end_turn(ports, stats);
        if goes_on { Polled::More } else { next }
    }

    /// Takes worker 0's flood, like a thread that begins a part of the flood.
    fn take_flood(&self) -> PendingFlood {
        let flood = self.pipelines[0].floods.pop().unwrap();
        flood.permit.as_ref().unwrap().begin_part(self.now);
        flood
    }

    /// Looks until nothing is left, and returns the number of looks that found something.
    pub(super) fn finish(&mut self, worker: usize) -> usize {
        (0..100).take_while(|_| self.look(worker) == Polled::More).count()
    }

    /// Returns the marks of the frames that a port has received, in order.
    fn received(&self, port: PortId) -> Vec<u8> {
        let frames = self.guest(port).rx[0].stats.frames.get();
        let mark = |n| self.memory[usize::from(port)].read(DATA + BUFFER * n + 12 + 14, 1)[0];
        (0..frames).map(mark).collect()
    }

    /// Returns the number of frames that ports have received.
    fn out(&self) -> usize {
        let guests = self.ports.iter().filter_map(|port| port.as_guest());
        guests.map(|guest| guest.rx[0].stats.frames.get() as usize).sum()
    }

    /// Returns the copies, frames and drops that the sender's ring counted.
    fn counted(&self) -> (usize, u64, u64) {
        let stats = &self.guest(0).tx[0].stats;
        let copies = stats.copies.get() + self.ports[0].stats.copies.get();
        (copies as usize, stats.frames.get(), stats.drops.total())
    }
}

/// Starts a guest's rings, with a full receive ring.
fn start(port: &Port, memory: &Guest) {
    let guest = port.as_guest().unwrap();
    if port.id == 0 {
        let mut state = guest.tx[0].lock();
        state.vring.ring = Some(memory.start(&memory.queue()));
        (state.vring.enabled, state.vring.owner) = (true, Some(0));
        return;
    }
    start_receiving(guest, memory, BUFFER);
}

#[test]
fn a_turn_serves_so_many_receivers() {
    let mut lab = Lab::new(MANY);
    lab.send(&frame(ALL, 1, 60));
    for served in [FLOOD_RECEIVERS, 2 * FLOOD_RECEIVERS, MANY] {
        assert_eq!(lab.look(0), Polled::More);
        // The sender's ring is consistent, and each copy is counted when it is made.
        assert_eq!((lab.out(), lab.counted()), (served, (served, 1, 0)));
        assert_eq!(lab.guest(0).tx[0].lock().vring.ring.as_ref().unwrap().base(), 1);
    }
    assert_eq!(lab.look(0), Polled::Empty);
    assert!((1..=MANY as PortId).all(|port| lab.received(port) == [1]));
    assert_eq!((lab.stats.bursts.get(), lab.stats.frames.get()), (1, 1));
    assert_eq!(lab.guest(0).tx[0].stats.bytes.get(), 60);
}

/// A burst floods as many frames together as with few ports, so the cost per frame is equal.
#[test]
fn frames_to_the_same_ports_are_flooded_together_and_in_order() {
    let mut lab = Lab::new(MANY);
    (1..=6).for_each(|mark| lab.send(&frame(ALL, mark, 60)));
    assert_eq!(lab.look(0), Polled::More);
    assert_eq!(lab.out(), BURST_FLOOD_COPIES / 6 * 6);
    assert_eq!((lab.finish(0), lab.counted()), (3, (6 * MANY, 6, 0)));
    assert!((1..=MANY as PortId).all(|port| lab.received(port) == [1, 2, 3, 4, 5, 6]));
}

/// The next flood is not taken while the first flood is in the switch's memory.
#[test]
fn the_next_flood_waits_and_other_frames_do_not() {
    let mut lab = Lab::new(MANY);
    let last = MANY as PortId;
    lab.pipelines[0].fdb.insert_static(MacAddr(mac_of(last)), last).unwrap();
    lab.send(&frame(ALL, 1, 60));
    assert_eq!(lab.look(0), Polled::More);
    lab.send(&frame(mac_of(last), 2, 60));
    lab.send(&frame(ALL, 3, 60));
    assert_eq!((lab.look(0), lab.received(last)), (Polled::More, vec![2]));
    assert_eq!(lab.guest(0).tx[0].lock().vring.ring.as_ref().unwrap().base(), 2);
    assert_eq!((lab.look(0), lab.received(last)), (Polled::More, vec![2, 1]));
    assert_eq!((lab.finish(0), lab.received(last)), (2, vec![2, 1, 3]));
    assert_eq!(lab.counted(), (2 * MANY + 1, 3, 0));
}

/// The worker of the first flood is stuck: the next floods are dropped, and the frames behind them
/// are forwarded.
#[test]
fn a_flood_does_not_wait_for_ever() {
    let mut lab = Lab::new(MANY);
    let last = MANY as PortId;
    lab.pipelines[0].fdb.insert_static(MacAddr(mac_of(last)), last).unwrap();
    lab.send(&frame(ALL, 1, 60));
    assert_eq!(lab.look(0), Polled::More);
    lab.guest(0).tx[0].lock().vring.owner = Some(1);
    lab.send(&frame(ALL, 2, 60));
    lab.send(&frame(mac_of(last), 3, 60));
    assert!(matches!(lab.look(1), Polled::RetryAt(_)));
    let wait = clock::cycles_in(FLOOD_WAIT_NANOS) + 1;
    // A flood may wait long for its next part. A flood that is being served for long is stuck.
    lab.now += wait;
    assert!(matches!(lab.look(1), Polled::RetryAt(_)));
    let stuck = lab.take_flood();
    assert!(matches!(lab.look(1), Polled::RetryAt(_)));
    lab.now += wait;
    assert_eq!((lab.look(1), lab.received(last)), (Polled::More, vec![3]));
    assert_eq!(lab.guest(0).tx[0].stats.drops.get(DropReason::FloodBusy), 1);
    lab.pipelines[0].floods.push(stuck);
    assert_eq!((lab.finish(0), lab.received(last)), (2, vec![3, 1]));
}

/// Waiting for a lock in an earlier turn does not shorten the waiting in a later part.
#[test]
fn a_later_part_waits_for_locks_too() {
    let mut lab = Lab::new(MANY);
    lab.send(&frame(ALL, 1, 60));
    assert_eq!(lab.look(0), Polled::More);
    lab.pipelines[0].context.as_mut().unwrap().wait_until = Some(Instant::now());
    let last = MANY as PortId;
    let ports = lab.ports.clone();
    let held = ports[last].as_guest().unwrap().rx[0].lock();
    std::thread::scope(|scope| {
        let looks = scope.spawn(|| lab.finish(0));
        // Longer than a worker spins, and shorter than a worker waits.
        std::thread::sleep(std::time::Duration::from_millis(2));
        drop(held);
        assert_eq!(looks.join().unwrap(), 2);
    });
    assert_eq!(lab.received(last), [1]);
}

#[test]
fn a_flood_to_few_ports_is_made_at_once() {
    let mut lab = Lab::new(8);
    (0..64).for_each(|mark| lab.send(&frame(ALL, mark, 60)));
    assert_eq!((lab.look(0), lab.counted()), (Polled::More, (64 * 8, 64, 0)));
    assert_eq!(lab.look(0), Polled::Empty);
}

/// Two floods to different ports take two looks if they have too many receivers for one look.
#[test]
fn the_receivers_of_all_floods_count() {
    let policy = |id| PortPolicy { flood_unknown: usize::from(id) % 2 == 0, ..PortPolicy::PLAIN };
    let port = |id: PortId| {
        let port = Port::guest(id, &id.to_string(), 1);
        port.policy.set(policy(id));
        port
    };
    let all = FLOOD_RECEIVERS;
    let mut lab = Lab::with((0..=all as PortId).map(port));
    lab.send(&frame(ALL, 1, 60));
    lab.send(&frame([2, 9, 9, 9, 9, 9], 2, 60));
    assert_eq!((lab.look(0), lab.counted().0), (Polled::More, all));
    assert_eq!((lab.look(0), lab.counted().0), (Polled::More, all + all / 2));
}

/// The cost of the copies limits the receivers of a turn, not only the number of copies.
#[test]
fn long_frames_reach_fewer_receivers_in_a_turn() {
    let mut lab = Lab::new(MANY);
    lab.send(&frame(ALL, 7, 8000));
    assert_eq!(lab.look(0), Polled::More);
    assert!((FLOOD_RECEIVERS / 4..FLOOD_RECEIVERS).contains(&lab.out()), "{}", lab.out());
    lab.finish(0);
    assert_eq!(lab.counted(), (MANY, 1, 0));
    let bytes = lab.memory[MANY].read(DATA + 12, 8000);
    assert_eq!(bytes, frame(ALL, 7, 8000));
}

/// The sender overwrites its buffer after the first part: later receivers get the original bytes.
#[test]
fn what_the_sender_changes_meanwhile_reaches_nobody() {
    let mut lab = Lab::new(MANY);
    lab.send(&frame(ALL, 1, 200));
    assert_eq!(lab.look(0), Polled::More);
    lab.memory[0].write(DATA, &[0xee; 212]);
    lab.finish(0);
    for port in 1..=MANY {
        assert_eq!(lab.memory[port].read(DATA + 12, 200), frame(ALL, 1, 200), "port {port}");
    }
}

/// During a flood, a removed port and a stopped ring get no more frames, and a new port gets
/// frames. The number of copies is the number of delivered and dropped copies.
#[test]
fn receivers_come_and_go_amid_a_flood() {
    let mut lab = Lab::new(MANY);
    let late = FLOOD_RECEIVERS as PortId + 5;
    lab.guest(late).set_active(0, false);
    lab.send(&frame(ALL, 1, 60));
    assert_eq!((lab.look(0), lab.counted().0), (Polled::More, FLOOD_RECEIVERS));
    let [down, stopped, gone, other] = [20, 21, 22, 23].map(|n| late + n);
    lab.guest(late).set_active(0, true);
    lab.guest(down).set_active(0, false);
    lab.guest(stopped).rx[0].lock().vring.ring = None;
    let stays = |port: &&Arc<Port>| ![gone, other].contains(&port.id);
    let (memory, new) = (Guest::new(), Arc::new(Port::guest(other, "new", 1)));
    start(&new, &memory);
    let ports: Vec<_> = lab.ports.iter().filter(stays).cloned().chain([new]).collect();
    lab.ports = ports.into_iter().collect();
    lab.memory[usize::from(other)] = memory;
    lab.finish(0);
    assert_eq!([late, other].map(|port| lab.received(port)), [[1], [1]]);
    let dropped = lab.guest(stopped).rx[0].stats.drops.get(DropReason::PortDown);
    assert_eq!((dropped, lab.out()), (1, MANY - 3));
    assert_eq!(lab.counted(), (MANY - 2, 1, 0));
}

/// A frame that was taken before its ring stopped reaches all receivers.
#[test]
fn a_ring_that_stops_has_sent_its_flood() {
    let mut lab = Lab::new(MANY);
    lab.send(&frame(ALL, 1, 60));
    assert_eq!(lab.look(0), Polled::More);
    QueueRef::Tx(&lab.guest(0).tx[0]).renew(Vring::default(), |_| ());
    let looks = [0; 3].map(|worker| lab.look(worker));
    assert_eq!(looks, [Polled::More, Polled::More, Polled::Unavailable]);
    assert_eq!((lab.out(), lab.counted()), (MANY, (MANY, 1, 0)));
}

/// The first worker finishes a moved ring's flood; the new worker takes the next flood.
#[test]
fn the_flood_of_a_ring_that_moves_goes_on() {
    let mut lab = Lab::new(MANY);
    lab.send(&frame(ALL, 1, 60));
    assert_eq!(lab.look(0), Polled::More);
    lab.guest(0).tx[0].lock().vring.owner = Some(1);
    lab.send(&frame(ALL, 2, 60));
    assert!(matches!(lab.look(1), Polled::RetryAt(_)));
    assert_eq!((lab.finish(0), lab.look(0)), (2, Polled::Unavailable));
    assert_eq!((lab.finish(1), lab.look(1)), (3, Polled::Empty));
    assert!((1..=MANY as PortId).all(|port| lab.received(port) == [1, 2]));
    assert_eq!(lab.counted(), (2 * MANY, 2, 0));
}

/// A port that floods has less time for its next bursts if other ports have work.
#[test]
fn the_sender_pays_for_its_flood() {
    let mut lab = Lab::new(MANY);
    lab.send(&frame(ALL, 1, 60));
    assert_eq!(lab.look(0), Polled::More);
    assert!(lab.guest(0).floods.owes());
    assert_eq!(lab.finish(0), 2);
    let (before, owed) = (lab.guest(0).tx[0].stats.cycles.get(), lab.guest(0).floods.take_owed());
    let long = owed.max(clock::cycles_in(1_000_000));
    lab.guest(0).floods.owe(long);
    lab.pipelines[0].begin_turn(clock::cycles(), true, false);
    let Lab { pipelines, ports, stats, .. } = &mut lab;
    assert_eq!(pipelines[0].guest_burst(ports, 0, 0, stats), Polled::Throttled);
    assert!(lab.guest(0).tx[0].stats.cycles.get() >= before + long);
    assert!(!lab.guest(0).floods.owes(), "once");
}

/// A worker is stuck in a receiver's memory while it serves a flood: the reserve reads the device,
/// whose other frames need not wait for the flood.
#[test]
fn a_device_is_read_though_its_flood_is_stuck() {
    let guests = (1..=MANY as PortId).map(|id| Port::guest(id, &id.to_string(), 1));
    let up = Port::device(0, "up", DevicePort::tap("up", 1));
    let mut lab = Lab::with(guests.chain([up]));
    let fake = Fake::new(Transfer::WouldBlock);
    let Endpoint::Device(device) = &lab.ports[0].endpoint else { unreachable!() };
    device.attach(vec![Arc::clone(&fake) as _], Offloads::NONE);
    lab.pipelines[1].fdb.insert_static(MacAddr(mac_of(1)), 1).unwrap();
    let look = |lab: &mut Lab, worker| {
        lab.turn(worker, |pipeline, ports, stats| pipeline.device_burst(ports, 0, 0, stats))
    };
    fake.queue(&[&[0; 12][..], &frame(ALL, 1, 60)].concat());
    assert_eq!(look(&mut lab, 0), Polled::Drained);
    for (to, mark) in [(ALL, 2), (mac_of(1), 3)] {
        fake.queue(&[&[0; 12][..], &frame(to, mark, 60)].concat());
    }
    assert!(matches!(look(&mut lab, 1), Polled::RetryAt(_)));
    let stuck = lab.take_flood();
    lab.now += clock::cycles_in(FLOOD_WAIT_NANOS) + 1;
    assert_eq!((look(&mut lab, 1), lab.received(1)), (Polled::Drained, vec![1, 3]));
    assert_eq!(device_drops(&lab), 1, "a second long flood");
    drop(stuck);
}

fn device_drops(lab: &Lab) -> u64 {
    let Endpoint::Device(device) = &lab.ports[0].endpoint else { unreachable!() };
    device.queues()[0].input.drops.get(DropReason::FloodBusy)
}

/// A device is read again after the end of its flood; a device that receives gets its copy.
#[test]
fn devices_flood_and_are_flooded_likewise() {
    let device = |id, name| Port::device(id, name, DevicePort::tap(name, 1));
    let guests = (1..=MANY as PortId).map(|id| Port::guest(id, &id.to_string(), 1));
    let last = MANY as PortId + 1;
    let mut lab = Lab::with(guests.chain([device(0, "up"), device(last, "far")]));
    let fakes = [0, last].map(|port| {
        let fake = Fake::new(Transfer::WouldBlock);
        let Endpoint::Device(device) = &lab.ports[port].endpoint else { unreachable!() };
        device.attach(vec![Arc::clone(&fake) as _], Offloads::NONE);
        fake
    });
    *fakes[1].answer.lock().unwrap() = Transfer::Done(0);
    lab.pipelines[0].rules.uplink_to_uplink = true;
    fakes[0].queue(&[&[0; 12][..], &frame(ALL, 1, 60)].concat());
    let look = |lab: &mut Lab| {
        lab.turn(0, |pipeline, ports, stats| pipeline.device_burst(ports, 0, 0, stats))
    };
    assert_eq!((look(&mut lab), lab.out()), (Polled::Drained, FLOOD_RECEIVERS));
    (0..2).for_each(|_| fakes[0].queue(&[&[0; 12][..], &frame(ALL, 2, 60)].concat()));
    assert_eq!((look(&mut lab), lab.out()), (Polled::More, 2 * FLOOD_RECEIVERS));
    assert_eq!(look(&mut lab), Polled::More);
    assert_eq!((lab.out(), fakes[1].counts().1), (MANY + 2 * FLOOD_RECEIVERS, 1));
    assert_eq!((0..9).take_while(|_| look(&mut lab) == Polled::More).count(), 2);
    assert_eq!((lab.out(), fakes[1].counts().1), (3 * MANY, 3));
    assert_eq!(fakes[0].counts().1, 0);
    assert!((1..=MANY as PortId).all(|port| lab.received(port) == [1, 2, 2]));
}

/// A receiver, also the first one, delays the worker during a flood: the sender has its buffers
/// back, and another worker may use the sender's ring.
#[test]
fn a_slow_receiver_does_not_hold_up_the_sender() {
    let far = Port::device(1, "far", DevicePort::tap("far", 1));
    let mut lab = Lab::with([Port::guest(0, "0", 1), far].into_iter());
    let fake = Fake::new(Transfer::Done(0));
    let Endpoint::Device(device) = &lab.ports[1].endpoint else { unreachable!() };
    device.attach(vec![Arc::clone(&fake) as _], Offloads::NONE);
    lab.send(&frame(ALL, 1, 600));
    let Lab { pipelines, ports, stats, .. } = &mut lab;
    let queue = &ports[0].as_guest().unwrap().tx[0];
    pipelines[0].begin_turn(clock::cycles(), false, false);
    let slow = fake.answer.lock().unwrap();
    std::thread::scope(|scope| {
        let burst = scope.spawn(|| pipelines[0].guest_burst(ports, 0, 0, stats));
        while fake.counts().1 == 0 {
            assert!(!burst.is_finished(), "nothing was written: {:?}", queue.stats.drops);
            std::thread::yield_now();
        }
        let is_free = queue.lock_for_burst().is_some();
        let counted = queue.stats.frames.get();
        drop(slow);
        assert_eq!((burst.join().unwrap(), is_free, counted), (Polled::More, true, 1));
    });
    assert_eq!(fake.written.lock().unwrap()[12..], frame(ALL, 1, 600));
}

/// The switch's own frames do not wait for a flood of their port.
#[test]
fn announcements_do_not_wait() {
    let mut lab = Lab::new(MANY);
    lab.guest(0).attach(Arc::new(SessionWaker::new().unwrap()));
    let session = lab.guest(0).session().unwrap();
    lab.send(&frame(ALL, 1, 60));
    assert_eq!((lab.look(0), lab.out()), (Polled::More, FLOOD_RECEIVERS));
    let what = Announcement { port: 0, mac: MacAddr(mac_of(0)), session };
    lab.pipelines[0].announce(&lab.ports, what, &lab.stats);
    let announced = &lab.ports[0].stats.announced;
    assert_eq!((announced.copies.get(), announced.frames.get()), (FLOOD_RECEIVERS as u64, 1));
    assert_eq!(lab.finish(0), 2);
    let copies = 2 * MANY - FLOOD_RECEIVERS;
    assert_eq!((lab.out(), lab.counted()), (2 * MANY, (copies, 1, 0)));
}

/// A guest has at most one flood in the switch's memory, with any number of rings.
#[test]
fn the_rings_of_a_guest_flood_one_after_the_other() {
    let others = (1..=MANY as PortId).map(|id| Port::guest(id, &id.to_string(), 1));
    let mut lab = Lab::with(std::iter::once(Port::guest(0, "0", 2)).chain(others));
    let memory = Guest::new();
    let queue = memory.queue();
    memory.write(DATA, &[&[0; 12][..], &frame(ALL, 2, 60)].concat());
    describe(&queue, 0, &[desc(DATA, 72, 0, 0)]);
    offer(&queue, &[0]);
    let mut state = lab.guest(0).tx[1].lock();
    state.vring.ring = Some(memory.start(&queue));
    (state.vring.enabled, state.vring.owner) = (true, Some(1));
    drop(state);
    lab.send(&frame(ALL, 1, 60));
    assert_eq!(lab.look(0), Polled::More);
    let second = |lab: &mut Lab| {
        lab.turn(1, |pipeline, ports, stats| pipeline.guest_burst(ports, 0, 1, stats))
    };
    for _ in 0..3 {
        assert!(matches!(second(&mut lab), Polled::RetryAt(_)));
        let base = lab.guest(0).tx[1].lock().vring.ring.as_ref().unwrap().base();
        assert_eq!((lab.out(), base), (FLOOD_RECEIVERS, 0));
    }
    assert_eq!((lab.finish(0), second(&mut lab)), (2, Polled::More));
    assert_eq!((0..9).take_while(|_| second(&mut lab) == Polled::More).count(), 2);
    assert!((1..=MANY as PortId).all(|port| lab.received(port) == [1, 2]));
    let waited = &lab.guest(0).tx[1].stats;
    assert_eq!((waited.frames.get(), waited.copies.get()), (1, FLOOD_RECEIVERS as u64));
    assert_eq!(lab.ports[0].stats.copies.get() as usize, 2 * (MANY - FLOOD_RECEIVERS));
}

/// Storm control counts a frame once; a dropped frame reaches no part of the receivers.
#[test]
fn storm_control_is_asked_once() {
    let rate = Rate { bits: 0, packets: 1 };
    let two = Limit { rate, burst: Size { bytes: 0, packets: 2 } };
    let storm = [two, Limit::default(), Limit::default()];
    let sender = Port::guest(0, "0", 1);
    sender.policy.set(PortPolicy { limits_floods: true, ..PortPolicy::PLAIN });
    sender.rates.set([Limit::default(); 2], storm);
    let others = (1..=MANY as PortId).map(|id| Port::guest(id, &id.to_string(), 1));
    let mut lab = Lab::with(std::iter::once(sender).chain(others));
    (1..=3).for_each(|mark| lab.send(&frame(ALL, mark, 60)));
    lab.finish(0);
    assert!((1..=MANY as PortId).all(|port| lab.received(port) == [1, 2]));
    assert_eq!(lab.counted(), (2 * MANY, 3, 1));
    assert_eq!(lab.guest(0).tx[0].stats.drops.get(DropReason::Storm), 1);
}

/// The rate of a receiver also limits later parts of a flood.
#[test]
fn the_rate_of_each_receiver_holds() {
    let rate = Rate { bits: 0, packets: 1 };
    let one = Limit { rate, burst: Size { bytes: 0, packets: 1 } };
    let last = MANY as PortId;
    let port = |id: PortId| {
        let port = Port::guest(id, &id.to_string(), 1);
        if id == last {
            port.rates.set([Limit::default(), one], FloodLimits::default());
        }
        port
    };
    let mut lab = Lab::with((0..=last).map(port));
    (1..=3).for_each(|mark| lab.send(&frame(ALL, mark, 60)));
    lab.finish(0);
    assert_eq!((lab.received(last - 1), lab.received(last)), (vec![1, 2, 3], vec![1]));
    assert_eq!(lab.ports[last].stats.drops.get(DropReason::Rate), 2);
    assert_eq!((lab.out(), lab.counted()), (3 * MANY - 2, (3 * MANY, 3, 0)));
}

/// Captures and mirrors see each sent frame once, and each copy at its port.
#[test]
fn observers_see_each_copy_once() {
    let mut lab = Lab::new(MANY + 1);
    let [first, last, to] = [1, MANY as PortId, MANY as PortId + 1];
    let wanted =
        Wanted { ports: vec![0, first, last], drops_only: false, filter: None, snaplen: 60 };
    let capture = Arc::new(Capture::new(wanted, 1));
    let mirror = |name: &str, from: PortId, way| Mirror {
        name: name.to_owned(),
        from: from.to_string(),
        to: to.to_string(),
        frames: Copied { way, vlan: None, snaplen: None },
    };
    let ports = Ports::new(lab.ports.clone());
    assert!(ports.begin_capture(&capture));
    assert!(ports.set_mirrors(vec![mirror("in", 0, Way::In), mirror("out", last, Way::Out)]));
    lab.ports = PortTable::clone(&ports.present());
    lab.send(&frame(ALL, 1, 60));
    for _ in 0..4 {
        // A worker has little time for captures in a turn.
        std::thread::sleep(std::time::Duration::from_millis(5));
        lab.look(0);
    }
    let mut batches = Vec::new();
    capture.collect(&mut batches);
    let seen: Vec<_> = (0..batches[0].len())
        .map(|at| batches[0].get(at).unwrap().0)
        .map(|packet| (packet.port, packet.direction, packet.dropped))
        .collect();
    let [came, went] = [Direction::In, Direction::Out];
    assert_eq!(seen, [(0, came, None), (first, went, None), (last, went, None)]);
    assert_eq!((lab.received(to), capture.take_lost()), (vec![1, 1], 0));
}

/// The receivers that a panic leaves unserved are counted.
#[test]
fn a_panic_amid_the_receivers_is_counted() {
    for settled in 0..=4 {
        let (port, mut context) = (Port::guest(0, "0", 1), BurstContext::default());
        let ended = catch_unwind(AssertUnwindSafe(|| {
            let unsettled = flood::Unsettled { context: &mut context, from: &port };
            let plan = &mut unsettled.context.plan;
            let group = plan.flood_group(0, Scope::FOR_TESTS, |targets| targets.extend([1, 2, 3]));
            (0..2).for_each(|frame| group.push(frame));
            group.limit(2);
            *unsettled.context.plan.floods_left().2 += settled;
            panic!("injected: amid the receivers of a flood");
        }));
        assert!(ended.is_err());
        assert_eq!(port.stats.drops.get(DropReason::Panicked), 4 - settled as u64);
    }
}
