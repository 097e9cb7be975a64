//! What cannot serve as memory is refused (P8, P11): all of it and always.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::lab::{Lab, SOON, Stage, acked, at_stage, connect, shared_mappings, small};
use testkit::frontend::{Error, Frontend, Result, VringAddr, proto};
use testkit::mem::RegionSpec;
use testkit::proc::wait_for;
use testkit::sys::{self, EventFd};
use testkit::vm::Guest;
use testkit::{Rng, long};

const PAGE: u64 = 4096;

fn refused(what: &str, answer: Result<()>) {
    assert!(matches!(answer, Err(Error::Nack(_))), "{what}: {answer:?}");
}

/// Whatever is no memory, or no memory that may be written.
fn no_memory() -> Vec<(&'static str, OwnedFd)> {
    let (reader, writer) = std::io::pipe().expect("pipe");
    let (socket, _) = UnixStream::pair().expect("socket pair");
    let mut all: Vec<(&'static str, OwnedFd)> = vec![
        ("a pipe's reading end", reader.into()),
        ("a pipe's writing end", writer.into()),
        ("a socket", socket.into()),
        ("an eventfd", EventFd::new().into_fd()),
        ("a memfd that may not be written", sealed(libc::F_SEAL_WRITE)),
        ("a memfd that may not be written from now on", sealed(libc::F_SEAL_FUTURE_WRITE)),
        ("a memfd opened for reading", read_only()),
        ("a memfd opened as a path", as_path()),
    ];
    let disk = disk_file();
    match disk {
        Some(file) => all.push(("a file on a disk", file.into())),
        None => eprintln!("{}: a tmpfs, no disk to refuse", env!("CARGO_TARGET_TMPDIR")),
    }
    for path in ["/dev/zero", "/dev/null", "/proc/self/maps", "/proc/self/exe", "/tmp", "/dev/shm"]
    {
        if let Ok(file) = File::open(path) {
            all.push((path, file.into()));
        }
    }
    for path in ["/dev/zero", "/proc/self/mem", "/dev/fuse", "/dev/net/tun"] {
        if let Ok(file) = File::options().read(true).write(true).open(path) {
            all.push((path, file.into()));
        }
    }
    // SAFETY: the call touches no memory.
    let secret = unsafe { libc::syscall(libc::SYS_memfd_secret, 0) } as i32;
    if secret >= 0 {
        let secret = sys::made(secret);
        sys::truncate(&secret, 1 << 20);
        all.push(("secret memory", secret));
    }
    all
}

fn sealed(seals: i32) -> OwnedFd {
    // SAFETY: the name is a NUL-terminated literal.
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: as above.
    let file = sys::made(unsafe { libc::memfd_create(c"sealed".as_ptr(), flags) });
    sys::truncate(&file, 1 << 20);
    // SAFETY: the call touches no memory.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) };
    assert_eq!(done, 0, "seals {seals:#x}");
    file
}

fn read_only() -> OwnedFd {
    let file = sys::memfd(1 << 20);
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    File::open(path).expect("open again").into()
}

fn as_path() -> OwnedFd {
    use std::os::unix::fs::OpenOptionsExt;
    let file = sys::memfd(1 << 20);
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    File::options().read(true).custom_flags(libc::O_PATH).open(path).expect("open").into()
}

/// A writable file where the build goes, unless that is a tmpfs.
pub fn disk_file() -> Option<File> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let (pid, n) = (std::process::id(), NEXT.fetch_add(1, Relaxed));
    let path = format!("{}/hostile-{pid}-{n}", env!("CARGO_TARGET_TMPDIR"));
    let file = File::options().read(true).write(true).create_new(true).open(&path).expect("file");
    std::fs::remove_file(&path).expect("unlink");
    file.set_len(1 << 20).expect("length");
    (!sys::on_tmpfs(&file)).then_some(file)
}

/// A file that is on a disk, or like one: beside memory it is left out.
fn is_on_disk(fd: &OwnedFd) -> bool {
    // SAFETY: the call touches no memory.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    let none = seals < 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL);
    let file = File::from(fd.try_clone().expect("copy"));
    none && file.metadata().expect("metadata").is_file()
}

