//! `lan status`: virtual machines, addresses, forwards and traffic.

use std::fs;

use api::config::Kind;
use api::wire::Port;
use serde_json::json;

use super::leases::{self, Lease};
use super::place::Place;
use super::protocol::{ForwardState, NetworkState};
use crate::client::Client;
use crate::failure::Failure;
use crate::look;
use crate::output::Output;
use crate::show;

/// Returns the state of the network, with the ports of the switch and the leases.
pub(super) fn look(place: &Place, answer: NetworkState) -> Result<Output, Failure> {
    let ports = match ports(place, Some(Kind::Port)) {
        Ok(ports) => Some(ports),
        // The switch restarts; the keeper knows the rest.
        Err(failure) if failure.is_absence() => None,
        Err(failure) => return Err(failure),
    };
    let has_switch = ports.is_some();
    let leases = leases::read(&place.leases());
    let (mut rows, mut machines) = (Vec::new(), Vec::new());
    for port in ports.unwrap_or_default() {
        let name = port.name.as_str();
        let lease = leases.iter().find(|lease| lease.name == name);
        let address = lease.map(|lease| lease.address.to_string());
        let mac = mac_of(place, name, lease);
        let (sent, received) = (port.r#in.bytes, port.out.bytes);
        let dash = || "-".to_owned();
        rows.push(vec![
            name.to_owned(),
            address.clone().unwrap_or_else(dash),
            mac.clone().unwrap_or_else(dash),
            port.state.to_string(),
            sent.to_string(),
            received.to_string(),
        ]);
        machines.push(json!({
            "name": name, "dns": format!("{name}.lan"), "address": address, "mac": mac,
            "state": port.state, "sent_bytes": sent, "received_bytes": received,
        }));
    }
    let title = ["VM", "ADDRESS", "MAC", "STATE", "SENT", "RECEIVED"];
    let mut text = network(place, &answer, has_switch);
    if has_switch {
        text += &show::table(&title, rows);
    }
    if !answer.forwards.is_empty() {
        let state = |one: &ForwardState| match (one.running, &one.last_line) {
            (true, _) => "running".to_owned(),
            (false, None) => "restarting".to_owned(),
            (false, Some(reason)) => format!("restarting: {reason}"),
        };
        let rows = answer.forwards.iter().map(|one| vec![one.forward.clone(), state(one)]);
        text += &show::table(&["FORWARD", "STATE"], rows.collect());
    }
    let value = json!({
        "control": place.control(), "log": place.log(), "nat": answer.nat,
        "host_loopback": answer.host_loopback, "outside": answer.outside,
        "namespace": answer.namespace, "services": answer.services,
        "forwards": answer.forwards, "vms": has_switch.then_some(machines),
    });
    Ok((value, text))
}

/// Returns the lines about the network as a whole.
fn network(place: &Place, answer: &NetworkState, has_switch: bool) -> String {
    let pasta = answer.services.iter().find(|service| service.name == "pasta");
    let said = pasta.and_then(|pasta| pasta.last_line.clone());
    let outside = match (answer.outside, said) {
        (true, _) => "connected".to_owned(),
        (false, None) => "not connected".to_owned(),
        (false, Some(said)) => format!("not connected: pasta: {said}"),
    };
    let mut pairs = vec![("network", answer.nat.clone()), ("outside", outside)];
    if !has_switch {
        pairs.push(("switch", format!("restarting; see {}", place.log().display())));
    }
    for service in answer.services.iter().filter(|service| service.restarts > 0) {
        pairs.push((service.name.as_str(), format!("restarted {} times", service.restarts)));
    }
    pairs.push(("control", place.control().display().to_string()));
    show::pairs(pairs)
}

/// Returns the address of the machine's card, as `lan run` noted the address.
fn mac_of(place: &Place, name: &str, lease: Option<&Lease>) -> Option<String> {
    let noted = fs::read_to_string(place.hosts().join(name)).ok();
    let noted = noted.and_then(|line| Some(line.split_once(',')?.0.to_owned()));
    noted.or_else(|| lease.map(|lease| lease.mac.clone()))
}

/// Returns the ports, if given of one kind. A failure says nothing about other switches.
fn ports(place: &Place, kind: Option<Kind>) -> Result<Vec<Port>, Failure> {
    let client = Client::connect(&place.control());
    let silent = |failure: Failure| match failure.is_absence() {
        true => failure.told_as(|_| "the switch does not answer".to_owned()),
        false => failure,
    };
    client.and_then(|mut client| look::of_kind(&mut client, kind)).map_err(silent)
}

/// Returns the ports of all kinds with a front-end.
pub(super) fn attached(place: &Place) -> Result<Vec<String>, Failure> {
    let used = ports(place, None)?.into_iter().filter(|port| port.front_end.is_some());
    Ok(used.map(|port| port.name).collect())
}
