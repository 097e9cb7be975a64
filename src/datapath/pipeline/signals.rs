//! The signals a worker owes to guests.
//!
//! Noted while rings are locked, sent at the end of the turn, once per ring: a write that wakes a
//! thread costs about 9 µs, and nothing that may sleep happens under a lock. Two kinds wait: those
//! that transmit rings need for little (`held`), and those of a port to which they are expensive
//! (`guard::signal_cost`).

mod held;

use std::cmp::Reverse;
use std::sync::{Arc, Weak};

use self::held::HeldSignals;
use crate::events::{What, reason};
use crate::guard::{SignalResult, SignalSlot, Took};
use crate::port::moderation::Completed;
use crate::port::{Eviction, Port, PortTable, Tx, TxState, Vring};
use crate::ring::{CallFd, RingError};
use base::limits::{SENDERS_NANOS, SHORTEST_SLEEP_NANOS};
use base::stats::{QueueStats, WorkerStats};
use switch::PortId;
use sys::clock;

/// Signals owed at the end of a turn.
pub struct Signals {
    worker: usize,
    turn: u64,
    /// Those of this turn.
    pending: Pending,
    /// Those of transmit rings that wait for another signal of their guests.
    held: HeldSignals,
    /// Those of ports to which signals are expensive.
    paced: Vec<PacedSignal>,
    /// Signals not wanted in this turn.
    suppressed: u64,
    /// Rings that broke and were not reported.
    broken: Vec<Broken>,
    slot: SignalSlot,
    senders: Senders,
}

