//! Time of the forwarding table.

/// Ticks in a second, as a power of two.
const SHIFT: u32 = 3;

/// An eighth of a second: fine enough to see within a second which port still sends from an
/// address, coarse enough that a stream writes the stamp of its address only eight times a second.
///
/// A tick is 2^27 ns, and the last tick of each second is shorter. So eight ticks in a row always
/// last exactly a second, and a shift, not a division, turns nanoseconds into ticks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Tick(u32);

impl Tick {
    /// Returns the tick of a time. Ticks wrap after 17 years of seconds.
    #[inline]
    pub fn new(seconds: u32, nanos: u32) -> Tick {
        Tick(seconds << SHIFT | (nanos >> 27) & ((1 << SHIFT) - 1))
    }

    /// Makes a tick from the number that [`Tick::to_bits`] returned.
    pub const fn from_bits(bits: u32) -> Tick {
        Tick(bits)
    }

    /// Returns the tick's number.
    #[inline]
    pub const fn to_bits(self) -> u32 {
        self.0
    }

    /// Returns the second that contains the tick.
    #[inline]
    pub const fn second(self) -> u32 {
        self.0 >> SHIFT
    }

    /// Returns the number of ticks in `seconds`.
    pub(crate) const fn ticks(seconds: u32) -> u32 {
        seconds.saturating_mul(1 << SHIFT)
    }

    /// True if at least `seconds` have passed since `before`. `before` may be later than this tick,
    /// by another worker's clock.
    pub(super) fn is_past(self, before: Tick, seconds: u32) -> bool {
        // More than, not equal: only the ticks between the two have passed completely.
        self.0.saturating_sub(before.0) > Tick::ticks(seconds)
    }
}

/// Returns the first tick of a second.
impl From<u32> for Tick {
    fn from(second: u32) -> Tick {
        Tick::new(second, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_eight_ticks() {
        let ticks = |nanos| Tick::new(7, nanos).to_bits();
        assert_eq!([0, (1 << 27) - 1, 1 << 27, 999_999_999].map(ticks), [56, 56, 57, 63]);
        assert_eq!(Tick::new(7, 999_999_999).second(), 7);
        assert_eq!(Tick::from(8), Tick::new(8, 0));
    }

    #[test]
    fn a_second_has_passed_when_it_surely_has() {
        let before = Tick::new(7, 500_000_000);
        assert!(!Tick::new(8, 500_000_000).is_past(before, 1), "maybe less by a tick");
        assert!(Tick::new(8, 700_000_000).is_past(before, 1));
        assert!(!before.is_past(Tick::from(9), 1), "a clock that is ahead");
    }
}
