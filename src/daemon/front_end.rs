//! A port's thread: serves one front-end after the other, for the life of the daemon.

use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Instant;

use vmm_sys_util::eventfd::EventFd;

use super::port_thread::{PortThread, contained, pause_after_harm};
use super::received::Received;
use super::vduse::{self, OpenDevice};
use api::config::Endpoint;
use base::limits::{FIRST_WORD, HELD_PAUSE};
use datapath::events::What;
use datapath::guard::disposal::{self, Guarded};
use datapath::port::{FrontEnd, Port};
use datapath::vhost_user::codec::{Connection, WireError};
use datapath::vhost_user::session::{End, Session};
use datapath::vhost_user::socket::{
    Access, BoundFile, Connector, Datagrams, Inherited, Listener, Opened, SocketError, inherit,
};
use sys::eventfd::is_readable;
use sys::poll::{self, Interest, Wake};
use sys::threads::run_again_after_panic;
use sys::unix_socket;

/// The source of a port's front-ends.
#[derive(Debug)]
pub(crate) enum Acceptor {
    /// Front-ends connect to the daemon.
    Listener(Listener),
    /// The daemon connects to front-ends.
    Connector(Connector),
    /// Peers of a stream that send datagrams.
    Datagrams(Datagrams),
    /// One inherited connection; when the connection ends the port stays empty.
    Connection(Guarded<UnixStream>, FrontEnd),
    /// The kernel's driver of a VDUSE device.
    Vduse(OpenDevice),
}

/// The file of a listening socket that this process made.
#[derive(Debug)]
pub struct SocketFile {
    /// The file and its identity.
    pub(crate) bound: BoundFile,
    /// True if the file stays when the socket is closed; otherwise the listener removes the file.
    pub(crate) stays: bool,
}

impl Acceptor {
    /// Opens the configured endpoint of port number `port`, or takes over the listening socket that
    /// an earlier process left there.
    pub(crate) fn open(
        port: usize,
        endpoint: &Endpoint,
        received: &mut Received,
    ) -> Result<Acceptor, SocketError> {
        match endpoint {
            Endpoint::Server { path, mode, group } => {
                let access = Access { mode: *mode, group: *group };
                match received.listener(port, path, access) {
                    Some(kept) => kept.map(Acceptor::Listener),
                    None => Listener::bind(path, access).map(Acceptor::Listener),
                }
            }
            Endpoint::Client { path } => Connector::new(path).map(Acceptor::Connector),
            Endpoint::Datagrams { path, server: Some((mode, group)) } => {
                let access = Access { mode: *mode, group: *group };
                Datagrams::bind(path, access).map(Acceptor::Datagrams)
            }
            Endpoint::Datagrams { path, server: None } => {
                Datagrams::to(path).map(Acceptor::Datagrams)
            }
            Endpoint::Vduse(wanted) => Ok(vduse::open(wanted).map(Acceptor::Vduse)?),
            Endpoint::Fd(number) => Ok(match inherit(*number)? {
                Inherited::Listener(listener) => Acceptor::Listener(listener),
                Inherited::Connection(socket, peer) => Acceptor::Connection(socket, peer),
            }),
        }
    }

    /// Waits for the next front-end that connects, or connects to the next front-end.
    pub(crate) fn meet(&mut self, stop: &EventFd) -> Opened {
        match self {
            Acceptor::Listener(listener) => listener.accept(stop),
            Acceptor::Connector(connector) => connector.connect(stop),
            // The only connection was served already; no front-end connects to a device, or to a
            // socket for datagrams.
            Acceptor::Connection(..) | Acceptor::Vduse(_) | Acceptor::Datagrams(_) => {
                Opened::Stopped
            }
        }
    }

    /// Returns the socket's file, if this process made the file.
    pub(crate) fn file(&self) -> Option<SocketFile> {
        match self {
            Acceptor::Listener(listener) => Some(SocketFile {
                bound: listener.made()?.clone(),
                stays: !listener.removes_file(),
            }),
            Acceptor::Datagrams(source) => {
                Some(SocketFile { bound: source.file()?.clone(), stays: false })
            }
            _ => None,
        }
    }

