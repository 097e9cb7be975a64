//! Commands that look at the switch and make something of what they see: rates, health, advice.

use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use vioswitch::config::Kind;

use crate::args::State;
use crate::client::Client;
use crate::failure::Failure;
use crate::show::{items, number, word};
use crate::{SWITCH, ask, list};

/// What all ports and workers count.
pub fn stats(client: &mut Client) -> Result<Value, Failure> {
    let mut all = list(client, "ListPorts", "ports", json!({}))?;
    let workers = ask(client, "GetWorkers", json!({}))?;
    all["cycles_per_second"] = workers["cycles_per_second"].clone();
    all["workers"] = workers["workers"].clone();
    Ok(all)
}

/// Frames, bytes and drops of one direction in a second, by two looks `seconds` apart.
fn rate(before: &Value, after: &Value, seconds: f64) -> Value {
    let drops = |traffic: &Value| -> f64 {
        traffic["drops"].as_object().map_or(0.0, |all| all.values().map(number).sum())
    };
    // A port of the same name that came meanwhile has counted less.
    let each = |before: f64, after: f64| (after - before).max(0.0) / seconds;
    json!({
        "frames": each(number(&before["frames"]), number(&after["frames"])),
        "bytes": each(number(&before["bytes"]), number(&after["bytes"])),
        "drops": each(drops(before), drops(after)),
    })
}

/// The rates of a port in both directions.
fn rates(before: &Value, after: &Value, seconds: f64) -> Value {
    let direction = |key: &str| rate(&before[key], &after[key], seconds);
    json!({"in": direction("in"), "out": direction("out")})
}

/// `port show`, with what crosses it in a second if that is wanted.
pub fn port(client: &mut Client, name: &str, with_rate: bool) -> Result<Value, Failure> {
    let before = ask(client, "GetPortDetails", json!({"name": name}))?;
    if !with_rate {
        return Ok(before);
    }
    let began = Instant::now();
    std::thread::sleep(Duration::from_secs(1));
    let mut after = ask(client, "GetPortDetails", json!({"name": name}))?;
    let seconds = began.elapsed().as_secs_f64();
    after["rates"] = rates(&before["port"], &after["port"], seconds);
    Ok(after)
}

/// `stats --watch`: the rates of all ports, again and again until nobody reads any more.
pub fn watch(client: &mut Client, every: Duration, as_json: bool) -> Result<(), Failure> {
    let (mut before, mut began) = (stats(client)?, Instant::now());
    loop {
        std::thread::sleep(every);
        let (after, now) = (stats(client)?, Instant::now());
        let seconds = (now - began).as_secs_f64();
        let ports = items(&after, "ports").iter().map(|port| {
            let known = items(&before, "ports").iter().find(|old| old["name"] == port["name"]);
            json!({"name": port["name"], "rates": rates(known.unwrap_or(port), port, seconds)})
        });
        let told = json!({"seconds": seconds, "ports": ports.collect::<Vec<Value>>()});
        let text = match as_json {
            true => format!("{told}\n"),
            false => format!("{}\n", crate::show::rates(&told)),
        };
        let mut out = std::io::stdout().lock();
        if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
            return Ok(());
        }
        (before, began) = (after, now);
    }
}

/// `drops`: each reason that was given, where, how often, and what to do; and whose frames found no
/// room.
pub fn drops(client: &mut Client, port: Option<&str>) -> Result<Value, Failure> {
    let ports = match port {
        Some(name) => vec![ask(client, "GetPort", json!({"name": name}))?["port"].clone()],
        None => items(&list(client, "ListPorts", "ports", json!({}))?, "ports").to_vec(),
    };
    let reasons = ask(client, "GetDropReasons", json!({}))?;
    let (mut told, mut senders) = (Vec::new(), Vec::new());
    for port in &ports {
        senders.extend(dropped_from(port));
        for direction in ["in", "out"] {
            for (reason, count) in port[direction]["drops"].as_object().into_iter().flatten() {
                let known = items(&reasons, "reasons").iter().find(|one| one["name"] == *reason);
                let text = |key: &str| known.and_then(|one| one[key].as_str()).unwrap_or_default();
                told.push(json!({
                    "port": port["name"], "direction": direction, "reason": reason,
                    "count": count, "meaning": text("meaning"), "advice": text("advice"),
                }));
            }
        }
    }
    Ok(json!({"drops": told, "senders": senders}))
}

