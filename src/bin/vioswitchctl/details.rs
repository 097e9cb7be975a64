//! `port show`: all that is known of one port, for people.

use serde_json::Value;

use crate::show::{bits, human, items, memory, number, pairs, port, table, word};

/// The answer of `GetPortDetails`, with rates if they were measured.
pub fn show(answer: &Value) -> String {
    let mut told = port(answer);
    let socket = &answer["socket"];
    if !socket.is_null() {
        let who = match &socket["mode"] {
            Value::Null if socket["answers"] == false => {
                " (its file system does not answer)".to_owned()
            }
            Value::Null if socket["looked_at"] == false => {
                " (not looked at: the switch waits for other file systems)".to_owned()
            }
            Value::Null => " (missing)".to_owned(),
            mode => format!(" mode {} uid {} gid {}", word(mode), socket["uid"], socket["gid"]),
        };
        told.push(("socket", word(&socket["path"]) + &who));
    }
    if !answer["command"].is_null() {
        told.push(("command", word(&answer["command"])));
    }
    for key in ["learn_static", "log_suppressed"] {
        told.push((key, word(&answer[key])));
    }
    for direction in ["in", "out"] {
        let rate = &answer["rates"][direction];
        if !rate.is_null() {
            let name = if direction == "in" { "rate in" } else { "rate out" };
            told.push((name, rates(rate)));
        }
    }
    let session = &answer["session"];
    if !session.is_null() {
        told.push(("features", word(&session["features"])));
        told.push(("protocol", word(&session["protocol_features"])));
    }
    let mut text = pairs(&told);
    let regions = items(session, "memory").iter().map(|region| {
        let (size, page) = (memory(&region["bytes"]), memory(&region["page"]));
        vec![word(&region["address"]), size, word(&region["backing"]), page]
    });
    let regions: Vec<_> = regions.collect();
    if !regions.is_empty() {
        text += "\n";
        text += &table(&["MEMORY", "SIZE", "BACKING", "PAGE"], &regions);
    }
    text + "\n" + &rings(answer)
}

fn rates(rate: &Value) -> String {
    let of = |key: &str| human(number(&rate[key])).trim_end().to_owned();
    format!("{} frames/s, {}bit/s, {} drops/s", of("frames"), bits(&rate["bytes"]), of("drops"))
}

/// Rings that are in use, or were.
fn rings(answer: &Value) -> String {
    let used = |ring: &&Value| ring["started"] == true || ring["frames"] != 0;
    let rows = items(answer, "rings").iter().filter(used).map(|ring| {
        let mut row: Vec<String> =
            ["index", "direction", "size"].map(|key| word(&ring[key])).into();
        row.push(state(ring));
        row.push(word(&ring["available"]));
        row.push(match &ring["idle"] {
            Value::Null => "-".to_owned(),
            idle => format!("{idle} s"),
        });
        let keys = ["frames", "bytes", "kicks", "signals", "checksummed", "segmented"];
        row.extend(keys.map(|key| word(&ring[key])));
        row
    });
    let title = [
        "RING",
        "DIR",
        "SIZE",
        "STATE",
        "AVAILABLE",
        "IDLE",
        "FRAMES",
        "BYTES",
        "KICKS",
        "SIGNALS",
        "CHECKSUMMED",
        "SEGMENTED",
    ];
    table(&title, &rows.collect::<Vec<_>>())
}

fn state(ring: &Value) -> String {
    let is = |key: &str| ring[key] == true;
    let words = match ring["started"].as_bool() {
        None => "-",
        Some(false) => "stopped",
        Some(true) if is("broken") => "broken",
        Some(true) if is("standing") => "no memory",
        Some(true) if !is("enabled") => "disabled",
        Some(true) => "running",
    };
    if is("polled") { format!("{words}, polled") } else { words.to_owned() }
}
