//! `vioswitchctl doctor`: what is wrong with a switch, its guests and its host, why, and the
//! command that mends it.
//!
//! `gather` and its neighbours read, and change nothing; the rest judges what was read and reads
//! nothing. A finding has a code, which stays the same in later versions.

mod facts;
mod firewall;
mod gather;
mod links;
mod of_guest;
mod of_switch;
mod of_uplink;
mod proc;
mod processes;
#[cfg(test)]
mod tests;
mod unit;

use std::collections::BTreeSet;
use std::path::Path;

use clap::Args;
use serde_json::{Value, json};

use crate::client::Client;
use crate::failure::Failure;
use facts::{Ended, Facts};

/// Look for what is wrong: with the switch, its guests, its uplinks and the host
///
/// Each finding has a code that stays the same, a cause, and the command that mends it. As root
/// it looks at the processes of front-ends too. Exit status 1 if anything is FAIL, 0 if not; 3 if
/// no switch answers, with what systemd and the journal know of its end.
#[derive(Debug, Args)]
pub struct Doctor {
    /// Only this port or TAP, and the switch
    #[arg(value_name = "NAME")]
    port: Option<String>,
    /// A user that front-ends are to run as, such as libvirt-qemu: may it connect?
    #[arg(long, value_name = "USER")]
    user: Option<String>,
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// It works, and not as well as it could, or not after the next restart.
    Warn,
    /// Frames do not pass.
    Fail,
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub level: Level,
    pub code: &'static str,
    /// A port or TAP; none for the switch and the host.
    pub port: Option<String>,
    pub cause: String,
    pub command: String,
}

/// Findings as they come.
#[derive(Debug, Default)]
pub struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, level: Level, code: &'static str, port: &str, cause: String, command: &str) {
        let port = (!port.is_empty()).then(|| port.to_owned());
        self.0.push(Finding { level, code, port, cause, command: command.to_owned() });
    }

    /// `port` is empty for the switch and the host.
    pub fn warn(&mut self, code: &'static str, port: &str, cause: String, command: &str) {
        self.add(Level::Warn, code, port, cause, command);
    }

    pub fn fail(&mut self, code: &'static str, port: &str, cause: String, command: &str) {
        self.add(Level::Fail, code, port, cause, command);
    }
}

/// All that is wrong, the worst first.
fn judge(facts: &Facts) -> Vec<Finding> {
    let mut findings = Findings::default();
    of_switch::judge(facts, &mut findings);
    for port in &facts.ports {
        if port.is_tap() {
            of_uplink::judge(port, facts, &mut findings);
        } else if port.is_stream() {
            of_guest::judge_stream(port, facts, &mut findings);
        } else {
            of_guest::judge(port, facts, &mut findings);
        }
    }
    let mut findings = findings.0;
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    findings
}

/// Why no switch answers.
fn judge_ended(failure: &Failure, ended: &Ended) -> Vec<Finding> {
    let mut findings = Findings::default();
    let mut cause = failure.text.split(": ").next().unwrap_or_default().to_owned();
    let Ended { unit, state, result, status, said } = ended;
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
    let command = match state.split(' ').next().unwrap_or_default() {
        "failed" => format!("systemctl status {unit}; journalctl -u {unit}"),
        "active" => format!("--control PATH, as in the configuration of {unit}"),
        _ => "systemctl start vioswitchd, or --control PATH".to_owned(),
    };
    findings.fail("switch-absent", "", cause, &command);
    findings.0
}

impl Doctor {
    /// What is told, and the exit status.
    pub fn run(&self, control: &Path, as_json: bool) -> Result<(String, u8), Failure> {
        let (facts, findings, status) = match Client::connect(control) {
            Ok(mut client) => {
                let facts = gather::all(&mut client, self.port.as_deref(), self.user.as_deref())?;
                let findings = judge(&facts);
                let failed = findings.iter().any(|finding| finding.level == Level::Fail);
                (facts, findings, u8::from(failed))
            }
            Err(failure) if failure.is_absence() => {
                let findings = judge_ended(&failure, &unit::ended());
                (Facts::default(), findings, failure.status)
            }
            Err(failure) => return Err(failure),
        };
        let text = match as_json {
            true => format!("{:#}\n", as_value(&facts, &findings)),
            false => lines(&facts, &findings),
        };
        Ok((text, status))
    }
}

/// The subjects that nothing is wrong with.
fn healthy<'a>(facts: &'a Facts, findings: &'a [Finding]) -> impl Iterator<Item = &'a str> {
    let ill: BTreeSet<&str> =
        findings.iter().map(|finding| finding.port.as_deref().unwrap_or("")).collect();
    let subjects = std::iter::once("").chain(facts.ports.iter().map(facts::Port::name));
    subjects.filter(move |name| !ill.contains(name))
}

fn word(level: Level) -> &'static str {
    match level {
        Level::Warn => "WARN",
        Level::Fail => "FAIL",
    }
}

/// Names of processes and lines of logs may hold anything, but are no lines of this one's.
fn line(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).chain(['\n']).collect()
}

fn lines(facts: &Facts, findings: &[Finding]) -> String {
    let mut text = String::new();
    for Finding { level, code, port, cause, command } in findings {
        let about = port.as_ref().map(|name| format!("{name}: ")).unwrap_or_default();
        text += &line(&format!("{}  {code}  {about}{cause}", word(*level)));
        text += &line(&format!("      {command}"));
    }
    for name in healthy(facts, findings) {
        let name = if name.is_empty() { "the switch" } else { name };
        text += &line(&format!("OK    {name}"));
    }
    facts.skipped.iter().for_each(|what| text += &line(&format!("not looked at: {what}")));
    text
}

fn as_value(facts: &Facts, findings: &[Finding]) -> Value {
    let told = findings.iter().map(|Finding { level, code, port, cause, command }| {
        let level = word(*level).to_lowercase();
        let mut told = json!({"level": level, "code": code, "cause": cause, "command": command});
        if let Some(port) = port {
            told["port"] = port.as_str().into();
        }
        told
    });
    let well = healthy(facts, findings).filter(|name| !name.is_empty());
    let worst = findings.first().map_or("ok".to_owned(), |worst| word(worst.level).to_lowercase());
    json!({
        "result": worst,
        "findings": told.collect::<Vec<Value>>(),
        "healthy_ports": well.collect::<Vec<&str>>(),
        "skipped": facts.skipped,
    })
}
