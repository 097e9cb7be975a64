//! A guest that breaks the rules of the ring: its buffers come back or its ring is given up, its
//! frames go nowhere, and the guests beside it notice nothing.

use std::time::Duration;

use testkit::SOON;
use testkit::hostile::{
    BAD_CHAINS, bad_chain, loop_chain, offer, raw_avail, raw_avail_idx, raw_desc,
};
use testkit::net::{Job, Net, Sizes};
use testkit::proc::{Daemon, wait_for};
use testkit::ring::{DESC_WRITE, Seg};
use testkit::sys::{self};
use testkit::traffic::To;
use testkit::vm::{Guest, Vm, VmConfig};

/// The hostile guest's port and number; 0 and 1 are honest.
const EVIL: usize = 2;

/// Two honest guests and a hostile one.
fn trio(extra: &[&str]) -> (Daemon, Net, Vm) {
    let d = Daemon::with(3, extra);
    let mut net = Net::connect(&d, 2, |c| c);
    let evil = Vm::connect(&d.socket(EVIL), VmConfig::new(EVIL as u8));
    chat(&mut net, 100);
    (d, net, evil)
}

/// Honest traffic goes on as if nothing were.
fn chat(net: &mut Net, frames: u32) {
    net.run(&[
        Job::new(0, To::Vm(1), frames, Sizes::Range(60, 1514)),
        Job::new(1, To::Vm(0), frames, Sizes::Range(60, 1514)),
    ]);
}

fn finish(d: Daemon, mut net: Net) {
    chat(&mut net, 1000);
    net.finish();
    drop(net);
    d.stop();
}

/// Stops the hostile guest's ring and starts it empty, as its driver's reset would.
fn restart(evil: &mut Vm, tx: bool) {
    let index = u32::from(tx);
    evil.fe.get_vring_base(index).expect("base");
    if tx {
        evil.guest.tx[0].reclaim_all()
    } else {
        evil.guest.rx[0].reclaim_all()
    }
    let ring = if tx { &evil.guest.tx[0].ring } else { &evil.guest.rx[0].ring };
    evil.guest.start_ring(&mut evil.fe, ring).expect("start");
    evil.settle();
}

/// Every malformed chain comes back (or breaks the ring, which says so), and none is forwarded.
#[test]
fn bad_chains_come_back() {
    let (d, mut net, mut evil) = trio(&[]);
    let good = evil.guest.mem.alloc_in(0, 4096, 16);
    let end = evil.guest.cfg.regions[0].gpa + evil.guest.cfg.regions[0].len;
    let rounds = if testkit::long() { 7000 } else { 200 };
    for kind in BAD_CHAINS {
        restart(&mut evil, true);
        bad_chain(&evil.guest.tx[0].ring, kind, &good, end);
        for n in 1..=rounds {
            let ring = &evil.guest.tx[0].ring;
            offer(ring, 0);
            let broken = || sys::poll_in(&[ring.err.raw()], Duration::ZERO);
            let back = wait_for(SOON, || ring.used_idx() == n || broken());
            assert!(back, "{kind:?}: {} of {n} came back", ring.used_idx());
            if broken() {
                ring.err.take();
                break;
            }
        }
        chat(&mut net, 20);
    }
    restart(&mut evil, true);
    good_frames_pass(&mut evil, &mut net);
    drop(evil);
    finish(d, net);
}

/// The hostile guest's ring works again once it keeps to the rules: its frames are unknown to the
/// checkers, so it only sends to itself and counts its buffers.
fn good_frames_pass(evil: &mut Vm, net: &mut Net) {
    let mac = evil.mac();
    let frame = [&mac[..], &mac, &[0x88, 0xb5], &[1; 46]].concat();
    for _ in 0..1000 {
        evil.tx[0].send_waiting(&frame, SOON);
    }
    evil.tx[0].drain(SOON);
    chat(net, 20);
}

