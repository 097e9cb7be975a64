//! Signals that a worker owes to guests.
//!
//! A signal is noted while its ring is locked and sent at the end of the turn, once per ring: a
//! write that wakes a thread costs about 9 µs, and a worker does nothing that may sleep under a
//! lock. Two kinds of signals wait longer: signals of a port with expensive notifications
//! (`guard::eventfd`), and signals that a transmit ring hardly needs.
//!
//! `port::moderation` decides which signals of transmit rings are held. The worker sends a held
//! signal when a worker signals a receive ring of the guest, at the latest after
//! [`TX_COALESCED_NANOS`], and without a lock of the transmit ring.

use std::cmp::Reverse;
use std::sync::{Arc, Weak};

use crate::guard::{SignalResult, SignalSlot, WriteCost};
use crate::port::moderation::Completed;
use crate::port::{PortTable, Tx, TxState, Vring};
use crate::ring::{CallFd, RingError};
use base::limits::{
    MAX_HELD_SIGNALS, MAX_HELD_SIGNALS_OF_PORT, SENDERS_NANOS, SHORTEST_SLEEP_NANOS,
    TX_COALESCED_NANOS,
};
use base::stats::{QueueStats, WorkerStats};
use switch::PortId;
use sys::clock;

/// Signals to send at the end of a turn.
pub struct Signals {
    worker: usize,
    turn: u64,
    /// Signals of this turn.
    pending: Pending,
    /// Signals of transmit rings that wait for another signal of the guest.
    held: HeldSignals,
    /// Signals of ports with expensive notifications.
    paced: Vec<PacedSignal>,
    /// Signals that drivers did not want in this turn.
    suppressed: u64,
    /// Broken rings that are not reported yet.
    pub(crate) broken: Vec<Broken>,
    /// Slot in which the worker announces writes and sleeps.
    pub(crate) slot: SignalSlot,
    senders: Senders,
}

/// A signal that its port may get from cycle `due` on. A replaced or closed call descriptor gets no
/// paced signal: its session signals the new descriptor.
struct PacedSignal {
    port: PortId,
    call: Weak<CallFd>,
    due: u64,
}

/// The thread that may owe a signal.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SignalHolder {
    /// Any thread.
    Anyone,
    /// The thread with this number.
    Thread(usize),
    /// The thread with this number, which is stuck in the turn with this number.
    Turn(usize, u64),
}

/// Ports that lately sent frames, as bits of their numbers modulo 64.
#[derive(Debug, Default)]
struct Senders {
    /// Ports since cycle `since`, and ports in the period before.
    now: u64,
    before: u64,
    since: u64,
}

impl Senders {
    /// Returns the number of ports other than `id`, at cycle `now`.
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
    /// Port of the ring.
    pub(crate) port: PortId,
    /// The session that started the ring.
    pub(crate) session: u64,
    /// Number of the ring in its device.
    pub(crate) ring: usize,
    /// Why the ring is broken.
    pub(crate) error: RingError,
}

impl Signals {
    /// Creates the signals of worker `worker`, whose blocked writes are watched through `slot`.
    pub(crate) fn new(worker: usize, slot: SignalSlot) -> Signals {
        Signals {
            worker,
            turn: 0,
            pending: Vec::new(),
            held: HeldSignals::default(),
            paced: Vec::new(),
            suppressed: 0,
            broken: Vec::new(),
            slot,
            senders: Senders::default(),
        }
    }

