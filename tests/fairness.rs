//! No sender takes what belongs to others.

mod common;

use std::time::Duration;

use common::proc::Daemon;
use common::traffic::{self, Checker, Stream, To};
use common::vm::{Vm, VmConfig};

const LIMIT: Duration = Duration::from_secs(5);

fn stream(sender: u8, to: u8) -> Stream {
    Stream { sender, queue: 0, to: To::Vm(to), flow: 0 }
}

/// Guests 1 to `senders` and a receiver, guest 0, that posts buffers only when told to.
fn guests(d: &Daemon, senders: u8) -> (Vm, Vec<Vm>) {
    let mut receiver = Vm::connect(&d.socket(0), VmConfig::new(0));
    let mut senders: Vec<Vm> = (1..=senders)
        .map(|id| Vm::connect(&d.socket(usize::from(id)), VmConfig::new(id)))
        .collect();
    // Everybody is learned; nothing is left under way.
    let mut frame = Vec::new();
    for vm in senders.iter_mut().chain([&mut receiver]) {
        let me = Stream { sender: vm.cfg.id, queue: 0, to: To::Broadcast, flow: 6 };
        traffic::build(&me, 0, 60, &mut frame);
        assert!(vm.tx[0].send(&frame));
        vm.tx[0].drain(LIMIT);
    }
    // Uses up the buffers that were posted at the start.
    receiver.rx[0].hold = true;
    let one = &mut senders[0];
    let mut seq = 0;
    while receiver.rx[0].ring.used_ready() < 256 {
        traffic::build(&Stream { flow: 5, ..stream(1, 0) }, seq, 60, &mut frame);
        assert!(one.tx[0].send(&frame));
        one.tx[0].drain(LIMIT);
        seq += 1;
    }
    while receiver.rx[0].recv(64, |_, _| ()) > 0 {}
    (receiver, senders)
}

/// Four senders at full rate, a receiver that posts 64 buffers where 128 are wanted: whoever is
/// served first must not take them all.
fn equal_parts(workers: &str) {
    let d = Daemon::with(5, &["--workers", workers]);
    let (mut receiver, mut senders) = guests(&d, 4);
    let mut checker = Checker::new(0, 1);
    let mut got = [0u32; 5];
    let mut frame = Vec::new();
    let mut seq = 0;
    for _ in 0..300 {
        receiver.rx[0].post(64);
        receiver.rx[0].ring.publish();
        for _ in 0..32 {
            for vm in &mut senders {
                traffic::build(&stream(vm.cfg.id, 0), seq, 60, &mut frame);
                assert!(vm.tx[0].queue(&frame));
            }
            seq += 1;
        }
        // Always in the same order, so that the first has every advantage.
        for vm in &mut senders {
            vm.tx[0].ring.publish();
        }
        for vm in &mut senders {
            vm.tx[0].drain(LIMIT);
        }
        while receiver.rx[0].recv(64, |_, f| got[checker.accept(0, f).sender as usize] += 1) > 0 {}
    }
    let total: u32 = got.iter().sum();
    assert!(total > 300 * 48, "only {total} of {} buffers were used", 300 * 64);
    for (id, &got) in got.iter().enumerate().skip(1) {
        let part = total / 4;
        assert!(got.abs_diff(part) < part / 10, "sender {id} got {got}, a fair part is {part}");
    }
    assert!(d.counters().sum(Some("p0"), "out", "drop.no_buffer") > 0, "nothing was scarce");
    d.counters().balance();
    d.stop();
}

#[test]
fn four_senders_get_equal_parts_of_a_scarce_receiver() {
    equal_parts("1");
}

#[test]
fn four_senders_on_two_workers_get_equal_parts() {
    equal_parts("2");
}
