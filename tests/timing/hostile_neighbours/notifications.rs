//! Expensive notifications: call descriptors with many waiters, none of them so expensive that the
//! front-end is dropped; and honest guests to whom the same happens, as where each wake-up of a
//! virtual CPU passes through two hypervisors.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::alone;
use testkit::frontend::{feat, req};
use testkit::hostile::{one_buffer, refill, restart_with};
use testkit::neighbours::{Beside, Lab, While, in_one_of_a_few_tries, not_judged};
use testkit::shares::{SIZE, frame, receive, whole};
use testkit::sys::{self, Crowd, EventFd};
use testkit::vm::Vm;

/// The attacker, and who sends to it.
const EVIL: u8 = 2;
const HELPER: u8 = 3;
const PAUSE: Duration = Duration::from_micros(150);
/// How long one of the attacker's notifications takes: far enough from the millisecond for which it
/// is dropped that a busy machine does not make it one.
const WRITE: Duration = Duration::from_micros(200);

/// A guest that is notified of each burst it sends to nobody on so many queues, and of what it
/// receives, through one descriptor.
fn expensive(lab: &mut Lab, pairs: u16, call: &EventFd) -> Vm {
    let mut evil = lab.guest(EVIL, |cfg| {
        (cfg.pairs, cfg.size) = (pairs.into(), SIZE);
        cfg.features &= !feat::EVENT_IDX;
    });
    let bytes = frame(&evil, evil.mac(), 60);
    for pair in 0..u32::from(pairs) {
        restart_with(&mut evil, 2 * pair + 1, |ring| one_buffer(ring, whole(&bytes), 0));
    }
    receive(&mut evil);
    for ring in 0..2 * u32::from(pairs) {
        evil.fe.set_vring_fd(req::SET_VRING_CALL, ring, Some(call.raw())).expect("call");
    }
    evil.settle();
    evil
}

/// What notifications just below what a front-end is dropped for cost bystanders. The control takes
/// as much CPU time from their worker: a thread on its CPU that writes to the same descriptor for a
/// quarter of the time. A machine that takes the CPUs away in the middle of writes makes slow ones
/// of them, for which the attacker is dropped: then it is judged again.
fn harmless(what: &str, pairs: u16) {
    let _alone = alone();
    assert!((0..4).any(|_| stays(what, pairs)), "{what}: dropped each time");
}

/// Judges what bystanders got; false if the attacker was dropped meanwhile.
fn stays(what: &str, pairs: u16) -> bool {
    let cpus = sys::cpus();
    // When the attacker is dropped, its address stays: what its helper sends is not flooded, which
    // would fill the bystanders' rings.
    let keys = format!(",queues={pairs},mac=02:56:53:00:00:02");
    let mut lab = Lab::with_ports(&["", "", &keys, ""], &[]);
    let call = EventFd::new();
    let mut evil = expensive(&mut lab, pairs, &call);
    let mut helper = lab.guest(HELPER, |cfg| cfg.tx_size = SIZE);
    let bytes = frame(&helper, evil.mac(), 60);
    restart_with(&mut helper, 1, |ring| one_buffer(ring, whole(&bytes), 0));
    let (_crowd, write) = Crowd::slowing(&call, WRITE);
    let control = |phase: &While<'_>| {
        let here = sys::cpus();
        sys::pin(0, &cpus[cpus.len() - 1..]);
        phase.every(3 * write, || call.write(1));
        sys::pin(0, &here);
    };
    let Vm { fe, guest } = &mut evil;
    let worker = lab.d.thread("worker-0");
    let waited = AtomicU64::new(0);
    let attack = |phase: &While<'_>| {
        let before = run_queue_nanos(&worker);
        phase.every(PAUSE, || {
            guest.tx.iter().for_each(|tx| refill(&tx.ring));
            refill(&guest.rx[0].ring);
            refill(&helper.guest.tx[0].ring);
        });
        waited.fetch_add(run_queue_nanos(&worker) - before, Ordering::Relaxed);
    };
    in_one_of_a_few_tries(what, || {
        waited.store(0, Ordering::Relaxed);
        let seen = lab.measure(control, attack);
        let (alone, beside) = (&seen.alone, &seen.attacked);
        let waited = Duration::from_nanos(waited.load(Ordering::Relaxed));
        let text = format!("{what}, {write:.1?} a write: control {alone} | beside {beside}");
        println!("{text}, the worker waited {waited:.1?} of {:.1?} for its CPU", beside.took);
        match verdict(&seen) {
            // The control takes the CPU from the worker by another thread.
            Err(_) if waited > beside.took / 20 => Err(not_judged(&text)),
            verdict => seen.judge(verdict),
        }
    });
    let stays = !fe.closed_within(Duration::from_millis(1));
    drop((evil, helper));
    lab.finish();
    stays
}

/// How long a thread stood ready without a CPU, in nanoseconds.
fn run_queue_nanos(thread: &Path) -> u64 {
    let stat = fs::read_to_string(thread.join("schedstat")).expect("schedstat");
    stat.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a time")
}

