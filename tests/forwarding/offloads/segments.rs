//! Trains of datagrams of a few bytes: 64 KiB make up to 65,000 segments. Neither a receive ring
//! nor a worker may be held for them at the cost of others.

use testkit::frontend::feat;
use testkit::hostile::{one_buffer, restart_with};
use testkit::packet::{Ask, Kind, Packet, payload};
use testkit::ring::{DESC_WRITE, Seg};
use testkit::shares::{Shares, whole};

/// Puts a train for a receiver into the attacker's memory; the buffer that holds it.
fn train(shares: &Shares, to: [u8; 6], size: u16) -> Seg {
    let kind = Kind { udp: true, ..Kind::default() };
    let packet = Packet::new(kind, shares.evil.mac(), to, &payload(9, kind.longest()));
    let (header, frame) = packet.sent(Ask::Segments(size));
    let bytes = [&header.bytes(12)[..], &frame].concat();
    let memory = shares.evil.guest.mem.alloc_in(0, bytes.len() as u64, 16);
    memory.write(0, &bytes);
    whole(&memory)
}

/// A receiver without offloads, whose ring of 32,768 buffers never bounds a train, takes trains of
/// tiny segments; beside it a bystander keeps nine tenths of its share.
#[test]
fn tiny_segments_cost_others_little() {
    let mut shares = Shares::new(2, |cfg| cfg.features |= feat::OFFLOADS);
    for size in [1, 2, 8] {
        let train = train(&shares, shares.sinks[0].mac(), size);
        let before = shares.d.counters().sum(Some("p3"), "out", "segments");
        let what = format!("segments of {size} bytes");
        shares.kept_beside(&what, |ring| one_buffer(ring, train, 0));
        let made = shares.d.counters().sum(Some("p3"), "out", "segments") - before;
        assert!(made > 10_000, "only {made} segments beside the bystander");
    }
}

/// The same for a receiver whose 32,768 buffers hold a byte, or hardly more than the header.
#[test]
fn crumbs_for_tiny_segments_cost_others_little() {
    let mut shares = Shares::new(2, |cfg| cfg.features |= feat::OFFLOADS);
    let crumb = shares.sinks[1].guest.mem.alloc_in(0, 64, 16);
    for len in [1, 20] {
        let seg = Seg { gpa: crumb.gpa(), len };
        restart_with(&mut shares.sinks[1], 0, |ring| one_buffer(ring, seg, DESC_WRITE));
        let train = train(&shares, shares.sinks[1].mac(), 8);
        let what = format!("segments of 8 bytes into buffers of {len}");
        shares.kept_beside(&what, |ring| one_buffer(ring, train, 0));
    }
}
