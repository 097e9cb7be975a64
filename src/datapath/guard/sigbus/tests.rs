//! Guest memory that vanishes under a reader, and the pages that replace it.

use super::*;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use sys::fs::vm_flags;
use sys::testns::skip;

const LEN: usize = 1 << 20;
const PATTERN: u8 = 0xa5;

/// A memfd mapped and guarded as `memory` does.
struct Mapped {
    guard: Option<Guard>,
    at: *mut u8,
    flag: Arc<AtomicBool>,
    file: File,
}

// SAFETY: the pointer is only used for volatile accesses inside the mapping.
unsafe impl Sync for Mapped {}

impl Mapped {
    fn new(file: OwnedFd, guarded: bool) -> Mapped {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let flags = flags | libc::MAP_NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let at = unsafe { libc::mmap(ptr::null_mut(), LEN, prot, flags, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED, "{}", io::Error::last_os_error());
        let flag = Arc::new(AtomicBool::new(false));
        let guard = guarded.then(|| guard(at as usize, LEN, Arc::clone(&flag)).unwrap());
        Mapped { guard, at: at.cast(), flag, file: File::from(file) }
    }

    fn memfd() -> Mapped {
        Mapped::new(memfd("sigbus", LEN as u64).unwrap(), true)
    }

    fn read(&self, offset: usize) -> u8 {
        assert!(offset < LEN);
        // SAFETY: inside the mapping.
        unsafe { self.at.add(offset).read_volatile() }
    }

    fn write(&self, offset: usize, byte: u8) {
        assert!(offset < LEN);
        // SAFETY: inside the mapping.
        unsafe { self.at.add(offset).write_volatile(byte) }
    }

    fn hit(&self) -> bool {
        self.flag.load(Ordering::Acquire)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        self.guard = None;
        // SAFETY: the mapping is ours and no reference into it exists.
        unsafe { libc::munmap(self.at.cast(), LEN) };
    }
}

#[test]
fn a_thousand_truncations_under_access_and_the_neighbour_sees_none() {
    let neighbour = Mapped::memfd();
    (0..LEN).step_by(4096).for_each(|at| neighbour.write(at, PATTERN));
    for round in 0..1000usize {
        let victim = Mapped::memfd();
        std::thread::scope(|scope| {
            for thread in 0..3usize {
                let victim = &victim;
                scope.spawn(move || {
                    for step in 0..64 {
                        let at = (step * 4099 * 4 + thread * 64) % LEN;
                        if (step + thread) % 2 == 0 {
                            victim.write(at, 1);
                        } else {
                            victim.read(at);
                        }
                    }
                });
            }
            victim.file.set_len((round % 3) as u64 * 4096).unwrap();
        });
        victim.read(LEN - 1);
        assert!(victim.hit());
    }
    assert!((0..LEN).step_by(4096).all(|at| neighbour.read(at) == PATTERN));
    assert!(!neighbour.hit());
}

#[test]
fn the_whole_range_becomes_zeros() {
    let victim = Mapped::memfd();
    victim.write(0, PATTERN);
    victim.file.set_len(4096).unwrap();
    // SAFETY: errno is this thread's own.
    unsafe { *libc::__errno_location() = 77 };
    victim.write(LEN - 1, 9);
    // SAFETY: errno is this thread's own.
    let errno = unsafe { *libc::__errno_location() };
    assert_eq!(errno, 77, "errno was not preserved");
    assert!(victim.hit());
    assert_eq!(victim.read(LEN - 1), 9, "the access was not retried");
    assert_eq!(victim.read(0), 0, "the page that is left is still shared");
    assert!(vm_flags(victim.at as usize).contains(&"dd".to_owned()), "part of a core dump");
}

#[test]
fn what_is_written_to_pages_that_vanished_is_nobody_elses() {
    for _ in 0..3 {
        let [one, two] = [Mapped::memfd(), Mapped::memfd()];
        for victim in [&one, &two] {
            victim.file.set_len(0).unwrap();
            assert!((0..LEN).step_by(4096).all(|at| victim.read(at) == 0));
        }
        (0..LEN).step_by(4096).for_each(|at| one.write(at, PATTERN));
        assert!((0..LEN).step_by(4096).all(|at| two.read(at) == 0));
    }
}

#[test]
fn slots_are_reused_while_others_fault() {
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    drop(Mapped::memfd());
                }
            });
        }
        for _ in 0..500 {
            let victim = Mapped::memfd();
            victim.file.set_len(0).unwrap();
            assert_eq!(victim.read(5), 0);
            assert!(victim.hit());
        }
    });
    // Other tests hold some slots as well; without reuse there would be thousands.
    assert!(HIGH_WATER.load(Ordering::Relaxed) < 300);
}

#[test]
fn ranges_that_cannot_be_replaced_are_refused() {
    let flag = || Arc::new(AtomicBool::new(false));
    for (addr, len) in [(0, 4096), (4096, 0), (4097, 4096), (4096, 100), (!0xfff, 8192)] {
        let refused = guard(addr, len, flag());
        assert!(matches!(refused, Err(GuardError::BadRange)), "{addr:#x} {len}");
    }
}

