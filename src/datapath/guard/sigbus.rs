//! Survives a front-end that truncates the memory file it shared.
//!
//! A front-end may `ftruncate` its memfd after this process mapped the memfd. An access beyond the
//! new end raises SIGBUS, which would end the process and with it every other port. So each mapping
//! of a front-end's memory is *guarded*: registered with a flag. On SIGBUS inside a guarded range
//! the handler sets the flag, maps zero pages over the whole range and returns; the kernel retries
//! the access, which succeeds. The port is broken then, and the flag tells its session. On SIGBUS
//! elsewhere the handler restores the default action, and the process dies as without the handler.
//!
//! The zero pages belong to a file in memory, `COVER`, in which each slot has its own part. The
//! kernel never refuses to map a file for want of memory. Private memory would be refused where
//! `vm.overcommit_memory` is 2 and the limit is reached, and before Linux 6.12 the failed mmap(2)
//! has removed the old mapping already: other mappings could take the range. If the kernel cannot
//! allocate a page of the file when the page is accessed, the access raises SIGBUS again, and the
//! handler maps the slot's *spare* page there, which was allocated when the mapping was guarded.
//! The bytes no longer mean anything, so one spare page serves for all missing pages.
//!
//! A memory failure (BUS_MCEERR_AR) inside a guest's range and an exhausted hugetlb pool raise
//! SIGBUS too, and the handler confines them to their port as well. A system call that meets a
//! missing page raises no signal but fails with EFAULT; the caller must handle the error.
//!
//! Rules:
//! - The handler takes no lock and allocates nothing: it may interrupt any code, even the
//!   registration of another mapping. The registry grows by segments that are published once and
//!   never freed; slots are reused.
//! - A mapping is guarded before any thread accesses it, and the guard is dropped before `munmap`.
//!   Dropping the guard waits for handlers that use the slot; afterwards no handler maps pages over
//!   the range, which may belong to another mapping then.
//! - The handler runs with SA_ONSTACK: threads of the standard library have an alternate stack, so
//!   a fault at the end of a worker's stack is still reported as a stack overflow. The handler runs
//!   without SA_NODEFER: a SIGBUS inside the handler is fatal, not recursive.

use std::io;
use std::os::fd::IntoRawFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use base::limits::{GUARD_SEGMENT_SLOTS, MAX_GUARDED_MAPPINGS};
use sys::fs::{memfd, page_size};
use sys::threads::lock;

/// Why a range cannot be guarded.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// The range is empty, not page-aligned, or reaches past the end of the address space.
    #[error("range is empty, unaligned or overflows")]
    BadRange,
    /// [`MAX_GUARDED_MAPPINGS`] mappings are guarded already.
    #[error("too many guarded mappings")]
    Full,
    /// `sigaction` failed.
    #[error("cannot install the SIGBUS handler: {0}")]
    Install(#[source] io::Error),
    /// The kernel cannot allocate the spare page.
    #[error("no page to spare: {0}")]
    Spare(#[source] io::Error),
}

/// One guarded range. `start`, `len` and `flag` belong to the registering thread while `live` is
/// false and `pins` is zero, and are constant otherwise.
struct Slot {
    live: AtomicBool,
    /// Number of handlers that use this slot.
    pins: AtomicU32,
    start: AtomicUsize,
    len: AtomicUsize,
    flag: AtomicPtr<AtomicBool>,
    /// Zero pages were mapped over the range.
    covered: AtomicBool,
}

type Segment = [Slot; GUARD_SEGMENT_SLOTS];

const SEGMENTS: usize = MAX_GUARDED_MAPPINGS / GUARD_SEGMENT_SLOTS;

/// Segments in use; null from the first unused one on.
static TABLE: [AtomicPtr<Segment>; SEGMENTS] =
    [const { AtomicPtr::new(ptr::null_mut()) }; SEGMENTS];

/// Number of slots that were ever used: the handler's search ends there.
static HIGH_WATER: AtomicUsize = AtomicUsize::new(0);

/// Numbers of vacated slots. The handler never accesses this list.
static VACANT: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Base page size in bytes, for the handler; set before the handler is installed.
static PAGE: AtomicUsize = AtomicUsize::new(4096);

/// Descriptor of the file whose pages replace lost ones: first the spare pages of all slots, then
/// [`COVER_BYTES`] for each slot. Sparse except for the pages in use. Set once and never closed.
static COVER: AtomicI32 = AtomicI32::new(-1);

/// Bytes of [`COVER`] for each slot; no mapping is longer, see [`guard`].
const COVER_BYTES: u64 = 1 << 41;

/// Returns the offsets in [`COVER`] of a slot's spare page and of the pages for its range.
fn places(number: usize) -> (u64, u64) {
    let page = PAGE.load(Ordering::Relaxed);
    ((number * page) as u64, (number as u64 + 1) * COVER_BYTES)
}

/// Guards a mapping; the owner drops the guard before unmapping.
#[must_use = "the range is guarded only while this lives"]
pub struct Guard {
    number: usize,
    slot: &'static Slot,
    // Keeps the target of `slot.flag` alive until `drop` has made sure that no handler uses it.
    _flag: Arc<AtomicBool>,
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guard").field("number", &self.number).finish_non_exhaustive()
    }
}

