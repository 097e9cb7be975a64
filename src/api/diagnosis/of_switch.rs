//! Faults of the switch as a whole.

use super::facts::{Degraded, Facts, Odd};
use super::finding::{DEGRADED, Finding, KEPT_WITHOUT_EFFECT, SANDBOX_REFUSED, SETTINGS_AT_ODDS};

/// Largest number of names in a list.
const MOST_NAMED: usize = 3;

pub fn judge(facts: &Facts, found: &mut Vec<Finding>) {
    for Degraded { code, port, why } in &facts.condition.degraded {
        let cause = format!("the switch does not serve its whole configuration: {why}");
        let command = "journalctl -u vioswitchd -p warning";
        let finding = Finding::of_switch(DEGRADED, cause, command);
        found.push(Finding { code, port: port.clone(), ..finding });
    }
    for (code, all) in
        [(SETTINGS_AT_ODDS, &facts.condition.odd), (KEPT_WITHOUT_EFFECT, &facts.condition.unused)]
    {
        for Odd { port, with, cause, command } in all {
            let finding = Finding::of_switch(code, cause.clone(), command.clone());
            let port = Some(port.clone()).filter(|port| !port.is_empty());
            found.push(Finding { port, with: with.clone(), ..finding });
        }
    }
    found.extend(sandbox_refused(&facts.condition.refused_calls));
}

/// Finds system calls that the sandbox refused. An attacker may control the process, so only a new
/// process is safe.
fn sandbox_refused(calls: &[(String, u64)]) -> Option<Finding> {
    if calls.is_empty() {
        return None;
    }
    let named = calls.iter().take(MOST_NAMED).map(|(name, count)| format!("{name} ({count})"));
    let more = if calls.len() > MOST_NAMED { ", …" } else { "" };
    let cause = format!(
        "the sandbox refused system calls: {}{more}: an attack, or a bug of the switch",
        named.collect::<Vec<_>>().join(", ")
    );
    let command = "systemctl restart vioswitchd; and report the calls to its developers";
    Some(Finding::of_switch(SANDBOX_REFUSED, cause, command))
}
