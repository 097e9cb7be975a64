//! Counters, and the named reasons for a drop.
//!
//! `in` is from a port into the switch, `out` from the switch to a port. The counters reconcile:
//! * per ingress: frames in = drops at the ingress + frames admitted; each admitted frame asks
//!   for a number of copies;
//! * over all ports: copies = frames out + drops at an egress.
//!
//! Two kinds of writer. A counter that belongs to a ring is only written under that ring's lock,
//! so it is a plain load and store that any thread may read ([`Counter::add`]). A counter shared
//! by several writers is off the hot path and uses an atomic add ([`Counter::add_shared`]).

mod reasons;

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

pub use reasons::DropReason;

/// A number that one owner at a time increases and any thread may read.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`; the caller holds whatever lock makes it the only writer.
    #[inline(always)]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Adds `n` where several threads may write.
    #[inline]
    pub fn add_shared(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The current value.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Which way frames go.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// From a port into the switch.
    #[default]
    In,
    /// From the switch to a port.
    Out,
}

impl Direction {
    /// Both.
    pub const ALL: [Direction; 2] = [Direction::In, Direction::Out];

    /// The name used in logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Direction::In => "in",
            Direction::Out => "out",
        }
    }
}

/// A number for each reason, in their order.
pub type Reasons = [u64; DropReason::ALL.len()];

/// What crossed in one direction, over all queues of a port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Frames.
    pub frames: u64,
    /// Their bytes, without virtio-net headers.
    pub bytes: u64,
    /// Frames that were dropped, by their reason.
    pub drops: Reasons,
}

impl Traffic {
    /// Adds what a queue counted.
    pub fn add(&mut self, queue: &QueueStats) {
        self.frames = self.frames.wrapping_add(queue.frames.get());
        self.bytes = self.bytes.wrapping_add(queue.bytes.get());
        queue.drops.add_to(&mut self.drops);
    }

    /// Reasons that ever happened, with how often.
    pub fn dropped(&self) -> impl Iterator<Item = (DropReason, u64)> {
        let all = DropReason::ALL.iter().copied().zip(self.drops);
        all.filter(|(_, count)| *count > 0)
    }
}

/// A counter per reason.
#[derive(Debug, Default)]
pub struct Drops([Counter; DropReason::ALL.len()]);

impl Drops {
    /// Counts `n` under the lock that makes the caller the only writer.
    #[inline]
    pub fn add(&self, reason: DropReason, n: u64) {
        self.0[reason as usize].add(n);
    }

    /// Counts `n` from any thread.
    #[inline]
    pub fn add_shared(&self, reason: DropReason, n: u64) {
        self.0[reason as usize].add_shared(n);
    }

    /// The count of one reason.
    pub fn get(&self, reason: DropReason) -> u64 {
        self.0[reason as usize].get()
    }

    /// Adds each count to that of its reason in `sums`.
    pub fn add_to(&self, sums: &mut Reasons) {
        for (sum, counter) in sums.iter_mut().zip(&self.0) {
            *sum = sum.wrapping_add(counter.get());
        }
    }

    /// Sum over all reasons.
    pub fn total(&self) -> u64 {
        self.0.iter().map(Counter::get).sum()
    }

    fn each(&self, visit: &mut dyn FnMut(&str, &Counter)) {
        for reason in DropReason::ALL {
            visit(&format!("drop.{}", reason.name()), &self.0[*reason as usize]);
        }
    }
}

/// One queue in one direction; written under its ring's lock.
#[derive(Debug, Default)]
pub struct QueueStats {
    /// Frames that crossed: taken from the guest, or delivered to it.
    pub frames: Counter,
    /// Their bytes, without virtio-net headers.
    pub bytes: Counter,
    /// Copies asked for by admitted frames (TX queues only).
    pub copies: Counter,
    /// Frames dropped here.
    pub drops: Drops,
    /// Interrupts sent to the guest.
    pub signals: Counter,
    /// Bursts after which the guest wanted no interrupt.
    pub signals_suppressed: Counter,
    /// Kicks received.
    pub kicks: Counter,
    /// TX: times that a burst began to wait for its receiver.
    pub waits: Counter,
    /// RX: buffers returned unused because their chain was invalid.
    pub bad_buffers: Counter,
    /// To a receiver: what was done for frames in its stead.
    pub fallbacks: Fallbacks,
    /// From a port: cycles that its bursts took of their worker. Not reported: for the balance of
    /// the workers.
    pub cycles: Counter,
}

