//! Faults of the forwarding table: addresses that move, or belong to two ports.

use super::facts::{Facts, Port};
use super::finding::{ADDRESS_MOVING, ADDRESS_OF_ANOTHER, FDB_FULL, Finding};
use base::frame::MacAddr;
use base::limits::FDB_MAX_ENTRIES;
use base::words::counted;

/// Moves to each of two ports in a minute: a guest that migrates moves once, and at most once back.
const MANY_MOVES: u64 = 3;

pub fn judge(facts: &Facts, found: &mut Vec<Finding>) {
    for (at, port) in facts.ports.iter().enumerate() {
        found.extend(full(port, facts));
        found.extend(foreign(port));
        found.extend(held(port).or_else(|| moving(at, port, facts)));
    }
}

fn full(port: &Port, facts: &Facts) -> Option<Finding> {
    let refused = port.counts.lately.learn_refused;
    if refused == 0 {
        return None;
    }
    let (own, all) = (port.addresses.count, facts.addresses);
    let most = facts.ports.iter().max_by_key(|port| port.addresses.count).unwrap_or(port);
    let why = match port.addresses.is_full {
        true => format!("the port has reached its limit, {own}"),
        false => format!(
            "the table has {all} of {FDB_MAX_ENTRIES}, most of them behind '{}', {}",
            most.name, most.addresses.count
        ),
    };
    let cause = format!(
        "{} an address behind it was not learned lately: {why}; frames for unlearned \
         addresses are flooded",
        counted(refused, "time")
    );
    Some(Finding::of(FDB_FULL, port, cause, "vioswitchctl fdb show; vioswitchctl fdb flush"))
}

fn foreign(port: &Port) -> Option<Finding> {
    let (mac, owner) =
        port.addresses.foreign.as_ref().filter(|_| port.counts.minute.learn_static > 0)?;
    let name = &port.name;
    let cause = format!(
        "the port sends from {mac}, a static address of '{owner}': answers go to that port"
    );
    let command = format!(
        "another address in the guest; or vioswitchctl fdb del {mac} && vioswitchctl fdb add {mac} \
         {name}"
    );
    let with = vec![owner.clone()];
    Some(Finding { with, ..Finding::of(ADDRESS_OF_ANOTHER, port, cause, command) })
}

/// Finds an address of a port that is held at another port.
fn held(port: &Port) -> Option<Finding> {
    let (mac, at, now) =
        port.addresses.held.as_ref().filter(|_| port.counts.minute.learn_held > 0)?;
    let how = match now {
        true => format!("it is held at '{at}' now, its earlier port"),
        false => format!("it was held at '{at}' in the last minute"),
    };
    let cause = format!(
        "{mac} flaps between this port and '{at}': {how}; two stations have the address, or the \
         network has a loop"
    );
    Some(Finding {
        with: vec![at.clone()],
        ..Finding::of(ADDRESS_MOVING, port, cause, settle(mac))
    })
}

fn settle(mac: &MacAddr) -> String {
    format!(
        "vioswitchctl fdb add {mac} NAME, the right port, and another address for the other station"
    )
}

/// Finds an address that moves between two ports; the finding is about the first port.
fn moving(at: usize, port: &Port, facts: &Facts) -> Option<Finding> {
    let often = |port: &Port| port.counts.minute.moves >= MANY_MOVES;
    let (mac, from) = port.addresses.moved.as_ref().filter(|_| often(port))?;
    let (place, other) = (facts.ports.iter().enumerate())
        .find(|(_, other)| other.name == *from && often(other) && other.name != port.name)?;
    // The finding about a held address is about the port that is not the holder.
    if other.addresses.held.is_some() && other.counts.minute.learn_held > 0 {
        return None;
    }
    let back = other.addresses.moved.as_ref().is_some_and(|(_, from)| *from == port.name);
    if back && place < at {
        return None;
    }
    let moves = port.counts.minute.moves + other.counts.minute.moves;
    let cause = format!(
        "{mac} moves between this port and '{from}' again and again, {moves} moves in the last \
         minute: two stations have the address, or the network has a loop"
    );
    let with = vec![from.clone()];
    Some(Finding { with, ..Finding::of(ADDRESS_MOVING, port, cause, settle(mac)) })
}
