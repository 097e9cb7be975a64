//! A file of the configuration, and what is changed in it: text that is not about what was changed
//! stays as it is, comments too.

use std::fmt::Write;
use std::ops::Range;

use api::config::KEYS;
use api::wire::{ConfigKey, RuntimeChange, values};
use serde_json::Value;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A place of a text, and what stands there instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edit {
    pub range: Range<usize>,
    pub text: String,
}

/// A text as TOML.
pub struct Document<'t> {
    text: &'t str,
    table: Spanned<DeTable<'t>>,
}

/// A table of it, `[[port]]` or the like.
pub struct Table<'d> {
    text: &'d str,
    /// Its first byte.
    start: usize,
    settings: Vec<Setting<'d>>,
}

struct Setting<'d> {
    key: &'d str,
    /// From its key to the end of its value.
    range: Range<usize>,
    value: &'d Spanned<DeValue<'d>>,
}

/// The text with its edits, none of which touch each other.
pub fn apply(text: &str, edits: &[Edit]) -> String {
    let mut edits: Vec<&Edit> = edits.iter().collect();
    edits.sort_by_key(|edit| edit.range.start);
    let (mut out, mut at) = (String::new(), 0);
    for Edit { range, text: new } in edits {
        out += &text[at..range.start];
        out += new;
        at = range.end;
    }
    out + &text[at..]
}

/// Returns the edit that appends entries to a text.
pub fn append(text: &str, entries: &str) -> Edit {
    let gap = match text {
        "" => "",
        text if text.ends_with('\n') => "\n",
        _ => "\n\n",
    };
    Edit { range: text.len()..text.len(), text: format!("{gap}{entries}") }
}

/// A port that was added, as a file has it.
pub fn entry(change: &RuntimeChange) -> String {
    let mut out = format!("[[{}]]\nname = {}\n", change.kind, quoted(&change.name));
    let mut macs = values(&change.now, "mac").to_vec();
    macs.extend_from_slice(&change.addresses);
    for ConfigKey { key, values } in change.now.iter().filter(|one| one.key != "mac") {
        let _ = writeln!(out, "{key} = {}", value(key, values));
    }
    if !macs.is_empty() {
        let _ = writeln!(out, "mac = {}", value("mac", &macs));
    }
    out
}

