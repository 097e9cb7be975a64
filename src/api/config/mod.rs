//! Arguments and a TOML file, turned into one validated [`Config`].
//!
//! Flow: `sources` reads the files; `args` and `file` lower what was given to the same untyped form
//! (`raw`), so a rule exists once for both; `validate` types every setting and remembers where it
//! was given; `entries` lays the command line over the files and checks what two entries may not
//! share. `keys` is the table of a port's keys, `types` are their types; what a client of the
//! control socket gives is read by it too (`settings`).
//!
//! Rules: a bad argument is one line that names it; a bad file is all of its errors, each
//! with its line, and says what to write instead where that is known. Nothing here opens a
//! socket or a device: what can only fail when tried, fails in the daemon, and `daemon::check`
//! looks for it.

use std::ffi::OsString;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

use log::LevelFilter;

use base::words::counted;

pub use amount::limit_word;
pub use args::{first_line, split_commas};
pub use entries::{Places, Shared, place};
pub use keys::{Effect, KEYS, Key, Kind, Settings};
pub use latency::Latency;
pub use nearest::nearest;
pub use oddities::Oddity;
pub use oddities::between::{Between, between};
pub use raw::{Value, shell_word};
pub use settings::{Difference, Entry, Origin, Wrong};
pub use sources::{Text, Texts};
pub use types::{Admin, AllowedMac, Guard, Memory, Mode, Offload, Server};
pub use value::is_port_name;

mod amount;
mod args;
mod cpus;
mod entries;
mod file;
mod keys;
mod latency;
mod nearest;
mod oddities;
mod raw;
mod scalars;
mod settings;
mod sources;
#[cfg(test)]
mod tests;
mod types;
mod validate;
mod value;

/// Everything the daemon is configured with, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Ports for VMs, then TAPs, then streams, each in the order given and with who gave it. Names,
    /// sockets, interfaces and static addresses are distinct.
    pub ports: Vec<Entry>,
    /// Threads of the data path, 1 to [`base::limits::MAX_WORKERS`].
    pub workers: usize,
    /// CPUs the workers are bound to, in turn; empty if they run where the kernel puts them.
    pub cpus: Vec<usize>,
    /// Workers spin instead of sleeping.
    pub poll: bool,
    /// How soon CPUs wake up while frames come.
    pub latency: Latency,
    /// Seconds after which a silent address is forgotten.
    pub age_seconds: u32,
    /// Where the switch is looked at and changed while it runs.
    pub control: Option<Control>,
    /// Where metrics are asked for.
    pub metrics: Option<MetricsSocket>,
    /// Level of the log, unless the environment sets another one.
    pub log_level: LevelFilter,
    /// Frames are forwarded between two TAPs. Two TAPs in one bridge are then a loop.
    pub uplink_to_uplink: bool,
    /// An address that flaps between ports is held at one for a while.
    pub mac_flap_damping: bool,
    /// Frames of a multicast group go to its members, while a querier is heard.
    pub multicast_snooping: bool,
    /// The process confines itself when it is ready.
    pub sandbox: bool,
    /// A directory in which each listening socket becomes a port.
    pub plug: Option<PathBuf>,
    /// Settings that these ports have in common.
    pub template: Settings,
    /// Warnings for the administrator, a line each.
    pub warnings: Vec<String>,
    /// The keys outside of any entry, with their values where they have any.
    pub words: Vec<(&'static str, Option<String>)>,
}

impl Config {
    /// The settings of all ports of a kind.
    pub fn of(&self, kind: Kind) -> impl Iterator<Item = &Settings> {
        self.ports.iter().map(|entry| &entry.settings).filter(move |one| one.kind == kind)
    }

    /// Puts ports in the order of their kinds, which is that of their numbers.
    pub fn sort(&mut self) {
        self.ports.sort_by_key(|entry| entry.settings.kind);
    }

    /// How many ports, TAPs and streams, in words.
    pub fn summary(&self) -> String {
        summary(Kind::PORTS.map(|kind| self.of(kind).count()))
    }
}

/// So many ports, TAPs and, if there are any, XDP uplinks and streams, in words.
pub fn summary([ports, taps, xdps, streams]: [usize; 4]) -> String {
    let mut all = vec![counted(ports, "port"), counted(taps, "tap")];
    let others = [(xdps, "xdp uplink"), (streams, "stream")];
    all.extend(others.iter().filter(|(n, _)| *n > 0).map(|(n, noun)| counted(*n, noun)));
    all.join(", ")
}

