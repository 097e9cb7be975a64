//! The filters of ports, with the groups that their rules name, from the settings of all entries.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::keys::Settings;
use super::kind::Kind;
pub use switch::filter::check::Finding;
use switch::filter::check::check;
use switch::filter::{Compiled, Direction, Filter, Group, Span, TooLarge, Verdict, named};

/// All filters and groups, by name.
#[derive(Debug, Clone, Default)]
pub struct Rulebook {
    filters: HashMap<String, Arc<Filter>>,
    groups: HashMap<String, Arc<Group>>,
}

/// Filters of a port, in order, and the groups that the rules name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortRules {
    /// The filters.
    pub filters: Vec<Arc<Filter>>,
    groups: Vec<Arc<Group>>,
}

impl Rulebook {
    /// Reads the filters and groups of all entries. Takes those that have not changed from
    /// `before`, so that a comparison of their rules compares pointers.
    pub fn new<'s>(all: impl Iterator<Item = &'s Settings> + Clone, before: &Rulebook) -> Rulebook {
        let of = |kind: Kind| all.clone().filter(move |settings| settings.kind == kind);
        let filters = of(Kind::Filter).filter_map(|settings| {
            let same = |known: &&Arc<Filter>| settings.has_rules_of(known);
            let known = before.filters.get(&settings.name).filter(same).cloned();
            Some((settings.name.clone(), known.or_else(|| settings.filter().map(Arc::new))?))
        });
        let ports: HashMap<&str, &Settings> = all
            .clone()
            .filter(|settings| settings.kind.is_port())
            .map(|port| (port.name.as_str(), port))
            .collect();
        let groups = of(Kind::Group).map(|settings| {
            let group = group(settings, &ports);
            let known = before.groups.get(&group.name).filter(|known| ***known == group);
            (group.name.clone(), known.cloned().unwrap_or_else(|| Arc::new(group)))
        });
        Rulebook { filters: filters.collect(), groups: groups.collect() }
    }

    /// Returns the rules of a port that names these filters; `None` if the port names no filter. A
    /// port for which a filter or a group is missing gets a filter that drops all: without the
    /// rules that are missing, the others could accept what the operator wants to drop.
    pub fn rules_of(&self, names: &[String]) -> Option<PortRules> {
        (!names.is_empty()).then(|| self.all_of(names).unwrap_or_else(PortRules::closed))
    }

    /// Returns filters and groups of a list of filters; `None` if one does not exist.
    fn all_of(&self, names: &[String]) -> Option<PortRules> {
        let filters = names.iter().map(|name| self.filters.get(name).cloned());
        let filters: Vec<_> = filters.collect::<Option<_>>()?;
        let groups: BTreeSet<&str> = filters.iter().flat_map(|filter| filter.groups()).collect();
        let groups = groups.into_iter().map(|name| self.groups.get(name).cloned());
        let groups = groups.collect::<Option<_>>()?;
        Some(PortRules { filters, groups })
    }

    /// Returns the rules of a port, or of a filter by itself.
    pub fn rules_in(&self, settings: &Settings) -> Option<PortRules> {
        self.rules_of(settings.filters())
    }

    /// Returns the number of a filter's rules; `None` if no filter has this name.
    pub fn rules_of_filter(&self, name: &str) -> Option<usize> {
        self.filters.get(name).map(|filter| filter.rules.len())
    }

    /// Returns the filters and groups that an entry names and that do not exist.
    pub fn missing(&self, settings: &Settings) -> Vec<(Kind, String)> {
        let wanted = settings.filter_names().iter().map(|name| (Kind::Filter, name.as_str()));
        let own = self.filters.get(&settings.name).filter(|_| settings.kind == Kind::Filter);
        let groups = own.into_iter().flat_map(|filter| filter.groups());
        let is_missing = |(kind, name): &(Kind, &str)| match kind {
            Kind::Filter => !self.filters.contains_key(*name),
            _ => !self.groups.contains_key(*name),
        };
        let wanted = wanted.chain(groups.map(|name| (Kind::Group, name)));
        wanted.filter(is_missing).map(|(kind, name)| (kind, name.to_owned())).collect()
    }
}

impl PortRules {
    /// Returns rules that drop all packets but those of neighbour discovery.
    pub fn closed() -> PortRules {
        let drop = Some(Verdict::Drop);
        let filter = Filter { default_in: drop, default_out: drop, ..Filter::default() };
        PortRules { filters: vec![Arc::new(filter)], groups: Vec::new() }
    }

    /// Compiles the rules. `generation` tells the rules from the port's rules before.
    pub fn compile(&self, generation: u32) -> Result<Compiled, TooLarge> {
        Compiled::new(&self.filters(), &self.groups(), generation)
    }

    /// Returns an error if the rules cannot be compiled.
    pub fn check_size(&self) -> Result<(), TooLarge> {
        self.compile(0).map(drop)
    }

    /// Finds rules that can never match, and groups without addresses.
    pub fn findings(&self) -> Result<Vec<Finding>, TooLarge> {
        check(&self.filters(), &self.groups())
    }

    /// Returns the place of the filter whose default of a direction is in force: the first filter
    /// that states one, or else the first.
    pub fn default_of(&self, direction: Direction) -> usize {
        let states = |filter: &Arc<Filter>| filter.default_of(direction).is_some();
        self.filters.iter().position(states).unwrap_or(0)
    }

    fn filters(&self) -> Vec<&Filter> {
        self.filters.iter().map(Arc::as_ref).collect()
    }

    fn groups(&self) -> named::Groups {
        self.groups.iter().map(|group| (group.name.clone(), Group::clone(group))).collect()
    }
}

/// Returns a group with its own addresses and those of its ports.
fn group(settings: &Settings, ports: &HashMap<&str, &Settings>) -> Group {
    let ports = settings.ports.iter().filter_map(|name| ports.get(name.as_str()));
    let of_ports = ports.flat_map(|port| port.allowed_ips.iter().copied().map(Span::from));
    let addresses = settings.addresses.iter().copied().chain(of_ports).collect();
    Group { name: settings.name.clone(), addresses }
}
