//! Which frames go into a receive ring now, and which may wait for its next buffers: the one place
//! that is asked, with the ring's lock held. [`super::credit`] says for how long.
//!
//! # Shares
//!
//! Who gets how many buffers of a receive ring that has too few for all.
//!
//! First come, first served gives a scarce receiver to the one that is served first after it posted
//! buffers: of four equal senders, two got everything at times (Jain's index 0.94 over three
//! seconds, lower over milliseconds). So each ring remembers who lately sent to it and how many
//! buffers each was given, and a sender may take only what leaves the others their part.
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
//! Counted per ingress port, in receive buffers, under the ring's lock. Nothing here waits.

use super::credit::{Answer, Credit, Earned, Wait, WaitLimits};
use crate::limits::{
    SHARE_IDLE_VISITS, SHARE_LAG_BUFFERS, SHARE_LEAD_BUFFERS, SHARE_PLACES, SHARE_ROUNDS,
};
use crate::switch::PortId;

// Places in use are a bit mask.
const _: () = assert!(SHARE_PLACES == u64::BITS as usize);

/// One sender as a receiver sees it.
#[derive(Debug, Clone, Copy, Default)]
struct Sender {
    /// Visit at which it last came.
    seen: u32,
    /// Buffers it last asked for.
    demand: u32,
    /// Buffers it was given; only differences between senders mean something.
    served: u64,
    /// For how long its frames may wait for more.
    earned: Earned,
}

/// The senders of one receive ring.
#[derive(Debug)]
pub struct Shares {
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

impl Default for Shares {
    fn default() -> Shares {
        let places = Box::new([Sender::default(); SHARE_PLACES]);
        Shares { places, active: 0, visits: 0, scarce: 0, per_frame: 0 }
    }
}

impl Shares {
    /// How many of the `frames` that `port` brings may be delivered. `buffers` tells how many the
    /// ring has free; it is asked only if others send to it too, as the answer is a cache miss.
    #[inline(always)]
    pub fn allow(&mut self, port: PortId, frames: usize, buffers: impl FnOnce() -> usize) -> usize {
        self.allow_ahead(port, frames, 0, buffers)
    }

    /// As [`Shares::allow`] for `frames` that wait in their sender's ring until they find buffers,
    /// of `free` that there are: none, or enough to be worth the visit. Where all wait, who comes
    /// first may take what the others get next: eight senders that took turns by 8 buffers would
    /// cost eight times as many cache misses, theirs and the receiver's, as by 64.
    pub fn grant(&mut self, port: PortId, frames: usize, free: u16) -> usize {
        let granted = self.allow_ahead(port, frames, SHARE_LEAD_BUFFERS, || free.into());
        let room = self.frames_in(free).min(frames);
        if room < frames {
            self.ran_out();
        }
        // What is less than half of what there is, is so because others have had less.
        if 2 * granted >= room { granted.min(room) } else { 0 }
    }

    #[inline(always)]
    fn allow_ahead(
        &mut self,
        port: PortId,
        frames: usize,
        lead: u64,
        buffers: impl FnOnce() -> usize,
    ) -> usize {
        self.visits = self.visits.wrapping_add(1);
        let place = place_of(port);
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
        self.part(place, buffers() as u64, lead)
    }

    /// Records what was taken of what `port` brought, and whether the ring ran out of buffers over
    /// it. Others may have come since it was allowed.
    #[inline(always)]
    pub fn record(&mut self, port: PortId, frames: u64, buffers: u16, ran_out: bool) {
        if frames > 0 && u64::from(buffers) != frames * u64::from(self.per_frame) {
            self.per_frame = u32::from(buffers).div_ceil(frames as u32);
        }
        self.places[place_of(port)].served += u64::from(buffers);
        if ran_out {
            self.ran_out();
        }
    }

