//! Memory on the daemon's bill (P18): allocated when it is touched.

use std::os::fd::{AsRawFd, OwnedFd};

use super::lab::{SOON, acked};
use testkit::frontend::{Error, Frontend};
use testkit::mem::RegionSpec;
use testkit::net::{Job, Net, Sizes};
use testkit::proc::Daemon;
use testkit::sys;
use testkit::traffic::To;

const MIB: u64 = 1 << 20;

/// A file of 4 MiB, of which the first `touched` bytes have pages.
fn file(touched: u64) -> OwnedFd {
    let fd = sys::memfd(4 * MIB);
    let at = sys::map_shared(&fd, 0, 4 * MIB);
    for page in (0..touched).step_by(4096) {
        // SAFETY: inside the mapping, which nobody else has.
        unsafe { at.add(page as usize).write_volatile(1) };
    }
    // SAFETY: nothing points there any more.
    unsafe { sys::unmap(at, 4 * MIB) };
    fd
}

fn allocated() -> OwnedFd {
    let fd = sys::memfd(4 * MIB);
    // SAFETY: touches no memory.
    let done = unsafe { libc::fallocate(fd.as_raw_fd(), 0, 0, 4 << 20) };
    assert_eq!(done, 0);
    fd
}

fn huge() -> Option<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_HUGETLB | libc::MFD_HUGE_2MB;
    // SAFETY: the name is a NUL-terminated literal.
    let fd = unsafe { libc::memfd_create(c"huge".as_ptr(), flags) };
    let fd = (fd >= 0).then(|| sys::made(fd))?;
    sys::truncate(&fd, 4 * MIB);
    Some(fd)
}

fn is_taken(fe: &mut Frontend, fd: &OwnedFd, offset: u64, len: u64) -> bool {
    let region = RegionSpec { gpa: 0, len, uva: 1 << 40, offset };
    let added = fe.add_mem_reg(&region, fd.as_raw_fd());
    let taken = added.is_ok();
    assert!(taken || matches!(added, Err(Error::Nack(_))), "{added:?}");
    if taken {
        fe.rem_mem_reg(&region).expect("removed");
    }
    assert_eq!(fe.set_mem_table(&[(region, fd.as_raw_fd())]).is_ok(), taken, "as a table");
    fe.set_mem_table(&[]).expect("an empty table");
    taken
}

/// With `memory=prealloc`: memory with holes, on tmpfs by its range and on hugetlbfs by its file.
#[test]
fn p18_memory_that_is_not_there_is_refused_where_that_is_asked_for() {
    let d = Daemon::with_ports(&[",memory=prealloc", ""], &[]);
    let mut cases = vec![
        ("nothing", file(0), 0, 4 * MIB, false),
        ("a last page", file(4 * MIB - 4096), 0, 4 * MIB, false),
        ("a last byte beyond", file(2 * MIB), 0, 2 * MIB + 1, false),
        ("the half that is there", file(2 * MIB), 0, 2 * MIB, true),
        ("the half that is not", file(2 * MIB), 2 * MIB, 2 * MIB, false),
        ("all", file(4 * MIB), 4096, 3 * MIB, true),
        ("allocated, not touched", allocated(), 0, 4 * MIB, true),
    ];
    cases.extend(huge().map(|fd| ("huge pages", fd, 0, 2 * MIB, false)));
    let (mut asks, mut other) = (acked(&d, 0), acked(&d, 1));
    for (what, fd, offset, len, there) in cases {
        assert_eq!(is_taken(&mut asks, &fd, offset, len), there, "{what}");
        assert!(is_taken(&mut other, &fd, offset, len), "{what}, where it does not matter");
    }
    assert!(d.log().contains("not all of its pages are there"), "{}", d.log());
    assert!(asks.leave(SOON) && other.leave(SOON));
    d.stop();
}

/// What frames make of a guest's memory is seen in the report.
#[test]
fn p18_what_guests_memory_costs_is_reported() {
    let d = Daemon::with(2, &[]);
    let idle = reported(&d);
    let mut net = Net::connect(&d, 2, |c| c);
    net.run(&[Job::new(0, To::Vm(1), 100, Sizes::Range(60, 1514))]);
    let busy = reported(&d);
    assert!(busy >= idle + 100, "{busy} KiB, {idle} KiB before");
    net.finish();
    drop(net);
    d.stop();
}

/// KiB of guests' memory that are resident in the daemon.
fn reported(d: &Daemon) -> u64 {
    let (_, from) = d.log_after(0);
    d.report();
    let (log, _) = d.log_after(from);
    let value = log.split("memory of guests: shared_kib ").nth(1).expect("a line");
    value.split(' ').next().and_then(|number| number.parse().ok()).expect("a number")
}
