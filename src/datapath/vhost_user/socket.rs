//! The sockets on which front-ends are met: listening, connecting, inherited.
//!
//! - A listening socket appears complete: it is bound in a `PrivateDir`, given its mode and group,
//!   made to listen, and then linked to its name. link(2) never replaces anything.
//! - Mode and group are given to a socket, never to a path, where another's may be by then. One
//!   that is adopted is known by device and inode.
//! - A path in use is left alone: connect(2) shows whether a process lives behind it. What is not a
//!   socket is never removed. A lock is held from the look to the link.
//! - At the end the path is removed, before the socket is closed, if it still is this socket and
//!   the service manager does not keep it.
//! - A socket is closed where that may last ([`Guarded`]).

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use vmm_sys_util::eventfd::EventFd;

use crate::guard::disposal::Guarded;
use crate::port::FrontEnd;
use base::limits::{ACCEPT_RETRY_MAX, ACCEPT_RETRY_MIN, MAX_SOCKET_PATH, SOCKET_BACKLOG};
pub use connector::{Connector, Trouble};
use lock::Lock;
use private_dir::{PrivateDir, SocketFile, by_handle};
use sys::fs::directory_of;
use sys::holder::Holder;
use sys::poll::{Interest, Wake, pause, wait};
use sys::{descriptor, group, sandbox, unix_socket};

mod connector;
mod lock;
mod private_dir;

