//! What the kernel keeps by thread, changed in every thread of the process: `no_new_privs`, the
//! Landlock domain, capabilities.
//!
//! Linux 7.0 can do so for Landlock in one call; before, and for capabilities, each thread has to
//! make the calls itself. All are sent a signal whose handler makes them. A thread that the kernel
//! holds up (a file system that does not answer) keeps the signal pending and confines itself
//! before it gets any further. A thread that was made meanwhile, by one that was not confined yet,
//! is found by another look.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Instant;

use rustix::thread::CapabilitySet;
use vmm_sys_util::signal::unblock_signal;

use crate::limits::{CONFINE_PATIENCE, CONFINE_PATIENCE_EACH};

/// `_LINUX_CAPABILITY_VERSION_3`.
const VERSION_3: u32 = 0x2008_0522;
/// `LANDLOCK_CREATE_RULESET_VERSION`.
const ASK_VERSION: libc::c_uint = 1;
/// Names of threads of the kernel that work for an io_uring begin so. They work with the
/// credentials of the thread that asked them to, and take no signal.
const RING_WORKERS: &str = "iou-";
/// No ruleset, and no capability is dropped.
const NO_RULESET: i32 = -1;
const ALL: u64 = u64::MAX;

/// The descriptor of a Landlock ruleset.
static RULESET: AtomicI32 = AtomicI32::new(NO_RULESET);
/// Capabilities that remain.
static KEPT: AtomicU64 = AtomicU64::new(ALL);
/// The thread that confined itself last, and the last error.
static ANSWERED: AtomicI32 = AtomicI32::new(0);
static FAILED: AtomicI32 = AtomicI32::new(0);

fn signal() -> libc::c_int {
    libc::SIGRTMIN() + 3
}

/// Has the calling thread, and those that it starts, take the signals of the sandbox. For the first
/// thread, before there is another one: the process may have been started with them blocked.
pub fn unblock() {
    let _ = unblock_signal(signal());
    let _ = unblock_signal(libc::SIGSYS);
}

/// The version of Landlock that the kernel offers.
pub fn landlock_version() -> io::Result<u32> {
    let nothing = ptr::null::<libc::c_void>();
    // SAFETY: with this flag the kernel reads no memory.
    let answer =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, nothing, 0_usize, ASK_VERSION) };
    u32::try_from(answer).map_err(|_| io::Error::last_os_error())
}

/// Confines all threads: by `ruleset` what they may open, to `kept` their capabilities. How many
/// did not answer in time: they confine themselves when the kernel lets them go.
pub fn confine(ruleset: Option<BorrowedFd<'_>>, kept: Option<CapabilitySet>) -> io::Result<usize> {
    RULESET.store(ruleset.map_or(NO_RULESET, |fd| fd.as_raw_fd()), Ordering::SeqCst);
    KEPT.store(kept.map_or(ALL, |kept| kept.bits()), Ordering::SeqCst);
    FAILED.store(0, Ordering::SeqCst);
    install()?;
    let end = Instant::now() + CONFINE_PATIENCE;
    let (mut asked, mut late) = (BTreeSet::new(), 0);
    loop {
        let fresh: Vec<i32> = threads()?.into_iter().filter(|id| !asked.contains(id)).collect();
        if fresh.is_empty() {
            break;
        }
        for id in fresh {
            asked.insert(id);
            late += usize::from(!ask(id, end));
        }
    }
    match FAILED.load(Ordering::SeqCst) {
        0 => Ok(late),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// All threads, but for those of the kernel.
fn threads() -> io::Result<Vec<i32>> {
    let mut found = Vec::new();
    for task in fs::read_dir("/proc/self/task")? {
        let task = task?;
        let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        if !name.starts_with(RING_WORKERS) {
            found.extend(task.file_name().to_str().and_then(|id| id.parse::<i32>().ok()));
        }
    }
    Ok(found)
}

/// Has a thread confine itself; false if it has not in time.
fn ask(id: i32, end: Instant) -> bool {
    let end = end.min(Instant::now() + CONFINE_PATIENCE_EACH);
    // SAFETY: touches no memory; the handler is installed.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), id, signal()) };
    let is_there = || Path::new(&format!("/proc/self/task/{id}")).exists();
    while ANSWERED.load(Ordering::SeqCst) != id && is_there() {
        if Instant::now() >= end {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

/// Installs the handler. It stays for threads that are late.
fn install() -> io::Result<()> {
    let handler: extern "C" fn(libc::c_int) = on_signal;
    // SAFETY: all-zero bytes are a valid `sigaction` with an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
    // SAFETY: `action` lives through the call; the handler has the right signature, and is
    // async-signal-safe: it makes system calls and touches atomics.
    match unsafe { libc::sigaction(signal(), &action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn on_signal(_: libc::c_int) {
    // SAFETY: errno is this thread's own; the interrupted code may be about to read it.
    let errno = unsafe { *libc::__errno_location() };
    if !confine_this_thread() {
        // SAFETY: as above.
        FAILED.store(unsafe { *libc::__errno_location() }, Ordering::SeqCst);
    }
    // SAFETY: touches no memory.
    ANSWERED.store(unsafe { libc::gettid() }, Ordering::SeqCst);
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Makes the calls for the thread that it runs in; false, and errno, if one fails.
fn confine_this_thread() -> bool {
    let ruleset = RULESET.load(Ordering::SeqCst);
    // SAFETY: the calls read no memory; the descriptor stays open.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && (ruleset == NO_RULESET
                || libc::syscall(libc::SYS_landlock_restrict_self, ruleset, 0) == 0)
    };
    done && keep(KEPT.load(Ordering::SeqCst))
}

/// `struct __user_cap_header_struct`.
#[repr(C)]
struct Header {
    version: u32,
    pid: libc::c_int,
}

/// `struct __user_cap_data_struct`, for 32 capabilities.
#[repr(C)]
#[derive(Default)]
struct Sets {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Drops all other capabilities of the thread.
fn keep(kept: u64) -> bool {
    if kept == ALL {
        return true;
    }
    let header = Header { version: VERSION_3, pid: 0 };
    let half = |bits: u64| Sets { effective: bits as u32, permitted: bits as u32, inheritable: 0 };
    let sets = [half(kept), half(kept >> 32)];
    // SAFETY: header and sets are as this version has them, and live through the call.
    unsafe { libc::syscall(libc::SYS_capset, &raw const header, sets.as_ptr()) == 0 }
}
