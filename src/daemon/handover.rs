//! Hands descriptors and state of a process to the next one, so that a restart is no event on the
//! network: listening sockets, in whose queue front-ends wait meanwhile; the queues of TAPs, which
//! keep the interface, its place in a bridge and the frames that arrive for us; and [`state`].
//!
//! The service manager holds them (sd_pid_notify_with_fds(3), FDSTORE): sockets and TAPs from the
//! moment they exist, so that they survive a crash too; the state when we stop, and only until it
//! is read, so that no process takes over what is out of date. Listening sockets may also be the
//! manager's own (socket activation, sd_listen_fds(3)).
//!
//! A socket that was kept is known by its file: its name in the store is the device and inode of
//! that, which nothing else has while the socket is open. If the file at the configured path is
//! another one, or gone, front-ends could not reach the kept socket: it is let go, and the path is
//! bound anew. A TAP is known by asking the kernel for the interface behind the descriptor.
//!
//! Without a service manager all of this does nothing.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use super::front_end::Acceptor;
use super::state::{self, Restored};
use api::config::{Config, Endpoint, Entry, Kind, MetricsSocket};
use base::limits::{KEEP_TIMEOUT, MAX_HANDOVER_BYTES};
use base::words::counted;
use datapath::port::PortTable;
use datapath::vhost_user::socket::{self, Access, Identity, Listener, Place, SocketError};
use switch::{Entry as Address, Fdb};
use sys::inherited::{self, Passed};
use sys::notify::FdStore;
use sys::tap::{self, TapQueue};
use sys::{clock, fs};

/// The name of the state in the store.
const STATE: &str = "state";
/// The name that the service manager gives the socket for metrics.
const METRICS: &str = "metrics";

/// The way to the next process.
#[derive(Debug, Default)]
pub struct Handover {
    store: Option<FdStore>,
}

/// Descriptors and state from the process before, by their new owner.
#[derive(Debug, Default)]
pub struct Received {
    /// Listening sockets by the number of their port.
    listeners: HashMap<usize, Kept>,
    /// Queues of TAPs by the interface's name.
    taps: HashMap<String, Vec<OwnedFd>>,
    /// A listening socket for those who ask for metrics.
    metrics: Option<OwnedFd>,
    state: Option<String>,
    had_state: bool,
    /// Something was of no use.
    discarded: bool,
}

/// A listening socket.
#[derive(Debug)]
struct Kept {
    fd: OwnedFd,
    /// Its file, where a process of ours made it, and not the service manager.
    made: Option<Identity>,
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
    /// Finds the service manager and what it has for us. To be called early, while the numbers of
    /// descriptors still mean what they meant to it.
    pub fn begin(config: &Config) -> (Handover, Received) {
        let store = FdStore::from_env().unwrap_or_else(|error| {
            log::warn!("cannot reach the service manager: {error}");
            None
        });
        let handover = Handover { store };
        let configured = config.ports.iter().filter_map(|port| port.settings.fd);
        let passed = inherited::passed(&configured.collect::<Vec<_>>());
        let received = handover.sort(config, passed);
        (handover, received)
    }

