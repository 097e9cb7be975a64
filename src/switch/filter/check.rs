//! Finds what an operator did not mean: rules that can never match, and groups without addresses.

use super::compiled::lines;
use super::named::{Filter, Groups};
use super::{Direction, TooLarge};

/// A thing that is probably not meant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Finding {
    /// A rule can never match: other rules decide about each packet first, or no packet is like it.
    NeverMatches {
        /// Place of the filter in the list.
        filter: usize,
        /// Place of the rule in the filter.
        rule: usize,
        /// Filter and rule that decide first, if there are such.
        by: Option<(usize, usize)>,
    },
    /// A group that a rule names has no addresses.
    EmptyGroup(String),
    /// A group that a rule names does not exist.
    NoGroup(String),
}

/// Examines the filters of a port, in order. A rule that several others cover together is not
/// found.
pub fn check(filters: &[&Filter], groups: &Groups) -> Result<Vec<Finding>, TooLarge> {
    let mut findings = Vec::new();
    for name in filters.iter().flat_map(|filter| filter.groups()) {
        let finding = match groups.get(name) {
            None => Finding::NoGroup(name.to_owned()),
            Some(group) if group.addresses.is_empty() => Finding::EmptyGroup(name.to_owned()),
            Some(_) => continue,
        };
        if !findings.contains(&finding) {
            findings.push(finding);
        }
    }
    let places: Vec<_> = filters
        .iter()
        .enumerate()
        .flat_map(|(filter, of)| (0..of.rules.len()).map(move |rule| (filter, rule)))
        .collect();
    let mut never = Vec::new();
    for direction in Direction::ALL {
        let lines = lines::of(filters, groups, direction)?;
        for of in lines.chunk_by(|a, b| a.rule() == b.rule()) {
            let rule = of[0].rule();
            let before = lines.iter().take_while(|line| line.rule() != rule);
            let before: Vec<_> = before.collect();
            let cover = |line: &lines::Line| before.iter().find(|other| line.is_within(other));
            let matches = |line: &&lines::Line| !line.is_empty() && cover(line).is_none();
            if !of.iter().any(|line| matches(&line)) {
                let by = of.iter().filter(|line| !line.is_empty()).find_map(cover);
                never.push((usize::from(rule), by.map(|line| usize::from(line.rule()))));
            }
        }
    }
    never.sort_unstable();
    findings.extend(never.into_iter().filter_map(|(rule, by)| {
        let (filter, rule) = *places.get(rule)?;
        let by = by.and_then(|by| places.get(by).copied());
        Some(Finding::NeverMatches { filter, rule, by })
    }));
    Ok(findings)
}
