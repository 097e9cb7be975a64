//! Signals of transmit rings that their worker holds.
//!
//! A held signal leaves when a receive ring of its guest is signalled, by whichever worker, at the
//! latest after [`TX_COALESCED_NANOS`]. `port::moderation` decides which signals are held. The
//! worker sends them without a lock of their rings.

use std::sync::{Arc, Weak};

use super::{Pending, add, is_same};
use crate::port::PortTable;
use crate::ring::CallFd;
use base::limits::{MAX_HELD_SIGNALS, TX_COALESCED_NANOS};
use switch::PortId;
use sys::clock;

/// The signals that one worker holds. A descriptor that is replaced or closed meanwhile is not
/// signalled any more: its session signals the next one.
pub(super) struct HeldSignals {
    signals: Vec<HeldSignal>,
    /// [`TX_COALESCED_NANOS`] in cycles.
    longest: u64,
}

struct HeldSignal {
    port: PortId,
    call: Weak<CallFd>,
    /// Signals of the guest's receive rings when the signal was held.
    received: u32,
    /// The cycle at which the signal leaves at the latest; none before its turn ends.
    due: Option<u64>,
}

impl Default for HeldSignals {
    fn default() -> HeldSignals {
        let longest = clock::cycles_in(TX_COALESCED_NANOS);
        HeldSignals { signals: Vec::new(), longest }
    }
}

impl HeldSignals {
    /// True if none is held.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.signals.is_empty()
    }

    /// True if a signal of that descriptor is held.
    pub fn holds(&self, call: &Arc<CallFd>) -> bool {
        self.signals.iter().any(|held| is_same(&held.call, call))
    }

    /// Holds a signal of a port whose receive rings were signalled `received` times; false if too
    /// many signals are held already.
    pub fn hold(&mut self, port: PortId, call: &Arc<CallFd>, received: u32) -> bool {
        let has_room = self.signals.len() < MAX_HELD_SIGNALS;
        if has_room {
            self.signals.push(HeldSignal { port, call: Arc::downgrade(call), received, due: None });
        }
        has_room
    }

    /// Holds the signal of that descriptor no longer.
    pub fn release(&mut self, call: &Arc<CallFd>) {
        self.signals.retain(|held| !is_same(&held.call, call));
    }

    /// Forgets the signals of ports that `stays` says no to.
    pub fn forget(&mut self, stays: impl Fn(PortId) -> bool) {
        self.signals.retain(|held| stays(held.port));
    }

    /// Adds to the signals of the turn of cycle `now` those whose guests are woken to receive, and
    /// those that are held for long.
    #[inline(never)]
    pub fn take_due(&mut self, ports: &PortTable, now: u64, pending: &mut Pending) {
        let longest = self.longest;
        self.signals.retain_mut(|held| {
            let is_late = now >= *held.due.get_or_insert(now.saturating_add(longest));
            let Some(call) = held.call.upgrade() else { return false };
            let received = ports.guest(held.port).map(|(_, guest)| guest.received());
            let is_due = is_late || received != Some(held.received);
            if is_due {
                add(pending, held.port, call);
            }
            !is_due
        });
    }

    /// The cycle at which the first one leaves at the latest; none if none is held.
    pub fn due(&self) -> Option<u64> {
        self.signals.iter().filter_map(|held| held.due).min()
    }
}
