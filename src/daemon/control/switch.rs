//! The switch, as clients of the control socket see it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use crate::{Daemon, Reloader, View};
use api::config;
use base::limits::{CONTROL_LOOKS, PORT_LOG_BURST, PORT_LOG_EVERY};
use base::stats::ClientStats;
use datapath::guard::bucket::Bucket;
use sys::blocking::Blocking;
use sys::threads::lock;
use sys::waker::Waker;

/// The switch, as clients see it.
pub struct Switch {
    /// The daemon, which changes the switch.
    daemon: Arc<Mutex<Daemon>>,
    /// The parts of the switch that clients look at without the daemon's lock.
    pub(super) view: View,
    /// Reads the configuration again.
    pub(super) reloader: Arc<Reloader>,
    pub(super) started: Instant,
    /// The directory of sockets for which clients name no path.
    pub(super) directory: PathBuf,
    /// The group whose members may change the switch.
    pub(super) admins: Option<u32>,
    /// The group whose members may look at frames.
    pub(super) capture: Option<u32>,
    /// Counters of clients.
    pub(crate) clients: Arc<ClientStats>,
    /// Limits the log lines about clients.
    pub(crate) log: Bucket,
    /// Wakes the thread for answers that wait for something to happen.
    pub(crate) wakeup: Arc<Waker>,
    /// Threads that look at sockets' files; `diffs` has the thread that compares the configuration.
    pub(super) looks: Blocking,
    pub(super) diffs: Blocking,
}

impl Switch {
    /// Returns the switch of a daemon that runs; `control` has the settings of the control socket.
    pub(crate) fn new(
        control: &config::Control,
        daemon: &Arc<Mutex<Daemon>>,
        reloader: &Arc<Reloader>,
    ) -> Switch {
        let directory = control.path.parent().map(PathBuf::from).unwrap_or_default();
        let daemon = Arc::clone(daemon);
        let view = lock(&daemon).view();
        let (wakeup, clients) = (Arc::clone(&view.wakeup), Arc::clone(&view.clients));
        Switch {
            daemon,
            view,
            reloader: Arc::clone(reloader),
            started: Instant::now(),
            directory,
            admins: control.admins,
            capture: control.capture,
            clients,
            log: Bucket::new(PORT_LOG_BURST, PORT_LOG_EVERY),
            wakeup,
            looks: Blocking::new(CONTROL_LOOKS),
            diffs: Blocking::new(1),
        }
    }

    /// Returns the daemon, for a thread that a file system holds up in place of the thread
    /// `control`.
    pub(super) fn shared_daemon(&self) -> Arc<Mutex<Daemon>> {
        Arc::clone(&self.daemon)
    }

    /// Returns the locked daemon. The lock is held for one step of one request.
    pub(crate) fn daemon(&self) -> MutexGuard<'_, Daemon> {
        lock(&self.daemon)
    }
}
