//! Answers for people: tables in plain text. In a terminal they are as wide as that, with long
//! texts in several lines of their column; in a pipe each row is a line.

use std::fmt::Write;

use comfy_table::{ColumnConstraint, ContentArrangement, Table, presets};
use rustix::termios::tcgetwinsize;
use serde_json::Value;
use vioswitch::config::{KEYS, Key, Kind};

/// A word of an answer; nothing for what is not there.
pub fn word(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.chars().filter(|c| !c.is_control()).collect(),
        Value::Bool(truth) => if *truth { "yes" } else { "no" }.to_owned(),
        Value::Array(items) if items.is_empty() => "-".to_owned(),
        Value::Array(items) => items.iter().map(word).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}

pub fn items<'a>(answer: &'a Value, key: &str) -> &'a [Value] {
    answer[key].as_array().map_or(&[], Vec::as_slice)
}

pub fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

/// Rows with a title, or without any, in columns two blanks apart.
pub fn table(title: &[&str], rows: &[Vec<String>]) -> String {
    match tcgetwinsize(std::io::stdout()) {
        Ok(size) if size.ws_col > 0 => fitted(title, rows, size.ws_col),
        _ => plain(title, rows),
    }
}

/// Words up to so long stay in one line; texts make room for them.
const WHOLE: u16 = 20;

fn fitted(title: &[&str], rows: &[Vec<String>], columns: u16) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(columns).add_rows(rows.to_vec());
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

fn plain(title: &[&str], rows: &[Vec<String>]) -> String {
    let title: Vec<String> = title.iter().map(|name| (*name).to_owned()).collect();
    let all = Some(&title).filter(|title| !title.is_empty()).into_iter().chain(rows);
    let mut widths = vec![0; all.clone().map(Vec::len).max().unwrap_or(0)];
    for row in all.clone() {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut out = String::new();
    for row in all {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        out += cells.join("  ").trim_end();
        out.push('\n');
    }
    out
}

/// Names and values below each other.
pub fn pairs(pairs: &[(&str, String)]) -> String {
    let rows = pairs.iter().map(|(name, value)| vec![format!("{name}:"), value.clone()]);
    table(&[], &rows.collect::<Vec<_>>())
}

/// `metrics`.
pub fn metrics(answer: &Value) -> String {
    answer["text"].as_str().unwrap_or_default().to_owned()
}

/// `port add`, `stream add`: where its socket is.
pub fn added(answer: &Value) -> String {
    answer["socket"].as_str().map_or(String::new(), |_| word(&answer["socket"]) + "\n")
}

/// Nothing is said of what was done.
pub fn nothing(_: &Value) -> String {
    String::new()
}

/// `port del`.
pub fn deleted(answer: &Value) -> String {
    match answer["in_progress"] == true {
        true => "the removal continues: what served the port has not ended yet\n".to_owned(),
        false => String::new(),
    }
}

/// `status`.
pub fn status(answer: &Value) -> String {
    let mut told: Vec<(&str, String)> =
        ["version", "pid", "uptime", "workers", "ports", "taps", "streams", "addresses"]
            .map(|key| (key, word(&answer[key])))
            .into();
    told[2].1 += " s";
    let kept = match &answer["state_dir"] {
        Value::Null => "not kept for the next start: there is no --state-dir".to_owned(),
        path => format!("kept in {}", word(path)),
    };
    told.push(("changes", kept));
    if let Some(directory) = answer["plug"]["directory"].as_str() {
        told.push(("plug", directory.to_owned()));
    }
    if let Some(text) = unconfirmed(answer) {
        told.push(("reload", text));
    }
    let degraded = items(answer, "degraded");
    if degraded.is_empty() {
        told.push(("health", "healthy".to_owned()));
    }
    told.extend(degraded.iter().map(|reason| ("degraded", word(reason))));
    pairs(&told)
}

/// What is said of a reload that waits to be confirmed, if one does.
pub fn unconfirmed(answer: &Value) -> Option<String> {
    let waiting = answer["unconfirmed"].as_object()?;
    let [seconds, pid, uid] = ["seconds", "pid", "uid"].map(|key| word(&waiting[key]));
    Some(format!("waits {seconds} s for config confirm, then is undone (by pid {pid} uid {uid})"))
}

/// When a change takes effect.
pub fn when(effect: &Value) -> &'static str {
    match effect.as_str() {
        Some("now") => "now",
        Some("reconnect") => "when its front-end reconnects",
        Some("reopen") => "with another socket or interface",
        Some("restart") => "with a restart",
        Some("new_ports") => "for ports that come later",
        _ => "-",
    }
}

