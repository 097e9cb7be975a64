//! Filters of ports: compiled from what is wanted, published as a whole.
//!
//! A port whose rules and groups have not changed keeps its compiled filter, so that its
//! connections do not ask the rules again. One thread removes connections that have timed out.

use std::cell::OnceCell;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::desired::Desired;
use super::handover::Received;
use super::{Daemon, StartError};
use api::config::{Entry, Kind, Settings};
use base::limits::{
    CONNECTION_SWEEP_PARTS, CONNECTION_SWEEP_PAUSE, MAX_PORTS, ORPHAN_CONNECTIONS_KEPT,
};
use base::words::counted;
use datapath::port::Port;
use switch::filter::connections::Orphans;
use switch::filter::named::Groups;
use switch::filter::{
    Compiled, Connections, ConnectionsConfig, Filter, Group, PortFilter, Span, TooLarge, Verdict,
};
use switch::{PortId, Tick};
use sys::{clock, random};

/// What a port's filter is compiled from.
#[derive(Clone)]
struct Source {
    filters: Vec<Arc<Filter>>,
    groups: Vec<Arc<Group>>,
}

impl Source {
    /// True if both are of the same filters and groups, which [`Filters`] shares between ports.
    fn is(&self, other: &Source) -> bool {
        let all_same = |(a, b)| Arc::ptr_eq(a, b);
        self.filters.len() == other.filters.len()
            && self.groups.len() == other.groups.len()
            && self.filters.iter().zip(&other.filters).all(all_same)
            && self.groups.iter().zip(&other.groups).all(|(a, b)| Arc::ptr_eq(a, b))
    }
}

/// Filters and groups by name; a value that has not changed stays the same object, so that ports
/// need not compare rules.
#[derive(Default)]
struct Known {
    filters: HashMap<String, Arc<Filter>>,
    groups: HashMap<String, Arc<Group>>,
}

/// The filters of all ports.
pub struct Filters {
    /// The connections of all ports; made for the first port with a filter.
    connections: OnceCell<Arc<Connections>>,
    /// Secret key of the table of connections.
    key: [u64; 4],
    /// By the names of ports.
    compiled: HashMap<String, (Source, Arc<PortFilter>)>,
    known: Known,
    /// Connections of the process before whose ports do not exist yet, until a time.
    orphans: Option<(Orphans, Instant)>,
    /// Number of the last compiled rules; each has another.
    generation: u32,
    /// A thread removes connections that have timed out.
    sweeps: bool,
}

impl Filters {
    /// There are no filters yet.
    pub(crate) fn new() -> Result<Filters, StartError> {
        let ([a, b], [c, d]) = (random::key()?, random::key()?);
        Ok(Filters {
            connections: OnceCell::new(),
            key: [a, b, c, d],
            compiled: HashMap::new(),
            known: Known::default(),
            orphans: None,
            generation: 0,
            sweeps: false,
        })
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
        self.known.renew(desired);
        let mut before = std::mem::take(&mut self.compiled);
        for (name, source) in self.known.sources(desired) {
            let known = before.remove(&name);
            if let Some(known) = known.as_ref().filter(|known| known.0.is(&source)) {
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
        let filters: Vec<&Filter> = source.filters.iter().map(Arc::as_ref).collect();
        let groups = source.groups.iter().map(|group| (group.name.clone(), Group::clone(group)));
        let rules = Compiled::new(&filters, &groups.collect::<Groups>(), self.generation)?;
        Ok(Arc::new(PortFilter::new(rules, Arc::clone(self.tracked()))))
    }

    /// Returns a filter that lets nothing pass but neighbour discovery.
    fn closed(&mut self) -> Arc<PortFilter> {
        let source = Source { filters: vec![Arc::new(closed())], groups: Vec::new() };
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
        let ports = self.view.ports.present();
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
        match self.filters.tracked().load(&bytes, now(), number) {
            Ok((count, orphans)) => {
                if count > 0 {
                    let count = counted(count, "connection");
                    log::info!("taken over from the process before: {count}");
                }
                let until = Instant::now() + ORPHAN_CONNECTIONS_KEPT;
                self.filters.orphans =
                    Some((orphans, until)).filter(|(orphans, _)| !orphans.is_empty());
            }
            Err(damaged) => log::warn!("the process before left {damaged}"),
        }
    }

    /// Gives a new port the connections that the process before tracked for its name.
    pub(super) fn adopt_connections(&mut self, port: &Port) {
        let Some((mut orphans, until)) = self.filters.orphans.take() else { return };
        if Instant::now() < until {
            self.filters.tracked().adopt(&mut orphans, &port.name, port.id);
            self.filters.orphans =
                Some((orphans, until)).filter(|(orphans, _)| !orphans.is_empty());
        }
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
        if let Some(connections) = self.filters.connections().filter(|_| !self.filters.sweeps) {
            let connections = Arc::clone(connections);
            self.help("connections", move |_, stopping| sweep(&connections, stopping))?;
            self.filters.sweeps = true;
        }
        Ok(())
    }
}

/// Returns the present tick.
pub(super) fn now() -> Tick {
    let (seconds, nanos) = clock::coarse();
    Tick::new(seconds, nanos)
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
        let now = now();
        for _ in 0..connections.sweep_steps().div_ceil(CONNECTION_SWEEP_PARTS) {
            connections.sweep(step, now);
            step = step.wrapping_add(1);
        }
    }
}

impl Known {
    /// Reads the filters and groups that are wanted.
    fn renew(&mut self, desired: &Desired) {
        let before = std::mem::take(self);
        for Entry { settings, .. } in desired.entries().values() {
            let name = || settings.name.clone();
            if let Some(filter) = settings.filter() {
                self.filters.insert(name(), shared(before.filters.get(&settings.name), filter));
            } else if settings.kind == Kind::Group {
                let group = group(desired, settings);
                self.groups.insert(name(), shared(before.groups.get(&settings.name), group));
            }
        }
    }