/// Why a socket cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The path does not fit into a socket address.
    #[error("socket path {0:?} is empty or longer than {MAX_SOCKET_PATH} bytes")]
    BadPath(PathBuf),
    /// A process accepts connections there: which one, if that can be seen.
    #[error(
        "socket {0:?} is in use by {by}: choose another path, or end that process",
        by = who(.1)
    )]
    InUse(PathBuf, Option<Holder>),
    /// The directory is missing.
    #[error("socket {0:?}: there is no directory {1:?}: mkdir -p {1:?}")]
    NoDirectory(PathBuf, PathBuf),
    /// The sandbox keeps sockets out of the directory: where they may be.
    #[error(
        "socket {0:?}: directory {1:?} is not one that the sandbox had at the start: choose one of \
         {2}, or restart the switch with the port in its configuration, or with --sandbox=off"
    )]
    Outside(PathBuf, PathBuf, String),
    /// Something that we did not make and do not touch.
    #[error("{0:?} exists and is not a socket")]
    NotASocket(PathBuf),
    /// A step on the way to a socket at this path failed.
    #[error("cannot {0} {1:?}: {2}")]
    Io(&'static str, PathBuf, io::Error),
    /// Another file than the kept socket's.
    #[error("{0:?} is another file than it was")]
    Replaced(PathBuf),
    /// An inherited descriptor that is none, or not a Unix stream socket that listens or is
    /// connected.
    #[error("descriptor {0} is not an inherited Unix stream socket")]
    NotInherited(RawFd),
    /// A call on the open socket failed.
    #[error("socket error: {0}")]
    Socket(#[from] io::Error),
}

impl SocketError {
    /// True if this socket cannot be had as long as its path, group or descriptor are what they
    /// are; false where the process ran out of something, so that trying again may help.
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

/// The process that accepts connections.
fn who(holder: &Option<Holder>) -> String {
    holder.as_ref().map_or("another process".to_owned(), Holder::to_string)
}

/// Wraps what the system said with what was tried.
fn failed(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SocketError {
    move |error| SocketError::Io(step, path.to_owned(), error)
}

/// Who may connect to a listening socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Permission bits; connecting needs write permission, unix(7).
    pub mode: u32,
    /// Group to give the socket to; `None` leaves it in ours.
    pub group: Option<u32>,
}

/// What waiting for a front-end came to.
#[derive(Debug)]
pub enum Opened {
    /// A connection, and who is at its other end.
    Connection(Guarded<UnixStream>, FrontEnd),
    /// The stop eventfd was written.
    Stopped,
}

/// A socket that accepts front-ends.
#[derive(Debug)]
pub struct Listener {
    socket: Arc<Guarded<UnixListener>>,
    /// Where it appears, if it does.
    path: Option<PathBuf>,
    /// The file, if a process of ours made it, and whether it goes with the listener: it stays if
    /// another process holds the socket too.
    made: Option<Place>,
    goes: bool,
    /// When a failing accept was last logged: at most one line a second.
    warned: Option<Instant>,
}

/// A socket's file, and how to recognise it.
#[derive(Debug, Clone)]
pub struct Place {
    path: PathBuf,
    identity: Identity,
}

impl Place {
    /// What distinguishes the socket's file from others.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Removes the file, unless another one has taken its place.
    pub fn remove(&self) {
        let now = fs::symlink_metadata(&self.path);
        if now.is_ok_and(|now| (now.dev(), now.ino()) == self.identity) {
            // Nothing to be done if it fails: at the next start it is stale and replaced.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Device and inode of a socket's file. No other file has them while the socket is open: it keeps
/// the inode, even if no name is left.
pub type Identity = (u64, u64);

impl Listener {
    /// Creates a listening socket at `path`, replacing one that was left behind.
    pub fn bind(path: &Path, access: Access) -> Result<Listener, SocketError> {
        check_path(path)?;
        let directory = Directory::open(path)?;
        clear_stale(path)?;
        let socket = unix_socket::stream_socket()?;
        // Removes itself and the temporary name on every way out; the linked one stays.
        let place = directory.private_dir(path).map_err(failed("make a directory beside", path))?;
        let bound = unix_socket::bind(socket.as_fd(), &place.socket);
        bound.map_err(failed("create socket", path))?;
        let handle = SocketFile::open(&place.socket).map_err(failed("examine socket", path))?;
        handle.grant(access, path)?;
        unix_socket::listen(socket.as_fd(), SOCKET_BACKLOG).map_err(failed("listen on", path))?;
        match fs::hard_link(&place.socket, path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(SocketError::InUse(path.to_owned(), None));
            }
            Err(error) => return Err(failed("create socket", path)(error)),
        }
        let mut listener = Listener::new(socket, Some(path));
        listener.made = Some(Place { path: path.to_owned(), identity: handle.identity });
        listener.goes = true;
        Ok(listener)
    }

    /// Takes over a socket that listens and appears at `path`. Both stay when this ends. Where the
    /// file is one that we made, `access` is granted to it anew.
    pub fn adopt(
        fd: OwnedFd,
        path: &Path,
        made: Option<(Identity, Access)>,
    ) -> Result<Listener, SocketError> {
        take_over(&fd)?;
        let file = SocketFile::open(path).map_err(failed("examine socket", path))?;
        if let Some((identity, Access { mode, group: wanted })) = made {
            if file.identity != identity {
                return Err(SocketError::Replaced(path.to_owned()));
            }
            // A group that is configured no more gives way to that of a new file.
            let group = wanted.or_else(|| Some(group::own()));
            file.grant(Access { mode, group }, path)?;
        }
        let mut listener = Listener::new(fd, Some(path));
        listener.made = made.map(|(identity, _)| Place { path: path.to_owned(), identity });
        Ok(listener)
    }

    /// A socket that listens; nothing happens to a file.
    fn new(socket: impl Into<UnixListener>, path: Option<&Path>) -> Listener {
        let (socket, path) = (Arc::new(Guarded::from(socket.into())), path.map(Path::to_owned));
        Listener { socket, path, made: None, goes: false, warned: None }
    }

    /// The socket's file; `None` if no process of ours made it.
    pub fn made(&self) -> Option<&Place> {
        self.made.as_ref()
    }

    /// True if the file goes when this ends.
    pub fn removes_file(&self) -> bool {
        self.goes && self.made.is_some()
    }

    /// From now on the file stays when this ends: another process holds the socket too.
    pub fn leave_file(&mut self) {
        self.goes = false;
    }

    /// The open socket, to see that a front-end waits there while another is served.
    pub fn socket(&self) -> Arc<Guarded<UnixListener>> {
        Arc::clone(&self.socket)
    }

    /// Waits for the next front-end. Whatever fails is waited out: descriptors and memory come
    /// back, and a front-end stays in the queue meanwhile. A listener that gave up would leave its
    /// port unresponsive until the daemon is restarted, which costs all others their connection.
    pub fn accept(&mut self, stop: &EventFd) -> Opened {
        let mut delay = ACCEPT_RETRY_MIN;
        loop {
            let error = match self.try_accept(stop) {
                Ok(opened) => return opened,
                Err(error) => error,
            };
            if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR | libc::ECONNABORTED))
            {
                // A front-end that left the queue again.
                continue;
            }
            self.warn(&error);
            if pause_anyhow(stop, delay) == Wake::Stop {
                return Opened::Stopped;
            }
            delay = (delay * 2).min(ACCEPT_RETRY_MAX);
        }
    }

    fn try_accept(&mut self, stop: &EventFd) -> io::Result<Opened> {
        if wait(self.socket.as_fd(), Interest::Read, stop, None)? == Wake::Stop {
            return Ok(Opened::Stopped);
        }
        let (socket, peer) = self.socket.accept().and_then(|(socket, _)| opened(socket))?;
        Ok(Opened::Connection(socket, peer))
    }

    fn warn(&mut self, error: &io::Error) {
        if self.warned.is_none_or(|at| at.elapsed() >= Duration::from_secs(1)) {
            self.warned = Some(Instant::now());
            let path = self.path.as_deref().unwrap_or(Path::new("(inherited)"));
            log::warn!("socket {path:?}: a front-end has to wait: {error}");
        }
    }
}

/// What distinguishes the socket at `path`; `None` if there is none.
pub fn identity_of(path: &Path) -> Option<Identity> {
    let found = fs::symlink_metadata(path).ok()?;
    found.file_type().is_socket().then(|| (found.dev(), found.ino()))
}

/// The path that a Unix socket was bound to; `None` if `fd` is none, or has none.
pub fn bound_path(fd: &OwnedFd) -> Option<PathBuf> {
    let socket = UnixListener::from(fd.try_clone().ok()?);
    socket.local_addr().ok()?.as_pathname().map(Path::to_owned)
}

/// True for a Unix stream socket that listens.
pub fn listens(fd: &OwnedFd) -> bool {
    unix_socket::is_unix_stream(fd.as_fd()) && unix_socket::listens(fd.as_fd()).unwrap_or(false)
}

/// Sleeps for `delay` or until `stop` is set; without a look at `stop` if even poll(2) has no
/// memory.
fn pause_anyhow(stop: &EventFd, delay: Duration) -> Wake {
    pause(stop, Instant::now() + delay).unwrap_or_else(|_| {
        thread::sleep(delay);
        Wake::TimedOut
    })
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Before the fields are dropped in order, and so before the socket is closed: while we
        // still listen, no other daemon takes the path for stale and puts its own there.
        if let Some(made) = self.made.as_ref().filter(|_| self.goes) {
            made.remove();
        }
    }
}

/// The directory a socket is about to appear in, locked if it could be.
struct Directory {
    /// Removed by way of `handle`.
    _lock: Option<Lock>,
    handle: File,
}

impl Directory {
    fn open(socket: &Path) -> Result<Directory, SocketError> {
        let path = directory_of(socket);
        let handle = match (File::open(path), sandbox::excludes(path)) {
            (Err(error), _) if error.kind() == io::ErrorKind::NotFound => {
                return Err(SocketError::NoDirectory(socket.into(), path.into()));
            }
            (_, Some(to)) => return Err(SocketError::Outside(socket.into(), path.into(), to)),
            (opened, None) => opened.map_err(failed("open directory", path))?,
        };
        Ok(Directory { _lock: Lock::take(&by_handle(&handle), path), handle })
    }

    /// A place inside for the socket that will be `path`.
    fn private_dir(&self, path: &Path) -> io::Result<PrivateDir> {
        let name = path.file_name().unwrap_or_default();
        PrivateDir::make(&by_handle(&self.handle), name)
    }
}

fn check_path(path: &Path) -> Result<(), SocketError> {
    let bytes = path.as_os_str().as_bytes();
    let fits = !bytes.is_empty() && bytes.len() <= MAX_SOCKET_PATH && !bytes.contains(&0);
    if fits && path.file_name().is_some() {
        Ok(())
    } else {
        Err(SocketError::BadPath(path.to_owned()))
    }
}

/// Makes sure nothing is at `path`: removes a socket on which no process listens, refuses the rest.
fn clear_stale(path: &Path) -> Result<(), SocketError> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => {}
        Ok(_) => return Err(SocketError::NotASocket(path.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("examine", path)(error)),
    }
    let error = match unix_socket::connect(path).map(UnixStream::from).map(Guarded::from) {
        Ok(socket) => {
            let holder = Holder::of_listener(socket.as_fd());
            return Err(SocketError::InUse(path.to_owned(), holder));
        }
        Err(error) => error,
    };
    match error.raw_os_error() {
        Some(libc::ECONNREFUSED) => match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(failed("remove stale socket", path)(error))
            }
            _ => Ok(()),
        },
        Some(libc::ENOENT) => Ok(()),
        // A full queue, or a live socket of another type.
        Some(libc::EAGAIN | libc::EPROTOTYPE) => Err(SocketError::InUse(path.to_owned(), None)),
        _ => Err(failed("find out whether anybody uses", path)(error)),
    }
}