impl QueueStats {
    /// True if the queue never did anything.
    pub fn is_untouched(&self) -> bool {
        let QueueStats { frames, kicks, bad_buffers, drops, .. } = self;
        frames.get() + drops.total() + kicks.get() + bad_buffers.get() == 0
    }

    /// Every counter with its name, as in the report.
    pub fn each(&self, visit: &mut dyn FnMut(&str, &Counter)) {
        let QueueStats { frames, bytes, copies, drops, signals, signals_suppressed, .. } = self;
        let QueueStats { kicks, waits, bad_buffers, fallbacks, .. } = self;
        let Fallbacks { checksummed, segmented, segments, segments_lost } = fallbacks;
        for (name, counter) in [
            ("frames", frames),
            ("bytes", bytes),
            ("copies", copies),
            ("kicks", kicks),
            ("signals", signals),
            ("signals_suppressed", signals_suppressed),
            ("waits", waits),
            ("bad_buffers", bad_buffers),
            ("checksummed", checksummed),
            ("segmented", segmented),
            ("segments", segments),
            ("segments_lost", segments_lost),
        ] {
            visit(name, counter);
        }
        drops.each(visit);
    }
}

/// Offloads that a receiver lacks, done in software.
#[derive(Debug, Default)]
pub struct Fallbacks {
    /// Frames whose checksum was finished.
    pub checksummed: Counter,
    /// Frames that were cut into segments.
    pub segmented: Counter,
    /// These segments.
    pub segments: Counter,
    /// Segments that found no buffer although their frame counts as delivered.
    pub segments_lost: Counter,
}

/// What belongs to a port as a whole; written from several threads.
#[derive(Debug, Default)]
pub struct PortStats {
    /// Copies dropped because they are too big for the port, or no ring of it could be chosen.
    pub drops: Drops,
    /// Front-ends attached so far.
    pub attaches: Counter,
    /// Sessions ended by an error.
    pub session_errors: Counter,
    /// Rings marked broken.
    pub rings_broken: Counter,
    /// Source addresses not learned because a cap was reached.
    pub learn_refused: Counter,
    /// Source addresses not learned because they are another port's static ones.
    pub learn_static: Counter,
    /// Source addresses that were learned and had been behind another port.
    pub mac_moves: Counter,
    /// Announcements sent on the guest's behalf; written by the first worker only.
    pub announced: QueueStats,
    /// Turns that ended in a panic and were contained.
    pub panics: Counter,
}

impl PortStats {
    /// Every counter of the port as a whole with its name, as in the report; those of `announced`
    /// are a queue's.
    pub fn each(&self, visit: &mut dyn FnMut(&str, &Counter)) {
        let PortStats { drops, attaches, session_errors, rings_broken, announced: _, .. } = self;
        let PortStats { learn_refused, learn_static, mac_moves, panics, .. } = self;
        for (name, counter) in [
            ("attaches", attaches),
            ("session_errors", session_errors),
            ("rings_broken", rings_broken),
            ("learn_refused", learn_refused),
            ("learn_static", learn_static),
            ("mac_moves", mac_moves),
            ("panics", panics),
        ] {
            visit(name, counter);
        }
        drops.each(visit);
    }
}

