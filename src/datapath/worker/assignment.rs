//! The assignment of guests' rings to workers, and moves of rings to other workers.
//!
//! A ring starts at the worker with the least load, and transmit rings move for their load later
//! ([`super::balance`]). The rings of a port for which an operator chose a worker go to this worker
//! and stay there, whatever the load.
//!
//! A transmit ring's state names its owner ([`Vring::owner`]). A worker that finds another owner,
//! under the ring's lock, drops the ring. So a move is safe at any moment:
//!
//! 1. The new worker also watches the kick, so no kick is missed from here on.
//! 2. The owner changes, under the lock. The old worker's burst is complete, and its next look at
//!    the ring is its last. A burst holds the lock from taking to completing, so frames keep their
//!    order.
//! 3. The old worker stops watching the kick.
//! 4. The new worker is told to look at the ring: the old worker may have taken a kick before step
//!    2 and not served the ring since.
//!
//! Sessions start and stop rings while other rings move. One lock protects the assignment; it is
//! taken before a ring's lock and never after. A move holds the lock from start to end, so a
//! session that stops a ring finds the ring at one worker. A session releases the lock while it
//! changes a ring of its own, which does not move meanwhile (`Served::changing`).
//!
//! No step that a guest or its front-end can prolong happens under the lock: only the session's own
//! thread waits for a slow kick descriptor ([`super::kick`]). A ring whose lock is not free soon,
//! since its guest's memory makes a worker wait, does not move.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::balance::{Move, Sample};
use super::handle::{Token, WorkerHandle};
use super::kick::KickFd;
use crate::port::{Discard, Port, Ports, QueueRef};
use base::limits::{BALANCE_IDLE_PARTS, BALANCE_RECENT_NANOS, LOCK_WAIT_NANOS};
use sys::clock;

#[cfg(doc)]
use crate::port::Vring;

/// One ring that is served.
struct Served {
    port: Arc<Port>,
    worker: usize,
    kick: Option<Arc<KickFd>>,
    /// The ring's session changes it, with the lock released: the ring does not move.
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
    /// Workers that take nothing, as they have no CPU or stand still.
    silent: Vec<bool>,
    /// Cycle at which the balancer noted the loads and the silent workers.
    noted: u64,
}

impl Spread {
    /// Returns the worker with the least load, for a ring that starts at cycle `now`; a silent
    /// worker only if all workers are silent. Each ring of the same direction counts as a little
    /// work, even if idle, so that idle rings are spread by number. The directions count apart:
    /// receive and transmit rings start in turn, so a common count would give all rings of one
    /// direction to every second worker.
    fn least_loaded(&self, ring: Token, now: u64) -> usize {
        let little = clock::cycles_per_second() / BALANCE_IDLE_PARTS;
        // The balancer parks while all workers sleep: its notes of the time before say nothing.
        let is_recent = clock::since(self.noted, now) < clock::cycles_in(BALANCE_RECENT_NANOS);
        let mut loads = vec![0; self.devices.len()];
        if is_recent {
            loads.copy_from_slice(&self.devices);
        }
        for (&other, served) in &self.rings {
            let same_direction = is_transmit(other) == is_transmit(ring);
            loads[served.worker] += if is_recent { served.cycles } else { 0 };
            loads[served.worker] += if same_direction { little } else { 0 };
        }
        let order = |&worker: &usize| (is_recent && self.silent[worker], loads[worker]);
        (0..loads.len()).min_by_key(order).unwrap_or(0)
    }
}

/// The assignment of rings to workers.
pub struct Assignment {
    workers: Vec<Arc<WorkerHandle>>,
    ports: Arc<Ports>,
    spread: Mutex<Spread>,
}

impl Assignment {
    /// Creates the assignment, without rings.
    pub(crate) fn new(workers: Vec<Arc<WorkerHandle>>, ports: Arc<Ports>) -> Assignment {
        let (devices, silent) = (vec![0; workers.len()], vec![false; workers.len()]);
        let spread = Mutex::new(Spread { devices, silent, ..Spread::default() });
        Assignment { workers, ports, spread }
    }

    /// Returns the workers.
    pub(crate) fn workers(&self) -> &[Arc<WorkerHandle>] {
        &self.workers
    }

    fn spread(&self) -> MutexGuard<'_, Spread> {
        self.spread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the ports to which the rings belong.
    pub(crate) fn ports(&self) -> &Ports {
        &self.ports
    }

