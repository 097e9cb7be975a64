//! Waiting for threads to end, and what the kernel says of the calling one.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Joins threads as they end; one that hangs (a front-end can make its own session wait in the
/// kernel) is left to the end of the process.
pub fn join_until(threads: &mut Vec<JoinHandle<()>>, end: Instant) {
    while !threads.is_empty() && Instant::now() < end {
        let (done, running): (Vec<_>, Vec<_>) = threads.drain(..).partition(|t| t.is_finished());
        for thread in done {
            // Panics were contained and logged inside.
            let _ = thread.join();
        }
        *threads = running;
        if !threads.is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Milliseconds for which the calling thread so far was ready to run and had no CPU
/// (`run_delay`, Documentation/scheduler/sched-stats.rst); on a kernel that does not count them,
/// how often the CPU was taken away from it, which costs it a slice of some milliseconds.
pub fn ready_without_cpu() -> u64 {
    let counted = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = counted.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    nanos.map_or_else(involuntary_switches, |nanos| nanos / 1_000_000)
}

/// Microseconds of processor time that the calling thread has used so far.
pub fn cpu_micros() -> u64 {
    let mut used = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `used` is live and writable; the clock exists since Linux 2.6.12.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut used) };
    used.tv_sec as u64 * 1_000_000 + used.tv_nsec as u64 / 1_000
}

fn involuntary_switches() -> u64 {
    // SAFETY: all-zero bytes are a valid `rusage`, which is plain numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is live and writable. Fails only on bad arguments, and is 0 then.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
    u64::try_from(usage.ru_nivcsw).unwrap_or(0)
}
