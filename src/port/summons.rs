//! How other threads reach a session, which waits for its front-end: to end, or to tell of itself.
//!
//! One eventfd for both, as a thousand ports have a thousand of them. Whoever reads it looks at the
//! flag afterwards, and the flag is set before the write: an end is never overlooked.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use vmm_sys_util::eventfd::EventFd;

/// What a session waits for besides its front-end.
#[derive(Debug)]
pub struct Summons {
    eventfd: EventFd,
    ended: AtomicBool,
}

impl Summons {
    /// Nothing is wanted of the session.
    pub fn new() -> io::Result<Summons> {
        let eventfd = EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)?;
        Ok(Summons { eventfd, ended: AtomicBool::new(false) })
    }

    /// The session is to end.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.call();
    }

    /// The session is to look what is asked of it.
    pub fn call(&self) {
        // Fails only if it is full, and then it is readable.
        let _ = self.eventfd.write(1);
    }

    /// True if the session is to end; else calls are taken notice of, and the descriptor is
    /// readable after the next one.
    pub fn take(&self) -> bool {
        // Fails if nobody has called.
        let _ = self.eventfd.read();
        self.ended.load(Ordering::Acquire)
    }

    /// Readable when the session is wanted.
    pub fn eventfd(&self) -> &EventFd {
        &self.eventfd
    }
}

impl AsRawFd for Summons {
    fn as_raw_fd(&self) -> RawFd {
        self.eventfd.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::eventfd::is_readable;

    #[test]
    fn a_call_is_taken_once_and_an_end_for_good() {
        let summons = Summons::new().unwrap();
        assert!(!is_readable(summons.as_raw_fd()));
        summons.call();
        summons.call();
        assert!(is_readable(summons.as_raw_fd()) && !summons.take());
        assert!(!is_readable(summons.as_raw_fd()));
        summons.call();
        summons.end();
        assert!(summons.take() && summons.take());
    }
}
