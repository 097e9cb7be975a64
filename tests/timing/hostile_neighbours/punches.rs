//! Front-ends that punch holes into their memory. The kernel has that worker wait until the hole is
//! done, 140 ms for each GiB, and offers no access that does not wait. Other guests of that worker
//! go on within 30 ms, as a reserve thread works for it; and who does that again and again is gone
//! after a few times.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::alone;
use crate::workers::one_way_asleep;
use testkit::hostile::{one_buffer, raw_avail, raw_desc, refill, restart_with};
use testkit::mem::RegionSpec;
use testkit::neighbours::{Lab, Seen, in_one_of_a_few_tries, not_judged};
use testkit::ring::{DESC_NEXT, DESC_WRITE, Ring, Seg};
use testkit::shares::{frame, whole};
use testkit::sys;
use testkit::vm::{Vm, VmConfig};

const EVIL: u8 = 2;
const HELPER: u8 = 3;
const PAGE: u64 = 4096;
/// Where the memory that is taken away begins, in the guest.
const FAR: u64 = 16 << 30;
/// What a bystander waits for at most.
const HELD: Duration = Duration::from_millis(30);

/// Whose memory a hole is punched into, and when the worker meets it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Meets {
    /// The attacker's: the worker takes its frames.
    Sender,
    /// The attacker's: a helper's frames are copied there.
    Receiver,
    /// The attacker's: what is behind the head of its frames is copied from there to a helper.
    Copied,
}

fn gib() -> u64 {
    testkit::rounds(1, 3, 4)
}

/// An attacker with memory to punch a hole into, and a helper.
struct Attack {
    evil: Vm,
    helper: Vm,
    fd: RawFd,
    len: u64,
    sends: bool,
}

impl Attack {
    fn new(lab: &mut Lab, [evil, helper]: [u8; 2], meets: Meets) -> Attack {
        let len = gib() << 30;
        let mut evil = lab.guest(evil, |cfg| cfg.regions.push(RegionSpec::new(FAR, len)));
        let mut helper = lab.guest(helper, |_| ());
        let fd = evil.guest.mem.table()[2].1;
        // Its first page is gone first: what is still there is mapped without waiting.
        let far = whole(&evil.guest.mem.span(FAR, PAGE));
        let [room, helpers] = [&evil, &helper].map(|vm| whole(&frame(vm, vm.mac(), 1514)));
        let to_helper = frame(&evil, helper.mac(), 64);
        let to_evil = frame(&helper, evil.mac(), 900);
        let (takes, sends) = match meets {
            // Zeros are a source that no station has: the frame is dropped, after it was read.
            Meets::Sender => (room, vec![far]),
            Meets::Receiver => (far, vec![whole(&to_helper)]),
            Meets::Copied => (room, vec![whole(&to_helper), Seg { len: 1000, ..far }]),
        };
        goes_round(&mut evil, takes, &sends);
        goes_round(&mut helper, helpers, &[whole(&to_evil)]);
        Attack { evil, helper, fd, len, sends: meets != Meets::Receiver }
    }

    fn rings(&self) -> [&Ring; 3] {
        let sender = if self.sends { &self.evil } else { &self.helper };
        [&self.evil.guest.rx[0].ring, &self.helper.guest.rx[0].ring, &sender.guest.tx[0].ring]
    }
}

/// A guest whose rings go round by themselves: each receive buffer is `to`, each frame what `from`
/// says, of one piece or two.
fn goes_round(vm: &mut Vm, to: Seg, from: &[Seg]) {
    restart_with(vm, 0, |ring| one_buffer(ring, to, DESC_WRITE));
    let pieces = from.len() as u16;
    restart_with(vm, 1, |ring| {
        for i in 0..ring.size {
            let (place, head) = (i % pieces, i % (ring.size / pieces) * pieces);
            let more = if place + 1 < pieces { DESC_NEXT } else { 0 };
            raw_desc(ring, i, from[usize::from(place)], more, i + 1);
            raw_avail(ring, i, head);
        }
    });
}

/// Has the rings of the attacks go round while `look` is called again and again, until a hole is
/// punched into each of `fds`; how long that took.
fn beside_punches(attacks: &[&Attack], fds: &[RawFd], mut look: impl FnMut()) -> Duration {
    let len = attacks[0].len;
    fds.iter().for_each(|fd| sys::populate(*fd, len));
    let rings: Vec<&Ring> = attacks.iter().flat_map(|attack| attack.rings()).collect();
    let over = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                rings.iter().for_each(|ring| refill(ring));
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        let punches = fds.iter().map(|fd| {
            s.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                let start = Instant::now();
                sys::punch_hole(*fd, 0, len);
                start.elapsed()
            })
        });
        let punches: Vec<_> = punches.collect();
        while punches.iter().any(|punch| !punch.is_finished()) {
            look();
        }
        let end = Instant::now() + Duration::from_millis(20);
        while Instant::now() < end {
            look();
        }
        over.store(true, Ordering::Relaxed);
        punches.into_iter().map(|punch| punch.join().expect("punch")).max().expect("a punch")
    })
}

fn stalls(lab: &Lab) -> f64 {
    lab.d.counters().worker(0, "stalls")
}

/// Judges the longest gap beside so many stalls.
fn judged(what: &str, gap: Duration, control: Duration, enough: bool) -> Result<(), String> {
    match gap > HELD.max(2 * control) {
        true => Err(format!("{what}: a gap of {gap:.1?}, {control:.1?} beside the control")),
        false if !enough => Err(not_judged("a punch met no fault")),
        false => Ok(()),
    }
}

