//! Runs threads that continue after a panic, and waits for threads to end.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base::limits::{PANIC_LINES_PER_SECOND, RESTART_PAUSE_MAX, RESTART_PAUSE_MIN};

/// Takes a lock. If a thread panicked under the lock, the data is used as that thread left it.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `work` until `work` returns. After a panic, which is a bug of this program, logs the panic
/// and runs `work` again: a thread that ended silently would leave its clients unserved. The pause
/// before a restart doubles, up to `RESTART_PAUSE_MAX`; a run longer than `RESTART_PAUSE_MAX`
/// resets the pause. If `stopped` returns true, returns after the panic.
pub fn run_again_after_panic(what: &str, stopped: impl Fn() -> bool, mut work: impl FnMut()) {
    let mut pause = RESTART_PAUSE_MIN;
    loop {
        let start = Instant::now();
        if catch_unwind(AssertUnwindSafe(&mut work)).is_ok() || stopped() {
            return;
        }
        if start.elapsed() > RESTART_PAUSE_MAX {
            pause = RESTART_PAUSE_MIN;
        }
        log::error!("{what} panicked and continues in {pause:?}");
        std::thread::park_timeout(pause);
        pause = (2 * pause).min(RESTART_PAUSE_MAX);
    }
}

/// Has panics logged, a few lines a second: the default hook writes to standard error, and would
/// wait for a reader that hangs.
pub(crate) fn report_panics() {
    let window = Mutex::new((Instant::now(), 0));
    std::panic::set_hook(Box::new(move |info| {
        let mut window = lock(&window);
        if window.0.elapsed() >= Duration::from_secs(1) {
            *window = (Instant::now(), 0);
        }
        window.1 += 1;
        let told = window.1 <= PANIC_LINES_PER_SECOND;
        drop(window);
        if told {
            report_panic(info);
        }
    }));
}

fn report_panic(info: &PanicHookInfo<'_>) {
    let payload = info.payload();
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let thread = std::thread::current();
    let (name, at) = (thread.name().unwrap_or("?"), info.location());
    let at = at.map_or_else(String::new, |at| format!(" at {at}"));
    log::error!("thread {name} panicked{at}: {}", text.unwrap_or("?"));
    // Captured only if RUST_BACKTRACE is set.
    let trace = Backtrace::capture();
    if trace.status() == BacktraceStatus::Captured {
        log::error!("{trace}");
    }
}

/// Sleeps for `time`; returns false if `stopping` is set, which an unparked thread sees at once.
pub fn pause(time: Duration, stopping: &AtomicBool) -> bool {
    let end = Instant::now() + time;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if stopping.load(Ordering::Acquire) {
            return false;
        }
        if left.is_zero() {
            return true;
        }
        std::thread::park_timeout(left);
    }
}

/// Joins threads as they end, until `end`. A thread that hangs (a front-end can make its session
/// wait in the kernel) is left to the end of the process.
pub fn join_until(threads: &mut Vec<JoinHandle<()>>, end: Instant) {
    while !threads.is_empty() && Instant::now() < end {
        let (done, running): (Vec<_>, Vec<_>) = threads.drain(..).partition(|t| t.is_finished());
        for thread in done {
            // The thread has caught and logged panics.
            let _ = thread.join();
        }
        *threads = running;
        if !threads.is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_goes_on_after_each_panic_and_ends_when_it_returns() {
        let (mut runs, start) = (0, Instant::now());
        run_again_after_panic(
            "test",
            || false,
            || {
                runs += 1;
                assert!(runs == 4, "run {runs}");
            },
        );
        assert_eq!(runs, 4);
        // Pauses of 10, 20 and 40 ms.
        assert!(start.elapsed() >= 7 * RESTART_PAUSE_MIN, "{:?}", start.elapsed());
    }

    #[test]
    fn a_panic_while_stopping_is_the_end() {
        let mut runs = 0;
        run_again_after_panic(
            "test",
            || true,
            || {
                runs += 1;
                panic!("run {runs}");
            },
        );
        assert_eq!(runs, 1);
    }
}
