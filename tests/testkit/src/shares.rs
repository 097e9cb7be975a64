//! What part of a worker's time a bystander keeps beside a neighbour, whatever that one does.
//!
//! A *greedy* bystander has a transmit ring that is never empty and a receiver whose ring is never
//! full. Beside a neighbour that is greedy in the same honest way it gets half of what it gets
//! alone: its fair share, and what a pair at half of its capacity needs. An attacker must leave it
//! that.
//!
//! Frames are counted per second of the worker's own CPU time, so neither a busy machine nor the
//! test's own threads are in the figure. Buffers are offered again as they are, by moving an index,
//! which costs the test next to nothing; one thread does it for all rings.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::hostile::{one_buffer, refill, restart_with};
use super::mem::Span;
use super::neighbours::{Phase, While, in_one_of_a_few_tries, nobody, not_judged, with_attacker};
use super::proc::{Apart, Daemon};
use super::ring::{DESC_WRITE, Ring, Seg};
use super::sys;
use super::vm::{Vm, VmConfig};

/// Frames of the bystander and of an honest neighbour.
const LEN: usize = 1514;
/// Rings long enough that they do not run dry while the test waits for a CPU.
pub const SIZE: u16 = 32_768;
/// CPU time of the daemon in one phase; and how long that may take.
const PHASE: Duration = Duration::from_millis(15);
const LONGEST_PHASE: Duration = Duration::from_secs(2);
const ROUNDS: usize = 3;
const TRIES: usize = 6;
/// A moment in which frames are counted, and how many of them it takes to tell little from nothing.
const MOMENT: Duration = Duration::from_millis(60);
const MOMENTS: usize = 20;
/// How often what came back is offered again.
const PAUSE: Duration = Duration::from_micros(100);
/// Part of the fair share that is kept. The promise is nine tenths; on a machine with ten times as
/// many threads as CPUs a worker that loses its CPU in a burst charges the wrong guest, and 0.8 is
/// what is seen. Without any accounting it is 0.1 to 0.5.
const KEPT: f64 = 0.75;

/// A guest whose rings are raw.
pub fn guest(d: &Daemon, id: u8, make: impl FnOnce(&mut VmConfig)) -> Vm {
    let mut cfg = VmConfig::new(id);
    (cfg.size, cfg.tx_size) = (SIZE, SIZE);
    make(&mut cfg);
    let mut vm = Vm::connect(&d.socket(id.into()), cfg);
    let hello = [&[0xff; 6][..], &vm.mac(), &[0x88, 0xb5], &[0; 46]].concat();
    vm.tx[0].send_waiting(&hello, Duration::from_secs(5));
    vm.tx[0].drain(Duration::from_secs(5));
    vm
}

/// Memory with a frame behind a header that asks for nothing.
pub fn frame(from: &Vm, to: [u8; 6], len: usize) -> Span {
    let span = from.guest.mem.alloc_in(0, 12 + len as u64, 16);
    span.write(0, &vec![0; 12 + len]);
    span.write(12, &[&to[..], &from.mac(), &[0x88, 0xb5]].concat());
    span
}

/// The whole of a span as one buffer.
pub fn whole(span: &Span) -> Seg {
    Seg { gpa: span.gpa(), len: span.len() as u32 }
}

/// Makes a guest receive for ever.
pub fn receive(vm: &mut Vm) {
    let room = vm.guest.mem.alloc_in(0, 12 + LEN as u64, 16);
    restart_with(vm, 0, |ring| one_buffer(ring, whole(&room), DESC_WRITE));
}

/// The index up to which a ring's buffers were offered.
fn avail(ring: &Ring) -> u16 {
    ring.avail.index(2).load(Ordering::Relaxed)
}

/// CPU time of a thread, by its directory in /proc.
fn run_time(thread: &Path) -> Duration {
    let stat = std::fs::read_to_string(thread.join("schedstat")).expect("schedstat");
    let nanos = stat.split_whitespace().next().and_then(|word| word.parse().ok());
    Duration::from_nanos(nanos.expect("a time"))
}

/// A switch with a greedy bystander at ports 0 and 1, and a neighbour that sends at port 2.
pub struct Shares {
    pub d: Daemon,
    from: Vm,
    to: Vm,
    pub evil: Vm,
    /// Guests that receive; the first, port 3, is whom an honest neighbour sends to.
    pub sinks: Vec<Vm>,
    /// What the neighbour sends when it is honest.
    honest: Span,
    _apart: Option<Apart>,
}

impl Shares {
    /// With so many receivers beside the bystander's.
    pub fn new(sinks: u8, make: impl Fn(&mut VmConfig)) -> Shares {
        Shares::with(sinks, &[], make)
    }

    /// The same with options.
    pub fn with(sinks: u8, extra: &[&str], make: impl Fn(&mut VmConfig)) -> Shares {
        let d = Daemon::with(3 + usize::from(sinks), extra);
        let (mut from, mut to) = (guest(&d, 0, |_| ()), guest(&d, 1, |_| ()));
        let evil = guest(&d, 2, &make);
        let mut sinks: Vec<Vm> = (3..3 + sinks).map(|id| guest(&d, id, |_| ())).collect();
        let apart = d.spread_workers();
        let frames = frame(&from, to.mac(), LEN);
        restart_with(&mut from, 1, |ring| one_buffer(ring, whole(&frames), 0));
        receive(&mut to);
        sinks.iter_mut().for_each(receive);
        let honest = frame(&evil, sinks[0].mac(), LEN);
        Shares { d, from, to, evil, sinks, honest, _apart: apart }
    }

