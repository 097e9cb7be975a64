//! The server of one port: the port's thread, with the socket or interface that was opened for the
//! port, and the means to stop the thread. [`super::serve`] starts the servers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use vmm_sys_util::eventfd::EventFd;

use super::front_end::{Acceptor, SocketFile};
use super::handover::Handover;
use super::received::Received;
use super::running_port::RunningPort;
use super::uplink::{self, UplinkError};
use super::{PortError, build, vduse};
use api::config::{self, Entry};
use base::frame::MacAddr;
use base::limits::SESSION_STACK_BYTES;
use datapath::port::{Endpoint, GuestPort, Port};
use datapath::vhost_user::socket::{BoundFile, SocketError};
use datapath::worker::Workers;
use switch::Fdb;
use sys::vduse::VduseError;

/// Socket or interface of a port.
pub enum Opened {
    /// The socket at which front-ends, or the peers of a stream, are met.
    Socket(Acceptor),
    /// The interface is attached; true if the switch created the interface.
    Interface(bool),
}

impl Opened {
    /// Opens the socket of a port, or its interface if there is no `endpoint`: takes what an
    /// earlier process left, or opens anew. Tries until `end` while an interface is in use: the
    /// kernel closes the rings of a process that was killed, and with the rings their TAPs, after
    /// the process has ended.
    pub(crate) fn open(
        port: &Port,
        endpoint: Option<&config::Endpoint>,
        received: &mut Received,
        end: Instant,
        (workers, handover): (&Workers, &Handover),
    ) -> Result<Opened, PortError> {
        let Some(endpoint) = endpoint else {
            let (_, ifname) = port.as_uplink().ok_or(UplinkError::NoUplink)?;
            let mut kept = received.tap(ifname);
            let attach = |_: &mut Received| uplink::attach(port, workers, kept.take(), handover);
            let attached = received.open(end, attach, UplinkError::is_busy);
            let attached = attached.inspect_err(|_| uplink::detach(port, workers, handover));
            return Ok(Opened::Interface(attached?));
        };
        let open = |received: &mut Received| Acceptor::open(port.id.into(), endpoint, received);
        // The kernel closes the device of a process that was killed after the process has ended.
        let (end, in_use): (_, fn(&SocketError) -> bool) = match endpoint {
            config::Endpoint::Vduse(_) => {
                (end, |error| matches!(error, SocketError::Vduse(VduseError::InUse(_))))
            }
            _ => (Instant::now(), |error| matches!(error, SocketError::InUse(..))),
        };
        Ok(Opened::Socket(received.open(end, open, in_use)?))
    }

    /// Drops what was opened for a port that is gone or about to go. The device of a port that is
    /// deleted goes too.
    pub(crate) fn discard(self, port: &Port) {
        if let Opened::Socket(Acceptor::Vduse(device)) = self
            && port.life.deleted.load(Ordering::Acquire)
        {
            device.discard();
        }
    }

    /// Returns the socket.
    pub(crate) fn acceptor(&mut self) -> Option<&mut Acceptor> {
        match self {
            Opened::Socket(acceptor) => Some(acceptor),
            Opened::Interface(_) => None,
        }
    }

    /// Returns the socket's file, if this process made the file.
    pub(super) fn file(&self) -> Option<SocketFile> {
        match self {
            Opened::Socket(acceptor) => acceptor.file(),
            Opened::Interface(_) => None,
        }
    }

    /// Returns the socket's file, if this process made the file and it stays when the socket is
    /// closed.
    pub(crate) fn file_that_stays(&self) -> Option<BoundFile> {
        self.file().filter(|file| file.stays).map(|file| file.bound)
    }
}

/// The means by which a port's thread is stopped.
pub(super) enum Stop {
    /// Written once to stop the thread of a guest's port or a stream.
    Session(Arc<EventFd>),
    /// Set to stop the thread of an uplink.
    Reattach(Arc<AtomicBool>),
}

/// A port's thread, and the means by which the thread is stopped.
pub(super) type Thread = (JoinHandle<()>, Stop);

/// Server of one port.
pub(crate) struct Serving {
    pub(super) running: Arc<RunningPort>,
    /// The entry that the port was made or last changed with.
    pub(super) entry: Entry,
    /// Static addresses of the port.
    pub(super) addresses: BTreeSet<MacAddr>,
    /// None if the port's socket or interface cannot be had.
    pub(super) thread: Option<Thread>,
    /// The socket's file.
    pub(super) file: Option<SocketFile>,
}

