//! Arguments and a TOML file, turned into one validated [`Config`].
//!
//! Flow: `sources` reads the files. `args` and `file` bring arguments and files into one untyped
//! form (`raw`), so each rule exists once. `validate` types every setting and keeps the setting's
//! place. `entries` lays the command line over the files and checks the values that two entries may
//! not share. `keys` is the table of a port's keys, and `types` has their types. `settings` reads
//! the keys of clients of the control socket by this table too. `rulebook` has the filters and
//! groups of all entries together.
//!
//! Rules: the error about a bad argument is one line that names the argument. The error about a bad
//! file has all errors of the file, each with its line, and with a replacement if one is known. No
//! code here opens a socket or a device: errors of opening appear in the daemon, and
//! `daemon::check` looks for them.

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
pub use kept::{Kept, Keys, Override, Unread, line_text, table_text};
pub use keys::{Effect, KEYS, Key, Kind, Settings};
pub use latency::Latency;
pub use nearest::nearest;
pub use oddities::Oddity;
pub use oddities::between::{Between, between};
pub use raw::{Value, shell_word};
pub use rulebook::{Finding, PortRules, Rulebook};
pub use settings::{Difference, Entry, Origin, Wrong};
pub use sources::{Text, Texts};
pub use types::{Admin, Guard, Memory, Mode, Offload, Server};
pub use value::is_port_name;

mod amount;
mod args;
mod cpus;
mod entries;
mod file;
mod kept;
mod keys;
mod latency;
mod nearest;
mod oddities;
mod raw;
mod rulebook;
mod scalars;
mod settings;
mod sources;
#[cfg(test)]
mod tests;
mod types;
mod validate;
mod value;

/// The checked configuration of the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Ports for VMs, then TAPs, then streams, each in the given order and with its origin. Names,
    /// sockets, interfaces and static addresses are distinct.
    pub ports: Vec<Entry>,
    /// Threads of the data path, 1 to [`base::limits::MAX_WORKERS`].
    pub workers: usize,
    /// CPUs to which the workers are bound in turn; empty if the kernel chooses.
    pub cpus: Vec<usize>,
    /// True if workers spin instead of sleeping.
    pub poll: bool,
    /// Time in which CPUs wake up while frames come.
    pub latency: Latency,
    /// Seconds after which a silent address is forgotten.
    pub age_seconds: u32,
    /// Control socket, through which clients show and change the running switch.
    pub control: Option<Control>,
    /// Socket at which metrics are served.
    pub metrics: Option<MetricsSocket>,
    /// Level of the log, unless the environment sets another level.
    pub log_level: LevelFilter,
    /// True if frames are forwarded between uplinks. Two uplinks in one bridge then form a loop.
    pub uplink_to_uplink: bool,
    /// True if an address that flaps between ports is held at one port for a while.
    pub mac_flap_damping: bool,
    /// True if frames of a multicast group go only to members of the group, while a querier is
    /// heard.
    pub multicast_snooping: bool,
    /// True if the process confines itself when the switch is ready.
    pub sandbox: bool,
    /// Directory in which each listening socket becomes a port.
    pub plug: Option<PathBuf>,
    /// Settings that ports by plug share.
    pub template: Settings,
    /// Warnings for the administrator, one line each.
    pub warnings: Vec<String>,
    /// Keys outside of entries, with values for keys that are set.
    pub words: Vec<(&'static str, Option<String>)>,
}

impl Config {
    /// Returns the settings of all ports of a kind.
    pub fn of(&self, kind: Kind) -> impl Iterator<Item = &Settings> {
        self.ports.iter().map(|entry| &entry.settings).filter(move |one| one.kind == kind)
    }

    /// Sorts ports by their kinds, which is the order of the ports' numbers.
    pub fn sort(&mut self) {
        self.ports.sort_by_key(|entry| entry.settings.kind);
    }

