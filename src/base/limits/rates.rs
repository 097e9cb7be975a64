//! Limits of `rate-in=`, `rate-out=` and their bursts.

/// Bits a second of `rate-in` and `rate-out`: a frame of 64 KiB takes minutes at most, and each
/// frame at least a nanosecond.
pub const RATE_BITS: std::ops::RangeInclusive<u64> = 8_000..=1_000_000_000_000;

/// Packets a second of `rate-in` and `rate-out`.
pub const RATE_PACKETS: std::ops::RangeInclusive<u64> = 1..=1_000_000_000;

/// Bytes of `burst-in` and `burst-out`: with a smaller burst frames of 1,514 bytes would wait.
pub const BURST_SIZE_BYTES: std::ops::RangeInclusive<u64> = 1_514..=1_000_000_000;

/// Packets of `burst-in` and `burst-out`.
pub const BURST_SIZE_PACKETS: std::ops::RangeInclusive<u64> = 1..=100_000_000;

/// Bytes of a burst without `burst-in` or `burst-out`: one frame of 64 KiB.
pub const RATE_BURST_BYTES: u64 = 64 << 10;

/// Packets of a burst without `burst-in` or `burst-out`: a burst of a ring.
pub const RATE_BURST_PACKETS: u64 = super::BURST_FRAMES as u64;

/// Time of the rate that makes a larger burst: a worker sleeps in steps of a millisecond, and a
/// guest's sender pauses for longer.
pub const RATE_BURST_NANOS: u64 = 10_000_000;

/// Tuning: time of the rate by which a port may exceed its burst, as a worker may come so late to
/// waiting frames. In the first second the excess is a hundredth.
pub const RATE_LATE_NANOS: u64 = 10_000_000;

/// Tuning: time of the rate by which frames that cannot wait may exceed [`RATE_LATE_NANOS`], as
/// these frames are dropped while frames of other senders use the rate. Much less than
/// [`RATE_QUEUE_NANOS`]: frames that can wait must be able to book beside a sender that floods.
pub const RATE_NO_WAIT_NANOS: u64 = 2_500_000;

/// Tuning: time of the rate, or one frame, that frames of one sender get before frames of other
/// senders have their turn.
pub const RATE_TURN_NANOS: u64 = 1_000_000;

/// Time for which frames wait for a `rate-out` in a sender's ring at most, and time of the rate
/// that the waiting frames may amount to.
pub const RATE_QUEUE_NANOS: u64 = 10_000_000;

/// Tuning: time after which a worker looks again at frames that wait for a rate, as the rate may
/// have changed.
pub const RATE_LOOK_NANOS: u64 = 100_000_000;
