//! `vioswitchctl doctor`: finds the faults of a switch, its guests and its host, with the cause and
//! the command that removes the fault.
//!
//! The switch itself finds the faults that the switch can know (`GetFindings`); the doctor adds the
//! faults that only the host shows. `gather` and its neighbours read facts, and change nothing;
//! `of_switch`, `of_filters`, `of_guest` and `of_uplink` judge the facts, and read nothing. A
//! finding has a code, which does not change in later versions.

mod facts;
pub mod findings;
mod firewall;
mod gather;
mod links;
mod of_filters;
mod of_guest;
mod of_switch;
mod of_uplink;
mod peers;
pub mod proc;
mod processes;
#[cfg(test)]
mod tests;
mod unit;
mod vduse;
mod watch;

use base::words::quote;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use api::wire::{Finding, Level};
use clap::Args;
use serde_json::{Value, json};

use crate::client::Client;
use crate::failure::{Failure, start_by_hand};
use crate::output::Output;
use crate::values;
use facts::{Ended, Facts};
use findings::{Findings, finding_lines, line, shown};

/// Find faults of the switch, its guests, its uplinks and the host
///
/// Each finding has a code, a cause, and a command that removes the fault. With root's rights,
/// doctor examines the processes of front-ends too. The exit status is 1 if a finding is FAIL, 3 if
/// no switch answers, and otherwise 0.
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Only this port, and the switch
    #[arg(value_name = "NAME")]
    port: Option<String>,
    /// Check whether this user of front-ends, such as libvirt-qemu, may connect
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Examine every SECONDS seconds, by default 5, and print a line for each finding that appears
    /// or disappears
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "5",
          value_parser = values::duration)]
    watch: Option<Duration>,
}

/// Returns all findings, the worst first: the switch's own findings, and the findings from the
/// host.
fn judge(facts: &Facts) -> Vec<Finding> {
    let mut findings = Findings(facts.findings.clone());
    of_switch::judge(facts, &mut findings);
    of_filters::judge(facts, &mut findings);
    for port in &facts.ports {
        if port.is_tap() {
            of_uplink::judge(port, facts, &mut findings);
        } else if port.is_uplink() {
            of_uplink::judge_xdp(port, facts, &mut findings);
        } else if matches!(port.shown().kind.as_str(), "stream" | "vduse") {
            of_guest::judge_stream(port, facts, &mut findings);
            vduse::judge(port, facts.status.pid, &mut findings);
        } else {
            of_guest::judge(port, facts, &mut findings);
        }
    }
    let mut findings = findings.0;
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    findings
}

/// Returns the reason why no switch answers, as a finding.
fn judge_ended(failure: &Failure, ended: &Ended, control: &Path) -> Vec<Finding> {
    let mut findings = Findings::default();
    let mut cause = failure.text.split(": ").next().unwrap_or_default().to_owned();
    let Ended { unit, state, result, status, said, others, devices } = ended;
    if unit.is_empty() {
        cause += "; systemd knows no unit of it";
    } else {
        let how = match result.as_str() {
            "" | "success" => String::new(),
            _ => format!(", {result}, status {status}"),
        };
        cause += &format!("; {unit} is {state}{how}");
    }
    if !said.is_empty() {
        cause += &format!("; its log ends with: {}", said.join(" | "));
    }
    let command = match (state.split(' ').next().unwrap_or_default(), others.first()) {
        (_, Some(other)) => format!("vioswitchctl --control {} doctor", quote(other)),
        ("failed", _) => format!("systemctl status {unit}; journalctl -u {unit}"),
        ("active", _) => format!("--control PATH, as in the configuration of {unit}"),
        _ if !unit.is_empty() => format!("systemctl start {unit}"),
        _ => start_by_hand(control),
    };
    findings.fail("switch-absent", "", cause, &command);
    devices.iter().for_each(|name| of_switch::left_device(name, &mut findings));
    findings.0
}

impl Doctor {
    /// Runs the doctor. Returns the exit status, and the answer unless `--watch` has printed the
    /// findings.
    pub(crate) fn run(
        &self,
        control: &Path,
        as_json: bool,
    ) -> Result<(Option<Output>, u8), Failure> {
        if let Some(every) = self.watch {
            watch::run(every, as_json, || Ok(self.look(control)?.1))?;
            return Ok((None, 0));
        }
        let (facts, findings, status) = self.look(control)?;
        Ok((Some((as_value(&facts, &findings), lines(&facts, &findings))), status))
    }

    /// Returns facts, findings, and the exit status.
    fn look(&self, control: &Path) -> Result<(Facts, Vec<Finding>, u8), Failure> {
        let (port, user) = (self.port.as_deref(), self.user.as_deref());
        let gathered =
            Client::connect(control).and_then(|mut client| gather::all(&mut client, port, user));
        match gathered {
            Ok(facts) => {
                let findings = judge(&facts);
                let failed = findings.iter().any(|finding| finding.level == Level::Fail);
                Ok((facts, findings, u8::from(failed)))
            }
            Err(failure) if failure.is_absence() => {
                let findings = judge_ended(&failure, &processes::ended(), control);
                Ok((Facts::default(), findings, failure.status))
            }
            Err(failure) => Err(failure),
        }
    }
}

/// Returns the subjects without a finding: the ports, and an empty name for the switch.
fn healthy<'a>(facts: &'a Facts, findings: &'a [Finding]) -> impl Iterator<Item = &'a str> {
    let of_switch = findings.iter().filter(|one| one.port.is_none()).map(|_| "");
    let of_ports = findings.iter().filter(|one| one.port.is_some());
    let of_ports = of_ports.flat_map(|one| one.port.iter().chain(&one.with));
    let ill: BTreeSet<&str> = of_ports.map(String::as_str).chain(of_switch).collect();
    let subjects = std::iter::once("").chain(facts.ports.iter().map(facts::Port::name));
    subjects.filter(move |name| !ill.contains(name))
}

fn lines(facts: &Facts, findings: &[Finding]) -> String {
    let mut text: String = findings.iter().map(finding_lines).collect();
    for name in healthy(facts, findings) {
        let name = if name.is_empty() { "the switch" } else { name };
        text += &line(&format!("OK    {name}"));
    }
    facts.skipped.iter().for_each(|what| text += &line(&format!("skipped: {what}")));
    text
}

fn as_value(facts: &Facts, findings: &[Finding]) -> Value {
    let well = healthy(facts, findings).filter(|name| !name.is_empty());
    let worst = findings.first().map_or("ok", |worst| worst.level.name());
    json!({
        "result": worst,
        "findings": findings.iter().map(shown).collect::<Vec<Value>>(),
        "healthy_ports": well.collect::<Vec<&str>>(),
        "skipped": facts.skipped,
    })
}