/// `mtu 1500 -> 9000`
pub fn arrow(change: &Value) -> String {
    format!("{} {} -> {}", word(&change["key"]), word(&change["from"]), word(&change["to"]))
}

/// `port set`.
pub fn changes(answer: &Value) -> String {
    let changes = items(answer, "changes");
    let width = changes.iter().map(|change| arrow(change).chars().count()).max().unwrap_or(0);
    changes.iter().fold(String::new(), |mut out, change| {
        let _ = writeln!(out, "{:width$}  {}", arrow(change), when(&change["effect"]));
        out
    })
}

/// `port list`. A setting has a column where a port's is not the default.
pub fn ports(answer: &Value) -> String {
    let ports = items(answer, "ports");
    let is_set = |key: &Key| {
        let default = |port: &Value| match port[key.field()].as_str() {
            Some(word) => word == key.default(Kind::Port),
            None => true,
        };
        !ports.iter().all(default)
    };
    let keys: Vec<&Key> = shown().filter(|key| is_set(key)).collect();
    let fields = ["name", "kind", "origin", "state", "queues", "mtu", "addresses"];
    let rows = ports.iter().map(|port| {
        let mut row: Vec<String> = fields.map(|key| word(&port[key])).into();
        row.push(word(&port["front_end"]["pid"]));
        row.extend(keys.iter().map(|key| word(&port[key.field()])));
        row
    });
    let names = fields.into_iter().chain(["pid"]).chain(keys.iter().map(|key| key.name));
    let title: Vec<String> = names.map(str::to_uppercase).collect();
    let title: Vec<&str> = title.iter().map(String::as_str).collect();
    table(&title, &rows.collect::<Vec<_>>())
}

/// Keys that are shown wherever a port is.
fn shown() -> impl Iterator<Item = &'static Key> {
    KEYS.iter().filter(|key| key.is_shown)
}

/// Drops by their reason, the most frequent first.
fn drops(traffic: &Value) -> String {
    let Some(drops) = traffic["drops"].as_object() else { return "-".to_owned() };
    let mut drops: Vec<_> = drops.iter().collect();
    drops.sort_by_key(|(_, n)| std::cmp::Reverse(n.as_u64()));
    let told: Vec<String> = drops.iter().map(|(name, n)| format!("{name} {n}")).collect();
    if told.is_empty() { "none".to_owned() } else { told.join(", ") }
}

