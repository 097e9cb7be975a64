//! Frames between 2, 3 and 8 guests: I1 to I5 hold exactly, over the real socket of the real
//! binary, with one worker and with two (with one the RX lock is never contended).
//!
//! Every frame is traced (`testkit::traffic`), every buffer is poisoned before it is posted, every
//! used element is booked; receivers keep their rings full, so nothing may be missing.

use testkit::SOON;
use testkit::frontend::{Acks, feat};
use testkit::hostile::raw_avail;
use testkit::mem::RegionSpec;
use testkit::net::{Job, Net, Sizes};
use testkit::proc::Daemon;
use testkit::rx::{Poison, RxConfig};
use testkit::traffic::To;
use testkit::tx::Layout;
use testkit::vm::{Base, MODERN, Vm, VmConfig, mac_of};

const MAX: usize = 65535;
/// Around every size that a buffer, page, MTU or 16-bit field could trip over.
const EDGES: [usize; 26] = [
    14, 15, 29, 30, 59, 60, 64, 1499, 1514, 1515, 1518, 1522, 2047, 2048, 2049, 4083, 4084, 4096,
    9014, 16384, 32767, 32768, 65522, 65523, 65534, MAX,
];

/// Runs a test on a switch of `ports` ports with one worker, then with two.
fn each_worker_count(ports: &[&str], test: impl Fn(&Daemon)) {
    for workers in ["1", "2"] {
        let d = Daemon::with_ports(ports, &["--workers", workers]);
        test(&d);
        d.stop();
    }
}

/// Buffers and slots for frames of any size; 64 KiB and the header fit one buffer.
fn jumbo(mut c: VmConfig) -> VmConfig {
    c.regions = vec![RegionSpec::new(0, 64 << 20), RegionSpec::new(4 << 30, 64 << 20)];
    c.tx.max_frame = MAX as u32;
    c.tx.buffers = 64;
    c.rx = RxConfig::plain(64, MAX as u32 + 12);
    c
}

/// Both ways between guests 0 and 1.
fn both_ways(net: &mut Net, frames: u32, sizes: Sizes) {
    let job = |from: usize| Job::new(from, To::Vm(1 - from as u8), frames, sizes.clone());
    net.run(&[job(0), job(1)]);
}

/// Frames of every size from 14 to 65,535 bytes.
#[test]
fn every_size() {
    each_worker_count(&["", ""], |d| {
        let mut net = Net::connect(d, 2, jumbo);
        both_ways(&mut net, 2100, Sizes::Sweep(14, 2113));
        both_ways(&mut net, EDGES.len() as u32, Sizes::List(EDGES.to_vec()));
        both_ways(&mut net, 150, Sizes::Range(2000, MAX));
        net.finish();
        net.books(d);
    });
}

#[test]
fn every_size_in_many_buffers() {
    each_worker_count(&["", ""], |d| {
        let mut net = Net::connect(d, 2, |c| {
            let mut c = jumbo(c);
            // Mergeable: up to 43 buffers of three shapes for one frame.
            c.rx = RxConfig::plain(256, 1526);
            c.rx.layouts = vec![vec![1526], vec![12, 1600], vec![5, 7, 700, 1000]];
            c.size = 1024;
            c.rx.poison = Poison::Full;
            c
        });
        both_ways(&mut net, 1600, Sizes::Sweep(14, 1613));
        both_ways(&mut net, EDGES.len() as u32, Sizes::List(EDGES.to_vec()));
        both_ways(&mut net, 100, Sizes::Range(1500, MAX));
        net.finish();
        net.books(d);
    });
}

/// Mergeable buffers hardly longer than a header: a 1514-byte frame takes 76 of them.
#[test]
fn tiny_mergeable_buffers() {
    each_worker_count(&["", ""], |d| {
        let mut net = Net::connect(d, 2, |mut c| {
            c.size = 512;
            c.rx = RxConfig { buffers: 512, poison: Poison::Full, ..RxConfig::plain(512, 20) };
            c
        });
        both_ways(&mut net, 600, Sizes::Range(14, 1514));
        net.finish();
        net.books(d);
    });
}

