//! Types of parameters and answers: each type has its name in the interface.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Parameters;
use super::interface::structs;
#[cfg(test)]
use super::tests::{Fields, Varlink, body, item, lines, named};
use crate::config::{Effect, Kind};
use crate::diagnosis::Level;
use base::stats::{Direction, PortState as State};

/// States that a client can wait for, each with further words for the state. A port in a later
/// state also counts as in the earlier states.
pub const AWAITED: [(State, &[&str]); 3] =
    [(State::Listening, &[]), (State::Negotiating, &[]), (State::Attached, &["up"])];

/// Returns the state that a client waits for by this word.
pub fn awaited(word: &str) -> Option<State> {
    let is_it = |(state, more): &&(State, &[&str])| state.name() == word || more.contains(&word);
    AWAITED.iter().find(is_it).map(|(state, _)| *state)
}

base::words! {
    /// Role of a port for multicast groups.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    #[allow(missing_docs)]
    GroupRole { Querier "querier", Router "router", Member "member", }
}

structs! { answered [serde(default)]
    /// Frames and bytes that passed, and dropped frames by the name of the reason. drop_ages:
    /// seconds since the last drop of each reason, if this process counted the drop.
    Traffic {
        frames: u64, bytes: u64, drops: BTreeMap<String, u64>, drop_ages: BTreeMap<String, u64>,
    }
    /// A port that sent frames for which another port had no room, and the number of these frames
    /// in the last seconds; older frames count less.
    Sender { port: String, frames: u64 }
    /// The process that is connected to a port's or a stream's socket. pid is 0 in another PID
    /// namespace.
    FrontEnd { pid: i32, uid: u32 }
    /// A key of a port whose value changes; null if the key is not set.
    Change { key: String, from: Option<String>, to: Option<String>, effect: Effect }
    /// A port. Counters grow from the port's beginning on. offloads: offloads of frames that the
    /// port may get; send_offloads: offloads that frames of the port may request. flood, isolated,
    /// learn, max_addresses, admin, guard, bridge, vlan, trunk, native, worker, label: the port's
    /// settings of these names. pending: settings for the next front-end. owner: the user of the
    /// socket, of origin plug. io: of a TAP, uring or write, by which frames are written now; of an
    /// XDP uplink native or generic, where the XDP program runs; io_refused: the reason against
    /// uring, or native, if the setting permits this way. dropped_from: the senders of frames that
    /// lately found no room at the port, the sender with most frames first, five at most.
    Port {
        name: String, number: u16, kind: String as Kind, origin: String as Origin, owner?: u32,
        state: State, front_end?: FrontEnd, interface?: String, io?: String,
        io_refused?: String, queues: usize, mtu?: u32,
        offloads: Vec<String>, send_offloads: Vec<String>,
        #[serde(flatten)] keys: ShownKeys,
        pending: Vec<Change>, addresses: usize, dropped_from: Vec<Sender>,
        r#in: Traffic, out: Traffic, attaches: u64, session_errors: u64, peers_refused: u64,
        rings_broken: u64, learn_refused: u64, panics: u64,
    }
    /// A port's socket: path, permissions in octal digits, owner and group, which are missing while
    /// the file does not exist. answers: false if the file system did not answer for a second;
    /// otherwise missing. looked_at: false if the switch did not examine the file because the
    /// switch waits for too many other file systems.
    Socket { path: String, mode?: String, uid?: u32, gid?: u32, answers?: bool, looked_at?: bool }
    /// A region of a guest's memory; address is the guest's address, in hexadecimal digits.
    Region { address: String, bytes: u64, backing: String as Backing, page: u64 }
    /// The result of the negotiation with a front-end: features of virtio and of the vhost-user
    /// protocol by name, and the guest's memory.
    Session { features: Vec<String>, protocol_features: Vec<String>, memory: Vec<Region> }
    /// One ring of a port, by its index; queues of a TAP have the indices of a guest's rings.
    /// no_memory: started, and without memory for now. polled: without a kick. available:
    /// descriptor chains that the driver made available and did not get back. Fields of the session
    /// are missing without a session, or if the session did not answer in time. worker: the number
    /// of the worker that serves the ring. idle: seconds since the ring was last used.
    Ring {
        index: usize, queue: usize, direction: Direction, size?: u64, started?: bool,
        no_memory?: bool, enabled?: bool, broken?: bool, polled?: bool, worker?: usize,
        available?: u64, idle?: u64, frames: u64, bytes: u64, drops: BTreeMap<String, u64>,
        kicks: u64, signals: u64, signals_suppressed: u64, waits: u64, bad_buffers: u64,
        checksummed: u64, segmented: u64, segments: u64, segments_lost: u64, coalesced: u64,
    }
    /// A thread of the data path. GetWorkers has the number of cycles in a second.
    Worker {
        number: u64, turns: u64, busy_turns: u64, busy_cycles: u64, idle_cycles: u64, bursts: u64,
        frames: u64, wakeups: u64, empty_wakeups: u64, spins_found: u64, spins_empty: u64,
        signals: u64, signals_suppressed: u64, signals_failed: u64, lock_misses: u64,
        lock_parks: u64, moves: u64, stalls: u64,
    }
    /// An address and its port. bridge, vlan: bridge and VLAN of the address, unless the address is
    /// in the default bridge and in no VLAN. idle: seconds since the last frame from a learned
    /// address. held: the address flapped between ports, and stays at this port for a while.
    /// origin: of a static address.
    Address {
        mac: String, port: String, bridge?: String, vlan?: u16, r#static: bool, idle?: u64,
        held?: bool, origin?: String as Origin,
    }
    /// A mirror. dir: in, out or both, seen from the switch. vlan: only frames of this VLAN are
    /// copied. snaplen: bytes of each frame; whole frames if missing. active: both ports exist.
    /// copies: copies that reached the port to; lost: copies that the port to lost.
    Mirror {
        name: String, from: String, to: String, dir: String, vlan?: u16, snaplen?: u32,
        origin: String as Origin, active: bool, copies: u64, lost: u64,
    }
    /// A filter. ports: ports that name the filter. defaults: counts of packets that matched no
    /// rule, in and out, at ports whose default this filter states, or that name the filter first
    /// and have no default.
    Filter {
        name: String, origin: String as Origin, default_in: Option<String>,
        default_out: Option<String>, ports: Vec<String>, rules: Vec<FilterRule>,
        defaults: Vec<FilterRule>,
    }
    /// A rule with the frames that the rule decided about, frames of its connections included, and
    /// the connections that began by the rule, since the filter of the port last changed.
    FilterRule { rule: String, frames: u64, bytes: u64, connections: u64 }
    /// A connection of a port. local: the end behind the port. id: of queries of ICMP. outgoing:
    /// the local end sent the first packet. seconds: until the connection times out. filter, rule:
    /// the filter and the number of the rule, from 1, that permitted the connection, unless the
    /// filter has changed since; without rule the default permitted the connection.
    Connection {
        port: String, vlan?: u16, protocol: String, local: String, local_port?: u16,
        remote: String, remote_port?: u16, id?: u16, outgoing: bool, state: String,
        replied: bool, seconds: u64, filter?: String, rule?: u64,
    }
    /// A port that gets frames of multicast groups. role: querier, router, which gets frames of all
    /// groups, or member. bridge, vlan: bridge and VLAN of the groups, unless the groups are in the
    /// default bridge and in no VLAN. group: of a member; protocol: igmp or mld, of a querier. age:
    /// seconds since the port was heard. limited: frames of the group go only to members and
    /// routers; of a querier: frames of groups with members do so.
    GroupPort {
        role: GroupRole, port: String, bridge?: String, vlan?: u16, group?: String,
        protocol?: String, age?: u64, limited?: bool,
    }
    /// Connections of clients now and in all, and connections that the switch closed: because too
    /// many clients were connected, for an invalid message, for a message that was too long or too
    /// slow, and for unread replies.
    Clients {
        connected: u64, accepted: u64, refused: u64, malformed: u64, too_long: u64, too_slow: u64,
        unread: u64,
    }
    /// An event. sequence: the event's number, from 1 at the start of the switch. time:
    /// microseconds since 1970; monotonic: of CLOCK_MONOTONIC. text: as in the log. label: the
    /// port's present label. suppressed: number of events of this port that the switch left out
    /// before this event, because the port had too many events. Other fields belong to the kind.
    Event {
        sequence: u64, time: u64, monotonic: u64, kind: String as EventKind, text: String,
        port?: String, label?: String, suppressed?: u64, why?: String, pid?: i32, uid?: u32,
        features?: u64, ring?: u64, seconds?: u64, code?: String, mac?: String, from?: String,
        moves?: u64, at?: String, direction?: Direction, reason?: String, frames?: u64,
        file?: String, rule?: String, address?: String, dropped?: bool,
    }
    /// The way of frames to some uplinks: io, as of a port, and the reason; the number of uplinks,
    /// and the names of the first uplinks.
    TapWrites { io: String, why: String, taps: usize, names: Vec<String> }
    /// The confinement of the process. landlock: the version in force, 0 without Landlock, and the
    /// rights that Landlock covers; directories: directories where sockets may be made.
    /// system_calls: number of allowed system calls, 0 for all; forbidden: number of refused calls.
    /// capabilities: remaining capabilities. uplinks: kinds of uplinks that may be added. lacks:
    /// restrictions that the kernel lacks.
    Sandbox {
        landlock: u32, covers: Vec<String>, directories: Vec<String>, system_calls: usize,
        forbidden: BTreeMap<String, u64>, capabilities: Vec<String>, uplinks: Vec<String>,
        lacks: Vec<String>,
    }
    /// The directory of ports by plug, and the keys that these ports share.
    Plug { directory: String, keys: Vec<ConfigKey> }
    /// A reload that is undone unless ConfirmConfig comes within seconds, and the reload's caller.
    Unconfirmed { seconds: u64, pid: i32, uid: u32 }
    /// A reason why the switch is degraded. code: a code of docs/events.md, which do not change.
    /// subject: the port. since: microseconds since 1970.
    Degradation { code: String, subject: Option<String>, text: String, since: u64 }
    /// A reason for a drop: the directions in which the reason is counted, the meaning, and advice.
    DropReason { name: String, directions: Vec<Direction>, meaning: String, advice: String }
    /// A finding. code: a code of docs/doctor.md, which do not change. port: null for the switch as
    /// a whole; with: other ports concerned. cause and command, which removes the fault, are for
    /// people.
    Finding {
        level: Level, code: String, port?: String, with: Vec<String>, cause: String,
        command: String,
    }
    /// A copy of a frame. time: nanoseconds since 1970. length: bytes of the whole frame; data: the
    /// first bytes in base64, none of a broken frame. dropped: the reason of the drop.
    Packet {
        port: String, direction: Direction, time: u64, length: u64, data: String,
        dropped?: String,
    }
    /// A key of the configuration with its value, or with its values if the key may be repeated.
    ConfigKey { key: String, values: Vec<String> }
    /// A port, with the keys of the configuration. overridden: keys of a port of the configuration
    /// that Set changed. unused: the reason why the entry is not in force.
    ConfigEntry {
        kind: String, name: String, origin: String as Origin, keys: Vec<ConfigKey>,
        overridden: Vec<String>, unused?: String,
    }
    /// A step of a reload: "+" adds a port, "-" deletes a port, "~" changes a port, or, without
    /// kind and name, the switch. detaches: the process that is disconnected.
    Step {
        sign: String, kind?: String, name?: String, origin?: String as Origin,
        changes: Vec<Change>, detaches?: i32,
    }
}

structs! { given [allow(missing_docs)]
    /// An instruction of classic BPF, as in struct sock_filter.
    Instruction { code: u16, jt: u8, jf: u8, k: u32 }
}

/// Numbers of ports by kind.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PortCounts(pub Parameters);

impl PortCounts {
    /// Returns the number of ports of a kind.
    pub fn of(&self, kind: Kind) -> u64 {
        self.0.get(kind.count_name()).and_then(Value::as_u64).unwrap_or_default()
    }
}

/// Settings of a port that lists and details show, by their keys.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ShownKeys(pub Parameters);

/// Name of an entry, and its keys.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EntryKeys(pub Parameters);

/// Name of an entry, and the keys that can be changed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LiveKeys(pub Parameters);

/// Returns the values of a key; none if the key is not set.
pub fn values<'k>(keys: &'k [ConfigKey], key: &str) -> &'k [String] {
    keys.iter().find(|known| known.key == key).map_or(&[], |known| &known.values)
}

/// Returns the first value of a key.
pub fn value<'k>(keys: &'k [ConfigKey], key: &str) -> Option<&'k str> {
    values(keys, key).first().map(String::as_str)
}
