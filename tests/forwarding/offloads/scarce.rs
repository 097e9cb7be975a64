//! Receivers too small for what is sent to them: rings shorter than a packet has segments, buffers
//! shorter than a frame, drivers that are slow or do not refill at all. Nothing stalls, every frame
//! is accounted for, and what does arrive is in order.

use std::time::{Duration, Instant};

use super::lab::{QUIET, Sent, Work, connect, delivered, exchange, introduce, send};
use testkit::frontend::feat;
use testkit::packet::{Ask, FIRST_ID, Kind, Packet, payload, verify};
use testkit::proc::Daemon;
use testkit::vm::{Vm, VmConfig, mac_of};

/// Packets sent to each receiver.
const PACKETS: u64 = 40;
/// Within this every packet is delivered or dropped, with time for a busy machine.
const LIMIT: Duration = Duration::from_secs(10);

/// How a driver hands its buffers back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Refill {
    /// At once.
    Prompt,
    /// One by one, each millisecond.
    Slow,
    /// Never.
    No,
}

/// A receiver without offloads and with `size` buffers.
fn small(d: &Daemon, size: u16, mergeable: bool) -> Vm {
    let mut cfg = VmConfig::with_offloads(1, 0, mergeable);
    cfg.size = size;
    cfg.rx.buffers = size;
    Vm::connect(&d.socket(1), cfg)
}

/// Takes what is there, as fast as the driver is, and checks that each frame is a segment of a
/// packet, in order.
fn take(to: &mut Vm, refill: Refill, last: &mut Option<u16>, got: &mut u64) {
    let max = if refill == Refill::Slow { 1 } else { 64 };
    to.rx[0].recv(max, |_, frame| {
        let parts = verify(frame);
        assert!(parts.is_ok(), "{:?}: {:02x?}", parts.err(), &frame[..64.min(frame.len())]);
        // What is lost of a packet is its end: the identification counts without a gap.
        let id = u16::from_be_bytes([frame[18], frame[19]]);
        let follows = last.map(|last| last.wrapping_add(1)) == Some(id);
        assert!(id == FIRST_ID || follows, "segment {id} after {last:?}");
        *last = Some(id);
        *got += 1;
    });
    if refill == Refill::Slow {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn scarce(size: u16, mergeable: bool, refill: Refill, workers: &str) {
    let d = Daemon::with(2, &["--workers", workers]);
    let mut from = connect(&d, 0, feat::OFFLOADS, true);
    let mut to = small(&d, size, mergeable);
    introduce(&mut [&mut from, &mut to]);
    let before = Work::counted(&d.counters(), "p1");
    let kind = Kind::default();
    let packet = Packet::new(kind, from.mac(), to.mac(), &payload(3, kind.longest()));
    let mss = kind.mss();
    let segments = packet.payload.len().div_ceil(mss.into()) as u64;
    assert!(segments > size.into());
    let (header, frame) = packet.sent(Ask::Segments(mss));
    to.rx[0].hold = refill == Refill::No;
    let (mut sent, mut got, mut last) = (0, 0, None);
    let end = Instant::now() + LIMIT;
    while sent < PACKETS || from.tx[0].ring.in_flight() > 0 {
        assert!(Instant::now() < end, "stalled: {sent} sent, {got} segments came");
        if sent < PACKETS {
            let len = from.cfg.header_len();
            from.tx[0].header = header.bytes(len);
            sent += u64::from(from.tx[0].send(&frame));
        }
        take(&mut to, refill, &mut last, &mut got);
        from.tx[0].reclaim();
    }
    std::thread::sleep(QUIET);
    while to.rx[0].ring.has_used() {
        take(&mut to, refill, &mut last, &mut got);
    }
    let c = d.counters();
    c.balance();
    let work = Work::counted(&c, "p1").since(before);
    println!("{size} {mergeable} {refill:?} {workers}: {work:?}");
    assert_eq!(to.rx[0].frames, delivered(&c, "p1"), "{c:#?}");
    assert_eq!(work.segments, got);
    // A packet is delivered, in part perhaps, or dropped.
    let drops = c.drops(Some("p1"), "out");
    assert_eq!(work.segmented + drops, PACKETS, "{c:#?}");
    assert_eq!(work.segments + work.segments_lost, work.segmented * segments, "{c:#?}");
    assert!(got > 0, "nothing at all came: {c:#?}");
    recovered(&d, &mut from, &mut to);
    d.stop();
}

/// Once its driver refills, the receiver gets all that its ring has room for.
fn recovered(d: &Daemon, from: &mut Vm, to: &mut Vm) {
    to.rx[0].hold = false;
    to.rx[0].refill();
    let before = Work::counted(&d.counters(), "p1");
    let mut work = Work::default();
    for kind in Kind::plain() {
        let len = 8 * usize::from(kind.mss());
        for ask in [Ask::Segments(kind.mss()), Ask::Sum, Ask::Nothing] {
            let len = if let Ask::Segments(_) = ask { len } else { kind.mss().into() };
            let sent = Sent::new(kind, from.mac(), to.mac(), len, ask);
            exchange(from, to, &[sent], &mut work);
        }
    }
    assert_eq!(Work::counted(&d.counters(), "p1").since(before), work);
}

#[test]
fn rings_shorter_than_a_packet_has_segments() {
    for size in [16, 32] {
        for mergeable in [true, false] {
            for workers in ["1", "2"] {
                scarce(size, mergeable, Refill::Prompt, workers);
            }
        }
    }
}

#[test]
fn slow_drivers() {
    for mergeable in [true, false] {
        scarce(16, mergeable, Refill::Slow, "1");
        scarce(32, mergeable, Refill::Slow, "2");
    }
}

#[test]
fn drivers_that_do_not_refill() {
    for size in [16, 32] {
        for mergeable in [true, false] {
            scarce(size, mergeable, Refill::No, "1");
        }
    }
}

/// A driver that takes large packets but posts buffers too small for them loses those packets and
/// no others.
#[test]
fn buffers_shorter_than_what_was_acknowledged() {
    let d = Daemon::with(2, &[]);
    let mut from = connect(&d, 0, feat::OFFLOADS, true);
    let mut cfg = VmConfig::with_offloads(1, feat::GUEST_OFFLOADS, false);
    cfg.rx = VmConfig::new(1).rx;
    let mut to = Vm::connect(&d.socket(1), cfg);
    introduce(&mut [&mut from, &mut to]);
    let mut lost = 0;
    for kind in Kind::plain() {
        let large = Sent::new(kind, from.mac(), mac_of(1), 20_000, Ask::Segments(kind.mss()));
        let (header, frame) = large.packet.sent(large.ask);
        send(&mut from, &header, &frame);
        lost += 1;
        let sent = Sent::new(kind, from.mac(), mac_of(1), kind.mss().into(), Ask::Sum);
        exchange(&mut from, &mut to, &[sent], &mut Work::default());
    }
    let c = d.counters();
    c.balance();
    assert_eq!(c.sum(Some("p1"), "out", "drop.no_fit"), lost, "{c:#?}");
    assert_eq!(c.drops(Some("p1"), "out"), lost, "{c:#?}");
    d.stop();
}