/// Header and frame cut everywhere: at each offset of the header, 1 to 12 descriptors for it,
/// chains of 1 to 64.
fn cuts(header: u16) -> Vec<Layout> {
    let mut all: Vec<Layout> = (1..=64).map(Layout::Pieces).collect();
    all.extend((1..=header).map(|h| Layout::HeaderPieces { header: h, frame: 1 }));
    all.extend((1..=header).map(|h| Layout::HeaderPieces { header: h, frame: 64 - h }));
    // Each offset of the header and the first bytes of the Ethernet header behind it.
    all.extend((1..=u32::from(header) + 16).map(|at| Layout::Cuts(vec![at])));
    all.extend((1..u32::from(header)).map(|at| Layout::Cuts(vec![at, at + 1, at + 14])));
    all.push(Layout::Random { max: 64 });
    all
}

/// The receiver's buffers cut likewise.
fn rx_cuts(header: u32, room: u32) -> Vec<Vec<u32>> {
    let mut all = vec![vec![header + room], vec![header, room]];
    all.extend((1..header).map(|at| vec![at, header - at, room]));
    all.extend((1..header).map(|at| vec![at, header - at + room]));
    all.push([vec![1; header as usize], vec![room]].concat());
    all.push([vec![header + 1], vec![1; 14], vec![room]].concat());
    all
}

fn split_config(mut c: VmConfig, features: u64, indirect: bool) -> VmConfig {
    c.features = features;
    let header = c.header_len() as u32;
    c.size = 1024;
    c.tx_size = 512;
    c.tx.indirect = indirect;
    c.tx.layouts = cuts(header as u16);
    c.rx =
        RxConfig { layouts: rx_cuts(header, 1600), buffers: 120, indirect, poison: Poison::Full };
    c
}

fn split_everywhere(features: u64, indirect: bool) {
    each_worker_count(&["", ""], |d| {
        let mut net = Net::connect(d, 2, |c| split_config(c, features, indirect));
        both_ways(&mut net, 1500, Sizes::Range(14, 1514));
        // Frames of one size meet every layout.
        both_ways(&mut net, 200, Sizes::Fixed(60));
        net.finish();
        net.books(d);
    });
}

/// Header and frame are split anywhere, over chains of 1 to 64 descriptors.
#[test]
fn split_direct() {
    split_everywhere(MODERN, false);
}

#[test]
fn split_indirect() {
    split_everywhere(MODERN, true);
}

#[test]
fn split_direct_not_mergeable() {
    split_everywhere(feat::VERSION_1 | feat::EVENT_IDX, false);
}

#[test]
fn split_indirect_not_mergeable() {
    split_everywhere(feat::VERSION_1 | feat::INDIRECT, true);
}

#[test]
fn split_legacy_header() {
    split_everywhere(feat::INDIRECT | feat::ANY_LAYOUT, false);
    split_everywhere(feat::INDIRECT | feat::ANY_LAYOUT | feat::EVENT_IDX, true);
}

