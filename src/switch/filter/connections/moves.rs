//! The short way of most segments of TCP: what a segment does to the word of its connection, in a
//! table. [`Move::of`] answers as [`State::step`] and [`super::next_word`] do, or leaves the
//! segment to these.

use super::super::super::fdb::Tick;
use super::state::{Ending, SEGMENTS, STATES, Segment, State, Step};
use super::word::{ASSURED, ENDING_SHIFT, REPLIED, Word};

const TCP: u8 = 6;
/// Bits of a word that choose a move: the state, and how the connection has ended.
const CHOICE_BITS: u32 = 6;
const CHOICE: u64 = (1 << CHOICE_BITS) - 1;

/// A segment's effect on a word.
#[derive(Clone, Copy)]
pub(super) struct Move {
    /// The lower bits of a word that stay.
    keep: u16,
    /// Bits that are set.
    set: u16,
    /// [`ASSURED`] if that bit becomes equal to [`REPLIED`].
    assures: u16,
    /// The segment takes the long way.
    is_long: bool,
    /// The connection ends by this segment.
    pub(super) ends: bool,
}

const LONG: Move = Move { keep: 0, set: 0, assures: 0, is_long: true, ends: false };

static MOVES: [Move; SEGMENTS.len() << (CHOICE_BITS + 1)] = {
    let mut moves = [LONG; SEGMENTS.len() << (CHOICE_BITS + 1)];
    let mut n = 0;
    while n < moves.len() {
        let segment = SEGMENTS[n >> (CHOICE_BITS + 1)];
        moves[n] = Move::make(segment, n >> CHOICE_BITS & 1 != 0, n as u64 & CHOICE);
        n += 1;
    }
    moves
};

/// Ticks until a time-out, by state and by [`REPLIED`].
static TICKS: [[u32; 2]; STATES.len()] = {
    let (mut ticks, mut n) = ([[0; 2]; STATES.len()], 0);
    while n < STATES.len() {
        let seconds = [STATES[n].seconds(TCP, false), STATES[n].seconds(TCP, true)];
        ticks[n] = [Tick::ticks(seconds[0]), Tick::ticks(seconds[1])];
        n += 1;
    }
    ticks
};

impl Move {
    const fn make(segment: Segment, first: bool, choice: u64) -> Move {
        let before = Word(choice << ENDING_SHIFT);
        let (state, is_abort) = (before.state(), matches!(segment, Segment::Rst));
        let (step, ending): (Step, Ending) = state.step_tcp(segment, first, before.ending());
        let Step::To(next) = step else { return LONG };
        // Such a connection may be forgotten.
        if matches!(state, State::Closed) && !is_abort {
            return LONG;
        }
        let word = Word(0).with(next, Tick::from_bits(0)).with_ending(ending);
        let replied = if !first && !is_abort { REPLIED } else { 0 };
        let is_open = next.is_open();
        let gone = CHOICE << ENDING_SHIFT | if is_open || next.is_over() { ASSURED } else { 0 };
        Move {
            keep: !gone as u16,
            set: (word.0 | replied) as u16,
            assures: if is_open { ASSURED as u16 } else { 0 },
            is_long: false,
            ends: next.is_over() && !state.is_over(),
        }
    }

    /// Returns what a segment does, and the word after it; `None`: the caller takes the long way.
    #[inline(always)]
    pub(super) fn of(
        segment: Segment,
        first: bool,
        before: Word,
        now: Tick,
    ) -> Option<(&'static Move, Word)> {
        let choice = (before.0 >> ENDING_SHIFT & CHOICE) as usize;
        let place = (segment as usize * 2 + usize::from(first)) << CHOICE_BITS | choice;
        let found = MOVES.get(place).filter(|found| !found.is_long)?;
        let bits = before.0 & (u64::from(found.keep) | 0xffff_0000) | u64::from(found.set);
        let replied = bits & REPLIED;
        let assured = if replied != 0 { u64::from(found.assures) } else { 0 };
        let word = Word(bits | assured);
        let ticks = TICKS[word.state() as usize][usize::from(replied != 0)];
        Some((found, word.until(Tick::from_bits(now.to_bits().saturating_add(ticks)))))
    }
}

#[cfg(test)]
mod tests {
    use super::super::next_word;
    use super::*;

    /// All words but version and time-out, all segments.
    #[test]
    fn the_short_way_is_the_long_way() {
        let (now, mut short) = (Tick::from_bits(8_000), 0);
        for bits in (0..1u64 << 10).map(|low| 77 << 32 | 5 << 10 | low | 1) {
            for (segment, first) in SEGMENTS.iter().flat_map(|one| [(*one, false), (*one, true)]) {
                let before = Word(bits);
                let (step, ending) = before.state().step_tcp(segment, first, before.ending());
                let Some((found, after)) = Move::of(segment, first, before, now) else { continue };
                let Step::To(next) = step else { panic!("{segment:?} {before:?} {step:?}") };
                let replies = !first && segment != Segment::Rst;
                let expected = next_word(before, next, replies, TCP, now).with_ending(ending);
                assert_eq!(after, expected, "{segment:?} {first} {bits:#x}");
                assert_eq!(found.ends, next.is_over() && !before.state().is_over());
                assert!(!before.is_forgotten() || segment == Segment::Rst);
                short += 1;
            }
        }
        assert!(short > 4_000, "{short}");
    }
}
