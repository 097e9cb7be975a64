//! The signals a worker owes to guests.
//!
//! Noted while rings are locked, sent at the end of the turn, once per ring: a write that wakes
//! somebody costs about 9 µs, and nothing that may sleep happens under a lock. Those of transmit
//! rings may be held back for a while (`port::moderation`).

use std::cmp::Reverse;
use std::sync::{Arc, Weak};

use super::WorkerStats;
use crate::limits::HELD_NANOS;
use crate::port::moderation::{Completed, Tell};
use crate::port::{Eviction, Port, RingState};
use crate::ring::CallFd;
use crate::stats::QueueStats;
use crate::switch::PortId;
use crate::sys::clock;
use crate::sys::eventfd::{SignalResult, SignalSlot};

/// Signals owed at the end of a turn.
pub struct Signals {
    worker: usize,
    turn: u64,
    pending: Vec<(PortId, Arc<CallFd>)>,
    /// Signals of transmit rings that wait for one of their guest's receive rings.
    held: Vec<Held>,
    /// Signals to ports whose last one was dear (`sys::signal_cost`), one of each descriptor.
    paced: Vec<(PortId, Weak<CallFd>)>,
    /// How long at most, in cycles.
    patience: u64,
    /// Signals not wanted in this turn.
    suppressed: u64,
    slot: SignalSlot,
}

/// A transmit ring whose signal is held back.
struct Held {
    port: PortId,
    queue: usize,
    /// The cycle from which on.
    since: u64,
    /// Signals of the guest's receive rings then.
    received: u32,
}

impl Signals {
    /// For worker `worker`, whose blocked writes are watched through `slot`.
    pub fn new(worker: usize, slot: SignalSlot) -> Signals {
        let patience = clock::cycles_in(HELD_NANOS);
        let (pending, held, paced) = (Vec::new(), Vec::new(), Vec::new());
        Signals { worker, turn: 0, pending, held, paced, patience, suppressed: 0, slot }
    }

    /// Notes that the driver of a ring wants a signal, or that it does not.
    #[inline]
    pub fn note(&mut self, id: PortId, wanted: bool, state: &mut RingState, stats: &QueueStats) {
        match &state.call {
            Some(call) if wanted => {
                let stamp = (self.worker + 1, self.turn);
                if state.signalled != stamp {
                    state.signalled = stamp;
                    self.pending.push((id, Arc::clone(call)));
                    stats.signals.add(1);
                }
            }
            // Without a call descriptor the driver polls.
            _ => {
                stats.signals_suppressed.add(1);
                self.suppressed += 1;
            }
        }
    }

    /// Notes what a completed burst of a transmit ring calls for, at cycle `now`.
    #[inline(always)]
    pub fn note_sent(
        &mut self,
        (id, queue): (PortId, usize),
        burst: Completed,
        state: &mut RingState,
        stats: &QueueStats,
        now: u64,
    ) {
        match state.moderation.completed(burst) {
            Tell::Nothing => self.note(id, false, state, stats),
            Tell::Now => self.note(id, true, state, stats),
            Tell::Later => {
                let held = Held { port: id, queue, since: now, received: burst.received };
                // Woken in this turn anyhow: now is as good.
                let woken = self.pending.iter().any(|(port, _)| *port == id);
                if woken || state.call.is_none() {
                    state.moderation.release(false);
                    self.note(id, true, state, stats);
                } else {
                    self.held.push(held);
                }
            }
        }
    }

    /// True while signals are held back, for which the worker must not sleep for good.
    #[inline(always)]
    pub fn holds(&self) -> bool {
        !self.held.is_empty() || !self.paced.is_empty()
    }

