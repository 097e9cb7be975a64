//! One measurement: announce, warm up, measure, drain.
//!
//! A single thread plays all guests. In each turn it takes from and sends to every port, then one
//! full fence orders all that was published before the look at who wants a kick. Every wait has a
//! limit; a back-end that dies or moves nothing ends the run with an error.

use std::sync::atomic::{Ordering, fence};

use super::books::{Histogram, Receiver};
use super::frame::{self, Accept, Addresses, Found, Stamp};
use super::port::Port;
use super::system::{ThreadTime, own_cpu, process_times, ticks};

/// Seconds until each receiver must have heard its senders.
const HEAR_SECONDS: f64 = 10.0;
/// Seconds without a received frame, while frames are sent, that make a stall.
const STALL_SECONDS: f64 = 2.0;
/// The same, and the limit of the drain, if frames are counted: the back-end may run under a
/// profiler on a busy machine.
const SLOW_STALL_SECONDS: f64 = 30.0;
/// Seconds without a received frame that end the drain.
const DRAIN_SECONDS: f64 = 0.2;
/// Frames taken from a port in one turn: more than all senders send meanwhile, so that it is not
/// the generator that loses frames where many send to one.
const TAKE: u16 = 4096;
/// Seconds between looks at whether the ports are well.
const CHECK_SECONDS: f64 = 0.02;

/// Who sends to whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Pattern {
    /// Ports 0 and 1 to each other, 2 and 3, and so on.
    Pairs,
    /// 0 to 1, 2 to 3, and so on.
    OneWay,
    /// All others to port 0.
    AllToOne,
    /// Port 0 to all others, by broadcast.
    Broadcast,
    /// Nobody sends.
    Idle,
}

impl Pattern {
    /// The receiver of a sender's frames: a port, or all of them; `None` for one that is silent.
    pub fn receiver(self, port: usize, ports: usize) -> Option<To> {
        match self {
            Pattern::Pairs if (port ^ 1) < ports => Some(To::Port(port ^ 1)),
            Pattern::OneWay if port & 1 == 0 && port + 1 < ports => Some(To::Port(port + 1)),
            Pattern::AllToOne if port > 0 => Some(To::Port(0)),
            Pattern::Broadcast if port == 0 => Some(To::All),
            _ => None,
        }
    }
}

/// Where a sender's frames go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum To {
    Port(usize),
    All,
}

impl To {
    /// The ports that must get a frame of `sender`.
    pub fn ports(self, sender: usize, ports: usize) -> std::ops::Range<usize> {
        match self {
            To::Port(port) => port..port + 1,
            // Port 0 alone broadcasts.
            To::All => sender + 1..ports,
        }
    }
}

/// The lengths of frames, without FCS.
#[derive(Clone, Debug)]
pub enum Lengths {
    Fixed(u32),
    /// Each in turn.
    Cycle(Vec<u32>),
}

/// What to measure.
#[derive(Clone)]
pub struct Plan {
    pub pattern: Pattern,
    pub lengths: Lengths,
    /// Frames per second of all senders together; 0 for as many as possible.
    pub rate: f64,
    pub warm_up: f64,
    pub seconds: f64,
    /// Each sender stops after so many frames and there is no warm-up; 0 for no such limit.
    pub frames: u64,
    pub burst: u16,
    /// Source addresses of each port: a power of two.
    pub addresses: u32,
    /// The back-end's process.
    pub pid: Option<u32>,
    pub ticks_per_second: f64,
}

struct Sender {
    port: u16,
    to: To,
    /// The only addresses, if there is one of each.
    fixed: Addresses,
    sequence: u32,
    sent: u64,
}

impl Sender {
    /// The addresses of the frame with this number. Large strides, so that neither neighbours in
    /// the switch's table nor those just used follow each other.
    #[inline(always)]
    fn addresses(&self, sequence: u32, count: u32) -> Addresses {
        if count == 1 {
            return self.fixed;
        }
        let index = (sequence.wrapping_mul(0x9e37_79b1) >> 8 & (count - 1)) as u16;
        let source = frame::address(self.port, index);
        match self.to {
            To::Port(port) => Addresses::new(frame::address(port as u16, index), source),
            To::All => Addresses::new(frame::BROADCAST, source),
        }
    }
}

