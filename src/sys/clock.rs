//! The coarse monotonic clock.

/// Seconds of `CLOCK_MONOTONIC_COARSE`: a read from the vDSO without touching the hardware clock
/// (about 6 ns), immune to changes of the wall clock.
pub fn coarse_seconds() -> u32 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is live and writable; the clock exists since Linux 2.6.32.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut now) };
    now.tv_sec as u32
}
