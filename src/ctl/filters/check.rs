//! Finds what is not meant in filters: rules that can never match, groups without addresses, and
//! names that do not exist.

use std::collections::BTreeSet;
use std::path::Path;

use api::config::{
    CliAction, Config, Finding, Kind, Machine, PortRules, Request, Rulebook, Settings, Value,
};
use api::wire::ConfigEntry;
use base::limits::MAX_WORKERS;
use serde::Serialize;

use crate::failure::Failure;
use crate::output::{Output, listed, text};

/// A fault of a filter, or of a port that names filters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct FilterFault {
    /// The filter or port.
    pub(crate) name: String,
    /// Ports whose list of filters has the fault; empty if each list with the filter has it.
    pub(crate) ports: Vec<String>,
    /// Packets of the port are dropped because a filter or group does not exist.
    pub(crate) drops: bool,
    /// Description of the fault, in a sentence.
    pub(crate) cause: String,
    /// Command that removes the fault.
    pub(crate) command: String,
}

impl FilterFault {
    /// True if the fault is about this filter or port.
    pub(crate) fn is_about(&self, name: &str) -> bool {
        self.name == name || self.ports.iter().any(|port| port == name)
    }
}

/// True if the argument of `filter check` names a file.
pub(crate) fn is_file(what: &str) -> bool {
    what.contains('/') || what.ends_with(".toml")
}

/// Returns the settings of the entries in force. An entry of a later version is left out.
pub(crate) fn settings(entries: &[ConfigEntry]) -> Vec<Settings> {
    let in_force = entries.iter().filter(|entry| entry.unused.is_none());
    let parsed = in_force.filter_map(|ConfigEntry { kind, name, keys, .. }| {
        let mut given = vec![("name".to_owned(), Value::Word(name.clone()))];
        for key in keys {
            let words = key.values.iter();
            given.extend(words.map(|word| (key.key.clone(), Value::Word(word.clone()))));
        }
        Settings::parse(Kind::named(kind)?, given).ok()
    });
    parsed.collect()
}

/// Returns the settings of a configuration file, with the files of `conf.d` beside the file.
pub(crate) fn of_file(path: &str) -> Result<Vec<Settings>, Failure> {
    let cpus: Vec<usize> = (0..MAX_WORKERS).collect();
    let machine = Machine { cpus: cpus.len(), allowed: &cpus };
    let args = ["vioswitchd", "--config", path, "--control", "/control"];
    let read = || -> Result<Option<Config>, api::config::UsageError> {
        match Request::read(args, machine)? {
            CliAction::Request(request) => {
                let texts = request.texts()?;
                request.lay_over_at(&texts, &Path::to_path_buf).map(Some)
            }
            CliAction::Print(_) => Ok(None),
        }
    };
    let config = read().map_err(|error| Failure::refused(error.lines.join("\n")))?;
    let entries = config.into_iter().flat_map(|config| config.ports);
    Ok(entries.map(|entry| entry.settings).collect())
}

/// Returns the output of `filter check`, as JSON and as text: all faults, or only the faults of the
/// filter or port named `only`.
pub(crate) fn report(all: &[Settings], only: Option<&str>) -> Output {
    let mut faults = faults(all);
    faults.retain(|fault| only.is_none_or(|name| fault.is_about(name)));
    let line = |fault: &FilterFault| {
        format!("{}: {}\n      {}\n", text(&fault.name), text(&fault.cause), text(&fault.command))
    };
    listed("faults", &faults, |faults| faults.iter().map(line).collect())
}

/// Returns the faults of all filters, and of all ports that name filters.
pub(crate) fn faults(all: &[Settings]) -> Vec<FilterFault> {
    let book = Rulebook::new(all.iter(), &Rulebook::default());
    let mut found: Vec<FilterFault> = all.iter().flat_map(|one| missing(&book, one)).collect();
    for filter in all.iter().filter(|one| one.kind == Kind::Filter) {
        let rules = book.rules_in(filter);
        found.extend(rules.iter().flat_map(|rules| of_rules(rules, &[])));
    }
    let several = all.iter().filter(|one| one.filter_names().len() > 1);
    let lists: BTreeSet<&[String]> = several.clone().map(Settings::filter_names).collect();
    for names in lists {
        let ports = several.clone().filter(|port| port.filter_names() == names);
        let ports: Vec<String> = ports.map(|port| port.name.clone()).collect();
        let rules = book.rules_of(names);
        found.extend(rules.iter().flat_map(|rules| of_rules(rules, &ports)));
    }
    found
}

/// Finds names of filters and groups that do not exist.
fn missing<'s>(book: &Rulebook, settings: &'s Settings) -> impl Iterator<Item = FilterFault> + 's {
    book.missing(settings).into_iter().map(move |(kind, name)| {
        let effect = match kind {
            Kind::Filter => "all its packets are dropped",
            _ => "all packets of its ports are dropped",
        };
        let cause = format!("there is no {kind} '{name}': {effect}");
        let command = match kind {
            Kind::Filter => format!("vioswitchctl filter add {name} default-in=drop"),
            _ => format!("vioswitchctl group add {name} addresses=ADDRESS"),
        };
        let ports = Vec::new();
        FilterFault { name: settings.name.clone(), ports, drops: true, cause, command }
    })
}

