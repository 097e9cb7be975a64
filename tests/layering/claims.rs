//! What proves what: docs/testing.md names each directory of tests with its claim; `UPDATE_DOCS=1
//! cargo test --test layering` writes that. Each page that names a test names one that exists; each
//! promise of docs/threat-model.md names one at least.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::{Source, is_word, none, sources, words};

const PAGE: &str = "docs/testing.md";
/// What stands behind this line of the page is made here.
const MARK: &str = "<!-- UPDATE_DOCS: the tests -->\n";
/// The last column of tables whose rows each name a test.
const HELD_BY: &str = " | held by";
/// Scripts that test what is installed; the page names them too.
const SCRIPTS: [&str; 7] = [
    "demo",
    "first-hour",
    "hosts-demo",
    "libvirt-demo",
    "network-demo",
    "package-demo",
    "service-demo",
];

/// Path of the module that a file is.
fn module(source: &Source) -> String {
    let stem = source.path.with_extension("");
    let parts = stem.iter().filter_map(|part| part.to_str());
    let parts: Vec<&str> = parts.filter(|part| !["main", "mod"].contains(part)).collect();
    parts.join("::")
}

/// Paths of a file's tests, as the runs print them behind the name of its program.
fn tests_of(source: &Source) -> Vec<String> {
    let module = module(source);
    let inner = source.code.find("mod tests {");
    let mut found = Vec::new();
    for (at, _) in source.code.match_indices("#[test]") {
        let Some(name) = words(&source.code[at..], "fn").next().map(|n| at + n + 3) else {
            continue;
        };
        let inside = if inner.is_some_and(|inner| inner < at) { "tests::" } else { "" };
        let mut add = |name: &str| found.push(format!("{module}::{inside}{name}"));
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

/// The claim that a file's head begins with: its first sentence, up to a colon.
fn claim(text: &str) -> String {
    let lines = text.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim);
    let lines: Vec<&str> = lines.take_while(|line| !line.is_empty()).collect();
    let paragraph = lines.join(" ") + " ";
    let ends = [". ", ": ", "; "].into_iter().filter_map(|end| paragraph.find(end));
    let claim = &paragraph[..ends.min().unwrap_or(paragraph.len())];
    claim.trim().replace("[`", "`").replace("`]", "`")
}

/// The directory below `tests` that a file stands in, or the file itself.
fn place(source: &Source) -> PathBuf {
    source.path.iter().take(2).collect()
}

/// The part of the page that is made of the tests: each directory, and what its `main.rs` begins
/// with.
fn listed(tests: &[Source]) -> String {
    let mut found: BTreeMap<PathBuf, String> = BTreeMap::new();
    for source in tests {
        let place = place(source);
        let is_target = source.path.starts_with("tests/fuzz/targets")
            && source.text.contains("pub fn run(data: &[u8])");
        if is_target || !tests_of(source).is_empty() {
            found.entry(place).or_default();
        }
    }
    for source in tests {
        let is_head = source.path.ends_with("main.rs") || source.path == place(source);
        if let Some(about) = found.get_mut(&place(source)).filter(|_| is_head) {
            *about = format!(": {}", claim(&source.text));
        }
    }
    let one = |(place, about): (&PathBuf, &String)| {
        let place = place.display();
        format!("- [`{place}`](../{place}){about}\n")
    };
    let scripts = SCRIPTS.map(|name| format!("[`{name}`](../scripts/{name})"));
    let scripts = format!(
        "- `scripts`: What is installed, each in a machine of its own: {}\n",
        scripts.join(",\n  ")
    );
    format!("\n{scripts}") + &found.iter().map(one).collect::<String>()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_page_of_tests_says_what_the_tests_say() {
    let made = listed(&sources("tests"));
    assert!(made.matches("\n- [`").count() > 10, "the scan is broken:\n{made}");
    let path = root().join(PAGE);
    let page = fs::read_to_string(&path).expect(PAGE);
    let (written, old) = page.split_once(MARK).expect("the mark");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        return fs::write(&path, format!("{written}{MARK}{made}")).expect(PAGE);
    }
    let missing: Vec<&str> = made.lines().filter(|line| !old.contains(line)).collect();
    let stale: Vec<&str> = old.lines().filter(|line| !made.contains(line)).collect();
    assert!(
        made == old,
        "{PAGE}: UPDATE_DOCS=1 cargo test --test layering, or paste\n{}\nfor\n{}",
        missing.join("\n"),
        stale.join("\n")
    );
}

/// A name on a page.
struct Name<'d> {
    line: usize,
    text: &'d str,
    /// It stands for what a row's promise is held by.
    holds: bool,
}

