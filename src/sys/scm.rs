//! Receives and sends bytes and descriptors over a Unix socket, recvmsg(2) and sendmsg(2), without
//! blocking.
//!
//! This module calls recvmsg(2) itself because `vmm_sys_util::sock_ctrl_msg` passes neither
//! `MSG_CMSG_CLOEXEC` nor `MSG_DONTWAIT`, reads the first control message only, and loses bytes
//! with lost descriptors; rustix closes unread descriptors in the caller's thread.
//!
//! Every descriptor that the kernel installs is in an [`OwnedFd`] before a function returns. The
//! buffer always has room for all descriptors of one message: the kernel closes descriptors that do
//! not fit within the call, and closing can wait for ever (`guard::disposal`).

use std::ffi::OsString;
use std::io;
use std::mem::{align_of, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use rustix::net::SendFlags;

/// Most descriptors of one message (`SCM_MAX_FD`, unix(7)).
const MAX_FILES: usize = 253;

/// The result of one receive call, besides the bytes in its buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Bytes written to the buffer; 0 at the end of a stream, or for an empty datagram.
    pub bytes: usize,
    /// The datagram was longer than the buffer, and the rest is lost.
    pub truncated: bool,
    /// The peer sent descriptors that are lost, because this process is out of descriptors.
    pub files_lost: bool,
}

/// The sender of a datagram.
#[derive(Debug)]
pub struct Sender {
    /// Path that the sender's socket is bound to; `None` for a socket without a name, or with a
    /// name in the abstract namespace.
    pub path: Option<PathBuf>,
    /// Process and user of the sender, if the socket asks for credentials (`SO_PASSCRED`).
    pub credentials: Option<libc::ucred>,
}

/// Size of the control messages that carry [`MAX_FILES`] descriptors, and credentials.
// SAFETY: CMSG_SPACE only computes.
const CONTROL_BYTES: usize = unsafe {
    libc::CMSG_SPACE((MAX_FILES * size_of::<RawFd>()) as libc::c_uint)
        + libc::CMSG_SPACE(size_of::<libc::ucred>() as libc::c_uint)
} as usize;

#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);
const _: () = assert!(align_of::<Control>() >= align_of::<libc::cmsghdr>());

/// Receives at most `buffer.len()` bytes, and appends the descriptors that came with them,
/// close-on-exec, to `files`. `WouldBlock` if no bytes are there.
pub fn receive(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    files: &mut Vec<OwnedFd>,
) -> io::Result<Received> {
    Ok(receive_with(socket, buffer, files, None)?.0)
}

/// Receives one datagram as [`receive`] does, and says who sent the datagram.
pub fn receive_from(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    files: &mut Vec<OwnedFd>,
) -> io::Result<(Received, Sender)> {
    // SAFETY: all-zero bytes are a valid address: an empty path.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    let (received, credentials) = receive_with(socket, buffer, files, Some(&mut address))?;
    // A path fills the address or ends with a NUL; a name without a path begins with a NUL.
    let bytes: Vec<u8> =
        address.sun_path.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0).collect();
    let path = (!bytes.is_empty()).then(|| PathBuf::from(OsString::from_vec(bytes)));
    Ok((received, Sender { path, credentials }))
}

fn receive_with(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    files: &mut Vec<OwnedFd>,
    address: Option<&mut libc::sockaddr_un>,
) -> io::Result<(Received, Option<libc::ucred>)> {
    let mut control = Control([0; CONTROL_BYTES]);
    let mut piece = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all-zero bytes are a valid msghdr: null pointers with zero lengths.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut piece;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL_BYTES as _;
    if let Some(address) = address {
        message.msg_name = (&raw mut *address).cast();
        message.msg_namelen = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: `message` points to `piece`, the caller's buffer, the caller's address if there is
    // one, and the control buffer, each live and borrowed exclusively across the call, with their
    // true lengths.
    let bytes = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, flags) };
    let bytes = usize::try_from(bytes).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: recvmsg succeeded and `message` still points to the control buffer it filled.
    let credentials = unsafe { take_control(&message, files) };
    let has = |flag| message.msg_flags & flag != 0;
    let (truncated, files_lost) = (has(libc::MSG_TRUNC), has(libc::MSG_CTRUNC));
    Ok((Received { bytes, truncated, files_lost }, credentials))
}

