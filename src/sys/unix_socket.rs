//! Unix stream and datagram sockets, one system call at a time.
//!
//! The standard library binds and listens in one step, and its connect blocks. A daemon has to set
//! mode and group between bind(2) and listen(2), and must not hang in connect(2), which waits while
//! the listener's queue is full.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::fs::{FlockOperation, Mode};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use base::limits::MAX_SOCKET_PATH;

/// Makes a stream socket, close-on-exec and non-blocking.
pub fn stream_socket() -> io::Result<OwnedFd> {
    socket(SocketType::STREAM)
}

/// Makes a datagram socket, close-on-exec and non-blocking.
pub fn datagram_socket() -> io::Result<OwnedFd> {
    socket(SocketType::DGRAM)
}

fn socket(kind: SocketType) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?)
}

/// Has each datagram come with process and user of its sender (unix(7), `SO_PASSCRED`).
pub fn pass_credentials(socket: BorrowedFd<'_>) -> io::Result<()> {
    Ok(sockopt::set_socket_passcred(socket, true)?)
}

/// Connects a datagram socket to the socket at `path`: from now on only that socket can send to
/// this one. `PermissionDenied` if that socket is connected to another socket.
pub fn connect_datagrams(socket: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    Ok(rustix::net::connect(socket, &address(path)?)?)
}

/// Returns true unless the datagram socket at `path` is closed. A new socket asks, because a
/// datagram socket does not report that its peer has left before the next datagram is sent.
pub fn receives_datagrams(path: &Path) -> bool {
    let asked = datagram_socket().and_then(|socket| connect_datagrams(socket.as_fd(), path));
    let code = asked.err().and_then(|error| error.raw_os_error());
    !matches!(code, Some(libc::ECONNREFUSED | libc::ENOENT))
}

/// Binds a socket (bind(2)), which creates the file `path`; `AddrInUse` if the name exists.
pub fn bind(socket: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    Ok(rustix::net::bind(socket, &address(path)?)?)
}

/// Binds a socket as [`bind`] does. The file never has more permissions than `mode`: the kernel
/// gives it those of the socket.
pub fn bind_with_mode(socket: BorrowedFd<'_>, path: &Path, mode: u32) -> io::Result<()> {
    rustix::fs::fchmod(socket, Mode::from_raw_mode(mode))?;
    bind(socket, path)
}

/// Makes a socket listen (listen(2)).
pub fn listen(socket: BorrowedFd<'_>, backlog: i32) -> io::Result<()> {
    Ok(rustix::net::listen(socket, backlog)?)
}

/// Connects a new non-blocking socket to `path`. Never waits: `WouldBlock` if the listener's queue
/// is full, `ConnectionRefused` if no process listens.
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let address = address(path)?;
    let socket = stream_socket()?;
    rustix::net::connect(&socket, &address)?;
    Ok(socket)
}

fn address(path: &Path) -> io::Result<SocketAddrUnix> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.is_empty() || bytes.len() > MAX_SOCKET_PATH || bytes.contains(&0) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(SocketAddrUnix::new(path)?)
}

/// Returns process, user and group of the peer at the time of its connect(2) or listen(2) (unix(7),
/// `SO_PEERCRED`). The process number is 0 if the peer is outside this PID namespace.
///
/// Uses nix: a process number of 0, which the kernel returns for a front-end in a container, is
/// undefined behaviour in rustix's type.
pub fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<libc::ucred> {
    Ok(getsockopt(&socket, PeerCredentials)?.into())
}

