//! Features and ring sizes that were not offered (P6, P13).

use std::time::Duration;

use super::lab::{Lab, SOON, Stage, acked, at_stage, small};
use testkit::frontend::{Error, FLAG_NEED_REPLY, VERSION, req, state_body};
use testkit::vm::Guest;
use testkit::{Rng, long};

/// P6: every bit that was not offered ends the connection, alone and beside good ones, before
/// anything else is set up and while rings run; every bit that was offered does not.
#[test]
fn p6_features_that_were_not_offered() {
    let lab = Lab::new(1);
    let guest = Guest::new(small(1));
    let mut fe = at_stage(&lab.d, lab.evil, &guest, Stage::Fresh);
    let virtio = fe.get_features().expect("features");
    let protocol = fe.get_protocol_features().expect("features");
    assert!(fe.leave(SOON));
    let kinds = [(req::SET_FEATURES, virtio), (req::SET_PROTOCOL_FEATURES, protocol)];
    let mut refused = 0;
    for (code, offered) in kinds {
        for bit in 0..64 {
            for stage in [Stage::Fresh, Stage::Running] {
                for beside in [0, offered] {
                    let mut fe = at_stage(&lab.d, lab.evil, &guest, stage);
                    let body = (beside | 1u64 << bit).to_le_bytes();
                    fe.send(code, VERSION, &body, &[]).expect("sent");
                    let good = offered >> bit & 1 == 1;
                    assert_eq!(fe.still_served(), good, "code {code} bit {bit} {stage:?}");
                    refused += u32::from(!good);
                    drop(fe);
                }
            }
        }
    }
    let bad = virtio.count_zeros() + protocol.count_zeros();
    assert_eq!(refused, 4 * bad, "each bit in two states, alone and beside others");
    lab.finish();
}

/// P13: a size that is no power of two up to 32,768 gets a NACK, and the size stays what it was:
/// the ring starts with it. On a running ring even a good one is refused, if it is another.
#[test]
fn p13_ring_sizes_that_are_none() {
    let lab = Lab::new(1);
    let mut fe = acked(&lab.d, lab.evil);
    let last = if long() { 70_000 } else { 1_100 };
    let edges = [4_095, 4_097, 32_767, 32_769, 40_000, 65_535, 65_536, 65_537, 65_792, 1 << 17];
    let high = (17..32).map(|shift| 1u32 << shift).chain([u32::MAX, u32::MAX - 1, 0x8000_0100]);
    let mut refused = 0;
    for num in (0..=last).chain(edges).chain(high) {
        let good = num.is_power_of_two() && num <= 32_768;
        match fe.set_vring_num(0, num) {
            Ok(()) => assert!(good, "{num} acknowledged"),
            Err(Error::Nack(_)) => {
                assert!(!good, "{num} refused");
                refused += 1;
            }
            Err(e) => panic!("{num}: {e:?}"),
        }
    }
    assert!(refused > 1_000);
    assert!(fe.leave(SOON));
    // The ring still works with the size it had.
    let guest = Guest::new(small(1));
    let mut fe = at_stage(&lab.d, lab.evil, &guest, Stage::Configured);
    for num in [200, 0, 32_769, 65_536] {
        let flags = VERSION | FLAG_NEED_REPLY;
        fe.send(req::SET_VRING_NUM, flags, &state_body(0, num), &[]).expect("sent");
        assert!(matches!(fe.ack(req::SET_VRING_NUM), Err(Error::Nack(_))), "{num}");
    }
    for ring in guest.rings() {
        fe.set_vring_fd(req::SET_VRING_KICK, ring.index, Some(ring.kick.raw())).expect("kick");
    }
    let flags = VERSION | FLAG_NEED_REPLY;
    for (num, good) in [(16, true), (8, false), (32, false), (200, false)] {
        fe.send(req::SET_VRING_NUM, flags, &state_body(0, num), &[]).expect("sent");
        assert_eq!(fe.ack(req::SET_VRING_NUM).is_ok(), good, "{num} on a running ring");
    }
    drop(fe);
    lab.finish();
}

/// A flood of announcements is no way to make a worker busy: what a migration needs is sent, the
/// rest is refused, and reconnecting does not help.
#[test]
fn announcements_are_few() {
    let lab = Lab::new(2);
    let mut rng = Rng::new(7);
    let begun = std::time::Instant::now();
    let mut refused = 0;
    for _ in 0..5 {
        let mut fe = acked(&lab.d, lab.evil);
        for _ in 0..2_000 {
            let mac = [2, 0, 0, 0, rng.next() as u8, rng.next() as u8];
            refused += u32::from(matches!(fe.send_rarp(mac), Err(Error::Nack(_))));
        }
        assert!(fe.leave(SOON));
    }
    std::thread::sleep(Duration::from_millis(100));
    let allowed = 32 + begun.elapsed().as_millis() as u32 / 50 + 1;
    assert!(10_000 - refused <= allowed, "{} of {allowed}", 10_000 - refused);
    let sent = lab.d.counters().sum(None, "announced", "frames");
    assert!(sent >= 5 && sent <= u64::from(10_000 - refused), "{sent} announced");
    lab.finish();
}
