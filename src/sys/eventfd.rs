//! Eventfds that front-ends hand over: recognizing them, looking at them, draining.
//!
//! The open file description is shared with the front-end, which can clear `O_NONBLOCK` at any
//! moment and fill or empty the counter. So nothing here relies on the flag: reads carry their own
//! "do not wait". The kernel has no such write (`pwritev2` with `RWF_NOWAIT` fails with
//! EOPNOTSUPP); `guard::call` writes.

use std::io;
use std::os::fd::{AsRawFd, RawFd};

/// True if `fd` is an eventfd, by its name in `/proc/self/fd`. Anonymous inodes have nothing else
/// to distinguish them, so without /proc nothing is accepted: see [`can_identify`].
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

/// True if the eventfd's counter can go up by one.
pub fn has_room(fd: RawFd) -> bool {
    poll(fd, libc::POLLOUT) & libc::POLLOUT != 0
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
