//! Text for files, clients and people: enumerations whose values have names (`words!`), counts with
//! their nouns (`2 ports`), sentences with places to fill, and words quoted for a shell.

use std::fmt::Display;

/// A type whose values, some or all, have a word.
pub trait Words: Copy + PartialEq + 'static {
    /// Each word with its value.
    const WORDS: &'static [(&'static str, Self)];
}

impl Words for bool {
    const WORDS: &'static [(&'static str, bool)] = &[("on", true), ("off", false)];
}

/// Returns a count with its noun: `1 port`, `2 ports`, `3 addresses`.
pub fn counted(count: impl Display, noun: &str) -> String {
    let count = count.to_string();
    let ending = match (count.as_str(), noun.ends_with('s')) {
        ("1", _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{count} {noun}{ending}")
}

/// Returns a sentence with its places filled. A place is `{NAME}` or `{NAME:DEFAULT}`. `value`
/// returns the text for a name, or none for the default.
pub fn fill(sentence: &str, value: impl Fn(&str) -> Option<String>) -> String {
    let mut parts = sentence.split('{');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (place, rest) = part.split_once('}').unwrap_or((part, ""));
        let (name, default) = place.split_once(':').unwrap_or((place, ""));
        text += value(name).as_deref().unwrap_or(default);
        text += rest;
    }
    text
}

/// Returns a path or a name quoted so that a shell reads one word.
pub fn quote(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@%:,=".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// Defines enumerations with a word for each value. The first value is the default.
#[macro_export]
macro_rules! words {
    ($($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $value:ident $word:literal,)* })*) => {$(
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$doc])* $value,)* }

        impl $crate::words::Words for $name {
            const WORDS: &'static [(&'static str, $name)] = &[$(($word, $name::$value)),*];
        }

        impl $name {
            /// All values, in the order of their definition.
            pub const ALL: [$name; [$($word),*].len()] = [$($name::$value),*];

            /// Returns the value's word.
            pub const fn name(self) -> &'static str {
                match self { $($name::$value => $word,)* }
            }
        }

        impl Default for $name {
            fn default() -> $name {
                $name::ALL[0]
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    )*};
}

#[cfg(test)]
mod tests {
    use super::{counted, quote};

    #[test]
    fn one_thing_is_singular() {
        for (count, noun, text) in [
            (0, "port", "0 ports"),
            (1, "port", "1 port"),
            (2, "port", "2 ports"),
            (1, "address", "1 address"),
            (11, "address", "11 addresses"),
            (21, "more error", "21 more errors"),
        ] {
            assert_eq!(counted(count, noun), text);
        }
    }

    #[test]
    fn a_shell_reads_a_quoted_word_as_one() {
        for (word, quoted) in [
            ("eth0", "eth0"),
            ("--net=/proc/7/ns/net", "--net=/proc/7/ns/net"),
            (";reboot;", "';reboot;'"),
            ("$(id)", "'$(id)'"),
            ("it's", r"'it'\''s'"),
            ("~", "'~'"),
            ("", "''"),
        ] {
            assert_eq!(quote(word), quoted);
        }
    }
}
