//! Methods of the switch, with parameters and answers.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Number;

use super::Parameters;
use super::errors::Fault;
use super::given::read;
use super::interface::{methods, structs};
#[cfg(test)]
use super::tests::{Fields, Varlink, body, item, lines, method, named};
use super::types::{
    Address, Change, Clients, ConfigEntry, ConfigKey, Connection, Degradation, DropReason,
    EntryKeys, Event, Filter, Finding, GroupPort, Instruction, LiveKeys, Mirror, Packet, Plug,
    Port, PortCounts, Ring, Sandbox, Session, Socket, Step, TapWrites, Unconfirmed, Worker,
};

/// Description of a method.
#[derive(Debug, Clone, Copy)]
pub struct MethodInfo {
    /// Name in the interface.
    pub name: &'static str,
    flags: &'static [&'static str],
}

impl MethodInfo {
    /// Returns true if the method answers in several parts.
    pub fn has_parts(self) -> bool {
        self.flags.contains(&"more")
    }

    /// Returns true if only callers with change rights may call the method.
    pub fn is_for_admins(self) -> bool {
        self.flags.contains(&"admin")
    }

    /// Returns true if only callers with capture rights may call the method.
    pub fn is_for_capture(self) -> bool {
        self.flags.contains(&"capture")
    }
}

/// Parameters of a method.
pub trait Method: Serialize {
    /// Answer, in one part or in each of several parts.
    type Answer: DeserializeOwned;

    /// Name in the interface.
    fn name(&self) -> String;
}

