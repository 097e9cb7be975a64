//! What is looked at while a soak runs: the daemon's process, its log and its books.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use testkit::counters::Counters;
use testkit::proc::{Daemon, Usage};

use super::shared::{Shared, Threads, raise};

/// Lines about one port in one second of the clock: four at once, the one that a second brings, and
/// that the port is closed for a while, which is said once in ten seconds; and its events, of which
/// there may be 16 at once and one in two seconds.
const LINES: usize = 6 + 17;
/// Mappings that come and go with the allocator's arenas, of which a thread may have one more.
const MAPPINGS: usize = 8;
/// Growth of private memory over the first quiet moment, in KiB: tables that grow with use once.
const GROWTH_KIB: u64 = 8 << 10;
const SECOND: Duration = Duration::from_secs(1);

/// What the daemon holds while nobody but the honest guests is there.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    usage: Usage,
    /// RssAnon.
    private_kib: u64,
}

pub struct Watch<'d> {
    pub d: &'d mut Daemon,
    shared: &'d Shared,
    first: Option<Held>,
    last: Held,
    /// Of the log, what was read.
    read: u64,
    /// Lines by port and second, of the newest seconds.
    lines: HashMap<(String, String), usize>,
    began: Instant,
    minutes: f64,
}

impl<'d> Watch<'d> {
    pub fn new(d: &'d mut Daemon, shared: &'d Shared, minutes: f64) -> Watch<'d> {
        let last = held(d, d.usage());
        let (lines, began) = (HashMap::new(), Instant::now());
        Watch { d, shared, first: None, last, read: 0, lines, began, minutes }
    }

    /// Every second or so.
    pub fn look(&mut self) {
        if !self.d.alive() {
            self.shared.fail(format!("the daemon is gone\n{}", self.d.log()));
            return;
        }
        self.read_log();
    }

    fn read_log(&mut self) {
        let (text, end) = self.d.log_after(self.read);
        self.read = end;
        for line in text.lines() {
            if line.contains("panicked") {
                self.shared.fail(format!("log: {line}"));
            }
            // "[2026-01-02T03:04:05Z WARN  vioswitch…] port NAME: …"
            let Some((head, said)) = line.split_once("] port ") else { continue };
            let Some((port, _)) = said.split_once(": ").filter(|(port, _)| !port.contains(' '))
            else {
                continue;
            };
            let second = head.get(1..20).unwrap_or_default().to_string();
            let count = self.lines.entry((port.to_string(), second)).or_default();
            *count += 1;
            if *count == LINES + 1 {
                self.shared.fail(format!("more than {LINES} lines in a second: {line}"));
            }
        }
        if self.lines.len() > 100_000 {
            self.lines.clear();
        }
    }

    /// While only honest guests are there and are silent: the books balance to the frame (I1), and
    /// nothing is left of those that were there (I6).
    pub fn quiet(&mut self, what: &str) {
        let usage = self.d.settled_usage();
        let now = held(self.d, usage);
        let first = *self.first.get_or_insert(now);
        let (a, b) = (first.usage, now.usage);
        let grown = b.mappings > a.mappings + MAPPINGS;
        if a.fds != b.fds || a.threads != b.threads || grown {
            self.shared.fail(format!("{what}: {b:?}, at first {a:?} (I6)"));
        }
        if now.private_kib > first.private_kib + GROWTH_KIB {
            let (a, b) = (first.private_kib, now.private_kib);
            self.shared.fail(format!("{what}: {b} KiB private, at first {a} (I6)"));
        }
        self.last = now;
        self.shared.guard(what, || self.d.report().balance());
    }

    /// A line for people.
    pub fn tell(&mut self) {
        let c = self.d.report();
        let load = |of: &std::sync::atomic::AtomicU64| of.swap(0, Ordering::Relaxed) as f64 / 1e3;
        let shared = self.shared;
        let guests: u64 = {
            let all = shared.episodes.lock().expect("episodes");
            all.iter().filter(|(name, _)| !name.starts_with("tap")).map(|(_, n)| n).sum()
        };
        println!(
            "{:>6.1} of {} min | {guests} guests | frames in {} out {} | {} | honest {} lost {} | \
             gap {:.0} ms, machine {:.0} ms | {} KiB, {} fds, {} threads, {} mappings | {}",
            self.began.elapsed().as_secs_f64() / 60.0,
            self.minutes,
            c.sum(None, "in", "frames"),
            c.sum(None, "out", "frames"),
            drops(&c),
            shared.honest_frames.load(Ordering::Relaxed),
            shared.honest_lost.load(Ordering::Relaxed),
            load(&shared.gap),
            load(&shared.pause_of_machine),
            self.last.private_kib,
            self.last.usage.fds,
            self.last.usage.threads,
            self.last.usage.mappings,
            if shared.failures().is_empty() { "ok so far" } else { "FAILED" },
        );
    }
}

/// "drops no_buffer 12 port_down 3 …", the ten most frequent.
fn drops(c: &Counters) -> String {
    let mut by_name: BTreeMap<&str, u64> = BTreeMap::new();
    for (_, _, key, n) in c.each() {
        if let Some(name) = key.strip_prefix("drop.") {
            *by_name.entry(name).or_default() += n;
        }
    }
    let mut all: Vec<_> = by_name.into_iter().collect();
    all.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    let words: Vec<String> = all.iter().take(10).map(|(name, n)| format!("{name} {n}")).collect();
    format!("drops {}", words.join(" "))
}

fn held(d: &Daemon, usage: Usage) -> Held {
    let status = fs::read_to_string(format!("/proc/{}/status", d.pid())).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:"));
    let kib = line.and_then(|l| l.split_whitespace().next()?.parse().ok());
    Held { usage, private_kib: kib.unwrap_or(0) }
}

/// Sleeps a millisecond at a time: what the machine adds to any waiting. Now and then it notes what
/// the daemon's threads did with their time.
pub fn pause_of_machine(shared: &Shared, pid: u32) {
    let mut noted = Instant::now();
    while !shared.stopping() {
        let began = Instant::now();
        std::thread::sleep(SECOND / 1000);
        raise([&shared.pause_of_machine, &shared.longest_of_machine], began.elapsed());
        if noted.elapsed() > SECOND / 20 {
            noted = Instant::now();
            shared.note(threads(pid));
        }
    }
}

/// Nanoseconds each thread of the daemon ran, and stood ready without a CPU.
fn threads(pid: u32) -> Threads {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let read = |task: fs::DirEntry| {
        let name = fs::read_to_string(task.path().join("comm")).ok()?.trim().to_string();
        let times = fs::read_to_string(task.path().join("schedstat")).ok()?;
        let mut times = times.split_whitespace().map(|n| n.parse::<u64>().unwrap_or(0));
        Some((name, (times.next()?, times.next()?)))
    };
    tasks.filter_map(read).collect()
}
