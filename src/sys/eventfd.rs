//! Eventfds that front-ends hand over: recognizing them, signalling, draining.
//!
//! The open file description is shared with the front-end, which can clear `O_NONBLOCK` at any
//! moment and fill or empty the counter. So nothing here relies on the flag: reads carry their own
//! "do not wait", and writes happen under the eyes of [`BlockedWriterWatch`], because the kernel
//! has no write to an eventfd that is non-blocking by itself (`pwritev2` with `RWF_NOWAIT` fails
//! with EOPNOTSUPP). That is why a [`CallFd`] can only be signalled through a [`SignalSlot`] or
//! [`BlockedWriterWatch::signal_once`].

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;

use super::clock;
use super::descriptor::set_nonblocking;
pub use super::signal_cost::{SignalCost, Took};
pub use super::watch::{BlockedWriterWatch, SignalSlot};

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
    /// Takes over `fd`, of which the caller knows that it [is an eventfd](is_eventfd): a write to
    /// anything else could do anything. `cost` is that of all descriptors of the same port,
    /// `owner` the number of the session that it came with.
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
        if poll(self.number(), libc::POLLOUT) & libc::POLLOUT != 0 {
            return None;
        }
        let blocking = fcntl_getfl(&self.fd).is_ok_and(|flags| !flags.contains(OFlags::NONBLOCK));
        Some(if blocking { SignalResult::Blocked } else { SignalResult::Full })
    }
}

/// True if `fd` is an eventfd, by its name in `/proc/self/fd`. Anonymous inodes have nothing else
/// to tell them apart, so without /proc nothing is accepted: see [`can_identify`].
pub fn is_eventfd(fd: RawFd) -> io::Result<bool> {
    let name = std::fs::read_link(format!("/proc/self/fd/{fd}"))?;
    Ok(name.as_os_str() == "anon_inode:[eventfd]")
}

/// True if [`is_eventfd`] works here, that is, if /proc is mounted; to be checked at start, when
/// failing is still a clear message.
pub fn can_identify() -> bool {
    vmm_sys_util::eventfd::EventFd::new(libc::EFD_CLOEXEC)
        .is_ok_and(|eventfd| is_eventfd(eventfd.as_raw_fd()).unwrap_or(false))
}

/// True if the eventfd's counter is not zero.
pub fn is_readable(fd: RawFd) -> bool {
    poll(fd, libc::POLLIN) & libc::POLLIN != 0
}

/// Takes the counter of an eventfd down to zero and returns it; `None` if it is zero already.
/// Never blocks, whatever the front-end does with the flags of the description.
pub fn drain(fd: RawFd) -> Option<u64> {
    let mut count = 0u64;
    let iov = libc::iovec { iov_base: (&raw mut count).cast(), iov_len: 8 };
    // SAFETY: `iov` describes the 8 bytes of `count`, which lives across the call.
    let read = unsafe { libc::preadv2(fd, &iov, 1, -1, libc::RWF_NOWAIT) };
    (read == 8).then_some(count)
}

/// The events among `events` (and errors) that are pending now; none if `poll` fails.
fn poll(fd: RawFd, events: libc::c_short) -> libc::c_short {
    let mut entry = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: one live entry, and the count says so.
    let ready = unsafe { libc::poll(&mut entry, 1, 0) };
    if ready > 0 { entry.revents } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmm_sys_util::eventfd::EventFd;

    use crate::sys::descriptor::from_eventfd;

    fn flags(fd: RawFd) -> i32 {
        // SAFETY: F_GETFL touches no memory.
        unsafe { libc::fcntl(fd, libc::F_GETFL) }
    }

    #[test]
    fn only_eventfds_are_eventfds() {
        assert!(can_identify());
        let eventfd = EventFd::new(0).unwrap();
        let epoll = vmm_sys_util::epoll::Epoll::new().unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        let (near, _far) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(is_eventfd(eventfd.as_raw_fd()).unwrap());
        for other in [epoll.as_raw_fd(), file.as_raw_fd(), near.as_raw_fd()] {
            assert!(!is_eventfd(other).unwrap(), "{other}");
        }
        assert!(is_eventfd(-1).is_err() && is_eventfd(1 << 20).is_err());
    }

    #[test]
    fn a_call_descriptor_is_made_non_blocking_and_reports_full() {
        let eventfd = EventFd::new(0).unwrap();
        let call = CallFd::new(from_eventfd(eventfd.try_clone().unwrap()), Arc::default(), 0);
        assert_ne!(flags(eventfd.as_raw_fd()) & libc::O_NONBLOCK, 0);
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
        // SAFETY: F_SETFL touches no memory.
        unsafe { libc::fcntl(eventfd.as_raw_fd(), libc::F_SETFL, libc::O_RDWR) };
        assert_eq!(call.look(), Some(SignalResult::Blocked));
    }

    #[test]
    fn draining_never_blocks() {
        // Blocking on purpose: a front-end may hand it over so, or make it so later.
        let eventfd = EventFd::new(0).unwrap();
        assert!(!is_readable(eventfd.as_raw_fd()));
        assert_eq!(drain(eventfd.as_raw_fd()), None);
        eventfd.write(7).unwrap();
        assert!(is_readable(eventfd.as_raw_fd()));
        assert_eq!(drain(eventfd.as_raw_fd()), Some(7));
        assert_eq!(drain(eventfd.as_raw_fd()), None);
        assert_eq!(drain(-1), None);
    }
}