impl Serving {
    /// Returns the port.
    pub(crate) fn running(&self) -> &Arc<RunningPort> {
        &self.running
    }

    /// Returns the entry that the port was made or last changed with.
    pub(crate) fn entry(&self) -> &Entry {
        &self.entry
    }

    /// Changes settings that need no other socket or interface; an error changes nothing.
    pub(super) fn change(&mut self, entry: &Entry, fdb: &Fdb) -> Result<(), PortError> {
        let port = self.running.port();
        let before = port.policy.get();
        self.running.change(&entry.settings)?;
        self.entry = entry.clone();
        let now = port.policy.get();
        fdb.set_port_cap(port.id, build::cap(&entry.settings));
        if before.learns && !now.learns {
            // An address that a worker still learns on the port for a moment ages.
            fdb.flush_port(port.id);
        }
        if (&before.bridge, &before.vlans) != (&now.bridge, &now.vlans) {
            // An address that a worker still learns on the port for a moment leads nowhere, and
            // ages.
            fdb.flush(|id, segment| id == port.id && !now.is_member(segment));
        }
        Ok(())
    }

    /// Gives the port a static address.
    pub(super) fn assign(&mut self, mac: MacAddr, fdb: &Fdb) -> Result<(), PortError> {
        self.running.port().enter_address(mac, fdb)?;
        self.addresses.insert(mac);
        Ok(())
    }

    /// Takes a static address from the port.
    pub(super) fn release(&mut self, mac: MacAddr, fdb: &Fdb) {
        self.running.port().take_address(mac, fdb);
        self.addresses.remove(&mac);
    }

    /// Returns the socket's file, if the file stays when the thread ends.
    pub(crate) fn file(&self) -> Option<&BoundFile> {
        self.file.as_ref().filter(|file| file.stays).map(|file| &file.bound)
    }

    /// Tells the port's thread to end.
    pub(crate) fn stop(&self) {
        self.running.leave();
        match &self.thread {
            Some((_, Stop::Session(stop))) => {
                // A write fails only if the counter is full, and a full eventfd is readable.
                let _ = stop.write(1);
                if let Some(stream) = self.running.port().as_stream() {
                    stream.wake();
                }
            }
            Some((thread, Stop::Reattach(stopping))) => {
                stopping.store(true, Ordering::Release);
                if let Endpoint::Device(device) = &self.running.port().endpoint {
                    device.wake();
                }
                thread.thread().unpark();
            }
            None => {}
        }
    }

    /// Starts a thread that removes the device of a deleted port if nothing serves the port: an
    /// earlier process may have left the device.
    pub(super) fn remove_left(&mut self) {
        let port = self.running.port();
        if self.thread.is_some() || !port.as_guest().is_some_and(GuestPort::is_vduse) {
            return;
        }
        let name = port.name.clone();
        match start_session(format!("port-{}", port.id), move |_| vduse::remove_left(&name)) {
            Ok(thread) => self.thread = Some(thread),
            Err(error) => log::error!("port {}: its device is not removed: {error}", port.name),
        }
    }

    /// Removes the socket's file in place of the thread, which did not end in time. The socket
    /// still listens, so no other daemon has replaced the file.
    pub(super) fn remove_file(&self) {
        self.file.iter().filter(|file| !file.stays).for_each(|file| file.bound.remove());
    }

    /// True if the port's thread has ended, or the port has no thread.
    pub(crate) fn has_ended(&mut self) -> bool {
        let ended = self.thread.take_if(|(thread, _)| thread.is_finished());
        if let Some((thread, _)) = ended {
            // The thread contained and logged its panics.
            let _ = thread.join();
        }
        self.thread.is_none()
    }
}

/// Starts the thread of a guest's port, which meets front-ends, or of a stream, which meets peers.
pub(super) fn start_session(
    name: String,
    serve: impl FnOnce(Arc<EventFd>) + Send + 'static,
) -> Result<Thread, PortError> {
    let stop = Arc::new(EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)?);
    let stopped = Arc::clone(&stop);
    let thread = std::thread::Builder::new().name(name).stack_size(SESSION_STACK_BYTES);
    Ok((thread.spawn(move || serve(stopped))?, Stop::Session(stop)))
}
