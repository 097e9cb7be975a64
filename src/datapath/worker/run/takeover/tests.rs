//! Stuck workers: the thread that relieves a worker, and the worker that comes back.

use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};

use vmm_sys_util::eventfd::EventFd;

use super::super::tests::{LOST, empty_flood, tokens, worker, worker_and_reserve};
use super::*;
use crate::guard::{CallFd, NOWHERE, StuckThread};
use crate::worker::Note;
use switch::PortId;
use sys::affinity;
use sys::descriptor::from_eventfd;

/// A reserve serves its worker's floods, and leaves the floods when the worker is back.
#[test]
fn floods_belong_to_the_worker() {
    let [mut worker, mut reserve] = worker_and_reserve();
    worker.pipeline.floods.push(empty_flood());
    let stuck = StuckThread { thread: 0, at: [NOWHERE; 2], step: 0 };
    worker.all.takeovers.relieve(0, stuck, &|| true);
    reserve.update_takeover();
    assert_eq!(reserve.pipeline.floods.len(), 1);
    worker.update_takeover();
    reserve.update_takeover();
    assert_eq!([&reserve, &worker].map(|one| one.pipeline.floods.len()), [0, 1]);
    worker.finish_floods();
    assert!(worker.pipeline.floods.is_empty());
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
    worker.pipeline.signals.note(0, true, &mut state.vring, &queue(0).stats);
    drop(state);
    let takeovers = Arc::clone(&worker.all.takeovers);
    let stuck = StuckThread { thread: 0, at: [1, NOWHERE], step: 0 };
    let relieve = || takeovers.relieve(0, stuck, &|| true);
    assert_eq!([relieve(), relieve()], [Some(0), None], "the only reserve has a task");
    assert!(queue(1).lock_for_burst().is_none() && queue(0).lock_for_burst().is_some());

    assert!(reserve.own.takeover.has_news() && !reserve.own.takeover.has_news());
    let held = queue(0).lock();
    reserve.update_takeover();
    assert!(reserve.is_relieving() && reserve.served.index == 0);
    assert_eq!(tokens(&reserve), [Token::Transmit(0, 0), Token::Transmit(1, 0)]);
    drop(held);
    reserve.audit_signals();
    assert!(
        reserve.inbox.signal_audit.rings.iter().all(|(id, _)| *id == 1),
        "{:?}",
        reserve.inbox.signal_audit.rings
    );
    reserve.pipeline.end_turn(&ports, &reserve.own.stats);
    assert_eq!(called.read().unwrap(), 1, "the signal that the worker owes");
    reserve.served.handle.look(Token::Receive(0, 0));
    assert!(worker.served.handle.noted.load(Ordering::Relaxed));

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
    worker.served.handle.take_notes(&mut notes);
    assert!(notes.contains(&Note::Look(Token::Transmit(0, 0))), "{notes:?}");
    assert_eq!(relieve(), Some(0), "and again");
}

/// The watchdog lost its CPU before it acted: by then the thread has continued, and may sleep.
#[test]
fn a_thread_that_went_on_meanwhile_is_woken_and_not_relieved() {
    let [mut worker, mut reserve] = worker_and_reserve();
    worker.present.add(Arc::new(Port::guest(1, "slow", 1)));
    let ports = worker.present.present();
    let is_apart = || ports[1].as_guest().unwrap().tx[0].must_not_wait();
    let takeovers = Arc::clone(&worker.all.takeovers);
    for at in [[1, NOWHERE], [NOWHERE; 2]] {
        let stuck = StuckThread { thread: 0, at, step: 0 };
        assert_eq!(takeovers.relieve(0, stuck, &|| false), None);
        assert!(worker.own.wake.read().is_ok(), "it would sleep with its ports kept apart");
        assert!(!reserve.own.takeover.has_news() && worker.own.takeover.has_news());
        worker.update_takeover();
        assert!(!is_apart() && takeovers.works_for(0, 0) && reserve.own.takeover.has_news());
        reserve.update_takeover();
        assert!(!reserve.is_relieving() && reserve.own.takeover.duty().is_none());
        assert!(!reserve.own.takeover.has_news(), "it tells itself nothing");
    }
    // Meanwhile another thread works for the worker, too.
    let stuck = StuckThread { thread: 0, at: [1, NOWHERE], step: 0 };
    takeovers.relieve(0, stuck, &|| true);
    assert!(worker.own.wake.read().is_err(), "it stands still, and looks before it sleeps");
    takeovers.relieve(0, stuck, &|| false);
    assert!(worker.own.wake.read().is_ok());
}

/// The worker came back between the two steps, and sent the reserve away itself.
#[test]
fn a_thread_that_comes_back_amid_its_relief_has_none() {
    let [worker, mut reserve] = worker_and_reserve();
    let takeovers = Arc::clone(&worker.all.takeovers);
    let comes_back = || {
        assert_eq!(takeovers.come_back(0), Some(1), "the reserve does not answer");
        false
    };
    takeovers.relieve(0, StuckThread { thread: 0, at: [NOWHERE; 2], step: 0 }, &comes_back);
    assert!(takeovers.works_for(0, 0) && reserve.own.takeover.has_news());
    reserve.update_takeover();
    assert!(!reserve.is_relieving() && reserve.own.takeover.duty().is_none());
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
        worker.all.takeovers.relieve(
            0,
            StuckThread { thread: me, at: [NOWHERE; 2], step: 0 },
            &|| true,
        );
        drop(go);
        assert_eq!((before.len(), told.recv().unwrap()), (1, all));
    });
}

/// A reserve that panicked looks at all sources again, for the worker that the reserve relieves.
#[test]
fn a_reserve_that_panicked_goes_on_for_the_worker() {
    let [worker, mut reserve] = worker_and_reserve();
    worker.all.takeovers.relieve(0, StuckThread { thread: 0, at: [NOWHERE; 2], step: 0 }, &|| true);
    reserve.update_takeover();
    let taken = tokens(&reserve);
    reserve.ready.take();
    reserve.recover();
    assert!(reserve.is_relieving() && !taken.is_empty());
    assert_eq!(tokens(&reserve), taken);
}
