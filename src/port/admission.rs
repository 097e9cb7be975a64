//! Which frames go into a receive ring now, and which may wait in their senders' rings for its next
//! buffers: the one place that is asked, with the ring's lock held. `gate` is the sender's side.
//!
//! # Shares
//!
//! Who gets how many buffers of a receive ring that has too few for all.
//!
//! First come, first served gives a scarce receiver to the one that is served first after it posted
//! buffers. So each ring remembers who lately sent to it and how many buffers each was given, and a
//! sender may take only what leaves the others their part.
//!
//! That account is kept always and used only while the ring is scarce: for some rounds after it ran
//! out of buffers. A receiver that keeps up is never made to drop for the sake of senders that
//! might come: the demands of four senders already add up to a whole ring of 256.
//!
//! The part is max-min fair (Bertsekas and Gallager, *Data Networks*, section 6.5.2) over what each
//! sender last asked for: buffers fill all senders up to one level, none beyond its demand. Who
//! got less before, because its worker came by less often, is further below the level and gets
//! more now; the memory of that is bounded, so that a sender cannot save up a share. A sender that
//! no longer comes is forgotten within a few bursts of the others and holds nothing back.
//!
//! Counted per ingress port, in receive buffers.
//!
//! # Credit
//!
//! A receiver that lacks buffers at the moment is mostly one that will have some in microseconds
//! (it is overloaded) or in some milliseconds (its virtual CPU is off). So the first frames of a
//! transmit ring may stay where they are and be tried again (docs/architecture.md,
//! "Back-pressure"). What is behind them waits too, so the time is bounded by a *credit* of each
//! receive ring, spent while senders wait for it (by each of them) and earned by what it takes.
//! There are two:
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
//!   receivers earn ([`Allowance`](super::gate::Allowance)).
//!
//! Which of them counts depends on what is behind the frames, and to look at that costs a cache
//! miss a frame. So it is looked at only where the answers differ.
//!
//! Frames count by their length too: one of 64 KiB earns as much as 17 short ones.
//!
//! Nothing here waits. Time is an argument, in cycles.
//!
//! [`BACKPRESSURE_NANOS`]: crate::limits::BACKPRESSURE_NANOS
//! [`BACKPRESSURE_OTHERS_NANOS`]: crate::limits::BACKPRESSURE_OTHERS_NANOS
//! [`BACKPRESSURE_OTHERS_SHARE`]: crate::limits::BACKPRESSURE_OTHERS_SHARE

use super::gate::{Blocked, Wait};
use crate::budget::Budget;
use crate::limits::{
    BACKPRESSURE_FRAME_BYTES, BACKPRESSURE_NANOS, BACKPRESSURE_OTHERS_NANOS, BACKPRESSURE_SHARE,
    BURST_FRAMES, GATHER_NANOS, SHARE_IDLE_VISITS, SHARE_LAG_BUFFERS, SHARE_LEAD_BUFFERS,
    SHARE_PLACES, SHARE_ROUNDS,
};
use crate::switch::PortId;
use crate::sys::clock::{cycles_in, since};

// Places in use are a bit mask.
const _: () = assert!(SHARE_PLACES == u64::BITS as usize);

/// One sender as a receiver sees it.
#[derive(Debug, Clone, Copy)]
struct Sender {
    /// Visit at which it last came.
    seen: u32,
    /// Buffers it last asked for.
    demand: u32,
    /// Buffers it was given; only differences between senders mean something.
    served: u64,
    /// For how long its frames may wait in front of others'.
    earned: Budget,
}

/// What a receive ring knows of its senders.
#[derive(Debug)]
pub struct Admission {
    /// By port number modulo the number of places: ports that meet in one share a part.
    places: Box<[Sender; SHARE_PLACES]>,
    /// Places whose sender lately came.
    active: u64,
    visits: u32,
    /// Visits for which the ring still counts as scarce.
    scarce: u32,
    /// Buffers a frame lately took, rounded up; 0 before the first.
    per_frame: u32,
    /// Frames have left buffers until there are more since this cycle; 0 if none do.
    gathers_since: u64,
    credit: Credit,
}

impl Default for Admission {
    fn default() -> Admission {
        let most = |nanos| Budget::empty(cycles_in(nanos));
        let (alone, earned) = (most(BACKPRESSURE_NANOS), most(BACKPRESSURE_OTHERS_NANOS));
        let places = Box::new([Sender { seen: 0, demand: 0, served: 0, earned }; SHARE_PLACES]);
        let credit = Credit { taken: 0, alone, reckoned: 0, spent: false, took_nothing: false };
        let (active, visits, scarce, per_frame, gathers_since) = (0, 0, 0, 0, 0);
        Admission { places, active, visits, scarce, per_frame, gathers_since, credit }
    }
}

