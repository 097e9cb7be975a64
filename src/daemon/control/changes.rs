//! Adds, changes and deletes ports, TAPs, streams, mirrors, filters and groups for clients.

use super::adding::{AddRequest, AddWait};
use super::connection::Caller;
use super::methods::Answer;
use super::parameters::{Values, settings, wrong};
use super::switch::Switch;
use crate::opening::place_to_open;
use crate::{NewPort, PortError};
use api::config::{self, Difference, Entry, InvalidSetting, Kind, Settings};
use api::wire::{self, Added, Change, Changed, Delete, Fault, WasReset, clip};
use switch::PortId;

impl Switch {
    /// Answers `Add`.
    pub(super) fn add(
        &self,
        wire::Add { kind, may_exist, transient, keys }: wire::Add,
        caller: Caller,
    ) -> Result<Answer, Fault> {
        let (kind, may_exist) = (named(kind)?, may_exist.unwrap_or(false));
        let (name, mut given, values) = settings(keys.0)?;
        let has_socket = matches!(kind, Kind::Port | Kind::Stream);
        let default = has_socket && !given.iter().any(|(key, _)| key == "socket");
        if default {
            let socket = self.directory.join(format!("{name}.sock"));
            given.push(("socket".into(), config::Value::Word(socket.to_string_lossy().into())));
        }
        let wanted = Settings::parse(kind, given).map_err(|wrong| values.fault(wrong))?;
        check_endpoint(&wanted, &values)?;
        self.check_worker(&wanted, &values)?;
        self.check_filters(&wanted)?;
        self.tell("adds", &name, caller);
        let (mirror, waits) = (wanted.mirror(), place_to_open(&wanted).is_some());
        let is_port = wanted.kind.is_port();
        let new = match transient {
            Some(true) => NewPort::Transient(wanted),
            _ => NewPort::Kept(wanted),
        };
        if !is_port {
            let exists = self.daemon().desired().get(&name).is_some();
            if let Some(mirror) = mirror.filter(|_| !exists) {
                self.named(&mirror.from)?;
                self.named(&mirror.to)?;
            }
            let added = self.daemon().add_entry(&new).map(|()| None);
            let wanted = AddRequest { new, may_exist, any_socket: false };
            return self.added(&wanted, added).map(|added| Answer::reply(&added));
        }
        let wanted = AddRequest { new, may_exist, any_socket: default };
        // An existing port is answered without a look at a path.
        let mut added = self.daemon().check_name(&name);
        if added.is_ok() {
            if waits {
                let mut wait = AddWait::new(wanted, self);
                return Ok(Answer::parts(move |switch| wait.part(switch)));
            }
            added = self.daemon().add(&wanted.new);
            added = added.map_err(PortError::with_holder);
        }
        self.added(&wanted, added.map(Some)).map(|added| Answer::reply(&added))
    }

    /// Returns the answer to `Add`, with the number of the port; other entries have no number.
    pub(super) fn added(
        &self,
        AddRequest { new, may_exist, any_socket }: &AddRequest,
        added: Result<Option<PortId>, PortError>,
    ) -> Result<Added, Fault> {
        let settings = new.settings();
        match added {
            Ok(number) => Ok(reply(number, settings)),
            Err(PortError::Exists) if *may_exist => {
                let same = self.same(&settings.name, settings, *any_socket)?;
                let kept = self.daemon().keep_existing(new);
                kept.map(|()| same).map_err(|error| self.fault(&settings.name, &error))
            }
            Err(error) => Err(self.fault(&settings.name, &error)),
        }
    }

