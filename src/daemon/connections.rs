//! Gives the compiled filters to the table of ports, follows the connections of ports with a filter
//! and writes the logs of rules.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::filters::now;
use super::received::Received;
use super::{Daemon, View};
use base::limits::{CONNECTION_SWEEP_PARTS, CONNECTION_SWEEP_PAUSE};
use base::words::counted;
use datapath::events::What;
use datapath::port::{Port, PortTable};
use switch::PortId;
use switch::filter::Connections;

impl Daemon {
    /// Gives the wanted filters to the table of ports.
    pub(super) fn set_filters(&mut self) {
        let ports = self.view.ports.present();
        let filters = self.filters.compile(&self.desired, |name| ports.named(name).is_some());
        let is_open = |port: &&Arc<Port>| !filters.contains_key(&port.name);
        let open: Vec<PortId> = ports.iter().filter(is_open).map(|port| port.id).collect();
        self.view.ports.set_filters(filters);
        // A worker that has not adopted the table may still begin a connection, which times out.
        open.into_iter().for_each(|port| self.end_connections(port));
        if let Err(error) = self.sweep_connections() {
            log::error!("connections that have timed out stay: {error}");
        }
    }

    /// Gives the wanted filters to the table of ports, and takes over the connections of the
    /// process before.
    pub(super) fn take_over_connections(&mut self, received: &mut Received) {
        self.set_filters();
        let Some(bytes) = received.connections() else { return };
        let ports = self.view.ports.present();
        let number = |name: &str| ports.named(name).map(|port| port.id);
        match self.filters.load_connections(&bytes, number) {
            Ok(0) => {}
            Ok(count) => {
                let count = counted(count, "connection");
                log::info!("taken over from the process before: {count}");
            }
            Err(damaged) => log::warn!("the process before left {damaged}"),
        }
    }

    /// Gives a new port the connections that the process before tracked for its name.
    pub(super) fn adopt_connections(&mut self, port: &Port) {
        self.filters.adopt_connections(port);
    }

    /// Removes the connections of a port that has no filter any more, or meets other peers.
    pub(super) fn end_connections(&self, port: PortId) {
        if let Some(connections) = self.filters.connections() {
            connections.close_port(port);
        }
    }

    /// Starts the thread that removes connections that have timed out, if a port has a filter and
    /// the thread does not run yet.
    fn sweep_connections(&mut self) -> io::Result<()> {
        let Some(connections) = self.filters.connections_to_sweep() else { return Ok(()) };
        self.help("connections", move |view, stopping| sweep(&connections, view, stopping))?;
        self.filters.sweeps = true;
        Ok(())
    }
}

/// Writes the logs of rules, and removes connections that have timed out, a part of the table at a
/// time.
fn sweep(connections: &Connections, view: &View, stopping: &AtomicBool) {
    let mut step = 0;
    while !stopping.load(Ordering::Acquire) {
        std::thread::park_timeout(CONNECTION_SWEEP_PAUSE);
        write_logs(&view.ports.present());
        if connections.is_empty() {
            continue;
        }
        let now = now();
        for _ in 0..connections.sweep_steps().div_ceil(CONNECTION_SWEEP_PARTS) {
            connections.sweep(step, now);
            step = step.wrapping_add(1);
        }
    }
}

/// Reports the packets that rules with `log` have decided about.
fn write_logs(ports: &PortTable) {
    for port in ports.iter() {
        let Some(filter) = &ports.policy(port.id).filter else { continue };
        let (packets, mut not_logged) = filter.log.take();
        for logged in packets {
            let (packet, rule) = (logged.to_string(), filter.rules.title(logged.rule));
            let (passed, not_logged) = (logged.passed, std::mem::take(&mut not_logged));
            // The list has its own limit, so that packets do not suppress other events of the port.
            let told = What::FilterLogged { packet, rule, passed, not_logged };
            port.reports.events.tell_surely(&port.name, told);
        }
    }
}
