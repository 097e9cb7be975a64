//! When a guest is signalled for what it sent.
//!
//! A driver asks for a signal when its frames are sent, and needs it for little: to free memory,
//! and to go on if it had run out of descriptors. It frees memory as well when it sends the next
//! frame and, in Linux, whenever it is woken to receive. So while frames flow both ways, the signal
//! of a transmit ring is *coalesced*: it leaves together with the next one of the guest's receive
//! rings, and two interrupts become one.
//!
//! It does not wait for long: not for a driver that may be short of descriptors
//! ([`TX_COALESCED_SLOTS`] completed since it was last signalled, or an eighth of the ring), not
//! for a socket that has much under way ([`TX_COALESCED_BYTES`]), and never longer than
//! [`TX_COALESCED_NANOS`]. A guest that is not woken to receive in that time does not pay for the
//! attempt again before it is.
//!
//! The worker keeps what is held back (`pipeline::signals`) and needs no ring's lock to send it:
//! the ring finds by the same two signs, at its next burst, that it was sent. Where the signal goes
//! to another descriptor or the ring to another worker, it is released first.
//!
//! *Measured* between two Linux guests (TCP, QEMU without KVM): the sender's interrupts fell from
//! 3,000 to less than 1,500 a second, and the median rate rose from 1.06 to 1.49 Gbit/s (6 and 16
//! runs).
//!
//! [`TX_COALESCED_NANOS`]: base::limits::TX_COALESCED_NANOS

use base::limits::{TX_COALESCED_BYTES, TX_COALESCED_SLOTS};

/// What a completed burst calls for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notify {
    /// The driver wants no signal, or one is held back already.
    Nothing,
    /// A signal at the end of the turn.
    Now,
    /// A signal with the next one of the guest's receive rings.
    Later,
}

/// A burst that was completed.
#[derive(Debug, Clone, Copy)]
pub struct Completed {
    /// At this cycle.
    pub now: u64,
    /// The driver wants a signal.
    pub wanted: bool,
    /// Descriptors given back, those of indirect tables not counted.
    pub slots: u32,
    /// Bytes of its frames.
    pub bytes: u64,
    /// Descriptors of the ring.
    pub size: u16,
    /// Signals of the guest's receive rings so far.
    pub received: u32,
}

/// What is known of one transmit ring's signals.
#[derive(Debug, Default)]
pub struct Moderation {
    /// Completed since the driver was last signalled.
    slots: u32,
    bytes: u64,
    /// A signal is held back until this cycle, or one of the receive rings; 0 if none is.
    until: u64,
    /// Signals of the receive rings when last looked at.
    received: u32,
    /// The guest is woken to receive often enough.
    pays: bool,
}

impl Moderation {
    /// True if a signal was held back until now, as its worker finds too: it has sent it, or does
    /// so at the end of this turn.
    #[inline(always)]
    pub fn is_over(&mut self, burst: &Completed) -> bool {
        let received = burst.received != self.received;
        let over = self.until != 0 && (received || burst.now >= self.until);
        if over {
            self.release();
            self.pays = received;
        }
        over
    }

    /// Decides about a burst.
    #[inline(always)]
    pub fn completed(&mut self, burst: &Completed) -> Notify {
        self.slots = self.slots.saturating_add(burst.slots);
        self.bytes = self.bytes.saturating_add(burst.bytes);
        if burst.wanted || self.until != 0 { self.decide(burst) } else { Notify::Nothing }
    }

    fn decide(&mut self, burst: &Completed) -> Notify {
        self.pays |= burst.received != self.received;
        self.received = burst.received;
        let much = self.slots >= TX_COALESCED_SLOTS.min(u32::from(burst.size) / 8);
        if !self.pays || much || self.bytes >= TX_COALESCED_BYTES {
            self.release();
            return Notify::Now;
        }
        if self.until != 0 { Notify::Nothing } else { Notify::Later }
    }

    /// The signal that a burst calls for later is held back for so many cycles at most; until when.
    pub fn hold(&mut self, burst: &Completed, longest: u64) -> u64 {
        self.until = burst.now.saturating_add(longest).max(1);
        self.until
    }

    /// The driver is signalled: nothing is held back any more. True if something may have been.
    pub fn release(&mut self) -> bool {
        let held = self.until != 0;
        (self.slots, self.bytes, self.until) = (0, 0, 0);
        held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BURST: Completed =
        Completed { now: 50, wanted: true, slots: 1, bytes: 1000, size: 256, received: 0 };
    const LONGEST: u64 = 100;

    impl Moderation {
        /// What a burst calls for, which is done.
        fn sees(&mut self, burst: Completed) -> Notify {
            self.is_over(&burst);
            let notify = self.completed(&burst);
            if notify == Notify::Later {
                self.hold(&burst, LONGEST);
            }
            notify
        }
    }

    /// One whose guest was woken to receive since the ring started.
    fn paying() -> Moderation {
        let mut moderation = Moderation { received: 7, ..Moderation::default() };
        assert_eq!(moderation.sees(BURST), Notify::Later);
        assert!(moderation.release());
        moderation
    }

    #[test]
    fn a_guest_that_only_sends_is_signalled_at_once() {
        let mut moderation = Moderation::default();
        for _ in 0..100 {
            assert_eq!(moderation.sees(BURST), Notify::Now);
            assert!(!moderation.release());
        }
    }

    #[test]
    fn a_guest_that_receives_too_is_signalled_with_that() {
        let mut moderation = paying();
        for received in 0..100 {
            let burst = Completed { received, ..BURST };
            assert_eq!(moderation.sees(burst), Notify::Later);
            // The driver's wish was passed, and is not repeated before it is signalled.
            let next = Completed { wanted: false, ..burst };
            assert_eq!(moderation.sees(next), Notify::Nothing);
        }
    }

    #[test]
    fn a_late_one_is_the_last_until_the_guest_is_woken_again() {
        let mut moderation = paying();
        assert_eq!(moderation.sees(BURST), Notify::Later);
        let before = Completed { now: BURST.now + LONGEST - 1, ..BURST };
        assert_eq!(moderation.sees(before), Notify::Nothing);
        let late = Completed { now: BURST.now + LONGEST, ..BURST };
        assert_eq!(moderation.sees(late), Notify::Now);
        assert_eq!(moderation.sees(Completed { received: 1, ..late }), Notify::Later);
    }

    #[test]
    fn much_is_not_held_back() {
        for burst in [
            Completed { slots: TX_COALESCED_SLOTS, ..BURST },
            Completed { slots: 4, size: 32, ..BURST },
            Completed { bytes: TX_COALESCED_BYTES, ..BURST },
        ] {
            assert_eq!(paying().sees(burst), Notify::Now, "{burst:?}");
            // What was completed before counts, asked for or not.
            let mut moderation = paying();
            let before = Completed { wanted: false, ..burst };
            assert_eq!(moderation.sees(before), Notify::Nothing);
            let small = Completed { slots: 1, bytes: 1, ..burst };
            assert_eq!(moderation.sees(small), Notify::Now, "{burst:?}");
            // And so does what comes while one is held.
            let mut moderation = paying();
            assert_eq!(moderation.sees(small), Notify::Later);
            assert_eq!(moderation.sees(before), Notify::Now, "{burst:?}");
            assert!(!moderation.release());
        }
    }
}
