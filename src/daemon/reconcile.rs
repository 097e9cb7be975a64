//! Makes the ports that run become the ports that are wanted. No other module does so.
//!
//! A start, a client, a reload, the end of a time to confirm and the plug directory change the
//! ports that are wanted ([`super::desired`]); [`Daemon::reconcile`] does the steps that
//! [`super::plan`] returns, under the daemon's lock and without waiting. A port that is to be made
//! needs its socket, which may wait for a file system: the thread that wants the port opens the
//! socket without the lock and comes back with [`Daemon::create`]. If a step remains, such as an
//! entry that waits for a port to be gone, the thread `retry` finds the step in the next plan.

use std::collections::HashSet;
use std::sync::Arc;

use super::desired::Desired;
use super::front_end::Acceptor;
use super::plan::{Action, Actual, Running, plan};
use super::running_port::RunningPort;
use super::{Daemon, PortError};
use api::config::Entry;

/// Result of [`Daemon::reconcile`].
#[derive(Default)]
pub(super) struct Reconciled {
    /// Ports that have been stopped.
    pub(super) stopped: Vec<Arc<RunningPort>>,
    /// Errors, by the port's name.
    failed: Vec<(String, PortError)>,
}

impl Reconciled {
    /// Returns the errors, a line each.
    pub(super) fn errors(&self) -> Vec<String> {
        self.failed.iter().map(|(name, error)| format!("port {name}: {error}")).collect()
    }

    /// Returns the first error about one port.
    fn of(self, name: &str) -> Result<(), PortError> {
        let failed = self.failed.into_iter().find(|(of, _)| of == name);
        failed.map_or(Ok(()), |(_, error)| Err(error))
    }
}

impl Daemon {
    /// Returns the steps from the ports that run to the ports that are wanted.
    pub(super) fn plan(&self) -> Vec<Action> {
        let running = self.serving.iter().map(|serving| {
            let (entry, addresses) = (serving.entry(), &serving.addresses);
            (entry.settings.name.as_str(), Running { entry, addresses })
        });
        let stopping = self.removals.ports.iter().filter(|removing| removing.holds_its_claims());
        let stopping = stopping.map(|removing| removing.entry()).collect();
        plan(&self.desired, &Actual { running: running.collect(), stopping })
    }

    /// Does every step that needs no socket. A step that fails keeps no other step from being done.
    pub(super) fn reconcile(&mut self) -> Reconciled {
        self.advance_all();
        // Before a new port is served: no frame of it passes without its filter.
        self.set_filters();
        let (fdb, mut reconciled) = (Arc::clone(&self.context.fdb), Reconciled::default());
        for action in self.plan() {
            let done = match &action {
                Action::Stop(name) => {
                    reconciled.stopped.extend(self.stop_port(name));
                    Ok(())
                }
                Action::Release(name, mac) => {
                    self.serving_mut(name).map(|serving| serving.release(*mac, &fdb))
                }
                Action::Change(entry) => {
                    let serving = self.serving_mut(&entry.settings.name);
                    let moved = serving.and_then(|serving| {
                        let before = serving.entry().settings.bridge.clone();
                        serving.change(entry, &fdb)?;
                        let port = serving.running().port().id;
                        Ok((before != entry.settings.bridge).then_some(port))
                    });
                    // Peers of the other bridge may have equal addresses.
                    moved.map(|moved| moved.into_iter().for_each(|port| self.end_connections(port)))
                }
                Action::Assign(name, mac) => {
                    self.serving_mut(name).and_then(|serving| serving.assign(*mac, &fdb))
                }
                Action::Create(_) => Ok(()),
            };
            if let Err(error) = done {
                reconciled.failed.push((action.name().to_owned(), error));
            }
        }
        self.set_mirrors();
        self.context.workers.rings().settle();
        reconciled
    }

    /// Gives the wanted mirrors to the table of ports. If the mirrors change, forgets the addresses
    /// learned on ports that get copies.
    pub(super) fn set_mirrors(&self) {
        if self.view.ports.set_mirrors(self.desired.mirrors().collect()) {
            let ports = self.view.ports.present();
            let observers = ports.watches().map(|watch| watch.to);
            observers.for_each(|port| _ = self.context.fdb.flush_port(port));
        }
    }

