//! A connected Unix datagram socket that carries frames, one a datagram: vfkit, libkrun, gvproxy.
//!
//! The peer is not trusted. No operation waits for the peer.
//!
//! * A datagram that the socket or the peer's queue has no room for is dropped at once, together
//!   with the rest of the batch: the peer's queue is short (net.unix.max_dgram_qlen).
//! * The kernel sends a datagram whole or not at all, so workers write without a lock.
//! * The kernel does not report that the peer has left; the port's thread asks ([`Link::look`]).

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::link::{End, Link, PeerState, frame_of};
use super::lock;
use crate::guard::SignalCost;
use crate::guard::disposal::Guarded;
use base::frame::{VNET_HDR_LEN, VnetHdr};
use base::limits::{DATAGRAM_PEER_LOOK, MAX_FRAME_LEN, STREAM_READS};
use sys::frame_io::{FrameBatch, FrameIo, Transfer};
use sys::scm::{self, Sender};

/// The socket of a peer.
pub trait PeerSocket: fmt::Debug + Send + Sync {
    /// Returns true if a datagram of this sender is the peer's.
    fn is_of(&self, sender: &Sender) -> bool;

    /// Returns true until the peer closes its socket.
    fn is_alive(&self) -> bool;
}

/// A socket that is connected to a peer.
#[derive(Debug)]
pub struct DatagramLink {
    socket: Guarded<UnixDatagram>,
    address: Box<dyn PeerSocket>,
    /// The first frame, which came before the socket was connected.
    first: Mutex<Vec<u8>>,
    /// The socket may hold the first frame, or datagrams that others sent before it was connected.
    is_new: AtomicBool,
    peer: PeerState,
}

impl DatagramLink {
    /// Creates the link to a peer, by a socket that is connected to the peer's. `first` is the
    /// frame that came before, or empty. `cost` belongs to all links of the port.
    pub fn new(
        socket: Guarded<UnixDatagram>,
        address: Box<dyn PeerSocket>,
        first: Vec<u8>,
        cost: Arc<SignalCost>,
    ) -> DatagramLink {
        DatagramLink {
            socket,
            address,
            first: Mutex::new(first),
            is_new: AtomicBool::new(true),
            peer: PeerState::new(cost),
        }
    }

    /// Converts an error of the socket; `full` stands for a want of room or memory.
    fn failed(&self, errno: Option<i32>, full: Transfer) -> Transfer {
        match errno {
            Some(libc::EAGAIN | libc::EINTR) => Transfer::WouldBlock,
            Some(libc::ENOBUFS | libc::ENOMEM) => full,
            Some(libc::EMSGSIZE) => Transfer::Rejected(libc::EMSGSIZE),
            Some(libc::ECONNREFUSED | libc::ECONNRESET | libc::ENOTCONN | libc::ENOENT) => {
                self.peer.over(End::Left)
            }
            // The peer has connected its socket to another socket, or has shut the socket down.
            Some(libc::EPERM | libc::EPIPE) => self.peer.over(End::Left),
            errno => self.peer.over(End::Failed(errno.unwrap_or(libc::EIO))),
        }
    }

    fn send(&self, frame: &[u8]) -> Transfer {
        if frame.len() > MAX_FRAME_LEN as usize {
            return Transfer::Rejected(libc::EMSGSIZE);
        }
        match self.peer.measured(|| scm::send(self.socket.as_fd(), frame)) {
            Ok(bytes) => Transfer::Done(VNET_HDR_LEN + bytes),
            Err(error) => self.failed(error.raw_os_error(), Transfer::NoBuffers),
        }
    }

    /// Receives once into `buffer`; returns the length of the frame, or `None` for a datagram of
    /// another sender.
    fn receive(&self, buffer: &mut [u8]) -> Result<Option<usize>, Transfer> {
        let (mut files, mut is_others) = (Vec::new(), false);
        let received = self.peer.measured(|| match self.is_new.load(Ordering::Relaxed) {
            false => scm::receive(self.socket.as_fd(), buffer, &mut files),
            true => {
                scm::receive_from(self.socket.as_fd(), buffer, &mut files).map(|(got, sender)| {
                    is_others = !self.address.is_of(&sender);
                    got
                })
            }
        });
        let has_files = !files.is_empty();
        if has_files {
            self.peer.keep(files);
        }
        match received {
            Ok(_) if is_others => Ok(None),
            Ok(got) if has_files || got.files_lost => Err(self.peer.over(End::Descriptors)),
            Ok(got) if got.truncated => Err(Transfer::Rejected(libc::EMSGSIZE)),
            Ok(got) => Ok(Some(got.bytes)),
            Err(error) => {
                // Datagrams that have arrived already bring no event of their own.
                let result = self.failed(error.raw_os_error(), Transfer::NoBuffers);
                if result == Transfer::WouldBlock {
                    self.is_new.store(false, Ordering::Relaxed);
                }
                Err(result)
            }
        }
    }

    /// Returns the frame that came before the socket was connected, once.
    fn take_first(&self, buffer: &mut [u8]) -> Option<usize> {
        if !self.is_new.load(Ordering::Relaxed) {
            return None;
        }
        let first = std::mem::take(&mut *lock(&self.first));
        let len = first.len().min(buffer.len());
        buffer[..len].copy_from_slice(&first[..len]);
        (len > 0).then_some(len)
    }
}

impl Link for DatagramLink {
    fn end(&self) -> Option<&End> {
        self.peer.end()
    }

    fn look(&self) -> Option<Duration> {
        if !self.address.is_alive() {
            self.peer.over(End::Left);
        }
        Some(DATAGRAM_PEER_LOOK)
    }
}

impl AsRawFd for DatagramLink {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl FrameIo for DatagramLink {
    fn flush(&self, batch: &mut FrameBatch) {
        let mut is_full = self.peer.pauses();
        for at in 0..batch.len() {
            // A frame without room is dropped: its batch entry gets no answer.
            let sent = match self.peer.end() {
                Some(_) => Transfer::Gone,
                None if is_full => continue,
                None => self.send(frame_of(batch, at)),
            };
            match sent {
                Transfer::WouldBlock | Transfer::NoBuffers => is_full = true,
                answer => batch.answer(at, answer),
            }
        }
    }

    fn read(&self, buffer: &mut [u8]) -> Transfer {
        if self.peer.end().is_some() {
            return Transfer::Gone;
        }
        if self.peer.pauses() {
            return Transfer::NoBuffers;
        }
        let (header, rest) = buffer.split_at_mut(VNET_HDR_LEN.min(buffer.len()));
        header.copy_from_slice(&VnetHdr::plain(0).to_bytes()[..header.len()]);
        if let Some(len) = self.take_first(rest) {
            return Transfer::Done(header.len() + len);
        }
        for _ in 0..STREAM_READS {
            match self.receive(rest) {
                Ok(Some(len)) => return Transfer::Done(header.len() + len),
                Ok(None) => {}
                Err(result) => return result,
            }
        }
        Transfer::NoBuffers
    }
}
