//! Answers about the configuration: the settings in force, and the changes of a reload.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::changes::change;
use super::connection::Caller;
use super::methods::Answer;
use super::parameters::number;
use super::parts::{Part, Stream, found, list_by_size};
use super::switch::Switch;
use crate::{Busy, Confirm, Step, summary};
use api::config::{Entry, Origin};
use api::wire::{
    self, Change, ConfigEntries, ConfigEntry, ConfigKey, Confirmed, Fault, ReloadConfig, Reloaded,
    Steps, Unconfirmed,
};
use base::limits::{
    CONTROL_CHANGES_BYTES, CONTROL_CONFIRM_SECONDS, CONTROL_PORTS_A_REPLY, CONTROL_SHOWN_CHANGES,
    CONTROL_WAIT_STEP,
};
use sys::blocking::NotBegun;

/// Returns as many items as one reply may have: a single reply cannot wait for its reader, as an
/// answer of several parts can.
fn some<T: Serialize>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut bytes = 0;
    let all = all.take(CONTROL_SHOWN_CHANGES).map_while(|step| {
        let fits = bytes < CONTROL_CHANGES_BYTES;
        bytes += serde_json::to_string(&step).map_or(0, |text| text.len());
        fits.then_some(step)
    });
    all.collect()
}

/// Returns the keys that are set, with their values.
pub(super) fn keys(words: impl IntoIterator<Item = (&'static str, Vec<String>)>) -> Vec<ConfigKey> {
    let set = words.into_iter().filter(|(_, values)| !values.is_empty());
    set.map(|(key, values)| ConfigKey { key: key.to_owned(), values }).collect()
}

/// Returns the bytes of an entry's values.
fn entry_bytes(entry: &ConfigEntry) -> usize {
    entry.keys.iter().flat_map(|key| &key.values).map(String::len).sum()
}

/// Returns the bytes of the values that a step changes.
fn step_bytes(step: &Step) -> usize {
    let Step::Change(_, changes) = step else { return 0 };
    let values = changes.iter().flat_map(|change| [&change.from, &change.to]);
    values.flatten().map(String::len).sum()
}

fn busy(busy: Busy) -> Fault {
    Fault::refused(&busy.to_string())
}

impl Switch {
    /// Answers `GetConfig`: the entries in force, and the kept entries without effect.
    pub(super) fn config(&self) -> Answer {
        let daemon = self.daemon();
        let desired = daemon.desired();
        let told = |entry: &Entry, overridden: Vec<String>, unused: Option<String>| {
            let Entry { settings, origin, .. } = entry;
            let (kind, name) = (settings.kind.name().to_owned(), settings.name.clone());
            let (origin, keys) = (origin.name().to_owned(), keys(settings.words()));
            ConfigEntry { kind, name, origin, keys, overridden, unused }
        };
        let entries = desired.entries().iter();
        let entries = entries.map(|(name, entry)| told(entry, desired.overridden(name), None));
        let deleted = desired.deleted().filter(|entry| {
            desired.get(&entry.settings.name).is_none_or(|there| there.origin != Origin::Config)
        });
        let deleted = deleted.map(|entry| told(entry, Vec::new(), Some("deleted".to_owned())));
        let unused = desired.unused().filter_map(|unused| {
            Some(told(unused.entry.as_ref()?, Vec::new(), Some(unused.why.to_string())))
        });
        let switch = daemon.global_keys();
        let mut switch = Some((keys(switch), desired.template().map(|all| keys(all.given()))));
        let answer = move |_: &Switch, entries| {
            let (switch, template) = switch.take().unzip();
            ConfigEntries { entries, switch, template: template.flatten() }
        };
        let all = entries.chain(deleted).chain(unused).collect();
        Answer::Stream(list_by_size(all, CONTROL_PORTS_A_REPLY, entry_bytes, answer))
    }

    /// Returns the absolute path of the file that the switch was started with.
    pub(super) fn config_file(&self) -> Option<String> {
        let path = std::path::absolute(self.reloader.file()?).ok()?;
        Some(path.to_string_lossy().into_owned())
    }

    /// Answers `DiffConfig`: a separate thread reads and compares the files.
    pub(super) fn diff(&self) -> Result<Answer, Fault> {
        self.reloader.check_file().map_err(busy)?;
        let (mut begun, mut told) = (Err(NotBegun::Busy), None::<Stream>);
        Ok(Answer::parts(move |switch| {
            if let Some(told) = &mut told {
                return told(switch);
            }
            if let Err(NotBegun::Busy | NotBegun::Full) = begun {
                let reloader = Arc::clone(&switch.reloader);
                // The configuration has one set of files, so the path is empty.
                let work = move || reloader.diff();
                begun = switch.diffs.begin(Path::new(""), &switch.wakeup, work);
            }
            if let Err(error @ NotBegun::Thread(_)) = &begun {
                return Err(Fault::refused(&error.to_string()));
            }
            let Some(steps) = found(&begun)? else { return Ok(Part::Later(None)) };
            let steps = steps.map_err(|errors| Fault::bad_config(&errors))?;
            let answer = |switch: &Switch, steps: Vec<Step>| Steps {
                steps: steps.iter().map(|step| switch.step(step)).collect(),
            };
            told.insert(list_by_size(steps, CONTROL_PORTS_A_REPLY, step_bytes, answer))(switch)
        }))
    }

    /// Answers `ReloadConfig`.
    pub(super) fn reload(
        &self,
        given: ReloadConfig,
        Caller { pid, uid, .. }: Caller,
    ) -> Result<Answer, Fault> {
        let range = 1..=CONTROL_CONFIRM_SECONDS;
        let confirm = number(given.confirm_seconds, "confirm_seconds", range)?;
        let reloader = Arc::clone(&self.reloader);
        let by = |seconds| Confirm { time: Duration::from_secs(seconds), pid, uid };
        reloader.begin(confirm.map(by)).map_err(busy)?;
        Ok(Answer::parts(move |switch| match reloader.outcome() {
            None => Ok(Part::Later(Some(Instant::now() + CONTROL_WAIT_STEP))),
            Some(Err(errors)) => Err(Fault::bad_config(&errors)),
            Some(Ok(steps)) => {
                let told = some(steps.iter().map(|step| switch.step(step)));
                let suppressed =
                    Some((steps.len() - told.len()) as u64).filter(|suppressed| *suppressed > 0);
                let (summary, confirm_seconds) = (summary(&steps), confirm);
                let reloaded = Reloaded { summary, steps: told, suppressed, confirm_seconds };
                Ok(Part::reply(&reloaded, false))
            }
        }))
    }

    /// Answers `ConfirmConfig`.
    pub(super) fn confirm(&self) -> Result<Confirmed, Fault> {
        let confirmed = self.reloader.confirm();
        confirmed.map(|()| Confirmed {}).map_err(busy)
    }

    /// Returns the reload that waits to be confirmed.
    pub(super) fn unconfirmed(&self) -> Option<Unconfirmed> {
        let (Confirm { pid, uid, .. }, left) = self.reloader.unconfirmed()?;
        // Seconds are rounded up: 0 seconds are left when the reload is undone.
        let seconds = left.as_secs() + u64::from(left.subsec_nanos() > 0);
        Some(Unconfirmed { seconds, pid, uid })
    }

    /// Returns one difference as clients see it.
    fn step(&self, step: &Step) -> wire::Step {
        let (sign, changes): (&str, Vec<Change>) = match step {
            Step::Add(_) => ("+", Vec::new()),
            Step::Remove(_) => ("-", Vec::new()),
            Step::Change(_, changes) => ("~", changes.iter().map(change).collect()),
            Step::Scalar(difference) | Step::Template(difference) => {
                ("~", vec![change(difference)])
            }
        };
        let (kind, name, origin) = match step {
            Step::Template(_) => (Some("template"), Some("plug".to_owned()), None),
            _ => match step.entry() {
                Some(Entry { settings, origin, .. }) => {
                    (Some(settings.kind.name()), Some(settings.name.clone()), Some(*origin))
                }
                None => (None, None, None),
            },
        };
        let detached = name.as_ref().filter(|_| step.entry().is_some() && step.detaches());
        wire::Step {
            sign: sign.to_owned(),
            detaches: detached.and_then(|name| self.front_end(name)),
            kind: kind.map(str::to_owned),
            name,
            origin: origin.map(|origin| origin.name().to_owned()),
            changes,
        }
    }

    /// Returns the process at a port's socket.
    fn front_end(&self, name: &str) -> Option<i32> {
        let ports = self.view.ports.present();
        Some(ports.named(name)?.front_end()?.pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_told_up_to_a_number_and_a_size() {
        let told = |len: usize| some((0..1024).map(|_| "x".repeat(len))).len();
        assert_eq!(told(10), CONTROL_SHOWN_CHANGES);
        let long = told(2998);
        assert_eq!(long, CONTROL_CHANGES_BYTES.div_ceil(3000));
        assert!(long < CONTROL_SHOWN_CHANGES);
        assert_eq!(told(CONTROL_CHANGES_BYTES), 1);
    }
}
