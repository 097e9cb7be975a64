//! Kicks of rings whose lock another thread has, state of ports that are gone, charges, and stuck
//! workers.

use std::sync::mpsc;
use std::time::Duration;

use vmm_sys_util::eventfd::EventFd;

use super::*;
use crate::guard::{BlockedWriterWatch, CallFd, Stalled};
use crate::pipeline::flood::PendingFlood;
use crate::pipeline::plan::Scope;
use crate::port::device::{Device, fake::Fake};
use crate::port::quantum::Deficit;
use crate::port::{DevicePort, GuestPort, Port};
use crate::ring::Burst;
use base::frame::Offloads;
use base::limits::RETRY_NANOS;
use base::stats::QueueStats;
use switch::{Fdb, FdbConfig, Rules};
use sys::affinity;
use sys::descriptor::from_eventfd;

/// Far longer than any thread waits, however busy the machine is.
const LOST: Duration = Duration::from_secs(60);

pub(super) fn worker() -> Worker {
    let [worker, _] = worker_and_reserve();
    worker
}

fn worker_and_reserve() -> [Worker; 2] {
    let fdb = Fdb::new(FdbConfig::limited(1, 300, [1, 2]));
    let shared = Shared {
        ports: Arc::new(Ports::new([Arc::new(Port::guest(0, "held", 1))].into_iter().collect())),
        fdb: Arc::new(fdb),
        rules: Rules::default(),
        poll: false,
        watch: Arc::new(BlockedWriterWatch::start().unwrap()),
    };
    let threads = (0..2).map(|n| Arc::new(WorkerHandle::new(n).unwrap())).collect();
    let reserves = Arc::new(Reserves::new(threads, 1, Arc::clone(&shared.ports)));
    [0, 1].map(|number| Worker::new(number, &reserves, shared.clone()))
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

fn tokens(worker: &Worker) -> Vec<Token> {
    worker.ready.iter().map(|ready| ready.token).collect()
}

/// A note or an event of a new port may come after the worker's check for a new table of ports.
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
    assert_eq!(worker.inbox.kicked, kicked.map(|token| (token, true)));
}

/// Returns a flood without frames, which lasts for one part.
fn empty_flood() -> PendingFlood {
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
    (0..100_000).for_each(|_| worker.pipeline.floods().push(empty_flood()));
    worker.turn.now = clock::cycles();
    assert!(worker.turn() && !worker.pipeline.floods().is_empty());
    assert_eq!([1, 2].map(|id| input(&worker, id).frames.get()), [1, 1]);
    assert!(worker.turn.contended);
}

/// A reserve serves its worker's floods, and leaves the floods when the worker is back.
#[test]
fn floods_belong_to_the_worker() {
    let [mut worker, mut reserve] = worker_and_reserve();
    worker.pipeline.floods().push(empty_flood());
    let stalled = Stalled { thread: 0, at: At::NOTHING.0, step: 0 };
    worker.reserves.relieve(0, stalled, &|| true);
    reserve.update_takeover();
    assert_eq!(reserve.pipeline.floods().len(), 1);
    worker.update_takeover();
    reserve.update_takeover();
    assert_eq!([&reserve, &worker].map(|one| one.pipeline.floods().len()), [0, 1]);
    worker.finish_floods();
    assert!(worker.pipeline.floods().is_empty());
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
        worker.pipeline.floods().push(PendingFlood { slot, permit, ..empty_flood() });
    };
    begin(&mut worker);
    worker.finish_floods();
    begin(&mut worker);
    worker.present.remove(0);
    worker.refresh();
    assert!(worker.pipeline.floods().is_empty() && slot.taken_at().is_none());
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

