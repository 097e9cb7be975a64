//! How the forwarding of several workers adds up: `scripts/bench --scale N`.
//!
//! `cargo bench -p benchmarks --bench scale -- N [SECONDS]` runs 1 to N forwarders, each on a CPU
//! of its own and with what a worker forwards with: its pipeline, turn after turn, from the
//! transmit ring of a guest to the receive ring of one, with one table of ports and one of
//! addresses for all. The guests' drivers are two stores to indices of a ring, in the forwarder's
//! own thread: no generator has a CPU, and a machine with N CPUs can measure N forwarders.
//!
//! * own: each forwarder has a sender and a receiver of its own. What they share is read only, so
//!   the sum is that of the forwarders.
//! * one: all send to one receiver. Its ring, lock and counters go from CPU to CPU. Buffers are
//!   given back by the forwarder that finds half of the ring used.
//!
//! Numbers of forwarders take turns in short rounds, so that what else runs on the machine meets
//! all alike. A round in which a forwarder came late, or had its CPU for less than 97 % of the
//! time, is left out, unless all of a line's are (`~`). `gate` is the way of a cache line from the
//! first CPU to the last and back, the median of short series.

#[path = "parts/guest.rs"]
#[allow(dead_code)]
mod guest;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ::sys::clock;
use base::frame::MacAddr;
use base::stats::{Direction, WorkerStats};
use datapath::guard::BlockedWriterWatch;
use datapath::pipeline::Pipeline;
use datapath::port::{Port, PortTable};
use switch::{Fdb, FdbConfig, PortId, Rules};
use testkit::sys;

use guest::{Driver, Guest, HEADER};

/// Bytes of a frame.
const LEN: usize = 60;
/// How long a number of forwarders runs before it is the next one's turn.
const ROUND: Duration = Duration::from_millis(1);
/// From the last forwarder's arrival to the beginning.
const LEAD_NANOS: u64 = 20_000;
/// Seconds for each line's rounds of one number of forwarders.
const SECONDS: f64 = 2.0;
/// A round counts if each forwarder had its CPU for so much of it.
const SHARE: f64 = 0.97;
/// Series of transfers of a cache line that are timed, and transfers in each.
const SERIES: u64 = 200;
const TRANSFERS: u64 = 500;

/// Who sends to whom.
#[derive(Clone, Copy, PartialEq)]
enum To {
    Own,
    One,
}

/// Guests, their ports, and what forwards between them.
struct Lab {
    ports: PortTable,
    fdb: Arc<Fdb>,
    senders: Vec<Driver>,
    receivers: Vec<Driver>,
    watch: BlockedWriterWatch,
}

impl Lab {
    /// For so many forwarders. Senders have the first numbers of ports.
    fn new(count: usize, to: To) -> Lab {
        let receivers = if to == To::Own { count } else { 1 };
        let port = |id: usize| Arc::new(Port::guest(id as PortId, &id.to_string(), 1));
        let ports: PortTable = (0..count + receivers).map(port).collect();
        let fdb = Fdb::new(FdbConfig::limited(ports.numbers(), 300, [1, 2]));
        let sender = |n: usize| {
            let to = if to == To::Own { count + n } else { count };
            let mut frame = [&mac(to)[..], &mac(n), &[0x88, 0xb5]].concat();
            frame.resize(LEN, 0x5a);
            let (driver, ring) = Guest::sender_of(&[0; HEADER as usize], &frame).apart();
            let mut state = ports[n as PortId].as_guest().expect("a guest").tx[0].lock();
            state.vring.ring = Some(ring);
            (state.vring.enabled, state.vring.owner) = (true, Some(n));
            driver
        };
        let receiver = |n: usize| {
            let id = (count + n) as PortId;
            fdb.insert_static(MacAddr(mac(id.into())), id).expect("room");
            let (driver, ring) = Guest::receiver(1526).apart();
            let guest = ports[id].as_guest().expect("a guest");
            let mut state = guest.rx[0].lock();
            (state.vring.ring, state.vring.enabled) = (Some(ring), true);
            drop(state);
            guest.set_active(0, true);
            driver.refill();
            driver
        };
        let (senders, receivers) = ((0..count).map(sender).collect(), (0..receivers).map(receiver));
        let receivers = receivers.collect();
        let watch = BlockedWriterWatch::start().expect("watchdog");
        Lab { ports, fdb: Arc::new(fdb), senders, receivers, watch }
    }