    /// Changes the wanted ports with `edit`, keeps the change, and calls `carry_out`. If a step
    /// fails, undoes all of them. The change is kept before `carry_out` runs, so a change that
    /// cannot be kept is not made.
    pub(super) fn edit<T, E: Into<PortError>>(
        &mut self,
        edit: impl FnOnce(&mut Desired) -> Result<(), E>,
        carry_out: impl FnOnce(&mut Daemon) -> Result<T, PortError>,
    ) -> Result<T, PortError> {
        let before = self.desired.clone();
        let edited = edit(&mut self.desired)
            .map_err(Into::into)
            .and_then(|()| {
                // A reload that may go back changes the configuration.
                if self.missing.coming.is_empty() && !self.store.is_unconfirmed() {
                    self.desired.forget_the_configured();
                }
                match self.filters.faults(&before, &self.desired).into_iter().next() {
                    Some(fault) => Err(PortError::Filter(fault)),
                    None => Ok(self.store.keep(&self.desired)?),
                }
            })
            .and_then(|()| carry_out(self));
        edited.inspect_err(|_| {
            self.desired = before;
            self.reconcile().errors().iter().for_each(|error| log::error!("{error}"));
            self.store.undo(&self.desired);
        })
    }

    /// Carries out a change of one port that runs, for [`Daemon::edit`].
    pub(super) fn reconcile_port(&mut self, name: &str) -> Result<(), PortError> {
        self.reconcile().of(name)
    }

    /// Replaces the wanted ports, as a reload does. The reload's thread makes the new ports, with
    /// [`Daemon::next_to_create`].
    pub(super) fn want(&mut self, desired: Desired) -> Reconciled {
        self.desired = desired;
        let reconciled = self.reconcile();
        self.missing.coming = self.not_running().map(|entry| entry.settings.name.clone()).collect();
        reconciled
    }

    /// Returns the entries without a port that runs.
    pub(super) fn not_running(&self) -> impl Iterator<Item = &Entry> {
        let running: HashSet<&str> =
            self.serving.iter().map(|serving| serving.running().name()).collect();
        let entries = self.desired.entries().values();
        let entries = entries.filter(|entry| entry.settings.kind.is_port());
        entries.filter(move |entry| !running.contains(entry.settings.name.as_str()))
    }

    /// Returns the next step of a reload's thread.
    pub(super) fn next_to_create(&mut self) -> ReloadStep {
        self.advance_all();
        let wanted = &self.desired;
        self.missing.coming.retain(|name| wanted.get(name).is_some());
        let all = self.to_create();
        let now: Vec<Entry> =
            all.filter(|entry| self.missing.coming.contains(&entry.settings.name)).collect();
        let mut rest = self.not_running();
        match rest.any(|entry| self.missing.coming.contains(&entry.settings.name)) {
            true if now.is_empty() => ReloadStep::Wait,
            true => ReloadStep::Create(now),
            false => ReloadStep::Done,
        }
    }

    /// Makes a port of a reload with the socket that was opened for the port, unless the port is no
    /// longer wanted. If the port cannot be made and `anyway` is true, makes the port without its
    /// socket, which the thread `retry` tries to open.
    pub(super) fn create_next(
        &mut self,
        entry: &Entry,
        opened: Result<&mut Option<Acceptor>, PortError>,
        anyway: bool,
    ) -> Result<(), PortError> {
        let name = &entry.settings.name;
        let wanted = self.missing.coming.contains(name) && self.desired.get(name) == Some(entry);
        let is_to_be_made = wanted && self.serving(name).is_err() && self.is_clear(entry).is_ok();
        let created = match is_to_be_made {
            true => opened.and_then(|socket| self.create(entry, socket).map(drop)),
            false => Ok(()),
        };
        if let (Err(error), true) = (&created, anyway) {
            self.create_without(entry, &error.to_string());
        }
        // A port whose error ends the reload stays in the list until the reload has gone back, so
        // that the thread `retry` does not make the port meanwhile.
        if created.is_ok() || anyway {
            self.missing.coming.remove(name);
        }
        created
    }

    /// Makes ports of entries that have waited and that no other thread makes. The ports are left
    /// out at first, and the thread `retry` opens their sockets and interfaces, as after a start.
    pub(super) fn create_waiting(&mut self) {
        let coming = &self.missing.coming;
        let waited = |entry: &Entry| !coming.contains(&entry.settings.name);
        let all: Vec<Entry> = self.to_create().filter(waited).collect();
        for entry in all {
            let name = &entry.settings.name;
            let why = format!("port {name} has waited for the removal of another port");
            self.create_without(&entry, &why);
        }
    }

    fn to_create(&self) -> impl Iterator<Item = Entry> + use<> {
        self.plan().into_iter().filter_map(|action| match action {
            Action::Create(entry) => Some(entry),
            _ => None,
        })
    }
}

/// Next step of a reload's thread.
pub(super) enum ReloadStep {
    /// The thread makes these ports.
    Create(Vec<Entry>),
    /// The thread waits until other ports are gone.
    Wait,
    /// The thread has nothing left to do.
    Done,
}
