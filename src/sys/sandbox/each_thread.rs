//! Changes, in every thread of the process, the state that the kernel keeps for each thread:
//! `no_new_privs`, the Landlock domain, capabilities.
//!
//! Linux 7.0 can confine all threads by Landlock in one call. Before Linux 7.0, and for
//! capabilities, each thread has to make the calls itself. The first thread makes the calls first,
//! and so learns the kernel's features. All other threads get a signal whose handler makes the
//! calls. A thread that an unconfined thread started meanwhile is found by listing the threads
//! again.
//!
//! No thread continues outside the sandbox: the handler repeats the calls until they succeed. A
//! thread that the kernel holds up (a file system that does not answer) keeps the signal pending,
//! is *late*, and confines itself before it continues. The start waits for all other threads, or
//! fails.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::CapabilitySet;
use vmm_sys_util::signal::unblock_signal;

use base::limits::{CONFINE_LIMIT, CONFINE_PATIENCE, CONFINE_RETRY, MAX_LATE_THREADS};

/// `_LINUX_CAPABILITY_VERSION_3`.
const VERSION_3: u32 = 0x2008_0522;
/// `LANDLOCK_CREATE_RULESET_VERSION`.
const ASK_VERSION: libc::c_uint = 1;
/// Prefix of the names of kernel threads that work for an io_uring. They have the credentials of
/// the thread that made the request, and take no signal.
const RING_WORKERS: &str = "iou-";
/// Thread states: held up by the kernel, ended, unknown.
const HELD_UP: char = 'D';
const GONE: [char; 2] = ['Z', 'X'];
const UNKNOWN: char = '?';
/// Values for "no ruleset" and "all capabilities are kept".
const NO_RULESET: i32 = -1;
const ALL: u64 = u64::MAX;

/// The descriptor of a Landlock ruleset.
static RULESET: AtomicI32 = AtomicI32::new(NO_RULESET);
/// The capabilities that remain, as bits.
static KEPT: AtomicU64 = AtomicU64::new(ALL);
/// Threads that got the signal and have not confined themselves yet; zero is a free place.
static ASKED: [AtomicI32; MAX_LATE_THREADS] = [const { AtomicI32::new(0) }; MAX_LATE_THREADS];
/// The errno of a thread's last failure to confine itself.
static FAILED: AtomicI32 = AtomicI32::new(0);

fn signal() -> libc::c_int {
    libc::SIGRTMIN() + 3
}

/// Unblocks the sandbox's signals in the calling thread, and so in the threads that it starts. The
/// first thread calls this before it starts another thread: the parent process may have blocked the
/// signals.
pub fn unblock() {
    let _ = unblock_signal(signal());
    let _ = unblock_signal(libc::SIGSYS);
}

/// Returns the version of Landlock that the kernel offers.
pub(crate) fn landlock_version() -> io::Result<u32> {
    let nothing = ptr::null::<libc::c_void>();
    // SAFETY: with this flag the kernel reads no memory.
    let answer =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, nothing, 0_usize, ASK_VERSION) };
    u32::try_from(answer).map_err(|_| io::Error::last_os_error())
}

/// Confines all threads: `ruleset` limits the files they may open, and `kept` their capabilities.
/// The first thread calls this. The outer error says that another thread stays outside the sandbox,
/// the inner error that the kernel offers no sandbox.
pub fn confine(
    ruleset: Option<BorrowedFd<'_>>,
    kept: Option<CapabilitySet>,
) -> io::Result<io::Result<()>> {
    RULESET.store(ruleset.map_or(NO_RULESET, |fd| fd.as_raw_fd()), Ordering::SeqCst);
    KEPT.store(kept.map_or(ALL, |kept| kept.bits()), Ordering::SeqCst);
    if !confine_this_thread() {
        return Ok(Err(io::Error::last_os_error()));
    }
    install()?;
    let end = Instant::now() + CONFINE_PATIENCE;
    let mut asked = BTreeSet::from([rustix::thread::gettid().as_raw_pid()]);
    loop {
        let fresh: Vec<i32> = threads()?.into_iter().filter(|id| !asked.contains(id)).collect();
        if fresh.is_empty() {
            return Ok(Ok(()));
        }
        for id in fresh {
            asked.insert(id);
            ask(id, end)?;
        }
    }
}

