//! An eventfd with many waiters: a guest whose call descriptor costs its writer milliseconds is
//! dropped. A write wakes each of the crowd, in the kernel and in the writer's time: with 2 million
//! waits, which a front-end without privileges can make, 0.2 s for one signal. The writer is the
//! worker that delivers other guests' frames.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use super::descriptors::epoll;
use super::lab::{SOON, small};
use testkit::frontend::{feat, req};
use testkit::hostile::refill;
use testkit::long;
use testkit::net::{Job, Net, Sizes};
use testkit::proc::{Daemon, wait_for};
use testkit::sys::{self, EventFd};
use testkit::traffic::To;
use testkit::vm::Vm;

/// Lets `copies` × `sets` wait for an eventfd.
fn crowd(event: &EventFd, copies: usize, sets: usize) -> Vec<OwnedFd> {
    use std::os::fd::{AsFd, AsRawFd};
    let copies: Vec<OwnedFd> =
        (0..copies).map(|_| event.as_fd().try_clone_to_owned().expect("copy")).collect();
    let numbers: Vec<_> = copies.iter().map(|copy| copy.as_raw_fd()).collect();
    let sets = (0..sets).map(|_| epoll(&numbers));
    sets.chain(copies.iter().map(|copy| copy.try_clone().expect("copy"))).chain([]).collect()
}

/// How long a write to it takes.
fn write_time(event: &EventFd) -> Duration {
    let begun = Instant::now();
    event.write(1);
    begun.elapsed()
}

/// A guest whose call descriptor costs the writer milliseconds is dropped after a few signals, by a
/// worker or, if the crowd was there before, by its own session; and it cannot come back at once.
/// Its port is closed for 10 s.
#[test]
fn a_crowd_at_the_call_descriptor() {
    sys::raise_nofile();
    let d = Daemon::with(4, &[]);
    let mut net = Net::connect(&d, 2, |c| c);
    // A write that takes more than 50 ms of processor time counts four times, and the time that
    // forgets it passes on a busy machine too.
    let (copies, sets) = if long() { (500, 2000) } else { (250, 1600) };

    // The session finds out.
    let call = EventFd::new();
    let there_before = crowd(&call, copies, sets);
    let slow = write_time(&call);
    println!("a write that wakes {} takes {slow:?}", copies * sets);
    call.take();
    let mut cfg = small(3);
    // Without event indices every frame is signalled.
    cfg.features &= !feat::EVENT_IDX;
    let mut early = super::lab::connect(&d, 3);
    early.set_vring_fd(req::SET_VRING_CALL, 0, Some(call.raw())).expect("sent");
    assert!(early.closed_within(SOON), "not dropped by its session, {slow:?} a signal");
    assert!(call.take() <= 16);
    drop(there_before);

    // A worker finds out.
    cfg.id = 2;
    let mut evil = Vm::connect(&d.socket(2), cfg);
    let call = EventFd::new();
    evil.fe.set_vring_fd(req::SET_VRING_CALL, 0, Some(call.raw())).expect("set");
    evil.settle();
    call.take();
    let waiting = crowd(&call, copies, sets);
    // Some broadcasts find its signals put off.
    let dropped = wait_for(SOON, || {
        net.run(&[Job::new(0, To::Broadcast, 1, Sizes::Fixed(60))]);
        refill(&evil.guest.rx[0].ring);
        evil.fe.closed_within(Duration::from_millis(5))
    });
    assert!(dropped, "not dropped by a worker\n{}", d.log());
    let signals = call.take();
    assert!((1..=17).contains(&signals), "{signals} slow signals");
    drop(waiting);

    // It is not taken again for a while, and its port does not keep the daemon from ending.
    let mut again = super::lab::connect(&d, 2);
    let sent = again.send(req::GET_FEATURES, testkit::frontend::VERSION, &[], &[]);
    sent.expect("sent, and not read");
    assert!(!again.closed_within(Duration::from_secs(1)));
    if long() {
        assert!(again.reply(req::GET_FEATURES).is_err(), "too soon");
        let back = wait_for(Duration::from_secs(30), || again.reply(req::GET_FEATURES).is_ok());
        assert!(back, "never taken again");
    }
    net.run(&[Job::new(0, To::Vm(1), 500, Sizes::Range(60, 1514))]);
    net.finish();
    drop(net);
    d.stop();
}

/// Honest signals are never that slow, however busy the machine: a guest that is signalled for each
/// frame stays.
#[test]
fn honest_calls_are_not_taken_for_a_crowd() {
    let d = Daemon::with(2, &[]);
    let mut net = Net::connect(&d, 2, |mut cfg| {
        cfg.features &= !feat::EVENT_IDX;
        cfg
    });
    for _ in 0..200 {
        net.run(&[Job::new(0, To::Vm(1), 20, Sizes::Fixed(60))]);
    }
    net.books(&d);
    net.finish();
    assert!(!d.log().contains("dropped"), "{}", d.log());
    drop(net);
    d.stop();
}
