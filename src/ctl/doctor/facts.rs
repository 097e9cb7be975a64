//! All facts about a switch and its host that the doctor judges. `gather` and its neighbours
//! read the facts; `of_switch`, `of_filters`, `of_guest` and `of_uplink` find the faults.

use std::collections::BTreeMap;

use api::wire::{self, Finding, PortDetails, Status};

use crate::filters::check;
use crate::links::{self, Link, Qdisc};
use crate::qemu::Item;

/// Facts that the doctor found out. A missing fact could not be read, and `skipped` says why.
#[derive(Debug, Default)]
pub struct Facts {
    /// Version of this program.
    pub(crate) client_version: String,
    /// Answer of `GetStatus`.
    pub status: Status,
    /// Ports, TAPs and streams.
    pub ports: Vec<Port>,
    /// Findings of the switch itself.
    pub findings: Vec<Finding>,
    /// Faults of filters.
    pub(crate) filters: Vec<check::FilterFault>,
    /// Steps of a reload, or the reason why the files cannot be read.
    pub reload: Option<Result<Vec<wire::Step>, String>>,
    pub daemon: Daemon,
    pub host: Host,
    /// Facts that the doctor did not read, with the reasons.
    pub skipped: Vec<String>,
}

/// A port, TAP or stream.
#[derive(Debug, Default)]
pub struct Port {
    /// Answer of `GetPortDetails`.
    pub details: PortDetails,
    /// Keys of the port, as a file would have them.
    pub keys: BTreeMap<String, String>,
    /// Process that is connected.
    pub front_end: Option<Process>,
    /// Processes that have the port's socket in their command line, of users for whom the socket
    /// is; and a user who is to connect to the socket.
    pub others: Vec<Process>,
    /// Bytes on huge pages that the front-end has, of the bytes that the guest may use; none if the
    /// doctor cannot look at the front-end.
    pub huge: Option<u64>,
    /// Directories from the root to the socket's directory, and the socket.
    pub path: Vec<Step>,
    /// Place of a VDUSE device's interface, if the doctor found the interface.
    pub found: Option<Found>,
}

/// The place of a VDUSE device's interface.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Found {
    pub(crate) ifname: String,
    /// Network namespace: a name, the number of a process, or empty for the switch's own.
    pub(crate) netns: String,
}

/// A process that is a front-end, or wants to be a front-end.
#[derive(Debug, Default, Clone)]
pub struct Process {
    /// Number of the process; 0 if only the user is known.
    pub(crate) pid: i64,
    pub(crate) name: String,
    pub(crate) uid: u32,
    pub(crate) groups: Vec<u32>,
    /// Options of the command line that are about the port, and about KVM.
    pub(crate) items: Vec<Item>,
    /// Bytes of memory that other processes can map; none if the mappings cannot be read.
    pub(crate) shared: Option<u64>,
    /// Directories from the process's root to the port's socket, and the socket, as the process
    /// sees them; empty if the process sees the same files as the switch.
    pub(crate) way: Vec<Step>,
}

/// A directory or a socket, with its mode and owners.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub(crate) path: String,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// The switch's process.
#[derive(Debug, Default)]
pub struct Daemon {
    /// True if the switch's program was replaced since the switch was started.
    pub(crate) replaced: bool,
    pub(crate) unit: Option<Unit>,
    /// Time for which the doctor watched the threads, in nanoseconds.
    pub(crate) looked: u64,
    /// Name of each worker, and for how long the worker was ready and had no CPU during `looked`.
    pub(crate) waits: Vec<(String, u64)>,
}

/// A unit of systemd.
#[derive(Debug, Default)]
pub struct Unit {
    pub(crate) name: String,
    /// Files that change settings of the packaged unit, each with the settings.
    pub(crate) overrides: Vec<String>,
    /// True if the unit's files have changed since systemd read them.
    pub(crate) stale: bool,
}

/// A unit whose switch does not answer; `unit` is empty if no unit exists.
#[derive(Debug, Default)]
pub struct Ended {
    pub(crate) unit: String,
    /// State of the unit, such as `failed (failed)`.
    pub(crate) state: String,
    /// Result of the unit, such as `exit-code`.
    pub(crate) result: String,
    /// The exit status, or the signal.
    pub(crate) status: String,
    /// Last lines of the unit's log.
    pub(crate) said: Vec<String>,
    /// Control sockets of running switches.
    pub(crate) others: Vec<String>,
    /// Names of the VDUSE devices of all switches.
    pub(crate) devices: Vec<String>,
}

