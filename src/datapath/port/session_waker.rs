//! How other threads wake a session, which waits for its front-end: to end it, or to have it report
//! its state.
//!
//! One eventfd for both, as a thousand ports have a thousand of them. The session reads it and
//! looks at the flag afterwards, and the flag is set before the write: an end is never overlooked.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use vmm_sys_util::eventfd::EventFd;

/// What a session waits for besides its front-end.
#[derive(Debug)]
pub struct SessionWaker {
    eventfd: EventFd,
    ended: AtomicBool,
}

impl SessionWaker {
    /// Nothing is wanted of the session.
    pub fn new() -> io::Result<SessionWaker> {
        let eventfd = EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)?;
        Ok(SessionWaker { eventfd, ended: AtomicBool::new(false) })
    }

    /// The session is to end.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.wake();
    }

    /// The session is to look what it is asked for.
    pub fn wake(&self) {
        // Fails only if it is full, and then it is readable.
        let _ = self.eventfd.write(1);
    }

    /// True if the session is to end; else wake-ups are taken notice of, and the descriptor is
    /// readable after the next one.
    pub fn take(&self) -> bool {
        // Fails if no thread has woken it.
        let _ = self.eventfd.read();
        self.ended.load(Ordering::Acquire)
    }

    /// Readable when the session is wanted.
    pub fn eventfd(&self) -> &EventFd {
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
