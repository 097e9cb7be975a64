//! Filters of ports: compiled from what is wanted, published as a whole.
//!
//! A port whose rules and groups have not changed keeps its compiled filter, so that its
//! connections do not ask the rules again. One thread removes connections that have timed out.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::desired::Desired;
use super::handover::Received;
use super::{Daemon, StartError};
use base::limits::{CONNECTION_SWEEP_PARTS, CONNECTION_SWEEP_PAUSE, MAX_PORTS};
use switch::Tick;
use switch::filter::named::Groups;
use switch::filter::{
    Compiled, Connections, ConnectionsConfig, Filter, Group, PortFilter, Span, TooLarge, Verdict,
};
use sys::{clock, random};

/// What a port's filter is compiled from.
#[derive(Clone, PartialEq)]
struct Source {
    filters: Vec<Filter>,
    groups: Groups,
}

/// The filters of all ports.
pub struct Filters {
    /// The connections of all ports; made for the first port with a filter.
    connections: OnceCell<Arc<Connections>>,
    /// Secret key of the table of connections.
    key: [u64; 4],
    /// By the names of ports.
    compiled: HashMap<String, (Source, Arc<PortFilter>)>,
    /// Number of the last compiled rules; each has another.
    generation: u32,
    /// A thread removes connections that have timed out.
    sweeps: bool,
}

impl Filters {
    /// There are no filters yet.
    pub(crate) fn new() -> Result<Filters, StartError> {
        let ([a, b], [c, d]) = (random::key()?, random::key()?);
        let (key, compiled) = ([a, b, c, d], HashMap::new());
        Ok(Filters { connections: OnceCell::new(), key, compiled, generation: 0, sweeps: false })
    }

    /// Returns the connections of all ports, if a port has or had a filter.
    pub(crate) fn connections(&self) -> Option<&Arc<Connections>> {
        self.connections.get()
    }

    /// Returns the connections of all ports, for a port with a filter.
    fn tracked(&self) -> &Arc<Connections> {
        let config = || ConnectionsConfig::limited(MAX_PORTS, self.key);
        self.connections.get_or_init(|| Arc::new(Connections::new(config())))
    }

    /// Compiles the filters of all ports that are wanted, as far as they have changed, and returns
    /// them by the names of ports.
    pub(crate) fn compile(&mut self, desired: &Desired) -> HashMap<String, Arc<PortFilter>> {
        let mut before = std::mem::take(&mut self.compiled);
        for (name, source) in sources(desired) {
            let known = before.remove(&name);
            if let Some(known) = known.as_ref().filter(|known| known.0 == source) {
                self.compiled.insert(name, known.clone());
                continue;
            }
            let filter = match (self.build(&source), known) {
                (Ok(filter), _) => filter,
                (Err(error), known) => {
                    log::error!("port {name}: its filters are not in effect: {error}");
                    known.map_or_else(|| self.closed(), |(_, running)| running)
                }
            };
            self.compiled.insert(name, (source, filter));
        }
        self.compiled.iter().map(|(name, (_, filter))| (name.clone(), Arc::clone(filter))).collect()
    }

    fn build(&mut self, source: &Source) -> Result<Arc<PortFilter>, TooLarge> {
        self.generation += 1;
        let filters: Vec<&Filter> = source.filters.iter().collect();
        let rules = Compiled::new(&filters, &source.groups, self.generation)?;
        Ok(Arc::new(PortFilter::new(rules, Arc::clone(self.tracked()))))
    }

    /// Returns a filter that lets nothing pass but neighbour discovery.
    fn closed(&mut self) -> Arc<PortFilter> {
        let source = Source { filters: vec![closed("")], groups: Groups::new() };
        match self.build(&source) {
            Ok(filter) => filter,
            Err(error) => unreachable!("no rules are too many: {error}"),
        }
    }
}

impl Daemon {
    /// Gives the wanted filters to the table of ports.
    pub(super) fn set_filters(&mut self) {
        let filters = self.filters.compile(&self.desired);
        self.view.ports.set_filters(filters);
        if let Err(error) = self.sweep_connections() {
            log::error!("connections that have timed out stay: {error}");
        }
    }

    /// Gives the wanted filters to the table of ports, and takes over the connections of the
    /// process before.
    pub(super) fn take_over_connections(&mut self, received: &mut Received) {
        self.set_filters();
        if let Some(connections) = self.filters.connections() {
            received.restore_connections(&self.view.ports.present(), connections);
        }
    }

    /// Starts the thread that removes connections that have timed out, if a port has a filter and
    /// the thread does not run yet.
    fn sweep_connections(&mut self) -> io::Result<()> {
        if let Some(connections) = self.filters.connections().filter(|_| !self.filters.sweeps) {
            let connections = Arc::clone(connections);
            self.help("connections", move |_, stopping| sweep(&connections, stopping))?;
            self.filters.sweeps = true;
        }
        Ok(())
    }
}

/// Removes connections that have timed out, a part of the table at a time. The thread sleeps while
/// there are none.
fn sweep(connections: &Connections, stopping: &AtomicBool) {
    let mut step = 0;
    while !stopping.load(Ordering::Acquire) {
        std::thread::park_timeout(CONNECTION_SWEEP_PAUSE);
        if connections.is_empty() {
            continue;
        }
        let (seconds, nanos) = clock::coarse();
        let now = Tick::new(seconds, nanos);
        for _ in 0..connections.sweep_steps().div_ceil(CONNECTION_SWEEP_PARTS) {
            connections.sweep(step, now);
            step = step.wrapping_add(1);
        }
    }
}

/// A filter that drops all: that of a name without a filter.
fn closed(name: &str) -> Filter {
    let drop = Some(Verdict::Drop);
    Filter { name: name.to_owned(), default_in: drop, default_out: drop, rules: Vec::new() }
}

/// Returns what the filter of each port with a filter is compiled from.
fn sources(desired: &Desired) -> impl Iterator<Item = (String, Source)> {
    let entry = |name: &str| Some(&desired.get(name)?.settings);
    let filter = move |name: &String| {
        entry(name).and_then(|settings| settings.filter()).unwrap_or_else(|| closed(name))
    };
    let ports = desired.entries().values().filter(|entry| entry.settings.kind.is_port());
    ports.filter_map(move |port| {
        let names = port.settings.filter_names();
        let filters: Vec<Filter> = names.iter().map(filter).collect();
        let groups = filters.iter().flat_map(Filter::groups);
        let groups = groups.map(|name| (name.to_owned(), group(desired, name))).collect();
        let source = Source { filters, groups };
        (!names.is_empty()).then(|| (port.settings.name.clone(), source))
    })
}

/// Returns a group with the addresses of its ports; a group that does not exist has none.
fn group(desired: &Desired, name: &str) -> Group {
    let settings = desired.get(name).map(|entry| &entry.settings);
    let settings = settings.filter(|settings| settings.kind == api::config::Kind::Group);
    let ports = settings.into_iter().flat_map(|settings| &settings.ports);
    let ports = ports.filter_map(|port| desired.get(port));
    let of_ports = ports.flat_map(|port| port.settings.allowed_ips.iter().copied().map(Span::from));
    let own = settings.into_iter().flat_map(|settings| settings.addresses.iter().copied());
    Group { name: name.to_owned(), addresses: own.chain(of_ports).collect() }
}
