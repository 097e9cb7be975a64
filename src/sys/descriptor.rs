//! Flags and ownership of descriptors that somebody else opened.

use std::io;
#[cfg(test)]
use std::os::fd::IntoRawFd;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

#[cfg(test)]
use vmm_sys_util::eventfd::EventFd;

/// Whether an exec(2) would close `fd`.
pub fn is_close_on_exec(fd: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(fcntl(fd.as_raw_fd(), libc::F_GETFD, 0)? & libc::FD_CLOEXEC != 0)
}

/// Sets `O_NONBLOCK` on the open file description behind `fd`. Others who hold it see the change
/// and can undo it.
pub fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = fcntl(fd.as_raw_fd(), libc::F_GETFL, 0)?;
    fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK)?;
    Ok(())
}

/// Raises the number of descriptors this process may have open as far as it is allowed to itself:
/// each guest has up to five per ring, and the usual soft limit of 1,024 is a few large guests.
pub fn raise_limit() -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is live and writable, and then readable, across the calls.
    let failed = unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) != 0 || {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit) != 0
        }
    };
    if failed { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Takes over descriptor `number`, which the program that started this one left open for it, and
/// marks it close-on-exec. `None` if it cannot be an inherited one: closed, one of the three
/// standard streams, or close-on-exec, in which case this process opened it (or took it already).
pub fn adopt_inherited(number: RawFd) -> io::Result<Option<OwnedFd>> {
    if number <= libc::STDERR_FILENO {
        return Ok(None);
    }
    let flags = match fcntl(number, libc::F_GETFD, 0) {
        Ok(flags) if flags & libc::FD_CLOEXEC == 0 => flags,
        Ok(_) => return Ok(None),
        Err(error) if error.raw_os_error() == Some(libc::EBADF) => return Ok(None),
        Err(error) => return Err(error),
    };
    fcntl(number, libc::F_SETFD, flags | libc::FD_CLOEXEC)?;
    // SAFETY: the descriptor is open. Nothing in this process owns it: whatever the standard
    // library, the crates and we open is close-on-exec, as is a number adopted before, and the
    // check above refuses those.
    Ok(Some(unsafe { OwnedFd::from_raw_fd(number) }))
}

/// The same descriptor with the operations of an eventfd, for tests that look into one.
#[cfg(test)]
pub(crate) fn into_eventfd(file: OwnedFd) -> EventFd {
    // SAFETY: `file` gave up ownership, so the number is open and owned by nobody else.
    unsafe { EventFd::from_raw_fd(file.into_raw_fd()) }
}

/// The inverse of [`into_eventfd`], for tests that hand eventfds over.
#[cfg(test)]
pub(crate) fn from_eventfd(eventfd: EventFd) -> OwnedFd {
    // SAFETY: `eventfd` gave up ownership, so the number is open and owned by nobody else.
    unsafe { OwnedFd::from_raw_fd(eventfd.into_raw_fd()) }
}

/// A copy of `fd` as a child would inherit it: not close-on-exec, and owned by nobody.
#[cfg(test)]
pub(crate) fn inheritable(fd: BorrowedFd<'_>) -> RawFd {
    fcntl(fd.as_raw_fd(), libc::F_DUPFD, 3).unwrap()
}

fn fcntl(fd: RawFd, command: libc::c_int, argument: libc::c_int) -> io::Result<libc::c_int> {
    // SAFETY: the commands used here read and write no memory; a bad descriptor is an error.
    let result = unsafe { libc::fcntl(fd, command, argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn only_an_inherited_descriptor_is_adopted_and_only_once() {
        let (socket, _peer) = UnixStream::pair().unwrap();
        for number in [-1, 0, 1, 2, 1 << 20, socket.as_raw_fd()] {
            assert!(adopt_inherited(number).unwrap().is_none(), "{number}");
        }
        let number = inheritable(socket.as_fd());
        let adopted = adopt_inherited(number).unwrap().unwrap();
        assert_eq!(adopted.as_raw_fd(), number);
        assert!(is_close_on_exec(adopted.as_fd()).unwrap());
        assert!(adopt_inherited(number).unwrap().is_none());
    }

    #[test]
    fn nonblocking_sticks_and_keeps_other_flags() {
        let file = from_eventfd(EventFd::new(0).unwrap());
        let before = fcntl(file.as_raw_fd(), libc::F_GETFL, 0).unwrap();
        set_nonblocking(file.as_fd()).unwrap();
        let after = fcntl(file.as_raw_fd(), libc::F_GETFL, 0).unwrap();
        assert_eq!(after, before | libc::O_NONBLOCK);
        assert_eq!(into_eventfd(file).read().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}