/// P2: an avail.idx that claims more than the ring holds. The ring is broken, said once through
/// the err fd, and costs no CPU and no log after that.
#[test]
fn avail_index_beyond_the_ring() {
    let (d, mut net, mut evil) = trio(&[]);
    for tx in [true, false] {
        let ring = if tx { &evil.guest.tx[0].ring } else { &evil.guest.rx[0].ring };
        let ahead = ring.used_idx().wrapping_add(ring.size + 1);
        raw_avail_idx(ring, ahead);
        ring.kick.write(1);
        if !tx {
            // An RX ring is looked at when somebody sends.
            net.send_only(&Job::new(0, To::Broadcast, 1, Sizes::Fixed(60)));
            net.run(&[]);
        }
        let ring = if tx { &evil.guest.tx[0].ring } else { &evil.guest.rx[0].ring };
        assert!(sys::poll_in(&[ring.err.raw()], SOON), "no error reported, tx {tx}");
        let (log, ticks) = (d.log().lines().count(), d.cpu_ticks());
        for _ in 0..2000 {
            ring.kick.write(1);
            std::thread::sleep(Duration::from_micros(500));
        }
        let (log, ticks) = (d.log().lines().count() - log, d.cpu_ticks() - ticks);
        assert!(log <= 4, "{log} log lines in about 2 s");
        assert!(ticks <= 50, "{ticks} ticks of CPU for 2000 kicks of a broken ring");
        chat(&mut net, 100);
        restart(&mut evil, tx);
    }
    good_frames_pass(&mut evil, &mut net);
    drop(evil);
    finish(d, net);
}

/// Heads that do not exist, or that are offered twice.
#[test]
fn heads_that_are_none() {
    let (d, mut net, mut evil) = trio(&[]);
    for head in [evil.guest.tx[0].ring.size, 0x7fff, 0xffff] {
        restart(&mut evil, true);
        offer(&evil.guest.tx[0].ring, head);
        std::thread::sleep(Duration::from_millis(20));
        chat(&mut net, 50);
    }
    restart(&mut evil, true);
    let ring = &evil.guest.tx[0].ring;
    let seg = Seg { gpa: ring.desc.gpa(), len: 64 };
    raw_desc(ring, 0, seg, DESC_WRITE, 0);
    for slot in 0..ring.size {
        raw_avail(ring, slot, 0);
    }
    raw_avail_idx(ring, ring.size);
    ring.kick.write(1);
    std::thread::sleep(Duration::from_millis(20));
    chat(&mut net, 50);
    restart(&mut evil, true);
    good_frames_pass(&mut evil, &mut net);
    drop(evil);
    finish(d, net);
}

/// P10: every head a chain of the whole ring. One kick must not cost more than a turn's worth.
#[test]
fn long_loops_cost_little() {
    let (d, mut net, mut evil) = trio(&[]);
    restart(&mut evil, true);
    let mem = evil.guest.mem.clone();
    let good = mem.alloc_in(0, 4096, 16);
    let ring = &evil.guest.tx[0].ring;
    loop_chain(ring, ring.size, Seg { gpa: good.gpa(), len: 1 }, 0);
    let before = d.cpu_ticks();
    let size = ring.size;
    for slot in 0..size {
        raw_avail(ring, slot, slot);
    }
    for round in 1..=20u16 {
        raw_avail_idx(ring, round.wrapping_mul(size));
        ring.kick.write(1);
        let done = wait_for(SOON, || ring.used_idx() == round.wrapping_mul(size));
        assert!(done || sys::poll_in(&[ring.err.raw()], Duration::ZERO), "round {round}");
    }
    let ticks = d.cpu_ticks() - before;
    assert!(ticks <= 100, "{ticks} ticks for 20 rings full of loops");
    chat(&mut net, 100);
    drop(evil);
    finish(d, net);
}