/// Returns the supplementary groups of the peer at the time of its connect(2) or listen(2)
/// (unix(7), `SO_PEERGROUPS`). At most 65,536 (`NGROUPS_MAX`).
pub fn peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    // More groups than a user usually has.
    let mut groups = vec![0u32; 64];
    loop {
        let mut len = (groups.len() * size_of::<u32>()) as libc::socklen_t;
        let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERGROUPS);
        let to = groups.as_mut_ptr().cast();
        // SAFETY: `to` points to `len` live bytes, and `len` is live itself.
        let failed =
            unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, to, &mut len) != 0 };
        let count = len as usize / size_of::<u32>();
        if !failed {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // The kernel returns the number of groups if they do not fit, and the groups do not change.
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

/// Returns the number of unread bytes in a stream socket (unix(7), `SIOCINQ`).
pub fn unread(socket: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(rustix::io::ioctl_fionread(socket)?)
}

/// Shuts down both directions of a socket (shutdown(2)): neither side can send any more.
pub fn shut_down(socket: BorrowedFd<'_>) {
    // Fails only if the peer has left, and then the peer cannot send either.
    let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
}

/// Returns true for a Unix stream socket; false if `fd` is another socket or no socket.
pub fn is_unix_stream(fd: BorrowedFd<'_>) -> bool {
    sockopt::socket_domain(fd) == Ok(AddressFamily::UNIX)
        && sockopt::socket_type(fd) == Ok(SocketType::STREAM)
}

/// Returns true for a listening socket.
pub fn listens(socket: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(sockopt::socket_acceptconn(socket)?)
}

/// Switches off all control messages except descriptors. Reads out-of-band bytes in line: otherwise
/// the kernel drops them during recvmsg(2), and waits there while it closes their descriptors.
pub fn receive_plainly(socket: BorrowedFd<'_>) {
    let _ = sockopt::set_socket_oobinline(socket, true);
    let _ = sockopt::set_socket_passcred(socket, false);
    // rustix lacks these options.
    for option in [libc::SO_PASSSEC, libc::SO_PASSPIDFD] {
        set_off(socket, option);
    }
}

/// `SO_PASSRIGHTS` (since Linux 6.16), which no libc names yet.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Has the kernel refuse descriptors that are sent to this socket, if the kernel can.
pub fn refuse_descriptors(socket: BorrowedFd<'_>) {
    set_off(socket, SO_PASSRIGHTS);
}

/// Switches an option off. Errors are ignored: an option that the kernel does not know is not on.
fn set_off(socket: BorrowedFd<'_>, option: libc::c_int) {
    let off: libc::c_int = 0;
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    let from = (&raw const off).cast();
    // SAFETY: `from` points to a live value of `len` bytes.
    unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, from, len) };
}

/// Takes the exclusive flock(2) of an open file until the file is closed; returns false if another
/// open file description holds the lock.
pub fn try_lock(file: BorrowedFd<'_>) -> io::Result<bool> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::{UnixDatagram, UnixStream};

    #[test]
    fn addresses_are_bounded() {
        assert!(address(Path::new("")).is_err());
        assert!(address(Path::new("a\0b")).is_err());
        assert!(address(Path::new(&"x".repeat(MAX_SOCKET_PATH + 1))).is_err());
        // The longest path fills the address; the last byte is the NUL.
        let longest = address(Path::new(&"x".repeat(MAX_SOCKET_PATH))).unwrap();
        assert_eq!(longest.path_bytes().unwrap().last(), Some(&0));
    }

    #[test]
    fn sockets_are_told_apart() {
        let (near, _far) = UnixStream::pair().unwrap();
        assert!(is_unix_stream(near.as_fd()) && !listens(near.as_fd()).unwrap());
        let (datagram, _far) = UnixDatagram::pair().unwrap();
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(listens(tcp.as_fd()).unwrap() && listens(file.as_fd()).is_err());
        for other in [datagram.as_fd(), tcp.as_fd(), file.as_fd()] {
            assert!(!is_unix_stream(other));
        }
    }

    #[test]
    fn nothing_but_bytes_and_descriptors_comes() {
        let (near, _far) = UnixStream::pair().unwrap();
        sockopt::set_socket_passcred(&near, true).unwrap();
        receive_plainly(near.as_fd());
        assert!(!sockopt::socket_passcred(&near).unwrap());
    }

    #[test]
    fn credentials_are_the_peers() {
        let (near, _far) = UnixStream::pair().unwrap();
        let peer = peer_credentials(near.as_fd()).unwrap();
        assert_eq!(peer.pid, std::process::id() as libc::pid_t);
    }

    #[test]
    fn groups_are_the_peers() {
        let (near, _far) = UnixStream::pair().unwrap();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap();
        let own: Vec<u32> = line.split_whitespace().map(|gid| gid.parse().unwrap()).collect();
        assert_eq!(peer_groups(near.as_fd()).unwrap(), own);
        assert!(peer_groups(std::fs::File::open("/dev/null").unwrap().as_fd()).is_err());
    }
}
