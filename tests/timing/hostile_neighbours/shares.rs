//! A bystander's share of a worker beside a costly neighbour.

use crate::alone;
use testkit::frontend::feat;
use testkit::hostile::{one_buffer, raw_avail, raw_desc, restart_with};
use testkit::mem::Span;
use testkit::packet::{Ask, Kind, Packet, payload};
use testkit::ring::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE, Seg, put_desc};
use testkit::shares::{SIZE, Shares, frame, whole};
use testkit::vm::Vm;

/// Descriptors in the longest chain there may be.
pub const LONGEST: usize = 1024;
const EVERYBODY: [u8; 6] = [0xff; 6];

/// A table of `count` descriptors of `len` bytes, one behind the other.
pub fn table(vm: &Vm, count: usize, at: &Span, len: u32, flags: u16) -> Seg {
    table_apart(vm, count, at, len, len, flags)
}

/// The same with `step` bytes from one to the next.
pub fn table_apart(vm: &Vm, count: usize, at: &Span, len: u32, step: u32, flags: u16) -> Seg {
    let table = vm.guest.mem.alloc_in(0, 16 * count as u64, 16);
    for i in 0..count {
        let seg = Seg { gpa: at.gpa() + u64::from(step) * i as u64, len };
        let more = if i + 1 < count { DESC_NEXT } else { 0 };
        put_desc(&table, i, seg, flags | more, i as u16 + 1);
    }
    whole(&table)
}

/// Broadcasts of 64 and of 1,514 bytes to seven ports.
#[test]
fn broadcast_flood_by_one_guest() {
    let _alone = alone();
    let mut shares = Shares::new(5, |_| ());
    for len in [64, 1514] {
        let seg = whole(&frame(&shares.evil, EVERYBODY, len));
        shares.kept_beside(&format!("broadcasts of {len} bytes"), |ring| one_buffer(ring, seg, 0));
    }
}

/// Broadcasts of 64 KiB that are cut into segments for each of seven ports.
#[test]
#[ignore = "full"]
fn broadcast_flood_of_packets_to_be_cut() {
    let _alone = alone();
    let mut shares = Shares::new(5, |cfg| {
        cfg.features |= feat::OFFLOADS;
    });
    let kind = Kind::default();
    for size in [1448, 8] {
        let packet = Packet::new(kind, shares.evil.mac(), EVERYBODY, &payload(9, kind.longest()));
        let (header, bytes) = packet.sent(Ask::Segments(size));
        let bytes = [&header.bytes(12)[..], &bytes].concat();
        let span = shares.evil.guest.mem.alloc_in(0, bytes.len() as u64, 16);
        span.write(0, &bytes);
        let what = format!("broadcasts of 64 KiB in segments of {size} bytes");
        shares.kept_beside(&what, |ring| one_buffer(ring, whole(&span), 0));
    }
}

/// CVE-2019-3900: receive buffers of a byte, and of little more than the header.
#[test]
#[ignore = "full"]
fn endless_loop_one_byte_rx_buffers() {
    let _alone = alone();
    let mut shares = Shares::new(2, |_| ());
    let crumb = shares.sinks[1].guest.mem.alloc_in(0, 64, 16);
    for len in [1, 12, 13, 24] {
        let seg = Seg { gpa: crumb.gpa(), len };
        restart_with(&mut shares.sinks[1], 0, |ring| one_buffer(ring, seg, DESC_WRITE));
        let seg = whole(&frame(&shares.evil, shares.sinks[1].mac(), 1514));
        let what = format!("RX buffers of {len} bytes");
        shares.kept_beside(&what, |ring| one_buffer(ring, seg, 0));
    }
}

/// Receive buffers that are tables of 1,024 descriptors, the last of which makes them useless, or
/// that hold a byte each.
#[test]
#[ignore = "full"]
fn rx_buffers_that_are_useless_at_their_end() {
    let _alone = alone();
    let mut shares = Shares::new(2, |_| ());
    for useless in [true, false] {
        let sink = &mut shares.sinks[1];
        let crumb = sink.guest.mem.alloc_in(0, 4096, 16);
        let buffer = table(sink, LONGEST, &crumb, 1, DESC_WRITE);
        if useless {
            let last = sink.guest.mem.span(buffer.gpa, u64::from(buffer.len));
            put_desc(&last, LONGEST - 1, Seg { gpa: crumb.gpa(), len: 1 }, 0, 0);
        }
        restart_with(sink, 0, |ring| one_buffer(ring, buffer, DESC_INDIRECT));
        let seg = whole(&frame(&shares.evil, shares.sinks[1].mac(), 1514));
        let what = format!("RX tables of 1,024, useless {useless}");
        shares.kept_beside(&what, |ring| one_buffer(ring, seg, 0));
    }
}

/// Frames in pieces of a byte, and 64 KiB in 1,024 pieces.
#[test]
#[ignore = "full"]
fn tx_pieces_of_one_byte_and_chains_of_1024() {
    let _alone = alone();
    let mut shares = Shares::new(1, |_| ());
    for (len, pieces) in [(1, 60), (1, 1000), (64, LONGEST)] {
        let span = frame(&shares.evil, shares.sinks[0].mac(), len * pieces - 12);
        let buffer = table(&shares.evil, pieces, &span, len as u32, 0);
        let what = format!("TX chains of {pieces} pieces of {len} bytes");
        shares.kept_beside(&what, |ring| one_buffer(ring, buffer, DESC_INDIRECT));
    }
}

/// Every head is a chain or a table of 1,024 empty descriptors.
#[test]
fn all_rejected() {
    let _alone = alone();
    let mut shares = Shares::new(1, |_| ());
    let span = frame(&shares.evil, shares.sinks[0].mac(), 60);
    let empty = Seg { gpa: span.gpa(), len: 0 };
    shares.kept_beside("rejected chains of 1,024", |ring| {
        for i in 0..SIZE {
            raw_desc(ring, i, empty, DESC_NEXT, (i + 1) % SIZE);
            raw_avail(ring, i, i);
        }
    });
    let buffer = table(&shares.evil, LONGEST, &span, 0, 0);
    shares.kept_beside("rejected tables of 1,024", |ring| one_buffer(ring, buffer, DESC_INDIRECT));
    let nowhere = Seg { gpa: 1 << 50, len: 100 };
    shares.kept_beside("addresses in no region", |ring| one_buffer(ring, nowhere, 0));
}

/// Source addresses that are ever new, a million and more. The forwarding table stays within its
/// caps.
#[test]
#[ignore = "full"]
fn a_million_source_addresses() {
    let _alone = alone();
    let mut shares = Shares::new(1, |_| ());
    let to = shares.sinks[0].mac();
    let frames = shares.evil.guest.mem.alloc_in(1, u64::from(SIZE) * 128, 16);
    let mut next = 0u32;
    shares.kept_beside("frames from ever new addresses", |ring| {
        for i in 0..SIZE {
            let at = 128 * usize::from(i);
            let [a, b, c, d] = next.to_be_bytes();
            frames.write(at, &[0; 12]);
            frames.write(at + 12, &[&to[..], &[2, 9, a, b, c, d], &[0x88, 0xb5]].concat());
            raw_desc(ring, i, Seg { gpa: frames.gpa() + at as u64, len: 112 }, 0, 0);
            raw_avail(ring, i, i);
            next += 1;
        }
    });
    let c = shares.d.counters();
    assert!(c.sum(Some("p2"), "", "addresses") <= 4096, "{c:#?}");
}
