//! `docs/limits.md` lists each limit with a description and the value. The lists are made from the
//! source, whose comments have the reasons. Numbers that only tune the switch are not on the page:
//! numbers of `workers.rs`, and numbers whose comment begins with [`TUNING`].
//!
//! `UPDATE_DOCS=1 cargo test --lib limits` writes the lists. Each limit needs a doc comment.

use std::fs;
use std::path::{Path, PathBuf};

use testkit::manual::ROOT;

/// The line behind which this file makes the page.
const MARK: &str = "<!-- UPDATE_DOCS: src/base/limits.rs -->\n";

/// Where values stand on the page.
const COLUMN: usize = 76;

/// The beginning of a number's comment, if the number bounds only the switch's own way of work.
const TUNING: &str = " Tuning: ";

/// Returns the files of limits on the page, `limits.rs` first, each with the title for limits
/// before the file's first section.
fn files() -> Vec<(String, String)> {
    let src = Path::new(ROOT).join("src/base");
    let mut paths: Vec<PathBuf> =
        fs::read_dir(src.join("limits")).unwrap().map(|entry| entry.unwrap().path()).collect();
    let is_listed = |path: &PathBuf| {
        path.extension().is_some_and(|e| e == "rs")
            && !["tests.rs", "workers.rs"].iter().any(|name| path.ends_with(name))
    };
    paths.retain(is_listed);
    paths.sort();
    paths.insert(0, src.join("limits.rs"));
    let title = |path: &Path| {
        let stem = path.file_stem().unwrap().to_str().unwrap();
        stem[..1].to_uppercase() + &stem[1..]
    };
    paths.iter().map(|path| (title(path), fs::read_to_string(path).unwrap())).collect()
}

/// A number of a file.
struct Limit {
    section: String,
    name: String,
    value: String,
    doc: String,
}

/// The numbers of a file, in sections, `// --- title ---`.
fn limits(title: String, text: &str) -> Vec<Limit> {
    let (mut found, mut section, mut doc) = (Vec::new(), title, String::new());
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(rest) = line.strip_prefix("///") {
            doc = doc + " " + rest.trim();
            continue;
        }
        if let Some(rest) = line.strip_prefix("// --- ") {
            section = rest.trim_end_matches('-').trim().to_owned();
        }
        if let Some(rest) = line.strip_prefix("pub const ") {
            let mut item = rest.to_owned();
            while !item.ends_with(';') {
                item = item + " " + lines.next().expect("an item ends").trim();
            }
            let (name, rest) = item.split_once(':').unwrap();
            let (_, value) = rest.split_once(" = ").unwrap();
            assert!(!doc.is_empty(), "{name} has no doc comment that says why");
            let (section, name, doc) = (section.clone(), name.to_owned(), doc.clone());
            found.push(Limit { section, value: readable(&name, value), name, doc });
        }
        doc.clear();
    }
    found
}

/// A list for each section, with the values in a column of their own.
fn lists(limits: &[Limit]) -> String {
    let (mut out, mut section) = (String::new(), "");
    for limit in limits.iter().filter(|limit| !limit.doc.starts_with(TUNING)) {
        if section != limit.section {
            let end = if section.is_empty() { "" } else { "```\n" };
            section = &limit.section;
            out += &format!("{end}\n## {section}\n\n```\n");
        }
        let value = limit.value.split(' ').map(|word| {
            let other = limits.iter().find(|other| other.name == word);
            other.map_or(word, |other| &other.value)
        });
        let value = computed(&value.collect::<Vec<_>>().join(" "));
        out += &format!("{:COLUMN$}  {value}\n", plain(what(&limit.doc)));
    }
    out + "```\n"
}

/// The result of a value that is computed of plain numbers from left to right.
fn computed(value: &str) -> String {
    let number = |word: &str| word.replace([',', '_'], "").parse::<u64>().ok();
    let mut words = value.split(' ');
    let mut result = words.next().and_then(number);
    while let (Some(before), Some(what)) = (result, words.next()) {
        let next = words.next().and_then(number);
        result = next.and_then(|next| match what {
            "+" => Some(before + next),
            "-" => Some(before - next),
            "*" => Some(before * next),
            "/" => Some(before / next),
            "<<" => Some(before << next),
            _ => None,
        });
    }
    result.map_or(value.to_owned(), |result| {
        let digits = result.to_string();
        let apart =
            |at: usize| if at > 0 && (digits.len() - at).is_multiple_of(3) { "," } else { "" };
        digits.char_indices().map(|(at, digit)| format!("{}{digit}", apart(at))).collect()
    })
}

