//! Which worker serves which ring of a guest, and how a ring moves to another one.
//!
//! A ring goes to the worker with the fewest of its direction. When others leave, rings move until
//! no worker has two more than another, unless that makes a busy worker busier still; and transmit
//! rings move for their load ([`super::balance`]). The rings of a port for which an operator chose
//! a worker go there and stay, whatever the load.
//!
//! A transmit ring's state names its owner ([`Vring::owner`]); a worker that finds another
//! name there under the ring's lock lets go of the ring. A move is therefore safe at any moment:
//!
//! 1. the kick is watched by the new worker too, so that none is missed from here on;
//! 2. the owner changes, under the lock: the old worker's burst is complete, and its next look is
//!    its last. A burst holds the lock from taking to completing, so the order of frames is kept;
//! 3. the old worker no longer watches the kick;
//! 4. the new one is told to look: a kick that went to the old one before 2 may have been taken
//!    there and not served yet.
//!
//! Sessions start and stop rings while others move: one lock says who serves what, and is taken
//! before a ring's lock and never after. It is held over the whole of a move, so a session that
//! stops a ring finds it with one worker; and not while a session changes a ring of its own, which
//! does not move meanwhile (`Served::changing`).
//!
//! Nothing that a guest or its front-end can make last happens under that lock: what watching a
//! kick descriptor takes is its session's alone ([`super::kick`]), and a ring whose lock is not to
//! be had, as its guest's memory keeps a worker waiting, does not move.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::balance::{Move, Sample};
use super::handle::{Token, WorkerHandle};
use super::kick::KickFd;
use crate::port::{Discard, Port, Ports, QueueRef};
use base::limits::LOCK_WAIT_NANOS;
use base::stats::Direction;
use switch::PortId;

#[cfg(doc)]
use crate::port::Vring;

/// One ring that is served.
struct Served {
    port: Arc<Port>,
    worker: usize,
    kick: Option<Arc<KickFd>>,
    /// Its session changes it, with the lock released: it does not move.
    changing: bool,
    /// Cycles that it took in a second, as far as is known.
    cycles: u64,
}

/// All rings that are served.
#[derive(Default)]
struct Spread {
    rings: HashMap<Token, Served>,
    /// Receive and transmit rings of each worker. Counted apart, as the work is with the transmit
    /// rings: rings start in turn, receive and transmit, so counted together all of one kind would
    /// go to every second worker.
    load: Vec<[usize; 2]>,
    /// Cycles that each worker's sources took in a second, as far as is known.
    cycles: Vec<u64>,
}

impl Spread {
    /// Counts a ring of worker `from`, if it had one, for worker `to`, if it has one now.
    fn count(&mut self, kind: usize, cycles: u64, from: Option<usize>, to: Option<usize>) {
        if let Some(from) = from {
            self.load[from][kind] -= 1;
            self.cycles[from] = self.cycles[from].saturating_sub(cycles);
        }
        if let Some(to) = to {
            self.load[to][kind] += 1;
            self.cycles[to] += cycles;
        }
    }
}

/// Who serves what.
pub struct Assignment {
    workers: Vec<Arc<WorkerHandle>>,
    ports: Arc<Ports>,
    spread: Mutex<Spread>,
}

impl Assignment {
    /// No ring is served yet.
    pub fn new(workers: Vec<Arc<WorkerHandle>>, ports: Arc<Ports>) -> Assignment {
        let (load, cycles) = (vec![[0; 2]; workers.len()], vec![0; workers.len()]);
        let spread = Mutex::new(Spread { load, cycles, ..Spread::default() });
        Assignment { workers, ports, spread }
    }

    /// The workers.
    pub fn workers(&self) -> &[Arc<WorkerHandle>] {
        &self.workers
    }

    fn spread(&self) -> MutexGuard<'_, Spread> {
        self.spread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The ports whose rings they are.
    pub fn ports(&self) -> &Ports {
        &self.ports
    }

    /// Gives a ring that was started to a worker, which looks at it at once and whenever `kick` is
    /// written. An error (no memory for the watch, no such port) leaves it without a worker.
    pub fn serve(&self, ring: Token, kick: Option<Arc<KickFd>>) -> io::Result<()> {
        self.release(ring);
        let ports = self.ports.present();
        let port = ring.port().and_then(|id| ports.shared(id)).ok_or(io::ErrorKind::NotFound)?;
        let mut spread = self.spread();
        let kind = kind(ring);
        let worker = choose(port.worker.get(self.workers.len()), &spread.load, kind);
        spread.count(kind, 0, None, Some(worker));
        let (port, kept) = (Arc::clone(port), kick.clone());
        let served = Served { port, worker, kick: kept, changing: true, cycles: 0 };
        spread.rings.insert(ring, served);
        drop(spread);
        let watched = self.take_over(ring, worker, kick.as_deref());
        match watched {
            Ok(()) => self.workers[worker].look(ring),
            Err(_) => self.release(ring),
        }
        watched
    }

