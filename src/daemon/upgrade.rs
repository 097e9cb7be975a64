//! Reads `runtime.json`, in which earlier versions kept the changes of clients.

use std::collections::BTreeMap;

use serde::Deserialize;

use api::config::{Config, Kept, Keys, Kind, Override, Settings, Value};

/// The name of the file.
pub const FILE: &str = "runtime.json";

#[derive(Deserialize)]
struct Saved {
    version: u64,
    #[serde(flatten)]
    now: Differences,
    /// Differences from the configuration to which the next process goes back.
    before: Option<Differences>,
}

#[derive(Deserialize)]
struct Differences {
    changes: Vec<Change>,
    addresses: Vec<Address>,
}

#[derive(Deserialize)]
struct Change {
    kind: String,
    name: String,
    /// The configuration's settings of the port, if the configuration had the port.
    configured: Option<BTreeMap<String, Vec<String>>>,
    /// True if a client deleted the port of the configuration, and added this port.
    #[serde(default)]
    added: bool,
    /// Settings in force; none if the port was deleted.
    now: Option<BTreeMap<String, Vec<String>>>,
}

#[derive(Deserialize)]
struct Address {
    mac: String,
    port: String,
}

/// Returns the ports and changes of the file, which belongs to this configuration; an error names
/// the fault of a damaged file.
pub fn read(bytes: &[u8], config: &Config) -> Result<Kept, String> {
    let saved: Saved = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if saved.version != 1 {
        return Err("the data are of another version".to_owned());
    }
    let Differences { changes, addresses } = saved.before.unwrap_or(saved.now);
    let mut kept = Kept::default();
    for Change { kind, name, configured, added, now } in changes {
        let Some(now) = now else {
            kept.overrides.insert(name, Override::Deleted);
            continue;
        };
        match configured.filter(|_| !added) {
            Some(mut before) => {
                let differ = now.into_iter().filter(|(key, words)| before.get(key) != Some(words));
                let mut keys: Keys = differ.collect();
                // Addresses of `fdb add` are added to the addresses of the configuration.
                keys.extend(before.remove_entry("mac").filter(|_| !keys.contains_key("mac")));
                kept.overrides.insert(name, Override::Keys(keys));
            }
            None => {
                let settings = parse(&kind, &name, &now)?;
                if added {
                    kept.overrides.insert(name.clone(), Override::Deleted);
                }
                kept.added.insert(name, settings);
            }
        }
    }
    for Address { mac, port } in addresses {
        let parsed = mac.parse().map_err(|error| format!("address {mac:?}: {error}"))?;
        if let Some(settings) = kept.added.get_mut(&port) {
            settings.mac.push(parsed);
            continue;
        }
        let own = config.ports.iter().find(|entry| entry.settings.name == port);
        let own = own.into_iter().flat_map(|entry| &entry.settings.mac).map(ToString::to_string);
        let change = kept.overrides.entry(port).or_insert_with(|| Override::Keys(Keys::new()));
        if let Override::Keys(keys) = change {
            keys.entry("mac".to_owned()).or_insert_with(|| own.collect()).push(mac);
        }
    }
    Ok(kept)
}

fn parse(
    kind: &str,
    name: &str,
    words: &BTreeMap<String, Vec<String>>,
) -> Result<Settings, String> {
    let kind = Kind::named(kind).ok_or_else(|| format!("{name:?} is of no kind"))?;
    let word = |key: &str, word: &str| (key.to_owned(), Value::Word(word.to_owned()));
    let given = words.iter().flat_map(|(key, all)| all.iter().map(|one| word(key, one)));
    let given = [word("name", name)].into_iter().chain(given).collect();
    Settings::parse(kind, given).map_err(|wrong| format!("{kind} {name:?}: {wrong}"))
}
