//! `trace` and `why`: the fate of a frame, and the obstacles between two ports.
//!
//! `why` makes no diagnosis of its own: the switch's findings and traces explain the obstacles.

use api::wire::{self, Address, Finding, GetPort, ListAddresses, Port, Trace, Traced};
use serde::Serialize;

use crate::client::Client;
use crate::doctor::findings;
use crate::failure::Failure;
use crate::look;
use crate::output::{Output, text};

/// MTU of most networks. A shorter MTU of the receiver is a fault; a longer MTU of the sender is no
/// fault.
const MTU: u32 = 1500;
/// Header of a frame, in bytes.
const HEADER: u32 = 14;

/// Code of the finding that costs time, and no frame.
const COSTS: &str = "offloads-in-software";

/// Findings and traces of two ports.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Findings of the switch about either port.
    findings: Vec<Finding>,
    /// Frames from one port to the other, and back.
    traces: Vec<Way>,
}

/// Trace of a frame from one port to the other.
#[derive(Debug, Serialize)]
struct Way {
    from: String,
    to: String,
    len: u32,
    /// True if the frame arrives.
    passes: bool,
    #[serde(flatten)]
    traced: Traced,
}

/// One of the two subjects of `why`: a port, and an address behind the port if the user named an
/// address.
struct Subject {
    port: Port,
    address: Option<String>,
}

/// Returns a trace as lines.
pub fn trace(Traced { steps, verdict, .. }: &Traced) -> String {
    let steps: String = steps.iter().map(|step| format!("  {}\n", text(step))).collect();
    format!("{steps}{}\n", text(verdict))
}

/// Looks for obstacles between two ports, or between two addresses at the ports where the addresses
/// live. Returns the answer, and the exit status.
pub fn run(client: &mut Client, words: [&String; 2]) -> Result<(Output, u8), Failure> {
    let [one, other] = words;
    if one == other {
        return Err(Failure::usage(
            "two different ports are needed: see vioswitchctl port list".to_owned(),
        ));
    }
    let asked = [find(client, one)?, find(client, other)?];
    let [a, b] = asked.each_ref().map(|one| one.port.name.as_str());
    if a == b {
        return Err(Failure::refused(format!(
            "{one} and {other} are both behind '{a}': frames between them do not pass the switch"
        )));
    }
    let about = |one: &Finding| {
        one.port.is_some() && [a, b].iter().any(|name| findings::is_about(one, name))
    };
    let findings = look::findings(client)?.into_iter().filter(about).collect();
    let traces = vec![way(client, &asked[0], &asked[1])?, way(client, &asked[1], &asked[0])?];
    let report = Report { findings, traces };
    let is_well = report.traces.iter().all(|way| way.passes)
        && report.findings.iter().all(|finding| finding.code == COSTS);
    Ok(((wire::json(&report), report.lines([a, b], is_well)), u8::from(!is_well)))
}

/// Returns an address as the switch writes addresses; `None` if the text is no address.
fn as_address(text: &str) -> Option<String> {
    let is_octet = |part: &str| part.len() == 2 && part.chars().all(|c| c.is_ascii_hexdigit());
    let whole = text.split(':').count() == 6 && text.split(':').all(is_octet);
    whole.then(|| text.to_lowercase())
}

/// Returns the port of this name, or the port where an address lives.
fn find(client: &mut Client, name: &str) -> Result<Subject, Failure> {
    let Some(mac) = as_address(name) else {
        let port = client.call(&GetPort { name: name.to_owned() })?.port;
        return Ok(Subject { port, address: None });
    };
    let all = ListAddresses { port: None, bridge: None, vlan: None };
    let all: Vec<Address> = client.list(&all, |part| part.addresses)?;
    let Some(home) = all.into_iter().rfind(|entry| entry.mac == mac) else {
        return Err(Failure::refused(format!(
            "no port has the address {mac}: its station has been silent for minutes, or its \
             frames do not reach the switch"
        )));
    };
    let port = client.call(&GetPort { name: home.port })?.port;
    Ok(Subject { port, address: Some(mac) })
}

/// Traces a long frame from one port to the other.
fn way(client: &mut Client, from: &Subject, to: &Subject) -> Result<Way, Failure> {
    let len = from.port.mtu.unwrap_or(MTU).min(MTU) + HEADER;
    let [port, to_port] = [from, to].map(|one| one.port.name.clone());
    let given = Trace {
        port: port.clone(),
        to: Some(to_port.clone()),
        src: from.address.clone(),
        dst: to.address.clone(),
        len: Some(len.into()),
        ..Trace::default()
    };
    let traced = client.call(&given)?;
    let passes = traced.ports.contains(&to_port);
    Ok(Way { from: port, to: to_port, len, passes, traced })
}

impl Report {
    /// Returns the report as lines.
    fn lines(&self, [a, b]: [&str; 2], is_well: bool) -> String {
        let mut text = String::new();
        if is_well {
            text += &format!("nothing in the switch is in the way between '{a}' and '{b}'\n");
        }
        text.extend(self.findings.iter().map(findings::finding_lines));
        for Way { from, to, len, traced, .. } in &self.traces {
            text += &format!("a frame of {len} bytes from '{from}' to '{to}':\n{}", trace(traced));
        }
        text
    }
}
