//! Ports, drop reasons, addresses and degradations as clients see them.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::Samples;
use crate::degraded::Degradation;
use crate::desired::Desired;
use api::wire::{self, State};
use base::frame::offload::Offloads;
use base::limits::CONTROL_SHOWN_REASONS;
use base::stats::{Counter, Direction, DropReason, Traffic};
use datapath::port::device::IoMode;
use datapath::port::{Endpoint, Port, PortTable};
use switch::{Entry, EntryAge, Fdb, Station};
use sys::{clock, sandbox};

/// The names of offloads, as ethtool(8) and virtio have them.
const OFFLOADS: [(Offloads, &str); 6] = [
    (Offloads::CSUM, "csum"),
    (Offloads::TSO4, "tso4"),
    (Offloads::TSO6, "tso6"),
    (Offloads::ECN, "ecn"),
    (Offloads::USO4, "uso4"),
    (Offloads::USO6, "uso6"),
];

/// Returns a port, TAP or stream, without the fields that only its settings have.
pub fn port(port: &Port, fdb: &Fdb, samples: &Samples) -> wire::Port {
    let stats = &port.stats;
    let now = clock::coarse_seconds();
    let counted = port.traffic();
    let [input, output] = Direction::ALL.map(|direction| {
        traffic(&counted[direction as usize], |reason, count| {
            samples.drop_age(port, (direction, reason), count, now)
        })
    });
    let writes = port.as_uplink().and_then(|(tap, _)| tap.writes());
    wire::Port {
        name: port.name.clone(),
        number: port.id,
        kind: port.kind_name().to_owned(),
        state: state(port),
        front_end: port.front_end().map(|who| wire::FrontEnd { pid: who.pid, uid: who.uid }),
        interface: port.interface().map(str::to_owned),
        io: writes.as_ref().map(|now| now.io.to_owned()),
        io_refused: writes.and_then(|now| now.why),
        queues: queues(port),
        mtu: port.mtu.get(),
        offloads: offloads(port.config.offload),
        send_offloads: offloads(port.config.send),
        addresses: fdb.port_len(port.id),
        r#in: input,
        out: output,
        attaches: stats.attaches.get(),
        session_errors: stats.session_errors.get(),
        peers_refused: stats.peers_refused.get(),
        rings_broken: stats.rings_broken.get(),
        learn_refused: stats.learn_refused.get(),
        panics: stats.panics.get(),
        ..wire::Port::default()
    }
}

/// Returns how frames are written to the uplinks, in a group for each way and reason. There are few
/// reasons: settings, and errors of the kernel.
pub fn tap_writes(ports: &PortTable) -> Vec<wire::TapWrites> {
    let mut groups: Vec<wire::TapWrites> = Vec::new();
    for port in ports.iter() {
        let Some((uplink, _)) = port.as_uplink() else { continue };
        let Some(IoMode { io, why, reason }) = uplink.writes() else { continue };
        let why = why.unwrap_or_else(|| reason.to_owned());
        let at = groups.iter().position(|group| group.io == io && group.why == why);
        let at = at.unwrap_or_else(|| {
            groups.push(wire::TapWrites { io: io.to_owned(), why, ..Default::default() });
            groups.len() - 1
        });
        groups[at].taps += 1;
        if groups[at].taps <= CONTROL_SHOWN_REASONS {
            groups[at].names.push(port.name.clone());
        }
    }
    groups
}

/// Returns the state of the process's sandbox as the control socket words it.
pub fn sandbox(state: &sandbox::State) -> wire::Sandbox {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let uplinks = [(state.taps, "tap"), (state.xdps, "xdp")];
    let uplinks = uplinks.iter().filter(|(may, _)| *may).map(|(_, kind)| (*kind).to_owned());
    let directories = state.directories().take(CONTROL_SHOWN_REASONS);
    wire::Sandbox {
        landlock: state.landlock,
        covers: words(&state.covers()),
        directories: directories.map(|path| path.to_string_lossy().into_owned()).collect(),
        system_calls: state.system_calls,
        forbidden: sandbox::forbidden().into_iter().collect(),
        capabilities: words(&state.capabilities),
        uplinks: uplinks.collect(),
        lacks: state.lacks(),
    }
}

/// Returns the texts of degradations, up to a limit, and how many more there are.
pub fn degraded(all: &[Degradation]) -> Vec<String> {
    let shown = all.iter().take(CONTROL_SHOWN_REASONS);
    let mut told: Vec<String> = shown.map(|one| one.text.clone()).collect();
    let more = all.len() - told.len();
    if more > 0 {
        told.push(format!("and {more} more"));
    }
    told
}

