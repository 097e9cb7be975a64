//! The signals a worker owes to guests.
//!
//! Noted while rings are locked, sent at the end of the turn, once per ring: a write that wakes
//! somebody costs about 9 µs, and nothing that may sleep happens under a lock. Those of transmit
//! rings may be held back for a while (`port::moderation`), and those of a port to which they are
//! expensive (`guard::signal_cost`).

use std::cmp::Reverse;
use std::sync::{Arc, Weak};

use crate::events::{What, reason};
use crate::guard::{SignalResult, SignalSlot, Took};
use crate::limits::{SENDERS_NANOS, SHORTEST_SLEEP_NANOS, TX_COALESCED_NANOS};
use crate::port::moderation::{Completed, Notify};
use crate::port::{Eviction, Port, PortTable, TxState, Vring};
use crate::ring::{CallFd, RingError};
use crate::stats::{QueueStats, WorkerStats};
use crate::switch::PortId;
use crate::sys::clock;

/// Signals owed at the end of a turn.
pub struct Signals {
    worker: usize,
    turn: u64,
    pending: Vec<(PortId, Arc<CallFd>)>,
    /// Signals of transmit rings that wait for one of their guest's receive rings.
    coalesced: Vec<Coalesced>,
    /// Signals to ports whose last ones were slow or expensive, one of each descriptor.
    paced: Vec<(PortId, Weak<CallFd>)>,
    /// How long at most, in cycles.
    longest_coalesced: u64,
    /// Signals not wanted in this turn.
    suppressed: u64,
    /// Rings that broke and were not told of.
    broken: Vec<Broken>,
    slot: SignalSlot,
    senders: Senders,
    /// Cycles that the signals of each port took in this turn, if all together took long.
    spent: Vec<(PortId, u64)>,
}

/// Who may owe a signal, as far as is known.
#[derive(Debug, Clone, Copy)]
pub enum Owing {
    /// Some thread.
    Anyone,
    /// The thread of this number.
    Thread(usize),
    /// That thread, which stands still in this turn.
    Turn(usize, u64),
}

/// The ports that lately sent something, as bits of their numbers modulo 64.
#[derive(Debug, Default)]
struct Senders {
    /// Since `since`, and in the time before.
    now: u64,
    before: u64,
    since: u64,
}

impl Senders {
    /// Those besides port `id`, asked at cycle `now`.
    #[cold]
    fn others(&mut self, id: PortId, now: u64) -> u32 {
        let others = (self.now | self.before) & !(1 << (id % 64));
        if clock::since(self.since, now) >= clock::cycles_in(SENDERS_NANOS) {
            (self.before, self.now, self.since) = (self.now, 0, now);
        }
        others.count_ones()
    }
}

/// A ring that its driver broke.
pub struct Broken {
    /// Its port.
    pub port: PortId,
    /// The session that started it.
    pub session: u64,
    /// Its number in its device.
    pub ring: usize,
    /// The reason.
    pub error: RingError,
}

