//! `trace` and `why`: what would become of a frame, and why two ports do not reach each other.

use serde::Serialize;
use vioswitch::wire::{
    self, Address, Events, Finding, GetPort, ListAddresses, Port, State, Trace, Traced,
};

use crate::Told;
use crate::client::Client;
use crate::failure::Failure;
use crate::look;
use crate::show::{maybe, text};

/// Longest frame of a network with an MTU of 1,500.
const LONG: u64 = 1514;
/// A ping's.
const SHORT: u64 = 98;

/// Findings that cost time, and no frame.
const COSTS: &str = "offloads-in-software";

/// What was found out about two ports.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// What keeps frames from passing.
    problems: Vec<String>,
    /// What else is worth knowing.
    notes: Vec<String>,
}

/// What is known of a port.
struct Known {
    port: Port,
    /// The address that is asked about, or was heard of last.
    address: Option<String>,
    /// The VLAN that it is in.
    vlan: Option<u16>,
}

impl Known {
    /// The value of a key that is shown.
    fn key(&self, key: &str) -> Option<String> {
        let value = self.port.keys.0.get(key)?;
        Some(value.as_str().map_or_else(|| value.to_string(), text))
    }

    /// The tag that its frames have.
    fn tag(&self) -> Option<u16> {
        let native = self.key("native").and_then(|vlan| vlan.parse().ok());
        self.vlan.filter(|vlan| self.key("trunk").is_some() && native != Some(*vlan))
    }
}

/// A trace as lines.
pub fn trace(Traced { steps, verdict, .. }: &Traced) -> String {
    let steps: String = steps.iter().map(|step| format!("  {}\n", text(step))).collect();
    format!("{steps}{}\n", text(verdict))
}

/// Looks for what is in the way between two ports, or two addresses and the ports where they live:
/// the answer, and the exit status.
pub fn run(client: &mut Client, words: [&String; 2]) -> Result<(Told, u8), Failure> {
    let report = report(client, words)?;
    let status = u8::from(!report.problems.is_empty());
    Ok(((wire::json(&report), report.lines(words)), status))
}

fn report(client: &mut Client, words: [&String; 2]) -> Result<Report, Failure> {
    let mut report = Report::default();
    let [one, other] = words;
    if one == other {
        return Err(Failure::usage("two different ports are needed".to_owned()));
    }
    let found = [find(client, one, &mut report)?, find(client, other, &mut report)?];
    let [Some(first), Some(second)] = found else { return Ok(report) };
    let known = [first, second];
    let names = known.each_ref().map(|one| one.port.name.as_str());
    if names[0] == names[1] {
        report.problems.push(format!(
            "{one} and {other} are both behind '{}': what they send each other does not pass the \
             switch",
            names[0]
        ));
        return Ok(report);
    }
    for one in &known {
        report.state(one);
    }
    let [a, b] = names;
    let apart = ["bridge", "vlan"].into_iter().find_map(|key| {
        let [Some(one), Some(other)] = known.each_ref().map(|port| port.key(key)) else {
            return None;
        };
        (one != other).then(|| format!("'{a}' is in {key} {one} and '{b}' in {key} {other}"))
    });
    let is_isolated = |port: &Known| port.key("isolated").is_some_and(|value| value == "on");
    let isolated = || format!("'{a}' and '{b}' are both isolated");
    if let Some(text) = apart.or_else(|| known.iter().all(is_isolated).then(isolated)) {
        report.problems.push(format!("{text}: no frame passes from one to the other"));
        return Ok(report);
    }
    report.findings(names, &look::findings(client)?);
    for [from, to] in [[0, 1], [1, 0]].map(|way| way.map(|at| &known[at])) {
        one_way(client, from, to, &mut report)?;
        report.drops(&to.port);
    }
    if known[0].port.mtu != known[1].port.mtu {
        let told = known.each_ref().map(|Known { port, .. }| match port.mtu {
            Some(mtu) => format!("'{}' has an MTU of {mtu}", port.name),
            None => format!("'{}' has none configured", port.name),
        });
        report.notes.push(told.join(", "));
    }
    report.notes.extend(last_drops(client, names)?);
    Ok(report)
}

/// An address as the switch writes it, if it is one.
fn as_address(text: &str) -> Option<String> {
    let is_octet = |part: &str| part.len() == 2 && part.chars().all(|c| c.is_ascii_hexdigit());
    let whole = text.split(':').count() == 6 && text.split(':').all(is_octet);
    whole.then(|| text.to_lowercase())
}

/// The port of this name, or where an address lives; none of one that lives nowhere.
fn find(client: &mut Client, name: &str, report: &mut Report) -> Result<Option<Known>, Failure> {
    let Some(mac) = as_address(name) else {
        let port = client.call(&GetPort { name: name.to_owned() })?.port;
        let all = addresses(client, Some(name))?;
        // A configured one is there before its guest is.
        let newest = all.into_iter().min_by_key(|entry| entry.idle.unwrap_or(u64::MAX));
        let vlan = newest.as_ref().and_then(|entry| entry.vlan);
        return Ok(Some(Known { port, address: newest.map(|entry| entry.mac), vlan }));
    };
    let Some(home) = addresses(client, None)?.into_iter().rfind(|entry| entry.mac == mac) else {
        report.problems.push(format!(
            "{mac} is known behind no port: it was silent for minutes, or sends no frames to \
             the switch; frames for it are flooded"
        ));
        return Ok(None);
    };
    let port = client.call(&GetPort { name: home.port })?.port;
    report.notes.push(format!("{mac} is on '{}'", port.name));
    Ok(Some(Known { port, address: Some(mac), vlan: home.vlan }))
}