/// A text as a file has it.
pub fn quoted(text: &str) -> String {
    // What JSON escapes, TOML reads the same; it does not take this one as it is.
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// A value as a file has it.
pub fn value(key: &str, all: &[String]) -> String {
    let is_number = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    let takes_numbers = KEYS.iter().any(|known| known.name == key && known.is_number);
    match all {
        [one] if takes_numbers && is_number(one) => one.clone(),
        [one] => quoted(one),
        all => {
            let all: Vec<String> = all.iter().map(|one| quoted(one)).collect();
            match all.len() {
                0..4 => format!("[{}]", all.join(", ")),
                _ => format!("[\n    {},\n]", all.join(",\n    ")),
            }
        }
    }
}

impl<'t> Document<'t> {
    /// Reads a text; what is wrong with it, if it is no TOML.
    pub fn read(text: &'t str) -> Result<Document<'t>, String> {
        let table = DeTable::parse(text).map_err(|error| error.message().trim().to_owned())?;
        Ok(Document { text, table })
    }

    /// The table of a port, if it has a header of its own.
    pub fn find(&self, kind: &str, name: &str) -> Option<Table<'_>> {
        let DeValue::Array(all) = self.table.get_ref().get(kind)?.get_ref() else { return None };
        all.iter().find_map(|table| {
            let (start, DeValue::Table(settings)) = (table.span().start, table.get_ref()) else {
                return None;
            };
            let is_it = settings.get("name").is_some_and(
                |value| matches!(value.get_ref(), DeValue::String(text) if text == name),
            );
            let has_header = self.text[start..].starts_with("[[");
            (is_it && has_header).then(|| Table {
                text: self.text,
                start,
                settings: settings
                    .iter()
                    .map(|(key, value)| Setting {
                        key: key.get_ref(),
                        range: key.span().start..value.span().end,
                        value,
                    })
                    .collect(),
            })
        })
    }
}

impl Table<'_> {
    /// Takes the table out, and one of two blank lines around it. What stands above it stays.
    pub fn remove(&self) -> Edit {
        let end = self.settings.iter().map(|setting| setting.range.end).max();
        let start = line_start(self.text, self.start);
        let mut end = line_end(self.text, end.unwrap_or(self.start));
        let before = &self.text[..start];
        if before.is_empty() || before.ends_with("\n\n") {
            end += usize::from(self.text[end..].starts_with('\n'));
        }
        Edit { range: start..end, text: String::new() }
    }

    /// Has it say what runs; or why that cannot be done without loss.
    pub fn change(&self, change: &RuntimeChange) -> Result<Vec<Edit>, String> {
        let (mut edits, mut new, mut last) = (Vec::new(), String::new(), 0);
        let mut wanted: Vec<(String, Vec<String>)> = Vec::new();
        for ConfigKey { key, .. } in change.before.iter().chain(&change.now) {
            if key != "mac" && wanted.iter().all(|(known, _)| known != key) {
                wanted.push((key.clone(), values(&change.now, key).to_vec()));
            }
        }
        let there = self.addresses();
        let macs = addresses(&there, change);
        if macs != there {
            wanted.push(("mac".to_owned(), macs));
        }
        for Setting { key, range, value: old } in &self.settings {
            match wanted.iter().find(|(other, _)| other == key) {
                Some((_, all)) if all.is_empty() => {
                    let range = line_start(self.text, range.start)..line_end(self.text, range.end);
                    edits.push(Edit { range, text: String::new() });
                    continue;
                }
                Some((key, all)) => {
                    let range = old.span();
                    if self.text[range.clone()].contains('#') && key == "mac" {
                        return Err("there are comments among its addresses".to_owned());
                    }
                    edits.push(Edit { range, text: value(key, all) });
                }
                None => {}
            }
            last = last.max(range.end);
        }
        let known = |key: &str| self.settings.iter().any(|setting| setting.key == key);
        for (key, all) in wanted.iter().filter(|(key, all)| !known(key) && !all.is_empty()) {
            let _ = write!(new, "\n{key} = {}", value(key, all));
        }
        if !new.is_empty() {
            // At the end of the line, behind its comment.
            let at = line_end(self.text, last);
            let at = at - usize::from(self.text[..at].ends_with('\n'));
            edits.push(Edit { range: at..at, text: new });
        }
        Ok(edits)
    }

    /// Its static addresses, as they are spelled by the switch.
    fn addresses(&self) -> Vec<String> {
        let plain = |value: &Spanned<DeValue<'_>>| match value.get_ref() {
            DeValue::String(text) => Some(text.to_lowercase().replace('-', ":")),
            _ => None,
        };
        match self.settings.iter().find(|setting| setting.key == "mac") {
            None => Vec::new(),
            Some(Setting { value, .. }) => match value.get_ref() {
                DeValue::Array(all) => all.iter().filter_map(plain).collect(),
                _ => plain(value).into_iter().collect(),
            },
        }
    }
}

/// Returns the addresses after a change.
fn addresses(there: &[String], change: &RuntimeChange) -> Vec<String> {
    let (before, now) = (values(&change.before, "mac"), values(&change.now, "mac"));
    let is_gone = |mac: &&String| before.contains(mac) && !now.contains(mac);
    let mut all: Vec<String> = there.iter().filter(|mac| !is_gone(mac)).cloned().collect();
    let new = now.iter().filter(|mac| !before.contains(mac)).chain(&change.addresses);
    for mac in new {
        if !all.contains(mac) {
            all.push(mac.clone());
        }
    }
    all
}

/// The first byte of the line that has the byte at `at`.
fn line_start(text: &str, at: usize) -> usize {
    text[..at].rfind('\n').map_or(0, |newline| newline + 1)
}

/// The first byte behind the line that `at` stands in or ends.
fn line_end(text: &str, at: usize) -> usize {
    text[at..].find('\n').map_or(text.len(), |newline| at + newline + 1)
}
