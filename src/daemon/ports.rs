//! Adds and changes ports while the switch runs.
//!
//! A port that is added has its socket, or its interface, before the port is published, and its
//! thread after: a front-end that connects finds everything else running. A step that fails undoes
//! the steps before.
//!
//! `super::removing` removes ports.

use std::sync::Arc;
use std::time::Instant;

use super::desired::Desired;
use super::front_end::Acceptor;
use super::opening;
use super::received::Received;
use super::serving::{Opened, Serving};
use super::{Daemon, PortError, build, uplink};
use api::config::{Difference, Effect, Entry, Kind, Origin, Settings};
use base::limits::REMOVE_TIMEOUT;
use datapath::events::What;
use datapath::port::Port;
use switch::{PortId, StaticError};

/// A port that a client requests.
#[derive(Debug, Clone)]
pub enum NewPort {
    /// A port of these settings, which is kept for the next process.
    Kept(Settings),
    /// A port of these settings, which goes with the process.
    Transient(Settings),
    /// A port of the configuration, which a client deleted.
    Configured(Box<Entry>),
}

impl NewPort {
    /// Returns the port's settings.
    pub(crate) fn settings(&self) -> &Settings {
        match self {
            NewPort::Kept(settings) | NewPort::Transient(settings) => settings,
            NewPort::Configured(entry) => &entry.settings,
        }
    }

    /// Returns the entry, after a look at the directory of the port's socket.
    pub(super) fn entry(&self, origin: Origin) -> Entry {
        match self {
            NewPort::Kept(settings) | NewPort::Transient(settings) => {
                Entry::new(settings.clone(), origin)
            }
            NewPort::Configured(entry) => (**entry).clone(),
        }
    }
}

/// Adds an entry of a client, or restores an entry of the configuration that a client deleted.
fn add_to(desired: &mut Desired, entry: &Entry) -> Result<(), PortError> {
    check_origin(desired, entry)?;
    if entry.origin == Origin::Config {
        desired.check(entry)?;
        desired.reset(&entry.settings.name);
        return Ok(());
    }
    Ok(desired.add(entry.clone())?)
}

/// An error if an entry that goes with the process would replace one that is kept without effect.
fn check_origin(desired: &Desired, entry: &Entry) -> Result<(), PortError> {
    let is_kept = entry.origin == Origin::Transient && desired.is_added(&entry.settings.name);
    if is_kept { Err(PortError::Exists) } else { Ok(()) }
}

impl Daemon {
    /// Adds a port or TAP that a client requests while the switch runs. When this returns, the
    /// port's socket exists, or frames pass by the TAP.
    pub fn add(&mut self, new: &NewPort) -> Result<PortId, PortError> {
        let entry = new.entry(self.origin_of(new));
        self.check_new(&entry)?;
        let mut socket = opening::open(&entry)?;
        self.add_opened(entry, &mut socket)
    }

    /// Returns the origin of a port that a client adds.
    pub(super) fn origin_of(&self, new: &NewPort) -> Origin {
        match new {
            NewPort::Kept(_) if self.store.keeps() => Origin::Kept,
            NewPort::Kept(_) | NewPort::Transient(_) => Origin::Transient,
            NewPort::Configured(_) => Origin::Config,
        }
    }

    /// Adds a mirror, filter or group, or restores one of the configuration.
    pub(crate) fn add_entry(&mut self, new: &NewPort) -> Result<(), PortError> {
        let entry = new.entry(self.origin_of(new));
        let (settings, name) = (&entry.settings, &entry.settings.name);
        if self.desired.get(name).is_some() || self.view.ports.present().named(name).is_some() {
            return Err(PortError::Exists);
        }
        self.desired.check_mirror(settings).map_err(PortError::Mirror)?;
        let same = |other: &&Entry| other.settings.kind == settings.kind;
        if self.desired.entries().values().filter(same).count() >= settings.kind.most() {
            return Err(PortError::Many(settings.kind));
        }
        self.edit(|desired| add_to(desired, &entry), |daemon| daemon.reconcile_port(name))
    }

    /// Makes a transient port kept, if `new` asks for a kept port of the name.
    pub(crate) fn keep_existing(&mut self, new: &NewPort) -> Result<(), PortError> {
        let name = &new.settings().name;
        let there = self.desired.get(name).ok_or(PortError::NoSuchPort)?.clone();
        if there.origin != Origin::Transient || self.origin_of(new) != Origin::Kept {
            return Ok(());
        }
        let entry = Entry { origin: Origin::Kept, ..there };
        self.edit(|desired| desired.add(entry), |daemon| daemon.reconcile_port(name))
    }