/// The addresses of a port, or of all.
fn addresses(client: &mut Client, port: Option<&str>) -> Result<Vec<Address>, Failure> {
    let port = port.map(str::to_owned);
    client.list(&ListAddresses { port, bridge: None, vlan: None }, |part| part.addresses)
}

/// What becomes of a short and of a long frame.
fn one_way(
    client: &mut Client,
    from: &Known,
    to: &Known,
    report: &mut Report,
) -> Result<(), Failure> {
    let (Some(source), Some(destination)) = (&from.address, &to.address) else { return Ok(()) };
    let (vlan, from, to) = (from.tag().map(Into::into), &from.port.name, &to.port.name);
    for (length, what) in [(SHORT, "frames"), (LONG, "long frames")] {
        let (src, dst) = (Some(source.clone()), Some(destination.clone()));
        let (port, vlan, len) = (from.clone(), vlan.clone(), Some(length.into()));
        let traced = client.call(&Trace { port, src, dst, len, vlan, ip: None, frame: None })?;
        if traced.ports.contains(to) {
            continue;
        }
        let last = traced.steps.last().map(text).unwrap_or_default();
        let reason = maybe(traced.reason);
        report
            .problems
            .push(format!("{what} from '{from}' do not reach '{to}': {last} ({reason})"));
        break;
    }
    Ok(())
}

/// The last drops at these ports among the events that the switch keeps.
fn last_drops(client: &mut Client, names: [&str; 2]) -> Result<Option<String>, Failure> {
    let mut last = None;
    client.parts(&Events { since: Some(0.into()), follow: Some(false) }, |part| {
        for event in part.events {
            let port = event.port.unwrap_or_default();
            if event.kind.starts_with("drops_") && names.contains(&port.as_str()) {
                last = Some(format!("last of the drops: {port}: {}", event.text));
            }
        }
        true
    })?;
    Ok(last)
}

impl Report {
    fn state(&mut self, Known { port, address, .. }: &Known) {
        let (name, vm) = (&port.name, port.kind == "vm");
        let problem = match port.state {
            State::LeftOut => format!(
                "'{name}' has no socket or interface since the start: vioswitchctl status says why"
            ),
            State::Removing => format!("'{name}' is being removed"),
            State::Listening if !vm => format!(
                "no process is connected to '{name}': start the process behind it, or see that it \
                 uses this stream's socket"
            ),
            State::Listening => format!(
                "no front-end is connected to '{name}': start its virtual machine, or see that it \
                 uses this port's socket"
            ),
            State::Negotiating => format!(
                "the front-end of '{name}' (pid {}) is connected, and its guest's driver has not \
                 started: it boots, or has no virtio-net driver",
                maybe(port.front_end.as_ref().map(|who| who.pid))
            ),
            // The findings have that.
            State::Gone | State::Down | State::Disabled => return,
            _ if port.r#in.frames == 0 && vm => format!(
                "the guest behind '{name}' has never sent a frame: its interface is down, or has \
                 no address"
            ),
            _ if port.out.frames == 0 && !port.out.drops.is_empty() => {
                format!("no frame ever arrived at '{name}', all were dropped")
            }
            _ if address.is_none() => {
                self.notes.push(format!(
                    "no address is known behind '{name}': it was silent for minutes, or what it \
                     sends has no valid source; frames for it are flooded"
                ));
                return;
            }
            _ => return,
        };
        self.problems.push(problem);
    }

    /// What the switch finds wrong with either port.
    fn findings(&mut self, names: [&str; 2], findings: &[Finding]) {
        for finding in findings {
            let mut ports = finding.with.iter().chain(&finding.port);
            if finding.port.is_none() || !ports.any(|port| names.contains(&port.as_str())) {
                continue;
            }
            let list = match finding.code == COSTS {
                true => &mut self.notes,
                false => &mut self.problems,
            };
            list.push(format!("{}: {}", look::finding_line(finding), text(&finding.command)));
        }
    }

    fn drops(&mut self, port: &Port) {
        for (traffic, towards) in [(&port.r#in, "from"), (&port.out, "to")] {
            let name = &port.name;
            self.notes.extend(traffic.drops.iter().map(|(reason, count)| {
                format!("{count} frames {towards} '{name}' were dropped: {reason}")
            }));
        }
    }

    /// As lines.
    fn lines(&self, [a, b]: [&String; 2]) -> String {
        let mut text = match self.problems.len() {
            0 => format!("nothing in the switch is in the way between '{a}' and '{b}'\n"),
            1 => "one thing is in the way:\n".to_owned(),
            count => format!("{count} things are in the way:\n"),
        };
        self.problems.iter().for_each(|problem| text += &format!("  {problem}\n"));
        if !self.notes.is_empty() {
            text += "worth knowing:\n";
            self.notes.iter().for_each(|note| text += &format!("  {note}\n"));
        }
        text
    }
}
