//! Counters and states as text: the format that Prometheus reads, version 0.0.4.
//!
//! A family of series stands together behind its `HELP` and `TYPE`. The text of a thousand ports
//! has megabytes, so it is made in parts, from figures that were taken at one moment. Names have
//! the words of the counters (`docs/counters.md`); the name of a series that only grows ends in
//! `_total`.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;

use crate::degraded::Code;
use crate::filters::RulePlace;
use crate::{Daemon, View};
use api::config::{Entry, Key, Kind};
use api::diagnosis::Finding;
use base::limits::{FDB_MAX_ENTRIES, MAX_GROUPS, METRICS_RULES, METRICS_SERIES_A_PORT};
use base::stats::{
    Direction, DropReason, GuardStats, MirrorStats, PortStats, Traffic, WorkerStats,
};
use datapath::port::Port;
use switch::PortPolicy;
use sys::{clock, sandbox};

/// A port's numbers of one moment.
#[derive(Debug)]
struct Figures {
    name: String,
    /// Labels of the port's settings.
    info: String,
    is_up: bool,
    traffic: [Traffic; 2],
    addresses: u64,
    /// Connections of a port with a filter.
    connections: Option<u64>,
    /// The counters of [`PortStats`], and [`LOG_SUPPRESSED`].
    whole: Vec<u64>,
    /// The counters of [`GuardStats`].
    guard: Vec<u64>,
}

/// A counter of a port as a whole beside its [`PortStats`].
const LOG_SUPPRESSED: (&str, &str) =
    ("log_suppressed", "Log lines about the port beyond the limit.");
/// Number of the counters of a port as a whole.
const WHOLE: usize = PortStats::TABLE.len() + 1;

/// Series that every port has: info, up, frames and bytes both ways, addresses, [`WHOLE`].
const ALWAYS: usize = 2 + 4 + 1 + WHOLE;
/// Series that every port with a filter has: connections.
const FILTERED: usize = 1;
/// Greatest number of series of drops that a port has.
const DROPS: usize = METRICS_SERIES_A_PORT - ALWAYS - FILTERED - GuardStats::TABLE.len();

impl Figures {
    fn of(port: &Port, view: &View, policy: &PortPolicy, health: &Health) -> Figures {
        let counted = port.stats.counters().map(|(_, counter)| counter.get());
        let whole = counted.chain([port.reports.log.suppressed.get()]).collect();
        let guard = port.stats.guard.counters().map(|(_, counter)| counter.get()).collect();
        let (name, is_up) = (port.name.clone(), port.is_up());
        let addresses = view.fdb.port_len(port.id) as u64;
        let filter = policy.filter.as_ref();
        let connections = filter.map(|filter| filter.connections.port_len(port.id) as u64);
        let info = health.info.get(&name).cloned().unwrap_or_default();
        let info = format!(",kind=\"{}\"{info}", port.kind_name());
        let traffic = port.traffic();
        Figures { name, info, is_up, traffic, addresses, connections, whole, guard }
    }
}

/// Says whether the switch is as configured.
#[derive(Debug)]
pub struct Health {
    /// The number of degradations by kind: as many items as [`Code::ALL`].
    degraded: Vec<(Code, u64)>,
    /// True while a reload waits to be confirmed.
    unconfirmed: bool,
    /// Labels of ports by their names.
    info: HashMap<String, String>,
    /// Rules of filters with the frames that they refused: the filter, and the place of the rule.
    refusals: Vec<((String, RulePlace), u64)>,
}

impl Health {
    /// Returns the present health of the switch.
    pub(crate) fn of(daemon: &Daemon) -> Health {
        let all = daemon.degradations();
        let count = |code: Code| all.iter().filter(|one| one.code == code).count() as u64;
        let degraded = Code::ALL.iter().map(|&code| (code, count(code)));
        let info = daemon.desired().entries().iter().map(|(name, Entry { settings, .. })| {
            let label = |(key, word): (&Key, String)| {
                let word = word.replace('\\', "\\\\").replace('"', "\\\"");
                format!(",{}=\"{word}\"", key.field())
            };
            (name.clone(), settings.shown().map(label).collect())
        });
        let (degraded, info) = (degraded.collect(), info.collect());
        let refusals = daemon.filters.refusals(METRICS_RULES);
        Health { degraded, unconfirmed: daemon.is_unconfirmed(), info, refusals }
    }

