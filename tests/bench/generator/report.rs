//! The result as one JSON object.

use std::fmt::Write;

use super::books::Receiver;
use super::run::{Outcome, Plan};
use super::system::used;

/// Fields in the order they were put in.
pub struct Object(String);

impl Object {
    pub fn new() -> Object {
        Object("{".to_owned())
    }

    /// A field whose value is JSON already.
    pub fn raw(&mut self, name: &str, value: impl std::fmt::Display) {
        let comma = if self.0.len() > 1 { ", " } else { "" };
        // Writing to a string cannot fail.
        let _ = write!(self.0, "{comma}\"{name}\": {value}");
    }

    /// A number; JSON knows no infinity, so that becomes null.
    pub fn number(&mut self, name: &str, value: f64) {
        match value.is_finite() {
            true => self.raw(name, format_args!("{value:.6}")),
            false => self.raw(name, "null"),
        }
    }

    pub fn text(&mut self, name: &str, value: &str) {
        let mut quoted = String::new();
        for c in value.chars() {
            match c {
                '"' | '\\' => quoted.extend(['\\', c]),
                c if c.is_control() => quoted.push(' '),
                c => quoted.push(c),
            }
        }
        self.raw(name, format_args!("\"{quoted}\""));
    }

    pub fn end(mut self) -> String {
        self.0.push('}');
        self.0
    }
}

/// Sum of a counter over all receivers, from one snapshot to another.
fn delta(from: &[Receiver], to: &[Receiver], what: impl Fn(&Receiver) -> u64) -> u64 {
    let sum = |r: &[Receiver]| r.iter().map(&what).sum::<u64>();
    sum(to).saturating_sub(sum(from))
}

/// Jain's fairness index: 1 if all are equal, 1/n if one has all. (R. Jain, D. Chiu, W. Hawe, "A
/// quantitative measure of fairness and discrimination", 1984.)
fn jain(rates: &[f64]) -> f64 {
    let (sum, squares) =
        rates.iter().fold((0.0, 0.0), |(sum, squares), r| (sum + r, squares + r * r));
    if squares > 0.0 { sum * sum / (rates.len() as f64 * squares) } else { 1.0 }
}

/// All figures of a run.
pub fn json(plan: &Plan, ports: usize, o: &Outcome, tap: bool) -> String {
    let (start, end) = (&o.start, &o.end);
    let (from, to, drained) = (&start.receivers, &end.receivers, &o.drained.receivers);
    let seconds = (end.ticks - start.ticks) as f64 / plan.ticks_per_second;
    let received = delta(from, to, Receiver::frames);
    let mut j = Object::new();
    j.number("seconds", seconds);
    j.raw("ports", ports);
    j.raw("sent", o.drained.sent - start.sent);
    j.raw("received", delta(from, drained, Receiver::frames));
    j.number("tx_mpps", (end.sent - start.sent) as f64 / seconds / 1e6);
    j.number("mpps", received as f64 / seconds / 1e6);
    j.number("gbps", delta(from, to, |r| r.bytes) as f64 * 8.0 / seconds / 1e9);
    j.raw("lost", o.lost);
    j.raw("late", delta(from, drained, |r| r.streams.iter().map(|s| s.late).sum()));
    j.raw("duplicates", delta(from, drained, |r| r.streams.iter().map(|s| s.duplicates).sum()));
    j.raw("flooded", delta(from, drained, |r| r.flooded));
    j.raw("foreign", delta(from, drained, |r| r.foreign));
    j.raw("corrupt", delta(from, drained, |r| r.corrupt));
    streams(&mut j, plan, ports, o, seconds);
    latency(&mut j, plan, o);
    cpu(&mut j, plan, o, seconds, received, tap);
    // Near 0: the generator has always something to do, so it may be the slower one.
    j.number("generator_idle", o.idle as f64 / (end.ticks - start.ticks) as f64);
    j.number("tsc_mhz", plan.ticks_per_second / 1e6);
    j.raw("kicks", o.kicks);
    j.end()
}

/// CPU time of back-end and generator, and how long each had to wait for its CPU.
fn cpu(j: &mut Object, plan: &Plan, o: &Outcome, seconds: f64, received: u64, tap: bool) {
    let (start, end) = (&o.start, &o.end);
    let share = |nanos: u64| nanos as f64 / 1e9 / seconds;
    let (user, system) = (end.own.0 - start.own.0, end.own.1 - start.own.1);
    let (ran, waited) = used(&start.back_end, &end.back_end);
    // A bridge has no process: it works in the system calls of whoever sends.
    let busy = if tap { system } else { ran };
    if tap || !start.back_end.is_empty() {
        j.number("cpu", share(busy));
        j.number("cpu_wait", share(waited));
        if received > 0 {
            j.number(
                "cycles_per_frame",
                busy as f64 / 1e9 * plan.ticks_per_second / received as f64,
            );
        }
    }
    // Less than 1: something else had the generator's CPU, and the figures are worth little.
    j.number("generator_cpu", share(user + system));
    j.number("generator_wait", share(used(&start.generator, &end.generator).1));
}

/// The rate of each pair of ports, and how evenly they share.
fn streams(j: &mut Object, plan: &Plan, ports: usize, o: &Outcome, seconds: f64) {
    let mut rates = Vec::new();
    let mut list = String::new();
    for from in 0..ports {
        let Some(to) = plan.pattern.receiver(from, ports) else { continue };
        for at in to.ports(from, ports) {
            let count = |r: &[Receiver]| r[at].streams[from].received;
            let frames = count(&o.end.receivers) - count(&o.start.receivers);
            let rate = frames as f64 / seconds / 1e6;
            let comma = if rates.is_empty() { "" } else { ", " };
            let _ = write!(list, "{comma}{{\"from\": {from}, \"to\": {at}, \"mpps\": {rate:.6}}}");
            rates.push(rate);
        }
    }
    j.raw("pairs", format_args!("[{list}]"));
    j.number("jain", jain(&rates));
}

fn latency(j: &mut Object, plan: &Plan, o: &Outcome) {
    let micros = |ticks: u64| ticks as f64 / plan.ticks_per_second * 1e6;
    let mut l = Object::new();
    l.raw("samples", o.latency.count());
    l.number("p50", micros(o.latency.quantile(0.5)));
    l.number("p99", micros(o.latency.quantile(0.99)));
    l.number("max", micros(o.latency.max()));
    j.raw("latency_us", l.end());
}
