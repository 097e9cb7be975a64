//! Signals as something to wait for, instead of handlers that interrupt.
//!
//! [`Signals::block`] runs in the main thread before any other is spawned: threads inherit the
//! mask, so none of them is ever interrupted by these signals, and they stay queued for
//! signalfd(2).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::io::Errno;
use vmm_sys_util::signal::create_sigset;

/// What the process was asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM: leave.
    Terminate,
    /// SIGINT: leave, from a terminal.
    Interrupt,
    /// SIGQUIT: leave, from a terminal.
    Quit,
    /// SIGUSR1: log the counters.
    Report,
    /// SIGHUP: read the configuration again; or the terminal is gone.
    Reload,
    /// SIGUSR2: means nothing.
    Spare,
}

/// The signals that are waited for, by number: those that administrators and service managers send.
/// By default each of them would end the process at once and leave its sockets behind.
const NUMBERS: [(libc::c_int, Signal); 6] = [
    (libc::SIGTERM, Signal::Terminate),
    (libc::SIGINT, Signal::Interrupt),
    (libc::SIGQUIT, Signal::Quit),
    (libc::SIGUSR1, Signal::Report),
    (libc::SIGHUP, Signal::Reload),
    (libc::SIGUSR2, Signal::Spare),
];

/// The queue of blocked signals of this process.
#[derive(Debug)]
pub struct Signals {
    fd: OwnedFd,
}

impl Signals {
    /// Blocks the signals in the calling thread and opens their queue.
    pub fn block() -> io::Result<Signals> {
        let set = create_sigset(&NUMBERS.map(|(number, _)| number))?;
        // SAFETY: `set` is initialised, and a null old set means that the old one is not wanted.
        let error = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        // SAFETY: `set` is initialised; -1 asks for a new descriptor.
        let fd = unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: signalfd just returned this descriptor, so nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Signals { fd })
    }

    /// Waits for the next signal.
    pub fn wait(&self) -> io::Result<Signal> {
        loop {
            let number = self.read()?;
            // Only the signals of the set arrive here; any other would be passed over.
            if let Some((_, signal)) = NUMBERS.iter().find(|(known, _)| *known == number) {
                return Ok(*signal);
            }
        }
    }

    /// The number of the next signal.
    fn read(&self) -> io::Result<libc::c_int> {
        const SIZE: usize = size_of::<libc::signalfd_siginfo>();
        let mut info = [0; SIZE];
        loop {
            match rustix::io::read(&self.fd, &mut info) {
                // `ssi_signo` comes first.
                Ok(SIZE) => {
                    let [a, b, c, d, ..] = info;
                    return Ok(libc::c_int::from_ne_bytes([a, b, c, d]));
                }
                Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsRawFd for Signals {
    /// For an event loop: readable when [`Signals::wait`] would not block.
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// A timer that sends the calling thread a signal again and again, until it is dropped.
#[derive(Debug)]
pub struct Ticker(libc::timer_t);

impl Ticker {
    /// One signal each `period`, from now on.
    pub fn start(signal: libc::c_int, period: Duration) -> io::Result<Ticker> {
        // SAFETY: all-zero bytes are a valid `sigevent`.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal;
        event.sigev_notify_thread_id = rustix::thread::gettid().as_raw_pid();
        let mut timer = std::ptr::null_mut();
        // SAFETY: both pointers are to values that live across the call.
        if unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let ticker = Ticker(timer);
        // Below 10^9, which fits everywhere.
        let nanos = period.subsec_nanos() as libc::c_long;
        let seconds = libc::time_t::try_from(period.as_secs()).unwrap_or(libc::time_t::MAX);
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
        // SAFETY: the timer was made by `start`, and nobody else deletes it.
        unsafe { libc::timer_delete(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends `number` to the calling thread alone: other tests run in this process.
    fn raise(number: libc::c_int) {
        // SAFETY: pthread_self is always valid, and the signal is blocked in this thread.
        let error = unsafe { libc::pthread_kill(libc::pthread_self(), number) };
        assert_eq!(error, 0);
    }

    #[test]
    fn each_blocked_signal_is_told_apart() {
        // A thread of its own, so that the mask does not outlive the test.
        let seen = std::thread::spawn(|| {
            let signals = Signals::block().unwrap();
            NUMBERS.map(|(number, _)| {
                raise(number);
                signals.wait().unwrap()
            })
        });
        assert_eq!(seen.join().unwrap(), NUMBERS.map(|(_, signal)| signal));
    }
}
