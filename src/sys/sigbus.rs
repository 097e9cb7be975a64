//! Surviving a front-end that shortens the memory file it shared.
//!
//! A front-end may `ftruncate` its memfd after we mapped it. Touching a page beyond the new end
//! raises SIGBUS, which would end the process and with it every other port. So each mapping of
//! foreign memory is *guarded*: registered with a flag. On SIGBUS inside a guarded range the
//! handler sets the flag, maps anonymous zero pages over the whole range and returns; the access
//! is retried and succeeds. The port is broken by then, and the flag tells its session so. A
//! SIGBUS anywhere else restores the default action and dies as it would have done without us.
//!
//! Memory failure (BUS_MCEERR_AR) inside a guest's range and an exhausted hugetlb pool arrive as
//! the same signal and end at their port in the same way. System calls that meet such a page do
//! not raise a signal, they fail with EFAULT: that is their caller's to handle.
//!
//! Rules:
//! - The handler takes no lock and allocates nothing: it may interrupt any code, the registration
//!   of another mapping included. The registry grows by segments that are published once and
//!   never freed; slots are reused.
//! - A mapping is guarded before anyone touches it and the guard is dropped before `munmap`.
//!   Dropping waits for a handler that is at work on the slot; afterwards none will map anything
//!   over the range, whoever owns it then.
//! - The handler runs with SA_ONSTACK: threads of the standard library have an alternate stack, so
//!   a fault at the very end of a worker's stack is still reported as what it is. No SA_NODEFER: a
//!   SIGBUS inside the handler is fatal, not recursive.

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::fs::page_size;
use crate::limits::{GUARD_SEGMENT_SLOTS, MAX_GUARDED_MAPPINGS};

/// Why a range cannot be guarded.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// Empty, not page-aligned, or reaching past the end of the address space.
    #[error("range is empty, unaligned or overflows")]
    BadRange,
    /// [`MAX_GUARDED_MAPPINGS`] are registered.
    #[error("too many guarded mappings")]
    Full,
    /// `sigaction` failed.
    #[error("cannot install the SIGBUS handler: {0}")]
    Install(#[source] io::Error),
}

/// One guarded range. `start`, `len` and `flag` belong to the registering thread while `live` is
/// false and `pins` is zero, and are constant otherwise.
struct Slot {
    live: AtomicBool,
    /// Handlers at work on this slot.
    pins: AtomicU32,
    start: AtomicUsize,
    len: AtomicUsize,
    flag: AtomicPtr<AtomicBool>,
}

type Segment = [Slot; GUARD_SEGMENT_SLOTS];

const SEGMENTS: usize = MAX_GUARDED_MAPPINGS / GUARD_SEGMENT_SLOTS;

/// Segments in use; null from the first unused one on.
static TABLE: [AtomicPtr<Segment>; SEGMENTS] =
    [const { AtomicPtr::new(ptr::null_mut()) }; SEGMENTS];

/// Slots that were ever used: where the handler's search ends.
static HIGH_WATER: AtomicUsize = AtomicUsize::new(0);

/// Numbers of vacated slots. Never touched by the handler.
static VACANT: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Base page size in bytes, for the handler; set before the handler is installed.
static PAGE: AtomicUsize = AtomicUsize::new(4096);

/// Keeps a mapping survivable; drop it before unmapping.
#[must_use = "the range is guarded only while this lives"]
pub struct Guard {
    number: usize,
    slot: &'static Slot,
    // Keeps alive what `slot.flag` points to until `drop` has made sure that no handler uses it.
    _flag: Arc<AtomicBool>,
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guard").field("number", &self.number).finish_non_exhaustive()
    }
}

