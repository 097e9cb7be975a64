//! Filters of ports: compiled from what is wanted, published as a whole.
//!
//! A port whose rules and groups have not changed keeps its compiled filter, so that its
//! connections do not ask the rules again. `super::connections` removes connections that have timed
//! out.

use std::cell::OnceCell;
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread::Thread;
use std::time::Instant;

use super::desired::Desired;
use api::config::{Kind, PortRules, Rulebook, Settings};
use base::limits::{MAX_PORTS, ORPHAN_CONNECTIONS_KEPT};
use datapath::port::Port;
use switch::filter::compiled::{Origin, RuleNumber};
use switch::filter::connections::{Damaged, Orphans};
use switch::filter::{
    Connections, ConnectionsConfig, Counts, Direction, PortFilter, TooLarge, Verdict,
};
use switch::{PortId, Tick};
use sys::{clock, random};

/// Frames, bytes and connections of a filter's rules, and of its defaults by direction.
pub(crate) struct Tally {
    /// Counts of the rules, in order.
    pub(crate) rules: Vec<[u64; 3]>,
    /// Counts of the defaults.
    pub(crate) defaults: [[u64; 3]; 2],
}

/// The place of a rule in its filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum RulePlace {
    /// The rule of this number, from 1.
    Number(u16),
    /// The default of a direction.
    Default(Direction),
}

impl fmt::Display for RulePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RulePlace::Number(number) => number.fmt(f),
            RulePlace::Default(direction) => write!(f, "default-{direction}"),
        }
    }
}

/// The filters of all ports.
pub(crate) struct Filters {
    /// The connections of all ports; made for the first port with a filter.
    connections: OnceCell<Arc<Connections>>,
    /// Secret key of the table of connections.
    key: [u64; 4],
    /// All filters and groups that are wanted.
    book: Rulebook,
    /// The rules and the compiled filter of each port with a filter, by the port's name.
    compiled: HashMap<String, (PortRules, Arc<PortFilter>)>,
    /// Frames that rules refused, by filter and place, before the rules of their ports changed.
    refused: HashMap<(String, RulePlace), u64>,
    /// Connections of the process before whose ports do not exist yet, until a time.
    orphans: Option<(Orphans, Instant)>,
    /// Number of the last compiled rules; each has another.
    generation: u32,
    /// The thread that removes connections that have timed out, once started.
    pub(super) sweeper: Option<Thread>,
}

impl Filters {
    /// There are no filters yet.
    pub(crate) fn new() -> io::Result<Filters> {
        let ([a, b], [c, d]) = (random::key()?, random::key()?);
        Ok(Filters {
            connections: OnceCell::new(),
            key: [a, b, c, d],
            book: Rulebook::default(),
            compiled: HashMap::new(),
            refused: HashMap::new(),
            orphans: None,
            generation: 0,
            sweeper: None,
        })
    }

    /// Returns the connections of all ports, if a port has or had a filter.
    pub(crate) fn connections(&self) -> Option<&Arc<Connections>> {
        self.connections.get()
    }

    /// Takes over the connections of the process before, and returns their number; `number` finds
    /// a port by its name. Connections of ports that do not exist yet are kept for
    /// [`ORPHAN_CONNECTIONS_KEPT`].
    pub(super) fn load_connections(
        &mut self,
        bytes: &[u8],
        number: impl Fn(&str) -> Option<PortId>,
    ) -> Result<usize, Damaged> {
        let (count, orphans) = self.tracked().load(bytes, now(), number)?;
        self.keep_orphans(orphans, Instant::now() + ORPHAN_CONNECTIONS_KEPT);
        Ok(count)
    }

    /// Gives a new port the connections that the process before tracked for its name.
    pub(super) fn adopt_connections(&mut self, port: &Port) {
        let Some((mut orphans, until)) = self.orphans.take() else { return };
        if Instant::now() < until {
            self.tracked().adopt(&mut orphans, &port.name, port.id);
            self.keep_orphans(orphans, until);
        }
    }

