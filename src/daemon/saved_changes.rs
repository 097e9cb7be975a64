//! What was changed while the switch runs, as it is written down for the next process.
//!
//! Only what differs from the configuration: ports that were added, and those of the configuration
//! that were changed or deleted, with the settings that they had there. If the configuration says
//! something else of such a port by then, it is right and the change is forgotten.
//!
//! ```text
//! {"version":1,"boot":"…","changes":[
//!   {"kind":"port","name":"vm3","now":{"socket":["/run/vm3.sock"],"queues":["2"],…}},
//!   {"kind":"port","name":"vm1","configured":{…},"now":{…}},
//!   {"kind":"port","name":"vm2","configured":{…}}],
//!  "addresses":[{"mac":"52:54:00:00:00:01","port":"vm1"}],
//!  "before":{"changes":[…],"addresses":[…]}}
//! ```
//!
//! `before` is there while a reload waits to be confirmed: what differs from the configuration that
//! it has replaced, as it will after going back to that.

use serde_json::{Map, Value, json};

use super::desired::{Changed, Desired};
use crate::config::{self, Config, Entry, Kind, Origin, Settings};
use crate::frame::MacAddr;
use crate::limits::{MAX_PORTS, MAX_STATIC_MACS, MAX_STREAMS, MAX_TAPS};

const VERSION: u64 = 1;

/// What became of one port while a switch ran.
#[derive(Debug)]
pub struct Change {
    kind: Kind,
    name: String,
    /// What the configuration said of it, if it did.
    configured: Option<Value>,
    /// What it is; nothing if it was deleted.
    now: Option<Settings>,
}

/// What an earlier process wrote down.
#[derive(Debug, Default)]
pub struct SavedChanges {
    changes: Vec<Change>,
    /// Addresses that were tied to ports.
    addresses: Vec<(MacAddr, String)>,
    /// What it would be by the configuration before one that waited to be confirmed.
    before: Option<Box<SavedChanges>>,
}

impl SavedChanges {
    /// By the configuration before one that was not confirmed. Where nothing is said of that, it
    /// was the one in force.
    pub fn before(mut self) -> SavedChanges {
        self.before.take().map_or(self, |before| *before)
    }
}

/// The changes of a process, and what they would be after going `back`.
pub fn write(desired: &Desired, back: Option<&Desired>, boot: &str) -> Vec<u8> {
    let mut file = differences(desired);
    (file["version"], file["boot"]) = (VERSION.into(), boot.into());
    if let Some(back) = back {
        file["before"] = differences(back);
    }
    let mut text = file.to_string();
    text.push('\n');
    text.into_bytes()
}

/// What differs from the configuration.
fn differences(desired: &Desired) -> Value {
    let changes = desired.changes().into_iter().filter(Changed::has_other_settings);
    let changes: Vec<Value> = changes.filter_map(|changed| change(&changed)).collect();
    let lasts = |port: &str| desired.origin(port).plugged_by().is_none();
    let tied = desired.assigned().filter(|(_, port)| lasts(port));
    let addresses: Vec<Value> =
        tied.map(|(mac, port)| json!({"mac": mac.to_string(), "port": port})).collect();
    json!({"changes": changes, "addresses": addresses})
}

fn change(Changed { configured, now, .. }: &Changed<'_>) -> Option<Value> {
    let settings = &now.or(*configured)?.settings;
    let mut change = json!({"kind": settings.kind.name(), "name": settings.name});
    for (key, entry) in [("configured", configured), ("now", now)] {
        if let Some(entry) = entry {
            change[key] = words(&entry.settings);
        }
    }
    Some(change)
}

fn words(settings: &Settings) -> Value {
    let words = settings.words().into_iter();
    Value::Object(words.map(|(key, words)| (key.to_owned(), words.into())).collect())
}

/// Reads what an earlier process wrote; `None` if that was before the machine was started.
pub fn read(bytes: &[u8], boot: &str) -> Result<Option<SavedChanges>, String> {
    let file: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if file["version"] != VERSION {
        return Err("it is of another version".to_owned());
    }
    let Some(of) = file["boot"].as_str() else {
        return Err("it says nothing of its start".to_owned());
    };
    if of != boot {
        return Ok(None);
    }
    let mut kept = read_differences(&file)?;
    if let Some(before) = file.get("before") {
        kept.before = Some(Box::new(read_differences(before)?));
    }
    Ok(Some(kept))
}

fn read_differences(file: &Value) -> Result<SavedChanges, String> {
    let changes = file["changes"].as_array().ok_or("it says nothing of changes")?;
    // Twice as many as there may be ports: as many deleted as there are.
    if changes.len() > 2 * MAX_PORTS {
        return Err("it has more changes than there can be".to_owned());
    }
    let addresses = file["addresses"].as_array().ok_or("it says nothing of addresses")?;
    if addresses.len() > MAX_PORTS * MAX_STATIC_MACS {
        return Err("it has more addresses than there can be".to_owned());
    }
    Ok(SavedChanges {
        changes: changes.iter().map(read_change).collect::<Result<_, _>>()?,
        addresses: addresses.iter().map(read_address).collect::<Result<_, _>>()?,
        before: None,
    })
}

