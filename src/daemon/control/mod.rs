//! The control socket: the switch is looked at and changed while it runs.
//!
//! The protocol is varlink (<https://varlink.org>): a message is JSON that ends in a zero byte, and
//! `docs/io.vioswitch.Switch.varlink` is interface and documentation in one.
//!
//! * `connection` one client: bytes to messages and back, within bounds;
//! * `message` calls and answers; what they say is in [`api::wire`];
//! * `methods` what each method does; `show` ports, workers and addresses as clients see them;
//! * `parts` answers of several parts;
//! * `addresses` static addresses; `changes` ports that are added;
//! * `details` all that is known of one port;
//! * `parameters` ranges of values, and the keys of a port;
//! * `events` what happens, for clients that watch;
//! * `findings` what is wrong;
//! * `wait` an answer that comes when a port is ready;
//! * `frames` copies of frames for a client;
//! * `trace` what would become of a frame;
//! * `blocking` threads for what a file system may hold up;
//! * `server` the loop; `ready` whose turn is next.
//!
//! Rules: one thread, `control`, serves all clients and waits for none of them. What a client can
//! cost is bounded by `limits/control.rs`: messages, connections, time, unread replies. Whoever may
//! connect may look; changing is for root, the daemon's own user and a configured group. The daemon
//! is shared with the main thread, and its lock held for one step of one request; the removal of
//! a port, which a front-end can hold up, is begun and gone on with, so that neither other clients
//! nor the end of the process wait for it.

mod adding;
mod addresses;
mod changes;
mod connection;
mod details;
mod events;
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
use methods::Switch;
use server::Server;
use sys::service::Service;
use sys::unix_socket;

/// Why there is no control socket.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// It cannot be opened.
    #[error("control: {0}")]
    Socket(#[from] SocketError),
    /// A thread or descriptor cannot be had.
    #[error("control: {0}")]
    Io(#[from] io::Error),
}

/// The control socket; clients that connect wait until it is served.
pub struct ControlSocket<'a> {
    settings: &'a config::Control,
    listener: Listener,
}

impl ControlSocket<'_> {
    /// Opens the socket.
    pub fn bind(settings: &config::Control) -> Result<ControlSocket<'_>, ControlError> {
        let access = Access { mode: DEFAULT_SOCKET_MODE, group: settings.group };
        let listener = Listener::bind(&settings.path, access)?;
        // Clients may send before they are let in.
        unix_socket::refuse_descriptors(listener.as_fd());
        Ok(ControlSocket { settings, listener })
    }

    /// Starts the thread that serves clients; its end disconnects them and removes the socket.
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

/// Counts a client that is closed.
fn count_closed(clients: &ClientStats, why: Closed) {
    match why {
        Closed::Left => {}
        Closed::Malformed | Closed::Descriptors => clients.malformed.add(1),
        Closed::TooLong => clients.too_long.add(1),
        Closed::TooSlow => clients.too_slow.add(1),
        Closed::Unread => clients.unread.add(1),
    }
}