/// A transmit ring whose signal is coalesced.
struct Coalesced {
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
        Signals {
            worker,
            turn: 0,
            pending: Vec::new(),
            coalesced: Vec::new(),
            paced: Vec::new(),
            longest_coalesced: clock::cycles_in(TX_COALESCED_NANOS),
            suppressed: 0,
            broken: Vec::new(),
            slot,
            senders: Senders::default(),
            spent: Vec::new(),
        }
    }

    /// Notes that the driver of a ring wants a signal, or that it does not.
    #[inline]
    pub fn note(&mut self, id: PortId, wanted: bool, vring: &mut Vring, stats: &QueueStats) {
        match &vring.call {
            Some(call) if wanted => {
                let stamp = (self.worker + 1, self.turn);
                if vring.signalled != stamp {
                    vring.signalled = stamp;
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

    /// Takes over what another thread may owe to a transmit ring. A signal too many does no harm.
    #[cold]
    pub fn take_over_sent(
        &mut self,
        id: PortId,
        state: &mut TxState,
        stats: &QueueStats,
        owing: Owing,
    ) {
        let held_back = state.side.moderation.release(false);
        self.take_over(id, &mut state.vring, stats, if held_back { Owing::Anyone } else { owing });
    }

    /// The same of any ring.
    #[cold]
    pub fn take_over(&mut self, id: PortId, vring: &mut Vring, stats: &QueueStats, owing: Owing) {
        let (thread, turn) = vring.signalled;
        let noted = match owing {
            Owing::Anyone => true,
            Owing::Thread(number) => thread == number + 1,
            Owing::Turn(number, its) => (thread, turn) == (number + 1, its),
        };
        if vring.call.as_ref().is_some_and(|call| noted || call.waits()) {
            self.note(id, true, vring, stats);
        }
    }

    /// Notes that a port sent something.
    #[inline(always)]
    pub fn note_sender(&mut self, id: PortId) {
        self.senders.now |= 1 << (id % 64);
    }

    /// Notes what a completed burst of a transmit ring calls for, at cycle `now`.
    #[inline(always)]
    pub fn note_sent(
        &mut self,
        (id, queue): (PortId, usize),
        burst: Completed,
        state: &mut TxState,
        stats: &QueueStats,
        now: u64,
    ) {
        self.note_sender(id);
        match state.side.moderation.completed(burst) {
            Notify::Nothing => self.note(id, false, &mut state.vring, stats),
            Notify::Now => self.note(id, true, &mut state.vring, stats),
            Notify::Later => {
                let one = Coalesced { port: id, queue, since: now, received: burst.received };
                // Woken in this turn anyhow: now is as good.
                let woken = self.pending.iter().any(|(port, _)| *port == id);
                if woken || state.vring.call.is_none() {
                    state.side.moderation.release(false);
                    self.note(id, true, &mut state.vring, stats);
                } else {
                    self.coalesced.push(one);
                }
            }
        }
    }

    /// True while signals are held back.
    #[inline(always)]
    fn is_holding_back(&self) -> bool {
        !self.coalesced.is_empty() || !self.paced.is_empty()
    }

    /// True while a paced signal is due before the end of the shortest sleep there is, from cycle
    /// `now` on: the worker stays awake for it.
    #[inline(always)]
    pub fn due_soon(&self, now: u64) -> bool {
        !self.paced.is_empty() && self.any_due_soon(now)
    }

    #[cold]
    fn any_due_soon(&self, now: u64) -> bool {
        self.paced_left(now).is_some_and(|left| left < clock::cycles_in(SHORTEST_SLEEP_NANOS))
    }

    /// Cycles from cycle `now` on until the first paced signal is due.
    fn paced_left(&self, now: u64) -> Option<u64> {
        let calls = self.paced.iter().filter_map(|(_, call)| call.upgrade());
        calls.map(|call| call.wait_left(now)).min()
    }

    /// The cycle at which the first signal that is held back is due; none if there is none.
    pub fn due(&self, now: u64) -> Option<u64> {
        let longest = self.longest_coalesced;
        let coalesced = self.coalesced.iter().map(|one| one.since.saturating_add(longest)).min();
        let paced = self.paced_left(now).map(|left| now.saturating_add(left));
        coalesced.into_iter().chain(paced).min()
    }

    /// Lets go of coalesced signals whose guest is woken now, or that have waited long enough.
    #[inline(never)]
    fn release(&mut self, ports: &PortTable, now: u64) {
        let mut at = 0;
        while let Some(one) = self.coalesced.get(at) {
            let late = clock::since(one.since, now) >= self.longest_coalesced;
            let (id, index, received) = (one.port, one.queue, one.received);
            let guest = ports.get(id).and_then(Port::as_guest);
            let Some((guest, queue)) = guest.and_then(|guest| Some((guest, guest.tx.get(index)?)))
            else {
                self.coalesced.swap_remove(at);
                continue;
            };
            if !late && guest.received() == received {
                at += 1;
                continue;
            }
            // Locked by a session, or by the worker that serves the ring now: next time.
            let Some(mut state) = queue.lock_for_burst() else {
                at += 1;
                continue;
            };
            self.coalesced.swap_remove(at);
            if state.side.moderation.release(late) {
                self.note(id, true, &mut state.vring, &queue.stats);
            }
        }
    }

    /// Forgets what is owed to ports that `stays` says no to: their rings have stopped.
    #[cold]
    pub fn forget(&mut self, stays: impl Fn(PortId) -> bool) {
        self.pending.retain(|(id, _)| stays(*id));
        self.coalesced.retain(|one| stays(one.port));
        self.paced.retain(|(id, _)| stays(*id));
        self.broken.retain(|one| stays(one.port));
    }

    /// Takes a ring, number `ring` of port `id`, out of service, which its driver broke. That is
    /// told at the end of the turn, with no ring locked.
    #[cold]
    pub fn note_broken(
        &mut self,
        (id, ring): (PortId, usize),
        vring: &mut Vring,
        error: RingError,
    ) {
        vring.broken = true;
        let error = vring.ring.as_ref().map_or(error, |ring| ring.cause(error));
        self.note_error(id, vring);
        self.broken.push(Broken { port: id, session: vring.session, ring, error });
    }

    /// The rings that broke since this was last asked.
    pub fn broken(&mut self) -> impl Iterator<Item = Broken> {
        self.broken.drain(..)
    }

    /// Reports a broken ring to the front-end.
    pub fn note_error(&mut self, id: PortId, vring: &Vring) {
        self.pending.extend(vring.err.clone().map(|err| (id, err)));
    }

    /// Ends a turn at cycle `now`: sends what is owed and not held back any longer.
    #[inline]
    pub fn end_turn(&mut self, ports: &PortTable, stats: &WorkerStats, now: u64) {
        if self.is_holding_back() {
            self.release(ports, now);
        }
        self.flush(ports, stats);
    }

    /// Sends what is owed: once per ring and turn, as waking a sleeper costs about 9 µs.
    pub fn flush(&mut self, ports: &PortTable, stats: &WorkerStats) {
        if !self.paced.is_empty() {
            self.resume();
        }
        self.spent.clear();
        let mut cycles = 0;
        for at in 0..self.pending.len() {
            let (id, call) = &self.pending[at];
            if call.waits() {
                defer(&mut self.paced, *id, call);
                continue;
            }
            let sent = self.slot.signal(call);
            let took = self.slot.took();
            cycles += took.cycles;
            let harm = match sent {
                SignalResult::Sent | SignalResult::ManyWaiters => {
                    stats.signals.add(1);
                    (sent == SignalResult::ManyWaiters)
                        .then_some("its call descriptor has too many waiters")
                }
                // A full counter means the driver has a signal to read already.
                SignalResult::Full | SignalResult::Failed(_) | SignalResult::Blocked => {
                    stats.signals_failed.add(1);
                    (sent == SignalResult::Blocked)
                        .then_some("its call descriptor holds up writers")
                }
            };
            if let (Some(harm), Some(port)) = (harm, ports.get(*id)) {
                evict(port, call.owner(), harm);
            }
            if took.micros.is_some() || cycles > self.slot.long() {
                self.charge(at, took);
            }
        }
        self.pending.clear();
        if self.suppressed > 0 {
            stats.signals_suppressed.add(std::mem::take(&mut self.suppressed));
        }
        self.turn += 1;
        self.slot.step(self.turn);
    }

    /// Has the port of pending signal `at` pay for it, if it was measured. If all signals of this
    /// turn took long, and the port's together did, its next ones are.
    #[cold]
    fn charge(&mut self, at: usize, took: Took) {
        let (id, call) = &self.pending[at];
        let now = clock::cycles();
        if let Some(micros) = took.micros {
            call.cost().charge(micros, self.senders.others(*id, now), now);
        }
        let spent = match self.spent.iter_mut().find(|(port, _)| port == id) {
            Some((_, spent)) => spent,
            None => {
                self.spent.push((*id, 0));
                let last = self.spent.len() - 1;
                &mut self.spent[last].1
            }
        };
        *spent += took.cycles;
        if *spent > self.slot.long() {
            call.cost().watch(now);
        }
    }

    /// Adds the signals that have waited long enough to those of this turn. Those beyond suspicion
    /// come first, as nobody shall wait for the others; of these the most suspicious one, which is
    /// the only one of its port if it is slow again, and may be the last. Of one port the one that
    /// has waited longest comes first.
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
        self.pending.sort_by_cached_key(|(_, call)| call.suspicion().map(Reverse));
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
pub fn evict(port: &Port, session: u64, why: &str) {
    let guest = port.as_guest();
    if guest.is_some_and(|guest| guest.evict(session, Eviction::Harmful)) {
        port.tell(What::Dropped { why: reason(why) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_sent_lately_is_known_for_a_while() {
        let mut senders = Senders::default();
        let span = clock::cycles_in(SENDERS_NANOS);
        assert_eq!(senders.others(1, 0), 0);
        senders.now = 0b1110;
        assert_eq!([senders.others(1, 1), senders.others(0, 2), senders.others(65, 3)], [2, 3, 2]);
        assert_eq!(senders.others(1, span), 2);
        assert_eq!(senders.others(1, 2 * span - 1), 2, "not forgotten at once");
        assert_eq!(senders.others(1, 2 * span), 2);
        assert_eq!(senders.others(1, 2 * span + 1), 0, "but twice as long after it");
    }
}
