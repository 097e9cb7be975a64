//! The kernel's figures of a thread: processor time, run-queue delay, page faults.

use std::cell::OnceCell;
use std::fs::File;
use std::os::unix::fs::FileExt;

use nix::sys::resource::{self, UsageWho};
use rustix::time::{ClockId, clock_gettime};

/// Upper bound, in nanoseconds, of the time to find and clear a huge page: 0.1 to 0.9 ms.
const SLOWEST_PAGE_NANOS: u64 = 1_000_000;

/// The resources that a thread has used so far; only differences between two values have a meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Nanoseconds of processor time.
    pub cpu: u64,
    /// Nanoseconds in which the thread was ready to run and had no CPU; `None` if the kernel does
    /// not count them.
    pub run_delay: Option<u64>,
    /// Voluntary context switches: how often the thread slept.
    pub sleeps: u64,
    /// Page faults, [`Usage::major_faults`] included.
    pub faults: u64,
    /// Page faults that waited for a disk.
    pub major_faults: u64,
}

impl Usage {
    /// Returns the usage of the calling thread.
    pub fn now() -> Usage {
        let [sleeps, minor, major_faults] = rusage(|usage| {
            let (minor, major) = (usage.minor_page_faults(), usage.major_page_faults());
            [usage.voluntary_context_switches(), minor, major]
        });
        let (cpu, run_delay) = (cpu_nanos(), run_delay());
        Usage { cpu, run_delay, sleeps, faults: minor + major_faults, major_faults }
    }

    /// Returns the nanoseconds, of `passed` in which this usage accrued, that waiting for memory
    /// may explain: the time in which the thread slept, and the processor time of the page faults.
    pub fn waited_for_memory(&self, passed: u64) -> u64 {
        let faulted = self.faults.saturating_mul(SLOWEST_PAGE_NANOS);
        match self.faults {
            0 => 0,
            _ => self.slept(passed).saturating_add(self.cpu.min(faulted)).min(passed),
        }
    }

    /// Returns the nanoseconds, of `passed`, in which the thread neither ran nor waited for a CPU;
    /// 0 if the kernel does not count run-queue delay. Time that a hypervisor steals
    /// (`CONFIG_PARAVIRT_TIME_ACCOUNTING`) looks like sleep, so a thread without voluntary context
    /// switches did not sleep.
    pub fn slept(&self, passed: u64) -> u64 {
        match self.run_delay {
            Some(delay) if self.sleeps > 0 => passed.saturating_sub(self.cpu.saturating_add(delay)),
            _ => 0,
        }
    }

    /// Returns the usage since `before`.
    pub fn since(&self, before: &Usage) -> Usage {
        let run_delay = self.run_delay.zip(before.run_delay);
        Usage {
            cpu: self.cpu.saturating_sub(before.cpu),
            run_delay: run_delay.map(|(now, then)| now.saturating_sub(then)),
            sleeps: self.sleeps.saturating_sub(before.sleeps),
            faults: self.faults.saturating_sub(before.faults),
            major_faults: self.major_faults.saturating_sub(before.major_faults),
        }
    }
}

/// Returns the milliseconds in which the calling thread was ready to run and had no CPU. If the
/// kernel does not count them, returns the number of involuntary context switches, each of which
/// costs a time slice of some milliseconds.
pub fn run_queue_delay_millis() -> u64 {
    let preempted = || rusage(|usage| [usage.involuntary_context_switches()])[0];
    run_delay().map_or_else(preempted, |nanos| nanos / 1_000_000)
}

/// Returns the microseconds of processor time of the calling thread.
pub fn cpu_micros() -> u64 {
    cpu_nanos() / 1_000
}

fn cpu_nanos() -> u64 {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    used.tv_sec as u64 * 1_000_000_000 + used.tv_nsec as u64
}

/// Returns the nanoseconds of processor time of a thread of this process; 0 if there is no such
/// thread. Uses nix: rustix has no clocks of other threads.
pub fn cpu_nanos_of(thread: i32) -> u64 {
    // CPUCLOCK_PERTHREAD and CPUCLOCK_SCHED (linux/posix-timers_types.h).
    let clock = !thread << 3 | 4 | 2;
    let used = nix::time::clock_gettime(nix::time::ClockId::from_raw(clock));
    used.map_or(0, |used| used.tv_sec() as u64 * 1_000_000_000 + used.tv_nsec() as u64)
}

