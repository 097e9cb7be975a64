//! Ports that map all they can get (P7, P19): a victim still maps, and the daemon has what it
//! needs.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use super::lab::{SOON, acked, connect, shared_mappings, small};
use testkit::frontend::{Error, Frontend, VERSION, message, region_body, req};
use testkit::mem::RegionSpec;
use testkit::proc::Daemon;
use testkit::sys;
use testkit::vm::Vm;
use testkit::{long, skip};

const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

fn comes_up(d: &Daemon, port: usize) -> Vm {
    let mut vm = Vm::connect(&d.socket(port), small(1));
    vm.settle();
    assert!(vm.guest.no_errors());
    // Rings that found their memory have started, so that they can be stopped at their base.
    vm.stop();
    vm.start();
    vm
}

/// A sparse region of 64 TiB is not mapped, and not even for a moment: two of those at a time would
/// leave the process without addresses, for its own heap too.
#[test]
fn p7_64_tib_are_not_mapped_even_for_a_moment() {
    let d = Daemon::with(4, &[]);
    let before = peak_kib(&d);
    let fd: OwnedFd = sys::memfd(i64::MAX as u64 & !4095);
    let huge = RegionSpec { gpa: 0, len: 64 * TIB, uva: 1 << 20, offset: 0 };
    for len in [TIB + 4096, 2 * TIB, 64 * TIB, 127 * TIB, 1 << 62] {
        let mut fe = acked(&d, 0);
        let region = RegionSpec { len, ..huge };
        let answer = fe.add_mem_reg(&region, fd.as_raw_fd());
        assert!(matches!(answer, Err(Error::Nack(_))), "{len:#x}: {answer:?}");
    }
    let part = |i: u64| RegionSpec { gpa: i * TIB, len: TIB / 2, uva: i * TIB, offset: 0 };
    let mut fe = acked(&d, 0);
    let table: Vec<_> = (1..=3).map(|i| (part(i), fd.as_raw_fd())).collect();
    assert!(matches!(fe.set_mem_table(&table), Err(Error::Nack(_))), "1.5 TiB in three");
    fe.set_mem_table(&table[..2]).expect("1 TiB in two");
    drop(fe);
    // Three ports ask for it again and again.
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        for port in 0..3 {
            let (d, fd, stop) = (&d, &fd, &stop);
            s.spawn(move || ask_again_and_again(d, port, fd, &huge, stop));
        }
        for _ in 0..if long() { 500 } else { 20 } {
            assert!(comes_up(&d, 3).fe.leave(SOON));
        }
        stop.store(true, Ordering::Relaxed);
    });
    let grown = peak_kib(&d) - before;
    assert!(grown < 2 << 30, "{grown} KiB of addresses were taken for a moment");
    d.stop();
}

fn ask_again_and_again(
    d: &Daemon,
    port: usize,
    fd: &OwnedFd,
    huge: &RegionSpec,
    stop: &AtomicBool,
) {
    let mut body = vec![1, 0, 0, 0, 0, 0, 0, 0];
    body.extend(region_body(huge));
    let bytes = message(req::SET_MEM_TABLE, VERSION, &body);
    while !stop.load(Ordering::Relaxed) {
        let mut fe = connect(d, port);
        for _ in 0..50 {
            fe.send_raw(&bytes, &[fd.as_raw_fd()]).expect("sent");
        }
        assert!(fe.leave(SOON));
    }
}

/// The most address space the daemon ever had, in KiB.
fn peak_kib(d: &Daemon) -> u64 {
    kib(d, "VmPeak:")
}

/// A line of the daemon's status, in KiB.
fn kib(d: &Daemon, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", d.pid())).expect("status");
    let line = status.lines().find(|line| line.starts_with(name)).expect(name);
    line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number")
}

/// Maps all that a port can get: 1 TiB in as many slots as there are.
fn glutton(d: &Daemon, port: usize, fd: &OwnedFd, slots: u64) -> (Frontend, u64) {
    let mut fe = acked(d, port);
    let len = TIB / slots / 4096 * 4096;
    // Apart in the file, so that no two of them become one mapping.
    let region = |i: u64| RegionSpec { gpa: i * len, len, uva: i * len, offset: 8192 * (i % 7) };
    let got = (0..slots).take_while(|&i| fe.add_mem_reg(&region(i), fd.as_raw_fd()).is_ok());
    let got = got.count() as u64;
    (fe, got)
}

