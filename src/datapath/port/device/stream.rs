//! A connected Unix stream socket that carries frames: QEMU's `-netdev stream`, passt, gvproxy.
//!
//! The peer is not trusted. No operation waits for the peer, and all memory is allocated at the
//! connection.
//!
//! * Reading: received bytes go to a buffer, which returns one frame after the other. The socket is
//!   read again when the buffer has no whole frame, at most [`STREAM_READS`] times for one frame.
//! * Writing: frames that the socket has no room for are kept, up to the size of [`Packer`], and
//!   then dropped. The rest of a frame that was sent in part goes first, so no frame is torn. The
//!   reading worker also sends kept frames, when an event reports room in the socket.
//! * Several workers write, one at a time. A worker that finds another worker writing leaves its
//!   frames with that worker. So a writer that loses its CPU, as a writer that wakes the peer often
//!   does, costs no frame.
//! * Descriptors that arrive with the bytes end the connection.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use super::link::{End, Link, PeerState, frame_of};
use super::lock;
use crate::guard::SignalCost;
use crate::guard::disposal::Guarded;
use base::frame::stream::{Packer, Unpacker};
use base::frame::{VNET_HDR_LEN, VnetHdr};
use base::limits::{MAX_FRAME_LEN, STREAM_LOCK_NANOS, STREAM_READS, STREAM_ROUNDS};
use sys::clock;
use sys::frame_io::{FrameBatch, FrameIo, Transfer};
use sys::scm;

/// Frames that are left for the writing worker.
#[derive(Debug, Default)]
struct Waiting {
    frames: Packer,
    /// The writing worker has sent frames of other workers for long enough: other workers must send
    /// their frames themselves.
    closed: bool,
}

/// A connection with a peer.
#[derive(Debug)]
pub struct Connection {
    socket: Guarded<UnixStream>,
    /// Received bytes; used by the worker that owns the queue.
    input: Mutex<Unpacker>,
    /// Frames on their way out; held by the writing worker. The writer releases the lock with
    /// `waiting` locked and empty, or until an event reports room.
    output: Mutex<Packer>,
    /// Frames to send next. Locked for the copy of a frame.
    waiting: Mutex<Waiting>,
    /// `output` or `waiting` has frames. Set before the socket is written, so that the thread that
    /// gets the event for room finds the frames.
    sending: AtomicBool,
    peer: PeerState,
}

impl Connection {
    /// Creates a connection on a connected socket. `cost` belongs to all connections of the port.
    pub fn new(socket: impl Into<Guarded<UnixStream>>, cost: Arc<SignalCost>) -> Connection {
        Connection {
            socket: socket.into(),
            input: Mutex::default(),
            output: Mutex::default(),
            waiting: Mutex::default(),
            sending: AtomicBool::new(false),
            peer: PeerState::new(cost),
        }
    }

    /// Returns the right to write, if no worker has it.
    fn output(&self) -> Option<MutexGuard<'_, Packer>> {
        match self.output.try_lock() {
            Ok(output) => Some(output),
            Err(TryLockError::Poisoned(poisoned)) => Some(self.mend(poisoned)),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Returns the right to write, after a short wait for a writer that is about to finish.
    fn output_soon(&self) -> Option<MutexGuard<'_, Packer>> {
        let end = clock::cycles() + clock::cycles_in(STREAM_LOCK_NANOS);
        loop {
            let output = self.output();
            if output.is_some() || clock::cycles() >= end {
                return output;
            }
            std::hint::spin_loop();
        }
    }

