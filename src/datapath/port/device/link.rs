//! A link with the peer of a stream: why it ends, and what it may cost the switch.
//!
//! * A worker never closes descriptors that arrive with the bytes, because the last close of a file
//!   may never return ([`crate::guard::disposal`]).
//! * A read or write wakes all waiters of the socket's other end, in the worker's time. This time
//!   is measured and charged to the port, like the time of a guest's signals ([`SignalCost`]).

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use super::lock;
use crate::guard::SignalCost;
use crate::guard::disposal;
use base::frame::VNET_HDR_LEN;
use base::frame::stream::BadLength;
use sys::frame_io::{FrameBatch, FrameIo, Transfer};

/// Why a link with a peer has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The peer left, between two frames.
    Left,
    /// The peer left with part of a frame missing.
    Torn,
    /// The peer sent an invalid length, so frames cannot be separated.
    Length(BadLength),
    /// The peer sent descriptors, which no frame has.
    Descriptors,
    /// Too many waiters watch the socket: each read or write wakes them, and delays other ports.
    Waiters,
    /// The socket failed with this errno.
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

/// A link with a peer, which the port's thread watches.
pub trait Link: FrameIo {
    /// Returns why the link has ended, if it has.
    fn end(&self) -> Option<&End>;

    /// Ends the link if the peer has left without notice. Returns the time until the next look;
    /// `None` if the kernel reports that the peer has left.
    fn look(&self) -> Option<Duration>;
}

/// The end of a link, the descriptors that the peer sent, and the cost of the peer.
#[derive(Debug)]
pub(super) struct PeerState {
    end: OnceLock<End>,
    /// Received descriptors, for a thread that may wait for their closing.
    pub(super) strays: Mutex<Vec<OwnedFd>>,
    /// Cost of the port's peers, present and earlier.
    pub(super) cost: Arc<SignalCost>,
}

impl PeerState {
    /// Creates the state of a link that has not ended. `cost` belongs to all links of the port.
    pub(super) fn new(cost: Arc<SignalCost>) -> PeerState {
        PeerState { end: OnceLock::new(), strays: Mutex::default(), cost }
    }

    /// Returns why the link has ended, if it has.
    pub(super) fn end(&self) -> Option<&End> {
        self.end.get()
    }

    /// Ends the link. Only the first reason is kept.
    #[cold]
    pub(super) fn over(&self, why: End) -> Transfer {
        let _ = self.end.set(why);
        Transfer::Gone
    }

    /// Uses the socket. A peer that makes the use expensive has to wait, or is disconnected.
    pub(super) fn measured<T>(&self, work: impl FnOnce() -> T) -> T {
        let (done, is_harmful) = self.cost.measured(work);
        if is_harmful {
            self.over(End::Waiters);
        }
        done
    }

    /// True if the socket is not to be used now, since its use was lately slow.
    pub(super) fn pauses(&self) -> bool {
        self.cost.pauses()
    }

    /// Keeps received descriptors until the link is dropped.
    pub(super) fn keep(&self, mut files: Vec<OwnedFd>) {
        lock(&self.strays).append(&mut files);
    }
}

impl Drop for PeerState {
    fn drop(&mut self) {
        let strays = self.strays.get_mut().unwrap_or_else(PoisonError::into_inner);
        disposal::close(std::mem::take(strays));
    }
}

/// Returns the `index`-th frame of a batch without its header.
pub(super) fn frame_of(batch: &FrameBatch, index: usize) -> &[u8] {
    batch.frame(index).get(VNET_HDR_LEN..).unwrap_or_default()
}