/// Guards the mapping of `len` bytes at `addr`; `flag` becomes true at its first SIGBUS.
///
/// `addr` and `len` are those of the whole mapping, so on hugetlbfs multiples of the huge page
/// size: the handler replaces it all, and the kernel replaces whole huge pages only.
pub fn guard(addr: usize, len: usize, flag: Arc<AtomicBool>) -> Result<Guard, GuardError> {
    install()?;
    let page = PAGE.load(Ordering::Relaxed);
    let aligned = addr.is_multiple_of(page) && len.is_multiple_of(page);
    if len == 0 || addr == 0 || !aligned || addr.checked_add(len).is_none() {
        return Err(GuardError::BadRange);
    }
    let (number, slot) = vacant_slot()?;
    slot.start.store(addr, Ordering::Relaxed);
    slot.len.store(len, Ordering::Relaxed);
    slot.flag.store(Arc::as_ptr(&flag).cast_mut(), Ordering::Relaxed);
    // Publishes the three stores above. A thread that faults in this range got its address from
    // the caller after this, so it cannot miss it.
    slot.live.store(true, Ordering::SeqCst);
    Ok(Guard { number, slot, _flag: flag })
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Sequentially consistent against `defuse`: either it sees the slot dead, or we see its
        // pin and wait for the one `mmap` it is at.
        self.slot.live.store(false, Ordering::SeqCst);
        while self.slot.pins.load(Ordering::SeqCst) != 0 {
            std::thread::yield_now();
        }
        VACANT.lock().unwrap_or_else(PoisonError::into_inner).push(self.number);
    }
}

/// A slot nobody uses.
fn vacant_slot() -> Result<(usize, &'static Slot), GuardError> {
    let mut vacant = VACANT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(number) = vacant.pop() {
        return slot(number).map(|slot| (number, slot)).ok_or(GuardError::Full);
    }
    let number = HIGH_WATER.load(Ordering::Relaxed);
    let place = TABLE.get(number / GUARD_SEGMENT_SLOTS).ok_or(GuardError::Full)?;
    if place.load(Ordering::Relaxed).is_null() {
        let segment: Box<Segment> = Box::new(std::array::from_fn(|_| Slot {
            live: AtomicBool::new(false),
            pins: AtomicU32::new(0),
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            flag: AtomicPtr::new(ptr::null_mut()),
        }));
        place.store(Box::into_raw(segment), Ordering::Release);
    }
    HIGH_WATER.store(number + 1, Ordering::Release);
    slot(number).map(|slot| (number, slot)).ok_or(GuardError::Full)
}

/// Slot `number`, if it was ever used.
fn slot(number: usize) -> Option<&'static Slot> {
    let segment = TABLE.get(number / GUARD_SEGMENT_SLOTS)?.load(Ordering::Acquire);
    // SAFETY: a non-null entry was made by `Box::into_raw` from a complete segment, published by a
    // release store, and is never freed; only its atomics change.
    let segment = unsafe { segment.as_ref() }?;
    segment.get(number % GUARD_SEGMENT_SLOTS)
}

/// Installs the handler, once.
fn install() -> Result<(), GuardError> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| {
        PAGE.store(page_size() as usize, Ordering::Relaxed);
        let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = on_sigbus;
        set_action(handler as usize, libc::SA_SIGINFO | libc::SA_ONSTACK)
            .map_err(|e| e.raw_os_error().unwrap_or(libc::EINVAL))
    });
    installed.map_err(|errno| GuardError::Install(io::Error::from_raw_os_error(errno)))
}

