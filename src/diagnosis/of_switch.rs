//! What is wrong with the switch as a whole.

use super::facts::{Degraded, Facts, Odd};
use super::{DEGRADED, Finding, NOT_KEPT, SETTINGS_AT_ODDS};

/// Names that are listed of several.
const MOST_NAMED: usize = 3;

pub fn judge(facts: &Facts, found: &mut Vec<Finding>) {
    for Degraded { code, port, why } in &facts.condition.degraded {
        let cause = format!("not all is served: {why}");
        let command = "journalctl -u vioswitchd -p warning";
        let finding = Finding::of_switch(DEGRADED, cause, command);
        found.push(Finding { code, port: port.clone(), ..finding });
    }
    for Odd { port, cause, command } in &facts.condition.odd {
        let finding = Finding::of_switch(SETTINGS_AT_ODDS, cause.clone(), command.clone());
        found.push(Finding { port: Some(port.clone()), ..finding });
    }
    let added = &facts.condition.not_kept;
    if !added.is_empty() {
        let more = if added.len() > MOST_NAMED { ", …" } else { "" };
        let names = added[..added.len().min(MOST_NAMED)].join(", ");
        let cause = format!(
            "added while the switch runs, and gone when it is restarted, as it has no directory to \
             keep changes in (vioswitchd --state-dir): {names}{more}"
        );
        let command = "vioswitchctl config save";
        let finding = Finding::of_switch(NOT_KEPT, cause, command);
        found.push(Finding { with: added.clone(), ..finding });
    }
}