    /// Returns the number of ports that are not served.
    fn ports(&self) -> u64 {
        self.degraded.iter().filter(|(code, _)| code.is_port()).map(|(_, count)| count).sum()
    }

    fn series(&self) -> Vec<(String, String)> {
        let of = |(code, count): &(Code, u64)| {
            (format!("{{reason=\"{}\"}}", code.name()), count.to_string())
        };
        self.degraded.iter().map(of).collect()
    }
}

/// Returns the help of the series of degradations: the meaning of each reason.
fn health_help() -> String {
    let told = Code::ALL.iter().map(|code| format!("{} ({})", code.name(), code.meaning()));
    format!("Reasons why the switch is degraded: {}.", told.collect::<Vec<_>>().join("; "))
}

/// The part of the text that comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Series of the switch as a whole.
    Switch,
    /// A family of metrics of ports: the number of the family, and the index of the next port.
    Port(usize, usize),
    /// A family of workers.
    Worker(usize),
    Done,
}

/// The figures of one moment, as far as they are not written yet.
#[derive(Debug)]
pub(crate) struct Scrape {
    ports: Vec<Figures>,
    /// Counters by worker, in the order of [`WorkerStats`].
    workers: Vec<Vec<u64>>,
    switch: String,
    families: Vec<Family>,
    step: Step,
}

impl Scrape {
    /// Returns a scrape with all present figures; `findings` are the present findings.
    pub(crate) fn new(view: &View, health: &Health, findings: &[Finding]) -> Scrape {
        let table = view.ports.present();
        let figures = |port: &Port| Figures::of(port, view, table.policy(port.id), health);
        let counts = |stats: &WorkerStats| stats.counters().map(|(_, count)| count.get()).collect();
        let workers = view.workers.handles().iter().map(|handle| counts(&handle.stats));
        Scrape {
            ports: table.iter().map(|port| figures(port)).collect(),
            workers: workers.collect(),
            switch: switch(view, health) + &wrong(findings),
            families: families(),
            step: Step::Switch,
        }
    }

    /// True when the text is written.
    pub(crate) fn is_done(&self) -> bool {
        self.step == Step::Done
    }

    /// Returns the next part of the text: `bytes` bytes, or a few lines more.
    pub(crate) fn part(&mut self, bytes: usize) -> String {
        let mut out = String::new();
        while out.len() < bytes && !self.is_done() {
            self.step = match self.step {
                Step::Switch => {
                    out += &std::mem::take(&mut self.switch);
                    Step::Port(0, 0)
                }
                Step::Port(family, at) => self.port(&mut out, family, at),
                Step::Worker(family) => self.worker(&mut out, family),
                Step::Done => Step::Done,
            };
        }
        out
    }

    /// Writes one port's series of a family.
    fn port(&self, out: &mut String, family: usize, at: usize) -> Step {
        let Some(family_of) = self.families.get(family) else { return Step::Worker(0) };
        let Some(port) = self.ports.get(at) else { return Step::Port(family + 1, 0) };
        let Family { name, help, at: which, say } = family_of;
        if at == 0 {
            head(out, name, help);
        }
        say(port, *which, &mut |labels, value| {
            let _ = writeln!(out, "{name}{{port=\"{}\"{labels}}} {value}", port.name);
        });
        Step::Port(family, at + 1)
    }

    fn worker(&self, out: &mut String, family: usize) -> Step {
        let Some((counter, help)) = WorkerStats::TABLE.get(family) else { return Step::Done };
        let second = clock::cycles_per_second().max(1) as f64;
        let time = counter.strip_suffix("_cycles");
        let name = match time {
            Some(state) => format!("vioswitch_worker_{state}_seconds_total"),
            None => format!("vioswitch_worker_{counter}_total"),
        };
        head(out, &name, help);
        for (number, counts) in self.workers.iter().enumerate() {
            let count = counts[family];
            // Writing to a string cannot fail.
            let _ = match time {
                Some(_) => writeln!(out, "{name}{{worker=\"{number}\"}} {}", count as f64 / second),
                None => writeln!(out, "{name}{{worker=\"{number}\"}} {count}"),
            };
        }
        Step::Worker(family + 1)
    }
}

/// Takes a series of a port: labels beside its name, and the value.
type Say<'a> = &'a mut dyn FnMut(&str, u64);