impl Admission {
    /// How many of the `frames` that `from` brings may be delivered. `free` tells how many buffers
    /// the ring has; it is asked only if others send to it too, as the answer is a cache miss.
    #[inline(always)]
    pub fn admit(&mut self, from: PortId, frames: usize, free: impl FnOnce() -> u16) -> usize {
        self.admit_ahead(from, frames, 0, free)
    }

    /// As [`Admission::admit`] for `frames` that wait in their sender's ring until they find
    /// buffers, of `free` that there are: none, or enough to be worth the visit. Where all wait,
    /// who comes first may take what the others get next: eight senders that took turns by 8
    /// buffers would cost eight times as many cache misses, theirs and the receiver's, as by 64.
    pub fn admit_waiting(&mut self, from: PortId, frames: usize, free: u16) -> usize {
        let granted = self.admit_ahead(from, frames, SHARE_LEAD_BUFFERS, || free);
        let room = self.frames_in(free).min(frames);
        if room < frames {
            self.ran_out();
        }
        // What is less than half of what there is, is so because others have had less.
        if 2 * granted >= room { granted.min(room) } else { 0 }
    }

    /// True if frames that wait had better leave `free` buffers of a ring of `size` until there are
    /// more, at cycle `now`: a receiver that posts some posts others just then, and many small
    /// bursts cost it and the switch more cache misses than few large ones.
    pub fn gathers(&mut self, free: u16, size: u16, now: u64) -> bool {
        let few = u64::from(free) < SHARE_LEAD_BUFFERS.min(u64::from(size) / 4);
        if few && self.gathers_since == 0 {
            self.gathers_since = now.max(1);
        }
        let gathers = few && since(self.gathers_since, now) < cycles_in(GATHER_NANOS);
        if !gathers {
            self.gathers_since = 0;
        }
        gathers
    }

    #[inline(always)]
    fn admit_ahead(
        &mut self,
        from: PortId,
        frames: usize,
        lead: u64,
        free: impl FnOnce() -> u16,
    ) -> usize {
        self.visits = self.visits.wrapping_add(1);
        let place = place_of(from);
        if self.active == 1 << place {
            return frames;
        }
        self.active |= 1 << place;
        let sender = &mut self.places[place];
        sender.seen = self.visits;
        sender.demand = (frames * self.per_frame.max(1) as usize) as u32;
        if self.scarce == 0 {
            return frames;
        }
        self.scarce -= 1;
        self.forget_and_clamp(place);
        self.part(place, free().into(), lead)
    }

    /// Records what the ring took of what `from` brought, and whether it ran out of buffers over
    /// it. Others may have come since it was admitted.
    #[inline(always)]
    pub fn took(&mut self, from: PortId, (frames, bytes): (u64, u64), buffers: u16, ran_out: bool) {
        if frames > 0 && u64::from(buffers) != frames * u64::from(self.per_frame) {
            self.per_frame = u32::from(buffers).div_ceil(frames as u32);
        }
        let Sender { served, earned, .. } = &mut self.places[place_of(from)];
        *served += u64::from(buffers);
        self.credit.took(earned, frames + bytes / BACKPRESSURE_FRAME_BYTES);
        if ran_out {
            self.ran_out();
        }
    }

    /// Whether frames of `from` may go on waiting; charges for what they have waited.
    pub fn may_wait(&mut self, from: PortId, wait: Wait) -> Answer {
        self.credit.ask(&mut self.places[place_of(from)].earned, wait)
    }

    fn ran_out(&mut self) {
        self.scarce = SHARE_ROUNDS * self.active.count_ones();
    }

    /// True if several send to the ring and it lately ran out of buffers.
    pub fn is_scarce(&self) -> bool {
        self.scarce > 0 && self.active.count_ones() > 1
    }