    fn keep_orphans(&mut self, orphans: Orphans, until: Instant) {
        self.orphans = Some((orphans, until)).filter(|(orphans, _)| !orphans.is_empty());
    }

    /// Returns the connections of all ports, for a port with a filter.
    fn tracked(&self) -> &Arc<Connections> {
        let config = || ConnectionsConfig::limited(MAX_PORTS, self.key);
        self.connections.get_or_init(|| Arc::new(Connections::new(config())))
    }

    /// Returns the counters of a filter, which has `rules` rules: the counters of port `port`, or
    /// the sums of all ports.
    pub(crate) fn tally(&self, filter: &str, rules: usize, port: Option<&str>) -> Tally {
        let mut tally = Tally { rules: vec![[0; 3]; rules], defaults: [[0; 3]; 2] };
        for (name, (of, compiled)) in &self.compiled {
            let has_it = of.filters.iter().any(|one| one.name == filter);
            if !has_it || port.is_some_and(|port| port != name) {
                continue;
            }
            for (number, origin) in compiled.rules.origins().iter().enumerate() {
                let is_of = |place: usize| of.filters[place].name == filter;
                let at = match *origin {
                    Origin::Rule { filter, rule } if is_of(filter.into()) => {
                        tally.rules.get_mut(usize::from(rule))
                    }
                    Origin::Default(way) if is_of(of.default_of(way)) => {
                        tally.defaults.get_mut(way as usize)
                    }
                    _ => None,
                };
                let counts = compiled.rules.counts(number as RuleNumber).map(Counts::get);
                if let (Some(at), Some(counts)) = (at, counts) {
                    at.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
                }
            }
        }
        tally
    }

    /// Returns the rules that refused frames, with the frames of all ports since the start: the
    /// `most` rules with most frames, by filter and place.
    pub(crate) fn refusals(&self, most: usize) -> Vec<((String, RulePlace), u64)> {
        let mut refused = self.refused.clone();
        for (of, compiled) in self.compiled.values() {
            add_refused(of, compiled, &mut refused);
        }
        let mut all: Vec<_> = refused.into_iter().collect();
        all.sort_unstable_by_key(|(_, count)| Reverse(*count));
        all.truncate(most);
        all.sort_unstable();
        all
    }

    /// Returns the filter and the place of a port's rule in force of this generation and number.
    pub(crate) fn origin_of(
        &self,
        port: &str,
        generation: u32,
        rule: RuleNumber,
    ) -> Option<(&str, Origin)> {
        let (rules, compiled) = self.compiled.get(port)?;
        let compiled = Some(&compiled.rules).filter(|one| one.generation() == generation)?;
        let origin = *compiled.origins().get(usize::from(rule))?;
        let at = match origin {
            Origin::Rule { filter, .. } => filter.into(),
            Origin::Default(way) => rules.default_of(way),
        };
        Some((&rules.filters[at].name, origin))
    }

    /// Compiles the filters of all ports that are wanted, as far as they have changed, and returns
    /// them by the names of ports. A port that is being removed, and for which `is_present` is
    /// true, keeps its filter.
    pub(crate) fn compile(
        &mut self,
        desired: &Desired,
        is_present: impl Fn(&str) -> bool,
    ) -> HashMap<String, Arc<PortFilter>> {
        self.book = book(desired, &self.book);
        let mut before = std::mem::take(&mut self.compiled);
        for port in settings(desired).filter(|settings| settings.kind.is_port()) {
            let Some(rules) = self.book.rules_of(port.filter_names()) else { continue };
            let known = before.remove(&port.name);
            if let Some(known) = known.as_ref().filter(|known| known.0 == rules) {
                self.compiled.insert(port.name.clone(), known.clone());
                continue;
            }
            for (kind, name) in self.book.missing(port) {
                log::error!("port {}: all packets are dropped: no {kind} '{name}'", port.name);
            }
            let compiled = match self.build(&rules, &before) {
                Ok(filter) => {
                    if let Some((of, known)) = known {
                        add_refused(&of, &known, &mut self.refused);
                    }
                    (rules, filter)
                }
                Err(error) => {
                    log::error!("port {}: its filters are not in effect: {error}", port.name);
                    known.unwrap_or_else(|| self.closed())
                }
            };
            self.compiled.insert(port.name.clone(), compiled);
        }
        for (name, (of, compiled)) in before {
            if desired.get(&name).is_none() && is_present(&name) {
                self.compiled.insert(name, (of, compiled));
            } else {
                add_refused(&of, &compiled, &mut self.refused);
            }
        }
        self.refused.retain(|(filter, place), _| {
            let rules = self.book.rules_of_filter(filter);
            rules.is_some_and(|rules| match place {
                RulePlace::Number(number) => usize::from(*number) <= rules,
                RulePlace::Default(_) => true,
            })
        });
        self.compiled.iter().map(|(name, (_, filter))| (name.clone(), Arc::clone(filter))).collect()
    }