/// RX buffers that a device must not write, or that lie nowhere: the frames for them are lost,
/// counted, and nobody else's.
#[test]
fn bad_rx_buffers() {
    let (d, mut net, mut evil) = trio(&[]);
    let good = evil.guest.mem.alloc_in(0, 4096, 16);
    let cases = [
        (Seg { gpa: 1 << 50, len: 2048 }, DESC_WRITE),
        (Seg { gpa: u64::MAX - 100, len: 2048 }, DESC_WRITE),
        (Seg { gpa: good.gpa(), len: 2048 }, 0),
        (Seg { gpa: good.gpa(), len: 0 }, DESC_WRITE),
        (Seg { gpa: good.gpa(), len: 1 }, DESC_WRITE),
        (Seg { gpa: good.gpa(), len: 11 }, DESC_WRITE),
        (Seg { gpa: good.gpa(), len: u32::MAX }, DESC_WRITE),
    ];
    for (seg, flags) in cases {
        evil.fe.get_vring_base(0).expect("base");
        evil.guest.rx[0].ring.reset();
        let Vm { fe, guest } = &mut evil;
        let ring = &guest.rx[0].ring;
        for i in 0..ring.size {
            raw_desc(ring, i, seg, flags, 0);
            raw_avail(ring, i, i);
        }
        raw_avail_idx(ring, ring.size);
        guest.start_ring(fe, ring).expect("start");
        evil.settle();
        net.run(&[
            Job::new(0, To::Broadcast, 50, Sizes::Range(60, 1514)),
            Job::new(1, To::Unknown, 50, Sizes::Range(60, 1514)),
        ]);
    }
    drop(evil);
    finish(d, net);
}

/// A guest that never refills its RX ring holds up nobody (I7): what is for it is dropped.
#[test]
fn a_full_receiver_holds_up_nobody() {
    for workers in ["1", "2"] {
        let (d, mut net, mut evil) = trio(&["--workers", workers]);
        evil.rx[0].hold = true;
        net.run(&[
            Job::new(0, To::Broadcast, 2000, Sizes::Fixed(60)),
            Job::new(0, To::Vm(1), 5000, Sizes::Range(60, 1514)),
            Job::new(1, To::Vm(0), 5000, Sizes::Range(60, 1514)),
        ]);
        let counters = d.counters();
        counters.balance();
        let dropped = counters.drops(Some("p2"), "out");
        let posted = u64::from(evil.rx[0].ring.used_idx());
        // Everything the guests flooded and sent since it joined went to it or was dropped.
        assert!(dropped > 0 && posted <= 256, "{dropped} dropped, {posted} delivered");
        drop(evil);
        finish(d, net);
    }
}

/// P1: the front-end shrinks its memory file after it was mapped. Touching the lost pages raises
/// SIGBUS, which must end at that port. 60 times; 1,000 times with `VIOSWITCH_LONG=1`.
#[test]
fn memory_is_truncated() {
    let d = Daemon::with(3, &["--workers", "2"]);
    let mut net = Net::connect(&d, 2, |c| c);
    let rounds = if testkit::long() { 1000 } else { 60 };
    for round in 0..rounds {
        let evil = Vm::connect(&d.socket(EVIL), VmConfig::new(EVIL as u8));
        // Before, at, and after the middle of the rings and buffers; often all of it.
        let len = [0, 4096, 16384, 65536, 1 << 20][round % 5];
        let kick = evil.guest.tx[0].ring.kick.raw();
        net.send_only(&Job::new(0, To::Broadcast, 8, Sizes::Fixed(1514)));
        for (_, fd) in evil.guest.mem.table() {
            sys::truncate(&fd, len);
        }
        // From here on this process must not touch that memory either.
        sys::signal_raw(kick);
        net.send_only(&Job::new(1, To::Broadcast, 8, Sizes::Fixed(1514)));
        net.run(&[Job::new(1, To::Vm(0), 20, Sizes::Range(60, 1514))]);
        drop(evil);
    }
    finish(d, net);
}

/// The front-end dies in the middle of everything, a hundred times; the others lose nothing.
#[test]
fn front_ends_die_under_load() {
    let d = Daemon::with(3, &["--workers", "2"]);
    let mut net = Net::connect(&d, 2, |c| c);
    for _ in 0..100 {
        let mut evil = Vm::connect(&d.socket(EVIL), VmConfig::new(EVIL as u8));
        let mac = evil.mac();
        let frame = [&mac[..], &mac, &[0x88, 0xb5], &[1; 46]].concat();
        for _ in 0..64 {
            evil.tx[0].queue(&frame);
        }
        evil.tx[0].ring.publish();
        net.send_only(&Job::new(0, To::Broadcast, 8, Sizes::Fixed(200)));
        let guest: Guest = {
            let Vm { fe, guest } = evil;
            drop(fe);
            guest
        };
        net.run(&[Job::new(1, To::Vm(0), 20, Sizes::Range(60, 1514))]);
        drop(guest);
    }
    finish(d, net);
}
