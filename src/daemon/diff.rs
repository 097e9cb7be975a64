//! Finds the changes that a configuration makes to the ports that are wanted: to show the changes,
//! and to carry them out.
//!
//! Ports and changes that clients made stay, unless the configuration has the name.

use super::desired::Desired;
use api::config::{Config, Difference, Effect, Entry};

/// A difference between the ports that are wanted and a configuration.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// A port or TAP comes.
    Add(Entry),
    /// A port or TAP goes.
    Remove(Entry),
    /// The settings of a port or TAP change, and perhaps its origin.
    Change(Entry, Vec<Difference>),
    /// A key outside of any entry changes.
    Scalar(Difference),
    /// A key of ports that bring their own sockets changes.
    Template(Difference),
}

impl Step {
    /// Returns the entry of the step's port or TAP; none if the step concerns a key.
    pub(crate) fn entry(&self) -> Option<&Entry> {
        match self {
            Step::Add(entry) | Step::Remove(entry) | Step::Change(entry, _) => Some(entry),
            Step::Scalar(_) | Step::Template(_) => None,
        }
    }

    /// True if the port is disconnected: the port goes, or comes back with another socket.
    pub(crate) fn detaches(&self) -> bool {
        match self {
            Step::Remove(_) => true,
            Step::Change(_, changes) => {
                changes.iter().any(|change| change.effect == Effect::Reopen)
            }
            Step::Add(_) | Step::Scalar(_) | Step::Template(_) => false,
        }
    }
}

/// Returns in words how many steps of each kind there are.
pub fn summary(steps: &[Step]) -> String {
    let count = |of: fn(&Step) -> bool| steps.iter().filter(|step| of(step)).count();
    let added = count(|step| matches!(step, Step::Add(_)));
    let removed = count(|step| matches!(step, Step::Remove(_)));
    let restart = count(|step| matches!(step, Step::Scalar(_)));
    let changed = steps.len() - added - removed - restart;
    let waits = if restart > 0 { format!(", {restart} with a restart") } else { String::new() };
    format!("{added} added, {changed} changed, {removed} deleted{waits}")
}

/// Returns the steps to a configuration, and the ports that are wanted after them; `started` is the
/// configuration of the start.
pub fn diff(desired: &Desired, started: &Config, config: &Config) -> (Vec<Step>, Desired) {
    let after = desired.with(config);
    let mut steps: Vec<Step> = scalars(started, config).collect();
    if let Some(template) = desired.template() {
        let differences = template.differences(&config.template);
        steps.extend(differences.into_iter().map(Step::Template));
    }
    let gone = desired.entries().values().filter(|there| after.get(&there.settings.name).is_none());
    steps.extend(gone.cloned().map(Step::Remove));
    for entry in after.in_order(config) {
        match desired.get(&entry.settings.name) {
            Some(there) => {
                let changes = there.settings.differences(&entry.settings);
                if !changes.is_empty() || there.origin != entry.origin {
                    steps.push(Step::Change(entry, changes));
                }
            }
            None => steps.push(Step::Add(entry)),
        }
    }
    (steps, after)
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
