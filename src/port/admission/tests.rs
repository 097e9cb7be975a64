//! Shares of a ring that has too few buffers, and how long others may wait for it.

use super::*;

/// A ring that gets `refill` buffers a round; each sender, in the order given, brings `frames`
/// of `per_frame` buffers. Returns what each port got.
fn run(
    order: &[PortId],
    frames: usize,
    refill: usize,
    per_frame: usize,
    rounds: usize,
) -> Vec<usize> {
    let mut shares = Admission::default();
    let mut got = vec![0; 80];
    let mut free = 0;
    for _ in 0..rounds {
        free = (free + refill).min(256);
        for &port in order {
            let allowed = shares.admit(port, frames, || free as u16).min(frames);
            let taken = allowed.min(free / per_frame);
            shares.took(port, (taken as u64, 0), (taken * per_frame) as u16, taken < allowed);
            free -= taken * per_frame;
            got[usize::from(port)] += taken;
        }
    }
    got
}

/// As [`run`] with senders that wait for what they do not get.
fn run_waiting(order: &[PortId], frames: usize, refill: usize, rounds: usize) -> Vec<usize> {
    let mut shares = Admission::default();
    let mut got = vec![0; 80];
    let mut free = 0;
    for _ in 0..rounds {
        free = (free + refill).min(256);
        for &port in order {
            let taken = shares.admit_waiting(port, frames, free as u16);
            shares.took(port, (taken as u64, 0), taken as u16, taken < frames);
            free -= taken;
            got[usize::from(port)] += taken;
        }
    }
    got
}

/// For a moment, and not for more than a ring is likely to have.
#[test]
fn frames_that_wait_leave_a_few_buffers_until_there_are_more() {
    let (mut shares, most) = (Admission::default(), cycles_in(GATHER_NANOS));
    for (free, size, start) in [(63, 256, 0), (1, 32_768, 1_000), (15, 64, 7 * most)] {
        assert!(shares.gathers(free, size, start));
        assert!(shares.gathers(free, size, start + most - 1));
        assert!(!shares.gathers(free, size, start + most + 1), "{free} of {size}");
        assert!(shares.gathers(free, size, start + most + 2), "the next ones");
        assert!(!shares.gathers(free + 1, size, start + most + 3) || free == 1);
        shares.gathers_since = 0;
    }
}

#[test]
fn senders_that_wait_get_equal_parts_in_whole_bursts() {
    for refill in [5, 8, 63, 64, 100, 127, 130, 200, 256] {
        let order: Vec<PortId> = (0..8).collect();
        let got = run_waiting(&order, 64, refill, 4000);
        let total: usize = got.iter().sum();
        println!("{refill}: {:?} of {}", &got[..8], 4000 * refill);
        assert!(total >= 3900 * refill, "{refill}: only {total} delivered");
        for &got in &got[..8] {
            assert!(got.abs_diff(total / 8) <= total / 100, "{refill}: {got} of {total}");
        }
    }
}

/// Two workers ask for two senders before either of them delivers.
#[test]
fn what_a_sender_took_is_its_own() {
    for asked in [[0, 1], [1, 0]] {
        let mut shares = Admission::default();
        let mut got = [0; 2];
        for _ in 0..1000 {
            let mut free = 48;
            let allowed = asked.map(|port| (port, shares.admit(port, 64, || free as u16)));
            for (port, allowed) in allowed {
                let taken = allowed.min(free);
                shares.took(port, (taken as u64, 0), taken as u16, taken < 64);
                free -= taken;
                got[usize::from(port)] += taken;
            }
        }
        assert!(got[0].abs_diff(got[1]) <= 200, "{asked:?}: {got:?}");
    }
}

#[test]
fn one_sender_takes_everything() {
    assert_eq!(run(&[3], 64, 64, 1, 100)[3], 6400);
}

#[test]
fn equal_senders_get_equal_parts_of_a_scarce_ring() {
    for refill in [8, 63, 64, 100, 127] {
        let got = run(&[0, 1, 2, 3], 32, refill, 1, 1000);
        let total: usize = got.iter().sum();
        assert!(total >= 990 * refill, "{refill}: only {total} delivered");
        for &got in &got[..4] {
            assert!(got.abs_diff(total / 4) <= total / 200, "{refill}: {got} of {total}");
        }
    }
}