fn verdict(seen: &Beside) -> Result<(), String> {
    testkit::neighbours::verdict(seen)?;
    let (before, after) = (seen.alone.percentile(99), seen.attacked.percentile(99));
    if after > 2 * before {
        return Err(format!("99 % within {after:.1?}, {before:.1?} beside the control"));
    }
    match seen.attacked.kept() {
        kept if kept < 0.7 => Err(format!("{kept:.2} of the rate kept")),
        _ => Ok(()),
    }
}

/// One pair: two rings that are notified in each turn.
#[test]
#[ignore = "full"]
fn expensive_notifications_of_a_pair() {
    harmless("two rings with expensive notifications", 1);
}

/// Sixteen pairs: as many notifications in each turn.
#[test]
#[ignore = "full"]
fn expensive_notifications_of_sixteen_pairs() {
    harmless("32 rings with expensive notifications", 16);
}

/// A wake-up through two hypervisors.
const NESTED: Duration = Duration::from_micros(150);
const LOST: Duration = Duration::from_secs(60);

/// The median time of so many frames one way and the other, each of which is waited for asleep.
fn round_trip(one: &mut Vm, other: &mut Vm, count: usize) -> Duration {
    let sent = |from: &Vm, to: &Vm| [&to.mac()[..], &from.mac(), &[0x88, 0xb5], &[0; 46]].concat();
    let (there, back) = (sent(one, other), sent(other, one));
    let mut took = Vec::new();
    for _ in 0..count {
        let began = Instant::now();
        for (frame, from, to) in [(&there, 0, 1), (&back, 1, 0)] {
            let vms = [&mut *one, &mut *other];
            vms[from].tx[0].send_waiting(frame, LOST);
            assert!(vms[to].rx[0].wait(LOST), "lost");
            vms[to].rx[0].recv(8, |_, _| ());
        }
        took.push(began.elapsed());
    }
    took.sort();
    took[took.len() / 2]
}

/// Guests whose wake-ups cost as much as those of an attacker, and nobody else is there: to a round
/// trip is added what it costs to write to two such descriptors and to read them, and no pause.
#[test]
#[ignore = "full"]
fn honest_round_trips_with_expensive_notifications() {
    let _alone = alone();
    let mut lab = Lab::new(2, &[]);
    let (mut one, mut other) = (lab.guest(EVIL, |_| ()), lab.guest(HELPER, |_| ()));
    let what = "round trips with expensive notifications";
    in_one_of_a_few_tries(what, || {
        let plain = round_trip(&mut one, &mut other, 200);
        let calls = [&one, &other].map(|vm| &vm.guest.rx[0].ring.call);
        let _crowds = calls.map(|call| Crowd::slowing(call, NESTED));
        let mut costs: Vec<_> = (0..15)
            .map(|_| {
                let began = Instant::now();
                calls.iter().for_each(|call| call.write(1));
                calls.iter().for_each(|call| assert!(call.take() > 0));
                began.elapsed()
            })
            .collect();
        costs.sort();
        let cost = costs[costs.len() / 2];
        let nested = round_trip(&mut one, &mut other, 400);
        println!("{what}: {plain:.1?} without, {nested:.1?} with {cost:.1?} for the descriptors");
        match nested > 3 * (plain + cost) / 2 {
            true => Err(format!("{nested:.1?} instead of {plain:.1?} and {cost:.1?}")),
            false => Ok(()),
        }
    });
    drop((one, other));
    lab.finish();
}

/// Frames that reach `to` in a tenth of a second while both rings are kept full.
fn frames(from: &Vm, to: &Vm) -> u64 {
    let (mut frames, start) = (0u64, Instant::now());
    let mut seen = to.guest.rx[0].ring.used_idx();
    while start.elapsed() < Duration::from_millis(100) {
        refill(&to.guest.rx[0].ring);
        refill(&from.guest.tx[0].ring);
        std::thread::sleep(Duration::from_micros(50));
        let now = to.guest.rx[0].ring.used_idx();
        frames += u64::from(now.wrapping_sub(std::mem::replace(&mut seen, now)));
    }
    frames
}

/// The same for a stream to a guest that asks for a notification of each burst: the sender's bursts
/// get as much of the worker as the notifications.
#[test]
#[ignore = "full"]
fn an_honest_stream_with_expensive_notifications() {
    let _alone = alone();
    let mut lab = Lab::new(2, &[]);
    let mut from = lab.guest(EVIL, |cfg| cfg.tx_size = SIZE);
    let mut to = lab.guest(HELPER, |cfg| {
        cfg.size = SIZE;
        cfg.features &= !feat::EVENT_IDX;
    });
    let bytes = frame(&from, to.mac(), 1514);
    restart_with(&mut from, 1, |ring| one_buffer(ring, whole(&bytes), 0));
    receive(&mut to);
    let what = "a stream with expensive notifications";
    in_one_of_a_few_tries(what, || {
        let plain = frames(&from, &to);
        let (_crowd, write) = Crowd::slowing(&to.guest.rx[0].ring.call, NESTED);
        let nested = frames(&from, &to);
        let kept = nested as f64 / plain as f64;
        println!("{what}: {kept:.2} of {plain} frames kept at {write:.1?} a notification");
        if kept < 0.3 { Err(format!("{kept:.2} of the rate kept")) } else { Ok(()) }
    });
    drop((from, to));
    lab.finish();
}
