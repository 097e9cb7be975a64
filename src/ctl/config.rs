//! The configuration for people.

use std::fmt::Write;

use api::config::{Effect, Kind};
use api::wire::{ConfigEntry, Reloaded, Step};

use crate::save::edit;
use crate::show::{arrow, maybe, table, text, when};

/// The word of files and commands for a kind of the control socket.
pub fn file_word(kind: &str) -> String {
    Kind::of_word(kind).map_or_else(|| text(kind), |kind| kind.name().to_owned())
}

/// `config show`: as a file has it. A port by plug is a comment, as its socket brings it.
pub fn entries(entries: &[ConfigEntry]) -> String {
    let mut out = String::new();
    for ConfigEntry { kind, name, origin, keys, addresses } in entries {
        let mut told = format!("[[{}]]\nname = {}\n", file_word(kind), edit::quoted(name));
        let mut macs: Vec<String> = Vec::new();
        for key in keys {
            let name = text(&key.key);
            let values: Vec<String> = key.values.iter().map(text).collect();
            if name == "mac" {
                macs = values;
                continue;
            }
            let value = edit::value(&name, &values);
            let _ = writeln!(told, "{name} = {value}");
        }
        macs.extend(addresses.iter().map(text));
        if !macs.is_empty() {
            let _ = writeln!(told, "mac = {}", edit::value("mac", &macs));
        }
        for mac in addresses {
            let _ = writeln!(told, "# origin runtime: mac = {}", edit::quoted(mac));
        }
        let _ = writeln!(out, "# origin {}", text(origin));
        for line in told.lines() {
            let comment = if origin == "plug" && !line.starts_with('#') { "# " } else { "" };
            let _ = writeln!(out, "{comment}{line}");
        }
        out.push('\n');
    }
    out
}

/// `config diff`: a line for each change.
pub fn steps(steps: &[Step]) -> String {
    let mut rows = Vec::new();
    for Step { sign, kind, name, origin, changes, detaches } in steps {
        let about = match name {
            Some(name) => format!("{sign} {} {name}", maybe(kind.as_deref().map(file_word))),
            None => format!("{sign} switch"),
        };
        let about = text(about);
        let detaches = detaches.map(|pid| format!("detaches pid {pid}"));
        if sign == "-" || changes.is_empty() {
            let origin = match sign.as_str() {
                "+" => String::new(),
                _ => format!("(origin {})", maybe(origin.as_ref())),
            };
            rows.push(vec![about, origin, detaches.unwrap_or_default()]);
            continue;
        }
        for change in changes {
            let effect = when(change.effect);
            let effect = match &detaches {
                Some(detaches) if change.effect == Effect::Reopen => {
                    format!("{effect}, {detaches}")
                }
                _ => effect.to_owned(),
            };
            rows.push(vec![about.clone(), arrow(change), effect]);
        }
    }
    table(&[], rows)
}

/// `config reload`.
pub fn reloaded(answer: &Reloaded) -> String {
    let mut out = steps(&answer.steps);
    if let Some(more) = answer.untold {
        let _ = writeln!(out, "and {more} more");
    }
    let _ = writeln!(out, "reloaded: {}", text(&answer.summary));
    if let Some(seconds) = answer.confirm_seconds {
        let _ =
            writeln!(out, "back in {seconds} s unless vioswitchctl config confirm comes before");
    }
    out
}
