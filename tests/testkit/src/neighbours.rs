//! Bystanders: two honest guests that talk at about half of what they can do, and what an attacker
//! on the same switch costs them (I7).
//!
//! The machine's own noise is larger than many an effect. So the bystanders are measured in short
//! phases that take turns: *alone*, and *beside* the attacker; what else runs hits both alike. An
//! attacker that burns CPU is no fault of the switch either, so the first kind of phase can have a
//! *control*: a thread that burns as much without touching the switch. The daemon's workers have a
//! CPU to themselves, everything else of the test and of the daemon shares the rest.
//!
//! Lost frames fail at once. What is judged by time fails only if it shows in each of a few tries.

use std::collections::VecDeque;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use super::proc::{Apart, Daemon};
use super::traffic::{self, Checker, Stream, To};
use super::vm::{Vm, VmConfig};

/// Longest wait for frames that must come: on a machine with much else to do a thread may stand
/// ready without a CPU for seconds. Gaps are judged apart from that.
const LOST: Duration = Duration::from_secs(60);
/// Frames each way in a burst.
const BURST: u32 = 24;
/// Frames on the way to a guest at most: a quarter of its buffers.
const WINDOW: u32 = 64;
/// Length of a frame.
const LEN: usize = 200;
/// One phase, and how many of each kind make a measurement.
const PHASE: Duration = Duration::from_millis(50);
const ROUNDS: usize = 5;
/// For what the attacker left behind when its phase ends.
const SETTLE: Duration = Duration::from_millis(8);
/// Longest silence while a frame is under way (I7).
pub const LONGEST_GAP: Duration = Duration::from_millis(100);
/// What the median latency may become, as a multiple; and what is no latency to speak of.
const SLOWER: u32 = 2;
const PROMPT: Duration = Duration::from_micros(60);
pub const TRIES: usize = 3;
/// The same with those in which the machine was busy: the bystanders did not keep so much of their
/// planned rate, which is half of what they can do, beside the control either.
const BUSY_TRIES: usize = 12;
const FREE: f64 = 0.9;
const BUSY: &str = "not judged: ";

/// One direction.
struct Way {
    stream: Stream,
    sent: u32,
    /// When the frames left that are under way.
    under_way: VecDeque<Instant>,
    moved: Instant,
}

impl Way {
    fn new(from: u8, to: u8, flow: u8) -> Way {
        let stream = Stream { sender: from, queue: 0, to: To::Vm(to), flow };
        Way { stream, sent: 0, under_way: VecDeque::new(), moved: Instant::now() }
    }
}

/// What the pair met with.
#[derive(Clone, Default)]
pub struct Seen {
    pub frames: u64,
    pub planned: Duration,
    pub took: Duration,
    /// Longest silence while a frame was under way.
    pub gap: Duration,
    /// Time that the processes of the test stood ready without a CPU meanwhile.
    pub waited: Duration,
    latencies: Vec<u32>,
}

impl Seen {
    pub fn add(&mut self, other: Seen) {
        self.frames += other.frames;
        self.planned += other.planned;
        self.took += other.took;
        self.waited += other.waited;
        self.gap = self.gap.max(other.gap);
        self.latencies.extend(other.latencies);
    }

    /// The part of the planned rate that was kept.
    pub fn kept(&self) -> f64 {
        (self.planned.as_secs_f64() / self.took.as_secs_f64()).min(1.0)
    }

    /// What so many percent of the frames took at most.
    pub fn percentile(&self, percent: usize) -> Duration {
        let mut sorted = self.latencies.clone();
        sorted.sort_unstable();
        let at = sorted.len().saturating_sub(1) * percent / 100;
        Duration::from_nanos(sorted.get(at).copied().unwrap_or(0).into())
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (p50, p99) = (self.percentile(50), self.percentile(99));
        let (kept, gap) = (100.0 * self.kept(), self.gap);
        write!(f, "{kept:.0} % kept, p50 {p50:.0?} p99 {p99:.0?} gap {gap:.1?}")
    }
}

/// Frames that guest 0 sends now and then to somebody else, in front of a burst.
pub struct Aside {
    frame: Vec<u8>,
    pause: Duration,
    next: Instant,
}