/// P8: 100 % are refused, as a region of a table, as a slot, and as a dirty log. Beside memory that
/// is good a file on a disk is not mapped, and all else is refused as a whole.
#[test]
fn p8_files_that_are_no_memory() {
    let lab = Lab::new(1);
    let region = RegionSpec { gpa: 0, len: PAGE, uva: 0, offset: 0 };
    let good = sys::memfd(1 << 20);
    let mut left_out = 0;
    let idle = lab.d.settled_usage().fds;
    for (what, fd) in no_memory() {
        let mut fe = acked(&lab.d, lab.evil);
        refused(what, fe.add_mem_reg(&region, fd.as_raw_fd()));
        refused(what, fe.set_mem_table(&[(region, fd.as_raw_fd())]));
        let second = RegionSpec { gpa: 1 << 30, uva: 1 << 40, ..region };
        let table = [(second, good.as_raw_fd()), (region, fd.as_raw_fd())];
        if is_on_disk(&fd) {
            fe.set_mem_table(&table).expect(what);
            fe.add_mem_reg(&RegionSpec { gpa: PAGE, ..region }, fd.as_raw_fd()).expect(what);
            assert_eq!(shared_mappings(&lab.d), 1, "{what}: mapped");
            left_out += 1;
        } else {
            // All or nothing.
            refused(what, fe.set_mem_table(&table));
            assert_eq!(shared_mappings(&lab.d), 0, "{what}: mapped");
        }
        assert!(fe.set_log_base(PAGE, 0, fd.as_raw_fd()).is_err(), "{what} as a log");
        drop(fe);
        // A port with too many files that wait to be closed serves no front-end.
        assert!(wait_for(SOON, || lab.d.usage().fds <= idle), "{what} is not closed");
    }
    assert!((1..6).contains(&left_out), "{left_out} kinds of files are left out");
    lab.finish();
}

/// Numbers near which sums wrap.
fn edges(len: u64) -> [u64; 8] {
    let end = u64::MAX;
    [end, end - 1, end - PAGE + 2, end - len + 2, 1 << 63, (1 << 63) + 1, i64::MAX as u64, end - 15]
}

/// P11: sums that wrap, or that no file can hold, in each field of a region, alone and together.
#[test]
fn p11_regions_that_wrap() {
    let lab = Lab::new(1);
    let fd = sys::memfd(1 << 20);
    let len = 2 * PAGE;
    let mut fe = acked(&lab.d, lab.evil);
    let good = RegionSpec { gpa: 0, len, uva: 1 << 40, offset: 0 };
    let (mut count, fields) = (0, 4);
    for first in 0..fields {
        for second in 0..fields {
            for a in edges(len) {
                for b in edges(len) {
                    let mut region = good;
                    for (field, value) in [(first, a), (second, b)] {
                        match field {
                            0 => region.gpa = value,
                            1 => region.uva = value,
                            2 => region.offset = value,
                            _ => region.len = value,
                        }
                    }
                    let wraps = |at: u64| at.checked_add(region.len).is_none();
                    let no_file = region.offset.saturating_add(region.len) > 1 << 20;
                    if !(no_file || wraps(region.gpa) || wraps(region.uva)) {
                        continue;
                    }
                    count += 1;
                    refused(&format!("{region:x?}"), fe.add_mem_reg(&region, fd.as_raw_fd()));
                    let table = [(region, fd.as_raw_fd())];
                    refused(&format!("{region:x?}"), fe.set_mem_table(&table));
                    // Removing what is not there is no error, and does nothing.
                    fe.rem_mem_reg(&region).expect("nothing to remove");
                }
            }
        }
    }
    assert!(count > 500, "{count}");
    // The ends of the address space that do not wrap are good.
    let high = RegionSpec { gpa: u64::MAX - len, uva: u64::MAX - len, ..good };
    fe.add_mem_reg(&high, fd.as_raw_fd()).expect("the highest region");
    drop(fe);
    lab.finish();
}

/// P11: ring addresses that wrap, end behind their region, or lie nowhere, on rings that are being
/// set up and on running ones. None starts; the running ones stay as they are.
#[test]
fn p11_ring_addresses_that_wrap() {
    let lab = Lab::new(1);
    let guest = Guest::new(small(1));
    let region = guest.cfg.regions[0];
    let (start, end) = (region.uva, region.uva + region.len);
    let bad = [
        0,
        1,
        u64::MAX,
        u64::MAX - 15,
        u64::MAX - 4095,
        1 << 63,
        end,
        end - 1,
        end - 4,
        start - 1,
        start - 16,
        start + 8,
        end - 128,
    ];
    for stage in [Stage::Configured, Stage::Running] {
        let mut fe = at_stage(&lab.d, lab.evil, &guest, stage);
        for ring in guest.rings() {
            let good = ring.addr(&guest.mem, 0);
            // 16, 6 and 8 bytes apart at least, so that all of it is inside or some is not.
            for value in bad {
                for part in 0..3 {
                    let mut addr = good;
                    match part {
                        0 => addr.desc = value,
                        1 => addr.avail = value | 1,
                        _ => addr.used = value,
                    }
                    fe.set_vring_addr(&addr).expect("sent");
                    let log = VringAddr { flags: 1, log: value, ..good };
                    fe.set_vring_addr(&log).expect("sent");
                }
            }
            fe.set_vring_addr(&VringAddr { flags: 6, ..good }).expect("sent");
            fe.set_vring_addr(&good).expect("sent");
            ring.kick.write(1);
        }
        assert!(fe.still_served(), "{stage:?}");
        assert!(fe.leave(SOON));
    }
    lab.finish();
}

