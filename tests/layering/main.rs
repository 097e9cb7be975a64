//! The shape of the source, held by a test: a module uses what stands below it and never above,
//! `unsafe` stays in the rooms made for it, and files and lines keep their size.
//! The files beside this one check links, quotes, commands and paths of the pages.
//!
//! A failure names file and line. The order of crates stands in their Cargo.toml, the order of the
//! modules of a crate in [`LAYERS`].

mod circles;
mod claims;
mod links;
mod quotes;
mod scripts;

use std::fs;
use std::path::{Path, PathBuf};

/// Modules of a crate from top to bottom, each with those of the same crate that it may use. Which
/// crates a crate uses stands in its Cargo.toml.
const LAYERS: &[(&str, &[&str])] = &[
    ("daemon/control", &["daemon/metrics"]),
    ("daemon/metrics", &[]),
    ("api/wire", &["api/diagnosis", "api/config"]),
    ("api/diagnosis", &[]),
    ("api/config", &[]),
    (
        "datapath/vduse",
        &["datapath/vhost_user", "datapath/port", "datapath/memory", "datapath/events"],
    ),
    (
        "datapath/vhost_user",
        &[
            "datapath/worker",
            "datapath/pipeline",
            "datapath/port",
            "datapath/ring",
            "datapath/memory",
            "datapath/events",
            "datapath/guard",
        ],
    ),
    (
        "datapath/worker",
        &[
            "datapath/pipeline",
            "datapath/stalls",
            "datapath/port",
            "datapath/ring",
            "datapath/guard",
        ],
    ),
    (
        "datapath/pipeline",
        &[
            "datapath/stalls",
            "datapath/port",
            "datapath/ring",
            "datapath/capture",
            "datapath/events",
            "datapath/guard",
        ],
    ),
    ("datapath/stalls", &["datapath/port", "datapath/guard"]),
    ("datapath/port", &["datapath/ring", "datapath/capture", "datapath/events", "datapath/guard"]),
    ("datapath/ring", &["datapath/memory", "datapath/guard"]),
    ("datapath/memory", &["datapath/guard"]),
    ("datapath/capture", &[]),
    ("datapath/events", &["datapath/guard"]),
    ("datapath/guard", &[]),
    ("base/frame", &["base/limits"]),
    ("base/stats", &["base/words"]),
    ("base/budget", &[]),
    ("base/limits", &[]),
    ("base/words", &[]),
];

/// Modules that only compute: no system, no clock, no log. Time is an argument; what is done under
/// the lock of a receive ring reads the cycle counter.
const PURE: &[&str] = &["api/diagnosis", "switch/", "base/", "datapath/ring/"];
const IMPURE: &[&str] = &[
    "log::",
    "libc::",
    "rustix::",
    "vmm_sys_util::",
    "std::io",
    "std::fs",
    "std::net",
    "std::os",
    "std::env",
    "std::process",
    "sys::usage",
    "Instant::now",
    "SystemTime",
    "println!",
];

/// Where `unsafe` may stand: paths below `src` begin so. With what for; docs/architecture.md has
/// the rules that every block rests on.
const UNSAFE: &[&str] = &[
    "sys/affinity.rs",            // sets of CPUs of any size
    "sys/clock.rs",               // the cycle counter
    "sys/descriptor.rs",          // taking over a number
    "sys/eventfd.rs",             // `poll`, `preadv2` on shared descriptors
    "sys/frame_io.rs",            // pieces of guest memory
    "sys/inherited.rs",           // a number that may not be open
    "sys/pages.rs",               // mappings
    "sys/poll.rs",                // `ppoll`
    "sys/prefetch.rs",            // an instruction
    "sys/sandbox/each_thread.rs", // a signal whose handler confines each thread
    "sys/sandbox/trap.rs",        // the handler of SIGSYS
    "sys/scm.rs",                 // `recvmsg` with descriptors
    "sys/signals.rs",             // a timer that sends one thread a signal
    "sys/tap",                    // ioctls and frames of a TAP
    "sys/testns.rs",              // namespaces of unit tests
    "sys/unix_socket.rs",         // socket options
    "sys/vduse.rs",               // ioctls of a VDUSE device
    "sys/xdp",                    // memory and rings that are shared with the kernel, bpf(2)
    "datapath/guard/eventfd",     // the signal that frees a blocked writer
    "datapath/guard/sigbus",      // the handler of SIGBUS, its table
    "datapath/memory/",           // `Send`, `Sync` of tables; marks in the log
    "datapath/ring/",             // ring fields, payload
    "datapath/port/device",       // frames of a TAP in staging and buffers
];
/// A `SAFETY` comment stands at most so many lines before its block.
const SAFETY_LINES: usize = 8;

