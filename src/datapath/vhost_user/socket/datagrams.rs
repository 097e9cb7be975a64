//! Sockets on which the peers of `type=dgram` streams are met: vfkit, libkrun, gvproxy.
//!
//! The side that connects binds a path of its own, and begins with the datagram [`HELLO`] or with a
//! frame. The side that listens learns from this datagram where its own frames go.
//!
//! - A peer chooses its path, which may lead to another program's socket by now, or in this
//!   process's view of the file system. So the file is opened once, without following a link, and
//!   must belong to the user who sent the datagram, whom the kernel names. The socket is connected
//!   to the opened file.
//! - The path may lead to the file system of a server that never answers (FUSE, NFS). So another
//!   thread opens the file, for a limited time, and a file of such a server is refused: the kernel
//!   could ask the server again at every look at the peer.
//! - A connected socket receives from its peer alone: the kernel refuses other senders. Datagrams
//!   that others sent before are recognised by their senders' paths.
//! - Each peer gets a new socket: what an earlier peer left unread in a socket may carry
//!   descriptors whose closing lasts.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use vmm_sys_util::eventfd::EventFd;

use super::private_dir::SocketFile;
use super::{
    Access, BoundFile, SocketError, bind_socket, check_path, clear_stale, failed, pause_anyhow,
};
use crate::guard::disposal::{self, Guarded};
use crate::port::FrontEnd;
use crate::port::device::datagrams::PeerSocket;
use base::limits::{
    ACCEPT_RETRY_MIN, CONNECT_RETRY_MAX, CONNECT_RETRY_MIN, DEFAULT_SOCKET_MODE, MAX_FRAME_LEN,
    PEER_OPEN_THREADS, SOCKET_OPEN_TIMEOUT,
};
use base::stats::Counter;
use sys::blocking::{Blocking, NotBegun};
use sys::poll::{Interest, Wake, wait};
use sys::scm::{self, Sender};
use sys::waker::Waker;
use sys::{fs, unix_socket};

/// The datagram with which a side that connects may begin; not a frame.
pub const HELLO: &[u8] = b"VFKT";
/// Added to the path of a peer that listens: the path of the switch's own socket.
const OWN: &str = ".vioswitch";
/// Least time between two lines of the log about refused peers.
const WARNING: Duration = Duration::from_secs(1);

/// The source of a stream's peers.
#[derive(Debug)]
pub struct Datagrams {
    path: PathBuf,
    side: Side,
    /// The socket's file, as long as the socket is open.
    file: Option<BoundFile>,
    warned: Option<Instant>,
    /// The threads that open peers' sockets.
    opens: Opens,
    /// The last failure to connect that was logged; an equal failure is not logged again.
    told: String,
    /// Pause before the next attempt after a failure.
    delay: Duration,
}

/// The threads that open peers' sockets.
#[derive(Debug)]
struct Opens {
    threads: Blocking,
    /// Nobody sleeps there: the port's thread waits for the result itself.
    waker: Arc<Waker>,
}

#[derive(Debug)]
enum Side {
    /// Peers send to the socket; the socket for the next peer.
    Server(Access, Option<OwnedFd>),
    Client,
}

/// A peer, and the socket that is connected to the peer.
#[derive(Debug)]
pub struct Met {
    /// The connected socket.
    pub socket: Guarded<UnixDatagram>,
    /// The process, as far as the process is known.
    pub peer: FrontEnd,
    /// The frame that the peer began with; empty if the peer began with [`HELLO`].
    pub first: Vec<u8>,
    /// The peer's socket.
    pub address: PeerAddress,
}

/// The socket of a peer.
#[derive(Debug)]
pub struct PeerAddress {
    path: PathBuf,
    file: SocketFile,
}

impl PeerSocket for PeerAddress {
    fn is_of(&self, sender: &Sender) -> bool {
        sender.path.as_deref() == Some(&self.path)
    }

    fn is_alive(&self) -> bool {
        unix_socket::receives_datagrams(&self.file.path())
    }
}

impl PeerAddress {
    /// Opens the socket that a datagram came from.
    fn of(sender: Sender, opens: &Opens) -> Result<(PeerAddress, FrontEnd), Refusal> {
        let path = sender.path.filter(|path| path.is_absolute()).ok_or(Refusal::NoPath)?;
        let sent = sender.credentials.ok_or(Refusal::Owner(path.clone()))?;
        let file = opens.open(&path)?;
        // Users without a number here have one number in common.
        let is_known = sent.uid != fs::overflow_user();
        if file.owner != sent.uid || !is_known {
            return Err(Refusal::Owner(path));
        }
        Ok((PeerAddress { path, file }, FrontEnd { pid: sent.pid, uid: sent.uid }))
    }
}

