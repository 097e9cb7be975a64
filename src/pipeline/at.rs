//! Whose memory a worker is at.
//!
//! A burst touches its sender's memory and that of its receivers, mostly in one copy. Each worker
//! says whose it is, one store a burst and one a run, so that another thread knows whom to keep
//! away from while that worker waits there. What completes a burst counts as its last receiver's,
//! too.

use crate::guard::NOWHERE;
use crate::switch::PortId;

/// The ports whose memory a worker is at: that of a burst's sender, that of a receiver, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct At(pub [u32; 2]);

impl At {
    /// At no guest's.
    pub const NOTHING: At = At([NOWHERE; 2]);

    /// At that of the guest that sends, or whose ring is looked at. A port without memory may be
    /// named too.
    #[inline(always)]
    pub fn sender(id: PortId) -> At {
        At([id.into(), NOWHERE])
    }

    /// And at that of a guest that receives.
    #[inline(always)]
    pub fn and(self, receiver: PortId) -> At {
        At([self.0[0], receiver.into()])
    }

    /// The ports, each once.
    pub fn ports(self) -> impl Iterator<Item = PortId> {
        let [sender, receiver] = self.0;
        let receiver = if receiver == sender { NOWHERE } else { receiver };
        [sender, receiver].into_iter().filter_map(|port| port.try_into().ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_named_once() {
        let named = |at: At| at.ports().collect::<Vec<_>>();
        assert!(named(At::NOTHING).is_empty());
        assert_eq!(named(At::sender(0)), [0]);
        assert_eq!(named(At::NOTHING.and(PortId::MAX)), [PortId::MAX]);
        assert_eq!(named(At::sender(3).and(0)), [3, 0]);
        assert_eq!(named(At::sender(3).and(3)), [3]);
    }
}
