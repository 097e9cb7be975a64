//! Ports on their way out.
//!
//! A port is removed in the order of what depends on what:
//!
//! 1. that its entry is removed is written down; its addresses are free, its thread is to end;
//! 2. the thread ends, with the rings quiet, and the socket goes, or the interface;
//! 3. a table of ports without it is published ([`datapath::port::table`]);
//! 4. all workers go by that table: no frame of a burst goes there any more, nothing is owed to it,
//!    and no worker can learn an address for it;
//! 5. what was learned there is forgotten, and its number may be another port's.
//!
//! A front-end or a file system can hold up the second step, a worker that waits for a guest's
//! memory the fourth. The caller who removes a port waits for [`REMOVE_TIMEOUT`]; the thread
//! `retry` goes on with it after that. Until no table has the port its name, socket and interface
//! are not another one's: an entry that needs one of them waits ([`super::plan`]).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::degraded::{Code, Degradation};
use super::desired::Desired;
use super::plan::waits_for;
use super::running_port::RunningPort;
use super::serving::Serving;
use super::{Daemon, PortError, uplink};
use api::config::{Entry, Origin};
use base::limits::{REMOVE_STEP, REMOVE_TIMEOUT};
use datapath::events::What;
use datapath::vhost_user::session::Context;
use switch::PortId;
use sys::clock;

/// One of them.
pub(super) struct Removing {
    serving: Serving,
    begun: Instant,
    /// Begin of the removal by the wall clock: microseconds since 1970.
    since: u64,
    /// That it lasts was reported.
    told: bool,
    /// The table without it, once that is published, and when it is waited for no longer.
    published: Option<(u64, Instant)>,
}

impl Removing {
    fn name(&self) -> &str {
        self.serving.running().name()
    }

    /// Returns the server of the port.
    pub(super) fn into_serving(self) -> Serving {
        self.serving
    }

    /// Returns the port's entry.
    pub(super) fn entry(&self) -> &Entry {
        self.serving.entry()
    }

    /// True until its name, socket and interface may be another port's: no table has it then.
    pub(super) fn holds_its_claims(&self) -> bool {
        self.published.is_none()
    }

    /// True if its thread has not ended in time.
    fn is_late(&self) -> bool {
        self.published.is_none() && self.begun.elapsed() >= REMOVE_TIMEOUT
    }

    fn why(&self) -> String {
        format!("port {} is being removed, and its thread has not ended yet", self.name())
    }
}

/// The removal of one port, for the one who waits for it: [`Daemon::go_on`] says how far it is.
#[must_use = "whether the port is gone is told by the next looks"]
pub struct Removal {
    /// None of an entry that nothing served yet.
    running: Option<Arc<RunningPort>>,
    /// When it is waited for no longer.
    end: Instant,
}

impl Removal {
    /// Of a port that has been stopped, or none.
    pub(super) fn of(running: Option<Arc<RunningPort>>, limit: Duration) -> Removal {
        Removal { running, end: Instant::now() + limit }
    }
}

impl Daemon {
    /// Removes a port or TAP. When this returns its front-end is disconnected, its socket or
    /// interface is gone, and frames for it go nowhere.
    pub fn remove_port(&mut self, name: &str) -> Result<(), PortError> {
        let mut removal = self.begin_removal(name)?;
        while !self.go_on(&mut removal)? {
            std::thread::sleep(REMOVE_STEP);
        }
        Ok(())
    }

    /// Removes a port or TAP, and waits for nothing: it goes on by itself. One that is being
    /// removed already is as good.
    pub fn begin_removal(&mut self, name: &str) -> Result<Removal, PortError> {
        if self.desired.get(name).is_none() {
            let removing = self.removing.iter().find(|removing| removing.name() == name);
            let removing = removing.ok_or(PortError::NoSuchPort)?;
            let limit = if removing.is_late() { Duration::ZERO } else { REMOVE_TIMEOUT };
            return Ok(Removal::of(Some(Arc::clone(removing.serving.running())), limit));
        }
        let delete = |desired: &mut Desired| {
            desired.delete(name);
            Ok::<_, PortError>(())
        };
        let stopped = self.edit(delete, |daemon| Ok(daemon.reconcile().stopped))?;
        let stopped = stopped.into_iter().find(|running| running.name() == name);
        Ok(Removal::of(stopped, REMOVE_TIMEOUT))
    }

    /// Tells the thread of a port to end.
    pub(super) fn stop_port(&mut self, name: &str) -> Option<Arc<RunningPort>> {
        let is = |serving: &Serving| serving.running().name() == name;
        let mut serving = self.serving.swap_remove(self.serving.iter().position(is)?);
        serving.stop();
        for mac in std::mem::take(&mut serving.addresses) {
            serving.running().port().take_address(mac, &self.context.fdb);
        }
        if !self.missing.is_tried(name) {
            self.missing.forget_port(name);
        }
        let running = Arc::clone(serving.running());
        self.removing.push(Removing {
            serving,
            begun: Instant::now(),
            since: clock::wall_nanos() / 1_000,
            told: false,
            published: None,
        });
        // It goes on with the port when the one who asked for this does not.
        self.retrier.iter().for_each(std::thread::Thread::unpark);
        Some(running)
    }

