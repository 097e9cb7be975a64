//! Settings as given: untyped, each with its place.
//!
//! The command line and the file both become a [`Source`], so that every rule about a value is
//! written once, in `validate`.

use std::fmt;
use std::sync::Arc;

use super::kind::Kind;
use base::limits;

/// Location of a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Location {
    /// On the command line: the argument, ready to be printed.
    Argument(String),
    /// In a file, on a line, counted from 1.
    Line(Arc<str>, usize),
    /// In a request of a program: the key.
    Parameter(String),
    /// No particular place: all arguments, or all settings of a program.
    Command,
}

impl Location {
    /// Returns the place of the argument `option` with its `value`.
    pub(super) fn argument(option: &str, value: &str) -> Location {
        match value {
            "" => Location::Argument(format!("{option} ''")),
            value => {
                let value = clip(value, limits::MAX_QUOTED_CHARS);
                Location::Argument(format!("{option} {value}"))
            }
        }
    }
}

/// A value before its type is checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A word of the command line, or a text of a program, without a type: text, number or boolean.
    Word(String),
    /// A string of the file.
    Text(String),
    /// An integer.
    Integer(i64),
    /// A boolean.
    Boolean(bool),
    /// A value of a type that no setting takes, with the name of the type.
    Other(&'static str),
}

/// A setting `key = value`.
#[derive(Debug, Clone)]
pub(super) struct Setting {
    pub(super) key: String,
    pub(super) value: Value,
    pub(super) at: Location,
}

impl Setting {
    /// Returns the setting with the value `word`, in the form of the setting's place.
    pub(super) fn shown(&self, word: &str) -> String {
        match self.value {
            Value::Word(_) => format!("{}={word}", self.key),
            _ => format!("{} = \"{word}\"", self.key),
        }
    }

    /// Returns the setting with the key `key`, in the form of the place where the setting stands. A
    /// value that is long, or that a shell would take apart, is left out.
    pub(super) fn renamed(&self, key: &str) -> String {
        let (is_text, word) = match &self.value {
            Value::Word(word) | Value::Text(word) => (true, word.clone()),
            Value::Integer(number) => (false, number.to_string()),
            Value::Boolean(truth) => (false, truth.to_string()),
            Value::Other(_) => return key.to_owned(),
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || "/.,:_+-".contains(c);
        match &self.at {
            _ if word.len() > limits::MAX_QUOTED_CHARS || !word.chars().all(plain) => {
                key.to_owned()
            }
            Location::Line(..) if is_text => format!("{key} = \"{word}\""),
            Location::Line(..) => format!("{key} = {word}"),
            _ => format!("{key}={word}"),
        }
    }
}

/// An entry: `--port`, `--tap` or `--stream`, or a table of this name in a file.
#[derive(Debug, Clone)]
pub(super) struct Section {
    pub(super) kind: Kind,
    pub(super) settings: Vec<Setting>,
    pub(super) at: Location,
}

/// All settings of one source: the command line, or the files.
#[derive(Debug, Clone, Default)]
pub(super) struct Source {
    /// Settings outside of entries.
    pub(super) scalars: Vec<Setting>,
    /// Entries in the given order.
    pub(super) sections: Vec<Section>,
}

/// An error and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Complaint {
    pub(super) at: Location,
    pub(super) text: String,
}

impl Complaint {
    pub(super) fn new(at: &Location, text: impl Into<String>) -> Complaint {
        Complaint { at: at.clone(), text: text.into() }
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.at {
            Location::Argument(argument) => write!(f, "{argument}: {}", self.text),
            Location::Line(file, line) => write!(f, "{file}:{line}: {}", self.text),
            Location::Parameter(_) | Location::Command => f.write_str(&self.text),
        }
    }
}

/// Returns `text` in a form for one line of a message: control characters are escaped, so that no
/// character can forge a second line, and the text is cut behind `max` characters.
pub(super) fn clip(text: &str, max: usize) -> String {
    let mut shown = String::new();
    for (count, c) in text.chars().enumerate() {
        if count == max {
            shown.push_str("...");
            break;
        }
        if is_unprintable(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Returns `word` as one word of a shell's command line.
pub fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "%+,-./:=@_".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", clip(word, usize::MAX).replace('\'', "'\\''")),
    }
}

/// Returns `text` between quotes, cut behind [`limits::MAX_QUOTED_CHARS`].
pub(super) fn quote(text: &str) -> String {
    format!("'{}'", clip(text, limits::MAX_QUOTED_CHARS))
}

/// Returns true for a character that ends a line or moves the cursor, in ASCII and in Unicode.
pub(super) fn is_unprintable(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_a_shell_is_one_word() {
        for (word, shown) in [
            ("socket=/run/a.sock", "socket=/run/a.sock"),
            ("label=tenant 7", "'label=tenant 7'"),
            ("label=it's; $(x)", "'label=it'\\''s; $(x)'"),
            ("", "''"),
        ] {
            assert_eq!(shell_word(word), shown);
        }
    }

    #[test]
    fn quoted_text_is_one_short_line() {
        assert_eq!(quote("a\nb\u{2028}c"), "'a\\nb\\u{2028}c'");
        let long = quote(&"x".repeat(10_000));
        assert_eq!(long.chars().count(), limits::MAX_QUOTED_CHARS + 5);
    }
}