/// The bystanders: guests 0 and 1.
pub struct Pair {
    vms: [Vm; 2],
    checkers: [Checker; 2],
    /// Both, or only the one from guest 0.
    ways: Vec<Way>,
    frame: Vec<u8>,
    /// Frames of others that reached a bystander: floods.
    pub foreign: u64,
    /// Time between two bursts at half of the pair's capacity.
    period: Duration,
    aside: Option<Aside>,
}

impl Pair {
    /// `flow` is that of the frames: odd ones are datagrams of UDP.
    fn connect(d: &Daemon, flow: u8) -> Pair {
        let vms = [0, 1].map(|id| Vm::connect(&d.socket(id.into()), VmConfig::new(id)));
        Pair::new(vms, vec![Way::new(0, 1, flow), Way::new(1, 0, flow)])
    }

    /// Of which only guest 0 sends.
    pub fn one_way(mut vms: [Vm; 2]) -> Pair {
        // Guest 1 has to be known.
        let hello = [&[0xff; 6][..], &vms[1].mac(), &[0x88, 0xb5], &[0; 46]].concat();
        vms[1].tx[0].send_waiting(&hello, LOST);
        vms[1].tx[0].drain(LOST);
        Pair::new(vms, vec![Way::new(0, 1, 0)])
    }

    fn new(vms: [Vm; 2], ways: Vec<Way>) -> Pair {
        let mut pair = Pair {
            vms,
            checkers: [Checker::new(0, 1), Checker::new(1, 1)],
            ways,
            frame: Vec::new(),
            foreign: 0,
            period: Duration::ZERO,
            aside: None,
        };
        for vm in &mut pair.vms {
            vm.tx[0].ring.disarm();
            vm.rx[0].ring.disarm();
        }
        // Both are learned now; the first frame may be flooded.
        pair.send(1);
        pair.settle();
        pair
    }

    /// From now on guest 0 sends a frame to `to` as well, with a pause of so long after each.
    pub fn send_aside(&mut self, to: [u8; 6], pause: Duration) {
        let frame = [&to[..], &self.vms[0].mac(), &[0x88, 0xb5], &[0; 46]].concat();
        self.aside = Some(Aside { frame, pause, next: Instant::now() });
    }

    /// Adds `more` frames to what is to be sent each way; returns when they are in the rings.
    fn send(&mut self, more: u32) -> (Vec<u32>, Duration) {
        let (mut latencies, mut gap) = (Vec::new(), Duration::ZERO);
        let goal = self.ways[0].sent + more;
        let start = Instant::now();
        if let Some(aside) = self.aside.as_mut().filter(|aside| aside.next <= start)
            && self.vms[0].tx[0].queue(&aside.frame)
        {
            aside.next = (aside.next + aside.pause).max(start);
        }
        while self.ways.iter().any(|way| way.sent < goal) {
            for way in &mut self.ways {
                let tx = &mut self.vms[usize::from(way.stream.sender)].tx[0];
                while way.sent < goal && (way.under_way.len() as u32) < WINDOW {
                    traffic::build(&way.stream, way.sent, LEN, &mut self.frame);
                    if !tx.queue(&self.frame) {
                        break;
                    }
                    let now = Instant::now();
                    if way.under_way.is_empty() {
                        way.moved = now;
                    }
                    way.under_way.push_back(now);
                    way.sent += 1;
                }
                tx.ring.publish();
            }
            gap = gap.max(self.receive(&mut latencies));
            assert!(start.elapsed() < LOST, "stalled (I7): {}", self.state());
        }
        (latencies, gap)
    }

    /// Takes what has arrived; answers the longest silence that ended or goes on.
    fn receive(&mut self, latencies: &mut Vec<u32>) -> Duration {
        let mut gap = Duration::ZERO;
        let mut any = false;
        for way in &mut self.ways {
            let To::Vm(to) = way.stream.to else { continue };
            let (vm, checker) = (&mut self.vms[usize::from(to)], &mut self.checkers[to as usize]);
            let now = Instant::now();
            let (under_way, foreign) = (&mut way.under_way, &mut self.foreign);
            let before = under_way.len();
            let taken = vm.rx[0].recv(32, |_, frame| {
                if frame[6..11] != [0x02, 0x56, 0x53, 0, 0] || frame[11] > 1 {
                    *foreign += 1;
                    return;
                }
                checker.accept(0, frame);
                let sent = under_way.pop_front().expect("a frame that was sent (I3)");
                latencies.push(now.saturating_duration_since(sent).as_nanos() as u32);
            });
            any |= taken > 0;
            if before > 0 {
                gap = gap.max(now.saturating_duration_since(way.moved));
            }
            if way.under_way.len() < before {
                way.moved = now;
            }
        }
        if !any {
            std::thread::yield_now();
        }
        gap
    }