    /// Replaces the descriptor by which a ring is kicked; nothing if it is not served.
    pub fn set_kick(&self, ring: Token, kick: Option<Arc<KickFd>>) -> io::Result<()> {
        let mut spread = self.spread();
        let Some(served) = spread.rings.get_mut(&ring) else {
            return Ok(());
        };
        served.changing = true;
        let old = std::mem::replace(&mut served.kick, kick.clone());
        let worker = served.worker;
        drop(spread);
        self.unwatch(worker, old.as_deref());
        self.take_over(ring, worker, kick.as_deref())
    }

    /// Ends a change: the ring's worker owns it and watches its kick.
    fn take_over(&self, ring: Token, worker: usize, kick: Option<&KickFd>) -> io::Result<()> {
        let port = self.spread().rings.get(&ring).map(|served| Arc::clone(&served.port));
        if let Some(queue) = port.as_deref().and_then(|port| queue(port, ring)) {
            own(queue, worker, kick);
        }
        let watched = self.watch(ring, worker, kick);
        if let Some(served) = self.spread().rings.get_mut(&ring) {
            served.changing = false;
        }
        watched
    }

    /// The rings of a port that are served: direction, number of the queue, worker.
    pub fn of_port(&self, port: PortId) -> Vec<(Direction, usize, usize)> {
        let spread = self.spread();
        let rings = spread.rings.iter().filter_map(|(ring, served)| match *ring {
            Token::Transmit(of, queue) if of == port => {
                Some((Direction::In, queue.into(), served.worker))
            }
            Token::Receive(of, queue) if of == port => {
                Some((Direction::Out, queue.into(), served.worker))
            }
            _ => None,
        });
        rings.collect()
    }

    /// Makes a ring's worker look at it once, without waiting for a kick.
    pub fn look(&self, ring: Token) {
        if let Some(served) = self.spread().rings.get(&ring) {
            self.workers[served.worker].look(ring);
        }
    }

    /// A ring stops: no worker watches its kick any more. Its worker may be in a burst; take the
    /// ring's lock to wait for that.
    pub fn release(&self, ring: Token) {
        let mut spread = self.spread();
        let Some(served) = spread.rings.remove(&ring) else { return };
        spread.count(kind(ring), served.cycles, Some(served.worker), None);
        drop(spread);
        self.unwatch(served.worker, served.kick.as_deref());
    }

    /// Moves rings that their port's worker does not serve to it, as far as that is possible now:
    /// what is left comes with the next look. Waits for the lock of one ring at most, in whose
    /// guest's memory a worker may stand still.
    pub fn settle(&self) {
        let mut spread = self.spread();
        let end = Instant::now() + Duration::from_nanos(LOCK_WAIT_NANOS);
        let away = spread.rings.iter_mut().filter_map(|(ring, served)| {
            let wanted = self.fixed(served).filter(|worker| *worker != served.worker)?;
            Some((*ring, served, wanted))
        });
        let mut moved = Vec::new();
        for (ring, served, to) in away.take_while(|_| Instant::now() < end) {
            let (from, cycles) = (served.worker, served.cycles);
            if self.move_to(ring, served, to) {
                moved.push((kind(ring), cycles, from, to));
            }
        }
        for (kind, cycles, from, to) in moved {
            spread.count(kind, cycles, Some(from), Some(to));
        }
    }

    /// The worker that a ring's port is to have, if that is not chosen by load.
    fn fixed(&self, served: &Served) -> Option<usize> {
        served.port.worker.get(self.workers.len())
    }

    /// Moves rings until no worker has two more of a direction than another.
    pub fn rebalance(&self) {
        let mut spread = self.spread();
        for kind in 0..2 {
            // Each move lessens the sum of squares, so there is an end.
            while self.move_one(&mut spread, kind) {}
        }
    }

    /// What each transmit ring that is served has cost so far.
    pub fn costs(&self) -> Vec<Sample> {
        let spread = self.spread();
        let cost = |(&source, served): (&Token, &Served)| {
            let queue = queue(&served.port, source).filter(|_| kind(source) == TRANSMIT)?;
            let (worker, may_move) = (served.worker, self.fixed(served).is_none());
            Some(Sample { source, worker, cycles: queue.stats().cycles.get(), may_move })
        };
        spread.rings.iter().filter_map(cost).collect()
    }

