//! Rates: which frames of a port may pass now, and when the next ones may.
//!
//! A [`Meter`] counts bits and packets, each by a clock of its own (the virtual scheduling of the
//! generic cell rate algorithm, ITU-T I.371): each frame moves it on by what it costs at the rate,
//! time catches up with it, and frames pass while it is no more than a burst ahead. So nothing has
//! to be filled up by a timer, a state is one number, and what is rounded, a part of a picosecond a
//! frame, is not lost by being looked at.
//!
//! Frames that wait *book*: the clock moves on by what they will cost, or by [`RATE_TURN_NANOS`],
//! and they pass when that is due, whatever others take meanwhile. So all that wait get their turn,
//! in the order in which they came, whichever worker looks first.
//!
//! Frames that cannot wait are dropped instead and could never meet a clock that others' bookings
//! keep ahead: for them bookings do not count, and they may be [`RATE_LATE_NANOS`] further ahead.
//!
//! Time is an argument, in ticks of any clock.

use base::budget::Budget;
use base::frame::Load;
use base::limits::{
    RATE_BURST_BYTES, RATE_BURST_NANOS, RATE_BURST_PACKETS, RATE_LATE_NANOS, RATE_TURN_NANOS,
};

const NANOS: u128 = 1_000_000_000;

/// A meter begins anew when the time steps back by more than a second divided by this, …
const STEP_PARTS: u64 = 4;
/// … or after so many seconds without a look, before differences of time could wrap.
const IDLE_SECONDS: u64 = 3600;

/// Parts of a tick that time is counted in, as a power of two.
const PARTS: u32 = 8;
/// Parts of these that a byte or a packet costs, likewise.
const FINE: u32 = 20;

/// Bits and packets a second; 0 is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rate {
    /// Bits.
    pub bits: u64,
    /// Packets.
    pub packets: u64,
}

/// Bytes and packets that may pass at once; 0 is what the rate suggests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Size {
    /// Bytes.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
}

/// What may pass in one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limit {
    /// In the long run.
    pub rate: Rate,
    /// At once.
    pub burst: Size,
}

impl Limit {
    /// True if something is limited.
    pub fn is_on(&self) -> bool {
        self.rate.bits | self.rate.packets != 0
    }
}

/// Time that frames cost, of bits and of packets.
type Cost = [u64; 2];

/// What a booking has for its frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Booking {
    made: u64,
    /// The tick at which they may pass.
    until: u64,
    cost: Cost,
    /// Which limit of the meter it was made by.
    limits: u32,
}

/// One of the two clocks.
#[derive(Debug, Clone, Copy)]
struct Lane {
    /// What a byte or a packet costs, in parts of a part; 0 if they are not limited.
    each: u64,
    /// What may pass at once.
    burst: u64,
    /// How far what passed, and what is booked, is ahead of the time.
    ahead: Budget,
    /// How much of that is only booked.
    booked: u64,
}

impl Default for Lane {
    fn default() -> Lane {
        Lane { each: 0, burst: 0, ahead: Budget::empty(u64::MAX >> 2), booked: 0 }
    }
}

impl Lane {
    fn cost(&self, units: u64) -> u64 {
        // No frame costs an hour.
        clamp((u128::from(units) * u128::from(self.each)) >> FINE)
    }

    fn ahead(&self) -> u64 {
        self.ahead.level()
    }
}

/// What may pass of a port in one direction.
#[derive(Debug, Clone, Copy, Default)]
pub struct Meter {
    lanes: [Lane; 2],
    /// Ticks of a second.
    second: u64,
    late: u64,
    turn: u64,
    /// The tick of the last look.
    seen: u64,
    limits: u32,
}

/// What a meter has for frames that come one after another.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    lanes: [Lane; 2],
    /// How far ahead of a burst the clocks may not be yet.
    left: [i64; 2],
    /// What was booked for the first frames.
    booked: Cost,
    used: Cost,
}

impl Room {
    /// True if a frame may pass behind those that were taken.
    pub fn fits(&self, load: Load) -> bool {
        let fits = |at: usize| {
            let (lane, used) = (&self.lanes[at], self.used[at]);
            let cost = lane.cost([load.bytes, load.packets][at]);
            used.saturating_add(cost) <= self.booked[at]
                || self.left[at].saturating_sub_unsigned(used) >= signed(cost.min(lane.burst))
        };
        fits(0) && fits(1)
    }

    /// A frame passes.
    pub fn take(&mut self, load: Load) {
        for (at, units) in [load.bytes, load.packets].into_iter().enumerate() {
            self.used[at] = self.used[at].saturating_add(self.lanes[at].cost(units));
        }
    }
}

impl Meter {
    /// One that lets everything pass, by a clock of so many ticks a second.
    pub fn new(second: u64) -> Meter {
        let parts = |nanos: u64| u128::from(nanos) * (u128::from(second) << PARTS) / NANOS;
        Meter {
            second,
            late: clamp(parts(RATE_LATE_NANOS)),
            turn: clamp(parts(RATE_TURN_NANOS)),
            ..Meter::default()
        }
    }

    /// Goes by another limit from tick `now` on, with a burst to begin with.
    pub fn set(&mut self, limit: Limit, now: u64) {
        let Limit { rate, burst } = limit;
        let second = u128::from(self.second) << PARTS;
        let lane = |unit: u128, rate: u64, burst: u64, least: u64| {
            let each = ((second * unit) << FINE).checked_div(rate.into()).unwrap_or(0);
            let lane = Lane { each: clamp(each), ..Lane::default() };
            let usual = lane.cost(least).max(clamp(second * u128::from(RATE_BURST_NANOS) / NANOS));
            let burst = if burst == 0 { usual } else { lane.cost(burst) };
            Lane { burst, ..lane }
        };
        self.lanes = [
            lane(8, rate.bits, burst.bytes, RATE_BURST_BYTES),
            lane(1, rate.packets, burst.packets, RATE_BURST_PACKETS),
        ];
        self.begin(now);
    }

