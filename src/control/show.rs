//! What is told of the switch's parts, as JSON: the types of `docs/io.vioswitch.Switch.varlink`.

use serde_json::{Map, Value, json};

use crate::config::Origin;
use crate::daemon::degraded::Degradation;
use crate::daemon::desired::Desired;
use crate::frame::offload::Offloads;
use crate::limits::CONTROL_SHOWN_REASONS;
use crate::port::{Endpoint, Port, PortTable};
use crate::stats::{Direction, DropReason, Drops, Traffic, WorkerStats};
use crate::switch::{Entry, EntryAge, Fdb};

/// The names of offloads, as ethtool(8) and virtio have them.
const OFFLOADS: [(Offloads, &str); 6] = [
    (Offloads::CSUM, "csum"),
    (Offloads::TSO4, "tso4"),
    (Offloads::TSO6, "tso6"),
    (Offloads::ECN, "ecn"),
    (Offloads::USO4, "uso4"),
    (Offloads::USO6, "uso6"),
];

/// A port, TAP or stream.
pub fn port(port: &Port, fdb: &Fdb) -> Value {
    let stats = &port.stats;
    let [input, output] = port.traffic();
    let mut told = json!({
        "name": port.name,
        "number": port.id,
        "kind": port.kind_name(),
        "state": state(port),
        "queues": queues(port),
        "offloads": offloads(port.offload),
        "send_offloads": offloads(port.send),
        "addresses": fdb.port_len(port.id),
        "in": traffic(&input),
        "out": traffic(&output),
        "attaches": stats.attaches.get(),
        "session_errors": stats.session_errors.get(),
        "rings_broken": stats.rings_broken.get(),
        "learn_refused": stats.learn_refused.get(),
        "panics": stats.panics.get(),
    });
    if let Some(mtu) = port.mtu.get() {
        told["mtu"] = mtu.into();
    }
    if let Some(who) = port.front_end() {
        told["front_end"] = json!({"pid": who.pid, "uid": who.uid});
    }
    if let Some((_, ifname)) = port.as_tap() {
        told["interface"] = ifname.into();
    }
    told
}

/// Why the switch is not all that it was told to be.
pub fn degraded(all: &[Degradation]) -> Vec<String> {
    let shown = all.iter().take(CONTROL_SHOWN_REASONS);
    let mut told: Vec<String> = shown.map(|one| one.text.clone()).collect();
    let more = all.len() - told.len();
    if more > 0 {
        told.push(format!("and {more} more"));
    }
    told
}

/// The same with codes, for programs.
pub fn degradations(all: &[Degradation]) -> Vec<Value> {
    let shown = all.iter().take(CONTROL_SHOWN_REASONS);
    let told = shown.map(|Degradation { code, subject, text, since }| {
        json!({"code": code.name(), "subject": subject, "text": text, "since": since})
    });
    told.collect()
}

/// How far a port is with its front-end, or its interface.
pub fn state(port: &Port) -> &'static str {
    match &port.endpoint {
        _ if port.is_leaving() => "removing",
        _ if port.is_left_out() => "left_out",
        _ if !port.policy.get().forwards => "disabled",
        Endpoint::Device(_) if port.is_up() && port.mtu.link_is_down() => "down",
        _ if port.is_up() => "attached",
        Endpoint::Guest(guest) if guest.front_end().is_some() => "negotiating",
        Endpoint::Device(device) if device.ifname().is_some() => "gone",
        Endpoint::Guest(_) | Endpoint::Device(_) => "listening",
    }
}

/// Queue pairs as configured: a guest's port has rings for twice as many.
fn queues(port: &Port) -> usize {
    match &port.endpoint {
        Endpoint::Guest(guest) => guest.tx.len() / 2,
        Endpoint::Device(device) => device.queues().len(),
    }
}

fn offloads(set: Offloads) -> Vec<&'static str> {
    OFFLOADS.iter().filter(|(one, _)| set.has(*one)).map(|(_, name)| *name).collect()
}

fn traffic(traffic: &Traffic) -> Value {
    let drops = traffic.dropped().map(|(reason, count)| (reason.name().to_owned(), count.into()));
    let drops: Map<String, Value> = drops.collect();
    json!({"frames": traffic.frames, "bytes": traffic.bytes, "drops": drops})
}

/// Drops by their reason, those that happened.
pub fn drops(drops: &Drops) -> Value {
    let counts = DropReason::ALL.iter().map(|reason| (reason, drops.get(*reason)));
    let happened = counts.filter(|(_, count)| *count > 0);
    let told: Map<String, Value> =
        happened.map(|(reason, count)| (reason.name().to_owned(), count.into())).collect();
    Value::Object(told)
}

/// What each reason for a drop means.
pub fn reasons() -> Value {
    let told = DropReason::ALL.iter().map(|reason| {
        let ways = Direction::ALL.into_iter().filter(|way| reason.is_counted(*way));
        let ways: Vec<&str> = ways.map(Direction::name).collect();
        let (meaning, advice) = (reason.meaning(), reason.advice());
        json!({"name": reason.name(), "directions": ways, "meaning": meaning, "advice": advice})
    });
    json!({"reasons": told.collect::<Vec<Value>>()})
}

/// A worker.
pub fn worker(number: usize, stats: &WorkerStats) -> Value {
    let mut told = json!({"number": number});
    stats.each(&mut |name, count| told[name] = count.into());
    told
}

/// An address, and who gave it if it is static; none of a port that has gone since.
pub fn address(entry: &Entry, ports: &PortTable, desired: &Desired) -> Option<Value> {
    let port = &ports.get(entry.port)?.name;
    let mac = entry.mac.to_string();
    Some(match entry.age {
        EntryAge::Static => {
            let tied = desired.assigned().contains_key(&entry.mac);
            let origin = if tied { Origin::Runtime } else { desired.origin(port) };
            json!({"mac": mac, "port": port, "static": true, "origin": origin.name()})
        }
        EntryAge::Idle(idle) => json!({"mac": mac, "port": port, "static": false, "idle": idle}),
    })
}
