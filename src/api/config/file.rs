//! TOML files: text to untyped settings, each with its file and line.
//!
//! Several files are one configuration: their entries are merged, and a setting that is given twice
//! is an error that names both places. The parser recovers from errors, so all files are read to
//! their end and all errors are shown at once. If a file has syntax errors, only syntax errors are
//! shown: other errors may follow from them.

use std::collections::HashMap;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeInteger, DeTable, DeValue};

use super::claims::Places;
use super::configuration::{Machine, UsageError};
use super::entries::{self, whereabouts};
use super::keys::KEYS;
use super::kind::Kind;
use super::raw::{Complaint, Location, Section, Setting, Source, Value, clip, quote};
use super::sources::Text;
use super::validate::{self, Validated};
use base::limits;
use base::words::counted;

/// Returns the settings of all files together, or all errors of the files.
pub(super) fn check(
    texts: &[Text],
    machine: Machine<'_>,
    places: Places<'_>,
) -> Result<Validated, UsageError> {
    let (mut source, mut complaints) = (Source::default(), Vec::new());
    let mut syntax = Vec::new();
    for text in texts {
        match lower(text) {
            Ok((mut found, mut wrong)) => {
                source.scalars.append(&mut found.scalars);
                source.sections.append(&mut found.sections);
                complaints.append(&mut wrong);
            }
            Err(mut errors) => syntax.append(&mut errors),
        }
    }
    if !syntax.is_empty() {
        return Err(report(texts, syntax));
    }
    let mut checked = validate::source(&source, machine);
    complaints.append(&mut given_twice(&source.scalars));
    complaints.extend(second_template(&source.sections));
    complaints.append(&mut checked.complaints);
    complaints.append(&mut entries::conflicts(&checked, places));
    if complaints.is_empty() { Ok(checked) } else { Err(report(texts, complaints)) }
}

/// Finds global keys that two files set: the switch cannot know which file is right.
fn given_twice(scalars: &[Setting]) -> Vec<Complaint> {
    let mut first: HashMap<&str, &Location> = HashMap::new();
    let mut complaints = Vec::new();
    for Setting { key, at, .. } in scalars {
        match first.get(key.as_str()) {
            Some(other) => {
                let text = format!("{} is already given {}", quote(key), whereabouts(other, at));
                complaints.push(Complaint::new(at, text));
            }
            None => drop(first.insert(key, at)),
        }
    }
    complaints
}

/// Returns the complaint about a template in two files.
fn second_template(sections: &[Section]) -> Option<Complaint> {
    let mut all = sections.iter().filter(|section| section.kind == Kind::Template);
    let (first, second) = (all.next()?, all.next()?);
    let other = whereabouts(&first.at, &second.at);
    Some(Complaint::new(&second.at, format!("'template.plug' is already given {other}")))
}

/// Returns the settings of one file with complaints about the file's structure, or the file's
/// syntax errors.
fn lower(text: &Text) -> Result<(Source, Vec<Complaint>), Vec<Complaint>> {
    let bytes = &text.bytes;
    let lines = Lines::of(text);
    let text = std::str::from_utf8(bytes)
        .map_err(|error| vec![Complaint::new(&lines.at(error.valid_up_to()), "not UTF-8")])?;
    if text.trim_start().starts_with('{') {
        let wrong = "this is JSON, and the file is TOML: write [[port]] on a line of its own, then \
                     name = \"vm1\" and socket = \"/run/vioswitch/vm1.sock\"";
        return Err(vec![Complaint::new(&lines.at(0), wrong)]);
    }
    let (table, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        let complain = |error: &toml::de::Error| {
            let at = lines.at(error.span().map_or(bytes.len(), |span| span.start));
            let hint = instead(text, &at);
            Complaint::new(&at, hint.unwrap_or_else(|| error.message().trim().to_owned()))
        };
        let mut complaints: Vec<Complaint> = errors.iter().map(complain).collect();
        // A complaint about a whole line is reported once.
        complaints.dedup();
        return Err(complaints);
    }
    let mut lowering = Lowering { lines, source: Source::default(), complaints: Vec::new() };
    lowering.document(table.get_ref());
    Ok((lowering.source, lowering.complaints))
}

