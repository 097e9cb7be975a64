//! Damping: an address that flaps between ports stays at one for a while.
//!
//! Two stations with one address, a loop, or a guest that sends from its neighbour's address have
//! an entry move with each frame. Held where it is, it would be the port's that sends at the right
//! moment: it goes back to its *origin* instead, the port that had it before the moves began, and
//! follows nothing for [`FDB_HOLD_SECONDS`]. Frames from elsewhere pass and are not learned from.
//! A machine that migrates, or a virtual address that fails over, moves once or twice and is
//! followed.
//!
//! Others: Linux's bridge and Open vSwitch follow every move. Junos drops the frames of those
//! beyond a number a second, if it is set (`mac-move-limit`). A router of EVPN that sees five moves
//! in 180 s takes no more part in them until an operator comes (RFC 7432, section 15.1).
//!
//! Each entry has a record of its own, in an array that is read only when a frame comes from
//! another port than the entry's: a port that has a thousand addresses flap displaces no record of
//! another one, and an address that stays costs nothing.

use super::PortId;
use crate::limits::{FDB_FLAPS, FDB_HOLD_SECONDS};

const ORIGIN_MASK: u64 = 0xffff;
const MOVES_SHIFT: u32 = 16;
const SECOND_SHIFT: u32 = 32;

/// The last moves of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Moves(pub(super) u64);

impl Moves {
    /// None lately.
    pub(super) const NONE: Moves = Moves(0);

    /// Where the entry was before them.
    pub(super) fn origin(self) -> PortId {
        (self.0 & ORIGIN_MASK) as PortId
    }

    /// How many there were in their last second.
    fn count(self) -> u32 {
        u32::from((self.0 >> MOVES_SHIFT) as u16)
    }

    fn second(self) -> u32 {
        (self.0 >> SECOND_SHIFT) as u32
    }

    /// Whether they are of so late that the next one belongs to them. Of two workers one may have
    /// read the clock before the other; should time step back, they are of another time.
    fn are_recent(self, now: u32) -> bool {
        self != Moves::NONE && now.abs_diff(self.second()) <= FDB_HOLD_SECONDS
    }

    /// Whether they were so many that the entry stays where it is.
    pub(super) fn hold(self, now: u32) -> bool {
        self.count() >= FDB_FLAPS && self.are_recent(now)
    }

    /// With one more in second `now`, away from port `from`. If they [`hold`](Moves::hold) then, it
    /// goes to their origin instead.
    pub(super) fn and(self, from: PortId, now: u32) -> Moves {
        let begins = !self.are_recent(now);
        let origin = if begins { from } else { self.origin() };
        let count = if begins || self.second() != now { 1 } else { self.count() + 1 };
        let (count, second) = (u64::from(count), u64::from(now));
        Moves(u64::from(origin) | count << MOVES_SHIFT | second << SECOND_SHIFT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many in one second, away from ports 1 and 2 by turns.
    fn moved(moves: Moves, count: u32, now: u32) -> Moves {
        (0..count).fold(moves, |moves, n| moves.and(1 + (n % 2) as PortId, now))
    }

    #[test]
    fn a_few_moves_in_a_second_do_not_hold() {
        let few = moved(Moves::NONE, FDB_FLAPS - 1, 50);
        assert!(!few.hold(50) && !Moves::NONE.hold(0));
        let many = few.and(2, 50);
        assert!(many.hold(50));
        // As many in two seconds are no flapping, whatever their number.
        let mut slow = Moves::NONE;
        for now in 50..90 {
            slow = moved(slow, FDB_FLAPS - 1, now);
            assert!(!slow.hold(now));
        }
    }

    #[test]
    fn they_hold_for_their_time_and_then_begin_anew() {
        let many = moved(Moves::NONE, FDB_FLAPS, 50);
        assert!(many.hold(50 + FDB_HOLD_SECONDS) && !many.hold(51 + FDB_HOLD_SECONDS));
        assert_eq!(many.origin(), 1);
        let after = many.and(7, 51 + FDB_HOLD_SECONDS);
        assert!(!after.hold(51 + FDB_HOLD_SECONDS));
        assert_eq!((after.origin(), after.count()), (7, 1));
    }

    /// The port that takes an address in one second is not its origin in the next.
    #[test]
    fn the_origin_is_that_of_before_all_of_them() {
        let once = Moves::NONE.and(3, 50);
        let later = moved(once, FDB_FLAPS, 50 + FDB_HOLD_SECONDS);
        assert!(later.hold(50 + FDB_HOLD_SECONDS));
        assert_eq!(later.origin(), 3);
        assert_eq!(moved(once, 1, 51 + FDB_HOLD_SECONDS).origin(), 1, "long ago");
    }

    #[test]
    fn time_that_steps_back_holds_nothing() {
        let many = moved(Moves::NONE, FDB_FLAPS, 90_000);
        assert!(many.hold(89_999), "another worker's clock");
        assert!(!many.hold(100));
        assert_eq!(many.and(4, 100).origin(), 4);
        let last = moved(Moves::NONE, FDB_FLAPS, u32::MAX - 1);
        assert!(last.hold(u32::MAX - 1) && !last.hold(0));
    }
}
