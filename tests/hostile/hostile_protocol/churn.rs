//! Ten thousand front-ends come and go (P9): they leave in every state.

use std::os::fd::AsRawFd;

use super::lab::{Lab, SOON, STAGES, at_stage, connect, small};
use testkit::frontend::{VERSION, message, req};
use testkit::long;
use testkit::sys;
use testkit::vm::Guest;

/// 0 descriptors, threads and mappings more, memory flat, whatever the state in which they leave
/// and however much of a message they have sent.
#[test]
fn p9_connect_and_close() {
    let lab = Lab::new(1);
    let guest = Guest::new(small(1));
    let memory = sys::memfd(1 << 20);
    let cycles = if long() { 10_000 } else { 700 };
    let half = message(req::SET_VRING_KICK, VERSION, &1u64.to_le_bytes());
    for cycle in 0..cycles {
        let stage = STAGES[cycle % STAGES.len()];
        let mut fe = at_stage(&lab.d, lab.evil, &guest, stage);
        match cycle / STAGES.len() % 4 {
            // In the middle of a message, with and without a descriptor.
            0 => fe.send_raw(&half[..cycle % half.len()], &[]).expect("sent"),
            1 => fe.send_raw(&half[..13], &[memory.as_raw_fd()]).expect("sent"),
            // With frames under way.
            2 => guest.tx[0].ring.kick.write(1),
            _ => {}
        }
        drop(fe);
        if cycle % 1000 == 999 {
            assert!(connect(&lab.d, lab.evil).leave(SOON));
            lab.nothing_left();
        }
    }
    lab.finish();
}