/// Returns the number of threads that have not confined themselves yet, and the last error of such
/// a thread.
pub fn late() -> (usize, Option<io::Error>) {
    let asked = ASKED.iter().map(|place| place.load(Ordering::SeqCst));
    let late = asked.filter(|&id| id != 0 && state_of(id).is_some()).count();
    let errno = FAILED.load(Ordering::SeqCst);
    (late, (late > 0 && errno != 0).then(|| io::Error::from_raw_os_error(errno)))
}

/// Returns all threads of the process except the kernel's io_uring workers.
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

/// Has a thread confine itself. Waits until the thread is confined, is gone, or is held up by the
/// kernel at `end`.
fn ask(id: i32, end: Instant) -> io::Result<()> {
    let free = ASKED.iter().find(|place| place.load(Ordering::SeqCst) == 0);
    let place = free.ok_or_else(|| io::Error::other("the kernel holds up too many threads"))?;
    place.store(id, Ordering::SeqCst);
    // SAFETY: accesses no memory; the handler is installed.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), id, signal()) };
    let limit = Instant::now() + CONFINE_LIMIT;
    while place.load(Ordering::SeqCst) == id {
        match state_of(id) {
            None => place.store(0, Ordering::SeqCst),
            Some(HELD_UP) if Instant::now() >= end => return Ok(()),
            Some(_) if Instant::now() >= limit => {
                let errno = FAILED.load(Ordering::SeqCst);
                let why =
                    io::Error::from_raw_os_error(if errno == 0 { libc::ETIMEDOUT } else { errno });
                return Err(io::Error::other(format!("thread {id} is outside: {why}")));
            }
            Some(_) => thread::sleep(Duration::from_micros(50)),
        }
    }
    Ok(())
}

/// Returns the state of a thread (proc_pid_stat(5)); `None` if the thread is gone.
fn state_of(id: i32) -> Option<char> {
    let stat = match fs::read_to_string(format!("/proc/self/task/{id}/stat")) {
        Ok(stat) => stat,
        Err(error) if [Some(libc::ENOENT), Some(libc::ESRCH)].contains(&error.raw_os_error()) => {
            return None;
        }
        Err(_) => return Some(UNKNOWN),
    };
    // The state is behind the name, and the name may hold parentheses.
    let state = stat.rsplit_once(") ").and_then(|(_, behind)| behind.chars().next());
    Some(state.unwrap_or(UNKNOWN)).filter(|state| !GONE.contains(state))
}

/// Installs the handler, which stays for late threads.
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
    let pause = libc::timespec { tv_sec: 0, tv_nsec: CONFINE_RETRY.subsec_nanos().into() };
    while !confine_this_thread() {
        // SAFETY: errno is this thread's own; `pause` lives through the call, which writes no
        // remaining time.
        unsafe {
            FAILED.store(*libc::__errno_location(), Ordering::SeqCst);
            libc::clock_nanosleep(libc::CLOCK_MONOTONIC, 0, &raw const pause, ptr::null_mut());
        }
    }
    // SAFETY: accesses no memory.
    let id = unsafe { libc::syscall(libc::SYS_gettid) } as i32;
    for place in &ASKED {
        let _ = place.compare_exchange(id, 0, Ordering::SeqCst, Ordering::SeqCst);
    }
    // SAFETY: errno is this thread's own.
    unsafe { *libc::__errno_location() = errno };
}

/// Makes the calls for the calling thread; returns false, and sets errno, if a call fails.
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

/// Drops all capabilities of the calling thread except `kept`.
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
