//! The file `ports.toml`: ports that clients added, and changes at ports of the configuration.
//!
//! Added ports stand there as in a configuration file. `[[override]]` has the keys of a port of the
//! configuration that a client set, with `""` for a key without a value, or `deleted = true`.
//! Another version may have written the file: a key or a table that this version cannot read has no
//! effect, is reported, and is written again with an equal value.

use std::collections::BTreeMap;
use std::fmt::Write;

use toml::Spanned;
use toml::de::{DeTable, DeValue};
use toml_writer::TomlWrite;

use super::file::plain;
use super::keys::{KEYS, Settings};
use super::kind::Kind;
use super::raw::{Value, clip, quote};
use super::value::is_port_name;
use base::limits::MAX_QUOTED_CHARS;

const HEAD: &str = "\
# vioswitchd writes this file whenever vioswitchctl changes a port, and reads the file when it
# starts. The tables are those of vioswitch.toml(5); [[override]] changes a port of the
# configuration until `vioswitchctl port reset NAME`.
";

/// Name of the tables that change ports of the configuration.
const OVERRIDE: &str = "override";
/// The key of a port of the configuration that a client deleted.
const DELETED: &str = "deleted";

/// Words of keys; no words stand for a key that is not set.
pub type Keys = BTreeMap<String, Vec<String>>;

/// Change of a port of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Override {
    /// A client deleted the port.
    Deleted,
    /// A client set these keys.
    Keys(Keys),
}

/// Part of the file that this version cannot read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unread {
    /// The port that the part is about, if it has a name.
    pub name: Option<String>,
    /// The fault, in a sentence.
    pub why: String,
    /// Name of the table's list; none for a key outside of the tables.
    table: Option<String>,
    /// The whole table is unread, and not only some of its keys.
    is_whole: bool,
    /// Lines of the file.
    text: String,
}

impl Unread {
    /// Returns true for a part about an added port of this name.
    pub fn is_of_entry(&self, name: &str) -> bool {
        let is_entry = self.table.as_deref().is_some_and(|table| Kind::named(table).is_some());
        is_entry && self.name.as_deref() == Some(name)
    }

    /// Returns true for a part about the changes at a port of the configuration.
    pub fn is_of_override(&self, name: &str) -> bool {
        self.table.as_deref() == Some(OVERRIDE) && self.name.as_deref() == Some(name)
    }
}

/// Ports that clients added, and changes of clients at ports of the configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kept {
    /// Ports that clients added, by name.
    pub added: BTreeMap<String, Settings>,
    /// Changes at ports of the configuration, by name.
    pub overrides: BTreeMap<String, Override>,
    /// Parts that this version cannot read.
    pub unread: Vec<Unread>,
}

impl Kept {
    /// Reads a file; the fault, if the text is no TOML.
    pub fn read(text: &str) -> Result<Kept, String> {
        let table = DeTable::parse(text).map_err(|error| {
            let line = error.span().map(|span| text[..span.start].matches('\n').count() + 1);
            let line = line.map(|line| format!("line {line}: ")).unwrap_or_default();
            format!("{line}{}", error.message().trim())
        })?;
        let mut reader = Reader { text, kept: Kept::default() };
        for (key, value) in table.get_ref() {
            reader.item(key.get_ref(), value);
        }
        Ok(reader.kept)
    }

    /// Returns the text of the file.
    pub fn text(&self) -> String {
        let mut out = HEAD.to_owned();
        let unread = |table: Option<&str>, name: &str| {
            let of = self.unread.iter().filter(move |unread| {
                !unread.is_whole
                    && unread.table.as_deref() == table
                    && unread.name.as_deref().unwrap_or_default() == name
            });
            of.map(|unread| unread.text.as_str()).collect::<String>()
        };
        out += &unread(None, "");
        for (name, settings) in &self.added {
            let kind = settings.kind.name();
            out.push('\n');
            out += &table_text(kind, name, &settings.given());
            out += &unread(Some(kind), name);
        }
        for (name, change) in &self.overrides {
            out.push('\n');
            match change {
                Override::Deleted => {
                    out += &table_text::<&str>(OVERRIDE, name, &[]);
                    let _ = writeln!(out, "{DELETED} = true");
                }
                Override::Keys(keys) => {
                    let keys: Vec<_> = keys.iter().map(|(k, v)| (k.as_str(), v.clone())).collect();
                    out += &table_text(OVERRIDE, name, &keys);
                }
            }
            out += &unread(Some(OVERRIDE), name);
        }
        for Unread { table, text, .. } in self.unread.iter().filter(|unread| unread.is_whole) {
            let table = key_text(table.as_deref().unwrap_or_default());
            let _ = write!(out, "\n[[{table}]]\n{text}");
        }
        out
    }
}

