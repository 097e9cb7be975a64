//! Damping: an address that flaps between ports stays at one port for a while.
//!
//! Two stations with one address, a loop, or a guest that sends from its neighbour's address move
//! an entry with each frame. If the entry were held at its present port, the port that sends at the
//! right moment would win. So the entry goes back to its *origin*, the port that had the entry
//! before the moves began, and is held there for [`FDB_HOLD_SECONDS`]. Frames from other ports pass
//! and are not learned from. A machine that migrates, or a virtual address that fails over, moves
//! once or twice and is followed.
//!
//! A hold *lapses* when its port has sent nothing from the address for [`FDB_SILENCE_SECONDS`], and
//! one other port alone has: two routers that both had a virtual address agree again. While two
//! other ports send there is a loop, and the hold stays. A silent owner may merely have had nothing
//! to send: its next frame takes the address back at once, and begins another hold.
//!
//! Other switches: Linux's bridge and Open vSwitch follow every move. Junos drops frames of moving
//! addresses beyond a configured rate (`mac-move-limit`). An EVPN router that sees five moves in
//! 180 s stops advertising the address until an operator intervenes (RFC 7432, section 15.1).
//!
//! Each entry has its own record of moves, in an array that is read only when a frame comes from
//! another port than the entry's. So a port that makes a thousand addresses flap displaces no other
//! address's record, and an address that stays costs nothing.

use super::super::segment::PortId;
use super::Tick;
use base::limits::{FDB_FLAPS, FDB_HOLD_SECONDS, FDB_MAX_PORTS, FDB_SILENCE_SECONDS};

const PORT_MASK: u64 = 0x3ff;
const _: () = assert!(FDB_MAX_PORTS as u64 == PORT_MASK + 1);
const RIVAL_SHIFT: u32 = 10;
const COUNT_SHIFT: u32 = 20;
const COUNT_MASK: u64 = 7;
const _: () = assert!(FDB_FLAPS as u64 <= COUNT_MASK);
const LAPSED: u64 = 1 << 23;
const ALONE_SHIFT: u32 = 24;
const ALONE_MASK: u64 = 0xff;
const _: () = assert!(Tick::ticks(FDB_HOLD_SECONDS + 1) as u64 <= ALONE_MASK);
const LAST_SHIFT: u32 = 32;

/// The last moves of an entry: ten bits of the origin, ten of the rival, three of the number of
/// moves, one "lapsed", eight of the ticks from the last move until the rival began to be alone,
/// and 32 of the tick of the last move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Moves(pub(super) u64);

impl Moves {
    /// No recent move.
    pub(super) const NONE: Moves = Moves(0);

    /// Makes a record of `count` moves until tick `now`, without a rival.
    fn new(origin: PortId, count: u32, now: Tick) -> Moves {
        let origin = u64::from(origin) & PORT_MASK;
        let (count, last) = (u64::from(count) << COUNT_SHIFT, u64::from(now.to_bits()));
        Moves(origin | origin << RIVAL_SHIFT | count | last << LAST_SHIFT)
    }

    /// Returns the port that had the entry before the moves.
    pub(super) fn origin(self) -> PortId {
        (self.0 & PORT_MASK) as PortId
    }

    /// Returns, during a hold, the port beside the origin that moved the entry last or tried to.
    fn rival(self) -> PortId {
        (self.0 >> RIVAL_SHIFT & PORT_MASK) as PortId
    }

    /// Returns the tick since which the rival alone has contested the hold.
    fn alone_since(self) -> Tick {
        let after = (self.0 >> ALONE_SHIFT & ALONE_MASK) as u32;
        Tick::from_bits(self.last().to_bits().saturating_add(after))
    }

    /// Returns the number of moves in the second of the last move.
    fn count(self) -> u32 {
        (self.0 >> COUNT_SHIFT & COUNT_MASK) as u32
    }

    fn last(self) -> Tick {
        Tick::from_bits((self.0 >> LAST_SHIFT) as u32)
    }

