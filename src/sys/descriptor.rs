//! Flags and ownership of descriptors that another process opened.

use std::io;
#[cfg(any(test, feature = "test-utils"))]
use std::os::fd::IntoRawFd;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Resource, getrlimit, setrlimit};

#[cfg(any(test, feature = "test-utils"))]
use vmm_sys_util::eventfd::EventFd;

/// Returns true if exec(2) closes `fd`.
#[cfg(any(test, feature = "test-utils"))]
pub fn is_close_on_exec(fd: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(rustix::io::fcntl_getfd(fd)?.contains(FdFlags::CLOEXEC))
}

/// Sets `O_NONBLOCK` on the open file description behind `fd`. Other holders of the description see
/// the change and can undo it.
pub fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)?)
}

/// Raises the soft limit of open descriptors to the hard limit: each guest has up to five
/// descriptors per ring, and a few large guests exceed the usual soft limit of 1,024.
pub fn raise_limit() -> io::Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    Ok(setrlimit(Resource::Nofile, limit)?)
}

/// Takes over descriptor `number`, which the parent program left open for this process, and marks
/// the descriptor close-on-exec. `None` if the number cannot be an inherited descriptor: closed, a
/// standard stream, or close-on-exec, because this process opened or adopted it.
pub fn adopt_inherited(number: RawFd) -> io::Result<Option<OwnedFd>> {
    if number <= libc::STDERR_FILENO {
        return Ok(None);
    }
    match flags_of(number) {
        Ok(flags) if !flags.contains(FdFlags::CLOEXEC) => {}
        Ok(_) => return Ok(None),
        Err(error) if error.raw_os_error() == Some(libc::EBADF) => return Ok(None),
        Err(error) => return Err(error),
    }
    // SAFETY: the descriptor is open, and no object in this process owns it: every descriptor that
    // the standard library, the crates or this program open or adopted is close-on-exec, and the
    // check above refuses close-on-exec descriptors.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    fcntl_setfd(&fd, FdFlags::CLOEXEC)?;
    Ok(Some(fd))
}

/// Returns the flags of a number that may not be open; rustix accepts only open descriptors.
fn flags_of(number: RawFd) -> io::Result<FdFlags> {
    // SAFETY: F_GETFD accesses no memory; a number that is not open is an error.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    match u32::try_from(flags) {
        Ok(flags) => Ok(FdFlags::from_bits_retain(flags)),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Gives a descriptor the operations of an eventfd, for tests that read the counter.
#[cfg(any(test, feature = "test-utils"))]
pub fn into_eventfd(file: OwnedFd) -> EventFd {
    // SAFETY: `file` gave up ownership, so the number is open and not owned elsewhere.
    unsafe { EventFd::from_raw_fd(file.into_raw_fd()) }
}

/// Converts an eventfd to a plain descriptor, for tests that pass eventfds.
#[cfg(any(test, feature = "test-utils"))]
pub fn from_eventfd(eventfd: EventFd) -> OwnedFd {
    // SAFETY: `eventfd` gave up ownership, so the number is open and not owned elsewhere.
    unsafe { OwnedFd::from_raw_fd(eventfd.into_raw_fd()) }
}

/// Returns a copy of `fd` as a child inherits it: not close-on-exec, and without an owner.
#[cfg(any(test, feature = "test-utils"))]
pub fn inheritable(fd: BorrowedFd<'_>) -> RawFd {
    let copy = rustix::io::fcntl_dupfd_cloexec(fd, 3).unwrap();
    fcntl_setfd(&copy, FdFlags::empty()).unwrap();
    copy.into_raw_fd()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsFd, AsRawFd};
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
        let before = fcntl_getfl(&file).unwrap();
        set_nonblocking(file.as_fd()).unwrap();
        assert_eq!(fcntl_getfl(&file).unwrap(), before | OFlags::NONBLOCK);
        assert_eq!(into_eventfd(file).read().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}
