//! Wake-ups of a session, which waits for its front-end: to end, or to report its state.
//!
//! One eventfd serves both purposes, since a thousand ports have a thousand sessions. The flag is
//! set before the eventfd is written, and the session reads the eventfd before the flag: no end is
//! missed.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use vmm_sys_util::eventfd::EventFd;

/// Wake-ups of a session by other threads.
#[derive(Debug)]
pub struct SessionWaker {
    eventfd: EventFd,
    ended: AtomicBool,
}

impl SessionWaker {
    /// Creates a waker without a wake-up.
    pub(crate) fn new() -> io::Result<SessionWaker> {
        let eventfd = EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)?;
        Ok(SessionWaker { eventfd, ended: AtomicBool::new(false) })
    }

    /// Asks the session to end.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.wake();
    }

    /// Asks the session to look for requests.
    pub(crate) fn wake(&self) {
        // Fails only if the counter is full; the eventfd is readable then.
        let _ = self.eventfd.write(1);
    }

    /// True if the session is to end. Otherwise clears earlier wake-ups: the eventfd becomes
    /// readable at the next wake-up.
    pub(crate) fn take(&self) -> bool {
        // Fails if there was no wake-up.
        let _ = self.eventfd.read();
        self.ended.load(Ordering::Acquire)
    }

    /// Returns the eventfd, which is readable after a wake-up.
    pub(crate) fn eventfd(&self) -> &EventFd {
        &self.eventfd
    }
}

impl AsRawFd for SessionWaker {
    fn as_raw_fd(&self) -> RawFd {
        self.eventfd.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sys::eventfd::is_readable;

    #[test]
    fn a_wake_up_is_taken_once_and_an_end_for_good() {
        let waker = SessionWaker::new().unwrap();
        assert!(!is_readable(waker.as_raw_fd()));
        waker.wake();
        waker.wake();
        assert!(is_readable(waker.as_raw_fd()) && !waker.take());
        assert!(!is_readable(waker.as_raw_fd()));
        waker.wake();
        waker.end();
        assert!(waker.take() && waker.take());
    }
}