impl Opens {
    /// Opens a peer's socket, and waits for the socket's file system for a limited time.
    fn open(&self, path: &Path) -> Result<SocketFile, Refusal> {
        let (end, own) = (Instant::now() + SOCKET_OPEN_TIMEOUT, path.to_owned());
        let opened = self.threads.run(path, &self.waker, end, move || SocketFile::open_local(&own));
        match opened {
            Ok(opened) => opened.map_err(|error| Refusal::Io(path.to_owned(), error)),
            Err(NotBegun::Thread(error)) => Err(Refusal::Call(error)),
            Err(NotBegun::Busy) => Err(Refusal::Silent(path.to_owned())),
            Err(NotBegun::Full) => Err(Refusal::ManySilent),
        }
    }
}

/// Why a peer is not served.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("it has not bound its socket to an absolute path")]
    NoPath,
    #[error("its path {0:?} belongs to another user")]
    Owner(PathBuf),
    #[error("its first datagram has descriptors, or is too long")]
    NoFrame,
    #[error("the file system of its path {0:?} does not answer")]
    Silent(PathBuf),
    #[error("the file systems of {PEER_OPEN_THREADS} earlier peers' paths do not answer")]
    ManySilent,
    #[error("cannot reach {0:?}: {1}")]
    Io(PathBuf, io::Error),
    #[error("{0}")]
    Socket(#[from] SocketError),
    #[error("{0}")]
    Call(#[from] io::Error),
}

impl Datagrams {
    /// Makes the socket at `path` to which peers send.
    pub fn bind(path: &Path, access: Access) -> Result<Datagrams, SocketError> {
        let mut datagrams = Datagrams::new(path, Side::Server(access, None))?;
        let socket = datagrams.open(access)?;
        datagrams.side = Side::Server(access, Some(socket));
        Ok(datagrams)
    }

    /// Makes the source of a peer that receives at `path`, which need not exist yet.
    pub fn to(path: &Path) -> Result<Datagrams, SocketError> {
        let datagrams = Datagrams::new(path, Side::Client)?;
        check_path(path).and_then(|()| check_path(&datagrams.own_path()))?;
        Ok(datagrams)
    }

    fn new(path: &Path, side: Side) -> io::Result<Datagrams> {
        let path = path.to_owned();
        let opens =
            Opens { threads: Blocking::new(PEER_OPEN_THREADS), waker: Arc::new(Waker::new()?) };
        Ok(Datagrams {
            path,
            side,
            file: None,
            warned: None,
            opens,
            told: String::new(),
            delay: CONNECT_RETRY_MIN,
        })
    }

    /// Returns the file of the present socket, which goes with this value.
    pub fn file(&self) -> Option<&BoundFile> {
        self.file.as_ref()
    }

    fn own_path(&self) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(OWN);
        path.into()
    }

    /// Waits for the next peer; `None` once `stop` is set. Waits out every failure, and counts the
    /// peers that the switch refuses in `refused`.
    pub fn meet(&mut self, stop: &EventFd, refused: &Counter) -> Option<Met> {
        loop {
            let pause = match self.attempt(stop) {
                Ok(met) => {
                    self.delay = CONNECT_RETRY_MIN;
                    self.told.clear();
                    return met;
                }
                // One datagram after the other is refused, and the senders wait meanwhile.
                Err(refusal) if self.is_ready() => {
                    refused.add_shared(1);
                    self.warn(&refusal);
                    ACCEPT_RETRY_MIN
                }
                Err(refusal) => {
                    self.warn(&refusal);
                    let delay = self.delay;
                    self.delay = (delay * 2).min(CONNECT_RETRY_MAX);
                    delay
                }
            };
            if pause_anyhow(stop, pause) == Wake::Stop {
                return None;
            }
        }
    }

    /// True if the socket for the next peer is open.
    fn is_ready(&self) -> bool {
        matches!(self.side, Side::Server(_, Some(_)))
    }

    fn attempt(&mut self, stop: &EventFd) -> Result<Option<Met>, Refusal> {
        let Side::Server(access, ready) = &mut self.side else {
            return self.connect().map(Some);
        };
        let (access, ready) = (*access, ready.take());
        let socket = match ready {
            Some(socket) => socket,
            None => self.open(access)?,
        };
        match receive(&socket, &self.opens, stop) {
            Ok(Some((peer, address, first))) => {
                Ok(Some(Met { socket: prepared(socket), peer, address, first }))
            }
            other => {
                self.side = Side::Server(access, Some(socket));
                other.map(|_| None)
            }
        }
    }

    fn connect(&mut self) -> Result<Met, Refusal> {
        let cannot = |error| Refusal::Io(self.path.clone(), error);
        let file = SocketFile::open(&self.path).map_err(cannot)?;
        let access = Access { mode: DEFAULT_SOCKET_MODE, group: None };
        let socket = self.open(access)?;
        let connected = unix_socket::connect_datagrams(socket.as_fd(), &file.path())
            .and_then(|()| scm::send(socket.as_fd(), HELLO));
        connected.map_err(|error| {
            self.let_go();
            Refusal::Io(self.path.clone(), error)
        })?;
        // The peer's process is not known before it sends.
        let peer = FrontEnd { pid: 0, uid: file.owner };
        let address = PeerAddress { path: self.path.clone(), file };
        Ok(Met { socket: prepared(socket), peer, address, first: Vec::new() })
    }

    /// Makes a socket in place of the last one.
    fn open(&mut self, access: Access) -> Result<OwnedFd, SocketError> {
        self.let_go();
        let socket = unix_socket::datagram_socket()?;
        // Before a peer finds the socket: the kernel notes the sender when a datagram is sent.
        unix_socket::pass_credentials(socket.as_fd())?;
        unix_socket::refuse_descriptors(socket.as_fd());
        self.file = Some(match self.side {
            Side::Server(..) => bind_socket(socket.as_fd(), &self.path, access, || Ok(()))?,
            Side::Client => bind_own(socket.as_fd(), &self.own_path(), access.mode)?,
        });
        Ok(socket)
    }

    fn let_go(&mut self) {
        if let Some(file) = self.file.take() {
            file.remove();
        }
    }

    fn warn(&mut self, refusal: &Refusal) {
        if matches!(self.side, Side::Client) {
            let told = refusal.to_string();
            if self.told != told {
                log::info!("socket {:?}: cannot connect, will retry: {told}", self.path);
                self.told = told;
            }
        } else if self.warned.is_none_or(|at| at.elapsed() >= WARNING) {
            self.warned = Some(Instant::now());
            log::warn!("socket {:?}: a peer is not served: {refusal}", self.path);
        }
    }
}

