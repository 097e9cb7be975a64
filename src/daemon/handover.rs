//! Hands descriptors and state of a process to the next process, so that a restart is no event on
//! the network. The descriptors are listening sockets, in whose queues front-ends wait during the
//! restart, and the queues of TAPs, which keep the interface, its place in a bridge and the frames
//! that arrive. [`state`] writes the state.
//!
//! The service manager holds the descriptors (sd_pid_notify_with_fds(3), FDSTORE). The manager gets
//! sockets and TAPs when they are opened, so that they survive a crash too. The manager gets the
//! state when the process stops, and holds the state only until a process has read it, so that no
//! process takes over a state that is out of date. A listening socket may also be the manager's own
//! (socket activation, sd_listen_fds(3)).
//!
//! The name of a kept socket in the store is the device and inode of the socket's file, which no
//! other file has while the socket is open. If the file at the configured path is another file, or
//! gone, front-ends could not reach the kept socket: the daemon lets go of the kept socket and
//! binds the path anew. A kept TAP is recognized by the interface that the kernel names for the
//! descriptor.
//!
//! Without a service manager this module does nothing.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;

use super::front_end::Acceptor;
use super::received::{Kept, Received, read};
use super::state;
use api::config::{Config, Endpoint, Entry, Kind, MetricsSocket};
use datapath::port::PortTable;
use datapath::vhost_user::socket::{self, BoundFile, Identity};
use switch::Entry as Address;
use switch::filter::Connections;
use sys::inherited::{self, Passed};
use sys::notify::FdStore;
use sys::tap::{self, TapQueue};
use sys::threads::lock;
use sys::{clock, fs};

/// The name of the state in the store.
const STATE: &str = "state";
/// The name of the table of connections in the store.
const CONNECTIONS: &str = "connections";
/// The name that the service manager gives the socket for metrics.
const METRICS: &str = "metrics";

/// The service manager's store, through which descriptors and state reach the next process; without
/// a service manager every call does nothing.
#[derive(Debug, Default)]
pub(crate) struct Handover {
    store: Option<FdStore>,
    /// The service manager's listening socket for clients that ask for metrics.
    metrics: Mutex<Option<OwnedFd>>,
}

fn listener_name((device, inode): Identity) -> String {
    format!("listener-{device:x}-{inode:x}")
}

fn identity_in(name: &str) -> Option<Identity> {
    let (device, inode) = name.strip_prefix("listener-")?.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    number(device).zip(number(inode))
}

fn tap_name(ifname: &str) -> String {
    format!("tap-{ifname}")
}

impl Handover {
    /// Finds the service manager and takes the descriptors that it passed. To be called early,
    /// while the numbers of descriptors still mean what the service manager meant.
    pub(crate) fn begin(config: &Config) -> (Handover, Received) {
        let store = FdStore::from_env().unwrap_or_else(|error| {
            log::warn!("cannot reach the service manager: {error}");
            None
        });
        let mut handover = Handover { store, metrics: Mutex::default() };
        let configured = config.ports.iter().filter_map(|port| port.settings.fd);
        let passed = inherited::passed(&configured.collect::<Vec<_>>());
        let mut received = handover.sort(config, passed);
        handover.metrics = Mutex::new(received.metrics.take());
        (handover, received)
    }

    /// Sorts the descriptors by their use; closes and discards descriptors without a use.
    fn sort(&self, config: &Config, passed: Vec<Passed>) -> Received {
        let mut received = Received::default();
        let mut left_over = Vec::new();
        let places = places(config);
        for Passed { name, fd } in passed {
            if name == STATE && fs::is_memory(&fd).unwrap_or(false) {
                (received.state, received.had_state) = (read(fd), true);
            } else if name == CONNECTIONS && fs::is_memory(&fd).unwrap_or(false) {
                (received.connections, received.had_connections) = (Some(fd), true);
            } else if name == METRICS && config.metrics == Some(MetricsSocket::Inherited) {
                received.metrics = Some(fd);
            } else if let Some(port) = port_of(&places, &name, &fd) {
                let made = identity_in(&name);
                received.listeners.entry(port).or_insert(Kept { fd, made });
            } else if let Some(ifname) = tap_of(config, &fd) {
                received.taps.entry(ifname).or_default().push(fd);
            } else {
                log::warn!("closes {name:?} of the service manager: no port or tap uses it");
                left_over.push(name);
            }
        }
        for tap in config.of(Kind::Tap) {
            let Some(ifname) = &tap.ifname else { continue };
            let kept = received.taps.get(ifname);
            if kept.is_some_and(|queues| queues.len() != usize::from(tap.queues)) {
                received.taps.remove(ifname);
                left_over.push(tap_name(ifname));
            }
        }
        self.discard(&left_over);
        received.discarded = !left_over.is_empty();
        received
    }

    /// Has the service manager close the descriptors of these names, and waits until the manager
    /// has done so: a socket that still listens looks like a live process's socket, and a TAP like
    /// a TAP in use.
    fn discard(&self, names: &[String]) {
        let Some(store) = self.store.as_ref().filter(|_| !names.is_empty()) else { return };
        let discarded = names.iter().try_for_each(|name| store.discard(name));
        if let Err(error) = discarded.and_then(|()| store.barrier()) {
            log::warn!("the service manager does not release a descriptor: {error}");
        }
    }

