//! The dirty log, and memory that stands still: what a migration and a snapshot rely on.
//!
//! A page the daemon writes and does not mark is a page the migrated guest gets stale. Marked is
//! what was written: payload, used elements, the used index; after the answer that stops a ring,
//! pauses it or replaces the log, nobody writes there any more.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use testkit::SOON;
use testkit::frontend::{Acks, Frontend, feat, proto};
use testkit::mem::{GuestMem, RegionSpec, Span};
use testkit::packet::{Ask, Kind, Packet, payload};
use testkit::proc::Daemon;
use testkit::ring::Ring;
use testkit::vm::{Guest, Vm, VmConfig};
use testkit::vnet::Header;

const PAGE: u64 = 4096;

/// A log as QEMU makes it: one bit per page of guest-physical address space, in a memfd.
pub struct Log {
    memory: Arc<GuestMem>,
    bits: Span,
}

impl Log {
    pub fn for_guest(guest: &Guest) -> Log {
        let end = guest.cfg.regions.iter().map(|r| r.gpa + r.len).max().expect("a region");
        let bytes = end.div_ceil(PAGE).div_ceil(8).next_multiple_of(PAGE);
        let memory = GuestMem::new(&[RegionSpec::new(0, bytes)]);
        let bits = memory.span(0, bytes);
        Log { memory, bits }
    }

    pub fn attach(&self, fe: &mut Frontend) {
        let (spec, fd) = self.memory.table()[0];
        fe.set_log_base(spec.len, 0, fd).expect("log base");
    }

    /// The dirty pages, and a clean log afterwards.
    pub fn take(&self) -> BTreeSet<u64> {
        let mut pages = BTreeSet::new();
        let bytes = self.bits.read(0, self.bits.len());
        for (i, byte) in bytes.iter().enumerate().filter(|(_, b)| **b != 0) {
            pages.extend((0..8).filter(|bit| byte >> bit & 1 == 1).map(|bit| i as u64 * 8 + bit));
        }
        self.bits.write(0, &vec![0; self.bits.len()]);
        pages
    }
}

fn pages(gpa: u64, len: u64) -> impl Iterator<Item = u64> {
    gpa / PAGE..=(gpa + len - 1) / PAGE
}

/// A sender and the guest that migrates.
fn pair() -> (Daemon, Vm, Vm) {
    pair_with(0, 0)
}

/// The same with offloads.
fn pair_with(sender: u64, migrating: u64) -> (Daemon, Vm, Vm) {
    let d = Daemon::with(2, &["--workers", "2"]);
    let (a, b) = guests(&d, sender, migrating);
    (d, a, b)
}

/// Guests with these offloads.
fn guests(d: &Daemon, sender: u64, migrating: u64) -> (Vm, Vm) {
    let a = Vm::connect(&d.socket(0), VmConfig::with_offloads(0, sender, true));
    let mut c = VmConfig::with_offloads(1, migrating, true);
    c.protocol |= proto::LOG_SHMFD;
    c.acks = Acks::Always;
    // Small buffers, so that frames take several, and a used ring of several pages that wraps.
    (c.size, c.tx_size, c.rx.buffers) = (1024, 1024, 1000);
    c.rx.layouts = vec![vec![600]];
    (a, Vm::connect(&d.socket(1), c))
}

/// `n` frames of 1514 bytes from one guest to the other.
fn send(from: &mut Vm, to: &mut Vm, n: usize) {
    let frame = [&to.mac()[..], &from.mac(), &[0x88, 0xb5], &[6; 1500]].concat();
    for _ in 0..n {
        assert!(from.tx[0].send(&frame));
        assert!(to.rx[0].wait(SOON), "nothing came");
        assert_eq!(to.rx[0].recv(2, |_, f| assert_eq!(f, frame)), 1);
    }
    from.tx[0].drain(SOON);
}