    /// Returns the numbers of ports, TAPs and streams in words.
    pub fn summary(&self) -> String {
        summary(Kind::PORTS.map(|kind| self.of(kind).count()))
    }
}

/// Returns numbers of ports, TAPs, XDP uplinks and streams in words; XDP uplinks and streams only
/// if there are any.
pub fn summary([ports, taps, xdps, streams]: [usize; 4]) -> String {
    let mut all = vec![counted(ports, "port"), counted(taps, "tap")];
    let others = [(xdps, "xdp uplink"), (streams, "stream")];
    all.extend(others.iter().filter(|(n, _)| *n > 0).map(|(n, noun)| counted(*n, noun)));
    all.join(", ")
}

/// The control socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Control {
    /// Path of the control socket, at most [`base::limits::MAX_SOCKET_PATH`] bytes.
    pub path: PathBuf,
    /// Group that owns the control socket, whose members may look at the switch; the group of the
    /// process if not given.
    pub group: Option<u32>,
    /// Group whose members may change the switch, beside root and the user of the process.
    pub admins: Option<u32>,
    /// Group whose members may capture frames, beside root and the user of the process.
    pub capture: Option<u32>,
}

/// Socket at which metrics are served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetricsSocket {
    /// A TCP port at an address of the host.
    Ip(SocketAddr),
    /// A socket in the file system.
    Unix(PathBuf),
    /// A socket that a service manager made, with the name `metrics`.
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

/// Way in which a port and its front-end connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// Listens on a socket, for one front-end after another.
    Server {
        /// Path of the socket, at most [`base::limits::MAX_SOCKET_PATH`] bytes.
        path: PathBuf,
        /// Permission bits of the socket.
        mode: u32,
        /// Group that owns the socket; the group of the process if not given.
        group: Option<u32>,
    },
    /// Connects to a front-end that listens, again after each loss.
    Client {
        /// Path of the front-end's socket.
        path: PathBuf,
    },
    /// A socket that the parent process left open, connected or listening. The descriptor was a
    /// socket when the configuration was checked.
    Fd(RawFd),
}

/// Reason why the program cannot run: print `lines` to standard error and exit with status 2.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .lines.join("\n"))]
pub struct UsageError {
    /// One line for a bad argument, or one line for each error of a bad file. No line contains a
    /// newline.
    pub lines: Vec<String>,
}

/// Resources of the machine that a configuration may use.
#[derive(Debug, Clone, Copy)]
pub struct Machine<'a> {
    /// Number of CPUs whose time the process may use; quotas count.
    pub cpus: usize,
    /// Numbers of the CPUs on which the process may run, ascending.
    pub allowed: &'a [usize],
}

/// The command line as read: its settings, and the name of the file.
#[derive(Debug)]
pub struct Request {
    /// File of `--config`.
    file: Option<PathBuf>,
    over: validate::Validated,
    cpus: usize,
    allowed: Vec<usize>,
    /// True if the program only reports errors.
    pub check: bool,
    /// True if files with errors prevent the start.
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
    /// Reads the command line `args`, which begins with the program's name, for `machine`.
    pub fn read<I>(args: I, machine: Machine<'_>) -> Result<Asked, UsageError>
    where
        I: IntoIterator,
        I::Item: Into<OsString>,
    {
        args::parse(args.into_iter().map(Into::into).collect(), machine)
    }

    /// Returns the file of `--config`, if there is one.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Reads the files, if the command line names a file.
    pub fn texts(&self) -> Result<Texts, UsageError> {
        let Some(path) = &self.file else { return Ok(Texts::default()) };
        sources::read(path).map_err(|error| args::usage_error(&format!("--config {error}")))
    }

    /// Lays the command line over the files in `texts`.
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

/// Returns the first of several complaints as an error of one line: only one bad argument is
/// reported.
fn one_line(complaints: &[raw::Complaint]) -> Result<(), UsageError> {
    match complaints.first() {
        None => Ok(()),
        Some(first) => Err(args::usage_error(&first.to_string())),
    }
}
