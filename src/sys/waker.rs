//! One thread sleeps until others have something for it.
//!
//! A thread that has something puts it where the sleeper looks, and calls [`Waker::wake`]; that
//! costs one load while none sleeps, and one write(2) for each sleep however many call it. The
//! sleeper calls [`Waker::arm`], looks once more, and then waits for the descriptor to become
//! readable: what came in between was either seen by that second look or has made it readable.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};

use vmm_sys_util::eventfd::EventFd;

/// Wakes one thread.
#[derive(Debug)]
pub struct Waker {
    eventfd: EventFd,
    /// The sleeper is asleep, or about to be.
    armed: AtomicBool,
}

impl Waker {
    /// One that no thread waits for yet.
    pub fn new() -> io::Result<Waker> {
        let eventfd = EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)?;
        Ok(Waker { eventfd, armed: AtomicBool::new(false) })
    }

    /// There is something for the sleeper, and it can be seen.
    #[inline]
    pub fn wake(&self) {
        // What was put there must be visible before the flag is read; pairs with arm().
        fence(Ordering::SeqCst);
        if self.armed.load(Ordering::Relaxed) && self.armed.swap(false, Ordering::AcqRel) {
            // Fails only if it is full, and then it is readable.
            let _ = self.eventfd.write(1);
        }
    }

    /// The sleeper is about to sleep. True if it was not armed before: then it must look again.
    pub fn arm(&self) -> bool {
        let newly = !self.armed.swap(true, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        newly
    }

    /// The sleeper is awake. Until it arms the waker again no thread writes.
    pub fn clear(&self) {
        self.armed.store(false, Ordering::Relaxed);
        // Empty if it woke for another reason.
        let _ = self.eventfd.read();
    }
}

impl AsRawFd for Waker {
    fn as_raw_fd(&self) -> RawFd {
        self.eventfd.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::eventfd::is_readable;

    #[test]
    fn it_is_written_once_for_each_sleep() {
        let waker = Waker::new().unwrap();
        waker.wake();
        assert!(!is_readable(waker.as_raw_fd()), "nobody sleeps");
        assert!(waker.arm() && !waker.arm());
        waker.wake();
        waker.wake();
        assert_eq!(waker.eventfd.read().unwrap(), 1);
        assert!(waker.arm());
        waker.clear();
        assert!(!is_readable(waker.as_raw_fd()) && waker.arm());
    }

    /// Of a hundred thousand numbers none is waited for in vain.
    #[test]
    fn what_comes_while_it_falls_asleep_wakes_it() {
        const LAST: u64 = 100_000;
        let shared = Arc::new((Waker::new().unwrap(), AtomicU64::new(0)));
        let theirs = Arc::clone(&shared);
        let writer = std::thread::spawn(move || {
            for number in 1..=LAST {
                theirs.1.store(number, Ordering::Relaxed);
                theirs.0.wake();
            }
        });
        let (waker, number) = &*shared;
        let end = Instant::now() + Duration::from_secs(60);
        let mut seen = 0;
        while seen < LAST {
            waker.arm();
            let now = number.load(Ordering::Relaxed);
            if now == seen {
                while !is_readable(waker.as_raw_fd()) {
                    assert!(Instant::now() < end, "asleep for ever at {seen}");
                    std::thread::yield_now();
                }
            }
            waker.clear();
            seen = now;
        }
        writer.join().unwrap();
    }
}
