//! Admission of frames to a receive ring, and the waiting of frames in their senders' rings for
//! buffers of the receive ring. Called with the lock of the receive ring held. `gate` is the
//! sender's side.
//!
//! # Shares
//!
//! Shares of the buffers of a receive ring that has too few buffers for all senders.
//!
//! With first come, first served, the sender that is served first after the receiver posts buffers
//! would get a scarce receiver. So each ring records its recent senders and the number of buffers
//! that each sender got, and a sender may take only buffers that leave the other senders their
//! share.
//!
//! The record is always kept, and used only while the ring is scarce: for some rounds after the
//! ring ran out of buffers. A receiver that keeps up never drops frames for the sake of senders
//! that might come: the demands of four senders are already a whole ring of 256.
//!
//! Shares are max-min fair (Bertsekas and Gallager, *Data Networks*, section 6.5.2) over the last
//! demand of each sender: buffers fill all senders up to one level, and no sender beyond its
//! demand. A sender that got less before, since its worker came less often, is further below the
//! level and gets more now. The record of a sender's lag is bounded, so that a sender cannot save
//! up a share. A sender that no longer comes is removed within a few bursts of the others, and
//! holds no buffers back.
//!
//! Shares count receive buffers for each ingress port.
//!
//! # Waiting
//!
//! A receiver without buffers is mostly overloaded, and has buffers again within microseconds. So
//! frames may stay in their sender's ring (docs/architecture.md, "Back-pressure") for the time that
//! the receive ring has *earned* by taking frames of this sender. Each frame earns a part of
//! [`BACKPRESSURE_NANOS`], a long frame as much as several short frames, and at most
//! [`BACKPRESSURE_NANOS`] are saved up. A receiver that keeps taking frames slows its senders down
//! to its own rate; a stopped or hostile receiver costs each sender [`BACKPRESSURE_NANOS`] once.
//! Time that one sender's frames earned is not for other senders; otherwise two guests could make
//! the ring of a third guest wait.
//!
//! No function here waits. Time is an argument, in cycles.
//!
//! [`BACKPRESSURE_NANOS`]: base::limits::BACKPRESSURE_NANOS

use base::budget::Budget;
use base::limits::{
    BACKPRESSURE_FRAME_BYTES, BACKPRESSURE_FRAMES, BACKPRESSURE_NANOS, SHARE_IDLE_VISITS,
    SHARE_LAG_BUFFERS, SHARE_LEAD_BUFFERS, SHARE_PLACES, SHARE_ROUNDS,
};
use switch::PortId;
use sys::clock::cycles_in;

// The places in use are a bit mask.
const _: () = assert!(SHARE_PLACES == u64::BITS as usize);

/// A receiver's record of one sender.
#[derive(Debug, Clone, Copy)]
struct Sender {
    /// Number of the sender's last visit.
    seen: u32,
    /// Number of buffers that the sender last asked for.
    demand: u32,
    /// Number of buffers that the sender got; only differences between senders count.
    served: u64,
    /// Number of frames that the sender may deliver at its next attempt after waiting; 0 if the
    /// sender did not wait.
    granted: u32,
    /// Cycles for which the sender's frames may wait.
    earned: Budget,
}

