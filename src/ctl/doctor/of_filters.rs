//! Faults of filters: rules that never match, groups without addresses, names that do not exist.

use api::wire::{Finding, Level};

use super::facts::Facts;
use super::findings::Findings;
use crate::filters::check::FilterFault;

pub(crate) fn judge(facts: &Facts, findings: &mut Findings) {
    for FilterFault { name, ports, drops, cause, command } in &facts.filters {
        findings.0.push(Finding {
            level: if *drops { Level::Fail } else { Level::Warn },
            code: "filter-at-odds".to_owned(),
            port: Some(name.clone()),
            with: ports.clone(),
            cause: cause.clone(),
            command: command.clone(),
        });
    }
}
