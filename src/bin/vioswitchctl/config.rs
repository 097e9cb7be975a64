//! The configuration for people.

use std::fmt::Write;

use serde_json::Value;

use crate::save::edit;
use crate::show::{arrow, items, when, word};

/// `config show`: as a file has it.
pub fn entries(answer: &Value) -> String {
    let mut out = String::new();
    for entry in items(answer, "entries") {
        let _ = writeln!(out, "# origin {}\n[[{}]]", word(&entry["origin"]), word(&entry["kind"]));
        let _ = writeln!(out, "name = {}", entry["name"]);
        for key in items(entry, "keys") {
            let name = word(&key["key"]);
            let values: Vec<String> = items(key, "values").iter().map(word).collect();
            let value = edit::value(&name, &values);
            let _ = writeln!(out, "{name} = {value}");
        }
        for mac in items(entry, "addresses") {
            let _ = writeln!(out, "# origin runtime: mac = {mac}");
        }
        out.push('\n');
    }
    out
}

/// `config diff`: a line for each change.
pub fn steps(answer: &Value) -> String {
    let mut rows: Vec<[String; 3]> = Vec::new();
    for step in items(answer, "steps") {
        let about = match step["name"].as_str() {
            Some(_) => format!("{} {}", word(&step["kind"]), word(&step["name"])),
            None => "switch".to_owned(),
        };
        let about = format!("{} {about}", word(&step["sign"]));
        let detaches = match &step["detaches"] {
            Value::Null => String::new(),
            pid => format!("detaches pid {pid}"),
        };
        let changes = items(step, "changes");
        if step["sign"] == "-" || changes.is_empty() {
            let origin = match step["sign"].as_str() {
                Some("+") => String::new(),
                _ => format!("(origin {})", word(&step["origin"])),
            };
            rows.push([about, origin, detaches]);
            continue;
        }
        for change in changes {
            let effect = when(&change["effect"]).to_owned();
            let effect = match change["effect"] == "reopen" && !detaches.is_empty() {
                true => format!("{effect}, {detaches}"),
                false => effect,
            };
            rows.push([about.clone(), arrow(change), effect]);
        }
    }
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let (first, second) = (width(0), width(1));
    let lines = rows.iter().map(|[about, what, effect]| {
        format!("{about:first$}  {what:second$}  {effect}").trim_end().to_owned() + "\n"
    });
    lines.collect()
}

/// `config reload`.
pub fn reloaded(answer: &Value) -> String {
    let mut out = steps(answer);
    if let Some(more) = answer["untold"].as_u64() {
        let _ = writeln!(out, "and {more} more");
    }
    let _ = writeln!(out, "reloaded: {}", word(&answer["summary"]));
    if let Some(seconds) = answer["confirm_seconds"].as_u64() {
        let _ =
            writeln!(out, "back in {seconds} s unless vioswitchctl config confirm comes before");
    }
    out
}