    /// What `port` has earned.
    #[inline(always)]
    pub fn earned(&mut self, port: PortId) -> &mut Earned {
        &mut self.places[place_of(port)].earned
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

/// What a receive ring knows of its senders.
#[derive(Debug, Default)]
pub struct Admission {
    shares: Shares,
    credit: Credit,
}

impl Admission {
    /// How many of the `frames` that `from` brings may be delivered; see [`Shares::allow`].
    #[inline(always)]
    pub fn admit(&mut self, from: PortId, frames: usize, free: impl FnOnce() -> u16) -> usize {
        self.shares.allow(from, frames, || free().into())
    }

    /// How many of the `frames` of `from` that wait for the ring may be delivered; see
    /// [`Shares::grant`].
    pub fn admit_waiting(&mut self, from: PortId, frames: usize, free: u16) -> usize {
        self.shares.grant(from, frames, free)
    }

    /// Records what the ring took of what `from` brought, and whether it ran out of buffers.
    #[inline(always)]
    pub fn took(&mut self, from: PortId, (frames, bytes): (u64, u64), buffers: u16, ran_out: bool) {
        self.shares.record(from, frames, buffers, ran_out);
        self.credit.took(self.shares.earned(from), frames, bytes);
    }

    /// Whether frames of `from` may go on waiting; charges for what they have waited.
    pub fn may_wait(&mut self, from: PortId, wait: Wait, limits: &WaitLimits) -> Answer {
        self.credit.ask(self.shares.earned(from), wait, limits)
    }

    /// Frames that so many buffers are likely to hold.
    pub fn frames_in(&self, buffers: u16) -> usize {
        self.shares.frames_in(buffers)
    }

    /// True if several send to the ring and it lately ran out of buffers.
    pub fn is_scarce(&self) -> bool {
        self.shares.is_scarce()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ring that gets `refill` buffers a round; each sender, in the order given, brings `frames`
    /// of `per_frame` buffers. Returns what each port got.
    fn run(
        order: &[PortId],
        frames: usize,
        refill: usize,
        per_frame: usize,
        rounds: usize,
    ) -> Vec<usize> {
        let mut shares = Shares::default();
        let mut got = vec![0; 80];
        let mut free = 0;
        for _ in 0..rounds {
            free = (free + refill).min(256);
            for &port in order {
                let allowed = shares.allow(port, frames, || free).min(frames);
                let taken = allowed.min(free / per_frame);
                shares.record(port, taken as u64, (taken * per_frame) as u16, taken < allowed);
                free -= taken * per_frame;
                got[usize::from(port)] += taken;
            }
        }
        got
    }

    /// As [`run`] with senders that wait for what they do not get.
    fn run_waiting(order: &[PortId], frames: usize, refill: usize, rounds: usize) -> Vec<usize> {
        let mut shares = Shares::default();
        let mut got = vec![0; 80];
        let mut free = 0;
        for _ in 0..rounds {
            free = (free + refill).min(256);
            for &port in order {
                let taken = shares.grant(port, frames, free as u16);
                shares.record(port, taken as u64, taken as u16, taken < frames);
                free -= taken;
                got[usize::from(port)] += taken;
            }
        }
        got
    }

    #[test]
    fn senders_that_wait_get_equal_parts_in_whole_bursts() {
        for refill in [5, 8, 63, 64, 100, 127, 130, 200, 256] {
            let order: Vec<PortId> = (0..8).collect();
            let got = run_waiting(&order, 64, refill, 4000);
            let total: usize = got.iter().sum();
            println!("{refill}: {:?} of {}", &got[..8], 4000 * refill);
            assert!(total >= 3900 * refill, "{refill}: only {total} delivered");
            for &got in &got[..8] {
                assert!(got.abs_diff(total / 8) <= total / 100, "{refill}: {got} of {total}");
            }
        }
    }

    /// Two workers ask for two senders before either of them delivers.
    #[test]
    fn what_a_sender_took_is_its_own() {
        for asked in [[0, 1], [1, 0]] {
            let mut shares = Shares::default();
            let mut got = [0; 2];
            for _ in 0..1000 {
                let mut free = 48;
                let allowed = asked.map(|port| (port, shares.allow(port, 64, || free)));
                for (port, allowed) in allowed {
                    let taken = allowed.min(free);
                    shares.record(port, taken as u64, taken as u16, taken < 64);
                    free -= taken;
                    got[usize::from(port)] += taken;
                }
            }
            assert!(got[0].abs_diff(got[1]) <= 200, "{asked:?}: {got:?}");
        }
    }

    #[test]
    fn one_sender_takes_everything() {
        assert_eq!(run(&[3], 64, 64, 1, 100)[3], 6400);
    }

    #[test]
    fn equal_senders_get_equal_parts_of_a_scarce_ring() {
        for refill in [8, 63, 64, 100, 127] {
            let got = run(&[0, 1, 2, 3], 32, refill, 1, 1000);
            let total: usize = got.iter().sum();
            assert!(total >= 990 * refill, "{refill}: only {total} delivered");
            for &got in &got[..4] {
                assert!(got.abs_diff(total / 4) <= total / 200, "{refill}: {got} of {total}");
            }
        }
    }

    #[test]
    fn a_receiver_that_keeps_up_gets_everything() {
        let mut shares = Shares::default();
        for visit in 0..10_000 {
            // 64 of the 256 buffers are under way to the receiver, never more.
            assert_eq!(shares.allow(visit % 8, 64, || 192), 64, "visit {visit}");
            shares.record(visit % 8, 64, 64, false);
        }
    }

    #[test]
    fn scarcity_is_forgotten_when_it_is_over() {
        let mut shares = Shares::default();
        for port in 0..8 {
            shares.allow(port, 64, || 0);
            shares.record(port, 0, 0, true);
        }
        let cut = (0..10_000u16).filter(|visit| {
            let allowed = shares.allow(visit % 8, 64, || 192);
            shares.record(visit % 8, allowed as u64, allowed as u16, false);
            allowed < 64
        });
        assert!(cut.count() <= 8 * SHARE_ROUNDS as usize);
    }

    #[test]
    fn a_sender_served_twice_as_often_gets_no_more() {
        let got = run(&[0, 2, 1, 2], 32, 48, 1, 1000);
        let total: usize = got.iter().sum();
        assert!(total >= 47_000);
        for &got in &got[..3] {
            assert!(got.abs_diff(total / 3) <= total / 50, "{got} of {total}");
        }
    }

    #[test]
    fn buffers_are_shared_not_frames_of_unknown_size() {
        let got = run(&[0, 1, 2], 4, 100, 33, 3000);
        let total: usize = got.iter().sum();
        for &got in &got[..3] {
            assert!(got.abs_diff(total / 3) <= total / 20, "{got} of {total}");
        }
    }

    #[test]
    fn a_small_sender_gets_all_it_asks_and_the_others_the_rest() {
        let mut shares = Shares::default();
        let (mut small, mut large) = (0, 0);
        for _ in 0..1000 {
            let mut free = 64;
            for (port, frames) in [(0, 64), (1, 64), (2, 3)] {
                let allowed = shares.allow(port, frames, || free);
                let taken = allowed.min(free);
                shares.record(port, taken as u64, taken as u16, taken < allowed);
                free -= taken;
                if port == 2 { small += taken } else { large += taken }
            }
        }
        // First come, first served in one round of 17: what it takes to see that it is over.
        assert!(small >= 2_800, "{small}");
        // One buffer of 64 cannot be split between two equals.
        assert!(small + large >= 62_900, "{large}");
    }

    #[test]
    fn who_left_holds_nothing_back() {
        let mut shares = Shares::default();
        for port in 0..4 {
            shares.allow(port, 64, || 64);
            shares.record(port, 0, 0, true);
        }
        let taken = (0..100).map(|_| {
            let taken = shares.allow(0, 64, || 64).min(64);
            shares.record(0, taken as u64, taken as u16, false);
            taken
        });
        let short = taken.filter(|&taken| taken < 64).count();
        assert!(short <= 4 * SHARE_IDLE_VISITS as usize, "{short} bursts were cut");
    }

    #[test]
    fn a_share_cannot_be_saved_up() {
        let mut shares = Shares::default();
        let mut give = |port, frames, free: usize| {
            let allowed = shares.allow(port, frames, || free);
            let taken = allowed.min(free);
            shares.record(port, taken as u64, taken as u16, taken < allowed);
            taken
        };
        for _ in 0..10_000 {
            give(0, 64, 64);
            give(1, 1, 64);
        }
        let got: usize = (0..100).map(|_| (give(1, 64, 64), give(0, 64, 0)).0).sum();
        // All of what it lagged, and then half of the rest at most.
        assert!(got <= SHARE_LAG_BUFFERS as usize + 64 * 100 / 2 + 64, "{got}");
    }

    #[test]
    fn many_senders_are_all_served() {
        let order: Vec<PortId> = (0..80).collect();
        let got = run(&order, 16, 64, 1, 8000);
        let total: usize = got.iter().sum();
        assert!(total > 500_000, "{total}");
        assert!(got[16..64].iter().all(|&got| got.abs_diff(total / 64) < total / 640), "{got:?}");
        let shared = (0..16).map(|i| got[i] + got[i + 64]);
        assert!(shared.into_iter().all(|got| got > total / 80), "{got:?}");
    }
}