/// Returns the replacement for a line that is no TOML, if a replacement is known.
fn instead(text: &str, at: &Location) -> Option<String> {
    let Location::Line(_, number) = at else { return None };
    let line = text.lines().nth(number - 1)?.split('#').next()?.trim();
    let short = |text: &str| clip(text.trim(), limits::MAX_QUOTED_CHARS);
    if line.starts_with('[') {
        return header(line);
    }
    let Some((key, value)) = line.split_once('=') else {
        let (key, _) = line.split_once([':', ' ']).unwrap_or((line, ""));
        let is_key = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let named = !key.is_empty() && key.chars().all(is_key);
        return named.then(|| format!("no = behind {}: write {} = VALUE", quote(key), short(key)));
    };
    let (key, value) = (short(key), value.trim());
    if value.is_empty() && !key.is_empty() {
        let shown = quote(&key);
        return Some(format!("{shown} has no value: write {key} = VALUE, or leave the line out"));
    }
    let bare = value.trim_end_matches(',');
    if bare.len() > 1 && bare.starts_with('0') && bare.bytes().all(|byte| byte.is_ascii_digit()) {
        let wrong = "a number does not begin with 0, and permissions are a string";
        return Some(format!("{wrong}: write {key} = \"{}\"", clip(bare, 8)));
    }
    if value.len() > bare.len() {
        return Some("a line ends without a comma: leave it out".to_owned());
    }
    let is_word = |c: char| c.is_ascii_alphanumeric() || "/.:_-".contains(c);
    let begins = |c: char| c.is_ascii_alphabetic() || c == '/';
    let word = value.starts_with(begins) && value.chars().all(is_word);
    word.then(|| format!("a string stands between quotes: write {key} = \"{}\"", short(value)))
}

/// Returns the replacement for the head of a table.
fn header(line: &str) -> Option<String> {
    let name = line.trim_matches(['[', ']', ' ']);
    let kind = Kind::named(name)?;
    (line != format!("[[{kind}]]")).then(|| format!("a table begins with [[{kind}]]: write that"))
}

/// Returns lines `FILE:LINE: message`, in the order of the files and their lines.
fn report(texts: &[Text], mut complaints: Vec<Complaint>) -> UsageError {
    let order = texts.iter().enumerate().map(|(at, text)| (shown(&text.name), at));
    let order: HashMap<String, usize> = order.collect();
    complaints.sort_by_key(|complaint| match &complaint.at {
        Location::Line(file, line) => (order.get(&**file).copied(), *line),
        Location::Argument(_) | Location::Parameter(_) | Location::Command => (Some(usize::MAX), 0),
    });
    complaints.dedup();
    let more = complaints.len().saturating_sub(limits::MAX_CONFIG_ERRORS);
    let shown_lines = complaints.iter().take(limits::MAX_CONFIG_ERRORS);
    let mut lines: Vec<String> = shown_lines.map(Complaint::to_string).collect();
    if let Some(Complaint { at: Location::Line(file, _), .. }) =
        complaints.last().filter(|_| more > 0)
    {
        lines.push(format!("{file}: {}", counted(more, "more error")));
    }
    UsageError { lines }
}

/// Returns a file's name without line breaks.
fn shown(name: &str) -> String {
    name.chars().flat_map(char::escape_debug).collect()
}

/// Offsets of the lines of a text.
struct Lines {
    file: Arc<str>,
    starts: Vec<usize>,
}

impl Lines {
    fn of(text: &Text) -> Lines {
        let newlines = text.bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
        let starts = std::iter::once(0).chain(newlines.map(|(place, _)| place + 1)).collect();
        Lines { file: shown(&text.name).into(), starts }
    }