    /// Frames the sender at `place` may deliver into `buffers` free buffers.
    #[inline(never)]
    fn part(&self, place: usize, buffers: u64, lead: u64) -> usize {
        let per_frame = self.per_frame.max(1) as usize;
        let demand = u64::from(self.places[place].demand);
        if self.claims(place, demand, lead) <= buffers {
            return demand as usize;
        }
        // The claims grow with what is taken; the largest part that fits is found by halving.
        let (mut fits, mut too_much) = (0, demand);
        while too_much - fits > 1 {
            let middle = fits.midpoint(too_much);
            let fit = self.claims(place, middle, lead) <= buffers;
            if fit { fits = middle } else { too_much = middle }
        }
        (fits as usize).div_ceil(per_frame)
    }

    /// Frames that so many buffers are likely to hold.
    pub fn frames_in(&self, buffers: u16) -> usize {
        usize::from(buffers) / self.per_frame.max(1) as usize
    }

    /// Buffers needed if the sender at `place` takes `taken` and every other one may then rise to
    /// the same level, less `lead`.
    fn claims(&self, place: usize, taken: u64, lead: u64) -> u64 {
        let level = (self.places[place].served + taken).saturating_sub(lead);
        self.others(place).fold(taken, |sum, other| {
            let other = &self.places[other];
            sum + u64::from(other.demand).min(level.saturating_sub(other.served))
        })
    }

    /// Places in use except `place`.
    fn others(&self, place: usize) -> impl Iterator<Item = usize> + use<> {
        let mut left = self.active & !(1 << place);
        std::iter::from_fn(move || {
            let place = left.trailing_zeros() as usize;
            left &= left.wrapping_sub(1);
            (place < SHARE_PLACES).then_some(place)
        })
    }

    /// Forgets who has not come while the others came several times each, and brings the sender at
    /// `place` up to what it may lag at most.
    #[inline(never)]
    fn forget_and_clamp(&mut self, place: usize) {
        let visits = SHARE_IDLE_VISITS * self.active.count_ones();
        let mut most = 0;
        for other in self.others(place) {
            let sender = self.places[other];
            if self.visits.wrapping_sub(sender.seen) > visits {
                self.active &= !(1 << other);
            } else {
                most = most.max(sender.served);
            }
        }
        let sender = &mut self.places[place];
        sender.served = sender.served.max(most.saturating_sub(SHARE_LAG_BUFFERS));
    }
}

/// The place of a sender among those of a receive ring.
#[inline(always)]
fn place_of(port: PortId) -> usize {
    usize::from(port) % SHARE_PLACES
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

/// For how long frames may wait for one receive ring.
#[derive(Debug)]
struct Credit {
    /// Frames taken since the credit was last reckoned, the long ones as several.
    taken: u64,
    /// While no other frames wait. What a whole ring earns is all of it.
    alone: Budget,
    reckoned: u64,
    /// `alone` ran out, and half of it must be there again: slivers of it would not help.
    spent: bool,
    /// Nothing was taken since it ran out.
    took_nothing: bool,
}

impl Credit {
    /// The receiver took frames of a sender, which has `earned` its part of a burst's for each.
    #[inline(always)]
    fn took(&mut self, earned: &mut Budget, frames: u64) {
        self.taken += frames;
        earned.earn(frames.saturating_mul(earned.cap / BURST_FRAMES as u64));
    }

    /// Whether frames of a sender may go on waiting; charges for what they have waited.
    fn ask(&mut self, earned: &mut Budget, wait: Wait) -> Answer {
        self.earn(wait);
        earned.spend(wait.waited);
        let short = earned.level() > 0;
        let in_front = short && wait.in_front;
        match wait.behind {
            Blocked::Unknown => {
                let alone = wait.sees_all || self.allows_alone(wait);
                Answer { alone, short, in_front }
            }
            Blocked::Short => Answer { alone: in_front, short, in_front },
            Blocked::Others => Answer { alone: in_front, short: in_front, in_front },
        }
    }

    fn allows_alone(&mut self, wait: Wait) -> bool {
        if !self.spent {
            self.alone.spend(wait.waited);
            self.spent = self.alone.level() == 0;
            self.took_nothing = self.spent;
        } else if self.alone.level() >= self.alone.cap / 2 && !self.took_nothing {
            self.spent = false;
        }
        !self.spent
    }

    fn earn(&mut self, wait: Wait) {
        let taken = std::mem::take(&mut self.taken);
        self.took_nothing &= taken == 0;
        let a_frame = self.alone.cap / u64::from(wait.ring_size.max(1));
        self.alone.earn(since(self.reckoned, wait.now) / BACKPRESSURE_SHARE);
        self.alone.earn(taken.saturating_mul(a_frame));
        self.reckoned = wait.now;
    }
}

#[cfg(test)]
mod tests;