    /// Receives until nothing is under way.
    pub fn settle(&mut self) -> (Vec<u32>, Duration) {
        let (mut latencies, mut gap) = (Vec::new(), Duration::ZERO);
        let start = Instant::now();
        while self.ways.iter().any(|way| !way.under_way.is_empty()) {
            gap = gap.max(self.receive(&mut latencies));
            assert!(start.elapsed() < LOST, "frames lost (I7): {}", self.state());
        }
        (latencies, gap)
    }

    fn state(&self) -> String {
        let way = |way: &Way| format!("{} sent, {} under way", way.sent, way.under_way.len());
        format!("bystanders: {:?}", self.ways.iter().map(way).collect::<Vec<_>>())
    }

    /// Measures how fast bursts go one after the other, and plans for half of that.
    pub fn calibrate(&mut self) {
        let mut times: Vec<Duration> = (0..400)
            .map(|_| {
                let start = Instant::now();
                self.send(BURST);
                self.settle();
                start.elapsed()
            })
            .collect();
        times.sort();
        self.period = 2 * times[times.len() / 2];
    }

    /// Bursts at half of the capacity for so long.
    pub fn talk(&mut self, how_long: Duration) -> Seen {
        let mut seen = Seen::default();
        let bursts = (how_long.as_nanos() / self.period.as_nanos()).max(1) as u32;
        let start = Instant::now();
        for n in 1..=bursts {
            let (latencies, gap) = self.send(BURST);
            seen.latencies.extend(latencies);
            seen.gap = seen.gap.max(gap);
            let next = start + n * self.period;
            while Instant::now() < next {
                let gap = self.receive(&mut seen.latencies);
                seen.gap = seen.gap.max(gap);
            }
        }
        let (latencies, gap) = self.settle();
        seen.latencies.extend(latencies);
        seen.gap = seen.gap.max(gap);
        seen.frames = u64::from(bursts * BURST) * self.ways.len() as u64;
        (seen.planned, seen.took) = (bursts * self.period, start.elapsed());
        seen
    }

    /// All frames came, once and in order.
    pub fn check(&self) {
        for way in &self.ways {
            let To::Vm(to) = way.stream.to else { continue };
            self.checkers[usize::from(to)].complete(&way.stream, way.sent.into());
        }
    }
}

impl Deref for Pair {
    type Target = [Vm; 2];
    fn deref(&self) -> &[Vm; 2] {
        &self.vms
    }
}

impl DerefMut for Pair {
    fn deref_mut(&mut self) -> &mut [Vm; 2] {
        &mut self.vms
    }
}

/// What the attacker's thread is to do now.
const PAUSE: u8 = 0;
const CONTROL: u8 = 1;
const ATTACK: u8 = 2;
const END: u8 = 3;

/// True while a phase of the attacker's lasts.
pub struct While<'a> {
    now: &'a AtomicU8,
    phase: u8,
}

impl While<'_> {
    pub fn on(&self) -> bool {
        self.now.load(Ordering::Relaxed) == self.phase
    }

    /// Calls `step` with a pause of so long after each.
    pub fn every(&self, pause: Duration, mut step: impl FnMut()) {
        while self.on() {
            step();
            std::thread::sleep(pause);
        }
    }
}

