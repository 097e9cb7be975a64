//! Commands that ask the switch, and derive rates, health and advice from the answers.

use std::time::{Duration, Instant};

use api::config::Kind;
use api::wire::{
    self, Degradation, Direction, Finding, GetDropReasons, GetFindings, GetMetrics, GetPort,
    GetPortDetails, GetStatus, GetWorkers, Level, ListPorts, Port, PortDetails, Traffic,
    Unconfirmed, WaitForPort, Worker, Workers,
};
use serde::Serialize;

use crate::client::Client;
use crate::failure::Failure;
use crate::output::text;
use crate::values::State;

/// Counters of all ports and workers.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Stats {
    pub(crate) ports: Vec<Port>,
    #[serde(flatten)]
    pub(crate) workers: Workers,
}

/// Frames, bytes and drops of one direction in a second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Rate {
    pub(crate) frames: f64,
    pub(crate) bytes: f64,
    pub(crate) drops: f64,
}

/// Rates of both directions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Rates {
    pub r#in: Rate,
    pub(crate) out: Rate,
}

/// Rates of a port.
#[derive(Debug, Serialize)]
pub(crate) struct PortRates {
    pub(crate) name: String,
    pub(crate) rates: Rates,
}

/// Details of a port, and the port's rates if rates were measured.
#[derive(Debug, Serialize)]
pub(crate) struct Details {
    #[serde(flatten)]
    pub(crate) details: PortDetails,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rates: Option<Rates>,
}

/// Dropped frames, and the senders whose frames found no room.
#[derive(Debug, Serialize)]
pub struct Drops {
    pub(crate) drops: Vec<Dropped>,
    pub(crate) senders: Vec<Share>,
}

/// Frames that were dropped at a port for one reason.
#[derive(Debug, Serialize)]
pub struct Dropped {
    pub(crate) port: String,
    pub(crate) direction: &'static str,
    pub(crate) reason: String,
    pub(crate) count: u64,
    /// Seconds since the last drop; none if an earlier process counted all drops.
    pub(crate) age: Option<u64>,
    pub(crate) meaning: String,
    pub(crate) advice: String,
}

/// Frames of one port that lately found no room at another port.
#[derive(Debug, Serialize)]
pub struct Share {
    pub(crate) port: String,
    pub(crate) from: String,
    pub(crate) frames: u64,
    /// Part of all frames that lately found no room at the port, from 0 to 1.
    pub(crate) share: f64,
}

/// Health of the switch: whether the switch serves all that is configured.
#[derive(Debug, Serialize)]
pub struct Health {
    pub(crate) health: &'static str,
    pub(crate) reasons: Vec<String>,
    pub(crate) degradations: Vec<Degradation>,
    pub(crate) unconfirmed: Option<Unconfirmed>,
}

/// A worker, and the share of a CPU's time in which it found frames, from 0 to 1.
#[derive(Debug, Serialize)]
pub(crate) struct WorkerShare {
    #[serde(flatten)]
    pub(crate) worker: Worker,
    pub(crate) busy: f64,
}

/// Returns all ports.
pub fn ports(client: &mut Client) -> Result<Vec<Port>, Failure> {
    client.list(&ListPorts {}, |part| part.ports)
}

/// Returns the counters of all ports and workers.
pub fn stats(client: &mut Client) -> Result<Stats, Failure> {
    Ok(Stats { ports: ports(client)?, workers: client.call(&GetWorkers {})? })
}

/// Returns the rate between two readings that are `seconds` apart.
fn rate(before: &Traffic, after: &Traffic, seconds: f64) -> Rate {
    let drops = |traffic: &Traffic| traffic.drops.values().sum::<u64>();
    // A port that took the place of a port of the same name has lower counters.
    let each = |before: u64, after: u64| after.saturating_sub(before) as f64 / seconds;
    Rate {
        frames: each(before.frames, after.frames),
        bytes: each(before.bytes, after.bytes),
        drops: each(drops(before), drops(after)),
    }
}

pub fn rates(before: &Port, after: &Port, seconds: f64) -> Rates {
    Rates {
        r#in: rate(&before.r#in, &after.r#in, seconds),
        out: rate(&before.out, &after.out, seconds),
    }
}

/// Asks twice, a second apart. Returns both answers, and the seconds between the answers.
fn over_a_second<A>(ask: impl FnMut() -> Result<A, Failure>) -> Result<(A, A, f64), Failure> {
    twice(Duration::from_secs(1), ask)
}

/// Asks twice, with `pause` between. Returns both answers, and the seconds between the answers.
pub fn twice<A>(
    pause: Duration,
    mut ask: impl FnMut() -> Result<A, Failure>,
) -> Result<(A, A, f64), Failure> {
    let (before, began) = (ask()?, Instant::now());
    std::thread::sleep(pause);
    let after = ask()?;
    Ok((before, after, began.elapsed().as_secs_f64()))
}

/// Returns the answer for `port show`, with the rates of a second if `with_rate` is true.
pub fn port(client: &mut Client, name: &str, with_rate: bool) -> Result<Details, Failure> {
    let request = GetPortDetails { name: name.to_owned() };
    if !with_rate {
        return Ok(Details { details: client.call(&request)?, rates: None });
    }
    let (before, details, seconds) = over_a_second(|| client.call(&request))?;
    let rates = Some(rates(&before.port, &details.port, seconds));
    Ok(Details { details, rates })
}