    /// Frames that the bystander gets per second of the daemon's CPU time. Only moments count in
    /// which its rings did not run dry, as they may while the test waits for a CPU itself. The
    /// neighbour's ring is filled if it `sends`.
    fn rate(&mut self, sends: bool) -> f64 {
        let pid = self.d.pid();
        let (mut frames, mut spent) = (0u64, Duration::ZERO);
        let start = Instant::now();
        let (mut got, mut used) = (0, Duration::ZERO);
        let mut first = true;
        while spent < PHASE && start.elapsed() < LONGEST_PHASE {
            let (tx, rx) = (&self.from.guest.tx[0].ring, &self.to.guest.rx[0].ring);
            let (now, cpu) = (rx.used_idx(), sys::cpu_time(pid));
            let dry = [tx, rx].iter().any(|ring| avail(ring) == ring.used_idx());
            if !first && !dry {
                frames += u64::from(now.wrapping_sub(got));
                spent += cpu.saturating_sub(used);
            }
            (got, used, first) = (now, cpu, false);
            let receivers = self.sinks.iter().map(|vm| &vm.guest.rx[0].ring);
            [rx, tx]
                .into_iter()
                .chain(receivers)
                .chain(sends.then_some(&self.evil.guest.tx[0].ring))
                .for_each(refill);
            std::thread::sleep(PAUSE);
        }
        frames as f64 / spent.as_secs_f64().max(1e-6)
    }

    /// The part of its fair share that the bystander keeps beside a neighbour whose transmit ring
    /// `fill` fills.
    fn kept(&mut self, fill: &mut impl FnMut(&Ring)) -> f64 {
        let (mut fair, mut beside) = (0.0, 0.0);
        for _ in 0..ROUNDS {
            restart_with(&mut self.evil, 1, |ring| one_buffer(ring, whole(&self.honest), 0));
            fair += self.rate(true);
            restart_with(&mut self.evil, 1, |ring| fill(ring));
            beside += self.rate(true);
        }
        beside / fair
    }

    /// Frames that the bystander gets in a moment, and the worker's CPU time meanwhile. That is
    /// known to the last tick only, so one moment says little.
    fn moment(&mut self, worker: &Path) -> [f64; 2] {
        let (start, before) = (Instant::now(), run_time(worker));
        let mut frames = 0u64;
        let mut got = self.to.guest.rx[0].ring.used_idx();
        while start.elapsed() < MOMENT {
            let (tx, rx) = (&self.from.guest.tx[0].ring, &self.to.guest.rx[0].ring);
            let now = rx.used_idx();
            frames += u64::from(now.wrapping_sub(got));
            got = now;
            [rx, tx].into_iter().for_each(refill);
            std::thread::sleep(PAUSE);
        }
        [frames as f64, (run_time(worker) - before).as_secs_f64()]
    }

    /// What an attacker on threads that are no worker's leaves the data path: frames per second of
    /// the worker's CPU time, as a part of what they are beside the control, before and after.
    /// Where these two differ by more than half of what is `allowed` to be lost, the machine has
    /// too much else to do to tell.
    pub fn slowed_no_more(
        &mut self,
        what: &str,
        allowed: f64,
        mut control: impl FnMut(&While<'_>) + Send,
        mut attack: impl FnMut(&While<'_>) + Send,
    ) {
        let worker = self.d.thread("worker-0");
        in_one_of_a_few_tries(what, || {
            let mut sums = [[0.0; 2]; 3];
            with_attacker(&mut control, &mut attack, |attacker| {
                for _ in 0..MOMENTS {
                    let phases = [Phase::Control, Phase::Attack, Phase::Control];
                    for (phase, sum) in phases.into_iter().zip(&mut sums) {
                        let [frames, spent] = attacker.during(phase, || self.moment(&worker));
                        *sum = [sum[0] + frames, sum[1] + spent];
                    }
                }
            });
            let [before, beside, after] = sums.map(|[frames, spent]| frames / spent.max(1e-6));
            let (kept, same) = (2.0 * beside / (before + after), before / after);
            let seen = format!("{kept:.3} of the rate kept, the control's own {same:.3}");
            println!("{what}: {seen}");
            // What is no number is no agreement.
            let judged = (same - 1.0).abs() <= allowed / 2.0;
            match judged {
                false => Err(not_judged(&seen)),
                true if kept >= 1.0 - allowed => Ok(()),
                true => Err(seen),
            }
        });
    }

    /// An attacker that sends what `fill` puts in its ring leaves a bystander its share.
    pub fn kept_beside(&mut self, what: &str, mut fill: impl FnMut(&Ring)) {
        let mut seen = Vec::new();
        for _ in 0..TRIES {
            let kept = self.kept(&mut fill);
            println!("{what}: {kept:.2} of the fair share kept");
            if kept >= KEPT {
                return;
            }
            seen.push(kept);
        }
        panic!("{what}: {seen:.2?} of the fair share kept");
    }

    /// An attacker that is no guest leaves a bystander as much as a neighbour does that sends as
    /// fast as it can.
    pub fn kept_beside_another(&mut self, what: &str, mut attack: impl FnMut(&While<'_>) + Send) {
        let mut seen = Vec::new();
        for _ in 0..TRIES {
            let kept = with_attacker(nobody, &mut attack, |attacker| {
                let (mut fair, mut beside) = (0.0, 0.0);
                for _ in 0..ROUNDS {
                    restart_with(&mut self.evil, 1, |ring| {
                        one_buffer(ring, whole(&self.honest), 0)
                    });
                    fair += self.rate(true);
                    restart_with(&mut self.evil, 1, |_| ());
                    beside += attacker.during(Phase::Attack, || self.rate(false));
                }
                beside / fair
            });
            println!("{what}: {kept:.2} of the fair share kept");
            if kept >= KEPT {
                return;
            }
            seen.push(kept);
        }
        panic!("{what}: {seen:.2?} of the fair share kept");
    }
}