    /// Finds out what each descriptor is; those without a use here are let go.
    fn sort(&self, config: &Config, passed: Vec<Passed>) -> Received {
        let mut received = Received::default();
        let mut left_over = Vec::new();
        let places = places(config);
        for Passed { name, fd } in passed {
            if name == STATE && fs::is_memory(&fd).unwrap_or(false) {
                (received.state, received.had_state) = (read(fd), true);
            } else if name == METRICS && config.metrics == Some(MetricsSocket::Inherited) {
                received.metrics = Some(fd);
            } else if let Some(port) = port_of(&places, &name, &fd) {
                let made = identity_in(&name);
                received.listeners.entry(port).or_insert(Kept { fd, made });
            } else if let Some(ifname) = tap_of(config, &fd) {
                received.taps.entry(ifname).or_default().push(fd);
            } else {
                log::warn!("no port or tap is for what the service manager keeps as {name:?}");
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

    /// Has the manager close what it keeps under these names, and waits until that is done: a
    /// socket that still listens looks like a live process's, and a TAP like one in use.
    fn discard(&self, names: &[String]) {
        let Some(store) = self.store.as_ref().filter(|_| !names.is_empty()) else { return };
        let discarded = names.iter().try_for_each(|name| store.discard(name));
        if let Err(error) = discarded.and_then(|()| store.barrier()) {
            log::warn!("the service manager does not release a descriptor: {error}");
        }
    }

    /// Has new listening sockets kept. Their files then stay when this process ends.
    pub fn keep_sockets<'a>(&self, acceptors: impl Iterator<Item = &'a mut Acceptor>) {
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

    /// A port is gone for good, and with it the socket whose file this is: nobody keeps it.
    pub fn discard_socket(&self, file: &Place) {
        file.remove();
        self.discard(&[listener_name(file.identity())]);
    }

    /// Has the queues of a TAP kept.
    pub fn keep_tap(&self, ifname: &str, queues: &[TapQueue]) {
        let Some(store) = &self.store else { return };
        let fds: Vec<_> = queues.iter().map(AsFd::as_fd).collect();
        if let Err(error) = store.keep(&tap_name(ifname), &fds) {
            log::warn!("the service manager does not keep interface {ifname}: {error}");
        }
    }

    /// The queues of a TAP are no longer what they were.
    pub fn discard_tap(&self, ifname: &str) {
        self.discard(&[tap_name(ifname)]);
    }

    /// Discards the state of the process before, which is read and soon out of date. The caller has
    /// started: a start that fails leaves the state to the next process.
    pub fn discard_state(&self, received: &Received) {
        if received.had_state {
            self.discard(&[STATE.to_owned()]);
        }
    }

    /// Has the state kept for the next process. To be called when nothing counts any more.
    pub fn keep_state(&self, ports: &PortTable, addresses: &[Address]) {
        let Some(store) = &self.store else { return };
        let text = state::write(ports, addresses, clock::coarse_seconds());
        let kept = memory_file(&text).and_then(|file| {
            store.keep(STATE, &[file.as_fd()])?;
            store.barrier()
        });
        if let Err(error) = kept {
            log::warn!("addresses and counters are lost: {error}");
        }
    }
}

impl Received {
    /// The socket for those who ask for metrics.
    pub fn metrics(&mut self) -> Option<OwnedFd> {
        self.metrics.take()
    }

    /// The socket of port number `port` that is to appear at `path`.
    pub fn listener(
        &mut self,
        port: usize,
        path: &Path,
        access: Access,
    ) -> Option<Result<Listener, SocketError>> {
        let Kept { fd, made } = self.listeners.remove(&port)?;
        Some(Listener::adopt(fd, path, made.map(|identity| (identity, access))))
    }

    /// The queues of a TAP.
    pub fn tap(&mut self, ifname: &str) -> Option<Vec<OwnedFd>> {
        self.taps.remove(ifname)
    }

    /// Opens what may be in use until `end`, or seem to be for a moment: the manager is done with
    /// what is no longer wanted when it says so, but leaves the closing to a thread
    /// (`asynchronous_close()`).
    pub fn open<T, E>(
        &mut self,
        end: Instant,
        mut open: impl FnMut(&mut Received) -> Result<T, E>,
        in_use: impl Fn(&E) -> bool,
    ) -> Result<T, E> {
        let end = if self.discarded { end.max(Instant::now() + KEEP_TIMEOUT) } else { end };
        loop {
            match open(self) {
                Err(error) if in_use(&error) && Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                result => return result,
            }
        }
    }

    /// Takes over the state, if there is one.
    pub fn restore(&mut self, ports: &PortTable, fdb: &Fdb) {
        let Some(text) = self.state.take() else { return };
        match state::restore(&text, ports, fdb, clock::coarse_seconds()) {
            Some(Restored { addresses, counters }) => log::info!(
                "taken over from the process before: {}, {}",
                counted(addresses, "address"),
                counted(counters, "counter")
            ),
            None => log::info!("the process before left a state of another version"),
        }
    }
}

/// The ports that listen, by what is at their paths now. Looked up once for all: a thousand sockets
/// beside as many paths are a million otherwise.
fn places(config: &Config) -> HashMap<Identity, usize> {
    let place = |(port, entry): (usize, &Entry)| match entry.settings.endpoint()? {
        Endpoint::Server { path, .. } => Some((socket::identity_of(&path)?, port)),
        _ => None,
    };
    config.ports.iter().enumerate().filter_map(place).collect()
}

/// The port at whose path the listening socket `fd` appears. An activated socket is known by the
/// path that it was bound to: through whatever links, that must be the same file.
fn port_of(places: &HashMap<Identity, usize>, name: &str, fd: &OwnedFd) -> Option<usize> {
    if !socket::listens(fd) {
        return None;
    }
    let identity = identity_in(name)
        .or_else(|| socket::bound_path(fd).and_then(|path| socket::identity_of(&path)))?;
    places.get(&identity).copied()
}

/// The configured interface that `fd` is a queue of.
fn tap_of(config: &Config, fd: &OwnedFd) -> Option<String> {
    let ifname = tap::name_behind(fd)?;
    config.of(Kind::Tap).any(|tap| tap.ifname.as_ref() == Some(&ifname)).then_some(ifname)
}

fn read(file: OwnedFd) -> Option<String> {
    let mut text = String::new();
    let mut file = File::from(file);
    // The writer's position is ours too.
    let read = io::Seek::rewind(&mut file)
        .and_then(|()| file.take(MAX_HANDOVER_BYTES).read_to_string(&mut text));
    match read {
        Ok(_) => Some(text),
        Err(error) => {
            log::warn!("the state of the process before cannot be read: {error}");
            None
        }
    }
}

fn memory_file(text: &str) -> io::Result<File> {
    let mut file = File::from(fs::memfd(STATE, 0)?);
    file.write_all(text.as_bytes())?;
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