/// All counters at one moment.
#[derive(Clone)]
pub struct Snapshot {
    pub ticks: u64,
    pub sent: u64,
    pub receivers: Vec<Receiver>,
    /// Of the back-end, if its process is known, and of this one.
    pub back_end: Vec<ThreadTime>,
    pub generator: Vec<ThreadTime>,
    /// Of this thread, in user mode and in the kernel.
    pub own: (u64, u64),
}

/// What came of a run.
pub struct Outcome {
    /// At the start and the end of the measurement, and after the drain.
    pub start: Snapshot,
    pub end: Snapshot,
    pub drained: Snapshot,
    /// Frames sent since the start that did not arrive, counted at each receiver.
    pub lost: u64,
    pub latency: Histogram,
    pub kicks: u64,
    /// Ticks, while measuring, in turns in which nothing could be sent or taken.
    pub idle: u64,
}

pub struct Run<P: Port, const TOUCH: bool> {
    plan: Plan,
    ports: Vec<P>,
    /// Attached, but neither polled nor sent from.
    _silent: Vec<P>,
    senders: Vec<Sender>,
    accept: Accept,
    receivers: Vec<Receiver>,
    latency: Histogram,
    /// Place in the cycle of lengths.
    cycle: usize,
    /// Ticks in turns in which nothing could be sent or taken.
    idle: u64,
}

impl<P: Port, const TOUCH: bool> Run<P, TOUCH> {
    pub fn new(plan: Plan, ports: Vec<P>, silent: Vec<P>) -> Run<P, TOUCH> {
        let n = ports.len();
        let sender = |i: usize| {
            let to = plan.pattern.receiver(i, n)?;
            let destination = match to {
                To::Port(port) => frame::address(port as u16, 0),
                To::All => frame::BROADCAST,
            };
            let fixed = Addresses::new(destination, frame::address(i as u16, 0));
            Some(Sender { port: i as u16, to, fixed, sequence: 0, sent: 0 })
        };
        Run {
            senders: (0..n).filter_map(sender).collect(),
            receivers: vec![Receiver::new(n); n],
            accept: Accept::broadcast(),
            latency: Histogram::new(),
            cycle: 0,
            idle: 0,
            ports,
            _silent: silent,
            plan,
        }
    }

    /// Runs all phases.
    pub fn run(mut self) -> Result<Outcome, String> {
        self.announce()?;
        let measured = if self.plan.frames > 0 { f64::INFINITY } else { self.plan.seconds };
        if self.plan.frames == 0 {
            self.exchange(self.plan.warm_up)?;
        }
        self.latency = Histogram::new();
        self.idle = 0;
        let start = self.snapshot();
        self.exchange(measured)?;
        let end = self.snapshot();
        self.drain()?;
        let drained = self.snapshot();
        let lost = self.lost(&start);
        let kicks = self.ports.iter().map(|p| p.kicks()).sum();
        Ok(Outcome { start, end, drained, lost, latency: self.latency, kicks, idle: self.idle })
    }

    fn seconds(&self, ticks: u64) -> f64 {
        ticks as f64 / self.plan.ticks_per_second
    }

    fn in_ticks(&self, seconds: f64) -> u64 {
        (seconds * self.plan.ticks_per_second) as u64
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot {
            ticks: ticks(),
            sent: self.senders.iter().map(|s| s.sent).sum(),
            receivers: self.receivers.clone(),
            back_end: self.plan.pid.map_or_else(Vec::new, process_times),
            generator: process_times(std::process::id()),
            own: own_cpu(),
        }
    }

    /// Tells the switch where all addresses are, until each receiver has heard its senders.
    fn announce(&mut self) -> Result<(), String> {
        let begin = ticks();
        while let Some((from, to)) = self.unheard() {
            if self.seconds(ticks() - begin) > HEAR_SECONDS {
                return Err(format!("no frame of port {from} reached port {to}"));
            }
            self.announce_range(0, 1)?;
        }
        self.announce_range(0, 1)?;
        self.announce_range(1, self.plan.addresses)?;
        self.settle(0.05)
    }

    /// A sender that one of its receivers did not hear.
    fn unheard(&self) -> Option<(usize, usize)> {
        let n = self.ports.len();
        let receivers = |s: &Sender| {
            let from = usize::from(s.port);
            s.to.ports(from, n).map(move |to| (from, to))
        };
        self.senders.iter().flat_map(receivers).find(|&(from, to)| !self.receivers[to].heard[from])
    }