/// `sigaction` for SIGBUS, with every other signal blocked while a handler runs.
fn set_action(action: usize, flags: i32) -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid `sigaction`.
    let mut new: libc::sigaction = unsafe { std::mem::zeroed() };
    new.sa_sigaction = action;
    new.sa_flags = flags;
    // SAFETY: `new` lives through both calls; `action` is SIG_DFL or a handler of the signature
    // that `flags` promises.
    let failed = unsafe {
        libc::sigfillset(&mut new.sa_mask);
        libc::sigaction(libc::SIGBUS, &new, ptr::null_mut()) != 0
    };
    if failed { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The handler. Calls only what is async-signal-safe: atomics, `mmap`, `madvise`, `sigaction` and
/// `tgkill`, none of which takes a user-space lock.
extern "C" fn on_sigbus(_signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: errno is this thread's own; the interrupted code may be about to read it.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the kernel passes a valid siginfo to a SA_SIGINFO handler.
    let (code, addr) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    // A positive code is the kernel's; for one sent by kill(2) the address means nothing.
    let from_kernel = code > 0;
    if !(from_kernel && defuse(addr)) {
        // Back to the default action: the retried access then ends the process with a core, as
        // without this module. A signal that was sent is not retried, so it is sent again; it
        // stays pending until this handler returns.
        let _ = set_action(libc::SIG_DFL, 0);
        if !from_kernel {
            // SAFETY: touches no memory. To this very thread, so before it gets any further.
            unsafe {
                libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), libc::SIGBUS)
            };
        }
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Replaces the guarded mapping around `addr` by zero pages; false if there is none.
fn defuse(addr: usize) -> bool {
    let used = HIGH_WATER.load(Ordering::Acquire);
    for slot in (0..used).map_while(slot) {
        if !covers(slot, addr) {
            continue;
        }
        // Pinned, the slot keeps its range: see `Guard::drop`. Looked at again, as it may have
        // been vacated or reused since the look above.
        slot.pins.fetch_add(1, Ordering::SeqCst);
        let ours = slot.live.load(Ordering::SeqCst) && covers(slot, addr);
        let defused = ours && {
            let (start, len) =
                (slot.start.load(Ordering::Relaxed), slot.len.load(Ordering::Relaxed));
            // SAFETY: the slot is live and pinned, so its guard still holds the flag's `Arc`.
            unsafe { &*slot.flag.load(Ordering::Relaxed) }.store(true, Ordering::Release);
            cover(start, len, addr)
        };
        slot.pins.fetch_sub(1, Ordering::SeqCst);
        if ours {
            return defused;
        }
    }
    false
}

/// True if `addr` lies in the slot's range.
fn covers(slot: &Slot, addr: usize) -> bool {
    let (start, len) = (slot.start.load(Ordering::Relaxed), slot.len.load(Ordering::Relaxed));
    addr.wrapping_sub(start) < len
}

/// Maps zero pages over the whole range or, where strict overcommit refuses that much private
/// memory, over the largest piece around `addr` that it allows.
fn cover(start: usize, len: usize, addr: usize) -> bool {
    let pieces = [1 << 30, 1 << 21, PAGE.load(Ordering::Relaxed)].map(|size: usize| {
        let first = (addr & !(size - 1)).max(start);
        let last = (addr | (size - 1)).min(start + (len - 1));
        (first, last - first + 1)
    });
    map_zeros(start, len) || pieces.into_iter().any(|(start, len)| map_zeros(start, len))
}

/// Anonymous zero pages over `len` bytes at `start`.
fn map_zeros(start: usize, len: usize) -> bool {
    let start = ptr::with_exposed_provenance_mut(start);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: the range lies inside a guarded mapping whose guard is alive and pinned, so it is
    // still the mapping that faulted and nothing else; replacing foreign shared memory by private
    // memory invalidates no reference, since guest memory is only ever accessed by raw pointer.
    unsafe {
        let mapped = libc::mmap(start, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        // A stray write to a broken port then costs 4 KiB, not a huge page.
        mapped != libc::MAP_FAILED && {
            libc::madvise(start, len, libc::MADV_NOHUGEPAGE);
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

    use crate::sys::fs::memfd;

    const LEN: usize = 1 << 20;
    const PATTERN: u8 = 0xa5;

    /// A memfd mapped and guarded, as `memory` does it.
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
    fn the_whole_range_becomes_private_zeros() {
        let victim = Mapped::memfd();
        victim.write(0, PATTERN);
        victim.file.set_len(4096).unwrap();
        // SAFETY: errno is this thread's own.
        unsafe { *libc::__errno_location() = 77 };
        victim.write(LEN - 1, 9);
        // SAFETY: as above.
        let errno = unsafe { *libc::__errno_location() };
        assert_eq!(errno, 77, "errno was not preserved");
        assert!(victim.hit());
        assert_eq!(victim.read(LEN - 1), 9, "the access was not retried");
        assert_eq!(victim.read(0), 0, "the page that is left is still shared");
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
        // Other tests hold some as well; without reuse it would be thousands.
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
        // Needs no reserved huge page: with none the first access raises SIGBUS by itself.
        let len = 4usize << 20;
        // SAFETY: the name is a C string; the result is owned by nobody else.
        let file = unsafe {
            let flags = libc::MFD_CLOEXEC | libc::MFD_HUGETLB | libc::MFD_HUGE_2MB;
            let fd = libc::memfd_create(c"huge".as_ptr(), flags);
            if fd < 0 {
                return crate::sys::testns::skip("no 2 MiB huge pages in this kernel");
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

    /// The signal that ends a child which runs `work`. The child shares the descriptor table: a
    /// copy of it would keep open what other tests close meanwhile.
    fn death_of(work: impl FnOnce()) -> i32 {
        install().unwrap();
        let mut status = 0;
        // SAFETY: without CLONE_VM this is a fork; the child makes system calls only and accesses
        // memory that is mapped in it too; the parent waits for exactly this child.
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
                // SAFETY: touches no memory. Not `raise`, which may take the parent's thread id.
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
}
