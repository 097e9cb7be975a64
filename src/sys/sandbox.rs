//! The sandbox: what the process can do once it is ready, even if an attacker runs code in it.
//!
//! * `files`: which files and directories it may open (Landlock);
//! * `filter`: which system calls it may make (seccomp), by the lists in `calls`; `trap`: what
//!   becomes of the others;
//! * `capabilities`: which capabilities remain;
//! * `each_thread`: how all threads get what the kernel keeps for each of them.
//!
//! Nothing of it can be taken back. What the kernel does not offer is left out and reported.

mod calls;
mod capabilities;
mod each_thread;
mod files;
mod filter;
mod trap;

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::thread::CapabilitySet;

pub use calls::{ALWAYS, ELSEWHERE, FATAL, TAP, XDP};
pub use each_thread::unblock;
pub use files::Use;
use files::{Files, Place};
pub use filter::{Filter, names};
pub use trap::forbidden;

/// The first version of Landlock with links between directories, by which a new socket gets its
/// name.
const LEAST_LANDLOCK: u32 = 2;
/// What each version of Landlock adds.
const COVERS: [(u32, &str); 4] =
    [(2, "files, links"), (3, "truncation"), (4, "TCP"), (5, "device ioctls")];

/// Files that every switch reads: of the kernel; of groups, for sockets; the program itself, for
/// the lines of a panic.
pub const READ: [&str; 4] = ["/proc", "/etc/group", "/etc/nsswitch.conf", "/proc/self/exe"];

/// What a switch may have and do after its start.
#[derive(Debug, Clone, Default)]
pub struct Allowed {
    /// Files and directories, and what for.
    pub paths: Vec<(PathBuf, Use)>,
    /// It may open TAPs.
    pub taps: bool,
    /// It may open XDP uplinks.
    pub xdps: bool,
    /// It may give sockets to groups.
    pub groups: bool,
    /// It may connect to sockets, also those of other users.
    pub connects: bool,
    /// The TCP port at which it may listen.
    pub tcp: Option<u16>,
}

/// What a process confined itself to.
#[derive(Debug, Clone, Default)]
pub struct State {
    /// The version of Landlock in force; zero if none is.
    pub landlock: u32,
    /// Files and directories that may be opened.
    places: Vec<Place>,
    /// How many system calls are allowed; zero if all are.
    pub system_calls: usize,
    /// Capabilities that remain.
    pub capabilities: Vec<&'static str>,
    /// It may open TAPs.
    pub taps: bool,
    /// It may open XDP uplinks.
    pub xdps: bool,
    /// Parts of the sandbox that the kernel refused, with the reason.
    lacks: Vec<String>,
}

static STATE: OnceLock<State> = OnceLock::new();
/// XDP uplinks can be had no more: bpf(2) would end the process.
static NO_BPF: AtomicBool = AtomicBool::new(false);
/// The log has that a thread waits to be confined.
static TOLD: AtomicBool = AtomicBool::new(false);

impl State {
    /// What Landlock covers.
    pub fn covers(&self) -> Vec<&'static str> {
        COVERS.iter().filter(|(since, _)| *since <= self.landlock).map(|(_, what)| *what).collect()
    }

    /// Parts of the sandbox that the kernel refused, with the reason, and threads that are not in
    /// the sandbox yet.
    pub fn lacks(&self) -> Vec<String> {
        let late = match each_thread::late() {
            (0, _) => None,
            (count, None) => Some(format!("{count} threads wait for the kernel to confine them")),
            (count, Some(error)) => Some(format!("{count} threads wait to be confined: {error}")),
        };
        self.lacks.iter().cloned().chain(late).collect()
    }

    /// Directories where sockets may be made.
    pub fn directories(&self) -> impl Iterator<Item = &Path> {
        let sockets = self.places.iter().filter(|place| place.purpose == Use::Sockets);
        sockets.map(|place| place.path.as_path())
    }
}

/// The sandbox of this process; none if it is in none.
pub fn state() -> Option<&'static State> {
    STATE.get()
}

/// False if bpf(2) would end the process.
pub fn permits_bpf() -> bool {
    !NO_BPF.load(Ordering::Acquire)
}

/// Logs what was refused for the first time, and once that a thread waits as it cannot be confined;
/// for a thread that looks now and then.
pub fn log() {
    trap::log();
    if let (late @ 1.., Some(error)) = each_thread::late()
        && !TOLD.swap(true, Ordering::Relaxed)
    {
        log::error!("sandbox: {late} threads wait to be confined: {error}");
    }
}

/// Where sockets may be made, if the sandbox permits none in `directory`.
pub fn excludes(directory: &Path) -> Option<String> {
    let state = STATE.get().filter(|state| state.landlock > 0)?;
    let shown = || state.directories().map(|path| path.display().to_string()).collect::<Vec<_>>();
    (!files::covers(&state.places, directory)).then(|| shown().join(", "))
}

/// Confines all threads to what is allowed, as far as the kernel can. Once, in the first thread. An
/// error says that another thread is left outside of a sandbox that the kernel does offer.
pub fn enter(mut allowed: Allowed) -> io::Result<&'static State> {
    let mut lacks = Vec::new();
    let held = capabilities::held().unwrap_or(CapabilitySet::empty());
    // Without it no program can be loaded, so that the call is an attack.
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
    // While it may still ask.
    let left = capabilities::held().unwrap_or(held);
    let system_calls = filter(&allowed).unwrap_or_else(|why| {
        lacks.push(format!("seccomp: {why}"));
        0
    });
    let Allowed { taps, xdps, .. } = allowed;
    let (places, ruleset) = files.map_or((Vec::new(), None), |files| (files.places, files.ruleset));
    // A thread that is late reads the descriptor yet.
    std::mem::forget(ruleset);
    let capabilities = capabilities::names(left);
    let state = State { landlock, places, system_calls, capabilities, taps, xdps, lacks };
    Ok(STATE.get_or_init(|| state))
}

/// Rules for files, and the version of Landlock.
fn landlock(allowed: &Allowed) -> Result<(u32, Files), String> {
    let version = each_thread::landlock_version().map_err(|error| error.to_string())?;
    if version < LEAST_LANDLOCK {
        return Err(format!("version {version} permits no new sockets"));
    }
    let files = Files::new(allowed).map_err(|error| error.to_string())?;
    Ok((version, files))
}

/// Filters system calls; how many are allowed.
fn filter(allowed: &Allowed) -> Result<usize, String> {
    trap::install().map_err(|error| error.to_string())?;
    let filter = Filter::new(allowed).map_err(|error| error.to_string())?;
    filter.install().map_err(|error| error.to_string())?;
    Ok(filter.allowed())
}