/// Reads the parsed text.
struct Reader<'t> {
    text: &'t str,
    kept: Kept,
}

type Pair<'t> = (&'t str, &'t Spanned<DeValue<'t>>);

impl<'t> Reader<'t> {
    /// Reads one key outside of the tables, or all tables of one name.
    fn item(&mut self, key: &str, value: &Spanned<DeValue<'_>>) {
        let tables: Option<Vec<_>> = match value.get_ref() {
            DeValue::Array(items) if !items.is_empty() => {
                items.iter().map(|item| item.get_ref().as_table()).collect()
            }
            _ => None,
        };
        for table in tables.iter().flatten() {
            let pairs = table.iter().map(|(key, value)| (key.get_ref().as_ref(), value));
            let mut pairs: Vec<Pair<'_>> = pairs.collect();
            pairs.sort_by_key(|(_, value)| value.span().start);
            self.table(key, &pairs);
        }
        if tables.is_none() {
            // A key of this name beside tables of this name is no TOML: the key is lost.
            let is_table = Kind::named(key).is_some() || key == OVERRIDE;
            let text = if is_table { String::new() } else { self.line(&(key, value)) };
            let (table, name, why) = (None, None, format!("unknown key {}", quote(key)));
            self.kept.unread.push(Unread { name, why, table, is_whole: false, text });
        }
    }

