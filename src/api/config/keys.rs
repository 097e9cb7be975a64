//! The keys of a port: one entry of one table for each.
//!
//! [`Settings`] has the settings of a port of any kind. The table makes the fields of [`Settings`].
//! From a key's line in the table come also the forms of the command line, the files and the
//! control socket, the text that is saved and compared, the time when a change takes effect,
//! `--help`, the completions, the manual, the commented example, the interface's parameters and the
//! tables of the documentation. A new key is a line here, a type, and the code that uses the value.

use std::os::fd::RawFd;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::amount::FloodRates;
use super::claims::Shared;
use super::kind::Kind;
use super::raw::Setting;
use super::types::{
    ADDRESSES, ADMIN, ALLOW_SERVER, ALLOWED_IPS, ALLOWED_MACS, BRIDGE, BURST, ETHERTYPES,
    FILTER_NAMES, GROUP, GUARD, INHERITED, INTERFACE, IO, LABEL, MAC, MEMORY, MODE, MTU, NAME,
    NATIVE, NETNS, OFFLOAD, ON_OFF, PASS, PEER, PERMISSIONS, QUEUES, RATE, RING_SIZE, RULE,
    SNAPLEN, SOCKET, SOCKET_TYPE, SPAN, STORM, SWITCHED, TRUNK, VERDICT, VLAN, WAY, WORKER,
};
use super::types::{
    Admin, AllowedMac, Ethertype, FilterNames, Guard, Memory, Mode, Offload, Server, Slot,
    SocketType, formatted, is_list,
};
use base::frame::{MacAddr, Prefix};
use base::limits;
use switch::filter::{FilterRule, Span, Verdict};
use switch::mirror::Way;
use switch::{Bridge, Rate, ReservedSet, Size, VlanId, VlanSet};
use sys::tap_ring::Io;

impl Kind {
    /// Returns the keys of the kind's entries.
    pub fn keys(self) -> impl Iterator<Item = &'static Key> {
        KEYS.iter().filter(move |key| key.kinds.contains(&self))
    }

    /// Returns the key with this name.
    pub fn key(self, name: &str) -> Option<&'static Key> {
        self.keys().find(|key| key.name == name)
    }

    /// Returns the text of `--help` about the keys of this kind, without `name`.
    pub(crate) fn help(self) -> String {
        let keys = self.keys().filter(|key| key.name != "name");
        let lines = keys.map(|key| {
            let tag = format!("{}={}", key.name, key.form(self).replace(" to ", ".."));
            let mut text = key.help.to_owned();
            match key.default(self).as_str() {
                _ if key.is_required() => text += " [required]",
                "" => {}
                default => text += &format!(" [default: {default}]"),
            }
            wrapped(&tag, if key.is_list { text + " [repeatable, or A,B]" } else { text }.as_str())
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Returns the keys that can be set while a port serves.
    pub fn live_keys(self) -> impl Iterator<Item = &'static Key> {
        self.keys().filter(move |key| key.effect(self) != Effect::Reopen)
    }
}

/// Returns a tag and its text in two columns, in lines of [`HELP_COLUMNS`].
fn wrapped(tag: &str, text: &str) -> String {
    let mut lines = vec![format!("  {tag:HELP_INDENT$}")];
    if tag.len() >= HELP_INDENT {
        lines.push(" ".repeat(HELP_INDENT + 2));
    }
    for word in text.split(' ') {
        if lines.last().is_none_or(|line| line.len() + 1 + word.len() > HELP_COLUMNS) {
            lines.push(" ".repeat(HELP_INDENT + 2));
        }
        if let Some(line) = lines.last_mut() {
            *line += " ";
            *line += word;
        }
    }
    lines.join("\n")
}

base::words! {
    /// When a change of a key takes effect.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    Effect {
        /// At once.
        Now "now",
        /// When a front-end connects again; a connected front-end keeps its offer.
        Reconnect "reconnect",
        /// With a new socket or interface: the front-end is disconnected.
        Reopen "reopen",
        /// At the next start of the switch.
        Restart "restart",
        /// For later ports.
        NewPorts "new_ports",
    }
}