/// What the front-ends and guests of the field negotiate, on the same switch at once: each pair of
/// neighbours differs, so every copy goes between two kinds.
fn field(mut c: VmConfig) -> VmConfig {
    let kinds = [
        // Linux on QEMU, then DPDK virtio-user, iPXE, a legacy guest, in-order Linux, …
        MODERN,
        feat::VERSION_1 | feat::MRG_RXBUF | feat::IN_ORDER | feat::INDIRECT,
        feat::VERSION_1,
        feat::ANY_LAYOUT,
        MODERN | feat::IN_ORDER,
        feat::MRG_RXBUF | feat::EVENT_IDX,
        feat::VERSION_1 | feat::EVENT_IDX | feat::IN_ORDER,
        feat::VERSION_1 | feat::MRG_RXBUF,
    ];
    let n = c.id as usize;
    c.features = kinds[n % kinds.len()];
    c.tx.layouts = vec![Layout::One, Layout::HeaderApart, Layout::Pieces(3)];
    c.tx.indirect = c.features & feat::INDIRECT != 0;
    c.rx.indirect = c.tx.indirect && n.is_multiple_of(2);
    c.acks = if n.is_multiple_of(3) { Acks::Always } else { Acks::Never };
    c.mem_slots = n.is_multiple_of(2);
    c.base = if n % 4 == 3 { Base::Avail } else { Base::Used };
    c
}

/// All to all others, on every queue pair, two flows each, and some for everybody.
fn mesh(net: &mut Net, guests: usize, pairs: usize, frames: u32) {
    let mut jobs = Vec::new();
    for from in 0..guests {
        for to in (0..guests).filter(|&t| t != from) {
            for queue in 0..pairs {
                for flow in 0..2 {
                    let job = Job::new(from, To::Vm(to as u8), frames, Sizes::Range(60, 1514));
                    jobs.push(job.queue(queue).flow(flow));
                }
            }
        }
        for to in [To::Broadcast, To::Multicast, To::Unknown] {
            let flood = Job::new(from, to, frames / 10 + 1, Sizes::Range(60, 1514));
            jobs.push(flood.queue(from % pairs).flow(2));
        }
    }
    net.run(&jobs);
}

fn mesh_test(guests: usize, pairs: usize, frames: u32) {
    let keys = format!(",queues={pairs}");
    let ports: Vec<&str> = vec![&keys; guests];
    each_worker_count(&ports, |d| {
        let mut net = Net::connect(d, guests, |c| {
            let mut c = field(c);
            c.pairs = pairs;
            if pairs > 1 {
                c.features |= feat::MQ;
            }
            c
        });
        mesh(&mut net, guests, pairs, frames);
        net.finish();
        net.books(d);
    });
}

/// Guests that negotiated differently.
#[test]
fn two_guests() {
    mesh_test(2, 1, 5000);
}

#[test]
fn three_guests() {
    mesh_test(3, 1, 1500);
}

#[test]
fn eight_guests() {
    mesh_test(8, 1, 150);
}

#[test]
fn two_guests_of_four_pairs() {
    mesh_test(2, 4, 1000);
}

#[test]
fn three_guests_of_four_pairs() {
    mesh_test(3, 4, 300);
}

#[test]
fn eight_guests_of_four_pairs() {
    mesh_test(8, 4, 20);
}

/// A port of four pairs serves a guest that brings up one, and a ring may be as small as 2 or as
/// large as 32768. Frames pass the wrap of the index.
#[test]
fn ring_sizes() {
    for size in [2u16, 8, 256, 32768] {
        each_worker_count(&[",queues=4", ""], |d| {
            let mut net = Net::connect(d, 2, |mut c| {
                (c.size, c.tx_size) = (size, size);
                (c.rx.buffers, c.tx.buffers) = (size.min(2000), size.min(2000));
                c
            });
            // More than 65536 on the short rings would take the indices round; 70000 frames do.
            let frames = if size == 256 { 70_000 } else { 3000 };
            both_ways(&mut net, frames, Sizes::Range(60, 200));
            net.finish();
            net.books(d);
        });
    }
}

/// Eight senders to one receiver: the RX lock under contention, order kept for each.
#[test]
fn all_to_one() {
    each_worker_count(&[""; 8], |d| {
        let mut net = Net::connect(d, 8, |mut c| {
            c.size = 1024;
            c.rx.buffers = 1024;
            c
        });
        let one = |from| Job::new(from, To::Vm(0), 2500, Sizes::Range(60, 1514));
        net.run(&(1..8).map(one).collect::<Vec<_>>());
        net.finish();
        net.books(d);
    });
}