    /// Whether every frame that was taken is delivered.
    fn check(&self) {
        let frames = |direction: Direction| -> u64 {
            self.ports.iter().map(|port| port.traffic()[direction as usize].frames).sum()
        };
        let (taken, delivered) = (frames(Direction::In), frames(Direction::Out));
        assert_eq!(taken, delivered, "frames that came in and went out");
    }

    /// Forwards bursts of `burst` frames as worker `number` for a round.
    fn forward(&self, number: usize, burst: u16, start: &Start) -> Done {
        let slot = self.watch.register();
        let mut pipeline = Pipeline::new(number, Arc::clone(&self.fdb), Rules::default(), slot);
        let stats = WorkerStats::default();
        let sender = &self.senders[number];
        let receiver = self.receivers.get(number).unwrap_or(&self.receivers[0]);
        let begin = start.wait();
        let cpu = sys::own_cpu_time();
        let round = clock::cycles_in(ROUND.as_nanos() as u64);
        let end = begin + round;
        let late = clock::cycles().saturating_sub(begin) > round / 50;
        loop {
            let now = clock::cycles();
            if now >= end {
                break;
            }
            sender.send(burst);
            pipeline.begin_turn(now, false, false);
            pipeline.guest_burst(&self.ports, number as PortId, 0, &stats);
            pipeline.end_turn(&self.ports, &stats);
            receiver.refill();
        }
        let cpu = sys::own_cpu_time() - cpu;
        let wall = clock::time_of(clock::cycles() - begin);
        Done {
            frames: stats.frames.get(),
            bursts: stats.bursts.get(),
            misses: stats.lock_misses.get(),
            seconds: wall.as_secs_f64(),
            quiet: !late && cpu.as_secs_f64() >= SHARE * wall.as_secs_f64(),
        }
    }
}

/// Has all forwarders of a round begin at one moment, awake.
struct Start {
    of: usize,
    here: AtomicUsize,
    /// The cycle; 0 before the last one is there.
    at: AtomicU64,
}

impl Start {
    fn wait(&self) -> u64 {
        if self.here.fetch_add(1, Ordering::AcqRel) + 1 == self.of {
            let soon = clock::cycles() + clock::cycles_in(LEAD_NANOS);
            self.at.store(soon, Ordering::Release);
        }
        loop {
            let at = self.at.load(Ordering::Acquire);
            if at != 0 && clock::cycles() >= at {
                return at;
            }
            std::hint::spin_loop();
        }
    }
}

/// The address of what is behind a port.
fn mac(id: usize) -> [u8; 6] {
    [0x52, 0x54, 0, 0, (id >> 8) as u8, id as u8]
}

/// What one forwarder, or all of a round, did.
#[derive(Clone, Copy, Default)]
struct Done {
    frames: u64,
    bursts: u64,
    misses: u64,
    seconds: f64,
    quiet: bool,
}

impl Done {
    fn rate(&self) -> f64 {
        self.frames as f64 / self.seconds
    }
}

/// One round of so many forwarders.
fn round(lab: &Lab, cpus: &[usize], burst: u16) -> Done {
    let start = Start { of: cpus.len(), here: AtomicUsize::new(0), at: AtomicU64::new(0) };
    let forward = |(number, cpu): (usize, &usize)| {
        sys::pin(0, &[*cpu]);
        lab.forward(number, burst, &start)
    };
    let all: Vec<Done> = std::thread::scope(|scope| {
        let forward = &forward;
        let spawn = |one| scope.spawn(move || forward(one));
        let threads: Vec<_> = cpus.iter().enumerate().map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().expect("forwarder")).collect()
    });
    let sum = |of: fn(&Done) -> u64| all.iter().map(of).sum();
    Done {
        frames: all.iter().map(Done::rate).sum::<f64>() as u64,
        bursts: sum(|done| done.bursts),
        misses: sum(|done| done.misses),
        seconds: 1.0,
        quiet: all.iter().all(|done| done.quiet),
    }
}

