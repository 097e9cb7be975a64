//! Which worker serves which ring of a guest, and how a ring moves to another one.
//!
//! A ring goes to the worker with the fewest of its direction. When others leave, rings move until
//! no worker has two more than another, unless that makes a busy worker busier still; and transmit
//! rings move for their load ([`super::balance`]).
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

use super::balance::{Move, Sample};
use super::handle::{Token, WorkerHandle};
use super::kick::KickFd;
use crate::port::{Discard, Port, Ports, QueueRef};

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
        let (kind, load) = (kind(ring), &spread.load);
        let worker = (0..load.len()).min_by_key(|&i| load[i][kind]).unwrap_or(0);
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
            Some(Sample { source, worker: served.worker, cycles: queue.stats().cycles.get() })
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
    /// worker by now, is left alone.
    pub fn shift(&self, wish: Move) -> bool {
        let mut spread = self.spread();
        let Some(served) = spread.rings.get_mut(&wish.ring).filter(|s| s.worker == wish.from)
        else {
            return false;
        };
        let moved = self.move_to(wish.ring, served, wish.to);
        if moved {
            let cycles = served.cycles;
            spread.count(kind(wish.ring), cycles, Some(wish.from), Some(wish.to));
        }
        moved
    }

    /// Moves one ring from the worker with the most to the one with the fewest; false if there is
    /// no need or no ring that can move without making the latter the busier one.
    fn move_one(&self, spread: &mut Spread, ring_kind: usize) -> bool {
        let Spread { rings, load, cycles } = spread;
        let of = |&worker: &usize| load[worker][ring_kind];
        let (most, least) = ((0..load.len()).max_by_key(of), (0..load.len()).min_by_key(of));
        let (Some(most), Some(least)) = (most, least) else {
            return false;
        };
        if load[most][ring_kind] < load[least][ring_kind] + 2 {
            return false;
        }
        let fits = |took: u64| took == 0 || cycles[least] + took <= cycles[most];
        let mut there = rings.iter_mut().filter(|(ring, served)| {
            served.worker == most && kind(**ring) == ring_kind && fits(served.cycles)
        });
        let moved = there
            .find_map(|(ring, served)| self.move_to(*ring, served, least).then_some(served.cycles));
        if let Some(cycles) = moved {
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
mod tests {
    use vmm_sys_util::epoll::EpollEvent;
    use vmm_sys_util::eventfd::EventFd;

    use super::super::Note;
    use super::*;
    use crate::port::{Port, Queue, Tx};
    use crate::sys::descriptor::from_eventfd;

    const PORTS: u16 = 8;

    fn assignment(workers: usize) -> Assignment {
        let handles = (0..workers).map(|n| Arc::new(WorkerHandle::new(n).unwrap())).collect();
        let guest = |id: u16| Arc::new(Port::guest(id, &id.to_string(), 1));
        Assignment::new(handles, Arc::new(Ports::new((0..PORTS).map(guest).collect())))
    }

    fn tx(port: u16) -> Token {
        Token::Transmit(port, 0)
    }

    fn kick() -> (EventFd, Option<Arc<KickFd>>) {
        let kick = EventFd::new(libc::EFD_NONBLOCK).unwrap();
        let ours = from_eventfd(kick.try_clone().unwrap());
        let ours = KickFd::watch(ours, &Port::guest(0, "0", 1)).unwrap();
        (kick, Some(Arc::new(ours)))
    }

    /// Serves the transmit rings of the first `ports` ports; their kicks.
    fn serve_first(a: &Assignment, ports: u16) -> Vec<EventFd> {
        let serve = |port| {
            let (kick, ours) = kick();
            a.serve(tx(port), ours).unwrap();
            kick
        };
        (0..ports).map(serve).collect()
    }

    /// Does something with the transmit queue of a port.
    fn on<T>(a: &Assignment, id: u16, work: impl FnOnce(&Queue<Tx>) -> T) -> T {
        work(&a.ports().present()[id].as_guest().unwrap().tx[0])
    }

    fn owner(a: &Assignment, port: u16) -> usize {
        on(a, port, |queue| queue.lock().vring.owner.unwrap())
    }

    /// Rings whose kicks worker `worker` hears.
    fn events(a: &Assignment, worker: usize) -> Vec<Token> {
        let mut events = vec![EpollEvent::default(); 64];
        let count = a.workers[worker].epoll.wait(0, &mut events).unwrap();
        let tokens = events[..count].iter().map(|event| Token::from_bits(event.data()));
        tokens.filter(|token| *token != Token::Wake).collect()
    }

    fn notes(a: &Assignment, worker: usize) -> Vec<Note> {
        let mut notes = Vec::new();
        a.workers[worker].take_notes(&mut notes);
        notes
    }

    #[test]
    fn rings_are_spread_evenly_and_by_direction() {
        let a = assignment(3);
        for port in 0..PORTS {
            a.serve(Token::Receive(port, 0), None).unwrap();
            a.serve(tx(port), None).unwrap();
        }
        let mut load = a.spread().load.clone();
        load.sort();
        assert_eq!(load, [[2, 2], [3, 3], [3, 3]]);
    }

    #[test]
    fn those_that_stay_are_spread_again() {
        let a = assignment(2);
        let kicks = serve_first(&a, 4);
        assert_eq!([0, 1, 2, 3].map(|port| owner(&a, port)), [0, 1, 0, 1]);
        notes(&a, 0);
        a.release(tx(1));
        a.release(tx(3));
        a.rebalance();
        assert_eq!(a.spread().load, [[0, 1], [0, 1]]);
        let (stays, moved) = if owner(&a, 0) == 0 { (0, 2) } else { (2, 0) };
        assert_eq!(owner(&a, moved), 1);
        // The new worker is told to look, and each kick has one listener.
        assert!(notes(&a, 1).contains(&Note::Look(tx(moved))));
        kicks.iter().for_each(|kick| kick.write(1).unwrap());
        assert_eq!(events(&a, 0), [tx(stays)]);
        assert_eq!(events(&a, 1), [tx(moved)]);
        // Nothing to do, nothing moves.
        a.rebalance();
        assert_eq!((owner(&a, stays), owner(&a, moved)), (0, 1));
    }

    /// A ring that sends all the time has a worker for itself, and four that send little the other:
    /// that one of them leaves is no reason to give the busy worker more.
    #[test]
    fn numbers_are_not_evened_out_against_the_load() {
        let a = assignment(2);
        serve_first(&a, 5);
        for port in [2, 4] {
            assert!(a.shift(Move { ring: tx(port), from: 0, to: 1 }));
        }
        let note = |took: u64| {
            let mut samples = a.costs();
            samples.retain(|sample| sample.source != tx(0));
            let busy = Sample { source: tx(0), worker: 0, cycles: 0 };
            let light = samples.iter().map(|sample| (sample, 100));
            a.note_loads(light.chain([(&busy, took)]));
        };
        note(900);
        a.release(tx(1));
        a.rebalance();
        assert_eq!(a.spread().load, [[0, 1], [0, 3]]);
        assert_eq!(a.spread().cycles, [900, 300]);
        // One that leaves both as busy as before is evened out.
        note(200);
        a.rebalance();
        assert_eq!(a.spread().load, [[0, 2], [0, 2]]);
        assert_eq!(a.spread().cycles, [300, 200]);
    }

    #[test]
    fn a_kick_that_was_not_taken_before_the_move_is_seen_after_it() {
        let a = assignment(2);
        let kicks = serve_first(&a, 4);
        kicks.iter().for_each(|kick| kick.write(1).unwrap());
        a.release(tx(1));
        a.release(tx(3));
        a.rebalance();
        let moved = if owner(&a, 0) == 1 { 0 } else { 2 };
        assert_eq!(events(&a, 1), [tx(moved)]);
    }

    #[test]
    fn a_disabled_ring_stays_where_it_is() {
        let a = assignment(2);
        let kicks = serve_first(&a, 6);
        for port in [0, 4] {
            on(&a, port, |queue| queue.lock().side.gate.discard = Discard::OnKick);
        }
        for port in [1, 3, 5] {
            a.release(tx(port));
        }
        a.rebalance();
        assert_eq!([0, 2, 4].map(|port| owner(&a, port)), [0, 1, 0]);
        kicks.iter().for_each(|kick| kick.write(1).unwrap());
        assert_eq!(events(&a, 1), [tx(2)]);
        assert_eq!(events(&a, 0).len(), 2);
    }

    #[test]
    fn a_ring_moves_for_its_load_if_it_is_where_it_was_seen() {
        let a = assignment(2);
        let kicks = serve_first(&a, 4);
        on(&a, 2, |queue| queue.stats.cycles.add(7));
        let mut costs: Vec<_> = a.costs().iter().map(|s| (s.source, s.worker, s.cycles)).collect();
        costs.sort_by_key(|cost| cost.0.to_bits());
        assert_eq!(costs, [(tx(0), 0, 0), (tx(1), 1, 0), (tx(2), 0, 7), (tx(3), 1, 0)]);
        let wish = |port, from, to| Move { ring: tx(port), from, to };
        assert!(!a.shift(wish(1, 0, 1)), "it is not there");
        assert!(!a.shift(wish(7, 0, 1)), "it is with nobody");
        on(&a, 0, |queue| queue.lock().side.gate.discard = Discard::OnKick);
        assert!(!a.shift(wish(0, 0, 1)), "it is disabled");
        assert_eq!(a.spread().load, [[0, 2], [0, 2]]);
        notes(&a, 1);
        assert!(a.shift(wish(2, 0, 1)));
        assert_eq!(a.spread().load, [[0, 1], [0, 3]]);
        assert_eq!(notes(&a, 1), [Note::Look(tx(2))]);
        assert_eq!([0, 1].map(|worker| a.workers[worker].stats.moves.get()), [0, 1]);
        kicks[2].write(1).unwrap();
        assert_eq!((events(&a, 0), events(&a, 1)), (vec![], vec![tx(2)]));
        a.release(tx(2));
        assert_eq!(a.spread().load, [[0, 1], [0, 2]]);
    }

    #[test]
    fn a_replaced_kick_is_heard_no_more() {
        let a = assignment(1);
        let ((old, first), (new, second)) = (kick(), kick());
        a.serve(tx(0), first).unwrap();
        a.set_kick(tx(0), second).unwrap();
        old.write(1).unwrap();
        assert!(events(&a, 0).is_empty());
        new.write(1).unwrap();
        assert_eq!(events(&a, 0), [tx(0)]);
        a.set_kick(tx(0), None).unwrap();
        new.write(1).unwrap();
        assert!(events(&a, 0).is_empty());
        a.release(tx(0));
        assert_eq!(a.spread().load, [[0, 0]]);
    }

    #[test]
    fn rings_come_go_and_move_at_once() {
        let a = assignment(3);
        std::thread::scope(|s| {
            for port in 0..PORTS {
                let a = &a;
                s.spawn(move || {
                    for round in 0..300 {
                        let (_kick, ours) = kick();
                        a.serve(tx(port), ours).unwrap();
                        a.look(tx(port));
                        if round % 3 == 0 {
                            a.set_kick(tx(port), None).unwrap();
                        }
                        a.release(tx(port));
                        a.rebalance();
                    }
                });
            }
        });
        assert_eq!(a.spread().load, [[0, 0]; 3]);
        assert!(a.spread().rings.is_empty());
    }
}
