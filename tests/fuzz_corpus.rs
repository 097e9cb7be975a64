//! The fuzz targets with the stable toolchain: every input of the corpus, crashes of the past among
//! them, and some thousand random ones. `scripts/fuzz` searches for more.
//!
//! A target panics when a promise is broken (see `tests/fuzz/targets`), so there is nothing to
//! compare here but that it does not.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use testkit::{long, rounds};

#[path = "fuzz/targets/mod.rs"]
mod targets;

/// One target at a time: they count the descriptors of the process.
static TURN: Mutex<()> = Mutex::new(());

/// All of a target's inputs, by name.
fn corpus(target: &str) -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(target);
    let entries = fs::read_dir(&directory).expect("a corpus for each target");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("entry").path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{}: empty", directory.display());
    files
}

/// Runs one input; `name` is said if it fails.
fn run(target: fn(&[u8]), name: &str, bytes: &[u8]) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(bytes))) {
        eprintln!("input: {name}, {} bytes: {bytes:?}", bytes.len());
        resume_unwind(panic);
    }
}

/// Bytes without a pattern.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) ^ (self.0 << 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// The corpus, then `count` inputs: half of them random bytes, half files of the corpus with some
/// bytes changed, or one after another, which get further. A slow machine tries fewer.
fn replay(name: &str, target: fn(&[u8]), count: u64) {
    let files = corpus(name);
    let known: Vec<Vec<u8>> = files.iter().map(|path| fs::read(path).expect("input")).collect();
    for (path, bytes) in files.iter().zip(&known) {
        run(target, &path.display().to_string(), bytes);
    }
    let end = Instant::now() + Duration::from_secs(if long() { 300 } else { 7 });
    let count = rounds(count / 4, count, 100 * count);
    let mut tried = 0;
    while tried < count && Instant::now() < end {
        tried += 1;
        let mut random = Random(tried);
        let mut bytes = match tried % 2 {
            0 => Vec::new(),
            _ => known[random.below(known.len())].clone(),
        };
        if tried % 4 == 3 {
            bytes.extend(&known[random.below(known.len())]);
        }
        if bytes.is_empty() {
            let len = random.below(800);
            bytes.extend((0..len).map(|_| random.next() as u8));
        } else {
            for _ in 0..random.below(6) {
                let at = random.below(bytes.len());
                bytes[at] = random.next() as u8;
            }
        }
        run(target, &format!("random {tried}"), &bytes);
    }
    println!("{name}: {} files, {tried} random inputs", files.len());
}

#[test]
fn configurations() {
    replay("config", targets::config::run, 4000);
}

#[test]
fn control_clients() {
    replay("control", targets::control::run, 2000);
    targets::control::close();
}

#[test]
fn forwarding_tables() {
    replay("fdb", targets::fdb::run, 4000);
}

#[test]
fn filters() {
    replay("filters", targets::filters::run, 8000);
}

/// Random inputs seldom are fragments of one packet, or errors about a packet that passed.
#[test]
fn the_corpus_has_fragments_errors_and_tags() {
    let reached = &targets::filters::REACHED;
    reached.set(0);
    for path in corpus("filters") {
        run(targets::filters::run, &path.display().to_string(), &fs::read(&path).expect("input"));
    }
    let kinds = targets::filters::KINDS.iter().enumerate();
    let missing: Vec<_> = kinds.filter(|(at, _)| reached.get() >> at & 1 == 0).collect();
    assert!(missing.is_empty(), "no input has {missing:?}");
}

#[test]
fn frames() {
    replay("frames", targets::frames::run, 8000);
}

#[test]
fn front_ends() {
    replay("protocol", targets::protocol::run, 2000);
}

#[test]
fn rings() {
    replay("rings", targets::rings::run, 4000);
}

#[test]
fn streams() {
    replay("streams", targets::streams::run, 4000);
}

#[test]
fn vduse_messages() {
    replay("vduse", targets::vduse::run, 4000);
}
