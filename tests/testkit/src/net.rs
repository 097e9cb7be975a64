//! Several test guests on one switch, and the traffic between them.
//!
//! One thread drives all guests. It never has more frames under way to a receiver than half of
//! that guest's RX buffers hold, so a correct switch has no reason to drop anything and every
//! stream must arrive whole. When nothing moves it sleeps on the call fds: a lost notification
//! ends in a panic that says so.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::proc::Daemon;
use super::sys;
use super::traffic::{self, Checker, SHORT_FLOW, Stream, To};
use super::vm::{Vm, VmConfig, tag_of};
use super::{Rng, SOON};

/// Frames one stream sends before the next has its turn.
const TURN: usize = 32;
/// Frames taken from one ring before the next has its turn.
const TAKE: usize = 64;

/// How long the frames of a stream are.
#[derive(Clone, Debug)]
pub enum Sizes {
    Fixed(usize),
    /// From the first to the second, inclusive, at random.
    Range(usize, usize),
    /// Each from the first to the second once, then again.
    Sweep(usize, usize),
    List(Vec<usize>),
}

impl Sizes {
    fn get(&self, rng: &mut Rng, n: u32) -> usize {
        match self {
            Sizes::Fixed(len) => *len,
            Sizes::Range(a, b) => a + rng.below((b - a + 1) as u64) as usize,
            Sizes::Sweep(a, b) => a + n as usize % (b - a + 1),
            Sizes::List(l) => l[n as usize % l.len()],
        }
    }
}

/// One stream to send.
#[derive(Clone, Debug)]
pub struct Job {
    pub from: usize,
    pub queue: usize,
    pub to: To,
    pub flow: u8,
    pub frames: u32,
    pub sizes: Sizes,
}

impl Job {
    pub fn new(from: usize, to: To, frames: u32, sizes: Sizes) -> Job {
        Job { from, queue: 0, to, flow: 0, frames, sizes }
    }

    pub fn queue(mut self, queue: usize) -> Job {
        self.queue = queue;
        self
    }

    pub fn flow(mut self, flow: u8) -> Job {
        self.flow = flow;
        self
    }
}

/// A job under way: what is left, and the frame that did not fit yet.
struct Active {
    job: Job,
    left: u32,
    pending: Option<(Stream, usize)>,
}

pub struct Net {
    pub vms: Vec<Vm>,
    pub checkers: Vec<Checker>,
    /// Frames sent per stream so far: the next sequence number.
    sent: HashMap<Stream, u32>,
    /// RX buffers' worth of frames on the way to each guest.
    in_flight: Vec<usize>,
    rng: Rng,
    frame: Vec<u8>,
    polls: Vec<libc::pollfd>,
}

impl Net {
    /// Guest `i` must have id `i`.
    pub fn new(vms: Vec<Vm>) -> Net {
        let checkers = vms.iter().map(|v| Checker::new(v.cfg.id, v.cfg.pairs)).collect();
        assert!(vms.iter().enumerate().all(|(i, v)| v.cfg.id as usize == i));
        Net {
            in_flight: vec![0; vms.len()],
            vms,
            checkers,
            sent: HashMap::new(),
            rng: Rng::new(1),
            frame: Vec::new(),
            polls: Vec::new(),
        }
    }

    /// Brings up `n` guests on the first ports of a switch, and lets it learn them.
    pub fn connect(d: &Daemon, n: usize, make: impl Fn(VmConfig) -> VmConfig) -> Net {
        let vm = |i: usize| Vm::connect(&d.socket(i), make(VmConfig::new(i as u8)));
        let mut net = Net::new((0..n).map(vm).collect());
        net.announce();
        net
    }

    /// Every guest broadcasts once, so that the switch knows where each is.
    pub fn announce(&mut self) {
        let jobs: Vec<Job> = (0..self.vms.len())
            .map(|i| Job::new(i, To::Broadcast, 1, Sizes::Fixed(60)).flow(6))
            .collect();
        self.run(&jobs);
    }

    /// Guests that must get a frame of guest `from` to `to`.
    fn receivers(&self, from: usize, to: To) -> impl Iterator<Item = usize> + use<> {
        let all = match to {
            To::Vm(id) => id as usize..id as usize + 1,
            _ => 0..self.vms.len(),
        };
        all.filter(move |&r| r != from)
    }