    /// Answers `Set`: changes the given settings, and keeps the others.
    pub(super) fn set(
        &self,
        wire::Set { kind, unset, keys }: wire::Set,
        caller: Caller,
    ) -> Result<Changed, Fault> {
        let kind = named(kind)?;
        let unset = unset.unwrap_or_default().into_iter().map(|key| key.replace('_', "-"));
        let unset: Vec<String> = unset.collect();
        let (name, given, values) = settings(keys.0)?;
        let entry = self.daemon().desired().get(&name).cloned();
        let there = match entry {
            Some(Entry { settings, .. }) if settings.kind == kind => settings,
            Some(Entry { settings, .. }) => {
                return Err(Fault::refused(&format!("{name:?} is a {}", settings.kind)));
            }
            None => return Err(self.no_such(kind, &name)),
        };
        if there.fd.is_some() {
            // Neither a file nor the kept changes could name the inherited descriptor again.
            return Err(Fault::refused(&format!(
                "port '{name}' cannot be changed: it has an inherited descriptor (--fd); \
                 start vioswitchd with --port {name},socket=PATH"
            )));
        }
        let before = there.words();
        if let Some(other) = unset.iter().find(|key| before.iter().all(|(known, _)| known != key)) {
            let text = format!("unset must name keys: {other:?} is no key");
            return Err(wrong("unset", text, other));
        }
        let mut all = given.clone();
        for (key, words) in before {
            let stays = given.iter().all(|(other, _)| other != key);
            if stays && unset.iter().all(|other| other != key) {
                all.extend(
                    words.into_iter().map(|word| (key.to_owned(), config::Value::Word(word))),
                );
            }
        }
        let wanted = Settings::parse(kind, all).map_err(|wrong| values.fault(wrong))?;
        self.check_worker(&wanted, &values)?;
        self.check_filters(&wanted)?;
        self.tell("changes", &name, caller);
        let changed = self.daemon().set(&there, &wanted);
        match changed {
            Ok(changes) => Ok(Changed { changes: changes.iter().map(change).collect() }),
            Err(error) => Err(self.fault(&name, &error)),
        }
    }

    /// Returns an error if a filter that a port names, or a group that a rule names, does not
    /// exist.
    fn check_filters(&self, wanted: &Settings) -> Result<(), Fault> {
        let daemon = self.daemon();
        let is_there = |(kind, name): &(Kind, String)| {
            let entry = daemon.desired().get(name);
            entry.is_some_and(|entry| entry.settings.kind == *kind)
        };
        match wanted.wanted_filters().iter().find(|one| !is_there(one)) {
            None => Ok(()),
            Some((kind, name)) => Err(Fault::refused(&format!("there is no {kind} '{name}'"))),
        }
    }

    /// Answers `Reset`: gives a port of the configuration the settings of the configuration.
    pub(super) fn reset(
        &self,
        wire::Reset { name }: wire::Reset,
        caller: Caller,
    ) -> Result<Answer, Fault> {
        self.tell("resets", &name, caller);
        let mut daemon = self.daemon();
        let reset = daemon.reset(&name).map_err(|error| (daemon, error));
        let changes = match reset {
            Ok(changes) => changes,
            Err((daemon, error)) => {
                drop(daemon);
                return Err(self.fault(&name, &error));
            }
        };
        if let Some(changes) = changes {
            let changes = changes.iter().map(change).collect();
            return Ok(Answer::reply(&WasReset { changes }));
        }
        self.restore(&name)
    }

    /// Adds a port of the configuration that a client deleted.
    fn restore(&self, name: &str) -> Result<Answer, Fault> {
        let entry = self.daemon().desired().configured(name).cloned();
        let entry = entry.ok_or_else(|| self.fault(name, &PortError::NoSuchPort))?;
        let is_port = entry.settings.kind.is_port();
        let waits = place_to_open(&entry.settings).is_some();
        let new = NewPort::Configured(Box::new(entry));
        if waits {
            let wanted = AddRequest { new, may_exist: false, any_socket: false };
            let mut wait = AddWait::new(wanted, self);
            return Ok(Answer::parts(move |switch| wait.part(switch)));
        }
        let restored = match is_port {
            true => self.daemon().add(&new).map(drop).map_err(PortError::with_holder),
            false => self.daemon().add_entry(&new),
        };
        restored.map_err(|error| self.fault(name, &error))?;
        Ok(Answer::reply(&WasReset::default()))
    }

    /// Returns an error if the switch has no worker of the number that a port asks for.
    fn check_worker(&self, wanted: &Settings, values: &Values) -> Result<(), Fault> {
        let workers = self.view.workers.handles().len();
        wanted.check_worker(workers).map_err(|wrong| values.fault(wrong))
    }

