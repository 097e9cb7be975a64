//! Connected sockets of clients that may send bytes and no descriptors.
//!
//! The attack: a client sends a descriptor along with its bytes (`SCM_RIGHTS`) and closes its own
//! copy. read(2) closes the descriptor; close(2) of the socket closes descriptors that lie unread
//! in the socket's queue. This last close of a file may wait for as long as the client likes
//! ([`disposal`]), in the thread that serves all clients.
//!
//! Linux 6.16 and later let the receiver refuse descriptors ([`refuse_descriptors`]): the sender's
//! call fails. On older kernels each read peeks first (`MSG_PEEK`): bytes that come with a
//! descriptor stay in the socket. Before a socket is closed, the socket is shut down, so that no
//! more bytes come, and the rest is read after a peek too. `disposal` closes a socket that holds a
//! descriptor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags, Shutdown, recv, recvmsg, shutdown};

use super::disposal;
use sys::unix_socket::{receive_plainly, refuse_descriptors};

/// Bytes that one read takes of the rest when a connection ends.
const LEFT_BYTES: usize = 16 << 10;
const LEFT_READS: usize = 32;

/// A client's socket; dropping it never waits.
#[derive(Debug)]
pub struct ClientSocket(Option<OwnedFd>);

/// Content at the front of a socket's queue.
enum Front {
    /// Number of bytes without a descriptor; 0 at the end of the stream.
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
    /// Takes over a connection that was accepted.
    pub fn new(socket: impl Into<OwnedFd>) -> ClientSocket {
        let socket = socket.into();
        refuse_descriptors(socket.as_fd());
        receive_plainly(socket.as_fd());
        ClientSocket(Some(socket))
    }

    /// Reads the bytes that have arrived and returns their number; 0 at the end. Never waits.
    pub fn read(&self, buffer: &mut [u8]) -> Result<usize, ReadError> {
        match look(self.as_fd(), buffer)? {
            Front::Bytes(0) => Ok(0),
            Front::Bytes(count) => Ok(take(self.as_fd(), &mut buffer[..count])?),
            Front::Descriptors => Err(ReadError::Descriptors),
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
        // Fails only if the client has left; such a client sends nothing more.
        let _ = shutdown(&socket, Shutdown::Both);
        if !is_emptied(socket.as_fd()) {
            disposal::close(vec![socket]);
        }
    }
}

/// Peeks at the next bytes. The caller takes the bytes by a second call: bytes that a peek has seen
/// without a descriptor have none when they are taken.
fn look(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Front> {
    let mut none = RecvAncillaryBuffer::default();
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let mut pieces = [io::IoSliceMut::new(buffer)];
    let seen = recvmsg(socket, &mut pieces, &mut none, flags)?;
    match seen.flags.contains(ReturnFlags::CTRUNC) {
        true => Ok(Front::Descriptors),
        false => Ok(Front::Bytes(seen.bytes)),
    }
}

fn take(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    Ok(recv(socket, buffer, RecvFlags::DONTWAIT)?.0)
}

/// Reads the rest of a socket that is shut down. True if the socket is empty and held no
/// descriptor.
fn is_emptied(socket: BorrowedFd<'_>) -> bool {
    let mut buffer = [0; LEFT_BYTES];
    for _ in 0..LEFT_READS {
        match look(socket, &mut buffer) {
            Ok(Front::Bytes(0)) => return true,
            Ok(Front::Descriptors) => return false,
            // A socket reports an error, such as a reset by the client, once only.
            Ok(Front::Bytes(count)) => drop(take(socket, &mut buffer[..count])),
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

    /// Returns a socket to which descriptors can be sent on every kernel.
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
        // The closer's thread has closed the descriptor.
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
