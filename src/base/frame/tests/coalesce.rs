//! Tests segments, their order and the merged packets, which the segmenter cuts again.

use proptest::prelude::*;

use super::*;
use crate::frame::offload::{self, Offloads};
use crate::frame::samples::{l4, pseudo, tcp};
use crate::frame::segment::Segmenter;

const PLAIN: VnetHdr = VnetHdr::plain(0);

/// The properties in which the segments of the tests differ.
#[derive(Debug, Clone, Copy)]
struct Shape {
    v6: bool,
    tags: usize,
    /// The checksum is left to the receiver.
    partial: bool,
}

const SHAPES: [Shape; 6] = [
    Shape { v6: false, tags: 0, partial: false },
    Shape { v6: false, tags: 1, partial: true },
    Shape { v6: false, tags: 2, partial: false },
    Shape { v6: true, tags: 0, partial: true },
    Shape { v6: true, tags: 1, partial: false },
    Shape { v6: true, tags: 2, partial: true },
];

fn written(bytes: &[u8], header: VnetHdr) -> Written {
    Written { len: bytes.len(), header, sum: Sum::of(bytes) }
}

impl Shape {
    fn l3(self) -> usize {
        14 + 4 * self.tags
    }

    fn l4(self) -> usize {
        l4(self.v6) + 4 * self.tags
    }

    /// Writes the right checksums.
    fn sum_up(self, frame: &mut [u8]) {
        let mut untagged = frame.to_vec();
        untagged.drain(12..12 + 4 * self.tags);
        if !self.v6 {
            untagged[24..26].fill(0);
            let header = Sum::of(&untagged[14..34]).header_checksum();
            frame[self.l3() + 10..self.l3() + 12].copy_from_slice(&header);
        }
        let at = l4(self.v6);
        let partial = (pseudo(&untagged, self.v6) as u16).to_be_bytes();
        untagged[at + 16..at + 18].copy_from_slice(&partial);
        let field = self.l4() + 16..self.l4() + 18;
        if self.partial {
            frame[field].copy_from_slice(&partial);
        } else {
            frame[field].copy_from_slice(&Sum::of(&untagged[at..]).checksum());
        }
    }

    fn header(self) -> VnetHdr {
        if !self.partial {
            return PLAIN;
        }
        let csum_start = (self.l4() as u16).to_le_bytes();
        VnetHdr { flags: NEEDS_CSUM, csum_start, csum_offset: [16, 0], ..PLAIN }
    }

    /// Returns the segments of a stream, each of `size` bytes, the last of `rest` bytes.
    fn segments(self, size: usize, count: u16, rest: usize, push: bool) -> Vec<Vec<u8>> {
        let segment = |index: u16| {
            let last = index == count - 1;
            let mut frame = tcp(self.v6, if last { rest } else { size });
            for _ in 0..self.tags {
                frame.splice(12..12, [0x81, 0, 0, 7]);
            }
            let (l3, l4) = (self.l3(), self.l4());
            if !self.v6 {
                let id = 0xfffe_u16.wrapping_add(index);
                frame[l3 + 4..l3 + 6].copy_from_slice(&id.to_be_bytes());
            }
            let sequence = 0xffff_ff00_u32.wrapping_add(u32::from(index) * size as u32);
            frame[l4 + 4..l4 + 8].copy_from_slice(&sequence.to_be_bytes());
            frame[l4 + 13] = if last && push { ACK | PSH } else { ACK };
            frame[l4 + 32..].iter_mut().enumerate().for_each(|(n, byte)| *byte = (n * 31) as u8);
            self.sum_up(&mut frame);
            frame
        };
        (0..count).map(segment).collect()
    }

    /// Merges the first segments that fit one packet; returns the number of segments and the
    /// packet.
    fn merge(self, segments: &[Vec<u8>]) -> Option<(u16, VnetHdr, Vec<u8>)> {
        let mut buffer = vec![0xee; 1 << 17];
        buffer[..segments[0].len()].copy_from_slice(&segments[0]);
        let mut packet = Packet::begin(&buffer, written(&segments[0], self.header()))?;
        for segment in &segments[1..] {
            let before = buffer[..packet.len()].to_vec();
            let added = packet.may_take(segment.len())
                && packet.add(&mut buffer, |headers, room| {
                    let (front, payload) = segment.split_at_checked(headers.len())?;
                    headers.copy_from_slice(front);
                    room[..payload.len()].copy_from_slice(payload);
                    Some(written(segment, self.header()))
                });
            assert_eq!(buffer[..before.len()], before, "what is there is left alone");
            if !added {
                break;
            }
        }
        let (len, count) = (packet.len(), packet.segments());
        let header = packet.finish(&mut buffer);
        buffer.truncate(len);
        Some((count, header, buffer))
    }

