//! Descriptors and state that the process before left, by their new owner: `handover` sorts them,
//! and each port takes its own.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use super::state::{self, Restored};
use base::limits::{KEEP_TIMEOUT, MAX_HANDOVER_BYTES};
use base::words::counted;
use datapath::port::PortTable;
use datapath::vhost_user::socket::{Access, Identity, Listener, SocketError};
use switch::Fdb;
use sys::clock;

/// Descriptors and state from the process before, by their new owner.
#[derive(Debug, Default)]
pub struct Received {
    /// Listening sockets by the number of their port.
    pub(super) listeners: HashMap<usize, Kept>,
    /// Queues of TAPs by the interface's name.
    pub(super) taps: HashMap<String, Vec<OwnedFd>>,
    /// A listening socket for clients that ask for metrics.
    pub(super) metrics: Option<OwnedFd>,
    /// The state that [`super::state`] reads, and whether there was one.
    pub(super) state: Option<String>,
    pub(super) had_state: bool,
    /// The table of connections, and whether there was one.
    pub(super) connections: Option<OwnedFd>,
    pub(super) had_connections: bool,
    /// True if a descriptor was of no use and was discarded.
    pub(super) discarded: bool,
}

/// A listening socket.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) fd: OwnedFd,
    /// Identity of the socket's file, if a vioswitchd made the file, and not the service manager.
    pub(super) made: Option<Identity>,
}

impl Received {
    /// Takes the socket of port number `port` that is to appear at `path`.
    pub(crate) fn listener(
        &mut self,
        port: usize,
        path: &Path,
        access: Access,
    ) -> Option<Result<Listener, SocketError>> {
        let Kept { fd, made } = self.listeners.remove(&port)?;
        Some(Listener::adopt(fd, path, made.map(|identity| (identity, access))))
    }

    /// Takes the queues of a TAP.
    pub(crate) fn tap(&mut self, ifname: &str) -> Option<Vec<OwnedFd>> {
        self.taps.remove(ifname)
    }

    /// Repeats `open` until `end` while the object is in use. If a descriptor was discarded, `end`
    /// is at least [`KEEP_TIMEOUT`] away: the service manager reports that it released the
    /// descriptor, but leaves the closing to a thread (`asynchronous_close()`).
    pub(crate) fn open<T, E>(
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

    /// Takes over the state of the process before, if the process left a state.
    pub(crate) fn restore(&mut self, ports: &PortTable, fdb: &Fdb) {
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

impl Received {
    /// Takes the connections that the process before has left, as bytes.
    pub(crate) fn connections(&mut self) -> Option<Vec<u8>> {
        let mut file = File::from(self.connections.take()?);
        let mut bytes = Vec::new();
        let read = io::Seek::rewind(&mut file)
            .and_then(|()| file.take(MAX_HANDOVER_BYTES).read_to_end(&mut bytes));
        match read {
            Ok(_) => Some(bytes),
            Err(error) => {
                log::warn!("the connections of the process before cannot be read: {error}");
                None
            }
        }
    }
}

/// Returns the text of a file in memory; logs an error.
pub(super) fn read(file: OwnedFd) -> Option<String> {
    let mut text = String::new();
    let mut file = File::from(file);
    // The descriptor shares its position with the writer's.
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