/// How a migration begins, message by message.
pub const BEGINNING: [fn(&mut Vm, &Log); 4] = [
    |vm, log| log.attach(&mut vm.fe),
    |vm, _| {
        let features = vm.cfg.features | feat::PROTOCOL_FEATURES | feat::LOG_ALL;
        vm.fe.set_features(features).expect("features");
    },
    |vm, _| log_ring(vm, 0),
    |vm, _| log_ring(vm, 1),
];

fn log_ring(vm: &mut Vm, ring: usize) {
    let addr = vm.guest.rings().nth(ring).expect("ring").addr(&vm.guest.mem, 1);
    vm.fe.set_vring_addr(&addr).expect("address with the log flag");
}

fn log_on(vm: &mut Vm, log: &Log) {
    BEGINNING.iter().for_each(|step| step(vm, log));
}

/// Runs traffic both ways and compares the marked pages with those that were written.
fn check_marks(a: &mut Vm, b: &mut Vm, log: &Log) {
    check_marks_of(b, log, |b| {
        send(a, b, 100);
        send(b, a, 10);
    });
}

/// The same for any traffic.
fn check_marks_of(b: &mut Vm, log: &Log, traffic: impl FnOnce(&mut Vm)) {
    b.rx[0].trace = Some(Vec::new());
    let from: Vec<u16> = b.rings().map(Ring::used_idx).collect();
    traffic(b);
    let marked = log.take();
    let written = b.rx[0].trace.take().expect("traced");
    assert!(!written.is_empty());
    let mut must: BTreeSet<u64> =
        written.iter().flat_map(|&(gpa, len)| pages(gpa, u64::from(len))).collect();
    let mut may = BTreeSet::new();
    for (ring, from) in b.rings().zip(from) {
        must.extend(used_pages(ring, from));
        may.extend(pages(ring.used.gpa(), ring.used.len() as u64));
    }
    let missing: Vec<_> = must.difference(&marked).collect();
    assert!(missing.is_empty(), "written and not marked: pages {missing:x?}");
    // avail_event and the flags are written as the daemon sees fit.
    let more: Vec<_> = marked.difference(&must).filter(|p| !may.contains(*p)).collect();
    assert!(more.is_empty(), "marked and not written: pages {more:x?}");
}

/// The page of the used index, and those of the elements written since `from`.
fn used_pages(ring: &Ring, from: u16) -> BTreeSet<u64> {
    let used = ring.used.gpa();
    let count = ring.used_idx().wrapping_sub(from);
    let index = (count > 0).then(|| pages(used + 2, 2));
    let mut all: BTreeSet<u64> = index.into_iter().flatten().collect();
    for i in 0..count {
        let slot = u64::from(from.wrapping_add(i) & (ring.size - 1));
        all.extend(pages(used + 4 + 8 * slot, 8));
    }
    all
}

#[test]
fn what_is_written_is_marked() {
    let (d, mut a, mut b) = pair();
    send(&mut b, &mut a, 1);
    send(&mut a, &mut b, 1);
    let log = Log::for_guest(&b);
    assert!(log.take().is_empty());
    send(&mut a, &mut b, 20);
    log_on(&mut b, &log);
    // Again and again: QEMU takes the marks by exchange, and each write after that marks anew.
    for _ in 0..5 {
        check_marks(&mut a, &mut b, &log);
    }
    drop((a, b));
    d.stop();
}

/// What is written by other ways: large packets as they are, checksums finished, segments.
#[test]
fn what_offloads_write_is_marked() {
    for migrating in [feat::GUEST_OFFLOADS, feat::GUEST_CSUM, 0] {
        let (d, mut a, mut b) = pair_with(feat::HOST_OFFLOADS, migrating);
        send(&mut b, &mut a, 1);
        send(&mut a, &mut b, 1);
        let log = Log::for_guest(&b);
        log_on(&mut b, &log);
        for kind in Kind::plain() {
            let asks = [(1000, Ask::Sum), (kind.longest(), Ask::Segments(kind.mss()))];
            for (len, ask) in asks {
                let packet = Packet::new(kind, a.mac(), b.mac(), &payload(1, len));
                let (header, frame) = packet.sent(ask);
                let expected = packet.received(ask, b.cfg.features);
                a.tx[0].header = header.bytes(12);
                check_marks_of(&mut b, &log, |b| {
                    a.tx[0].send_waiting(&frame, SOON);
                    let got = b.rx[0].take(expected.len(), SOON);
                    let same = got.iter().zip(&expected).all(|(g, e)| g.1 == e.1);
                    assert!(same && got.len() == expected.len(), "{kind:?} {ask:?}");
                });
            }
        }
        drop((a, b));
        d.stop();
    }
}