/// Counters of one worker.
#[derive(Debug, Default)]
pub struct WorkerStats {
    /// Passes over the ready sources.
    pub turns: Counter,
    /// Passes that found frames.
    pub busy_turns: Counter,
    /// Cycles (`sys::clock`) of the loop's iterations whose turn found frames, with the
    /// notes and kernel events they took.
    pub busy_cycles: Counter,
    /// Cycles of the iterations that looked and found nothing. Sleep counts in neither.
    pub idle_cycles: Counter,
    /// Bursts that held frames.
    pub bursts: Counter,
    /// Heads taken in them.
    pub frames: Counter,
    /// Returns from sleep.
    pub wakeups: Counter,
    /// Returns from sleep that were followed by no frame.
    pub empty_wakeups: Counter,
    /// Spins that ended with a frame.
    pub spins_found: Counter,
    /// Spins that were given up.
    pub spins_empty: Counter,
    /// Signals written.
    pub signals: Counter,
    /// Bursts after which a guest wanted no signal.
    pub signals_suppressed: Counter,
    /// Signals that a full or broken descriptor did not take.
    pub signals_failed: Counter,
    /// Receive locks found taken.
    pub lock_misses: Counter,
    /// Receive locks that had to be waited for in the kernel.
    pub lock_parks: Counter,
    /// Rings that came from another worker; written under the lock of the assignment.
    pub moves: Counter,
    /// Times that it stood still and a reserve thread worked for it; written by the watchdog.
    pub stalls: Counter,
}

impl WorkerStats {
    /// Every counter with its name, as in the report.
    pub fn each(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        for (name, counter) in self.all() {
            visit(name, counter.get());
        }
    }

    /// Adds what was counted to `other` and begins anew. The caller is the only one who writes here
    /// otherwise than by [`Counter::add_shared`], or there.
    pub fn move_to(&self, other: &WorkerStats) {
        for ((_, counter), (_, sum)) in self.all().into_iter().zip(other.all()) {
            sum.add_shared(counter.0.swap(0, Ordering::Relaxed));
        }
    }

    fn all(&self) -> [(&'static str, &Counter); 17] {
        [
            ("turns", &self.turns),
            ("bursts", &self.bursts),
            ("frames", &self.frames),
            ("wakeups", &self.wakeups),
            ("empty_wakeups", &self.empty_wakeups),
            ("signals", &self.signals),
            ("signals_suppressed", &self.signals_suppressed),
            ("signals_failed", &self.signals_failed),
            ("lock_misses", &self.lock_misses),
            ("lock_parks", &self.lock_parks),
            ("moves", &self.moves),
            ("stalls", &self.stalls),
            ("busy_turns", &self.busy_turns),
            ("busy_cycles", &self.busy_cycles),
            ("idle_cycles", &self.idle_cycles),
            ("spins_found", &self.spins_found),
            ("spins_empty", &self.spins_empty),
        ]
    }
}

/// What became of clients of the control socket; written by one thread.
#[derive(Debug, Default)]
pub struct ClientStats {
    /// Those that are connected.
    pub connected: Counter,
    /// All that were let in.
    pub accepted: Counter,
    /// Closed at once, because there were too many.
    pub refused: Counter,
    /// Closed for what was no call.
    pub malformed: Counter,
    /// Closed for a message that was too long.
    pub too_long: Counter,
    /// Closed for a message that took too long to come.
    pub too_slow: Counter,
    /// Closed for replies that were not read.
    pub unread: Counter,
}

impl ClientStats {
    /// Those that were closed, by the reason.
    pub fn closed(&self) -> [(&'static str, u64); 5] {
        [
            ("refused", self.refused.get()),
            ("malformed", self.malformed.get()),
            ("too_long", self.too_long.get()),
            ("too_slow", self.too_slow.get()),
            ("unread", self.unread.get()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_is_the_sum_of_queues() {
        let queues = [QueueStats::default(), QueueStats::default()];
        assert!(queues[0].is_untouched());
        let mut traffic = Traffic::default();
        for queue in &queues {
            queue.frames.add(2);
            queue.drops.add(DropReason::NoBuffer, 3);
            queue.drops.add_shared(DropReason::Hairpin, 1);
            traffic.add(queue);
        }
        assert_eq!((traffic.frames, queues[0].drops.total()), (4, 4));
        let dropped: Vec<_> = traffic.dropped().collect();
        assert_eq!(dropped, [(DropReason::Hairpin, 2), (DropReason::NoBuffer, 6)]);
    }
}
