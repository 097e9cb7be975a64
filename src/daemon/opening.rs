//! Opens the sockets of ports that come while the switch runs, without the daemon's lock.
//!
//! The path may lead into another user's directory, and to a file system that never answers (FUSE,
//! NFS). A thread that opens a socket in such a file system, or only asks for its place, waits for
//! the file system. So a thread that serves clients, or holds the daemon, does neither.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::check::found_at;
use super::diff::Step;
use super::front_end::Acceptor;
use super::ports::NewPort;
use super::received::Received;
use super::{Daemon, PortError};
use api::config::{Entry, Kind, Origin, Settings, place};
use base::limits::{SOCKET_OPEN_TIMEOUT, VDUSE_OPEN_TIMEOUT};
use datapath::vhost_user::socket::SocketError;
use switch::PortId;
use sys::blocking::{Blocking, NotBegun};
use sys::threads::lock;
use sys::vduse;
use sys::waker::Waker;

/// Decides once whether a port may still be added. The thread that opened the port's socket
/// decides, or the client that no longer waits for the socket.
#[derive(Debug, Clone)]
pub struct Permit {
    end: Instant,
    decided: Arc<AtomicBool>,
}

impl Permit {
    /// Returns a permit to add the port until `end`.
    pub(crate) fn until(end: Instant) -> Permit {
        Permit { end, decided: Arc::default() }
    }

    /// True if the port is to be added now.
    fn take(&self) -> bool {
        Instant::now() < self.end && !self.decided.swap(true, Ordering::AcqRel)
    }

    /// True if the port was not added, and will not be.
    pub(crate) fn revoke(&self) -> bool {
        !self.decided.swap(true, Ordering::AcqRel)
    }
}

impl PortError {
    /// Returns the error for a thread that did not open the socket at `path`.
    pub(crate) fn unanswered(path: PathBuf, why: NotBegun) -> PortError {
        match why {
            NotBegun::Busy if path.starts_with(vduse::DIRECTORY) => PortError::Slow(path),
            NotBegun::Busy => PortError::Silent(path),
            NotBegun::Full => PortError::ManySilent(path),
            NotBegun::Thread(error) => PortError::Io(error),
        }
    }
}

/// Returns the path whose opening may wait: that of a socket, or of a VDUSE device, for which the
/// kernel makes an interface.
pub(super) fn place_to_open(settings: &Settings) -> Option<PathBuf> {
    let device = || Path::new(vduse::DIRECTORY).join(&settings.name);
    settings.socket.clone().or_else(|| (settings.kind == Kind::Vduse).then(device))
}

/// Returns the time for opening what a path of [`place_to_open`] leads to.
pub(super) fn time_to_open(path: &Path) -> Duration {
    match path.starts_with(vduse::DIRECTORY) {
        true => VDUSE_OPEN_TIMEOUT,
        false => SOCKET_OPEN_TIMEOUT,
    }
}

/// Adds a port that a client requests while the switch runs, as [`Daemon::add`] does, and waits for
/// the socket's file system without the daemon's lock.
pub fn add(daemon: &Mutex<Daemon>, new: &NewPort, permit: &Permit) -> Result<PortId, PortError> {
    let origin = lock(daemon).origin_of(new);
    let entry = new.entry(origin);
    let path = place_to_open(&entry.settings).unwrap_or_default();
    // A socket that is opened in vain would be reported as a socket in use.
    lock(daemon).check_new(&entry)?;
    let mut socket = open(&entry)?;
    // The lock is released before the socket is closed: the closing may last.
    let mut daemon = lock(daemon);
    match permit.take() {
        true => daemon.add_opened(entry, &mut socket),
        false => Err(PortError::unanswered(path, NotBegun::Busy)),
    }
}

/// Threads that wait for file systems on behalf of a reload.
pub(super) struct Opens {
    threads: Arc<Blocking>,
    waker: Arc<Waker>,
}

impl Daemon {
    pub(super) fn opens(&self) -> Opens {
        Opens { threads: Arc::clone(&self.view.opens), waker: Arc::clone(&self.view.wakeup) }
    }
}

impl Opens {
    /// Has a thread do `work` at `path`; an error if the work takes too long. The thread then drops
    /// the late result.
    fn run<T: Send + 'static>(
        &self,
        path: &Path,
        work: impl FnOnce() -> T + Clone + Send + 'static,
    ) -> Result<T, PortError> {
        let end = Instant::now() + time_to_open(path);
        let done = self.threads.run(path, &self.waker, end, work);
        done.map_err(|why| PortError::unanswered(path.to_owned(), why))
    }

    /// Returns the problems of the places of a configuration's new sockets. Ends at the first file
    /// system that does not answer.
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

    /// Opens the socket of a new port, if the port has a socket.
    pub(super) fn open(&self, entry: &Entry) -> Result<Option<Acceptor>, PortError> {
        let own = entry.clone();
        match place_to_open(&entry.settings) {
            Some(path) => Ok(self.run(&path, move || open(&own))??),
            None => Ok(open(entry)?),
        }
    }
}

/// Finds the places of the sockets of a configuration that is read while the switch runs.
pub(super) struct Places {
    pub(super) opens: Opens,
    /// Places by path. Each present port's place was found when the port came.
    pub(super) known: RefCell<HashMap<PathBuf, PathBuf>>,
    /// The error about the first path whose place cannot be found.
    pub(super) silent: Cell<Option<PortError>>,
}

impl Places {
    /// Returns the place of a socket; after the first file system that does not answer, the bare
    /// path.
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

/// Opens the socket of a new port, if the port has a socket.
pub(super) fn open(entry: &Entry) -> Result<Option<Acceptor>, SocketError> {
    let endpoint = entry.settings.endpoint();
    // No descriptor was received for a new port, so any number serves.
    let open = |endpoint| Acceptor::open(0, &endpoint, &mut Received::default());
    endpoint.map(open).transpose()
}