fn with_log(lab: &Lab, guest: &Guest) -> Frontend {
    let mut fe = connect(&lab.d, lab.evil);
    fe.set_protocol_features(proto::LOG_SHMFD | proto::CONFIGURE_MEM_SLOTS).expect("features");
    guest.share_memory(&mut fe).expect("memory");
    fe
}

/// A dirty log of a size, at an offset and in a file that cannot be: there is no way to say no, so
/// the connection ends. A good one is answered, a thousand times over, and only the last is kept.
#[test]
fn dirty_logs_that_cannot_be() {
    let lab = Lab::new(1);
    let guest = Guest::new(small(1));
    let fd = sys::memfd(1 << 20);
    let sizes = [0, 1 << 21, (1 << 20) + 1, 1 << 27, 1 << 40, 1 << 63, u64::MAX, u64::MAX - 4095];
    let offsets = [0, 1, PAGE, 1 << 20, 1 << 63, u64::MAX, u64::MAX - PAGE + 1];
    for size in sizes {
        for offset in offsets {
            let mut fe = with_log(&lab, &guest);
            let answer = fe.set_log_base(size, offset, fd.as_raw_fd());
            assert!(matches!(answer, Err(Error::Closed)), "{size:#x} {offset:#x}: {answer:?}");
        }
    }
    for offset in [1 << 20, u64::MAX - 8, u64::MAX] {
        let mut fe = with_log(&lab, &guest);
        assert!(fe.set_log_base(16, offset, fd.as_raw_fd()).is_err(), "{offset:#x}");
    }
    let mut fe = with_log(&lab, &guest);
    let mut rng = Rng::new(3);
    for _ in 0..if long() { 10_000 } else { 500 } {
        let (size, offset) = (1 + rng.below(1 << 19), rng.below(1 << 19));
        fe.set_log_base(size, offset, fd.as_raw_fd()).expect("a good log");
    }
    let shared = super::lab::shared_mappings(&lab.d);
    assert_eq!(shared, guest.cfg.regions.len() + 1, "memory and one log");
    drop(fe);
    lab.finish();
}

/// Two slots of the same bytes are allowed. The same guest addresses twice are not
/// to be had; 509 slots are, one more is not, and adding and removing them leaves nothing.
#[test]
fn slots_come_and_go() {
    let lab = Lab::new(1);
    let fd: OwnedFd = sys::memfd(1 << 20);
    let number: RawFd = fd.as_raw_fd();
    let mut fe = acked(&lab.d, lab.evil);
    let slots = fe.get_max_mem_slots().expect("slots");
    assert_eq!(slots, 509);
    let region = |i: u64| RegionSpec {
        gpa: i << 20,
        len: PAGE * (1 + i % 3),
        uva: (1 << 40) + (i << 20),
        offset: PAGE * (i % 16),
    };
    for i in 0..slots {
        fe.add_mem_reg(&region(i), number).expect("a slot");
    }
    assert_eq!(super::lab::shared_mappings(&lab.d), 509);
    refused("slot 510", fe.add_mem_reg(&region(slots), number));
    for i in [0, 1, 508] {
        fe.add_mem_reg(&region(i), number).expect("there already");
        refused("overlap", fe.add_mem_reg(&RegionSpec { uva: 0, ..region(i) }, number));
        let inside = RegionSpec { gpa: region(i).gpa + PAGE - 1, len: 1, ..region(i) };
        fe.rem_mem_reg(&inside).expect("none of that kind");
    }
    let fds = lab.d.usage().fds;
    assert!(fds < 100, "{fds} descriptors for 509 slots: the others need some");
    // One slot at a time, and all of them at once.
    let rounds = if long() { 1000 } else { 6 };
    for round in 0..rounds {
        for i in 0..slots {
            fe.rem_mem_reg(&region(i)).expect("removed");
            if round % 2 == 0 {
                fe.add_mem_reg(&region(i), number).expect("a slot");
            }
        }
        let left = if round % 2 == 0 { 509 } else { 0 };
        assert_eq!(super::lab::shared_mappings(&lab.d), left, "round {round}");
        if round % 2 == 1 {
            for i in 0..slots {
                fe.add_mem_reg(&region(i), number).expect("a slot");
            }
        }
    }
    drop(fe);
    lab.finish();
}