    /// Segments the packet again.
    fn cut(self, header: VnetHdr, packet: &[u8]) -> Vec<Vec<u8>> {
        let header = VnetHdr { num_buffers: [1, 0], ..header };
        let request = offload::check(header, packet, packet.len() as u32, Offloads::ALL).unwrap();
        let headers = &packet[..request.headers_len()];
        let mut segmenter = Segmenter::new(&request, headers, packet.len() as u32).unwrap();
        let count = segmenter.segments();
        let cut = |index| {
            let (at, len) = segmenter.payload(index);
            let payload = &packet[at as usize..(at + len) as usize];
            let headers = match self.partial {
                true => segmenter.partial(index),
                false => segmenter.complete(index, Sum::of(payload)),
            };
            [headers, payload].concat()
        };
        (0..count).map(cut).collect()
    }
}

#[test]
fn a_packet_is_cut_into_the_segments_that_it_was_made_of() {
    for shape in SHAPES {
        for (size, count, rest, push) in [
            (1448, 2, 1448, false),
            (1448, 44, 1448, true),
            (1400, 45, 1, true),
            (200, 63, 77, false),
            (126, 64, 126, true),
            (20, 64, 7, true),
            (8, 64, 8, false),
            (8948, 7, 8947, false),
        ] {
            let segments = shape.segments(size, count, rest, push);
            let (all, header, packet) = shape.merge(&segments).unwrap();
            assert_eq!(all, count, "{shape:?} {size}");
            assert_eq!(shape.cut(header, &packet), segments, "{shape:?} {size}");
        }
    }
}

#[test]
fn a_packet_is_no_longer_than_ip_can_say() {
    for shape in SHAPES {
        let segments = shape.segments(1448, 64, 1448, false);
        let (count, _, packet) = shape.merge(&segments).unwrap();
        assert!(packet.len() - shape.l3() <= 65_535 && packet.len() + 1448 > 65_535, "{shape:?}");
        assert!((44..=45).contains(&count), "{count}");
    }
}

#[test]
fn what_comes_behind_a_short_segment_or_psh_begins_a_packet() {
    for shape in SHAPES {
        let mut segments = shape.segments(1000, 6, 1000, false);
        let l4 = shape.l4();
        segments[2][l4 + 13] = ACK | PSH;
        shape.sum_up(&mut segments[2]);
        assert_eq!(shape.merge(&segments).unwrap().0, 3);
        assert_eq!(shape.merge(&segments[3..]).unwrap().0, 3);
        assert!(shape.merge(&segments[2..]).is_none(), "PSH at first");
        let mut short = shape.segments(1000, 3, 999, false);
        short.extend(shape.segments(1000, 5, 1000, false).drain(3..));
        assert_eq!(shape.merge(&short).unwrap().0, 3);
        let longer = [shape.segments(999, 2, 999, false), shape.segments(999, 3, 1000, false)];
        assert_eq!(shape.merge(&[&longer[0][..], &longer[1][2..]].concat()).unwrap().0, 2);
    }
}

/// Changes each bit of a second segment's headers, and corrects the checksums.
#[test]
fn a_segment_with_any_other_header_is_not_added() {
    for shape in SHAPES {
        let segments = shape.segments(600, 2, 600, false);
        let (l3, l4) = (shape.l3(), shape.l4());
        let of_ip = if shape.v6 { 0..0 } else { l3 + 10..l3 + 12 };
        let sums = |at: usize| of_ip.contains(&at) || (l4 + 16..l4 + 18).contains(&at);
        for bit in 0..8 * (l4 + 32) {
            let (at, mask) = (bit / 8, 1 << (bit % 8));
            if sums(at) {
                continue;
            }
            let mut other = segments[1].clone();
            other[at] ^= mask;
            let push = at == l4 + 13 && mask == PSH;
            shape.sum_up(&mut other);
            let merged = shape.merge(&[segments[0].clone(), other]).unwrap().0;
            assert_eq!(merged == 2, push, "{shape:?} byte {at} bit {mask:#x}");
        }
    }
}

#[test]
fn a_segment_with_a_wrong_sum_is_not_added() {
    for shape in SHAPES {
        let segments = shape.segments(300, 2, 300, false);
        for at in shape.l3()..segments[1].len() {
            if shape.partial && at >= shape.l4() + 32 {
                break;
            }
            let mut other = segments.clone();
            other[1][at] ^= 0x10;
            assert_eq!(shape.merge(&other).unwrap().0, 1, "{shape:?} {at}");
            other.swap(0, 1);
            assert!(shape.merge(&other).is_none_or(|(count, ..)| count == 1), "{shape:?} {at}");
        }
    }
}

fn begins_with(bytes: &[u8], header: VnetHdr) -> bool {
    Packet::begin(bytes, written(bytes, header)).is_some()
}

