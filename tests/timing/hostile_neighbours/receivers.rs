//! Guests that take nothing hold up no frame for others.

use std::time::{Duration, Instant};

use crate::alone;
use testkit::hostile::{one_buffer, refill, restart_with};
use testkit::long;
use testkit::neighbours::{
    Beside, Lab, Phase, Seen, While, in_one_of_a_few_tries, nobody, not_judged, verdict,
    with_attacker,
};
use testkit::proc::Daemon;
use testkit::shares::{frame, whole};
use testkit::vm::{Vm, VmConfig};

const LOST: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_micros(150);
/// One phase, and how many of each kind make a measurement.
const PHASE: Duration = Duration::from_millis(50);
const ROUNDS: usize = 5;

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

/// A guest posts buffers in small pieces that its friend uses up, and a bystander sends to it now
/// and then: what waits there waits in front of what the bystander sends to others. The control is
/// the same with those frames going to an honest guest.
#[test]
fn a_receiver_and_its_friend_do_not_hold_a_bystanders_ring() {
    const PIECE: Duration = Duration::from_micros(950);
    let _alone = alone();
    for a_millisecond in [5, 20] {
        let pause = Duration::from_millis(1) / a_millisecond;
        let what = format!("{a_millisecond} frames a ms for a receiver that a friend keeps full");
        let mut lab = Lab::new(3, &[]);
        let (mut evil, mut honest) = (lab.guest(2, |_| ()), lab.guest(4, |_| ()));
        let mut friend = lab.guest(3, |_| ());
        let targets = [honest.mac(), evil.mac()];
        let bytes = frame(&friend, evil.mac(), 60);
        restart_with(&mut friend, 1, |ring| one_buffer(ring, whole(&bytes), 0));
        evil.rx[0].hold = true;
        let ring = &friend.guest.tx[0].ring;
        let mut posted = Instant::now();
        let attack = |phase: &While<'_>| {
            phase.every(PAUSE, || {
                honest.rx[0].recv(64, |_, _| ());
                evil.rx[0].recv(64, |_, _| ());
                if posted.elapsed() >= PIECE {
                    posted = Instant::now();
                    evil.rx[0].post(64);
                    evil.rx[0].ring.publish();
                }
                refill(ring);
            });
        };
        let Lab { d, pair, .. } = &mut lab;
        let waits = || d.counters().sum(Some("p0"), "in", "waits");
        with_attacker(nobody, attack, |attacker| {
            in_one_of_a_few_tries(&what, || {
                let mut seen = [Seen::default(), Seen::default()];
                let before = waits();
                for _ in 0..ROUNDS {
                    for (to, seen) in targets.iter().zip(&mut seen) {
                        pair.send_aside(*to, pause);
                        seen.add(attacker.during(Phase::Attack, || pair.talk(PHASE)));
                    }
                }
                let [alone, attacked] = seen;
                println!("{what}: control {alone} | beside {attacked}");
                if waits() == before {
                    return Err(not_judged("nothing waited"));
                }
                let kept = attacked.kept() / alone.kept();
                let seen = Beside { alone, attacked, turn: Duration::ZERO };
                let found = verdict(&seen).and_then(|()| match kept < 0.9 {
                    true => Err(format!("{kept:.2} of the rate was kept")),
                    false => Ok(()),
                });
                seen.judge(found)
            });
        });
        drop((evil, friend, honest));
        lab.finish();
    }
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
