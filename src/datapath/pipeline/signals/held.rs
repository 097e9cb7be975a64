//! Signals of transmit rings that a worker holds back.
//!
//! The worker sends a held signal when a worker signals a receive ring of the guest, at the latest
//! after [`TX_COALESCED_NANOS`]. `port::moderation` decides which signals are held. The worker
//! sends held signals without a lock of their rings.

use std::sync::{Arc, Weak};

use super::{Pending, add, is_same};
use crate::port::PortTable;
use crate::ring::CallFd;
use base::limits::{MAX_HELD_SIGNALS, MAX_HELD_SIGNALS_OF_PORT, TX_COALESCED_NANOS};
use switch::PortId;
use sys::clock;

/// The signals that one worker holds back. A replaced or closed call descriptor gets no held
/// signal: its session signals the new descriptor.
pub(super) struct HeldSignals {
    signals: Vec<HeldSignal>,
    /// [`TX_COALESCED_NANOS`] in cycles.
    longest: u64,
}

struct HeldSignal {
    port: PortId,
    call: Weak<CallFd>,
    /// Number of signals of the guest's receive rings when the signal was held.
    received: u32,
    /// Latest cycle for sending the signal; none before the end of its turn.
    due: Option<u64>,
}

impl Default for HeldSignals {
    fn default() -> HeldSignals {
        let longest = clock::cycles_in(TX_COALESCED_NANOS);
        HeldSignals { signals: Vec::new(), longest }
    }
}

impl HeldSignals {
    /// True if no signal is held.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.signals.is_empty()
    }

    /// True if a signal of `call` is held.
    pub(crate) fn holds(&self, call: &Arc<CallFd>) -> bool {
        self.signals.iter().any(|held| is_same(&held.call, call))
    }

    /// Holds a signal of a port whose receive rings were signalled `received` times; false if too
    /// many signals are held already, of all ports or of this one.
    pub(crate) fn hold(&mut self, port: PortId, call: &Arc<CallFd>, received: u32) -> bool {
        let of_port = || self.signals.iter().filter(|held| held.port == port).count();
        let has_room =
            self.signals.len() < MAX_HELD_SIGNALS && of_port() < MAX_HELD_SIGNALS_OF_PORT;
        if has_room {
            self.signals.push(HeldSignal { port, call: Arc::downgrade(call), received, due: None });
        }
        has_room
    }

    /// Drops the held signal of `call`.
    pub(crate) fn release(&mut self, call: &Arc<CallFd>) {
        self.signals.retain(|held| !is_same(&held.call, call));
    }

    /// Drops the signals of ports for which `stays` returns false.
    pub(crate) fn forget(&mut self, stays: impl Fn(PortId) -> bool) {
        self.signals.retain(|held| stays(held.port));
    }

    /// Adds due signals to `pending` in the turn of cycle `now`: signals of guests whose receive
    /// rings were signalled, and signals that have been held for the longest time allowed.
    #[inline(never)]
    pub(crate) fn take_due(&mut self, ports: &PortTable, now: u64, pending: &mut Pending) {
        let longest = self.longest;
        self.signals.retain_mut(|held| {
            let is_late = now >= *held.due.get_or_insert(now.saturating_add(longest));
            let received = ports.guest(held.port).map(|(_, guest)| guest.received());
            let is_due = is_late || received != Some(held.received);
            if let (true, Some(call)) = (is_due, held.call.upgrade()) {
                add(pending, held.port, call);
            }
            !is_due
        });
    }

    /// Returns the first cycle at which a held signal must be sent; none if no signal is held.
    pub(crate) fn due(&self) -> Option<u64> {
        self.signals.iter().filter_map(|held| held.due).min()
    }
}
