//! Back-pressure: how long frames may stay in their sender's ring for a full receiver.
//!
//! A receiver that lacks buffers at the moment is mostly one that will have some in microseconds
//! (it is overloaded) or in some milliseconds (its virtual CPU is off). A frame dropped meanwhile
//! was taken, classified and paid for in vain, and TCP sends it again and slows down. So the first
//! frames of a transmit ring may stay where they are and be tried again: that costs no memory, the
//! ring fills, and the sender's own queueing discipline holds the rest back.
//!
//! What is behind them waits too, so the time is bounded by a *credit* of each receive ring, spent
//! while senders wait for it (by each of them) and earned by what it takes. There are two:
//!
//! - **No other frames are seen waiting**: all that is in the sender's ring goes to this receiver.
//!   What is not seen, as the ring has no room for it, shall wait for [`BACKPRESSURE_NANOS`] at
//!   most: each frame taken earns what lets a full ring drain in that time. One that takes less is
//!   waited for in one part of the time in [`BACKPRESSURE_SHARE`], so that a short pause costs
//!   nothing, and one that took nothing while the credit ran out, because it is stopped or hostile,
//!   not before it takes a frame.
//! - **Others' frames wait too**: in the same burst or behind it. Each frame taken earns what lets
//!   a burst pass in [`BACKPRESSURE_OTHERS_NANOS`], and no more than that can be saved up; time
//!   earns nothing. It is earned for the sender that the frame came from alone, or two guests, one
//!   that sends and one that takes, could have the ring of a third wait. So a receiver that keeps
//!   taking frames slows its senders down to what it takes, and one that does not costs the others
//!   nothing. Where one of these others has buffers, waiting costs it something: so a ring waits in
//!   front of it for one part of the time in [`BACKPRESSURE_OTHERS_SHARE`] at most, whatever its
//!   receivers earn ([`Allowance`]).
//!
//! Which of them counts depends on what is behind the frames, and to look at that costs a cache
//! miss a frame. So it is looked at only where the answers differ.
//!
//! Frames count by their length too: one of 64 KiB earns as much as 17 short ones.
//!
//! Time is an argument, in cycles.
//!
//! [`BACKPRESSURE_NANOS`]: crate::limits::BACKPRESSURE_NANOS
//! [`BACKPRESSURE_OTHERS_NANOS`]: crate::limits::BACKPRESSURE_OTHERS_NANOS
//! [`BACKPRESSURE_OTHERS_SHARE`]: crate::limits::BACKPRESSURE_OTHERS_SHARE

use crate::frame::MacAddr;
use crate::limits::{
    BACKPRESSURE_FRAME_BYTES, BACKPRESSURE_NANOS, BACKPRESSURE_OTHERS_NANOS,
    BACKPRESSURE_OTHERS_SHARE, BACKPRESSURE_SHARE, BURST_FRAMES, RETRY_NANOS,
};
use crate::switch::{Booking, PortId};
use crate::sys::clock::{cycles_in, since};

/// For how long frames may wait, in cycles.
#[derive(Debug, Clone, Copy)]
pub struct WaitLimits {
    /// The most credit while no other frames wait, and for what a whole ring shall drain in.
    pub most: u64,
    /// The most credit while others wait.
    pub most_others: u64,
    /// When to look again at what no event reports.
    pub retry: u64,
}

impl Default for WaitLimits {
    fn default() -> WaitLimits {
        WaitLimits {
            most: cycles_in(BACKPRESSURE_NANOS),
            most_others: cycles_in(BACKPRESSURE_OTHERS_NANOS),
            retry: cycles_in(RETRY_NANOS),
        }
    }
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

/// Whether frames may wait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Answer {
    alone: bool,
    short: bool,
    in_front: bool,
}

impl Answer {
    /// They may, whatever is behind them.
    pub const YES: Answer = Answer { alone: true, short: true, in_front: true };

    /// True if they may wait in front of some frames.
    pub fn is_maybe(self) -> bool {
        self.alone || self.short
    }

    /// True if what is behind them makes a difference.
    pub fn depends(self) -> bool {
        self.is_maybe() && !(self.alone && self.in_front)
    }

