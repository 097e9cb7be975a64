//! What keeps the frames of a transmit ring from being taken: the sender's side of waiting;
//! `admission` is the receiver's.

use crate::budget::Budget;
use crate::frame::MacAddr;
use crate::limits::{
    BACKPRESSURE_OTHERS_NANOS, BACKPRESSURE_OTHERS_SHARE, BURST_FRAMES, COLLECT_NANOS,
    COLLECTED_BURSTS,
};
use crate::switch::{Booking, PortId};
use crate::sys::clock;

/// What keeps the frames of a transmit ring from being taken.
#[derive(Debug, Default)]
pub struct Gate {
    /// The ring is being disabled: forward up to this index, then stop.
    pub drain_to: Option<u16>,
    /// What a disabled ring's frames come to.
    pub discard: Discard,
    /// Its first frames wait for their receiver.
    pub receiver: Option<Waiting>,
    /// They wait for the rate of their own port.
    pub booked: Option<Booking>,
    /// For how long they may in front of others'.
    pub allowance: Allowance,
    /// More of them are waited for, as workers alternate at their receiver's ring.
    pub collecting: Collecting,
}

/// What becomes of frames that are sent on a disabled ring.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Discard {
    /// They are kept for the time it is enabled, which it never was.
    #[default]
    Never,
    /// They are kept, until a kick.
    OnKick,
    /// After a kick: they are kept until this cycle, for the case that it is enabled again.
    From(u64),
}

/// What is behind frames that wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocked {
    /// Not looked at, or frames for the same receiver when it was.
    Unknown,
    /// Frames for others, which lacked buffers too when it was looked at.
    Short,
    /// Frames for others, which may have buffers.
    Others,
}

/// Frames that may wait, as their receiver is asked about it.
#[derive(Debug, Clone, Copy)]
pub struct Wait {
    /// Now, in cycles.
    pub now: u64,
    /// Cycles for which they have been waiting and that were charged to no one.
    pub waited: u64,
    /// Size of the ring they wait in.
    pub ring_size: u16,
    /// What is behind them.
    pub behind: Blocked,
    /// Their ring may wait in front of frames for others.
    pub in_front: bool,
    /// All that their sender wants to send is seen: none waits for a place in the ring.
    pub sees_all: bool,
}

/// What the first frames of a transmit ring wait for.
#[derive(Debug, Clone, Copy)]
pub struct Waiting {
    /// The receiver.
    pub port: PortId,
    /// Its receive queue.
    pub queue: u8,
    /// The address they go to.
    pub to: MacAddr,
    /// All frames of the ring up to this index go there, as far as was looked.
    pub looked: u16,
    /// So many of them the receiver takes at the next try; 0 if it was not asked.
    pub granted: u16,
    /// What is behind them.
    pub behind: Blocked,
    /// The cycle up to which the waiting was charged.
    pub charged_until: u64,
    /// Another thread has held the receiver's ring since this cycle.
    pub blocked_since: Option<u64>,
    /// They wait for the receiver's rate, and have booked.
    pub booked: Option<Booking>,
}

/// Short bursts for a receive ring that another worker uses, too. Its cache lines come for each
/// burst, however long it is, so bursts are to be long.
#[derive(Debug, Default)]
pub struct Collecting {
    /// Bursts that are still collected.
    bursts: u8,
    /// The cycle since which one is; none if one was completed since.
    since: Option<u64>,
    /// Frames that there were then.
    before: usize,
}

impl Collecting {
    /// Another worker has the receive ring for which `frames` frames are: true if they are to wait
    /// for more.
    pub fn begin(&mut self, frames: usize, now: u64) -> bool {
        let first = self.since.is_none();
        self.bursts = COLLECTED_BURSTS;
        if first && frames < BURST_FRAMES {
            (self.since, self.before) = (Some(now), frames);
            return true;
        }
        false
    }

    /// True if bursts are collected.
    #[inline(always)]
    pub fn is_on(&self) -> bool {
        self.bursts != 0
    }