    /// Every port broadcasts one frame from each of these addresses.
    fn announce_range(&mut self, from: u32, to: u32) -> Result<(), String> {
        let ports = self.ports.len();
        for index in from..to {
            for i in 0..ports {
                let source = frame::address(i as u16, index as u16);
                let to = Addresses::new(frame::BROADCAST, source).announcing();
                let stamp = Stamp { sender: i as u16, sequence: index, ticks: 0 };
                let port = &mut self.ports[i];
                if port.room(1) > 0 {
                    // SAFETY: ports give buffers of at least 60 bytes.
                    port.send(60, |p| unsafe { frame::write::<true>(p, 60, to, stamp) });
                }
            }
            // A frame or two of each port on the way, so that no ring overflows.
            self.settle(if to - from == 1 { 0.01 } else { 20e-6 })?;
        }
        Ok(())
    }

    /// Receives for a while.
    fn settle(&mut self, seconds: f64) -> Result<(), String> {
        let end = ticks() + self.in_ticks(seconds);
        loop {
            self.receive_all();
            self.publish();
            if ticks() >= end {
                return self.check();
            }
        }
    }

    fn check(&mut self) -> Result<(), String> {
        for (i, port) in self.ports.iter_mut().enumerate() {
            if let Some(reason) = port.failure() {
                return Err(format!("port {i}: {reason}"));
            }
        }
        Ok(())
    }

    /// Sends and receives for so long, or until all frames of the plan are sent.
    fn exchange(&mut self, seconds: f64) -> Result<(), String> {
        if self.plan.pattern == Pattern::Idle {
            std::thread::sleep(std::time::Duration::from_secs_f64(seconds));
            return self.check();
        }
        let begin = ticks();
        let end = begin.saturating_add(self.in_ticks(seconds));
        let (limit, patience) = match self.plan.frames {
            0 => (u64::MAX, STALL_SECONDS),
            n => (n, SLOW_STALL_SECONDS),
        };
        let pace = self.plan.rate / self.plan.ticks_per_second / self.senders.len() as f64;
        let already: u64 = self.senders.iter().map(|s| s.sent).sum();
        let already = already / self.senders.len() as u64;
        let interval = self.in_ticks(CHECK_SECONDS);
        let (mut next_check, mut moved, mut last_moved) = (begin + interval, 0u64, begin);
        loop {
            let now = ticks();
            if now >= next_check {
                next_check = now + interval;
                self.check()?;
                if moved > 0 {
                    (moved, last_moved) = (0, now);
                } else if self.plan.rate == 0.0 && self.seconds(now - last_moved) > patience {
                    return Err(format!("stalled: no frame arrived for {patience} s"));
                }
                if now >= end || self.senders.iter().all(|s| s.sent >= limit) {
                    return Ok(());
                }
            }
            let received = self.receive_all();
            moved += received;
            let due = match pace > 0.0 {
                true => already + ((now - begin) as f64 * pace) as u64,
                false => u64::MAX,
            };
            let sent = self.send_all(due.min(limit));
            self.publish();
            if received + sent == 0 {
                self.idle += ticks() - now;
            }
        }
    }

    /// Each sender sends a burst, but not more than `due` frames in all; answers the
    /// number of frames.
    #[inline(always)]
    fn send_all(&mut self, due: u64) -> u64 {
        let now = ticks();
        let mut sum = 0;
        let (burst, count) = (self.plan.burst, self.plan.addresses);
        for s in &mut self.senders {
            let want = due.saturating_sub(s.sent).min(u64::from(burst)) as u16;
            if want == 0 {
                continue;
            }
            let port = &mut self.ports[usize::from(s.port)];
            let room = port.room(want);
            for _ in 0..room {
                let len = match &self.plan.lengths {
                    Lengths::Fixed(len) => *len,
                    Lengths::Cycle(lengths) => {
                        self.cycle =
                            if self.cycle + 1 < lengths.len() { self.cycle + 1 } else { 0 };
                        lengths[self.cycle]
                    }
                };
                let to = s.addresses(s.sequence, count);
                let stamp = Stamp { sender: s.port, sequence: s.sequence, ticks: now };
                // SAFETY: ports were made for the longest frame of the plan.
                port.send(len, |p| unsafe { frame::write::<TOUCH>(p, len, to, stamp) });
                s.sequence = s.sequence.wrapping_add(1);
            }
            s.sent += u64::from(room);
            sum += u64::from(room);
        }
        sum
    }

