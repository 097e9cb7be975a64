//! Removes ports.
//!
//! A port is removed in this order, as each step needs the step before:
//!
//! 1. the daemon writes down that the entry is removed, frees the addresses and stops the
//!    thread;
//! 2. the thread ends, with the rings quiet, and the socket or the interface goes;
//! 3. the daemon publishes a table of ports without the port ([`datapath::port::table`]);
//! 4. all workers adopt the table: no frame of a burst goes to the port any more, no worker owes
//!    the port anything, and no worker can learn an address for the port;
//! 5. the daemon forgets the addresses learned on the port, and may give its number to another
//!    port.
//!
//! A front-end or a file system can hold up the second step, a worker that waits for a guest's
//! memory the fourth. The caller who removes a port waits for [`REMOVE_TIMEOUT`]; after that the
//! thread `retry` goes on with the removal. Until no table has the port, another port cannot have
//! its name, socket or interface: an entry that needs one of them waits ([`super::plan`]).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::degraded::{Code, Degradation};
use super::desired::Desired;
use super::plan::waits_for;
use super::removal::{Removal, Removing};
use super::running_port::RunningPort;
use super::serving::Serving;
use super::{Daemon, PortError, uplink};
use api::config::{Entry, Kind, Origin};
use base::limits::{CONTROL_SHOWN_REASONS, REMOVE_STEP, REMOVE_TIMEOUT};
use datapath::events::What;
use datapath::vhost_user::session::Context;
use switch::PortId;

impl Daemon {
    /// Removes a port or TAP. When this returns, the front-end is disconnected, the socket or
    /// interface is gone, and frames for the port go nowhere.
    pub fn remove_port(&mut self, name: &str) -> Result<(), PortError> {
        let mut removal = self.begin_removal(name)?;
        while !self.go_on(&mut removal)? {
            std::thread::sleep(REMOVE_STEP);
        }
        Ok(())
    }

    /// Begins to remove a port or TAP, and waits for nothing: the thread `retry` goes on with the
    /// removal. If the port is being removed already, returns that removal.
    pub fn begin_removal(&mut self, name: &str) -> Result<Removal, PortError> {
        if self.desired.get(name).is_none() {
            let removing = self.removals.ports.iter().find(|removing| removing.name() == name);
            let removing = removing.ok_or(PortError::NoSuchPort)?;
            let limit = if removing.is_late() { Duration::ZERO } else { REMOVE_TIMEOUT };
            return Ok(Removal::of(Some(Arc::clone(removing.serving.running())), limit));
        }
        self.check_unused(name)?;
        let delete = |desired: &mut Desired| {
            desired.delete(name);
            Ok::<_, PortError>(())
        };
        let stopped = self.edit(delete, |daemon| Ok(daemon.reconcile().stopped))?;
        let stopped = stopped.into_iter().find(|running| running.name() == name);
        Ok(Removal::of(stopped, REMOVE_TIMEOUT))
    }

    /// Returns an error if other entries name a filter or group.
    fn check_unused(&self, name: &str) -> Result<(), PortError> {
        let users = self.desired.users_of(name);
        let Some(first) = users.first() else { return Ok(()) };
        let kind = self.desired.get(name).map_or(Kind::Filter, |entry| entry.settings.kind);
        let shown = users.iter().take(CONTROL_SHOWN_REASONS).copied().collect::<Vec<_>>();
        let more = users.len() - shown.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let user = self.desired.get(first).map(|entry| &entry.settings);
        let remedy = user.filter(|_| kind == Kind::Filter).map(|port| {
            let others = port.filter_names().iter().filter(|other| *other != name);
            let others = others.map(String::as_str).collect::<Vec<_>>().join(",");
            let (kind, name, change) = (port.kind, first, format!("filter={others}"));
            format!(": vioswitchctl {kind} set {name} {change}")
        });
        Err(PortError::InUse {
            kind,
            name: name.to_owned(),
            users: shown.join(", ") + &more,
            remedy: remedy.unwrap_or_default(),
        })
    }

    /// Stops the thread of a port and frees the port's addresses; returns the port.
    pub(super) fn stop_port(&mut self, name: &str) -> Option<Arc<RunningPort>> {
        let is = |serving: &Serving| serving.running().name() == name;
        let mut serving = self.serving.swap_remove(self.serving.iter().position(is)?);
        serving.running().port().life.deleted.store(true, Ordering::Release);
        serving.stop();
        serving.remove_left();
        for mac in std::mem::take(&mut serving.addresses) {
            serving.running().port().take_address(mac, &self.context.fdb);
        }
        if !self.missing.is_tried(name) {
            self.missing.forget_port(name);
        }
        let running = Arc::clone(serving.running());
        self.removals.ports.push(Removing::begin(serving));
        // The thread `retry` goes on with the removal when the caller does not.
        self.helpers.wake_retrier();
        Some(running)
    }

    /// Goes on with the removal of a port as far as possible without waiting; true when the port is
    /// gone. Returns [`PortError::BeingRemoved`] if the removal takes longer than the caller's
    /// limit.
    pub fn go_on(&mut self, removal: &mut Removal) -> Result<bool, PortError> {
        let at = removal.running.as_ref().and_then(|running| {
            self.removals.ports.iter().position(|one| Arc::ptr_eq(one.serving.running(), running))
        });
        let gone = at.is_none_or(|at| self.advance(at));
        if !gone && Instant::now() < removal.end {
            return Ok(false);
        }
        match &removal.running {
            Some(running) if !gone => Err(PortError::BeingRemoved(running.name().to_owned())),
            _ => Ok(true),
        }
    }