const MAX_COLUMNS: usize = 100;
const MAX_FILE_LINES: usize = 600;

/// A source file, as it is and without its comments and literals.
struct Source {
    /// Relative to the crate's root.
    path: PathBuf,
    text: String,
    code: String,
}

impl Source {
    /// `file:line` of a byte of the text.
    fn at(&self, offset: usize) -> String {
        let line = self.text[..offset].matches('\n').count() + 1;
        format!("{}:{line}", self.path.display())
    }

    /// Path below `src`, if it is there.
    fn below_src(&self) -> Option<&Path> {
        self.path.strip_prefix("src").ok()
    }

    /// The crate and the module of the crate that the file belongs to: `datapath/port`.
    fn module(&self) -> Option<String> {
        let mut parts = self.below_src()?.iter().map(|part| part.to_str());
        let (member, module) = (parts.next()??, parts.next()??);
        Some(format!("{member}/{}", module.trim_end_matches(".rs")))
    }

    /// True for an example, and for a file that only tests are made of: they may use anything
    /// below their module.
    fn is_test(&self) -> bool {
        let name =
            |part: &std::ffi::OsStr| part == "tests" || part == "tests.rs" || part == "examples";
        self.path.iter().skip(1).any(name)
    }
}

/// All Rust files under a directory of the crate.
fn sources(dir: &str) -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut dirs, mut found) = (vec![root.join(dir)], Vec::new());
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).expect("directory") {
            let path = entry.expect("entry").path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = fs::read_to_string(&path).expect("UTF-8");
                let path = path.strip_prefix(root).expect("below the root").to_owned();
                found.push(Source { code: code_only(&text), path, text });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(found.len() > 10, "{dir}: only {} files", found.len());
    found
}

/// `text` with comments and the insides of literals blanked; every byte keeps its place.
fn code_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = match literal_end(bytes, at) {
            Some(end) => end,
            None => {
                at += 1;
                continue;
            }
        };
        for byte in &mut out[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end;
    }
    String::from_utf8(out).expect("whole literals were blanked")
}

/// Where the comment or literal that begins at `at` ends; none if it is neither.
fn literal_end(bytes: &[u8], at: usize) -> Option<usize> {
    let rest = &bytes[at..];
    let behind_word = at > 0 && is_word(bytes[at - 1]);
    let find = |from: usize, end: &[u8]| {
        let found = rest[from..].windows(end.len()).position(|w| w == end);
        at + found.map_or(rest.len(), |n| from + n + end.len())
    };
    match rest {
        [b'/', b'/', ..] => Some(find(2, b"\n") - 1),
        [b'/', b'*', ..] => Some(find(2, b"*/")),
        [b'r', b'"' | b'#', ..] if !behind_word => {
            let hashes = rest[1..].iter().take_while(|b| **b == b'#').count();
            let end = [&b"\""[..], &b"#".repeat(hashes)].concat();
            // `r#name` is an identifier.
            (rest.get(1 + hashes) == Some(&b'"')).then(|| find(2 + hashes, &end))
        }
        [b'"', ..] => Some(at + quoted(rest, b'"')),
        // A lifetime has no closing quote.
        [b'\'', b'\\', ..] => Some(at + quoted(rest, b'\'')),
        [b'\'', ..] => {
            let tail = std::str::from_utf8(&rest[1..rest.len().min(8)])
                .unwrap_or_else(|e| std::str::from_utf8(&rest[1..1 + e.valid_up_to()]).unwrap());
            let c = tail.chars().next()?;
            (rest.get(1 + c.len_utf8()) == Some(&b'\'')).then(|| at + 2 + c.len_utf8())
        }
        _ => None,
    }
}

