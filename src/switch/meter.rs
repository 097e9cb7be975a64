//! Rates: decides which frames of a port may pass now, and when the next frames may.
//!
//! A [`Meter`] counts bits and packets, each by a virtual clock (virtual scheduling of the generic
//! cell rate algorithm, ITU-T I.371). Each frame moves the clock on by the frame's cost at the
//! rate, real time catches up, and frames pass while the clock is at most a burst ahead. So no
//! timer fills anything up, and the state is one number. A frame's cost is rounded by part of a
//! picosecond; how often a worker looks does not matter.
//!
//! Frames that wait *book*: the clock moves on by the frames' cost, or by [`RATE_TURN_NANOS`], and
//! the frames pass when the booking is due, whatever other frames take meanwhile. So all waiting
//! frames get their turn, in the order in which they came, whichever worker looks first.
//!
//! Frames that cannot wait are dropped instead. Others' bookings could keep the clock ahead for
//! ever: so bookings do not count for frames that cannot wait, and the clock may be
//! [`RATE_NO_WAIT_NANOS`] further ahead.
//!
//! Time is an argument, in ticks of any clock.

use base::budget::Budget;
use base::frame::Load;
use base::limits::{
    BURST_SIZE_BYTES, RATE_BURST_BYTES, RATE_BURST_NANOS, RATE_BURST_PACKETS, RATE_LATE_NANOS,
    RATE_NO_WAIT_NANOS, RATE_TURN_NANOS,
};

const NANOS: u128 = 1_000_000_000;

/// A meter begins anew when the time steps back by more than a second divided by this.
const STEP_PARTS: u64 = 4;
/// A meter begins anew after so many seconds without a look, before differences of time could wrap.
const IDLE_SECONDS: u64 = 3600;

/// Parts of a tick in which time is counted, as a power of two.
const PARTS: u32 = 8;
/// Parts of such a part in which the cost of a byte or a packet is counted, as a power of two.
const FINE: u32 = 20;

/// Bits and packets a second; 0 is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rate {
    /// Bits.
    pub bits: u64,
    /// Packets.
    pub packets: u64,
}

/// Bytes and packets that may pass at once; 0 stands for a default that depends on the rate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Size {
    /// Bytes.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
}

/// Limit of one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limit {
    /// Limit in the long run.
    pub rate: Rate,
    /// Limit at once.
    pub burst: Size,
}

impl Limit {
    /// True if bits or packets are limited.
    pub fn is_on(&self) -> bool {
        self.rate.bits | self.rate.packets != 0
    }
}

/// Time that frames cost by bits and by packets, in parts of ticks.
type Cost = [u64; 2];

/// Time reserved for waiting frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Booking {
    made: u64,
    /// Tick at which the frames may pass.
    until: u64,
    cost: Cost,
    /// Number of the limit in force when the booking was made.
    limits: u32,
}

/// One of the two virtual clocks: bits or packets.
#[derive(Debug, Clone, Copy)]
struct Lane {
    /// Cost of a byte or a packet, in parts of a part; 0 if unlimited.
    each: u64,
    /// Cost of a burst.
    burst: u64,
    /// How far the clock is ahead of the time, by passed and by booked frames.
    ahead: Budget,
    /// Part of `ahead` that is only booked.
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

/// Meter of a port in one direction.
#[derive(Debug, Clone, Copy, Default)]
pub struct Meter {
    lanes: [Lane; 2],
    /// Ticks in a second.
    second: u64,
    late: u64,
    no_wait: u64,
    turn: u64,
    /// Tick of the last look.
    seen: u64,
    limits: u32,
}

/// Time that a meter has for frames, one after another.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    lanes: [Lane; 2],
    /// How much further ahead each clock may go.
    left: [i64; 2],
    /// Time that was booked for the first frames.
    booked: Cost,
    used: Cost,
}

impl Room {
    /// True if a frame may pass behind the frames taken so far.
    pub fn fits(&self, load: Load) -> bool {
        let fits = |at: usize| {
            let (lane, used) = (&self.lanes[at], self.used[at]);
            let cost = lane.cost([load.bytes, load.packets][at]);
            used.saturating_add(cost) <= self.booked[at]
                || self.left[at].saturating_sub_unsigned(used) >= signed(cost.min(lane.burst))
        };
        fits(0) && fits(1)
    }

