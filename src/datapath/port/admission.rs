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
//! # Waiting
//!
//! A receiver without buffers mostly has some again in microseconds, as it is overloaded. So the
//! frames of a sender may stay in the sender's ring (docs/architecture.md, "Back-pressure") for the
//! time that the receive ring has *earned* by what it took of this sender: each frame earns a part
//! of [`BACKPRESSURE_NANOS`], a long frame as much as several short ones, and no more than all of
//! it is saved up. A receiver that keeps taking frames slows its senders down to its own rate; a
//! stopped or hostile receiver costs each sender [`BACKPRESSURE_NANOS`] once. What one sender's
//! frames earned lets no other sender wait, or two guests could make the ring of a third wait.
//!
//! Nothing here waits. Time is an argument, in cycles.
//!
//! [`BACKPRESSURE_NANOS`]: base::limits::BACKPRESSURE_NANOS

use base::budget::Budget;
use base::limits::{
    BACKPRESSURE_FRAME_BYTES, BACKPRESSURE_FRAMES, BACKPRESSURE_NANOS, SHARE_IDLE_VISITS,
    SHARE_LAG_BUFFERS, SHARE_LEAD_BUFFERS, SHARE_PLACES, SHARE_ROUNDS,
};
use switch::PortId;
use sys::clock::cycles_in;

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
    /// Frames that it may deliver at its next try, as it waited for them; 0 if it did not wait.
    granted: u32,
    /// Cycles for which its frames may wait.
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
}

impl Default for Admission {
    fn default() -> Admission {
        let earned = Budget::empty(cycles_in(BACKPRESSURE_NANOS));
        let sender = Sender { seen: 0, demand: 0, granted: 0, served: 0, earned };
        let places = Box::new([sender; SHARE_PLACES]);
        Admission { places, active: 0, visits: 0, scarce: 0, per_frame: 0 }
    }
}

impl Admission {
    /// How many of the `frames` that `from` brings may be delivered. `free` tells how many buffers
    /// the ring has; it is asked only if others send to it too, as the answer is a cache miss.
    #[inline(always)]
    pub fn admit(&mut self, from: PortId, frames: usize, free: impl FnOnce() -> u16) -> usize {
        self.visits = self.visits.wrapping_add(1);
        let place = place_of(from);
        if self.active == 1 << place {
            return frames;
        }
        let granted = std::mem::take(&mut self.places[place].granted) as usize;
        if granted > 0 {
            return granted.min(frames);
        }
        self.note_demand(place, frames);
        if self.scarce == 0 {
            return frames;
        }
        self.part(place, free().into(), 0)
    }

    /// Grants buffers to `from`, of whose frames `frames` wait in its ring, of the `free` buffers
    /// that the ring has: how many frames [`Admission::admit`] lets in next; 0 if too few for a
    /// visit. Where all senders wait, the first to come may take buffers ahead of the others: eight
    /// senders that took turns by 8 buffers would cost eight times as many cache misses as by 64.
    ///
    /// Is no visit: beside a sender that looks again and again, others would seem to stay away.
    pub fn grant(&mut self, from: PortId, frames: usize, free: u16) -> usize {
        let (place, room) = (place_of(from), self.frames_in(free).min(frames));
        self.note_demand(place, frames);
        if room < frames {
            self.ran_out();
        }
        if self.active == 1 << place {
            return room;
        }
        let scarce = self.scarce > 0;
        let part = if scarce { self.part(place, free.into(), SHARE_LEAD_BUFFERS) } else { frames };
        // Less than half of the free buffers is this sender's part after others have had less.
        let granted = if 2 * part >= room { part.min(room) } else { 0 };
        self.places[place].granted = granted as u32;
        granted
    }

    /// Grants `from` an equal part of the `free` buffers, after it has left them for as long as it
    /// may wait to senders that did not come for them: they may be gone, or late.
    #[cold]
    pub fn grant_late(&mut self, from: PortId, frames: usize, free: u16) -> usize {
        let part = self.frames_in(free).div_ceil(self.active.count_ones().max(1) as usize);
        let granted = part.min(frames);
        self.places[place_of(from)].granted = granted as u32;
        granted
    }

    /// Notes that the sender at `place` is there with so many frames.
    #[inline(always)]
    fn note_demand(&mut self, place: usize, frames: usize) {
        self.active |= 1 << place;
        let sender = &mut self.places[place];
        sender.seen = self.visits;
        sender.demand = (frames * self.per_frame.max(1) as usize) as u32;
    }

    /// Records what the ring took of what `from` brought, and whether it ran out of buffers over
    /// it. Others may have come since it was admitted.
    #[inline(always)]
    pub fn record(
        &mut self,
        from: PortId,
        (frames, bytes): (u64, u64),
        buffers: u16,
        ran_out: bool,
    ) {
        if frames > 0 && u64::from(buffers) != frames * u64::from(self.per_frame) {
            self.per_frame = u32::from(buffers).div_ceil(frames as u32);
        }
        let Sender { served, earned, .. } = &mut self.places[place_of(from)];
        *served += u64::from(buffers);
        let frames = frames + bytes / BACKPRESSURE_FRAME_BYTES;
        earned.earn(frames.saturating_mul(earned.cap / BACKPRESSURE_FRAMES));
        if ran_out {
            self.ran_out();
        }
    }

    /// Charges `from` for the `waited` cycles that its frames have waited; true if they may go on
    /// waiting.
    pub fn may_wait(&mut self, from: PortId, waited: u64) -> bool {
        let earned = &mut self.places[place_of(from)].earned;
        earned.spend(waited);
        earned.level() > 0
    }

    fn ran_out(&mut self) {
        self.scarce = SHARE_ROUNDS * self.active.count_ones();
    }

    /// Frames that the sender at `place` may deliver into `buffers` free buffers of a scarce ring,
    /// `lead` buffers ahead of the others.
    #[inline(never)]
    fn part(&mut self, place: usize, buffers: u64, lead: u64) -> usize {
        self.scarce -= 1;
        self.forget_and_clamp(place);
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
    fn frames_in(&self, buffers: u16) -> usize {
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

#[cfg(test)]
mod tests;
