//! The sandbox: limits what the process can do once it is ready, even if an attacker runs code in
//! it.
//!
//! * `allowed`: the resources and actions that a switch needs;
//! * `files`: the files and directories that the process may open (Landlock);
//! * `filter`: the system calls that the process may make (seccomp), by the lists in `calls`;
//! * `trap`: the handling of other system calls;
//! * `capabilities`: the capabilities that remain;
//! * `each_thread`: confines all threads where the kernel keeps a state for each thread.
//!
//! The process cannot leave the sandbox. Parts that the kernel does not offer are left out and
//! reported.

mod allowed;
mod calls;
mod capabilities;
mod each_thread;
mod files;
mod filter;
mod trap;

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::thread::CapabilitySet;

pub use allowed::{Allowed, Use};
pub use calls::{ALWAYS, ELSEWHERE, FATAL, TAP, XDP};
pub use each_thread::unblock;
use files::{AllowedPath, Files};
pub use filter::{Filter, names};
pub use trap::forbidden;

/// The oldest version of Landlock that permits links and renames between directories, by which a
/// new socket gets its name.
const LEAST_LANDLOCK: u32 = 2;
/// The accesses that each version of Landlock adds.
const COVERS: [(u32, &str); 4] =
    [(2, "files, links"), (3, "truncation"), (4, "TCP"), (5, "device ioctls")];

/// Files that every switch reads: the kernel's, the group database for sockets, and the program
/// itself for the backtrace of a panic.
pub const READ: [&str; 4] = ["/proc", "/etc/group", "/etc/nsswitch.conf", "/proc/self/exe"];

/// The sandbox that a process has entered.
#[derive(Debug, Clone, Default)]
pub struct State {
    /// The version of Landlock in force; zero without Landlock.
    pub landlock: u32,
    /// Files and directories that may be opened.
    allowed_paths: Vec<AllowedPath>,
    /// The number of allowed system calls; zero if all are allowed.
    pub system_calls: usize,
    /// The capabilities that remain.
    pub capabilities: Vec<&'static str>,
    /// The process may open TAPs.
    pub taps: bool,
    /// The process may open XDP uplinks.
    pub xdps: bool,
    /// Parts of the sandbox that the kernel refused, with the reason.
    lacks: Vec<String>,
}

static STATE: OnceLock<State> = OnceLock::new();
/// True if XDP uplinks can no longer be opened: bpf(2) would end the process.
static NO_BPF: AtomicBool = AtomicBool::new(false);
/// True after the log reported that a thread waits to be confined.
static TOLD: AtomicBool = AtomicBool::new(false);

impl State {
    /// Returns the accesses that Landlock covers.
    pub fn covers(&self) -> Vec<&'static str> {
        COVERS.iter().filter(|(since, _)| *since <= self.landlock).map(|(_, what)| *what).collect()
    }

    /// Returns the parts of the sandbox that the kernel refused, with the reason, and the threads
    /// that are not in the sandbox yet.
    pub fn lacks(&self) -> Vec<String> {
        let late = match each_thread::late() {
            (0, _) => None,
            (count, None) => Some(format!("{count} threads wait for the kernel to confine them")),
            (count, Some(error)) => Some(format!("{count} threads wait to be confined: {error}")),
        };
        self.lacks.iter().cloned().chain(late).collect()
    }

    /// Returns the directories where sockets may be made.
    pub fn directories(&self) -> impl Iterator<Item = &Path> {
        let sockets = self.allowed_paths.iter().filter(|rule| rule.purpose == Use::Sockets);
        sockets.map(|place| place.path.as_path())
    }
}

/// Returns the sandbox of this process; `None` before [`enter`].
pub fn state() -> Option<&'static State> {
    STATE.get()
}

/// Returns false if bpf(2) would end the process.
pub(crate) fn permits_bpf() -> bool {
    !NO_BPF.load(Ordering::Acquire)
}

/// Logs each call that was refused for the first time, and once that a thread waits because it
/// cannot be confined. A thread calls this from time to time.
pub fn log() {
    trap::log();
    if let (late @ 1.., Some(error)) = each_thread::late()
        && !TOLD.swap(true, Ordering::Relaxed)
    {
        log::error!("sandbox: {late} threads wait to be confined: {error}");
    }
}

/// Returns the list of directories where sockets may be made, if the sandbox permits no socket in
/// `directory`; else `None`.
pub fn excludes(directory: &Path) -> Option<String> {
    let state = STATE.get().filter(|state| state.landlock > 0)?;
    let shown = || state.directories().map(|path| path.display().to_string()).collect::<Vec<_>>();
    (!files::covers(&state.allowed_paths, directory)).then(|| shown().join(", "))
}

/// Confines all threads to `allowed`, as far as the kernel can. The main thread calls this once. An
/// error says that another thread stays outside a sandbox that the kernel offers.
pub fn enter(mut allowed: Allowed) -> io::Result<&'static State> {
    let mut lacks = Vec::new();
    let held = capabilities::held().unwrap_or(CapabilitySet::empty());
    // Without CAP_BPF no program can be loaded, so a bpf(2) call is an attack.
    allowed.xdps &= held.contains(CapabilitySet::BPF);
    NO_BPF.store(!allowed.xdps, Ordering::Release);
    let kept = held & capabilities::wanted(&allowed);
    let (landlock, files) = match landlock(&allowed) {
        Ok((version, files)) => (version, Some(files)),
        Err(why) => {
            lacks.push(format!("landlock: {why}"));
            (0, None)
        }
    };
    let ruleset = files.as_ref().and_then(|files| files.ruleset.as_ref());
    let drops = (kept != held).then_some(kept);
    let is_confined = each_thread::confine(ruleset.map(AsFd::as_fd), drops)?;
    let (mut landlock, mut files) = (landlock, files);
    if let Err(error) = is_confined {
        lacks.push(format!("landlock, capabilities: {error}"));
        (landlock, files) = (0, None);
    }
    // Reads the capabilities before the filter may forbid the call.
    let left = capabilities::held().unwrap_or(held);
    let system_calls = filter(&allowed).unwrap_or_else(|why| {
        lacks.push(format!("seccomp: {why}"));
        0
    });
    let Allowed { taps, xdps, .. } = allowed;
    let (allowed_paths, ruleset) =
        files.map_or((Vec::new(), None), |files| (files.allowed_paths, files.ruleset));
    // A late thread still uses the descriptor.
    std::mem::forget(ruleset);
    let capabilities = capabilities::names(left);
    let state = State { landlock, allowed_paths, system_calls, capabilities, taps, xdps, lacks };
    Ok(STATE.get_or_init(|| state))
}

/// Makes the rules for files; returns the version of Landlock too.
fn landlock(allowed: &Allowed) -> Result<(u32, Files), String> {
    let version = each_thread::landlock_version().map_err(|error| error.to_string())?;
    if version < LEAST_LANDLOCK {
        return Err(format!("version {version} permits no new sockets"));
    }
    let files = Files::new(allowed).map_err(|error| error.to_string())?;
    Ok((version, files))
}

/// Installs the filter of system calls; returns the number of allowed calls.
fn filter(allowed: &Allowed) -> Result<usize, String> {
    trap::install().map_err(|error| error.to_string())?;
    let filter = Filter::new(allowed).map_err(|error| error.to_string())?;
    filter.install().map_err(|error| error.to_string())?;
    Ok(filter.allowed())
}