    /// Adds a port whose socket, if the port has a socket, is open. Leaves the socket in `socket`
    /// if the port cannot be added: a file system may hold up the closing.
    pub(super) fn add_opened(
        &mut self,
        entry: Entry,
        socket: &mut Option<Acceptor>,
    ) -> Result<PortId, PortError> {
        self.check_new(&entry)?;
        self.edit(|desired| add_to(desired, &entry), |daemon| daemon.create(&entry, socket))
    }

    /// Returns a number for a new port or TAP, or an error if the entry cannot be added.
    pub(super) fn check_new(&mut self, entry: &Entry) -> Result<PortId, PortError> {
        let id = self.check_name(&entry.settings.name)?;
        check_origin(&self.desired, entry)?;
        self.is_clear(entry)?;
        self.desired.check(entry)?;
        Ok(id)
    }

    /// Returns a number for a new port of this name.
    pub(crate) fn check_name(&mut self, name: &str) -> Result<PortId, PortError> {
        let id = self.free_number(name)?;
        if self.desired.get(name).is_some() { Err(PortError::Exists) } else { Ok(id) }
    }

    /// Makes a port that is wanted, with its socket or its interface; returns the port's number.
    pub(super) fn create(
        &mut self,
        entry: &Entry,
        socket: &mut Option<Acceptor>,
    ) -> Result<PortId, PortError> {
        let settings = &entry.settings;
        let id = self.free_number(&settings.name)?;
        let ports = self.view.ports.present();
        let kind = settings.kind;
        if ports.iter().filter(|port| port.kind_name() == kind.name()).count() >= kind.most() {
            return Err(PortError::Many(kind));
        }
        drop(ports);
        let port = self.put(id, settings, socket.take())?;
        port.reports.events.tell_surely(&port.name, What::PortAdded);
        Ok(id)
    }

    /// Makes a port without its socket or interface, which the thread `retry` tries to open.
    pub(super) fn create_without(&mut self, entry: &Entry, why: &str) {
        let Ok(id) = self.free_number(&entry.settings.name) else { return };
        let published = self.publish(id, &entry.settings).map_err(PortError::from);
        // If this fails, the next plan has the entry again.
        let _ = published.and_then(|port| self.miss(&port, why.to_owned()));
    }

    /// Puts a new port into the table, with its addresses. The port is published before it is
    /// served: an event of the port must find the port in the table.
    fn publish(&mut self, id: PortId, settings: &Settings) -> Result<Arc<Port>, StaticError> {
        settings.warnings().iter().for_each(|warning| log::warn!("{warning}"));
        // No frame of the port passes without its filter.
        self.set_filters();
        let port = build::port(id, settings);
        let port = Arc::new(port.telling(&self.view.events));
        self.enter_addresses(&port, settings)?;
        self.view.ports.add(Arc::clone(&port));
        self.adopt_connections(&port);
        Ok(port)
    }

    /// Puts a port into service, with the socket or connector `acceptor`, or else with its
    /// interface.
    pub(super) fn put(
        &mut self,
        id: PortId,
        settings: &Settings,
        acceptor: Option<Acceptor>,
    ) -> Result<Arc<Port>, PortError> {
        let port = self.publish(id, settings)?;
        let means = (&*self.context.workers, &*self.handover);
        let mut opened = match acceptor {
            Some(acceptor) => Ok(Opened::Socket(acceptor)),
            None => {
                let (mut none, now) = (Received::default(), Instant::now());
                Opened::open(&port, None, &mut none, now, means)
            }
        };
        let socket = opened.iter_mut().filter_map(Opened::acceptor);
        self.handover.keep_sockets(socket);
        let file = opened.as_ref().ok().and_then(Opened::file_that_stays);
        if let Err(error) = opened.and_then(|opened| self.serve(&port, opened)) {
            uplink::detach(&port, &self.context.workers, &self.handover);
            self.take_out(id);
            file.iter().for_each(|file| self.handover.discard_socket(file));
            return Err(error);
        }
        Ok(port)
    }

    /// Enters all addresses of a new port, or none.
    fn enter_addresses(&self, port: &Port, settings: &Settings) -> Result<(), StaticError> {
        let fdb = &self.context.fdb;
        fdb.set_port_cap(port.id, build::cap(settings));
        let entered = settings.mac.iter().try_for_each(|mac| port.enter_address(*mac, fdb));
        if entered.is_err() {
            fdb.close_port(port.id);
        }
        entered
    }

    pub(super) fn serving(&self, name: &str) -> Result<&Serving, PortError> {
        let found = self.serving.iter().find(|serving| serving.running().name() == name);
        found.ok_or_else(|| match self.is_being_removed(name) {
            true => PortError::BeingRemoved(name.to_owned()),
            false => PortError::NoSuchPort,
        })
    }