/// A signal that its port may have from cycle `due` on. A descriptor that is replaced or closed
/// meanwhile is not signalled any more: its session signals the next one.
struct PacedSignal {
    port: PortId,
    call: Weak<CallFd>,
    due: u64,
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

impl Signals {
    /// For worker `worker`, whose blocked writes are watched through `slot`.
    pub fn new(worker: usize, slot: SignalSlot) -> Signals {
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

    /// Notes that the driver of a ring wants a signal, or that it does not.
    #[inline]
    pub fn note(&mut self, id: PortId, wanted: bool, vring: &mut Vring, stats: &QueueStats) {
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

    /// Takes over what another thread may owe to a transmit ring. A signal too many does no harm.
    #[cold]
    pub fn take_over_sent(
        &mut self,
        id: PortId,
        state: &mut TxState,
        stats: &QueueStats,
        owing: Owing,
    ) {
        let held_back = state.side.moderation.release();
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

    /// Notes a completed burst of a transmit ring, whose driver may want a signal.
    #[inline(always)]
    pub fn note_sent(
        &mut self,
        id: PortId,
        burst: Completed,
        state: &mut TxState,
        stats: &QueueStats,
    ) {
        self.note_sender(id);
        let TxState { vring, side: Tx { moderation, .. }, .. } = state;
        let is_much = moderation.add(&burst);
        if burst.wanted || (is_much && moderation.is_held()) {
            self.note_wanted(id, &burst, is_much, state, stats);
        } else {
            self.note(id, false, vring, stats);
        }
    }

    /// Has the driver signalled at the end of this turn if it `is_much` that was completed, else
    /// holds the signal.
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
        let is_held = self.held.holds(call);
        // A signal that is held no longer was sent: completed since is this burst.
        let is_sent = !is_held && moderation.release();
        let is_much = if is_sent { moderation.add(burst) } else { is_much };
        let pays = moderation.pays(burst.received, is_sent);
        if is_held && (is_much || !pays) {
            self.held.release(call);
            moderation.release();
            vring.signalled = (self.worker + 1, self.turn);
            add(&mut self.pending, id, Arc::clone(call));
        } else if burst.wanted && !is_held {
            // A guest that is woken in this turn anyhow is signalled with that.
            let is_woken = || self.pending.iter().any(|(port, ..)| *port == id);
            let may_wait = !is_much && pays && !is_woken();
            if may_wait && self.held.hold(id, call, burst.received) {
                moderation.hold();
                stats.signals.add(1);
            } else {
                moderation.release();
                self.note(id, true, vring, stats);
            }
        } else if !burst.wanted {
            self.note(id, false, vring, stats);
        }
    }

    /// True while a paced signal is due before the end of the shortest sleep there is, from cycle
    /// `now` on: the worker stays awake for it.
    #[inline(always)]
    pub fn due_soon(&self, now: u64) -> bool {
        let soon = || now.saturating_add(clock::cycles_in(SHORTEST_SLEEP_NANOS));
        self.paced.iter().any(|paced| paced.due < soon())
    }

    /// The cycle at which the first signal that waits is due; none if there is none.
    pub fn due(&self) -> Option<u64> {
        self.paced.iter().map(|paced| paced.due).chain(self.held.due()).min()
    }

    /// Forgets what is owed to ports that `stays` says no to: their rings have stopped.
    #[cold]
    pub fn forget(&mut self, stays: impl Fn(PortId) -> bool) {
        self.pending.retain(|(id, ..)| stays(*id));
        self.held.forget(&stays);
        self.paced.retain(|paced| stays(paced.port));
        self.broken.retain(|one| stays(one.port));
    }

    /// Takes a ring, number `ring` of port `id`, out of service, which its driver broke. That is
    /// reported at the end of the turn, with no ring locked.
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
        self.pending.extend(vring.err.clone().map(|err| (id, err, 0)));
    }

    /// Sends what is owed: once per ring and turn, as waking a sleeper costs about 9 µs. Ends the
    /// turn of cycle `now`, by which the rings judge as well what is sent by now.
    #[inline]
    pub fn flush(&mut self, ports: &PortTable, stats: &WorkerStats, now: u64) {
        if !self.held.is_empty() {
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
            let took = self.slot.took();
            *spent = took.cycles;
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
        let (id, call, _) = &self.pending[at];
        let now = clock::cycles();
        if let Some(micros) = took.micros {
            call.cost().charge(micros, self.senders.others(*id, now), now);
        }
        let sent = self.pending[..=at].iter().filter(|(port, ..)| port == id);
        if sent.map(|(.., spent)| spent).sum::<u64>() > self.slot.long() {
            call.cost().watch(now);
        }
    }

    /// Adds the paced signals that are due to those of this turn. Ports that nothing is held
    /// against come first, as they shall not wait for the others; of these the most suspicious
    /// one, which is the only one of its port if it is slow again, and may be the last. Of one port
    /// the one that has waited longest comes first.
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

    /// The slot, for the worker's sleep.
    pub fn slot(&self) -> &SignalSlot {
        &self.slot
    }
}

/// Signals of a turn: whose, and the cycles that sending each took.
type Pending = Vec<(PortId, Arc<CallFd>, u64)>;

/// Adds a signal to those of a turn, unless it is among them.
fn add(pending: &mut Pending, port: PortId, call: Arc<CallFd>) {
    if !pending.iter().any(|(_, other, _)| Arc::ptr_eq(other, &call)) {
        pending.push((port, call, 0));
    }
}

/// True if that is the descriptor that is referred to.
fn is_same(one: &Weak<CallFd>, call: &Arc<CallFd>) -> bool {
    std::ptr::eq(one.as_ptr(), Arc::as_ptr(call))
}

/// Keeps a signal for when its port may be signalled again.
#[cold]
fn pace(paced: &mut Vec<PacedSignal>, port: PortId, call: &Arc<CallFd>) {
    if !paced.iter().any(|paced| is_same(&paced.call, call)) {
        let now = clock::cycles();
        let due = now.saturating_add(call.wait_left(now));
        paced.push(PacedSignal { port, call: Arc::downgrade(call), due });
    }
}

/// Ends the session of a front-end that holds up others.
pub fn evict(port: &Port, session: u64, why: &str) {
    let guest = port.as_guest();
    if guest.is_some_and(|guest| guest.evict(session, Eviction::Harmful)) {
        port.tell(What::Dropped { why: reason(why) });
    }
}

#[cfg(test)]
mod tests;
