//! All that is known of a switch and its host when they are judged. Reading it is `gather`'s and
//! its neighbours', saying what is wrong with it is for `of_switch`, `of_guest` and `of_uplink`.

use std::collections::BTreeMap;

use api::wire::{self, Finding, PortDetails, Status};

use crate::links::{self, Link, Qdisc};
use crate::qemu::Item;

/// Facts that the doctor found out. A missing fact could not be read, and `skipped` says why.
#[derive(Debug, Default)]
pub struct Facts {
    /// Of this program.
    pub client_version: String,
    /// `GetStatus`
    pub status: Status,
    /// Ports, TAPs and streams.
    pub ports: Vec<Port>,
    /// Findings of the switch itself.
    pub findings: Vec<Finding>,
    /// Steps of a reload; or why the files cannot be read.
    pub reload: Option<Result<Vec<wire::Step>, String>>,
    pub daemon: Daemon,
    pub host: Host,
    /// Facts that the doctor did not read, with the reasons.
    pub skipped: Vec<String>,
}

/// A port, TAP or stream.
#[derive(Debug, Default)]
pub struct Port {
    /// `GetPortDetails`
    pub details: PortDetails,
    /// Its keys, as a file would have them.
    pub keys: BTreeMap<String, String>,
    /// Who is connected.
    pub front_end: Option<Process>,
    /// Processes that have its socket in their command line, of users whom it is for; and a user
    /// that is to connect there.
    pub others: Vec<Process>,
    /// Bytes on huge pages that its front-end has, of those that its guest may use; none if it
    /// cannot be looked at.
    pub huge: Option<u64>,
    /// From the root to the socket's directory, and the socket.
    pub path: Vec<Step>,
}

/// A process that is a front-end, or wants to be one.
#[derive(Debug, Default, Clone)]
pub struct Process {
    /// 0 if only its user is known.
    pub pid: i64,
    pub name: String,
    pub uid: u32,
    pub groups: Vec<u32>,
    /// Of its command line what is about this port, and about KVM.
    pub items: Vec<Item>,
    /// Bytes of memory that others can map; none if its mappings cannot be read.
    pub shared: Option<u64>,
    /// From its root to the port's socket, as it sees it; empty if it sees what the switch does.
    pub way: Vec<Step>,
}

/// A directory or a socket, and who may what with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub path: String,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

/// The switch's process.
#[derive(Debug, Default)]
pub struct Daemon {
    /// Its program was replaced since it was started.
    pub replaced: bool,
    pub unit: Option<Unit>,
    /// How long threads were looked at, in nanoseconds.
    pub looked: u64,
    /// Name of each worker, and how long it was ready and had no CPU meanwhile.
    pub waits: Vec<(String, u64)>,
}

/// A unit of systemd's.
#[derive(Debug, Default)]
pub struct Unit {
    pub name: String,
    /// Files that change what the packaged one sets, with what that is.
    pub overrides: Vec<String>,
    /// They have changed since systemd read them.
    pub stale: bool,
}

/// A unit whose switch does not answer; empty if there is none.
#[derive(Debug, Default)]
pub struct Ended {
    pub unit: String,
    /// Such as `failed (failed)`.
    pub state: String,
    /// Such as `exit-code`.
    pub result: String,
    /// The exit status, or the signal.
    pub status: String,
    /// The last lines of its log.
    pub said: Vec<String>,
    /// Control sockets of switches that run.
    pub others: Vec<String>,
}

/// The machine.
#[derive(Debug, Default)]
pub struct Host {
    /// Interfaces, as `ip -json -details address` tells of them.
    pub links: Vec<Link>,
    /// Queueing disciplines of the interfaces that matter, as `tc -json qdisc` does.
    pub qdiscs: BTreeMap<String, Vec<Qdisc>>,
    /// Interfaces that spread frames over CPUs, and by what.
    pub spread: BTreeMap<String, &'static str>,
    /// The other ends of veth pairs, by the interface on this side.
    pub peers: BTreeMap<String, Peer>,
    /// Frames on bridges are shown to the firewall of IP.
    pub bridge_filtered: bool,
    pub forward: Option<Forward>,
    /// Free pages, by their size in bytes.
    pub free_huge: BTreeMap<u64, u64>,
}