/// Returns the answer for `drops`: each reason of a drop with port, count and advice, and the
/// senders whose frames found no room.
pub fn drops(client: &mut Client, port: Option<&str>) -> Result<Drops, Failure> {
    let ports = match port {
        Some(name) => vec![client.call(&GetPort { name: name.to_owned() })?.port],
        None => ports(client)?,
    };
    let reasons = client.call(&GetDropReasons {})?.reasons;
    let mut told = Drops { drops: Vec::new(), senders: Vec::new() };
    for port in ports {
        told.senders.extend(dropped_from(&port));
        for (direction, traffic) in [(Direction::In, port.r#in), (Direction::Out, port.out)] {
            for (reason, count) in traffic.drops {
                let age = traffic.drop_ages.get(&reason).copied();
                let known = reasons.iter().find(|one| one.name == reason).cloned();
                let wire::DropReason { meaning, advice, .. } = known.unwrap_or_default();
                let (port, direction) = (port.name.clone(), direction.name());
                told.drops.push(Dropped { port, direction, reason, count, age, meaning, advice });
            }
        }
    }
    Ok(told)
}

/// Returns the senders whose frames lately found no room at a port, each with its share of these
/// frames.
fn dropped_from(port: &Port) -> impl Iterator<Item = Share> {
    let sum: u64 = port.dropped_from.iter().map(|one| one.frames).sum();
    port.dropped_from.iter().map(move |one| Share {
        port: port.name.clone(),
        from: one.port.clone(),
        frames: one.frames,
        share: one.frames as f64 / sum.max(1) as f64,
    })
}

/// Returns the findings of the switch itself.
pub fn findings(client: &mut Client) -> Result<Vec<Finding>, Failure> {
    client.list(&GetFindings {}, |part| part.findings)
}

/// Returns the answer for `metrics`: all parts of the text for Prometheus.
pub fn metrics(client: &mut Client) -> Result<wire::Metrics, Failure> {
    let parts = client.list(&GetMetrics {}, |part| vec![part.text])?;
    Ok(wire::Metrics { text: parts.concat() })
}

/// Returns a finding as one line.
pub(crate) fn finding_line(Finding { code, port, cause, .. }: &Finding) -> String {
    let about = port.as_ref().map_or_else(String::new, |port| format!("{port}: "));
    text(format!("{code}: {about}{cause}"))
}

/// Returns the answer for `health`: the reasons why the switch does not serve all that is
/// configured.
pub fn health(client: &mut Client) -> Result<Health, Failure> {
    let status = client.call(&GetStatus {})?;
    let mut reasons = status.degraded;
    // The reasons of `GetStatus` name already each entry that is not served.
    let fails = |one: &&Finding| one.level == Level::Fail && one.code != "degraded";
    reasons.extend(findings(client)?.iter().filter(fails).map(finding_line));
    let health = if reasons.is_empty() { "healthy" } else { "degraded" };
    let (degradations, unconfirmed) = (status.degradations, status.unconfirmed);
    Ok(Health { health, reasons, degradations, unconfirmed })
}

/// Returns the share of time in which each worker found frames.
pub fn busy(before: &Workers, after: &Workers, seconds: f64) -> Vec<f64> {
    let cycles = after.cycles_per_second.max(1) as f64 * seconds;
    let share = |(n, worker): (usize, &Worker)| {
        let earlier = before.workers.get(n).map_or(0, |worker| worker.busy_cycles);
        worker.busy_cycles.saturating_sub(earlier) as f64 / cycles
    };
    after.workers.iter().enumerate().map(share).collect()
}

/// Returns the answer for `worker`: cycles per second, and the workers, each with the share of a
/// CPU's time in which the worker found frames, since the switch began or over a second.
pub fn workers(client: &mut Client, rate: bool) -> Result<(u64, Vec<WorkerShare>), Failure> {
    let (before, after, seconds) = if rate {
        over_a_second(|| client.call(&GetWorkers {}))?
    } else {
        let uptime = client.call(&GetStatus {})?.uptime.max(1);
        (Workers::default(), client.call(&GetWorkers {})?, uptime as f64)
    };
    let busy = busy(&before, &after, seconds);
    let share = |(worker, busy): (Worker, f64)| WorkerShare { worker, busy: busy.clamp(0.0, 1.0) };
    let workers = after.workers.into_iter().zip(busy).map(share).collect();
    Ok((after.cycles_per_second, workers))
}

/// `port wait`: waits until a port reaches a state.
pub fn wait(
    client: &mut Client,
    name: &str,
    state: State,
    timeout: Duration,
) -> Result<wire::WaitedFor, Failure> {
    client.wait_for(timeout)?;
    let millis = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
    let (name, state) = (name.to_owned(), Some(state.name()));
    client.call(&WaitForPort { name, state, timeout_ms: Some(millis.into()) })
}

/// Returns the ports of one kind, or all ports without a kind, for `port list` and `tap list`.
pub(crate) fn of_kind(client: &mut Client, kind: Option<Kind>) -> Result<Vec<Port>, Failure> {
    let mut all = ports(client)?;
    all.retain(|port| kind.is_none_or(|kind| port.kind == kind.name()));
    Ok(all)
}