/// Guards the mapping of `len` bytes at `addr`: a SIGBUS in the mapping, as after the front-end
/// truncates the mapped file, does not end the process. The first SIGBUS sets `flag`.
///
/// `addr` and `len` are those of the whole mapping, so multiples of the huge page size on
/// hugetlbfs: the handler replaces the whole mapping, and the kernel replaces whole huge pages
/// only.
pub fn guard(addr: usize, len: usize, flag: Arc<AtomicBool>) -> Result<Guard, GuardError> {
    install()?;
    let page = PAGE.load(Ordering::Relaxed);
    let aligned = addr.is_multiple_of(page) && len.is_multiple_of(page);
    let fits = len > 0 && len as u64 <= COVER_BYTES && addr.checked_add(len).is_some();
    if addr == 0 || !aligned || !fits {
        return Err(GuardError::BadRange);
    }
    let (number, slot) = vacant_slot()?;
    let (spare, _) = places(number);
    if let Err(error) = allocate(0, spare, page as u64) {
        vacate(number);
        return Err(GuardError::Spare(error));
    }
    slot.covered.store(false, Ordering::Relaxed);
    slot.start.store(addr, Ordering::Relaxed);
    slot.len.store(len, Ordering::Relaxed);
    slot.flag.store(Arc::as_ptr(&flag).cast_mut(), Ordering::Relaxed);
    // Publishes the four stores above. A thread that faults in this range got the address from the
    // caller after this store, so the handler sees the slot.
    slot.live.store(true, Ordering::SeqCst);
    Ok(Guard { number, slot, _flag: flag })
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Sequentially consistent with `defuse`: either `defuse` sees the slot dead, or this thread
        // sees the pin and waits for the `mmap` in progress.
        self.slot.live.store(false, Ordering::SeqCst);
        while self.slot.pins.load(Ordering::SeqCst) != 0 {
            std::thread::yield_now();
        }
        let (spare, cover) = places(self.number);
        let punch = |at, len| allocate(libc::FALLOC_FL_PUNCH_HOLE, at, len);
        let mut cleared = punch(spare, PAGE.load(Ordering::Relaxed) as u64);
        if self.slot.covered.load(Ordering::Relaxed) {
            cleared = cleared.and_then(|()| punch(cover, COVER_BYTES));
        }
        // Never seen to fail. A slot with pages left would show them to the next guest, so such a
        // slot is not reused.
        if cleared.is_ok() {
            vacate(self.number);
        }
    }
}

fn vacate(number: usize) {
    lock(&VACANT).push(number);
}

/// Calls fallocate(2) on [`COVER`] without changing the file's size.
fn allocate(mode: i32, at: u64, len: u64) -> io::Result<()> {
    let (fd, mode) = (COVER.load(Ordering::Relaxed), mode | libc::FALLOC_FL_KEEP_SIZE);
    let invalid = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let at = libc::off_t::try_from(at).map_err(invalid)?;
    let len = libc::off_t::try_from(len).map_err(invalid)?;
    loop {
        // SAFETY: touches no memory of this process.
        if unsafe { libc::fallocate(fd, mode, at, len) } == 0 {
            return Ok(());
        }
        match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => {}
            error => return Err(error),
        }
    }
}

/// Returns an unused slot and its number.
fn vacant_slot() -> Result<(usize, &'static Slot), GuardError> {
    let mut vacant = lock(&VACANT);
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
            covered: AtomicBool::new(false),
        }));
        place.store(Box::into_raw(segment), Ordering::Release);
    }
    HIGH_WATER.store(number + 1, Ordering::Release);
    slot(number).map(|slot| (number, slot)).ok_or(GuardError::Full)
}

/// Returns slot `number`, if it was ever used.
fn slot(number: usize) -> Option<&'static Slot> {
    let segment = TABLE.get(number / GUARD_SEGMENT_SLOTS)?.load(Ordering::Acquire);
    // SAFETY: a non-null entry was made by `Box::into_raw` from a complete segment, published by a
    // release store, and is never freed; only its atomics change.
    let segment = unsafe { segment.as_ref() }?;
    segment.get(number % GUARD_SEGMENT_SLOTS)
}

