//! Which worker serves which ring of a guest, and how a ring moves to another one.
//!
//! A ring starts at the worker with the least to do, and transmit rings move for their load later
//! ([`super::balance`]). The rings of a port for which an operator chose a worker go there and
//! stay, whatever the load.
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

use std::collections::HashMap;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::balance::{Move, Sample};
use super::handle::{Token, WorkerHandle};
use super::kick::KickFd;
use crate::port::{Discard, Port, Ports, QueueRef};
use base::limits::{BALANCE_IDLE_PARTS, LOCK_WAIT_NANOS};
use sys::clock;

#[cfg(doc)]
use crate::port::Vring;

/// One ring that is served.
struct Served {
    port: Arc<Port>,
    worker: usize,
    kick: Option<Arc<KickFd>>,
    /// Its session changes it, with the lock released: it does not move.
    changing: bool,
    /// Cycles that the ring's bursts took in the last second, as far as is known.
    cycles: u64,
}

/// All rings that are served.
#[derive(Default)]
struct Spread {
    rings: HashMap<Token, Served>,
    /// Cycles that each worker's devices took in the last second, as far as is known.
    devices: Vec<u64>,
}

impl Spread {
    /// The worker with the least to do, for a ring that starts. Each ring of its direction counts
    /// as little work even if it took nothing, so that idle rings are spread by their number. The
    /// directions count apart: rings start in turn, receive and transmit, so counted together all
    /// of one direction would go to every second worker.
    fn least_loaded(&self, ring: Token) -> usize {
        let little = clock::cycles_per_second() / BALANCE_IDLE_PARTS;
        let mut loads = self.devices.clone();
        for (&other, served) in &self.rings {
            let same_direction = is_transmit(other) == is_transmit(ring);
            loads[served.worker] += served.cycles + if same_direction { little } else { 0 };
        }
        (0..loads.len()).min_by_key(|&worker| loads[worker]).unwrap_or(0)
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
        let devices = vec![0; workers.len()];
        let spread = Mutex::new(Spread { devices, ..Spread::default() });
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
        let fixed = port.worker.get(self.workers.len());
        let worker = fixed.unwrap_or_else(|| spread.least_loaded(ring));
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

    /// The worker that serves a ring, if one does.
    pub fn worker_of(&self, ring: Token) -> Option<usize> {
        self.spread().rings.get(&ring).map(|served| served.worker)
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
        let served = self.spread().rings.remove(&ring);
        if let Some(served) = served {
            self.unwatch(served.worker, served.kick.as_deref());
        }
    }

    /// Moves rings that their port's worker does not serve to it, as far as that is possible now:
    /// what is left comes with the next look. Waits for the lock of one ring at most, in whose
    /// guest's memory a worker may stand still.
    pub fn settle(&self) {
        let end = Instant::now() + Duration::from_nanos(LOCK_WAIT_NANOS);
        for (ring, served) in &mut self.spread().rings {
            let wanted = self.fixed(served).filter(|worker| *worker != served.worker);
            if let Some(worker) = wanted.filter(|_| Instant::now() < end) {
                self.move_to(*ring, served, worker);
            }
        }
    }

    /// The worker that a ring's port is to have, if that is not chosen by load.
    fn fixed(&self, served: &Served) -> Option<usize> {
        served.port.worker.get(self.workers.len())
    }

    /// What each transmit ring that is served has cost so far.
    pub fn costs(&self) -> Vec<Sample> {
        let spread = self.spread();
        let cost = |(&source, served): (&Token, &Served)| {
            let queue = queue(&served.port, source).filter(|_| is_transmit(source))?;
            let (worker, may_move) = (served.worker, self.fixed(served).is_none());
            Some(Sample::new(source, worker, queue.stats().cycles.get(), may_move))
        };
        spread.rings.iter().filter_map(cost).collect()
    }

    /// Notes what sources took in the last second, by which rings that start are placed.
    pub fn note_loads(&self, samples: &[Sample]) {
        let Spread { rings, devices } = &mut *self.spread();
        devices.fill(0);
        for sample in samples {
            if let Token::Device(..) = sample.source {
                devices[sample.worker] += sample.load[0];
            } else if let Some(served) = rings.get_mut(&sample.source) {
                served.cycles = sample.load[0];
            }
        }
    }

    /// Moves a ring for its load; false if it stays. One that was stopped, or that has another
    /// worker by now, or is to have, is left alone.
    pub fn shift(&self, wish: Move) -> bool {
        let mut spread = self.spread();
        spread.rings.get_mut(&wish.ring).is_some_and(|served| {
            let may_move = served.worker == wish.from && self.fixed(served).is_none();
            may_move && self.move_to(wish.ring, served, wish.to)
        })
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
                .map(|mut state| state.vring.owner = Some(worker)),
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

fn is_transmit(ring: Token) -> bool {
    matches!(ring, Token::Transmit(..))
}

/// Events that watching `kick` brings at once.
fn counted(kick: Option<&KickFd>) -> u32 {
    kick.map_or(0, KickFd::counted)
}

#[cfg(test)]
mod tests;