    /// Returns the line with the byte at `offset`.
    fn at(&self, offset: usize) -> Location {
        let line = self.starts.partition_point(|start| *start <= offset).max(1);
        Location::Line(Arc::clone(&self.file), line)
    }
}

/// Collects the settings of a parsed document.
struct Lowering {
    lines: Lines,
    source: Source,
    complaints: Vec<Complaint>,
}

impl Lowering {
    /// Reads the top level of the document: entries, and settings outside of entries.
    fn document(&mut self, table: &DeTable<'_>) {
        for (key, value) in table.iter() {
            let at = self.lines.at(key.span().start);
            match key.get_ref().as_ref() {
                "template" => self.templates(value, &at),
                key => match Kind::named(key) {
                    Some(kind) => self.sections(kind, value, &at),
                    None => {
                        let setting = Setting { key: key.to_owned(), value: plain(value), at };
                        self.source.scalars.push(setting);
                    }
                },
            }
        }
    }

    /// Reads all tables of one name, such as `[[port]]`, `[[tap]]` or `[[stream]]`.
    fn sections(&mut self, kind: Kind, value: &Spanned<DeValue<'_>>, at: &Location) {
        let wrong = format!("'{kind}' is a list of tables, each begun with [[{kind}]]");
        let DeValue::Array(tables) = value.get_ref() else {
            self.complaints.push(Complaint::new(at, wrong));
            return;
        };
        for table in tables.iter() {
            let at = self.lines.at(table.span().start);
            match table.get_ref() {
                DeValue::Table(table) => {
                    let settings = self.settings(table);
                    self.source.sections.push(Section { kind, settings, at });
                }
                _ => self.complaints.push(Complaint::new(&at, wrong.clone())),
            }
        }
    }

    /// Reads `[template.plug]`, the only template.
    fn templates(&mut self, value: &Spanned<DeValue<'_>>, at: &Location) {
        let DeValue::Table(tables) = value.get_ref() else {
            let wrong = "'template' is a table of tables: write [template.plug]";
            self.complaints.push(Complaint::new(at, wrong));
            return;
        };
        for (key, value) in tables.iter() {
            let at = self.lines.at(key.span().start);
            let key = key.get_ref().as_ref();
            match value.get_ref() {
                DeValue::Table(table) if key == "plug" => {
                    let settings = self.settings(table);
                    self.source.sections.push(Section { kind: Kind::Template, settings, at });
                }
                _ => {
                    let wrong = format!("unknown template {}: write [template.plug]", quote(key));
                    self.complaints.push(Complaint::new(&at, wrong));
                }
            }
        }
    }

    /// Returns the settings of one entry; each value of a list is a setting of its own.
    fn settings(&self, table: &DeTable<'_>) -> Vec<Setting> {
        let mut settings = Vec::new();
        for (key, value) in table.iter() {
            let at = self.lines.at(key.span().start);
            let key = key.get_ref().as_ref();
            match value.get_ref() {
                DeValue::Array(items) if KEYS.iter().any(|k| k.is_list && k.name == key) => {
                    settings.extend(items.iter().map(|item| Setting {
                        key: key.to_owned(),
                        value: plain(item),
                        at: self.lines.at(item.span().start),
                    }));
                }
                _ => settings.push(Setting { key: key.to_owned(), value: plain(value), at }),
            }
        }
        settings
    }
}

/// Returns a value that is no list and no table.
pub(super) fn plain(value: &Spanned<DeValue<'_>>) -> Value {
    match value.get_ref() {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Boolean(truth) => Value::Boolean(*truth),
        DeValue::Integer(number) => integer(number),
        DeValue::Float(_) => Value::Other("a float"),
        DeValue::Datetime(_) => Value::Other("a date"),
        DeValue::Array(_) => Value::Other("a list"),
        DeValue::Table(_) => Value::Other("a table"),
    }
}

fn integer(number: &DeInteger<'_>) -> Value {
    i64::from_str_radix(number.as_str(), number.radix())
        .map_or(Value::Other("an integer beyond 64 bits"), Value::Integer)
}
