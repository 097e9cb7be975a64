//! The reasons for which a socket cannot be had.

use std::io;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

use base::limits::MAX_SOCKET_PATH;
use sys::holder::Holder;
use sys::vduse::VduseError;

/// Why a socket cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The path does not fit into a socket address.
    #[error("socket path {0:?} is empty or longer than {MAX_SOCKET_PATH} bytes")]
    BadPath(PathBuf),
    /// A process accepts connections at the path; the process, if it is visible.
    #[error(
        "socket {0:?} is in use by {by}: choose another path, or end that process",
        by = who(.1)
    )]
    InUse(PathBuf, Option<Holder>),
    /// The directory is missing.
    #[error("socket {0:?}: there is no directory {1:?}: mkdir -p {1:?}")]
    NoDirectory(PathBuf, PathBuf),
    /// The sandbox allows no sockets in the directory; the text lists the allowed directories.
    #[error(
        "socket {0:?}: directory {1:?} is not one that the sandbox had at the start: choose one of \
         {2}, or restart the switch with the port in its configuration, or with --sandbox=off"
    )]
    Outside(PathBuf, PathBuf, String),
    /// A file that is not a socket; the switch does not touch it.
    #[error("{0:?} exists and is not a socket")]
    NotASocket(PathBuf),
    /// A system call for the path failed: the step, the path, the error.
    #[error("cannot {0} {1:?}: {2}")]
    Io(&'static str, PathBuf, io::Error),
    /// The path leads to another file than the kept socket's.
    #[error("{0:?} is another file than it was")]
    Replaced(PathBuf),
    /// The number is no inherited descriptor, or the descriptor is not a Unix stream socket that
    /// listens or is connected.
    #[error("descriptor {0} is not an inherited Unix stream socket")]
    NotInherited(RawFd),
    /// The VDUSE device that takes the socket's place cannot be had.
    #[error(transparent)]
    Vduse(#[from] VduseError),
    /// A call on the open socket failed.
    #[error("socket error: {0}")]
    Socket(#[from] io::Error),
}

impl SocketError {
    /// True if the error stays as long as the path, group or descriptor stays. False if the process
    /// ran out of a resource, so that another attempt may succeed.
    pub fn is_lasting(&self) -> bool {
        const PASSING: [i32; 7] = [
            libc::EMFILE,
            libc::ENFILE,
            libc::ENOMEM,
            libc::ENOBUFS,
            libc::ENOSPC,
            libc::EAGAIN,
            libc::EINTR,
        ];
        match self {
            SocketError::Io(_, _, error) | SocketError::Socket(error) => {
                error.raw_os_error().is_some_and(|code| !PASSING.contains(&code))
            }
            _ => true,
        }
    }
}

/// Names the process that accepts connections.
fn who(holder: &Option<Holder>) -> String {
    holder.as_ref().map_or("another process".to_owned(), Holder::to_string)
}

/// Wraps a system call's error with the attempted step and the path.
pub(super) fn failed(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SocketError {
    move |error| SocketError::Io(step, path.to_owned(), error)
}
