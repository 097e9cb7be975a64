//! No buffer is lost on errors: after a hundred thousand bad chains every one is back, in order and
//! once, every one is counted, and ten thousand good frames pass.

use std::sync::atomic::Ordering;

use super::duo::Duo;
use super::lab::{DATA, HIGH_END, Lab, NEXT_END, PORT, SOON, chat, counters, restart};
use testkit::hostile::{BAD_CHAINS, bad_chain, raw_avail, raw_avail_idx, raw_desc};
use testkit::net::{Job, Sizes};
use testkit::proc::wait_for;
use testkit::ring::{DESC_NEXT, DESC_WRITE, Ring, Seg};
use testkit::traffic::To;
use testkit::vm::{MODERN, Vm};

/// Bad chains, and good frames after them.
fn counts() -> (u64, u32) {
    if testkit::long() { (100_000, 10_000) } else { (15_000, 2_000) }
}

#[test]
fn buffer_lost_on_error_when_sending() {
    let mut lab = Lab::new(MODERN);
    let (bad, good) = counts();
    let each = bad.div_ceil(BAD_CHAINS.len() as u64);
    for kind in BAD_CHAINS {
        restart(&mut lab.evil, true);
        let before = counters(&lab.d);
        let good = lab.evil.guest.mem.span(DATA, 4096);
        let (ring, mut taken) = (lab.tx(), 0u64);
        bad_chain(ring, kind, &good, HIGH_END);
        while taken < each {
            // A whole ring at a time: all of one burst and of the next are bad.
            let count = (each - taken).min(256) as u16;
            lab.offer(ring, &vec![0; count.into()]);
            let idx = ring.avail.index(2).load(Ordering::Relaxed);
            assert!(wait_for(SOON, || ring.used_idx() == idx), "{kind:?}: {taken} (I5)");
            taken += u64::from(count);
        }
        let after = counters(&lab.d);
        let of = |key| after.sum(PORT, "in", key) - before.sum(PORT, "in", key);
        let drops = after.drops(PORT, "in") - before.drops(PORT, "in");
        assert_eq!((of("frames"), drops, of("copies")), (taken, taken, 0), "{kind:?} (I1)");
    }
    restart(&mut lab.evil, true);
    for n in 0..good {
        lab.sends_well("after bad chains");
        if n % 500 == 0 {
            chat(&mut lab.net, 10);
        }
    }
    lab.finish();
}

/// Buffers that are none, of each kind.
const BAD_BUFFERS: [(&str, Seg, u16, u16); 7] = [
    ("in a hole", Seg { gpa: NEXT_END, len: 2048 }, DESC_WRITE, 0),
    ("beyond the end", Seg { gpa: HIGH_END - 100, len: 2048 }, DESC_WRITE, 0),
    ("that wraps", Seg { gpa: u64::MAX - 100, len: 2048 }, DESC_WRITE, 0),
    ("not to be written", Seg { gpa: DATA, len: 2048 }, 0, 0),
    ("of no bytes", Seg { gpa: DATA, len: 0 }, DESC_WRITE, 0),
    ("of less than a header", Seg { gpa: DATA, len: 11 }, DESC_WRITE, 0),
    ("in a loop", Seg { gpa: DATA, len: 4 }, DESC_WRITE | DESC_NEXT, 0),
];

#[test]
fn buffer_lost_on_error_when_receiving() {
    let mut lab = Lab::new(MODERN);
    let (bad, good) = counts();
    let each = bad.div_ceil(BAD_BUFFERS.len() as u64);
    for (name, seg, flags, next) in BAD_BUFFERS {
        let before = counters(&lab.d);
        lab.evil.fe.get_vring_base(0).expect("base");
        lab.evil.guest.rx[0].ring.reset();
        let ring = lab.rx();
        for i in 0..ring.size {
            raw_desc(ring, i, seg, flags, next);
            raw_avail(ring, i, i);
        }
        raw_avail_idx(ring, ring.size);
        let Vm { fe, guest } = &mut lab.evil;
        guest.start_ring(fe, &guest.rx[0].ring).expect("start");
        lab.evil.settle();
        // Each frame gives back what it finds; the ring is filled again behind it.
        let mut back = 0u64;
        while back < each {
            lab.net.run(&[Job::new(0, To::Broadcast, 4, Sizes::Fixed(60))]);
            let ring = lab.rx();
            let idx = ring.avail.index(2).load(Ordering::Relaxed);
            let used = ring.used_idx();
            let free = ring.size - idx.wrapping_sub(used);
            assert!(free > 0, "buffers {name}: none came back");
            check_order(ring, used, free, name);
            back += u64::from(free);
            raw_avail_idx(ring, idx.wrapping_add(free));
        }
        let after = counters(&lab.d);
        let refused =
            after.sum(PORT, "out", "bad_buffers") - before.sum(PORT, "out", "bad_buffers");
        let frames = after.sum(PORT, "out", "frames") - before.sum(PORT, "out", "frames");
        assert_eq!((refused, frames), (back, 0), "buffers {name}");
        after.balance();
    }
    restart(&mut lab.evil, false);
    // The first good buffer is what makes the ring one that receives.
    lab.rx().kick.write(1);
    let mut got = 0;
    for _ in 0..good {
        got += received(&mut lab);
    }
    assert!(got >= good - 1, "{got} of {good} good frames");
    lab.finish();
}