/// Whose frames found no room at a port lately, with the share that each has of them.
fn dropped_from(port: &Value) -> impl Iterator<Item = Value> {
    let all = items(port, "dropped_from");
    let sum: f64 = all.iter().map(|one| number(&one["frames"])).sum();
    all.iter().map(move |one| {
        let share = number(&one["frames"]) / sum.max(1.0);
        json!({"port": port["name"], "from": one["port"], "frames": one["frames"], "share": share})
    })
}

/// What the switch finds wrong itself.
pub fn findings(client: &mut Client) -> Result<Vec<Value>, Failure> {
    Ok(items(&list(client, "GetFindings", "findings", json!({}))?, "findings").to_vec())
}

/// `metrics`: the text for Prometheus, all parts of it.
pub fn metrics(client: &mut Client) -> Result<Value, Failure> {
    let mut text = String::new();
    client.call_more(&format!("{SWITCH}.GetMetrics"), json!({}), |part| {
        text += part["text"].as_str().unwrap_or_default();
    })?;
    Ok(json!({"text": text}))
}

/// A finding, in a line.
pub fn finding_line(finding: &Value) -> String {
    let about = match &finding["port"] {
        Value::Null => String::new(),
        port => format!("{}: ", word(port)),
    };
    format!("{}: {about}{}", word(&finding["code"]), word(&finding["cause"]))
}

/// `health`: why the switch does not serve all that it was told to.
pub fn health(client: &mut Client) -> Result<Value, Failure> {
    let status = ask(client, "GetStatus", json!({}))?;
    let mut reasons = items(&status, "degraded").to_vec();
    // What is not served is told already.
    let fails = |one: &&Value| one["level"] == "fail" && one["code"] != "degraded";
    for finding in findings(client)?.iter().filter(fails) {
        reasons.push(finding_line(finding).into());
    }
    let health = if reasons.is_empty() { "healthy" } else { "degraded" };
    let (degradations, unconfirmed) = (&status["degradations"], &status["unconfirmed"]);
    Ok(json!({
        "health": health, "reasons": reasons, "degradations": degradations,
        "unconfirmed": unconfirmed,
    }))
}

/// `worker`: the counters, and the share of a CPU's time in which frames were found, since the
/// switch began or over a second.
pub fn workers(client: &mut Client, over_a_second: bool) -> Result<Value, Failure> {
    let uptime = number(&ask(client, "GetStatus", json!({}))?["uptime"]).max(1.0);
    let before = match over_a_second {
        true => ask(client, "GetWorkers", json!({}))?,
        false => Value::Null,
    };
    let began = Instant::now();
    if over_a_second {
        std::thread::sleep(Duration::from_secs(1));
    }
    let mut after = ask(client, "GetWorkers", json!({}))?;
    let seconds = if over_a_second { began.elapsed().as_secs_f64() } else { uptime };
    let cycles = number(&after["cycles_per_second"]).max(1.0) * seconds;
    for (n, worker) in after["workers"].as_array_mut().into_iter().flatten().enumerate() {
        let busy = number(&worker["busy_cycles"]) - number(&before["workers"][n]["busy_cycles"]);
        worker["busy"] = (busy / cycles).clamp(0.0, 1.0).into();
    }
    Ok(after)
}

/// `version`: the client's and the switch's.
pub fn version(client: &mut Client) -> Result<Value, Failure> {
    let status = ask(client, "GetStatus", json!({}))?;
    Ok(json!({"client": env!("CARGO_PKG_VERSION"), "switch": status["version"]}))
}

/// `port wait`: until a port is so far.
pub fn wait(
    client: &mut Client,
    name: &str,
    state: State,
    timeout: Duration,
) -> Result<Value, Failure> {
    client.wait_for(timeout)?;
    let millis = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
    let wanted = json!({"name": name, "state": state.name(), "timeout_ms": millis});
    ask(client, "WaitForPort", wanted)
}

/// `tap list`, `stream list`: ports of one kind.
pub fn of_kind(client: &mut Client, kind: Option<Kind>) -> Result<Value, Failure> {
    let mut all = list(client, "ListPorts", "ports", json!({}))?;
    if let (Some(kind), Some(ports)) = (kind, all["ports"].as_array_mut()) {
        ports.retain(|port| port["kind"] == kind.name());
    }
    Ok(all)
}
