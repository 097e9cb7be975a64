//! The control socket: the switch is looked at and changed while it runs.
//!
//! The protocol is varlink (<https://varlink.org>): a message is JSON that ends in a zero byte, and
//! `docs/io.vioswitch.Switch.varlink` is interface and documentation in one. It is readable on the
//! wire, has typed errors and answers of several parts, and needs neither an HTTP parser nor an
//! asynchronous runtime in a process that maps the memory of guests. The crates there are were
//! looked at: `varlink` reads without a bound, `zlink` is asynchronous only.
//!
//! * `connection` one client: bytes to messages and back, within bounds;
//! * `message` calls, answers and errors;
//! * `methods` what each method does; `show` the JSON of ports, workers and addresses;
//! * `addresses` static addresses; `changes` ports that are added;
//! * `details` all that is known of one port; `activity` when its rings were last used; `virtio`
//!   names of features;
//! * `parameters` what a call is given, checked;
//! * `events` what happens, told to those who watch;
//! * `wait` an answer that comes when a port is ready;
//! * `frames` copies of frames for a client;
//! * `trace` what would become of a frame;
//! * `server` the loop.
//!
//! Rules: one thread, `control`, serves all clients and waits for none of them. What a client can
//! cost is bounded by `limits/control.rs`: messages, connections, time, unread replies. Whoever may
//! connect may look; changing is for root, the daemon's own user and a configured group. The daemon
//! is shared with the main thread, and its lock held for one step of one request; the removal of
//! a port, which a front-end can hold up, is begun and gone on with, so that neither other clients
//! nor the end of the process wait for it.

mod activity;
mod addresses;
mod changes;
mod connection;
mod details;
mod events;
mod frames;
mod message;
mod methods;
mod parameters;
mod reload;
mod server;
mod show;
mod trace;
mod virtio;
mod wait;

use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use serde_json::{Value, json};
use vmm_sys_util::eventfd::EventFd;

use crate::config;
use crate::daemon::{Daemon, Reloader};
use crate::limits::{ACCEPT_RETRY_MAX, CONTROL_STOP_TIMEOUT, DEFAULT_SOCKET_MODE};
use crate::stats::ClientStats;
use crate::sys::eventfd::is_readable;
use crate::sys::poll::{self, Wake};
use crate::sys::threads::{join_until, run_again_after_panic};
use crate::vhost_user::socket::{Access, Listener, SocketError};
use connection::Closed;
use methods::Switch;
use server::Server;

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

/// The thread that serves clients.
pub struct Control {
    thread: JoinHandle<()>,
    stop: Arc<EventFd>,
}

impl Control {
    /// Opens the socket and serves who comes.
    pub fn start(
        control: &config::Control,
        daemon: &Arc<Mutex<Daemon>>,
        reloader: &Arc<Reloader>,
    ) -> Result<Control, ControlError> {
        let access = Access { mode: DEFAULT_SOCKET_MODE, group: control.group };
        let listener = Listener::bind(&control.path, access)?;
        let stop = Arc::new(EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)?);
        let switch = Switch::new(control, daemon, reloader);
        let (told, stopped) = (Arc::clone(&stop), Arc::clone(&stop));
        let thread = std::thread::Builder::new().name("control".to_owned()).spawn(move || {
            let stopped = || is_readable(stopped.as_raw_fd());
            // Clients that were connected when it panicked are gone: one of them did it.
            run_again_after_panic("thread control", stopped, || serve(&listener, &told, &switch));
        })?;
        Ok(Control { thread, stop })
    }

    /// Ends it; clients are disconnected and the socket is removed.
    pub fn stop(self) {
        // Fails only if it is full, and then it is readable.
        let _ = self.stop.write(1);
        join_until(&mut vec![self.thread], Instant::now() + CONTROL_STOP_TIMEOUT);
    }
}

/// Serves until it is to end; what fails is tried again.
fn serve(listener: &Listener, stop: &EventFd, switch: &Switch) {
    loop {
        let Err(error) = Server::new(listener, stop, switch).and_then(Server::run) else { return };
        log::warn!("control: cannot wait for clients: {error}");
        let later = Instant::now() + ACCEPT_RETRY_MAX;
        if poll::pause(stop, later).unwrap_or(Wake::TimedOut) == Wake::Stop {
            return;
        }
    }
}

/// What became of clients, for a client.
fn show_clients(clients: &ClientStats) -> Value {
    let mut told =
        json!({"connected": clients.connected.get(), "accepted": clients.accepted.get()});
    for (why, count) in clients.closed() {
        told[why] = count.into();
    }
    told
}

/// Counts a client that is closed.
fn count_closed(clients: &ClientStats, why: Closed) {
    match why {
        Closed::Left => {}
        Closed::Malformed => clients.malformed.add(1),
        Closed::TooLong => clients.too_long.add(1),
        Closed::TooSlow => clients.too_slow.add(1),
        Closed::Unread => clients.unread.add(1),
    }
}
