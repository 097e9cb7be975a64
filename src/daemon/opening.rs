//! Sockets of ports that come while the switch runs are opened without the daemon's lock.
//!
//! The path may lead into a directory of another user's, and to a file system that never answers
//! (FUSE, NFS). Who opens a socket there, or only asks where it is, waits for that; so a thread
//! that serves clients, or holds the daemon, does neither.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::check::found_at;
use super::diff::Step;
use super::front_end::Acceptor;
use super::handover::Received;
use super::ports::NewPort;
use super::{Daemon, PortError};
use api::config::{Entry, Origin, place};
use base::limits::SOCKET_OPEN_TIMEOUT;
use datapath::vhost_user::socket::SocketError;
use switch::PortId;
use sys::blocking::{Blocking, NotBegun};
use sys::threads::lock;
use sys::waker::Waker;

/// Whether a port may still be added: decided once, by the thread that opened its socket or by
/// the client that waits for that no longer.
#[derive(Debug, Clone)]
pub struct Permit {
    end: Instant,
    decided: Arc<AtomicBool>,
}

impl Permit {
    /// It may be added until then.
    pub fn until(end: Instant) -> Permit {
        Permit { end, decided: Arc::default() }
    }

    /// True if it is added now.
    fn take(&self) -> bool {
        Instant::now() < self.end && !self.decided.swap(true, Ordering::AcqRel)
    }

    /// True if it is not added any more, and was not.
    pub fn revoke(&self) -> bool {
        !self.decided.swap(true, Ordering::AcqRel)
    }
}

impl PortError {
    /// Returns the error for a thread that did not open the socket at `path`.
    pub fn unanswered(path: PathBuf, why: NotBegun) -> PortError {
        match why {
            NotBegun::Busy => PortError::Silent(path),
            NotBegun::Full => PortError::ManySilent(path),
            NotBegun::Thread(error) => PortError::Io(error),
        }
    }
}

/// Adds a port that a client requests while the switch runs, as [`Daemon::add`] does, and waits
/// for its file system without the daemon.
pub fn add(daemon: &Mutex<Daemon>, new: &NewPort, permit: &Permit) -> Result<PortId, PortError> {
    let origin = lock(daemon).origin_of(new);
    let entry = new.entry(origin);
    let path = entry.settings.socket.clone().unwrap_or_default();
    // What is opened in vain would be reported as a socket that is in use.
    lock(daemon).check_new(&entry)?;
    let mut socket = open(&entry)?;
    // Let go of before the socket is, which may last.
    let mut daemon = lock(daemon);
    match permit.take() {
        true => daemon.add_opened(entry, &mut socket),
        false => Err(PortError::Silent(path)),
    }
}

/// Threads that wait for file systems on behalf of a reload.
pub(super) struct Opens {
    threads: Arc<Blocking>,
    waker: Arc<Waker>,
}

impl Daemon {
    pub(super) fn opens(&self) -> Opens {
        Opens { threads: Arc::clone(&self.view.opens), waker: Arc::clone(&self.view.news) }
    }
}

impl Opens {
    /// Has a thread do `work` at `path`; an error if it takes too long. What it comes to then is
    /// let go of by that thread.
    fn run<T: Send + 'static>(
        &self,
        path: &Path,
        work: impl FnOnce() -> T + Clone + Send + 'static,
    ) -> Result<T, PortError> {
        let end = Instant::now() + SOCKET_OPEN_TIMEOUT;
        let done = self.threads.run(path, &self.waker, end, work);
        done.map_err(|why| PortError::unanswered(path.to_owned(), why))
    }

    /// Returns what keeps the sockets of a configuration's new ports from their places. Ends at the
    /// first file system that does not answer.
    pub(super) fn misplaced(&self, steps: &[Step]) -> Vec<String> {
        let mut wrong = Vec::new();
        for step in steps {
            let Step::Add(Entry { settings, origin: Origin::Config, .. }) = step else { continue };
            let Some((endpoint, path)) = settings.endpoint().zip(settings.socket.as_ref()) else {
                continue;
            };
            let about = |text: &dyn Display| format!("{} {}: {text}", settings.kind, settings.name);
            match self.run(path, move || found_at(&endpoint)) {
                Ok(found) => wrong.extend(found.iter().map(|text| about(text))),
                Err(error) => {
                    wrong.push(about(&error));
                    break;
                }
            }
        }
        wrong
    }

    /// Opens the socket of a new port, if it has one.
    pub(super) fn open(&self, entry: &Entry) -> Result<Option<Acceptor>, PortError> {
        let own = entry.clone();
        match &entry.settings.socket {
            Some(path) => Ok(self.run(path, move || open(&own))??),
            None => Ok(open(entry)?),
        }
    }
}

/// Where the sockets of a configuration are that is read while the switch runs.
pub(super) struct Places {
    pub(super) opens: Opens,
    /// By their paths. Of ports that there are it was found out when they came.
    pub(super) known: RefCell<HashMap<PathBuf, PathBuf>>,
    /// The first one of which it cannot be found out.
    pub(super) silent: Cell<Option<PortError>>,
}

impl Places {
    /// The place of one of them; after one that is silent just its path.
    pub(super) fn of(&self, path: &Path) -> PathBuf {
        if let Some(place) = self.known.borrow().get(path) {
            return place.clone();
        }
        let asked = match self.silent.take() {
            Some(error) => Err(error),
            None => {
                let own = path.to_owned();
                self.opens.run(path, move || place(&own))
            }
        };
        match asked {
            Ok(place) => {
                self.known.borrow_mut().insert(path.to_owned(), place.clone());
                place
            }
            Err(error) => {
                self.silent.set(Some(error));
                path.to_owned()
            }
        }
    }
}

/// Opens the socket of a new port, if it has one.
pub(super) fn open(entry: &Entry) -> Result<Option<Acceptor>, SocketError> {
    let endpoint = entry.settings.endpoint();
    // Nothing was received for it, by whatever number.
    let open = |endpoint| Acceptor::open(0, &endpoint, &mut Received::default());
    endpoint.map(open).transpose()
}