#[test]
fn what_is_no_plain_segment_begins_no_packet() {
    for shape in SHAPES {
        let segment = shape.segments(600, 1, 600, false).remove(0);
        let begins = |bytes: &[u8]| begins_with(bytes, shape.header());
        assert!(begins(&segment));
        assert!(!begins(&[&segment[..], &[0]].concat()), "a byte behind the packet");
        (0..segment.len()).for_each(|len| assert!(!begins(&segment[..len]), "{len}"));
        let gso = VnetHdr { gso_type: 1, gso_size: [100, 0], ..shape.header() };
        assert!(!begins_with(&segment, gso));
        if shape.partial {
            let elsewhere = VnetHdr { csum_offset: [6, 0], ..shape.header() };
            assert!(!begins_with(&segment, elsewhere), "a sum that is not TCP's");
        }
        // Flags with FIN, SYN, RST, URG, ECE, CWR, and without ACK.
        for flags in [1, 2, 4, 0x20, 0x40, 0x80].map(|flag| ACK | flag).into_iter().chain([0]) {
            let mut other = segment.clone();
            other[shape.l4() + 13] = flags;
            shape.sum_up(&mut other);
            assert!(!begins(&other), "{flags:#x}");
        }
        assert!(!begins(&shape.segments(7, 1, 7, false)[0]), "shorter than Linux cuts them");
    }
}

/// Returns frame `index`, the `nth` of stream `stream`.
fn frame(shape: Shape, stream: u8, nth: u16) -> Vec<u8> {
    let mut frame = shape.segments(100, nth + 1, 100, false).pop().unwrap();
    frame[shape.l4() + 1] = stream;
    shape.sum_up(&mut frame);
    frame
}

fn order(frames: &[Vec<u8>]) -> Option<Order> {
    let all: Vec<u8> = (0..frames.len() as u8).collect();
    Order::of(&all, |at| &frames[usize::from(at)][..frames[usize::from(at)].len().min(64)])
}

#[test]
fn streams_that_take_turns_are_parted() {
    for shape in [SHAPES[0], SHAPES[2], SHAPES[3]] {
        let frames: Vec<_> = (0..15).map(|n| frame(shape, n % 3, u16::from(n / 3))).collect();
        let order = order(&frames).unwrap();
        assert_eq!(order.frames(), [0, 3, 6, 9, 12, 1, 4, 7, 10, 13, 2, 5, 8, 11, 14]);
        assert_eq!(order.stream(0), [0, 3, 6, 9, 12]);
        assert_eq!(order.stream(3), [9, 12]);
        assert_eq!(order.stream(4), [12]);
        assert_eq!(order.stream(5), [1, 4, 7, 10, 13]);
        assert_eq!(order.stream(14), [14]);
        assert!(order.stream(15).is_empty());
    }
}

#[test]
fn frames_that_do_not_follow_each_other_stay_where_they_are() {
    let shape = SHAPES[0];
    assert!(order(&[]).is_none());
    assert!(order(&[frame(shape, 1, 0)]).is_none());
    assert!(order(&[frame(shape, 1, 0), frame(shape, 2, 1), frame(shape, 1, 2)]).is_none());
    assert!(order(&[frame(shape, 1, 1), frame(shape, 1, 0)]).is_none());
    assert!(order(&[vec![0xff; 60], vec![], vec![0; 13]]).is_none());
    // A frame that may belong to any stream separates the frames around it.
    let mut fragment = frame(shape, 9, 0);
    fragment[20] = 0x20;
    assert!(order(&[frame(shape, 1, 0), fragment.clone(), frame(shape, 1, 1)]).is_none());
    let udp = {
        let mut udp = fragment;
        udp[23] = UDP;
        udp
    };
    let order = order(&[frame(shape, 1, 0), udp, frame(shape, 1, 1)]).unwrap();
    assert_eq!(order.frames(), [0, 2, 1]);
}

proptest! {
    /// Makes bursts of segments; some segments are repeated, late or missing.
    #[test]
    fn a_stream_stays_in_order(
        burst in prop::collection::vec((0u8..5, 0u16..6, 0usize..3), 1..64),
    ) {
        let frames: Vec<_> =
            burst.iter().map(|&(of, nth, shape)| frame(SHAPES[shape * 2], of, nth)).collect();
        let Some(order) = order(&frames) else { return Ok(()) };
        let mut all = order.frames().to_vec();
        let of = |stream| {
            let burst = &burst;
            let mine = move |at: &&u8| burst[usize::from(**at)].0 == stream;
            order.frames().iter().filter(mine).copied().collect::<Vec<u8>>()
        };
        for stream in 0..5 {
            for shape in 0..3 {
                let same = |at: &u8| burst[usize::from(*at)].2 == shape;
                let mine: Vec<u8> = of(stream).into_iter().filter(same).collect();
                prop_assert!(mine.is_sorted(), "{burst:?}: {mine:?}");
            }
        }
        all.sort_unstable();
        prop_assert!(all.iter().copied().eq(0..frames.len() as u8));
        let mut at = 0;
        while at < frames.len() {
            let stream = order.stream(at);
            let follows = stream.windows(2).all(|pair| {
                let [one, two] = [pair[0], pair[1]].map(|at| burst[usize::from(at)]);
                one.0 == two.0 && one.1 + 1 == two.1
            });
            prop_assert!(follows);
            at += stream.len();
        }
    }
}
