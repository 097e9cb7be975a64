//! Gives the compiled filters to the table of ports, follows the connections of ports with a filter
//! and writes the logs of rules.

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
        self.sweep_connections();
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
        self.sweep_connections();
    }

    /// Gives a new port the connections that the process before tracked for its name.
    pub(super) fn adopt_connections(&mut self, port: &Port) {
        self.filters.adopt_connections(port);
        self.sweep_connections();
    }

    /// Removes the connections of a port that has no filter any more, or meets other peers.
    pub(super) fn end_connections(&self, port: PortId) {
        if let Some(connections) = self.filters.connections() {
            connections.close_port(port);
        }
    }

    /// Has a thread remove connections that time out, if there are connections or filters: starts
    /// the thread, or wakes it.
    fn sweep_connections(&mut self) {
        let Some(connections) = self.filters.connections().cloned() else { return };
        if connections.is_empty() && !self.view.ports.present().has_filters() {
            return;
        }
        if let Some(sweeper) = &self.filters.sweeper {
            sweeper.unpark();
            return;
        }
        let work = move |view: &View, stopping: &AtomicBool| sweep(&connections, view, stopping);
        match self.help("connections", work) {
            Ok(sweeper) => self.filters.sweeper = Some(sweeper),
            Err(error) => log::error!("connections that have timed out stay: {error}"),
        }
    }
}

/// Writes the logs of rules, and removes connections that have timed out, a part of the table at a
/// time. Sleeps while there are neither filters nor connections, until
/// [`Daemon::sweep_connections`] wakes the thread.
fn sweep(connections: &Connections, view: &View, stopping: &AtomicBool) {
    let (mut step, mut unused) = (0, 0);
    while !stopping.load(Ordering::Acquire) {
        // A worker with an older table of ports may begin a connection after the last filter went,
        // but not a whole pause later.
        if unused < 2 {
            std::thread::park_timeout(CONNECTION_SWEEP_PAUSE);
        } else {
            std::thread::park();
            unused = 0;
        }
        let ports = view.ports.present();
        write_logs(&ports);
        let is_used = ports.has_filters() || !connections.is_empty();
        unused = if is_used { 0 } else { unused + 1 };
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
