//! Filters and groups, as an operator names them.

use std::collections::HashMap;

use super::rule::{Address, End};
use super::{Direction, FilterRule, Span, Verdict};

/// A named list of rules.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Filter {
    /// Name of the filter.
    pub name: String,
    /// Verdict about packets to the VM that match no rule; `None` leaves the choice to the other
    /// filters of the port.
    pub default_in: Option<Verdict>,
    /// Verdict about packets from the VM that match no rule.
    pub default_out: Option<Verdict>,
    /// The rules, in order.
    pub rules: Vec<FilterRule>,
}

/// Addresses with a name. The caller resolves members that are ports to the ports' addresses.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Group {
    /// Name of the group.
    pub name: String,
    /// The addresses.
    pub addresses: Vec<Span>,
}

/// Groups by name.
pub type Groups = HashMap<String, Group>;

impl Filter {
    /// Returns the default of a direction.
    pub fn default_of(&self, direction: Direction) -> Option<Verdict> {
        match direction {
            Direction::In => self.default_in,
            Direction::Out => self.default_out,
        }
    }

    /// Returns the names of the groups that the rules use, each once.
    pub fn groups(&self) -> Vec<&str> {
        let ends = self.rules.iter().flat_map(|rule| [&rule.from, &rule.to]);
        let mut names: Vec<_> = ends.flat_map(|end| &end.addresses).filter_map(group).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

fn group(address: &Address) -> Option<&str> {
    match address {
        Address::Group(name) => Some(name),
        Address::Span(_) => None,
    }
}

/// Returns a port's default verdict: the default of the first of its `filters` that has a default,
/// otherwise `Accept`.
pub fn default_of(filters: &[&Filter], direction: Direction) -> Verdict {
    filters.iter().find_map(|filter| filter.default_of(direction)).unwrap_or(Verdict::Accept)
}

/// The addresses of one end of a rule, with groups resolved.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Reach {
    /// Any address.
    Any,
    /// These addresses; none of them if all groups are empty.
    Spans(Vec<Span>),
}

impl Reach {
    /// Resolves the groups of an end. A group that does not exist has no addresses.
    pub(super) fn of(end: &End, groups: &Groups) -> Reach {
        if end.addresses.is_empty() {
            return Reach::Any;
        }
        let mut spans = Vec::new();
        for address in &end.addresses {
            match address {
                Address::Span(span) => spans.push(*span),
                Address::Group(name) => {
                    spans.extend(groups.get(name).iter().flat_map(|group| &group.addresses));
                }
            }
        }
        Reach::Spans(spans)
    }

    /// Returns the ranges of one version of IP, as numbers.
    pub(super) fn ranges(&self, v6: bool) -> Vec<(u128, u128)> {
        match self {
            Reach::Any => vec![(0, if v6 { u128::MAX } else { u32::MAX.into() })],
            Reach::Spans(spans) => {
                spans.iter().filter(|span| span.is_v6() == v6).map(|span| span.bits()).collect()
            }
        }
    }
}
