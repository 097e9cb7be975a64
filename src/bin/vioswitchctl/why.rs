//! `trace` and `why`: what would become of a frame, and why two ports do not reach each other.

use serde_json::{Value, json};

use crate::client::Client;
use crate::failure::Failure;
use crate::look;
use crate::show::{items, word};

/// Longest frame of a network with an MTU of 1,500.
const LONG: u64 = 1514;
/// A ping's.
const SHORT: u64 = 98;

/// Findings that cost time, and no frame.
const COSTS: &str = "offloads-in-software";

/// What was found out about two ports.
#[derive(Default)]
pub struct Report {
    /// What keeps frames from passing.
    problems: Vec<String>,
    /// What else is worth knowing.
    notes: Vec<String>,
}

/// Two ports, and one who asks about them.
struct Asking<'a> {
    client: &'a mut Client,
    switch: &'a str,
}

/// What is known of a port.
struct Known {
    name: String,
    port: Value,
    /// The address that is asked about, or was heard of last.
    address: Option<String>,
}

/// A trace as lines.
pub fn trace(answer: &Value) -> String {
    let steps = answer["steps"].as_array().into_iter().flatten();
    let mut text: String = steps.map(|step| format!("  {}\n", word(step))).collect();
    text += &format!("{}\n", word(&answer["verdict"]));
    text
}

/// Looks for what is in the way between two ports, or two addresses and the ports where they live.
pub fn run(client: &mut Client, switch: &str, words: [&str; 2]) -> Result<Report, Failure> {
    let mut asking = Asking { client, switch };
    let mut report = Report::default();
    if words[0] == words[1] {
        return Err(Failure::usage("two different ports are needed".to_owned()));
    }
    let found = [asking.find(words[0], &mut report)?, asking.find(words[1], &mut report)?];
    let [Some(one), Some(other)] = found else { return Ok(report) };
    let known = [one, other];
    let names = known.each_ref().map(|one| one.name.as_str());
    if names[0] == names[1] {
        let [one, other] = words;
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
    asking.findings(names, &mut report)?;
    for [from, to] in [[0, 1], [1, 0]].map(|way| way.map(|at| &known[at])) {
        asking.one_way(from, to, &mut report)?;
        report.drops(to);
    }
    let mtus = known.each_ref().map(|one| one.port["mtu"].as_u64());
    if mtus[0] != mtus[1] {
        let told = |at: usize| match mtus[at] {
            Some(mtu) => format!("'{}' has an MTU of {mtu}", known[at].name),
            None => format!("'{}' has none configured", known[at].name),
        };
        report.notes.push(format!("{}, {}", told(0), told(1)));
    }
    asking.last_drops(names, &mut report)?;
    Ok(report)
}

/// An address as the switch writes it, if it is one.
fn as_address(text: &str) -> Option<String> {
    let is_octet = |part: &str| part.len() == 2 && part.chars().all(|c| c.is_ascii_hexdigit());
    let whole = text.split(':').count() == 6 && text.split(':').all(is_octet);
    whole.then(|| text.to_lowercase())
}

impl Asking<'_> {
    fn call(&mut self, method: &str, parameters: Value) -> Result<Value, Failure> {
        self.client.call(&format!("{}.{method}", self.switch), parameters)
    }

    /// The port of this name, or where an address lives; none of one that lives nowhere.
    fn find(&mut self, text: &str, report: &mut Report) -> Result<Option<Known>, Failure> {
        let Some(mac) = as_address(text) else {
            let port = self.call("GetPort", json!({"name": text}))?["port"].take();
            let address = self.newest(text)?;
            return Ok(Some(Known { name: text.to_owned(), port, address }));
        };
        let Some(name) = self.home(&mac)? else {
            report.problems.push(format!(
                "{mac} is known behind no port: it was silent for minutes, or sends no frames to \
                 the switch; frames for it are flooded"
            ));
            return Ok(None);
        };
        let port = self.call("GetPort", json!({"name": name}))?["port"].take();
        report.notes.push(format!("{mac} is on '{name}'"));
        Ok(Some(Known { name, port, address: Some(mac) }))
    }

    /// Each address of a port, or of all.
    fn addresses(&mut self, port: Value, mut each: impl FnMut(&Value)) -> Result<(), Failure> {
        let method = format!("{}.ListAddresses", self.switch);
        self.client.call_more(&method, json!({"port": port}), |part| {
            items(&part, "addresses").iter().for_each(&mut each);
        })
    }

    /// The name of the port where an address lives.
    fn home(&mut self, mac: &str) -> Result<Option<String>, Failure> {
        let mut home = None;
        self.addresses(Value::Null, |entry| {
            if entry["mac"] == mac {
                home = entry["port"].as_str().map(str::to_owned);
            }
        })?;
        Ok(home)
    }

    /// The address of a port that was heard of last.
    fn newest(&mut self, name: &str) -> Result<Option<String>, Failure> {
        let mut newest: Option<(i64, String)> = None;
        self.addresses(name.into(), |entry| {
            // A configured one is there before its guest is.
            let idle = entry["idle"].as_i64().unwrap_or(i64::MAX);
            if newest.as_ref().is_none_or(|(least, _)| idle < *least) {
                newest = Some((idle, entry["mac"].as_str().unwrap_or_default().to_owned()));
            }
        })?;
        Ok(newest.map(|(_, mac)| mac))
    }

    /// What the switch finds wrong with either port.
    fn findings(&mut self, names: [&str; 2], report: &mut Report) -> Result<(), Failure> {
        let about = |finding: &Value| {
            let ports = items(finding, "with").iter().chain([&finding["port"]]);
            let mut ports = ports.filter_map(Value::as_str);
            !finding["port"].is_null() && ports.any(|port| names.contains(&port))
        };
        for finding in look::findings(self.client)?.iter().filter(|finding| about(finding)) {
            let text = format!("{}: {}", look::finding_line(finding), word(&finding["command"]));
            let list = match finding["code"] == COSTS {
                true => &mut report.notes,
                false => &mut report.problems,
            };
            list.push(text);
        }
        Ok(())
    }

    /// What becomes of a short and of a long frame.
    fn one_way(&mut self, from: &Known, to: &Known, report: &mut Report) -> Result<(), Failure> {
        let (Some(source), Some(destination)) = (&from.address, &to.address) else { return Ok(()) };
        for (length, what) in [(SHORT, "frames"), (LONG, "long frames")] {
            let answer = self.call(
                "Trace",
                json!({
                    "port": from.name, "source": source, "destination": destination,
                    "length": length,
                }),
            )?;
            let reached = answer["ports"].as_array().into_iter().flatten();
            if reached.filter_map(Value::as_str).any(|name| name == to.name) {
                continue;
            }
            let last = answer["steps"].as_array().and_then(|steps| steps.last());
            let last = last.map(word).unwrap_or_default();
            let reason = word(&answer["reason"]);
            report.problems.push(format!(
                "{what} from '{}' do not reach '{}': {last} ({reason})",
                from.name, to.name
            ));
            break;
        }
        Ok(())
    }

    /// What the switch's memory of events has of drops at these ports.
    fn last_drops(&mut self, names: [&str; 2], report: &mut Report) -> Result<(), Failure> {
        let mut last: Option<String> = None;
        let method = format!("{}.Events", self.switch);
        self.client.call_more(&method, json!({"since": 0, "follow": false}), |part| {
            for event in part["events"].as_array().into_iter().flatten() {
                let kind = event["kind"].as_str().unwrap_or_default();
                let port = event["port"].as_str().unwrap_or_default();
                if kind.starts_with("drops_") && names.contains(&port) {
                    last = event["text"].as_str().map(|text| format!("{port}: {text}"));
                }
            }
        })?;
        report.notes.extend(last.map(|text| format!("last of the drops: {text}")));
        Ok(())
    }
}