    /// True if the `frames` frames that there are now, of `most` that a burst may have, are to wait
    /// for more.
    pub fn waits(&mut self, frames: usize, most: usize, now: u64) -> bool {
        if frames == 0 || frames >= most {
            return false;
        }
        let Some(since) = self.since else {
            (self.since, self.before) = (Some(now), frames);
            return true;
        };
        // A counter that steps back ends this, or frames would wait until it is there again.
        if now.wrapping_sub(since) < clock::cycles_in(COLLECT_NANOS) {
            return true;
        }
        if frames == self.before {
            self.bursts = 0;
        }
        false
    }

    /// A burst was completed.
    #[inline(always)]
    pub fn completed(&mut self) {
        (self.bursts, self.since) = (self.bursts.saturating_sub(1), None);
    }
}

/// For how long a transmit ring may wait in front of frames for others that may have buffers.
#[derive(Debug)]
pub struct Allowance {
    left: Budget,
    reckoned: u64,
}

impl Default for Allowance {
    fn default() -> Allowance {
        let left = Budget::empty(clock::cycles_in(BACKPRESSURE_OTHERS_NANOS));
        Allowance { left, reckoned: 0 }
    }
}

impl Allowance {
    /// True if the ring may wait, or go on `waiting`, which it has since this was last asked.
    pub fn allows(&mut self, now: u64, waiting: bool) -> bool {
        let passed = clock::since(self.reckoned, now);
        self.reckoned = now;
        if waiting {
            self.left.spend(passed);
            return self.left.level() > 0;
        }
        self.left.earn(passed / BACKPRESSURE_OTHERS_SHARE);
        // Slivers would not help.
        self.left.level() >= self.left.cap / 4
    }

    /// Nothing was found behind frames that waited but others for the same receiver: so far they
    /// have waited in front of nothing.
    pub fn refund(&mut self) {
        self.left.earn(self.left.cap);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_for_a_ring_in_use_wait_until_they_are_many() {
        let (mut collecting, later) = (Collecting::default(), clock::cycles_in(COLLECT_NANOS));
        assert!(!collecting.is_on() && !collecting.begin(BURST_FRAMES, 100));
        assert!(collecting.is_on() && !collecting.waits(0, 64, 100));
        assert!(collecting.waits(8, 64, 100), "the first that is found");
        assert!(collecting.waits(63, 64, 99 + later) && !collecting.waits(64, 64, 101));
        assert!(!collecting.waits(63, 64, 100 + later) && collecting.is_on(), "it was long enough");
        collecting.completed();
        assert!(collecting.begin(8, 1_000) && !collecting.begin(9, 1_001), "once");
        assert!(collecting.waits(8, 64, 1_002) && !collecting.waits(9, 64, 1_000 + later));
        for _ in 1..COLLECTED_BURSTS {
            collecting.completed();
            assert!(collecting.is_on());
        }
        collecting.completed();
        assert!(!collecting.is_on());
    }

    #[test]
    fn frames_that_no_others_follow_are_not_collected() {
        let (mut collecting, later) = (Collecting::default(), clock::cycles_in(COLLECT_NANOS));
        assert!(collecting.begin(8, 100) && collecting.waits(8, 64, 99 + later));
        assert!(!collecting.waits(8, 64, 100 + later) && !collecting.is_on());
        collecting.completed();
        assert!(collecting.begin(8, 200 + later), "the next one that meets a ring in use");
    }

    /// As where the host of the switch is resumed on another machine.
    #[test]
    fn a_counter_of_cycles_that_steps_back_ends_the_waiting() {
        let mut collecting = Collecting::default();
        assert!(collecting.begin(8, 1_000_000_000) && !collecting.waits(9, 64, 1_000));
    }

    #[test]
    fn a_ring_waits_in_front_of_others_for_its_part_of_the_time() {
        let (mut allowance, mut held, mut waiting) = (Allowance::default(), 0, false);
        allowance.left.cap = 4_000;
        for now in (1_000_000..2_000_000).step_by(60) {
            held += if waiting { 60 } else { 0 };
            waiting = allowance.allows(now, waiting);
        }
        let due = 1_000_000 / BACKPRESSURE_OTHERS_SHARE;
        assert!((due * 9 / 10..=due + due / 10 + 4_000).contains(&held), "{held}, not {due}");
    }
}