/// Length of a quoted literal with escapes.
fn quoted(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            b if b == quote => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Every place where `word` stands by itself.
fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let bytes = code.as_bytes();
    code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let before = at.checked_sub(1).is_none_or(|i| !is_word(bytes[i]));
        before && bytes.get(at + word.len()).is_none_or(|&b| !is_word(b))
    })
}

/// The names that follow a path's prefix: one, or those at the first level of a group.
fn names(code: &str, from: usize) -> Vec<(usize, &str)> {
    let word_at = |at: usize| {
        let len = code[at..].bytes().take_while(|&b| is_word(b)).count();
        (at, &code[at..at + len])
    };
    if !code[from..].starts_with('{') {
        return vec![word_at(from)];
    }
    let (mut depth, mut found, mut fresh) = (0, Vec::new(), false);
    for (at, byte) in code.bytes().enumerate().skip(from) {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            b if is_word(b) && fresh && depth == 1 => found.push(word_at(at)),
            _ => {}
        }
        fresh = matches!(byte, b'{' | b',') || (fresh && byte.is_ascii_whitespace());
        if depth == 0 {
            break;
        }
    }
    found
}

/// All modules of its own crate that a file names, as in [`LAYERS`], with the place.
fn uses(source: &Source) -> Vec<(usize, &'static str)> {
    let code = &source.code;
    let mut found = Vec::new();
    for at in words(code, "crate") {
        let end = at + "crate".len();
        if code[end..].starts_with("::") {
            found.extend(names(code, end + 2));
        }
    }
    // `super::super::name` may reach the root as well; tests inside a file are one level deeper.
    let below = source.below_src().map_or(0, |p| p.components().count() - 1);
    let depth = if source.path.ends_with("mod.rs") { below - 1 } else { below };
    for (at, _) in code.match_indices("super::") {
        let chain = code[at..].split("::").take_while(|part| *part == "super").count();
        let starts = !code[..at].ends_with("::");
        if starts && depth > 0 && chain >= depth {
            found.extend(names(code, at + chain * "super::".len()));
        }
    }
    let own = source.module().unwrap_or_default();
    let member = own.split_once('/').map_or("", |(member, _)| member);
    let listed = |name: &str| {
        let mut modules = LAYERS.iter().map(|(module, _)| *module);
        modules.find(|module| module.split_once('/') == Some((member, name)))
    };
    found.into_iter().filter_map(|(at, name)| Some((at, listed(name)?))).collect()
}

