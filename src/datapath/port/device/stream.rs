//! A connected Unix stream socket over which frames go: QEMU's `-netdev stream`, passt, gvproxy.
//!
//! The peer is trusted with nothing. Nothing here waits for it, and all memory is made when it
//! connects.
//!
//! * Reading: what came is put in a buffer and handed on frame by frame; it is read again when
//!   nothing whole is left, and not more often than [`STREAM_READS`] for one frame.
//! * Writing: frames that the socket has no room for are kept, up to [`Packer`]'s bytes, and then
//!   dropped. The rest of one that it took in part goes before anything else, so no frame is ever
//!   torn. The worker that reads tries that too, when the socket tells of room.
//! * Several workers write, one at a time. One that finds another writing leaves its frames with
//!   it, so that a writer that lost its CPU, as those do that wake the peer, costs no frame.
//! * Descriptors that come with the bytes are never closed by a worker, since the last close of a
//!   file may last for ever ([`crate::guard::disposal`]). They end the connection.
//! * To read or write wakes all that poll the socket at the other end, in our time. That is
//!   measured and held against the port as a guest's signals are ([`SignalCost`]).

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use super::lock;
use crate::guard::SignalCost;
use crate::guard::disposal::{self, Guarded};
use base::frame::stream::{BadLength, Packer, Unpacker};
use base::frame::{VNET_HDR_LEN, VnetHdr};
use base::limits::{
    EXPENSIVE_SIGNAL_MICROS, MAX_FRAME_LEN, STREAM_LOCK_NANOS, STREAM_READS, STREAM_ROUNDS,
};
use sys::clock;
use sys::frame_io::{FrameBatch, FrameIo, Transfer};
use sys::scm;
use sys::usage::cpu_micros;

/// Why a connection has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The peer left, between two frames.
    Left,
    /// It left with part of a frame to come.
    Torn,
    /// What it sends cannot be told apart.
    Length(BadLength),
    /// It sent descriptors, which no frame has.
    Descriptors,
    /// It has so many wait for the socket that using it takes others' time.
    Waiters,
    /// The socket failed, as errno.
    Failed(i32),
}

impl End {
    /// True if the peer harmed others.
    pub fn is_harmful(&self) -> bool {
        *self == End::Waiters
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Left => f.write_str("it left"),
            End::Torn => f.write_str("it left in the middle of a frame"),
            End::Length(length) => length.fmt(f),
            End::Descriptors => f.write_str("it sends descriptors"),
            End::Waiters => f.write_str("its socket has too many waiters"),
            End::Failed(errno) => io::Error::from_raw_os_error(*errno).fmt(f),
        }
    }
}

/// Frames for the worker that writes.
#[derive(Debug, Default)]
struct Waiting {
    frames: Packer,
    /// The one who does has sent for others for long enough: the next has to do so itself.
    closed: bool,
}

/// One connection.
#[derive(Debug)]
pub struct Connection {
    socket: Guarded<UnixStream>,
    /// Of the worker that owns the queue.
    input: Mutex<Unpacker>,
    /// What is on its way out, of the worker that writes. It lets go with `waiting` locked and
    /// empty, or until an event tells of room.
    output: Mutex<Packer>,
    /// What goes next. Locked for as long as a frame is copied.
    waiting: Mutex<Waiting>,
    /// Something is in one of the two. Set before the socket is asked, so that whoever is told of
    /// room finds it.
    sending: AtomicBool,
    end: OnceLock<End>,
    /// Descriptors that came, for a thread that may wait for their closing.
    strays: Mutex<Vec<OwnedFd>>,
    /// What is known of the port's peers, this one and those before.
    cost: Arc<SignalCost>,
}

impl Connection {
    /// On a connected socket. `cost` is that of all connections of the port.
    pub fn new(socket: impl Into<Guarded<UnixStream>>, cost: Arc<SignalCost>) -> Connection {
        Connection {
            socket: socket.into(),
            input: Mutex::default(),
            output: Mutex::default(),
            waiting: Mutex::default(),
            sending: AtomicBool::new(false),
            end: OnceLock::new(),
            strays: Mutex::default(),
            cost,
        }
    }

    /// Why it has ended, if it has.
    pub fn end(&self) -> Option<&End> {
        self.end.get()
    }

    /// The connection has ended, for the first reason that is found.
    #[cold]
    fn over(&self, why: End) -> Transfer {
        let _ = self.end.set(why);
        Transfer::Gone
    }

    /// Uses the socket; a peer that makes that expensive has to wait, or goes.
    fn measured<T>(&self, work: impl FnOnce() -> T) -> T {
        let watched = self.cost.is_watched();
        let used = if watched { cpu_micros() } else { 0 };
        let began = clock::cycles();
        let done = work();
        let now = clock::cycles();
        let took = clock::since(began, now);
        if watched {
            if self.cost.took(cpu_micros().saturating_sub(used), took, now) {
                self.over(End::Waiters);
            }
        } else if took > clock::cycles_in(EXPENSIVE_SIGNAL_MICROS * 1_000) {
            self.cost.watch(now);
        }
        done
    }