/// A key of entries.
pub struct Key {
    /// Name in files and on the command line.
    pub name: &'static str,
    /// Kinds of entries that have the key.
    pub kinds: &'static [Kind],
    /// Example of a value, as in a file.
    pub(crate) example: &'static str,
    /// Purpose of the key.
    pub(crate) help: &'static str,
    /// True if the key may be given several times, and is a list in files.
    pub is_list: bool,
    /// True if values are numbers, or may be numbers.
    pub(crate) is_number: bool,
    /// True if lists, details and metrics show the key.
    pub is_shown: bool,
    /// True if a value may have commas.
    pub(super) has_commas: bool,
    /// Kind of the claim, if only one port may have a value.
    pub(super) claims: Option<Shared>,
    effect: Effect,
    form: fn(Kind) -> String,
    pub(super) read: fn(&mut Settings, &Setting) -> Result<(), String>,
    pub(super) format: fn(&Settings) -> Vec<String>,
    pub(super) copy: fn(&mut Settings, &Settings),
}

impl Key {
    /// Returns when a change takes effect. Only settings of the offer to a VM can wait for the VM's
    /// next session.
    pub fn effect(&self, kind: Kind) -> Effect {
        match (kind, self.effect) {
            (Kind::Template, _) => Effect::NewPorts,
            (Kind::Tap | Kind::Xdp | Kind::Stream | Kind::Vduse, Effect::Reconnect) => {
                Effect::Reopen
            }
            (_, effect) => effect,
        }
    }

    /// Returns the possible values: `on|off`, `68 to 65535`, `PATH`.
    pub(crate) fn form(&self, kind: Kind) -> String {
        (self.form)(kind)
    }

    /// Returns the default, or an empty text if the key has no default.
    pub fn default(&self, kind: Kind) -> String {
        (self.format)(&Settings::new(kind)).concat()
    }

    /// Returns the type in the interface of the control socket.
    pub fn varlink(&self) -> &'static str {
        match self.example.as_bytes().first() {
            _ if self.is_list => "[]string",
            Some(b'0'..=b'9') => "int",
            _ => "string",
        }
    }

    /// Returns the name with `_` in place of `-`.
    pub fn field(&self) -> String {
        self.name.replace('-', "_")
    }

    /// Returns true if each port of the key's kinds needs the key.
    pub(crate) fn is_required(&self) -> bool {
        matches!(self.claims, Some(Shared::Name | Shared::Socket | Shared::Interface))
            || self.kinds == MIRRORS && matches!(self.name, "from" | "to")
    }

    /// Returns true if the key is about a listening socket.
    pub(super) fn is_of_server(&self) -> bool {
        self.name.starts_with("socket-")
    }
}

/// Columns that clap leaves for help, of 100.
const HELP_COLUMNS: usize = 90;
const HELP_INDENT: usize = 22;

const NAMED: &[Kind] = &Kind::NAMED;
const PORTS: &[Kind] = &Kind::PORTS;
const MIRRORS: &[Kind] = &[Kind::Mirror];
const FILTERS: &[Kind] = &[Kind::Filter];
const GROUPS: &[Kind] = &[Kind::Group];
const SOCKETS: &[Kind] = &[Kind::Port, Kind::Stream];
const STREAMS: &[Kind] = &[Kind::Stream];
const GUARDED: &[Kind] = &[Kind::Port, Kind::Stream, Kind::Vduse, Kind::Template];
const STATIONS: &[Kind] = &[Kind::Port, Kind::Stream, Kind::Vduse];
const TAPS: &[Kind] = &[Kind::Tap];
const VDUSES: &[Kind] = &[Kind::Vduse];
const INTERFACES: &[Kind] = &[Kind::Tap, Kind::Xdp, Kind::Vduse];
const MODES: &[Kind] = &[Kind::Port, Kind::Xdp, Kind::Stream];
const VMS: &[Kind] = &[Kind::Port, Kind::Template];
const RINGS: &[Kind] = &[Kind::Port, Kind::Vduse, Kind::Template];
const OFFLOADED: &[Kind] = &[Kind::Port, Kind::Tap, Kind::Vduse, Kind::Template];
const QUEUED: &[Kind] = &[Kind::Port, Kind::Tap, Kind::Xdp, Kind::Template];
const ALL: &[Kind] = &[Kind::Port, Kind::Tap, Kind::Xdp, Kind::Stream, Kind::Vduse, Kind::Template];
const TAGGED: &[Kind] =
    &[Kind::Port, Kind::Tap, Kind::Xdp, Kind::Stream, Kind::Vduse, Kind::Mirror, Kind::Template];