    /// Takes the time of a frame that passes.
    pub fn take(&mut self, load: Load) {
        for (at, units) in [load.bytes, load.packets].into_iter().enumerate() {
            self.used[at] = self.used[at].saturating_add(self.lanes[at].cost(units));
        }
    }
}

impl Meter {
    /// Makes a meter without a limit, for a clock of `second` ticks a second.
    pub fn new(second: u64) -> Meter {
        let parts = |nanos: u64| u128::from(nanos) * (u128::from(second) << PARTS) / NANOS;
        Meter {
            second,
            late: clamp(parts(RATE_LATE_NANOS)),
            no_wait: clamp(parts(RATE_NO_WAIT_NANOS)),
            turn: clamp(parts(RATE_TURN_NANOS)),
            ..Meter::default()
        }
    }

    /// Sets another limit from tick `now` on, and begins with a whole burst.
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

    /// Begins anew: nothing is owed, and earlier bookings no longer count.
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
        // Another thread's clock may be a little behind.
        let Ok(passed) = u64::try_from(passed) else { return };
        self.seen = now;
        for lane in &mut self.lanes {
            lane.ahead.spend(passed << PARTS);
            lane.booked = lane.booked.min(lane.ahead());
        }
    }

    /// Returns the tick at which booked frames may pass; `None` if they may at tick `now`.
    pub fn waits(&self, booking: &Booking, now: u64) -> Option<u64> {
        let stepped_back = booking.made.saturating_sub(now) > self.second / STEP_PARTS;
        let waits = now < booking.until && !stepped_back && booking.limits == self.limits;
        waits.then_some(booking.until)
    }

    /// Returns the time that the meter has at tick `now` for frames with the booking `booked`,
    /// which ends. `may_wait` says whether the frames can wait.
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
                false => {
                    (most.saturating_add(self.no_wait), lane.ahead().saturating_sub(lane.booked))
                }
            };
            room.left[at] = signed(most).saturating_sub_unsigned(ahead);
        }
        if let Some(booking) = booking.filter(|booking| self.waits(booking, now).is_none()) {
            room.booked = booking.cost;
        }
        room
    }

    /// Returns the ticks that so many packets and bytes take at the rate.
    pub fn ticks_of(&self, load: Load) -> u64 {
        let [bytes, packets] = &self.lanes;
        bytes.cost(load.bytes).max(packets.cost(load.packets)) >> PARTS
    }

    /// Charges the frames that were taken from `room`.
    pub fn spend(&mut self, room: &Room) {
        for (lane, used) in self.lanes.iter_mut().zip(room.used) {
            lane.ahead.earn(used);
        }
    }

    /// Gives back the cost of frames that did not pass after all.
    pub fn refund(&mut self, load: Load) {
        for (lane, units) in self.lanes.iter_mut().zip([load.bytes, load.packets]) {
            lane.ahead.spend(lane.cost(units));
        }
    }

    /// Returns how many of the frames may pass now, and charges them.
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

    /// Books for frames that may not pass at tick `now`: for `first` at least, and for the cost of
    /// `all` up to a turn. `all` has the burst's frames that passed too: otherwise a port that once
    /// passed half a burst would book for half a burst again and again.
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

    /// Returns the ticks, from tick `now` on, that a frame that books now has to wait.
    pub(crate) fn wait(&mut self, frame: Load, now: u64) -> u64 {
        self.look(now);
        let late = self.late;
        let waits = self.lanes.iter().zip([frame.bytes, frame.packets]).map(|(lane, units)| {
            let due = lane.ahead().saturating_add(lane.cost(units).min(lane.burst));
            due.saturating_sub(lane.burst.saturating_add(late))
        });
        waits.max().unwrap_or(0).div_ceil(1 << PARTS)
    }

    /// Returns true if a frame that books at tick `now` has to wait for more than `most` ticks and
    /// the time of a frame of 1,514 bytes, twice `most` at the longest: at 1 Mbit/s such a frame
    /// alone takes 12 ms.
    pub fn waits_longer(&mut self, frame: Load, now: u64, most: u64) -> bool {
        let full = Load { packets: 1, bytes: *BURST_SIZE_BYTES.start() };
        self.wait(frame, now) > most.saturating_add(self.ticks_of(full).min(most))
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