    /// Answers `Delete`: deletes a port of any kind, or only an entry of the kind that the caller
    /// names.
    pub(super) fn delete(
        &self,
        Delete { name, kind }: Delete,
        caller: Caller,
    ) -> Result<Answer, Fault> {
        let (of_any, wanted) = (kind.is_none(), named(kind)?);
        let mut daemon = self.daemon();
        match daemon.desired().get(&name).map(|entry| entry.settings.kind) {
            Some(is) if is != wanted && (!is.is_port() || !of_any) => {
                let text =
                    format!("'{name}' is a {is}, not a {wanted}: {is} del {name} deletes it");
                return Err(Fault::refused(&text));
            }
            None if !wanted.is_port() => return Err(self.no_such(wanted, &name)),
            _ => {}
        }
        self.tell("removes", &name, caller);
        let removal = daemon.begin_removal(&name);
        drop(daemon);
        let removal = removal.map_err(|error| self.fault(&name, &error))?;
        Ok(Answer::Removal(clip(&name), removal))
    }

    /// Returns the error that no entry of a kind has this name.
    fn no_such(&self, kind: Kind, name: &str) -> Fault {
        match kind.is_port() {
            true => self.fault(name, &PortError::NoSuchPort),
            false => Fault::refused(&format!("there is no {kind} '{}'", clip(name))),
        }
    }

    /// Returns the answer for an existing entry of this name, or an error if its settings are not
    /// the wanted settings. If the client named no socket, the entry may have any socket.
    fn same(&self, name: &str, wanted: &Settings, any_socket: bool) -> Result<Added, Fault> {
        let number = self.daemon().ports().named(name).map(|port| port.id);
        let entry = self.daemon().desired().get(name).cloned();
        let is_there = |entry: &Entry| number.is_some() || !entry.settings.kind.is_port();
        let Some(entry) = entry.filter(is_there) else {
            return Err(self.fault(name, &PortError::NoSuchPort));
        };
        let (kind, origin) = (entry.settings.kind, entry.origin.name());
        if kind != wanted.kind {
            return Err(Fault::refused(&format!("{name:?} is a {kind} (origin {origin})")));
        }
        let mut differences = entry.settings.differences(wanted);
        differences.retain(|difference| !any_socket || difference.key != "socket");
        if differences.is_empty() {
            return Ok(reply(number, &entry.settings));
        }
        let value = |value: &Option<String>| value.as_deref().map_or("none".to_owned(), clip);
        let told = differences.iter().map(|Difference { key, from, to, .. }| {
            format!("{key} is {}, not {}", value(from), value(to))
        });
        let told = told.collect::<Vec<_>>().join(", ");
        let text = format!("{kind} '{name}' exists (origin {origin}) with other settings: {told}");
        Err(Fault::refused(&text))
    }
}

/// Returns the answer to `Add`: the port's number and the path of its socket, which other entries
/// lack.
fn reply(number: Option<PortId>, settings: &Settings) -> Added {
    let socket = settings.socket.as_ref().map(|path| path.to_string_lossy().into_owned());
    Added { number, socket }
}

/// Returns the kind of this word; without a word, the kind of virtual machines.
fn named(kind: Option<String>) -> Result<Kind, Fault> {
    let word = kind.unwrap_or_else(|| Kind::Port.name().to_owned());
    let names = || Kind::NAMED.map(Kind::name).join(", ");
    Kind::named(&word)
        .ok_or_else(|| wrong("kind", format!("kind must be one of {}", names()), &word))
}

/// Returns a key that changes, and when the change takes effect.
pub(super) fn change(difference: &Difference) -> Change {
    let Difference { key, from, to, effect } = difference.clone();
    Change { key: key.to_owned(), from, to, effect }
}

/// Returns an error unless clients may have the port's front-end met at this socket.
pub(super) fn check_endpoint(wanted: &Settings, values: &Values) -> Result<(), Fault> {
    match &wanted.socket {
        Some(path) if path.is_relative() => {
            let text = format!("socket {path:?} must be a whole path, from / on");
            Err(values.fault(InvalidSetting { key: "socket".to_owned(), text }))
        }
        _ => Ok(()),
    }
}