/// The frame with the tag of VLAN 10.
fn tagged((mut header, frame): (Header, Vec<u8>)) -> (Header, Vec<u8>) {
    header.csum_start += if header.flags & 1 != 0 { 4 } else { 0 };
    header.hdr_len += if header.gso_type != 0 { 4 } else { 0 };
    (header, [&frame[..12], &[0x81, 0, 0, 10], &frame[12..]].concat())
}

/// Frames whose tag comes or goes on the way, whole and in segments: a head of another length, and
/// what is behind it, are marked where they are written.
#[test]
fn what_is_written_with_another_tag_is_marked() {
    let keys = [",vlan=10", ",trunk=10"];
    let cases = [0, 1].map(|from| [feat::GUEST_OFFLOADS, 0].map(|features| (from, features)));
    for (from, migrating) in cases.concat() {
        let d = Daemon::with_ports(&[keys[from], keys[1 - from]], &["--workers", "2"]);
        let (mut a, mut b) = guests(&d, feat::HOST_OFFLOADS, migrating);
        let log = Log::for_guest(&b);
        log_on(&mut b, &log);
        for kind in Kind::plain() {
            let asks = [(60, Ask::Nothing), (1000, Ask::Sum), (9000, Ask::Segments(kind.mss()))];
            for (len, ask) in asks {
                let packet = Packet::new(kind, a.mac(), [0xff; 6], &payload(1, len));
                let (mut sent, mut expected) =
                    (packet.sent(ask), packet.received(ask, b.cfg.features));
                match from {
                    0 => expected = expected.into_iter().map(tagged).collect(),
                    _ => sent = tagged(sent),
                }
                a.tx[0].header = sent.0.bytes(12);
                check_marks_of(&mut b, &log, |b| {
                    a.tx[0].send_waiting(&sent.1, SOON);
                    let got = b.rx[0].take(expected.len(), SOON);
                    let same = got.iter().zip(&expected).all(|(g, e)| g.1 == e.1);
                    assert!(same && got.len() == expected.len(), "{from} {kind:?} {ask:?}");
                });
            }
        }
        drop((a, b));
        d.stop();
    }
}

/// cloud-hypervisor swaps the log each round and then reads the old one: when the answer is there,
/// nobody writes to the old one.
#[test]
fn the_log_is_swapped() {
    let (d, mut a, mut b) = pair();
    send(&mut b, &mut a, 1);
    let mut old = Log::for_guest(&b);
    log_on(&mut b, &old);
    for _ in 0..20 {
        check_marks(&mut a, &mut b, &old);
        let new = Log::for_guest(&b);
        new.attach(&mut b.fe);
        old.take();
        check_marks(&mut a, &mut b, &new);
        assert!(old.take().is_empty(), "the replaced log was written");
        old = new;
    }
    drop((a, b));
    d.stop();
}