/// Facts about the machine.
#[derive(Debug, Default)]
pub struct Host {
    /// Interfaces, as `ip -json -details address` lists interfaces.
    pub(crate) links: Vec<Link>,
    /// Queueing disciplines of the interfaces that matter, as `tc -json qdisc` lists them.
    pub(crate) qdiscs: BTreeMap<String, Vec<Qdisc>>,
    /// Interfaces that spread frames over CPUs, each with the mechanism.
    pub(crate) spread: BTreeMap<String, &'static str>,
    /// Ends of veth pairs, by the interface on this side.
    pub(crate) peers: BTreeMap<String, Peer>,
    /// True if the kernel shows frames on bridges to the IP firewall.
    pub(crate) bridge_filtered: bool,
    pub(crate) forward: Option<Forward>,
    /// Names of the VDUSE devices of all switches that are connected with the kernel's driver.
    pub(crate) devices: Vec<String>,
    /// Number of free huge pages, by their size in bytes.
    pub(crate) free_huge: BTreeMap<u64, u64>,
}

/// The two ends of a veth pair.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// The words in front of a command that runs the command in the namespace of this end.
    pub(crate) enter: Vec<String>,
    /// True if this side passes on frames whose checksums are not finished.
    pub(crate) leaves_sums: bool,
    /// Name of the other end.
    pub(crate) peer: String,
    /// The words in front of a command that runs the command in the namespace of the other end.
    pub(crate) enter_peer: Vec<String>,
    /// True if the other end passes on frames whose checksums are not finished to this side.
    pub(crate) peer_leaves_sums: bool,
    /// True if an XDP program takes the frames of the other end.
    pub(crate) peer_has_program: bool,
}

/// Verdict of the firewall on frames that are forwarded.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Forward {
    /// True if the firewall drops frames that no rule accepts.
    pub(crate) drops: bool,
    /// True if Docker's chain for the rules of others exists.
    pub(crate) docker: bool,
    /// Interfaces that a rule accepts; "*" stands for all interfaces of bridges.
    pub(crate) accepts: Vec<String>,
}

impl Port {
    pub(crate) fn name(&self) -> &str {
        &self.shown().name
    }

    /// Returns the port of the answer to `GetPort`.
    pub(crate) fn shown(&self) -> &wire::Port {
        &self.details.port
    }

    pub(crate) fn is_tap(&self) -> bool {
        self.shown().kind == "tap"
    }

    /// True if an interface of the host, and no socket, is behind the port.
    pub(crate) fn is_uplink(&self) -> bool {
        self.is_tap() || self.shown().kind == "xdp"
    }

    /// Returns the process that the switch names as connected.
    pub(crate) fn pid(&self) -> Option<i32> {
        self.shown().front_end.as_ref().map(|who| who.pid)
    }

    /// Returns the path of the port's socket; empty if the port has no socket.
    pub(crate) fn socket(&self) -> &str {
        self.details.socket.as_ref().map_or("", |socket| &socket.path)
    }

    /// True if the file system of the port's socket did not answer the switch, or could not be
    /// asked because the switch waits for other file systems. The doctor does not ask the file
    /// system again.
    pub(crate) fn is_silent(&self) -> bool {
        let socket = self.details.socket.as_ref();
        socket.is_some_and(|socket| socket.answers == Some(false)) || !self.is_looked_at()
    }

    /// True unless the switch says that the switch did not look at the port's socket.
    pub(crate) fn is_looked_at(&self) -> bool {
        self.details.socket.as_ref().is_none_or(|socket| socket.looked_at != Some(false))
    }

    /// True if the switch connects and the front-end listens.
    pub(crate) fn is_client(&self) -> bool {
        self.keys.get("mode").is_some_and(|mode| mode == "client")
    }

    /// Returns the number of a key.
    pub(crate) fn number(&self, key: &str) -> Option<u64> {
        self.keys.get(key)?.parse().ok()
    }

    /// Returns the regions of the guest's memory in files of this kind.
    pub(crate) fn memory(&self, backing: &str) -> impl Iterator<Item = &wire::Region> {
        self.regions().iter().filter(move |region| region.backing == backing)
    }

    pub(crate) fn regions(&self) -> &[wire::Region] {
        self.details.session.as_ref().map_or(&[], |session| &session.memory)
    }
}

impl Facts {
    /// Returns the command that starts the switch again.
    pub(crate) fn restart(&self) -> String {
        match &self.daemon.unit {
            Some(unit) => format!("systemctl restart {}", unit.name),
            None => format!("kill {}, and start vioswitchd as before", self.status.pid),
        }
    }
}

impl Host {
    /// Returns the interface of this name.
    pub(crate) fn link(&self, name: &str) -> Option<&Link> {
        links::named(&self.links, name)
    }

    /// Returns the interfaces in a bridge.
    pub(crate) fn members(&self, bridge: &str) -> impl Iterator<Item = &Link> {
        self.links.iter().filter(move |link| link.master.as_deref() == Some(bridge))
    }
}
