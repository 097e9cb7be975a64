//! Faults of the switch as a whole.

use super::facts::{Condition, Degraded, Facts, Odd};
use super::{DEGRADED, Finding, NOT_KEPT, SANDBOX_REFUSED, SETTINGS_AT_ODDS};
use base::words::quote;

/// Largest number of names in a list.
const MOST_NAMED: usize = 3;
/// The file that `vioswitchctl config save` takes unless it is told another one.
const CONFIG: &str = "/etc/vioswitch/vioswitch.toml";

pub fn judge(facts: &Facts, found: &mut Vec<Finding>) {
    for Degraded { code, port, why } in &facts.condition.degraded {
        let cause = format!("not all is served: {why}");
        let command = "journalctl -u vioswitchd -p warning";
        let finding = Finding::of_switch(DEGRADED, cause, command);
        found.push(Finding { code, port: port.clone(), ..finding });
    }
    for Odd { port, with, cause, command } in &facts.condition.odd {
        let finding = Finding::of_switch(SETTINGS_AT_ODDS, cause.clone(), command.clone());
        found.push(Finding { port: Some(port.clone()), with: with.clone(), ..finding });
    }
    found.extend(not_kept(&facts.condition));
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

fn not_kept(Condition { not_kept, file, .. }: &Condition) -> Option<Finding> {
    if not_kept.is_empty() {
        return None;
    }
    let list = |all: &[&str]| {
        let more = if all.len() > MOST_NAMED { ", …" } else { "" };
        format!("{}{more}", all[..all.len().min(MOST_NAMED)].join(", "))
    };
    let changes: Vec<&str> = not_kept.iter().map(|one| one.what.as_str()).collect();
    let cause = format!(
        "a restart of the switch undoes changes, as it has no --state-dir to keep them in: {}",
        list(&changes)
    );
    let of_arguments: Vec<&str> =
        not_kept.iter().filter(|one| one.is_argument).map(|one| one.port.as_str()).collect();
    let save = file.as_ref().filter(|_| of_arguments.len() < not_kept.len());
    let save = save.map(|file| match file.as_str() {
        CONFIG => "vioswitchctl config save".to_owned(),
        _ => format!("vioswitchctl config save --config {}", quote(file)),
    });
    let command = match (save, file) {
        (Some(save), _) if of_arguments.is_empty() => save,
        (save, Some(_)) => {
            let save = save.map(|save| format!("{save}; ")).unwrap_or_default();
            let names = list(&of_arguments);
            format!("{save}vioswitchctl config show, for vioswitchd's arguments for {names}")
        }
        (_, None) => {
            "vioswitchctl config show > FILE; then start vioswitchd with --config FILE in place of \
             --port, --tap and --stream"
                .to_owned()
        }
    };
    let with = not_kept.iter().map(|one| one.port.clone()).collect();
    Some(Finding { with, ..Finding::of_switch(NOT_KEPT, cause, command) })
}
