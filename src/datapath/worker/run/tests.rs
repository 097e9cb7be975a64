//! Kicks of rings whose lock another thread has, state of ports that are gone, and charges.

use std::sync::mpsc;
use std::time::Duration;

use super::*;
use crate::guard::BlockedWriterWatch;
use crate::pipeline::flood::PendingFlood;
use crate::pipeline::plan::Scope;
use crate::port::device::{Device, fake::Fake};
use crate::port::quantum::Deficit;
use crate::port::{DevicePort, GuestPort, Port, Queue};
use crate::ring::Burst;
use base::frame::Offloads;
use base::limits::RETRY_NANOS;
use base::stats::QueueStats;
use switch::{Fdb, FdbConfig, Rules};

/// Far longer than any thread waits, however busy the machine is.
pub(super) const LOST: Duration = Duration::from_secs(60);

pub(super) fn worker() -> Worker {
    let [worker, _] = worker_and_reserve();
    worker
}

pub(super) fn worker_and_reserve() -> [Worker; 2] {
    let fdb = Fdb::new(FdbConfig::limited(1, 300, [1, 2]));
    let shared = Shared {
        ports: Arc::new(Ports::new([Arc::new(Port::guest(0, "held", 1))].into_iter().collect())),
        fdb: Arc::new(fdb),
        rules: Rules::default(),
        poll: false,
        watch: Arc::new(BlockedWriterWatch::start().unwrap()),
    };
    let threads: Arc<[_]> = (0..2).map(|n| Arc::new(WorkerHandle::new(n).unwrap())).collect();
    let takeovers = threads.iter().map(|handle| Arc::clone(&handle.takeover)).collect();
    let takeovers = Arc::new(Takeovers::new(takeovers, 1, Arc::clone(&shared.ports)));
    [0, 1].map(|number| Worker::new(number, &threads, &takeovers, shared.clone()))
}

/// The holder of the lock, a session or the ring's new worker, may wait for a guest's memory: the
/// kick is kept, and served when the lock is free.
#[test]
fn a_kick_that_meets_a_held_lock_is_served_later() {
    is_served_later(Token::Transmit(0, 0), 1, |guest| &guest.tx[0]);
    is_served_later(Token::Receive(0, 0), 0, |guest| &guest.rx[0]);
}

fn is_served_later<Side: Default>(
    token: Token,
    ready: usize,
    queue: fn(&GuestPort) -> &Queue<Side>,
) {
    let mut worker = worker();
    let ports = Arc::clone(&worker.ports);
    let queue = queue(ports[0].as_guest().unwrap());
    let mut held = queue.lock();
    held.vring.owner = Some(0);
    let mut worker = std::thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        scope.spawn(move || {
            for _ in 0..100 {
                worker.kick(token, true);
                worker.retry_kicks();
            }
            let _ = tell.send(worker);
        });
        let worker = told.recv_timeout(LOST);
        drop(held);
        worker.expect("the worker waits for the ring's lock")
    });
    assert_eq!(worker.inbox.kicked, [(token, true)]);
    assert!(worker.ready.is_empty());
    worker.retry_kicks();
    assert!(worker.inbox.kicked.is_empty());
    assert_eq!((worker.ready.len(), queue.stats.kicks.get()), (ready, 1));
}

pub(super) fn tokens(worker: &Worker) -> Vec<Token> {
    worker.ready.iter().map(|ready| ready.token).collect()
}

/// A note or an event of a new port may come after the worker's check for a new table of ports.
#[test]
fn a_port_is_known_before_its_first_note_or_event_is_taken() {
    let port = |id| Arc::new(Port::guest(id, "new", 1));
    let mut worker = worker();
    worker.present.add(port(1));
    worker.served.handle.look(Token::Transmit(1, 0));
    worker.take_notes();
    assert!(worker.ports.get(1).is_some());
    assert_eq!(tokens(&worker), [Token::Transmit(1, 0)]);
    worker.present.add(port(2));
    worker.take_events();
    assert!(worker.ports.get(2).is_some());
}

#[test]
fn nothing_is_left_of_a_port_that_is_gone_or_another_one() {
    let port = |id| Arc::new(Port::guest(id, "new", 1));
    let mut worker = worker();
    for id in 1..4 {
        worker.present.add(port(id));
    }
    worker.refresh();
    for id in 0..4 {
        worker.ready.mark(Token::Transmit(id, 0));
        worker.inbox.kicked.push((Token::Receive(id, 0), true));
    }
    let handle = Arc::clone(&worker.served.handle);
    let adopted = || handle.adopted.load(Ordering::Acquire);
    let without = worker.present.remove(1);
    worker.present.remove(2);
    let last = worker.present.add(port(2));
    assert!(adopted() < without, "not yet");
    worker.refresh();
    assert_eq!(adopted(), last);
    assert_eq!(tokens(&worker), [Token::Transmit(0, 0), Token::Transmit(3, 0)]);
    let kicked = [Token::Receive(0, 0), Token::Receive(3, 0)];
    assert_eq!(worker.inbox.kicked, kicked.map(|token| (token, true)));
}

/// Returns a flood without frames, which lasts for one part.
pub(super) fn empty_flood() -> PendingFlood {
    let (frames, scope) = (Burst::default().keep(&[]), Scope::FOR_TESTS);
    PendingFlood { frames, scope, next: 0, slot: None, permit: None, deficit: Deficit::default() }
}

