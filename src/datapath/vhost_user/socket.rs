//! The sockets on which front-ends connect: listening, connecting, inherited.
//!
//! - A listening socket appears complete: it is bound in a `PrivateDir`, given its mode and group,
//!   made to listen, and then linked to its name. link(2) never replaces a file.
//! - Mode and group are set on an open socket, never by a path, where another user's file may be by
//!   then. An adopted socket's file is recognised by device and inode.
//! - A path in use is left alone: connect(2) shows whether a process listens behind the path. A
//!   file that is not a socket is never removed. A lock is held from this check to the link.
//! - At the end the listener removes its path, before it closes the socket, if the path still leads
//!   to this socket and the service manager does not keep the socket.
//! - [`Guarded`] closes a socket whose closing may wait.

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
pub use datagrams::{Datagrams, HELLO, Met, PeerAddress};
pub use error::SocketError;
use error::failed;
use lock::Lock;
pub use private_dir::{Access, Identity};
use private_dir::{PrivateDir, SocketFile, by_handle};
use sys::fs::directory_of;
use sys::holder::Holder;
use sys::poll::{Interest, Wake, pause, wait};
use sys::{descriptor, group, sandbox, unix_socket};

mod connector;
mod datagrams;
mod error;
mod lock;
mod private_dir;

/// Outcome of waiting for a front-end.
#[derive(Debug)]
pub enum Opened {
    /// A connection, and the process at its other end.
    Connection(Guarded<UnixStream>, FrontEnd),
    /// The stop eventfd was written.
    Stopped,
}

/// A socket that accepts front-ends.
#[derive(Debug)]
pub struct Listener {
    socket: Arc<Guarded<UnixListener>>,
    /// Path of the socket, if it has one.
    path: Option<PathBuf>,
    /// The socket's file, if this daemon or its predecessor made the file. `goes`: the listener
    /// removes the file on drop; it does not if another process holds the socket too.
    made: Option<BoundFile>,
    goes: bool,
    /// Time at which a failing accept was last logged: at most one line a second.
    warned: Option<Instant>,
}

/// A socket's file, with the identity by which the file is recognised.
#[derive(Debug, Clone)]
pub struct BoundFile {
    path: PathBuf,
    identity: Identity,
}

impl BoundFile {
    /// Returns device and inode of the socket's file.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Removes the file, unless another file has taken its place.
    pub fn remove(&self) {
        let now = fs::symlink_metadata(&self.path);
        if now.is_ok_and(|now| (now.dev(), now.ino()) == self.identity) {
            // A failure does no harm: the next start finds the file stale and replaces it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Listener {
    /// Creates a listening socket at `path`, replacing a stale socket.
    pub fn bind(path: &Path, access: Access) -> Result<Listener, SocketError> {
        let socket = unix_socket::stream_socket()?;
        let listen = || unix_socket::listen(socket.as_fd(), SOCKET_BACKLOG);
        let made = bind_socket(socket.as_fd(), path, access, listen)?;
        let mut listener = Listener::new(socket, Some(path));
        listener.made = Some(made);
        listener.goes = true;
        Ok(listener)
    }

    /// Takes over a listening socket whose file is at `path`. Socket and file stay when the
    /// listener is dropped. `made` is given if this daemon's predecessor made the file: its
    /// identity, and the access to set again.
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
            // Without a configured group the file gets the group of a new file.
            let group = wanted.or_else(|| Some(group::own()));
            file.grant(Access { mode, group }, path)?;
        }
        let mut listener = Listener::new(fd, Some(path));
        listener.made = made.map(|(identity, _)| BoundFile { path: path.to_owned(), identity });
        Ok(listener)
    }

    /// Makes a listener of a listening socket, without touching a file.
    fn new(socket: impl Into<UnixListener>, path: Option<&Path>) -> Listener {
        let (socket, path) = (Arc::new(Guarded::from(socket.into())), path.map(Path::to_owned));
        Listener { socket, path, made: None, goes: false, warned: None }
    }

    /// Returns the socket's file; `None` if neither this daemon nor its predecessor made the file.
    pub fn made(&self) -> Option<&BoundFile> {
        self.made.as_ref()
    }

    /// True if the listener removes its file on drop.
    pub fn removes_file(&self) -> bool {
        self.goes && self.made.is_some()
    }

    /// Keeps the file when the listener is dropped: another process holds the socket too.
    pub fn leave_file(&mut self) {
        self.goes = false;
    }

    /// Returns the socket, for a session that watches for other front-ends.
    pub fn socket(&self) -> Arc<Guarded<UnixListener>> {
        Arc::clone(&self.socket)
    }

