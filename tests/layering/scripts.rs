//! Scripts answer `--help` and ask for the packages that they need, and the pages name scripts,
//! options and files that exist.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use testkit::proc::Dir;

use super::links::{pages, root};
use super::none;

/// The directories whose files the pages name.
const PLACES: [&str; 4] = ["scripts/", "tests/", "src/", "docs/"];
/// A script that only prints its head needs far less.
const HELP_SECONDS: &str = "20";

/// The scripts that a user starts.
fn scripts() -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join("scripts")).expect("scripts");
    let paths = entries.map(|entry| entry.expect("entry").path());
    let mut found: Vec<PathBuf> = paths.filter(|path| path.is_file()).collect();
    found.push(root().join("scripts/fleet/generate"));
    assert!(found.len() > 10, "only {} scripts", found.len());
    found
}

/// The comment that a script begins with.
fn head(script: &Path) -> String {
    let text = fs::read_to_string(script).expect("UTF-8");
    let lines = text.lines().skip(1).map_while(|line| line.strip_prefix('#'));
    lines.map(|line| format!("{}\n", line.strip_prefix(' ').unwrap_or(line))).collect()
}

#[test]
fn each_script_answers_help() {
    let mut complaints = Vec::new();
    for script in scripts() {
        let name = script.strip_prefix(root()).expect("below the root").display().to_string();
        let mut command = Command::new("timeout");
        command.arg(HELP_SECONDS).arg(&script).arg("--help").stdin(Stdio::null());
        let output = command.current_dir("/").output().expect("timeout");
        let said = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() || !output.stderr.is_empty() || said != head(&script) {
            complaints.push(format!("{name} --help does not print the head: {output:?}"));
        }
        if !said.lines().any(|line| line.starts_with(&format!("usage: {name}"))) {
            complaints.push(format!("{name} --help has no usage"));
        }
    }
    none(complaints);
}

/// The path that a text begins with, if it is a path and no pattern.
fn path(text: &str) -> Option<&str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_./-".contains(c);
    let len = text.find(|c| !is_part(c)).unwrap_or(text.len());
    let path = text[..len].trim_end_matches(['.', '/', '-']);
    let is_name = |part: &str| part.len() > 1 && part.bytes().all(|b| b.is_ascii_uppercase());
    let is_pattern = text[len..].starts_with(['*', '{', '…', '<'])
        || path.split(['/', '.']).any(is_name) && !path.ends_with(".md");
    (!is_pattern).then_some(path)
}

/// The files that a line names, each with the rest of the line.
fn named(line: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    for place in PLACES {
        for (at, _) in line.match_indices(place) {
            let before = line[..at].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || "_./-".contains(c)) {
                continue;
            }
            found.extend(path(&line[at..]).map(|path| (path, &line[at + path.len()..])));
        }
    }
    found
}

/// The options in the rest of a command.
fn options(rest: &str) -> Vec<&str> {
    let command = rest.split(['`', '#', '|', ';', '&']).next().unwrap_or_default();
    let words = command.split_whitespace().map(|word| word.trim_matches(['[', ']', ',', '.', ')']));
    let options = words.take_while(|word| *word != "--").filter(|word| word.starts_with("--"));
    options.map(|word| word.split('=').next().unwrap_or(word)).collect()
}

#[test]
fn pages_name_scripts_options_and_files_that_exist() {
    let (scripts, mut complaints, mut found, mut given) = (scripts(), Vec::new(), 0, 0);
    for page in pages() {
        let text = fs::read_to_string(&page).expect("UTF-8");
        let page = page.strip_prefix(root()).expect("below the root").display();
        for (n, line) in text.lines().enumerate() {
            for (path, rest) in named(line) {
                found += 1;
                let file = root().join(path);
                if !file.exists() {
                    complaints.push(format!("{page}:{}: there is no {path}", n + 1));
                }
                let Some(script) = scripts.iter().find(|script| **script == file) else { continue };
                for option in options(rest) {
                    given += 1;
                    if !head(script).contains(option) {
                        complaints.push(format!("{page}:{}: {path} has no {option}", n + 1));
                    }
                }
            }
        }
    }
    assert!(found > 50 && given > 10, "only {found} files and {given} options: the scan is broken");
    none(complaints);
}

/// The scan itself: what it must see, and what it must not.
#[test]
fn the_scan_sees_commands_and_no_patterns() {
    let line =
        "`scripts/demo --keep`, tests/PROGRAM/FILE.rs, ../src/x.rs, `docs/*.md`, src/base/x.rs.";
    let paths: Vec<&str> = named(line).into_iter().map(|(path, _)| path).collect();
    assert_eq!(paths, ["scripts/demo", "src/base/x.rs"]);
    assert_eq!(options(" --keep [--seed=N] x  # and --none"), ["--keep", "--seed"]);
    assert_eq!(options("` and --none"), [""; 0]);
}

/// What `scripts/package` says as it refuses to run for an ordinary user. Each of the programs is a
/// line of shell.
fn refusal(arguments: &[&str], programs: &[(&str, &str)]) -> String {
    let stubs = Dir::new();
    for (name, text) in programs.iter().chain(&[("id", "echo 1000")]) {
        let file = stubs.path().join(name);
        fs::write(&file, format!("#!/bin/sh\n{text}\n")).expect("a stub");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("its mode");
    }
    let mut command = Command::new("timeout");
    command.arg(HELP_SECONDS).arg(root().join("scripts/package")).args(arguments);
    let path = format!("{}:/usr/bin:/bin", stubs.path().display());
    command.env("PATH", path).env("CARGO_HOME", stubs.path());
    let output = command.stdin(Stdio::null()).output().expect("timeout");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    said
}

/// The packages that `scripts/package` asks for, on a system that has Rust alone.
fn asked_for(arguments: &[&str]) -> Vec<String> {
    let new = [("cargo", "echo cargo 9.0.0"), ("rustc", "echo rustc 9.0.0")];
    let said = refusal(arguments, &[&[("dpkg-query", "exit 1")], &new[..]].concat());
    let line = said.lines().find_map(|line| line.split_once("apt-get install "));
    let (_, packages) = line.unwrap_or_else(|| panic!("no line that installs: {said}"));
    packages.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn a_package_without_checks_needs_no_checker() {
    let has = |arguments: &[&str]| {
        let asked = asked_for(arguments);
        ["gcc", "dpkg-dev", "lintian", "checkpolicy", "umoci"]
            .map(|name| asked.iter().any(|package| package == name))
    };
    assert_eq!(has(&["deb"]), [true, true, false, false, false]);
    assert_eq!(has(&["--check", "deb"]), [true, true, true, true, false]);
    assert_eq!(has(&["oci"]), [true, false, false, false, true]);
    assert_eq!(has(&[]), [true, true, false, false, true]);
}

/// A system of debootstrap has no security updates, without which Debian's Rust is too old.
#[test]
fn a_system_with_old_packages_is_told_where_newer_ones_are() {
    let old = [
        ("dpkg-query", "echo installed"),
        ("cargo", "echo cargo 1.65.0"),
        ("apt-cache", "echo '  Candidate: 1.85.0+dfsg3-1~deb12u3'"),
    ];
    let said = refusal(&["deb"], &old);
    assert!(said.contains("bookworm-security main' >/etc/apt/sources.list.d/"), "{said}");
    assert!(said.contains("apt-get update && apt-get install "), "{said}");
    assert!(said.contains("https://rustup.rs"), "{said}");
}
