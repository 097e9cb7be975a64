//! Reads all that is judged: asks the switch, and looks at the machine as far as the caller may.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::facts::{Facts, Port};
use super::{Finding, firewall, links, processes};
use crate::client::Client;
use crate::failure::Failure;
use crate::show::items;
use crate::{ask, list};

/// Everything; of ports only the one that is named, if one is.
pub fn all(client: &mut Client, only: Option<&str>, user: Option<&str>) -> Result<Facts, Failure> {
    let mut facts = Facts {
        client_version: env!("CARGO_PKG_VERSION").to_owned(),
        status: ask(client, "GetStatus", json!({}))?,
        ..Facts::default()
    };
    ask_switch(client, only, &mut facts)?;
    let pid = processes::of_switch(facts.status["pid"].as_i64(), &mut facts.skipped);
    facts.daemon = processes::daemon(pid, &mut facts.skipped);
    processes::front_ends(pid, &mut facts);
    if let Some(user) = user {
        let process = processes::of_user(user)
            .ok_or_else(|| Failure::usage(format!("id(1) does not know user '{user}'")))?;
        facts.ports.iter_mut().for_each(|port| port.others.push(process.clone()));
    }
    facts.host.free_huge = processes::free_huge_pages();
    if facts.ports.iter().any(Port::is_tap) {
        let namespace = processes::other_network(pid);
        links::look(&namespace, &mut facts);
        firewall::look(&namespace, &mut facts);
    }
    Ok(facts)
}

fn ask_switch(client: &mut Client, only: Option<&str>, facts: &mut Facts) -> Result<(), Failure> {
    let names: Vec<String> = match only {
        Some(name) => vec![name.to_owned()],
        None => {
            let all = list(client, "ListPorts", "ports", json!({}))?;
            items(&all, "ports")
                .iter()
                .filter_map(|port| port["name"].as_str().map(Into::into))
                .collect()
        }
    };
    let config = list(client, "GetConfig", "entries", json!({}))?;
    for name in names {
        let details = match ask(client, "GetPortDetails", json!({"name": name})) {
            Ok(details) => details,
            // Gone meanwhile: nothing of it is wrong any more.
            Err(_) if only.is_none() => continue,
            Err(failure) => return Err(failure),
        };
        let entry = items(&config, "entries").iter().find(|entry| entry["name"] == name.as_str());
        let keys = entry.map(keys).unwrap_or_default();
        facts.ports.push(Port { details, keys, ..Port::default() });
    }
    let found = list(client, "GetFindings", "findings", json!({}))?;
    let found = items(&found, "findings").iter().map(Finding::told);
    let of_all = |one: &Finding| one.port.is_none() && one.with.is_empty();
    let about = |one: &Finding| of_all(one) || only.is_none_or(|name| one.is_about(name));
    facts.findings = found.filter(about).collect();
    let steps = list(client, "DiffConfig", "steps", json!({}));
    facts.reload = match steps {
        Ok(steps) => Some(Ok(items(&steps, "steps").to_vec())),
        Err(failure) if failure.is(crate::SWITCH, "BadConfig") => Some(Err(failure.text)),
        // Without files there is nothing to read again.
        Err(_) => None,
    };
    Ok(())
}

fn keys(entry: &Value) -> BTreeMap<String, String> {
    let pairs = items(entry, "keys").iter().filter_map(|key| {
        let value = key["values"][0].as_str()?;
        Some((key["key"].as_str()?.to_owned(), value.to_owned()))
    });
    pairs.collect()
}
