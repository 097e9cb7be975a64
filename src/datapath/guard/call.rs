//! Call descriptors: the eventfds that a front-end hands over to be notified by.
//!
//! A write to one may block for ever, as the front-end can clear `O_NONBLOCK` at any moment and
//! fill the counter, and it may cost milliseconds of our time. So a [`CallFd`] is only signalled
//! through a [`SignalSlot`](super::SignalSlot) or
//! [`BlockedWriterWatch::signal_once`](super::BlockedWriterWatch::signal_once), which watch and
//! measure.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;

use super::SignalCost;
use sys::clock;
use sys::descriptor::set_nonblocking;
use sys::eventfd::has_room;

/// What sending a signal came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignalResult {
    /// The counter went up by one.
    Sent,
    /// The counter is full: a signal is pending already, nothing is lost.
    Full,
    /// The write blocked and had to be interrupted, or would have: the front-end took `O_NONBLOCK`
    /// away and filled the counter. No honest one does both; its port should be dropped.
    Blocked,
    /// The signal was sent, but this one and others before took so much processor time that the
    /// front-end must have put thousands of pollers on the descriptor. Its port should be dropped.
    ManyWaiters,
    /// Any other error, as errno.
    Failed(i32),
}

/// An eventfd that tells a guest, or its front-end, that something happened. Closed on drop; held
/// in an `Arc` by whoever may signal late, so that its number is not reused under them.
#[derive(Debug)]
pub struct CallFd {
    fd: OwnedFd,
    pub(super) cost: Arc<SignalCost>,
    owner: u64,
}

impl CallFd {
    /// Takes over `fd`, of which the caller knows that it [is an
    /// eventfd](sys::eventfd::is_eventfd): a write to anything else could do anything.
    /// `cost` is that of all descriptors of the same port, `owner` the number of the session that
    /// it came with.
    pub fn new(fd: OwnedFd, cost: Arc<SignalCost>, owner: u64) -> CallFd {
        // Fails only on descriptors that are no eventfds. A front-end that undoes it is the
        // watch's affair.
        let _ = set_nonblocking(fd.as_fd());
        CallFd { fd, cost, owner }
    }

    /// True if notifications of its port have to wait, as its last ones were slow or expensive.
    #[inline]
    pub fn waits(&self) -> bool {
        self.cost.is_watched() && self.cost.waits(clock::cycles())
    }

    /// For how many cycles from cycle `now` on.
    pub fn wait_left(&self, now: u64) -> u64 {
        self.cost.left(now)
    }

    /// What is known of its port's.
    pub fn cost(&self) -> &SignalCost {
        &self.cost
    }

    /// How near its port is to being dropped; none while nothing is held against it.
    pub fn suspicion(&self) -> Option<u64> {
        self.cost.is_watched().then(|| self.cost.level(clock::cycles()))
    }

    /// The session that it came with.
    pub fn owner(&self) -> u64 {
        self.owner
    }

    /// The descriptor's number, for messages.
    pub fn number(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// One write. For the watch alone: it may block for ever.
    pub(super) fn write(&self) -> SignalResult {
        // One system call: rustix does not repeat what was interrupted.
        match rustix::io::write(&self.fd, &1u64.to_ne_bytes()) {
            Ok(_) => SignalResult::Sent,
            Err(Errno::AGAIN) => SignalResult::Full,
            // A write that finds room never looks for signals, so it did block.
            Err(Errno::INTR) => SignalResult::Blocked,
            Err(error) => SignalResult::Failed(error.raw_os_error()),
        }
    }

    /// What a write would come to if it would not be [`SignalResult::Sent`] at this moment.
    pub(super) fn look(&self) -> Option<SignalResult> {
        if has_room(self.number()) {
            return None;
        }
        let blocking = fcntl_getfl(&self.fd).is_ok_and(|flags| !flags.contains(OFlags::NONBLOCK));
        Some(if blocking { SignalResult::Blocked } else { SignalResult::Full })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::fcntl_setfl;
    use vmm_sys_util::eventfd::EventFd;

    use sys::descriptor::from_eventfd;
    use sys::eventfd::drain;

    #[test]
    fn a_call_descriptor_is_made_non_blocking_and_reports_full() {
        let eventfd = EventFd::new(0).unwrap();
        let call = CallFd::new(from_eventfd(eventfd.try_clone().unwrap()), Arc::default(), 0);
        assert!(fcntl_getfl(&call.fd).unwrap().contains(OFlags::NONBLOCK));
        assert_eq!(call.write(), SignalResult::Sent);
        assert_eq!(call.write(), SignalResult::Sent);
        assert_eq!(drain(call.number()), Some(2));
        eventfd.write(u64::MAX - 1).unwrap();
        assert_eq!(call.look(), Some(SignalResult::Full));
        assert_eq!(call.write(), SignalResult::Full);
        assert_eq!(drain(call.number()), Some(u64::MAX - 1));
        assert_eq!(call.look(), None);
    }

    #[test]
    fn a_full_blocking_descriptor_is_seen_without_writing() {
        let eventfd = EventFd::new(0).unwrap();
        let call = CallFd::new(from_eventfd(eventfd.try_clone().unwrap()), Arc::default(), 0);
        eventfd.write(u64::MAX - 1).unwrap();
        fcntl_setfl(&call.fd, OFlags::RDWR).unwrap();
        assert_eq!(call.look(), Some(SignalResult::Blocked));
    }
}