#[test]
fn a_receiver_that_keeps_up_gets_everything() {
    let mut shares = Admission::default();
    for visit in 0..10_000 {
        // 64 of the 256 buffers are under way to the receiver, never more.
        assert_eq!(shares.admit(visit % 8, 64, || 192), 64, "visit {visit}");
        shares.took(visit % 8, (64, 0), 64, false);
    }
}

#[test]
fn scarcity_is_forgotten_when_it_is_over() {
    let mut shares = Admission::default();
    for port in 0..8 {
        shares.admit(port, 64, || 0);
        shares.took(port, (0, 0), 0, true);
    }
    let cut = (0..10_000u16).filter(|visit| {
        let allowed = shares.admit(visit % 8, 64, || 192);
        shares.took(visit % 8, (allowed as u64, 0), allowed as u16, false);
        allowed < 64
    });
    assert!(cut.count() <= 8 * SHARE_ROUNDS as usize);
}

#[test]
fn a_sender_served_twice_as_often_gets_no_more() {
    let got = run(&[0, 2, 1, 2], 32, 48, 1, 1000);
    let total: usize = got.iter().sum();
    assert!(total >= 47_000);
    for &got in &got[..3] {
        assert!(got.abs_diff(total / 3) <= total / 50, "{got} of {total}");
    }
}

#[test]
fn buffers_are_shared_not_frames_of_unknown_size() {
    let got = run(&[0, 1, 2], 4, 100, 33, 3000);
    let total: usize = got.iter().sum();
    for &got in &got[..3] {
        assert!(got.abs_diff(total / 3) <= total / 20, "{got} of {total}");
    }
}

#[test]
fn a_small_sender_gets_all_it_asks_and_the_others_the_rest() {
    let mut shares = Admission::default();
    let (mut small, mut large) = (0, 0);
    for _ in 0..1000 {
        let mut free = 64;
        for (port, frames) in [(0, 64), (1, 64), (2, 3)] {
            let allowed = shares.admit(port, frames, || free as u16);
            let taken = allowed.min(free);
            shares.took(port, (taken as u64, 0), taken as u16, taken < allowed);
            free -= taken;
            if port == 2 { small += taken } else { large += taken }
        }
    }
    // First come, first served in one round of 17: what it takes to see that it is over.
    assert!(small >= 2_800, "{small}");
    // One buffer of 64 cannot be split between two equals.
    assert!(small + large >= 62_900, "{large}");
}

#[test]
fn who_left_holds_nothing_back() {
    let mut shares = Admission::default();
    for port in 0..4 {
        shares.admit(port, 64, || 64);
        shares.took(port, (0, 0), 0, true);
    }
    let taken = (0..100).map(|_| {
        let taken = shares.admit(0, 64, || 64).min(64);
        shares.took(0, (taken as u64, 0), taken as u16, false);
        taken
    });
    let short = taken.filter(|&taken| taken < 64).count();
    assert!(short <= 4 * SHARE_IDLE_VISITS as usize, "{short} bursts were cut");
}

#[test]
fn a_share_cannot_be_saved_up() {
    let mut shares = Admission::default();
    let mut give = |port, frames, free: usize| {
        let allowed = shares.admit(port, frames, || free as u16);
        let taken = allowed.min(free);
        shares.took(port, (taken as u64, 0), taken as u16, taken < allowed);
        taken
    };
    for _ in 0..10_000 {
        give(0, 64, 64);
        give(1, 1, 64);
    }
    let got: usize = (0..100).map(|_| (give(1, 64, 64), give(0, 64, 0)).0).sum();
    // All of what it lagged, and then half of the rest at most.
    assert!(got <= SHARE_LAG_BUFFERS as usize + 64 * 100 / 2 + 64, "{got}");
}

#[test]
fn many_senders_are_all_served() {
    let order: Vec<PortId> = (0..80).collect();
    let got = run(&order, 16, 64, 1, 8000);
    let total: usize = got.iter().sum();
    assert!(total > 500_000, "{total}");
    assert!(got[16..64].iter().all(|&got| got.abs_diff(total / 64) < total / 640), "{got:?}");
    let shared = (0..16).map(|i| got[i] + got[i + 64]);
    assert!(shared.into_iter().all(|got| got > total / 80), "{got:?}");
}

const MOST: u64 = 10_000;
const FROM: PortId = 3;

