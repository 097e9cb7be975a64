//! Real Linux guests, each test for QEMU 7.2 with Linux 6.1 and for QEMU 10.0 with Linux 6.12, and
//! real DPDK. The daemon is the real binary in a network namespace of the test's own.
//!
//! Needs root and what `scripts/guest-image --qemu10` builds. Each process dies with the test, and
//! traffic stays inside the namespace. What the machine lacks makes a test skip, or fail when
//! `VIOSWITCH_REQUIRE=1`. Tests run beside one another, but for those that judge time, or need what
//! the host has once.

mod attach;
mod cases;
mod demo;
mod dpdk;
mod dpdk_memory;
mod filtered;
mod lab;
mod load;
mod pair;
mod qemu;
mod qemu_groups;
mod qemu_kinds;
mod qemu_machine;
mod qemu_migration;
mod qemu_offloads;
mod qemu_rates;
mod qemu_restart;
mod qemu_streams;
mod selftests;
mod service;
mod talk;
mod tenants;
mod testpmd;
mod vm;
mod wire;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

static RUNNING: RwLock<()> = RwLock::new(());

/// Holds off all other tests: for one that judges time, or reserves huge pages. A failed one
/// poisons nothing.
pub fn alone() -> RwLockWriteGuard<'static, ()> {
    RUNNING.write().unwrap_or_else(PoisonError::into_inner)
}

/// Holds off those that have to be alone.
pub fn beside_another() -> RwLockReadGuard<'static, ()> {
    RUNNING.read().unwrap_or_else(PoisonError::into_inner)
}

/// Reports what is missing past libtest's capture, so that a skipped test cannot pass for a run
/// one; fails instead where everything was promised to be there.
pub fn skip(missing: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("test");
    assert!(!is_set("VIOSWITCH_REQUIRE"), "VIOSWITCH_REQUIRE is set and {missing}");
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {missing}");
}

/// What a test needs, unless the machine lacks it, which is said loudly.
pub fn or_skip<T>(needed: Result<T, String>) -> Option<T> {
    needed.inspect_err(|missing| skip(missing)).ok()
}

/// A line of progress past libtest's capture: these tests take minutes.
pub fn progress(text: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("test");
    let _ = writeln!(std::io::stderr(), "  {test}: {text}");
}

/// Whether an environment switch is on.
pub fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|v| !v.is_empty() && v != "0")
}

/// What a network namespace with a TAP needs; `Err` says what is missing.
pub fn can_make_network() -> Result<(), String> {
    if !Path::new("/dev/net/tun").exists() {
        return Err("there is no /dev/net/tun".into());
    }
    for tool in ["unshare", "nsenter", "setpriv", "ip", "ping"] {
        need_program(tool)?;
    }
    let made = Command::new("unshare").args(["--net", "true"]).stderr(Stdio::null()).status();
    match made {
        Ok(status) if status.success() => Ok(()),
        _ => Err("no network namespace can be made (not root)".into()),
    }
}

/// `Err` unless `program` is in the path.
pub fn need_program(program: &str) -> Result<(), String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|dir| dir.join(program).is_file());
    if found { Ok(()) } else { Err(format!("{program} is not installed")) }
}

/// Asks `ready` every 20 ms until it has an answer; panics after `limit`.
pub fn wait_for<T>(what: &str, limit: Duration, mut ready: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + limit;
    loop {
        if let Some(answer) = ready() {
            return answer;
        }
        assert!(Instant::now() < end, "waited {limit:?} for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The last `lines` lines of a file, each indented, for a failure's report.
pub fn tail(path: &Path, lines: usize) -> String {
    let text = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let all: Vec<&str> = text.lines().collect();
    let from = all.len().saturating_sub(lines);
    all[from..].iter().map(|line| format!("    {line}\n")).collect()
}
