//! The remedies in the source: each string literal that has a command in it, and that command with
//! values in the place of what the program fills in.

use std::fs;
use std::path::{Path, PathBuf};

/// Programs whose commands are remedies.
const PROGRAMS: [&str; 17] = [
    "vioswitchctl",
    "vioswitchd",
    "ip",
    "tc",
    "ethtool",
    "systemctl",
    "journalctl",
    "networkctl",
    "iptables",
    "modprobe",
    "getent",
    "apt",
    "ifup",
    "kill",
    "mkdir",
    "echo",
    "grep",
];

/// What stands before a command, and what the sentence says behind it.
const BEFORE: [&str; 8] = ["or ", "and ", "see ", "then ", "say ", "start ", "run ", "which "];
const BEHIND: [&str; 5] = [" shows ", " lists ", " writes ", " makes ", " comes "];

/// The commands in a text; words in capitals are to be filled in.
pub fn commands(text: &str) -> Vec<String> {
    let text = [", ", " && ", ": ", " (", ")", "\n"]
        .iter()
        .fold(text.to_owned(), |text, end| text.replace(end, "; "));
    let mut found = Vec::new();
    for part in text.split("; ") {
        let mut part = part.trim();
        while let Some(rest) = BEFORE.iter().find_map(|word| part.strip_prefix(word)) {
            part = rest;
        }
        let part = BEHIND.iter().fold(part, |part, end| part.split(end).next().unwrap_or(part));
        let part =
            part.split("    #").next().unwrap_or(part).trim_end_matches([':', ';', '?', '\'']);
        let words: Vec<&str> = part.split_whitespace().collect();
        // The program's name as the subject of a sentence is none.
        let is_subject = words.first() == Some(&"vioswitchd")
            && words.get(1).is_some_and(|word| !word.starts_with("--"));
        if words.len() > 1 && PROGRAMS.contains(&words[0]) && !is_subject {
            found.push(words.join(" "));
        }
    }
    found
}

/// Values for what the program fills in where the name alone says what that is.
const VALUES: [(&str, &str); 28] = [
    ("interface", "dummy9"),
    ("other", "dummy9"),
    ("dev", "dummy9"),
    ("nic", "dummy9"),
    ("tap", "dummy9"),
    ("own", "/etc/vm9.toml"),
    ("bridge", "br9"),
    ("name", "vm9"),
    ("owner", "vm9"),
    ("group", "vm9"),
    ("kind", "port"),
    ("noun", "port"),
    ("change", "mtu=1500"),
    ("given", ""),
    ("mac", "02:00:00:00:00:99"),
    ("mtu", "1500"),
    ("MAX_XDP_MTU", "3818"),
    ("queues", "1"),
    ("receive", "1"),
    ("kib", "2048"),
    ("chain", "FORWARD"),
    ("packages", "passt"),
    ("unit", "vioswitchd.service"),
    ("instance", "dummy9"),
    ("path", "/run/vm9.sock"),
    ("user", ""),
    ("set", "lldp"),
    ("vlan", "10"),
];

/// A literal with values for the names in braces; without a value for one of them, nothing.
fn with_values(literal: &str, program: &str) -> Result<String, String> {
    let (mut text, mut rest) = (String::new(), literal);
    while let Some((before, after)) = rest.split_once('{') {
        let (name, behind) = after.split_once('}').ok_or(literal)?;
        let name = name.split(':').next().unwrap_or(name);
        let value = match name {
            "" | "0" | "1" if program == "vioswitchctl" => "vm9",
            "" | "0" | "1" if program == "systemctl" => "vioswitchd.service",
            "" | "0" | "1" if program == "kill" => "4711",
            "" | "0" | "1" if program == "mkdir" => "/run/vm9",
            "" | "0" | "1" => "dummy9",
            _ => VALUES.iter().find(|(known, _)| *known == name).ok_or(name)?.1,
        };
        text = text + before + value;
        rest = behind;
    }
    Ok(text + rest)
}

/// A string literal that has a command in it.
pub struct Literal {
    pub file: String,
    pub text: String,
}

