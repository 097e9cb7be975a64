//! Shares of a ring that has too few buffers, and the waiting of senders' frames.

use super::*;

/// Simulates a ring that gets `refill` buffers a round; each sender, in the order given, brings
/// `frames` of `per_frame` buffers. Returns the buffers that each port got.
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
            shares.record(port, (taken as u64, 0), (taken * per_frame) as u16, taken < allowed);
            free -= taken * per_frame;
            got[usize::from(port)] += taken;
        }
    }
    got
}

/// Simulates a ring like [`run`], with senders that wait for buffers.
fn run_waiting(order: &[PortId], frames: usize, refill: usize, rounds: usize) -> Vec<usize> {
    let mut shares = Admission::default();
    let mut got = vec![0; 80];
    let mut free = 0;
    for _ in 0..rounds {
        free = (free + refill).min(256);
        for &port in order {
            let taken = shares.grant(port, frames, free as u16);
            if taken > 0 {
                assert_eq!(shares.admit(port, taken, || free as u16), taken, "what was granted");
            }
            shares.record(port, (taken as u64, 0), taken as u16, taken < frames);
            free -= taken;
            got[usize::from(port)] += taken;
        }
    }
    got
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

/// Two workers ask for two senders before either worker delivers.
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
                shares.record(port, (taken as u64, 0), taken as u16, taken < 64);
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
        // 64 of the 256 buffers are always on their way to the receiver.
        assert_eq!(shares.admit(visit % 8, 64, || 192), 64, "visit {visit}");
        shares.record(visit % 8, (64, 0), 64, false);
    }
}

#[test]
fn scarcity_is_forgotten_when_it_is_over() {
    let mut shares = Admission::default();
    for port in 0..8 {
        shares.admit(port, 64, || 0);
        shares.record(port, (0, 0), 0, true);
    }
    let cut = (0..10_000u16).filter(|visit| {
        let allowed = shares.admit(visit % 8, 64, || 192);
        shares.record(visit % 8, (allowed as u64, 0), allowed as u16, false);
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
            shares.record(port, (taken as u64, 0), taken as u16, taken < allowed);
            free -= taken;
            if port == 2 { small += taken } else { large += taken }
        }
    }
    // One round of 17 is first come, first served: the round that shows that the scarcity is over.
    assert!(small >= 2_800, "{small}");
    // One buffer of 64 cannot be split between two equal senders.
    assert!(small + large >= 62_900, "{large}");
}

#[test]
fn who_left_holds_nothing_back() {
    let mut shares = Admission::default();
    for port in 0..4 {
        shares.admit(port, 64, || 64);
        shares.record(port, (0, 0), 0, true);
    }
    let taken = (0..100).map(|_| {
        let taken = shares.admit(0, 64, || 64).min(64);
        shares.record(0, (taken as u64, 0), taken as u16, false);
        taken
    });
    let short = taken.filter(|&taken| taken < 64).count();
    assert!(short <= 4 * SHARE_IDLE_VISITS as usize, "{short} bursts were cut");
}

#[test]
fn what_nobody_comes_for_is_taken_in_the_end() {
    let mut shares = Admission::default();
    for port in 0..4 {
        shares.admit(port, 64, || 64);
        shares.record(port, (u64::from(port == 0) * 64, 0), 64 * u16::from(port == 0), true);
    }
    // However often the sender looks at once: other senders come first.
    assert!((0..1_000).all(|_| shares.grant(0, 64, 63) == 0));
    assert_eq!(shares.grant_late(0, 64, 63), 16, "a quarter");
    assert_eq!(shares.admit(0, 63, || 63), 16);
    // The sender takes the rest, one burst after the other, until the other senders are removed.
    let mut late = 0;
    while shares.grant(0, 64, 63) == 0 && late < 100 {
        let granted = shares.grant_late(0, 64, 63);
        shares.admit(0, granted, || 63);
        shares.record(0, (granted as u64, 0), granted as u16, true);
        late += 1;
    }
    assert!(late <= 4 * SHARE_IDLE_VISITS);
}

#[test]
fn a_share_cannot_be_saved_up() {
    let mut shares = Admission::default();
    let mut give = |port, frames, free: usize| {
        let allowed = shares.admit(port, frames, || free as u16);
        let taken = allowed.min(free);
        shares.record(port, (taken as u64, 0), taken as u16, taken < allowed);
        taken
    };
    for _ in 0..10_000 {
        give(0, 64, 64);
        give(1, 1, 64);
    }
    let got: usize = (0..100).map(|_| (give(1, 64, 64), give(0, 64, 0)).0).sum();
    // The whole lag of the sender, and then at most half of the other buffers.
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

const FROM: PortId = 3;

/// Returns the admission of a ring that earns 256 cycles of waiting at most.
fn ring() -> Admission {
    let mut ring = Admission::default();
    ring.places.iter_mut().for_each(|sender| sender.earned.cap = 256);
    ring
}

/// Records that the ring took frames of a sender.
fn take(ring: &mut Admission, from: PortId, frames: u64, bytes: u64) {
    ring.record(from, (frames, bytes), 0, false);
}

#[test]
fn a_sender_waits_for_what_its_own_frames_earned() {
    let mut ring = ring();
    assert!(!ring.may_wait(FROM, 0), "time earns nothing");
    take(&mut ring, FROM + 1, 10, 600);
    assert!(!ring.may_wait(FROM, 0), "nor do frames of another sender");
    take(&mut ring, FROM, 1, 60);
    assert!(ring.may_wait(FROM, 0));
    assert!(ring.may_wait(FROM, 256 / BACKPRESSURE_FRAMES - 1));
    assert!(!ring.may_wait(FROM, 1));
    take(&mut ring, FROM, 1_000_000, 60_000_000);
    assert!(ring.may_wait(FROM, 255), "256 cycles are saved up");
    assert!(!ring.may_wait(FROM, 1));
    take(&mut ring, FROM, 1, 65_536);
    assert!(ring.may_wait(FROM, 255), "a long frame counts as many short ones");
}

/// Returns the cycles, of a million, that a sender waits for a receiver that takes a frame every
/// `interval`.
fn waits_for(interval: u64) -> u64 {
    let mut ring = ring();
    let (mut held, mut waiting) = (0, false);
    for now in 1..=1_000_000u64 {
        held += u64::from(waiting);
        if now % interval == 0 {
            take(&mut ring, FROM, 1, 60);
        }
        waiting = ring.may_wait(FROM, u64::from(waiting));
    }
    held
}

#[test]
fn a_receiver_is_waited_for_in_proportion_to_the_frames_that_it_takes() {
    let each = 256 / BACKPRESSURE_FRAMES;
    assert!(waits_for(each - 1) > 990_000);
    for slower in [2, 10, 100] {
        let (held, due) = (waits_for(each * slower), 1_000_000 / slower);
        assert!(held.abs_diff(due) < due / 50 + 1_000, "{slower}: {held}, not {due}");
    }
}
