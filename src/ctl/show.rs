//! Formats answers for people: tables in plain text. In a terminal a table is as wide as the
//! terminal, with long texts in several lines of their column; in a pipe each row is a line.

use std::fmt::Display;

use api::config::{Effect, KEYS, Key, Kind};
use api::wire::{self, Address, Change, Flushed, GroupPort, GroupRole, Port, Status, Traffic};
use base::words::counted;
use comfy_table::{ColumnConstraint, ContentArrangement, Table, presets};
use rustix::termios::tcgetwinsize;
use serde_json::Value;

use crate::look::{Drops, Health, PortRates, Stats, WorkerShare};
use crate::output::text;
use crate::span::{ago, span};

/// Returns a value, or `-` if it is missing.
pub fn maybe(value: Option<impl Display>) -> String {
    value.map_or_else(|| "-".to_owned(), text)
}

/// Returns words with blanks between, or `-` if there is no word.
pub fn words(all: &[String]) -> String {
    if all.is_empty() { "-".to_owned() } else { text(all.join(" ")) }
}

/// Columns of a table.
pub(crate) type Columns<'c, T> = &'c [Column<'c, T>];

/// Title of a column, and the function that returns the column's cell of a row.
pub(crate) type Column<'c, T> = (&'c str, &'c dyn Fn(&T) -> String);

/// Returns a table with a row for each item.
pub fn listing<T>(items: &[T], columns: Columns<'_, T>) -> String {
    let title: Vec<&str> = columns.iter().map(|(title, _)| *title).collect();
    let row = |item: &T| columns.iter().map(|(_, cell)| cell(item)).collect();
    table(&title, items.iter().map(row).collect())
}

/// Returns rows in columns two blanks apart, below a title unless the title is empty.
pub fn table(title: &[&str], rows: Vec<Vec<String>>) -> String {
    if title.is_empty() && rows.is_empty() {
        return String::new();
    }
    let is_new = |at: usize| !title[..at].contains(&title[at]);
    debug_assert!((0..title.len()).all(is_new), "two columns have one name: {title:?}");
    let size = tcgetwinsize(std::io::stdout());
    fitted(title, rows, size.ok().map(|size| size.ws_col).filter(|columns| *columns > 0))
}

/// Width up to which a column stays whole; wider columns make room.
const WHOLE: u16 = 20;

/// Returns a table that fits a terminal of `columns` columns, or a table of any width without a
/// terminal.
fn fitted(title: &[&str], rows: Vec<Vec<String>>, columns: Option<u16>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).add_rows(rows);
    match columns {
        Some(columns) => {
            table.set_content_arrangement(ContentArrangement::Dynamic).set_width(columns)
        }
        None => table.set_content_arrangement(ContentArrangement::Disabled),
    };
    if !title.is_empty() {
        table.set_header(title.to_vec());
    }
    let widths = table.column_max_content_widths();
    let last = widths.len().saturating_sub(1);
    for (n, (column, width)) in table.column_iter_mut().zip(widths).enumerate() {
        column.set_padding((0, if n < last { 2 } else { 0 }));
        if width <= WHOLE {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// Returns names and values, a pair on each row.
pub fn pairs(pairs: Vec<(&str, String)>) -> String {
    let rows = pairs.into_iter().map(|(name, value)| vec![format!("{name}:"), value]);
    table(&[], rows.collect())
}

/// Returns the answer for `status` as text.
pub fn status(status: &Status) -> String {
    let kept = match &status.state_dir {
        None => "transient: there is no --state-dir".to_owned(),
        Some(path) => format!("kept in {}", text(path)),
    };
    let mut told = vec![
        ("version", text(&status.version)),
        ("pid", status.pid.to_string()),
        ("uptime", span(status.uptime)),
        ("workers", status.workers.to_string()),
    ];
    let counts = Kind::PORTS.map(|kind| (kind.count_name(), status.counts.of(kind).to_string()));
    told.extend(counts);
    told.extend([("addresses", status.addresses.to_string()), ("changes", kept)]);
    told.extend(status.tap_writes.iter().map(|group| ("uplink io", uplink_io(group))));
    let latency = Some(&status.latency).filter(|latency| !latency.is_empty());
    told.extend(latency.map(|latency| ("latency", text(latency))));
    told.push(("sandbox", sandbox(status.sandbox.as_ref())));
    told.extend(status.plug.as_ref().map(|plug| ("plug", text(&plug.directory))));
    told.extend(status.unconfirmed.as_ref().map(|waiting| ("reload", unconfirmed(waiting))));
    if status.degraded.is_empty() {
        told.push(("health", "healthy".to_owned()));
    }
    told.extend(status.degraded.iter().map(|reason| ("degraded", text(reason))));
    pairs(told)
}

/// Returns a group of uplinks, such as `uring: 2 (up, lan); io=auto, and the kernel permits it`.
fn uplink_io(wire::TapWrites { io, why, taps, names }: &wire::TapWrites) -> String {
    let more = if *taps > names.len() { ", ..." } else { "" };
    format!("{}: {taps} ({}{more}); {}", text(io), text(names.join(", ")), text(why))
}

/// Returns the sandbox, such as `on: Landlock 7 (files, links); 118 system calls; capabilities:
/// none`.
fn sandbox(sandbox: Option<&wire::Sandbox>) -> String {
    let Some(sandbox) = sandbox else { return "off".to_owned() };
    let listed = |words: &[String]| match words {
        [] => "none".to_owned(),
        words => text(words.join(", ")),
    };
    let wire::Sandbox { landlock, covers, system_calls, capabilities, .. } = sandbox;
    let mut parts = vec![
        match landlock {
            0 => "no Landlock".to_owned(),
            version => format!("Landlock {version} ({})", listed(covers)),
        },
        match system_calls {
            0 => "all system calls".to_owned(),
            count => format!("{count} system calls"),
        },
        format!("capabilities: {}", listed(capabilities)),
        format!("uplinks to add: {}", listed(&sandbox.uplinks)),
    ];
    let refused = sandbox.forbidden.iter().map(|(name, count)| format!("refused {name}: {count}"));
    parts.extend(refused.chain(sandbox.lacks.iter().cloned()).map(text));
    let state = if sandbox.lacks.is_empty() { "on" } else { "incomplete" };
    format!("{state}: {}", parts.join("; "))
}

/// Returns the words for a reload that waits to be confirmed.
pub fn unconfirmed(wire::Unconfirmed { seconds, pid, uid }: &wire::Unconfirmed) -> String {
    format!("waits {seconds} s for config confirm, then is undone (by pid {pid} uid {uid})")
}

/// Returns when a change takes effect.
pub fn when(effect: Effect) -> &'static str {
    match effect {
        Effect::Now => "now",
        Effect::Reconnect => "when its front-end reconnects",
        Effect::Reopen => "with another socket or interface",
        Effect::Restart => "with a restart",
        Effect::NewPorts => "for ports that come later",
    }
}

/// Returns a change, such as `mtu 1500 -> 9000`.
pub fn arrow(Change { key, from, to, .. }: &Change) -> String {
    format!("{} {} -> {}", text(key), maybe(from.as_ref()), maybe(to.as_ref()))
}

/// Returns the answer for `port set` or `port reset` as text.
pub fn changes(changes: &[Change]) -> String {
    let rows = changes.iter().map(|change| vec![arrow(change), when(change.effect).to_owned()]);
    table(&[], rows.collect())
}

/// Returns the keys that are shown wherever a port of one of `kinds` is.
fn shown(kinds: &[Kind]) -> impl Iterator<Item = &'static Key> {
    KEYS.iter().filter(|key| key.is_shown && key.kinds.iter().any(|kind| kinds.contains(kind)))
}

/// Returns the kind of a port; the kind of virtual machines for a word of a later version.
fn kind(port: &Port) -> Kind {
    Kind::named(&port.kind).unwrap_or(Kind::Port)
}

/// Returns the value of a port's key, whether a string or a number.
fn value(port: &Port, key: &Key) -> Option<String> {
    match port.keys.0.get(&key.field())? {
        Value::String(word) => Some(word.clone()),
        other => Some(other.to_string()),
    }
}

/// Returns the answer for `port list` as text. A setting has a column if a port's value is not the
/// default.
pub fn ports(ports: &[Port]) -> String {
    let is_set = |key: &Key| {
        let mut values = ports.iter().filter_map(|port| Some((kind(port), value(port, key)?)));
        values.any(|(kind, word)| word != key.default(kind))
    };
    let keys: Vec<&Key> = shown(&Kind::PORTS).filter(|key| is_set(key)).collect();
    let names = ["NAME", "KIND", "ORIGIN", "STATE", "QUEUES", "MTU", "ADDRESSES", "PID"];
    let mut title: Vec<String> = names.map(str::to_owned).into();
    title.extend(keys.iter().map(|key| key.name.to_uppercase()));
    let rows = ports.iter().map(|port| {
        let mut row = vec![
            text(&port.name),
            text(&port.kind),
            text(&port.origin),
            port.state.to_string(),
            port.queues.to_string(),
            maybe(port.mtu),
            port.addresses.to_string(),
            maybe(port.front_end.as_ref().map(|who| who.pid)),
        ];
        row.extend(keys.iter().map(|key| maybe(value(port, key))));
        row
    });
    table(&title.iter().map(String::as_str).collect::<Vec<_>>(), rows.collect())
}

/// Returns the drops by their reason, the most frequent first, and when the last frame was dropped.
fn drops(traffic: &Traffic) -> String {
    let mut drops: Vec<_> = traffic.drops.iter().collect();
    drops.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let told: Vec<String> = drops.iter().map(|(name, count)| format!("{name} {count}")).collect();
    match told.is_empty() {
        true => "none".to_owned(),
        false => format!("{}; last {}", text(told.join(", ")), last(latest(traffic))),
    }
}

/// Returns the seconds since the last drop for any reason, if this switch counted a drop.
pub(crate) fn latest(traffic: &Traffic) -> Option<u64> {
    traffic.drop_ages.values().min().copied()
}

/// Returns when the last frame was dropped; `age` is the number of seconds since the drop.
pub fn last(age: Option<u64>) -> String {
    age.map_or_else(|| "before the switch started".to_owned(), ago)
}

/// Returns the rows that every port has.
pub fn port(port: &Port) -> Vec<(&'static str, String)> {
    let mut told = vec![
        ("name", text(&port.name)),
        ("number", port.number.to_string()),
        ("kind", text(&port.kind)),
        ("origin", text(&port.origin)),
        ("state", port.state.to_string()),
    ];
    told.extend(port.owner.map(|uid| ("owner", format!("uid {uid}"))));
    let who = port.front_end.as_ref();
    told.extend(who.map(|who| ("front-end", format!("pid {} uid {}", who.pid, who.uid))));
    told.extend(port.interface.as_ref().map(|interface| ("interface", text(interface))));
    told.extend(port.io.as_ref().map(|io| match &port.io_refused {
        Some(why) => ("io", format!("{} ({})", text(io), text(why))),
        None => ("io", text(io)),
    }));
    told.extend([
        ("queues", port.queues.to_string()),
        ("mtu", maybe(port.mtu)),
        ("offloads in", words(&port.send_offloads)),
        ("offloads out", words(&port.offloads)),
    ]);
    told.extend(shown(&[kind(port)]).map(|key| (key.name, maybe(value(port, key)))));
    let pending = port.pending.iter();
    told.extend(
        pending.map(|change| ("pending", format!("{}, {}", arrow(change), when(change.effect)))),
    );
    told.push(("addresses", port.addresses.to_string()));
    for (side, name, traffic) in [("in", "drops in", &port.r#in), ("out", "drops out", &port.out)] {
        let (frames, bytes) = (counted(traffic.frames, "frame"), counted(traffic.bytes, "byte"));
        told.push((side, format!("{frames}, {bytes}")));
        told.push((name, drops(traffic)));
    }
    told.extend([
        ("attaches", port.attaches.to_string()),
        ("session_errors", port.session_errors.to_string()),
        ("peers_refused", port.peers_refused.to_string()),
        ("rings_broken", port.rings_broken.to_string()),
        ("learn_refused", port.learn_refused.to_string()),
        ("panics", port.panics.to_string()),
    ]);
    told
}

/// Returns the answer for `stats` as text.
pub fn stats(stats: &Stats) -> String {
    let ports = listing(
        &stats.ports,
        &[
            ("PORT", &|port| text(&port.name)),
            ("IN FRAMES", &|port| port.r#in.frames.to_string()),
            ("IN BYTES", &|port| port.r#in.bytes.to_string()),
            ("OUT FRAMES", &|port| port.out.frames.to_string()),
            ("OUT BYTES", &|port| port.out.bytes.to_string()),
            ("DROPS IN", &|port| drops(&port.r#in)),
            ("DROPS OUT", &|port| drops(&port.out)),
        ],
    );
    let cycles = stats.workers.cycles_per_second.max(1) as f64;
    let workers = listing(
        &stats.workers.workers,
        &[
            ("WORKER", &|worker| worker.number.to_string()),
            ("FRAMES", &|worker| worker.frames.to_string()),
            ("BURSTS", &|worker| worker.bursts.to_string()),
            ("WAKEUPS", &|worker| worker.wakeups.to_string()),
            ("SIGNALS", &|worker| worker.signals.to_string()),
            ("BUSY", &|worker| format!("{:.3} s", worker.busy_cycles as f64 / cycles)),
        ],
    );
    format!("{ports}\n{workers}")
}

/// Returns the answer for `fdb show` as text.
pub fn addresses(addresses: &[Address]) -> String {
    let idle = |address: &Address| match address.idle {
        None => "static".to_owned(),
        Some(idle) if address.held == Some(true) => format!("{idle} s held"),
        Some(idle) => format!("{idle} s"),
    };
    let bridge: Column<'_, Address> =
        ("BRIDGE", &|address| address.bridge.clone().unwrap_or_else(|| "default".to_owned()));
    let vlan: Column<'_, Address> = ("VLAN", &|address| maybe(address.vlan));
    let mut columns: Vec<Column<'_, Address>> = vec![
        ("ADDRESS", &|address| text(&address.mac)),
        ("PORT", &|address| text(&address.port)),
        ("IDLE", &idle),
        ("ORIGIN", &|address| maybe(address.origin.as_ref())),
    ];
    // The table leaves out columns without a word.
    let has = |there: fn(&Address) -> bool| addresses.iter().any(there);
    columns.splice(2..2, has(|address| address.vlan.is_some()).then_some(vlan));
    columns.splice(2..2, has(|address| address.bridge.is_some()).then_some(bridge));
    listing(addresses, &columns)
}

/// Returns the answer for `mdb show` as text.
pub fn groups(all: &[GroupPort]) -> String {
    let what = |one: &GroupPort| match (&one.group, &one.protocol) {
        (Some(group), _) => text(group),
        (None, Some(protocol)) => text(protocol),
        _ => "all".to_owned(),
    };
    let state = |one: &GroupPort| {
        let word = match (one.role, one.limited) {
            (GroupRole::Router, _) => "-",
            (GroupRole::Querier, Some(false)) => "waits for answers",
            (GroupRole::Querier, _) => "heard",
            (GroupRole::Member, Some(true)) => "limited",
            (GroupRole::Member, _) => "flooded",
        };
        word.to_owned()
    };
    let bridge: Column<'_, GroupPort> =
        ("BRIDGE", &|one| one.bridge.clone().unwrap_or_else(|| "default".to_owned()));
    let vlan: Column<'_, GroupPort> = ("VLAN", &|one| maybe(one.vlan));
    let mut columns: Vec<Column<'_, GroupPort>> = vec![
        ("ROLE", &|one| text(one.role.name())),
        ("GROUP", &what),
        ("PORT", &|one| text(&one.port)),
        ("AGE", &|one| maybe(one.age.map(|age| format!("{age} s")))),
        ("STATE", &state),
    ];
    // The table leaves out columns without a word.
    let has = |there: fn(&GroupPort) -> bool| all.iter().any(there);
    columns.splice(3..3, has(|one| one.vlan.is_some()).then_some(vlan));
    columns.splice(3..3, has(|one| one.bridge.is_some()).then_some(bridge));
    listing(all, &columns)
}

/// Returns the answer for `fdb flush` as text.
pub fn flushed(answer: &Flushed) -> String {
    format!("{} forgotten\n", counted(answer.flushed, "address"))
}

/// Returns a number as people read numbers, with three digits, such as 1.23 M.
pub(crate) fn human(number: f64) -> String {
    scaled(number, 1000.0, ["", "K", "M", "G", "T"])
}

/// Returns bytes of memory as people read sizes, such as 4.00 KiB.
pub fn memory(bytes: u64) -> String {
    scaled(bytes as f64, 1024.0, ["", "Ki", "Mi", "Gi", "Ti"]) + "B"
}

/// Returns bytes as a number of bits for people.
pub fn bits(bytes: f64) -> String {
    human(8.0 * bytes)
}

fn scaled(mut number: f64, step: f64, units: [&str; 5]) -> String {
    let mut unit = 0;
    while number >= step && unit + 1 < units.len() {
        number /= step;
        unit += 1;
    }
    match (unit, number) {
        (0, number) if number.fract() == 0.0 => format!("{number} "),
        (_, number) if number < 10.0 => format!("{number:.2} {}", units[unit]),
        (_, number) if number < 100.0 => format!("{number:.1} {}", units[unit]),
        _ => format!("{number:.0} {}", units[unit]),
    }
}

/// Returns the rates of `stats --watch` as text.
pub fn rates(ports: &[PortRates]) -> String {
    let trimmed = |number: String| number.trim().to_owned();
    listing(
        ports,
        &[
            ("PORT", &|port| text(&port.name)),
            ("IN f/s", &|port| trimmed(human(port.rates.r#in.frames))),
            ("IN bit/s", &|port| trimmed(bits(port.rates.r#in.bytes))),
            ("IN DROPS/s", &|port| trimmed(human(port.rates.r#in.drops))),
            ("OUT f/s", &|port| trimmed(human(port.rates.out.frames))),
            ("OUT bit/s", &|port| trimmed(bits(port.rates.out.bytes))),
            ("OUT DROPS/s", &|port| trimmed(human(port.rates.out.drops))),
        ],
    )
}

/// Returns the answer for `port list --names`.
pub fn names(ports: &[Port]) -> String {
    ports.iter().map(|port| text(&port.name) + "\n").collect()
}

/// Returns the answer for `drops` as text.
pub fn dropped(all: &Drops) -> String {
    let mut told = listing(
        &all.drops,
        &[
            ("PORT", &|drop| text(&drop.port)),
            ("DIR", &|drop| text(drop.direction)),
            ("REASON", &|drop| text(&drop.reason)),
            ("COUNT", &|drop| drop.count.to_string()),
            ("LAST", &|drop| last(drop.age)),
            ("MEANING", &|drop| text(&drop.meaning)),
            ("WHAT TO DO", &|drop| text(&drop.advice)),
        ],
    );
    if !all.senders.is_empty() {
        told += "\nsenders whose frames found no room lately:\n";
        told += &listing(
            &all.senders,
            &[
                ("PORT", &|one| text(&one.port)),
                ("FROM", &|one| text(&one.from)),
                ("FRAMES", &|one| one.frames.to_string()),
                ("SHARE", &|one| format!("{:.0} %", 100.0 * one.share)),
            ],
        );
    }
    told
}

/// Returns the answer for `health` as text: one word, and a line for each reason and for a reload
/// that waits to be confirmed.
pub fn health(health: &Health) -> String {
    let waits = health.unconfirmed.as_ref().map(|one| format!("reload {}", unconfirmed(one)));
    let lines = health.reasons.iter().map(text).chain(waits).map(|line| format!("  {line}\n"));
    format!("{}\n{}", health.health, lines.collect::<String>())
}

/// Returns the answer for `worker` as text.
pub fn workers(workers: &[WorkerShare]) -> String {
    listing(
        workers,
        &[
            ("WORKER", &|one| one.worker.number.to_string()),
            ("BUSY", &|one| format!("{:.1} %", one.busy * 100.0)),
            ("TURNS", &|one| one.worker.turns.to_string()),
            ("BURSTS", &|one| one.worker.bursts.to_string()),
            ("FRAMES", &|one| one.worker.frames.to_string()),
            ("WAKEUPS", &|one| one.worker.wakeups.to_string()),
            ("EMPTY", &|one| one.worker.empty_wakeups.to_string()),
            ("SIGNALS", &|one| one.worker.signals.to_string()),
            ("MOVES", &|one| one.worker.moves.to_string()),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::look::{Rate, Rates};

    const TITLE: [&str; 3] = ["PORT", "COUNT", "MEANING"];

    fn rows() -> Vec<Vec<String>> {
        let meaning = "the receiver had no buffer and its credit ran out ".repeat(3);
        let row = |port: &str, meaning: &str| vec![port.into(), "815".into(), meaning.into()];
        vec![row("vm1", "short"), row("vm2", meaning.trim_end())]
    }

    #[test]
    fn a_table_is_as_wide_as_the_terminal() {
        let fitted = fitted(&TITLE, rows(), Some(80));
        assert!(fitted.starts_with("PORT  COUNT  MEANING\nvm1   815    short\nvm2   815    the "));
        assert!(fitted.lines().all(|line| line.chars().count() <= 80), "{fitted}");
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&fitted), words(&super::fitted(&TITLE, rows(), None)));
    }

    #[test]
    fn memory_is_in_binary_units_and_rates_are_in_bits() {
        for (bytes, told) in [
            (0, "0 B"),
            (4096, "4.00 KiB"),
            (1023 << 10, "1023 KiB"),
            (512 << 20, "512 MiB"),
            (3 << 29, "1.50 GiB"),
        ] {
            assert_eq!(memory(bytes), told);
        }
        let rate = Rate { frames: 2.0, bytes: 125_000.0, drops: 0.0 };
        let port = PortRates { name: "a".to_owned(), rates: Rates { r#in: rate, out: rate } };
        let told = rates(&[port]);
        let lines: Vec<Vec<&str>> =
            told.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(lines[0].iter().filter(|word| **word == "bit/s").count() == 2, "{told}");
        assert_eq!(lines[1].join(" "), "a 2 1.00 M 0 2 1.00 M 0");
    }

    /// A long value continues below the column where the value began.
    #[test]
    fn pairs_fit_a_terminal() {
        let rows = [("name:", "vm1"), ("features:", &"WORD ".repeat(30))];
        let rows = rows.map(|(name, value)| vec![name.to_owned(), value.trim_end().to_owned()]);
        let fitted = fitted(&[], rows.into(), Some(50));
        assert!(fitted.starts_with("name:      vm1\nfeatures:  WORD WORD"), "{fitted}");
        assert!(fitted.lines().all(|line| line.chars().count() <= 50), "{fitted}");
        assert!(fitted.lines().skip(2).all(|line| line.starts_with("           WORD")), "{fitted}");
        let one = vec![vec!["name:".to_owned(), "vm1".to_owned()]];
        assert_eq!(super::fitted(&[], one, None), "name:  vm1\n");
    }

    #[test]
    fn a_row_is_a_line_in_a_pipe() {
        let plain = fitted(&TITLE, rows(), None);
        assert_eq!(plain.lines().count(), 3);
        assert!(plain.starts_with("PORT  COUNT  MEANING\nvm1   815    short\nvm2   815    the "));
        let one = || vec![rows().remove(0)];
        assert_eq!(fitted(&TITLE, one(), Some(80)), fitted(&TITLE, one(), None));
    }
}
