//! The state of one connection in one atomic word: whether the slot is used, state, flags, the tick
//! at which the connection times out, and a version.
//! The version changes whenever another connection gets the slot. A reader compares the key's words
//! and then loads this word again: if the version is equal, the key belongs to the first word. A
//! change of the word is an exchange, which fails if the slot has got another connection meanwhile.

use super::super::super::fdb::Tick;
use super::state::{Ending, State};

pub(super) const VERSION_BITS: u32 = 22;

const USED: u64 = 1;
/// The VM behind the port sent the first packet.
const OUT: u64 = 1 << 1;
/// Both ends have sent packets.
pub(super) const REPLIED: u64 = 1 << 2;
/// The connection does not make room for others.
pub(super) const ASSURED: u64 = 1 << 3;
/// The end that sent the first packet has sent the first FIN, or the last RST.
const ENDED_BY_FIRST: u64 = 1 << 4;
/// A RST has ended a connection whose handshake was complete.
const WAS_OPEN: u64 = 1 << 5;
const STATE_SHIFT: u32 = 6;
/// Lowest bit of the two bits of [`Ending`]; the bits of the connection's state lie above.
pub(super) const ENDING_SHIFT: u32 = 4;
const VERSION_SHIFT: u32 = 10;
const DEADLINE_SHIFT: u32 = 32;

const STATE_MASK: u64 = 0xf << STATE_SHIFT;
const VERSION_MASK: u64 = ((1 << VERSION_BITS) - 1) << VERSION_SHIFT;
const DEADLINE_MASK: u64 = u64::MAX << DEADLINE_SHIFT;
const _: () = assert!(VERSION_SHIFT + VERSION_BITS == DEADLINE_SHIFT);

/// The state of a connection, or an unused slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Word(pub(super) u64);

impl Word {
    /// Returns the word of a connection that begins in a slot whose word was `self`.
    pub(super) fn begin(self, out: bool, state: State, deadline: Tick) -> Word {
        Word(self.claimed().0 | USED | if out { OUT } else { 0 }).with(state, deadline)
    }

    /// Returns the word of a slot that is being given to another connection.
    pub(super) fn claimed(self) -> Word {
        Word(self.0.wrapping_add(1 << VERSION_SHIFT) & VERSION_MASK)
    }

    /// Returns the word of the slot without its connection.
    pub(super) fn cleared(self) -> Word {
        Word(self.0 & VERSION_MASK)
    }

    #[inline(always)]
    pub(super) fn is_used(self) -> bool {
        self.0 & USED != 0
    }

    /// True if the VM behind the port sent the first packet.
    #[inline(always)]
    pub(super) fn is_out(self) -> bool {
        self.0 & OUT != 0
    }

    #[inline(always)]
    pub(super) fn is_replied(self) -> bool {
        self.0 & REPLIED != 0
    }

    #[inline(always)]
    pub(super) fn is_assured(self) -> bool {
        self.0 & ASSURED != 0
    }

    #[inline(always)]
    pub(super) const fn state(self) -> State {
        State::from_bits((self.0 & STATE_MASK) >> STATE_SHIFT)
    }

    #[inline(always)]
    pub(super) fn deadline(self) -> Tick {
        Tick::from_bits((self.0 >> DEADLINE_SHIFT) as u32)
    }

    /// True if an abort has ended the connection before any answer.
    #[inline(always)]
    pub(super) fn is_forgotten(self) -> bool {
        self.state() == State::Closed && !self.is_replied()
    }

    /// True if a RST has ended an open connection: the RST may be forged.
    #[inline(always)]
    pub(super) fn may_go_on(self) -> bool {
        self.state() == State::Closed && self.ending().was_open
    }

    /// True if the connection has timed out.
    #[inline(always)]
    pub(super) fn is_expired(self, now: Tick) -> bool {
        self.deadline() < now
    }

    /// True if both words are of one connection.
    #[inline(always)]
    pub(super) fn is_same(self, other: Word) -> bool {
        (self.0 ^ other.0) & (VERSION_MASK | USED) == 0
    }

    #[inline(always)]
    pub(super) fn version(self) -> u64 {
        (self.0 & VERSION_MASK) >> VERSION_SHIFT
    }

    #[inline(always)]
    pub(super) const fn with(self, state: State, deadline: Tick) -> Word {
        Word(self.0 & !STATE_MASK | (state as u64) << STATE_SHIFT).until(deadline)
    }

    /// Returns the word with another time-out.
    #[inline(always)]
    pub(super) const fn until(self, deadline: Tick) -> Word {
        Word(self.0 & !DEADLINE_MASK | (deadline.to_bits() as u64) << DEADLINE_SHIFT)
    }

    /// Returns what the word says about the end of the connection.
    #[inline(always)]
    pub(super) const fn ending(self) -> Ending {
        Ending { by_first: self.0 & ENDED_BY_FIRST != 0, was_open: self.0 & WAS_OPEN != 0 }
    }

    pub(super) const fn with_ending(self, ending: Ending) -> Word {
        let by_first = if ending.by_first { ENDED_BY_FIRST } else { 0 };
        let was_open = if ending.was_open { WAS_OPEN } else { 0 };
        Word(self.0 & !(ENDED_BY_FIRST | WAS_OPEN) | by_first | was_open)
    }

    pub(super) fn replied(self) -> Word {
        Word(self.0 | REPLIED)
    }

    pub(super) fn assured(self, is: bool) -> Word {
        Word(self.0 & !ASSURED | if is { ASSURED } else { 0 })
    }
}