    /// Takes the removal of a port as far as that needs no waiting; true when the port is gone. It
    /// is [`PortError::BeingRemoved`] if it takes longer than the caller wants to wait.
    pub fn go_on(&mut self, removal: &mut Removal) -> Result<bool, PortError> {
        let at = removal.running.as_ref().and_then(|running| {
            self.removing.iter().position(|one| Arc::ptr_eq(one.serving.running(), running))
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

    /// Goes on with all of them, and puts into service what waited for one that is gone.
    pub(super) fn go_on_removing(&mut self) {
        self.advance_all();
        for removing in &mut self.removing {
            if removing.is_late() && !std::mem::replace(&mut removing.told, true) {
                let why = "its removal continues: its thread has not ended yet".to_owned();
                let port = removing.serving.running().port();
                port.reports.events.tell_surely(&port.name, What::Degraded { why });
            }
        }
        if !self.stopping.load(Ordering::Acquire) {
            self.reconcile();
            self.create_waiting();
        }
        if !self.retired.is_empty() {
            self.reclaim();
        }
    }

    pub(super) fn advance_all(&mut self) {
        let mut at = 0;
        while at < self.removing.len() {
            if !self.advance(at) {
                at += 1;
            }
        }
    }

    /// Takes one as far as that needs no waiting; true if it is gone, and the last in its place.
    fn advance(&mut self, at: usize) -> bool {
        let published = match self.removing[at].published {
            Some(published) => published,
            None => {
                let tried = self.missing.is_tried(self.removing[at].name());
                if tried || !self.removing[at].serving.has_ended() {
                    return false;
                }
                let serial = self.take_away(at);
                *self.removing[at].published.insert((serial, Instant::now() + REMOVE_TIMEOUT))
            }
        };
        let (serial, end) = published;
        let gone = self.context.workers.have_adopted(serial) || Instant::now() >= end;
        if gone {
            self.reclaim();
            self.removing.swap_remove(at);
        }
        gone
    }

    /// The thread of one has ended: publishes a table without the port.
    fn take_away(&mut self, at: usize) -> u64 {
        let serving = &self.removing[at].serving;
        let port = serving.running().port();
        if let Some(file) = serving.file() {
            self.handover.discard_socket(file);
        }
        uplink::detach(&port, &self.context.workers, &self.handover);
        let serial = self.withdraw(port.id);
        self.view.samples.forget(&port);
        self.missing.forget_port(&port.name);
        port.reports.events.tell_surely(&port.name, What::PortDeleted);
        // Wakes them, and waits for nothing.
        self.context.workers.wait_adopted(serial, Instant::now());
        serial
    }

    /// An error while a port is being removed of which this entry needs something.
    pub(super) fn is_clear(&mut self, entry: &Entry) -> Result<(), PortError> {
        self.advance_all();
        self.blocks(entry)
            .map_or(Ok(()), |removing| Err(PortError::BeingRemoved(removing.name().to_owned())))
    }

    fn blocks(&self, entry: &Entry) -> Option<&Removing> {
        let mut removing = self.removing.iter().filter(|removing| removing.holds_its_claims());
        removing.find(|removing| waits_for(entry, removing.entry()))
    }

    /// True for a port of this name that is on its way out.
    pub(super) fn is_being_removed(&self, name: &str) -> bool {
        let mut removing = self.removing.iter().filter(|removing| removing.holds_its_claims());
        removing.any(|removing| removing.name() == name)
    }

    /// Ports on their way out that brought their own sockets, and whose these are.
    pub(super) fn unplugged(&self) -> impl Iterator<Item = u32> {
        self.removing.iter().filter_map(|removing| removing.entry().origin.plugged_by())
    }

    /// Who gave a port, if only to take it away.
    pub fn origin(&self, name: &str) -> Origin {
        let removing = self.removing.iter().find(|removing| removing.name() == name);
        removing.map_or_else(|| self.desired.origin(name), |removing| removing.entry().origin)
    }

    /// Ports whose removal lasts, and what waits for that.
    pub(super) fn held_up(&self) -> impl Iterator<Item = Degradation> {
        let late = self.removing.iter().filter(|removing| removing.is_late());
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
                    format!("port {name} waits until the one before it is gone")
                }
                other => format!("port {name} waits until port {other} is gone"),
            };
            let subject = Some(name.to_owned());
            Some(Degradation { code: Code::PortLeftOut, subject, text, since: before.since })
        });
        late.chain(waiting)
    }

    /// Publishes a table without a port; its number may be used again once all workers go by that.
    pub(super) fn withdraw(&mut self, id: PortId) -> u64 {
        let serial = self.view.ports.remove(id);
        self.retired.push((id, serial));
        serial
    }

    /// Forgets what belongs to numbers that no worker uses any more.
    pub(super) fn reclaim(&mut self) {
        let Context { fdb, workers, .. } = &self.context;
        self.retired.retain(|&(id, serial)| {
            let unused = workers.have_adopted(serial);
            if unused {
                fdb.close_port(id);
                workers.forget_memberships(id);
            }
            !unused
        });
    }
}
