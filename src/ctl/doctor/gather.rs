//! Reads all facts that the doctor judges: asks the switch, and looks at the machine as far as the
//! caller may.

use std::path::Path;

use api::wire::{DiffConfig, Finding, GetConfig, GetPortDetails, GetStatus};

use super::facts::{Facts, Port};
use super::findings::is_about;
use super::{firewall, links, peers, processes, vduse};
use crate::client::Client;
use crate::failure::Failure;
use crate::filters::check;
use crate::look;

/// Returns all facts; with `only`, of all ports only the facts of the port `only`.
pub fn all(client: &mut Client, only: Option<&str>, user: Option<&str>) -> Result<Facts, Failure> {
    let mut facts = Facts {
        client_version: env!("CARGO_PKG_VERSION").to_owned(),
        status: client.call(&GetStatus {})?,
        ..Facts::default()
    };
    ask_switch(client, only, &mut facts)?;
    let pid = processes::of_switch(facts.status.pid.into(), &mut facts.skipped);
    facts.daemon = processes::daemon(pid, &mut facts.skipped);
    processes::front_ends(pid, &mut facts);
    if let Some(user) = user {
        let process = processes::of_user(user)
            .ok_or_else(|| Failure::usage(format!("id(1) does not know user '{user}'")))?;
        facts.ports.iter_mut().for_each(|port| port.others.push(process.clone()));
    }
    facts.host.free_huge = processes::free_huge_pages();
    if only.is_none() {
        facts.host.devices = processes::vduse_devices(Path::new(processes::VDPA));
    }
    vduse::look(&processes::other_network(pid), &mut facts);
    if facts.ports.iter().any(Port::is_uplink) {
        let namespace = processes::other_network(pid);
        links::look(&namespace, &mut facts);
        peers::look(&namespace, &mut facts);
        if facts.ports.iter().any(Port::is_tap) {
            firewall::look(&namespace, &mut facts);
        }
    }
    Ok(facts)
}

fn ask_switch(client: &mut Client, only: Option<&str>, facts: &mut Facts) -> Result<(), Failure> {
    let names: Vec<String> = match only {
        Some(name) => vec![name.to_owned()],
        None => look::ports(client)?.into_iter().map(|port| port.name).collect(),
    };
    let entries = client.list(&GetConfig {}, |part| part.entries)?;
    facts.filters = check::faults(&check::settings(&entries));
    facts.filters.retain(|fault| only.is_none_or(|name| fault.is_about(name)));
    for name in names {
        let details = match client.call(&GetPortDetails { name: name.clone() }) {
            Ok(details) => details,
            // A port that is gone meanwhile has no fault any more.
            Err(_) if only.is_none() => continue,
            Err(failure) => return Err(failure),
        };
        let keys = entries.iter().find(|entry| entry.name == name).map(|entry| &entry.keys);
        let keys = keys
            .into_iter()
            .flatten()
            .filter_map(|key| Some((key.key.clone(), key.values.first()?.clone())));
        facts.ports.push(Port { details, keys: keys.collect(), ..Port::default() });
    }
    let of_all = |one: &Finding| one.port.is_none() && one.with.is_empty();
    let about = |one: &Finding| of_all(one) || only.is_none_or(|name| is_about(one, name));
    facts.findings = look::findings(client)?.into_iter().filter(about).collect();
    facts.reload = match client.list(&DiffConfig {}, |part| part.steps) {
        Ok(steps) => Some(Ok(steps)),
        Err(failure) if failure.is("BadConfig") => Some(Err(failure.text)),
        // A switch without files has no files to read again.
        Err(_) => None,
    };
    Ok(())
}
