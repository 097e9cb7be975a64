//! Recognizes, polls and drains eventfds that front-ends pass.
//!
//! The front-end shares the open file description, and can clear `O_NONBLOCK` at any moment and
//! fill or empty the counter. So no function here relies on the flag: each read carries
//! `RWF_NOWAIT`. An eventfd cannot be written with `RWF_NOWAIT` (`pwritev2` fails with EOPNOTSUPP);
//! `guard::eventfd` writes.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

use vmm_sys_util::eventfd::EventFd;

/// Returns true if `fd` is an eventfd, by its name in `/proc/self/fd`. Anonymous inodes differ in
/// no other way, so without /proc no descriptor is accepted: see [`can_identify`].
pub fn is_eventfd(fd: RawFd) -> io::Result<bool> {
    let name = std::fs::read_link(format!("/proc/self/fd/{fd}"))?;
    Ok(name.as_os_str() == "anon_inode:[eventfd]")
}

/// Returns true if [`is_eventfd`] works, that is, if /proc is mounted. The daemon checks at start,
/// when a failure gives a clear message.
pub fn can_identify() -> bool {
    EventFd::new(libc::EFD_CLOEXEC)
        .is_ok_and(|eventfd| is_eventfd(eventfd.as_raw_fd()).unwrap_or(false))
}

/// Returns a new eventfd whose counter is one, so that its reader gets an event at once.
pub fn written() -> io::Result<OwnedFd> {
    let eventfd = EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)?;
    eventfd.write(1)?;
    // SAFETY: the eventfd gives up its descriptor, which is open.
    Ok(unsafe { OwnedFd::from_raw_fd(eventfd.into_raw_fd()) })
}

/// Returns true if the eventfd's counter is not zero.
pub fn is_readable(fd: RawFd) -> bool {
    poll(fd, libc::POLLIN) & libc::POLLIN != 0
}

/// Returns true if the eventfd's counter can be increased by one.
pub fn has_room(fd: RawFd) -> bool {
    poll(fd, libc::POLLOUT) & libc::POLLOUT != 0
}

/// Resets the counter of an eventfd to zero and returns the old value; `None` if the counter was
/// zero. Never blocks, whatever flags the front-end sets.
pub fn drain(fd: RawFd) -> Option<u64> {
    let mut count = 0u64;
    let iov = libc::iovec { iov_base: (&raw mut count).cast(), iov_len: 8 };
    // SAFETY: `iov` describes the 8 bytes of `count`, which lives across the call.
    let read = unsafe { libc::preadv2(fd, &iov, 1, -1, libc::RWF_NOWAIT) };
    (read == 8).then_some(count)
}

/// Returns the events among `events` (and errors) that are pending now; none if poll(2) fails.
fn poll(fd: RawFd, events: libc::c_short) -> libc::c_short {
    let mut entry = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: `entry` is live, and the count is 1.
    let ready = unsafe { libc::poll(&mut entry, 1, 0) };
    if ready > 0 { entry.revents } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn draining_never_blocks() {
        // The eventfd blocks on purpose: a front-end may pass a blocking eventfd, or clear the flag
        // later.
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