    /// Lets go of held signals whose guest is woken now, or that were held long enough.
    #[inline(never)]
    fn release(&mut self, ports: &[Port], now: u64) {
        let mut at = 0;
        while let Some(held) = self.held.get(at) {
            let late = clock::since(held.since, now) >= self.patience;
            let (id, index, received) = (held.port, held.queue, held.received);
            let guest = ports[usize::from(id)].as_guest();
            let Some((guest, queue)) = guest.and_then(|guest| Some((guest, guest.tx.get(index)?)))
            else {
                self.held.swap_remove(at);
                continue;
            };
            if !late && guest.received() == received {
                at += 1;
                continue;
            }
            self.held.swap_remove(at);
            // No other lock is held here. A session has it for moments only.
            let mut state = queue.lock();
            if state.moderation.release(late) {
                self.note(id, true, &mut state, &queue.stats);
            }
        }
    }

    /// Reports a broken ring to the front-end.
    pub fn note_error(&mut self, id: PortId, state: &RingState) {
        self.pending.extend(state.err.clone().map(|err| (id, err)));
    }

    /// Ends a turn at cycle `now`: sends what is owed and not held back any longer.
    #[inline]
    pub fn end_turn(&mut self, ports: &[Port], stats: &WorkerStats, now: u64) {
        if self.holds() {
            self.release(ports, now);
        }
        self.flush(ports, stats);
    }

    /// Sends what is owed: once per ring and turn, as waking a sleeper costs about 9 µs.
    pub fn flush(&mut self, ports: &[Port], stats: &WorkerStats) {
        if !self.paced.is_empty() {
            self.resume();
        }
        for (id, call) in self.pending.drain(..) {
            if call.waits() {
                defer(&mut self.paced, id, &call);
                continue;
            }
            match self.slot.signal(&call) {
                SignalResult::Sent => stats.signals.add(1),
                // A full counter means the driver has a signal to read already.
                SignalResult::Full | SignalResult::Failed(_) => stats.signals_failed.add(1),
                SignalResult::Blocked => {
                    stats.signals_failed.add(1);
                    evict(
                        &ports[usize::from(id)],
                        call.owner(),
                        "its call descriptor holds up writers",
                    );
                }
                SignalResult::Crowded => {
                    stats.signals.add(1);
                    evict(
                        &ports[usize::from(id)],
                        call.owner(),
                        "its call descriptor has a crowd of pollers",
                    );
                }
            }
        }
        if self.suppressed > 0 {
            stats.signals_suppressed.add(std::mem::take(&mut self.suppressed));
        }
        self.turn += 1;
    }

    /// Adds the signals that have waited long enough to those of this turn. Those beyond suspicion
    /// come first, as nobody shall wait for the others; of these the most suspicious one, which is
    /// the only one of its port if it is dear again, and may be the last.
    #[cold]
    fn resume(&mut self) {
        let pending = &mut self.pending;
        self.paced.retain(|(id, call)| match call.upgrade() {
            Some(call) if call.waits() => true,
            Some(call) => {
                if !pending.iter().any(|(_, other)| Arc::ptr_eq(other, &call)) {
                    pending.push((*id, call));
                }
                false
            }
            None => false,
        });
        self.pending.sort_unstable_by_key(|(_, call)| call.suspicion().map(Reverse));
    }

    /// The slot, for the worker's sleep.
    pub fn slot(&self) -> &SignalSlot {
        &self.slot
    }
}

/// Keeps a signal for later. A descriptor that is replaced or closed meanwhile is signalled no
/// more: its session signals the next one.
#[cold]
fn defer(paced: &mut Vec<(PortId, Weak<CallFd>)>, id: PortId, call: &Arc<CallFd>) {
    if !paced.iter().any(|(_, other)| std::ptr::eq(other.as_ptr(), Arc::as_ptr(call))) {
        paced.push((id, Arc::downgrade(call)));
    }
}

/// Ends the conversation of a front-end that holds up others.
fn evict(port: &Port, session: u64, why: &str) {
    let guest = port.as_guest();
    if guest.is_some_and(|guest| guest.evict(session, Eviction::Harmful)) && port.log.allow() {
        log::warn!("port {}: front-end dropped: {why}", port.name);
    }
}
