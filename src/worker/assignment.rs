//! Which worker serves which ring of a guest, and how a ring moves to another one.
//!
//! A ring goes to the worker with the fewest of its direction. When others leave, rings move until
//! no worker has two more than another.
//!
//! A transmit ring's state names its owner ([`RingState::owner`]); a worker that finds another
//! name there under the ring's lock lets go of the ring. A move is therefore safe at any moment:
//!
//! 1. the kick is watched by the new worker too, so that none is missed from here on;
//! 2. the owner changes, under the lock: the old worker's burst is complete, and its next look is
//!    its last. A burst holds the lock from taking to completing, so the order of frames is kept;
//! 3. the old worker no longer watches the kick;
//! 4. the new one is told to look: a kick that went to the old one before 2 may have been taken
//!    there and not served yet.
//!
//! Sessions start and stop rings while others move: one lock, over the whole of each change, taken
//! before a ring's lock and never after. So a session that stops a ring finds it with one worker.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Token, WorkerHandle};
use crate::port::{PortTable, Queue};
use crate::sys::eventfd::is_readable;

#[cfg(doc)]
use crate::port::RingState;

/// One ring that is served.
struct Served {
    worker: usize,
    kick: Option<Arc<OwnedFd>>,
}

/// All rings that are served.
#[derive(Default)]
struct Spread {
    rings: HashMap<Token, Served>,
    /// Receive and transmit rings of each worker. Counted apart, as the work is with the transmit
    /// rings: rings start in turn, receive and transmit, so counted together all of one kind would
    /// go to every second worker.
    load: Vec<[usize; 2]>,
}

/// Who serves what.
pub struct Assignment {
    workers: Vec<Arc<WorkerHandle>>,
    ports: PortTable,
    spread: Mutex<Spread>,
}

impl Assignment {
    /// No ring is served yet.
    pub fn new(workers: Vec<Arc<WorkerHandle>>, ports: PortTable) -> Assignment {
        let load = vec![[0; 2]; workers.len()];
        let spread = Mutex::new(Spread { load, ..Spread::default() });
        Assignment { workers, ports, spread }
    }

    /// The workers.
    pub fn workers(&self) -> &[Arc<WorkerHandle>] {
        &self.workers
    }

    fn spread(&self) -> MutexGuard<'_, Spread> {
        self.spread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The queue of a guest's ring.
    fn queue(&self, ring: Token) -> Option<&Queue> {
        let (port, index, transmit) = match ring {
            Token::Transmit(port, index) => (port, index, true),
            Token::Receive(port, index) => (port, index, false),
            Token::Wake | Token::Tap(..) => return None,
        };
        let guest = self.ports.get(usize::from(port))?.as_guest()?;
        let queues = if transmit { &guest.tx } else { &guest.rx };
        queues.get(usize::from(index))
    }

    /// Gives a ring that was started to a worker, which looks at it at once and whenever `kick` is
    /// written. An error (no memory for the watch) leaves it with nobody.
    pub fn serve(&self, ring: Token, kick: Option<Arc<OwnedFd>>) -> io::Result<()> {
        let mut spread = self.spread();
        self.remove(&mut spread, ring);
        let (kind, load) = (kind(ring), &spread.load);
        let worker = (0..load.len()).min_by_key(|&i| load[i][kind]).unwrap_or(0);
        self.own(ring, worker, kick.as_deref());
        self.watch(ring, worker, kick.as_deref())?;
        spread.load[worker][kind] += 1;
        spread.rings.insert(ring, Served { worker, kick });
        self.workers[worker].look(ring);
        Ok(())
    }

    /// Replaces the descriptor by which a ring is kicked; nothing if it is not served.
    pub fn set_kick(&self, ring: Token, kick: Option<Arc<OwnedFd>>) -> io::Result<()> {
        let mut spread = self.spread();
        let Some(served) = spread.rings.get_mut(&ring) else {
            return Ok(());
        };
        self.unwatch(served.worker, served.kick.take().as_deref());
        self.own(ring, served.worker, kick.as_deref());
        self.watch(ring, served.worker, kick.as_deref())?;
        served.kick = kick;
        Ok(())
    }

    /// Makes a ring's worker look at it once, without waiting for a kick.
    pub fn look(&self, ring: Token) {
        if let Some(served) = self.spread().rings.get(&ring) {
            self.workers[served.worker].look(ring);
        }
    }

    /// A ring stops: nobody watches its kick any more. Its worker may be in a burst; take the
    /// ring's lock to wait for that.
    pub fn release(&self, ring: Token) {
        self.remove(&mut self.spread(), ring);
    }

