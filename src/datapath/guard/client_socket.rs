//! Connected sockets of clients that are to send bytes and nothing else.
//!
//! The attack: a client sends a descriptor along with its bytes (`SCM_RIGHTS`) and closes its own
//! copy. read(2) drops the descriptor, and so does close(2) if it lies unread in the socket's
//! queue; that last close may wait for as long as the client likes ([`disposal`]), in the thread
//! that serves all clients.
//!
//! Linux 6.16 and later refuse descriptors to the sender ([`refuse_descriptors`]). On older kernels
//! a read looks first, with `MSG_PEEK`: if a descriptor comes with the bytes they stay where they
//! are. At the end no more may come, what is left is read in the same way, and a socket in which
//! there is a descriptor is closed by `disposal`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags, Shutdown, recv, recvmsg, shutdown};

use super::disposal;
use sys::unix_socket::{receive_plainly, refuse_descriptors};

/// Bytes that are read at a time to see what is left when a connection ends, and how often.
const LEFT_BYTES: usize = 16 << 10;
const LEFT_READS: usize = 32;

/// A client's socket; dropping it never waits.
#[derive(Debug)]
pub struct ClientSocket(Option<OwnedFd>);

/// What lies in a socket.
enum Next {
    /// So many bytes; none at the end.
    Bytes(usize),
    /// Bytes with a descriptor.
    Descriptors,
}

/// Why nothing could be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The client sent descriptors.
    #[error("it sent descriptors")]
    Descriptors,
    /// The socket failed, or there is nothing to be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl ClientSocket {
    /// Takes a connection that was accepted.
    pub fn new(socket: impl Into<OwnedFd>) -> ClientSocket {
        let socket = socket.into();
        refuse_descriptors(socket.as_fd());
        receive_plainly(socket.as_fd());
        ClientSocket(Some(socket))
    }

    /// Reads what is there; 0 at the end. Never waits.
    pub fn read(&self, buffer: &mut [u8]) -> Result<usize, ReadError> {
        match look(self.as_fd(), buffer)? {
            Next::Bytes(0) => Ok(0),
            Next::Bytes(count) => Ok(take(self.as_fd(), &mut buffer[..count])?),
            Next::Descriptors => Err(ReadError::Descriptors),
        }
    }
}

impl AsFd for ClientSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().expect("it is there until it is dropped").as_fd()
    }
}

impl Drop for ClientSocket {
    fn drop(&mut self) {
        let Some(socket) = self.0.take() else { return };
        // Fails only if the client has left, and then it sends nothing either.
        let _ = shutdown(&socket, Shutdown::Both);
        if !is_emptied(socket.as_fd()) {
            disposal::close(vec![socket]);
        }
    }
}

/// Bytes without a descriptor that come next. They are read from the socket by a second call: what
/// a peek has seen without a descriptor has none when it is taken.
fn look(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Next> {
    let mut none = RecvAncillaryBuffer::default();
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let mut pieces = [io::IoSliceMut::new(buffer)];
    let seen = recvmsg(socket, &mut pieces, &mut none, flags)?;
    match seen.flags.contains(ReturnFlags::CTRUNC) {
        true => Ok(Next::Descriptors),
        false => Ok(Next::Bytes(seen.bytes)),
    }
}

fn take(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    Ok(recv(socket, buffer, RecvFlags::DONTWAIT)?.0)
}

/// Reads what is left in a socket that is shut down; true if nothing is, and no descriptor was.
fn is_emptied(socket: BorrowedFd<'_>) -> bool {
    let mut buffer = [0; LEFT_BYTES];
    for _ in 0..LEFT_READS {
        match look(socket, &mut buffer) {
            Ok(Next::Bytes(0)) => return true,
            Ok(Next::Descriptors) => return false,
            // An error, such as that of a client which closed first, is told once.
            Ok(Next::Bytes(count)) => drop(take(socket, &mut buffer[..count])),
            Err(_) => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write, pipe};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    use vmm_sys_util::sock_ctrl_msg::ScmSocket;

    /// A socket to which descriptors can be sent, whatever the kernel.
    fn pair() -> (ClientSocket, UnixStream) {
        let (near, far) = UnixStream::pair().unwrap();
        (ClientSocket(Some(near.into())), far)
    }

    #[test]
    fn bytes_before_a_descriptor_are_read_and_those_with_it_are_not() {
        let (near, mut far) = pair();
        let (mut reader, writer) = pipe().unwrap();
        let mut buffer = [0; 64];
        far.write_all(b"before").unwrap();
        let first = near.read(&mut buffer).unwrap();
        assert_eq!(&buffer[..first], b"before");
        far.send_with_fds(&[&b"with"[..]], &[writer.as_raw_fd()]).unwrap();
        drop(writer);
        for _ in 0..2 {
            assert!(matches!(near.read(&mut buffer), Err(ReadError::Descriptors)));
        }
        drop(near);
        // It is closed, though by another thread.
        assert_eq!(reader.read(&mut buffer).unwrap(), 0);
    }

    #[test]
    fn what_is_left_is_read_and_the_client_sees_an_end_and_no_reset() {
        let (near, mut far) = pair();
        far.write_all(&[1; 100_000]).unwrap();
        drop(near);
        assert_eq!(far.read(&mut [0; 8]).unwrap(), 0);
        let (near, far) = pair();
        assert!(matches!(near.read(&mut [0; 8]), Err(ReadError::Io(_))));
        drop(far);
        assert_eq!(near.read(&mut [0; 8]).unwrap(), 0);
    }

    #[test]
    fn the_kernel_refuses_descriptors_where_it_can() {
        let (near, far) = UnixStream::pair().unwrap();
        let near = ClientSocket::new(near);
        match far.send_with_fds(&[&b"x"[..]], &[far.as_raw_fd()]) {
            Ok(_) => {
                assert!(matches!(near.read(&mut [0; 8]), Err(ReadError::Descriptors)));
            }
            Err(error) => assert_eq!(error.errno(), libc::EPERM),
        }
    }
}
