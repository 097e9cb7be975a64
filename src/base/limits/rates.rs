//! Limits of `rate-in=`, `rate-out=` and their bursts.

/// Bits a second of `rate-in` and `rate-out`: a frame of 64 KiB is to take minutes at
/// most, and no frame less than a nanosecond.
pub const RATE_BITS: std::ops::RangeInclusive<u64> = 8_000..=1_000_000_000_000;

/// Packets a second of them.
pub const RATE_PACKETS: std::ops::RangeInclusive<u64> = 1..=1_000_000_000;

/// Bytes of `burst-in` and `burst-out`: with less no frame would pass as it came.
pub const BURST_SIZE_BYTES: std::ops::RangeInclusive<u64> = 1_514..=1_000_000_000;

/// Packets of them.
pub const BURST_SIZE_PACKETS: std::ops::RangeInclusive<u64> = 1..=100_000_000;

/// A burst without these: one frame of 64 KiB.
pub const RATE_BURST_BYTES: u64 = 64 << 10;

/// The same in packets: what is taken of a ring at once.
pub const RATE_BURST_PACKETS: u64 = super::BURST_FRAMES as u64;

/// Time of the rate that it is if that is more: a worker sleeps a millisecond at a time,
/// and a guest's sender pauses for longer.
pub const RATE_BURST_NANOS: u64 = 10_000_000;

/// Tuning: by so much of the rate a port may exceed its burst, as a worker may come so late to
/// frames that wait. In the first second that makes a hundredth.
pub const RATE_LATE_NANOS: u64 = 10_000_000;

/// Tuning: frames that cannot wait may exceed that by so much of the rate, as they are dropped
/// while others' frames have the rate. Much less than [`RATE_QUEUE_NANOS`]: beside a sender that
/// floods, frames that can wait have to be able to book.
pub const RATE_NO_WAIT_NANOS: u64 = 2_500_000;

/// Tuning: frames that wait for a rate get so much of it at a time, or one frame, before others
/// have their turn.
pub const RATE_TURN_NANOS: u64 = 1_000_000;

/// Time for which frames wait for a `rate-out` in a sender's ring at most, and time of the rate
/// that they may amount to.
pub const RATE_QUEUE_NANOS: u64 = 10_000_000;

/// Tuning: frames that wait for a rate are looked at again after so long, as the rate may be
/// another one.
pub const RATE_LOOK_NANOS: u64 = 100_000_000;

/// Tuning: descriptors of the largest frame that Linux sends: `MAX_SKB_FRAGS`, the header's and the
/// linear part's. Its driver stops the queue while fewer are free.
pub const MAX_FRAME_SLOTS: u16 = 20;
