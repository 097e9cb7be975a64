//! Counters, and the named reasons for a drop.
//!
//! `in` is from a port into the switch, `out` from the switch to a port. The counters reconcile:
//! * per ingress: frames in = drops at the ingress + frames admitted; each admitted frame needs a
//!   number of copies;
//! * over all ports: copies = frames out + drops at an egress.
//!
//! Counters have two kinds of writers. A thread writes a ring's counter only under the ring's lock,
//! by a plain load and store; any thread may read the counter ([`Counter::add`]). Several threads
//! write a shared counter by an atomic add, off the hot path ([`Counter::add_shared`]).

mod reasons;
mod states;

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

pub use reasons::DropReason;
pub use states::PortState;

/// A number that one owner at a time increases, and that any thread may read.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. The caller holds the lock that makes the caller the only writer.
    #[inline(always)]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Adds `n` to a counter that several threads may write.
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

/// Declares a struct of counters, each with its name and help, and with further fields behind the
/// counters.
macro_rules! counters {
    ($(#[$about:meta])* $stats:ident { $($name:ident $help:literal,)* }
        $($(#[$doc:meta])* $field:ident: $type:ty,)*) => {
        $(#[$about])*
        #[derive(Debug, Default)]
        pub struct $stats {
            $(#[doc = $help] pub $name: Counter,)*
            $($(#[$doc])* pub $field: $type,)*
        }

        impl $stats {
            /// Names and help of the counters, in the order of the report.
            pub const TABLE: &[(&str, &str)] = &[$((stringify!($name), $help),)*];

            /// Returns the counters with their names, in the order of [`Self::TABLE`].
            pub fn counters(&self) -> impl Iterator<Item = (&'static str, &Counter)> {
                [$((stringify!($name), &self.$name),)*].into_iter()
            }
        }
    };
}

words! {
    /// Direction of frames.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    Direction {
        /// From a port into the switch.
        In "in",
        /// From the switch to a port.
        Out "out",
    }
}

/// A number for each reason, in the order of [`DropReason::ALL`].
pub type Reasons = [u64; DropReason::ALL.len()];

/// Frames and bytes in one direction, over all queues of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traffic {
    /// Number of frames.
    pub frames: u64,
    /// Bytes of the frames, without virtio-net headers.
    pub bytes: u64,
    /// Dropped frames by reason.
    pub drops: Reasons,
}

// Rust gives arrays of more than 32 elements no default.
impl Default for Traffic {
    fn default() -> Traffic {
        Traffic { frames: 0, bytes: 0, drops: [0; DropReason::ALL.len()] }
    }
}

impl Traffic {
    /// Adds the counters of a queue.
    pub fn add(&mut self, queue: &QueueStats) {
        self.frames = self.frames.wrapping_add(queue.frames.get());
        self.bytes = self.bytes.wrapping_add(queue.bytes.get());
        queue.drops.add_to(&mut self.drops);
    }

    /// Returns the reasons that occurred, with the number of frames.
    pub fn dropped(&self) -> impl Iterator<Item = (DropReason, u64)> {
        let all = DropReason::ALL.iter().copied().zip(self.drops);
        all.filter(|(_, count)| *count > 0)
    }
}

/// A counter for each reason.
#[derive(Debug)]
pub struct Drops([Counter; DropReason::ALL.len()]);

impl Default for Drops {
    fn default() -> Drops {
        Drops(std::array::from_fn(|_| Counter::default()))
    }
}

impl Drops {
    /// Adds `n` under the lock that makes the caller the only writer.
    #[inline]
    pub fn add(&self, reason: DropReason, n: u64) {
        self.0[reason as usize].add(n);
    }

    /// Adds `n`; any thread may call this function.
    #[inline]
    pub fn add_shared(&self, reason: DropReason, n: u64) {
        self.0[reason as usize].add_shared(n);
    }

    /// Returns the count of a reason.
    pub fn get(&self, reason: DropReason) -> u64 {
        self.0[reason as usize].get()
    }

    /// Adds the count of each reason to the reason's sum in `sums`.
    pub fn add_to(&self, sums: &mut Reasons) {
        for (sum, counter) in sums.iter_mut().zip(&self.0) {
            *sum = sum.wrapping_add(counter.get());
        }
    }

    /// Returns the sum over all reasons.
    pub fn total(&self) -> u64 {
        self.0.iter().map(Counter::get).sum()
    }

    fn each(&self, visit: &mut dyn FnMut(&str, &Counter)) {
        for reason in DropReason::ALL {
            visit(&format!("drop.{}", reason.name()), &self.0[*reason as usize]);
        }
    }
}

counters! {
    /// Counters of one queue in one direction, written under the lock of the queue's ring.
    QueueStats {
        frames "Frames that crossed: taken from the guest, or delivered to it.",
        bytes "Bytes of these frames, without virtio-net headers.",
        copies "Copies that admitted frames need (TX queues only).",
        kicks "Kicks received.",
        signals "Interrupts sent to the guest.",
        signals_suppressed "Bursts after which the guest wanted no interrupt.",
        waits "TX: times that a burst began to wait for its receiver.",
        bad_buffers "RX: buffers returned unused because their chain was invalid.",
    }
    /// Frames dropped at the queue.
    drops: Drops,
    /// Offloads that the switch did in software for the queue's receiver.
    fallbacks: Fallbacks,
    /// Cycles of workers that bursts of the queue's port took. Not in reports: the balancer of the
    /// workers reads this counter.
    cycles: Counter,
}

impl QueueStats {
    /// Returns true if the queue has counted nothing.
    pub fn is_untouched(&self) -> bool {
        let QueueStats { frames, kicks, bad_buffers, drops, .. } = self;
        frames.get() + drops.total() + kicks.get() + bad_buffers.get() == 0
    }

    /// Visits every counter with its name in the report.
    pub fn each(&self, visit: &mut dyn FnMut(&str, &Counter)) {
        let all = self.counters().chain(self.fallbacks.counters());
        all.for_each(|(name, counter)| visit(name, counter));
        self.drops.each(visit);
    }
}

counters! {
    /// Offloads that the switch did in software because a receiver or sender lacks them.
    Fallbacks {
        checksummed "Frames whose checksum was finished.",
        segmented "Frames that were cut into segments.",
        segments "Segments that these frames were cut into.",
        segments_lost "Segments that found no buffer although their frame counts as delivered.",
        coalesced "Frames that left as segments of a larger packet.",
    }
}

counters! {
    /// Frames that broke a rule of a port with a guard, dropped or not. Several threads write these
    /// counters.
    GuardStats {
        mac "The source address is not the port's.",
        ip "The source address of IP is not the port's.",
        arp "The sender of an ARP packet is not the port's.",
        rarp "The sender of a RARP packet is not the port's.",
        nd "Target or link-layer address of neighbour discovery is not the port's.",
        dhcp "A DHCP client gives another identity or address than the port's, or one too many.",
        server "A server, relay or router sent it: DHCP, DHCPv6, advertisement, redirect, VRRP.",
        headers "The headers cannot be read, or not safely: cut off, in fragments, too long.",
        ethertype "The type is neither IPv4, IPv6, ARP or RARP nor listed in ethertypes.",
        version
            "An IP version of which allowed-ips lists no address; no event reports these frames.",
    }
}

impl GuardStats {
    /// Returns the number of frames that events report: all frames except frames of `version`,
    /// which guests send by themselves.
    pub fn told(&self) -> u64 {
        let all: u64 = self.counters().map(|(_, counter)| counter.get()).sum();
        all.wrapping_sub(self.version.get())
    }
}

counters! {
    /// Counters of a port as a whole; several threads write them.
    PortStats {
        attaches "Front-ends that connected.",
        session_errors "Sessions that ended with an error; see the log.",
        peers_refused "Refused peers of a datagram stream; see the log.",
        rings_broken "Rings ignored because the driver broke a rule; see the log.",
        learn_refused
            "Frames whose source was not learned because of a limit.",
        learn_static
            "Frames whose source was not learned because the address is static on another port.",
        learn_held
            "Frames whose source was not learned because the address flaps and is held elsewhere.",
        learn_busy
            "Frames whose source was not learned because another thread held the table; the next \
             frame learns.",
        mac_moves "Addresses that moved to the port from another port.",
        rate_waits "Times that frames began to wait for rate-in.",
        multicast_messages "Reports and queries of IGMP and MLD that snooping read.",
        multicast_refused
            "Reports and queries for which the switch had no room or time: the port gets all \
             groups until the next query.",
        multicast_too_many
            "Reports that named more groups than a port may name in a second: the port gets all \
             groups until the next query.",
        multicast_limited "Frames from the port that went to members of their group only.",
        copies "Copies for mirrors and for floods in later turns, and answers of filters.",
        panics "Bursts that ended in a contained panic; report the bug.",
    }
    /// Copies dropped because they are too big for the port, or because no ring of the port could
    /// be chosen.
    drops: Drops,
    /// Announcements that the switch sent for the guest; only the first worker writes these
    /// counters.
    announced: QueueStats,
    /// Frames from the port that broke a rule of the port's guard.
    guard: GuardStats,
}

impl PortStats {
    /// Visits every counter of the port as a whole with its name in the report, except the counters
    /// of `announced`, which are a queue's.
    pub fn each(&self, visit: &mut dyn FnMut(&str, &Counter)) {
        self.counters().for_each(|(name, counter)| visit(name, counter));
        for (rule, counter) in self.guard.counters() {
            visit(&format!("guard.{rule}"), counter);
        }
        self.drops.each(visit);
    }
}

counters! {
    /// Counters of one worker. `frames` counts taken heads. The thread that holds the assignment's
    /// lock writes `moves`; the watchdog writes `stalls`.
    ///
    /// `busy_cycles` and `idle_cycles` (`sys::clock`) are cycles of the loop's iterations, with the
    /// notes and kernel events that an iteration took. Sleep counts in neither counter.
    WorkerStats {
        turns "Passes over the ready rings.",
        bursts "Bursts that held frames.",
        frames "Buffers taken in bursts.",
        wakeups "Returns from sleep.",
        empty_wakeups "Returns from sleep that no frame followed.",
        signals "Notifications sent to guests.",
        signals_suppressed "Bursts after which a guest needed no notification.",
        signals_failed "Notifications that a descriptor refused.",
        lock_misses "Receive rings found locked by another worker: use fewer workers.",
        lock_parks "Sleeps for a locked receive ring, 8 ms at most: give the workers more CPUs.",
        moves "Transmit rings that came from another worker.",
        stalls
            "Times that a reserve thread took over from the worker, mostly because of a guest's \
             memory.",
        busy_turns "Passes that found frames.",
        busy_cycles "Seconds in passes that found frames.",
        idle_cycles "Seconds in passes without frames, and in spins; sleep does not count.",
        spins_found "Spins before a sleep that ended with a frame.",
        spins_empty "Spins before a sleep that ended without a frame.",
    }
}

impl WorkerStats {
    /// Visits every counter with its name in the report.
    pub fn each(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.counters().for_each(|(name, counter)| visit(name, counter.get()));
    }

    /// Adds the counters of `self` to the counters of `other`, and resets the counters of `self` to
    /// zero. Other threads may write either only by [`Counter::add_shared`], or counts are lost.
    pub fn move_to(&self, other: &WorkerStats) {
        for ((_, counter), (_, sum)) in self.counters().zip(other.counters()) {
            sum.add_shared(counter.0.swap(0, Ordering::Relaxed));
        }
    }
}

counters! {
    /// Counters of clients of the control socket; one thread writes these counters.
    ClientStats {
        connected "Clients that are connected.",
        accepted "Clients that were accepted.",
        refused "Clients closed at once, because there were too many.",
        malformed "Clients closed for a message that was no call.",
        too_long "Clients closed for a message that was too long.",
        too_slow "Clients closed for a message that took too long.",
        unread "Clients closed for replies that they did not read.",
    }
}

impl ClientStats {
    /// Returns the numbers of closed clients, by reason.
    pub fn closed(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.counters().skip(2).map(|(why, counter)| (why, counter.get()))
    }
}

counters! {
    /// Counters of the copies of a mirror.
    MirrorStats {
        copies "Copies that reached the observer.",
        lost "Copies that the observer lost.",
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
