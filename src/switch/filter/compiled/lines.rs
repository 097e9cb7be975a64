//! The lines of a port's rules: a line is a product of five sets, one for each field of a packet.
//!
//! A rule is one line, but for types of ICMP: a rule for `tcp, icmp:echo-request` is no product,
//! so each protocol whose types are listed has a line of its own.

use super::field::{Range, addresses, numbers, union};
use super::{Ends, RuleNumber, Table, TooLarge};
use crate::filter::Direction;
use crate::filter::named::{Filter, Groups, Reach};
use crate::filter::rule::{FilterRule, Ports, Protocol};
use base::limits::MAX_FILTER_LINES;

const ALL_NUMBERS: Range = (0, u16::MAX as u128);

/// A line. Lists by version of IP have the ranges of IPv4 first.
#[derive(Clone, Debug)]
pub(in crate::filter) struct Line {
    rule: RuleNumber,
    from: [Vec<Range>; 2],
    to: [Vec<Range>; 2],
    protocols: [Vec<Range>; 2],
    from_port: Vec<Range>,
    to_port: Vec<Range>,
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
        self.lists(v6).iter().any(|list| list.is_empty())
    }

    fn lists(&self, v6: bool) -> [&[Range]; 5] {
        let v6 = usize::from(v6);
        let Line { from, to, protocols, from_port, to_port, .. } = self;
        [from_port, to_port, &protocols[v6], &from[v6], &to[v6]].map(Vec::as_slice)
    }

    /// True if `other` matches all packets that the line matches.
    pub(in crate::filter) fn is_within(&self, other: &Line) -> bool {
        [false, true].into_iter().all(|v6| {
            let lists = self.lists(v6).into_iter().zip(other.lists(v6));
            self.is_empty_in(v6) || lists.into_iter().all(|(all, of)| is_subset(all, of))
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
    let mut lines = Vec::new();
    for (number, rule) in rules.filter(|(_, rule)| rule.direction == direction) {
        add(&mut lines, number as RuleNumber, rule, groups);
    }
    match lines.len() <= MAX_FILTER_LINES {
        true => Ok(lines),
        false => Err(TooLarge::Lines(lines.len())),
    }
}

/// Adds the lines of a rule.
fn add(lines: &mut Vec<Line>, rule: RuleNumber, what: &FilterRule, groups: &Groups) {
    let ranges = |reach: Reach| [false, true].map(|v6| reach.ranges(v6));
    let from = ranges(Reach::of(&what.from, groups));
    let to = ranges(Reach::of(&what.to, groups));
    let from_port = ports(&what.from.ports);
    let mut add = |protocols: [Vec<Range>; 2], to_port: Vec<Range>| {
        let (from, to, from_port) = (from.clone(), to.clone(), from_port.clone());
        lines.push(Line { rule, from, to, protocols, from_port, to_port });
    };
    if what.protocols.is_empty() {
        let all = vec![ALL_NUMBERS];
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
            let mut protocols = [Vec::new(), Vec::new()];
            protocols[usize::from(v6)].push(one(number));
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
fn ports(list: &[Ports]) -> Vec<Range> {
    match list {
        [] => vec![ALL_NUMBERS],
        list => list.iter().map(range).collect(),
    }
}

impl Table {
    /// Makes the table of a direction's lines.
    pub(super) fn build(lines: &[Line], default: RuleNumber) -> Result<Table, TooLarge> {
        let all =
            |list: fn(&Line) -> &Vec<Range>| lines.iter().map(list).cloned().collect::<Vec<_>>();
        Ok(Table {
            v4: Ends {
                from: addresses(&all(|line| &line.from[0]), u32::MAX)?,
                to: addresses(&all(|line| &line.to[0]), u32::MAX)?,
                protocols: numbers(&all(|line| &line.protocols[0]))?,
            },
            v6: Ends {
                from: addresses(&all(|line| &line.from[1]), u128::MAX)?,
                to: addresses(&all(|line| &line.to[1]), u128::MAX)?,
                protocols: numbers(&all(|line| &line.protocols[1]))?,
            },
            from_port: numbers(&all(|line| &line.from_port))?,
            to_port: numbers(&all(|line| &line.to_port))?,
            rules: lines.iter().map(|line| line.rule).collect(),
            default,
        })
    }
}
