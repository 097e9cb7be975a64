//! Which signals of a transmit ring may wait.
//!
//! A driver asks for a signal when its frames are sent, and needs the signal for little: to free
//! memory, and to go on if it had run out of descriptors. The driver frees memory as well when it
//! sends the next frame and, in Linux, whenever it is woken to receive. So while frames flow both
//! ways the worker holds the signal (`pipeline::signals`) until the guest is signalled to receive,
//! [`TX_COALESCED_NANOS`] at most. Two interrupts become one.
//!
//! No signal waits for a driver that may be short of descriptors ([`TX_COALESCED_SLOTS`] completed
//! since it was last signalled, or an eighth of the ring), or for a socket that has much under way
//! ([`TX_COALESCED_BYTES`]). A guest that receives nothing while its signal is held does not pay
//! for the attempt again before it is woken to receive.
//!
//! *Measured* between two Linux guests (TCP, QEMU without KVM), interrupts of the sender for each
//! Mbit: 1.5 to 1.8 so, 2.3 to 2.8 where held signals leave before the worker sleeps.
//!
//! [`TX_COALESCED_NANOS`]: base::limits::TX_COALESCED_NANOS

use base::limits::{TX_COALESCED_BYTES, TX_COALESCED_SLOTS};

/// A burst of a transmit ring that was completed.
#[derive(Debug, Clone, Copy)]
pub struct Completed {
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

/// What a transmit ring completed since its driver was last signalled.
#[derive(Debug, Default)]
pub struct Moderation {
    slots: u32,
    bytes: u64,
    /// A worker holds a signal, or has held one and sent it since.
    held: bool,
    /// Signals of the receive rings at the last look.
    received: u32,
    /// The guest is woken to receive often enough.
    pays: bool,
}

impl Moderation {
    /// Adds a burst; true if a signal for what was completed may not wait.
    #[inline(always)]
    pub fn add(&mut self, burst: &Completed) -> bool {
        self.slots = self.slots.saturating_add(burst.slots);
        self.bytes = self.bytes.saturating_add(burst.bytes);
        self.slots >= TX_COALESCED_SLOTS.min(u32::from(burst.size) / 8)
            || self.bytes >= TX_COALESCED_BYTES
    }

    /// True if a worker holds a signal, or has held one and sent it since.
    #[inline(always)]
    pub fn is_held(&self) -> bool {
        self.held
    }

    /// A worker holds a signal about all that was completed.
    pub fn hold(&mut self) {
        self.held = true;
    }

    /// True if it pays to hold a signal of a guest whose receive rings were signalled `received`
    /// times: if the guest was woken since the last look, or no held signal was sent since.
    pub fn pays(&mut self, received: u32, is_sent: bool) -> bool {
        let is_woken = received != self.received;
        self.received = received;
        self.pays = is_woken || (self.pays && !is_sent);
        self.pays
    }

    /// The driver is signalled. True if a worker may still hold a signal.
    pub fn release(&mut self) -> bool {
        (self.slots, self.bytes) = (0, 0);
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BURST: Completed =
        Completed { wanted: true, slots: 1, bytes: 1000, size: 256, received: 0 };

    #[test]
    fn a_signal_for_little_may_wait() {
        let mut moderation = Moderation::default();
        for _ in 1..TX_COALESCED_SLOTS {
            assert!(!moderation.add(&BURST));
        }
        assert!(moderation.add(&BURST), "descriptors add up");
        assert!(!moderation.release(), "nothing is held");
        assert!(!moderation.add(&BURST), "and begin anew with a signal");
        moderation.hold();
        assert!(moderation.release() && !moderation.release());
    }

    #[test]
    fn a_guest_that_only_sends_does_not_pay_for_waiting() {
        let mut moderation = Moderation::default();
        assert!(!moderation.pays(0, false));
        assert!(moderation.pays(1, false), "it was woken to receive");
        assert!(moderation.pays(1, false));
        assert!(!moderation.pays(1, true), "a held signal left alone");
        assert!(!moderation.pays(1, false) && moderation.pays(2, true));
    }

    #[test]
    fn a_signal_for_much_may_not_wait() {
        for burst in [
            Completed { slots: TX_COALESCED_SLOTS, ..BURST },
            Completed { slots: 4, size: 32, ..BURST },
            Completed { bytes: TX_COALESCED_BYTES, ..BURST },
        ] {
            assert!(Moderation::default().add(&burst), "{burst:?}");
            // A burst for which no signal is wanted counts too.
            let mut moderation = Moderation::default();
            moderation.add(&Completed { wanted: false, ..burst });
            assert!(moderation.add(&Completed { slots: 1, bytes: 1, ..burst }), "{burst:?}");
        }
    }
}