    /// Ends the connection after a panic, which may have left a part of a frame.
    #[cold]
    fn mend<'a>(&self, poisoned: PoisonError<MutexGuard<'a, Packer>>) -> MutexGuard<'a, Packer> {
        self.peer.over(End::Failed(libc::EIO));
        poisoned.into_inner()
    }

    /// Sends the frames on their way and the frames that wait. Returns `WouldBlock` if frames are
    /// left.
    fn flush(&self, mut output: MutexGuard<'_, Packer>) -> Transfer {
        for round in 0.. {
            while !output.is_empty() {
                match self.peer.measured(|| scm::send(self.socket.as_fd(), output.rest())) {
                    Ok(bytes) => output.sent(bytes),
                    Err(error) => match error.raw_os_error() {
                        Some(libc::EAGAIN | libc::EINTR) => return Transfer::WouldBlock,
                        Some(libc::ENOBUFS | libc::ENOMEM) => return Transfer::NoBuffers,
                        Some(libc::EPIPE | libc::ECONNRESET) => return self.peer.over(End::Left),
                        errno => return self.peer.over(End::Failed(errno.unwrap_or(libc::EIO))),
                    },
                }
            }
            let mut waiting = lock(&self.waiting);
            if waiting.frames.is_empty() {
                waiting.closed = false;
                self.sending.store(false, Ordering::SeqCst);
                // Before `waiting` is unlocked: no worker leaves frames with a writer that has
                // looked already.
                drop(output);
                break;
            }
            if self.peer.pauses() {
                return Transfer::WouldBlock;
            }
            std::mem::swap(&mut *output, &mut waiting.frames);
            waiting.closed = round == STREAM_ROUNDS;
        }
        Transfer::Done(0)
    }

    /// Leaves frames of a batch for sending, from the `first`-th frame on, as far as there is room.
    /// Sends them unless another worker writes. Returns the index of the next frame.
    fn send(&self, batch: &mut FrameBatch, first: usize) -> usize {
        if self.peer.pauses() {
            return batch.len();
        }
        let mut waiting = lock(&self.waiting);
        let mut output = self.output();
        if output.is_none() && waiting.closed {
            drop(waiting);
            let soon = self.output_soon();
            waiting = lock(&self.waiting);
            output = soon.or_else(|| self.output());
        }
        let open = output.is_some() || !waiting.closed;
        let mut next = first;
        while open && next < batch.len() && waiting.frames.push(frame_of(batch, next)) {
            next += 1;
        }
        if next > first {
            self.sending.store(true, Ordering::SeqCst);
        }
        drop(waiting);
        let flushed = output.map(|output| self.flush(output));
        // A frame without room is dropped: its batch entry gets no answer.
        let end = next.max(first + 1);
        if flushed == Some(Transfer::Gone) {
            (first..end).for_each(|index| batch.answer(index, Transfer::Gone));
            return end;
        }
        for index in first..next {
            batch.answer(index, Transfer::Done(batch.frame(index).len()));
        }
        end
    }

    /// Receives once. An error says why nothing was received.
    fn fill(&self, input: &mut Unpacker) -> Result<(), Transfer> {
        let mut files = Vec::new();
        let received =
            self.peer.measured(|| scm::receive(self.socket.as_fd(), input.room(), &mut files));
        if !files.is_empty() {
            self.peer.keep(files);
            return Err(self.peer.over(End::Descriptors));
        }
        match received {
            Ok(received) if received.files_lost => Err(self.peer.over(End::Descriptors)),
            Ok(received) if received.bytes == 0 => {
                Err(self.peer.over(if input.is_torn() { End::Torn } else { End::Left }))
            }
            Ok(received) => {
                input.filled(received.bytes);
                Ok(())
            }
            Err(error) => Err(match error.raw_os_error() {
                Some(libc::EAGAIN) => Transfer::WouldBlock,
                // Bytes that have arrived already bring no event of their own.
                Some(libc::EINTR | libc::ENOBUFS | libc::ENOMEM) => Transfer::NoBuffers,
                Some(libc::ECONNRESET) => self.peer.over(End::Left),
                errno => self.peer.over(End::Failed(errno.unwrap_or(libc::EIO))),
            }),
        }
    }
}

impl Link for Connection {
    fn end(&self) -> Option<&End> {
        self.peer.end()
    }

    fn look(&self) -> Option<Duration> {
        None
    }
}

impl AsRawFd for Connection {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl FrameIo for Connection {
    fn flush(&self, batch: &mut FrameBatch) {
        let mut at = 0;
        while at < batch.len() {
            if self.peer.end().is_some() {
                batch.answer(at, Transfer::Gone);
            } else if frame_of(batch, at).len() > MAX_FRAME_LEN as usize {
                batch.answer(at, Transfer::Rejected(libc::EMSGSIZE));
            } else {
                at = self.send(batch, at);
                continue;
            }
            at += 1;
        }
    }

    fn read(&self, buffer: &mut [u8]) -> Transfer {
        if self.peer.end().is_some() {
            return Transfer::Gone;
        }
        if self.peer.pauses() {
            return Transfer::NoBuffers;
        }
        let mut missed = false;
        let mut input = lock(&self.input);
        for reads in 0.. {
            match input.next_frame() {
                Ok(Some(frame)) => {
                    let (header, rest) = buffer.split_at_mut(VNET_HDR_LEN.min(buffer.len()));
                    header.copy_from_slice(&VnetHdr::plain(0).to_bytes()[..header.len()]);
                    let n = frame.len().min(rest.len());
                    rest[..n].copy_from_slice(&frame[..n]);
                    return Transfer::Done(header.len() + n);
                }
                Ok(None) => {}
                Err(length) => return self.peer.over(End::Length(length)),
            }
            if reads == STREAM_READS {
                break;
            }
            // The socket may have room for kept frames, and the event for room is not repeated. If
            // there is no kept frame, the locks are left to the writers. Only at the first read,
            // because a full socket costs a call each time.
            if reads == 0 && self.sending.load(Ordering::SeqCst) {
                match self.output().map(|output| self.flush(output)) {
                    Some(Transfer::Gone) => return Transfer::Gone,
                    flushed => missed = flushed.is_none(),
                }
            }
            match self.fill(&mut input) {
                Ok(()) => {}
                Err(Transfer::WouldBlock) if missed => break,
                Err(result) => return result,
            }
        }
        Transfer::NoBuffers
    }
}

#[cfg(test)]
mod tests;
