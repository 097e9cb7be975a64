//! Faults of the switch itself: as a whole, as a process, and by its configuration.

use api::wire::Step;
use base::words::quote;

use super::facts::{Facts, Port};
use super::findings::Findings;
use crate::output::text;
use crate::show;

/// Share of the time that a worker may be ready without a CPU, in percent.
const MOST_WAITING: u64 = 20;
/// Most names that a finding lists.
const MOST_NAMED: usize = 3;

pub fn judge(facts: &Facts, findings: &mut Findings) {
    version(facts, findings);
    configuration(facts, findings);
    unconfirmed(facts, findings);
    unit(facts, findings);
    workers(facts, findings);
    let names: Vec<&str> = facts.ports.iter().map(Port::name).collect();
    let without = facts.host.devices.iter().filter(|name| !names.contains(&name.as_str()));
    without.for_each(|name| left_device(name, findings));
}

/// Reports a VDUSE device that no port of the switch is for.
pub fn left_device(name: &str, findings: &mut Findings) {
    let cause = format!(
        "a switch has made VDUSE device {name}, and this switch has no port of the name: unless \
         another switch serves the device, its interface leads nowhere"
    );
    findings.warn("device-left", "", cause, &format!("vdpa dev del {}", quote(name)));
}

fn version(facts: &Facts, findings: &mut Findings) {
    let switch = text(&facts.status.version);
    let client = &facts.client_version;
    if switch != *client {
        let cause = format!("the running switch has version {switch}, this vioswitchctl {client}");
        findings.warn("version-differs", "", cause, &facts.restart());
    } else if facts.daemon.replaced {
        let cause = "the program file was replaced after the start: the old program runs";
        findings.warn("program-replaced", "", cause.to_owned(), &facts.restart());
    }
}

fn configuration(facts: &Facts, findings: &mut Findings) {
    match &facts.reload {
        Some(Err(why)) => {
            let cause = format!("the files have errors, and the earlier configuration runs: {why}");
            findings.fail("config-bad", "", cause, "vioswitchctl config diff");
        }
        Some(Ok(steps)) if steps.iter().any(differs) => {
            let steps: Vec<&Step> = steps.iter().filter(|step| differs(step)).collect();
            let about = |step: &&Step| match &step.name {
                Some(name) => format!("{}{name}", step.sign),
                None => "keys that take effect at the next start".to_owned(),
            };
            let named: Vec<String> = steps.iter().take(MOST_NAMED).map(about).collect();
            let more = if steps.len() > MOST_NAMED { ", …" } else { "" };
            let named = named.join(", ");
            let cause = format!("the files differ from the running configuration: {named}{more}");
            let command = "vioswitchctl config diff; vioswitchctl config reload";
            findings.warn("config-differs", "", cause, command);
        }
        _ => {}
    }
}

/// True if a step of a reload changes more than the origin of a port that runs as the files say.
fn differs(step: &Step) -> bool {
    step.sign != "~" || !step.changes.is_empty()
}

fn unconfirmed(facts: &Facts, findings: &mut Findings) {
    if let Some(waiting) = &facts.status.unconfirmed {
        let cause = format!("a reload {}", show::unconfirmed(waiting));
        findings.warn("reload-unconfirmed", "", cause, "vioswitchctl config confirm");
    }
}

fn unit(facts: &Facts, findings: &mut Findings) {
    let Some(unit) = &facts.daemon.unit else { return };
    let name = &unit.name;
    if unit.stale {
        let cause = format!("the files of {name} have changed since systemd read them");
        let command = format!("systemctl daemon-reload && systemctl restart {name}");
        findings.warn("unit-stale", "", cause, &command);
    }
    if !unit.overrides.is_empty() {
        let files = unit.overrides.join(", ");
        let cause = format!("{name} differs from the installed unit: {files}");
        let command = format!("systemctl cat {name}; systemctl edit {name}");
        findings.warn("unit-overridden", "", cause, &command);
    }
}

fn workers(facts: &Facts, findings: &mut Findings) {
    let daemon = &facts.daemon;
    let share = |waited: u64| waited.saturating_mul(100).checked_div(daemon.looked).unwrap_or(0);
    let starved = daemon.waits.iter().filter(|(_, waited)| share(*waited) > MOST_WAITING);
    let starved: Vec<String> =
        starved.map(|(name, waited)| format!("{name} {} %", share(*waited))).collect();
    if !starved.is_empty() {
        let cause = format!(
            "workers had frames and no CPU, by the share of the time: {}; other processes run on \
             the workers' CPUs",
            starved.join(", ")
        );
        let command =
            "vioswitchd --cpus LIST, with CPUs that nothing else uses, or fewer --workers";
        findings.warn("worker-starved", "", cause, command);
    }
}