    /// True if they may wait in front of these.
    pub fn allows(self, behind: Blocked) -> bool {
        match behind {
            Blocked::Unknown => self.alone,
            Blocked::Short => self.short,
            Blocked::Others => self.in_front,
        }
    }
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

/// For how long a transmit ring may wait in front of frames for others that may have buffers.
#[derive(Debug, Clone, Copy, Default)]
pub struct Allowance {
    left: u64,
    reckoned: u64,
}

impl Allowance {
    /// True if the ring may wait, or go on `waiting`, which it has since this was last asked.
    pub fn allows(&mut self, now: u64, waiting: bool, limits: &WaitLimits) -> bool {
        let passed = since(self.reckoned, now);
        self.reckoned = now;
        if waiting {
            self.left = self.left.saturating_sub(passed);
            return self.left > 0;
        }
        let earned = passed / BACKPRESSURE_OTHERS_SHARE;
        self.left = self.left.saturating_add(earned).min(limits.most_others);
        // Slivers would not help.
        self.left >= limits.most_others / 4
    }

    /// Nothing was found behind frames that waited but others for the same receiver: so far they
    /// have waited in front of nothing.
    pub fn refund(&mut self, limits: &WaitLimits) {
        self.left = limits.most_others;
    }
}

/// What one sender has earned at a receive ring while others' frames wait.
#[derive(Debug, Clone, Copy, Default)]
pub struct Earned {
    taken: u64,
    left: u64,
}

impl Earned {
    fn allows_in_front(&mut self, wait: Wait, limits: &WaitLimits) -> bool {
        let a_frame = limits.most_others / BURST_FRAMES as u64;
        let earned = std::mem::take(&mut self.taken).saturating_mul(a_frame);
        let saved = self.left.saturating_add(earned).min(limits.most_others);
        self.left = saved.saturating_sub(wait.waited);
        self.left > 0
    }
}

/// The credit of one receive ring.
#[derive(Debug, Default)]
pub struct Credit {
    /// Frames taken since the credit was last reckoned, and their bytes in units of
    /// [`BACKPRESSURE_FRAME_BYTES`].
    taken: u64,
    alone: u64,
    reckoned: u64,
    /// `alone` ran out, and half of it must be there again: slivers of it would not help.
    spent: bool,
    /// Nothing was taken since it ran out.
    took_nothing: bool,
}

impl Credit {
    /// The receiver took frames of a sender, whose part is `earned`.
    #[inline(always)]
    pub fn took(&mut self, earned: &mut Earned, frames: u64, bytes: u64) {
        let taken = frames + bytes / BACKPRESSURE_FRAME_BYTES;
        self.taken += taken;
        earned.taken += taken;
    }

    /// Whether frames of a sender, whose part is `earned`, may go on waiting; charges for what they
    /// have waited.
    pub fn ask(&mut self, earned: &mut Earned, wait: Wait, limits: &WaitLimits) -> Answer {
        self.earn(wait, limits);
        let short = earned.allows_in_front(wait, limits);
        let in_front = short && wait.in_front;
        match wait.behind {
            Blocked::Unknown => {
                let alone = wait.sees_all || self.allows_alone(wait, limits);
                Answer { alone, short, in_front }
            }
            Blocked::Short => Answer { alone: in_front, short, in_front },
            Blocked::Others => Answer { alone: in_front, short: in_front, in_front },
        }
    }

    fn allows_alone(&mut self, wait: Wait, limits: &WaitLimits) -> bool {
        if !self.spent {
            self.alone = self.alone.saturating_sub(wait.waited);
            self.spent = self.alone == 0;
            self.took_nothing = self.spent;
        } else if self.alone >= limits.most / 2 && !self.took_nothing {
            self.spent = false;
        }
        !self.spent
    }

