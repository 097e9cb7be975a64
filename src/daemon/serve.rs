//! Serves ports: each by a thread of its own, with the socket or interface that was opened for the
//! port.
//!
//! A port whose socket or interface cannot be had exists without: the port is in the table, frames
//! for the port are dropped, and clients may change and delete the port as any other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use vmm_sys_util::eventfd::EventFd;

use super::helpers::start_helper;
use super::port_thread::PortThread;
use super::running_port::RunningPort;
use super::serving::{Opened, Serving, Stop, Thread, start_session};
use super::{Daemon, PortError, stream, uplink};
use base::frame::MacAddr;
use datapath::port::Port;

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