/// Logging begins, goes to another log and ends while the memory of the rings is away: what they
/// write when it is back is marked in the log that is in force then, and nowhere else.
#[test]
fn rings_without_memory_follow_the_log() {
    let (d, mut a, mut b) = pair();
    let (first, second) = (Log::for_guest(&b), Log::for_guest(&b));
    send(&mut a, &mut b, 1);
    let (region, fd) = b.mem.table()[0];
    let take = |b: &mut Vm| b.fe.rem_mem_reg(&region).expect("removed");
    let give = |b: &mut Vm| b.fe.add_mem_reg(&region, fd).expect("added");
    take(&mut b);
    log_on(&mut b, &first);
    give(&mut b);
    check_marks(&mut a, &mut b, &first);
    take(&mut b);
    second.attach(&mut b.fe);
    // What the daemon asked to be kicked for before is marked there.
    first.take();
    give(&mut b);
    check_marks(&mut a, &mut b, &second);
    take(&mut b);
    let features = b.cfg.features | feat::PROTOCOL_FEATURES;
    b.fe.set_features(features).expect("features without LOG_ALL");
    second.take();
    give(&mut b);
    send(&mut a, &mut b, 10);
    assert!(first.take().is_empty() && second.take().is_empty(), "marked in a log of before");
    drop((a, b));
    d.stop();
}

/// A cancelled migration: SET_FEATURES without LOG_ALL, and logging stops.
#[test]
fn logging_stops() {
    let (d, mut a, mut b) = pair();
    send(&mut b, &mut a, 1);
    let log = Log::for_guest(&b);
    log_on(&mut b, &log);
    check_marks(&mut a, &mut b, &log);
    let features = b.cfg.features | feat::PROTOCOL_FEATURES;
    b.fe.set_features(features).expect("features");
    log.take();
    send(&mut a, &mut b, 50);
    assert!(log.take().is_empty(), "marked after logging was switched off");
    drop((a, b));
    d.stop();
}

/// A log too small for the guest's memory must not be written beyond its end.
#[test]
fn a_short_log_is_no_trap() {
    let (d, mut a, mut b) = pair();
    send(&mut b, &mut a, 1);
    let memory = GuestMem::new(&[RegionSpec::new(0, PAGE)]);
    let fd = memory.table()[0].1;
    // Refused or not, the daemon lives and traffic goes on.
    let _ = b.fe.set_log_base(8, 0, fd);
    let features = b.cfg.features | feat::PROTOCOL_FEATURES | feat::LOG_ALL;
    let _ = b.fe.set_features(features);
    let mut c = Vm::connect(&d.socket(0), {
        drop(a);
        VmConfig::new(0)
    });
    drop(b);
    let mut b = Vm::connect(&d.socket(1), VmConfig::new(1));
    send(&mut b, &mut c, 1);
    send(&mut c, &mut b, 20);
    let beyond = memory.span(8, PAGE - 8).read(0, (PAGE - 8) as usize);
    assert!(beyond.iter().all(|&v| v == 0), "written beyond the log's size");
    drop((b, c));
    d.stop();
}

/// After GET_VRING_BASE of all rings, and after a pause by ENABLE(0) alone, the guest's memory
/// stands still whatever the others send.
#[test]
fn stopped_memory_stands_still() {
    let (d, mut a, mut b) = pair();
    for pause in [false, true] {
        send(&mut b, &mut a, 1);
        send(&mut a, &mut b, 5);
        let frame = [&b.mac()[..], &a.mac(), &[0x88, 0xb5], &[6; 1500]].concat();
        for _ in 0..30 {
            assert!(a.tx[0].queue(&frame));
        }
        a.tx[0].ring.publish();
        if pause {
            (0..2).for_each(|i| b.fe.set_vring_enable(i, false).expect("paused"));
        } else {
            b.stop();
        }
        let before = b.guest.mem.snapshot();
        for _ in 0..30 {
            a.tx[0].send_waiting(&frame, SOON);
        }
        a.tx[0].drain(SOON);
        std::thread::sleep(Duration::from_millis(30));
        assert!(before == b.guest.mem.snapshot(), "memory changed, pause {pause}");
        if pause {
            (0..2).for_each(|i| b.fe.set_vring_enable(i, true).expect("resumed"));
        } else {
            b.start();
        }
        // What came before the stop is there and whole; the rest was dropped.
        while b.rx[0].recv(64, |_, f| assert_eq!(f, frame)) > 0 {}
        // No announcement is due, but its answer teaches the switch where it is again.
        send(&mut b, &mut a, 1);
        send(&mut a, &mut b, 5);
    }
    drop((a, b));
    d.stop();
}
