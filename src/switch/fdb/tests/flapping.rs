//! A flapping address stays where it was, and other addresses are not affected.

use super::*;
use base::limits::{FDB_FLAPS, FDB_HOLD_SECONDS};

/// Moves the address between these ports, as often as moves are followed in one second.
fn flap(fdb: &Fdb, mac: MacAddr, ports: [PortId; 2], now: u32) {
    for n in 1..FDB_FLAPS as usize {
        let (from, port) = (ports[(n + 1) % 2], ports[n % 2]);
        assert_eq!(fdb.learn(mac, port, now), Learn::Moved { from });
    }
}

/// Five moves a second are too many: the port that had the address first keeps the address.
#[test]
fn an_address_that_flaps_stays_with_its_first_port() {
    let fdb = table();
    fdb.learn(station(1), 3, 10);
    flap(&fdb, station(1), [3, 4], 10);
    let generation = fdb.generation();
    let until = 10 + FDB_HOLD_SECONDS;
    for now in 10..=until {
        assert_eq!(fdb.held(station(1), 4, now), Some(3));
        assert_eq!(fdb.learn(station(1), 4, now), Learn::Held { at: 3 });
        assert_eq!(fdb.learn(station(1), 5, now), Learn::Held { at: 3 });
        assert!(fdb.learn(station(1), 3, now).is_in_table());
        assert_eq!(fdb.lookup(station(1)), Some(3));
        assert_eq!(fdb.held(station(1), 3, now), None, "it is there");
    }
    assert_eq!(fdb.generation(), generation, "nothing moved");
    assert_eq!((fdb.entries(until)[0].held, fdb.entries(until + 1)[0].held), (true, false));
    assert_eq!(fdb.learn(station(1), 4, until + 1), Learn::Moved { from: 3 });
    assert_consistent(&fdb);
}

/// Neither the port at the last move nor the port that took the address unnoticed has an advantage.
#[test]
fn an_address_goes_back_from_whatever_port_has_it() {
    let fdb = table();
    fdb.learn(station(1), 3, 10);
    // Moved in one second; the owner's next frame is the first move of the next second.
    assert_eq!(fdb.learn(station(1), 4, 10), Learn::Moved { from: 3 });
    for n in 1..FDB_FLAPS as usize {
        fdb.learn(station(1), [4, 3][n % 2], 11);
    }
    assert_eq!(fdb.lookup(station(1)), Some(4));
    let before = fdb.generation();
    assert_eq!(fdb.held(station(1), 5, 11), Some(3), "with the next move");
    assert_eq!(fdb.learn(station(1), 5, 11), Learn::Held { at: 3 });
    assert!(fdb.generation() > before, "it moved back");
    assert_eq!((fdb.port_len(3), fdb.port_len(4), fdb.port_len(5)), (1, 0, 0));
    assert_eq!(fdb.learn(station(1), 4, 12), Learn::Held { at: 3 });
    assert_consistent(&fdb);
}

/// The owner's own frame may be the last move.
#[test]
fn the_first_port_takes_an_address_back_itself() {
    let fdb = table();
    fdb.learn(station(1), 3, 10);
    fdb.learn(station(1), 4, 10);
    for n in 1..=FDB_FLAPS as usize {
        assert!(fdb.learn(station(1), [4, 3][n % 2], 11).is_in_table(), "{n}");
    }
    assert_eq!(fdb.lookup(station(1)), Some(3));
    assert_eq!(fdb.learn(station(1), 4, 11), Learn::Held { at: 3 });
}

/// A machine migrates and comes back; a virtual address fails over every other second.
#[test]
fn what_moves_now_and_then_is_followed() {
    let fdb = table();
    fdb.learn(station(1), 3, 10);
    for (now, port) in [(10, 4), (10, 3), (11, 4), (13, 3), (14, 4), (15, 3), (16, 4), (17, 3)] {
        assert!(matches!(fdb.learn(station(1), port, now), Learn::Moved { .. }), "{now}");
        // The address is announced five times.
        assert!((0..5).all(|_| fdb.learn(station(1), port, now) == Learn::Known));
    }
}

/// Other flapping addresses, in any number, do not affect a flapping address.
#[test]
fn each_address_has_a_record_of_its_own() {
    let fdb = table();
    for n in 0..100 {
        fdb.learn(station(n), 3, 10);
    }
    for n in 0..100 {
        flap(&fdb, station(n), [3, 4], 10);
    }
    assert!((0..100).all(|n| fdb.learn(station(n), 4, 10) == Learn::Held { at: 3 }));
    assert!((0..100).all(|n| fdb.learn(station(n), 3, 15) == Learn::Refreshed));
    assert!((0..100).all(|n| fdb.learn(station(n), 4, 15) == Learn::Held { at: 3 }));
}

