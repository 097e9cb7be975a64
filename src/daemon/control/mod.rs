//! The control socket: clients look at the switch and change it while it runs.
//!
//! The protocol is varlink (<https://varlink.org>): a message is JSON that ends in a zero byte, and
//! `docs/io.vioswitch.Switch.varlink` is interface and documentation in one.
//!
//! * `connection` one client: reads calls and writes answers, within bounds;
//! * `message` calls and answers, whose content is in [`api::wire`];
//! * `switch` the switch, as clients see it; `methods` the work of each method;
//! * `show` ports, workers and addresses as clients see them;
//! * `parts` answers of several parts;
//! * `addresses` static addresses; `groups` multicast groups; `mirrors` mirrors; `filters` filters
//!   and connections;
//! * `changes` ports that are added, changed and deleted; `adding` the wait for a new port's
//!   socket;
//! * `details` all details of one port;
//! * `parameters` ranges of values, and the keys of a port;
//! * `events` events, for clients that watch;
//! * `findings` findings and metrics;
//! * `reload` the configuration, and reloads;
//! * `wait` an answer that comes when a port is ready;
//! * `frames` copies of frames for a client;
//! * `trace` the way of a frame through the switch;
//! * `server` the loop; `ready` the order of turns.
//!
//! Rules: one thread, `control`, serves all clients and waits for no client. `limits/control.rs`
//! bounds the cost of a client: messages, connections, time, unread replies. Everyone who may
//! connect may look; root, the daemon's own user and a configured group may change the switch. The
//! main thread and the thread `control` share the daemon, and hold its lock for one step of one
//! request. A front-end can hold up the removal of a port. So the thread begins a removal and goes
//! on with it later: neither other clients nor the end of the process wait for the removal.

mod adding;
mod addresses;
mod changes;
mod connection;
mod details;
mod events;
mod filters;
mod findings;
mod frames;
mod groups;
mod message;
mod methods;
mod mirrors;
mod parameters;
mod parts;
mod ready;
mod reload;
mod server;
mod show;
mod switch;
mod trace;
mod wait;

use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};

use vmm_sys_util::eventfd::EventFd;

use crate::{Daemon, Reloader};
use api::config;
use base::limits::{CONTROL_STOP_TIMEOUT, DEFAULT_SOCKET_MODE};
use base::stats::ClientStats;
use connection::Closed;
use datapath::vhost_user::socket::{Access, Listener, SocketError};
use server::Server;
use switch::Switch;
use sys::service::Service;
use sys::unix_socket;

/// The reason why there is no control socket.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The socket cannot be opened.
    #[error("control: {0}")]
    Socket(#[from] SocketError),
    /// A thread or descriptor cannot be had.
    #[error("control: {0}")]
    Io(#[from] io::Error),
}

/// The control socket; clients that connect wait until the socket is served.
pub struct ControlSocket<'a> {
    settings: &'a config::Control,
    listener: Listener,
}

impl ControlSocket<'_> {
    /// Opens the socket.
    pub fn bind(settings: &config::Control) -> Result<ControlSocket<'_>, ControlError> {
        let access = Access { mode: DEFAULT_SOCKET_MODE, group: settings.group };
        let listener = Listener::bind(&settings.path, access)?;
        // A client may send before its connection is accepted.
        unix_socket::refuse_descriptors(listener.as_fd());
        Ok(ControlSocket { settings, listener })
    }

    /// Starts the thread that serves clients; the end of the thread disconnects clients and removes
    /// the socket.
    pub fn serve(
        self,
        daemon: &Arc<Mutex<Daemon>>,
        reloader: &Arc<Reloader>,
    ) -> Result<Service, ControlError> {
        let ControlSocket { settings, listener } = self;
        let switch = Switch::new(settings, daemon, reloader);
        let serve = move |stop: &EventFd| Server::new(&listener, stop, &switch)?.run();
        Ok(Service::start("control", CONTROL_STOP_TIMEOUT, serve)?)
    }
}

/// Counts a client whose connection was closed.
fn count_closed(clients: &ClientStats, why: Closed) {
    match why {
        Closed::Left => {}
        Closed::Malformed | Closed::Descriptors => clients.malformed.add(1),
        Closed::TooLong => clients.too_long.add(1),
        Closed::TooSlow => clients.too_slow.add(1),
        Closed::Unread => clients.unread.add(1),
    }
}
