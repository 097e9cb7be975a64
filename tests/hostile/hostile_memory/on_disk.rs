//! A region in a file on a disk: left out, as persistent memory (`-device nvdimm`) has one, beside
//! other memory, refused alone.

use std::os::fd::{AsRawFd, RawFd};

use super::lab::{SOON, acked, shared_mappings, small};
use super::regions::disk_file;
use testkit::frontend::{Acks, Frontend};
use testkit::hostile::{one_buffer, refill, restart_with};
use testkit::mem::RegionSpec;
use testkit::proc::{Daemon, wait_for};
use testkit::ring::Seg;
use testkit::vm::Vm;

/// Where persistent memory is, behind all else.
const HOLE: RegionSpec = RegionSpec { gpa: 8 << 30, len: 1 << 20, uva: 1 << 45, offset: 0 };

/// Lines of the log in which all of `words` stand.
fn lines(d: &Daemon, words: &[&str]) -> usize {
    let has_all = |line: &&str| words.iter().all(|word| line.contains(word));
    d.log().lines().filter(has_all).count()
}

fn talk(a: &mut Vm, b: &mut Vm) {
    let frame = [&b.mac()[..], &a.mac(), &[0x88, 0xb5], &[3; 46]].concat();
    assert!(a.tx[0].send(&frame));
    let got = b.rx[0].take(1, SOON);
    assert!(got.len() == 1 && got[0].1 == frame, "{got:02x?}");
    a.tx[0].drain(SOON);
}

/// Gives the guest the region in one of the two ways.
fn give(vm: &mut Vm, table: bool, disk: RawFd) {
    let Vm { fe, guest } = vm;
    if table {
        let mut regions = guest.mem.table();
        // In front of the memory, behind it, and in between.
        regions.insert(1, (HOLE, disk));
        fe.set_mem_table(&regions).expect("a table with a hole");
    } else {
        fe.add_mem_reg(&HOLE, disk).expect("a region that is left out");
    }
}

/// The log says so once, nothing of the region is mapped or kept open, and frames in it are
/// counted.
#[test]
fn a_region_on_a_disk_is_a_hole() {
    let Some(disk) = disk_file() else { return testkit::skip("there is no disk") };
    for table in [false, true] {
        let d = Daemon::with(2, &[]);
        let [mut a, mut b] = [0, 1].map(|id| Vm::connect(&d.socket(id.into()), small(id)));
        a.fe.acks = Acks::Always;
        talk(&mut b, &mut a);
        let (usage, mapped) = (d.settled_usage(), shared_mappings(&d));
        // QEMU 7.2 says it once for each queue pair.
        for _ in 0..3 {
            give(&mut a, table, disk.as_raw_fd());
            talk(&mut a, &mut b);
            talk(&mut b, &mut a);
        }
        assert_eq!(shared_mappings(&d), mapped);
        assert!(wait_for(SOON, || d.usage().fds == usage.fds), "{:?}: {usage:?}", d.usage());
        let said = lines(&d, &["WARN", "port p0", "1 MiB", "0x200000000", "left out"]);
        assert_eq!(said, 1, "{}", d.log());

        // What the guest sends from there, or wants to receive there, is a counted drop.
        restart_with(&mut a, 1, |ring| one_buffer(ring, Seg { gpa: HOLE.gpa, len: 100 }, 0));
        refill(&a.tx[0].ring);
        let dropped = || d.counters().sum(Some("p0"), "in", "drop.bad_address");
        assert!(wait_for(SOON, || dropped() == 16), "{} of 16 dropped", dropped());

        a.fe.rem_mem_reg(&HOLE).expect("removed");
        a.fe.get_features().expect("still connected");
        d.counters().balance();
        drop((a, b));
        d.stop();
    }
}

#[test]
fn memory_on_disks_alone_is_refused_with_advice() {
    let Some(disk) = disk_file() else { return testkit::skip("there is no disk") };
    let d = Daemon::with(1, &[]);
    let refused = |what: &str, request: &dyn Fn(&mut Frontend) -> bool| {
        assert!(!request(&mut acked(&d, 0)), "{what} was acknowledged");
    };
    let fd = disk.as_raw_fd();
    let more = RegionSpec { gpa: 9 << 30, uva: 1 << 46, ..HOLE };
    refused("a region", &|fe| fe.add_mem_reg(&HOLE, fd).is_ok());
    refused("a table", &|fe| fe.set_mem_table(&[(HOLE, fd)]).is_ok());
    refused("a table of two", &|fe| fe.set_mem_table(&[(HOLE, fd), (more, fd)]).is_ok());
    let advice = ["memory-backend-memfd", "<source type='memfd'/>"];
    assert!(lines(&d, &advice) >= 1, "{}", d.log());
    drop(Vm::connect(&d.socket(0), small(0)));
    d.stop();
}