/// A connected socket made ready: nothing but bytes and descriptors shall come out of it. Options
/// such as `SO_PASSCRED`, which a parent may have set and accept(2) passes on, would put control
/// messages beside the bytes and make descriptors seem lost.
fn opened(socket: impl Into<Guarded<UnixStream>>) -> io::Result<(Guarded<UnixStream>, FrontEnd)> {
    let socket = socket.into();
    unix_socket::receive_plainly(socket.as_fd());
    let libc::ucred { pid, uid, .. } = unix_socket::peer_credentials(socket.as_fd())?;
    Ok((socket, FrontEnd { pid, uid }))
}

/// An inherited socket, by what it is.
#[derive(Debug)]
pub enum Inherited {
    /// It listens. Its path, if it has one, belongs to the process that made it and stays.
    Listener(Listener),
    /// It is connected to a front-end.
    Connection(Guarded<UnixStream>, FrontEnd),
}

/// Takes over the Unix stream socket that the program which started this one left open as
/// descriptor `number`. To be called early, while the numbers still mean what they meant to it.
pub fn inherit(number: RawFd) -> Result<Inherited, SocketError> {
    let fd = descriptor::adopt_inherited(number)?.ok_or(SocketError::NotInherited(number))?;
    if !unix_socket::is_unix_stream(fd.as_fd()) {
        return Err(SocketError::NotInherited(number));
    }
    if unix_socket::listens(fd.as_fd())? {
        take_over(&fd)?;
        return Ok(Inherited::Listener(Listener::new(fd, None)));
    }
    connected(fd).ok_or(SocketError::NotInherited(number))
}

/// Makes a socket that another process had listen ours.
fn take_over(fd: &OwnedFd) -> io::Result<()> {
    // The parent may hold the same socket: without this, losing the race for a connection would
    // leave us blocked in accept(2), without a look at the stop request.
    descriptor::set_nonblocking(fd.as_fd())?;
    // A peer that connects learns which process called listen(2), by which we know our own.
    unix_socket::listen(fd.as_fd(), SOCKET_BACKLOG)
}

/// The connection behind `fd`; `None` if the socket is neither connected nor usable.
fn connected(fd: OwnedFd) -> Option<Inherited> {
    let socket = Guarded::from(UnixStream::from(fd));
    socket.peer_addr().ok()?;
    let (socket, peer) = opened(socket).ok()?;
    Some(Inherited::Connection(socket, peer))
}

#[cfg(test)]
mod tests;
