//! Senders of each ability to receivers of each ability: every frame arrives as its receiver can
//! take it, to the byte, and the counters show what it took. Receivers are mergeable and not;
//! packets are IPv4 and IPv6, TCP and UDP, with tags and options.

use std::collections::VecDeque;

use super::lab::{
    LEVELS, Level, QUIET, SOON, Sent, Work, connect, exchange, finish, introduce, send,
};
use testkit::frontend::feat;
use testkit::packet::{Ask, Kind, Packet, finish as finish_sum, payload, verify};
use testkit::proc::Daemon;
use testkit::tx::Layout;
use testkit::vm::{Vm, VmConfig, mac_of};
use testkit::vnet::{Header, NEEDS_CSUM};

/// The receiver's port and number, behind the senders of each level.
const RECEIVER: u8 = 3;
/// Rounds of senders at once.
const ROUNDS: usize = 96;

type Frame = (Header, Vec<u8>);

/// The tests' own two opinions agree: a partial packet finished by hand is the complete one.
#[test]
fn finishing_a_partial_packet_completes_it() {
    for kind in Kind::all() {
        for len in [0, 1, 2, 1000, kind.longest()] {
            let packet = Packet::new(kind, mac_of(0), mac_of(1), &payload(7, len));
            let (header, partial) = packet.sent(Ask::Sum);
            assert_ne!(partial, packet.bytes);
            assert!(verify(&partial).is_err(), "{kind:?}: a partial sum passes for a whole one");
            assert_eq!(finish_sum(&header, &partial), packet.bytes, "{kind:?}");
        }
    }
}

/// All senders to one receiver.
fn receiver(offloads: u64, mergeable: bool) {
    let d = Daemon::with(4, &[]);
    let mut to = connect(&d, RECEIVER, offloads, mergeable);
    let mut senders: Vec<Vm> =
        (0..).zip(LEVELS).map(|(id, level)| connect(&d, id, level.features(), true)).collect();
    let mut all: Vec<&mut Vm> = senders.iter_mut().chain([&mut to]).collect();
    introduce(&mut all);
    let mut work = Work::default();
    for from in &mut senders {
        for kind in Kind::all() {
            let packets = Sent::all(kind, from.cfg.features, from.mac(), mac_of(RECEIVER));
            exchange(from, &mut to, &packets, &mut work);
        }
    }
    assert_eq!(Work::counted(&d.counters(), "p3"), work);
    senders.push(to);
    finish(d, senders);
}

#[test]
fn receiver_with_all_offloads() {
    receiver(Level::All.features(), true);
}

#[test]
fn receiver_with_all_offloads_in_large_buffers() {
    receiver(Level::All.features(), false);
}

#[test]
fn receiver_with_checksums() {
    receiver(Level::Csum.features(), true);
}

#[test]
fn receiver_with_checksums_in_single_buffers() {
    receiver(Level::Csum.features(), false);
}

#[test]
fn receiver_without_offloads() {
    receiver(Level::None.features(), true);
}

#[test]
fn receiver_without_offloads_in_single_buffers() {
    receiver(Level::None.features(), false);
}

/// Receivers that acknowledged some kinds of large packets and not others.
#[test]
fn receivers_with_some_offloads() {
    let some = [
        feat::GUEST_TSO4,
        feat::GUEST_TSO6,
        feat::GUEST_USO4,
        feat::GUEST_USO6,
        feat::GUEST_TSO4 | feat::GUEST_TSO6,
    ];
    for offloads in some {
        for mergeable in [true, false] {
            pair(feat::HOST_OFFLOADS, feat::GUEST_CSUM | offloads, mergeable, Kind::plain());
        }
    }
}

/// A receiver that may get large packets but no unfinished checksums, which no driver should ask
/// for (5.1.3.1), gets neither.
#[test]
fn receivers_with_segmentation_and_no_checksums() {
    for mergeable in [true, false] {
        pair(feat::HOST_OFFLOADS, feat::GUEST_LARGE | feat::GUEST_ECN, mergeable, Kind::plain());
    }
}