/// The two ends of a veth pair.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// The words in front of a command that runs the command in the namespace of this end.
    pub enter: Vec<String>,
    /// This side passes frames on whose checksums are not finished.
    pub leaves_sums: bool,
    /// Name of the other end.
    pub peer: String,
    /// The words in front of a command that runs the command in the namespace of the other end.
    pub enter_peer: Vec<String>,
    /// It passes such frames on to this side.
    pub peer_leaves_sums: bool,
    /// A program of XDP takes its frames.
    pub peer_has_program: bool,
}

/// Verdict of the firewall on frames that are forwarded.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Forward {
    /// The firewall drops what no rule accepts.
    pub drops: bool,
    /// Docker's chain for rules of others.
    pub docker: bool,
    /// Interfaces that a rule accepts; "*" for all of a bridge.
    pub accepts: Vec<String>,
}

impl Port {
    pub fn name(&self) -> &str {
        &self.shown().name
    }

    /// Returns the port of the answer to `GetPort`.
    pub fn shown(&self) -> &wire::Port {
        &self.details.port
    }

    pub fn is_tap(&self) -> bool {
        self.shown().kind == "tap"
    }

    /// An interface of the host is behind it, and no socket.
    pub fn is_uplink(&self) -> bool {
        self.is_tap() || self.shown().kind == "xdp"
    }

    /// The process that the switch says is connected.
    pub fn pid(&self) -> Option<i32> {
        self.shown().front_end.as_ref().map(|who| who.pid)
    }

    /// The path of its socket; empty if it has none.
    pub fn socket(&self) -> &str {
        self.details.socket.as_ref().map_or("", |socket| &socket.path)
    }

    /// The file system of its socket did not answer the switch, or could not be asked as the switch
    /// waits for others: it is not asked again.
    pub fn is_silent(&self) -> bool {
        let socket = self.details.socket.as_ref();
        socket.is_some_and(|socket| socket.answers == Some(false)) || !self.is_looked_at()
    }

    /// False if the switch did not look at its socket.
    pub fn is_looked_at(&self) -> bool {
        self.details.socket.as_ref().is_none_or(|socket| socket.looked_at != Some(false))
    }

    /// The switch connects and the front-end listens.
    pub fn is_client(&self) -> bool {
        self.keys.get("mode").is_some_and(|mode| mode == "client")
    }

    /// The number of a key.
    pub fn number(&self, key: &str) -> Option<u64> {
        self.keys.get(key)?.parse().ok()
    }

    /// The regions of its guest's memory in files of this kind.
    pub fn memory(&self, backing: &str) -> impl Iterator<Item = &wire::Region> {
        self.regions().iter().filter(move |region| region.backing == backing)
    }

    pub fn regions(&self) -> &[wire::Region] {
        self.details.session.as_ref().map_or(&[], |session| &session.memory)
    }
}

impl Facts {
    /// The command that starts the switch again.
    pub fn restart(&self) -> String {
        match &self.daemon.unit {
            Some(unit) => format!("systemctl restart {}", unit.name),
            None => format!("kill {}, and start vioswitchd as before", self.status.pid),
        }
    }
}

impl Host {
    /// An interface by its name.
    pub fn link(&self, name: &str) -> Option<&Link> {
        links::named(&self.links, name)
    }

    /// The interfaces in a bridge.
    pub fn members(&self, bridge: &str) -> impl Iterator<Item = &Link> {
        self.links.iter().filter(move |link| link.master.as_deref() == Some(bridge))
    }
}
