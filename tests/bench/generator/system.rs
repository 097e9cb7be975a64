//! Clocks, CPUs, and the CPU time of processes.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use testkit::sys;

/// A clock that costs a few nanoseconds to read.
#[inline(always)]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads a register.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `t` is writable.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t) };
        t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
    }
}

/// Ticks per second, compared with the system's clock for 20 ms.
pub fn ticks_per_second() -> f64 {
    let (start, from) = (Instant::now(), ticks());
    std::thread::sleep(Duration::from_millis(20));
    let (ticks, time) = (ticks() - from, start.elapsed());
    ticks as f64 / time.as_secs_f64()
}

/// What one thread used, in nanoseconds.
#[derive(Clone, Copy)]
pub struct ThreadTime {
    pub thread: u32,
    pub ran: u64,
    /// Ready to run, while something else had the CPU.
    pub waited: u64,
}

/// The times of all threads of a process; none if there is no such process.
///
/// A thread's end takes its time with it: for processes that keep their threads.
pub fn process_times(pid: u32) -> Vec<ThreadTime> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    threads.flatten().filter_map(|entry| thread_times(&entry.path())).collect()
}

/// The times of the thread whose directory this is.
fn thread_times(path: &Path) -> Option<ThreadTime> {
    let thread = path.file_name()?.to_str()?.parse().ok()?;
    let Ok(text) = fs::read_to_string(path.join("schedstat")) else {
        // A kernel without scheduler statistics: clock ticks of 10 ms, and waiting is not known.
        let ran = stat_cpu(&fs::read_to_string(path.join("stat")).ok()?)?;
        return Some(ThreadTime { thread, ran, waited: 0 });
    };
    let mut numbers = text.split_ascii_whitespace().map_while(|word| word.parse().ok());
    Some(ThreadTime { thread, ran: numbers.next()?, waited: numbers.next()? })
}

/// From one moment to another: nanoseconds all threads ran, and the one that ran most waited.
pub fn used(from: &[ThreadTime], to: &[ThreadTime]) -> (u64, u64) {
    let before = |t: &ThreadTime| from.iter().find(|f| f.thread == t.thread);
    let delta = |t: &ThreadTime| match before(t) {
        Some(f) => (t.ran.saturating_sub(f.ran), t.waited.saturating_sub(f.waited)),
        None => (t.ran, t.waited),
    };
    let all = to.iter().map(delta);
    let ran = all.clone().map(|(ran, _)| ran).sum();
    (ran, all.max().map_or(0, |(_, waited)| waited))
}

/// User and system time out of `/proc/…/stat`, in nanoseconds (proc(5): fields 14 and 15, USER_HZ
/// is 100 everywhere).
fn stat_cpu(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some((user + system) * 10_000_000)
}

/// Nanoseconds this thread ran, in user mode and in the kernel.
pub fn own_cpu() -> (u64, u64) {
    // SAFETY: rusage is plain data that the kernel fills in.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage
    };
    let nanos = |t: libc::timeval| t.tv_sec as u64 * 1_000_000_000 + t.tv_usec as u64 * 1000;
    (nanos(usage.ru_utime), nanos(usage.ru_stime))
}

/// Series of transfers, and transfers in each: a millisecond or so on a quiet machine.
const SERIES: u32 = 20;
const TURNS: u32 = 10_000;
/// When the measurement is given up; something else runs on the CPUs then.
const GATE_LIMIT: Duration = Duration::from_secs(1);

/// Nanoseconds for a cache line to go from one CPU to another and back: a measure of how far the
/// two are apart, and of how much else ran on them meanwhile. The median of all series and the
/// worst, infinite where the time was over.
pub fn ping_pong(cpus: [usize; 2]) -> (f64, f64) {
    let (ball, over) = (AtomicU32::new(0), AtomicBool::new(false));
    let wait_for = |value: u32| {
        while ball.load(Ordering::Acquire) != value {
            if over.load(Ordering::Relaxed) {
                return false;
            }
            std::hint::spin_loop();
        }
        true
    };
    let mut times = [f64::INFINITY; SERIES as usize];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            sys::pin(0, &[cpus[1]]);
            for turn in 0..TURNS * SERIES {
                if !wait_for(2 * turn + 1) {
                    return;
                }
                ball.store(2 * turn + 2, Ordering::Release);
            }
        });
        scope.spawn(|| {
            // Asleep but for the limit, so it disturbs nobody.
            let end = Instant::now() + GATE_LIMIT;
            let last = 2 * TURNS * SERIES;
            while Instant::now() < end && ball.load(Ordering::Relaxed) != last {
                std::thread::sleep(Duration::from_millis(5));
            }
            over.store(true, Ordering::Relaxed);
        });
        sys::pin(0, &[cpus[0]]);
        for (series, time) in (0..).zip(&mut times) {
            let start = Instant::now();
            for turn in series * TURNS..(series + 1) * TURNS {
                ball.store(2 * turn + 1, Ordering::Release);
                if !wait_for(2 * turn + 2) {
                    return;
                }
            }
            *time = start.elapsed().as_nanos() as f64 / f64::from(TURNS);
        }
    });
    times.sort_by(f64::total_cmp);
    (times[SERIES as usize / 2], times[SERIES as usize - 1])
}