    /// Takes the socket for clients that ask for metrics.
    pub(crate) fn take_metrics_socket(&self) -> Option<OwnedFd> {
        lock(&self.metrics).take()
    }

    /// Has the service manager keep new listening sockets, whose files then stay when this process
    /// ends.
    pub(crate) fn keep_sockets<'a>(&self, acceptors: impl Iterator<Item = &'a mut Acceptor>) {
        let Some(store) = &self.store else { return };
        for acceptor in acceptors {
            let Acceptor::Listener(listener) = acceptor else { continue };
            let Some(made) = listener.made().filter(|_| listener.removes_file()) else { continue };
            if let Err(error) = store.keep(&listener_name(made.identity()), &[listener.as_fd()]) {
                log::warn!("the service manager does not keep the sockets: {error}");
                return;
            }
            listener.leave_file();
        }
    }

    /// Removes the socket file of a port that is gone for good, and has the service manager discard
    /// the socket.
    pub(crate) fn discard_socket(&self, file: &BoundFile) {
        file.remove();
        self.discard(&[listener_name(file.identity())]);
    }

    /// Has the service manager keep the queues of a TAP.
    pub(crate) fn keep_tap(&self, ifname: &str, queues: &[TapQueue]) {
        let Some(store) = &self.store else { return };
        let fds: Vec<_> = queues.iter().map(AsFd::as_fd).collect();
        if let Err(error) = store.keep(&tap_name(ifname), &fds) {
            log::warn!("the service manager does not keep interface {ifname}: {error}");
        }
    }

    /// Has the service manager discard the queues of a TAP, which are out of date.
    pub(crate) fn discard_tap(&self, ifname: &str) {
        self.discard(&[tap_name(ifname)]);
    }

    /// Discards the state of the process before, which was read and is soon out of date. The caller
    /// has started: a start that fails leaves the state to the next process.
    pub(crate) fn discard_state(&self, received: &Received) {
        if received.had_state {
            self.discard(&[STATE.to_owned()]);
        }
        if received.had_connections {
            self.discard(&[CONNECTIONS.to_owned()]);
        }
    }

    /// Has the service manager keep the state for the next process. To be called when nothing
    /// counts any more.
    pub(crate) fn keep_state(&self, ports: &PortTable, addresses: &[Address]) {
        let Some(store) = &self.store else { return };
        let text = state::write(ports, addresses, clock::coarse_seconds());
        let kept = memory_file(STATE, text.as_bytes()).and_then(|file| {
            store.keep(STATE, &[file.as_fd()])?;
            store.barrier()
        });
        if let Err(error) = kept {
            log::warn!("addresses and counters are lost: {error}");
        }
    }
}

impl Handover {
    /// Has the connections of ports with a filter kept for the next process. To be called when no
    /// frame passes any more.
    pub(crate) fn keep_connections(&self, ports: &PortTable, connections: &Connections) {
        let Some(store) = self.store.as_ref().filter(|_| !connections.is_empty()) else { return };
        let name = |id| ports.get(id).map(|port| port.name.clone());
        let bytes = connections.dump(super::filters::now(), name);
        let kept = memory_file(CONNECTIONS, &bytes).and_then(|file| {
            store.keep(CONNECTIONS, &[file.as_fd()])?;
            store.barrier()
        });
        if let Err(error) = kept {
            log::warn!("connections are lost: {error}");
        }
    }
}

/// Returns the ports that listen, by the identity of the file at their path. Each path is looked up
/// once: to compare a thousand sockets with as many paths would take a million look-ups.
fn places(config: &Config) -> HashMap<Identity, usize> {
    let place = |(port, entry): (usize, &Entry)| match entry.settings.endpoint()? {
        Endpoint::Server { path, .. } => Some((socket::identity_of(&path)?, port)),
        _ => None,
    };
    config.ports.iter().enumerate().filter_map(place).collect()
}

/// Returns the port at whose path the listening socket `fd` appears. The name of a kept socket
/// contains the identity of its file. An activated socket is recognized by the file at the path to
/// which the socket was bound, through whatever links.
fn port_of(places: &HashMap<Identity, usize>, name: &str, fd: &OwnedFd) -> Option<usize> {
    if !socket::listens(fd) {
        return None;
    }
    let identity = identity_in(name)
        .or_else(|| socket::bound_path(fd).and_then(|path| socket::identity_of(&path)))?;
    places.get(&identity).copied()
}

/// Returns the configured interface that `fd` is a queue of.
fn tap_of(config: &Config, fd: &OwnedFd) -> Option<String> {
    let ifname = tap::name_behind(fd)?;
    config.of(Kind::Tap).any(|tap| tap.ifname.as_ref() == Some(&ifname)).then_some(ifname)
}

fn memory_file(name: &str, bytes: &[u8]) -> io::Result<File> {
    let mut file = File::from(fs::memfd(name, 0)?);
    file.write_all(bytes)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_known_by_its_name() {
        for identity in [(0, 0), (0x1a, 4711), (u64::MAX, u64::MAX)] {
            assert_eq!(identity_in(&listener_name(identity)), Some(identity));
        }
        for other in ["", "listener-", "listener-1", "listener-x-1", "vioswitchd.socket", "tap-1-2"]
        {
            assert_eq!(identity_in(other), None, "{other}");
        }
    }
}
