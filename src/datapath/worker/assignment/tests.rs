//! The placement of rings, and the reasons for moves.

use vmm_sys_util::epoll::EpollEvent;
use vmm_sys_util::eventfd::EventFd;

use super::super::Note;
use super::*;
use crate::port::{Port, Queue, Tx};
use sys::descriptor::from_eventfd;

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

/// Serves the transmit rings of the first `ports` ports. Returns their kick descriptors.
fn serve_first(a: &Assignment, ports: u16) -> Vec<EventFd> {
    let serve = |port| {
        let (kick, ours) = kick();
        a.serve(tx(port), ours).unwrap();
        kick
    };
    (0..ports).map(serve).collect()
}

/// Runs `work` on the transmit queue of a port.
fn on<T>(a: &Assignment, id: u16, work: impl FnOnce(&Queue<Tx>) -> T) -> T {
    work(&a.ports().present()[id].as_guest().unwrap().tx[0])
}

fn owner(a: &Assignment, port: u16) -> usize {
    on(a, port, |queue| queue.lock().vring.owner.unwrap())
}

/// Returns the rings whose kicks worker `worker` gets.
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

/// Returns the numbers of receive and transmit rings of each worker.
fn counts(a: &Assignment) -> Vec<[usize; 2]> {
    let mut counts = vec![[0; 2]; a.workers.len()];
    for (ring, served) in &a.spread().rings {
        counts[served.worker][usize::from(is_transmit(*ring))] += 1;
    }
    counts
}

/// Moves the transmit ring of a port between the two workers. True if the ring moved.
fn shift(a: &Assignment, port: u16, from: usize) -> bool {
    a.shift(Move { ring: tx(port), from, to: 1 - from })
}

/// Returns the sample of a source that took `hundredths` of the last second.
fn took(source: Token, worker: usize, hundredths: u64) -> Sample {
    let load = [hundredths * (clock::cycles_per_second() / 100), 0];
    Sample { load, ..Sample::new(source, worker, 0, true) }
}

#[test]
fn idle_rings_are_spread_by_number_and_by_direction() {
    let a = assignment(3);
    for port in 0..PORTS {
        a.serve(Token::Receive(port, 0), None).unwrap();
        a.serve(tx(port), None).unwrap();
    }
    let mut counts = counts(&a);
    counts.sort();
    assert_eq!(counts, [[2, 2], [3, 3], [3, 3]]);
}

/// An idle ring counts as a hundredth of a second. The first worker has one ring, and three
/// hundredths of load: as much as four idle rings.
#[test]
fn a_ring_starts_at_the_worker_with_the_least_to_do() {
    for busy in [tx(0), Token::Device(9, 0)] {
        let a = assignment(2);
        serve_first(&a, 1);
        a.note_loads(&[took(busy, 0, 3)]);
        for port in 1..PORTS {
            a.serve(tx(port), None).unwrap();
        }
        let owners: Vec<_> = (1..PORTS).map(|port| owner(&a, port)).collect();
        assert_eq!(owners, [1, 1, 1, 1, 0, 1, 0], "{busy:?}");
        // Sources that have become idle, or are gone, no longer count.
        match busy {
            Token::Device(..) => a.note_loads(&[]),
            ring => a.release(ring),
        }
        (5..PORTS).for_each(|port| a.release(tx(port)));
        a.serve(tx(5), None).unwrap();
        assert_eq!(owner(&a, 5), 0, "{busy:?}");
    }
}

#[test]
fn no_ring_starts_at_a_worker_that_takes_nothing() {
    let a = assignment(2);
    a.note_silent(&[false, true]);
    a.note_loads(&[]);
    (0..PORTS).for_each(|port| a.serve(tx(port), None).unwrap());
    assert!((0..PORTS).all(|port| owner(&a, port) == 0));
    // If all are silent, somebody has to have the ring.
    a.note_silent(&[true, true]);
    a.serve(tx(0), None).unwrap();
    assert_eq!(owner(&a, 0), 1);
}

#[test]
fn loads_and_silent_workers_are_forgotten_after_a_long_sleep() {
    let a = assignment(2);
    serve_first(&a, 1);
    a.note_silent(&[false, true]);
    a.note_loads(&[took(Token::Device(9, 0), 1, 3)]);
    let spread = a.spread();
    let later = |nanos| spread.noted.saturating_add(clock::cycles_in(nanos));
    assert_eq!(spread.least_loaded(tx(1), later(0)), 0);
    assert_eq!(spread.least_loaded(tx(1), later(BALANCE_RECENT_NANOS)), 1, "by number");
}

#[test]
fn a_kick_that_was_not_taken_before_the_move_is_seen_after_it() {
    let a = assignment(2);
    let kicks = serve_first(&a, 1);
    kicks[0].write(1).unwrap();
    assert!(shift(&a, 0, 0));
    assert_eq!((events(&a, 0), events(&a, 1)), (vec![], vec![tx(0)]));
}

#[test]
fn a_disabled_ring_stays_where_it_is() {
    let a = assignment(2);
    let kicks = serve_first(&a, 1);
    on(&a, 0, |queue| queue.lock().side.gate.discard = Discard::OnKick);
    assert!(!shift(&a, 0, 0));
    assert_eq!(owner(&a, 0), 0);
    kicks[0].write(1).unwrap();
    assert_eq!((events(&a, 0), events(&a, 1)), (vec![tx(0)], vec![]));
}