    /// Goes on with all removals, and puts entries into service that waited for a port to be gone.
    pub(super) fn go_on_removing(&mut self) {
        self.advance_all();
        for removing in &mut self.removals.ports {
            if removing.is_late() && !std::mem::replace(&mut removing.told, true) {
                let why = "its removal continues: its thread has not ended yet".to_owned();
                let port = removing.serving.running().port();
                port.reports.events.tell_surely(&port.name, What::Degraded { why });
            }
        }
        if !self.helpers.are_stopping() {
            self.reconcile();
            self.create_waiting();
        }
        if !self.removals.retired.is_empty() {
            self.reclaim();
        }
    }

    pub(super) fn advance_all(&mut self) {
        let mut at = 0;
        while at < self.removals.ports.len() {
            if !self.advance(at) {
                at += 1;
            }
        }
    }

    /// Goes on with one removal as far as possible without waiting. True if the port is gone; the
    /// last removal then takes its place in the list.
    fn advance(&mut self, at: usize) -> bool {
        let published = match self.removals.ports[at].published {
            Some(published) => published,
            None => {
                let tried = self.missing.is_tried(self.removals.ports[at].name());
                if tried || !self.removals.ports[at].serving.has_ended() {
                    return false;
                }
                let serial = self.take_away(at);
                *self.removals.ports[at].published.insert((serial, Instant::now() + REMOVE_TIMEOUT))
            }
        };
        let (serial, end) = published;
        let gone = self.context.workers.have_adopted(serial) || Instant::now() >= end;
        if gone {
            self.reclaim();
            self.removals.ports.swap_remove(at);
        }
        gone
    }

    /// Publishes a table without a port whose thread has ended; returns the table's serial.
    fn take_away(&mut self, at: usize) -> u64 {
        let serving = &self.removals.ports[at].serving;
        let port = serving.running().port();
        if let Some(file) = serving.file() {
            self.handover.discard_socket(file);
        }
        uplink::detach(&port, &self.context.workers, &self.handover);
        let serial = self.withdraw(port.id);
        self.view.samples.forget(&port);
        self.missing.forget_port(&port.name);
        port.reports.events.tell_surely(&port.name, What::PortDeleted);
        // Wakes the workers, and waits for nothing.
        self.context.workers.wait_adopted(serial, Instant::now());
        serial
    }

    /// Returns an error while a port is being removed that has something this entry needs.
    pub(super) fn is_clear(&mut self, entry: &Entry) -> Result<(), PortError> {
        self.advance_all();
        self.blocks(entry)
            .map_or(Ok(()), |removing| Err(PortError::BeingRemoved(removing.name().to_owned())))
    }

    fn blocks(&self, entry: &Entry) -> Option<&Removing> {
        let mut removing =
            self.removals.ports.iter().filter(|removing| removing.holds_its_claims());
        removing.find(|removing| waits_for(entry, removing.entry()))
    }

    /// True while a port of this name is being removed.
    pub(super) fn is_being_removed(&self, name: &str) -> bool {
        let mut removing =
            self.removals.ports.iter().filter(|removing| removing.holds_its_claims());
        removing.any(|removing| removing.name() == name)
    }

    /// Returns the users of the ports that are being removed and brought their own sockets.
    pub(super) fn unplugged(&self) -> impl Iterator<Item = u32> {
        self.removals.ports.iter().filter_map(|removing| removing.entry().origin.plugged_by())
    }

    /// Returns the origin of a port, also of a port that is being removed.
    pub(crate) fn origin(&self, name: &str) -> Origin {
        let removing = self.removals.ports.iter().find(|removing| removing.name() == name);
        removing.map_or_else(|| self.desired.origin(name), |removing| removing.entry().origin)
    }

    /// Returns degradations for removals that are late, and for entries that wait for a port to be
    /// gone.
    pub(super) fn held_up(&self) -> impl Iterator<Item = Degradation> {
        let late = self.removals.ports.iter().filter(|removing| removing.is_late());
        let late = late.map(|removing| Degradation {
            code: Code::PortBeingRemoved,
            subject: Some(removing.name().to_owned()),
            text: removing.why(),
            since: removing.since,
        });
        let waiting = self.not_running().filter_map(|entry| {
            let name = &entry.settings.name;
            let before = self.blocks(entry)?;
            let text = match before.name() {
                same if same == name => {
                    format!("port {name} waits until the removed port of this name is gone")
                }
                other => format!("port {name} waits until port {other} is gone"),
            };
            let subject = Some(name.to_owned());
            Some(Degradation { code: Code::PortLeftOut, subject, text, since: before.since })
        });
        late.chain(waiting)
    }

    /// Publishes a table without a port; returns the table's serial. The port's number may be used
    /// again once all workers have adopted the table.
    pub(super) fn withdraw(&mut self, id: PortId) -> u64 {
        let serial = self.view.ports.remove(id);
        self.removals.retired.push((id, serial));
        serial
    }

    /// Forgets addresses and memberships of numbers that no worker uses any more.
    pub(super) fn reclaim(&mut self) {
        let Context { fdb, workers, .. } = &self.context;
        self.removals.retired.retain(|&(id, serial)| {
            let unused = workers.have_adopted(serial);
            if unused {
                fdb.close_port(id);
                if let Some(connections) = self.filters.connections() {
                    connections.close_port(id);
                }
                workers.forget_memberships(id);
            }
            !unused
        });
    }
}
