//! Handles a system call that the filter does not allow: the kernel raises SIGSYS in the calling
//! thread, and the handler counts the call by its number and makes the call return EPERM.
//!
//! seccomp(2) could return EPERM itself, but counts nothing. The handler counts in every thread; a
//! user notification would need a waiting thread. The handler only adds to an atomic and writes to
//! the saved registers. In a thread that blocks SIGSYS, a forbidden call ends the process: libcs
//! and the SIGBUS handler block signals for a few calls, all of which are allowed.

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use syscalls::Sysno;

/// Number of calls with a count of their own; the supported architectures have fewer than 500.
const NUMBERS: usize = 512;
/// `SYS_SECCOMP`: a seccomp filter raised the signal.
const BY_FILTER: libc::c_int = 1;

/// How often each call was forbidden; the last count is for all other numbers.
static COUNTS: [AtomicU64; NUMBERS + 1] = [const { AtomicU64::new(0) }; NUMBERS + 1];
/// True for each call that was logged.
static LOGGED: [AtomicBool; NUMBERS + 1] = [const { AtomicBool::new(false) }; NUMBERS + 1];

/// The beginning of `siginfo_t`, with the fields of a filtered call.
#[repr(C)]
struct Info {
    signal: libc::c_int,
    errno: libc::c_int,
    code: libc::c_int,
    address: *const libc::c_void,
    number: libc::c_int,
}

/// Installs the handler of SIGSYS, which counts a forbidden call and makes the call return EPERM.
pub fn install() -> io::Result<()> {
    let handler: extern "C" fn(libc::c_int, *const Info, *mut libc::ucontext_t) = on_sigsys;
    // SAFETY: all-zero bytes are a valid `sigaction` with an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: `action` lives through the call; the handler has the signature that SA_SIGINFO
    // promises, and is async-signal-safe.
    match unsafe { libc::sigaction(libc::SIGSYS, &action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Handles SIGSYS; ignores a SIGSYS that another process sent with kill(2).
extern "C" fn on_sigsys(_: libc::c_int, info: *const Info, context: *mut libc::ucontext_t) {
    // SAFETY: the kernel passes a valid siginfo, of which `Info` is the beginning, to a SA_SIGINFO
    // handler.
    let (code, number) = unsafe { ((*info).code, (*info).number) };
    if code != BY_FILTER {
        return;
    }
    let at = usize::try_from(number).map_or(NUMBERS, |number| number.min(NUMBERS));
    COUNTS[at].fetch_add(1, Ordering::Relaxed);
    // SAFETY: the kernel passes the saved registers of this thread, which it restores when the
    // handler returns; nothing else refers to them.
    unsafe { answer(&mut (*context).uc_mcontext, -libc::EPERM) };
}

/// Makes the interrupted call return `value`.
#[cfg(target_arch = "x86_64")]
fn answer(registers: &mut libc::mcontext_t, value: libc::c_int) {
    registers.gregs[libc::REG_RAX as usize] = value.into();
}

/// Makes the interrupted call return `value`.
#[cfg(target_arch = "aarch64")]
fn answer(registers: &mut libc::mcontext_t, value: libc::c_int) {
    registers.regs[0] = i64::from(value) as u64;
}

fn name(at: usize) -> String {
    match Sysno::new(at) {
        Some(call) => call.name().to_owned(),
        None if at == NUMBERS => "unknown".to_owned(),
        None => format!("system call {at}"),
    }
}

/// Returns each forbidden call and its count.
pub fn forbidden() -> Vec<(String, u64)> {
    let counts = COUNTS.iter().map(|count| count.load(Ordering::Relaxed)).enumerate();
    counts.filter(|(_, count)| *count > 0).map(|(at, count)| (name(at), count)).collect()
}

/// Logs each call that was forbidden for the first time since the last look. A thread calls this
/// from time to time.
pub fn log() {
    for (at, count) in COUNTS.iter().enumerate() {
        if count.load(Ordering::Relaxed) > 0 && !LOGGED[at].swap(true, Ordering::Relaxed) {
            let name = name(at);
            log::warn!("sandbox: {name} was refused (EPERM): an attack, or a bug of the switch");
        }
    }
}