    /// Returns what the filters that are wanted `after` a change lack, a line each: filters and
    /// groups that do not exist and that were not missing before the change, and rules that are
    /// too many.
    pub(crate) fn faults(&self, before: &Desired, after: &Desired) -> Vec<String> {
        let (old, new) = (book(before, &self.book), book(after, &self.book));
        let (mut faults, mut examined) = (Vec::new(), HashSet::new());
        for settings in settings(after) {
            let Settings { kind, name, .. } = settings;
            let then = before.get(name).map(|entry| &entry.settings);
            let known = then.map(|then| old.missing(then)).unwrap_or_default();
            let missing = new.missing(settings).into_iter().filter(|one| !known.contains(one));
            faults.extend(missing.map(|(lacked, lacks)| {
                format!("{kind} '{name}' names {lacked} '{lacks}', which does not exist")
            }));
            let (is, names) = (new.rules_in(settings), settings.filters());
            if is != then.and_then(|then| old.rules_in(then))
                && examined.insert(names)
                && let Some(Err(error)) = is.map(|rules| rules.check_size())
            {
                faults.push(format!("filter '{}': {error}", settings.filters().join(",")));
            }
        }
        faults
    }

    /// Makes a port's filter. Ports with equal rules share the compiled rules.
    /// `before` are filters of ports that follow.
    fn build(
        &mut self,
        rules: &PortRules,
        before: &HashMap<String, (PortRules, Arc<PortFilter>)>,
    ) -> Result<Arc<PortFilter>, TooLarge> {
        self.generation += 1;
        let known = self.compiled.values().chain(before.values());
        let rules = match known.into_iter().find(|(of, _)| of == rules) {
            Some((_, filter)) => filter.rules.for_another_port(self.generation),
            None => rules.compile(self.generation)?,
        };
        Ok(Arc::new(PortFilter::new(rules, Arc::clone(self.tracked()))))
    }

    /// Returns a filter that lets nothing pass but neighbour discovery.
    fn closed(&mut self) -> (PortRules, Arc<PortFilter>) {
        let rules = PortRules::closed();
        match self.build(&rules, &HashMap::new()) {
            Ok(filter) => (rules, filter),
            Err(error) => unreachable!("no rules are too many: {error}"),
        }
    }
}

/// Adds the frames that the rules of a port have refused, by filter and place.
fn add_refused(
    of: &PortRules,
    compiled: &PortFilter,
    refused: &mut HashMap<(String, RulePlace), u64>,
) {
    for (number, origin) in compiled.rules.origins().iter().enumerate() {
        let (filter, verdict, place) = match *origin {
            Origin::Rule { filter, rule } => {
                let filter = &of.filters[usize::from(filter)];
                let verdict = filter.rules[usize::from(rule)].verdict;
                (filter, Some(verdict), RulePlace::Number(rule + 1))
            }
            Origin::Default(way) => {
                let filter = &of.filters[of.default_of(way)];
                (filter, filter.default_of(way), RulePlace::Default(way))
            }
        };
        let counts = compiled.rules.counts(number as RuleNumber).map(Counts::get);
        let [frames, ..] = counts.unwrap_or_default();
        if frames > 0 && verdict.is_some_and(|verdict| verdict != Verdict::Accept) {
            *refused.entry((filter.name.clone(), place)).or_default() += frames;
        }
    }
}

