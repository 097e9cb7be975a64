//! Receive rings whose lock another thread holds: a session for a moment, or a worker that lost its
//! CPU or waits for a page.

use std::sync::{Arc, mpsc};

use super::*;
use crate::guard::BlockedWriterWatch;
use crate::port::{PortTable, TxState};
use crate::ring::tests::Guest;
use base::frame::VnetHdr;

/// Far longer than any thread waits, however busy the machine is.
const LOST: Duration = Duration::from_secs(60);

const FRAMES: u64 = 3;

/// A worker with a burst of [`FRAMES`] for port 0, whose receive ring is not started.
struct Lab {
    ports: PortTable,
    stats: WorkerStats,
    watch: BlockedWriterWatch,
    memory: Guest,
}

impl Lab {
    fn new() -> Lab {
        let ports = [Arc::new(Port::guest(0, "held", 1))].into_iter().collect();
        let watch = BlockedWriterWatch::start().unwrap();
        let (stats, memory) = (WorkerStats::default(), Guest::new());
        Lab { ports, stats, watch, memory }
    }

    fn queue(&self) -> &Queue<Rx> {
        &self.ports[0].as_guest().unwrap().rx[0]
    }

    /// Delivers the burst. Returns the number of frames left, and whether the frames wait.
    fn deliver(&self, wait: bool) -> (usize, bool) {
        self.deliver_until(wait, &mut None)
    }

    fn deliver_until(&self, wait: bool, until: &mut Option<Instant>) -> (usize, bool) {
        let (mut sender, sending) = (TxState::default(), Queue::default());
        sender.vring.ring = Some(self.memory.start(&self.memory.queue()));
        let ring = wait.then_some((&mut sender, &sending));
        let backpressure = Backpressure::new(&self.ports, 1, ring, (0, 0));
        let slot = self.watch.register();
        let mut delivery = Delivery {
            worker: 0,
            stats: &self.stats,
            backpressure,
            wait_until: until,
            room: &mut Room::default(),
            stalls: &mut Stalls::new(Arc::clone(&slot.presence)),
            signals: &mut Signals::new(0, slot),
            outcomes: &mut Outcomes::default(),
        };
        let (mut burst, mut plan) = (Burst::default(), Plan::default());
        for i in 0..FRAMES as u8 {
            assert!(burst.push_small(VnetHdr::plain(0), &[0; 60]));
            plan.unicast(i, 0, 0);
        }
        plan.close();
        delivery.deliver(&mut burst, &mut plan);
        let waits = delivery.backpressure.left.is_some();
        (plan.runs()[0].left().len(), waits)
    }

    /// Delivers the burst while this thread holds the ring's lock: the worker must return.
    fn deliver_held(&self, wait: bool) -> (usize, bool) {
        let held = self.queue().lock();
        std::thread::scope(|scope| {
            let (tell, told) = mpsc::channel();
            scope.spawn(move || tell.send(self.deliver(wait)));
            let done = told.recv_timeout(LOST);
            drop(held);
            done.expect("the worker waits for the ring's lock")
        })
    }

    fn busy(&self) -> u64 {
        self.ports[0].stats.drops.get(DropReason::RingBusy)
    }

    fn down(&self) -> u64 {
        self.queue().stats.drops.get(DropReason::PortDown)
    }
}

#[test]
fn a_worker_does_not_park_on_a_ring_that_somebody_holds() {
    let lab = Lab::new();
    assert_eq!(lab.deliver_held(false), (0, false));
    assert_eq!((lab.busy(), lab.stats.lock_parks.get()), (FRAMES, 1));
    // Later bursts do not wait for the lock at all until the lock has been free once.
    for _ in 0..5 {
        assert_eq!(lab.deliver_held(false), (0, false));
    }
    assert_eq!((lab.busy(), lab.stats.lock_parks.get()), (6 * FRAMES, 1));
    // The lock is free.
    assert_eq!(lab.deliver(false), (0, false));
    assert_eq!((lab.busy(), lab.down()), (6 * FRAMES, FRAMES));
    assert!(!lab.queue().must_not_wait());
    lab.deliver_held(false);
    assert_eq!((lab.busy(), lab.stats.lock_parks.get()), (7 * FRAMES, 2));
}

/// A burst with one receiver stays in its sender's ring as long as the wait is permitted.
#[test]
fn frames_for_a_ring_that_is_held_wait_in_their_senders() {
    let lab = Lab::new();
    for _ in 0..3 {
        assert_eq!(lab.deliver_held(true), (FRAMES as usize, true));
    }
    assert_eq!((lab.busy(), lab.stats.lock_parks.get()), (0, 0));
    lab.queue().give_up_lock();
    assert_eq!(lab.deliver_held(true), (0, false));
    assert_eq!(lab.deliver_held(false), (0, false));
    assert_eq!((lab.busy(), lab.stats.lock_parks.get()), (2 * FRAMES, 0));
    assert_eq!(lab.deliver(true), (0, false));
    assert_eq!(lab.down(), FRAMES);
    assert_eq!(lab.deliver_held(true), (FRAMES as usize, true));
}

/// A burst waits for locks once, however many rings are held and however often delivery is tried.
#[test]
fn a_burst_waits_for_rings_once() {
    let (lab, mut until) = (Lab::new(), None);
    let held = lab.queue().lock();
    lab.deliver_until(false, &mut until);
    let end = until.expect("it waited");
    drop(held);
    // The lock is free for a moment, so the ring counts as worth waiting for.
    assert!(lab.queue().lock_again().is_some());
    let held = lab.queue().lock();
    lab.deliver_until(false, &mut until);
    drop(held);
    assert_eq!((until, lab.stats.lock_parks.get()), (Some(end), 2));
    assert_eq!(lab.busy(), 2 * FRAMES);
}

/// No frame is lost to a session that makes the ring quiet for a moment, unless the machine takes
/// the CPU from the session just then: so one of several attempts must succeed.
#[test]
fn a_session_that_makes_a_ring_quiet_costs_nothing() {
    for _ in 0..50 {
        let lab = Lab::new();
        std::thread::scope(|scope| {
            let (tell, told) = mpsc::channel();
            let lab = &lab;
            scope.spawn(move || {
                let quiet = lab.queue().quiet();
                tell.send(()).unwrap();
                std::thread::sleep(Duration::from_micros(100));
                drop(quiet);
            });
            told.recv().unwrap();
            lab.deliver(false);
        });
        assert_eq!(lab.busy() + lab.down(), FRAMES);
        if lab.busy() == 0 {
            return;
        }
    }
    panic!("frames were dropped each time");
}