impl Drop for Datagrams {
    fn drop(&mut self) {
        self.let_go();
        if let Side::Server(_, Some(socket)) = std::mem::replace(&mut self.side, Side::Client) {
            drop(Guarded::from(UnixDatagram::from(socket)));
        }
    }
}

/// Binds a socket to `path` itself, which the peer reads from the socket's datagrams.
fn bind_own(socket: BorrowedFd<'_>, path: &Path, mode: u32) -> Result<BoundFile, SocketError> {
    clear_stale(path)?;
    unix_socket::bind_with_mode(socket, path, mode).map_err(failed("create socket", path))?;
    let identity = SocketFile::open(path).map_err(failed("examine socket", path))?.identity;
    Ok(BoundFile { path: path.to_owned(), identity })
}

fn prepared(socket: OwnedFd) -> Guarded<UnixDatagram> {
    unix_socket::receive_plainly(socket.as_fd());
    Guarded::from(UnixDatagram::from(socket))
}

/// Waits for a datagram, and connects the socket to the sender; `None` once `stop` is set.
fn receive(
    socket: &OwnedFd,
    opens: &Opens,
    stop: &EventFd,
) -> Result<Option<(FrontEnd, PeerAddress, Vec<u8>)>, Refusal> {
    if wait(socket.as_fd(), Interest::Read, stop, None)? == Wake::Stop {
        return Ok(None);
    }
    let (mut bytes, mut files) = (vec![0; MAX_FRAME_LEN as usize + 1], Vec::new());
    let (received, sender) = scm::receive_from(socket.as_fd(), &mut bytes, &mut files)?;
    if !files.is_empty() || received.files_lost || received.truncated {
        disposal::close(files);
        return Err(Refusal::NoFrame);
    }
    let (address, peer) = PeerAddress::of(sender, opens)?;
    unix_socket::connect_datagrams(socket.as_fd(), &address.file.path())
        .map_err(|error| Refusal::Io(address.path.clone(), error))?;
    bytes.truncate(received.bytes);
    if bytes == HELLO {
        bytes.clear();
    }
    Ok(Some((peer, address, bytes)))
}

#[cfg(test)]
mod link_tests;
#[cfg(test)]
mod tests;
