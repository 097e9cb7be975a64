//! Unix stream sockets, one system call at a time.
//!
//! The standard library binds and listens in one step and connects without a way out. A daemon
//! has to set mode and group between bind(2) and listen(2), and must not hang in connect(2), which
//! waits for as long as the other side's queue is full.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::limits::MAX_SOCKET_PATH;

/// A new stream socket, close-on-exec and non-blocking.
pub fn stream_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: socket takes no pointers.
    let fd = check(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?;
    // SAFETY: `fd` was just created and is owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// bind(2): creates the file `path`; `AddrInUse` if anything of that name exists.
pub fn bind(socket: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let (address, len) = address(path)?;
    // SAFETY: `address` is live and initialised for at least `len` bytes.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) })?;
    Ok(())
}

/// listen(2).
pub fn listen(socket: BorrowedFd<'_>, backlog: i32) -> io::Result<()> {
    // SAFETY: listen takes no pointers.
    check(unsafe { libc::listen(socket.as_raw_fd(), backlog) })?;
    Ok(())
}

/// Connects a new non-blocking socket to `path`. Never waits: `WouldBlock` if the other side's
/// queue is full, `ConnectionRefused` if nobody listens.
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let (address, len) = address(path)?;
    let socket = stream_socket()?;
    // SAFETY: `address` is live and initialised for at least `len` bytes.
    check(unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), len) })?;
    Ok(socket)
}

fn address(path: &Path) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.is_empty() || bytes.len() > MAX_SOCKET_PATH || bytes.contains(&0) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: all-zero bytes are a valid sockaddr_un.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, &from) in address.sun_path.iter_mut().zip(bytes) {
        *to = from as libc::c_char;
    }
    Ok((address, size_of::<libc::sockaddr_un>() as libc::socklen_t))
}

/// Process, user and group at the other end, as of its connect(2) or listen(2): unix(7),
/// `SO_PEERCRED`. The process number is 0 if it lives outside our PID namespace.
pub fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<libc::ucred> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let to = (&raw mut credentials).cast();
    // SAFETY: `to` and `len` point to live values, and `len` is the size of the first.
    check(unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, to, &mut len)
    })?;
    Ok(credentials)
}

/// Bytes that lie unread in a stream socket: unix(7), `SIOCINQ`.
pub fn unread(socket: BorrowedFd<'_>) -> io::Result<usize> {
    let mut count: libc::c_int = 0;
    // SAFETY: FIONREAD writes one int, to the live `count`.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::FIONREAD, &mut count) })?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// An integer option of level `SOL_SOCKET`.
pub fn socket_option(socket: BorrowedFd<'_>, option: libc::c_int) -> io::Result<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    let to = (&raw mut value).cast();
    // SAFETY: `to` and `len` point to live values, and `len` is the size of the first.
    check(unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, to, &mut len) })?;
    Ok(value)
}

/// Sets an integer option of level `SOL_SOCKET`.
pub fn set_socket_option(
    socket: BorrowedFd<'_>,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    let from = (&raw const value).cast();
    // SAFETY: `from` points to a live value of `len` bytes.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, from, len) })?;
    Ok(())
}

/// Takes the exclusive flock(2) of an open file if nobody else has it; it lasts until the file is
/// closed.
pub fn try_lock(file: BorrowedFd<'_>) -> io::Result<bool> {
    // SAFETY: flock takes no pointers.
    match check(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn addresses_are_bounded() {
        assert!(address(Path::new("")).is_err());
        assert!(address(Path::new("a\0b")).is_err());
        assert!(address(Path::new(&"x".repeat(MAX_SOCKET_PATH + 1))).is_err());
        let (longest, _) = address(Path::new(&"x".repeat(MAX_SOCKET_PATH))).unwrap();
        assert_eq!(longest.sun_path.last(), Some(&0));
    }

    #[test]
    fn options_and_credentials_are_read_back() {
        let (near, _far) = std::os::unix::net::UnixStream::pair().unwrap();
        set_socket_option(near.as_fd(), libc::SO_PASSCRED, 1).unwrap();
        assert_eq!(socket_option(near.as_fd(), libc::SO_PASSCRED).unwrap(), 1);
        let peer = peer_credentials(near.as_fd()).unwrap();
        assert_eq!(peer.pid, std::process::id() as libc::pid_t);
    }
}
