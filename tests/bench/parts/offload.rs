//! Offloads: the check of what a frame asks for, the sum of its bytes, the headers of its segments,
//! and all of it together on the way to receivers that lack different ones.

use std::hint::black_box;

use base::frame::offload::{GSO_TCPV4, GSO_TCPV6, NEEDS_CSUM, Offloads, check};
use base::frame::{Segmenter, Sum, VnetHdr};
use base::limits::MAX_FRAME_LEN;
use criterion::{BenchmarkId, Criterion, Throughput};
use datapath::ring::{Burst, RxScratch, Segmentation};
use testkit::Rng;

use super::BURST;
use super::guest::{Guest, HEADER, SIZE};

/// `check/<kind of frame>`, `sum/<bytes>`, `segments/<kind of frame>` and
/// `cross <kind of frame>/<what the receiver takes>`
pub fn all(c: &mut Criterion) {
    checks(c);
    sums(c);
    segments(c);
    crossings(c);
}

/// Payload of a segment: an MTU of 1,500 less IPv4 and TCP with a timestamp.
const SEGMENT: u16 = 1448;
/// A TCP packet about as long as Linux makes them, in bytes from its IPv4 header.
const PACKET: u16 = 45 * SEGMENT + 52;

const ETHERNET: [u8; 12] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
/// Ports, sequence numbers, 32 bytes with ACK and PSH, no sum yet, a timestamp.
const TCP: [u8; 32] = [
    0x12, 0x34, 0, 80, 0, 0, 0, 1, 0, 0, 0, 1, 0x80, 0x18, 1, 0, 0, 0, 0, 0, 1, 1, 8, 10, 0, 0, 0,
    9, 0, 0, 0, 8,
];

/// A frame's first bytes, what its sender's header asks for, and its length.
struct Frame {
    name: &'static str,
    headers: Vec<u8>,
    header: VnetHdr,
    len: u32,
}

fn tcp4() -> Frame {
    let mut headers = [&ETHERNET[..], &[8, 0, 0x45, 0]].concat();
    headers.extend(PACKET.to_be_bytes());
    headers.extend([0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame("TCP4", headers, GSO_TCPV4, 14 + u32::from(PACKET))
}

fn tcp6() -> Frame {
    let mut headers = [&ETHERNET[..], &[0x86, 0xdd, 0x60, 0, 0, 0]].concat();
    headers.extend((PACKET - 20).to_be_bytes());
    headers.extend([6, 64]);
    headers.extend([0xfd; 32]);
    frame("TCP6", headers, GSO_TCPV6, 34 + u32::from(PACKET))
}

fn frame(name: &'static str, mut headers: Vec<u8>, gso_type: u8, len: u32) -> Frame {
    let header = VnetHdr {
        flags: NEEDS_CSUM,
        gso_type,
        gso_size: SEGMENT.to_le_bytes(),
        csum_start: (headers.len() as u16).to_le_bytes(),
        csum_offset: [16, 0],
        ..VnetHdr::plain(0)
    };
    headers.extend(TCP);
    Frame { name, headers, header, len }
}

fn checks(c: &mut Criterion) {
    let mut group = c.benchmark_group("check");
    group.throughput(Throughput::Elements(BURST as u64));
    for frame in [tcp4(), tcp6()] {
        group.bench_function(frame.name, |b| b.iter(|| check_all(&frame)));
    }
    group.finish();
}

/// A function of its own, so that callgrind can count its instructions (docs/testing.md).
#[inline(never)]
fn check_all(frame: &Frame) {
    for _ in 0..BURST {
        let Frame { header, headers, len, .. } = black_box(frame);
        assert!(black_box(check(*header, headers, *len, Offloads::ALL)).is_ok());
    }
}

fn sums(c: &mut Criterion) {
    let mut group = c.benchmark_group("sum");
    for len in [usize::from(SEGMENT), 65_000] {
        let mut random = Rng::new(len as u64);
        let bytes: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function(BenchmarkId::from_parameter(len), |b| b.iter(|| sum_all(&bytes)));
    }
    group.finish();
}

#[inline(never)]
fn sum_all(bytes: &[u8]) {
    black_box(Sum::of(black_box(bytes)));
}

fn segments(c: &mut Criterion) {
    let mut group = c.benchmark_group("segments");
    for frame in [tcp4(), tcp6()] {
        let request = check(frame.header, &frame.headers, frame.len, Offloads::ALL);
        let request = request.expect("a sound frame");
        let new = || Segmenter::new(black_box(&request), black_box(&frame.headers), frame.len);
        let count = new().expect("a sound frame").segments();
        group.throughput(Throughput::Elements(count.into()));
        group.bench_function(frame.name, |b| {
            b.iter(|| segment_all(new().expect("a sound frame")));
        });
    }
    group.finish();
}

#[inline(never)]
fn segment_all(mut segmenter: Segmenter) {
    for index in 0..segmenter.segments() {
        black_box(segmenter.payload(index));
        let sum = black_box(Sum::from_raw(u64::from(index)));
        black_box(segmenter.complete(index, sum));
    }
}

/// From one ring to another: packets of 64 KiB, and 42 frames whose checksum is left to do.
fn crossings(c: &mut Criterion) {
    for mut frame in [tcp4(), tcp6()] {
        cross(c, frame.name, &frame, 1);
        frame.header = VnetHdr { gso_type: 0, gso_size: [0; 2], ..frame.header };
        frame.len = frame.headers.len() as u32 + u32::from(SEGMENT);
        cross(c, &format!("{} checksum", frame.name), &frame, 42);
    }
}

fn cross(c: &mut Criterion, name: &str, frame: &Frame, count: u16) {
    let mut bytes = frame.headers.clone();
    bytes.resize(frame.len as usize, 0x5a);
    let mut sender = Guest::sender_of(&frame.header.to_bytes(), &bytes);
    let (mut burst, mut scratch) = (Burst::default(), RxScratch::default());
    let run: Vec<u8> = (0..count as u8).collect();
    let mut group = c.benchmark_group(format!("cross {name}"));
    group.throughput(Throughput::Bytes(u64::from(count) * u64::from(frame.len)));
    let large = HEADER + u64::from(MAX_FRAME_LEN);
    for (takes, offloads, buffer) in [
        ("all", Offloads::ALL, large),
        ("all, merged", Offloads::ALL, 1536),
        ("checksums", Offloads::CSUM, 1536),
        ("none", Offloads::NONE, 1536),
    ] {
        let mut receiver = Guest::receiver_with(buffer, offloads);
        group.bench_function(takes, |b| {
            b.iter(|| {
                sender.offer(count);
                receiver.offer(SIZE);
                assert_eq!(sender.ring.take(&mut burst, count.into()), Ok(count.into()));
                let done = receiver.ring.deliver(&burst, &run, &mut scratch, Segmentation::Whole);
                assert_eq!(done.frames, u64::from(count));
                sender.ring.complete(&burst)
            });
        });
    }
    group.finish();
}
