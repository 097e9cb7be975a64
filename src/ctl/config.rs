//! Formats the configuration, and changes to the configuration, as text for people.

use std::fmt::Write;

use api::config::{Effect, line_text, table_text};
use api::wire::{ConfigEntries, ConfigEntry, ConfigKey, Reloaded, Step};

use crate::output::text;
use crate::show::{arrow, maybe, table, when};

/// Returns the text of `config show`: a configuration file. Entries by plug, and entries that are
/// not in force, are comments.
pub fn running(all: &ConfigEntries) -> String {
    let mut out = String::new();
    for ConfigKey { key, values } in all.switch.iter().flatten() {
        out += &global(&text(key), &values.iter().map(text).collect::<String>());
    }
    if let Some(template) = all.template.as_ref().filter(|keys| !keys.is_empty()) {
        out += "\n[template.plug]\n";
        lines(template).for_each(|line| out += &line);
    }
    all.entries.iter().for_each(|one| out += &entry(one));
    out
}

/// Returns the line of a key that stands outside the entries.
fn global(key: &str, word: &str) -> String {
    let is_bare = word.parse::<u32>().is_ok() || ["true", "false"].contains(&word);
    match is_bare {
        true => format!("{key} = {word}\n"),
        false => line_text(key, &[word.to_owned()]),
    }
}

fn lines(keys: &[ConfigKey]) -> impl Iterator<Item = String> {
    keys.iter().map(|ConfigKey { key, values }| {
        line_text(&text(key), &values.iter().map(text).collect::<Vec<String>>())
    })
}

fn entry(ConfigEntry { kind, name, origin, keys, overridden, unused }: &ConfigEntry) -> String {
    let table = table_text::<&str>(&text(kind), &text(name), &[]);
    let told: String = std::iter::once(table).chain(lines(keys)).collect();
    let mut out = format!("\n# origin {}", text(origin));
    if !overridden.is_empty() {
        let keys = overridden.iter().map(text).collect::<Vec<_>>().join(", ");
        let _ = write!(out, "; until vioswitchctl port reset {}: {keys}", text(name));
    }
    if let Some(why) = unused {
        let _ = write!(out, "; not in force: {}", text(why));
    }
    out.push('\n');
    let is_comment = unused.is_some() || origin == "plug";
    for line in told.lines() {
        let _ = writeln!(out, "{}{line}", if is_comment { "# " } else { "" });
    }
    out
}

/// Returns the text of `config diff`: a line for each change.
pub fn steps(steps: &[Step]) -> String {
    let mut rows = Vec::new();
    for Step { sign, kind, name, origin, changes, detaches } in steps {
        let about = match name {
            Some(name) => format!("{sign} {} {name}", maybe(kind.as_deref().map(text))),
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

/// Returns the text of `config reload`.
pub fn reloaded(answer: &Reloaded) -> String {
    let mut out = steps(&answer.steps);
    if let Some(more) = answer.suppressed {
        let _ = writeln!(out, "and {more} more");
    }
    let _ = writeln!(out, "reloaded: {}", text(&answer.summary));
    if let Some(seconds) = answer.confirm_seconds {
        let _ = writeln!(
            out,
            "the old configuration returns in {seconds} s unless you run vioswitchctl config \
                 confirm"
        );
    }
    out
}