fn read_address(address: &Value) -> Result<(MacAddr, String), String> {
    let mac = address["mac"].as_str().and_then(|mac| mac.parse::<MacAddr>().ok());
    let read = mac.filter(|mac| mac.is_station()).zip(address["port"].as_str());
    let (mac, port) = read.ok_or_else(|| format!("{address} is no address of a port"))?;
    Ok((mac, port.to_owned()))
}

fn read_change(change: &Value) -> Result<Change, String> {
    let (kind, name) = (change["kind"].as_str().and_then(Kind::named), change["name"].as_str());
    let (kind, name) = kind.zip(name).ok_or("a change has no kind or no name")?;
    let now = match &change["now"] {
        Value::Null => None,
        Value::Object(words) => Some(read_settings(kind, name, words)?),
        _ => return Err(format!("the settings of {name:?} are none")),
    };
    let configured = Some(change["configured"].clone()).filter(Value::is_object);
    if now.is_none() && configured.is_none() {
        return Err(format!("nothing is said of {name:?}"));
    }
    Ok(Change { kind, name: name.to_owned(), configured, now })
}

fn read_settings(kind: Kind, name: &str, words: &Map<String, Value>) -> Result<Settings, String> {
    let mut given = vec![("name".to_owned(), config::Value::Word(name.to_owned()))];
    for (key, values) in words {
        for value in values.as_array().into_iter().flatten() {
            let Some(text) = value.as_str() else {
                return Err(format!("{key} of {name:?} is no text"));
            };
            given.push((key.clone(), config::Value::Word(text.to_owned())));
        }
    }
    Settings::parse(kind, given).map_err(|wrong| format!("{kind} {name:?}: {wrong}"))
}

/// Changes a configuration accordingly; its desired, and what is not done, and why.
pub fn apply(config: &mut Config, kept: SavedChanges) -> (Desired, Vec<String>) {
    let mut desired = Desired::new(config);
    let mut said = Vec::new();
    for change in kept.changes {
        let about = format!("{} {}", change.kind, change.name);
        // The configuration has it by now, as it is: it is the configuration's.
        let there = desired.get(&change.name).zip(change.now.as_ref());
        if there.is_some_and(|(there, now)| is_same(&there.settings, now, &kept.addresses)) {
            continue;
        }
        if let Err(why) = apply_one(config, &mut desired, change) {
            said.push(format!("{about}: {why}"));
        }
    }
    for (mac, port) in kept.addresses {
        if let Err(why) = desired.assign(mac, &port) {
            said.push(format!("address {mac} of port {port} is left out: {why}"));
        }
    }
    (desired, said)
}

/// Whether a configuration says of a port what was in force, perhaps with addresses that were tied
/// to it beside its settings.
fn is_same(configured: &Settings, now: &Settings, tied: &[(MacAddr, String)]) -> bool {
    let mut configured = configured.clone();
    let beside = tied.iter().filter(|(mac, name)| *name == now.name && !now.mac.contains(mac));
    beside.for_each(|(mac, _)| configured.forget(*mac));
    configured == *now
}

fn apply_one(config: &mut Config, desired: &mut Desired, change: Change) -> Result<(), String> {
    let Change { name, configured, now, .. } = change;
    let there = desired.get(&name).cloned();
    let origin = match (&there, &configured) {
        (None, None) => Origin::Runtime,
        (Some(entry), Some(settings)) if words(&entry.settings) == *settings => entry.origin,
        (None, Some(_)) if now.is_none() => return Ok(()),
        (None, Some(_)) => {
            return Err("was changed, and the configuration no longer has it".to_owned());
        }
        (Some(entry), _) => {
            let by = entry.origin.name();
            return Err(format!(
                "the configuration (origin {by}) has changed since and is in force"
            ));
        }
    };
    let entry = now.map(|settings| Entry::new(settings, origin));
    if let Some(entry) = &entry {
        if let Some(clash) = desired.clash(entry) {
            return Err(format!("is left out: {clash}"));
        }
        if let Some(why) = desired.mirror_conflict(&entry.settings) {
            return Err(format!("is left out: {why}"));
        }
        let now = &entry.settings;
        let new = usize::from(there.is_none());
        let count = |kind| config.of(kind).count() + if now.kind == kind { new } else { 0 };
        if config.ports.len() + new > MAX_PORTS
            || count(Kind::Tap) > MAX_TAPS
            || count(Kind::Stream) > MAX_STREAMS
        {
            return Err("is left out: there are too many ports, taps or streams".to_owned());
        }
    }
    desired.remove(&name);
    let place = config.ports.iter().position(|entry| entry.settings.name == name);
    match (place, &entry) {
        (Some(place), Some(entry)) => config.ports[place] = entry.clone(),
        (Some(place), None) => drop(config.ports.remove(place)),
        (None, Some(entry)) => config.ports.push(entry.clone()),
        (None, None) => {}
    }
    config.sort();
    entry.into_iter().for_each(|entry| desired.insert(entry));
    Ok(())
}