    /// Serves front-ends on behalf of a port until the thread is stopped. A panic outside a session
    /// costs a pause: a port without its thread would be unresponsive.
    pub(crate) fn serve(self, thread: &PortThread) {
        let PortThread { running, stop, .. } = thread;
        let name = running.port().name.clone();
        let acceptor = match self {
            Acceptor::Vduse(device) => return vduse::serve(device, thread),
            other => other,
        };
        let stopped = || is_readable(stop.as_raw_fd());
        let mut acceptor = Some(acceptor);
        run_again_after_panic(&format!("port {name}: its thread"), stopped, || {
            // The inherited connection is taken out before its session begins: a second run finds
            // no connection.
            if let Some(Acceptor::Connection(..)) = acceptor {
                if let Some(Acceptor::Connection(socket, peer)) = acceptor.take() {
                    converse(thread, socket, peer, None);
                }
                return;
            }
            loop {
                let opened = acceptor.as_mut().map(|acceptor| acceptor.meet(stop));
                let Some(Opened::Connection(socket, peer)) = opened else { return };
                let door = match &acceptor {
                    Some(Acceptor::Listener(listener)) => Some(listener.socket()),
                    _ => None,
                };
                if door.is_some() && left_at_once(&socket, stop) {
                    continue;
                }
                if converse(thread, socket, peer, door) == Some(End::Stopped)
                    || rest(&running.port(), stop) == Wake::Stop
                    || wait_for_closing(stop) == Wake::Stop
                {
                    return;
                }
            }
        });
    }
}

/// Pauses if the last front-end was dropped for the harm that it did to others: the front-end would
/// come back at once and do the harm again.
fn rest(port: &Port, stop: &EventFd) -> Wake {
    let Some(pause) = pause_after_harm(port) else { return Wake::TimedOut };
    // If the wait fails there is no pause: a port without a pause is better than no port.
    poll::pause(stop, Instant::now() + pause).unwrap_or(Wake::TimedOut)
}

/// Waits while more files of this thread wait to be closed than the limit permits.
pub(crate) fn wait_for_closing(stop: &EventFd) -> Wake {
    while disposal::is_held_up() {
        // If the wait fails the thread goes on, and the next connection ends.
        match poll::pause(stop, Instant::now() + HELD_PAUSE) {
            Ok(Wake::TimedOut) => {}
            woken => return woken.unwrap_or(Wake::TimedOut),
        }
    }
    Wake::TimedOut
}

/// True if the peer has left without a message: the peer is no front-end but a tool, or another
/// daemon that asks whether the socket is in use. A peer that stays and is silent is taken for a
/// front-end.
fn left_at_once(socket: &UnixStream, stop: &EventFd) -> bool {
    let until = Some(Instant::now() + FIRST_WORD);
    let woken = poll::wait(socket.as_fd(), Interest::Read, stop, until);
    matches!(woken, Ok(Wake::Ready)) && unix_socket::unread(socket.as_fd()).is_ok_and(|n| n == 0)
}

/// Serves one session, and contains an error or panic that ends the session.
fn converse(
    thread: &PortThread,
    socket: Guarded<UnixStream>,
    peer: FrontEnd,
    door: Option<Arc<Guarded<UnixListener>>>,
) -> Option<End> {
    let PortThread { running, account, context, stop } = thread;
    let port = &running.renew(&context.workers, || is_readable(stop.as_raw_fd()));
    if port.reports.log.allow() {
        log::info!("port {}: front-end connected ({peer})", port.name);
    }
    let talk = || {
        let connection = Connection::new(socket, Arc::clone(stop)).map_err(WireError::Io)?;
        Session::new(context, port, account, connection.with_listener(door))?.serve()
    };
    let known = |who| port.as_guest().into_iter().for_each(|guest| guest.set_front_end(who));
    known(Some(peer));
    let ended = contained(port, talk, What::Detached, |why| What::DetachedBy { why });
    known(None);
    ended
}