/// What a sender has not acknowledged is not forwarded, whoever could take it.
#[test]
fn requests_beyond_what_was_acknowledged() {
    let some = [
        0,
        feat::CSUM,
        feat::HOST_TSO4 | feat::HOST_TSO6 | feat::HOST_USO,
        feat::CSUM | feat::HOST_TSO4,
        feat::CSUM | feat::HOST_TSO6 | feat::HOST_ECN,
        feat::CSUM | feat::HOST_USO,
    ];
    let cwr = || Kind::plain().filter(|kind| !kind.udp).map(|kind| Kind { cwr: true, ..kind });
    for host in some {
        let d = Daemon::with(2, &[]);
        let (mut from, mut to) =
            (connect(&d, 0, host, true), connect(&d, 1, feat::GUEST_OFFLOADS, true));
        introduce(&mut [&mut from, &mut to]);
        let mut refused = 0;
        for kind in Kind::plain().chain(cwr()) {
            let needs = [feat::CSUM, kind.host_features()];
            for (ask, need) in [Ask::Sum, Ask::Segments(100)].into_iter().zip(needs) {
                let sent = Sent::new(kind, from.mac(), to.mac(), 1000, ask);
                if host & need == need {
                    exchange(&mut from, &mut to, &[sent], &mut Work::default());
                    continue;
                }
                let (header, frame) = sent.packet.sent(ask);
                send(&mut from, &header, &frame);
                refused += 1;
            }
        }
        from.tx[0].drain(SOON);
        let c = d.counters();
        c.balance();
        assert_eq!(c.sum(Some("p0"), "in", "drop.bad_offload"), refused, "{host:#x}: {c:#?}");
        assert_eq!(to.rx[0].take(1, QUIET).len(), 0, "{host:#x}: a frame too many");
        d.stop();
    }
}

/// One sender, one receiver, these kinds.
fn pair(host: u64, guest: u64, mergeable: bool, kinds: impl Iterator<Item = Kind>) {
    let d = Daemon::with(2, &[]);
    let (mut from, mut to) = (connect(&d, 0, host, true), connect(&d, 1, guest, mergeable));
    introduce(&mut [&mut from, &mut to]);
    let mut work = Work::default();
    for kind in kinds {
        let packets = Sent::all(kind, from.cfg.features, from.mac(), to.mac());
        exchange(&mut from, &mut to, &packets, &mut work);
    }
    assert_eq!(Work::counted(&d.counters(), "p1"), work);
    finish(d, vec![from, to]);
}

/// Congestion Window Reduced is for one segment only: a receiver without GUEST_ECN, which may take
/// every packet for one whose segments are all alike, gets it segmented.
#[test]
fn congestion_window_reduced() {
    let cwr = || Kind::plain().filter(|kind| !kind.udp).map(|kind| Kind { cwr: true, ..kind });
    for guest in [feat::GUEST_OFFLOADS, feat::GUEST_OFFLOADS & !feat::GUEST_ECN, feat::GUEST_CSUM] {
        for mergeable in [true, false] {
            pair(feat::HOST_OFFLOADS, guest, mergeable, cwr());
        }
    }
}

/// Headers and payload in descriptors of any length, one byte each included, header and frame in
/// indirect tables and not.
#[test]
fn chains_of_any_shape() {
    let layouts = vec![
        Layout::HeaderApart,
        Layout::HeaderPieces { header: 12, frame: 40 },
        // Every byte of the headers of TCP over IPv4 has its own descriptor, almost.
        Layout::Cuts((1..60).collect()),
        Layout::Cuts(vec![12 + 14, 12 + 34, 12 + 54]),
        Layout::Cuts(vec![12 + 13, 12 + 33, 12 + 51, 12 + 63, 12 + 64, 12 + 65]),
        Layout::Random { max: 64 },
        Layout::Pieces(64),
    ];
    for indirect in [false, true] {
        for (guest, mergeable) in
            [(feat::GUEST_OFFLOADS, true), (feat::GUEST_CSUM, false), (0, true)]
        {
            let d = Daemon::with(2, &[]);
            let mut cfg = VmConfig::with_offloads(0, feat::HOST_OFFLOADS, true);
            cfg.tx.layouts.clone_from(&layouts);
            cfg.tx.indirect = indirect;
            let mut from = Vm::connect(&d.socket(0), cfg);
            let mut to = connect(&d, 1, guest, mergeable);
            introduce(&mut [&mut from, &mut to]);
            let mut work = Work::default();
            // As many kinds as layouts would make each kind meet one layout only.
            for kind in Kind::all().chain(Kind::plain()) {
                let packets = Sent::all(kind, from.cfg.features, from.mac(), to.mac());
                exchange(&mut from, &mut to, &packets, &mut work);
            }
            assert_eq!(Work::counted(&d.counters(), "p1"), work);
            finish(d, vec![from, to]);
        }
    }
}