/// Moves every descriptor in the control messages of `message` into `files`. Returns the sender's
/// credentials, if there are any.
///
/// # Safety
/// `message` was filled by a successful recvmsg, its control buffer is live and aligned for a
/// `cmsghdr`, and this is the only call for `message`: the descriptors become owned here.
unsafe fn take_control(message: &libc::msghdr, files: &mut Vec<OwnedFd>) -> Option<libc::ucred> {
    let mut credentials = None;
    // SAFETY: the caller vouches for the control buffer; a null one gives a null header.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR return headers that lie inside the buffer, and the
        // kernel wrote cmsg_len to cover the header and what follows it within the buffer.
        unsafe {
            let payload = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
            let is_of_socket = (*header).cmsg_level == libc::SOL_SOCKET;
            let kind = (*header).cmsg_type;
            if is_of_socket && kind == libc::SCM_RIGHTS {
                let first = libc::CMSG_DATA(header).cast::<RawFd>();
                for index in 0..payload / size_of::<RawFd>() {
                    let fd = first.add(index).read_unaligned();
                    files.push(OwnedFd::from_raw_fd(fd));
                }
            } else if is_of_socket
                && kind == libc::SCM_CREDENTIALS
                && payload >= size_of::<libc::ucred>()
            {
                let sent = libc::CMSG_DATA(header).cast::<libc::ucred>();
                credentials = Some(sent.read_unaligned());
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    credentials
}

/// Sends the part of `buffer` that the socket has room for; returns its length in bytes.
/// `WouldBlock` if there is no room; a closed peer is an error, not a SIGPIPE.
pub fn send(socket: BorrowedFd<'_>, buffer: &[u8]) -> io::Result<usize> {
    Ok(rustix::net::send(socket, buffer, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{descriptor, unix_socket};
    use std::io::{PipeReader, Read, pipe};
    use std::os::fd::AsFd;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
    use vmm_sys_util::sock_ctrl_msg::ScmSocket;

    /// Sends `bytes` with `count` copies of the writing end of a new pipe; the reading end reports
    /// end of file exactly when the last copy has been closed.
    fn send_pipes(socket: &UnixStream, bytes: &[u8], count: usize) -> PipeReader {
        let (reader, writer) = pipe().unwrap();
        let fds = vec![writer.as_raw_fd(); count];
        assert_eq!(socket.send_with_fds(&[bytes], &fds).unwrap(), bytes.len());
        reader
    }

    #[test]
    fn descriptors_arrive_close_on_exec() {
        let (near, far) = UnixStream::pair().unwrap();
        for count in [1, 2, 31, 32, 33, MAX_FILES] {
            let mut reader = send_pipes(&far, b"abc", count);
            let (mut buffer, mut files) = ([0; 8], Vec::new());
            let got = receive(near.as_fd(), &mut buffer, &mut files).unwrap();
            assert_eq!(got, Received { bytes: 3, truncated: false, files_lost: false });
            assert_eq!(files.len(), count);
            for file in &files {
                assert!(descriptor::is_close_on_exec(file.as_fd()).unwrap());
            }
            drop(files);
            assert_eq!(reader.read(&mut buffer).unwrap(), 0);
        }
    }

    /// A datagram with all descriptors, from a socket with a path.
    #[test]
    fn a_datagram_says_who_sent_it() {
        let own = std::env::temp_dir().join(format!("vioswitch-scm-{}", std::process::id()));
        let (near, far) = (UnixDatagram::unbound().unwrap(), UnixDatagram::unbound().unwrap());
        unix_socket::pass_credentials(near.as_fd()).unwrap();
        let address = SocketAddr::from_abstract_name(own.as_os_str().as_bytes()).unwrap();
        rustix::net::bind(
            &near,
            &rustix::net::SocketAddrUnix::new_abstract_name(own.as_os_str().as_bytes()).unwrap(),
        )
        .unwrap();
        far.connect_addr(&address).unwrap();
        let (mut buffer, mut files) = ([0; 4], Vec::new());
        far.send(b"none").unwrap();
        let (_, sender) = receive_from(near.as_fd(), &mut buffer, &mut files).unwrap();
        assert_eq!(sender.path, None);
        let _ = std::fs::remove_file(&own);
        unix_socket::bind(far.as_fd(), &own).unwrap();
        let (mut reader, writer) = pipe().unwrap();
        far.send_with_fds(&[&b"longer"[..]], &vec![writer.as_raw_fd(); MAX_FILES]).unwrap();
        drop(writer);
        let (got, sender) = receive_from(near.as_fd(), &mut buffer, &mut files).unwrap();
        assert_eq!(got, Received { bytes: 4, truncated: true, files_lost: false });
        assert_eq!((&buffer, files.len()), (b"long", MAX_FILES));
        assert_eq!(sender.path.as_deref(), Some(own.as_path()));
        let uid = rustix::process::getuid().as_raw();
        let known = sender.credentials.map(|sent| (sent.pid as u32, sent.uid));
        assert_eq!(known, Some((std::process::id(), uid)));
        drop(files);
        assert_eq!(reader.read(&mut buffer).unwrap(), 0);
        std::fs::remove_file(&own).unwrap();
    }

    #[test]
    fn neither_direction_blocks_and_a_closed_peer_is_an_error() {
        let (near, far) = UnixStream::pair().unwrap();
        let error = receive(near.as_fd(), &mut [0; 8], &mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        let error = loop {
            if let Err(error) = send(near.as_fd(), &[0; 4096]) {
                break error;
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        drop(far);
        let error = send(near.as_fd(), &[0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