    /// Returns what the filter of each port with a filter is compiled from. A port for which a
    /// filter or a group is missing gets a filter that drops all: without the rules that are
    /// missing, the others could accept what the operator wants to drop.
    fn sources(&self, desired: &Desired) -> Vec<(String, Source)> {
        let ports = desired.entries().values().map(|entry| &entry.settings);
        let filtered = ports.filter(|port| port.kind.is_port() && !port.filter_names().is_empty());
        let source = |port: &Settings| {
            let source = self.source(port.filter_names()).unwrap_or_else(|| Source {
                filters: vec![Arc::new(closed())],
                groups: Vec::new(),
            });
            (port.name.clone(), source)
        };
        filtered.map(source).collect()
    }

    /// Returns filters and groups of a list of filters; `None` if one does not exist.
    fn source(&self, names: &[String]) -> Option<Source> {
        let filters = names.iter().map(|name| self.filters.get(name).cloned());
        let filters: Vec<_> = filters.collect::<Option<_>>()?;
        let groups: BTreeSet<&str> = filters.iter().flat_map(|filter| filter.groups()).collect();
        let groups = groups.into_iter().map(|name| self.groups.get(name).cloned());
        let groups = groups.collect::<Option<_>>()?;
        Some(Source { filters, groups })
    }
}

/// Returns `known` if it equals `value`.
fn shared<T: PartialEq>(known: Option<&Arc<T>>, value: T) -> Arc<T> {
    let same = known.filter(|known| ***known == value);
    same.cloned().unwrap_or_else(|| Arc::new(value))
}

/// Makes a filter that drops all.
fn closed() -> Filter {
    let drop = Some(Verdict::Drop);
    Filter { default_in: drop, default_out: drop, ..Filter::default() }
}

/// Returns a group with the addresses of its ports.
fn group(desired: &Desired, settings: &Settings) -> Group {
    let ports = settings.ports.iter().filter_map(|port| desired.get(port));
    let of_ports = ports.flat_map(|port| port.settings.allowed_ips.iter().copied().map(Span::from));
    let own = settings.addresses.iter().copied();
    Group { name: settings.name.clone(), addresses: own.chain(of_ports).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::config::{Origin, Value};
    use switch::filter::Direction;

    fn entry(kind: Kind, keys: &[(&str, &str)]) -> Entry {
        let word = |(key, word): &(&str, &str)| (key.to_string(), Value::Word(word.to_string()));
        let settings = Settings::parse(kind, keys.iter().map(word).collect());
        Entry::new(settings.unwrap(), Origin::Kept)
    }

    fn port<'k>(name: &'k str, socket: &'k str, filter: &'k str) -> Entry {
        entry(Kind::Port, &[("name", name), ("socket", socket), ("filter", filter)])
    }

    /// Two ports share a filter; the other filter of one port does not exist.
    #[test]
    fn a_missing_filter_closes_its_port_and_an_equal_one_is_compiled_once() {
        let mut desired = Desired::default();
        for entry in [
            entry(Kind::Filter, &[("name", "web"), ("default-in", "accept")]),
            port("vm1", "/run/1", "web"),
            port("vm2", "/run/2", "web,gone"),
        ] {
            desired.add(entry).unwrap();
        }
        let mut filters = Filters::new().unwrap();
        let verdicts = |compiled: &HashMap<String, Arc<PortFilter>>| {
            ["vm1", "vm2"].map(|name| compiled[name].rules.default_for(Direction::In).verdict)
        };
        let first = filters.compile(&desired);
        assert_eq!(verdicts(&first), [Verdict::Accept, Verdict::Drop]);
        desired.add(entry(Kind::Filter, &[("name", "gone")])).unwrap();
        let second = filters.compile(&desired);
        assert_eq!(verdicts(&second), [Verdict::Accept, Verdict::Accept]);
        assert!(Arc::ptr_eq(&first["vm1"], &second["vm1"]), "nothing of this port has changed");
        let rule = "in drop tcp from group:bad";
        let keys = [("name", "more"), ("rules", rule), ("default-in", "accept")];
        desired.add(entry(Kind::Filter, &keys)).unwrap();
        desired.add(port("vm3", "/run/3", "more")).unwrap();
        let verdict = filters.compile(&desired)["vm3"].rules.default_for(Direction::In).verdict;
        assert_eq!(verdict, Verdict::Drop, "the group does not exist");
    }
}
