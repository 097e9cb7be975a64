//! The checked configuration, and the error about a bad one.

use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

use log::LevelFilter;

use super::claims::{Claimed, Shared, place};
use super::keys::Settings;
use super::kind::Kind;
use super::latency::Latency;
use super::raw::Complaint;
use super::types::Offload;
use super::value::MetricsSocket;
use base::frame::MacAddr;
use base::words::counted;

/// Name of the program, with which each message begins.
pub(super) const PROGRAM: &str = "vioswitchd";

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

/// Returns numbers of ports by kind in words; only ports and TAPs if there are none.
pub fn summary(counts: [usize; Kind::PORTS.len()]) -> String {
    let all = Kind::PORTS.into_iter().zip(counts);
    let told = all.filter(|(kind, count)| *count > 0 || matches!(kind, Kind::Port | Kind::Tap));
    told.map(|(kind, count)| counted(count, kind.noun())).collect::<Vec<_>>().join(", ")
}

/// Who gave a port its settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The configuration: its files and the command line.
    Config,
    /// A client; the port stays until a client deletes it.
    Kept,
    /// A client; the port goes with the process.
    Transient,
    /// A socket in the directory of ports by plug, of this user.
    Plug(u32),
}

impl Origin {
    /// The user whose socket a port has that came by itself.
    pub fn plugged_by(self) -> Option<u32> {
        if let Origin::Plug(uid) = self { Some(uid) } else { None }
    }

    /// Returns the name for clients.
    pub fn name(self) -> &'static str {
        match self {
            Origin::Config => "config",
            Origin::Kept => "kept",
            Origin::Transient => "transient",
            Origin::Plug(_) => "plug",
        }
    }
}

/// An entry of the configuration: settings and their origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Settings of the entry.
    pub settings: Settings,
    /// Origin of the entry.
    pub origin: Origin,
    /// Location of the socket, for comparison.
    pub place: Option<PathBuf>,
}

impl Entry {
    /// Makes an entry and finds the place of the socket, which may wait for a file system:
    /// [`place`].
    pub fn new(settings: Settings, origin: Origin) -> Entry {
        let place = settings.socket.as_deref().map(place);
        Entry { settings, origin, place }
    }

    /// Returns the values that no other port may have.
    pub fn claims(&self) -> Vec<Claimed> {
        let segment = self.settings.segment();
        let address = |mac: &MacAddr| Claimed::Address(segment.clone(), *mac);
        let socket = self.place.iter().cloned().map(Claimed::Socket);
        let namespace = self.settings.scope(Shared::Interface);
        let interface = |name: &String| Claimed::Interface(namespace.clone(), name.clone());
        let interface = self.settings.ifname.iter().map(interface);
        socket.chain(interface).chain(self.settings.mac.iter().map(address)).collect()
    }
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
    /// A datagram socket, for the peer of a stream.
    Datagrams {
        /// Path of the socket of the side that listens.
        path: PathBuf,
        /// Permission bits and group of the socket, if the switch listens; otherwise the switch
        /// connects to the peer.
        server: Option<(u32, Option<u32>)>,
    },
    /// A socket that the parent process left open, connected or listening. The descriptor was a
    /// socket when the configuration was checked.
    Fd(RawFd),
    /// A VDUSE device, whose driver is the kernel's.
    Vduse(Box<VduseDevice>),
}

/// The properties of a VDUSE device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VduseDevice {
    /// Name of the device, and of the port.
    pub name: String,
    /// Name of the interface.
    pub ifname: String,
    /// Network namespace of the interface, by name or the number of a process.
    pub netns: Option<String>,
    /// Descriptors of each ring.
    pub ring_size: u16,
    /// Offloads that the driver is offered.
    pub offload: Offload,
    /// Address of the interface; none for an address by chance.
    pub mac: Option<MacAddr>,
    /// MTU of the interface; none for the driver's default.
    pub mtu: Option<u16>,
}

impl Endpoint {
    /// Returns the path of the socket, unless the socket was inherited.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Endpoint::Server { path, .. }
            | Endpoint::Client { path }
            | Endpoint::Datagrams { path, .. } => Some(path),
            Endpoint::Fd(_) | Endpoint::Vduse(_) => None,
        }
    }

    /// Returns the group that the switch gives its socket.
    pub fn group(&self) -> Option<u32> {
        match self {
            Endpoint::Server { group, .. }
            | Endpoint::Datagrams { server: Some((_, group)), .. } => *group,
            _ => None,
        }
    }

    /// Returns true if the switch connects to sockets of others.
    pub fn connects(&self) -> bool {
        matches!(self, Endpoint::Client { .. } | Endpoint::Datagrams { .. })
    }
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

/// Returns the error with one line about a bad argument.
pub(super) fn usage_error(text: &str) -> UsageError {
    UsageError { lines: vec![format!("{PROGRAM}: {text}")] }
}

/// Returns the first of several complaints as an error of one line: only one bad argument is
/// reported.
pub(super) fn one_line(complaints: &[Complaint]) -> Result<(), UsageError> {
    match complaints.first() {
        None => Ok(()),
        Some(first) => Err(usage_error(&first.to_string())),
    }
}