/// Reads the scheduler state of one thread, from any thread.
#[derive(Debug)]
pub struct State(Option<File>);

impl State {
    /// Opens the state of the calling thread.
    pub fn of_this_thread() -> State {
        State(File::open("/proc/thread-self/stat").ok())
    }

    /// Returns true if the thread sleeps in the kernel: it neither runs nor waits for a CPU.
    pub fn is_blocked(&self) -> bool {
        let mut line = [0; 96];
        let read = self.0.as_ref().and_then(|file| file.read_at(&mut line, 0).ok());
        // The state is behind the name in parentheses, and the name may hold any byte.
        let line = &line[..read.unwrap_or(0)];
        let name = line.iter().rposition(|byte| *byte == b')');
        name.and_then(|at| line.get(at + 2)).is_some_and(|state| matches!(state, b'D' | b'S'))
    }
}

/// Returns the second number of the thread's `schedstat` (Documentation/scheduler/sched-stats.rst).
/// Each thread opens the file once.
fn run_delay() -> Option<u64> {
    thread_local! {
        static SCHEDSTAT: OnceCell<Option<File>> = const { OnceCell::new() };
    }
    SCHEDSTAT.with(|file| {
        let file = file.get_or_init(|| File::open("/proc/thread-self/schedstat").ok()).as_ref()?;
        let mut line = [0; 96];
        let len = file.read_at(&mut line, 0).ok()?;
        let line = std::str::from_utf8(line.get(..len)?).ok()?;
        line.split_whitespace().nth(1)?.parse().ok()
    })
}

/// Returns numbers of getrusage(2) for the calling thread; 0 for a failure, which only bad
/// arguments cause. Uses nix: rustix lacks the call.
fn rusage<const N: usize>(numbers: impl FnOnce(resource::Usage) -> [i64; N]) -> [u64; N] {
    let usage = resource::getrusage(UsageWho::RUSAGE_THREAD).map(numbers);
    usage.unwrap_or([0; N]).map(|number| u64::try_from(number).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_explains_what_faults_can_take() {
        let used = |faults, run_delay| Usage {
            cpu: 5_000_000,
            run_delay,
            sleeps: 1,
            faults,
            major_faults: 0,
        };
        assert_eq!(used(0, Some(0)).waited_for_memory(90_000_000), 0);
        assert_eq!(used(2, Some(0)).waited_for_memory(5_000_000), 2_000_000);
        assert_eq!(used(9, Some(0)).waited_for_memory(5_000_000), 5_000_000);
        assert_eq!(used(9, Some(10_000_000)).waited_for_memory(100_000_000), 90_000_000);
        assert_eq!(used(9, None).waited_for_memory(100_000_000), 5_000_000);
        let stolen = Usage { sleeps: 0, ..used(9, Some(0)) };
        assert_eq!(stolen.waited_for_memory(100_000_000), 5_000_000, "by a hypervisor");
    }

    #[test]
    fn work_and_pages_are_counted() {
        let before = Usage::now();
        // The allocator does not take 64 MiB from freed memory.
        let mut pages = vec![0u8; 64 << 20];
        for at in (0..pages.len()).step_by(4 << 20) {
            pages[at] = 1;
        }
        std::hint::black_box(&mut pages);
        while Usage::now().since(&before).cpu < 2_000_000 {}
        let used = Usage::now().since(&before);
        assert!(used.faults >= 1, "{used:?}");
        assert!(used.major_faults <= used.faults && used.cpu >= 2_000_000, "{used:?}");
        let me = rustix::thread::gettid().as_raw_pid();
        assert!(cpu_nanos_of(me) >= used.cpu && cpu_nanos_of(i32::MAX >> 4) == 0);
        // Each thread reads its own figures.
        let other = std::thread::spawn(|| Usage::now().cpu).join().unwrap();
        assert!(other < Usage::now().cpu, "{other}");
    }
}
