//! Signals of transmit rings that their worker holds.
//!
//! A held signal leaves when a receive ring of its guest is signalled, by whichever worker, at the
//! latest [`TX_COALESCED_NANOS`] after the oldest one was held. `port::moderation` decides which
//! signals are held. The worker sends them without a lock of their rings.

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
    /// The cycle of the turn in which the oldest one was held; none before the turn ends.
    since: Option<u64>,
    /// [`TX_COALESCED_NANOS`] in cycles.
    longest: u64,
}

struct HeldSignal {
    port: PortId,
    call: Weak<CallFd>,
    /// Signals of the guest's receive rings when the signal was held.
    received: u32,
}

impl Default for HeldSignals {
    fn default() -> HeldSignals {
        let longest = clock::cycles_in(TX_COALESCED_NANOS);
        HeldSignals { signals: Vec::new(), since: None, longest }
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
            self.signals.push(HeldSignal { port, call: Arc::downgrade(call), received });
        }
        has_room
    }

    /// Holds the signal of that descriptor no longer.
    pub fn release(&mut self, call: &Arc<CallFd>) {
        self.signals.retain(|held| !is_same(&held.call, call));
        if self.signals.is_empty() {
            self.since = None;
        }
    }

    /// Forgets the signals of ports that `stays` says no to.
    pub fn forget(&mut self, stays: impl Fn(PortId) -> bool) {
        self.signals.retain(|held| stays(held.port));
        if self.signals.is_empty() {
            self.since = None;
        }
    }

    /// Adds to the signals of the turn of cycle `now` those whose guests are woken to receive, or
    /// all if the oldest one is held for long.
    #[inline(never)]
    pub fn take_due(&mut self, ports: &PortTable, now: u64, pending: &mut Pending) {
        let is_late = clock::since(*self.since.get_or_insert(now), now) >= self.longest;
        self.signals.retain(|held| {
            let Some(call) = held.call.upgrade() else { return false };
            let received = ports.guest(held.port).map(|(_, guest)| guest.received());
            let is_due = is_late || received != Some(held.received);
            if is_due {
                add(pending, held.port, call);
            }
            !is_due
        });
        if self.signals.is_empty() {
            self.since = None;
        }
    }

    /// The cycle at which all leave; none if none is held.
    pub fn due(&self) -> Option<u64> {
        self.since.map(|since| since.saturating_add(self.longest))
    }
}
