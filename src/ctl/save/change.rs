//! Changes made while the switch runs, and how its files have them by now.

use api::config::Kind;
use api::wire::{ConfigKey, RuntimeChange, Step, values};

use crate::show::text;

/// Change of one port.
#[derive(Debug)]
pub struct Change {
    /// The switch's answer, with the kind as files have it.
    pub told: RuntimeChange,
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
pub fn read(all: Vec<RuntimeChange>) -> Option<Vec<Change>> {
    let is_key = |ConfigKey { key, .. }: &ConfigKey| {
        key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-')
    };
    // The files have their own word for a kind.
    let known = |told: RuntimeChange| {
        let kind = Kind::of_word(&told.kind)?.name().to_owned();
        let has_keys = told.before.iter().chain(&told.now).all(is_key);
        has_keys.then_some(RuntimeChange { kind, ..told })
    };
    let names: Vec<String> = all.iter().map(|change| change.name.clone()).collect();
    let twin = |name: &str| names.iter().filter(|other| *other == name).count() > 1;
    let change = |told: RuntimeChange| Some(Change { twin: twin(&told.name), told: known(told)? });
    all.into_iter().map(change).collect()
}

impl Change {
    /// `port vm3`
    pub fn what(&self) -> String {
        text(format!("{} {}", self.told.kind, self.told.name))
    }

    /// `+ port vm3`
    pub fn about(&self) -> String {
        format!("{} {}", text(&self.told.sign), self.what())
    }

    /// By what a reload would do, which is how the files differ from what runs.
    pub fn standing(&self, steps: &[Step]) -> Standing {
        let kind_of = |step: &Step| step.kind.as_deref().and_then(Kind::of_word);
        let of_entry =
            |step: &&Step| step.name.as_ref() == Some(&self.told.name) && kind_of(step).is_some();
        let step = steps.iter().find(of_entry);
        let sign = self.told.sign.as_str();
        let (saved, as_before) = match step {
            // As it runs, but for addresses, which are none of the settings that run.
            None => match (sign, self.twin) {
                ("+", false) => (false, true),
                ("-", _) => (true, false),
                _ => (self.told.addresses.is_empty(), sign == "~"),
            },
            Some(step) => {
                let same_kind = kind_of(step).map(Kind::name) == Some(&*self.told.kind);
                match (sign, step.sign.as_str()) {
                    ("-", "+") => (false, same_kind),
                    ("-", "~") => (self.twin && !same_kind, self.twin && same_kind),
                    ("+", "~") => {
                        (same_kind && self.has_only_addresses(step), self.twin && !same_kind)
                    }
                    ("~", "~") if same_kind => {
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
    fn has_only_addresses(&self, step: &Step) -> bool {
        let tied = &self.told.addresses;
        let list = |value: &Option<String>| -> Vec<String> {
            let words = value.iter().flat_map(|value| value.split_whitespace());
            words.map(str::to_owned).collect()
        };
        step.changes.iter().all(|change| {
            let wanted = list(&change.from).into_iter().chain(tied.iter().cloned());
            change.key == "mac" && is_same(wanted, list(&change.to))
        }) && step.changes.is_empty() == tied.is_empty()
    }

    /// True if a reload would take back what was changed, or a part of it, and nothing else.
    fn is_reversed(&self, step: &Step) -> bool {
        step.changes.iter().all(|change| {
            let key = &change.key;
            let file = change.to.as_deref().unwrap_or_default();
            let (before, now) = (values(&self.told.before, key), values(&self.told.now, key));
            if key != "mac" {
                return before.join(" ") == file && !(before.is_empty() && now.is_empty());
            }
            let runs = change.from.as_deref().unwrap_or_default();
            let runs: Vec<&str> = runs.split_whitespace().collect();
            let file: Vec<&str> = file.split_whitespace().collect();
            let is_in = |all: &[String], mac: &str| all.iter().any(|other| other == mac);
            let known = |mac: &&str| {
                runs.contains(mac) || is_in(before, mac) || is_in(&self.told.addresses, mac)
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