    /// Takes what arrived at each port; answers how many frames.
    #[inline(always)]
    fn receive_all(&mut self) -> u64 {
        let mut sum = 0;
        let broadcast = self.plan.pattern == Pattern::Broadcast;
        for (i, (port, receiver)) in self.ports.iter_mut().zip(&mut self.receivers).enumerate() {
            let accept = if broadcast { self.accept } else { Accept::own(i as u16) };
            let mut oldest = 0;
            let mut bytes = 0;
            sum += u64::from(port.receive(TAKE, |p, len| {
                // SAFETY: ports hand out `len` readable bytes.
                match unsafe { frame::check::<TOUCH>(p, len, accept) } {
                    Found::Good(stamp) => {
                        let Some(stream) = receiver.streams.get_mut(usize::from(stamp.sender))
                        else {
                            receiver.foreign += 1;
                            return;
                        };
                        stream.accept(stamp.sequence);
                        bytes += len as u64;
                        if oldest == 0 {
                            oldest = stamp.ticks;
                        }
                    }
                    found => note(
                        found,
                        &mut receiver.heard,
                        [&mut receiver.flooded, &mut receiver.foreign, &mut receiver.corrupt],
                    ),
                }
            }));
            receiver.bytes += bytes;
            if oldest != 0 {
                self.latency.add(ticks().saturating_sub(oldest));
            }
        }
        sum
    }

    #[inline(always)]
    fn publish(&mut self) {
        for port in &mut self.ports {
            port.publish();
        }
        // The other half of the device's "ask for a kick, look again" (virtio 1.2, 2.7.13.4.1).
        fence(Ordering::SeqCst);
        for port in &mut self.ports {
            port.kick();
        }
    }

    /// Receives until nothing comes any more.
    fn drain(&mut self) -> Result<(), String> {
        let begin = ticks();
        let (patience, seconds) = match self.plan.frames {
            0 => (DRAIN_SECONDS, STALL_SECONDS),
            _ => (STALL_SECONDS, SLOW_STALL_SECONDS),
        };
        let patience = self.in_ticks(patience);
        let end = begin + self.in_ticks(seconds);
        let mut last = begin;
        while self.plan.pattern != Pattern::Idle && self.on_the_way() {
            let now = ticks();
            if self.receive_all() > 0 {
                last = now;
            }
            self.publish();
            if now > end || now.saturating_sub(last) > patience {
                break;
            }
        }
        self.check()
    }

    fn on_the_way(&self) -> bool {
        self.each_stream().any(|(sent, s)| s.expected != sent)
    }

    /// All pairs of a sender and a receiver: the sender's next number, and the receiver's books.
    fn each_stream(&self) -> impl Iterator<Item = (u32, &super::books::Stream)> {
        let n = self.ports.len();
        self.senders.iter().flat_map(move |s| {
            let from = usize::from(s.port);
            s.to.ports(from, n).map(move |to| (s.sequence, &self.receivers[to].streams[from]))
        })
    }

    /// See [`Outcome::lost`].
    fn lost(&self, start: &Snapshot) -> u64 {
        let tail: u64 =
            self.each_stream().map(|(n, s)| u64::from(n.wrapping_sub(s.expected))).sum();
        let missing =
            |r: &[Receiver]| -> u64 { r.iter().flat_map(|r| &r.streams).map(|s| s.missing).sum() };
        tail + missing(&self.receivers).saturating_sub(missing(&start.receivers))
    }
}

#[cold]
fn note(found: Found, heard: &mut [bool], [flooded, foreign, corrupt]: [&mut u64; 3]) {
    match found {
        Found::Announced(sender) => match heard.get_mut(usize::from(sender)) {
            Some(heard) => *heard = true,
            None => *foreign += 1,
        },
        Found::Flooded => *flooded += 1,
        Found::Foreign | Found::Good(_) => *foreign += 1,
        Found::Corrupt => *corrupt += 1,
    }
}