    /// Notes what sources took in the last second.
    pub fn note_loads<'a>(&self, loads: impl Iterator<Item = (&'a Sample, u64)>) {
        let Spread { rings, cycles, .. } = &mut *self.spread();
        cycles.fill(0);
        for (Sample { source, worker, .. }, took) in loads {
            cycles[*worker] += took;
            if let Some(served) = rings.get_mut(source) {
                served.cycles = took;
            }
        }
    }

    /// Moves a ring for its load; false if it stays. One that was stopped, or that has another
    /// worker by now, or is to have, is left alone.
    pub fn shift(&self, wish: Move) -> bool {
        let mut spread = self.spread();
        let stays = |s: &Served| s.worker != wish.from || self.fixed(s).is_some();
        let Some(served) = spread.rings.get_mut(&wish.ring).filter(|s| !stays(s)) else {
            return false;
        };
        let moved = self.move_to(wish.ring, served, wish.to);
        if moved {
            let cycles = served.cycles;
            spread.count(kind(wish.ring), cycles, Some(wish.from), Some(wish.to));
        }
        moved
    }

    /// Moves one ring to the worker with the fewest, from the one with the most that has a ring to
    /// give; false if there is no need, or none that can move without making the former the busier.
    fn move_one(&self, spread: &mut Spread, ring_kind: usize) -> bool {
        let Spread { rings, load, cycles } = spread;
        let of = |worker: &usize| load[*worker][ring_kind];
        let Some(least) = (0..load.len()).min_by_key(of) else { return false };
        let mut full: Vec<usize> =
            (0..load.len()).filter(|one| of(one) >= of(&least) + 2).collect();
        full.sort_by_key(|one| Reverse(of(one)));
        let fits = |most: usize, took| took == 0 || cycles[least] + took <= cycles[most];
        let moved = full.into_iter().find_map(|most| {
            let mut there = rings.iter_mut().filter(|(ring, served)| {
                served.worker == most
                    && kind(**ring) == ring_kind
                    && self.fixed(served).is_none()
                    && fits(most, served.cycles)
            });
            there.find_map(|(ring, served)| {
                self.move_to(*ring, served, least).then_some((most, served.cycles))
            })
        });
        if let Some((most, cycles)) = moved {
            spread.count(ring_kind, cycles, Some(most), Some(least));
        }
        moved.is_some()
    }

    /// Moves a ring; see the top of the file for the order. False if it stays.
    fn move_to(&self, ring: Token, served: &mut Served, worker: usize) -> bool {
        let Some(queue) = queue(&served.port, ring).filter(|_| !served.changing) else {
            return false;
        };
        let kick = served.kick.as_deref();
        if self.watch(ring, worker, kick).is_err() {
            return false;
        }
        let counted = counted(kick);
        let moves = match queue {
            // What a disabled ring's kick brings is discarded, by a write to memory that its
            // front-end may be saving; the new watch would report a kick again that was served
            // long ago.
            QueueRef::Tx(queue) => queue
                .quiet_soon()
                .filter(|state| state.side.gate.discard == Discard::Never)
                .map(|mut state| {
                    state.vring.owner = Some(worker);
                    state.side.moderation.release();
                }),
            QueueRef::Rx(queue) => queue.quiet_soon().map(|mut state| {
                (state.vring.owner, state.side.stale_kicks) = (Some(worker), counted);
            }),
        };
        let moves = moves.is_some();
        self.unwatch(if moves { served.worker } else { worker }, kick);
        if moves {
            served.worker = worker;
            self.workers[worker].stats.moves.add(1);
            self.workers[worker].look(ring);
        }
        moves
    }

    fn watch(&self, ring: Token, worker: usize, kick: Option<&KickFd>) -> io::Result<()> {
        kick.map_or(Ok(()), |kick| self.workers[worker].watch(kick.as_raw_fd(), ring))
    }

    fn unwatch(&self, worker: usize, kick: Option<&KickFd>) {
        if let Some(kick) = kick {
            self.workers[worker].unwatch(kick.as_raw_fd());
        }
    }
}

/// The queue of a guest's ring.
fn queue(port: &Port, ring: Token) -> Option<QueueRef<'_>> {
    let guest = port.as_guest()?;
    match ring {
        Token::Transmit(_, index) => guest.tx.get(usize::from(index)).map(QueueRef::Tx),
        Token::Receive(_, index) => guest.rx.get(usize::from(index)).map(QueueRef::Rx),
        Token::Wake | Token::Device(..) => None,
    }
}

/// Names the owner in the ring's state. What the kick has counted already is reported as an event
/// when it is watched, but is not a new kick.
fn own(queue: QueueRef<'_>, worker: usize, kick: Option<&KickFd>) {
    let counted = counted(kick);
    match queue {
        QueueRef::Tx(queue) => queue.quiet().vring.owner = Some(worker),
        QueueRef::Rx(queue) => {
            let mut state = queue.quiet();
            (state.vring.owner, state.side.stale_kicks) = (Some(worker), counted);
        }
    }
}

/// The worker of a ring of direction `kind` that starts: the one it is to have, or the one with the
/// fewest.
fn choose(fixed: Option<usize>, load: &[[usize; 2]], kind: usize) -> usize {
    fixed.or_else(|| (0..load.len()).min_by_key(|&worker| load[worker][kind])).unwrap_or(0)
}

/// Index of transmit rings in a load.
const TRANSMIT: usize = 1;

/// Index of a ring's direction in a load: receive, transmit.
fn kind(ring: Token) -> usize {
    usize::from(matches!(ring, Token::Transmit(..)))
}

/// Events that watching `kick` brings at once.
fn counted(kick: Option<&KickFd>) -> u32 {
    kick.map_or(0, KickFd::counted)
}

#[cfg(test)]
mod tests;