macro_rules! port_keys {
    (|$kind:ident| $($name:literal $field:ident: $slot:ty = $default:expr, $type:ident, $kinds:expr,
        $effect:ident, $example:literal, $help:literal;)*) => {
        /// Settings of an entry.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct Settings {
            /// Kind of the entry.
            pub kind: Kind,
            $(#[doc = $help] pub $field: $slot,)*
        }

        impl Settings {
            /// Returns the settings of an entry without keys.
            pub fn new($kind: Kind) -> Settings {
                Settings { kind: $kind, $($field: $default,)* }
            }
        }

        /// All keys, in the order of writing.
        pub static KEYS: &[Key] = &[$(Key {
            name: $name,
            kinds: $kinds,
            example: $example,
            help: $help,
            is_list: is_list::<_, $slot>(&$type),
            is_number: $type.is_number,
            is_shown: $type.is_shown,
            has_commas: $type.has_commas,
            claims: $type.claims,
            effect: Effect::$effect,
            form: $type.form,
            read: |settings, setting| {
                let one = ($type.read)(setting, settings.kind)?;
                settings.$field.store(one)
            },
            format: |settings| formatted(&$type, &settings.$field),
            copy: |to, from| to.$field.clone_from(&from.$field),
        },)*];
    };
}

// name, field: type of the field = default, type of the key, kinds, effect of a change, example,
// help
port_keys! { |kind|
    "name" name: String = String::new(), NAME, NAMED, Reopen, "\"vm1\"",
        "The name: letters, digits, `.`, `_` and `-`.";
    "socket" socket: Option<PathBuf> = None, SOCKET, SOCKETS, Reopen, "\"/run/vioswitch/vm1.sock\"",
        "Path of the Unix socket for the front-end or the stream's peer, at most 107 bytes.";
    "mode" mode: Mode = Mode::usual(kind), MODE, MODES, Reopen, "\"server\"",
        "`server`: listen on the socket; `client`: connect to the socket, again after each loss. \
         For XDP: take frames in the interface's driver (`native`), in the kernel (`generic`), or \
         in the driver if the driver can (`auto`).";
    "type" socket_type: SocketType = SocketType::Stream, SOCKET_TYPE, STREAMS, Reopen, "\"stream\"",
        "`stream`: each frame follows its length; `dgram`: each frame is a datagram.";
    "socket-mode" socket_mode: u32 = limits::DEFAULT_SOCKET_MODE, PERMISSIONS, SOCKETS, Reopen,
        "\"0660\"",
        "Octal permissions of the socket, for mode=server.";
    "socket-group" socket_group: Option<u32> = None, GROUP, SOCKETS, Reopen, "\"kvm\"",
        "Group of the socket, a name or a number, for mode=server.";
    "fd" fd: Option<RawFd> = None, INHERITED, &[], Reopen, "3",
        "The number of an inherited socket.";
    "ifname" ifname: Option<String> = None, INTERFACE, INTERFACES, Reopen, "\"vioswitch0\"",
        "Name of the interface, at most 15 bytes; the switch creates a TAP that does not exist, \
         and the interface of a VDUSE device.";
    "netns" netns: Option<String> = None, NETNS, VDUSES, Reopen, "\"web\"",
        "Network namespace for the interface: a name in /run/netns, or the number of a process.";
    "ring-size" ring_size: u16 = limits::DEFAULT_RING_SIZE, RING_SIZE, VDUSES, Reopen, "256",
        "Descriptors of each ring.";
    "queues" queues: u16 = limits::DEFAULT_QUEUES, QUEUES, QUEUED, Reconnect, "1",
        "Queue pairs offered to a VM, or queues of the interface; an XDP uplink uses the first \
         queues.";
    "mac" mac: Vec<MacAddr> = Vec::new(), MAC, PORTS, Now, "[\"52:54:00:00:00:01\"]",
        "A static address, which other ports cannot learn.";
    "offload" offload: Offload = Offload::ON, OFFLOAD, OFFLOADED, Reconnect, "\"on\"",
        "Offloads: checksums and segmentation (`on`), both only for frames that the VM sends \
         (`send`, for XDP programs), checksums (`csum`), or none (`off`).";
    "io" io: Io = Io::Auto, IO, TAPS, Reopen, "\"auto\"",
        "`uring`: write up to 64 frames by one call of io_uring; `write`: write each frame by a \
         call; `auto`: `uring` if the kernel permits io_uring.";
    "coalesce" coalesce: bool = true, SWITCHED, TAPS, Reopen, "\"on\"",
        "Write TCP segments that follow each other in a burst as one packet.";
    "platform" platform: bool = false, ON_OFF, VMS, Reconnect, "\"off\"",
        "Serve a network card with iommu_platform=on (SEV, TDX).";
    "flood" flood: bool = true, SWITCHED, ALL, Now, "\"on\"",
        "Send frames for unknown addresses to the port.";
    "isolated" isolated: bool = false, SWITCHED, ALL, Now, "\"off\"",
        "`on`: no frame passes between this port and other ports with `isolated=on`.";
    "learn" learn: bool = true, SWITCHED, ALL, Now, "\"on\"",
        "Learn the source addresses of the port's frames.";
    "max-addresses" max_addresses: Option<u32> = None, ADDRESSES, ALL, Now, "1",
        "Largest number of addresses that the port learns, beside static addresses. Without the \
         key a VM or stream learns 4096 addresses, an uplink any number.";
    "multicast-router" multicast_router: Option<bool> = None, SWITCHED, ALL, Now, "\"on\"",
        "`on`: a multicast router or querier may be behind the port. With --multicast-snooping the \
         port gets the frames of all groups, and queries from the port count. Without the key an \
         uplink has `on`, other ports `off`.";
    "mtu" mtu: Option<u16> = None, MTU, ALL, Now, "1500",
        "Longest packet for the port, and the MTU of an interface that the switch creates.";
    "rate-in" rate_in: Option<Rate> = None, RATE, ALL, Now, "\"10mbit,5kpps\"",
        "Highest rate from the port into the switch, in bits a second, packets a second, or both. \
         Frames beyond the rate wait at the sender.";
    "burst-in" burst_in: Option<Size> = None, BURST, ALL, Now, "\"64kib\"",
        "Largest burst from the port, in bytes, packets (`100pkt`), or both. Without the key the \
         larger of 64 KiB, or 64 packets, and 10 ms of rate-in.";
    "rate-out" rate_out: Option<Rate> = None, RATE, ALL, Now, "\"10mbit,5kpps\"",
        "Highest rate from the switch to the port. Frames beyond the rate wait at a VM that sends \
         them, or are dropped.";
    "burst-out" burst_out: Option<Size> = None, BURST, ALL, Now, "\"64kib\"",
        "Largest burst to the port. Without the key as for burst-in, with rate-out.";
    "storm" storm: Option<FloodRates> = None, STORM, ALL, Now, "\"bcast:1kpps,mcast:1kpps\"",
        "Highest rate at which frames of the port are flooded, in bits or packets a second: \
         broadcasts (`bcast`), multicasts (`mcast`), frames for unknown addresses (`unknown`). \
         Frames beyond the rate are dropped.";
    "pass" pass: Option<ReservedSet> = None, PASS, ALL, Now, "\"lldp,stp\"",
        "Link-local protocols whose frames pass between ports that have the protocol in this key: \
         `lldp`, `lacp`, `stp`.";
    "admin" admin: Admin = Admin::Up, ADMIN, PORTS, Now, "\"up\"",
        "`down`: keep the front-end connected, and drop and count frames from and for the port.";
    "bridge" bridge: String = Bridge::DEFAULT_NAME.to_owned(), BRIDGE, ALL, Now, "\"default\"",
        "Bridge of the port; the port reaches only ports of this bridge.";
    "vlan" vlan: Option<VlanId> = None, VLAN, TAGGED, Now, "10",
        "VLAN of an access port: frames have no tag at the port, and a tag on a trunk. Of a \
         mirror: copy only frames of this VLAN.";
    "trunk" trunk: Option<VlanSet> = None, TRUNK, ALL, Now, "\"10,20-29\"",
        "VLANs whose frames enter and leave the port with a tag.";
    "native" native: Option<VlanId> = None, NATIVE, ALL, Now, "1",
        "VLAN of a trunk's frames without a tag; 0: these frames are in no VLAN. Without the key \
         these frames are dropped.";
    "guard" guard: Guard = Guard::Off, GUARD, GUARDED, Now, "\"off\"",
        "`on`: drop frames whose sender's addresses are not the port's, and frames of servers; \
         `log`: only count these frames.";
    "allowed-macs" allowed_macs: Vec<AllowedMac> = Vec::new(), ALLOWED_MACS, STATIONS, Now,
        "[\"own\"]",
        "For `guard`: a source address of the port. `own` stands for the addresses of `mac` and is \
         the default if the port has `mac`; `vrrp` stands for addresses of virtual routers.";
    "allowed-ips" allowed_ips: Vec<Prefix> = Vec::new(), ALLOWED_IPS, STATIONS, Now,
        "[\"10.0.0.5\", \"fd00::/64\"]",
        "For `guard`: an IP address or prefix of the port. Without the key all addresses are \
         allowed.";
    "allow-server" allow_server: Vec<Server> = Vec::new(), ALLOW_SERVER, GUARDED, Now,
        "[\"dhcp\"]",
        "For `guard`: a server that may be behind the port.";
    "ethertypes" ethertypes: Vec<Ethertype> = Vec::new(), ETHERTYPES, GUARDED, Now,
        "[\"0x88b5\"]",
        "For `guard`: an allowed EtherType beside IPv4, IPv6, ARP and RARP; `llc`: frames of IEEE \
         802.2.";
    "filter" filter: Option<FilterNames> = None, FILTER_NAMES, ALL, Now, "\"web\"",
        "Filters of the port, separated by commas: their rules decide about the packets to and \
         from the VM. The first rule that matches a packet decides.";
    "default-in" default_in: Option<Verdict> = None, VERDICT, FILTERS, Now, "\"drop\"",
        "Verdict about packets to the VM that match no rule. The first filter of a port with this \
         key decides; without the key packets are accepted.";
    "default-out" default_out: Option<Verdict> = None, VERDICT, FILTERS, Now, "\"accept\"",
        "Verdict about packets from the VM that match no rule.";
    "rules" rules: Vec<FilterRule> = Vec::new(), RULE, FILTERS, Now,
        "[\"in accept tcp from 10.0.0.0/8 to port 22,443\"]",
        "A rule: direction, verdict, protocols, `from` and `to` with addresses and ports.";
    "addresses" addresses: Vec<Span> = Vec::new(), SPAN, GROUPS, Now, "[\"10.0.0.53\"]",
        "An address, prefix or range of the group.";
    "ports" ports: Vec<String> = Vec::new(), PEER, GROUPS, Now, "[\"vm3\"]",
        "A port whose allowed-ips belong to the group.";
    "from" from: Option<String> = None, PEER, MIRRORS, Now, "\"vm1\"",
        "The port whose frames are copied.";
    "to" to: Option<String> = None, PEER, MIRRORS, Now, "\"monitor\"",
        "Port that gets the copies and no other frames; frames from this port are dropped.";
    "dir" dir: Way = Way::Both, WAY, MIRRORS, Now, "\"both\"",
        "Copy frames that come from the port (`in`), frames that were delivered to the port \
         (`out`), or both.";
    "snaplen" snaplen: Option<u32> = None, SNAPLEN, MIRRORS, Now, "128",
        "Number of bytes of each frame that are copied, without a request for offloads; without \
         the key whole frames.";
    "worker" worker: Option<u16> = None, WORKER, RINGS, Now, "\"auto\"",
        "Number of the worker that serves the port's rings, or `auto`: by load.";
    "memory" memory: Memory = Memory::Any, MEMORY, VMS, Reconnect, "\"any\"",
        "`prealloc`: refuse a VM without QEMU's prealloc=on.";
    "label" label: Option<String> = None, LABEL, ALL, Now, "\"tenant 7\"",
        "A text of at most 64 characters, shown in lists, events and metrics.";
}
