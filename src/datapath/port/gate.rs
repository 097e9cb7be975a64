//! Conditions that keep the frames of a transmit ring in the ring: the sender's side of waiting.
//! `admission` is the receiver's side.

use base::limits::{BACKPRESSURE_ALONE_NANOS, BACKPRESSURE_MIXED_PRICE, BACKPRESSURE_ROOM_NANOS};
use switch::{Booking, PortId};
use sys::clock;

/// Conditions that keep the frames of a transmit ring in the ring.
#[derive(Debug, Default)]
pub struct Gate {
    /// A session disables the ring: frames are forwarded up to this ring index.
    pub(crate) drain_to: Option<u16>,
    /// Treatment of frames on a disabled ring.
    pub(crate) discard: Discard,
    /// The receiver that the ring's first frames wait for.
    pub(crate) receiver: Option<Waiting>,
    /// Booking of the ring's first frames, which wait for the rate of their own port.
    pub(crate) booked: Option<Booking>,
    /// Receiver of the ring's recent bursts.
    pub(crate) last: LastReceiver,
    /// Receivers that lately had room for more frames of the ring.
    pub(crate) roomy: RoomyReceivers,
}

impl Gate {
    /// Returns how many cycles the receiver of queue `to` pays for each cycle at `now` in which the
    /// ring's frames wait for the queue; none if the frames may not wait.
    pub(crate) fn price(&self, to: (PortId, u8), now: u64) -> Option<u64> {
        if self.last.is_only(to, now) {
            Some(1)
        } else {
            (!self.roomy.is_other(to, now)).then_some(BACKPRESSURE_MIXED_PRICE)
        }
    }
}

/// Treatment of frames that are sent on a disabled ring.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Discard {
    /// Frames are kept until the ring is enabled for the first time.
    #[default]
    Never,
    /// Frames are kept until the guest kicks the ring.
    OnKick,
    /// The guest kicked the ring. Frames are kept until this cycle, in case the ring is enabled
    /// again.
    From(u64),
}

/// The receive queue that the first frames of a transmit ring wait for.
#[derive(Debug, Clone, Copy)]
pub struct Waiting {
    /// The receiver's port.
    pub(crate) port: PortId,
    /// Receive queue of the port.
    pub(crate) queue: u8,
    /// The receiver has granted buffers to frames of this ring.
    pub(crate) granted: bool,
    /// Number of buffers that the receive ring kept for other senders at the last look.
    pub(crate) left: u16,
    /// Cycle up to which the receiver's admission has charged the waiting.
    pub(crate) charged_until: u64,
    /// Booking at the receiver's rate, if the frames wait for this rate.
    pub(crate) booked: Option<Booking>,
    /// Cycle since which another thread has held the receive queue's lock.
    pub(crate) locked_since: Option<u64>,
}

impl Waiting {
    /// Starts the wait for a port and receive queue at cycle `now`.
    pub(crate) fn new((port, queue): (PortId, u8), now: u64) -> Waiting {
        Waiting {
            port,
            queue,
            granted: false,
            left: 0,
            charged_until: now,
            booked: None,
            locked_since: None,
        }
    }

    /// Returns the cycles of waiting up to `now` that are not charged yet, `price` times.
    pub(crate) fn charge(&mut self, now: u64, price: u64) -> u64 {
        clock::since(std::mem::replace(&mut self.charged_until, now), now).saturating_mul(price)
    }
}

/// Receiver of the recent bursts of a transmit ring.
#[derive(Debug, Clone, Copy)]
pub struct LastReceiver {
    /// Port and receive queue of the last burst; none if the burst had several receivers.
    to: Option<(PortId, u8)>,
    /// Cycle of the last burst whose receiver differed from the receiver of the burst before.
    changed: u64,
    /// [`BACKPRESSURE_ALONE_NANOS`] in cycles.
    long: u64,
}

impl Default for LastReceiver {
    fn default() -> LastReceiver {
        LastReceiver { to: None, changed: 0, long: clock::cycles_in(BACKPRESSURE_ALONE_NANOS) }
    }
}

impl LastReceiver {
    /// Records the only receiver of a burst, or none for several receivers, at cycle `now`.
    #[inline(always)]
    pub(crate) fn note(&mut self, to: Option<(PortId, u8)>, now: u64) {
        if self.to != to || to.is_none() {
            (self.to, self.changed) = (to, now);
        }
    }

    /// True if all bursts of the ring have gone to `to` for so long that waiting for `to` delays
    /// frames for other receivers only rarely.
    pub(crate) fn is_only(&self, to: (PortId, u8), now: u64) -> bool {
        // The counter may have stepped back far, for example when the host was resumed on another
        // machine.
        self.to == Some(to) && self.changed.abs_diff(now) >= self.long
    }
}

/// The receive queues that lately had room for more frames of a transmit ring: frames for such a
/// queue must not wait behind frames for another queue.
#[derive(Debug, Clone, Copy, Default)]
pub struct RoomyReceivers {
    /// The last queue that had room.
    last: (PortId, u8),
    /// Cycle at which `last` had room.
    at: u64,
    /// Last cycle at which a queue other than `last` had room.
    others_at: u64,
}

impl RoomyReceivers {
    /// Records that the queue `to` has room at cycle `now`, after it took frames of the ring.
    #[inline(always)]
    pub(crate) fn note(&mut self, to: (PortId, u8), now: u64) {
        if self.last != to {
            (self.last, self.others_at) = (to, self.at);
        }
        self.at = now;
    }

    /// True if a queue other than `to` lately had room.
    fn is_other(&self, to: (PortId, u8), now: u64) -> bool {
        let at = if self.last == to { self.others_at } else { self.at };
        at != 0 && at.abs_diff(now) < clock::cycles_in(BACKPRESSURE_ROOM_NANOS)
    }
}
