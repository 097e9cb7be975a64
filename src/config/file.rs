//! The TOML file: text to untyped settings, each with its line.
//!
//! The parser recovers from errors, so a file is read to its end and all of its errors are told
//! at once. With a syntax error in it only those are told: what else looks wrong may follow from
//! them.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeInteger, DeTable, DeValue};

use super::args::usage_error;
use super::entries;
use super::raw::{Complaint, Kind, Origin, Section, Setting, Source, Value, clip, quote};
use super::validate::{self, Validated};
use super::{Machine, UsageError};
use crate::limits;

/// Reads and checks the file at `path`, alone.
pub(super) fn load(path: &Path, machine: Machine<'_>) -> Result<Validated, UsageError> {
    let name = path.to_string_lossy();
    let bytes =
        read(path).map_err(|error| usage_error(&format!("--config {}: {error}", quote(&name))))?;
    check(&bytes, machine).map_err(|complaints| report(&name, complaints))
}

/// The whole file, if it is one and not longer than [`limits::MAX_CONFIG_BYTES`].
fn read(path: &Path) -> io::Result<Vec<u8>> {
    // O_NONBLOCK: opening a FIFO that nobody writes to would wait for ever.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(limits::MAX_CONFIG_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limits::MAX_CONFIG_BYTES {
        let text = format!("longer than {} bytes", limits::MAX_CONFIG_BYTES);
        return Err(io::Error::other(text));
    }
    Ok(bytes)
}

/// The settings of a file's `bytes`, or everything that is wrong with them.
pub(super) fn check(bytes: &[u8], machine: Machine<'_>) -> Result<Validated, Vec<Complaint>> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let lines = Lines::of(bytes);
        vec![Complaint::new(&lines.at(error.valid_up_to()), "not UTF-8")]
    })?;
    let lines = Lines::of(bytes);
    if text.trim_start().starts_with('{') {
        let wrong = "this is JSON, and the file is TOML: write [[port]] on a line of its own, then \
                     name = \"vm1\" and socket = \"/run/vioswitch/vm1.sock\"";
        return Err(vec![Complaint::new(&Origin::Line(1), wrong)]);
    }
    let (table, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        let complain = |error: &toml::de::Error| {
            let at = lines.at(error.span().map_or(bytes.len(), |span| span.start));
            let hint = instead(text, &at);
            Complaint::new(&at, hint.unwrap_or_else(|| error.message().trim().to_owned()))
        };
        let mut complaints: Vec<Complaint> = errors.iter().map(complain).collect();
        // What is said of a whole line is said once.
        complaints.dedup();
        return Err(complaints);
    }
    let mut lowering = Lowering { lines, source: Source::default(), complaints: Vec::new() };
    lowering.document(table.get_ref());
    let mut checked = validate::source(&lowering.source, machine);
    let mut complaints = lowering.complaints;
    complaints.append(&mut checked.complaints);
    complaints.append(&mut entries::conflicts(&checked));
    if complaints.is_empty() { Ok(checked) } else { Err(complaints) }
}

/// What to write instead of a line that is no TOML, where that can be told.
fn instead(text: &str, at: &Origin) -> Option<String> {
    let Origin::Line(number) = at else { return None };
    let (key, value) = text.lines().nth(number - 1)?.split_once('=')?;
    let value = value.split('#').next()?.trim();
    let bare = value.trim_end_matches(',');
    if bare.len() > 1 && bare.starts_with('0') && bare.bytes().all(|byte| byte.is_ascii_digit()) {
        let wrong = "a number does not begin with 0, and permissions are a string";
        let key = clip(key.trim(), limits::MAX_QUOTED_CHARS);
        return Some(format!("{wrong}: write {key} = \"{}\"", clip(bare, 8)));
    }
    let wrong = "a line ends without a comma: leave it out";
    (value.len() > bare.len()).then(|| wrong.to_owned())
}

/// `FILE:LINE: message`, in the order of the lines.
fn report(name: &str, mut complaints: Vec<Complaint>) -> UsageError {
    complaints.sort_by_key(|complaint| match complaint.at {
        Origin::Line(line) => line,
        Origin::Argument(_) | Origin::Command => usize::MAX,
    });
    complaints.dedup();
    let name: String = name.chars().flat_map(|c| c.escape_debug()).collect();
    let more = complaints.len().saturating_sub(limits::MAX_CONFIG_ERRORS);
    let mut lines: Vec<String> = complaints
        .iter()
        .take(limits::MAX_CONFIG_ERRORS)
        .map(|complaint| format!("{name}:{complaint}"))
        .collect();
    if more > 0 {
        lines.push(format!("{name}: {more} more error{}", if more == 1 { "" } else { "s" }));
    }
    UsageError { lines }
}

/// Where each line of a text begins.
struct Lines {
    starts: Vec<usize>,
}

impl Lines {
    fn of(bytes: &[u8]) -> Lines {
        let newlines = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
        let starts = std::iter::once(0).chain(newlines.map(|(place, _)| place + 1)).collect();
        Lines { starts }
    }

    /// The line that holds the byte at `offset`.
    fn at(&self, offset: usize) -> Origin {
        Origin::Line(self.starts.partition_point(|start| *start <= offset).max(1))
    }
}

/// Walks the parsed document and collects its settings.
struct Lowering {
    lines: Lines,
    source: Source,
    complaints: Vec<Complaint>,
}

impl Lowering {
    /// The top level: entries, and settings outside of any.
    fn document(&mut self, table: &DeTable<'_>) {
        for (key, value) in table.iter() {
            let at = self.lines.at(key.span().start);
            match key.get_ref().as_ref() {
                "port" => self.sections(Kind::Port, "port", value, &at),
                "tap" => self.sections(Kind::Tap, "tap", value, &at),
                key => {
                    let setting = Setting { key: key.to_owned(), value: plain(value), at };
                    self.source.scalars.push(setting);
                }
            }
        }
    }

    /// All `[[port]]` or all `[[tap]]`.
    fn sections(&mut self, kind: Kind, key: &str, value: &Spanned<DeValue<'_>>, at: &Origin) {
        let wrong = format!("'{key}' is a list of tables, each begun with [[{key}]]");
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

    /// The settings of one entry; each address of a `mac` list is a setting of its own.
    fn settings(&self, table: &DeTable<'_>) -> Vec<Setting> {
        let mut settings = Vec::new();
        for (key, value) in table.iter() {
            let at = self.lines.at(key.span().start);
            let key = key.get_ref().as_ref();
            match value.get_ref() {
                DeValue::Array(items) if key == "mac" => {
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

/// A value that is not taken apart any further.
fn plain(value: &Spanned<DeValue<'_>>) -> Value {
    match value.get_ref() {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Boolean(truth) => Value::Boolean(*truth),
        DeValue::Integer(number) => integer(number),
        DeValue::Float(_) => Value::Other("a fraction"),
        DeValue::Datetime(_) => Value::Other("a date"),
        DeValue::Array(_) => Value::Other("a list"),
        DeValue::Table(_) => Value::Other("a table"),
    }
}

fn integer(number: &DeInteger<'_>) -> Value {
    i64::from_str_radix(number.as_str(), number.radix())
        .map_or(Value::Other("an integer beyond 64 bits"), Value::Integer)
}
