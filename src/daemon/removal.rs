//! The removals that are under way: which ports they concern, how far they are, and since when.
//! [`super::removing`] carries them out.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::running_port::RunningPort;
use super::serving::Serving;
use api::config::Entry;
use base::limits::REMOVE_TIMEOUT;
use switch::PortId;
use sys::clock;

/// A port that is being removed.
pub(super) struct Removing {
    pub(super) serving: Serving,
    begun: Instant,
    /// Begin of the removal by the wall clock: microseconds since 1970.
    pub(super) since: u64,
    /// True if the removal was reported as late.
    pub(super) told: bool,
    /// The serial of the first table without the port, once published, and the end of the wait for
    /// workers to adopt the table.
    pub(super) published: Option<(u64, Instant)>,
}

impl Removing {
    /// Returns the removal, which begins now, of a port whose thread was told to end.
    pub(super) fn begin(serving: Serving) -> Removing {
        let since = clock::wall_nanos() / 1_000;
        Removing { serving, begun: Instant::now(), since, told: false, published: None }
    }

    /// Returns the port's name.
    pub(super) fn name(&self) -> &str {
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

    /// True until the port's name, socket and interface may be another port's: until a table
    /// without the port is published.
    pub(super) fn holds_its_claims(&self) -> bool {
        self.published.is_none()
    }

    /// True if the port's thread has not ended in time.
    pub(super) fn is_late(&self) -> bool {
        self.published.is_none() && self.begun.elapsed() >= REMOVE_TIMEOUT
    }

    /// Returns why the port is still there.
    pub(super) fn why(&self) -> String {
        format!("port {} is being removed, and its thread has not ended yet", self.name())
    }
}

/// The removals that are under way.
#[derive(Default)]
pub(super) struct Removals {
    /// Ports that are being removed.
    pub(super) ports: Vec<Removing>,
    /// Numbers of removed ports, each with the serial of the first table without the port; the
    /// number may be used again once all workers have adopted the table.
    pub(super) retired: Vec<(PortId, u64)>,
}

impl Removals {
    /// True if a port may have this number: no removed port's number waits for the workers.
    pub(super) fn is_free(&self, id: PortId) -> bool {
        self.retired.iter().all(|(retired, _)| *retired != id)
    }
}

/// The removal of one port, for the caller who waits: `Daemon::go_on` returns its progress.
#[must_use = "the next looks tell whether the port is gone"]
pub struct Removal {
    /// The port; none if the port did not run.
    pub(super) running: Option<Arc<RunningPort>>,
    /// The end of the caller's wait.
    pub(super) end: Instant,
}

impl Removal {
    /// Returns the removal of a port that was stopped, or of no port, with a limit for the wait.
    pub(super) fn of(running: Option<Arc<RunningPort>>, limit: Duration) -> Removal {
        Removal { running, end: Instant::now() + limit }
    }
}