/// A value as a reader wants it: times and bytes with their unit, thousands apart.
fn readable(name: &str, value: &str) -> String {
    let mut value = value.trim_end_matches(';').replace(" as u32", "").replace(" as u64", "");
    value = value.replace(" as usize", "").replace("super::", "");
    for (from, unit) in [("from_millis(", "ms"), ("from_micros(", "µs"), ("from_secs(", "s")] {
        let text = value.trim_start_matches("std::time::").trim_start_matches("Duration::");
        if let Some(count) = text.strip_prefix(from) {
            value = format!("{} {unit}", count.trim_end_matches(')'));
            break;
        }
    }
    for (shift, unit) in [("<< 10", "KiB"), ("<< 20", "MiB"), ("<< 30", "GiB"), ("<< 40", "TiB")] {
        if name.contains("BYTES") {
            value = value.replace(shift, unit);
        }
    }
    let units = [("_SECONDS", "s"), ("_MILLIS", "ms"), ("_MICROS", "µs"), ("_NANOS", "ns")];
    if let Some((_, unit)) = units.into_iter().find(|(end, _)| name.ends_with(end)) {
        value = value + " " + unit;
    }
    for (from, to) in [("_000 ns", " µs"), ("_000 µs", " ms"), ("_000 ms", " s")] {
        value = value.replace(from, to);
    }
    value = value.replace("..=", " to ");
    let bytes = value.as_bytes();
    let digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let between = |at: usize| at > 0 && digit(at - 1) && digit(at + 1);
    value.char_indices().map(|(at, c)| if c == '_' && between(at) { ',' } else { c }).collect()
}

/// The subject of a doc comment: the text up to the first comma. The reason follows.
fn what(doc: &str) -> &str {
    let ends = [". ", ": ", "; ", ", "].into_iter().filter_map(|end| doc.find(end));
    doc[..ends.min().unwrap_or(doc.len())].trim_end_matches('.')
}

/// A doc comment without links and marks, as in a block of code.
fn plain(doc: &str) -> String {
    doc.trim().replace("[`", "").replace("`]", "").replace('`', "")
}

#[test]
fn the_page_of_limits_says_what_the_source_says() {
    let all: Vec<Limit> =
        files().into_iter().flat_map(|(title, text)| limits(title, &text)).collect();
    let made = lists(&all);
    assert!(made.lines().count() > 200, "the scan is broken:\n{made}");
    let longest = made.lines().map(|line| line.trim_end().chars().count()).max();
    assert!(longest < Some(110), "{longest:?}: what a limit is has to be short");
    let path = Path::new(ROOT).join("docs/limits.md");
    let page = fs::read_to_string(&path).unwrap();
    let (head, written) = page.split_once(MARK).expect("the mark");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        return fs::write(&path, format!("{head}{MARK}{made}")).unwrap();
    }
    let missing: Vec<&str> = made.lines().filter(|line| !written.contains(line)).collect();
    let stale: Vec<&str> = written.lines().filter(|line| !made.contains(line)).collect();
    assert!(
        made == written,
        "docs/limits.md: UPDATE_DOCS=1 cargo test --lib limits, or paste\n{}\nfor\n{}",
        missing.join("\n"),
        stale.join("\n")
    );
}

#[test]
fn values_are_told_as_a_reader_wants_them() {
    for (name, value, told) in [
        ("AGE_SECONDS", "300", "300 s"),
        ("TOUCH_NANOS", "4_000_000", "4 ms"),
        ("SIGNAL_MICROS", "1_000", "1 ms"),
        ("SIGNAL_MICROS", "100", "100 µs"),
        ("MAX_ENTRIES", "65_536", "65,536"),
        ("MAX_ENTRIES", "1 << 20", "1 << 20"),
        ("MAX_BYTES", "112 << 40", "112 TiB"),
        ("STEP", "std::time::Duration::from_micros(50)", "50 µs"),
        ("WAIT_MAX", "Duration::from_secs(86_400)", "86,400 s"),
        ("TX_COALESCED_BYTES", "4 * BURST_BYTES as u64", "4 * BURST_BYTES"),
        ("PART", "400..=2_500", "400 to 2,500"),
        ("LEN", "super::MAX_LEN as usize", "MAX_LEN"),
    ] {
        assert_eq!(readable(name, &format!("{value};")), told);
    }
}

#[test]
fn a_row_says_what_a_limit_is_and_not_why() {
    for doc in ["Files. One.", "Files: one each.", "Files; the rest.", "Files, so.", "Files."] {
        assert_eq!(what(doc), "Files");
    }
    assert_eq!(what("Level 1.2 of a.b and …"), "Level 1.2 of a.b and …");
}

#[test]
fn what_only_tunes_the_switch_is_not_on_the_page() {
    let text = "/// Bytes.\npub const A: u32 = 1_000;\n/// Tuning: looks.\npub const B: u32 = 2;\n\
                /// The same.\npub const C: u32 = A / 4 * B;\n";
    let made = lists(&limits("Limits".into(), text));
    let rows = format!("{:COLUMN$}  1,000\n{:COLUMN$}  500\n", "Bytes", "The same");
    assert_eq!(made, format!("\n## Limits\n\n```\n{rows}```\n"));
    assert_eq!(computed("1 << 20"), "1,048,576");
    assert_eq!(computed("1 TiB / 4096"), "1 TiB / 4096");
}

#[test]
#[should_panic(expected = "NAKED has no doc comment")]
fn a_limit_without_a_reason_fails() {
    limits("Limits".into(), "/// Why.\npub const DRESSED: u32 = 1;\npub const NAKED: u32 = 2;\n");
}
