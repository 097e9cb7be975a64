//! Guests that take nothing hold up no frame for others.

use std::time::{Duration, Instant};

use crate::alone;
use testkit::hostile::{one_buffer, refill, restart_with};
use testkit::long;
use testkit::neighbours::{
    Beside, Lab, Phase, Seen, While, in_one_of_a_few_tries, nobody, not_judged, verdict,
    with_attacker,
};
use testkit::shares::{frame, whole};
use testkit::vm::Vm;

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
