//! Connecting to a front-end that listens.
//!
//! The owner of the directory may put something else where the front-end's socket was: a link to
//! another VM's socket, or to one of this daemon, to which they have no right themselves. So the
//! last component of the path is no link: the file is opened as a path and connected to by that
//! handle. And a connection to ourselves is refused: the kernel says which process had the socket
//! listen, and one that was kept or inherited is made to listen anew.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use vmm_sys_util::eventfd::EventFd;

use super::private_dir::SocketFile;
use super::{Identity, Opened, SocketError, check_path, opened, pause_anyhow};
use base::limits::{CONNECT_RETRY_MAX, CONNECT_RETRY_MIN};
use sys::poll::Wake;
use sys::unix_socket;

/// Connects to a front-end that listens, again and again.
#[derive(Debug)]
pub struct Connector {
    path: PathBuf,
    /// Pause before the next attempt.
    delay: Duration,
    /// When the last attempt succeeded.
    pub(super) connected: Option<Instant>,
    /// The last failure that was logged; the same one is not logged again.
    told: Option<i32>,
    /// The one file it connects to, if not whatever is at the path.
    only: Option<Identity>,
    /// The process that is not connected to: this one, unless a test plays the front-end too.
    pub(super) own: u32,
    trouble: Arc<Trouble>,
}

/// Why a connector reaches no front-end.
#[derive(Debug, Default)]
pub struct Trouble(AtomicI32);

impl Trouble {
    /// What connecting came to last, if that was an error, and not that the other side is busy.
    pub fn last(&self) -> Option<io::Error> {
        match self.0.load(Ordering::Relaxed) {
            0 | libc::EAGAIN => None,
            code => Some(io::Error::from_raw_os_error(code)),
        }
    }
}

impl Connector {
    /// Will connect to `path`; whether it exists does not matter yet.
    pub fn new(path: &Path) -> Result<Connector, SocketError> {
        check_path(path)?;
        let path = path.to_owned();
        let (delay, own, trouble) = (Duration::ZERO, std::process::id(), Arc::default());
        Ok(Connector { path, delay, connected: None, told: None, only: None, own, trouble })
    }

    /// Will connect to `path` as long as it is this file. A link to another socket that takes its
    /// place leads nowhere.
    pub fn to_file(path: &Path, file: Identity) -> Result<Connector, SocketError> {
        Ok(Connector { only: Some(file), ..Connector::new(path)? })
    }

    /// To be asked what it came to, from another thread.
    pub fn trouble(&self) -> Arc<Trouble> {
        Arc::clone(&self.trouble)
    }

    fn attempt(&self) -> Result<Opened, Miss> {
        let file = SocketFile::open(&self.path)?;
        if self.only.is_some_and(|only| file.identity != only) {
            return Err(Miss::Io(io::Error::from_raw_os_error(libc::ENOENT)));
        }
        let (socket, peer) = opened(UnixStream::from(unix_socket::connect(&file.path())?))?;
        match u32::try_from(peer.pid) == Ok(self.own) {
            true => Err(Miss::Itself),
            false => Ok(Opened::Connection(socket, peer)),
        }
    }

    /// Tries until a connection stands: at once after a connection that lasted, otherwise after a
    /// pause that doubles from [`CONNECT_RETRY_MIN`] to [`CONNECT_RETRY_MAX`], so that neither a
    /// missing front-end nor one that hangs up at once keeps us busy.
    pub fn connect(&mut self, stop: &EventFd) -> Opened {
        if self.connected.take().is_some_and(|at| at.elapsed() >= CONNECT_RETRY_MAX) {
            self.delay = Duration::ZERO;
        }
        loop {
            if pause_anyhow(stop, self.delay) == Wake::Stop {
                return Opened::Stopped;
            }
            self.delay = (self.delay * 2).clamp(CONNECT_RETRY_MIN, CONNECT_RETRY_MAX);
            match self.attempt() {
                Ok(opened) => {
                    (self.connected, self.told) = (Some(Instant::now()), None);
                    self.trouble.0.store(0, Ordering::Relaxed);
                    return opened;
                }
                Err(error) => self.log_once(&error),
            }
        }
    }

    fn log_once(&mut self, miss: &Miss) {
        let code = miss.code();
        self.trouble.0.store(code, Ordering::Relaxed);
        if self.told != Some(code) {
            self.told = Some(code);
            log::info!("socket {:?}: cannot connect, will retry: {miss}", self.path);
        }
    }
}

/// Why one attempt failed.
#[derive(Debug, thiserror::Error)]
enum Miss {
    #[error("it is a symbolic link, and links are not followed")]
    Link,
    #[error("it is a socket of this daemon")]
    Itself,
    #[error(transparent)]
    Io(io::Error),
}

impl From<io::Error> for Miss {
    fn from(error: io::Error) -> Miss {
        match error.raw_os_error() {
            Some(libc::ELOOP) => Miss::Link,
            _ => Miss::Io(error),
        }
    }
}

impl Miss {
    fn code(&self) -> i32 {
        match self {
            Miss::Link => libc::ELOOP,
            Miss::Itself => libc::EDEADLK,
            Miss::Io(error) => error.raw_os_error().unwrap_or(libc::ENOENT),
        }
    }
}