    /// True if the socket is not to be used now, as that was slow lately.
    fn pauses(&self) -> bool {
        self.cost.is_watched() && self.cost.left(clock::cycles()) > 0
    }

    /// The right to write, if no worker has it.
    fn output(&self) -> Option<MutexGuard<'_, Packer>> {
        match self.output.try_lock() {
            Ok(output) => Some(output),
            Err(TryLockError::Poisoned(poisoned)) => Some(self.mend(poisoned)),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The right to write from one who writes for the last time.
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

    /// A panic left a frame that may be half there.
    #[cold]
    fn mend<'a>(&self, poisoned: PoisonError<MutexGuard<'a, Packer>>) -> MutexGuard<'a, Packer> {
        self.over(End::Failed(libc::EIO));
        poisoned.into_inner()
    }

    /// Sends what is on its way and what waits behind it; `WouldBlock` if not all of it could go.
    fn flush(&self, mut output: MutexGuard<'_, Packer>) -> Transfer {
        for round in 0.. {
            while !output.is_empty() {
                match self.measured(|| scm::send(self.socket.as_fd(), output.rest())) {
                    Ok(bytes) => output.sent(bytes),
                    Err(error) => match error.raw_os_error() {
                        Some(libc::EAGAIN | libc::EINTR) => return Transfer::WouldBlock,
                        Some(libc::ENOBUFS | libc::ENOMEM) => return Transfer::NoBuffers,
                        Some(libc::EPIPE | libc::ECONNRESET) => return self.over(End::Left),
                        errno => return self.over(End::Failed(errno.unwrap_or(libc::EIO))),
                    },
                }
            }
            let mut waiting = lock(&self.waiting);
            if waiting.frames.is_empty() {
                waiting.closed = false;
                self.sending.store(false, Ordering::SeqCst);
                // Before `waiting` is unlocked: no worker leaves a frame with one that has looked.
                drop(output);
                break;
            }
            if self.pauses() {
                return Transfer::WouldBlock;
            }
            std::mem::swap(&mut *output, &mut waiting.frames);
            waiting.closed = round == STREAM_ROUNDS;
        }
        Transfer::Done(0)
    }

    /// Leaves frames of a batch, from the `first`-th on as many as there is room for, and writes
    /// unless another worker does; where it goes on.
    fn send(&self, batch: &mut FrameBatch, first: usize) -> usize {
        if self.pauses() {
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

    /// Receives once, or why nothing came.
    fn fill(&self, input: &mut Unpacker) -> Result<(), Transfer> {
        let mut files = Vec::new();
        let received =
            self.measured(|| scm::receive(self.socket.as_fd(), input.room(), &mut files));
        if !files.is_empty() {
            lock(&self.strays).append(&mut files);
            return Err(self.over(End::Descriptors));
        }
        match received {
            Ok(received) if received.files_lost => Err(self.over(End::Descriptors)),
            Ok(received) if received.bytes == 0 => {
                Err(self.over(if input.is_torn() { End::Torn } else { End::Left }))
            }
            Ok(received) => {
                input.filled(received.bytes);
                Ok(())
            }
            Err(error) => Err(match error.raw_os_error() {
                Some(libc::EAGAIN) => Transfer::WouldBlock,
                // What came brings no event of its own any more.
                Some(libc::EINTR | libc::ENOBUFS | libc::ENOMEM) => Transfer::NoBuffers,
                Some(libc::ECONNRESET) => self.over(End::Left),
                errno => self.over(End::Failed(errno.unwrap_or(libc::EIO))),
            }),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let strays = self.strays.get_mut().unwrap_or_else(PoisonError::into_inner);
        disposal::close(std::mem::take(strays));
    }
}

impl AsRawFd for Connection {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// The `index`-th frame of a batch without its header.
fn frame_of(batch: &FrameBatch, index: usize) -> &[u8] {
    batch.frame(index).get(VNET_HDR_LEN..).unwrap_or_default()
}

impl FrameIo for Connection {
    fn flush(&self, batch: &mut FrameBatch) {
        let mut at = 0;
        while at < batch.len() {
            if self.end.get().is_some() {
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
        if self.end.get().is_some() {
            return Transfer::Gone;
        }
        if self.pauses() {
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
                Err(length) => return self.over(End::Length(length)),
            }
            if reads == STREAM_READS {
                break;
            }
            // There may be room again for what is to go, and nobody is told twice. Else the locks
            // are left to those who write. Asked for each frame, a full socket costs a call each.
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
