//! The lines of a port's rules: a line is a product of five sets, one for each field of a packet.
//!
//! A rule is one line, but for types of ICMP: a rule for `tcp, icmp:echo-request` is no product,
//! so each protocol whose types are listed has a line of its own.

use std::collections::HashMap;
use std::rc::Rc;

use super::field::{Range, Set, union};
use super::too_large::TooLarge;
use crate::filter::Direction;
use crate::filter::named::{Filter, Groups, Reach};
use crate::filter::rule::{Address, End, FilterRule, Ports, Protocol, RuleNumber};
use base::limits::MAX_FILTER_LINES;

const ALL_NUMBERS: Range = (0, u16::MAX as u128);

/// A line. Sets by version of IP have the ranges of IPv4 first.
#[derive(Debug)]
pub(in crate::filter) struct Line {
    pub(super) rule: RuleNumber,
    pub(super) from: [Set; 2],
    pub(super) to: [Set; 2],
    pub(super) protocols: [Set; 2],
    pub(super) from_port: Set,
    pub(super) to_port: Set,
}

impl Line {
    /// Returns the number of the line's rule.
    pub(in crate::filter) fn rule(&self) -> RuleNumber {
        self.rule
    }

    /// True if the line matches no packet.
    pub(in crate::filter) fn is_empty(&self) -> bool {
        [false, true].into_iter().all(|v6| self.is_empty_in(v6))
    }

    fn is_empty_in(&self, v6: bool) -> bool {
        self.sets(v6).iter().any(|set| set.is_empty())
    }

    fn sets(&self, v6: bool) -> [&Set; 5] {
        let v6 = usize::from(v6);
        let Line { from, to, protocols, from_port, to_port, .. } = self;
        [from_port, to_port, &protocols[v6], &from[v6], &to[v6]]
    }

    /// True if `other` matches all packets that the line matches.
    pub(in crate::filter) fn is_within(&self, other: &Line) -> bool {
        [false, true].into_iter().all(|v6| {
            let mut sets = self.sets(v6).into_iter().zip(other.sets(v6));
            self.is_empty_in(v6) || sets.all(|(all, of)| Rc::ptr_eq(all, of) || is_subset(all, of))
        })
    }
}

/// True if the ranges of `of` have all values of the ranges of `all`.
fn is_subset(all: &[Range], of: &[Range]) -> bool {
    let joined = union(of);
    all.iter().all(|(first, last)| {
        let at = joined.partition_point(|range| range.1 < *first);
        joined.get(at).is_some_and(|range| range.0 <= *first && *last <= range.1)
    })
}

/// Returns the lines of one direction, in order.
pub(in crate::filter) fn of(
    filters: &[&Filter],
    groups: &Groups,
    direction: Direction,
) -> Result<Vec<Line>, TooLarge> {
    let rules = filters.iter().flat_map(|filter| &filter.rules).enumerate();
    let (mut lines, mut ends) = (Vec::new(), Ends { groups, known: HashMap::new() });
    for (number, rule) in rules.filter(|(_, rule)| rule.direction == direction) {
        add(&mut lines, number as RuleNumber, rule, &mut ends);
    }
    match lines.len() <= MAX_FILTER_LINES {
        true => Ok(lines),
        false => Err(TooLarge::Lines(lines.len())),
    }
}

/// The sets of the ends of rules, by the addresses that the rules name.
struct Ends<'r> {
    groups: &'r Groups,
    known: HashMap<&'r [Address], [Set; 2]>,
}

impl<'r> Ends<'r> {
    fn set(&mut self, end: &'r End) -> [Set; 2] {
        let Ends { groups, known } = self;
        let resolve = || {
            let reach = Reach::of(end, groups);
            [false, true].map(|v6| reach.ranges(v6).into())
        };
        known.entry(&end.addresses).or_insert_with(resolve).clone()
    }
}

/// Adds the lines of a rule.
fn add<'r>(lines: &mut Vec<Line>, rule: RuleNumber, what: &'r FilterRule, ends: &mut Ends<'r>) {
    let (from, to) = (ends.set(&what.from), ends.set(&what.to));
    let from_port = ports(&what.from.ports);
    let mut add = |protocols: [Set; 2], to_port: Set| {
        let (from, to, from_port) = (from.clone(), to.clone(), from_port.clone());
        lines.push(Line { rule, from, to, protocols, from_port, to_port });
    };
    if what.protocols.is_empty() {
        let all: Set = [ALL_NUMBERS].into();
        return add([all.clone(), all], ports(&what.to.ports));
    }
    let (typed, plain): (Vec<Protocol>, Vec<Protocol>) =
        what.protocols.iter().partition(|protocol| protocol.message().is_some());
    if !plain.is_empty() {
        let numbers = |v6| {
            let here = plain.iter().filter(|protocol| protocol.is_in(v6));
            here.map(|protocol| one(protocol.number())).collect()
        };
        add([numbers(false), numbers(true)], ports(&what.to.ports));
    }
    for v6 in [false, true] {
        let here = typed.iter().filter(|protocol| protocol.is_in(v6));
        let messages: Vec<_> = here.filter_map(|protocol| protocol.message()).collect();
        if !messages.is_empty() {
            let number = if v6 { Protocol::Icmp6(None) } else { Protocol::Icmp(None) }.number();
            let mut protocols: [Set; 2] = [[].into(), [].into()];
            protocols[usize::from(v6)] = [one(number)].into();
            add(protocols, messages.iter().map(|message| range(&message.ports())).collect());
        }
    }
}

fn one(number: u8) -> Range {
    (number.into(), number.into())
}

fn range(ports: &Ports) -> Range {
    (ports.first.into(), ports.last.into())
}

/// Returns the ranges of a list of ports; an empty list stands for any.
fn ports(list: &[Ports]) -> Set {
    match list {
        [] => [ALL_NUMBERS].into(),
        list => list.iter().map(range).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::tests::{filter, groups};

    /// A group of thousands of addresses may be in each of a thousand rules.
    #[test]
    fn rules_with_equal_addresses_share_a_set() {
        let groups = groups(&[("all", &["10.0.0.1", "10.0.0.3", "fd00::1"])]);
        let rules = ["in accept tcp from group:all", "in drop from group:all to 10.0.0.1"];
        let lines = of(&[&filter(&rules)], &groups, Direction::In).unwrap();
        for v6 in [0, 1] {
            assert!(Rc::ptr_eq(&lines[0].from[v6], &lines[1].from[v6]));
        }
        assert_eq!((lines[0].from[0].len(), lines[0].from[1].len()), (2, 1));
        assert!(!Rc::ptr_eq(&lines[0].to[0], &lines[1].to[0]));
    }
}