#[test]
fn huge_pages_are_replaced_whole() {
    // Needs no reserved huge page: without one the first access raises SIGBUS.
    let len = 4usize << 20;
    // SAFETY: the name is a C string; the result is owned by nobody else.
    let file = unsafe {
        let flags = libc::MFD_CLOEXEC | libc::MFD_HUGETLB | libc::MFD_HUGE_2MB;
        let fd = libc::memfd_create(c"huge".as_ptr(), flags);
        if fd < 0 {
            return skip("no 2 MiB huge pages in this kernel");
        }
        File::from_raw_fd(fd)
    };
    file.set_len(len as u64).unwrap();
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    let fd = file.as_raw_fd();
    // SAFETY: a fresh mapping; unmapped below after its guard is gone.
    unsafe {
        let at = libc::mmap(ptr::null_mut(), len, prot, flags | libc::MAP_NORESERVE, fd, 0);
        assert_ne!(at, libc::MAP_FAILED, "{}", io::Error::last_os_error());
        file.set_len(0).unwrap();
        let flag = Arc::new(AtomicBool::new(false));
        let guard = guard(at as usize, len, Arc::clone(&flag)).unwrap();
        at.cast::<u8>().add(3 << 20).write_volatile(1);
        at.cast::<u8>().write_volatile(2);
        assert_eq!(at.cast::<u8>().add(3 << 20).read_volatile(), 1);
        assert!(flag.load(Ordering::Acquire));
        drop(guard);
        libc::munmap(at, len);
    }
}

/// `RLIMIT_DATA` refuses private memory as a reached commit limit does (strict overcommit, which
/// would affect the whole machine).
#[test]
fn p22_no_private_memory_is_needed() {
    let victim = Mapped::memfd();
    victim.file.set_len(0).unwrap();
    let died = death_of(|| {
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the child's own limit.
        unsafe { libc::setrlimit(libc::RLIMIT_DATA, &none) };
        victim.write(LEN - 1, PATTERN);
        assert_eq!(victim.read(LEN - 1), PATTERN);
    });
    assert_eq!(died, 0);
}

/// A file that ends where the pages for the ranges begin: the kernel can allocate none of these
/// pages, as when memory is exhausted.
#[test]
fn p22_the_spare_page_serves_where_no_other_can_be_had() {
    let victim = Mapped::memfd();
    let number = victim.guard.as_ref().unwrap().number;
    let (spare, _) = places(number);
    let full = memfd("full", spare + page_size()).unwrap();
    victim.file.set_len(0).unwrap();
    let died = death_of(|| {
        COVER.store(full.as_raw_fd(), Ordering::Relaxed);
        for at in (0..LEN).step_by(4096).chain([1, LEN - 1]) {
            victim.write(at, PATTERN);
            assert_eq!(victim.read(at), PATTERN);
        }
    });
    assert_eq!(died, 0);
}

/// Returns the signal that ends a child which runs `work`. The child shares the descriptor table: a
/// copy of the table would keep open the files that other tests close meanwhile.
fn death_of(work: impl FnOnce()) -> i32 {
    install().unwrap();
    let mut status = 0;
    // SAFETY: without CLONE_VM this is a fork; the child makes system calls only and accesses
    // memory that is mapped in the child too; the parent waits for exactly this child.
    unsafe {
        let flags = libc::CLONE_FILES | libc::SIGCHLD;
        let child = libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) as libc::pid_t;
        assert!(child >= 0);
        if child == 0 {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_CORE, &none);
            work();
            libc::_exit(0);
        }
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
    }
    if libc::WIFSIGNALED(status) { libc::WTERMSIG(status) } else { 0 }
}

#[test]
fn a_fault_elsewhere_is_as_deadly_as_ever() {
    let guarded = Mapped::memfd();
    let unguarded = Mapped::new(memfd("sigbus", LEN as u64).unwrap(), false);
    guarded.file.set_len(0).unwrap();
    unguarded.file.set_len(0).unwrap();
    assert_eq!(
        death_of(|| {
            guarded.read(0);
        }),
        0,
        "guarded, in the child too"
    );
    assert_eq!(
        death_of(|| {
            unguarded.read(0);
        }),
        libc::SIGBUS
    );
    assert_eq!(
        death_of(|| {
            // SAFETY: touches no memory. Not `raise`, which may use the parent's thread id.
            unsafe { libc::kill(libc::getpid(), libc::SIGBUS) };
        }),
        libc::SIGBUS
    );
}

#[test]
fn an_address_that_was_guarded_once_is_not_any_more() {
    let mut mapped = Mapped::memfd();
    mapped.guard = None;
    mapped.file.set_len(0).unwrap();
    assert_eq!(
        death_of(|| {
            mapped.read(0);
        }),
        libc::SIGBUS
    );
    assert!(!mapped.hit());
}
