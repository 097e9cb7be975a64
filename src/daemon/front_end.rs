//! A port's thread: meets one front-end after the other, for the life of the daemon.

use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use vmm_sys_util::eventfd::EventFd;

use super::handover::Received;
use super::running_port::RunningPort;
use api::config::Endpoint;
use base::limits::{DROPPED_PAUSE, FIRST_WORD, HELD_PAUSE};
use datapath::events::{What, reason};
use datapath::guard::disposal::{self, Guarded};
use datapath::port::{FrontEnd, GuestPort, Port};
use datapath::vhost_user::codec::{Connection, WireError};
use datapath::vhost_user::session::{Account, Context, End, Session};
use datapath::vhost_user::socket::{
    Access, Connector, Inherited, Listener, Opened, Place, SocketError, inherit,
};
use sys::eventfd::is_readable;
use sys::poll::{self, Interest, Wake};
use sys::threads::run_again_after_panic;
use sys::unix_socket;

/// Thread of a port, which serves front-ends.
pub struct PortThread {
    /// The port.
    pub running: Arc<RunningPort>,
    /// Account that the guests' memory is charged to.
    pub account: Arc<Account>,
    /// Context of every session.
    pub context: Context,
    /// Written when it is to end.
    pub stop: Arc<EventFd>,
}

/// Where a port's front-ends come from.
#[derive(Debug)]
pub enum Acceptor {
    /// They connect to us.
    Listener(Listener),
    /// We connect to them.
    Connector(Connector),
    /// One connection, inherited; when it ends the port stays empty.
    Connection(Guarded<UnixStream>, FrontEnd),
}

/// The file of a listening socket that this process made.
#[derive(Debug)]
pub struct SocketFile {
    /// Where the file is.
    pub place: Place,
    /// The file stays when the socket is closed; otherwise the listener removes it.
    pub stays: bool,
}

impl Acceptor {
    /// Opens the configured endpoint of port number `port`, which the process before may have left.
    pub fn open(
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
            Endpoint::Fd(number) => Ok(match inherit(*number)? {
                Inherited::Listener(listener) => Acceptor::Listener(listener),
                Inherited::Connection(socket, peer) => Acceptor::Connection(socket, peer),
            }),
        }
    }

    /// Waits for the next one who connects, or for whom we connect to.
    pub fn meet(&mut self, stop: &EventFd) -> Opened {
        match self {
            Acceptor::Listener(listener) => listener.accept(stop),
            Acceptor::Connector(connector) => connector.connect(stop),
            // It was met, and there is no other.
            Acceptor::Connection(..) => Opened::Stopped,
        }
    }

    /// The socket's file, if this process made it.
    pub fn file(&self) -> Option<SocketFile> {
        let Acceptor::Listener(listener) = self else { return None };
        Some(SocketFile { place: listener.made()?.clone(), stays: !listener.removes_file() })
    }

    /// Serves front-ends on behalf of a port until it is stopped. A panic outside a session
    /// costs a pause: a port without its thread would be unresponsive.
    pub fn serve(self, thread: &PortThread) {
        let PortThread { running, stop, .. } = thread;
        let name = running.port().name.clone();
        let stopped = || is_readable(stop.as_raw_fd());
        let mut acceptor = Some(self);
        run_again_after_panic(&format!("port {name}: its thread"), stopped, || {
            // The one inherited connection is gone once it was begun.
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

/// Waits where the last front-end was dropped for what it cost others: it would come back at once
/// and do it again.
fn rest(port: &Port, stop: &EventFd) -> Wake {
    if !port.as_guest().is_some_and(GuestPort::was_harmful) {
        return Wake::TimedOut;
    }
    port.tell(What::Closed { seconds: DROPPED_PAUSE.as_secs() });
    // Without a wait there is no pause, which is better than no port.
    poll::pause(stop, Instant::now() + DROPPED_PAUSE).unwrap_or(Wake::TimedOut)
}

/// Waits until this thread has no more files to be closed than it may.
pub fn wait_for_closing(stop: &EventFd) -> Wake {
    while disposal::is_held_up() {
        // Without a wait it is the next connection that ends.
        match poll::pause(stop, Instant::now() + HELD_PAUSE) {
            Ok(Wake::TimedOut) => {}
            woken => return woken.unwrap_or(Wake::TimedOut),
        }
    }
    Wake::TimedOut
}

/// True if the peer has left without a word: another daemon that asks whether the socket
/// is in use, or a tool. It was no front-end. One that stays and is silent is taken for one.
fn left_at_once(socket: &UnixStream, stop: &EventFd) -> bool {
    let until = Some(Instant::now() + FIRST_WORD);
    let woken = poll::wait(socket.as_fd(), Interest::Read, stop, until);
    matches!(woken, Ok(Wake::Ready)) && unix_socket::unread(socket.as_fd()).is_ok_and(|n| n == 0)
}

/// One session, with whatever ends it contained here.
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
    let ended = catch_unwind(AssertUnwindSafe(talk));
    known(None);
    let (end, detached) = match ended {
        Ok(Ok(end)) => (Some(end), What::Detached),
        Ok(Err(error)) => {
            port.stats.session_errors.add_shared(1);
            (None, What::DetachedBy { why: reason(error) })
        }
        Err(_) => {
            port.stats.panics.add_shared(1);
            (None, What::DetachedByPanic { why: "its session panicked and was contained" })
        }
    };
    port.tell(detached);
    end
}