impl Literal {
    /// Its commands, with values in the place of what the program fills in.
    pub fn commands(&self) -> Vec<String> {
        let filled = |command: String| {
            let program = command.split(' ').next().unwrap_or_default();
            let told = with_values(&command, program);
            told.unwrap_or_else(|name| panic!("{}: give {name} a value in VALUES", self.file))
        };
        commands(&self.text).into_iter().map(filled).collect()
    }

    /// Whether an answer may be this literal with its values.
    pub fn is_in(&self, answer: &str) -> bool {
        let mut rest = answer;
        let mut text = self.text.as_str();
        loop {
            let (piece, behind) = text.split_once('{').unwrap_or((text, ""));
            let Some(at) = rest.find(piece) else { return false };
            rest = &rest[at + piece.len()..];
            match behind.split_once('}') {
                Some((_, behind)) => text = behind,
                None => return true,
            }
        }
    }
}

/// All literals of the source that have a command in them, but those of unit tests.
pub fn literals() -> Vec<Literal> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    for path in files(&root) {
        let file = path.strip_prefix(&root).expect("below src").display().to_string();
        // Help is tested where it is printed, and a list of words has no sentence.
        let is_message =
            |text: &String| !text.starts_with("Examples:") && file != "api/config/nearest.rs";
        let all = strings_of(&file).into_iter().filter(is_message);
        let all = all.filter(|literal| !commands(literal).is_empty());
        found.extend(all.map(|text| Literal { file: file.clone(), text }));
    }
    found
}

/// The string literals of a file below `src`, but those of unit tests.
pub fn strings_of(file: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(file);
    let text = fs::read_to_string(path).expect("a source file");
    strings(text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(&text))
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let entries = fs::read_dir(directory).expect("a directory");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    for path in paths {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        match path.is_dir() {
            _ if name.starts_with("tests") || name == "quoted.rs" => {}
            true => found.extend(files(&path)),
            false if name.ends_with(".rs") => found.push(path),
            false => {}
        }
    }
    found
}

/// The values of the string literals of Rust source, without raw ones.
fn strings(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = source;
    while let Some(at) = rest.find(['/', '\'', '"']) {
        let here = &rest[at..];
        let len = if here.starts_with("//") {
            here.find('\n').unwrap_or(here.len())
        } else if here.starts_with('"') {
            let (value, len) = string(here);
            found.push(value);
            len
        } else if here.starts_with("'\\") {
            2 + here[3..].find('\'').map_or(1, |end| end + 2)
        } else {
            // A character; a lifetime has no quote behind it.
            let mut letters = here.char_indices().skip(2);
            match letters.next() {
                Some((end, '\'')) if here.starts_with('\'') => end + 1,
                _ => 1,
            }
        };
        rest = &here[len..];
    }
    found
}

/// The string literal that `source` begins with, and its length there.
fn string(source: &str) -> (String, usize) {
    let mut value = String::new();
    let mut letters = source.char_indices().skip(1).peekable();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return (value, at + 1),
            '\\' => match letters.next() {
                Some((_, '\n')) => while letters.next_if(|(_, c)| c.is_whitespace()).is_some() {},
                Some((_, 'n')) => value.push('\n'),
                Some((_, escaped)) => value.push(escaped),
                None => {}
            },
            letter => value.push(letter),
        }
    }
    (value, source.len())
}

#[test]
fn strings_of_the_source_are_found() {
    let source = r#"// "no"
        let a: &'static str = "b \"c\" \
            d"; let e = ['"', '\'', 'x']; f("g")"#;
    assert_eq!(strings(source), ["b \"c\" d", "g"]);
    let literal = |text: &str| Literal { file: String::new(), text: text.to_owned() };
    let one = literal("no {name}: see vioswitchctl port show {owner}, or ip link set {other} up");
    assert_eq!(one.commands(), ["vioswitchctl port show vm9", "ip link set dummy9 up"]);
    assert!(one.is_in("x: no a: see vioswitchctl port show b, or ip link set c up"));
    assert!(!one.is_in("x: no a: see vioswitchctl port show b"));
}
