//! The configuration: what is in force, and what reading it again would change.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::changes::change;
use super::connection::Caller;
use super::message::{Fault, Parameters};
use super::methods::{Answer, Switch};
use super::parameters::{number, only};
use super::parts::{Part, Stream};
use crate::config::{Difference, Effect, Entry, Origin};
use crate::daemon::desired::Changed;
use crate::daemon::{Busy, Confirm, Reloader, Step, Summary};
use crate::frame::MacAddr;
use crate::limits::{
    CONTROL_CHANGES_BYTES, CONTROL_CONFIRM_SECONDS, CONTROL_PORTS_A_REPLY, CONTROL_SHOWN_CHANGES,
    CONTROL_WAIT_STEP,
};
use crate::sys::blocking::{NotBegun, Task};

/// A list that is told in parts, the last one first.
#[derive(Debug)]
pub struct List<T>(Vec<T>);

impl<T> List<T> {
    pub(super) fn new(mut items: Vec<T>) -> List<T> {
        items.reverse();
        List(items)
    }

    /// The next part.
    pub fn part(&mut self, key: &str, show: impl Fn(&T) -> Value) -> Part {
        let rest = self.0.len().saturating_sub(CONTROL_PORTS_A_REPLY);
        let part: Vec<Value> = self.0.split_off(rest).iter().rev().map(show).collect();
        Part::Reply(json!({key: part}), rest > 0)
    }
}

/// A port, TAP or stream as it is in force, and the addresses that are tied to it.
#[derive(Debug)]
pub struct Configured(Entry, Vec<MacAddr>);

impl Configured {
    /// As clients are told.
    pub fn show(&self) -> Value {
        let Configured(Entry { settings, origin, .. }, tied) = self;
        let addresses: Vec<String> = tied.iter().map(MacAddr::to_string).collect();
        json!({
            "kind": settings.kind.name(),
            "name": settings.name,
            "origin": origin.name(),
            "keys": keys(settings.words()),
            "addresses": addresses,
        })
    }
}

/// A client waits for what files say, which are read and compared by a thread of its own, and is
/// told then.
#[derive(Debug)]
pub enum DiffWait {
    /// Others are being compared.
    Wanted,
    /// The thread is at it.
    UnderWay(Task<Result<Vec<Step>, Vec<String>>>),
    /// What it found.
    Told(List<Step>),
}

impl DiffWait {
    /// The next part, if it is known.
    pub fn part(&mut self, switch: &Switch) -> Part {
        if let DiffWait::Wanted = self {
            let reloader = Arc::clone(&switch.reloader);
            // Of the files there is one lot.
            let begun = switch.diffs.begin(Path::new(""), &switch.news, move || reloader.diff());
            match begun {
                Ok(task) => *self = DiffWait::UnderWay(task),
                Err(NotBegun::Busy | NotBegun::Full) => {}
                Err(error) => return Part::Fault(Fault::refused(&error.to_string())),
            }
        }
        if let DiffWait::UnderWay(task) = self {
            match task.result() {
                Ok(Ok(steps)) => *self = DiffWait::Told(List::new(steps)),
                Ok(Err(errors)) => return Part::Fault(Fault::bad_config(&errors)),
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => {
                    return Part::Fault(Fault::refused("it panicked; see the log"));
                }
            }
        }
        match self {
            DiffWait::Told(list) => list.part("steps", |step| switch.step(step)),
            DiffWait::Wanted | DiffWait::UnderWay(_) => Part::Later(None),
        }
    }
}

/// A client waits for a reload.
pub struct ReloadWait {
    reloader: Arc<Reloader>,
    confirm: Option<u64>,
}

impl std::fmt::Debug for ReloadWait {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReloadWait").finish_non_exhaustive()
    }
}

