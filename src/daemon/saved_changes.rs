//! Changes made while the switch runs, as they are written down for the next process.
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

use std::collections::BTreeMap;
use std::fmt::Display;

use serde::{Deserialize, Serialize};

use super::desired::{Changed, Desired};
use api::config::{Config, Entry, Kind, Origin, Settings, Value};
use base::frame::MacAddr;
use base::limits::{MAX_PORTS, MAX_STATIC_MACS};

const VERSION: u64 = 1;

/// Changes that an earlier process wrote down.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct SavedChanges {
    version: u64,
    boot: String,
    #[serde(flatten)]
    now: Differences,
    /// Differences from the configuration before the one that waited to be confirmed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    before: Option<Differences>,
}

/// Differences from a configuration.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Differences {
    changes: Vec<Change>,
    /// Addresses that were tied to ports.
    addresses: Vec<Address>,
}

/// Change of one port while a switch ran.
#[derive(Debug, Serialize, Deserialize)]
struct Change {
    kind: String,
    name: String,
    /// The configuration's settings of the port, if it had any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    configured: Option<Words>,
    /// A client deleted the port of the configuration, and added this one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    added: bool,
    /// Settings in force; none if the port was deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    now: Option<Words>,
}

/// Settings, by their keys.
type Words = BTreeMap<String, Vec<String>>;

#[derive(Debug, Serialize, Deserialize)]
struct Address {
    mac: String,
    port: String,
}

impl SavedChanges {
    /// By the configuration in force.
    pub fn now(self) -> Differences {
        self.now
    }

    /// By the configuration before one that was not confirmed. Where nothing is said of that, it
    /// was the one in force.
    pub fn before(self) -> Differences {
        self.before.unwrap_or(self.now)
    }
}

/// The changes of a process, and what they would be after going `back`.
pub fn write(desired: &Desired, back: Option<&Desired>, boot: &str) -> Vec<u8> {
    let (version, boot, now) = (VERSION, boot.to_owned(), Differences::of(desired));
    let file = SavedChanges { version, boot, now, before: back.map(Differences::of) };
    // All keys of its maps are texts, so that nothing can fail.
    let mut text = serde_json::to_vec(&file).unwrap_or_default();
    text.push(b'\n');
    text
}

fn words(settings: &Settings) -> Words {
    settings.words().into_iter().map(|(key, words)| (key.to_owned(), words)).collect()
}

/// Reads what an earlier process wrote; `None` if that was before the machine was started.
pub fn read(bytes: &[u8], boot: &str) -> Result<Option<SavedChanges>, String> {
    let file: SavedChanges = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if file.version != VERSION {
        return Err("it is of another version".to_owned());
    }
    if file.boot != boot {
        return Ok(None);
    }
    [&file.now].into_iter().chain(&file.before).try_for_each(Differences::check)?;
    Ok(Some(file))
}

impl Differences {
    fn of(desired: &Desired) -> Differences {
        let changes = desired.changes().into_iter().filter(Changed::has_other_settings);
        let change = |changed: Changed<'_>| {
            let Changed { configured, now, .. } = changed;
            let added = changed.is_added_again();
            let settings = &now.or(configured)?.settings;
            let of = |entry: Option<&Entry>| entry.map(|entry| words(&entry.settings));
            let (kind, name) = (settings.kind.name().to_owned(), settings.name.clone());
            Some(Change { kind, name, configured: of(configured), added, now: of(now) })
        };
        let lasts = |port: &str| desired.origin(port).plugged_by().is_none();
        let tied = desired.assigned().filter(|(_, port)| lasts(port));
        let tied = tied.map(|(mac, port)| Address { mac: mac.to_string(), port: port.to_owned() });
        Differences { changes: changes.filter_map(change).collect(), addresses: tied.collect() }
    }

    /// Whether it can be what a process wrote.
    fn check(&self) -> Result<(), String> {
        // Twice as many as there may be ports: as many deleted as there are.
        if self.changes.len() > 2 * MAX_PORTS || self.addresses.len() > MAX_PORTS * MAX_STATIC_MACS
        {
            return Err("it has more changes or addresses than there can be".to_owned());
        }
        self.changes.iter().try_for_each(|change| change.settings().map(drop))?;
        self.addresses.iter().try_for_each(|address| address.read().map(drop))
    }
}