/// Returns the present tick.
pub(super) fn now() -> Tick {
    let (seconds, nanos) = clock::coarse();
    Tick::new(seconds, nanos)
}

impl Desired {
    /// Returns the names of the entries that name a filter or group of this name; `plug` stands for
    /// the template of ports by plug.
    pub(crate) fn users_of(&self, name: &str) -> Vec<&str> {
        let Some(kind) = self.get(name).map(|entry| entry.settings.kind) else { return Vec::new() };
        let wanted = |settings: &Settings| match kind {
            Kind::Filter => settings.filter_names().iter().any(|one| one == name),
            Kind::Group => settings.names_group(name),
            _ => false,
        };
        let of_entries = self.entries().values().map(|entry| &entry.settings);
        let of_entries = of_entries.filter(|one| wanted(one)).map(|one| one.name.as_str());
        let template = self.template().filter(|template| wanted(template)).map(|_| "plug");
        of_entries.chain(template).collect()
    }
}

fn settings(desired: &Desired) -> impl Iterator<Item = &Settings> + Clone {
    desired.entries().values().map(|entry| &entry.settings)
}

/// Returns all filters and groups of `desired`; reuses parts of the older book `before`.
fn book(desired: &Desired, before: &Rulebook) -> Rulebook {
    Rulebook::new(settings(desired), before)
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::config::{Entry, Origin, Value};

    fn entry(kind: Kind, keys: &[(&str, &str)]) -> Entry {
        let word = |(key, word): &(&str, &str)| (key.to_string(), Value::Word(word.to_string()));
        let settings = Settings::parse(kind, keys.iter().map(word).collect());
        Entry::new(settings.unwrap(), Origin::Kept)
    }

    fn port(name: &str, socket: &str, filter: &str) -> Entry {
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
        let first = filters.compile(&desired, |_| false);
        assert_eq!(verdicts(&first), [Verdict::Accept, Verdict::Drop]);
        desired.add(entry(Kind::Filter, &[("name", "gone")])).unwrap();
        let second = filters.compile(&desired, |_| false);
        assert_eq!(verdicts(&second), [Verdict::Accept, Verdict::Accept]);
        assert!(Arc::ptr_eq(&first["vm1"], &second["vm1"]), "nothing of this port has changed");
        let rule = "in drop tcp from group:bad";
        let keys = [("name", "more"), ("rules", rule), ("default-in", "accept")];
        desired.add(entry(Kind::Filter, &keys)).unwrap();
        desired.add(port("vm3", "/run/3", "more")).unwrap();
        let verdict =
            filters.compile(&desired, |_| false)["vm3"].rules.default_for(Direction::In).verdict;
        assert_eq!(verdict, Verdict::Drop, "the group does not exist");
    }

    /// Prometheus takes a smaller value for a restart, and counts all of it again.
    #[test]
    fn the_frames_that_a_filter_has_refused_are_counted_over_changes() {
        let mut filters = Filters::new().unwrap();
        let mut compile = |rule: Option<&str>, ports: &[&str]| {
            let keys = rule.map(|rule| [("name", "web"), ("rules", rule)]);
            let ports = ports.iter().map(|name| port(name, &format!("/run/{name}"), "web"));
            let mut desired = Desired::default();
            for entry in keys.iter().map(|keys| entry(Kind::Filter, keys)).chain(ports) {
                desired.add(entry).unwrap();
            }
            for filter in filters.compile(&desired, |_| false).values() {
                filter.rules.counts(0).unwrap().add(5, 300);
            }
            filters.refusals(9).first().map(|((filter, place), count)| {
                assert_eq!((filter.as_str(), *place), ("web", RulePlace::Number(1)));
                *count
            })
        };
        assert_eq!(compile(Some("in drop tcp"), &["vm1", "vm2"]), Some(10));
        assert_eq!(compile(Some("in drop udp"), &["vm1", "vm2"]), Some(20));
        assert_eq!(compile(Some("in drop udp"), &["vm2"]), Some(25));
        assert_eq!(compile(None, &[]), None, "the filter is gone");
    }
}