methods! {
    /// The switch as a whole. events: the number of the last event. degraded: a text for each part
    /// of the configuration that the switch does not serve. degradations: the first degradations,
    /// with codes. plug: the directory of ports by plug. config: the file of --config. state_dir:
    /// the directory of kept changes; without a directory all changes are transient. latency: as
    /// configured. sandbox: null without a sandbox.
    GetStatus {} -> Status {
        version: String, pid: u32, uptime: u64, workers: usize,
        #[serde(flatten)] counts: PortCounts, addresses: usize, events: u64,
        degraded: Vec<String>, degradations: Vec<Degradation>, unconfirmed: Option<Unconfirmed>,
        plug: Option<Plug>, config: Option<String>, state_dir: Option<String>, clients: Clients,
        latency: String, tap_writes: Vec<TapWrites>, sandbox: Option<Sandbox>,
    }
    /// All ports by their numbers, some in each reply: call the method with "more".
    [more] ListPorts {} -> Ports { ports: Vec<Port> }
    /// One port.
    GetPort { name: String } -> OnePort { port: Port }
    /// A port in detail. command: the name of the front-end's process. The switch waits a quarter
    /// of a second for the session, and a second for the file system of the socket. lists: keys of
    /// the port that are lists and not empty; settings: other keys that are neither defaults nor
    /// fields of Port. violations: frames that broke a rule of the port's guard, by rule.
    /// watched_by: mirrors of the port's frames; observes: mirrors whose copies the port gets.
    GetPortDetails { name: String } -> PortDetails {
        port: Port, socket?: Socket, command?: String, session?: Session, rings: Vec<Ring>,
        learn_static: u64, learn_held: u64, rate_waits: u64, log_suppressed: u64,
        lists: Vec<ConfigKey>, settings: Vec<ConfigKey>, violations: BTreeMap<String, u64>,
        watched_by: Vec<String>, observes: Vec<String>,
    }
    /// Answers when a port has reached a state: listening, negotiating or attached, which is the
    /// default and may be written up; or answers with TimedOut after timeout_ms milliseconds, a day
    /// at most.
    WaitForPort { name: String, state?: String as State, timeout_ms?: Number } -> WaitedFor {
        port: Port,
    }
    /// Adds an entry of a kind, by default a port for a virtual machine. The other parameters are
    /// the keys of vioswitchd's --port, --tap, --stream, --mirror, --filter or --group. By default
    /// the socket of a port or stream is NAME.sock beside the control socket. A path begins with
    /// "/". may_exist accepts an existing entry with the same settings. The answer has the number
    /// of a port, and the path of a socket that is not inherited. The entry stays until Delete. A
    /// transient entry, and each entry without a state_dir, ends with the process. A mirror copies
    /// frames of the port "from" to the port "to", and the port "to" gets no other frames.
    [admin] Add {
        kind?: String as EntryKind, may_exist?: bool, transient?: bool,
        #[serde(flatten)] keys: EntryKeys,
    } -> Added { number?: u16, socket?: String }
    /// Changes settings of an entry other than a mirror, all or none: the given settings, and the
    /// keys in unset, which get their defaults. Answers the changes, and when each change takes
    /// effect. A socket cannot be changed. The switch sets mtu on the interface of a TAP. A change
    /// of a port of the configuration stays until Reset, also after later reloads.
    [admin] Set {
        kind?: String as EntryKind, unset?: Vec<String>, #[serde(flatten)] keys: LiveKeys,
    } -> Changed { changes: Vec<Change> }
    /// Undoes the changes of Set, Delete and AddAddress at an entry of the configuration, and
    /// forgets kept changes and entries of this name that have no effect.
    [admin] Reset { name: String } -> WasReset { changes: Vec<Change> }
    /// Deletes a port, TAP or stream: disconnects the front-end, removes the socket or interface,
    /// and forgets the addresses. The entry must be of the kind, if a kind is given. A mirror,
    /// filter or group needs its kind, and is refused while another entry names the mirror, filter
    /// or group. The deletion of an entry of the configuration lasts until Reset. in_progress: the
    /// port's thread did not end within 2 s; the removal continues, and ListPorts has the port
    /// until the removal ends.
    [admin] Delete { name: String, kind?: String as EntryKind } -> Deleted { in_progress?: bool }
    /// All mirrors, by name.
    ListMirrors {} -> Mirrors { mirrors: Vec<Mirror> }
    /// All filters, or the filter of this name, one in each reply: call the method with "more". The
    /// counts of rules are of all ports together, or of port.
    [more] ListFilters { name?: String, port?: String } -> Filters { filters: Vec<Filter> }
    /// The connections of ports with a filter, or of one port, in no order, some in each reply:
    /// call the method with "more".
    [more] ListConnections { port?: String } -> Connections { connections: Vec<Connection> }
    /// Ends the connections of a port, or all: the next packet of each meets the rules.
    [admin] FlushConnections { port?: String } -> ConnectionsEnded { ended: u64 }
    /// The threads of the data path.
    GetWorkers {} -> Workers { cycles_per_second: u64, workers: Vec<Worker> }
    /// All reasons for a drop.
    GetDropReasons {} -> DropReasons { reasons: Vec<DropReason> }
    /// The present findings that the switch makes itself, the worst first, at most 256, some in
    /// each reply: call the method with "more".
    [more] GetFindings {} -> Findings { findings: Vec<Finding> }
    /// The addresses of a port, a bridge or a VLAN, or all addresses, some in each reply: call the
    /// method with "more".
    [more] ListAddresses { port?: String, bridge?: String, vlan?: Number } -> Addresses {
        addresses: Vec<Address>,
    }
    /// Queriers, routers and members of multicast groups, of a port, a bridge or a VLAN, or all,
    /// some in each reply: call the method with "more". The call is refused without multicast
    /// snooping.
    [more] ListGroups { port?: String, bridge?: String, vlan?: Number } -> Groups {
        groups: Vec<GroupPort>,
    }
    /// Forgets the learned addresses of a port, a bridge or a VLAN, or all learned addresses;
    /// static addresses stay. Frames for forgotten addresses are flooded until the addresses are
    /// learned again.
    [admin] FlushAddresses { port?: String, bridge?: String, vlan?: Number } -> Flushed {
        flushed: u64,
    }
    /// Events after the number since, or all kept events for 0, and then new events, unless follow
    /// is false: call the method with "more". Without since: only new events. lost: events that are
    /// no longer kept. A number above the last event's number is of an earlier process, and counts
    /// as 0.
    [more] Events { since?: Number, follow?: bool } -> EventList {
        events: Vec<Event>,
        lost?: u64,
    }
    /// Copies of frames that pass these ports, by default all ports: call the method with "more".
    /// The first reply, without packets, reports the beginning; the capture ends with the last of
    /// the ports, or with the connection. drops: only dropped frames. filter: a program as "tcpdump
    /// -ddd" prints programs, without the first line. snaplen: bytes of each frame. lost: copies
    /// that were not read in time. For root, the switch's user and the members of capture-group.
    [capture more] Capture {
        ports?: Vec<String>, drops?: bool, filter?: Vec<Instruction>, snaplen?: Number,
    } -> Packets { packets: Vec<Packet>, lost: u64 }
    /// Makes an address static on a port: adds the address to the port's setting mac, so that other
    /// ports cannot learn the address. An address that the port has is accepted; an address of
    /// another port is refused.
    [admin] AddAddress { mac: String, port: String } -> AddressAdded {}
    /// Deletes a static address from the setting mac of the address's port, and answers the port;
    /// the address can be learned again. port: needed if several ports have the address, each in a
    /// bridge or VLAN of its own.
    [admin] DeleteAddress { mac: String, port?: String } -> AddressDeleted { port: String }
    /// Explains the way of a frame of len bytes, 98 by default, that enters by a port, with the tag
    /// of vlan if vlan is given: each step in a sentence, and the verdict. ip: the frame's source
    /// address of IP, if the frame has one; with dst_ip the frame is a packet of proto (tcp by
    /// default, a name or number of rules of filters) from port sport to port dport, which begins a
    /// connection. frame: the first bytes in base64, as in data of Packet, in place of src, dst,
    /// vlan, ip and dst_ip. to: the port of steps and verdict; if src, dst and vlan are not given,
    /// the switch chooses addresses that are known behind the two ports. ports: the receivers; none
    /// if "to" is given and no frame can come from port. reason: the reason of a drop. The method
    /// sends and learns nothing.
    Trace {
        port: String, src?: String, dst?: String, len?: Number, vlan?: Number, ip?: String,
        dst_ip?: String, proto?: String, sport?: Number, dport?: Number, frame?: String,
        to?: String,
    } -> Traced {
        steps: Vec<String>, verdict: String, ports: Vec<String>, reason?: String,
    }
    /// Counters and states in the text format of Prometheus, a part in each reply: call the method
    /// with "more".
    [more] GetMetrics {} -> Metrics { text: String }
    /// The running configuration, some entries in each reply: call the method with "more". switch:
    /// the keys outside of entries; template: the keys of ports by plug that are set. The first
    /// reply has both.
    [more] GetConfig {} -> ConfigEntries {
        entries: Vec<ConfigEntry>, switch?: Vec<ConfigKey>, template?: Vec<ConfigKey>,
    }
    /// The steps of a ReloadConfig now, some in each reply: call the method with "more". The caller
    /// must be allowed to change the switch.
    [admin more] DiffConfig {} -> Steps { steps: Vec<Step> }
    /// Reads the configuration again and applies the differences to ports of files: all
    /// differences, or none if the reload can be undone. With confirm_seconds the old configuration
    /// is restored unless ConfirmConfig comes in time. The answer has 256 steps, or as many as fit
    /// into 64 KiB; suppressed: the number of further steps.
    [admin] ReloadConfig { confirm_seconds?: Number } -> Reloaded {
        summary: String, steps: Vec<Step>, suppressed?: u64, confirm_seconds?: u64,
    }
    /// Keeps the changes of a reload with confirm_seconds.
    [admin] ConfirmConfig {} -> Confirmed {}
}

/// All methods.
pub fn all() -> impl Iterator<Item = MethodInfo> {
    DECLARED.iter().copied()
}
