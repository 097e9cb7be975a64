//! Taking frames from a transmit ring and giving the descriptors back.

use std::hint::black_box;

use criterion::{Criterion, Throughput};
use datapath::ring::Burst;

use super::guest::{Form, Guest, counts};

/// `drain/<form>/<bytes>x<frames>`
pub fn all(c: &mut Criterion) {
    for (name, form) in
        [("direct", Form::Direct), ("split", Form::Split), ("indirect", Form::Indirect)]
    {
        let mut group = c.benchmark_group(format!("drain/{name}"));
        for len in [60, 1514] {
            let mut guest = Guest::sender(len, form);
            let mut burst = Burst::default();
            for count in counts(len) {
                group.throughput(Throughput::Elements(u64::from(count)));
                group.bench_function(format!("{len}x{count}"), |b| {
                    b.iter(|| {
                        guest.offer(count);
                        let taken = guest.ring.take(&mut burst, usize::from(count));
                        assert_eq!(taken, Ok(usize::from(count)));
                        // Frames, not rejected chains.
                        assert_eq!(black_box(burst.frames()).len(), usize::from(count));
                        guest.ring.complete(&burst)
                    });
                });
            }
        }
        group.finish();
    }
}