#[test]
fn a_ring_moves_for_its_load_if_it_is_where_it_was_seen() {
    let a = assignment(2);
    let kicks = serve_first(&a, 4);
    on(&a, 2, |queue| queue.stats.cycles.add(7));
    let mut costs: Vec<_> = a.costs().iter().map(|s| (s.source, s.worker, s.cycles)).collect();
    costs.sort_by_key(|cost| cost.0.to_bits());
    assert_eq!(costs, [(tx(0), 0, 0), (tx(1), 1, 0), (tx(2), 0, 7), (tx(3), 1, 0)]);
    assert!(!shift(&a, 1, 0), "it is not there");
    assert!(!shift(&a, 7, 0), "it is with nobody");
    notes(&a, 1);
    assert!(shift(&a, 2, 0));
    assert_eq!((counts(&a), owner(&a, 2)), (vec![[0, 1], [0, 3]], 1));
    // The new worker is told to look, and each kick has one listener.
    assert_eq!(notes(&a, 1), [Note::Look(tx(2))]);
    assert_eq!([0, 1].map(|worker| a.workers[worker].stats.moves.get()), [0, 1]);
    kicks[2].write(1).unwrap();
    assert_eq!((events(&a, 0), events(&a, 1)), (vec![], vec![tx(2)]));
    a.release(tx(2));
    kicks[2].write(1).unwrap();
    assert_eq!((events(&a, 0), events(&a, 1)), (vec![], vec![]));
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
    assert_eq!(counts(&a), [[0, 0]]);
}

#[test]
fn rings_come_go_and_move_at_once() {
    let a = assignment(2);
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
                    for other in 0..PORTS {
                        shift(a, other, usize::from(other % 2));
                    }
                    a.release(tx(port));
                }
            });
        }
    });
    assert!(a.spread().rings.is_empty());
    let kicks = serve_first(&a, PORTS);
    kicks.iter().for_each(|kick| kick.write(1).unwrap());
    assert_eq!([0, 1].map(|worker| events(&a, worker).len()), [PORTS as usize / 2; 2]);
}

/// Chooses a worker for a port's rings, like an operator.
fn want(a: &Assignment, port: u16, worker: Option<u16>) {
    a.ports().present()[port].worker.set(worker);
}

#[test]
fn rings_of_a_fixed_port_start_at_its_worker_and_stay() {
    let a = assignment(2);
    (0..3).for_each(|port| want(&a, port, Some(1)));
    serve_first(&a, 3);
    assert_eq!(counts(&a), [[0, 0], [0, 3]]);
    assert!(!shift(&a, 1, 1));
    assert!(a.costs().iter().all(|sample| !sample.may_move));
    assert_eq!(counts(&a), [[0, 0], [0, 3]]);
    // Rings of other ports go to the worker with less load.
    a.serve(tx(3), None).unwrap();
    assert_eq!(owner(&a, 3), 0);
    want(&a, 2, None);
    assert!(shift(&a, 2, 1));
}

#[test]
fn rings_move_when_their_port_is_fixed() {
    let a = assignment(2);
    let kicks = serve_first(&a, 2);
    a.serve(Token::Receive(0, 0), None).unwrap();
    want(&a, 0, Some(1));
    on(&a, 0, |queue| queue.lock().side.gate.discard = Discard::OnKick);
    a.settle();
    assert_eq!(counts(&a), [[0, 1], [1, 1]], "what is disabled stays for now");
    on(&a, 0, |queue| queue.lock().side.gate.discard = Discard::Never);
    notes(&a, 1);
    a.settle();
    assert_eq!((counts(&a), owner(&a, 0)), (vec![[0, 0], [1, 2]], 1));
    assert_eq!(notes(&a, 1), [Note::Look(tx(0))]);
    kicks[0].write(1).unwrap();
    assert_eq!((events(&a, 0), events(&a, 1)), (vec![], vec![tx(0)]));
    // A worker that does not exist counts as no choice.
    want(&a, 0, Some(2));
    a.settle();
    assert_eq!(owner(&a, 0), 1);
    let rings = [tx(0), Token::Receive(0, 0), tx(2)];
    assert_eq!(rings.map(|ring| a.worker_of(ring)), [Some(1), Some(1), None]);
}

/// The call waits for the lock of one ring; a later call moves the other rings.
#[test]
fn rings_whose_lock_is_not_to_be_had_stay_for_now() {
    let a = assignment(2);
    (0..2).for_each(|port| want(&a, port, Some(0)));
    serve_first(&a, 2);
    (0..2).for_each(|port| want(&a, port, Some(1)));
    let present = a.ports().present();
    let held = [0, 1].map(|port| present[port].as_guest().unwrap().tx[0].lock());
    let start = Instant::now();
    a.settle();
    assert!(start.elapsed() >= Duration::from_nanos(LOCK_WAIT_NANOS));
    drop(held);
    assert_eq!(counts(&a), [[0, 2], [0, 0]]);
    a.settle();
    assert_eq!(counts(&a), [[0, 0], [0, 2]]);
}