    /// Waits for the next front-end. Waits out every failure: descriptors and memory become free
    /// again, and a front-end stays in the queue meanwhile. A listener that gave up would leave its
    /// port unresponsive until the daemon restarts, which costs all other ports their connections.
    pub fn accept(&mut self, stop: &EventFd) -> Opened {
        let mut delay = ACCEPT_RETRY_MIN;
        loop {
            let error = match self.try_accept(stop) {
                Ok(opened) => return opened,
                Err(error) => error,
            };
            if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR | libc::ECONNABORTED))
            {
                // A front-end left the queue before accept(2).
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

/// Gives a socket the name `path`, in place of a stale socket. `prepare` makes the bound socket
/// ready before the name appears.
fn bind_socket(
    socket: BorrowedFd<'_>,
    path: &Path,
    access: Access,
    prepare: impl FnOnce() -> io::Result<()>,
) -> Result<BoundFile, SocketError> {
    check_path(path)?;
    let directory = Directory::open(path)?;
    clear_stale(path)?;
    // Dropping `place` removes the directory and the temporary name; the linked name stays.
    let place = directory.private_dir(path).map_err(failed("make a directory beside", path))?;
    unix_socket::bind(socket, &place.socket).map_err(failed("create socket", path))?;
    let handle = SocketFile::open(&place.socket).map_err(failed("examine socket", path))?;
    handle.grant(access, path)?;
    prepare().map_err(failed("listen on", path))?;
    match fs::hard_link(&place.socket, path) {
        Ok(()) => Ok(BoundFile { path: path.to_owned(), identity: handle.identity }),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Err(SocketError::InUse(path.to_owned(), None))
        }
        Err(error) => Err(failed("create socket", path)(error)),
    }
}

/// Returns device and inode of the socket at `path`; `None` if no socket is there.
pub fn identity_of(path: &Path) -> Option<Identity> {
    let found = fs::symlink_metadata(path).ok()?;
    found.file_type().is_socket().then(|| (found.dev(), found.ino()))
}

/// Returns the path that the Unix socket `fd` is bound to; `None` without a path, or if `fd` is no
/// Unix socket.
pub fn bound_path(fd: &OwnedFd) -> Option<PathBuf> {
    let socket = UnixListener::from(fd.try_clone().ok()?);
    socket.local_addr().ok()?.as_pathname().map(Path::to_owned)
}

/// True for a Unix stream socket that listens.
pub fn listens(fd: &OwnedFd) -> bool {
    unix_socket::is_unix_stream(fd.as_fd()) && unix_socket::listens(fd.as_fd()).unwrap_or(false)
}

/// Sleeps for `delay` or until `stop` is set. Sleeps without watching `stop` if poll(2) fails for
/// want of memory.
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
        // The file goes before the fields are dropped, and so before the socket is closed: while
        // this socket listens, no other daemon takes the path for stale and puts its own socket
        // there.
        if let Some(made) = self.made.as_ref().filter(|_| self.goes) {
            made.remove();
        }
    }
}

/// The directory in which a socket is about to appear, locked if the lock could be taken.
struct Directory {
    /// Removes its file by way of `handle`, so it is dropped first.
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

    /// Makes a private directory inside for the socket that will be at `path`.
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

/// Makes sure that `path` is free: removes a socket on which no process listens, refuses other
/// files.
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
        // EAGAIN: the queue is full. EPROTOTYPE: a live socket of another type.
        Some(libc::EAGAIN | libc::EPROTOTYPE) => Err(SocketError::InUse(path.to_owned(), None)),
        _ => Err(failed("find out whether anybody uses", path)(error)),
    }
}

/// Prepares a connected socket so that it delivers nothing but bytes and descriptors. Options such
/// as `SO_PASSCRED`, which a parent may have set and accept(2) passes on, would add control
/// messages to the bytes and make descriptors seem lost.
fn opened(socket: impl Into<Guarded<UnixStream>>) -> io::Result<(Guarded<UnixStream>, FrontEnd)> {
    let socket = socket.into();
    unix_socket::receive_plainly(socket.as_fd());
    let libc::ucred { pid, uid, .. } = unix_socket::peer_credentials(socket.as_fd())?;
    Ok((socket, FrontEnd { pid, uid }))
}

/// An inherited socket, by its state.
#[derive(Debug)]
pub enum Inherited {
    /// A listening socket. Its path, if it has one, belongs to the process that made the socket.
    Listener(Listener),
    /// A socket connected to a front-end.
    Connection(Guarded<UnixStream>, FrontEnd),
}

/// Takes over the Unix stream socket that the parent program left open as descriptor `number`. The
/// daemon calls this early, before it reuses the parent's descriptor numbers.
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

/// Prepares a socket that another process made to listen.
fn take_over(fd: &OwnedFd) -> io::Result<()> {
    // The parent may hold the socket too: without O_NONBLOCK, a lost race for a connection would
    // leave this thread blocked in accept(2), where it does not see the stop request.
    descriptor::set_nonblocking(fd.as_fd())?;
    // A peer that connects sees the process that called listen(2); `Connector` relies on this.
    unix_socket::listen(fd.as_fd(), SOCKET_BACKLOG)
}

/// Returns the connection behind `fd`; `None` if the socket is not connected or not usable.
fn connected(fd: OwnedFd) -> Option<Inherited> {
    let socket = Guarded::from(UnixStream::from(fd));
    socket.peer_addr().ok()?;
    let (socket, peer) = opened(socket).ok()?;
    Some(Inherited::Connection(socket, peer))
}

#[cfg(test)]
mod tests;
