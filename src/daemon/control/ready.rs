//! Orders the turns of the clients that can go on.
//!
//! Clients of root come first, then clients that may change the switch, then other clients: an
//! administrator can steer the switch however many questions there are. Clients of equal rank take
//! turns. Each [`CONTROL_COMMON_TURN`]th turn goes to the first client in line whatever its rank,
//! so that a client of root that reads a capture for hours leaves a part of the time to others.

use std::collections::VecDeque;

use super::connection::Rank;
use base::limits::CONTROL_COMMON_TURN;

/// Clients in line, by their places.
#[derive(Debug, Default)]
pub(crate) struct ReadyList {
    line: VecDeque<(usize, Rank)>,
    turns: u64,
}

impl ReadyList {
    /// True if no client is in line.
    pub(crate) fn is_empty(&self) -> bool {
        self.line.is_empty()
    }

    /// Puts a client at the end of the line, unless the client is in line.
    pub(crate) fn push(&mut self, place: usize, rank: Rank) {
        if self.line.iter().all(|(other, _)| *other != place) {
            self.line.push_back((place, rank));
        }
    }

    /// Removes a client that is gone.
    pub(crate) fn remove(&mut self, place: usize) {
        self.line.retain(|(other, _)| *other != place);
    }

    /// Removes and returns the client whose turn it is.
    pub(crate) fn pop(&mut self) -> Option<usize> {
        self.turns = self.turns.wrapping_add(1);
        let highest = self.line.iter().map(|(_, rank)| *rank).max()?;
        let next = match self.turns % CONTROL_COMMON_TURN {
            0 => 0,
            _ => self.line.iter().position(|(_, rank)| *rank == highest)?,
        };
        self.line.remove(next).map(|(place, _)| place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the order of `count` turns of clients that are ready again at once.
    fn turns(list: &mut ReadyList, ranks: &[Rank], count: usize) -> Vec<usize> {
        ranks.iter().enumerate().for_each(|(place, rank)| list.push(place, *rank));
        let turn = |_| {
            let place = list.pop().unwrap();
            list.push(place, ranks[place]);
            place
        };
        (0..count).map(turn).collect()
    }

    #[test]
    fn equals_take_turns() {
        let mut list = ReadyList::default();
        let order = turns(&mut list, &[Rank::Viewer; 3], 9);
        assert_eq!(order, [0, 1, 2, 0, 1, 2, 0, 1, 2]);
        list.push(1, Rank::Viewer);
        list.remove(2);
        list.remove(0);
        assert_eq!((list.pop(), list.pop(), list.is_empty()), (Some(1), None, true));
    }

    #[test]
    fn the_higher_rank_is_served_first_and_leaves_a_part_to_others() {
        let ranks = [Rank::Viewer, Rank::Admin, Rank::Viewer, Rank::Root];
        let mut list = ReadyList::default();
        let order = turns(&mut list, &ranks, 32);
        assert_eq!(order[..8], [3, 3, 3, 0, 3, 3, 3, 1]);
        let count = |place: usize| order.iter().filter(|turn| **turn == place).count();
        assert_eq!([0, 1, 2, 3].map(count), [3, 3, 2, 24]);
        // Without a client of root, the administrator's client comes first.
        list.remove(3);
        assert_eq!(list.pop(), Some(1));
    }
}
