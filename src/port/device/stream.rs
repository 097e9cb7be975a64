//! A connected Unix stream socket over which frames go: QEMU's `-netdev stream`, passt, gvproxy.
//!
//! The peer is trusted with nothing. Nothing here waits for it, and all memory is made when it
//! connects.
//!
//! * Reading: what came is put in a buffer and handed on frame by frame; it is read again when
//!   nothing whole is left, and not more often than [`STREAM_READS`] for one frame.
//! * Writing: a frame that the socket has no room for is dropped. One that it took in part is kept,
//!   and its rest goes before anything else, so no frame is ever torn. The worker that reads tries
//!   that too, when the socket tells of room.
//! * Several workers write, one at a time. Whoever does not get the lock drops.
//! * Descriptors that come with the bytes are never closed by a worker, since the last close of a
//!   file may last for ever ([`crate::guard::disposal`]). They end the connection.
//! * To read or write wakes whoever polls the socket at the other end, in our time. That is
//!   measured and held against the port as a guest's signals are ([`SignalCost`]).

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use super::lock;
use crate::frame::stream::{BadLength, Packer, Unpacker};
use crate::frame::{VNET_HDR_LEN, VnetHdr};
use crate::guard::SignalCost;
use crate::limits::{EXPENSIVE_SIGNAL_MICROS, STREAM_LOCK_NANOS, STREAM_READS};
use crate::sys::clock;
use crate::sys::frame_io::{FrameIo, Transfer};
use crate::sys::scm;
use crate::sys::usage::cpu_micros;

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

/// One connection.
#[derive(Debug)]
pub struct Connection {
    socket: UnixStream,
    /// Of the worker that owns the queue.
    input: Mutex<Unpacker>,
    output: Mutex<Packer>,
    /// A frame is on its way out, or part of one is left. Set before the socket is asked, so that
    /// whoever is told of room finds it.
    sending: AtomicBool,
    /// Somebody tried for `output` in vain: nobody tries for long before it was free.
    stalled: AtomicBool,
    end: OnceLock<End>,
    /// Descriptors that came, for whoever may wait for their closing.
    strays: Mutex<Vec<OwnedFd>>,
    /// What is known of the port's peers, this one and those before.
    cost: Arc<SignalCost>,
}

impl Connection {
    /// On a connected socket. `cost` is that of all connections of the port.
    pub fn new(socket: UnixStream, cost: Arc<SignalCost>) -> Connection {
        Connection {
            socket,
            input: Mutex::default(),
            output: Mutex::default(),
            sending: AtomicBool::new(false),
            stalled: AtomicBool::new(false),
            end: OnceLock::new(),
            strays: Mutex::default(),
            cost,
        }
    }

    /// Why it has ended, if it has.
    pub fn end(&self) -> Option<&End> {
        self.end.get()
    }

    /// What is to be closed where that may last: the socket, whose queue may hold descriptors too,
    /// and those that came.
    pub fn into_files(self) -> Vec<OwnedFd> {
        let mut files = self.strays.into_inner().unwrap_or_else(PoisonError::into_inner);
        files.push(self.socket.into());
        files
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

    /// The lock for writing, within the time that another frame takes.
    fn output(&self) -> Option<MutexGuard<'_, Packer>> {
        let mut end = None;
        loop {
            match self.output.try_lock() {
                Ok(output) => {
                    self.stalled.store(false, Ordering::Relaxed);
                    return Some(output);
                }
                Err(TryLockError::Poisoned(poisoned)) => return Some(self.mend(poisoned)),
                Err(TryLockError::WouldBlock) => {}
            }
            let now = clock::cycles();
            let end = *end.get_or_insert(now + clock::cycles_in(STREAM_LOCK_NANOS));
            if now >= end || self.stalled.load(Ordering::Relaxed) {
                self.stalled.store(true, Ordering::Relaxed);
                return None;
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

    /// Sends what is left of a frame; `WouldBlock` if not all of it could go.
    fn flush(&self, output: &mut Packer) -> Transfer {
        while !output.rest().is_empty() {
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
        self.sending.store(false, Ordering::SeqCst);
        Transfer::Done(0)
    }

    /// Writes a frame of `len` bytes, which `fill` puts in its place.
    fn send(&self, len: usize, fill: impl FnOnce(&mut [u8])) -> Transfer {
        if self.end.get().is_some() {
            return Transfer::Gone;
        }
        if self.pauses() {
            return Transfer::WouldBlock;
        }
        let Some(mut output) = self.output() else { return Transfer::WouldBlock };
        match self.flush(&mut output) {
            Transfer::Done(_) => {}
            result => return result,
        }
        if !output.begin(len, fill) {
            return Transfer::Rejected(libc::EMSGSIZE);
        }
        self.sending.store(true, Ordering::SeqCst);
        match self.flush(&mut output) {
            Transfer::WouldBlock | Transfer::NoBuffers if output.take_back() => {
                self.sending.store(false, Ordering::SeqCst);
                Transfer::WouldBlock
            }
            Transfer::Gone => Transfer::Gone,
            // Its rest, if there is one, goes before the next.
            _ => Transfer::Done(VNET_HDR_LEN + len),
        }
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

impl AsRawFd for Connection {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl FrameIo for Connection {
    fn gathers(&self) -> bool {
        false
    }

    fn write(&self, bytes: &[u8]) -> Transfer {
        let Some(frame) = bytes.get(VNET_HDR_LEN..) else {
            return Transfer::Rejected(libc::EINVAL);
        };
        self.send(frame.len(), |to| to.copy_from_slice(frame))
    }

    unsafe fn write_pieces(&self, pieces: &[libc::iovec]) -> Transfer {
        let all: usize = pieces.iter().map(|piece| piece.iov_len).sum();
        let Some(len) = all.checked_sub(VNET_HDR_LEN) else {
            return Transfer::Rejected(libc::EINVAL);
        };
        self.send(len, |to| {
            let (mut skip, mut filled) = (VNET_HDR_LEN, 0);
            for piece in pieces {
                let skipped = skip.min(piece.iov_len);
                skip -= skipped;
                let n = (piece.iov_len - skipped).min(to.len() - filled);
                // SAFETY: the caller's promise for `pieces`, of which `n` bytes are left behind
                // those that are skipped; `to` is private and has room for as many.
                unsafe {
                    let from = piece.iov_base.cast::<u8>().add(skipped);
                    std::ptr::copy_nonoverlapping(from, to.as_mut_ptr().add(filled), n);
                }
                filled += n;
            }
        })
    }

    fn read(&self, buffer: &mut [u8]) -> Transfer {
        if self.end.get().is_some() {
            return Transfer::Gone;
        }
        if self.pauses() {
            return Transfer::NoBuffers;
        }
        // There may be room again for what is left of a frame, and nobody is told twice. Else the
        // lock is left to those who write.
        let mut missed = false;
        if self.sending.load(Ordering::SeqCst) {
            match self.output().map(|mut output| self.flush(&mut output)) {
                Some(Transfer::Gone) => return Transfer::Gone,
                flushed => missed = flushed.is_none(),
            }
        }
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