/// `flood=off`: a port gets what is for it, for everybody and for groups, and nothing that is for
/// an address nobody is known for. Bursts hold all of these, so that each frame has its way.
#[test]
fn floods_of_unknown_addresses_are_kept_from_a_port() {
    for (keys, takes) in [(["", "", ""], true), (["", ",flood=off", ""], false)] {
        let d = Daemon::with_ports(&keys, &[]);
        let mut vms = [0, 1, 2].map(|id| Vm::connect(&d.socket(id.into()), VmConfig::new(id)));
        let [from, kept, other] = &mut vms;
        for vm in [&mut *kept, &mut *other] {
            let hello = [&from.mac()[..], &vm.mac(), &[0x88, 0xb5], &[0; 46]].concat();
            vm.tx[0].send_waiting(&hello, SOON);
            vm.tx[0].drain(SOON);
        }
        let to = [To::Unknown, To::Broadcast, To::Vm(1), To::Unknown, To::Multicast, To::Vm(2)];
        let frame = |n: u8, to: To| [&to.mac()[..], &mac_of(0), &[0x88, 0xb5], &[n; 46]].concat();
        for round in 0..10 {
            for (n, to) in (0..).zip(to) {
                assert!(from.tx[0].queue(&frame(10 * round + n, to)));
            }
        }
        from.tx[0].ring.publish();
        from.tx[0].drain(SOON);
        let received = |vm: &mut Vm, wanted: &[u8]| {
            let mut numbers: Vec<u8> = Vec::new();
            let mine = |frame: &[u8]| frame[6..12] == mac_of(0);
            while numbers.len() < 10 * wanted.len() {
                let come = vm.rx[0].take(1, SOON);
                let Some((_, frame)) = come.first() else { break };
                numbers.extend(mine(frame).then_some(frame[14]));
            }
            // Unicast is delivered before floods, each in order.
            numbers.sort_unstable();
            let wanted = (0..10).flat_map(|round| wanted.iter().map(move |n| 10 * round + n));
            assert_eq!(numbers, wanted.collect::<Vec<_>>(), "{keys:?}");
        };
        received(other, &[0, 1, 3, 4, 5]);
        received(kept, if takes { &[0, 1, 2, 3, 4] } else { &[1, 2, 4] });
        assert!(!kept.rx[0].ring.has_used() && !other.rx[0].ring.has_used(), "more than that");
        let counters = d.report();
        counters.balance();
        let copies = if takes { 10 * 10 } else { 10 * 8 };
        assert_eq!(counters.sum(Some("p0"), "in", "copies"), copies);
        drop(vms);
        d.stop();
    }
}

/// Where something is asked of a port, floods of unknown addresses are apart from those of groups:
/// the second of a burst finds broken what the first one broke, and not a port that is down.
#[test]
fn a_ring_that_breaks_is_broken_for_each_flood_of_a_burst() {
    let d = Daemon::with_ports(&["", "", ",flood=off"], &[]);
    let mut vms = [0, 1, 2].map(|id| Vm::connect(&d.socket(id.into()), VmConfig::new(id)));
    let ring = &vms[1].rx[0].ring;
    (0..ring.size).for_each(|slot| raw_avail(ring, slot, ring.size));
    for to in [To::Unknown, To::Broadcast] {
        let frame = [&to.mac()[..], &mac_of(0), &[0x88, 0xb5], &[0; 46]].concat();
        assert!(vms[0].tx[0].queue(&frame));
    }
    vms[0].tx[0].ring.publish();
    vms[0].tx[0].drain(SOON);
    let counters = d.counters();
    let of =
        |reason| ["out", ""].map(|side| counters.sum(Some("p1"), side, reason)).iter().sum::<u64>();
    assert_eq!((of("drop.ring_broken"), of("drop.port_down")), (2, 0));
    d.stop();
}