impl ReloadWait {
    /// The answer, if it is known.
    pub fn part(&self, switch: &Switch) -> Part {
        match self.reloader.outcome() {
            None => Part::Later(Some(Instant::now() + CONTROL_WAIT_STEP)),
            Some(Err(errors)) => Part::Fault(Fault::bad_config(&errors)),
            Some(Ok(steps)) => {
                let told = some(steps.iter().map(|step| switch.step(step)));
                let untold = steps.len() - told.len();
                let mut reply = json!({"summary": Summary(&steps).to_string(), "steps": told});
                if untold > 0 {
                    reply["untold"] = untold.into();
                }
                if let Some(seconds) = self.confirm {
                    reply["confirm_seconds"] = seconds.into();
                }
                Part::Reply(reply, false)
            }
        }
    }
}

/// As many of these as one reply may have: it cannot wait for its reader as a part of several does.
fn some(all: impl Iterator<Item = Value>) -> Vec<Value> {
    let mut bytes = 0;
    let all = all.take(CONTROL_SHOWN_CHANGES).map_while(|step| {
        let fits = bytes < CONTROL_CHANGES_BYTES;
        bytes += step.to_string().len();
        fits.then_some(step)
    });
    all.collect()
}

/// Keys that are set, with their values.
pub(super) fn keys(words: impl IntoIterator<Item = (&'static str, Vec<String>)>) -> Vec<Value> {
    let set = words.into_iter().filter(|(_, values)| !values.is_empty());
    set.map(|(key, values)| json!({"key": key, "values": values})).collect()
}

/// What became of a port while the switch runs. One that is of another kind by now was deleted, and
/// one of its name was added.
fn differences(Changed { configured, now, tied }: &Changed<'_>) -> Vec<Value> {
    let tied: Vec<String> = tied.iter().map(ToString::to_string).collect();
    let tell = |sign: &str, entry: &Entry, before: Vec<Value>, now: Vec<Value>| {
        let Entry { settings, origin, .. } = entry;
        json!({
            "sign": sign, "kind": settings.kind.name(), "name": settings.name,
            "origin": origin.name(), "before": before, "now": now, "addresses": [],
        })
    };
    let mut told = match (configured, now) {
        (Some(was), Some(is)) if was.settings.kind.name() == is.settings.kind.name() => {
            let (before, after) = (was.settings.words(), is.settings.words());
            // Only what differs, either way.
            let other = |all: &[(&str, Vec<String>)], than: &[(&'static str, Vec<String>)]| {
                keys(than.iter().filter(|word| !all.contains(word)).cloned())
            };
            vec![tell("~", is, other(&after, &before), other(&before, &after))]
        }
        _ => {
            let deleted = configured.map(|was| tell("-", was, Vec::new(), Vec::new()));
            let added = now.map(|is| tell("+", is, Vec::new(), keys(is.settings.given())));
            deleted.into_iter().chain(added).collect()
        }
    };
    if let Some(last) = told.last_mut() {
        last["addresses"] = tied.into();
    }
    told
}

fn busy(busy: Busy) -> Fault {
    Fault::refused(&busy.to_string())
}

impl Switch {
    /// `GetConfig`: what is in force.
    pub(super) fn config(&self, parameters: &Parameters) -> Result<Answer, Fault> {
        only(parameters, &[])?;
        let daemon = self.daemon();
        let desired = daemon.desired();
        let mut tied: HashMap<&str, Vec<MacAddr>> = HashMap::new();
        for (mac, name) in desired.assigned() {
            tied.entry(name).or_default().push(*mac);
        }
        let entries = desired.entries().iter().map(|(name, entry)| {
            let tied = tied.remove(name.as_str()).unwrap_or_default();
            Configured(entry.clone(), tied)
        });
        Ok(Answer::Stream(Stream::Config(List::new(entries.collect()))))
    }

    /// The file that the switch was started with, wherever the client stands.
    pub(super) fn config_file(&self) -> Option<String> {
        let path = std::path::absolute(self.reloader.file()?).ok()?;
        Some(path.to_string_lossy().into_owned())
    }

    /// `GetChanges`: how what is in force differs from what the configuration says.
    pub(super) fn changed(&self, parameters: &Parameters) -> Result<Answer, Fault> {
        only(parameters, &[])?;
        self.reloader.check_settled().map_err(busy)?;
        let daemon = self.daemon();
        let changes = daemon.desired().changes().iter().flat_map(differences).collect();
        Ok(Answer::Stream(Stream::Changes(List::new(changes))))
    }

    /// `DiffConfig`.
    pub(super) fn diff(&self, parameters: &Parameters) -> Result<Answer, Fault> {
        only(parameters, &[])?;
        self.reloader.check_file().map_err(busy)?;
        Ok(Answer::Stream(Stream::Diff(DiffWait::Wanted)))
    }

    /// `ReloadConfig`.
    pub(super) fn reload(
        &self,
        mut parameters: Parameters,
        Caller { pid, uid, .. }: Caller,
    ) -> Result<Answer, Fault> {
        only(&parameters, &["confirm_seconds"])?;
        let confirm = number(&mut parameters, "confirm_seconds", 1..=CONTROL_CONFIRM_SECONDS)?;
        let reloader = Arc::clone(&self.reloader);
        let by = |seconds| Confirm { time: Duration::from_secs(seconds), pid, uid };
        reloader.begin(confirm.map(by)).map_err(busy)?;
        Ok(Answer::Stream(Stream::Reload(ReloadWait { reloader, confirm })))
    }

    /// `ConfirmConfig`.
    pub(super) fn confirm(&self) -> Result<Value, Fault> {
        let confirmed = self.reloader.confirm();
        confirmed.map(|()| json!({})).map_err(busy)
    }

    /// The reload that waits to be confirmed.
    pub(super) fn unconfirmed(&self) -> Option<Value> {
        let (Confirm { pid, uid, .. }, left) = self.reloader.unconfirmed()?;
        // Rounded up: none are left when it goes back.
        let seconds = left.as_secs() + u64::from(left.subsec_nanos() > 0);
        Some(json!({"seconds": seconds, "pid": pid, "uid": uid}))
    }

    /// One difference.
    fn step(&self, step: &Step) -> Value {
        let (sign, changes) = match step {
            Step::Add(_) => ("+", Vec::new()),
            Step::Remove(_) => ("-", Vec::new()),
            Step::Change(_, changes) => ("~", changes.iter().map(change).collect()),
            Step::Scalar(difference) | Step::Template(difference) => {
                ("~", vec![change(difference)])
            }
            Step::Address { from, to, .. } => {
                let (from, to) = (Some(from.clone()), Some(to.clone()));
                let effect = Effect::Now;
                ("~", vec![change(&Difference { key: "port", from, to, effect })])
            }
        };
        let mut told = json!({"sign": sign, "changes": changes});
        if let Step::Template(_) = step {
            told["kind"] = "template".into();
            told["name"] = "plug".into();
        }
        if let Step::Address { mac, .. } = step {
            told["kind"] = "address".into();
            told["name"] = mac.to_string().into();
            told["origin"] = Origin::Runtime.name().into();
        }
        if let Some(entry) = step.entry() {
            told["kind"] = entry.settings.kind.name().into();
            told["name"] = entry.settings.name.clone().into();
            told["origin"] = entry.origin.name().into();
            if step.detaches()
                && let Some(pid) = self.front_end(&entry.settings.name)
            {
                told["detaches"] = pid.into();
            }
        }
        told
    }

    /// The process at a port's socket.
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
        let told = |len: usize| some((0..1024).map(|_| "x".repeat(len).into())).len();
        assert_eq!(told(10), CONTROL_SHOWN_CHANGES);
        let long = told(2998);
        assert_eq!(long, CONTROL_CHANGES_BYTES.div_ceil(3000));
        assert!(long < CONTROL_SHOWN_CHANGES);
        assert_eq!(told(CONTROL_CHANGES_BYTES), 1);
    }
}
