//! Kicks of receive rings.

use std::sync::MutexGuard;

use super::Worker;
use crate::port::{Awaited, GuestPort, Port, RxState};
use crate::ring::SplitRing;

impl Worker {
    /// Wakes other workers that wait for what this one was told of.
    pub(super) fn wake(&self, waiting: Awaited) {
        for (index, handle) in self.reserves.threads().iter().enumerate() {
            if index != self.index && waiting.has(index) {
                let _ = handle.wake.write(1);
            }
        }
    }
}

/// A guest posted buffers to its receive queue: it can take frames from now on. Kicks stay
/// suppressed while it has held buffers, as nobody waits for more. Who has waited for these.
pub(super) fn receive_kick(
    port: &Port,
    guest: &GuestPort,
    index: usize,
    mut state: MutexGuard<'_, RxState>,
    kicked: bool,
) -> Awaited {
    let mut waiting = Awaited::default();
    guest.rx[index].stats.kicks.add(kicked.into());
    let suspicious = kicked && never_moves(&mut state);
    let RxState { vring, side, .. } = &mut *state;
    if let Some(ring) = vring.running()
        && (ring.has_work() || ring.enable_kicks())
    {
        ring.suppress_kicks();
        guest.set_active(index, true);
        waiting = std::mem::take(&mut side.awaited);
    }
    drop(state);
    if suspicious {
        complain(port);
    }
    waiting
}

/// A receive queue kicked without a single buffer since the start means that the guest writes to
/// other memory than we read: a front-end with private memory fails in no other visible way. Every
/// driver kicks it after its first buffers. Kicks of an empty transmit queue mean nothing: DPDK
/// makes one at each start (22.11, `virtio_dev_start`). True once per start.
fn never_moves(state: &mut RxState) -> bool {
    if state.side.stale_kicks > 0 {
        state.side.stale_kicks -= 1;
        return false;
    }
    state.vring.ring.as_mut().is_some_and(SplitRing::never_moved)
}

/// Logs; not to be called with a ring's lock held.
fn complain(port: &Port) {
    if port.log.allow() {
        log::warn!(
            "port {}: the guest kicks but its available ring never moves: is its memory shared \
             (QEMU: memory-backend-memfd with share=on)?",
            port.name
        );
    }
}