    /// RX buffers that a frame takes at guest `i`, at most.
    fn weight(&self, i: usize, len: usize) -> usize {
        let vm = &self.vms[i];
        let cap = vm.rx.iter().map(|r| r.min_capacity()).min().expect("a ring") as usize;
        (len + vm.cfg.header_len()).div_ceil(cap)
    }

    fn window(&self, i: usize) -> usize {
        let buffers = self.vms[i].rx.iter().map(|r| r.buffer_count()).min().expect("a ring");
        (buffers / 2).max(1)
    }

    /// True if all receivers have room for one more frame in their windows. An empty window
    /// takes any frame.
    fn fits(&self, from: usize, to: To, len: usize) -> bool {
        self.receivers(from, to).all(|r| {
            let held = self.in_flight[r];
            held == 0 || held + self.weight(r, len) <= self.window(r)
        })
    }

    /// Sends all jobs and receives until each frame arrived, then checks the books.
    pub fn run(&mut self, jobs: &[Job]) {
        self.try_run(jobs).unwrap_or_else(|stall| panic!("{stall}"));
    }

    /// Frames that did not arrive so far, by the receive buffers that they take.
    pub fn under_way(&self) -> usize {
        self.in_flight.iter().sum()
    }

    /// As [`Net::run`]; if frames do not arrive: how all rings stand.
    pub fn try_run(&mut self, jobs: &[Job]) -> Result<(), String> {
        let mut active: Vec<Active> =
            jobs.iter().map(|j| Active { left: j.frames, job: j.clone(), pending: None }).collect();
        let mut last = Instant::now();
        loop {
            let mut moved = 0;
            for a in &mut active {
                moved += self.send_turn(a);
            }
            active.retain(|a| a.left > 0);
            moved += self.receive();
            if active.is_empty() && self.in_flight.iter().all(|&n| n == 0) {
                break;
            }
            if moved > 0 {
                last = Instant::now();
            } else if last.elapsed() < SOON {
                self.sleep(&active)?;
            } else {
                return Err(format!("stalled: {}", self.state(&active)));
            }
        }
        self.check();
        Ok(())
    }

    /// Sends all frames of a job without waiting for their arrival (they must fit the rings); a
    /// later `run` receives and checks them.
    pub fn send_only(&mut self, job: &Job) {
        let mut a = Active { left: job.frames, job: job.clone(), pending: None };
        while a.left > 0 {
            let n = self.send_turn(&mut a);
            assert!(n > 0, "no room for frames to leave behind");
        }
    }

    /// Sends what one stream may; answers the number of frames.
    fn send_turn(&mut self, a: &mut Active) -> usize {
        let mut n = 0;
        while n < TURN && a.left > 0 {
            let (stream, len) = match a.pending {
                Some(p) => p,
                None => self.next_frame(&a.job, a.left),
            };
            a.pending = Some((stream, len));
            if !self.fits(a.job.from, a.job.to, len) {
                break;
            }
            let seq = self.sent.get(&stream).copied().unwrap_or(0);
            traffic::build(&stream, seq, len, &mut self.frame);
            if !self.vms[a.job.from].tx[a.job.queue].queue(&self.frame) {
                break;
            }
            a.pending = None;
            a.left -= 1;
            n += 1;
            self.sent.insert(stream, seq + 1);
            for r in self.receivers(a.job.from, a.job.to) {
                self.in_flight[r] += self.weight(r, len);
            }
        }
        self.vms[a.job.from].tx[a.job.queue].ring.publish();
        n
    }

    fn next_frame(&mut self, job: &Job, left: u32) -> (Stream, usize) {
        let len = job.sizes.get(&mut self.rng, job.frames - left);
        let short = len < traffic::FULL_MIN;
        let stream = Stream {
            sender: job.from as u8,
            queue: if short { 0 } else { job.queue as u8 },
            to: job.to,
            flow: if short { SHORT_FLOW } else { job.flow },
        };
        (stream, len)
    }

    /// Takes frames from all rings of all guests.
    pub fn receive(&mut self) -> usize {
        let mut n = 0;
        for i in 0..self.vms.len() {
            for ring in 0..self.vms[i].rx.len() {
                let checker = &mut self.checkers[i];
                let cap = self.vms[i].rx.iter().map(|r| r.min_capacity()).min().unwrap() as usize;
                let header = self.vms[i].cfg.header_len();
                let mut weight = 0;
                n += self.vms[i].rx[ring].recv(TAKE, |_, frame| {
                    checker.accept(ring, frame);
                    weight += (frame.len() + header).div_ceil(cap);
                });
                // Saturating: what else arrives here is the checker's to judge.
                self.in_flight[i] = self.in_flight[i].saturating_sub(weight);
            }
        }
        n
    }