    /// True if the moves are so recent that the next move belongs to them. Another worker's clock
    /// may be a little ahead; after a large step back of time the moves are not recent.
    fn are_recent(self, now: Tick) -> bool {
        self != Moves::NONE && now.second().abs_diff(self.last().second()) <= FDB_HOLD_SECONDS
    }

    /// True if the moves are so many that the entry stays where it is.
    pub(super) fn hold(self, now: Tick) -> bool {
        self.count() >= FDB_FLAPS && self.are_recent(now)
    }

    /// Returns the record with one more move at `now`, from port `from` to port `to`. If the record
    /// [`hold`](Moves::hold)s then, the entry goes to the origin instead.
    pub(super) fn and(self, from: PortId, to: PortId, now: Tick) -> Moves {
        if !self.are_recent(now) {
            return Moves::new(from, 1, now);
        }
        let lapsed = self.0 & LAPSED;
        let count = if lapsed != 0 && to == self.origin() {
            FDB_FLAPS
        } else if self.last().second() == now.second() {
            self.count() + 1
        } else {
            1
        };
        let next = Moves::new(self.origin(), count, now);
        match count >= FDB_FLAPS {
            true => next.contested(if to == self.origin() { from } else { to }, now),
            false => Moves(next.0 | lapsed),
        }
    }

    /// Returns the record of a hold after a frame at `now` from `port`, which the hold keeps from
    /// moving the entry. The record is unchanged if the port is the rival already.
    pub(super) fn contested(self, port: PortId, now: Tick) -> Moves {
        if self.rival() == port {
            return self;
        }
        let after = now.to_bits().saturating_sub(self.last().to_bits());
        let after = u64::from(after).min(ALONE_MASK) << ALONE_SHIFT;
        let fields = PORT_MASK << RIVAL_SHIFT | ALONE_MASK << ALONE_SHIFT;
        Moves(self.0 & !fields | u64::from(port) << RIVAL_SHIFT | after)
    }

    /// True if the hold lapses with a frame at `now` from `port`. `seen` is the tick of the last
    /// frame from the hold's own port.
    pub(super) fn lapse(self, port: PortId, seen: Tick, now: Tick) -> bool {
        self.rival() == port
            && now.is_past(seen, FDB_SILENCE_SECONDS)
            && now.is_past(self.alone_since(), FDB_SILENCE_SECONDS)
    }