    fn remove(&self, spread: &mut Spread, ring: Token) {
        if let Some(served) = spread.rings.remove(&ring) {
            self.unwatch(served.worker, served.kick.as_deref());
            let rings = &mut spread.load[served.worker][kind(ring)];
            *rings = rings.saturating_sub(1);
        }
    }

    /// Moves rings until no worker has two more of a direction than another.
    pub fn rebalance(&self) {
        let mut spread = self.spread();
        for kind in 0..2 {
            // Each move lessens the sum of squares, so there is an end.
            while self.move_one(&mut spread, kind) {}
        }
    }

    /// Moves one ring from the worker with the most to the one with the fewest; false if there is
    /// no need or no ring that can move.
    fn move_one(&self, spread: &mut Spread, ring_kind: usize) -> bool {
        let Spread { rings, load } = spread;
        let of = |&worker: &usize| load[worker][ring_kind];
        let (most, least) = ((0..load.len()).max_by_key(of), (0..load.len()).min_by_key(of));
        let (Some(most), Some(least)) = (most, least) else {
            return false;
        };
        if load[most][ring_kind] < load[least][ring_kind] + 2 {
            return false;
        }
        let mut there = rings
            .iter_mut()
            .filter(|(ring, served)| served.worker == most && kind(**ring) == ring_kind);
        let moved = there.any(|(ring, served)| self.move_to(*ring, served, least));
        if moved {
            load[most][ring_kind] -= 1;
            load[least][ring_kind] += 1;
        }
        moved
    }

    /// Moves a ring; see the top of the file for the order. False if it stays.
    fn move_to(&self, ring: Token, served: &mut Served, worker: usize) -> bool {
        let Some(queue) = self.queue(ring) else {
            return false;
        };
        let kick = served.kick.as_deref();
        if self.watch(ring, worker, kick).is_err() {
            return false;
        }
        let mut state = queue.quiet();
        // What a disabled ring's kick brings is discarded, by a write to memory that its front-end
        // may be saving; the new watch would report a kick again that was served long ago.
        let moves = !state.discard;
        if moves {
            state.owner = Some(worker);
            state.stale_kicks = counted(kick);
        }
        drop(state);
        self.unwatch(if moves { served.worker } else { worker }, kick);
        if moves {
            served.worker = worker;
            self.workers[worker].look(ring);
        }
        moves
    }

    /// Names the owner in the ring's state. What the kick has counted already is reported as an
    /// event when it is watched, but is not a new kick.
    fn own(&self, ring: Token, worker: usize, kick: Option<&OwnedFd>) {
        if let Some(queue) = self.queue(ring) {
            let mut state = queue.quiet();
            state.owner = Some(worker);
            state.stale_kicks = counted(kick);
        }
    }

    fn watch(&self, ring: Token, worker: usize, kick: Option<&OwnedFd>) -> io::Result<()> {
        kick.map_or(Ok(()), |kick| self.workers[worker].watch(kick.as_raw_fd(), ring))
    }

    fn unwatch(&self, worker: usize, kick: Option<&OwnedFd>) {
        if let Some(kick) = kick {
            self.workers[worker].unwatch(kick.as_raw_fd());
        }
    }
}

/// Index of a ring's direction in a load: receive, transmit.
fn kind(ring: Token) -> usize {
    usize::from(matches!(ring, Token::Transmit(..)))
}

/// Events that watching `kick` brings at once.
fn counted(kick: Option<&OwnedFd>) -> u32 {
    kick.map_or(0, |kick| u32::from(is_readable(kick.as_raw_fd())))
}

#[cfg(test)]
mod tests {
    use vmm_sys_util::epoll::EpollEvent;
    use vmm_sys_util::eventfd::EventFd;

    use super::super::Note;
    use super::*;
    use crate::port::Port;
    use crate::sys::descriptor::from_eventfd;

    const PORTS: u16 = 8;

    fn assignment(workers: usize) -> Assignment {
        let handles = (0..workers).map(|_| Arc::new(WorkerHandle::new().unwrap())).collect();
        let ports: Vec<Port> = (0..PORTS).map(|id| Port::guest(id, &id.to_string(), 1)).collect();
        Assignment::new(handles, ports.into())
    }

    fn tx(port: u16) -> Token {
        Token::Transmit(port, 0)
    }

    fn kick() -> (EventFd, Option<Arc<OwnedFd>>) {
        let kick = EventFd::new(libc::EFD_NONBLOCK).unwrap();
        let ours = from_eventfd(kick.try_clone().unwrap());
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

    fn owner(a: &Assignment, port: u16) -> usize {
        a.queue(tx(port)).unwrap().lock().owner.unwrap()
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
            a.queue(tx(port)).unwrap().lock().discard = true;
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