    /// Assigns a started ring to a worker, which looks at the ring at once and after each write to
    /// `kick`. After an error (no memory for the watch, no such port) the ring has no worker.
    pub(crate) fn serve(&self, ring: Token, kick: Option<Arc<KickFd>>) -> io::Result<()> {
        self.release(ring);
        let ports = self.ports.present();
        let port = ring.port().and_then(|id| ports.shared(id)).ok_or(io::ErrorKind::NotFound)?;
        let mut spread = self.spread();
        let fixed = port.worker.get(self.workers.len());
        let worker = fixed.unwrap_or_else(|| spread.least_loaded(ring, clock::cycles()));
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

    /// Replaces the kick descriptor of a ring. Does nothing if no worker serves the ring.
    pub(crate) fn set_kick(&self, ring: Token, kick: Option<Arc<KickFd>>) -> io::Result<()> {
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

    /// Ends a change: the ring's worker owns the ring and watches its kick.
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

    /// Returns the worker that serves a ring, if a worker does.
    pub fn worker_of(&self, ring: Token) -> Option<usize> {
        self.spread().rings.get(&ring).map(|served| served.worker)
    }

    /// Makes a ring's worker look at the ring once, without waiting for a kick.
    pub(crate) fn look(&self, ring: Token) {
        if let Some(served) = self.spread().rings.get(&ring) {
            self.workers[served.worker].look(ring);
        }
    }

    /// Removes a ring that stops: no worker watches its kick any more. The ring's worker may be in
    /// a burst; the caller takes the ring's lock to wait for the end of the burst.
    pub(crate) fn release(&self, ring: Token) {
        let served = self.spread().rings.remove(&ring);
        if let Some(served) = served {
            self.unwatch(served.worker, served.kick.as_deref());
        }
    }

    /// Moves rings to the worker that an operator chose for their port, as far as possible now; the
    /// next call moves the others. Waits for the lock of at most one ring, which a stuck worker may
    /// hold.
    pub fn settle(&self) {
        let end = Instant::now() + Duration::from_nanos(LOCK_WAIT_NANOS);
        for (ring, served) in &mut self.spread().rings {
            let wanted = self.fixed(served).filter(|worker| *worker != served.worker);
            if let Some(worker) = wanted.filter(|_| Instant::now() < end) {
                self.move_to(*ring, served, worker);
            }
        }
    }

    /// Returns the worker that an operator chose for a ring's port, if there is one.
    fn fixed(&self, served: &Served) -> Option<usize> {
        served.port.worker.get(self.workers.len())
    }

    /// Returns the cycles that each served transmit ring has cost.
    pub(crate) fn costs(&self) -> Vec<Sample> {
        let spread = self.spread();
        let cost = |(&source, served): (&Token, &Served)| {
            let queue = queue(&served.port, source).filter(|_| is_transmit(source))?;
            let (worker, may_move) = (served.worker, self.fixed(served).is_none());
            Some(Sample::new(source, worker, queue.stats().cycles.get(), may_move))
        };
        spread.rings.iter().filter_map(cost).collect()
    }

    /// Notes the silent workers: rings that start go to others.
    pub(crate) fn note_silent(&self, silent: &[bool]) {
        self.spread().silent.copy_from_slice(silent);
    }

    /// Records the load of sources in the last second, for placing rings that start.
    pub(crate) fn note_loads(&self, samples: &[Sample]) {
        let Spread { rings, devices, noted, .. } = &mut *self.spread();
        *noted = clock::cycles();
        devices.fill(0);
        rings.values_mut().for_each(|served| served.cycles = 0);
        for sample in samples {
            if let Token::Device(..) = sample.source {
                devices[sample.worker] += sample.load[0];
            } else if let Some(served) = rings.get_mut(&sample.source) {
                served.cycles = sample.load[0];
            }
        }
    }

    /// Moves a ring for its load; false if the ring stays. A ring stays if it was stopped, if its
    /// worker has changed, or if an operator chose its worker.
    pub(crate) fn shift(&self, wish: Move) -> bool {
        let mut spread = self.spread();
        spread.rings.get_mut(&wish.ring).is_some_and(|served| {
            let may_move = served.worker == wish.from && self.fixed(served).is_none();
            may_move && self.move_to(wish.ring, served, wish.to)
        })
    }

    /// Moves a ring, in the order of the module's documentation. False if the ring stays.
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
            // A kick of a disabled ring makes the worker discard frames, which writes to memory
            // that the front-end may be saving. The new watch would report an old kick again.
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

/// Returns the queue of a guest's ring.
fn queue(port: &Port, ring: Token) -> Option<QueueRef<'_>> {
    let guest = port.as_guest()?;
    match ring {
        Token::Transmit(_, index) => guest.tx.get(usize::from(index)).map(QueueRef::Tx),
        Token::Receive(_, index) => guest.rx.get(usize::from(index)).map(QueueRef::Rx),
        Token::Wake | Token::Device(..) => None,
    }
}

/// Sets the owner in the ring's state. Kicks that are counted already are reported as an event when
/// the watch starts, and are not new kicks.
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

/// Returns the number of events that a new watch of `kick` reports at once.
fn counted(kick: Option<&KickFd>) -> u32 {
    kick.map_or(0, KickFd::counted)
}

#[cfg(test)]
mod tests;
