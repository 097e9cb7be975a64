//! What the switch says was changed while it runs, and how its files have that by now.

use serde_json::Value;
use vioswitch::config::Kind;

use crate::show::{items, word};

/// Keys with their values, in the order of a file.
pub type Keys = Vec<(String, Vec<String>)>;

/// What became of one port.
#[derive(Debug)]
pub struct Change {
    /// `+` it was added, `-` deleted, `~` changed.
    pub sign: String,
    pub kind: String,
    pub name: String,
    pub origin: String,
    /// What the configuration has of the keys that differ.
    pub before: Keys,
    /// What is in force of them; of one that was added all that must be given.
    pub now: Keys,
    /// Addresses that were tied to it.
    pub addresses: Vec<String>,
    /// There is another change of this name: it is of another kind now.
    pub twin: bool,
}

/// Where a file stands between what was and what is to be.
#[derive(Debug, PartialEq, Eq)]
pub enum Standing {
    /// It has all of it.
    Saved,
    /// It is as it was read.
    AsBefore,
    /// It says something else.
    Otherwise,
}

/// All changes of an answer; nothing if there is something in it that no file has.
pub fn read(answer: &Value) -> Option<Vec<Change>> {
    let all = items(answer, "changes");
    let of = |change: &Value| {
        let kind = word(&change["kind"]);
        Some(Change {
            sign: word(&change["sign"]),
            kind: Kind::named(&kind).map(|_| kind)?,
            name: word(&change["name"]),
            origin: word(&change["origin"]),
            before: keys(change, "before")?,
            now: keys(change, "now")?,
            addresses: items(change, "addresses").iter().map(word).collect(),
            twin: all.iter().filter(|other| other["name"] == change["name"]).count() > 1,
        })
    };
    all.iter().map(of).collect()
}

fn keys(change: &Value, which: &str) -> Option<Keys> {
    let is_key = |key: &str| key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
    let key = |key: &Value| {
        let name = key["key"].as_str()?.to_owned();
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let values = items(key, "values").iter().map(text).collect::<Option<_>>()?;
        is_key(&name).then_some((name, values))
    };
    items(change, which).iter().map(key).collect()
}

/// The values of a key; none if it is not set.
pub fn values<'k>(keys: &'k Keys, key: &str) -> &'k [String] {
    keys.iter().find(|(known, _)| known == key).map_or(&[], |(_, values)| values)
}

impl Change {
    /// `+ port vm3`
    pub fn about(&self) -> String {
        format!("{} {} {}", self.sign, self.kind, self.name)
    }

    /// By what a reload would do, which is how the files differ from what runs.
    pub fn standing(&self, steps: &Value) -> Standing {
        let of_entry = |step: &&Value| {
            let kind = step["kind"].as_str().and_then(Kind::named);
            step["name"] == *self.name && kind.is_some()
        };
        let step = items(steps, "steps").iter().find(of_entry);
        let (saved, as_before) = match step {
            // As it runs, but for addresses, which are none of the settings that run.
            None => match (self.sign.as_str(), self.twin) {
                ("+", false) => (false, true),
                ("-", _) => (true, false),
                _ => (self.addresses.is_empty(), self.sign == "~"),
            },
            Some(step) => {
                let same_kind = step["kind"] == *self.kind;
                match (self.sign.as_str(), step["sign"].as_str()) {
                    ("-", Some("+")) => (false, same_kind),
                    ("-", Some("~")) => (self.twin && !same_kind, self.twin && same_kind),
                    ("+", Some("~")) => {
                        (same_kind && self.has_only_addresses(step), self.twin && !same_kind)
                    }
                    ("~", Some("~")) if same_kind => {
                        (self.has_only_addresses(step), self.is_reversed(step))
                    }
                    _ => (false, false),
                }
            }
        };
        match (saved, as_before) {
            (true, _) => Standing::Saved,
            (_, true) => Standing::AsBefore,
            _ => Standing::Otherwise,
        }
    }

    /// True if a reload would do no more than make the tied addresses settings.
    fn has_only_addresses(&self, step: &Value) -> bool {
        let changes = items(step, "changes");
        let list = |value: &Value| -> Vec<String> {
            value.as_str().into_iter().flat_map(str::split_whitespace).map(str::to_owned).collect()
        };
        changes.iter().all(|change| {
            let wanted = list(&change["from"]).into_iter().chain(self.addresses.iter().cloned());
            change["key"] == "mac" && is_same(wanted, list(&change["to"]))
        }) && changes.is_empty() == self.addresses.is_empty()
    }

    /// True if a reload would take back what was changed, or a part of it, and nothing else.
    fn is_reversed(&self, step: &Value) -> bool {
        items(step, "changes").iter().all(|change| {
            let key = word(&change["key"]);
            let file = change["to"].as_str().unwrap_or_default();
            let (before, now) = (values(&self.before, &key), values(&self.now, &key));
            if key != "mac" {
                return before.join(" ") == file && !(before.is_empty() && now.is_empty());
            }
            let runs: Vec<&str> =
                change["from"].as_str().unwrap_or_default().split_whitespace().collect();
            let file: Vec<&str> = file.split_whitespace().collect();
            let is_in = |all: &[String], mac: &str| all.iter().any(|other| other == mac);
            let known = |mac: &&str| {
                runs.contains(mac) || is_in(before, mac) || is_in(&self.addresses, mac)
            };
            let was_there = |mac: &&&str| !is_in(now, mac) || is_in(before, mac);
            file.iter().all(known) && runs.iter().filter(was_there).all(|mac| file.contains(mac))
        })
    }
}

fn is_same(one: impl Iterator<Item = String>, other: Vec<String>) -> bool {
    let mut one: Vec<String> = one.collect();
    let mut other = other;
    one.sort();
    other.sort();
    one == other
}
