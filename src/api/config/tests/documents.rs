//! The documents agree with the table of keys: the commented example and a table of
//! docs/configuration.md are made from the table.

use std::fmt::Write;

use testkit::manual::{ROOT, hold, hold_table};

use super::*;

fn read(file: &str) -> String {
    std::fs::read_to_string(format!("{ROOT}/{file}")).expect(file)
}

/// Replaces the text between a mark, which stays, and the next `end`.
fn with(text: &str, mark: &str, end: &str, made: &str) -> String {
    let (head, rest) = text.split_once(mark).unwrap_or_else(|| panic!("no {mark:?}"));
    let at = rest.find(end).unwrap_or(rest.len());
    format!("{head}{mark}{made}{}", &rest[at..])
}

/// Returns an example of a key's value, with the names of the kind's entry.
fn example(key: &Key, kind: Kind) -> String {
    let (name, address) = match kind {
        Kind::Tap => ("uplink", ":02\""),
        Kind::Xdp => ("fast", ":04\""),
        Kind::Stream => ("net", ":03\""),
        Kind::Vduse => ("host", ":05\""),
        Kind::Mirror if key.name == "name" => ("watch", ":01\""),
        Kind::Filter if key.name == "name" => ("web", ":01\""),
        Kind::Group if key.name == "name" => ("dns", ":01\""),
        _ => ("vm1", ":01\""),
    };
    let example = key.example.replace("vm1", name).replace(":01\"", address);
    match kind {
        Kind::Xdp => example.replace("vioswitch0", "eth1").replace("server", "auto"),
        Kind::Vduse => example.replace("vioswitch0", "eth0"),
        _ => example,
    }
}

/// Returns the help of a key, with the values if they are few.
fn told(key: &Key, kind: Kind) -> String {
    let form = key.form(kind);
    let help = key.help.replace('`', "\"");
    let is_told = form.contains(['|', ' ']);
    if is_told { format!("{help} {}.", form.replace('|', ", ")) } else { help }
}

/// Returns the keys of an entry in the form of the commented example.
fn commented(kind: Kind) -> String {
    let mut out = String::new();
    for key in kind.keys() {
        let mut line = "#".to_owned();
        for word in told(key, kind).split(' ') {
            if line.len() + 1 + word.len() > 100 {
                let _ = writeln!(out, "{line}");
                line = "#".to_owned();
            }
            let _ = write!(line, " {word}");
        }
        let _ = writeln!(out, "{line}\n#{} = {}", key.name, example(key, kind));
    }
    out
}

#[test]
fn the_commented_example_has_every_key() {
    let file = "scripts/systemd/vioswitch.toml";
    let mut text = read(file);
    let entries = Kind::NAMED.map(|kind| (format!("\n#[[{kind}]]\n"), kind));
    let template = ("\n[template.plug]\n".to_owned(), Kind::Template);
    for (header, kind) in [template].into_iter().chain(entries) {
        text = with(&text, &header, "\n\n", commented(kind).trim_end());
    }
    hold(file, &(text.trim_end().to_owned() + "\n"));
}

/// Returns the name of a kind in tables.
fn in_tables(kind: Kind) -> &'static str {
    match kind {
        Kind::Port => "VM",
        Kind::Tap => "TAP",
        Kind::Xdp => "XDP",
        Kind::Vduse => "VDUSE",
        other => other.name(),
    }
}

/// Returns values that differ by the kind of a port, as `VM: 1 to 16, TAP: 1 to 64`.
pub(super) fn by_kind(key: &Key, of: impl Fn(Kind) -> String) -> String {
    let mut all: Vec<(Vec<&str>, String)> = Vec::new();
    for (kind, name) in Kind::NAMED.map(|kind| (kind, in_tables(kind))) {
        let said = if key.kinds.contains(&kind) { of(kind) } else { continue };
        match all.iter_mut().find(|(_, other)| *other == said) {
            Some((names, _)) => names.push(name),
            None => all.push((vec![name], said)),
        }
    }
    match all.as_slice() {
        [(_, said)] => said.clone(),
        all => {
            let each = all.iter().map(|(names, said)| format!("{}: {said}", names.join(", ")));
            each.collect::<Vec<_>>().join("; ")
        }
    }
}

#[test]
fn the_page_of_the_configuration_says_when_changes_take_effect() {
    let file = "docs/configuration.md";
    let mark = "<!-- UPDATE_DOCS: src/api/config/keys.rs -->";
    let mut effects: Vec<(String, Vec<String>)> = Vec::new();
    for key in KEYS.iter().filter(|key| !key.kinds.is_empty()) {
        let effect = by_kind(key, |kind| format!("`{}`", key.effect(kind).name()));
        let name = format!("`{}`", key.name);
        match effects.iter_mut().find(|(other, _)| *other == effect) {
            Some((_, names)) => names.push(name),
            None => effects.push((effect, vec![name])),
        }
    }
    let rows = effects.iter().map(|(effect, names)| match effect.as_str() {
        "`now`" => format!("{effect} | all others\n"),
        _ => format!("{effect} | {}\n", names.join(", ")),
    });
    let table = rows.collect::<String>();
    hold_table(file, mark, &format!("takes effect | keys\n---|---\n{table}"));
}

/// Returns lines of code that name a key as a text, a field or a type, with their files.
fn places(key: &Key) -> Vec<String> {
    let (field, upper) = (key.field(), key.field().to_uppercase());
    let text = format!("\"{}\"", key.name);
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let names = |line: &str| {
        let around = |word: &str, ok: fn(&str, &str) -> bool| {
            line.match_indices(word).any(|(at, _)| {
                let (before, after) = (&line[..at], &line[at + word.len()..]);
                !before.ends_with(is_word) && !after.starts_with(is_word) && ok(before, after)
            })
        };
        line.contains(&text)
            || around(&field, |before, _| before.ends_with('.'))
            || around(&upper, |before, after| {
                before.ends_with("const ") || after.starts_with(", ") && before.ends_with("= ")
            })
    };
    let mut found = Vec::new();
    for folder in [
        "api/config",
        "api/diagnosis",
        "api/wire",
        "ctl",
        "daemon",
        "daemon/control",
        "daemon/metrics",
    ] {
        let all = std::fs::read_dir(format!("{ROOT}/src/{folder}")).expect("read").flatten();
        for path in all.map(|entry| entry.path()).filter(|path| path.is_file()) {
            let text = std::fs::read_to_string(&path).expect("read");
            let code = text.split("\n#[cfg(test)]\nmod tests").next().unwrap_or_default();
            let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
            found.extend(lines.filter(|line| names(line)).map(|line| {
                let name = path.strip_prefix(format!("{ROOT}/src")).expect("inside");
                format!("{}: {}", name.display(), line.trim())
            }));
        }
    }
    found
}

/// A key is a line of the table, a type, and the code that uses the value.
#[test]
fn a_key_is_named_in_few_places() {
    for name in ["label", "admin", "flood", "platform", "memory"] {
        let key = KEYS.iter().find(|key| key.name == name).expect(name);
        let places = places(key);
        println!("{name}: {places:#?}");
        assert!((1..=5).contains(&places.len()), "{name}: {places:#?}");
    }
}