/// One line for each number of forwarders.
fn measure(to: To, burst: u16, cpus: &[usize], numbers: &[usize], rounds: usize) {
    let labs: Vec<Lab> = numbers.iter().map(|count| Lab::new(*count, to)).collect();
    let mut done = vec![Vec::new(); numbers.len()];
    for _ in 0..rounds {
        for ((lab, count), done) in labs.iter().zip(numbers).zip(&mut done) {
            done.push(round(lab, &cpus[..*count], burst));
        }
    }
    labs.iter().for_each(Lab::check);
    let mut alone = 0.0;
    for (count, mut done) in numbers.iter().zip(done) {
        let disturbed = done.iter().all(|one| !one.quiet);
        done.retain(|one| disturbed || one.quiet);
        done.sort_by_key(|one| one.frames);
        let (best, median) = (done[done.len() - 1], done[done.len() / 2]);
        alone = if alone == 0.0 { median.rate() } else { alone };
        let name = if to == To::Own { "own" } else { "one" };
        println!(
            "{name} {burst:>6} {count:>7}{}{:>9.2}{:>9.2}{:>8.2}{:>10.1}{:>9.3}{:>7}",
            if disturbed { '~' } else { ' ' },
            best.rate() / 1e6,
            median.rate() / 1e6,
            median.rate() / alone,
            1e9 * *count as f64 / median.rate(),
            median.misses as f64 / median.bursts.max(1) as f64,
            done.len(),
        );
    }
}

/// Nanoseconds of a cache line's way from one CPU to another and back.
fn gate(from: usize, to: usize) -> f64 {
    let ball = AtomicU64::new(0);
    let play = |cpu: usize, mine: u64| {
        sys::pin(0, &[cpu]);
        let (mut times, mut start) = (Vec::new(), Instant::now());
        for turn in 0..SERIES * TRANSFERS {
            while ball.load(Ordering::Acquire) != 2 * turn + mine {
                std::hint::spin_loop();
            }
            ball.store(2 * turn + mine + 1, Ordering::Release);
            if (turn + 1) % TRANSFERS == 0 {
                times.push(start.elapsed().as_nanos() as f64 / TRANSFERS as f64);
                start = Instant::now();
            }
        }
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    std::thread::scope(|scope| {
        scope.spawn(|| play(from, 0));
        scope.spawn(|| play(to, 1)).join().expect("transfers")
    })
}

fn main() {
    // `cargo bench` says so; anything else only wants to know whether this works.
    let real = std::env::args().any(|arg| arg == "--bench");
    let mut given = std::env::args().filter_map(|arg| arg.parse::<f64>().ok());
    let cpus = sys::cpus();
    let most = given.next().map_or(cpus.len(), |most| most as usize).clamp(1, cpus.len());
    let seconds = given.next().unwrap_or(SECONDS);
    let rounds = if real { (seconds / ROUND.as_secs_f64()).ceil() as usize } else { 1 };
    // 1, 2, 4, … and the most.
    let mut numbers: Vec<usize> = (0..).map(|power| 1 << power).take_while(|n| *n < most).collect();
    numbers.push(most);
    if most > 1 {
        println!(
            "gate: {:.0} ns between CPUs {} and {}",
            gate(cpus[0], cpus[most - 1]),
            cpus[0],
            cpus[most - 1]
        );
    }
    println!("to   burst workers     Mpps   median   ratio  ns·worker  missed rounds");
    for (to, burst) in [(To::Own, 64), (To::Own, 8), (To::One, 64), (To::One, 8)] {
        measure(to, burst, &cpus, &numbers, rounds);
    }
}
