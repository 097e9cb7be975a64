//! Clocks: coarse seconds for ageing, and a counter of cycles for the loop of a worker.
//!
//! The counter costs a few instructions: the time stamp counter on x86-64, the virtual counter
//! (CNTVCT_EL0) on AArch64. On other architectures a cycle is a nanosecond of CLOCK_MONOTONIC.
//!
//! Rules: a cycle is a tick of the counter at its constant rate, not of the core's clock, which
//! changes with frequency scaling. On x86 CPUs without an invariant counter (before about 2008;
//! some hypervisors hide the flag) the rate may drift, and CPUs may disagree: figures and limits
//! are then wrong by the ratio of the rates. Code that compares two readings must take a step back
//! for "long ago" or for no time ([`since`]), and never wait for the counter to catch up.

use std::sync::OnceLock;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Returns the seconds of `CLOCK_MONOTONIC_COARSE`: a read from the vDSO without access to the
/// hardware clock (about 6 ns), immune to changes of the wall clock.
pub fn coarse_seconds() -> u32 {
    coarse().0
}

/// Returns the seconds and nanoseconds of `CLOCK_MONOTONIC_COARSE`.
pub fn coarse() -> (u32, u32) {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    (now.tv_sec as u32, now.tv_nsec as u32)
}

/// Returns the nanoseconds of `CLOCK_MONOTONIC`.
pub fn monotonic_nanos() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Returns the microseconds of `CLOCK_MONOTONIC`.
pub fn monotonic_micros() -> u64 {
    monotonic_nanos() / 1_000
}

/// Returns the nanoseconds of the wall clock since 1970; 0 before 1970.
pub fn wall_nanos() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec as u64)
}

/// Returns the cycle counter. The reading is not ordered with the loads around it: ordering would
/// cost more than the reading, and the measured intervals are hundreds of cycles and more.
#[inline(always)]
pub fn cycles() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: every x86-64 CPU has the instruction; Linux leaves it to user space unless the
        // process asked otherwise (PR_SET_TSC).
        unsafe { core::arch::x86_64::_rdtsc() }
    }
    #[cfg(target_arch = "aarch64")]
    {
        let ticks: u64;
        // SAFETY: reads a register that Linux leaves to user space; touches nothing else.
        unsafe {
            core::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks,
                             options(nomem, nostack, preserves_flags));
        }
        ticks
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        monotonic_nanos()
    }
}

/// Returns the cycles from `then` to `now`; 0 if the counter went backwards, as it may between CPUs
/// whose counters disagree.
#[inline(always)]
pub fn since(then: u64, now: u64) -> u64 {
    let passed = now.wrapping_sub(then);
    if passed > i64::MAX as u64 { 0 } else { passed }
}

/// Returns the rate of the cycle counter in ticks per second. The first call measures the rate for
/// 10 ms; no worker makes the first call.
///
/// Precision: each end of the measurement is the tightest of some attempts to read the counter
/// between two readings of CLOCK_MONOTONIC, so each end is wrong by less than 100 ns even under
/// load: 20 ppm, far below the need of any limit here.
pub fn cycles_per_second() -> u64 {
    static RATE: OnceLock<u64> = OnceLock::new();
    *RATE.get_or_init(|| {
        let (nanos, ticks) = both();
        std::thread::sleep(MEASURE);
        let (later, more) = both();
        let passed = u128::from(later.saturating_sub(nanos).max(1));
        let rate = u128::from(since(ticks, more)) * 1_000_000_000 / passed;
        // A counter that stands still (none should exist) must not make limits of 0.
        u64::try_from(rate).unwrap_or(u64::MAX).max(1_000_000)
    })
}

/// Returns the cycles in `nanos` nanoseconds.
pub fn cycles_in(nanos: u64) -> u64 {
    let cycles = u128::from(nanos) * u128::from(cycles_per_second()) / 1_000_000_000;
    u64::try_from(cycles).unwrap_or(u64::MAX)
}

/// Returns the cycles that this machine needs for work that takes `nanos` nanoseconds on a usual
/// machine: equal to [`cycles_in`], except where instructions are emulated (QEMU's TCG, Valgrind).
pub fn cycles_for_work(nanos: u64) -> u64 {
    static SLOWNESS: OnceLock<u64> = OnceLock::new();
    let slowness = *SLOWNESS.get_or_init(|| {
        let once = || {
            let start = cycles();
            (0..WORK).fold(0u64, |sum, i| std::hint::black_box(sum.wrapping_mul(31) ^ i));
            since(start, cycles())
        };
        let best = (0..TRIES).map(|_| once()).min().unwrap_or(0);
        (best / cycles_in(WORK_NANOS).max(1)).max(1)
    });
    cycles_in(nanos).saturating_mul(slowness)
}

/// Steps of a loop, and more nanoseconds than any CPU of 2 GHz takes for them; Valgrind takes 40
/// µs.
const WORK: u64 = 2_000;
const WORK_NANOS: u64 = 4_000;

/// Returns the time that `cycles` cycles take.
pub fn time_of(cycles: u64) -> Duration {
    let nanos = u128::from(cycles) * 1_000_000_000 / u128::from(cycles_per_second());
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// Time for which the rate is measured.
const MEASURE: Duration = Duration::from_millis(10);

/// Attempts to read both clocks at one moment.
const TRIES: usize = 16;

/// Returns CLOCK_MONOTONIC and the cycle counter at one moment, as nearly as possible.
fn both() -> (u64, u64) {
    let mut best = (u64::MAX, 0, 0);
    for _ in 0..TRIES {
        let before = monotonic_nanos();
        let ticks = cycles();
        let width = monotonic_nanos().saturating_sub(before);
        if width < best.0 {
            best = (width, before + width / 2, ticks);
        }
    }
    (best.1, best.2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn the_rate_agrees_with_the_clock() {
        let rate = cycles_per_second();
        assert!((1_000_000..100_000_000_000).contains(&rate), "{rate}");
        // Readings of the clock on both sides bound the counter, however busy the machine is.
        let outer = Instant::now();
        let start = cycles();
        let inner = Instant::now();
        std::thread::sleep(Duration::from_millis(50));
        let least = inner.elapsed().as_nanos() as f64;
        let passed = since(start, cycles()) as f64 * 1e9 / rate as f64;
        let most = outer.elapsed().as_nanos() as f64;
        assert!(passed > least * 0.999 && passed < most * 1.001, "{least} {passed} {most}");
        assert!(cycles_in(1_000_000_000).abs_diff(rate) <= 1);
        assert!(time_of(rate).abs_diff(Duration::from_secs(1)) < Duration::from_micros(1));
    }

    #[test]
    fn a_step_back_is_no_time() {
        assert_eq!(since(7, 10), 3);
        assert_eq!(since(10, 7), 0);
        assert_eq!(since(u64::MAX, 1), 2);
    }
}