/// The `count` elements before `used` are heads in the order they were offered, all empty.
fn check_order(ring: &Ring, used: u16, count: u16, name: &str) {
    for i in 1..=count {
        let slot = used.wrapping_sub(i) & (ring.size - 1);
        let at = 4 + 8 * usize::from(slot);
        let element = (ring.used.get32(at), ring.used.get32(at + 4));
        assert_eq!(element, (u32::from(slot), 0), "buffers {name} (I5)");
    }
}

/// One good buffer, one frame: 1 if it came.
fn received(lab: &mut Lab) -> u32 {
    let (ring, from) = (lab.rx(), lab.rx().used_idx());
    raw_desc(ring, 0, Seg { gpa: DATA, len: 2048 }, DESC_WRITE, 0);
    if ring.avail.index(2).load(Ordering::Relaxed) == from {
        lab.offer(ring, &[0]);
    }
    lab.net.run(&[Job::new(0, To::Broadcast, 1, Sizes::Fixed(60))]);
    u32::from(lab.rx().used_idx() != from)
}

/// A disabled ring's buffers come back unread, however long the chains: a kick costs no more than
/// writing a ring's worth of used elements.
#[test]
fn discarding_costs_little_and_loses_nothing() {
    let mut duo = Duo::new(MODERN, false);
    // Large enough that walking the chains would take most of a second.
    let size = 32_768u16;
    let vm = &mut duo.sender;
    vm.fe.get_vring_base(1).expect("base");
    let part = |vm: &Vm, len: u64| Duo::alloc(vm, len);
    let desc = part(vm, 16 * u64::from(size));
    let avail = part(vm, 6 + 2 * u64::from(size));
    let used = part(vm, 6 + 8 * u64::from(size));
    let byte = part(vm, 16);
    for i in 0..size {
        let seg = Seg { gpa: byte.gpa(), len: 1 };
        testkit::ring::put_desc(&desc, i.into(), seg, DESC_NEXT, (i + 1) % size);
        avail.set16(4 + 2 * usize::from(i), i);
    }
    let tx = &mut vm.guest.tx[0].ring;
    (tx.desc, tx.avail, tx.used, tx.size) = (desc, avail, used, size);
    vm.guest.start_ring(&mut vm.fe, &vm.guest.tx[0].ring).expect("start");
    vm.fe.set_vring_enable(1, false).expect("disable");
    vm.settle();
    let rounds = if testkit::long() { 100 } else { 10 };
    let before = (counters(&duo.d), duo.d.cpu_ticks());
    for round in 1..=rounds {
        let ring = &duo.sender.guest.tx[0].ring;
        let idx = size.wrapping_mul(round);
        raw_avail_idx(ring, idx);
        ring.kick.write(1);
        assert!(wait_for(SOON, || ring.used_idx() == idx), "round {round}: heads missing (I5)");
    }
    let ticks = duo.d.cpu_ticks() - before.1;
    let after = counters(&duo.d);
    let of = |key| after.sum(PORT, "in", key) - before.0.sum(PORT, "in", key);
    let all = u64::from(size) * u64::from(rounds);
    assert_eq!((of("frames"), of("drop.disabled")), (all, all));
    // 10 ms each; reading it all takes 200 to 700.
    let most = 2 + u64::from(rounds);
    assert!(ticks <= most, "{ticks} ticks for {rounds} rings of {size} discarded");
    println!("{ticks} ticks for {rounds} rings of {size}");
    drop(duo.sender);
    chat(&mut duo.net, 100);
    drop(duo.sink);
    duo.net.finish();
    duo.d.stop();
}