/// What the attacker does while it is let.
pub trait Attack: FnMut(&While<'_>) + Send {}
impl<F: FnMut(&While<'_>) + Send> Attack for F {}

/// An attacker that does nothing: the bystanders are alone.
pub fn nobody(_: &While<'_>) {}

/// Which of the two is at it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    Control,
    Attack,
}

/// The attacker's thread, which is the control for some of the time.
pub struct Attacker<'a> {
    now: &'a AtomicU8,
}

impl Attacker<'_> {
    /// What is seen while one of them is at it.
    pub fn during<T>(&self, phase: Phase, look: impl FnOnce() -> T) -> T {
        let phase = if phase == Phase::Attack { ATTACK } else { CONTROL };
        self.now.store(phase, Ordering::Release);
        std::thread::sleep(SETTLE);
        let seen = look();
        self.now.store(PAUSE, Ordering::Release);
        std::thread::sleep(SETTLE);
        seen
    }
}

/// Has a thread be an attacker, or the control, as `work` says.
pub fn with_attacker<T>(
    mut control: impl Attack,
    mut attack: impl Attack,
    work: impl FnOnce(&Attacker<'_>) -> T,
) -> T {
    let now = &AtomicU8::new(PAUSE);
    std::thread::scope(|s| {
        let _end = End(now);
        s.spawn(move || {
            loop {
                match now.load(Ordering::Acquire) {
                    END => break,
                    CONTROL => control(&While { now, phase: CONTROL }),
                    ATTACK => attack(&While { now, phase: ATTACK }),
                    _ => {}
                }
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        work(&Attacker { now })
    })
}

/// Ends the attacker's thread, after a panic too.
struct End<'a>(&'a AtomicU8);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(END, Ordering::Release);
    }
}

/// The bystanders beside an attacker.
pub struct Beside {
    pub alone: Seen,
    pub attacked: Seen,
    /// Cycles of the worker's busy turns, and these turns, while it was attacked, in nanoseconds.
    pub turn: Duration,
}

/// A switch whose ports 0 and 1 are the bystanders'.
pub struct Lab {
    pub d: Daemon,
    pub pair: Pair,
    _apart: Option<Apart>,
}

impl Lab {
    /// With `more` ports besides, and options.
    pub fn new(more: usize, extra: &[&str]) -> Lab {
        Lab::with_ports(&vec![""; 2 + more], extra)
    }

    /// With keys for each port.
    pub fn with_ports(ports: &[&str], extra: &[&str]) -> Lab {
        let d = Daemon::with_ports(ports, extra);
        let pair = Pair::connect(&d, 0);
        Lab::of(d, pair, &["worker-"])
    }

    /// With keys for each port, and bystanders whose frames are datagrams of UDP to port 5000.
    pub fn with_datagrams(ports: &[&str], extra: &[&str]) -> Lab {
        let d = Daemon::with_ports(ports, extra);
        let pair = Pair::connect(&d, 1);
        Lab::of(d, pair, &["worker-"])
    }

    /// With the workers of these names, or that begin so, on the last CPU.
    pub fn of(d: Daemon, mut pair: Pair, last: &[&str]) -> Lab {
        let apart = d.spread(last);
        pair.calibrate();
        Lab { d, pair, _apart: apart }
    }

    /// A guest of the attacker's.
    pub fn guest(&mut self, id: u8, make: impl FnOnce(&mut VmConfig)) -> Vm {
        let mut cfg = VmConfig::new(id);
        make(&mut cfg);
        let mut vm = Vm::connect(&self.d.socket(id.into()), cfg);
        // It is learned, and the bystanders have its hello behind them.
        let mac = vm.mac();
        let hello = [&[0xff; 6][..], &mac, &[0x88, 0xb5], &[0; 46]].concat();
        vm.tx[0].send_waiting(&hello, LOST);
        vm.tx[0].drain(LOST);
        self.pair.send(1);
        self.pair.settle();
        vm
    }

    /// The worker's busy time and turns so far, of all workers.
    fn turns(&self) -> (f64, f64) {
        let c = self.d.counters();
        let sum = |key| (0..c.workers()).map(|w| c.worker(w, key)).sum::<f64>();
        (sum("busy_cycles") / c.worker(0, "cycles_per_second"), sum("busy_turns"))
    }

    /// Measures in turns: with the control, with the attacker.
    pub fn measure(&mut self, control: impl Attack, attack: impl Attack) -> Beside {
        let (mut alone, mut attacked) = (Seen::default(), Seen::default());
        let (mut busy, mut turns) = (0.0, 0.0);
        with_attacker(control, attack, |attacker| {
            for round in 0..ROUNDS {
                for (phase, sum) in [(Phase::Control, &mut alone), (Phase::Attack, &mut attacked)] {
                    attacker.during(phase, || {
                        // Reading the counters takes longer than a phase.
                        let count = phase == Phase::Attack && round == 0;
                        let before = self.turns_if(count);
                        let waited = self.d.run_queue_wait();
                        let mut seen = self.pair.talk(PHASE);
                        let after = self.turns_if(count);
                        seen.waited = self.d.run_queue_wait().saturating_sub(waited);
                        sum.add(seen);
                        (busy, turns) = (busy + after.0 - before.0, turns + after.1 - before.1);
                    });
                }
            }
        });
        let turn = Duration::from_secs_f64(busy / f64::max(turns, 1.0));
        Beside { alone, attacked, turn }
    }

    fn turns_if(&self, asked: bool) -> (f64, f64) {
        if asked { self.turns() } else { (0.0, 0.0) }
    }

    /// I7: no frame is lost, the median latency at most doubles, no gap is longer than 100 ms. Time
    /// is judged in one of a few tries. What rate is kept is judged by `shares`, without the
    /// machine's noise.
    pub fn unharmed(
        &mut self,
        what: &str,
        mut control: impl FnMut(&While<'_>) + Send,
        mut attack: impl FnMut(&While<'_>) + Send,
    ) -> Beside {
        let mut last = None;
        in_one_of_a_few_tries(what, || {
            let seen = self.measure(&mut control, &mut attack);
            let (alone, attacked, turn) = (&seen.alone, &seen.attacked, seen.turn);
            println!("{what}: alone {alone} | beside {attacked}, turn {turn:.1?}");
            self.pair.check();
            let seen = last.insert(seen);
            seen.judge(verdict(seen))
        });
        last.expect("tried")
    }

    /// Nothing was lost on the way to a bystander, and the books balance.
    pub fn finish(self) {
        self.pair.check();
        let c = self.d.counters();
        c.balance();
        drop(self.pair);
        self.d.stop();
    }
}

pub fn verdict(seen: &Beside) -> Result<(), String> {
    let Beside { alone, attacked, .. } = seen;
    let (before, after) = (alone.percentile(50), attacked.percentile(50));
    if after > (SLOWER * before).max(PROMPT) {
        return Err(format!("median latency {after:.1?}, {before:.1?} alone"));
    }
    seen.short_gaps(LONGEST_GAP)
}

impl Beside {
    /// What was found, unless the machine was busy beside the control, too.
    pub fn judge(&self, found: Result<(), String>) -> Result<(), String> {
        let kept = self.alone.kept();
        let busy = |fault| format!("{BUSY}{kept:.2} kept without the attacker, and {fault}");
        found.map_err(|fault| if kept < FREE { busy(fault) } else { fault })
    }

    /// No gap was longer than that, nor than twice what there is alone, but for what the machine
    /// had no CPU for.
    pub fn short_gaps(&self, longest: Duration) -> Result<(), String> {
        let Beside { alone, attacked, .. } = self;
        let gap = attacked.gap.saturating_sub(attacked.waited);
        if gap > longest.max(2 * alone.gap) {
            return Err(format!("a gap of {gap:.1?}, {:.1?} alone", alone.gap));
        }
        Ok(())
    }
}

/// What a try says in which the machine had too much else to do.
pub fn not_judged(seen: &str) -> String {
    format!("{BUSY}{seen}")
}

/// Judges time in one of a few tries. Tries in which the machine had too much else to do do not
/// count; if it is never free, that is said and nothing is judged.
pub fn in_one_of_a_few_tries(what: &str, mut once: impl FnMut() -> Result<(), String>) {
    let mut faults = Vec::new();
    for _ in 0..BUSY_TRIES {
        match once() {
            Ok(()) => return,
            Err(fault) if fault.starts_with(BUSY) => println!("{what}: {fault}"),
            Err(fault) => faults.push(fault),
        }
        assert!(faults.len() < TRIES, "{what}: {faults:?} (I7)");
    }
    println!("{what}: NOT JUDGED, the machine has too much else to do: {faults:?}");
}
