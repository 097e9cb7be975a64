//! What a worker remembers: the source of the frame before, and the decisions of one burst.

use std::hint::black_box;

use base::frame::MacAddr;
use criterion::{Criterion, Throughput};
use switch::{BurstMemo, Decision, Learn, PortId, SourceMemo, Tick};

use super::BURST;

/// `memo/source`, and `memo/burst/<destinations among its frames>`
pub fn all(c: &mut Criterion) {
    let mut group = c.benchmark_group("memo");
    group.throughput(Throughput::Elements(BURST as u64));
    let station = |n: usize| MacAddr::from_bits(0x5254_0000_0000 + n as u64);

    let (port, generation, now) = (3, 7, Tick::new(100, 0));
    let mut memo = SourceMemo::default();
    memo.note(station(1).into(), port, generation, now, Learn::Known);
    let frames = [station(1); BURST];
    group.bench_function("source", |b| {
        b.iter(|| {
            let covered = |mac: &&MacAddr| memo.covers((**mac).into(), port, generation, now);
            assert_eq!(black_box(&frames).iter().filter(covered).count(), BURST);
        });
    });

    let mut memo = BurstMemo::new();
    for destinations in [1, 8, BURST] {
        let frames: Vec<MacAddr> = (0..BURST).map(|i| station(i % destinations)).collect();
        group.bench_function(format!("burst/{destinations}"), |b| {
            b.iter(|| {
                memo.start_burst();
                let mut asked = 0;
                for &mac in &frames {
                    let decide = || {
                        asked += 1;
                        Decision::Unicast(asked as PortId)
                    };
                    black_box(memo.decide(mac.into(), decide));
                }
                assert_eq!(asked, destinations);
            });
        });
    }
    group.finish();
}