/// A receive ring's record of its senders.
#[derive(Debug)]
pub(crate) struct Admission {
    /// Senders by port number modulo the number of places; ports at one place share a part.
    places: Box<[Sender; SHARE_PLACES]>,
    /// Places of recent senders, as bits.
    active: u64,
    visits: u32,
    /// Number of visits for which the ring still counts as scarce.
    scarce: u32,
    /// Number of buffers that a frame lately took, rounded up; 0 before the first frame.
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
    /// Returns how many of the `frames` of port `from` may be delivered. `free` returns the number
    /// of buffers in the ring; it costs a cache miss, so it is called only if other ports send to
    /// the ring, too.
    #[inline(always)]
    pub(crate) fn admit(
        &mut self,
        from: PortId,
        frames: usize,
        free: impl FnOnce() -> u16,
    ) -> usize {
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

    /// Grants some of the `free` buffers to port `from`, which has `frames` waiting frames. Returns
    /// how many frames [`Admission::admit`] admits next; 0 if the share is too small for a visit.
    /// If all senders wait, the first sender to come may take buffers ahead of the others: eight
    /// senders that take turns of 8 buffers would cost eight times as many cache misses as with
    /// turns of 64 buffers.
    ///
    /// A grant does not count as a visit: beside a sender that looks again and again, other senders
    /// would seem to be away.
    pub(crate) fn grant(&mut self, from: PortId, frames: usize, free: u16) -> usize {
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
        // After others have got less, the sender's part is less than half of the free buffers.
        let granted = if 2 * part >= room { part.min(room) } else { 0 };
        self.places[place].granted = granted as u32;
        granted
    }

    /// Grants port `from` an equal part of the `free` buffers. Port `from` has left the buffers,
    /// for as long as it may wait, to senders that did not come: those senders may be late, or
    /// gone.
    #[cold]
    pub(crate) fn grant_late(&mut self, from: PortId, frames: usize, free: u16) -> usize {
        let part = self.frames_in(free).div_ceil(self.active.count_ones().max(1) as usize);
        let granted = part.min(frames);
        self.places[place_of(from)].granted = granted as u32;
        granted
    }

    /// Records that the sender at `place` has `frames` frames.
    #[inline(always)]
    fn note_demand(&mut self, place: usize, frames: usize) {
        self.active |= 1 << place;
        let sender = &mut self.places[place];
        sender.seen = self.visits;
        sender.demand = (frames * self.per_frame.max(1) as usize) as u32;
    }

    /// Records the frames, bytes and buffers that the ring took from port `from`, and whether the
    /// ring ran out of buffers. Other senders may have come since the admission.
    #[inline(always)]
    pub(crate) fn record(
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

    /// Charges port `from` for `waited` cycles of waiting. True if its frames may wait longer.
    pub(crate) fn may_wait(&mut self, from: PortId, waited: u64) -> bool {
        let earned = &mut self.places[place_of(from)].earned;
        earned.spend(waited);
        earned.level() > 0
    }

    fn ran_out(&mut self) {
        self.scarce = SHARE_ROUNDS * self.active.count_ones();
    }

    /// Returns the number of frames that the sender at `place` may deliver into `buffers` free
    /// buffers of a scarce ring, `lead` buffers ahead of the other senders.
    #[inline(never)]
    fn part(&mut self, place: usize, buffers: u64, lead: u64) -> usize {
        self.scarce -= 1;
        self.forget_and_clamp(place);
        let per_frame = self.per_frame.max(1) as usize;
        let demand = u64::from(self.places[place].demand);
        if self.claims(place, demand, lead) <= buffers {
            return demand as usize;
        }
        // Claims grow with `taken`, so bisection finds the largest part that fits.
        let (mut fits, mut too_much) = (0, demand);
        while too_much - fits > 1 {
            let middle = fits.midpoint(too_much);
            let fit = self.claims(place, middle, lead) <= buffers;
            if fit { fits = middle } else { too_much = middle }
        }
        (fits as usize).div_ceil(per_frame)
    }

    /// Returns the number of frames that `buffers` buffers are likely to hold.
    fn frames_in(&self, buffers: u16) -> usize {
        usize::from(buffers) / self.per_frame.max(1) as usize
    }

    /// Returns the number of buffers needed if the sender at `place` takes `taken`, and every other
    /// sender may then rise to the same level, less `lead`.
    fn claims(&self, place: usize, taken: u64, lead: u64) -> u64 {
        let level = (self.places[place].served + taken).saturating_sub(lead);
        self.others(place).fold(taken, |sum, other| {
            let other = &self.places[other];
            sum + u64::from(other.demand).min(level.saturating_sub(other.served))
        })
    }

    /// Returns the places in use except `place`.
    fn others(&self, place: usize) -> impl Iterator<Item = usize> + use<> {
        let mut left = self.active & !(1 << place);
        std::iter::from_fn(move || {
            let place = left.trailing_zeros() as usize;
            left &= left.wrapping_sub(1);
            (place < SHARE_PLACES).then_some(place)
        })
    }

    /// Removes senders that have not come while the others came several times each, and bounds the
    /// lag of the sender at `place`.
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

/// Returns the place of a sender in the record of a receive ring.
#[inline(always)]
fn place_of(port: PortId) -> usize {
    usize::from(port) % SHARE_PLACES
}

#[cfg(test)]
mod tests;