    /// Notes whether the driver of a ring wants a signal.
    #[inline]
    pub(crate) fn note(&mut self, id: PortId, wanted: bool, vring: &mut Vring, stats: &QueueStats) {
        match &vring.call {
            Some(call) if wanted => {
                let stamp = (self.worker + 1, self.turn);
                if vring.signalled != stamp {
                    vring.signalled = stamp;
                    self.pending.push((id, Arc::clone(call), 0));
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

    /// Notes a signal of a transmit ring if another thread may owe the signal. An extra signal does
    /// no harm.
    #[cold]
    pub(crate) fn take_over_sent(
        &mut self,
        id: PortId,
        state: &mut TxState,
        stats: &QueueStats,
        holder: SignalHolder,
    ) {
        let held_back = state.side.moderation.release();
        self.take_over(
            id,
            &mut state.vring,
            stats,
            if held_back { SignalHolder::Anyone } else { holder },
        );
    }

    /// Notes a signal of a ring if another thread may owe the signal. An extra signal does no harm.
    #[cold]
    pub(crate) fn take_over(
        &mut self,
        id: PortId,
        vring: &mut Vring,
        stats: &QueueStats,
        holder: SignalHolder,
    ) {
        let (thread, turn) = vring.signalled;
        let noted = match holder {
            SignalHolder::Anyone => true,
            SignalHolder::Thread(number) => thread == number + 1,
            SignalHolder::Turn(number, its) => (thread, turn) == (number + 1, its),
        };
        if vring.call.as_ref().is_some_and(|call| noted || call.waits()) {
            self.note(id, true, vring, stats);
        }
    }

    /// Notes that a port sent frames.
    #[inline(always)]
    pub(crate) fn note_sender(&mut self, id: PortId) {
        self.senders.now |= 1 << (id % 64);
    }

    /// Notes a completed burst of a transmit ring, whose driver may want a signal.
    #[inline(always)]
    pub(crate) fn note_sent(
        &mut self,
        id: PortId,
        burst: Completed,
        state: &mut TxState,
        stats: &QueueStats,
    ) {
        self.note_sender(id);
        let TxState { vring, side: Tx { moderation, .. }, .. } = state;
        let is_much = moderation.add(&burst);
        if burst.wanted || (is_much && moderation.held_by.is_some()) {
            self.note_wanted(id, &burst, is_much, state, stats);
        } else {
            self.note(id, false, vring, stats);
        }
    }

    /// Signals the driver at the end of this turn if `is_much` was completed; otherwise holds the
    /// signal if holding pays.
    fn note_wanted(
        &mut self,
        id: PortId,
        burst: &Completed,
        is_much: bool,
        state: &mut TxState,
        stats: &QueueStats,
    ) {
        let TxState { vring, side: Tx { moderation, .. }, .. } = state;
        let Some(call) = &vring.call else { return self.note(id, false, vring, stats) };
        if moderation.held_by.is_some_and(|thread| thread != self.worker) {
            // The ring moved, and the thread before may stand still. A further signal does no harm.
            moderation.release();
            return self.note(id, true, vring, stats);
        }
        let is_held = self.held.holds(call);
        // A held signal that is no longer in the list was sent: only this burst was completed
        // since.
        let is_sent = !is_held && moderation.release();
        let is_much = if is_sent { moderation.add(burst) } else { is_much };
        let pays = moderation.pays(burst.received, is_sent);
        if is_held && (is_much || !pays) {
            self.held.release(call);
            moderation.release();
            vring.signalled = (self.worker + 1, self.turn);
            add(&mut self.pending, id, Arc::clone(call));
        } else if is_held {
            // Also for a ring that was restarted with the same descriptor.
            moderation.hold(self.worker);
            self.note(id, false, vring, stats);
        } else if burst.wanted {
            // A guest that is woken in this turn anyhow is signalled with that.
            let is_woken = || self.pending.iter().any(|(port, ..)| *port == id);
            let may_wait = !is_much && pays && !is_woken();
            if may_wait && self.held.hold(id, call, burst.received) {
                moderation.hold(self.worker);
                stats.signals.add(1);
            } else {
                moderation.release();
                self.note(id, true, vring, stats);
            }
        } else {
            self.note(id, false, vring, stats);
        }
    }

    /// True if a paced signal is due within the shortest sleep after cycle `now`: the worker stays
    /// awake for this signal.
    #[inline(always)]
    pub(crate) fn due_soon(&self, now: u64) -> bool {
        let soon = || now.saturating_add(clock::cycles_in(SHORTEST_SLEEP_NANOS));
        self.paced.iter().any(|paced| paced.due < soon())
    }

    /// Returns the first cycle at which a waiting signal is due; none if no signal waits.
    pub(crate) fn due(&self) -> Option<u64> {
        let held = self.held.signals.iter().filter_map(|held| held.due);
        self.paced.iter().map(|paced| paced.due).chain(held).min()
    }

    /// Drops the signals of ports for which `stays` returns false: their rings have stopped.
    #[cold]
    pub(crate) fn forget(&mut self, stays: impl Fn(PortId) -> bool) {
        self.pending.retain(|(id, ..)| stays(*id));
        self.held.forget(&stays);
        self.paced.retain(|paced| stays(paced.port));
        self.broken.retain(|one| stays(one.port));
    }

    /// Takes ring `ring` of port `id`, which its driver broke, out of service. The report follows
    /// at the end of the turn, when no ring is locked.
    #[cold]
    pub(crate) fn note_broken(
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

    /// Notes a signal of the error descriptor of a broken ring, which tells the front-end.
    pub(crate) fn note_error(&mut self, id: PortId, vring: &Vring) {
        self.pending.extend(vring.err.clone().map(|err| (id, err, 0)));
    }

    /// Sends the signals of the turn that began at cycle `now`, and ends the turn. Each ring is
    /// signalled once a turn, since waking a sleeper costs about 9 µs.
    #[inline]
    pub(crate) fn flush(&mut self, ports: &PortTable, stats: &WorkerStats, now: u64) {
        if !self.held.signals.is_empty() {
            self.held.take_due(ports, now, &mut self.pending);
        }
        if !self.paced.is_empty() {
            self.take_due(now);
        }
        let mut cycles = 0;
        for at in 0..self.pending.len() {
            let (id, call, spent) = &mut self.pending[at];
            if call.waits() {
                pace(&mut self.paced, *id, call);
                continue;
            }
            let sent = self.slot.signal(call);
            let cost = self.slot.last_cost();
            *spent = cost.cycles;
            cycles += cost.cycles;
            let harm = match sent {
                SignalResult::Sent | SignalResult::ManyWaiters => {
                    stats.signals.add(1);
                    (sent == SignalResult::ManyWaiters)
                        .then_some("its call descriptor has too many waiters")
                }
                // With a full counter, the driver already has a signal to read.
                SignalResult::Full | SignalResult::Failed(_) | SignalResult::Blocked => {
                    stats.signals_failed.add(1);
                    (sent == SignalResult::Blocked)
                        .then_some("its call descriptor holds up writers")
                }
            };
            if let (Some(harm), Some(port)) = (harm, ports.get(*id)) {
                port.evict(call.owner(), harm);
            }
            if cost.micros.is_some() || cycles > self.slot.long() {
                self.charge(at, cost);
            }
        }
        self.pending.clear();
        if self.suppressed > 0 {
            stats.signals_suppressed.add(std::mem::take(&mut self.suppressed));
        }
        self.turn += 1;
        self.slot.presence.step(self.turn);
    }

    /// Charges the port of pending signal `at` for the measured CPU time. If the port's signals of
    /// this turn together took long, the port's next signals are measured.
    #[cold]
    fn charge(&mut self, at: usize, cost: WriteCost) {
        let (id, call, _) = &self.pending[at];
        let now = clock::cycles();
        if let Some(micros) = cost.micros {
            call.cost().charge(micros, self.senders.others(*id, now), now);
        }
        let sent = self.pending[..=at].iter().filter(|(port, ..)| port == id);
        if sent.map(|(.., spent)| spent).sum::<u64>() > self.slot.long() {
            call.watch_cost(now);
        }
    }

    /// Adds due paced signals to the signals of this turn. Ports without suspicion come first, so
    /// that they do not wait for the others; then the most suspicious port. If a signal of a
    /// suspicious port is slow again, the port's other signals are paced anew, or its session ends.
    /// Signals of equal ports keep the order in which they began to wait.
    #[inline(never)]
    fn take_due(&mut self, now: u64) {
        let pending = &mut self.pending;
        let before = self.paced.len();
        self.paced.retain(|paced| {
            let Some(call) = paced.call.upgrade() else { return false };
            let is_due = now >= paced.due;
            if is_due {
                add(pending, paced.port, call);
            }
            !is_due
        });
        if self.paced.len() < before {
            pending.sort_by_cached_key(|(_, call, _)| call.suspicion().map(Reverse));
        }
    }
}

/// The signals that one worker holds back. A replaced or closed call descriptor gets no held
/// signal: its session signals the new descriptor.
struct HeldSignals {
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
    /// True if a signal of `call` is held.
    fn holds(&self, call: &Arc<CallFd>) -> bool {
        self.signals.iter().any(|held| is_same(&held.call, call))
    }

    /// Holds a signal of a port whose receive rings were signalled `received` times; false if too
    /// many signals are held already, of all ports or of this one.
    fn hold(&mut self, port: PortId, call: &Arc<CallFd>, received: u32) -> bool {
        let of_port = || self.signals.iter().filter(|held| held.port == port).count();
        let has_room =
            self.signals.len() < MAX_HELD_SIGNALS && of_port() < MAX_HELD_SIGNALS_OF_PORT;
        if has_room {
            self.signals.push(HeldSignal { port, call: Arc::downgrade(call), received, due: None });
        }
        has_room
    }

    /// Drops the held signal of `call`.
    fn release(&mut self, call: &Arc<CallFd>) {
        self.signals.retain(|held| !is_same(&held.call, call));
    }

    /// Drops the signals of ports for which `stays` returns false.
    fn forget(&mut self, stays: impl Fn(PortId) -> bool) {
        self.signals.retain(|held| stays(held.port));
    }

    /// Adds due signals to `pending` in the turn of cycle `now`: signals of guests whose receive
    /// rings were signalled, and signals that have been held for the longest time allowed.
    #[inline(never)]
    fn take_due(&mut self, ports: &PortTable, now: u64, pending: &mut Pending) {
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
}

/// Signals of a turn: port, call descriptor, and the cycles that the write took.
type Pending = Vec<(PortId, Arc<CallFd>, u64)>;

/// Adds a signal to the signals of a turn, once per call descriptor.
fn add(pending: &mut Pending, port: PortId, call: Arc<CallFd>) {
    if !pending.iter().any(|(_, other, _)| Arc::ptr_eq(other, &call)) {
        pending.push((port, call, 0));
    }
}

/// True if `one` refers to the call descriptor `call`.
fn is_same(one: &Weak<CallFd>, call: &Arc<CallFd>) -> bool {
    std::ptr::eq(one.as_ptr(), Arc::as_ptr(call))
}

/// Keeps a signal until its port may be signalled again.
#[cold]
fn pace(paced: &mut Vec<PacedSignal>, port: PortId, call: &Arc<CallFd>) {
    if !paced.iter().any(|paced| is_same(&paced.call, call)) {
        let now = clock::cycles();
        let due = now.saturating_add(call.wait_left(now));
        paced.push(PacedSignal { port, call: Arc::downgrade(call), due });
    }
}

#[cfg(test)]
mod tests;