/// An address that was flushed or configured is no longer held: the next address in the slot begins
/// anew.
#[test]
fn nothing_is_left_of_an_address_that_is_forgotten() {
    let begun = || {
        let fdb = table();
        fdb.learn(station(1), 3, 10);
        flap(&fdb, station(1), [3, 4], 10);
        assert_eq!(fdb.learn(station(1), 4, 10), Learn::Held { at: 3 });
        fdb
    };
    let fdb = begun();
    assert_eq!(fdb.flush_port(3), 1);
    assert_eq!(fdb.learn(station(1), 4, 10), Learn::Inserted);
    assert_eq!(fdb.learn(station(1), 3, 10), Learn::Moved { from: 4 });
    let fdb = begun();
    fdb.insert_static(station(1), 4).unwrap();
    assert_eq!(fdb.learn(station(1), 3, 10), Learn::Static);
    assert!(!fdb.entries(10)[0].held && fdb.remove_static(station(1), 4));
    assert_eq!(fdb.learn(station(1), 3, 10), Learn::Inserted);
    let fdb = begun();
    assert_eq!((fdb.age(11 + AGE), fdb.learn(station(1), 4, 12)), (1, Learn::Inserted));
    assert!(!fdb.entries(12)[0].held);
    let fdb = begun();
    assert_eq!(fdb.close_port(3), 1);
    assert_eq!(fdb.learn(station(1), 4, 10), Learn::Inserted);
}

/// A port that goes while another port has its address gets the address back as any new port would.
#[test]
fn no_address_goes_back_to_a_port_that_is_gone() {
    for gone in [Fdb::flush_port, Fdb::close_port] {
        let fdb = table();
        fdb.learn(station(1), 3, 10);
        fdb.learn(station(1), 4, 10);
        assert_eq!(gone(&fdb, 3), 0);
        for n in 1..FDB_FLAPS as usize {
            fdb.learn(station(1), [4, 5][n % 2], 10);
        }
        assert_eq!(fdb.learn(station(1), 6, 10), Learn::Held { at: 4 });
    }
}

/// The first port may have reached its cap meanwhile.
#[test]
fn an_address_stays_where_it_is_if_its_first_port_has_no_room() {
    let fdb = Fdb::new(FdbConfig { max_per_port: 1, ..config() });
    fdb.learn(station(1), 3, 10);
    assert_eq!(fdb.learn(station(1), 4, 10), Learn::Moved { from: 3 });
    assert_eq!(fdb.learn(station(2), 3, 10), Learn::Inserted);
    for n in 1..FDB_FLAPS as usize - 1 {
        assert!(fdb.learn(station(1), [4, 5][n % 2], 10).is_in_table(), "{n}");
    }
    let at = fdb.lookup(station(1)).unwrap();
    let other = if at == 4 { 5 } else { 4 };
    assert_eq!(fdb.learn(station(1), 3, 10), Learn::PortFull);
    assert_eq!(fdb.learn(station(1), other, 10), Learn::Held { at });
    assert_eq!(fdb.learn(station(1), other, 11), Learn::Held { at });
    assert_consistent(&fdb);
}

/// A full bucket displaces an address of the same port, and the address's record of moves.
#[test]
fn an_address_that_displaces_another_begins_anew() {
    let fdb = table();
    let crowd = neighbours(&fdb, 9);
    crowd[..8].iter().for_each(|mac| _ = fdb.learn(*mac, 3, 10));
    for mac in &crowd[..8] {
        flap(&fdb, *mac, [3, 4], 10);
        assert_eq!(fdb.learn(*mac, 4, 10), Learn::Held { at: 3 });
    }
    assert_eq!(fdb.learn(crowd[8], 3, 10), Learn::Inserted);
    assert_eq!(fdb.learn(crowd[8], 4, 10), Learn::Moved { from: 3 });
}

/// Returns the tick at so many milliseconds.
fn ms(millis: u32) -> Tick {
    Tick::new(millis / 1000, millis % 1000 * 1_000_000)
}

/// Port 3 had the address, which flapped between ports 3 and 4 at second 10 until it was held.
fn held_at_3() -> Fdb {
    let fdb = table();
    fdb.learn(station(1), 3, 10);
    flap(&fdb, station(1), [3, 4], 10);
    assert_eq!(fdb.learn(station(1), 4, 10), Learn::Held { at: 3 });
    fdb
}

