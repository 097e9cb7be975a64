//! Short and split headers: the virtio-net header cut at every offset and over one to twelve
//! descriptors, chains of 0 to 13 bytes, receive buffers of every capacity, merged and not. The
//! header has 12 bytes or 10.

use super::lab::{AFTER, DATA, Lab};
use super::shapes::{Case, Piece, Want, chain};
use super::{rx, tx};
use testkit::frontend::feat;
use testkit::ring::DESC_WRITE;
use testkit::vm::MODERN;

/// A guest of the time before version 1 and mergeable buffers: a header of 10 bytes.
const LEGACY: u64 = feat::INDIRECT;

/// Header and frame in pieces that end at these offsets.
fn cut_at(offsets: &[u32], total: u32) -> Vec<Piece> {
    let mut from = 0;
    let ends = offsets.iter().copied().chain([total]);
    ends.enumerate()
        .map(|(i, end)| {
            let piece = (DATA + 64 * i as u64 + u64::from(from), end - from);
            from = end;
            piece
        })
        .collect()
}

/// The header cut at every offset, and over as many descriptors as it has bytes.
fn split(header: u32) -> Vec<Case> {
    let total = header + 80;
    let mut cases = Vec::new();
    for at in 1..=header {
        let name = format!("cut after {at} bytes");
        cases.extend(Case::both(&name, &cut_at(&[at], total), 0, &Want::Forwarded));
    }
    for pieces in 1..=header {
        // The last of them goes on into the frame, or ends with the header.
        let mut offsets: Vec<u32> = (1..pieces).collect();
        let name = format!("a header over {pieces} descriptors, the last with the frame");
        cases.extend(Case::both(&name, &cut_at(&offsets, total), 0, &Want::Forwarded));
        offsets.push(header);
        let name = format!("a header over {pieces} descriptors of its own");
        cases.extend(Case::both(&name, &cut_at(&offsets, total), 0, &Want::Forwarded));
    }
    let bytes: Vec<u32> = (1..header + 20).collect();
    let name = "header and addresses in single bytes";
    cases.extend(Case::both(name, &cut_at(&bytes, total), 0, &Want::Forwarded));
    cases
}

/// Chains that end in the header, or before an Ethernet header does.
fn short(header: u32) -> Vec<Case> {
    let mut cases = Vec::new();
    for len in 0..header + 14 {
        let want = Want::Dropped("too_short");
        let name = format!("{len} bytes");
        cases.extend(Case::both(&name, &[(DATA, len)], 0, &want).map(|c| c.times(5)));
        if len > 1 {
            let pieces = cut_at(&[len / 2], len);
            cases.extend(Case::both(&format!("{name} in two"), &pieces, 0, &want));
        }
    }
    let name = "the shortest frame";
    cases.extend(Case::both(name, &[(DATA, header + 14)], 0, &Want::Forwarded));
    cases
}

#[test]
fn short_or_split_header_on_transmit_rings() {
    for (features, header) in [(MODERN, 12), (LEGACY, 10)] {
        let mut lab = Lab::new(features);
        for case in [split(header), short(header)].concat() {
            tx::run(&mut lab, &case);
        }
        lab.finish();
    }
}

#[test]
fn short_or_split_header_on_receive_rings() {
    for (features, header) in [(MODERN, 12), (LEGACY, 10)] {
        let mut lab = Lab::new(features);
        for case in split(header) {
            rx::run(&mut lab, &rx::turned(case));
        }
        lab.finish();
    }
}

/// What must become of a frame that needs `need` bytes, given buffers of `room` each.
fn wanted(room: u32, need: u32, header: u32, mergeable: bool) -> Want {
    let count = if room == 0 { 0 } else { need.div_ceil(room) };
    if room < header {
        Want::Refused
    } else if need <= room {
        Want::Received(vec![need])
    } else if !mergeable || count > 200 {
        Want::NoFit
    } else {
        let mut lens = vec![room; count as usize];
        lens[count as usize - 1] = need - room * (count - 1);
        Want::Received(lens)
    }
}

/// Receive buffers of every capacity from nothing to more than a frame. From 0 to 1,600 bytes,
/// mergeable and not.
#[test]
fn rx_capacity_of_every_size() {
    let step = testkit::rounds(149, 37, 1);
    for (features, header, mergeable) in
        [(MODERN, 12, true), (MODERN & !feat::MRG_RXBUF, 12, false), (LEGACY, 10, false)]
    {
        let mut lab = Lab::new(features);
        let edges = [60 + header, 1514 + header];
        for room in 0..=1600u32 {
            let edge = edges.iter().any(|&edge| room.abs_diff(edge) <= 1);
            if room > 32 && !edge && room % step != 0 {
                continue;
            }
            for len in [60, 1514] {
                let want = wanted(room, len as u32 + header, header, mergeable);
                let heads = match &want {
                    Want::Received(lens) => lens.len(),
                    _ => 3,
                };
                // One behind the other, as a guest's memory is small.
                let gap = u64::from(room) + 8;
                let pieces: Vec<Piece> =
                    (0..heads as u64).map(|i| (DATA + i * gap, room)).collect();
                let mut case = Case::of(format!("{len} bytes into {room}"), Vec::new(), want);
                let descs = pieces.iter().map(|&p| chain(&[p], 0, DESC_WRITE)[0]);
                case.ring = descs.enumerate().map(|(i, d)| (i as u16, d)).collect();
                case.heads = (0..heads as u16).collect();
                case.bytes = pieces;
                case.sent = Some(len);
                rx::run(&mut lab, &case);
            }
        }
        lab.finish();
    }
}

/// Descriptors without a byte before a header change nothing.
#[test]
fn empty_descriptors_before_a_header() {
    let mut lab = Lab::new(MODERN);
    for empty in [1, 2, 50, 254] {
        let mut pieces = vec![(AFTER, 0); empty];
        pieces.push((DATA, 92));
        let name = format!("{empty} empty descriptors");
        for case in Case::both(&name, &pieces, 0, &Want::Forwarded) {
            tx::run(&mut lab, &case);
        }
    }
    lab.finish();
}