impl Report {
    fn state(&mut self, Known { name, port, address }: &Known) {
        let state = port["state"].as_str().unwrap_or_default();
        let vm = port["kind"] == "vm";
        let problem = match state {
            "left_out" => format!(
                "'{name}' has no socket or interface since the start: vioswitchctl status says why"
            ),
            "removing" => format!("'{name}' is being removed"),
            "listening" if !vm => format!(
                "no process is connected to '{name}': start the process behind it, or see that it \
                 uses this stream's socket"
            ),
            "listening" => format!(
                "no front-end is connected to '{name}': start its virtual machine, or see that it \
                 uses this port's socket"
            ),
            "negotiating" => format!(
                "the front-end of '{name}' (pid {}) is connected, and its guest's driver has not \
                 started: it boots, or has no virtio-net driver",
                port["front_end"]["pid"]
            ),
            // The findings have that.
            "gone" | "down" | "disabled" => return,
            _ if port["in"]["frames"] == 0 && vm => format!(
                "the guest behind '{name}' has never sent a frame: its interface is down, or has \
                 no address"
            ),
            _ if port["out"]["frames"] == 0 && port["out"]["drops"] != json!({}) => {
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

    fn drops(&mut self, Known { name, port, .. }: &Known) {
        for (way, towards) in [("in", "from"), ("out", "to")] {
            for (reason, count) in port[way]["drops"].as_object().into_iter().flatten() {
                self.notes
                    .push(format!("{count} frames {towards} '{name}' were dropped: {reason}"));
            }
        }
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        json!({"problems": self.problems, "notes": self.notes})
    }

    /// True if nothing is in the way.
    pub fn is_clear(&self) -> bool {
        self.problems.is_empty()
    }

    /// As lines.
    pub fn lines(&self, [a, b]: [&str; 2]) -> String {
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
