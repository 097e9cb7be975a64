//! Words that are gone: from source, tests, scripts and pages; another word says it.

use std::fs;
use std::path::{Path, PathBuf};

use super::{links, none};

/// What is not written any more, and what is instead.
const GONE: &[(&str, &str)] = &[
    ("becomes no port", "is refused"),
    ("by whom", "the origin, the caller"),
    ("cannot be told of", "cannot watch"),
    ("goes there alone", "is sent there alone"),
    ("health: good", "healthy"),
    ("lives on", "is on"),
    ("nobody can connect", "no front-end can connect"),
    ("nobody is connected", "no process is connected"),
    ("not in time: the port", "timed out"),
    ("port is going", "removing"),
    ("removal goes on", "the removal continues"),
    ("tells more", "see"),
    ("tells why", "shows why"),
    ("turn up", "appear"),
    ("turned up", "appeared"),
    ("turns up", "appears"),
    ("visitor", "another front-end"),
    ("way-back", "undo"),
    ("who is told", "the reader"),
    ("wins over", "overrides"),
    ("workshop", "private directory"),
    // Gone from explanations, and from heads of modules and tests.
    ("are news", "are new"),
    ("as long as they like", "without a limit"),
    ("docs/measured", "docs/performance"),
    ("has come to", "is at"),
    ("hears no", "gets no"),
    ("in the hands of", "of"),
    ("mean harm", "hostile"),
    ("own accord", "by itself"),
    ("own affair", "is allowed"),
    ("tells the same story", "does the same"),
];
/// Pages that name instead the actor, or the action.
const PLAIN: [&str; 21] = [
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "docs/architecture.md",
    "docs/attach.md",
    "docs/configuration.md",
    "docs/control.md",
    "docs/counters.md",
    "docs/doctor.md",
    "docs/events.md",
    "docs/first-hour.md",
    "docs/glossary.md",
    "docs/limits.md",
    "docs/network.md",
    "docs/tenants.md",
    "docs/operate.md",
    "docs/performance.md",
    "docs/several-hosts.md",
    "docs/testing.md",
    "docs/threat-model.md",
    "docs/troubleshoot.md",
];
const VAGUE: [&str; 9] =
    ["asks for", "everybody", "nobody", "somebody", "tell ", "tells", "told", "who is ", "whoever"];
/// Where they are looked for.
const PLACES: [&str; 7] =
    ["src", "tests", "scripts", "docs", "README.md", "CHANGELOG.md", "CONTRIBUTING.md"];

/// All text files of these places but this one and inputs of fuzzing.
fn texts() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut paths: Vec<PathBuf> = PLACES.iter().map(|place| root.join(place)).collect();
    let mut found = Vec::new();
    while let Some(path) = paths.pop() {
        if path.is_dir() && !path.ends_with("corpus") && !path.ends_with("target") {
            let inside = fs::read_dir(&path).expect("directory");
            paths.extend(inside.map(|entry| entry.expect("entry").path()));
        } else if path.is_file() && !path.ends_with(file!()) {
            let text = String::from_utf8_lossy(&fs::read(&path).expect("a file")).into_owned();
            found.push((path.strip_prefix(root).expect("below the root").to_owned(), text));
        }
    }
    assert!(found.len() > 500, "only {} files", found.len());
    found
}

/// The words of the list that a line has.
fn gone(line: &str) -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    // A trait of serde has a name that would be found.
    let line = line.replace("Visitor", "").to_lowercase();
    GONE.iter().filter(move |(word, _)| line.contains(word))
}

#[test]
fn words_that_are_gone_stay_gone() {
    let mut complaints = Vec::new();
    for (path, text) in texts() {
        for (n, line) in text.lines().enumerate() {
            for (word, instead) in gone(line) {
                let at = format!("{}:{}", path.display(), n + 1);
                complaints.push(format!("{at}: \"{word}\": write {instead}"));
            }
        }
    }
    none(complaints);
}

/// The words of a line that are not names of tests or the like.
fn prose(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join(" ").to_lowercase()
}

#[test]
fn pages_name_the_actor() {
    let mut complaints = Vec::new();
    for page in PLAIN {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
        let text = fs::read_to_string(path).expect(page);
        for (n, line) in links::without_code(&text).into_iter().enumerate() {
            let line = prose(line);
            let found = VAGUE.iter().filter(|word| line.contains(**word));
            complaints.extend(found.map(|word| format!("{page}:{}: \"{word}\"", n + 1)));
        }
    }
    none(complaints);
    assert_eq!(prose("`holds_up_nobody` and Nobody").trim(), "and nobody");
}

#[test]
fn a_word_is_found_in_any_case_and_in_names() {
    assert_eq!(gone("let dir = Workshop::make();").count(), 1);
    assert_eq!(gone("a workman visits the shop on its way back").count(), 0);
}
