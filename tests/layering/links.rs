//! Links of the pages lead to files that exist, and to headings that they have.

use std::fs;
use std::path::{Path, PathBuf};

use super::none;

/// The directory of the manifest.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The pages: those of docs, and those beside the manifest.
pub fn pages() -> Vec<PathBuf> {
    let folders = [root().to_owned(), root().join("docs")];
    let files = folders.iter().flat_map(|folder| fs::read_dir(folder).expect("a folder"));
    let files = files.map(|entry| entry.expect("entry").path());
    files.filter(|path| path.extension().is_some_and(|end| end == "md")).collect()
}

/// The text without blocks of code, whose lines become empty.
fn without_code(page: &str) -> Vec<&str> {
    let mut inside = false;
    let lines = page.lines().map(|line| {
        let fence = line.trim_start().starts_with("```");
        inside ^= fence;
        if inside || fence { "" } else { line }
    });
    lines.collect()
}

/// The anchor of a heading, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let is_kept = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
    heading.to_lowercase().chars().filter(is_kept).collect::<String>().replace(' ', "-")
}

/// The anchors of a page.
fn anchors(page: &str) -> Vec<String> {
    let headings = without_code(page).into_iter().filter(|line| line.starts_with('#'));
    headings.map(|line| anchor(line.trim_start_matches('#').trim())).collect()
}

/// The targets of the links in a line.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

#[test]
fn links_lead_to_what_exists() {
    let (mut complaints, mut found) = (Vec::new(), 0);
    for path in pages() {
        let page = fs::read_to_string(&path).expect("UTF-8");
        let shown = path.strip_prefix(root()).expect("below the root").display();
        for (n, line) in without_code(&page).into_iter().enumerate() {
            for target in targets(line).filter(|target| !target.contains("://")) {
                found += 1;
                let (file, heading) = target.split_once('#').unwrap_or((target, ""));
                let to = match file {
                    "" => path.clone(),
                    file => path.parent().expect("a folder").join(file),
                };
                let is_there = to.exists();
                let has = |heading: &str| {
                    let page = fs::read_to_string(&to).unwrap_or_default();
                    anchors(&page).iter().any(|one| one == heading)
                };
                if !is_there || !heading.is_empty() && !has(heading) {
                    complaints.push(format!("{shown}:{}: {target} leads nowhere", n + 1));
                }
            }
        }
    }
    assert!(found > 200, "only {found} links found: the scan is broken");
    none(complaints);
}

#[test]
fn anchors_are_those_of_headings() {
    let page = "# A guest's `x`, and *y*\n```\n# no heading\n```\n## Two words\n";
    assert_eq!(anchors(page), ["a-guests-x-and-y", "two-words"]);
    let line = "see [a](b.md#c), [d](e) and [f][g]";
    assert_eq!(targets(line).collect::<Vec<_>>(), ["b.md#c", "e"]);
}