    /// Begins anew: nothing is owed, and no booking counts any more.
    fn begin(&mut self, now: u64) {
        for lane in &mut self.lanes {
            *lane = Lane { each: lane.each, burst: lane.burst, ..Lane::default() };
        }
        self.seen = now;
        self.limits = self.limits.wrapping_add(1);
    }

    /// Lets time catch up until tick `now`.
    fn look(&mut self, now: u64) {
        let passed = now.wrapping_sub(self.seen) as i64;
        let (back, idle) = (self.second / STEP_PARTS, self.second.saturating_mul(IDLE_SECONDS));
        if passed < -signed(back) || passed > signed(idle) {
            return self.begin(now);
        }
        // Of two threads one may be a little behind.
        let Ok(passed) = u64::try_from(passed) else { return };
        self.seen = now;
        for lane in &mut self.lanes {
            lane.ahead.spend(passed << PARTS);
            lane.booked = lane.booked.min(lane.ahead());
        }
    }

    /// The tick at which frames that booked may pass, if it has not come at tick `now`.
    pub fn waits(&self, booking: &Booking, now: u64) -> Option<u64> {
        let stepped_back = booking.made.saturating_sub(now) > self.second / STEP_PARTS;
        let waits = now < booking.until && !stepped_back && booking.limits == self.limits;
        waits.then_some(booking.until)
    }

    /// What there is for frames at tick `now` that `booked` before, which ends; and for such as
    /// `may_wait`, or may not.
    pub fn room(&mut self, booked: Option<Booking>, may_wait: bool, now: u64) -> Room {
        self.look(now);
        let mut room = Room { lanes: self.lanes, left: [0; 2], booked: [0; 2], used: [0; 2] };
        let booking = booked.filter(|booking| booking.limits == self.limits);
        for (at, lane) in self.lanes.iter_mut().enumerate() {
            if let Some(booking) = &booking {
                lane.ahead.spend(booking.cost[at]);
                lane.booked = lane.booked.saturating_sub(booking.cost[at]);
            }
            let most = lane.burst.saturating_add(self.late);
            let (most, ahead) = match may_wait {
                true => (most, lane.ahead()),
                false => (most.saturating_add(self.late), lane.ahead().saturating_sub(lane.booked)),
            };
            room.left[at] = signed(most).saturating_sub_unsigned(ahead);
        }
        if let Some(booking) = booking.filter(|booking| self.waits(booking, now).is_none()) {
            room.booked = booking.cost;
        }
        room
    }

    /// Ticks that the rate takes for so many packets and bytes.
    pub fn ticks_of(&self, load: Load) -> u64 {
        let [bytes, packets] = &self.lanes;
        bytes.cost(load.bytes).max(packets.cost(load.packets)) >> PARTS
    }

    /// What was taken of a room has passed.
    pub fn spend(&mut self, room: &Room) {
        for (lane, used) in self.lanes.iter_mut().zip(room.used) {
            lane.ahead.earn(used);
        }
    }

    /// What passed did not, after all.
    pub fn refund(&mut self, load: Load) {
        for (lane, units) in self.lanes.iter_mut().zip([load.bytes, load.packets]) {
            lane.ahead.spend(lane.cost(units));
        }
    }

    /// How many of the frames may pass now, which do.
    pub fn admit(
        &mut self,
        loads: impl Iterator<Item = Load>,
        booked: Option<Booking>,
        may_wait: bool,
        now: u64,
    ) -> usize {
        let mut room = self.room(booked, may_wait, now);
        let mut count = 0;
        for load in loads {
            if !room.fits(load) {
                break;
            }
            room.take(load);
            count += 1;
        }
        self.spend(&room);
        count
    }

    /// Books for frames that may not pass at tick `now`: for `first`, and for as much as `all` of a
    /// burst, those that passed among it, or who once had half a burst would book half of one
    /// again.
    pub fn book(&mut self, first: Load, all: Load, now: u64) -> Booking {
        let until = now.saturating_add(self.wait(first, now));
        let mut cost = [0; 2];
        for (at, lane) in self.lanes.iter_mut().enumerate() {
            let units = |load: Load| [load.bytes, load.packets][at];
            let (first, all) = (lane.cost(units(first)), lane.cost(units(all)));
            cost[at] = first.max(all.min(self.turn));
            lane.ahead.earn(cost[at]);
            lane.booked = lane.booked.saturating_add(cost[at]);
        }
        Booking { made: now, until, cost, limits: self.limits }
    }

    /// Ticks from tick `now` on that a frame has to wait, if it books now.
    pub fn wait(&mut self, frame: Load, now: u64) -> u64 {
        self.look(now);
        let late = self.late;
        let waits = self.lanes.iter().zip([frame.bytes, frame.packets]).map(|(lane, units)| {
            let due = lane.ahead().saturating_add(lane.cost(units).min(lane.burst));
            due.saturating_sub(lane.burst.saturating_add(late))
        });
        waits.max().unwrap_or(0).div_ceil(1 << PARTS)
    }
}

fn clamp(number: u128) -> u64 {
    number.min(u128::from(u64::MAX >> 2)) as u64
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