/// A hundred ports, each with 1 TiB in 509 slots: all of that is theirs by the rules, and a victim
/// still maps, forwards, and replaces its memory.
#[test]
fn p7_a_hundred_ports_map_all_they_can() {
    let ports = 100;
    let d = Daemon::with(ports + 1, &[]);
    let fd = sys::memfd(2 * TIB);
    let slots = if long() { 509 } else { 200 };
    let mut all = Vec::new();
    for port in 0..ports {
        let (fe, got) = glutton(&d, port, &fd, slots);
        assert_eq!(got, slots, "port {port}: a large guest is refused its memory");
        all.push(fe);
    }
    assert!(shared_mappings(&d) as u64 >= ports as u64 * slots * 9 / 10);
    let mut vm = comes_up(&d, ports);
    vm.guest.share_memory(&mut vm.fe).expect("the same again");
    assert!(vm.fe.leave(SOON));
    drop(all);
    assert!(comes_up(&d, 0).fe.leave(SOON), "the place of one that left");
    d.stop();
}

/// More hostile ports than the process has mappings and addresses for: what is left for a victim is
/// its guaranteed part. 140 ports of 509 regions each.
#[test]
#[ignore = "full"]
fn p7_more_ports_than_there_is_memory_for() {
    let ports = 140;
    let d = Daemon::with(ports + 2, &[]);
    let fd = sys::memfd(2 * TIB);
    let mut all = Vec::new();
    let (slots, mut full, mut cut) = (509, 0, 0);
    for port in 0..ports {
        let (fe, got) = glutton(&d, port, &fd, slots);
        if got == slots {
            full += 1
        } else {
            cut += 1
        }
        all.push(fe);
    }
    println!("{full} had all they asked for, {cut} less");
    assert!(full >= 100 && cut > 0, "{full} {cut}");
    for victim in [ports, ports + 1] {
        let vm = comes_up(&d, victim);
        assert!(vm.fe.leave(SOON));
    }
    drop(all);
    d.stop();
}

/// Regions of two bytes over the borders of 1 GiB pages: each is mapped as two whole ones. What
/// counts is what is mapped. 130 ports of 509 regions: no more than 112 TiB are mapped; 121 were
/// before that counted.
#[test]
#[ignore = "full"]
fn p19_what_huge_pages_round_up_to_counts() {
    let Some(fd) = gigantic_pages(2 * 509 * GIB) else {
        return skip("no pages of 1 GiB in this kernel");
    };
    let ports = 130;
    let d = Daemon::with(ports + 1, &[]);
    let mut all = Vec::new();
    for port in 0..ports {
        let mut fe = acked(&d, port);
        let over =
            |i: u64| RegionSpec { gpa: 2 * i, len: 2, uva: 2 * i, offset: (2 * i + 1) * GIB - 1 };
        let got = (0..509).take_while(|&i| fe.add_mem_reg(&over(i), fd.as_raw_fd()).is_ok());
        println!("port {port}: {} regions", got.count());
        all.push(fe);
    }
    let mapped = kib(&d, "VmSize:") << 10;
    assert!(mapped <= 112 * TIB + 4 * GIB, "{} GiB", mapped / GIB);
    assert!(comes_up(&d, ports).fe.leave(SOON));
    drop(all);
    d.stop();
}

/// A file on hugetlbfs with pages of 1 GiB, of which none need exist.
fn gigantic_pages(len: u64) -> Option<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_HUGETLB | libc::MFD_HUGE_1GB;
    // SAFETY: the name is a NUL-terminated literal.
    let fd = unsafe { libc::memfd_create(c"gigantic".as_ptr(), flags) };
    let fd = (fd >= 0).then(|| sys::made(fd))?;
    sys::truncate(&fd, len);
    Some(fd)
}
