//! The tables of docs/testing.md, "What proves what", against the tests there are: each name is
//! that of a test, and the mark behind it tells which runs have it.

use std::fs;
use std::path::Path;

use super::{Source, is_word, none, sources, words};

const DOCUMENT: &str = "docs/testing.md";
/// The part of it with the tables, between two headings.
const TABLES: [&str; 2] = ["## What proves what", "## How frames are proven"];

/// A test's path, as the runs print it behind the name of its file, and if the quick run lacks it.
struct Test {
    path: String,
    full: bool,
}

/// A name in a table, and how it is marked.
struct Claim<'d> {
    row: usize,
    name: &'d str,
    mark: &'d str,
}

fn tests_of(source: &Source) -> Vec<Test> {
    let stem = source.path.with_extension("");
    let parts = stem.iter().filter_map(|part| part.to_str());
    let module: Vec<&str> = parts.filter(|part| !["main", "mod"].contains(part)).collect();
    let module = module.join("::");
    let inner = source.code.find("mod tests {");
    let mut found = Vec::new();
    for (at, _) in source.code.match_indices("#[test]") {
        let Some(name) = words(&source.code[at..], "fn").next().map(|n| at + n + 3) else {
            continue;
        };
        let full = source.text[at..name].contains("ignore = \"full\"");
        let inside = if inner.is_some_and(|inner| inner < at) { "tests::" } else { "" };
        let mut add = |name: &str| {
            found.push(Test { path: format!("{module}::{inside}{name}"), full });
        };
        if source.code[name..].starts_with('$') {
            // By a macro, each call of which begins with the name.
            source.code.lines().filter_map(first_argument).for_each(&mut add);
        } else {
            let len = source.code[name..].bytes().take_while(|&b| is_word(b)).count();
            add(&source.code[name..name + len]);
        }
    }
    found
}

/// The word that a line begins with, if a comma is behind it.
fn first_argument(line: &str) -> Option<&str> {
    let (word, _) = line.trim_start().split_once(',')?;
    (!word.is_empty() && word.bytes().all(is_word)).then_some(word)
}

/// All names in the tables' last columns.
fn claims(document: &str) -> Vec<Claim<'_>> {
    let from = document.find(TABLES[0]).expect("the tables");
    let to = document.find(TABLES[1]).expect("what follows");
    let before = document[..from].matches('\n').count();
    let mut found = Vec::new();
    for (row, line) in document[from..to].lines().enumerate() {
        let cells: Vec<&str> = line.split(" | ").collect();
        let (true, Some(last)) = (cells.len() > 1 && line.starts_with('|'), cells.last()) else {
            continue;
        };
        let mut rest = *last;
        while let Some((name, behind)) = rest.split_once('`').and_then(|(_, r)| r.split_once('`')) {
            let mark = ["(full)", "(part)"].into_iter().find(|mark| {
                behind.strip_prefix(' ').is_some_and(|behind| behind.starts_with(mark))
            });
            // Scripts and options are no tests.
            if !name.contains('/') && !name.starts_with("--") {
                found.push(Claim { row: before + row + 1, name, mark: mark.unwrap_or("") });
            }
            rest = behind;
        }
    }
    found
}

/// `a::{b,c}` as `a::b` and `a::c`.
fn alternatives(name: &str) -> Vec<String> {
    let Some((head, (list, tail))) =
        name.split_once('{').and_then(|(head, rest)| Some((head, rest.split_once('}')?)))
    else {
        return vec![name.to_owned()];
    };
    list.split(',').map(|one| format!("{head}{one}{tail}")).collect()
}

/// True if `pattern`, in which `*` and `…` stand for anything, is `text`.
fn matches(pattern: &str, text: &str) -> bool {
    let mut rest = pattern.chars();
    match rest.next() {
        None => text.is_empty(),
        Some('*' | '…') => {
            let mut ends = text.char_indices().map(|(at, _)| at).chain([text.len()]);
            ends.any(|at| matches(rest.as_str(), &text[at..]))
        }
        Some(c) => text.strip_prefix(c).is_some_and(|text| matches(rest.as_str(), text)),
    }
}

/// True if the test is one that `pattern` names, or is inside a module that it names.
fn is_named(test: &Test, pattern: &str) -> bool {
    let parts: Vec<&str> = test.path.split("::").collect();
    let ends = |from| (from + 1..=parts.len()).map(move |to| (from, to));
    let mut runs = (0..parts.len()).flat_map(ends);
    runs.any(|(from, to)| matches(pattern, &parts[from..to].join("::")))
}

#[test]
fn each_claim_names_tests_and_the_runs_that_have_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = fs::read_to_string(root.join(DOCUMENT)).expect(DOCUMENT);
    let tests: Vec<Test> =
        sources("src").iter().chain(&sources("tests")).flat_map(tests_of).collect();
    assert!(tests.len() > 900, "only {} tests found: the scan is broken", tests.len());
    let claims = claims(&document);
    assert!(claims.len() > 250, "only {} claims found: the scan is broken", claims.len());
    let mut complaints = Vec::new();
    let (mut row, mut prefix) = (0, "");
    for claim in claims {
        if claim.row != row {
            (row, prefix) = (claim.row, "");
        }
        // What follows a name in the same cell may leave out what the first one began with.
        let spelled = [claim.name.to_owned(), format!("{prefix}::{}", claim.name)];
        let named = |name: &String| -> Vec<&Test> {
            let patterns = alternatives(name);
            tests.iter().filter(|test| patterns.iter().any(|p| is_named(test, p))).collect()
        };
        let [plain, behind] = spelled.each_ref().map(named);
        let found = if prefix.is_empty() || behind.is_empty() { plain } else { behind };
        if let Some((before, _)) = claim.name.rsplit_once("::") {
            prefix = before;
        }
        let full = found.iter().filter(|test| test.full).count();
        let due = match full {
            0 => "",
            n if n == found.len() => "(full)",
            _ => "(part)",
        };
        let at = format!("{DOCUMENT}:{}: `{}`", claim.row, claim.name);
        match found.len() {
            0 => complaints.push(format!("{at} is no test")),
            _ if due != claim.mark => complaints.push(format!("{at} is not marked \"{due}\"")),
            _ => {}
        }
    }
    none(complaints);
}

/// The comparison itself: what it must see, and what it must not.
#[test]
fn names_stand_for_what_they_say() {
    let test = Test { path: "tests::forwarding::model::random_bursts".into(), full: false };
    for name in ["model", "model::random_*", "random_bursts", "random_…", "forwarding::model"] {
        assert!(is_named(&test, name), "{name}");
    }
    for name in ["mode", "model::bursts", "random_", "bursts", "random_*_bursts"] {
        assert!(!is_named(&test, name), "{name}");
    }
    assert_eq!(alternatives("a::{b,c}::d"), ["a::b::d", "a::c::d"]);
    let document = format!(
        "{}\n| claim | test |\n| x `no` | `a::b` (full), `c`, `d/e` (5), `--long` |\n{}",
        TABLES[0], TABLES[1]
    );
    let found = claims(&document);
    let told: Vec<_> = found.iter().map(|c| (c.row, c.name, c.mark)).collect();
    assert_eq!(told, [(3, "a::b", "(full)"), (3, "c", "")]);
}
