//! A port's thread: meets one front-end after the other, for the life of the daemon.

use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use vmm_sys_util::eventfd::EventFd;

use crate::config::Endpoint;
use crate::port::Port;
use crate::switch::PortId;
use crate::vhost_user::codec::Connection;
use crate::vhost_user::session::{Context, End, Session};
use crate::vhost_user::socket::{
    Access, Connector, Inherited, Listener, Opened, Peer, SocketError, inherit,
};

/// Where a port's front-ends come from.
#[derive(Debug)]
pub enum Entrance {
    /// They connect to us.
    Listener(Listener),
    /// We connect to them.
    Connector(Connector),
    /// One connection, inherited; when it ends the port stays empty.
    Connection(UnixStream, Peer),
}

impl Entrance {
    /// Opens a configured endpoint.
    pub fn open(endpoint: &Endpoint) -> Result<Entrance, SocketError> {
        match endpoint {
            Endpoint::Server { path, mode, group } => {
                let access = Access { mode: *mode, group: *group };
                Listener::bind(path, access).map(Entrance::Listener)
            }
            Endpoint::Client { path } => Connector::new(path).map(Entrance::Connector),
            Endpoint::Fd(number) => Ok(match inherit(*number)? {
                Inherited::Listener(listener) => Entrance::Listener(listener),
                Inherited::Connection(socket, peer) => Entrance::Connection(socket, peer),
            }),
        }
    }

    /// Serves front-ends on behalf of port `id` until `stop` is written.
    pub fn serve(mut self, context: &Context, id: PortId, stop: &Arc<EventFd>) {
        let port = &context.ports[usize::from(id)];
        loop {
            let opened = match self {
                Entrance::Listener(ref mut listener) => listener.accept(stop),
                Entrance::Connector(ref mut connector) => connector.connect(stop),
                Entrance::Connection(socket, peer) => {
                    converse(context, port, socket, peer, stop);
                    return;
                }
            };
            match opened {
                Ok(Opened::Connection(socket, peer)) => {
                    if converse(context, port, socket, peer, stop) == Some(End::Stopped) {
                        return;
                    }
                }
                Ok(Opened::Stopped) => return,
                Err(error) => {
                    log::error!("port {}: no more front-ends: {error}", port.name);
                    return;
                }
            }
        }
    }
}

/// One conversation, with whatever ends it contained here.
fn converse(
    context: &Context,
    port: &Port,
    socket: UnixStream,
    peer: Peer,
    stop: &Arc<EventFd>,
) -> Option<End> {
    let quiet = !port.log.allow();
    if !quiet {
        log::info!("port {}: front-end connected ({peer})", port.name);
    }
    let talk = || {
        let connection = Connection::new(socket, Arc::clone(stop));
        Session::new(context, port.id, connection).map(|mut session| session.serve())
    };
    match catch_unwind(AssertUnwindSafe(talk)) {
        Ok(Some(Ok(end))) => {
            if !quiet {
                log::info!("port {}: front-end disconnected", port.name);
            }
            Some(end)
        }
        Ok(Some(Err(error))) => {
            port.stats.session_errors.add_shared(1);
            if port.log.allow() {
                log::warn!("port {}: connection closed: {error}", port.name);
            }
            None
        }
        Ok(None) => None,
        Err(_) => {
            port.stats.panics.add_shared(1);
            log::error!("port {}: its session panicked and was contained", port.name);
            None
        }
    }
}
