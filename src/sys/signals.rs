//! Waits for signals, instead of handlers that interrupt.
//!
//! The main thread calls [`Signals::block`] before it starts another thread: threads inherit the
//! mask, so these signals interrupt no thread, and stay queued for signalfd(2).

use std::io;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::SigSet;
pub use nix::sys::signal::Signal;
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// The signals that administrators and service managers send. By default each of these signals ends
/// the process at once and leaves its sockets behind.
const WAITED_FOR: [Signal; 6] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGHUP,
    Signal::SIGUSR2,
];

/// The queue of blocked signals of this process.
#[derive(Debug)]
pub struct Signals(SignalFd);

impl Signals {
    /// Blocks the signals in the calling thread and opens their queue.
    pub fn block() -> io::Result<Signals> {
        let set: SigSet = WAITED_FOR.into_iter().collect();
        set.thread_block()?;
        Ok(Signals(SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC)?))
    }

    /// Waits for the next signal.
    pub fn wait(&self) -> io::Result<Signal> {
        loop {
            match self.0.read_signal() {
                // Only the signals of the set arrive; any other signal is ignored.
                Ok(info) => {
                    let signal = info.and_then(|info| Signal::try_from(info.ssi_signo as i32).ok());
                    if let Some(signal) = signal {
                        return Ok(signal);
                    }
                }
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// A timer that sends the thread that made it a signal in each period, until the timer is dropped.
#[derive(Debug)]
pub struct Ticker(libc::timer_t);

impl Ticker {
    /// Starts a timer that sends the calling thread `signal` after each `period`.
    pub fn start(signal: libc::c_int, period: Duration) -> io::Result<Ticker> {
        // SAFETY: all-zero bytes are a valid `sigevent`.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal;
        event.sigev_notify_thread_id = rustix::thread::gettid().as_raw_pid();
        let mut timer = std::ptr::null_mut();
        // SAFETY: both pointers lead to values that live across the call.
        if unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let ticker = Ticker(timer);
        // A value below 10^9 fits `c_long` on every machine.
        let nanos = period.subsec_nanos() as libc::c_long;
        // The type's name, `time_t`, is deprecated for musl.
        let seconds = period.as_secs().try_into().unwrap_or(i32::MAX.into());
        let period = libc::timespec { tv_sec: seconds, tv_nsec: nanos };
        let times = libc::itimerspec { it_interval: period, it_value: period };
        // SAFETY: `timer` was made above, `times` lives, and the old times are not asked for.
        match unsafe { libc::timer_settime(timer, 0, &times, std::ptr::null_mut()) } {
            0 => Ok(ticker),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        // SAFETY: the timer was made by `start`, and nothing else deletes it.
        unsafe { libc::timer_delete(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_blocked_signal_is_told_apart() {
        // A separate thread, so that the mask does not outlive the test.
        let seen = std::thread::spawn(|| {
            let signals = Signals::block().unwrap();
            WAITED_FOR.map(|signal| {
                // SAFETY: pthread_self is always valid, and the signal is blocked in this thread.
                // The signal goes to this thread only, because other threads run tests.
                let error = unsafe { libc::pthread_kill(libc::pthread_self(), signal as i32) };
                assert_eq!(error, 0);
                signals.wait().unwrap()
            })
        });
        assert_eq!(seen.join().unwrap(), WAITED_FOR);
    }
}
