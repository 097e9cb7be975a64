//! Guests that take nothing, or little.

use std::time::{Duration, Instant};

use crate::alone;
use testkit::hostile::{one_buffer, refill, restart_with};
use testkit::long;
use testkit::neighbours::{Lab, While, nobody};
use testkit::proc::Daemon;
use testkit::shares::{frame, whole};
use testkit::vm::{Vm, VmConfig};

const LOST: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_micros(150);

/// One of eight guests does not refill its receive ring (10 minutes in the long run); another one
/// sends to it without end, and to everybody now and then.
#[test]
fn rx_not_refilled_by_one_of_eight() {
    let _alone = alone();
    let mut lab = Lab::new(6, &[]);
    let mut evil = lab.guest(2, |_| ());
    let mut others: Vec<Vm> = (3..8).map(|id| lab.guest(id, |_| ())).collect();
    others[0].rx[0].hold = true;
    let dead = others[0].mac();
    let bytes = frame(&evil, dead, 200);
    restart_with(&mut evil, 1, |ring| one_buffer(ring, whole(&bytes), 0));
    let ring = &evil.guest.tx[0].ring;
    let attack = |phase: &While<'_>| phase.every(PAUSE, || refill(ring));
    let end = Instant::now() + Duration::from_secs(if long() { 600 } else { 0 });
    loop {
        lab.unharmed("one of eight does not refill", nobody, attack);
        if Instant::now() >= end {
            break;
        }
    }
    let c = lab.d.counters();
    assert!(c.sum(Some("p3"), "out", "drop.no_buffer") > 0, "nothing was for the dead one");
    drop((evil, others));
    lab.finish();
}

/// Eight receivers without buffers share a sender with a ninth: a frame for that one, which comes
/// while those before it wait for one of the others, goes out at once and not at the next try.
#[test]
#[ignore = "full"]
fn slow_receivers_do_not_delay_what_comes_behind() {
    let _alone = alone();
    let mut seen = Vec::new();
    for _ in 0..4 {
        let median = time_behind_slow_receivers();
        println!("a frame behind one that waits takes {median:.0?} (median)");
        if median < Duration::from_micros(250) {
            return;
        }
        seen.push(median);
    }
    panic!("frames behind others that wait took {seen:.0?} (median)");
}

fn time_behind_slow_receivers() -> Duration {
    const SLOW: usize = 8;
    let d = Daemon::with(2 + SLOW, &[]);
    let connect = |id: usize| Vm::connect(&d.socket(id), VmConfig::new(id as u8));
    let (mut sender, mut bystander) = (connect(0), connect(1));
    let mut slow: Vec<Vm> = (2..2 + SLOW).map(connect).collect();
    let from = sender.mac();
    let plain = |to: [u8; 6], from: [u8; 6]| [&to[..], &from, &[0x88, 0xb5], &[0; 46]].concat();
    // Everybody is learned, and the slow ones take one frame at a time from now on.
    for vm in slow.iter_mut().chain([&mut bystander, &mut sender]) {
        let hello = plain([0xff; 6], vm.mac());
        vm.tx[0].send_waiting(&hello, LOST);
        vm.tx[0].drain(LOST);
    }
    for vm in &mut slow {
        vm.rx[0].hold = true;
        for _ in 0..256 {
            sender.tx[0].send_waiting(&plain(vm.mac(), from), LOST);
        }
        sender.tx[0].drain(LOST);
        while vm.rx[0].recv(64, |_, _| ()) > 0 {}
    }
    while bystander.rx[0].recv(64, |_, _| ()) > 0 {}
    let _apart = d.spread_workers();
    let mut times = Vec::new();
    for round in 0..200 {
        let vm = &mut slow[round % SLOW];
        // It takes one frame, so it is worth waiting for again, and is full with the second one.
        vm.rx[0].post(1);
        vm.rx[0].ring.publish();
        for _ in 0..2 {
            assert!(sender.tx[0].send(&plain(vm.mac(), from)));
        }
        std::thread::sleep(Duration::from_micros(300));
        let start = Instant::now();
        assert!(sender.tx[0].send(&plain(bystander.mac(), from)));
        while bystander.rx[0].recv(1, |_, _| ()) == 0 {
            assert!(start.elapsed() < LOST, "the bystander's frame is lost");
            std::hint::spin_loop();
        }
        times.push(start.elapsed());
        sender.tx[0].drain(LOST);
        while vm.rx[0].recv(64, |_, _| ()) > 0 {}
        // Patience is earned back.
        std::thread::sleep(Duration::from_millis(1));
    }
    let waits = d.counters().sum(Some("p0"), "in", "waits");
    assert!(waits > 20, "frames waited {waits} times only");
    d.stop();
    times.sort();
    times[times.len() / 2]
}