/// Two routers had one address, and one of them gives up.
#[test]
fn a_hold_ends_when_its_port_has_been_silent_for_a_second() {
    let fdb = held_at_3();
    for now in (10_000..12_000).step_by(100) {
        assert!(fdb.learn(station(1), 3, ms(now)).is_in_table());
        assert_eq!(fdb.learn(station(1), 4, ms(now + 50)), Learn::Held { at: 3 });
    }
    // The owner is silent since 11.9 s.
    let generation = fdb.generation();
    for now in (12_000..12_900).step_by(100) {
        assert_eq!(fdb.held(station(1), 4, ms(now)), Some(3), "{now}");
        assert_eq!(fdb.learn(station(1), 4, ms(now)), Learn::Held { at: 3 }, "{now}");
    }
    assert_eq!(fdb.generation(), generation);
    assert_eq!(fdb.held(station(1), 4, ms(13_100)), None);
    assert_eq!(fdb.learn(station(1), 4, ms(13_100)), Learn::Moved { from: 3 });
    assert_eq!(fdb.lookup(station(1)), Some(4));
    assert!(fdb.generation() > generation, "what is remembered of it is void");
    assert!(!fdb.entries(ms(13_100))[0].held);
    assert_eq!(fdb.learn(station(1), 4, ms(13_100)), Learn::Known);
    assert_consistent(&fdb);
}

/// The owner sends seldom, but more than once a second, whoever else sends.
#[test]
fn a_hold_stays_while_its_port_sends() {
    let fdb = held_at_3();
    for now in (10_000..20_500).step_by(50) {
        if now % 850 == 0 {
            assert!(fdb.learn(station(1), 3, ms(now)).is_in_table(), "{now}");
        }
        assert_eq!(fdb.learn(station(1), 4, ms(now)), Learn::Held { at: 3 }, "{now}");
    }
}

/// A station has sent a broadcast, whose frames go round between two ports for ever.
#[test]
fn a_loop_of_two_ports_takes_no_address_of_a_silent_one() {
    let fdb = held_at_3();
    for now in (10_000..20_500).step_by(50) {
        for port in [4, 5] {
            assert_eq!(fdb.held(station(1), port, ms(now)), Some(3));
            assert_eq!(fdb.learn(station(1), port, ms(now)), Learn::Held { at: 3 }, "{now}");
        }
    }
}

/// A guest that always sends from its neighbour's address has the address only while the neighbour
/// is silent: one frame of the neighbour gets it back, and keeps it for a second.
#[test]
fn an_attacker_loses_an_address_with_its_owners_next_frame() {
    let fdb = held_at_3();
    let mut taken = 0;
    for now in (10_000..60_000).step_by(50) {
        let since = now % 2_000;
        if since == 0 {
            assert!(fdb.learn(station(1), 3, ms(now)).is_in_table(), "{now}");
        }
        let answer = fdb.learn(station(1), 4, ms(now));
        if since <= 1_000 {
            assert_eq!(answer, Learn::Held { at: 3 }, "{now}");
            assert_eq!(fdb.lookup(station(1)), Some(3), "{now}");
        }
        taken += u32::from(matches!(answer, Learn::Moved { .. }));
    }
    assert!(taken >= 20, "once in each silence: {taken}");
    assert_consistent(&fdb);
}

/// A port at its cap gets no address when the address's hold ends either.
#[test]
fn a_hold_does_not_end_for_a_port_without_room() {
    let fdb = held_at_3();
    fdb.set_port_cap(4, 0);
    assert_eq!(fdb.learn(station(1), 4, 13), Learn::PortFull);
    fdb.set_port_cap(4, 1);
    assert_eq!(fdb.learn(station(1), 4, 14), Learn::Moved { from: 3 });
    assert_consistent(&fdb);
}

/// The port of a hold refreshes while another port's frame ends the hold: one of the two fails.
#[test]
fn a_frame_of_its_port_at_the_last_moment_keeps_a_hold() {
    let fdb = held_at_3();
    let found = fdb.slots.find(fdb.slots.home(station(1).into())).unwrap();
    let (moves, seen) = (fdb.slots.moves(found.slot), fdb.seen(found.slot));
    assert!(moves.lapse(4, seen, ms(12_000)));
    assert_eq!(fdb.refresh(found, ms(12_000)), Some(Learn::Refreshed));
    assert_eq!(fdb.relocate(found, station(1).into(), 4, ms(12_000)), Learn::Held { at: 3 });
    // The refresh came after the other port's look at the stamp.
    let ended = fdb.end_hold(found, seen, station(1).into(), 4, ms(12_000));
    assert_eq!((ended, fdb.lookup(station(1))), (Learn::Held { at: 3 }, Some(3)));
    assert_eq!(fdb.seen(found.slot), ms(12_000));
}

#[test]
fn without_damping_every_move_is_followed() {
    let fdb = Fdb::new(FdbConfig { damping: false, ..config() });
    fdb.learn(station(1), 3, 10);
    for n in 0..100 {
        let (from, port) = ([3, 4][n % 2], [4, 3][n % 2]);
        assert_eq!(fdb.held(station(1), port, 10), None);
        assert_eq!(fdb.learn(station(1), port, 10), Learn::Moved { from });
    }
    assert!(!fdb.entries(10)[0].held);
}