/// Finds faults of the rules of one filter, or of the list of filters that `ports` have. A list has
/// the faults that none of its filters has alone.
fn of_rules(rules: &PortRules, ports: &[String]) -> Vec<FilterFault> {
    let name = |filter: usize| &rules.filters[filter].name;
    let names_empty = |filter: usize, rule: usize, found: &[Finding]| {
        let rule = rules.filters[filter].rules[rule].to_string();
        found.iter().any(|one| match one {
            Finding::EmptyGroup(group) | Finding::NoGroup(group) => {
                rule.split([' ', ',']).any(|word| word.strip_prefix("group:") == Some(group))
            }
            Finding::NeverMatches { .. } => false,
        })
    };
    let found = rules.findings().unwrap_or_default();
    let leave_out =
        |filter: usize| format!("delete the rule: vioswitchctl filter show {}", name(filter));
    let fault = |one: &Finding| {
        let (filter, cause, command) = match one {
            Finding::NeverMatches { filter, rule, by: Some((first, by)) }
                if ports.is_empty() || first != filter =>
            {
                let (rule, place, of) = (rule + 1, by + 1, name(*first));
                let text = rules.filters[*first].rules[*by].to_string();
                let cause = format!(
                    "rule {rule} never matches: rule {place} of '{of}' decides first: {text}"
                );
                (*filter, cause, leave_out(*filter))
            }
            Finding::NeverMatches { filter, rule, by: None }
                if ports.is_empty() && !names_empty(*filter, *rule, &found) =>
            {
                (*filter, format!("rule {} matches no packet", rule + 1), leave_out(*filter))
            }
            Finding::EmptyGroup(group) if ports.is_empty() => {
                let cause = format!("group '{group}' has no addresses: its rules match nothing");
                (0, cause, format!("vioswitchctl group set {group} addresses=ADDRESS"))
            }
            _ => return None,
        };
        let (name, ports, drops) = (name(filter).clone(), ports.to_vec(), false);
        Some(FilterFault { name, ports, drops, cause, command })
    };
    found.iter().filter_map(fault).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the settings of entries such as `filter:name=web rules=in accept tcp`; `;` separates
    /// the keys.
    fn settings(entries: &[&str]) -> Vec<Settings> {
        let entry = |text: &&str| {
            let (kind, keys) = text.split_once(':').expect("a kind");
            let word = |word: &str| Value::Word(word.to_owned());
            let pairs = keys.split(';').map(|pair| pair.split_once('=').expect("KEY=VALUE"));
            let pairs = pairs.map(|(key, value)| (key.to_owned(), word(value)));
            Settings::parse(Kind::named(kind).expect(kind), pairs.collect()).expect(text)
        };
        entries.iter().map(entry).collect()
    }

    fn causes(entries: &[&str]) -> Vec<String> {
        let about = |fault: FilterFault| {
            format!("{} {:?} {}: {}", fault.name, fault.ports, fault.drops, fault.cause)
        };
        faults(&settings(entries)).into_iter().map(about).collect()
    }

    #[test]
    fn each_fault_is_found_once_and_its_opposite_is_not() {
        let web = "filter:name=web;rules=in accept tcp";
        for (entries, wanted) in [
            (&[web, "filter:name=ssh;rules=in drop tcp to port 22"][..], &[][..]),
            (
                &["filter:name=web;rules=in accept tcp;rules=in drop tcp to port 22"],
                &["web [] false: rule 2 never matches: rule 1 of 'web' decides first: in accept \
                   tcp"],
            ),
            (
                &[
                    web,
                    "filter:name=ssh;rules=in drop tcp to port 22",
                    "stream:name=a;socket=/a;filter=web,ssh",
                    "stream:name=b;socket=/b;filter=ssh,web",
                    "stream:name=c;socket=/c;filter=web,ssh",
                ],
                &["ssh [\"a\", \"c\"] false: rule 1 never matches: rule 1 of 'web' decides \
                     first: in accept tcp"],
            ),
            (
                &["filter:name=web;rules=in accept tcp from group:none", "group:name=none"],
                &["web [] false: group 'none' has no addresses: its rules match nothing"],
            ),
            (
                &[
                    "filter:name=web;rules=in accept tcp from group:one",
                    "group:name=one;ports=a",
                    "stream:name=a;socket=/a;allowed-ips=10.0.0.1",
                ],
                &[],
            ),
            (
                &["filter:name=web;rules=in accept icmp from ::1"],
                &["web [] false: rule 1 matches no packet"],
            ),
            (
                &["stream:name=a;socket=/a;filter=gone"],
                &["a [] true: there is no filter 'gone': all its packets are dropped"],
            ),
            (
                &["filter:name=web;rules=in accept tcp from group:gone"],
                &["web [] true: there is no group 'gone': all packets of its ports are dropped"],
            ),
        ] {
            assert_eq!(causes(entries), wanted, "{entries:?}");
        }
    }
}