    pub(super) fn serving_mut(&mut self, name: &str) -> Result<&mut Serving, PortError> {
        self.serving(name)?;
        let mut all = self.serving.iter_mut();
        all.find(|serving| serving.running().name() == name).ok_or(PortError::NoSuchPort)
    }

    /// Changes the settings `before` of a port to `wanted`; returns the changes and when each takes
    /// effect.
    pub fn set(
        &mut self,
        before: &Settings,
        wanted: &Settings,
    ) -> Result<Vec<Difference>, PortError> {
        let name = &wanted.name;
        if !matches!(wanted.kind, Kind::Filter | Kind::Group) {
            self.serving(name)?;
        }
        let entry = self.desired.get(name).ok_or(PortError::NoSuchPort)?.clone();
        if entry.settings != *before {
            return Err(PortError::Changed);
        }
        let changes = before.differences(wanted);
        if let Some(fixed) = changes.iter().find(|change| change.effect == Effect::Reopen) {
            return Err(PortError::Fixed { key: fixed.key, wanted: Box::new(wanted.clone()) });
        }
        self.edit(|desired| desired.set(wanted.clone()), |daemon| daemon.reconcile_port(name))?;
        Ok(changes)
    }

    /// Removes the changes of clients at a port of the configuration, and everything that is kept
    /// by the name without effect. Returns the changes and when each takes effect; `None` if the
    /// port is to be added with [`NewPort::Configured`].
    pub(crate) fn reset(&mut self, name: &str) -> Result<Option<Vec<Difference>>, PortError> {
        let before = self.desired.get(name).map(|entry| entry.settings.clone());
        let mut after = self.desired.clone();
        if !after.reset(name) {
            let does = match (&before, self.desired.configured(name)) {
                (Some(Settings { kind, .. }), None) => format!("vioswitchctl {kind} del {name}"),
                _ => "vioswitchctl config show shows what is kept".to_owned(),
            };
            return Err(PortError::NothingToReset(name.to_owned(), does));
        }
        self.desired.check_others(&after, name)?;
        let reset = |desired: &mut Desired| -> Result<(), PortError> {
            desired.reset(name);
            Ok(())
        };
        let Some(now) = after.get(name).map(|entry| entry.settings.clone()) else {
            self.edit(reset, |_| Ok(()))?;
            return Ok(Some(Vec::new()));
        };
        let Some(before) = before else { return Ok(None) };
        let changes = before.differences(&now);
        if let Some(fixed) = changes.iter().find(|change| change.effect == Effect::Reopen) {
            return Err(PortError::Fixed { key: fixed.key, wanted: Box::new(now) });
        }
        self.edit(reset, |daemon| daemon.reconcile_port(name))?;
        Ok(Some(changes))
    }

    /// Returns the changes of a port or TAP that wait for the next front-end.
    pub(crate) fn pending(&self, name: &str) -> Vec<Difference> {
        self.serving(name).map(|serving| serving.running().pending()).unwrap_or_default()
    }

    /// Returns a number for a new port of this name.
    pub(super) fn free_number(&mut self, name: &str) -> Result<PortId, PortError> {
        if self.helpers.are_stopping() {
            return Err(PortError::Ending);
        }
        self.reclaim();
        if self.view.ports.present().named(name).is_some() {
            return Err(match self.is_being_removed(name) {
                true => PortError::BeingRemoved(name.to_owned()),
                false => PortError::Exists,
            });
        }
        Ok(self.view.ports.free(|id| self.removals.is_free(id))?)
    }

    /// Takes a port without a thread out of the table.
    fn take_out(&mut self, id: PortId) {
        let serial = self.withdraw(id);
        self.context.workers.wait_adopted(serial, Instant::now() + REMOVE_TIMEOUT);
        self.reclaim();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::config::Value;

    /// So it is with a mirror, which has no socket to be opened before.
    #[test]
    fn what_goes_with_the_process_replaces_nothing_that_is_kept() {
        let word = |(key, word): (&str, &str)| (key.to_owned(), Value::Word(word.to_owned()));
        let mirror = [("name", "m"), ("from", "a"), ("to", "b")].map(word);
        let mirror = Settings::parse(Kind::Mirror, mirror.into()).unwrap();
        let mut desired = Desired::default();
        add_to(&mut desired, &Entry::new(mirror.clone(), Origin::Kept)).unwrap();
        let kept = desired.kept();
        desired.remove("m");
        let added = add_to(&mut desired, &Entry::new(mirror, Origin::Transient));
        assert!(matches!(added, Err(PortError::Exists)), "{added:?}");
        assert_eq!(desired.kept(), kept);
    }
}
