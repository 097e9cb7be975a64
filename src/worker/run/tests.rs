//! Kicks of rings whose lock somebody else has, what is left of ports that are gone, and who pays
//! for what.

use std::sync::mpsc;
use std::time::Duration;

use super::*;
use crate::frame::Offloads;
use crate::guard::BlockedWriterWatch;
use crate::limits::{FDB_MAX_ENTRIES, FDB_MAX_PER_PORT, FDB_RESERVED_PER_PORT};
use crate::port::device::{Device, fake::Fake};
use crate::port::{DevicePort, GuestPort, Port};
use crate::stats::QueueStats;
use crate::switch::{Fdb, FdbConfig, Rules};

/// Far longer than anybody waits, however busy the machine is.
const LOST: Duration = Duration::from_secs(60);

fn worker() -> Worker {
    let fdb = Fdb::new(FdbConfig {
        max_entries: FDB_MAX_ENTRIES,
        max_per_port: FDB_MAX_PER_PORT,
        reserved_per_port: FDB_RESERVED_PER_PORT,
        age_seconds: 300,
        ports: 1,
        key: [1, 2],
    });
    let shared = Shared {
        ports: Arc::new(Ports::new([Arc::new(Port::guest(0, "held", 1))].into_iter().collect())),
        fdb: Arc::new(fdb),
        rules: Rules::default(),
        poll: false,
        watch: Arc::new(BlockedWriterWatch::start().unwrap()),
    };
    Worker::new(0, [Arc::new(WorkerHandle::new().unwrap())].into(), shared)
}

/// Whoever holds the lock, a session or the worker that the ring moved to, may be waiting for a
/// guest's memory: the kick is kept, and served once the lock is free.
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
    assert_eq!(worker.kicked, [(token, true)]);
    assert!(worker.ready.is_empty());
    worker.retry_kicks();
    assert!(worker.kicked.is_empty());
    assert_eq!((worker.ready.len(), queue.stats.kicks.get()), (ready, 1));
}

fn tokens(worker: &Worker) -> Vec<Token> {
    worker.ready.iter().map(|ready| ready.token).collect()
}

/// A note or an event of a new port may come after the worker's look at the table of ports.
#[test]
fn a_port_is_known_before_its_first_note_or_event_is_taken() {
    let port = |id| Arc::new(Port::guest(id, "new", 1));
    let mut worker = worker();
    worker.present.add(port(1));
    worker.handle.look(Token::Transmit(1, 0));
    worker.take_notes();
    assert!(worker.ports.get(1).is_some());
    assert_eq!(tokens(&worker), [Token::Transmit(1, 0)]);
    worker.present.add(port(2));
    worker.take_events(0);
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
        worker.mark_ready(Token::Transmit(id, 0));
        worker.kicked.push((Token::Receive(id, 0), true));
    }
    let handle = Arc::clone(&worker.handle);
    let adopted = || handle.adopted.load(Ordering::Acquire);
    let without = worker.present.remove(1);
    worker.present.remove(2);
    let last = worker.present.add(port(2));
    assert!(adopted() < without, "not yet");
    worker.refresh();
    assert_eq!(adopted(), last);
    assert_eq!(tokens(&worker), [Token::Transmit(0, 0), Token::Transmit(3, 0)]);
    let kicked = [Token::Receive(0, 0), Token::Receive(3, 0)];
    assert_eq!(worker.kicked, kicked.map(|token| (token, true)));
}

/// How long a look at a slow device lasts.
const SLOW: Duration = Duration::from_millis(20);

/// A worker with two devices, at the first of which each look lasts.
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
    worker.mark_ready(Token::Device(1, 0));
    worker.mark_ready(Token::Device(2, 0));
    worker.now = clock::cycles();
    (worker, fakes)
}

fn input(worker: &Worker, id: PortId) -> &QueueStats {
    let Endpoint::Device(device) = &worker.ports[id].endpoint else { unreachable!() };
    &device.queues()[0].input
}

fn broadcast() -> Vec<u8> {
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

/// What lies in the queue of a device that skips a turn brings no event.
#[test]
fn a_throttled_device_is_not_forgotten() {
    let (mut worker, [slow, quick]) = with_devices();
    (0..3).for_each(|_| slow.queue(&broadcast()));
    quick.queue(&broadcast());
    worker.contended = true;
    let mut turns = Vec::new();
    while input(&worker, 1).frames.get() < 3 && turns.len() < 10 {
        let found = worker.turn();
        worker.after_turn(found);
        worker.now = clock::cycles();
        turns.push((found, input(&worker, 1).frames.get()));
    }
    assert_eq!(turns[..3], [(true, 1), (true, 1), (false, 1)], "it skips a turn");
    assert_eq!(turns.last().unwrap().1, 3, "{turns:?}");
}