/// Installs the handler, once. The daemon calls this at its start, so that an error shows before
/// the first mapping.
pub fn install() -> Result<(), GuardError> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let prepare = || -> io::Result<()> {
        PAGE.store(page_size() as usize, Ordering::Relaxed);
        // With RLIMIT_FSIZE, creating the file fails with an error instead of a fatal SIGXFSZ.
        // SAFETY: no handler is set.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
        let cover = memfd("cover", (MAX_GUARDED_MAPPINGS as u64 + 1) * COVER_BYTES)?;
        COVER.store(cover.into_raw_fd(), Ordering::Relaxed);
        let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = on_sigbus;
        set_action(handler as usize, libc::SA_SIGINFO | libc::SA_ONSTACK)
    };
    let installed = INSTALLED
        .get_or_init(|| prepare().map_err(|error| error.raw_os_error().unwrap_or(libc::EINVAL)));
    installed.map_err(|errno| GuardError::Install(io::Error::from_raw_os_error(errno)))
}

/// Calls sigaction(2) for SIGBUS; all other signals are blocked while the handler runs.
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

/// The handler. Calls async-signal-safe functions only: atomics, `mmap`, `madvise`, `sigaction` and
/// `tgkill`, none of which takes a user-space lock.
extern "C" fn on_sigbus(_signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: errno is this thread's own; the interrupted code may be about to read it.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the kernel passes a valid siginfo to a SA_SIGINFO handler.
    let (code, addr) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    // The kernel sends positive codes; the address of a signal sent by kill(2) means nothing.
    let from_kernel = code > 0;
    if !(from_kernel && defuse(addr)) {
        // The default action: the retried access ends the process with a core dump, as without the
        // handler. A signal sent by a process has no access to retry, so the handler sends it
        // again; the signal stays pending until this handler returns.
        let _ = set_action(libc::SIG_DFL, 0);
        if !from_kernel {
            // SAFETY: touches no memory. The signal goes to this very thread, which dies at the
            // return.
            unsafe {
                libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), libc::SIGBUS)
            };
        }
    }
    // SAFETY: errno is this thread's own.
    unsafe { *libc::__errno_location() = errno };
}

/// Replaces the guarded mapping around `addr` by zero pages; false if no guarded mapping is there.
fn defuse(addr: usize) -> bool {
    let used = HIGH_WATER.load(Ordering::Acquire);
    for (number, slot) in (0..used).map_while(|number| Some((number, slot(number)?))) {
        if !covers(slot, addr) {
            continue;
        }
        // A pinned slot keeps its range: see `Guard::drop`. The check is repeated, as the slot may
        // have been vacated or reused before the pin.
        slot.pins.fetch_add(1, Ordering::SeqCst);
        let ours = slot.live.load(Ordering::SeqCst) && covers(slot, addr);
        let defused = ours && {
            // SAFETY: the slot is live and pinned, so its guard still holds the flag's `Arc`.
            unsafe { &*slot.flag.load(Ordering::Relaxed) }.store(true, Ordering::Release);
            cover(number, slot, addr)
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

/// Maps zero pages over the slot's whole range. At a later SIGBUS in the range, maps the spare page
/// over the page that cannot be allocated. If two threads map zero pages at once, bytes that the
/// first thread wrote meanwhile are lost, which does no harm: the memory is lost anyway.
fn cover(number: usize, slot: &Slot, addr: usize) -> bool {
    let (start, len) = (slot.start.load(Ordering::Relaxed), slot.len.load(Ordering::Relaxed));
    let (spare, cover) = places(number);
    if slot.covered.load(Ordering::SeqCst) {
        let page = PAGE.load(Ordering::Relaxed);
        return map_cover(addr & !(page - 1), page, spare);
    }
    let done = map_cover(start, len, cover);
    slot.covered.store(done, Ordering::SeqCst);
    done
}

/// Maps `len` bytes of [`COVER`] from `offset` at `start`.
fn map_cover(start: usize, len: usize, offset: u64) -> bool {
    let start = ptr::with_exposed_provenance_mut(start);
    let fd = COVER.load(Ordering::Relaxed);
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
    // SAFETY: the range lies inside a guarded mapping whose guard is alive and pinned, so the range
    // still is the mapping that faulted. Replacing the front-end's memory by zero pages invalidates
    // no reference, since guest memory is only accessed by raw pointer.
    unsafe {
        let mapped = libc::mmap(start, len, access, flags, fd, offset as libc::off_t);
        // Small pages, so that a stray write to a broken port costs 4 KiB and not a huge page. No
        // dump, since other guests' frames were written there.
        mapped != libc::MAP_FAILED && {
            libc::madvise(start, len, libc::MADV_NOHUGEPAGE);
            libc::madvise(start, len, libc::MADV_DONTDUMP);
            true
        }
    }
}

#[cfg(test)]
mod tests;