/// A family of series; each port has some of them.
#[derive(Debug)]
struct Family {
    name: String,
    help: String,
    /// The index of the figure, if ports have several figures of one sort.
    at: usize,
    say: fn(&Figures, usize, Say<'_>),
}

/// Returns the families of ports.
fn families() -> Vec<Family> {
    let family = |name: &str, help: &str, at, say| {
        let name = format!("vioswitch_port_{name}");
        Family { name, help: help.to_owned(), at, say }
    };
    let counter = |name: &str, help: &str, at, say| family(&format!("{name}_total"), help, at, say);
    let help = "1 while frames pass: a front-end or peer is attached, or the TAP is up.";
    let mut all = vec![
        family("info", "1, with the port's kind and settings as labels.", 0, |port, _, say| {
            say(&port.info, 1);
        }),
        family("up", help, 0, |port, _, say| say("", port.is_up.into())),
    ];
    for way in Direction::ALL {
        let (at, name) = (way as usize, way.name());
        let from = if way == Direction::In { "from" } else { "to" };
        let help = format!("Frames {from} the VM or the network.");
        all.push(counter(&format!("{name}_frames"), &help, at, |port, at, say| {
            say("", port.traffic[at].frames);
        }));
        let help = format!("Bytes of frames {from} the VM or the network.");
        all.push(counter(&format!("{name}_bytes"), &help, at, |port, at, say| {
            say("", port.traffic[at].bytes);
        }));
        let counted = DropReason::ALL.iter().filter(|reason| reason.is_counted(way));
        let told = counted.map(|reason| format!("{} ({})", reason.name(), reason.meaning()));
        let told = told.collect::<Vec<_>>().join("; ");
        let help = format!("Frames dropped on their way {name}, by reason: {told}.");
        all.push(counter(&format!("{name}_drops"), &help, at, |port, at, say| {
            for (reason, count) in port.drops(Direction::ALL[at]) {
                say(&format!(",reason=\"{}\"", reason.name()), count);
            }
        }));
    }
    let help = "Entries of the forwarding table for the port.";
    all.push(family("addresses", help, 0, |port, _, say| say("", port.addresses)));
    let help = "Connections of a port with a filter, those that have timed out lately included.";
    all.push(family("connections", help, 0, |port, _, say| {
        port.connections.iter().for_each(|count| say("", *count));
    }));
    let rules = GuardStats::TABLE.iter();
    let told = rules.map(|(rule, help)| format!("{rule} ({})", help.trim_end_matches('.')));
    let told = told.collect::<Vec<_>>().join("; ");
    let help = format!("Frames that broke a rule of the port's guard, by rule: {told}.");
    all.push(counter("guard_violations", &help, 0, |port, _, say| {
        let rules = GuardStats::TABLE.iter().zip(&port.guard);
        for ((rule, _), count) in rules.filter(|(_, count)| **count > 0) {
            say(&format!(",rule=\"{rule}\""), *count);
        }
    }));
    let whole = PortStats::TABLE.iter().chain([&LOG_SUPPRESSED]).enumerate();
    all.extend(whole.map(|(at, (name, help))| {
        counter(name, help, at, |port, at, say| say("", port.whole[at]))
    }));
    all
}

impl Figures {
    /// Returns the reasons for drops in this direction, with counts, as far as the port has room
    /// for series.
    fn drops(&self, way: Direction) -> impl Iterator<Item = (DropReason, u64)> {
        let before = match way {
            Direction::In => 0,
            Direction::Out => self.traffic[Direction::In as usize].dropped().count(),
        };
        self.traffic[way as usize].dropped().take(DROPS.saturating_sub(before))
    }
}

fn head(out: &mut String, name: &str, help: &str) {
    let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// Returns the text of the series of the switch as a whole.
fn switch(view: &View, health: &Health) -> String {
    let mut out = String::new();
    let mut say = |name: &str, help: &str, series: &[(String, String)]| {
        head(&mut out, name, help);
        for (labels, value) in series {
            let _ = writeln!(out, "{name}{labels} {value}");
        }
    };
    let one = |value: u64| [(String::new(), value.to_string())];
    let version = env!("CARGO_PKG_VERSION");
    let build = [(format!("{{version=\"{version}\"}}"), "1".to_owned())];
    say("vioswitch_build_info", "The version that runs.", &build);
    let started = [(String::new(), format!("{:.3}", view.started_micros as f64 / 1e6))];
    say("process_start_time_seconds", "When the process started, in seconds since 1970.", &started);
    let table = view.ports.present();
    let kinds = Kind::PORTS.map(|kind| {
        let kind = kind.name();
        let count = table.iter().filter(|port| port.kind_name() == kind).count();
        (format!("{{kind=\"{kind}\"}}"), count.to_string())
    });
    say("vioswitch_ports", "Ports, by kind.", &kinds);
    let help = "Ports, TAPs and streams that cannot be served.";
    say("vioswitch_ports_degraded", help, &one(health.ports()));
    say("vioswitch_degraded", &health_help(), &health.series());
    let help = "1 while a reload waits for config confirm.";
    say("vioswitch_reload_unconfirmed", help, &one(health.unconfirmed.into()));
    let help = "Addresses in the forwarding table.";
    say("vioswitch_fdb_addresses", help, &one(view.fdb.len() as u64));
    let help = "Addresses that the forwarding table can hold.";
    say("vioswitch_fdb_addresses_limit", help, &one(FDB_MAX_ENTRIES.into()));
    if let Some(snooping) = table.snooping() {
        let (groups, memberships) = snooping.sizes();
        let help = "Groups that multicast snooping knows.";
        say("vioswitch_multicast_groups", help, &one(groups as u64));
        let help = "Groups that multicast snooping can know, those reserved for segments apart.";
        say("vioswitch_multicast_groups_limit", help, &one(MAX_GROUPS as u64));
        let help = "Memberships of ports in these groups.";
        say("vioswitch_multicast_memberships", help, &one(memberships));
    }
    let label = |((filter, rule), count): &((String, RulePlace), u64)| {
        (format!("{{filter=\"{filter}\",rule=\"{rule}\"}}"), count.to_string())
    };
    let refusals: Vec<_> = health.refusals.iter().map(label).collect();
    let help = "Frames that a rule or default of a filter refused, by filter and rule.";
    say("vioswitch_filter_refused_total", help, &refusals);
    let mirrors = table.mirrors().iter().zip(table.mirror_stats());
    let mirrors = |of: fn(&MirrorStats) -> u64| -> Vec<_> {
        let label = |name: &str| format!("{{mirror=\"{name}\"}}");
        mirrors.clone().map(|(one, stats)| (label(&one.name), of(stats).to_string())).collect()
    };
    let help = "Copies of frames that reached the port of a mirror.";
    say("vioswitch_mirror_copies_total", help, &mirrors(|stats| stats.copies.get()));
    let help = "Copies of frames that the port of a mirror lost.";
    say("vioswitch_mirror_lost_total", help, &mirrors(|stats| stats.lost.get()));
    let calls = sandbox::forbidden().into_iter();
    let calls = calls.map(|(name, count)| (format!("{{call=\"{name}\"}}"), count.to_string()));
    let help = "System calls that the sandbox refused, by call.";
    say("vioswitch_sandbox_refused_total", help, &calls.collect::<Vec<_>>());
    say("vioswitch_events_total", "Events so far.", &one(view.events.last()));
    let clients = &view.clients;
    let help = "Clients connected to the control socket.";
    say("vioswitch_control_clients", help, &one(clients.connected.get()));
    let help = "Clients that have connected to the control socket.";
    say("vioswitch_control_clients_accepted_total", help, &one(clients.accepted.get()));
    let closed = clients.closed();
    let closed = closed.map(|(why, count)| (format!("{{reason=\"{why}\"}}"), count.to_string()));
    let closed: Vec<_> = closed.collect();
    let help = "Clients that the switch closed, by reason.";
    say("vioswitch_control_clients_closed_total", help, &closed);
    out
}

/// Returns the text of the findings: a series for each port and code.
fn wrong(findings: &[Finding]) -> String {
    let mut out = String::new();
    let help = "1 for each present finding of vioswitchctl doctor, by code.";
    head(&mut out, "vioswitch_finding", help);
    let series = findings.iter().map(|one| (one.code, one.port.as_deref().unwrap_or("")));
    for (code, port) in series.collect::<BTreeSet<_>>() {
        let _ = writeln!(out, "vioswitch_finding{{code=\"{code}\",port=\"{port}\"}} 1");
    }
    out
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use testkit::manual::hold_table;

    use super::*;

    fn figures(name: &str, count: u64) -> Figures {
        let traffic = Traffic { frames: count, bytes: 60 * count, drops: [count; _] };
        Figures {
            name: name.to_owned(),
            info: String::new(),
            is_up: count > 0,
            traffic: [traffic; 2],
            addresses: count,
            connections: Some(count).filter(|count| *count > 0),
            whole: vec![count; WHOLE],
            guard: vec![count; GuardStats::TABLE.len()],
        }
    }

    fn scrape(ports: Vec<Figures>) -> Scrape {
        let workers = vec![vec![7; WorkerStats::TABLE.len()]; 2];
        let (switch, families) = (String::new(), families());
        Scrape { ports, workers, switch, families, step: Step::Switch }
    }

    #[test]
    fn every_counter_of_a_worker_is_told() {
        let text = scrape(Vec::new()).part(usize::MAX);
        for (name, _) in WorkerStats::default().counters() {
            let name = name.replace("cycles", "seconds");
            assert!(
                text.contains(&format!("vioswitch_worker_{name}_total{{worker=\"1\"}} ")),
                "{name}"
            );
        }
    }

    #[test]
    fn a_port_has_so_many_series_at_most_and_none_for_what_never_happened() {
        let text = scrape(vec![figures("a", 0), figures("b", 3)]).part(usize::MAX);
        let count = |port: &str| {
            text.lines().filter(|line| line.contains(&format!("port=\"{port}\""))).count()
        };
        assert_eq!((count("a"), count("b")), (ALWAYS, METRICS_SERIES_A_PORT));
        let violations = "vioswitch_port_guard_violations_total{port=\"b\",rule=\"arp\"} 3\n";
        assert!(text.contains(violations), "{text}");
        assert!(text.contains("vioswitch_port_in_drops_total{port=\"b\",reason=\"hairpin\"} 3\n"));
        assert!(text.contains("vioswitch_port_up{port=\"a\"} 0\n"));
    }

    #[test]
    fn the_help_of_drops_tells_what_each_reason_means() {
        let text = scrape(vec![figures("a", 0)]).part(usize::MAX);
        let help = |way| {
            let start = format!("# HELP vioswitch_port_{way}_drops_total ");
            text.lines().find(|line| line.starts_with(&start)).unwrap()
        };
        let told = |way, reason: DropReason| {
            help(way).contains(&format!(" {} ({})", reason.name(), reason.meaning()))
        };
        assert!(told("in", DropReason::Hairpin) && !told("out", DropReason::Hairpin));
        assert!(told("out", DropReason::TooBig) && told("out", DropReason::NoBuffer));
        assert!(told("in", DropReason::TapRejected) && told("out", DropReason::TapRejected));
    }

    #[test]
    fn the_page_has_each_metric_of_ports_and_workers() {
        let mark = "<!-- UPDATE_DOCS: src/daemon/metrics/text.rs -->";
        let text = scrape(vec![figures("a", 0)]).part(usize::MAX);
        let helps = text.lines().filter_map(|line| line.strip_prefix("# HELP ")?.split_once(' '));
        let rows: String = helps
            .map(|(name, help)| {
                // Reasons and rules with their meanings stand in tables of their own.
                let end = if help.contains(", by r") { help.find(": ") } else { None };
                let help = help[..end.unwrap_or(help.len())].trim_end_matches('.');
                format!("`{name}` | {help}\n")
            })
            .collect();
        let table = format!("metric | meaning\n---|---\n{rows}");
        hold_table("docs/counters.md", mark, &table);
    }

    #[test]
    fn each_family_stands_together_behind_its_head() {
        let ports = || (0..50).map(|n| figures(&format!("p{n}"), 1)).collect();
        let whole = scrape(ports()).part(usize::MAX);
        let (mut families, mut present) = (HashSet::new(), "");
        for line in whole.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert!(families.insert(name), "{name} twice");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
                present = name;
            } else if !line.starts_with('#') {
                assert!(line.starts_with(&format!("{present}{{")), "{line} in {present}");
            }
        }
        assert_eq!(families.len(), super::families().len() + WorkerStats::TABLE.len());
        // The text in parts equals the whole text.
        let (mut scrape, mut parts) = (scrape(ports()), String::new());
        while !scrape.is_done() {
            let part = scrape.part(500);
            assert!(part.len() < 4_000, "{}", part.len());
            parts += &part;
        }
        assert_eq!(parts, whole);
    }
}
