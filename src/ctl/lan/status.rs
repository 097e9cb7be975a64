//! `lan status`: virtual machines, addresses, forwards and traffic.

use std::fs;

use api::config::Kind;
use serde_json::json;

use super::leases::{self, Lease};
use super::place::Place;
use super::protocol::NetworkState;
use crate::client::Client;
use crate::failure::Failure;
use crate::look;
use crate::output::Output;
use crate::show;

/// Returns the state of the network, with the ports of the switch and the leases.
pub(super) fn look(place: &Place, answer: NetworkState) -> Result<Output, Failure> {
    let ports = look::of_kind(&mut Client::connect(&place.control())?, Some(Kind::Port))?;
    let leases = leases::read(&place.leases());
    let (mut rows, mut machines) = (Vec::new(), Vec::new());
    for port in ports {
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
    let mut text = network(place, &answer);
    text += &show::table(&title, rows);
    if !answer.forwards.is_empty() {
        let state = |running| if running { "running" } else { "restarting" }.to_owned();
        let rows = answer.forwards.iter().map(|one| vec![one.forward.clone(), state(one.running)]);
        text += &show::table(&["FORWARD", "STATE"], rows.collect());
    }
    let value = json!({
        "control": place.control(), "log": place.log(), "nat": answer.nat,
        "host_loopback": answer.host_loopback, "outside": answer.outside,
        "namespace": answer.namespace, "services": answer.services,
        "forwards": answer.forwards, "vms": machines,
    });
    Ok((value, text))
}

/// Returns the lines about the network as a whole.
fn network(place: &Place, answer: &NetworkState) -> String {
    let pasta = answer.services.iter().find(|service| service.name == "pasta");
    let said = pasta.and_then(|pasta| pasta.last_line.clone());
    let outside = match (answer.outside, said) {
        (true, _) => "connected".to_owned(),
        (false, None) => "not connected".to_owned(),
        (false, Some(said)) => format!("not connected: pasta: {said}"),
    };
    let mut pairs = vec![("network", answer.nat.clone()), ("outside", outside)];
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

/// Returns the ports with a front-end; none if the switch does not answer.
pub(super) fn attached(place: &Place) -> Vec<String> {
    let client = Client::connect(&place.control());
    let ports = client.and_then(|mut client| look::of_kind(&mut client, Some(Kind::Port)));
    let used = ports.unwrap_or_default().into_iter().filter(|port| port.front_end.is_some());
    used.map(|port| port.name).collect()
}
