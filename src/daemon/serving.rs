//! Serves a port: by a thread of its own, with the socket or interface that was opened for the
//! port.
//!
//! A port whose socket or interface cannot be had exists without: the port is in the table, frames
//! for the port are dropped, and clients may change and delete the port as any other.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use vmm_sys_util::eventfd::EventFd;

use super::front_end::{Acceptor, SocketFile};
use super::handover::{Handover, Received};
use super::helpers::start_helper;
use super::port_thread::PortThread;
use super::running_port::RunningPort;
use super::uplink::{self, UplinkError};
use super::{Daemon, PortError, build, stream, vduse};
use api::config::{self, Entry};
use base::frame::MacAddr;
use base::limits::SESSION_STACK_BYTES;
use datapath::port::{Endpoint, GuestPort, Port};
use datapath::vhost_user::socket::{Place, SocketError};
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
    fn file(&self) -> Option<SocketFile> {
        match self {
            Opened::Socket(acceptor) => acceptor.file(),
            Opened::Interface(_) => None,
        }
    }

    /// Returns the socket's file, if this process made the file and it stays when the socket is
    /// closed.
    pub(crate) fn file_that_stays(&self) -> Option<Place> {
        self.file().filter(|file| file.stays).map(|file| file.place)
    }
}

/// The means by which a port's thread is stopped.
enum Stop {
    /// Written once to stop the thread of a guest's port or a stream.
    Session(Arc<EventFd>),
    /// Set to stop the thread of an uplink.
    Reattach(Arc<AtomicBool>),
}

type Thread = (JoinHandle<()>, Stop);

/// Server of one port.
pub(crate) struct Serving {
    running: Arc<RunningPort>,
    /// The entry that the port was made or last changed with.
    entry: Entry,
    /// Static addresses of the port.
    pub(super) addresses: BTreeSet<MacAddr>,
    /// None if the port's socket or interface cannot be had.
    thread: Option<Thread>,
    /// The socket's file.
    file: Option<SocketFile>,
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
    pub(crate) fn file(&self) -> Option<&Place> {
        self.file.as_ref().filter(|file| file.stays).map(|file| &file.place)
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
        self.file.iter().filter(|file| !file.stays).for_each(|file| file.place.remove());
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
fn start_session(
    name: String,
    serve: impl FnOnce(Arc<EventFd>) + Send + 'static,
) -> Result<Thread, PortError> {
    let stop = Arc::new(EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)?);
    let stopped = Arc::clone(&stop);
    let thread = std::thread::Builder::new().name(name).stack_size(SESSION_STACK_BYTES);
    Ok((thread.spawn(move || serve(stopped))?, Stop::Session(stop)))
}

impl Daemon {
    /// Starts a thread that serves a wanted port with what was opened for the port.
    pub(super) fn serve(&mut self, port: &Arc<Port>, opened: Opened) -> Result<(), PortError> {
        let mut serving = self.served(port)?;
        serving.file = opened.file();
        serving.thread = Some(self.start_thread(&serving.running, opened)?);
        self.serving.push(serving);
        Ok(())
    }

    /// Adds the server of a wanted port for which nothing could be opened.
    pub(super) fn serve_without(&mut self, port: &Arc<Port>) -> Result<(), PortError> {
        let serving = self.served(port)?;
        port.life.left_out.store(true, Ordering::Relaxed);
        self.serving.push(serving);
        Ok(())
    }

    /// True if a port for which nothing could be opened is gone, or about to go.
    pub(super) fn is_removing(&self, running: &Arc<RunningPort>) -> bool {
        let stays = self.serving.iter().any(|serving| Arc::ptr_eq(&serving.running, running));
        self.helpers.are_stopping() || !stays
    }

    /// Starts the thread of a port for which nothing could be opened at first.
    pub(super) fn serve_late(
        &mut self,
        running: &Arc<RunningPort>,
        opened: Opened,
    ) -> Result<(), PortError> {
        let file = opened.file();
        let thread = self.start_thread(running, opened)?;
        let mut all = self.serving.iter_mut();
        let serving = all.find(|serving| Arc::ptr_eq(&serving.running, running));
        let serving = serving.ok_or(PortError::NoSuchPort)?;
        (serving.thread, serving.file) = (Some(thread), file);
        running.port().life.left_out.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the server of a port without a thread: the wanted entry, and the addresses that the
    /// port has.
    fn served(&self, port: &Arc<Port>) -> Result<Serving, PortError> {
        let entry = self.desired.get(&port.name).ok_or(PortError::NoSuchPort)?.clone();
        let is_here = |mac: &MacAddr| port.has_address(*mac, &self.context.fdb);
        let addresses = entry.settings.mac.iter().copied().filter(is_here).collect();
        let running =
            RunningPort::new(port, entry.settings.clone(), &self.view.ports, &self.view.events);
        Ok(Serving { running: Arc::new(running), entry, addresses, thread: None, file: None })
    }

    fn start_thread(
        &mut self,
        running: &Arc<RunningPort>,
        opened: Opened,
    ) -> Result<Thread, PortError> {
        let (port, workers) = (running.port(), Arc::clone(&self.context.workers));
        match opened {
            Opened::Interface(created) => self.keep_uplink(&port, created),
            Opened::Socket(acceptor) if port.as_stream().is_some() => {
                let serve =
                    move |stop: Arc<EventFd>| stream::serve(&port, acceptor, &workers, &stop);
                start_session(format!("stream-{}", running.port().id), serve)
            }
            Opened::Socket(acceptor) => {
                let (account, context) = (self.ledger.open()?, self.context.clone());
                let running = Arc::clone(running);
                let serve =
                    move |stop| acceptor.serve(&PortThread { running, account, context, stop });
                start_session(format!("port-{}", port.id), serve)
            }
        }
    }

    /// Starts the thread that attaches an uplink's interface again whenever the interface is lost,
    /// and follows the interface's MTU. `created`: the switch created the interface, so the thread
    /// creates a lost interface again.
    fn keep_uplink(&mut self, port: &Arc<Port>, created: bool) -> Result<Thread, PortError> {
        self.helpers.monitor_links(&self.view.ports)?;
        let stopping = Arc::new(AtomicBool::new(false));
        let keep = {
            let (port, workers) = (Arc::clone(port), Arc::clone(&self.context.workers));
            let (handover, stopping) = (Arc::clone(&self.handover), Arc::clone(&stopping));
            move || uplink::keep(&port, created, &workers, &handover, &stopping)
        };
        let thread = start_helper(format!("{}-{}", port.kind_name(), port.id), &stopping, keep)?;
        Ok((thread, Stop::Reattach(stopping)))
    }
}