impl Address {
    fn read(&self) -> Result<(MacAddr, &str), String> {
        let mac = self.mac.parse().ok().filter(|mac: &MacAddr| mac.is_station());
        let mac = mac.ok_or_else(|| format!("{:?} is no address of a port", self.mac))?;
        Ok((mac, &self.port))
    }
}

impl Change {
    /// Returns the port's settings, if the port is there.
    fn settings(&self) -> Result<Option<Settings>, String> {
        let Change { kind, name, configured, now, .. } = self;
        let kind = Kind::named(kind).ok_or_else(|| format!("{name:?} is of no kind"))?;
        let Some(now) = now else {
            let said = configured.as_ref().map(|_| None);
            return said.ok_or_else(|| format!("nothing is said of {name:?}"));
        };
        let word = |key: &str, word: &String| (key.to_owned(), Value::Word(word.clone()));
        let given = now.iter().flat_map(|(key, all)| all.iter().map(|one| word(key, one)));
        let settings =
            Settings::parse(kind, [word("name", name)].into_iter().chain(given).collect());
        settings.map(Some).map_err(|wrong| format!("{kind} {name:?}: {wrong}"))
    }
}

/// Changes a configuration accordingly; its desired, and what is not done, and why.
pub fn apply(config: &mut Config, kept: &Differences) -> (Desired, Vec<String>) {
    let mut desired = Desired::new(config);
    let mut said = Vec::new();
    // All of them were read before.
    let tied: Vec<(MacAddr, &str)> =
        kept.addresses.iter().filter_map(|address| address.read().ok()).collect();
    for change in &kept.changes {
        let now = change.settings().unwrap_or_default();
        // The configuration has it by now, as it is: it is the configuration's.
        let there = desired.get(&change.name).zip(now.as_ref());
        if there.is_some_and(|(there, now)| is_same(&there.settings, now, &tied)) {
            continue;
        }
        if let Err(why) = apply_one(config, &mut desired, change, now) {
            said.push(format!("{} {}: {why}", change.kind, change.name));
        }
    }
    for (mac, port) in tied {
        if let Err(why) = desired.assign(mac, port) {
            said.push(format!("address {mac} of port {port} is left out: {why}"));
        }
    }
    (desired, said)
}

/// Whether a configuration says of a port what was in force, perhaps with addresses that were tied
/// to it beside its settings.
fn is_same(configured: &Settings, now: &Settings, tied: &[(MacAddr, &str)]) -> bool {
    let mut configured = configured.clone();
    let beside = tied.iter().filter(|(mac, name)| *name == now.name && !now.mac.contains(mac));
    beside.for_each(|(mac, _)| configured.forget(*mac));
    configured == *now
}

fn apply_one(
    config: &mut Config,
    desired: &mut Desired,
    Change { name, configured, added, .. }: &Change,
    now: Option<Settings>,
) -> Result<(), String> {
    let there = desired.get(name).cloned();
    let origin = match (&there, configured) {
        (None, None) => Origin::Runtime,
        (Some(entry), Some(settings)) if words(&entry.settings) == *settings => match added {
            true => Origin::Runtime,
            false => entry.origin,
        },
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
        let left_out = |why: &dyn Display| format!("is left out: {why}");
        desired.check(entry).map_err(|clash| left_out(&clash))?;
        desired.check_mirror(&entry.settings).map_err(|why| left_out(&why))?;
        let now = &entry.settings;
        now.check_worker(config.workers).map_err(|why| left_out(&why))?;
        let new = usize::from(there.is_none());
        let of_kind = config.of(now.kind).count() + new;
        if config.ports.len() + new > MAX_PORTS || of_kind > now.kind.most().0 {
            return Err("is left out: there are too many ports, taps or streams".to_owned());
        }
    }
    desired.remove(name);
    let place = config.ports.iter().position(|entry| entry.settings.name == *name);
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