/// Two guests of the one worker go on, the first time too, while the memory of so many others makes
/// that worker wait for hundreds of milliseconds. The control punches memory that is no guest's.
fn others_go_on(meets: Meets, attackers: u8) {
    let _alone = alone();
    in_one_of_a_few_tries("holes under faults", || {
        let mut lab = Lab::new(2 * usize::from(attackers), &[]);
        let ids = |n| [EVIL + 2 * n, HELPER + 2 * n];
        let attacks: Vec<_> =
            (0..attackers).map(|n| Attack::new(&mut lab, ids(n), meets)).collect();
        let attacks: Vec<&Attack> = attacks.iter().collect();
        let mut beside = |fds: &[RawFd]| {
            let mut seen = Seen::default();
            let took = beside_punches(&attacks, fds, || {
                seen.add(lab.pair.talk(Duration::from_millis(1)));
            });
            (seen, took)
        };
        let nowhere = sys::memfd(attacks[0].len);
        let (control, _) = beside(&[nowhere.as_raw_fd()]);
        drop(nowhere);
        let fds: Vec<_> = attacks.iter().map(|attack| attack.fd).collect();
        let (attacked, took) = beside(&fds);
        let stalls = stalls(&lab);
        let what = format!("{meets:?}, {} GiB in {took:.0?}", gib());
        println!("{what}: control {control} | beside {attacked}, {stalls} stalls");
        lab.pair.settle();
        lab.finish();
        judged(&what, attacked.gap, control.gap, stalls >= attackers.into())
    });
}

#[test]
fn p17_others_go_on_while_a_senders_memory_is_punched() {
    others_go_on(Meets::Sender, 1);
}

#[test]
fn p17_others_go_on_while_a_receivers_memory_is_punched() {
    others_go_on(Meets::Receiver, 1);
}

#[test]
#[ignore = "full"]
fn p17_others_go_on_while_what_is_copied_is_punched() {
    others_go_on(Meets::Copied, 1);
}

#[test]
#[ignore = "full"]
fn p17_others_go_on_while_two_guests_memory_is_punched() {
    others_go_on(Meets::Sender, 2);
}

/// Guests that sleep until they are notified: what the worker owes them when it stands still comes
/// from another thread.
#[test]
fn p17_guests_that_sleep_are_notified_while_memory_is_punched() {
    let _alone = alone();
    in_one_of_a_few_tries("notifications beside a hole", || {
        let mut lab = Lab::new(4, &[]);
        let attack = Attack::new(&mut lab, [EVIL, HELPER], Meets::Sender);
        let [mut a, mut b] =
            [4, 5].map(|id| Vm::connect(&lab.d.socket(usize::from(id)), VmConfig::new(id)));
        one_way_asleep(&mut a, &mut b);
        one_way_asleep(&mut b, &mut a);
        let mut beside = |fd| {
            let mut longest = Duration::ZERO;
            beside_punches(&[&attack], &[fd], || {
                let there = one_way_asleep(&mut a, &mut b);
                longest = longest.max(there).max(one_way_asleep(&mut b, &mut a));
            });
            longest
        };
        let nowhere = sys::memfd(attack.len);
        let control = beside(nowhere.as_raw_fd());
        let attacked = beside(attack.fd);
        let stalls = stalls(&lab);
        println!("asleep: {attacked:.1?}, {control:.1?} beside the control, {stalls} stalls");
        lab.pair.settle();
        drop((a, b));
        lab.finish();
        judged("asleep", attacked, control, stalls > 0.0)
    });
}

/// That is done to a worker a few times, and then the guest sends and gets nothing for long, or its
/// front-end is gone.
fn punched_again_and_again(meets: Meets) {
    let _alone = alone();
    let mut lab = Lab::new(2, &[]);
    let attack = Attack::new(&mut lab, [EVIL, HELPER], meets);
    let dropped = "port p2: front-end dropped: its memory made a worker wait";
    for round in 1..=12 {
        if lab.d.log().contains(dropped) {
            break;
        }
        let took = beside_punches(&[&attack], &[attack.fd], || {
            lab.pair.talk(Duration::from_millis(1));
        });
        println!("{meets:?}, punch {round} of {} GiB, {took:.0?}: {} stalls", gib(), stalls(&lab));
    }
    // It is paused for many times as long before it comes to that.
    let stalls = stalls(&lab);
    assert!((1.0..=5.0).contains(&stalls), "{stalls} stalls: {}", lab.d.log());
    lab.pair.settle();
    lab.finish();
}

/// A worker that stands still does not keep the switch from ending, nor do those that work for it.
#[test]
fn p17_the_switch_ends_while_memory_is_punched() {
    let _alone = alone();
    let mut lab = Lab::new(2, &[]);
    let attack = Attack::new(&mut lab, [EVIL, HELPER], Meets::Sender);
    let (fd, len) = (attack.fd, attack.len);
    sys::populate(fd, len);
    refill(attack.rings()[2]);
    std::thread::scope(|s| {
        let punch = s.spawn(|| sys::punch_hole(fd, 0, len));
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(50) {
            refill(attack.rings()[2]);
        }
        lab.d.signal(libc::SIGTERM);
        let status = lab.d.exit_status(Duration::from_secs(5));
        println!("ended {:.0?} after it was told, {status}", start.elapsed());
        assert!(status.success() && !lab.d.log().contains("panicked"), "{}", lab.d.log());
        punch.join().expect("punch");
    });
}

#[test]
fn p17_holes_punched_under_a_senders_fault() {
    punched_again_and_again(Meets::Sender);
}

#[test]
#[ignore = "full"]
fn p17_holes_punched_under_a_receivers_fault() {
    punched_again_and_again(Meets::Receiver);
}

#[test]
#[ignore = "full"]
fn p17_holes_punched_under_a_copy() {
    punched_again_and_again(Meets::Copied);
}