/// Returns degradations with their codes, for programs.
pub fn degradations(all: Vec<Degradation>) -> Vec<wire::Degradation> {
    let shown = all.into_iter().take(CONTROL_SHOWN_REASONS);
    let told = shown.map(|Degradation { code, subject, text, since }| wire::Degradation {
        code: code.name().to_owned(),
        subject,
        text,
        since,
    });
    told.collect()
}

/// Returns how far a port is with its front-end, or its interface.
pub fn state(port: &Port) -> State {
    match &port.endpoint {
        _ if port.is_removing() => State::Removing,
        _ if port.is_left_out() => State::LeftOut,
        _ if !port.policy.get().forwards => State::Disabled,
        Endpoint::Device(_) if port.is_up() && port.mtu.link_is_down() => State::Down,
        _ if port.is_up() => State::Attached,
        Endpoint::Guest(guest) if guest.front_end().is_some() => State::Negotiating,
        Endpoint::Device(device) if device.ifname().is_some() => State::Gone,
        Endpoint::Guest(_) | Endpoint::Device(_) => State::Listening,
    }
}

/// Returns the number of configured queue pairs: a VM's port has rings for twice as many.
fn queues(port: &Port) -> usize {
    match &port.endpoint {
        Endpoint::Guest(guest) => guest.tx.len().div_ceil(2),
        Endpoint::Device(device) => device.queues().len(),
    }
}

fn offloads(set: Offloads) -> Vec<String> {
    let set = OFFLOADS.iter().filter(|(one, _)| set.has(*one));
    set.map(|(_, name)| (*name).to_owned()).collect()
}

/// Returns the counters of one direction, with the age of each reason for a drop.
fn traffic(traffic: &Traffic, age: impl Fn(DropReason, u64) -> Option<u32>) -> wire::Traffic {
    let drops = happened(traffic.dropped().map(|(reason, count)| (reason.name(), count)));
    let ages = traffic
        .dropped()
        .filter_map(|(reason, count)| Some((reason.name().to_owned(), age(reason, count)?.into())));
    let (frames, bytes, drop_ages) = (traffic.frames, traffic.bytes, ages.collect());
    wire::Traffic { frames, bytes, drops, drop_ages }
}

/// Returns the counts that are not 0, by their names.
pub fn happened<'n>(counts: impl Iterator<Item = (&'n str, u64)>) -> BTreeMap<String, u64> {
    counts.filter(|(_, count)| *count > 0).map(|(name, count)| (name.to_owned(), count)).collect()
}

/// Returns the meaning of each reason for a drop.
pub fn reasons() -> wire::DropReasons {
    let told = DropReason::ALL.iter().map(|reason| wire::DropReason {
        name: reason.name().to_owned(),
        directions: Direction::ALL.into_iter().filter(|way| reason.is_counted(*way)).collect(),
        meaning: reason.meaning(),
        advice: reason.advice().to_owned(),
    });
    wire::DropReasons { reasons: told.collect() }
}

/// Returns an answer, or a part of an answer, with counters by their names.
pub fn counted<'c, T: DeserializeOwned + Default>(
    counters: impl Iterator<Item = (&'static str, &'c Counter)>,
) -> T {
    let told = counters.map(|(name, counter)| (name.to_owned(), counter.get().into())).collect();
    serde_json::from_value(Value::Object(told)).unwrap_or_default()
}

/// Returns an address, with its origin if it is static; none if its port is gone.
pub fn address(entry: &Entry, ports: &PortTable, desired: &Desired) -> Option<wire::Address> {
    let port = ports.get(entry.port)?.name.clone();
    let (idle, origin) = match entry.age {
        EntryAge::Static => {
            let origin = desired.origin_of_address(entry.station.mac, &port);
            (None, Some(origin.name().to_owned()))
        }
        EntryAge::Idle(idle) => (Some(idle.into()), None),
    };
    let Station { segment, mac } = entry.station;
    let policy = ports.policy(entry.port);
    // Of a bridge that the port has left only the number is known.
    let named = policy.segment(segment.vlan()) == segment && segment.bridge() != 0;
    Some(wire::Address {
        mac: mac.to_string(),
        port,
        bridge: named.then(|| policy.bridge.name().to_owned()),
        vlan: Some(segment.vlan()).filter(|vlan| *vlan != 0),
        r#static: origin.is_some(),
        idle,
        held: entry.held.then_some(true),
        origin,
    })
}
