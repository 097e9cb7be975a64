//! Where rings go, and what moves them.

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
        let busy = Sample { source: tx(0), worker: 0, cycles: 0, may_move: true };
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

#[test]
fn a_ring_starts_at_the_worker_of_its_port_or_with_the_fewest() {
    let load = [[3, 0], [1, 2], [2, 1]];
    assert_eq!([0, 1].map(|kind| choose(None, &load, kind)), [1, 0]);
    assert_eq!([0, 1].map(|kind| choose(Some(2), &load, kind)), [2, 2]);
}

/// Wants a port's rings served by a worker.
fn want(a: &Assignment, port: u16, worker: Option<u16>) {
    a.ports().present()[port].worker.set(worker);
}

#[test]
fn rings_of_a_fixed_port_start_at_its_worker_and_stay() {
    let a = assignment(2);
    (0..3).for_each(|port| want(&a, port, Some(1)));
    serve_first(&a, 3);
    assert_eq!(a.spread().load, [[0, 0], [0, 3]]);
    a.rebalance();
    assert!(!a.shift(Move { ring: tx(1), from: 1, to: 0 }));
    assert!(a.costs().iter().all(|sample| !sample.may_move));
    assert_eq!(a.spread().load, [[0, 0], [0, 3]]);
    // Others go where there are fewer, and are evened out beside them.
    a.serve(tx(3), None).unwrap();
    assert_eq!(owner(&a, 3), 0);
    want(&a, 2, None);
    a.rebalance();
    assert_eq!([0, 1, 2, 3].map(|port| owner(&a, port)), [1, 1, 0, 0]);
}

#[test]
fn a_full_worker_of_fixed_rings_keeps_no_others_from_being_evened_out() {
    let a = assignment(3);
    (0..4).for_each(|port| want(&a, port, Some(0)));
    (4..7).for_each(|port| want(&a, port, Some(1)));
    serve_first(&a, 7);
    (4..7).for_each(|port| want(&a, port, None));
    a.rebalance();
    assert_eq!(a.spread().load, [[0, 4], [0, 2], [0, 1]]);
}

#[test]
fn rings_move_when_their_port_is_fixed() {
    let a = assignment(2);
    let kicks = serve_first(&a, 2);
    a.serve(Token::Receive(0, 0), None).unwrap();
    want(&a, 0, Some(1));
    on(&a, 0, |queue| queue.lock().side.gate.discard = Discard::OnKick);
    a.settle();
    assert_eq!(a.spread().load, [[0, 1], [1, 1]], "what is disabled stays for now");
    on(&a, 0, |queue| queue.lock().side.gate.discard = Discard::Never);
    notes(&a, 1);
    a.settle();
    assert_eq!((a.spread().load.clone(), owner(&a, 0)), (vec![[0, 0], [1, 2]], 1));
    assert_eq!(notes(&a, 1), [Note::Look(tx(0))]);
    kicks[0].write(1).unwrap();
    assert_eq!((events(&a, 0), events(&a, 1)), (vec![], vec![tx(0)]));
    // A worker that there is not is none.
    want(&a, 0, Some(2));
    a.settle();
    assert_eq!(owner(&a, 0), 1);
    let mut served = a.of_port(0);
    served.sort_by_key(|(direction, ..)| *direction as u8);
    assert_eq!(served, [(Direction::In, 0, 1), (Direction::Out, 0, 1)]);
}

/// The lock of one ring is waited for, and the others come with a later look.
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
    assert_eq!(a.spread().load, [[0, 2], [0, 0]]);
    a.settle();
    assert_eq!(a.spread().load, [[0, 0], [0, 2]]);
}
