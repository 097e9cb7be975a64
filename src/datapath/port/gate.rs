//! What keeps the frames of a transmit ring from being taken: the sender's side of waiting;
//! `admission` is the receiver's.

use base::limits::BACKPRESSURE_ALONE_NANOS;
use switch::{Booking, PortId};
use sys::clock;

/// What keeps the frames of a transmit ring from being taken.
#[derive(Debug, Default)]
pub struct Gate {
    /// The ring is being disabled: forward up to this index, then stop.
    pub drain_to: Option<u16>,
    /// What a disabled ring's frames come to.
    pub discard: Discard,
    /// Its first frames wait for their receiver.
    pub receiver: Option<Waiting>,
    /// They wait for the rate of their own port.
    pub booked: Option<Booking>,
    /// Whom its bursts lately went to.
    pub last: LastReceiver,
}

/// What becomes of frames that are sent on a disabled ring.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Discard {
    /// They are kept for the time it is enabled, which it never was.
    #[default]
    Never,
    /// They are kept, until a kick.
    OnKick,
    /// After a kick: they are kept until this cycle, for the case that it is enabled again.
    From(u64),
}

/// The receive queue that the first frames of a transmit ring wait for.
#[derive(Debug, Clone, Copy)]
pub struct Waiting {
    /// The receiver's port.
    pub port: PortId,
    /// Its receive queue.
    pub queue: u8,
    /// The receiver has granted buffers to frames of this ring.
    pub granted: bool,
    /// Buffers that the receive ring had, and left to other senders, when it was last looked at.
    pub left: u16,
    /// The cycle up to which the receiver's admission charged the waiting.
    pub charged_until: u64,
    /// The frames wait for the receiver's rate, and have booked.
    pub booked: Option<Booking>,
    /// The cycle since which another thread has held the receive queue's lock.
    pub locked_since: Option<u64>,
}

impl Waiting {
    /// Frames wait from cycle `now` on for this port and receive queue.
    pub fn new((port, queue): (PortId, u8), now: u64) -> Waiting {
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

    /// Cycles up to `now` for which the frames have waited and that were not charged.
    pub fn charge(&mut self, now: u64) -> u64 {
        clock::since(std::mem::replace(&mut self.charged_until, now), now)
    }
}

/// Whom the bursts of a transmit ring lately went to.
#[derive(Debug, Clone, Copy, Default)]
pub struct LastReceiver {
    /// The port and receive queue of the last burst; none if the burst had several receivers.
    to: Option<(PortId, u8)>,
    /// The cycle of the last burst that went to another receiver than the burst before.
    changed: u64,
}

impl LastReceiver {
    /// Notes the only receiver of a burst, or that there were others, at cycle `now`.
    #[inline(always)]
    pub fn note(&mut self, to: Option<(PortId, u8)>, now: u64) {
        if self.to != to || to.is_none() {
            (self.to, self.changed) = (to, now);
        }
    }

    /// True if the ring's bursts have all gone to `to` for so long that waiting there delays frames
    /// for others only rarely.
    pub fn is_only(&self, to: (PortId, u8), now: u64) -> bool {
        let long = clock::cycles_in(BACKPRESSURE_ALONE_NANOS);
        // The counter may have stepped back far, as where the host is resumed elsewhere.
        self.to == Some(to) && self.changed.abs_diff(now) >= long
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_waits_only_where_all_its_bursts_have_gone() {
        let (mut last, long) =
            (LastReceiver::default(), clock::cycles_in(BACKPRESSURE_ALONE_NANOS));
        let (one, other) = ((1, 0), (2, 0));
        last.note(Some(one), 1_000);
        assert!(!last.is_only(one, 999 + long) && last.is_only(one, 1_000 + long));
        last.note(Some(one), 2_000 + long);
        assert!(last.is_only(one, 2_000 + long) && !last.is_only(other, 2_000 + long));
        for others in [Some(other), Some((1, 1)), None] {
            last.note(others, 3_000 + long);
            last.note(Some(one), 4_000 + long);
            assert!(!last.is_only(one, 3_999 + 2 * long) && last.is_only(one, 4_000 + 2 * long));
        }
    }
}
