//! Guests that send from every address there is: the table holds, and the bystanders' addresses
//! stay in it.

use std::time::Duration;

use crate::alone;
use testkit::hostile::{one_buffer, raw_avail, raw_desc, refill, restart_with};
use testkit::neighbours::{Lab, While};
use testkit::ring::Seg;
use testkit::shares::{SIZE, frame, receive, whole};
use testkit::vm::Vm;

/// Addresses that two ports take from each other.
const ADDRESSES: u16 = 1024;
/// Bytes of a frame, with the virtio-net header, and of the room it has.
const LEN: usize = 112;
const ROOM: usize = 128;
/// How often what came back is offered again.
const PAUSE: Duration = Duration::from_micros(150);

/// Fills a guest's ring with frames from all the addresses in turn, beginning with number `first`.
fn send_from_everywhere(vm: &mut Vm, to: [u8; 6], first: u16) {
    let frames = vm.guest.mem.alloc_in(1, u64::from(ADDRESSES) * ROOM as u64, 16);
    for n in 0..ADDRESSES {
        let [high, low] = n.to_be_bytes();
        let header = [&[0; 12][..], &to, &[2, 0xf1, 0xa9, 0, high, low], &[0x88, 0xb5]].concat();
        frames.write(usize::from(n) * ROOM, &header);
    }
    restart_with(vm, 1, |ring| {
        for i in 0..SIZE {
            let n = (first + i) % ADDRESSES;
            let gpa = frames.gpa() + u64::from(n) * ROOM as u64;
            raw_desc(ring, i, Seg { gpa, len: LEN as u32 }, 0, 0);
            raw_avail(ring, i, i);
        }
    });
}

/// Two guests send to a third without end.
fn keep_sending<'a>(from: &'a [Vm], to: &'a Vm) -> impl FnMut(&While<'_>) + Send + 'a {
    move |phase: &While<'_>| {
        phase.every(PAUSE, || {
            let rings = from.iter().map(|vm| &vm.guest.tx[0].ring);
            [&to.guest.rx[0].ring].into_iter().chain(rings).for_each(refill);
        });
    }
}

/// Two ports take a thousand addresses from each other, each frame one, 10^5 times each and more:
/// each address stays in the table once, what the bystanders taught it stays there, and they are
/// served as beside two guests that send as much from one address.
#[test]
fn addresses_that_flap_between_two_ports() {
    let _alone = alone();
    let mut lab = Lab::new(6, &[]);
    let mut sink = |id| {
        let mut vm = lab.guest(id, |cfg| cfg.size = SIZE);
        receive(&mut vm);
        vm
    };
    let (flap_sink, calm_sink) = (sink(4), sink(7));
    let mut sender = |id| lab.guest(id, |cfg| cfg.tx_size = SIZE);
    let (mut flapping, mut calm) = ([sender(2), sender(3)], [sender(5), sender(6)]);
    for (vm, first) in flapping.iter_mut().zip([0, ADDRESSES / 2]) {
        send_from_everywhere(vm, flap_sink.mac(), first);
    }
    for vm in &mut calm {
        let bytes = frame(vm, calm_sink.mac(), LEN - 12);
        restart_with(vm, 1, |ring| one_buffer(ring, whole(&bytes), 0));
    }
    let counted = |lab: &Lab, side, key| {
        let c = lab.d.counters();
        ["p2", "p3"].map(|port| c.sum(Some(port), side, key))
    };
    let reached = counted(&lab, "out", "frames");
    loop {
        lab.unharmed(
            "addresses that flap",
            keep_sending(&calm, &calm_sink),
            keep_sending(&flapping, &flap_sink),
        );
        let moves = counted(&lab, "in", "frames");
        println!("{moves:?} frames of addresses that flap");
        if moves.iter().all(|&n| n >= 100_000) {
            break;
        }
    }
    // Each is at one port or the other, besides their own.
    let addresses = counted(&lab, "", "addresses");
    assert_eq!(addresses.iter().sum::<u64>(), u64::from(ADDRESSES) + 2, "{addresses:?} addresses");
    // A bystander's frame would have been flooded if its peer's address had been lost.
    assert_eq!(counted(&lab, "out", "frames"), reached, "floods reached the attackers");
    drop((flapping, calm, flap_sink, calm_sink));
    lab.finish();
}
