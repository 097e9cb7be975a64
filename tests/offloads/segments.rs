//! Trains of datagrams of a few bytes: 64 KiB make up to 65,000 segments. Neither a receive ring
//! nor a worker may be held for them at the cost of others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::frontend::feat;
use crate::common::hostile::{raw_avail, raw_avail_idx, raw_desc};
use crate::common::net::{Job, Net, Sizes};
use crate::common::packet::{Ask, Kind, Packet, payload};
use crate::common::proc::Daemon;
use crate::common::ring::{DESC_WRITE, Ring, Seg};
use crate::common::traffic::To;
use crate::common::vm::{Vm, VmConfig};
use crate::lab::{Stop, connect, introduce};

/// The sender of trains and their receiver; 0 and 1 are bystanders.
const EVIL: u8 = 2;
const SINK: u8 = 3;
/// The largest ring there is, so that it is not its receiver that bounds a train.
const SINK_SIZE: u16 = 32_768;
/// Frames each way in a burst of the bystanders, and bursts.
const BURST: u32 = 64;
const BURSTS: u32 = 100;
/// Part of their rate that the bystanders keep.
const KEPT: f64 = 0.9;
const TRIES: u32 = 6;

/// Makes all buffers of a ring the same, so that they can be offered again by moving an index.
fn one_buffer(ring: &Ring, seg: Seg, flags: u16) {
    for i in 0..ring.size {
        raw_desc(ring, i, seg, flags, 0);
        raw_avail(ring, i, i);
    }
}

/// Keeps both rings full, without any work to speak of.
fn feed(tx: &Ring, rx: &Ring, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        for ring in [rx, tx] {
            raw_avail_idx(ring, ring.used_idx().wrapping_add(ring.size));
            ring.kick.write(1);
        }
        std::thread::sleep(Duration::from_micros(300));
    }
}

/// A sender of trains whose receiver, without offloads, takes everything.
fn attackers(d: &Daemon, ask: Ask) -> (Vm, Vm) {
    let mut evil = connect(d, EVIL, feat::OFFLOADS, true);
    let mut cfg = VmConfig::with_offloads(SINK, 0, true);
    cfg.size = SINK_SIZE;
    let mut sink = Vm::connect(&d.socket(SINK.into()), cfg);
    introduce(&mut [&mut evil, &mut sink]);
    let kind = Kind { udp: true, ..Kind::default() };
    let packet = Packet::new(kind, evil.mac(), sink.mac(), &payload(9, kind.longest()));
    let (header, frame) = packet.sent(ask);
    let bytes = [&header.bytes(12)[..], &frame].concat();
    let memory = evil.guest.mem.alloc_in(0, bytes.len() as u64, 16);
    memory.write(0, &bytes);
    restart(&mut evil, 1, Seg { gpa: memory.gpa(), len: bytes.len() as u32 }, 0);
    let memory = sink.guest.mem.alloc_in(0, 1526, 16);
    restart(&mut sink, 0, Seg { gpa: memory.gpa(), len: 1526 }, DESC_WRITE);
    (evil, sink)
}

/// Starts a guest's first RX ring (0) or TX ring (1) again, with the same buffer over and over.
fn restart(vm: &mut Vm, index: u32, seg: Seg, flags: u16) {
    vm.fe.get_vring_base(index).expect("base");
    let Vm { fe, guest } = vm;
    let ring = if index == 0 { &mut guest.rx[0].ring } else { &mut guest.tx[0].ring };
    ring.reset();
    one_buffer(ring, seg, flags);
    let ring = if index == 0 { &guest.rx[0].ring } else { &guest.tx[0].ring };
    guest.start_ring(fe, ring).expect("start");
    vm.settle();
}

/// Bursts of frames between the bystanders, one each `pause`: the time they took, and how many
/// segments the switch made meanwhile. All of them arrive, or the net panics.
fn bystanders(ask: Option<Ask>, pause: Duration) -> (Duration, u64) {
    let d = Daemon::with(4, &[]);
    let mut pair = ask.map(|ask| attackers(&d, ask));
    let mut net = Net::connect(&d, 2, |c| c);
    let before = made(&d);
    let stop = &AtomicBool::new(false);
    let took = std::thread::scope(|s| {
        let _stop = Stop(stop);
        if let Some((evil, sink)) = &mut pair {
            s.spawn(move || feed(&evil.guest.tx[0].ring, &sink.guest.rx[0].ring, stop));
        }
        let start = Instant::now();
        for n in 1..=BURSTS {
            let job = |from, to| Job::new(from, To::Vm(to), BURST, Sizes::Fixed(1514));
            net.run(&[job(0, 1), job(1, 0)]);
            let next = start + n * pause;
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        start.elapsed()
    });
    let made = made(&d) - before;
    drop(pair);
    d.stop();
    (took, made)
}

/// Segments made for the sink so far.
fn made(d: &Daemon) -> u64 {
    d.counters().sum(Some("p3"), "out", "segments")
}

/// Two guests at half of what they can do alone keep 90 % of that beside a sender of trains; in one
/// of a few tries, as the machine may have other things to do.
#[test]
fn tiny_segments_cost_others_little() {
    for size in [1, 2, 8] {
        let kept = (0..TRIES).map(|_| kept_beside(size)).find(|&kept| kept >= KEPT);
        assert!(kept.is_some(), "gso_size {size}: none of {TRIES} tries kept {KEPT}");
    }
}

/// The part of their rate that they keep.
fn kept_beside(size: u16) -> f64 {
    let (alone, _) = bystanders(None, Duration::ZERO);
    let pause = 2 * alone / BURSTS;
    let (took, made) = bystanders(Some(Ask::Segments(size)), pause);
    assert!(made > 10_000, "only {made} segments beside them");
    let kept = (BURSTS * pause).as_secs_f64() / took.as_secs_f64();
    println!("gso_size {size}: {made} segments beside, a burst each {pause:?}, {kept:.2} kept");
    kept
}