    fn table(&mut self, table: &str, pairs: &[Pair<'_>]) {
        let name = pairs.iter().find(|(key, _)| *key == "name").map(|(_, value)| value.get_ref());
        let name = match name {
            Some(DeValue::String(name)) if is_port_name(name) => Some(name.to_string()),
            _ => None,
        };
        let read = match (&name, Kind::named(table)) {
            (None, _) => Err("the table has no valid name".to_owned()),
            (Some(name), Some(kind)) => self.added(kind, name, pairs),
            (Some(name), None) if table == OVERRIDE => self.changed(name, pairs),
            (Some(_), None) => Err("unknown table".to_owned()),
        };
        let Err(why) = read else { return };
        let named = name.as_ref().map(|name| format!(" '{name}'")).unwrap_or_default();
        let why = format!("[[{}]]{named}: {why}", clip(table, MAX_QUOTED_CHARS));
        let text = pairs.iter().map(|pair| self.line(pair)).collect();
        self.kept.unread.push(Unread {
            name,
            why,
            table: Some(table.to_owned()),
            is_whole: true,
            text,
        });
    }

    /// A port that a client added.
    fn added(&mut self, kind: Kind, name: &str, pairs: &[Pair<'_>]) -> Result<(), String> {
        let (known, unknown): (Vec<_>, Vec<_>) =
            pairs.iter().copied().partition(|(key, _)| kind.key(key).is_some());
        let given = known.iter().flat_map(|(key, value)| {
            let key = (*key).to_owned();
            let all = match value.get_ref() {
                DeValue::Array(items) if kind.key(&key).is_some_and(|known| known.is_list) => {
                    items.iter().map(plain).collect()
                }
                _ => vec![plain(value)],
            };
            all.into_iter().map(move |value| (key.clone(), value))
        });
        let settings = Settings::parse(kind, given.collect()).map_err(|wrong| wrong.text)?;
        if self.kept.added.contains_key(name) {
            return Err("the name is given twice".to_owned());
        }
        self.kept.added.insert(name.to_owned(), settings);
        self.unknown(kind.name(), name, &unknown);
        Ok(())
    }

    /// A port of the configuration that a client changed.
    fn changed(&mut self, name: &str, pairs: &[Pair<'_>]) -> Result<(), String> {
        if self.kept.overrides.contains_key(name) {
            return Err("the name is given twice".to_owned());
        }
        let pairs = pairs.iter().copied().filter(|(key, _)| *key != "name");
        let is_known = |key: &str| key == DELETED || KEYS.iter().any(|known| known.name == key);
        let (known, unknown): (Vec<_>, Vec<_>) = pairs.partition(|(key, _)| is_known(key));
        let mut keys = Keys::new();
        let mut is_deleted = false;
        for (key, value) in known {
            match (key, value.get_ref()) {
                (DELETED, DeValue::Boolean(deleted)) => is_deleted = *deleted,
                (key, DeValue::Array(items)) => {
                    let words = items.iter().map(|item| word(key, plain(item)));
                    let words = words.collect::<Result<Vec<_>, _>>()?;
                    keys.insert(key.to_owned(), words.concat());
                }
                (key, _) => drop(keys.insert(key.to_owned(), word(key, plain(value))?)),
            }
        }
        let change = if is_deleted { Override::Deleted } else { Override::Keys(keys) };
        self.kept.overrides.insert(name.to_owned(), change);
        self.unknown(OVERRIDE, name, &unknown);
        Ok(())
    }

    /// Notes the keys of a table that this version does not know.
    fn unknown(&mut self, table: &str, name: &str, pairs: &[Pair<'_>]) {
        for pair in pairs {
            let why = format!("[[{table}]] '{name}': unknown key {}", quote(pair.0));
            let (name, table) = (Some(name.to_owned()), Some(table.to_owned()));
            let text = self.line(pair);
            self.kept.unread.push(Unread { name, why, table, is_whole: false, text });
        }
    }

    /// Returns a line with a key and its value.
    fn line(&self, (key, value): &Pair<'_>) -> String {
        format!("{} = {}\n", key_text(key), self.inline(value))
    }

    /// Returns a value in one piece, also if the value is spread over the file.
    fn inline(&self, value: &Spanned<DeValue<'_>>) -> String {
        let all: Vec<String> = match value.get_ref() {
            DeValue::Array(items) => items.iter().map(|item| self.inline(item)).collect(),
            DeValue::Table(pairs) => pairs
                .iter()
                .map(|(key, value)| format!("{} = {}", key_text(key.get_ref()), self.inline(value)))
                .collect(),
            _ => return self.text[value.span()].to_owned(),
        };
        let [open, close] = if value.get_ref().is_array() { ["[", "]"] } else { ["{", "}"] };
        format!("{open}{}{close}", all.join(", "))
    }
}

/// The words of a value; none for an empty text.
fn word(key: &str, value: Value) -> Result<Vec<String>, String> {
    match value {
        Value::Word(text) | Value::Text(text) if text.is_empty() => Ok(Vec::new()),
        Value::Word(text) | Value::Text(text) => Ok(vec![text]),
        Value::Integer(number) => Ok(vec![number.to_string()]),
        Value::Boolean(truth) => Ok(vec![truth.to_string()]),
        Value::Other(name) => Err(format!("{key} is {name}")),
    }
}

/// A table of a configuration file, with these keys.
pub fn table_text<K: AsRef<str>>(table: &str, name: &str, keys: &[(K, Vec<String>)]) -> String {
    let mut out = format!("[[{table}]]\n{}", line_text("name", &[name.to_owned()]));
    for (key, words) in keys {
        out += &line_text(key.as_ref(), words);
    }
    out
}

/// The line of a key in a configuration file.
pub fn line_text(key: &str, words: &[String]) -> String {
    let mut out = format!("{} = ", key_text(key));
    let of_list = KEYS.iter().any(|known| known.name == key && known.is_list);
    // Writing to a string cannot fail.
    let _ = match words {
        [] if of_list => out.write_str("[]"),
        [] => out.value(""),
        [one] => write_word(&mut out, key, one),
        several => write_list(&mut out, key, several),
    };
    out + "\n"
}

fn write_list(out: &mut String, key: &str, words: &[String]) -> std::fmt::Result {
    let is_long = words.len() > 3;
    let (before, after) = if is_long { ("\n    ", ",\n") } else { ("", "") };
    out.open_array()?;
    for (at, word) in words.iter().enumerate() {
        let between = if is_long { "," } else { ", " };
        out.write_str(if at > 0 { between } else { "" })?;
        out.write_str(before)?;
        write_word(out, key, word)?;
    }
    out.write_str(after)?;
    out.close_array()
}

fn write_word(out: &mut String, key: &str, word: &str) -> std::fmt::Result {
    let takes_numbers = KEYS.iter().any(|known| known.name == key && known.is_number);
    match word.parse::<u64>().ok().filter(|_| takes_numbers) {
        Some(number) if number.to_string() == word => out.value(number),
        _ => out.value(word),
    }
}

/// Returns a key as TOML writes it: with quotes if the key needs quotes.
fn key_text(key: &str) -> String {
    let mut out = String::new();
    let _ = out.key(key);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(kind: &str, words: &[(&str, &str)]) -> Settings {
        let text = |(key, word): &(&str, &str)| (key.to_string(), Value::Word(word.to_string()));
        Settings::parse(Kind::named(kind).unwrap(), words.iter().map(text).collect()).unwrap()
    }

    fn example() -> Kept {
        let macs: Vec<String> = (0..5).map(|n| format!("52:54:00:00:00:0{n}")).collect();
        let mut port = vec![
            ("name", "vm1"),
            ("socket", "/run/a \"b\"'\\"),
            ("socket-mode", "0600"),
            ("socket-group", "108"),
            ("queues", "4"),
            ("label", "7"),
        ];
        port.extend(macs.iter().map(|mac| ("mac", mac.as_str())));
        let all = [
            settings("port", &port),
            settings("tap", &[("name", "up"), ("ifname", "t0"), ("coalesce", "off")]),
            settings("stream", &[("name", "s"), ("socket", "/s"), ("mode", "client")]),
            settings("mirror", &[("name", "m"), ("from", "vm1"), ("to", "x"), ("snaplen", "96")]),
        ];
        let keys = [("mtu", &["9000"][..]), ("label", &[]), ("mac", &[]), ("flood", &["off"])];
        let words = |all: &[&str]| all.iter().map(|word| (*word).to_owned()).collect();
        let keys = keys.map(|(key, all)| (key.to_owned(), words(all)));
        Kept {
            added: all.into_iter().map(|one| (one.name.clone(), one)).collect(),
            overrides: [
                ("f1".to_owned(), Override::Keys(keys.into_iter().collect())),
                ("f2".to_owned(), Override::Deleted),
            ]
            .into(),
            unread: Vec::new(),
        }
    }

    #[test]
    fn what_is_written_is_read_again_and_reads_as_a_person_writes() {
        let text = example().text();
        assert_eq!(Kept::read(&text).as_ref(), Ok(&example()), "{text}");
        for part in [
            "\n[[mirror]]\nname = \"m\"\nfrom = \"vm1\"\nto = \"x\"\nsnaplen = 96\n",
            "\nsocket-mode = \"0600\"\nsocket-group = 108\nqueues = 4\n",
            "\nmac = [\n    \"52:54:00:00:00:00\",\n",
            "\nlabel = \"7\"\n",
            "\n[[override]]\nname = \"f1\"\nflood = \"off\"\nlabel = \"\"\nmac = []\nmtu = 9000\n",
            "\n[[override]]\nname = \"f2\"\ndeleted = true\n",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(Kept::default().text().lines().all(|line| line.starts_with('#')));
    }

    /// A later version wrote the file: what this version knows has effect, the rest is reported,
    /// and stands in the file that this version writes.
    #[test]
    fn an_older_version_leaves_out_what_it_does_not_know_and_loses_nothing() {
        let later = "version = 2\n\n[[port]]\nname = \"a\"\nsocket = \"/a\"\nmtu = 1400\n\
                     speed = [\"x\", {y = 1}]\n\n[[port]]\nname = \"b\"\nsocket = \"/b\"\n\
                     flood = \"maybe\"\n\n[[override]]\nname = \"f\"\nmtu = 1300\nspeed = 7\n\n\
                     [[gauge]]\nname = \"deny\"\nallow = false\n\n[[tap]]\nifname = \"t\"\n";
        let kept = Kept::read(later).unwrap();
        assert_eq!(kept.added["a"].mtu, Some(1400));
        assert_eq!((kept.added.len(), kept.overrides.len()), (1, 1));
        let mut told: Vec<&str> = kept.unread.iter().map(|unread| unread.why.as_str()).collect();
        told.sort();
        assert_eq!(
            told,
            [
                "[[gauge]] 'deny': unknown table",
                "[[override]] 'f': unknown key 'speed'",
                "[[port]] 'a': unknown key 'speed'",
                "[[port]] 'b': flood must be on or off, not 'maybe'",
                "[[tap]]: the table has no valid name",
                "unknown key 'version'",
            ]
        );
        let text = kept.text();
        assert_eq!(Kept::read(&text), Ok(kept), "{text}");
        for line in later.lines() {
            assert!(text.lines().any(|other| other == line), "{line:?} in {text}");
        }
    }

    /// Returns a value with its tables in the order of their keys, whatever the notation.
    fn canonical(value: &DeValue<'_>) -> String {
        match value {
            DeValue::Array(items) => {
                let items = items.iter().map(|item| canonical(item.get_ref()));
                format!("[{}]", items.collect::<Vec<_>>().join(","))
            }
            DeValue::Table(pairs) => {
                let pair = |(key, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| {
                    format!("{}={}", key.get_ref(), canonical(value.get_ref()))
                };
                let mut pairs: Vec<String> = pairs.iter().map(pair).collect();
                pairs.sort();
                format!("{{{}}}", pairs.join(","))
            }
            scalar => format!("{scalar:?}"),
        }
    }

    /// A value of a later version may be spread over the file, or be an array without tables.
    #[test]
    fn no_value_of_a_later_version_is_lost() {
        let later = "features = [\"a\", \"b\"]\nx = []\na.b = 1\nwhen = 2026-11-28\n\
                     [limits]\nmost = 3\n[limits.of]\nports = [1, [2]]\n\
                     [[filter]]\nname = \"web\"\n\
                     [[filter.rule]]\nto = \"80\"\n[[filter.rule]]\nto = \"443\"\n\
                     [[port]]\nname = \"a\"\nsocket = \"/a\"\n[port.speed]\nmost = 1.5\n";
        let text = Kept::read(later).unwrap().text();
        let whole = |text: &str| {
            let table = DeTable::parse(text).unwrap().into_inner();
            canonical(&DeValue::Table(table.into_iter().collect()))
        };
        assert_eq!(whole(&text), whole(later), "{text}");
        assert_eq!(Kept::read(&text).unwrap().text(), text);
    }

    /// A key in place of tables must not make the file unreadable.
    #[test]
    fn keys_in_place_of_tables_are_not_written() {
        for key in ["port = 1", "override = [1]", "tap = []"] {
            let mut kept = Kept::read(&format!("{key}\n")).unwrap();
            (kept.added, kept.overrides) = (example().added, example().overrides);
            let text = kept.text();
            assert_eq!(Kept::read(&text), Ok(example()), "{text}");
        }
    }

    #[test]
    fn what_is_no_toml_is_an_error_with_its_line() {
        let error = Kept::read("a = 1\n[[port]\n").unwrap_err();
        assert!(error.starts_with("line 2: "), "{error}");
        for text in ["port = [1]\n", "override = [{name = 1}]\n", "[port]\nname = 'a'\n"] {
            let kept = Kept::read(text).unwrap();
            assert_eq!(kept.unread.len(), 1, "{text}");
            assert!(Kept::read(&kept.text()).is_ok(), "{text}");
        }
    }
}
