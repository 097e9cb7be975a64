//! Delivering frames into a receive ring: `fill` with the buffers of a Linux guest that negotiated
//! merging, `copy` with one buffer for any frame, where little is left but the copy.

use base::limits::MAX_FRAME_LEN;
use criterion::{Criterion, Throughput};
use datapath::ring::{RxScratch, Segmentation};

use super::guest::{Form, Guest, HEADER, SIZE, counts};

/// Bytes of a mergeable buffer: what fits a page twice.
const BUFFER: u64 = 2048;

/// `fill/<bytes>x<frames>` and `copy/<bytes>x<frames>`
pub fn all(c: &mut Criterion) {
    let mut receiver = Guest::receiver(BUFFER);
    for len in [60, 1514, 65_000] {
        for count in counts(len) {
            deliver(c, "fill", &mut receiver, len, count);
        }
    }
    // Ring and data, 16 MiB with frames of 65,000 bytes, are more than a core's caches hold.
    let mut receiver = Guest::receiver(HEADER + u64::from(MAX_FRAME_LEN));
    for len in [60, 590, 1514, 65_000] {
        let most = counts(len).pop().expect("some");
        deliver(c, "copy", &mut receiver, len, most);
    }
}

fn deliver(c: &mut Criterion, name: &str, receiver: &mut Guest, len: u64, count: u16) {
    let mut sender = Guest::sender(len, Form::Direct);
    let burst = sender.burst(count);
    let run: Vec<u8> = (0..count as u8).collect();
    let mut scratch = RxScratch::default();
    let mut group = c.benchmark_group(name);
    let (frames, bytes) = (u64::from(count), len * u64::from(count));
    group.throughput(Throughput::ElementsAndBytes { elements: frames, bytes });
    group.bench_function(format!("{len}x{count}"), |b| {
        b.iter(|| {
            receiver.offer(SIZE);
            let done = receiver.ring.deliver(&burst, &run, &mut scratch, Segmentation::Whole);
            assert_eq!(done.frames, frames);
            done
        });
    });
    group.finish();
}
