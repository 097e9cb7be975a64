//! Connects to a front-end that listens.
//!
//! The owner of the directory may replace the front-end's socket: by a link to another VM's socket
//! or to a socket of this daemon, to which the owner has no access. So the last component of the
//! path must not be a link: the file is opened with O_PATH and connected to by this handle. And a
//! connection to this daemon itself is refused: the kernel tells which process made the socket
//! listen, and kept and inherited sockets are made to listen anew.

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

/// Connects to a front-end that listens, and retries.
#[derive(Debug)]
pub struct Connector {
    path: PathBuf,
    /// Pause before the next attempt.
    delay: Duration,
    /// Time at which the last attempt succeeded.
    pub(super) connected: Option<Instant>,
    /// The last failure that was logged, as errno; an equal failure is not logged again.
    told: Option<i32>,
    /// The only file to connect to; `None` for any file at the path.
    only: Option<Identity>,
    /// A process to which no connection is made: this one, unless a test plays the front-end too.
    pub(super) own: u32,
    trouble: Arc<Trouble>,
}

/// Why a connector reaches no front-end.
#[derive(Debug, Default)]
pub struct Trouble(AtomicI32);

impl Trouble {
    /// Returns the error of the last attempt. `None` after a success, or while the front-end's
    /// queue is full.
    pub fn last(&self) -> Option<io::Error> {
        match self.0.load(Ordering::Relaxed) {
            0 | libc::EAGAIN => None,
            code => Some(io::Error::from_raw_os_error(code)),
        }
    }
}

impl Connector {
    /// Makes a connector for `path`, which need not exist yet.
    pub fn new(path: &Path) -> Result<Connector, SocketError> {
        check_path(path)?;
        let path = path.to_owned();
        let (delay, own, trouble) = (Duration::ZERO, std::process::id(), Arc::default());
        Ok(Connector { path, delay, connected: None, told: None, only: None, own, trouble })
    }

    /// Makes a connector for `path` as long as `path` is this file. It does not connect to a file
    /// that takes its place.
    pub fn to_file(path: &Path, file: Identity) -> Result<Connector, SocketError> {
        Ok(Connector { only: Some(file), ..Connector::new(path)? })
    }

    /// Returns the outcome of the last attempt, for another thread.
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

    /// Tries until a connection is made: at once after a connection that lasted, otherwise after a
    /// pause that doubles from [`CONNECT_RETRY_MIN`] to [`CONNECT_RETRY_MAX`]. The pause keeps a
    /// front-end that is missing, or hangs up at once, from keeping the daemon busy.
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