fn none(complaints: Vec<String>) {
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn the_table_runs_downwards_and_is_whole() {
    for (i, (module, allowed)) in LAYERS.iter().enumerate() {
        for name in *allowed {
            let below = LAYERS[i + 1..].iter().any(|(module, _)| module == name);
            assert!(below, "{name} does not stand below {module}");
        }
    }
    for source in sources("src").iter().filter(|s| !s.path.ends_with("lib.rs")) {
        let Some(module) = source.module() else { continue };
        let in_layers = ["api/", "base/", "datapath/"].iter().any(|m| module.starts_with(m));
        let is_listed = LAYERS.iter().any(|(listed, _)| *listed == module);
        assert!(is_listed || !in_layers, "{}: not listed", source.at(0));
    }
}

#[test]
fn modules_use_only_what_stands_below() {
    let (mut complaints, mut seen) = (Vec::new(), 0);
    for source in sources("src") {
        let Some(module) = source.module() else { continue };
        let Some(place) = LAYERS.iter().position(|(m, _)| *m == module) else { continue };
        for (at, name) in uses(&source) {
            seen += 1;
            let below = LAYERS[place + 1..].iter().any(|(m, _)| *m == name);
            let listed = LAYERS[place].1.contains(&name);
            if name != module && !(listed || source.is_test() && below) {
                complaints.push(format!("{}: {module} may not use {name}", source.at(at)));
            }
        }
    }
    assert!(seen > 100, "only {seen} uses found: the scan is broken");
    none(complaints);
}

#[test]
fn decisions_touch_neither_system_nor_clock_nor_log() {
    let mut complaints = Vec::new();
    for source in sources("src") {
        let Some(path) = source.below_src().and_then(Path::to_str) else { continue };
        let Some(module) = PURE.iter().find(|room| path.starts_with(**room)) else { continue };
        if source.is_test() {
            continue;
        }
        for word in IMPURE {
            for (at, _) in source.code.match_indices(word) {
                if at.checked_sub(1).is_none_or(|i| !is_word(source.code.as_bytes()[i])) {
                    complaints.push(format!("{}: {module} may not use {word}", source.at(at)));
                }
            }
        }
    }
    none(complaints);
}

#[test]
fn unsafe_stays_in_its_rooms() {
    let (mut complaints, mut used) = (Vec::new(), Vec::new());
    for source in sources("src") {
        let path = source.below_src().expect("below src").to_str().expect("UTF-8");
        let room = UNSAFE.iter().find(|room| path.starts_with(**room));
        for at in words(&source.code, "unsafe") {
            match room {
                Some(room) => used.push(*room),
                None => complaints.push(format!("{}: unsafe", source.at(at))),
            }
        }
    }
    let unused = UNSAFE.iter().filter(|room| !used.contains(room));
    complaints.extend(unused.map(|room| format!("{room}: no unsafe")));
    none(complaints);
}

#[test]
fn each_unsafe_block_says_why_it_is_sound() {
    let (mut complaints, mut blocks) = (Vec::new(), 0);
    for source in sources("src").iter().chain(&sources("tests")) {
        let lines: Vec<&str> = source.text.lines().collect();
        for at in words(&source.code, "unsafe") {
            let next = source.code[at + "unsafe".len()..].trim_start();
            if !(next.starts_with('{') || next.starts_with("impl")) {
                continue;
            }
            blocks += 1;
            let line = source.text[..at].matches('\n').count();
            let before = &lines[line.saturating_sub(SAFETY_LINES)..=line];
            if !before.iter().any(|line| line.contains("SAFETY:")) {
                complaints.push(format!("{}: unsafe without SAFETY", source.at(at)));
            }
        }
    }
    assert!(blocks > 50, "only {blocks} blocks found: the scan is broken");
    none(complaints);
}

#[test]
fn files_begin_with_what_they_are_for_and_keep_their_size() {
    let mut complaints = Vec::new();
    for source in sources("src").iter().chain(&sources("tests")) {
        if !source.text.starts_with("//! ") {
            complaints.push(format!("{}: no header", source.at(0)));
        }
        for (i, line) in source.text.lines().enumerate() {
            let columns = line.chars().count();
            if columns > MAX_COLUMNS {
                complaints.push(format!("{}:{}: {columns} columns", source.path.display(), i + 1));
            }
        }
        let count = source.text.lines().count();
        if count > MAX_FILE_LINES {
            complaints.push(format!("{}: {count} lines", source.at(0)));
        }
    }
    none(complaints);
}

/// The scan itself: what it must see, and what it must not.
#[test]
fn the_scan_tells_code_from_text() {
    let text = "use crate::{port, guard::{self, call}, memory};\n// crate::worker\n\
                let s = \"crate::worker\"; let c = '\"'; let r = r#\"crate::port\"#;\n\
                fn f<'a>(x: &'a str) -> crate::ring::Burst { unsafe { g('\\'') } }\n";
    let code = code_only(text);
    let source = Source { path: "src/datapath/worker/x.rs".into(), text: text.into(), code };
    let found: Vec<&str> = uses(&source).into_iter().map(|(_, name)| name).collect();
    assert_eq!(found, ["datapath/port", "datapath/guard", "datapath/memory", "datapath/ring"]);
    assert_eq!(words(&source.code, "unsafe").count(), 1);
    assert_eq!(source.at(uses(&source)[3].0), "src/datapath/worker/x.rs:4");

    let up = "use super::super::events::Events;\nuse super::plan;\n".to_owned();
    let source = Source { path: "src/datapath/worker/x.rs".into(), code: up.clone(), text: up };
    assert_eq!(
        uses(&source).into_iter().map(|(_, name)| name).collect::<Vec<_>>(),
        ["datapath/events"]
    );
}