fn wait(now: u64, waited: u64, behind: Blocked) -> Wait {
    let in_front = behind != Blocked::Unknown;
    Wait { now, waited, ring_size: 100, behind, in_front, sees_all: false }
}

/// The admission of a ring.
fn ring() -> Admission {
    let mut ring = Admission::default();
    ring.credit.alone.cap = MOST;
    ring.places.iter_mut().for_each(|sender| sender.earned.cap = 256);
    ring
}

/// So many frames of a sender were taken.
fn took(ring: &mut Admission, from: PortId, frames: u64, bytes: u64) {
    ring.took(from, (frames, bytes), 0, false);
}

fn ask(credit: &mut Admission, now: u64, waited: u64) -> bool {
    credit.may_wait(FROM, wait(now, waited, Blocked::Unknown)).allows(Blocked::Unknown)
}

#[test]
fn waiting_ends_when_the_credit_does() {
    let mut credit = ring();
    let start = 1_000_000;
    let mut now = start;
    assert!(ask(&mut credit, now, 0));
    while ask(&mut credit, now + 100, 100) {
        now += 100;
    }
    // A tenth was earned meanwhile.
    assert!((MOST..MOST * 12 / 10).contains(&(now - start)), "{}", now - start);
}

#[test]
fn who_takes_nothing_is_not_waited_for_again() {
    let mut credit = ring();
    assert!(!ask(&mut credit, 1_000_000, MOST));
    assert!(!ask(&mut credit, 100_000_000, 0));
    took(&mut credit, FROM, 1, 60);
    assert!(ask(&mut credit, 100_000_001, 0));
}

/// Cycles of a million that a sender with a ring of 100 waits for a receiver that takes a frame
/// every `interval`.
fn waits_for(interval: u64) -> u64 {
    let mut credit = ring();
    let (mut held, mut now) = (0, 1_000_000);
    let mut waiting = false;
    for step in 1..=100_000 {
        now += 10;
        held += if waiting { 10 } else { 0 };
        if step * 10 % interval == 0 {
            took(&mut credit, FROM + 1, 1, 60);
        }
        waiting = ask(&mut credit, now, if waiting { 10 } else { 0 });
    }
    held
}

#[test]
fn who_drains_a_ring_in_time_is_always_waited_for() {
    assert!(waits_for(MOST / 100) > 990_000);
    assert!(waits_for(MOST / 1000) > 990_000);
}

#[test]
fn a_slow_receiver_holds_its_senders_for_what_it_takes_and_a_tenth_of_the_time() {
    for slower in [4, 20, 100] {
        let held = waits_for(MOST / 100 * slower);
        let due = 1_000_000 / slower + 100_000;
        assert!((due * 8 / 10..=due + 3 * MOST).contains(&held), "{slower}: {held}, not {due}");
    }
}

#[test]
fn two_senders_spend_it_together() {
    let mut credit = ring();
    assert!(ask(&mut credit, 1_000_000, MOST / 2 - 1));
    assert!(ask(&mut credit, 1_000_000, MOST / 2 - 1));
    assert!(!ask(&mut credit, 1_000_000, 2));
}

#[test]
fn while_others_wait_only_what_is_taken_counts() {
    let mut credit = ring();
    let ask = |credit: &mut Admission, now, waited| {
        credit.may_wait(FROM, wait(now, waited, Blocked::Others)).is_maybe()
    };
    assert!(!ask(&mut credit, 1_000_000, 0), "time earns nothing");
    took(&mut credit, FROM + 1, 10, 600);
    assert!(!ask(&mut credit, 1_000_000, 0), "nor does what another sent");
    took(&mut credit, FROM, 10, 600);
    assert!(ask(&mut credit, 1_000_000, 0));
    assert!(ask(&mut credit, 1_000_039, 39));
    assert!(!ask(&mut credit, 1_000_040, 1));
    took(&mut credit, FROM, 1_000_000, 60_000_000);
    assert!(ask(&mut credit, 1_000_100, 255), "256 are saved up");
    assert!(!ask(&mut credit, 1_000_100, 1));
    took(&mut credit, FROM, 1, 65_536);
    assert!(ask(&mut credit, 1_000_100, 67), "a long frame counts for more");
    assert!(!ask(&mut credit, 1_000_100, 1));
}