/// Floods take the time of a turn, and compete with the sources.
#[test]
fn floods_leave_the_sources_their_turn() {
    let (mut worker, [slow, quick]) = with_devices();
    *slow.lasts.lock().unwrap() = Duration::ZERO;
    for fake in [&slow, &quick] {
        fake.queue(&broadcast());
    }
    (0..100_000).for_each(|_| worker.pipeline.floods.push(empty_flood()));
    worker.turn.now = clock::cycles();
    assert!(worker.turn() && !worker.pipeline.floods.is_empty());
    assert_eq!([1, 2].map(|id| input(&worker, id).frames.get()), [1, 1]);
    assert!(worker.turn.contended);
}

/// A daemon that ends delivers all frames that it has taken; a removed port takes its floods along.
#[test]
fn a_worker_ends_when_its_floods_are_over() {
    let mut worker = worker();
    let slot = Arc::clone(&worker.ports[0].as_guest().unwrap().floods);
    let begin = |worker: &mut Worker| {
        let permit = slot.take(1).ok().map(Arc::new);
        assert!(permit.is_some(), "the flood before is over");
        let slot = Some(Arc::clone(&slot));
        worker.pipeline.floods.push(PendingFlood { slot, permit, ..empty_flood() });
    };
    begin(&mut worker);
    worker.finish_floods();
    begin(&mut worker);
    worker.present.remove(0);
    worker.refresh();
    assert!(worker.pipeline.floods.is_empty() && slot.taken_at().is_none());
}

/// Duration of a look at a slow device.
const SLOW: Duration = Duration::from_millis(20);

/// Returns a worker with two devices, of which the first is slow.
fn with_devices() -> (Worker, [Arc<Fake>; 2]) {
    let mut worker = worker();
    let fakes = [Fake::errno(libc::EAGAIN), Fake::errno(libc::EAGAIN)];
    *fakes[0].lasts.lock().unwrap() = SLOW;
    for (id, fake) in (1..).zip(&fakes) {
        let tap = DevicePort::tap("tap", 1);
        tap.attach(vec![Arc::clone(fake) as Device], Offloads::ALL);
        worker.present.add(Arc::new(Port::device(id, &id.to_string(), tap)));
    }
    worker.refresh();
    worker.ready.mark(Token::Device(1, 0));
    worker.ready.mark(Token::Device(2, 0));
    worker.turn.now = clock::cycles();
    (worker, fakes)
}

pub(super) fn input(worker: &Worker, id: PortId) -> &QueueStats {
    let Endpoint::Device(device) = &worker.ports[id].endpoint else { unreachable!() };
    &device.queues()[0].input
}

pub(super) fn broadcast() -> Vec<u8> {
    [&[0; 12][..], &[0xff; 6], &[2, 0, 0, 0, 0, 9], &[0; 48]].concat()
}

#[test]
fn a_look_in_vain_is_not_charged_to_the_next_source() {
    let (mut worker, [_, quick]) = with_devices();
    quick.queue(&broadcast());
    assert!(worker.turn());
    let [slow, next] = [1, 2].map(|id| clock::time_of(input(&worker, id).cycles.get()));
    assert!(slow >= SLOW && next < SLOW / 2, "{slow:?} and {next:?}");
}

/// Frames in the queue of a device that skips a turn bring no event.
#[test]
fn a_throttled_device_is_not_forgotten() {
    let (mut worker, [slow, quick]) = with_devices();
    (0..3).for_each(|_| slow.queue(&broadcast()));
    quick.queue(&broadcast());
    worker.turn.contended = true;
    let mut turns = Vec::new();
    while input(&worker, 1).frames.get() < 3 && turns.len() < 10 {
        let found = worker.turn();
        worker.after_turn(found);
        worker.turn.now = clock::cycles();
        turns.push((found, input(&worker, 1).frames.get()));
    }
    assert_eq!(turns[..3], [(true, 1), (true, 1), (false, 1)], "it skips a turn");
    assert_eq!(turns.last().unwrap().1, 3, "{turns:?}");
}

/// Frames that wait for a rate, for example, are due at a known time.
#[test]
fn a_worker_does_not_spin_for_a_time_that_it_knows() {
    let mut worker = worker();
    let later = clock::cycles_in(5 * SHORTEST_SLEEP_NANOS);
    let soon = clock::cycles_in(RETRY_NANOS) - 1;
    for (after, receivers, rests) in
        [(later, false, true), (later, true, false), (soon, false, false)]
    {
        worker.turn.now = clock::cycles();
        // A spin pays, and there is credit for a spin.
        worker.spin.woke(worker.turn.now, worker.turn.now);
        worker.spin.work(clock::cycles_in(1_000_000_000));
        worker.ready.take();
        worker.ready.mark(Token::Transmit(0, 0));
        worker.ready[0].retry_at = worker.turn.now + after;
        (worker.turn.waiting, worker.turn.receivers) = (1, receivers);
        assert_eq!(worker.waits_for_time(), rests, "{after} {receivers}");
        // Otherwise the spin depends on the load of the machine.
        assert!(!rests || worker.after_turn(false));
    }
}
