//! Changes that a configuration makes to the ports that are wanted: to show, and to carry out.
//!
//! Ports of the command line stay, and those that were added while the switch runs stay unless the
//! configuration has their names: it wins. So it is with ports that brought their own sockets, and
//! with addresses.

use std::collections::HashSet;

use super::desired::Desired;
use api::config::{Config, Difference, Effect, Entry, Origin, Settings};
use base::frame::MacAddr;

/// One difference.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// A port or TAP comes.
    Add(Entry),
    /// It goes.
    Remove(Entry),
    /// Its settings change, and perhaps who gave it.
    Change(Entry, Vec<Difference>),
    /// A key outside of any entry.
    Scalar(Difference),
    /// A key of ports that bring their own sockets.
    Template(Difference),
    /// An address that was tied to a port while the switch runs is another one's.
    Address {
        /// The address.
        mac: MacAddr,
        /// Who had it.
        from: String,
        /// Who has it by the configuration.
        to: String,
    },
}

impl Step {
    /// Its port or TAP.
    pub fn entry(&self) -> Option<&Entry> {
        match self {
            Step::Add(entry) | Step::Remove(entry) | Step::Change(entry, _) => Some(entry),
            Step::Scalar(_) | Step::Template(_) | Step::Address { .. } => None,
        }
    }

    /// True if the port is disconnected: it goes, or comes back with another socket.
    pub fn detaches(&self) -> bool {
        match self {
            Step::Remove(_) => true,
            Step::Change(_, changes) => {
                changes.iter().any(|change| change.effect == Effect::Reopen)
            }
            Step::Add(_) | Step::Scalar(_) | Step::Template(_) | Step::Address { .. } => false,
        }
    }
}

/// How many of each kind, in words.
pub fn summary(steps: &[Step]) -> String {
    let count = |of: fn(&Step) -> bool| steps.iter().filter(|step| of(step)).count();
    let added = count(|step| matches!(step, Step::Add(_)));
    let removed = count(|step| matches!(step, Step::Remove(_)));
    let restart = count(|step| matches!(step, Step::Scalar(_)));
    let changed = steps.len() - added - removed - restart;
    let waits = if restart > 0 { format!(", {restart} with a restart") } else { String::new() };
    format!("{added} added, {changed} changed, {removed} deleted{waits}")
}

/// Everything that a configuration changes; `started` is the one of the start.
pub fn diff(desired: &Desired, started: &Config, config: &Config) -> Vec<Step> {
    let mut steps: Vec<Step> = scalars(started, config).collect();
    if let Some(template) = desired.template() {
        let differences = template.differences(&config.template);
        steps.extend(differences.into_iter().map(Step::Template));
    }
    steps.extend(ports(desired, &config.ports));
    steps
}

/// Returns the steps of ports, by the entries of `wanted` that are not the command line's.
fn ports(desired: &Desired, wanted: &[Entry]) -> Vec<Step> {
    let names: HashSet<&str> = wanted.iter().map(|entry| entry.settings.name.as_str()).collect();
    let mut steps: Vec<Step> = desired
        .entries()
        .iter()
        .filter(|(name, entry)| entry.origin == Origin::File && !names.contains(name.as_str()))
        .map(|(_, entry)| Step::Remove(entry.clone()))
        .collect();
    for entry in wanted.iter().filter(|entry| entry.origin != Origin::Cli) {
        let to = entry.settings.name.as_str();
        let taken = entry.settings.mac.iter().filter_map(|mac| {
            let from = desired.owner(*mac, &entry.settings)?;
            let taken = from != to && desired.is_assigned(*mac, from);
            taken.then(|| Step::Address { mac: *mac, from: from.to_owned(), to: to.to_owned() })
        });
        steps.extend(taken);
        match desired.get(entry.settings.name.as_str()) {
            Some(there) if there.origin == Origin::Cli => {}
            Some(there) => {
                let changes = there.settings.differences(&entry.settings);
                if !changes.is_empty() || there.origin != entry.origin {
                    steps.push(Step::Change(entry.clone(), changes));
                }
            }
            None => steps.push(Step::Add(entry.clone())),
        }
    }
    steps
}

/// The ports that are wanted after `steps`; what keeps them from being taken, one line each.
pub fn apply(desired: &mut Desired, steps: &[Step]) -> Vec<String> {
    for step in steps {
        match step {
            Step::Address { mac, from, .. } => _ = desired.unassign(*mac, from),
            Step::Remove(entry) => {
                desired.unassign_all(&entry.settings.name);
                desired.remove(&entry.settings.name);
            }
            Step::Change(entry, _) => drop(desired.remove(&entry.settings.name)),
            Step::Add(_) | Step::Scalar(_) | Step::Template(_) => {}
        }
    }
    let mut wrong = Vec::new();
    for step in steps {
        let (Step::Add(entry) | Step::Change(entry, _)) = step else { continue };
        let Settings { kind, name, .. } = &entry.settings;
        let mirror = desired.check_mirror(&entry.settings).err();
        let clash = desired.check(entry).err().map(|clash| clash.to_string());
        wrong.extend(mirror.into_iter().chain(clash).map(|why| format!("{kind} {name}: {why}")));
        desired.insert(entry.clone());
    }
    wrong
}

/// Returns the steps of keys outside of any entry.
fn scalars(before: &Config, after: &Config) -> impl Iterator<Item = Step> {
    let both = before.words.iter().cloned().zip(after.words.iter().cloned());
    let differ = both.filter(|(before, after)| before != after);
    let difference = |((key, from), (_, to))| {
        Step::Scalar(Difference { key, from, to, effect: Effect::Restart })
    };
    differ.map(difference)
}