/// Worker 0 is stuck at frames of guest 1, and has noted a signal for guest 0; a reserve works for
/// the worker until it is back.
#[test]
fn a_reserve_works_for_a_worker_that_stands_still() {
    let [mut worker, mut reserve] = worker_and_reserve();
    worker.present.add(Arc::new(Port::guest(1, "slow", 1)));
    let ports = worker.present.present();
    let queue = |id: PortId| &ports[id].as_guest().unwrap().tx[0];
    let called = EventFd::new(libc::EFD_NONBLOCK).unwrap();
    let call = from_eventfd(called.try_clone().unwrap());
    let mut state = queue(0).lock();
    state.vring.call = Some(Arc::new(CallFd::new(call, Arc::default(), 0)));
    worker.pipeline.signals().note(0, true, &mut state.vring, &queue(0).stats);
    drop(state);
    let reserves = Arc::clone(&worker.reserves);
    let relieve = || {
        reserves.relieve(0, Stalled { thread: 0, at: At::sender(1).0, step: 0 }, &|| true);
    };
    relieve();
    // The only reserve has a task.
    relieve();
    assert_eq!(worker.own.stats.stalls.get(), 1);
    assert!(queue(1).lock_for_burst().is_none() && queue(0).lock_for_burst().is_some());

    assert!(reserve.own.takeover.has_news() && !reserve.own.takeover.has_news());
    let held = queue(0).lock();
    reserve.update_takeover();
    assert!(reserve.is_relieving() && reserve.index == 0);
    assert_eq!(tokens(&reserve), [Token::Transmit(0, 0), Token::Transmit(1, 0)]);
    drop(held);
    reserve.settle_debts();
    assert!(
        reserve.inbox.debts.rings.iter().all(|(id, _)| *id == 1),
        "{:?}",
        reserve.inbox.debts.rings
    );
    reserve.pipeline.end_turn(&ports, &reserve.own.stats);
    assert_eq!(called.read().unwrap(), 1, "the signal that the worker owes");
    reserve.handle.look(Token::Receive(0, 0));
    assert!(worker.handle.noted.load(Ordering::Relaxed));

    assert!(worker.own.takeover.has_news());
    // The reserve does not answer, so the worker looks at all sources itself.
    worker.update_takeover();
    assert!(queue(1).lock_for_burst().is_some());
    assert_eq!(tokens(&worker), tokens(&reserve));
    assert!(reserve.own.takeover.has_news());
    reserve.own.stats.frames.add(7);
    reserve.update_takeover();
    assert!(!reserve.is_relieving() && reserve.ready.is_empty());
    assert!(worker.own.takeover.has_news());
    worker.update_takeover();
    assert_eq!((worker.own.stats.frames.get(), reserve.own.stats.frames.get()), (7, 0));
    let mut notes = Vec::new();
    worker.handle.take_notes(&mut notes);
    assert!(notes.contains(&Note::Look(Token::Transmit(0, 0))), "{notes:?}");
    relieve();
    assert_eq!(worker.own.stats.stalls.get(), 2, "and again");
}

/// The watchdog lost its CPU before it acted: by then the thread has continued, and may sleep.
#[test]
fn a_thread_that_went_on_meanwhile_is_woken_and_not_relieved() {
    let [mut worker, mut reserve] = worker_and_reserve();
    worker.present.add(Arc::new(Port::guest(1, "slow", 1)));
    let ports = worker.present.present();
    let is_apart = || ports[1].as_guest().unwrap().tx[0].is_stalled();
    let reserves = Arc::clone(&worker.reserves);
    for at in [At::sender(1), At::NOTHING] {
        let stalled = Stalled { thread: 0, at: at.0, step: 0 };
        reserves.relieve(0, stalled, &|| false);
        assert!(worker.own.wake.read().is_ok(), "it would sleep with its ports kept apart");
        assert!(!reserve.own.takeover.has_news() && worker.own.takeover.has_news());
        worker.update_takeover();
        assert!(!is_apart() && reserves.works_for(0, 0) && reserve.own.takeover.has_news());
        reserve.update_takeover();
        assert!(!reserve.is_relieving() && reserve.own.takeover.duty().is_none());
        assert!(!reserve.own.takeover.has_news(), "it tells itself nothing");
    }
    assert_eq!(worker.own.stats.stalls.get(), 0);
    // Meanwhile another thread works for the worker, too.
    let stalled = Stalled { thread: 0, at: At::sender(1).0, step: 0 };
    reserves.relieve(0, stalled, &|| true);
    assert!(worker.own.wake.read().is_err(), "it stands still, and looks before it sleeps");
    reserves.relieve(0, stalled, &|| false);
    assert!(worker.own.wake.read().is_ok());
}

/// A reserve that continued meanwhile has retired: the next reserve works for the worker, whose own
/// thread is still stuck.
#[test]
fn a_reserve_that_went_on_meanwhile_leaves_the_worker_to_the_next() {
    let [worker, _] = worker_and_reserve();
    let threads = (0..3).map(|n| Arc::new(WorkerHandle::new(n).unwrap())).collect();
    let reserves = Reserves::new(threads, 1, Arc::clone(&worker.present));
    let stalled = Stalled { thread: 0, at: At::NOTHING.0, step: 0 };
    reserves.relieve(0, stalled, &|| true);
    let next = &reserves.threads()[2].takeover;
    reserves.relieve(1, stalled, &|| false);
    assert!(reserves.works_for(2, 0) && next.duty().is_some() && next.has_news());
    assert!(reserves.threads()[1].wake.read().is_ok(), "it retires");
}

/// The worker came back between the two steps, and sent the reserve away itself.
#[test]
fn a_thread_that_comes_back_amid_its_relief_has_none() {
    let [worker, mut reserve] = worker_and_reserve();
    let reserves = Arc::clone(&worker.reserves);
    let comes_back = || {
        assert_eq!(reserves.come_back(0), Some(1), "the reserve does not answer");
        false
    };
    reserves.relieve(0, Stalled { thread: 0, at: At::NOTHING.0, step: 0 }, &comes_back);
    assert!(reserves.works_for(0, 0) && reserve.own.takeover.has_news());
    reserve.update_takeover();
    assert!(!reserve.is_relieving() && reserve.own.takeover.duty().is_none());
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

/// A change that comes after the thread's last check, and before the thread published its sleep.
#[test]
fn a_worker_that_was_told_something_does_not_sleep() {
    let mut worker = worker();
    worker.own.takeover.notify();
    let (tell, told) = mpsc::channel();
    let handle = Arc::clone(&worker.own);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            worker.sleep();
            let _ = tell.send(worker.own.takeover.has_news());
        });
        let woke = told.recv_timeout(LOST / 6);
        let _ = handle.wake.write(1);
        assert_eq!(woke, Ok(true), "it sleeps without having looked");
    });
}

