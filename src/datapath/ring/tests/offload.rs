//! Frames that ask for offloads: the ring examines them in any layout, and delivers them as each
//! receiver can take them.

use super::*;
use crate::ring::{Burst, Delivered, Frame, RxScratch, Segmentation};
use base::frame::VnetHdr;
use base::frame::ethernet::TagEdit;
use base::frame::offload::DATA_VALID;
use base::frame::samples::{asking, check_whole, l4, ones, pseudo, tcp};
use base::limits::{MAX_MERGED_BUFFERS, MAX_SEGMENTS, SNAPSHOT_LEN};
use base::stats::DropReason;

/// Addresses of the receiver's queue and buffers.
const RX_QUEUE: u64 = 0x1_1000;
const RX_DATA: u64 = 0x10_8000;

/// A sender and a receiver in one memory.
struct Pair<'a> {
    guest: &'a Guest,
    tx: Queue<'a>,
    rx: Queue<'a>,
    sender: SplitRing,
    receiver: SplitRing,
    burst: Burst,
    sent: u16,
    /// Address of the next piece.
    free: u64,
    posted: u16,
    scratch: RxScratch,
}

impl<'a> Pair<'a> {
    fn new(guest: &'a Guest, takes: Offloads, mergeable: bool) -> Pair<'a> {
        Pair::with(guest, takes, mergeable, SIZE)
    }

    /// Makes a receiver with at most `size` receive buffers.
    fn with(guest: &'a Guest, takes: Offloads, mergeable: bool, size: u16) -> Pair<'a> {
        let tx = guest.queue();
        let rx = Queue::create(&guest.driver, RX_QUEUE, size);
        let config = RingConfig { offloads: Offloads::ALL, ..guest.config(&tx) };
        let sender = SplitRing::start(Arc::clone(&guest.table), &config).unwrap();
        let config = RingConfig { offloads: takes, mergeable, ..guest.config(&rx) };
        let receiver = SplitRing::start(Arc::clone(&guest.table), &config).unwrap();
        Pair {
            guest,
            tx,
            rx,
            sender,
            receiver,
            burst: Burst::default(),
            sent: 0,
            free: DATA,
            posted: 0,
            scratch: RxScratch::default(),
        }
    }

    /// Makes a frame available in descriptors that end at `cuts`, counted from the header's first
    /// byte.
    fn send(&mut self, header: VnetHdr, packet: &[u8], cuts: &[usize]) {
        let bytes = [&header.to_bytes()[..], packet].concat();
        let (head, mut from) = (self.sent, 0);
        for &to in cuts.iter().chain([&bytes.len()]) {
            let at = self.free;
            self.free += (to - from) as u64 + 5;
            self.guest.write(at, &bytes[from..to]);
            let flags = if to < bytes.len() { NEXT } else { 0 };
            let next = self.sent + 1;
            describe(&self.tx, self.sent, &[desc(at, (to - from) as u32, flags, next)]);
            (self.sent, from) = (next, to);
        }
        offer(&self.tx, &[head]);
    }

    fn take(&mut self) {
        self.sender.take(&mut self.burst, 64).unwrap();
    }

    fn post(&mut self, count: u16, size: u32) {
        for _ in 0..count {
            let at = RX_DATA + u64::from(self.posted) * u64::from(size + 4);
            describe(&self.rx, self.posted, &[desc(at, size, WRITE, 0)]);
            offer(&self.rx, &[self.posted]);
            self.posted += 1;
        }
    }

    fn deliver(&mut self, cut: Segmentation) -> Delivered {
        let run: Vec<u8> = (0..self.burst.frames().len() as u8).collect();
        self.receiver.deliver(&self.burst, &run, &mut self.scratch, cut)
    }

    /// Returns header and bytes of each frame that the driver received, its buffers joined.
    fn received(&self, size: u32) -> Vec<(VnetHdr, Vec<u8>)> {
        let mut frames = Vec::new();
        let mut left = 0;
        for (id, len) in used(&self.rx) {
            let bytes =
                self.guest.read(RX_DATA + u64::from(id) * u64::from(size + 4), len as usize);
            if left == 0 {
                let header = VnetHdr::from_bytes(bytes[..12].try_into().unwrap());
                left = u16::from_le_bytes(header.num_buffers);
                frames.push((header, bytes[12..].to_vec()));
            } else {
                frames.last_mut().unwrap().1.extend(bytes);
            }
            left -= 1;
        }
        assert_eq!(left, 0, "buffers missing");
        frames
    }
}

/// Checks the segments of `packet`.
fn check_segments(got: &[(VnetHdr, Vec<u8>)], packet: &[u8], v6: bool, mss: usize, valid: bool) {
    let headers = l4(v6) + 32;
    let mut payload: Vec<u8> = Vec::new();
    for (i, (header, segment)) in got.iter().enumerate() {
        assert_eq!(header.gso_type, 0);
        // A receiver that has GUEST_CSUM is told that the checksum is valid.
        assert_eq!(header.flags, if valid { DATA_VALID } else { 0 });
        check_whole(segment, v6);
        let sequence = u32::from_be_bytes(segment[l4(v6) + 4..l4(v6) + 8].try_into().unwrap());
        assert_eq!(sequence, 0xffff_ff00_u32.wrapping_add((i * mss) as u32));
        if !v6 {
            let id = u16::from_be_bytes([segment[18], segment[19]]);
            assert_eq!(id, 0xfffe_u16.wrapping_add(i as u16));
        }
        payload.extend(&segment[headers..]);
    }
    assert_eq!(got.len(), (packet.len() - headers).div_ceil(mss));
    assert!(payload == packet[headers..]);
}

/// Returns the bytes of a taken frame, its pieces joined.
fn bytes(burst: &Burst, frame: &Frame) -> Vec<u8> {
    let mut all = frame.snapshot[..(frame.len as usize).min(SNAPSHOT_LEN)].to_vec();
    for piece in std::iter::once(&frame.rest).chain(burst.more(frame)) {
        // SAFETY: the piece lies in the guest's memory, which the test holds, or in the burst's.
        all.extend((0..piece.len as usize).map(|i| unsafe { *piece.at.add(i) }));
    }
    all
}

/// Offsets at which header and frame are cut into descriptors; the last ones are single bytes.
fn layouts(len: usize) -> Vec<Vec<usize>> {
    let mut all = vec![vec![], vec![12], vec![12 + 64], vec![12 + 14, 12 + 54, 12 + 66]];
    all.extend([vec![12, 12 + 63, 12 + 65, 12 + 255], vec![3, 12 + 74, 12 + 86], vec![200, 300]]);
    all.push((1..40).collect());
    all.iter_mut().for_each(|cuts| cuts.retain(|&cut| cut < len + 12));
    all
}

#[test]
fn frames_keep_their_bytes_whatever_is_examined() {
    for v6 in [false, true] {
        for payload in [1, 10, 150, 169, 170, 171, 1448, 30_000] {
            let packet = tcp(v6, payload);
            for cuts in layouts(packet.len()) {
                let guest = Guest::new();
                let mut pair = Pair::new(&guest, Offloads::ALL, true);
                pair.send(asking(v6, 1000), &packet, &cuts);
                pair.take();
                let [frame] = pair.burst.frames() else { panic!("{v6} {payload} {cuts:?}") };
                assert!(bytes(&pair.burst, frame) == packet, "{v6} {payload} {cuts:?}");
                let kind = if v6 { Offloads::TSO6 } else { Offloads::TSO4 };
                let gso = if payload > 1000 { kind } else { Offloads::NONE };
                assert_eq!(frame.needs, Offloads::CSUM.or(gso));
                let hdr_len = if payload > 1000 { l4(v6) + 32 } else { 0 };
                assert_eq!(frame.request().headers_len(), hdr_len);
            }
        }
    }
}

/// Headers become private once, whichever check needs them first and whatever the frame's index is
/// then, and receivers get the private headers.
#[test]
fn headers_are_private_from_the_first_look_on() {
    for (asks, bad) in [(true, true), (true, false), (false, false)] {
        for cuts in layouts(tcp(true, 1000).len()) {
            let guest = Guest::new();
            let mut pair = Pair::new(&guest, Offloads::ALL, true);
            let packet = tcp(true, 1000);
            // Frames with invalid requests are rejected, so that the other frames' indices change.
            let nonsense = asking(false, 1);
            pair.send(if bad { nonsense } else { asking(true, 0) }, &packet, &[]);
            let header = if asks { asking(true, 0) } else { VnetHdr::plain(0) };
            pair.send(header, &packet, &cuts);
            pair.send(header, &packet, &cuts[..cuts.len().min(5)]);
            pair.take();
            let count = if bad { 2 } else { 3 };
            assert_eq!(pair.burst.frames().len(), count);
            for round in 0..2 {
                for index in (0..count).rev() {
                    let headers = pair.burst.headers(index).expect("room");
                    assert!(headers == &packet[..256], "{cuts:?}, round {round}");
                }
                guest.write(DATA, &vec![0xee; (MEMORY - DATA) as usize]);
            }
            for index in 0..count {
                let all = bytes(&pair.burst, &pair.burst.frames()[index]);
                assert_eq!(all.len(), packet.len());
                assert!(all[..256] == packet[..256], "{cuts:?}");
                assert!(all[256..].iter().all(|&byte| byte == 0xee), "{cuts:?}");
            }
        }
    }
}

/// The burst also holds a frame that keeps its tag; the header that the sender wrote is unknown.
#[test]
fn a_frame_leaves_with_the_tag_that_it_should_have() {
    let unknown = VnetHdr { flags: 0x80, hdr_len: [9; 2], ..VnetHdr::plain(7) };
    for len in (18..90).chain([300, 1500]) {
        let kept: Vec<u8> = (0..len).map(|at| at as u8 | 1).collect();
        let frame = [&[0][..], &kept[1..]].concat();
        for (edit, tag, skipped) in [
            (TagEdit::Push(0x600a), &[0x81, 0, 0x60, 10][..], 0),
            (TagEdit::Rewrite(0x600a), &[0x81, 0, 0x60, 10], 4),
            (TagEdit::Pop, &[], 4),
        ] {
            let expected = [&frame[..12], tag, &frame[12 + skipped..]].concat();
            for (cuts, size) in layouts(len).iter().zip([1600, 64].iter().cycle()) {
                let guest = Guest::new();
                let mut pair = Pair::new(&guest, Offloads::NONE, true);
                pair.send(unknown, &frame, cuts);
                pair.send(unknown, &kept, &[]);
                pair.take();
                let is_first = |frame: &Frame| frame.snapshot[0] == 0;
                pair.burst.retag(&[0, 1], |f| if is_first(f) { edit } else { TagEdit::Keep });
                pair.post(SIZE - 1, *size);
                assert_eq!(pair.deliver(Segmentation::Whole).settled, 2);
                let got = pair.received(*size).into_iter();
                let got: Vec<_> = got.map(|(header, bytes)| (header.flags, bytes)).collect();
                let what = format!("{edit:?} {len} {cuts:?} {size}");
                assert!(got == [(0, expected.clone()), (0, kept.clone())], "{what}: {got:x?}");
            }
        }
    }
}

#[test]
fn what_is_acknowledged_passes_as_it_is() {
    for (v6, size) in [(false, 40_000), (true, 40_000), (false, 1500), (true, 700)] {
        let (guest, packet) = (Guest::new(), tcp(v6, 20_001));
        let mut pair = Pair::new(&guest, Offloads::ALL, true);
        pair.send(asking(v6, 1448), &packet, &[12 + 86]);
        pair.post(if size > 20_000 { 1 } else { 40 }, size);
        pair.take();
        assert_eq!(pair.deliver(Segmentation::Whole).frames, 1);
        let [(header, got)] = &pair.received(size)[..] else { panic!() };
        assert!(*got == packet);
        let count = (packet.len() as u32 + 12).div_ceil(size) as u16;
        let expected = VnetHdr {
            hdr_len: (l4(v6) as u16 + 32).to_le_bytes(),
            num_buffers: count.to_le_bytes(),
            ..asking(v6, 1448)
        };
        assert_eq!(*header, expected);
    }
}

#[test]
fn without_tso_a_receiver_gets_segments() {
    for v6 in [false, true] {
        for (takes, valid) in [(Offloads::NONE, false), (Offloads::CSUM, true)] {
            for (mss, payload, size) in [(1448, 1449, 2048), (1448, 14_480, 700), (77, 2000, 256)] {
                let packet = tcp(v6, payload);
                for cuts in layouts(packet.len()) {
                    let guest = Guest::new();
                    let mut pair = Pair::new(&guest, takes, true);
                    pair.send(asking(v6, mss), &packet, &cuts);
                    pair.post(60, size);
                    pair.take();
                    let done = pair.deliver(Segmentation::Whole);
                    let count = payload.div_ceil(mss.into()) as u64;
                    assert_eq!(
                        (done.frames, done.fallbacks.segmented, done.fallbacks.segments),
                        (1, 1, count)
                    );
                    check_segments(&pair.received(size), &packet, v6, mss.into(), valid);
                }
            }
        }
    }
}

#[test]
fn without_checksums_a_receiver_gets_whole_ones() {
    for v6 in [false, true] {
        for payload in (1..20).chain([169, 170, 171, 1447, 1448]) {
            let packet = tcp(v6, payload);
            for cuts in layouts(packet.len()) {
                for size in [2048, 100] {
                    let guest = Guest::new();
                    let mut pair = Pair::new(&guest, Offloads::NONE, true);
                    pair.send(asking(v6, 0), &packet, &cuts);
                    pair.post(20, size);
                    pair.take();
                    assert_eq!(pair.deliver(Segmentation::Whole).fallbacks.checksummed, 1);
                    let [(header, got)] = &pair.received(size)[..] else { panic!() };
                    assert!(header.is_plain());
                    assert_eq!(ones(pseudo(got, v6), &got[l4(v6)..]), 0xffff, "{cuts:?}");
                    let at = l4(v6) + 16;
                    assert!(got[..at] == packet[..at] && got[at + 2..] == packet[at + 2..]);
                }
            }
        }
    }
}

#[test]
fn nonsense_is_rejected_among_frames_that_are_not() {
    let guest = Guest::new();
    let mut pair = Pair::new(&guest, Offloads::ALL, true);
    let packet = tcp(false, 100);
    let bad = VnetHdr { csum_offset: [6, 0], ..asking(false, 0) };
    for header in [asking(false, 0), bad, VnetHdr::plain(0), bad, asking(false, 50)] {
        pair.send(header, &packet, &[]);
    }
    pair.take();
    assert_eq!((pair.burst.taken(), pair.burst.frames().len()), (5, 3));
    assert_eq!(pair.burst.rejected().collect::<Vec<_>>(), [DropReason::BadOffload; 2]);
    assert_eq!(pair.burst.frames()[1].header, VnetHdr::plain(1));
    // The frames given back are taken again, with the rejected chains behind them.
    pair.burst.give_back_from(1);
    assert_eq!((pair.burst.taken(), pair.burst.rejected().count()), (2, 1));
    pair.sender.complete(&pair.burst);
    pair.take();
    assert_eq!((pair.burst.taken(), pair.burst.frames().len()), (3, 2));
    pair.sender.complete(&pair.burst);
    assert_eq!(used(&pair.tx).len(), 5);
}

#[test]
fn a_sender_may_ask_for_what_it_acknowledged() {
    let guest = Guest::new();
    let mut pair = Pair::new(&guest, Offloads::ALL, true);
    let config = RingConfig { offloads: Offloads::CSUM, ..guest.config(&pair.tx) };
    pair.sender = SplitRing::start(Arc::clone(&guest.table), &config).unwrap();
    let packet = tcp(false, 100);
    pair.send(asking(false, 0), &packet, &[]);
    pair.send(asking(false, 50), &packet, &[]);
    pair.take();
    assert_eq!((pair.burst.frames().len(), pair.burst.rejected().count()), (1, 1));
}

#[test]
fn segments_wait_for_all_their_buffers_unless_it_is_the_last_try() {
    let packet = tcp(false, 5000);
    for last in [false, true] {
        let guest = Guest::new();
        let mut pair = Pair::new(&guest, Offloads::NONE, true);
        pair.send(asking(false, 1000), &packet, &[]);
        pair.post(3, 2048);
        pair.take();
        let done = pair.deliver(if last { Segmentation::Part(9) } else { Segmentation::Whole });
        if last {
            assert_eq!(
                (done.settled, done.fallbacks.segments, done.fallbacks.segments_lost),
                (1, 3, 2)
            );
            assert_eq!(pair.received(2048).len(), 3);
        } else {
            assert_eq!((done.settled, done.frames, used(&pair.rx).len()), (0, 0, 0));
            pair.post(2, 2048);
            assert_eq!(pair.deliver(Segmentation::Whole).fallbacks.segments, 5);
            check_segments(&pair.received(2048), &packet, false, 1000, false);
        }
    }
}

/// The buffers seem to suffice, but each segment takes two: the first segments are not published.
#[test]
fn a_packet_that_runs_out_of_buffers_midway_leaves_the_ring_as_it_was() {
    let (guest, packet) = (Guest::new(), tcp(false, 5000));
    let mut pair = Pair::new(&guest, Offloads::NONE, true);
    pair.send(asking(false, 1000), &packet, &[]);
    pair.post(7, 700);
    pair.take();
    assert_eq!((pair.deliver(Segmentation::Whole).settled, used(&pair.rx).len()), (0, 0));
    pair.post(3, 700);
    assert_eq!(pair.deliver(Segmentation::Whole).fallbacks.segments, 5);
    check_segments(&pair.received(700), &packet, false, 1000, false);
}

#[test]
fn more_segments_than_the_ring_has_buffers_are_delivered_in_part() {
    let (guest, packet) = (Guest::new(), tcp(false, 60_000));
    let mut pair = Pair::new(&guest, Offloads::NONE, true);
    pair.send(asking(false, 8), &packet, &[]);
    pair.post(50, 256);
    pair.take();
    let done = pair.deliver(Segmentation::Whole);
    assert_eq!((done.frames, done.fallbacks.segments), (1, 50));
    assert_eq!(done.fallbacks.segments_lost, 60_000_u64.div_ceil(8) - 50);
    assert!(u64::from(MAX_SEGMENTS) > 50);
}

/// A large ring of tiny buffers is not walked to its end.
#[test]
fn buffers_too_small_for_segments_are_given_up() {
    let (guest, packet) = (Guest::new(), tcp(false, 5000));
    for cut in [Segmentation::Whole, Segmentation::Part(1000)] {
        let mut pair = Pair::with(&guest, Offloads::NONE, true, 1024);
        pair.send(asking(false, 8), &packet, &[]);
        pair.post(1024, 20);
        pair.take();
        let done = pair.deliver(cut);
        assert_eq!(
            (done.settled, done.no_fit.count_ones(), done.fallbacks.segments),
            (1, 1, 0),
            "{cut:?}"
        );
        let walked = pair.scratch.walked();
        assert!((625..=625 + MAX_MERGED_BUFFERS as u32 + 5).contains(&walked), "{walked}");
        assert!(used(&pair.rx).is_empty());
        guest.write(RX_QUEUE, &[0; 0xf000]);
        guest.write(0x1000, &[0; 0xf000]);
    }
}

#[test]
fn a_segment_that_fits_no_chain_is_a_drop() {
    let (guest, packet) = (Guest::new(), tcp(false, 5000));
    let mut pair = Pair::new(&guest, Offloads::NONE, false);
    pair.send(asking(false, 3000), &packet, &[]);
    pair.post(10, 2048);
    pair.take();
    let done = pair.deliver(Segmentation::Whole);
    assert_eq!((done.no_fit.count_ones(), done.frames, used(&pair.rx).len()), (1, 0, 0));
}

/// The kernel has verified a frame that comes from a NIC; a guest with GUEST_CSUM is told so.
#[test]
fn valid_sums_are_believed_of_the_kernel_only() {
    for (kernel, takes, flags) in
        [(true, Offloads::CSUM, DATA_VALID), (true, Offloads::NONE, 0), (false, Offloads::CSUM, 0)]
    {
        let (guest, mut packet) = (Guest::new(), tcp(false, 100));
        let mut pair = Pair::new(&guest, takes, true);
        let header = VnetHdr { flags: DATA_VALID, ..VnetHdr::plain(0) };
        // SAFETY: the packet outlives the burst's use.
        let pushed =
            unsafe { pair.burst.push_private(header, packet.as_mut_ptr(), packet.len() as u32) };
        assert!(pushed);
        pair.burst.examine(Offloads::ALL, kernel);
        pair.post(1, 2048);
        assert_eq!(pair.deliver(Segmentation::Whole).frames, 1);
        let [(header, got)] = &pair.received(2048)[..] else { panic!() };
        assert_eq!((header.flags, got), (flags, &packet));
    }
}