/// What is known of any port.
pub fn port(answer: &Value) -> Vec<(&'static str, String)> {
    let port = &answer["port"];
    let mut told: Vec<(&'static str, String)> =
        ["name", "number", "kind", "origin", "state"].map(|key| (key, word(&port[key]))).into();
    if !port["owner"].is_null() {
        told.push(("owner", format!("uid {}", port["owner"])));
    }
    let who = &port["front_end"];
    if !who.is_null() {
        told.push(("front-end", format!("pid {} uid {}", who["pid"], who["uid"])));
    }
    if !port["interface"].is_null() {
        told.push(("interface", word(&port["interface"])));
    }
    for (name, key) in [
        ("queues", "queues"),
        ("mtu", "mtu"),
        ("offloads in", "send_offloads"),
        ("offloads out", "offloads"),
    ] {
        told.push((name, word(&port[key])));
    }
    told.extend(shown().map(|key| (key.name, word(&port[key.field()]))));
    let pending = items(port, "pending").iter();
    told.extend(
        pending
            .map(|change| ("pending", format!("{}, {}", arrow(change), when(&change["effect"])))),
    );
    told.push(("addresses", word(&port["addresses"])));
    for (side, name) in [("in", "drops in"), ("out", "drops out")] {
        let traffic = &port[side];
        told.push((side, format!("{} frames, {} bytes", traffic["frames"], traffic["bytes"])));
        told.push((name, drops(traffic)));
    }
    for key in ["attaches", "session_errors", "rings_broken", "learn_refused", "panics"] {
        told.push((key, word(&port[key])));
    }
    told
}

/// `stats`.
pub fn stats(answer: &Value) -> String {
    let rows = items(answer, "ports").iter().map(|port| {
        let (input, output) = (&port["in"], &port["out"]);
        let numbers = [&input["frames"], &input["bytes"], &output["frames"], &output["bytes"]];
        let mut row = vec![word(&port["name"])];
        row.extend(numbers.map(word));
        row.extend([drops(input), drops(output)]);
        row
    });
    let title = ["PORT", "IN", "BYTES", "OUT", "BYTES", "DROPS IN", "DROPS OUT"];
    let ports = table(&title, &rows.collect::<Vec<_>>());
    let rows = items(answer, "workers").iter().map(|worker| {
        let busy = number(&worker["busy_cycles"]);
        let seconds = busy / number(&answer["cycles_per_second"]).max(1.0);
        let mut row: Vec<String> = ["number", "frames", "bursts", "wakeups", "signals"]
            .map(|key| word(&worker[key]))
            .into();
        row.push(format!("{seconds:.3} s"));
        row
    });
    let title = ["WORKER", "FRAMES", "BURSTS", "WAKEUPS", "SIGNALS", "BUSY"];
    format!("{ports}\n{}", table(&title, &rows.collect::<Vec<_>>()))
}

/// `fdb show`.
pub fn addresses(answer: &Value) -> String {
    let rows = items(answer, "addresses").iter().map(|address| {
        let idle = match &address["idle"] {
            Value::Null => "static".to_owned(),
            idle => format!("{idle} s"),
        };
        vec![word(&address["mac"]), word(&address["port"]), idle, word(&address["origin"])]
    });
    table(&["ADDRESS", "PORT", "IDLE", "ORIGIN"], &rows.collect::<Vec<_>>())
}

/// `fdb flush`.
pub fn flushed(answer: &Value) -> String {
    format!("{} addresses forgotten\n", word(&answer["flushed"]))
}

/// A number as people read it, with three digits: 1.23 M.
pub fn human(number: f64) -> String {
    scaled(number, 1000.0, ["", "K", "M", "G", "T"])
}

/// Bytes of memory: 4.00 KiB.
pub fn memory(bytes: &Value) -> String {
    scaled(number(bytes), 1024.0, ["", "Ki", "Mi", "Gi", "Ti"]) + "B"
}

/// Bits a second, of bytes.
pub fn bits(bytes: &Value) -> String {
    human(8.0 * number(bytes))
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

/// `stats --watch`.
pub fn rates(answer: &Value) -> String {
    let rows = items(answer, "ports").iter().map(|port| {
        let mut row = vec![word(&port["name"])];
        for direction in ["in", "out"] {
            let rate = &port["rates"][direction];
            let each = |key: &str| human(number(&rate[key]));
            let rates = [each("frames"), bits(&rate["bytes"]), each("drops")];
            row.extend(rates.map(|rate| rate.trim().to_owned()));
        }
        row
    });
    let title = ["PORT", "IN f/s", "IN bit/s", "DROPS/s", "OUT f/s", "OUT bit/s", "DROPS/s"];
    table(&title, &rows.collect::<Vec<_>>())
}

/// `port list --names`.
pub fn names(answer: &Value) -> String {
    items(answer, "ports").iter().map(|port| word(&port["name"]) + "\n").collect()
}

/// `drops`.
pub fn dropped(answer: &Value) -> String {
    let keys = ["port", "direction", "reason", "count", "meaning", "advice"];
    let rows = items(answer, "drops").iter().map(|drop| keys.map(|key| word(&drop[key])).into());
    let title = ["PORT", "DIR", "REASON", "COUNT", "MEANING", "WHAT TO DO"];
    let mut text = table(&title, &rows.collect::<Vec<_>>());
    let senders = items(answer, "senders").iter().map(|one| {
        let share = format!("{:.0} %", 100.0 * number(&one["share"]));
        vec![word(&one["port"]), word(&one["from"]), word(&one["frames"]), share]
    });
    let senders: Vec<_> = senders.collect();
    if !senders.is_empty() {
        text += "\nno room for lately:\n";
        text += &table(&["PORT", "FROM", "FRAMES", "SHARE"], &senders);
    }
    text
}

/// `health`: one word, and a line for each reason and for a reload that waits to be confirmed.
pub fn health(answer: &Value) -> String {
    let reasons = items(answer, "reasons").iter().map(word);
    let waits = unconfirmed(answer).map(|text| format!("reload {text}"));
    let lines = reasons.chain(waits).map(|line| format!("  {line}\n"));
    format!("{}\n{}", word(&answer["health"]), lines.collect::<String>())
}

/// `worker`.
pub fn workers(answer: &Value) -> String {
    let rows = items(answer, "workers").iter().map(|worker| {
        let busy = format!("{:.1} %", number(&worker["busy"]) * 100.0);
        let mut row = vec![word(&worker["number"]), busy];
        let keys = ["turns", "bursts", "frames", "wakeups", "empty_wakeups", "signals", "moves"];
        row.extend(keys.map(|key| word(&worker[key])));
        row
    });
    let title =
        ["WORKER", "BUSY", "TURNS", "BURSTS", "FRAMES", "WAKEUPS", "EMPTY", "SIGNALS", "MOVES"];
    table(&title, &rows.collect::<Vec<_>>())
}

/// `version`.
pub fn version(answer: &Value) -> String {
    pairs(&["client", "switch"].map(|key| (key, word(&answer[key]))))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TITLE: [&str; 3] = ["PORT", "COUNT", "MEANING"];

    fn rows() -> Vec<Vec<String>> {
        let meaning = "the receiver had no buffer and its credit ran out ".repeat(3);
        let row = |port: &str, meaning: &str| vec![port.into(), "815".into(), meaning.into()];
        vec![row("vm1", "short"), row("vm2", meaning.trim_end())]
    }

    #[test]
    fn a_table_is_as_wide_as_the_terminal() {
        let fitted = fitted(&TITLE, &rows(), 80);
        assert!(fitted.starts_with("PORT  COUNT  MEANING\nvm1   815    short\nvm2   815    the "));
        assert!(fitted.lines().all(|line| line.chars().count() <= 80), "{fitted}");
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&fitted), words(&plain(&TITLE, &rows())));
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
            assert_eq!(memory(&bytes.into()), told);
        }
        let rate = json!({"frames": 2.0, "bytes": 125_000.0, "drops": 0.0});
        let told = rates(&json!({"ports": [{"name": "a", "rates": {"in": rate, "out": rate}}]}));
        let lines: Vec<Vec<&str>> =
            told.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(lines[0].iter().filter(|word| **word == "bit/s").count() == 2, "{told}");
        assert_eq!(lines[1].join(" "), "a 2 1.00 M 0 2 1.00 M 0");
    }

    /// Long values go on below where they began.
    #[test]
    fn pairs_fit_a_terminal() {
        let rows = [("name:", "vm1"), ("features:", &"WORD ".repeat(30))];
        let rows = rows.map(|(name, value)| vec![name.to_owned(), value.trim_end().to_owned()]);
        let fitted = fitted(&[], &rows, 50);
        assert!(fitted.starts_with("name:      vm1\nfeatures:  WORD WORD"), "{fitted}");
        assert!(fitted.lines().all(|line| line.chars().count() <= 50), "{fitted}");
        assert!(fitted.lines().skip(2).all(|line| line.starts_with("           WORD")), "{fitted}");
        assert_eq!(super::plain(&[], &rows[..1]), "name:  vm1\n");
    }

    #[test]
    fn a_row_is_a_line_in_a_pipe() {
        let plain = plain(&TITLE, &rows());
        assert_eq!(plain.lines().count(), 3);
        assert!(plain.starts_with("PORT  COUNT  MEANING\nvm1   815    short\nvm2   815    the "));
        assert_eq!(fitted(&TITLE, &rows()[..1], 80), super::plain(&TITLE, &rows()[..1]));
    }
}
