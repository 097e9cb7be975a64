//! Lets one thread sleep until other threads have work for it.
//!
//! A thread that has work publishes the work, then calls [`Waker::wake`], which costs one load
//! while the sleeper is awake, and one write(2) for each sleep however many threads call it. The
//! sleeper calls [`Waker::arm`], looks for work once more, and then waits for the descriptor to
//! become readable: work that was published in between was either seen by the second look, or made
//! the descriptor readable.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};

use vmm_sys_util::eventfd::EventFd;

/// Wakes one thread.
#[derive(Debug)]
pub struct Waker {
    eventfd: EventFd,
    /// True while the sleeper sleeps or is about to sleep.
    armed: AtomicBool,
}

impl Waker {
    /// Makes an unarmed waker.
    pub fn new() -> io::Result<Waker> {
        let eventfd = EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)?;
        Ok(Waker { eventfd, armed: AtomicBool::new(false) })
    }

    /// Wakes the sleeper. The caller has published the work before.
    #[inline]
    pub fn wake(&self) {
        // The published work must be visible before the flag is read; pairs with the fence in
        // arm().
        fence(Ordering::SeqCst);
        if self.armed.load(Ordering::Relaxed) && self.armed.swap(false, Ordering::AcqRel) {
            // Fails only if the eventfd is full, and a full eventfd is readable.
            let _ = self.eventfd.write(1);
        }
    }

    /// Arms the waker before the sleeper sleeps. Returns true if the waker was not armed before:
    /// the sleeper must then look for work again.
    pub fn arm(&self) -> bool {
        let newly = !self.armed.swap(true, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        newly
    }

    /// Disarms the waker after the sleeper woke: no thread writes until the waker is armed again.
    pub fn clear(&self) {
        self.armed.store(false, Ordering::Relaxed);
        // The eventfd is empty if the sleeper woke for another reason.
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

    /// No number of a hundred thousand is waited for in vain.
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