/// The control socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Control {
    /// Its path, at most [`base::limits::MAX_SOCKET_PATH`] bytes.
    pub path: PathBuf,
    /// Group that owns it, whose members may look; the process's own if not given.
    pub group: Option<u32>,
    /// Group whose members may change the switch, beside root and the process's own user.
    pub admins: Option<u32>,
    /// Group whose members may look at frames, beside these two.
    pub capture: Option<u32>,
}

/// Where metrics are asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetricsSocket {
    /// A TCP port at an address of the host.
    Ip(SocketAddr),
    /// A socket in the file system.
    Unix(PathBuf),
    /// One that a service manager made, by the name `metrics`.
    Inherited,
}

impl fmt::Display for MetricsSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MetricsSocket::Ip(address) => address.fmt(f),
            MetricsSocket::Unix(path) => path.display().fmt(f),
            MetricsSocket::Inherited => f.write_str("fd"),
        }
    }
}

/// How a port and its front-end find each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// Listens on a socket, for one front-end after another.
    Server {
        /// Path of the socket, at most [`base::limits::MAX_SOCKET_PATH`] bytes.
        path: PathBuf,
        /// Permission bits of the socket.
        mode: u32,
        /// Group that owns the socket; the process's own if not given.
        group: Option<u32>,
    },
    /// Connects to a front-end that listens, again after each loss.
    Client {
        /// Path of the front-end's socket.
        path: PathBuf,
    },
    /// A socket left open by the parent process, connected or listening. It was a socket when
    /// the configuration was checked.
    Fd(RawFd),
}

impl Endpoint {
    /// Where the socket is, unless it was inherited.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Endpoint::Server { path, .. } | Endpoint::Client { path } => Some(path),
            Endpoint::Fd(_) => None,
        }
    }
}

/// Why nothing can be run: print `lines` to standard error and exit with status 2.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .lines.join("\n"))]
pub struct UsageError {
    /// One line for a bad argument; one for each error of a bad file. None contains a newline.
    pub lines: Vec<String>,
}

/// Resources of the machine that a configuration may use.
#[derive(Debug, Clone, Copy)]
pub struct Machine<'a> {
    /// CPUs' worth of time the process may use; quotas count.
    pub cpus: usize,
    /// Numbers of the CPUs it may run on, ascending.
    pub allowed: &'a [usize],
}

/// The command line as it was read: what it says, and where the rest stands.
#[derive(Debug)]
pub struct Request {
    /// The named file.
    file: Option<PathBuf>,
    over: validate::Validated,
    cpus: usize,
    allowed: Vec<usize>,
    /// Only say what is wrong.
    pub check: bool,
    /// Files with errors are no start.
    pub strict: bool,
    /// Where changes are kept that are made while the switch runs.
    pub state_dir: Option<PathBuf>,
}

/// Action that the command line requests.
#[derive(Debug)]
pub enum Asked {
    /// A configuration, to be run or checked.
    Request(Box<Request>),
    /// Print this to standard output and exit with status 0.
    Print(String),
}

impl Request {
    /// Reads the command line `args`, the program's name first, for `machine`.
    pub fn read<I>(args: I, machine: Machine<'_>) -> Result<Asked, UsageError>
    where
        I: IntoIterator,
        I::Item: Into<OsString>,
    {
        args::parse(args.into_iter().map(Into::into).collect(), machine)
    }

    /// The file that is named, if one is.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Reads the files, if one is named.
    pub fn texts(&self) -> Result<Texts, UsageError> {
        let Some(path) = &self.file else { return Ok(Texts::default()) };
        sources::read(path).map_err(|error| args::usage_error(&format!("--config {error}")))
    }

    /// The command line laid over what stands in `texts`.
    pub fn lay_over(&self, texts: &Texts) -> Result<Config, UsageError> {
        self.lay_over_at(texts, &place)
    }

    /// Lays the files below the command line, with the places of sockets by `places`.
    pub fn lay_over_at(&self, texts: &Texts, places: Places<'_>) -> Result<Config, UsageError> {
        let machine = Machine { cpus: self.cpus, allowed: &self.allowed };
        let under = file::check(&texts.files, machine, places)?;
        let (mut config, complaints) = entries::overlay(under, self.over.clone(), places);
        one_line(&complaints)?;
        if config.workers > self.cpus {
            let (workers, cpus) = (config.workers, counted(self.cpus, "CPU"));
            config.warnings.push(format!("{workers} workers share {cpus}: fewer forward more"));
        }
        let ports = config.ports.iter().flat_map(|entry| entry.settings.warnings());
        config.warnings.extend(ports);
        Ok(config)
    }
}

/// A bad argument is reported alone, in one line, however many there are.
fn one_line(complaints: &[raw::Complaint]) -> Result<(), UsageError> {
    match complaints.first() {
        None => Ok(()),
        Some(first) => Err(args::usage_error(&first.to_string())),
    }
}