    fn earn(&mut self, wait: Wait, limits: &WaitLimits) {
        let taken = std::mem::take(&mut self.taken);
        self.took_nothing &= taken == 0;
        let by_time = since(self.reckoned, wait.now) / BACKPRESSURE_SHARE;
        let a_frame = limits.most / u64::from(wait.ring_size.max(1));
        let by_frames = taken.saturating_mul(a_frame);
        self.alone = self.alone.saturating_add(by_time).saturating_add(by_frames).min(limits.most);
        self.reckoned = wait.now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u64 = 10_000;
    const LIMITS: WaitLimits = WaitLimits { most: MOST, most_others: 256, retry: 0 };

    const FROM: PortId = 3;

    fn wait(now: u64, waited: u64, behind: Blocked) -> Wait {
        let in_front = behind != Blocked::Unknown;
        Wait { now, waited, ring_size: 100, behind, in_front, sees_all: false }
    }

    /// The credit of a ring, and what its senders have earned.
    #[derive(Default)]
    struct Lab {
        credit: Credit,
        earned: [Earned; 8],
    }

    impl Lab {
        fn took(&mut self, from: PortId, frames: u64, bytes: u64) {
            self.credit.took(&mut self.earned[usize::from(from)], frames, bytes);
        }

        fn ask(&mut self, from: PortId, wait: Wait, limits: &WaitLimits) -> Answer {
            self.credit.ask(&mut self.earned[usize::from(from)], wait, limits)
        }
    }

    fn ask(credit: &mut Lab, now: u64, waited: u64) -> bool {
        credit.ask(FROM, wait(now, waited, Blocked::Unknown), &LIMITS).allows(Blocked::Unknown)
    }

    #[test]
    fn waiting_ends_when_the_credit_does() {
        let mut credit = Lab::default();
        let start = 1_000_000;
        let mut now = start;
        assert!(ask(&mut credit, now, 0));
        while ask(&mut credit, now + 100, 100) {
            now += 100;
        }
        // A tenth was earned meanwhile.
        assert!((MOST..MOST * 12 / 10).contains(&(now - start)), "{}", now - start);
    }

    #[test]
    fn who_takes_nothing_is_not_waited_for_again() {
        let mut credit = Lab::default();
        assert!(!ask(&mut credit, 1_000_000, MOST));
        assert!(!ask(&mut credit, 100_000_000, 0));
        credit.took(FROM, 1, 60);
        assert!(ask(&mut credit, 100_000_001, 0));
    }

    /// Cycles of a million that a sender with a ring of 100 waits for a receiver that takes a frame
    /// every `interval`.
    fn waits_for(interval: u64) -> u64 {
        let mut credit = Lab::default();
        let (mut held, mut now) = (0, 1_000_000);
        let mut waiting = false;
        for step in 1..=100_000 {
            now += 10;
            held += if waiting { 10 } else { 0 };
            if step * 10 % interval == 0 {
                credit.took(FROM + 1, 1, 60);
            }
            waiting = ask(&mut credit, now, if waiting { 10 } else { 0 });
        }
        held
    }

    #[test]
    fn who_drains_a_ring_in_time_is_always_waited_for() {
        assert!(waits_for(MOST / 100) > 990_000);
        assert!(waits_for(MOST / 1000) > 990_000);
    }

    #[test]
    fn a_slow_receiver_holds_its_senders_for_what_it_takes_and_a_tenth_of_the_time() {
        for slower in [4, 20, 100] {
            let held = waits_for(MOST / 100 * slower);
            let due = 1_000_000 / slower + 100_000;
            assert!((due * 8 / 10..=due + 3 * MOST).contains(&held), "{slower}: {held}, not {due}");
        }
    }

    #[test]
    fn two_senders_spend_it_together() {
        let mut credit = Lab::default();
        assert!(ask(&mut credit, 1_000_000, MOST / 2 - 1));
        assert!(ask(&mut credit, 1_000_000, MOST / 2 - 1));
        assert!(!ask(&mut credit, 1_000_000, 2));
    }

    #[test]
    fn while_others_wait_only_what_is_taken_counts() {
        let mut credit = Lab::default();
        let ask = |credit: &mut Lab, now, waited| {
            credit.ask(FROM, wait(now, waited, Blocked::Others), &LIMITS).is_maybe()
        };
        assert!(!ask(&mut credit, 1_000_000, 0), "time earns nothing");
        credit.took(FROM + 1, 10, 600);
        assert!(!ask(&mut credit, 1_000_000, 0), "nor does what another sent");
        credit.took(FROM, 10, 600);
        assert!(ask(&mut credit, 1_000_000, 0));
        assert!(ask(&mut credit, 1_000_039, 39));
        assert!(!ask(&mut credit, 1_000_040, 1));
        credit.took(FROM, 1_000_000, 60_000_000);
        assert!(ask(&mut credit, 1_000_100, 255), "256 are saved up");
        assert!(!ask(&mut credit, 1_000_100, 1));
        credit.took(FROM, 1, 65_536);
        assert!(ask(&mut credit, 1_000_100, 67), "a long frame counts for more");
        assert!(!ask(&mut credit, 1_000_100, 1));
    }

    #[test]
    fn a_ring_waits_in_front_of_others_for_its_part_of_the_time() {
        let (mut allowance, mut held, mut waiting) = (Allowance::default(), 0, false);
        let limits = WaitLimits { most_others: 4_000, ..LIMITS };
        for now in (1_000_000..2_000_000).step_by(60) {
            held += if waiting { 60 } else { 0 };
            waiting = allowance.allows(now, waiting, &limits);
        }
        let due = 1_000_000 / BACKPRESSURE_OTHERS_SHARE;
        assert!((due * 9 / 10..=due + due / 10 + 4_000).contains(&held), "{held}, not {due}");
    }
}