/// Small receive buffers in chains and alone, so that headers, checksums and segments end anywhere.
#[test]
fn receive_buffers_of_any_shape() {
    let shapes: [&[Vec<u32>]; 3] = [
        &[vec![300], vec![333]],
        &[vec![12, 500], vec![1, 11, 14, 20, 20, 450]],
        &[vec![13, 1, 63, 65, 700], vec![12, 53, 700], vec![12 + 34 + 17, 800]],
    ];
    for shape in shapes {
        for guest in [feat::GUEST_OFFLOADS, feat::GUEST_CSUM, 0] {
            let d = Daemon::with(2, &[]);
            let mut cfg = VmConfig::with_offloads(1, guest, true);
            cfg.size = 1024;
            cfg.rx.buffers = 1024;
            cfg.rx.layouts = shape.to_vec();
            cfg.rx.indirect = true;
            let mut from = connect(&d, 0, feat::HOST_OFFLOADS, true);
            let mut to = Vm::connect(&d.socket(1), cfg);
            introduce(&mut [&mut from, &mut to]);
            let mut work = Work::default();
            for kind in Kind::plain() {
                let packets = Sent::all(kind, from.cfg.features, from.mac(), to.mac());
                exchange(&mut from, &mut to, &packets, &mut work);
            }
            assert_eq!(Work::counted(&d.counters(), "p1"), work);
            finish(d, vec![from, to]);
        }
    }
}

/// Drivers from before virtio 1.0: a header of 10 bytes, receive buffers in one piece.
#[test]
fn legacy_drivers() {
    let legacy = |id: u8, offloads: u64| {
        let mut cfg = VmConfig::with_offloads(id, offloads, false);
        cfg.features &= !feat::VERSION_1;
        assert_eq!(cfg.header_len(), 10);
        cfg
    };
    for guest in [feat::GUEST_OFFLOADS, feat::GUEST_CSUM, 0] {
        for both in [true, false] {
            let d = Daemon::with(2, &[]);
            let host = feat::HOST_OFFLOADS;
            let sender =
                if both { legacy(0, host) } else { VmConfig::with_offloads(0, host, true) };
            let mut from = Vm::connect(&d.socket(0), sender);
            let mut to = Vm::connect(&d.socket(1), legacy(1, guest));
            introduce(&mut [&mut from, &mut to]);
            let mut work = Work::default();
            for kind in Kind::all() {
                let packets = Sent::all(kind, from.cfg.features, from.mac(), to.mac());
                exchange(&mut from, &mut to, &packets, &mut work);
            }
            assert_eq!(Work::counted(&d.counters(), "p1"), work);
            finish(d, vec![from, to]);
        }
    }
}

/// A UDP checksum that comes to zero is sent as 0xffff: zero means that there is none (RFC 768).
#[test]
fn udp_checksums_that_come_to_zero() {
    let d = Daemon::with(2, &[]);
    let (mut from, mut to) = (connect(&d, 0, feat::OFFLOADS, true), connect(&d, 1, 0, true));
    introduce(&mut [&mut from, &mut to]);
    for kind in Kind::plain().filter(|kind| kind.udp) {
        for (len, ask) in [(100, Ask::Sum), (300, Ask::Segments(100))] {
            let mut bytes = payload(len as u64, len);
            bytes[len - 2..].fill(0);
            let packet = |bytes: &[u8]| Packet::new(kind, mac_of(0), mac_of(1), bytes);
            // The checksum without these bytes, put there, makes the sum come to zero.
            let last = packet(&bytes).received(ask, 0).pop().expect("a frame").1;
            let at = packet(&bytes).start + 6;
            bytes[len - 2..].copy_from_slice(&last[at..at + 2]);
            let sent = Sent { packet: packet(&bytes), ask };
            let last = sent.packet.received(ask, 0).pop().expect("a frame").1;
            assert_eq!(last[at..at + 2], [0xff; 2]);
            exchange(&mut from, &mut to, &[sent], &mut Work::default());
        }
    }
    finish(d, vec![from, to]);
}

