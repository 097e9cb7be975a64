//! Words that are gone: from source, tests, scripts and pages; another word says it.

use std::fs;
use std::path::{Path, PathBuf};

use super::none;

/// What is not written any more, and what is instead.
const GONE: &[(&str, &str)] = &[
    ("becomes no port", "is refused"),
    ("health: good", "healthy"),
    ("not in time: the port", "timed out"),
    ("port is going", "removing"),
    ("visitor", "another front-end"),
    ("way-back", "undo"),
    ("wins over the change", "the value that applies"),
    ("workshop", "private directory"),
];
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
    let line = line.to_lowercase();
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

#[test]
fn a_word_is_found_in_any_case_and_in_names() {
    assert_eq!(gone("let dir = Workshop::make();").count(), 1);
    assert_eq!(gone("a workman visits the shop on its way back").count(), 0);
}
