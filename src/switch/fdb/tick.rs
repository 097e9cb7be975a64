//! The table's time.

/// Ticks in a second, as a power of two.
const SHIFT: u32 = 3;

/// An eighth of a second: fine enough to see within a second who still sends from an address,
/// coarse enough that a stream writes the time stamp of its address eight times a second only.
///
/// A tick is 2^27 ns, and the last one of each second is shorter: so many ticks in a row as make a
/// second always last exactly a second, and no division tells a tick from the nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Tick(u32);

impl Tick {
    /// That of so many seconds and nanoseconds. After 17 years of seconds it begins anew.
    #[inline]
    pub fn new(seconds: u32, nanos: u32) -> Tick {
        Tick(seconds << SHIFT | (nanos >> 27) & ((1 << SHIFT) - 1))
    }

    /// The number that [`Tick::to_bits`] told.
    pub const fn from_bits(bits: u32) -> Tick {
        Tick(bits)
    }

    /// Its number.
    #[inline]
    pub const fn to_bits(self) -> u32 {
        self.0
    }

    /// The second that it is a part of.
    #[inline]
    pub const fn second(self) -> u32 {
        self.0 >> SHIFT
    }

    /// So many ticks are `seconds`.
    pub(super) const fn ticks(seconds: u32) -> u32 {
        seconds.saturating_mul(1 << SHIFT)
    }

    /// Whether at least so many seconds have passed since `before`, which may lie ahead: another
    /// worker's clock.
    pub(super) fn is_past(self, before: Tick, seconds: u32) -> bool {
        // More than so many: only the ticks between the two have passed as a whole.
        self.0.saturating_sub(before.0) > Tick::ticks(seconds)
    }
}

/// The beginning of a second.
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