/// The names in backquotes on a page that are paths of modules, and those in last columns of tables
/// of promises; and the lines of such tables that have none.
fn names(page: &str) -> (Vec<Name<'_>>, Vec<usize>) {
    let (mut found, mut bare, mut held) = (Vec::new(), Vec::new(), false);
    let written = page.split_once(MARK).map_or(page, |(written, _)| written);
    for (line, text) in written.lines().enumerate() {
        let is_head = text.ends_with(HELD_BY);
        held = is_head || held && text.contains('|');
        let is_row = held && !is_head && !text.starts_with("---|");
        let from = text.rfind(" |").unwrap_or(0);
        let mut at = 0;
        let mut holds_any = false;
        for (n, part) in text.split('`').enumerate() {
            let holds = is_row && at >= from;
            let is_path = part.contains("::") && !part.contains(|c: char| " ()<[=".contains(c));
            let is_path = is_path && !part.contains(|c: char| c.is_ascii_uppercase());
            if n % 2 == 1 && (holds || is_path) {
                found.push(Name { line: line + 1, text: part, holds });
                holds_any |= holds;
            }
            at += part.len() + 1;
        }
        if is_row && !holds_any {
            bare.push(line + 1);
        }
    }
    (found, bare)
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

/// True if a path is one that `pattern` names, or is inside a module that it names.
fn is_named(path: &str, pattern: &str) -> bool {
    let parts: Vec<&str> = path.split("::").collect();
    let ends = |from| (from + 1..=parts.len()).map(move |to| (from, to));
    let mut runs = (0..parts.len()).flat_map(ends);
    runs.any(|(from, to)| matches(pattern, &parts[from..to].join("::")))
}

/// True if `name` is a function of one of these files.
fn is_function(src: &[Source], name: &str) -> bool {
    let Some((before, last)) = name.rsplit_once("::") else { return false };
    let here = |source: &&Source| module(source).ends_with(before.trim_start_matches("crate::"));
    src.iter().filter(here).any(|source| source.code.contains(&format!("fn {last}(")))
}

#[test]
fn pages_name_tests_that_exist() {
    let (src, tests) = (sources("src"), sources("tests"));
    let known: Vec<String> = src.iter().chain(&tests).flat_map(tests_of).collect();
    assert!(known.len() > 900, "only {} tests found: the scan is broken", known.len());
    let modules: Vec<String> = src.iter().map(module).collect();
    let (mut complaints, mut held) = (Vec::new(), 0);
    let pages = fs::read_dir(root().join("docs")).expect("docs");
    let pages = pages.map(|entry| entry.expect("entry").path());
    let pages: Vec<PathBuf> = pages.filter(|p| p.extension().is_some_and(|e| e == "md")).collect();
    for path in pages {
        let page = fs::read_to_string(&path).expect("UTF-8");
        let (names, bare) = names(&page);
        let path = path.strip_prefix(root()).expect("below the root").display();
        complaints.extend(bare.iter().map(|line| format!("{path}:{line}: held by no test")));
        for Name { line, text, holds } in names {
            held += usize::from(holds);
            let is_test = |name: &String| known.iter().any(|test| is_named(test, name));
            let is_module = |name: &String| {
                let name = name.trim_start_matches("crate::");
                modules.iter().any(|module| is_named(module, name)) || is_function(&src, name)
            };
            let is_script = holds && text.contains('/') && root().join(text).is_file();
            let is_one = |name: &String| is_test(name) || is_script || !holds && is_module(name);
            if !alternatives(text).iter().all(is_one) {
                complaints.push(format!("{path}:{line}: `{text}` is no test"));
            }
        }
    }
    assert!(held > 100, "only {held} names of tests found: the scan is broken");
    none(complaints);
}

/// The comparison itself: what it must see, and what it must not.
#[test]
fn names_stand_for_what_they_say() {
    let path = "tests::forwarding::model::random_bursts";
    for name in ["model", "model::random_*", "random_bursts", "random_…", "forwarding::model"] {
        assert!(is_named(path, name), "{name}");
    }
    for name in ["mode", "model::bursts", "random_", "bursts", "random_*_bursts"] {
        assert!(!is_named(path, name), "{name}");
    }
    assert_eq!(alternatives("a::{b,c}::d"), ["a::b::d", "a::c::d"]);
    let page = "`x::y`, `Z::New`\nattack | held by\n---|---\n\
                `no` | `a::b` (full), `c`\n`q::r` |\nz | s\n\n`no` | `d`\n";
    let (found, bare) = names(page);
    let told: Vec<_> = found.iter().map(|name| (name.line, name.text, name.holds)).collect();
    let expected = [(1, "x::y", false), (4, "a::b", true), (4, "c", true), (5, "q::r", false)];
    assert_eq!((told, bare), (expected.to_vec(), vec![5, 6]));
}

/// What the page has of a directory: what its `main.rs` begins with, if any file has tests.
#[test]
fn a_directory_is_listed_with_its_claim() {
    let source = |path: &str, text: &str| Source {
        path: path.into(),
        code: super::code_only(text),
        text: text.into(),
    };
    let test = "//! Of one.\n\n#[test]\nfn one() {}\n";
    let tests = [
        source("tests/p/main.rs", "//! All\n//! of [`Rings`]: not\n//! this.\n\nmod a;\n"),
        source("tests/p/a/b.rs", test),
        source("tests/kit/src/lib.rs", "//! No test.\n"),
        source("tests/z.rs", test),
    ];
    let made = listed(&tests);
    let expected = "\n- [`tests/p`](../tests/p): All of `Rings`\n\
                    - [`tests/z.rs`](../tests/z.rs): Of one\n";
    assert!(made.ends_with(expected), "{made}");
    assert_eq!(claim("//! One. Two.\n//!\n//! Three.\n"), "One");
}
