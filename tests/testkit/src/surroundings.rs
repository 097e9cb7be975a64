//! What a test program and its children rely on, whatever they were started from: a shell, `nohup`,
//! a service, a job of continuous integration. It is set once, before `main` and before there is a
//! second thread, in every program that links this crate; children inherit it. A test that is about
//! one of these things sets it for its own child, which may be a test program again.
//!
//! | | as a test finds it |
//! |---|---|
//! | signals | none is blocked, and a child begins with the default action of each |
//! | umask | 022 |
//! | environment | what [`is_kept`] names; `LC_ALL=C.UTF-8`; a `PATH` with system directories |
//! | `TMPDIR` | as given if it is writable and leaves room for a socket's path, else `/tmp` |
//! | limits | no core files; 20,000 open files, or as many as are permitted |
//! | descriptors | a child has the three standard ones and those that its test gives it |

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A socket's path has 107 bytes. The longest one that a test puts behind `TMPDIR` has 60.
const TMPDIR_BYTES: usize = 45;
/// What test programs open at once, and what `scripts/test` asks for.
const OPEN_FILES: libc::rlim_t = 20_000;
/// Where tools of root are, which an ordinary user's `PATH` does not name.
const SYSTEM_PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";

/// A program that was started by one that has set all this keeps what it was given.
const DONE: &str = "VIOSWITCH_TEST_SURROUNDED";

// Miri has none of these system calls, and starts no children.
#[cfg(not(miri))]
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = set;

#[cfg_attr(miri, allow(dead_code))]
extern "C" fn set() {
    if std::env::var_os(DONE).is_some() {
        return;
    }
    signals();
    limits_and_descriptors();
    // SAFETY: a plain system call.
    unsafe { libc::umask(0o022) };
    environment();
}

/// A variable that tests, or programs that tests start, have a use for.
fn is_kept(name: &[u8]) -> bool {
    const NAMES: [&str; 9] = [
        "CI",
        "HOME",
        "LD_LIBRARY_PATH",
        "PATH",
        "TERM",
        "TMPDIR",
        "UPDATE_DOCS",
        "VIOSWITCHD_BIN",
        "USER",
    ];
    // Of Cargo and what it starts; of ours; of libraries that test and measure; of sanitizers.
    const PREFIXES: [&str; 11] = [
        "CARGO",
        "RUST",
        "VIOSWITCH_",
        "PROPTEST_",
        "CRITERION_",
        "LLVM_",
        "ASAN_",
        "LSAN_",
        "TSAN_",
        "UBSAN_",
        "MODEL_",
    ];
    let begins = |prefix: &&str| name.starts_with(prefix.as_bytes());
    let named = NAMES.iter().any(|kept| kept.as_bytes() == name);
    // A worker that panics on purpose would look for its own source lines, for seconds.
    let changes_the_daemon = name == b"RUST_LOG" || name == b"RUST_BACKTRACE";
    (named || PREFIXES.iter().any(begins)) && !changes_the_daemon
}

fn environment() {
    let names: Vec<OsString> = std::env::vars_os().map(|(name, _)| name).collect();
    let mut path = std::env::var_os("PATH").filter(|path| !path.is_empty()).unwrap_or_default();
    if !path.is_empty() {
        path.push(":");
    }
    path.push(SYSTEM_PATH);
    let short = std::env::var_os("TMPDIR").is_none_or(|dir| has_room(&dir));
    // SAFETY: this is before `main`, so no other thread reads the environment.
    unsafe {
        for name in names.iter().filter(|name| !is_kept(name.as_bytes())) {
            std::env::remove_var(name);
        }
        if !short {
            std::env::remove_var("TMPDIR");
        }
        std::env::set_var(DONE, "1");
        std::env::set_var("LC_ALL", "C.UTF-8");
        std::env::set_var("PATH", path);
    }
}

/// Sockets can be made in a directory of this one.
fn has_room(dir: &OsStr) -> bool {
    let Ok(path) = std::ffi::CString::new(dir.as_bytes()) else { return false };
    // SAFETY: the path is NUL-terminated and outlives the call.
    let writable = unsafe { libc::access(path.as_ptr(), libc::W_OK | libc::X_OK) } == 0;
    writable && dir.len() <= TMPDIR_BYTES && Path::new(dir).is_absolute()
}

extern "C" fn nothing(_signal: libc::c_int) {}

/// A signal that is ignored stays so across `exec`, one that is caught does not: this program
/// goes on surviving what `nohup` has it survive, and its children begin as from a terminal.
/// SIGCHLD is not caught but left alone, since a process that ignores it cannot wait for its
/// children.
fn signals() {
    // SAFETY: all-zero bytes are a valid action and an empty mask, which live across the calls; the
    // handler does nothing, which is safe at any moment. Signals that nobody can set are refused.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
        for signal in 1..=libc::SIGRTMAX() {
            let mut action: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(signal, std::ptr::null(), &mut action) != 0
                || action.sa_sigaction != libc::SIG_IGN
            {
                continue;
            }
            let harmless: extern "C" fn(libc::c_int) = nothing;
            action.sa_flags = libc::SA_RESTART;
            action.sa_sigaction = match signal {
                libc::SIGCHLD => libc::SIG_DFL,
                _ => harmless as libc::sighandler_t,
            };
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

fn limits_and_descriptors() {
    let mut files = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let no_core = libc::rlimit { rlim_cur: 0, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the values are live, and writable for the one call that writes.
    unsafe {
        // A hard limit that was lowered cannot be raised again by all; the soft one is what counts.
        if libc::setrlimit(libc::RLIMIT_CORE, &no_core) != 0 {
            libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: 0, rlim_max: 0 });
        }
        // What this program was left open, say by a service manager, stays its own.
        libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut files);
        let more = libc::rlimit {
            rlim_cur: files.rlim_cur.max(OPEN_FILES),
            rlim_max: files.rlim_max.max(OPEN_FILES),
        };
        if libc::setrlimit(libc::RLIMIT_NOFILE, &more) != 0 {
            files.rlim_cur = files.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &files);
        }
    }
}
