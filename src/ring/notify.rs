//! Notifications in both directions (virtio 1.2 sections 2.7.7 and 2.7.10).
//!
//! Kicks are suppressed while a worker looks at a ring anyway. Going to sleep is: enable kicks, a
//! full fence, look again. Without the second look a frame made available between the last look
//! and the enabling would wait for ever: the driver saw kicks disabled, we saw the ring empty.
//!
//! Signals are decided once per published burst and sent once per turn by the worker.

use super::split::SplitRing;
pub use crate::guard::CallFd;

/// `VIRTQ_USED_F_NO_NOTIFY`
const USED_F_NO_NOTIFY: u16 = 1;
/// `VIRTQ_AVAIL_F_NO_INTERRUPT`
const AVAIL_F_NO_INTERRUPT: u16 = 1;

/// Section 2.7.10: true if an index that moved from `old` to `new` passed `event`.
#[inline(always)]
fn passed(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

impl SplitRing {
    /// Tells the driver not to kick. With EVENT_IDX there is nothing to do: avail_event stays
    /// behind, so the driver's index does not pass it again for 65,535 buffers.
    pub fn suppress_kicks(&mut self) {
        if !self.event_idx {
            self.store_used_flags(USED_F_NO_NOTIFY);
        }
    }

    /// Asks for a kick at the next buffer and looks again; true if there is one already, and then
    /// the caller must not sleep.
    #[must_use]
    pub fn enable_kicks(&mut self) -> bool {
        // Both stores end in a full fence, so the load below cannot be satisfied before the driver
        // can see the request: either it sees the request and kicks, or we see its buffer.
        if self.event_idx {
            self.store_avail_event(self.next_avail);
        } else {
            self.store_used_flags(0);
        }
        self.load_avail_idx() != self.next_avail
    }

    /// As [`SplitRing::enable_kicks`], for buffers behind all those that were seen already.
    #[must_use]
    pub fn enable_kicks_behind(&mut self) -> bool {
        let seen = self.avail_seen;
        if self.event_idx {
            self.store_avail_event(seen);
        } else {
            self.store_used_flags(0);
        }
        self.load_avail_idx() != seen
    }

    /// Makes everything pushed since the last call visible to the driver; true if the driver wants
    /// to be signalled for it.
    pub fn publish(&mut self) -> bool {
        let (old, new) = (self.published, self.next_used);
        if old == new {
            return false;
        }
        if self.log.is_some() {
            self.mark_used_elements(old);
        }
        self.store_used_idx(new);
        self.published = new;
        if self.log.is_some() {
            // After the store: a mark taken before it would let the old index migrate.
            self.mark_used(2, 2);
        }
        if self.force_signal {
            self.force_signal = false;
            return true;
        }
        if self.event_idx {
            passed(self.load_used_event(), new, old)
        } else {
            self.load_avail_flags() & AVAIL_F_NO_INTERRUPT == 0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::passed;

    /// Section 2.7.10.1: notify when the index that the event names has been written.
    #[test]
    fn event_index_arithmetic() {
        assert!(passed(0, 1, 0));
        assert!(!passed(1, 1, 0));
        assert!(passed(3, 8, 2));
        assert!(!passed(8, 8, 2));
        assert!(!passed(1, 8, 2));
        assert!(passed(65_535, 0, 65_535));
        assert!(passed(65_535, 2, 65_534));
        assert!(!passed(2, 2, 65_534));
    }
}
