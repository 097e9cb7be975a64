//! The lines that docs/troubleshoot.md quotes are in the source: a search of the page for a line
//! of the log finds it.

use std::fs;
use std::path::Path;

use super::{none, sources};

const DOCUMENT: &str = "docs/troubleshoot.md";
/// Behind it, what programs other than ours say.
const OTHERS: [&str; 4] = ["QEMU", "systemctl", "virsh", "kill"];
/// What the system says.
const ERRORS: [&str; 3] =
    ["No such file or directory", "Operation not permitted", "Permission denied"];
/// Fewer letters are in every source.
const LEAST: usize = 8;

/// The source as one text, with literals that go over several lines in one.
fn all_sources() -> String {
    let mut text = String::new();
    for source in sources("src") {
        let mut continued = false;
        for line in source.text.lines() {
            let line = if continued { line.trim_start() } else { line };
            let begun = line.strip_suffix('\\');
            continued = begun.is_some();
            text += begun.unwrap_or(line);
            if !continued {
                text.push('\n');
            }
        }
    }
    text
}

/// What is between backquotes.
fn quotes(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// The parts of a quote that do not vary: numbers, names and what is left out do.
fn fixed_parts(quote: &str) -> Vec<&str> {
    let varies = |c: char| c.is_ascii_digit() || "\"…[]():;".contains(c);
    let parts = quote.split(" N ").flat_map(|part| part.split(varies)).map(str::trim);
    let counts = |part: &&str| part.len() >= LEAST && part.contains(' ');
    parts.filter(counts).filter(|part| !ERRORS.contains(part)).collect()
}

#[test]
fn the_words_of_the_program_are_its_own() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = fs::read_to_string(root.join(DOCUMENT)).expect(DOCUMENT);
    let source = all_sources();
    let mut complaints = Vec::new();
    let mut found = 0;
    for (at, line) in document.lines().enumerate().take_while(|(_, l)| *l != "## What was tried") {
        let Some((seen, _)) = line.split_once(" | ") else { continue };
        let mut others = false;
        for (before, quote) in seen.split('`').step_by(2).zip(quotes(seen)) {
            others |= OTHERS.iter().any(|other| before.contains(other) || quote.starts_with(other));
            let parts = if others { Vec::new() } else { fixed_parts(quote) };
            for part in parts {
                found += 1;
                if !source.contains(part) {
                    complaints.push(format!("{DOCUMENT}:{}: nothing says \"{part}\"", at + 1));
                }
            }
        }
    }
    assert!(found > 20, "only {found} quotes found: the scan is broken");
    none(complaints);
}

#[test]
fn what_varies_is_no_part_of_a_quote() {
    assert_eq!(
        fixed_parts("there are N queue pairs at most, and 10s"),
        ["there are", "queue pairs at most, and"]
    );
    assert_eq!(quotes("`a b`, and `c`"), ["a b", "c"]);
}