/// Checksums of protocols that the switch does not look into: at any offset, odd ones too, of
/// frames of any length.
#[test]
fn checksums_of_other_protocols() {
    let d = Daemon::with(3, &[]);
    let mut from = connect(&d, 0, feat::OFFLOADS, true);
    let (mut able, mut simple) = (connect(&d, 1, feat::GUEST_CSUM, true), connect(&d, 2, 0, true));
    introduce(&mut [&mut from, &mut able, &mut simple]);
    for len in [64, 255, 256, 257, 300, 1514, 9000] {
        for (csum_start, csum_offset) in [(14, 0), (15, 1), (16, 40), (17, 7), (33, 16), (50, 2)] {
            let header = Header { flags: NEEDS_CSUM, csum_start, csum_offset, ..Header::default() };
            for to in [&mut able, &mut simple] {
                let start = [&to.mac()[..], &from.mac(), &[0x88, 0xb5]].concat();
                let frame = [start, payload(len as u64, len - 14)].concat();
                send(&mut from, &header, &frame);
                let want = match to.cfg.features & feat::GUEST_CSUM {
                    0 => (Header::default(), finish_sum(&header, &frame)),
                    _ => (header, frame),
                };
                let got = to.rx[0].take(1, SOON).pop().expect("a frame");
                assert!((got.0.request(), got.1) == want, "{header:?}, {len} bytes");
            }
        }
    }
    finish(d, vec![from, able, simple]);
}

/// Senders of all abilities at once, on two workers, to one receiver: each one's packets arrive in
/// its order, whatever comes between them.
#[test]
fn senders_at_once() {
    for (guest, mergeable) in [(feat::GUEST_OFFLOADS, false), (feat::GUEST_CSUM, true), (0, false)]
    {
        let d = Daemon::with(4, &["--workers", "2"]);
        let mut to = connect(&d, RECEIVER, guest, mergeable);
        let mut senders: Vec<Vm> =
            (0..).zip(LEVELS).map(|(id, level)| connect(&d, id, level.features(), true)).collect();
        let mut all: Vec<&mut Vm> = senders.iter_mut().chain([&mut to]).collect();
        introduce(&mut all);
        for round in 0..ROUNDS {
            let kind = Kind::all().nth(round % 24).expect("one of 24");
            at_once(&mut senders, &mut to, kind);
        }
        senders.push(to);
        finish(d, senders);
    }
}

/// A few packets of each sender, all under way together.
fn at_once(senders: &mut [Vm], to: &mut Vm, kind: Kind) {
    let mut expected: Vec<VecDeque<Frame>> = Vec::new();
    for from in senders.iter_mut() {
        let mut own = VecDeque::new();
        let mut sent = Sent::all(kind, from.cfg.features, from.mac(), to.mac());
        sent.retain(|sent| sent.packet.payload.len() < 4 * usize::from(kind.mss()));
        for Sent { packet, ask } in &sent {
            own.extend(packet.received(*ask, to.cfg.features));
            let (header, frame) = packet.sent(*ask);
            from.tx[0].header = header.bytes(from.cfg.header_len());
            assert!(from.tx[0].queue(&frame));
        }
        expected.push(own);
    }
    senders.iter_mut().for_each(|from| _ = from.tx[0].ring.publish());
    let count = expected.iter().map(VecDeque::len).sum();
    let got = to.rx[0].take(count, SOON);
    assert_eq!(got.len(), count, "{kind:?}: frames");
    for (header, frame) in got {
        let from = usize::from(frame[11]);
        let next = expected[from].pop_front().expect("no more than was sent");
        assert!((header.request(), frame) == next, "{kind:?}: out of order, from {from}");
    }
    senders.iter_mut().for_each(|from| from.tx[0].drain(SOON));
}
