//! What the threads of a soak share: when to pause, when to stop, and what has been seen so far.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use testkit::proc::wait_for;

use super::peers::STREAMS;

/// Pairs of honest guests: guests 0 and 1, 2 and 3.
pub const PAIRS: usize = 2;
/// Ports of guests that come and go, after those.
pub const OTHERS: usize = 6;
/// All ports of guests.
pub const PORTS: usize = 2 * PAIRS + OTHERS;

/// Longest time in which everybody must have paused: half a message alone may take 2 s.
const PAUSE_LIMIT: Duration = Duration::from_secs(60);

/// Moments of which is known what the daemon's threads had used: those of some seconds.
const NOTES: usize = 100;
/// What is promised to others, and explained if it is longer.
pub const REMARKABLE: Duration = Duration::from_millis(100);
/// Gaps that are explained; the rest are like these.
const MOST_TOLD: u64 = 50;

#[derive(Default)]
pub struct Shared {
    stop: AtomicBool,
    /// Guests that come and go shall be gone, honest ones too.
    others_pause: AtomicBool,
    honest_pause: AtomicBool,
    /// How many of them are.
    others_idle: AtomicUsize,
    honest_idle: AtomicUsize,
    /// Longest silence of an honest pair, in microseconds: since the last line, and in all.
    pub gap: AtomicU64,
    pub longest_gap: AtomicU64,
    /// The longest without what the machine kept both sides waiting for a CPU.
    pub longest_net: AtomicU64,
    /// Longest pause of a thread that does nothing but sleep a millisecond at a time.
    pub pause_of_machine: AtomicU64,
    pub longest_of_machine: AtomicU64,
    /// Frames of honest pairs that came, and that were lost.
    pub honest_frames: AtomicU64,
    pub honest_lost: AtomicU64,
    /// Frames that peers of each stream sent by the rules.
    pub stream_frames: [AtomicU64; STREAMS],
    /// What guests did, by name.
    pub episodes: Mutex<BTreeMap<&'static str, u64>>,
    failures: Mutex<Vec<String>>,
    /// What each guest that comes and goes is about, and since when.
    doing: Mutex<BTreeMap<u8, (&'static str, Instant)>>,
    /// What the daemon's threads had used at some moments of the last seconds.
    used: Mutex<VecDeque<(Instant, Threads)>>,
    told: AtomicU64,
}

/// By name: nanoseconds running, and ready without a CPU.
pub type Threads = BTreeMap<String, (u64, u64)>;

impl Shared {
    pub fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// For a guest that comes and goes: true when it shall.
    pub fn leave_now(&self) -> bool {
        self.stopping() || self.others_pause.load(Ordering::Relaxed)
    }

    /// Waits while guests that come and go shall be gone.
    pub fn others_rest(&self) {
        rest(&self.others_pause, &self.others_idle, &self.stop);
    }

    /// The same for the honest; true if there was a rest.
    pub fn honest_rest(&self) -> bool {
        rest(&self.honest_pause, &self.honest_idle, &self.stop)
    }

    /// Sends the others away and waits until they are gone.
    pub fn pause_others(&self, threads: usize) {
        self.others_pause.store(true, Ordering::Relaxed);
        self.await_idle(&self.others_idle, threads, "a guest does not leave");
    }

    pub fn pause_honest(&self) {
        self.honest_pause.store(true, Ordering::Relaxed);
        self.await_idle(&self.honest_idle, PAIRS, "an honest pair does not pause");
    }

    fn await_idle(&self, idle: &AtomicUsize, count: usize, complaint: &str) {
        let all = || idle.load(Ordering::Relaxed) == count || !self.failures().is_empty();
        if !wait_for(PAUSE_LIMIT, all) {
            self.fail(complaint.to_string());
        }
    }

    pub fn resume(&self) {
        self.honest_pause.store(false, Ordering::Relaxed);
        self.others_pause.store(false, Ordering::Relaxed);
    }

    pub fn begins(&self, guest: u8, episode: &'static str) {
        lock(&self.doing).insert(guest, (episode, Instant::now()));
        self.count(episode);
    }

    pub fn note(&self, threads: Threads) {
        let mut used = lock(&self.used);
        used.push_back((Instant::now(), threads));
        if used.len() > NOTES {
            used.pop_front();
        }
    }

    /// An honest guest heard nothing for `gap`, of which its thread stood ready without a CPU for
    /// `waited`. What that and the workers' waiting for one leave of it is the switch's, and the
    /// longest of those counts; what went on is said if it is more than is promised to others.
    pub fn silence(&self, who: u8, gap: Duration, waited: Duration) {
        let mut busy = Vec::new();
        let mut owed = Duration::ZERO;
        {
            let (now, used) = (Instant::now(), lock(&self.used));
            let before = used.iter().rev().find(|(at, _)| now - *at > gap).or(used.front());
            let (Some((_, a)), Some((_, b))) = (before, used.back()) else { return };
            for (name, b) in b {
                let a = a.get(name).copied().unwrap_or_default();
                let [ran, waited] = [b.0.saturating_sub(a.0), b.1.saturating_sub(a.1)];
                if name.starts_with("worker") {
                    owed = owed.max(Duration::from_nanos(waited));
                }
                if ran + waited > 10_000_000 {
                    let (ran, waited) = (ran / 1_000_000, waited / 1_000_000);
                    busy.push(format!("{name} ran {ran} waited {waited}"));
                }
            }
        }
        let net = gap.saturating_sub(waited).saturating_sub(owed);
        raise([&self.longest_net], net);
        if net < REMARKABLE || self.told.fetch_add(1, Ordering::Relaxed) >= MOST_TOLD {
            return;
        }
        let doing: Vec<String> = lock(&self.doing)
            .iter()
            .map(|(id, (what, since))| format!("{id} {what} {}", since.elapsed().as_millis()))
            .collect();
        println!(
            "    guest {who} heard nothing for {} ms, its thread waited {}; {}; guests: {}",
            gap.as_millis(),
            waited.as_millis(),
            busy.join(", "),
            doing.join(", ")
        );
    }

    pub fn count(&self, episode: &'static str) {
        *lock(&self.episodes).entry(episode).or_default() += 1;
    }

    pub fn fail(&self, what: String) {
        eprintln!("    FAILED: {what}");
        lock(&self.failures).push(what);
    }

    pub fn failures(&self) -> Vec<String> {
        lock(&self.failures).clone()
    }

    /// Runs a thread's work; a panic becomes a failure of the soak, which then ends.
    pub fn guard(&self, name: &str, work: impl FnOnce()) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
            self.fail(format!("{name}: {}", text.unwrap_or_default()));
        }
    }
}

fn rest(pause: &AtomicBool, idle: &AtomicUsize, stop: &AtomicBool) -> bool {
    let wanted = || pause.load(Ordering::Relaxed) && !stop.load(Ordering::Relaxed);
    if !wanted() {
        return false;
    }
    idle.fetch_add(1, Ordering::Relaxed);
    while wanted() {
        std::thread::sleep(Duration::from_millis(1));
    }
    idle.fetch_sub(1, Ordering::Relaxed);
    true
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Raises a maximum.
pub fn raise<const N: usize>(of: [&AtomicU64; N], to: Duration) {
    let micros = to.as_micros() as u64;
    for max in of {
        max.fetch_max(micros, Ordering::Relaxed);
    }
}