    /// Sleeps until a call comes, after asking for one on each ring that matters.
    fn sleep(&mut self, active: &[Active]) -> Result<(), String> {
        self.polls.clear();
        let mut ready = false;
        for vm in &mut self.vms {
            for rx in &mut vm.guest.rx {
                ready |= rx.ring.arm();
                self.polls.push(pollfd(rx.ring.call.raw()));
            }
        }
        for a in active {
            let tx = &mut self.vms[a.job.from].tx[a.job.queue];
            if tx.ring.in_flight() > 0 {
                ready |= tx.ring.arm();
                self.polls.push(pollfd(tx.ring.call.raw()));
            }
        }
        if !ready && !sys::poll_set(&mut self.polls, SOON) {
            let lost = self.vms.iter().any(|v| v.rings().any(|r| r.has_used()));
            let what = if lost { "lost notification" } else { "stall" };
            return Err(format!("{what}: {}", self.state(active)));
        }
        for vm in &mut self.vms {
            for rx in &mut vm.guest.rx {
                rx.ring.call.take();
                rx.ring.disarm();
            }
            for tx in &mut vm.guest.tx {
                tx.reclaim();
                tx.ring.call.take();
                tx.ring.disarm();
            }
        }
        Ok(())
    }

    fn state(&self, active: &[Active]) -> String {
        let rings: Vec<String> = self
            .vms
            .iter()
            .flat_map(|v| v.rings().map(|r| (v.cfg.id, r)))
            .map(|(id, r)| {
                let (held, used, avail) = (r.in_flight(), r.used_idx(), r.avail_idx());
                format!("vm {id} ring {}: avail {avail} used {used} held {held}", r.index)
            })
            .collect();
        let left: Vec<u32> = active.iter().map(|a| a.left).collect();
        format!("unsent {left:?}, on the way {:?}\n{}", self.in_flight, rings.join("\n"))
    }

    /// After a run: every stream whole at each of its receivers, every TX buffer back.
    fn check(&mut self) {
        for vm in &mut self.vms {
            for tx in &mut vm.guest.tx {
                tx.drain(SOON);
            }
        }
        for (stream, &n) in &self.sent {
            for r in self.receivers(stream.sender as usize, stream.to) {
                self.checkers[r].complete(stream, u64::from(n));
            }
        }
    }

    /// For a switch that served this net alone: its counters agree with the guests' books, frame
    /// by frame, and nothing was dropped on the way out (I1). Guest `i` is port `p{i}`.
    pub fn books(&self, d: &Daemon) {
        let c = d.counters();
        c.balance();
        for (vm, checker) in self.vms.iter().zip(&self.checkers) {
            let port = format!("p{}", vm.cfg.id);
            let sent: u64 = vm.tx.iter().map(|t| t.frames).sum();
            let counted = c.sum(Some(&port), "in", "frames");
            assert_eq!(counted, sent, "{port}: frames in: {c:#?}");
            assert_eq!(c.sum(Some(&port), "out", "frames"), checker.frames, "{port}: {c:#?}");
            assert_eq!(c.sum(Some(&port), "out", "bytes"), checker.bytes, "{port}: {c:#?}");
            assert_eq!(c.drops(Some(&port), "out"), 0, "{port}: drops: {c:#?}");
        }
    }

    /// For after the last run: nothing more arrives, and no guest's memory holds a word of
    /// another's (I4). All RX buffers are poison again by now.
    pub fn finish(&mut self) {
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(self.receive(), 0, "frames nobody sent");
        for a in &self.vms {
            assert!(a.no_errors(), "guest {}: error reported", a.cfg.id);
            for b in self.vms.iter().filter(|b| b.cfg.id != a.cfg.id) {
                let found = a.mem.contains(&tag_of(b.cfg.id).to_le_bytes());
                assert!(!found, "memory of guest {} holds bytes of {} (I4)", a.cfg.id, b.cfg.id);
            }
        }
    }
}

fn pollfd(fd: std::os::fd::RawFd) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}