    /// Returns the record of a hold that lapses at `now`.
    pub(super) fn lapsed(self, now: Tick) -> Moves {
        Moves(Moves::new(self.origin(), 0, now).0 | LAPSED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the record after so many moves in one second, between ports 1 and 2.
    fn moved(moves: Moves, count: u32, now: u32) -> Moves {
        let ports = |n| (1 + (n % 2) as PortId, 2 - (n % 2) as PortId);
        (0..count).fold(moves, |moves, n| moves.and(ports(n).0, ports(n).1, now.into()))
    }

    fn holds(moves: Moves, now: u32) -> bool {
        moves.hold(now.into())
    }

    /// Returns the tick `ticks` after the beginning of a second.
    fn at(second: u32, ticks: u32) -> Tick {
        Tick::from_bits(Tick::from(second).to_bits() + ticks)
    }

    #[test]
    fn a_few_moves_in_a_second_do_not_hold() {
        let few = moved(Moves::NONE, FDB_FLAPS - 1, 50);
        assert!(!holds(few, 50) && !holds(Moves::NONE, 0));
        let many = few.and(2, 1, at(50, 7));
        assert!(holds(many, 50));
        // A rate below the limit is no flapping, whatever the total number of moves.
        let mut slow = Moves::NONE;
        for now in 50..90 {
            slow = moved(slow, FDB_FLAPS - 1, now);
            assert!(!holds(slow, now));
        }
    }

    #[test]
    fn they_hold_for_their_time_and_then_begin_anew() {
        let many = moved(Moves::NONE, FDB_FLAPS, 50);
        assert!(holds(many, 50 + FDB_HOLD_SECONDS) && !holds(many, 51 + FDB_HOLD_SECONDS));
        assert_eq!(many.origin(), 1);
        let after = many.and(7, 1, at(51 + FDB_HOLD_SECONDS, 0));
        assert!(!holds(after, 51 + FDB_HOLD_SECONDS));
        assert_eq!((after.origin(), after.count()), (7, 1));
    }

    /// The port that takes an address in one second is not its origin in the next.
    #[test]
    fn the_origin_is_that_of_before_all_of_them() {
        let once = Moves::NONE.and(3, 1, at(50, 0));
        let later = moved(once, FDB_FLAPS, 50 + FDB_HOLD_SECONDS);
        assert!(holds(later, 50 + FDB_HOLD_SECONDS));
        assert_eq!(later.origin(), 3);
        assert_eq!(moved(once, 1, 51 + FDB_HOLD_SECONDS).origin(), 1, "long ago");
    }

    #[test]
    fn time_that_steps_back_holds_nothing() {
        let many = moved(Moves::NONE, FDB_FLAPS, 90_000);
        assert!(holds(many, 89_999), "another worker's clock");
        assert!(!holds(many, 100));
        assert_eq!(many.and(4, 1, at(100, 0)).origin(), 4);
        let last = Tick::from_bits(u32::MAX - 1).second();
        let many = moved(Moves::NONE, FDB_FLAPS, last);
        assert!(holds(many, last) && !holds(many, 0));
    }

    #[test]
    fn the_fields_of_a_record_do_not_touch_each_other() {
        let (origin, rival) = (PORT_MASK as PortId, PORT_MASK as PortId - 1);
        let last = at(50, 3);
        let moves = Moves::new(origin, FDB_FLAPS, last);
        let fields = |moves: Moves| {
            (moves.origin(), moves.rival(), moves.count(), moves.last(), moves.alone_since())
        };
        assert_eq!(fields(moves), (origin, origin, FDB_FLAPS, last, last));
        let since = at(60, 2);
        let contested = moves.contested(rival, since);
        assert_eq!(fields(contested), (origin, rival, FDB_FLAPS, last, since));
        assert_eq!(contested.contested(rival, at(60, 7)), contested, "it is the rival already");
        let lapsed = contested.lapsed(at(61, 0));
        assert_eq!(fields(lapsed), (origin, origin, 0, at(61, 0), at(61, 0)));
        assert!(contested.0 & LAPSED == 0 && lapsed.0 & LAPSED != 0);
    }

    #[test]
    fn a_hold_lapses_for_a_rival_alone_and_after_a_silence() {
        let hold = moved(Moves::NONE, FDB_FLAPS, 50).contested(2, at(50, 4));
        assert!(hold.lapse(2, at(50, 5), at(51, 6)));
        assert!(!hold.lapse(2, at(50, 5), at(51, 5)), "less than a second, maybe");
        assert!(!hold.lapse(2, at(52, 0), at(51, 6)), "the other worker's clock is ahead");
        assert!(!hold.lapse(3, at(50, 5), at(51, 6)), "it is not the rival");
        let other = hold.contested(3, at(51, 0));
        assert!(!other.lapse(3, at(50, 5), at(52, 0)) && other.lapse(3, at(50, 5), at(52, 1)));
    }

    /// The first owner gets the address back with one frame; other ports move it like any address.
    #[test]
    fn after_a_lapse_the_origin_holds_at_once() {
        let lapsed = moved(Moves::NONE, FDB_FLAPS, 50).lapsed(at(52, 0));
        assert!(!holds(lapsed, 52));
        assert!(holds(lapsed.and(2, 1, at(53, 0)), 53));
        let elsewhere = lapsed.and(2, 3, at(53, 0));
        assert!(!holds(elsewhere, 53) && holds(elsewhere.and(3, 1, at(54, 0)), 54));
        let late = lapsed.and(2, 1, at(53 + FDB_HOLD_SECONDS, 0));
        assert!(!holds(late, 53 + FDB_HOLD_SECONDS), "long ago");
        let again = lapsed.and(2, 1, at(53, 0));
        assert_eq!(again.0 & LAPSED, 0, "this is another hold");
    }
}