/// A thread gets stuck again before its turn ends, while another thread works for the worker: the
/// memory must be suspended, or the other thread gets stuck next.
#[test]
fn what_a_second_stall_of_a_turn_is_at_is_kept_apart_too() {
    let [mut worker, _] = worker_and_reserve();
    let guests = [1, 2].map(|id| Arc::new(Port::guest(id, &id.to_string(), 1)));
    for port in &guests {
        worker.present.add(Arc::clone(port));
    }
    let apart = || guests.each_ref().map(|port| port.as_guest().unwrap().tx[0].is_stalled());
    for (id, expected) in [(1, [true, false]), (1, [true, false]), (2, [true, true])] {
        let at = At::sender(id).0;
        worker.reserves.relieve(0, Stalled { thread: 0, at, step: 0 }, &|| true);
        assert_eq!(apart(), expected);
    }
    assert_eq!(worker.own.stats.stalls.get(), 1, "relieved once");
    assert!(worker.own.takeover.has_news());
    worker.update_takeover();
    assert_eq!(apart(), [false; 2]);
}

/// A stuck thread may be waiting for a device that a guest sends to: the guest's rings are
/// suspended, and the guest is not charged.
#[test]
fn a_device_that_holds_a_worker_up_is_not_its_senders_fault() {
    let [worker, _] = worker_and_reserve();
    worker.present.add(Arc::new(Port::guest(1, "sender", 1)));
    for (at, alone) in [(At::sender(1).and(7), false), (At::sender(1), true)] {
        worker.reserves.relieve(0, Stalled { thread: 0, at: at.0, step: 0 }, &|| true);
        let suspended = worker.own.takeover.take_suspended();
        assert_eq!(suspended.iter().map(|one| one.alone).collect::<Vec<_>>(), [alone], "{at:?}");
    }
}

/// A reserve is moved to the CPUs of the stuck thread before the reserve is woken: a thread that
/// moves itself queues behind all threads that wait there.
#[test]
fn a_reserve_wakes_where_the_worker_may_run() {
    let [worker, mut reserve] = worker_and_reserve();
    let cpus = affinity::allowed().unwrap();
    let (tell, told) = mpsc::channel();
    let (go, gone) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            affinity::pin(*cpus.first().unwrap()).unwrap();
            reserve.begin();
            tell.send(affinity::allowed().unwrap()).unwrap();
            let _ = gone.recv();
            tell.send(affinity::allowed().unwrap()).unwrap();
        });
        let before = told.recv().unwrap();
        let all = affinity::allowed().unwrap();
        let me = rustix::thread::gettid().as_raw_pid();
        worker.reserves.relieve(0, Stalled { thread: me, at: At::NOTHING.0, step: 0 }, &|| true);
        drop(go);
        assert_eq!((before.len(), told.recv().unwrap()), (1, all));
    });
}

/// A reserve that panicked looks at all sources again, for the worker that the reserve relieves.
#[test]
fn a_reserve_that_panicked_goes_on_for_the_worker() {
    let [worker, mut reserve] = worker_and_reserve();
    worker.reserves.relieve(0, Stalled { thread: 0, at: At::NOTHING.0, step: 0 }, &|| true);
    reserve.update_takeover();
    let taken = tokens(&reserve);
    reserve.ready.take();
    reserve.recover();
    assert!(reserve.is_relieving() && !taken.is_empty());
    assert_eq!(tokens(&reserve), taken);
}

/// Another reserve relieves a stuck reserve, for the same worker.
#[test]
fn a_reserve_that_stands_still_is_relieved() {
    let [worker, _] = worker_and_reserve();
    let threads = (0..3).map(|n| Arc::new(WorkerHandle::new(n).unwrap())).collect();
    let reserves = Reserves::new(threads, 1, Arc::clone(&worker.present));
    let stalled = Stalled { thread: 0, at: At::NOTHING.0, step: 0 };
    let acting = || (0..3).find(|&number| reserves.works_for(number, 0));
    reserves.relieve(2, stalled, &|| true);
    assert_eq!(acting(), Some(0), "one that has nothing to do");
    for (number, next) in [(0, 1), (0, 1), (1, 2), (2, 2)] {
        reserves.relieve(number, stalled, &|| true);
        assert_eq!(acting(), Some(next));
    }
    assert_eq!(reserves.come_back(0), Some(2));
    assert_eq!((acting(), reserves.come_back(0)), (Some(0), None));
}
