//! Looks at private copies of frames: flow hash, addresses, virtio-net header.

use std::hint::black_box;

use base::frame::ethernet::{Addresses, Snapshot, addresses};
use base::frame::{VNET_HDR_LEN, VnetHdr, flow_hash};
use base::limits::SNAPSHOT_LEN;
use criterion::{Criterion, Throughput};
use testkit::Rng;

use super::BURST;

/// `hash/<kind of frame>`, `addresses/…` and `header/plain`
pub fn all(c: &mut Criterion) {
    hash(c);
    same_addresses(c);
    header(c);
}

/// Bytes 12 and later up to the addresses of the layer above.
const IPV4_TCP: &[u8] = &[8, 0, 0x45, 0, 0, 50, 0, 1, 0x40, 0, 64, 6, 0, 0];
const IPV4_FRAGMENT: &[u8] = &[8, 0, 0x45, 0, 0, 50, 0, 1, 0x20, 0, 64, 17, 0, 0];
const IPV6_UDP: &[u8] = &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 17, 64];
const VLAN_IPV4_TCP: &[u8] = &[0x81, 0, 0, 5, 8, 0, 0x45, 0, 0, 50, 0, 1, 0x40, 0, 64, 6, 0, 0];
const QINQ_IPV6_UDP: &[u8] =
    &[0x88, 0xa8, 0, 7, 0x81, 0, 0, 5, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 17, 64];
const ARP: &[u8] = &[8, 6];

/// A burst of frames that have `middle` in common and whose addresses and ports differ.
fn frames(middle: &[u8]) -> Vec<Snapshot> {
    let mut random = Rng::new(middle.len() as u64);
    let frame = |_| {
        let mut frame = [0; SNAPSHOT_LEN];
        frame.fill_with(|| random.next() as u8);
        frame[12..12 + middle.len()].copy_from_slice(middle);
        frame
    };
    (0..BURST).map(frame).collect()
}

fn hash(c: &mut Criterion) {
    let mut group = c.benchmark_group("hash");
    group.throughput(Throughput::Elements(BURST as u64));
    let kinds = [
        ("IPv4 TCP", IPV4_TCP),
        ("IPv4 fragment", IPV4_FRAGMENT),
        ("IPv6 UDP", IPV6_UDP),
        ("VLAN IPv4 TCP", VLAN_IPV4_TCP),
        ("QinQ IPv6 UDP", QINQ_IPV6_UDP),
        ("ARP", ARP),
    ];
    let mut mixed = Vec::new();
    for (name, middle) in kinds {
        let frames = frames(middle);
        group.bench_function(name, |b| b.iter(|| hash_all(&frames)));
        mixed.extend(frames);
    }
    // Longer than a burst, so that branches on the kind are not foreseen.
    Rng::new(1).shuffle(&mut mixed);
    let mut bursts = mixed.chunks_exact(BURST).cycle();
    group.bench_function("mixed", |b| b.iter(|| hash_all(bursts.next().unwrap_or_default())));
    group.finish();
}

/// A function of its own, so that callgrind can count its instructions (docs/testing.md).
#[inline(never)]
fn hash_all(frames: &[Snapshot]) {
    for frame in frames {
        black_box(flow_hash(frame));
    }
}

/// The question asked of every frame, for one stream and for alternating ones.
fn same_addresses(c: &mut Criterion) {
    let mut group = c.benchmark_group("addresses");
    group.throughput(Throughput::Elements(BURST as u64));
    let one = vec![frames(ARP)[0]; BURST];
    let two: Vec<Snapshot> = frames(ARP)[..2].iter().copied().cycle().take(BURST).collect();
    for (name, frames, changes) in [("one stream", &one, 1), ("alternating", &two, BURST)] {
        group.bench_function(name, |b| {
            b.iter(|| {
                let (mut before, mut changed) = (Addresses::NONE, 0);
                for frame in black_box(frames) {
                    let now = addresses(frame);
                    if now != before {
                        before = black_box(now);
                        changed += 1;
                    }
                }
                assert_eq!(changed, changes);
            });
        });
    }
    group.finish();
}

fn header(c: &mut Criterion) {
    let mut group = c.benchmark_group("header");
    group.throughput(Throughput::Elements(BURST as u64));
    let headers = [[0u8; VNET_HDR_LEN]; BURST];
    group.bench_function("plain", |b| {
        b.iter(|| {
            let plain = black_box(&headers).iter().all(|h| VnetHdr::from_bytes(*h).is_plain());
            assert!(plain);
        });
    });
    group.finish();
}
