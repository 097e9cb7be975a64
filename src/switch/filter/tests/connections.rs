//! States, time-outs, limits and removals of the table.

use super::super::connections::{
    Connections, Event, Gap, Key, Opened, Parts, Place, Seen, Segment, State,
};
use super::super::packet;
use super::*;
use base::limits::{CONNECTIONS_EVICTED, MAX_HALF_OPEN_PER_PORT};

const NOW: Tick = Tick::from_bits(8000);

fn key(port: u16, n: u32) -> Key {
    let local = Place { address: 0x0a00_0001, port: 80 };
    let remote = Place { address: u128::from(0x0b00_0000 + n), port: 1000 };
    Key::new(&Parts { port, protocol: 6, local, remote, ..Parts::default() })
}

fn table() -> Connections {
    let table = Connections::new(CONFIG);
    (0..4).for_each(|port| table.prepare(port));
    table
}

fn at(second: u32) -> Tick {
    Tick::from(NOW.second() + second)
}

fn state(table: &Connections) -> State {
    table.entries(None, NOW)[0].state
}

/// A connection of TCP that sees segments, each from the VM (`true`) or its peer. The first one is
/// from the peer.
fn walk(segments: &[(bool, Segment)]) -> (Connections, Vec<Option<State>>) {
    let table = table();
    let key = key(0, 1);
    let states = segments.iter().map(|&(out, segment)| {
        match table.pass(&table.seek(key, Event::Tcp(segment)), out, NOW) {
            Seen::Unknown(gap) => {
                let opened =
                    table.open((&table.seek(key, Event::Tcp(segment)), gap), out, (0, 1), NOW);
                assert_eq!(opened, Opened::New);
            }
            Seen::Known(_) => {}
            Seen::Invalid | Seen::Again(_) => return None,
        }
        Some(state(&table))
    });
    let states = states.collect();
    (table, states)
}

#[test]
fn tcp_opens_and_closes() {
    use Segment::{Ack, Fin, Syn, SynAck};
    use State::{CloseWait, Established, FinWait, LastAck, SynReceived, SynSent, TimeWait};
    let (table, states) = walk(&[
        (false, Syn),
        (true, SynAck),
        (false, Ack),
        (true, Ack),
        (false, Fin),
        (true, Ack),
        (true, Fin),
        (false, Ack),
    ]);
    let expected =
        [SynSent, SynReceived, Established, Established, FinWait, CloseWait, LastAck, TimeWait];
    assert_eq!(states, expected.map(Some));
    let again = table.pass(&table.seek(key(0, 1), Event::Tcp(Syn)), false, NOW);
    assert!(matches!(again, Seen::Again(_)), "another connection");
}

/// Segments, and the state behind the last one; none if the last one is refused.
type Case<'a> = (&'a [(bool, Segment)], Option<State>);

#[test]
fn segments_out_of_place_change_nothing() {
    use Segment::{Ack, Fin, Rst, Syn, SynAck};
    use State::{Closed, Established, SynReceived, SynSent, SynSent2};
    let cases: &[Case<'_>] = &[
        (&[(false, Syn), (false, Syn)], Some(SynSent)),
        (&[(false, Syn), (false, SynAck)], None),
        // The SYN may be forged, and the connection older.
        (&[(false, Syn), (false, Ack)], Some(Established)),
        (&[(false, Syn), (true, Syn), (false, Ack)], None),
        (&[(false, Syn), (false, Fin)], None),
        (&[(false, Syn), (true, Fin)], None),
        // A half-open connection of an earlier life: its end will be answered by a reset.
        (&[(false, Syn), (true, Ack)], Some(SynSent)),
        (&[(false, Syn), (true, Syn)], Some(SynSent2)),
        (&[(false, Syn), (true, Syn), (false, SynAck)], Some(SynReceived)),
        (&[(false, Syn), (true, SynAck), (true, Ack)], Some(SynReceived)),
        (&[(false, Syn), (true, SynAck), (false, Ack), (true, SynAck)], Some(Established)),
        (&[(false, Syn), (true, SynAck), (false, Ack), (false, Syn)], Some(Established)),
        (&[(false, Syn), (true, SynAck), (false, Ack), (true, Syn)], None),
        (&[(false, Syn), (true, SynAck), (true, Rst)], Some(Closed)),
        (&[(false, Syn), (true, SynAck), (false, SynAck)], Some(SynReceived)),
        (&[(false, Syn), (true, SynAck), (false, Ack), (false, SynAck)], None),
        (&[(false, Ack), (true, Ack)], Some(Established)),
    ];
    for (segments, expected) in cases {
        let (_, states) = walk(segments);
        assert_eq!(states.last(), Some(expected), "{segments:?}");
    }
}

#[test]
fn a_connection_times_out_by_its_state() {
    let (table, _) = walk(&[(false, Segment::Syn)]);
    let seen = |table: &Connections, second| table.quoted(&key(0, 1), at(second)).is_some();
    assert!(seen(&table, 119) && !seen(&table, 121));
    let open = [(false, Segment::Syn), (true, Segment::SynAck), (false, Segment::Ack)];
    let (table, _) = walk(&open);
    assert!(seen(&table, 5 * 86_400 - 1) && !seen(&table, 5 * 86_400 + 1));
    let (table, _) = walk(&[(false, Segment::Ack)]);
    assert!(seen(&table, 299) && !seen(&table, 301), "nobody answered");
    let (table, _) = walk(&[open[0], open[1], open[2], (true, Segment::Rst)]);
    assert!(seen(&table, 9) && !seen(&table, 11));
}

#[test]
fn a_packet_renews_the_time() {
    let (table, _) = walk(&[(false, Segment::Syn), (true, Segment::SynAck)]);
    for second in [50, 100, 150] {
        let seen =
            table.pass(&table.seek(key(0, 1), Event::Tcp(Segment::SynAck)), true, at(second));
        assert!(matches!(seen, Seen::Known(_)) == (second == 50), "ignored: renews nothing");
    }
    let key = Key::new(&Parts { protocol: 17, ..key(0, 1).parts() });
    assert_eq!(
        table.open((&table.seek(key, Event::Datagram), Gap::UNKNOWN), true, (0, 1), at(0)),
        Opened::New
    );
    for second in [25, 50, 75] {
        let seen = table.pass(&table.seek(key, Event::Datagram), true, at(second));
        assert!(matches!(seen, Seen::Known(_)), "{second}");
    }
    assert!(matches!(
        table.pass(&table.seek(key, Event::Datagram), true, at(106)),
        Seen::Unknown(_)
    ));
}

#[test]
fn datagrams_both_ways_become_a_stream() {
    let table = table();
    let key = Key::new(&Parts { protocol: 17, ..key(0, 1).parts() });
    table.open((&table.seek(key, Event::Datagram), Gap::UNKNOWN), true, (0, 1), at(0));
    let entry = |second| table.entries(None, at(second))[0];
    assert_eq!((entry(0).state, entry(0).seconds), (State::Unreplied, 30));
    table.pass(&table.seek(key, Event::Datagram), false, at(1));
    assert_eq!((entry(1).state, entry(1).assured), (State::Replied, false));
    table.pass(&table.seek(key, Event::Datagram), true, at(3));
    assert_eq!((entry(3).state, entry(3).assured, entry(3).seconds), (State::Stream, true, 120));
}

#[test]
fn associations_of_sctp_open_and_end() {
    let table = table();
    let key = Key::new(&Parts { protocol: 132, ..key(0, 1).parts() });
    let data = Event::Sctp(0);
    assert_eq!(
        table.open((&table.seek(key, data), Gap::UNKNOWN), true, (0, 1), NOW),
        Opened::Invalid
    );
    assert_eq!(
        table.open((&table.seek(key, Event::Sctp(1)), Gap::UNKNOWN), true, (0, 1), NOW),
        Opened::New
    );
    let steps = [
        (false, 2, State::CookieWait),
        (true, 10, State::CookieEchoed),
        (false, 11, State::Association),
        (true, 0, State::Association),
        (true, 7, State::Shutdown),
        (false, 8, State::Shutdown),
        (true, 14, State::Closed),
    ];
    for (out, chunk, expected) in steps {
        table.pass(&table.seek(key, Event::Sctp(chunk)), out, NOW);
        assert_eq!(state(&table), expected, "{chunk}");
    }
}

#[test]
fn no_port_takes_the_room_of_another() {
    let table = table();
    let open = |port, n| {
        table.open(
            (&table.seek(key(port, n), Event::Tcp(Segment::Ack)), Gap::UNKNOWN),
            true,
            (0, 1),
            NOW,
        )
    };
    // Two ports want all.
    for n in 0..2000 {
        (0..2).for_each(|port| _ = open(port, n));
    }
    let each = CONFIG.max_entries as usize / 3;
    assert!((0..2).all(|port| table.port_len(port).abs_diff(each) <= 1));
    for port in 2..4 {
        let opened = (0..CONFIG.reserved_per_port).all(|n| open(port, n) == Opened::New);
        assert!(opened, "the port's reserve");
        for n in 0..CONFIG.reserved_per_port {
            assert!(table.quoted(&key(port, n), NOW).is_some());
        }
    }
    assert_eq!(open(4, 0), Opened::Full, "no such port");
}

#[test]
fn what_has_timed_out_is_swept_and_its_room_is_free() {
    let table = table();
    let open = |n, now| {
        table.open(
            (&table.seek(key(0, n), Event::Tcp(Segment::Syn)), Gap::UNKNOWN),
            true,
            (0, 1),
            now,
        )
    };
    (0..20).for_each(|n| assert_eq!(open(n, at(0)), Opened::New));
    (20..30).for_each(|n| assert_eq!(open(n, at(100)), Opened::New));
    let sweep = |now| (0..table.sweep_steps()).map(|step| table.sweep(step, now)).sum::<usize>();
    assert_eq!((sweep(at(100)), table.len()), (0, 30));
    assert_eq!((sweep(at(150)), table.len(), table.port_len(0)), (20, 10, 10));
    assert_eq!(table.entries(None, at(150)).len(), 10);
    // A key that has timed out and was not swept is taken over.
    assert_eq!(open(25, at(300)), Opened::New);
    assert_eq!((table.len(), table.entries(None, at(300)).len()), (10, 1));
}

#[test]
fn flushing_removes_what_is_wanted() {
    let table = table();
    for n in 0..5 {
        (0..2).for_each(|port| {
            table.open(
                (&table.seek(key(port, n), Event::Tcp(Segment::Syn)), Gap::UNKNOWN),
                true,
                (0, 1),
                NOW,
            );
        });
    }
    assert_eq!(table.flush(|parts| parts.remote.address == 0x0b00_0003), 2);
    assert_eq!(table.close_port(1), 4);
    assert_eq!((table.port_len(0), table.port_len(1), table.len()), (4, 0, 4));
    assert!(table.entries(Some(1), NOW).is_empty());
    assert_eq!(table.entries(Some(0), NOW).len(), 4);
}

#[test]
fn a_slot_is_not_taken_for_the_one_before() {
    let table = table();
    let open = |n| {
        table.open(
            (&table.seek(key(0, n), Event::Tcp(Segment::Syn)), Gap::UNKNOWN),
            true,
            (0, 1),
            NOW,
        )
    };
    open(1);
    let known = table.quoted(&key(0, 1), NOW).unwrap();
    assert!(table.end(&key(0, 1), known.slot));
    assert!(!table.end(&key(0, 1), known.slot), "gone");
    open(1);
    assert!(!table.end(&key(0, 1), known.slot), "another in its place");
    table.renew(&known, 5, 9);
    assert_eq!(table.quoted(&key(0, 1), NOW).map(|known| known.rule), Some(0));
}

#[test]
fn a_clock_that_is_behind_ends_no_connection() {
    let (table, _) = walk(&[(false, Segment::Syn), (true, Segment::SynAck), (false, Segment::Ack)]);
    for second in [100, 10, 200, 0] {
        let seen = table.pass(&table.seek(key(0, 1), Event::Tcp(Segment::Ack)), true, at(second));
        assert!(matches!(seen, Seen::Known(_)), "{second}");
    }
}

#[test]
fn events_come_from_packets() {
    let rst = super::packet(&tcp(("10.0.0.1", 1), ("10.0.0.2", 2), RST));
    assert_eq!(rst.key(0, In).unwrap().1, Event::Tcp(packet::Segment::Rst));
}

/// Four ports want all; the fifth port still gets connections beyond its reserve.
#[test]
fn ports_that_want_all_leave_room_for_one_more() {
    let config = ConnectionsConfig { max_entries: 100, max_per_port: 100, ports: 5, ..CONFIG };
    let table = Connections::new(config);
    (0..5).for_each(|port| table.prepare(port));
    let open = |port, n| {
        table.open(
            (&table.seek(key(port, n), Event::Tcp(Segment::Ack)), Gap::UNKNOWN),
            true,
            (0, 1),
            NOW,
        )
    };
    for n in 0..1000 {
        (0..4).for_each(|port| _ = open(port, n));
    }
    let each = (0..4).map(|port| table.port_len(port)).collect::<Vec<_>>();
    assert_eq!(each, [20; 4], "a fifth of the table each");
    assert!((0..10).all(|n| open(4, n) == Opened::New));
}

/// A host that resets a connection sends nothing more, so a RST in front of an ACK is forged.
#[test]
fn a_forged_reset_ends_no_connection() {
    use Segment::{Ack, Fin, Rst, Syn, SynAck};
    let open = [(false, Syn), (true, SynAck), (false, Ack), (true, Ack)];
    let last = |more: &[(bool, Segment)]| walk(&[&open, more].concat()).1.last().copied().flatten();
    for forged in [false, true] {
        assert_eq!(last(&[(forged, Rst)]), Some(State::Closed));
        assert_eq!(last(&[(forged, Rst), (forged, Ack)]), Some(State::Established));
        assert_eq!(last(&[(forged, Rst), (!forged, Ack)]), Some(State::Closed), "on its way");
        assert_eq!(last(&[(forged, Rst), (forged, Rst), (forged, Ack)]), Some(State::Established));
        assert_eq!(last(&[(forged, Rst), (forged, Fin)]), Some(State::Closed));
    }
    let refused = walk(&[(false, Syn), (true, SynAck), (true, Rst), (true, Ack)]).1;
    assert_eq!(refused.last(), Some(&Some(State::Closed)), "the connection was never open");
    let (table, _) = walk(&[&open[..], &[(false, Rst), (false, Ack)]].concat());
    assert!(table.entries(None, NOW)[0].assured);
}

/// A ring may take a burst back, so a frame is judged twice; a host repeats a FIN, too.
#[test]
fn a_repeated_fin_is_one_fin() {
    use Segment::{Ack, Fin, Syn, SynAck};
    let open = [(false, Syn), (true, SynAck), (false, Ack)];
    let last = |more: &[(bool, Segment)]| walk(&[&open, more].concat()).1.last().copied().flatten();
    for by in [false, true] {
        assert_eq!(last(&[(by, Fin), (by, Fin)]), Some(State::FinWait));
        assert_eq!(last(&[(by, Fin), (by, Fin), (!by, Ack)]), Some(State::CloseWait));
        assert_eq!(last(&[(by, Fin), (!by, Ack), (by, Fin)]), Some(State::CloseWait));
        assert_eq!(last(&[(by, Fin), (!by, Fin)]), Some(State::LastAck));
        assert_eq!(last(&[(by, Fin), (!by, Fin), (by, Ack)]), Some(State::TimeWait));
    }
}

/// Versions of a slot repeat after four million connections: an old note of a slot may look right.
#[test]
fn a_port_evicts_its_own_connections_alone() {
    let config =
        ConnectionsConfig { max_entries: 1, max_per_port: 1, reserved_per_port: 1, ..CONFIG };
    let table = Connections::new(config);
    (0..4).for_each(|port| table.prepare(port));
    let open = |port, n| {
        table.open(
            (&table.seek(key(port, n), Event::Tcp(Segment::Syn)), Gap::UNKNOWN),
            true,
            (0, 1),
            NOW,
        )
    };
    let slot = |port, n| table.quoted(&key(port, n), NOW).unwrap().slot;
    assert_eq!(open(1, 1), Opened::New);
    // As port 0 would have noted the slot that many connections ago.
    let listed = slot(1, 1);
    assert!(!table.evict(0, listed));
    assert_eq!((table.port_len(1), table.len()), (1, 1));
    assert!(table.evict(1, listed));
}

#[test]
fn a_worker_a_tick_behind_makes_no_stream() {
    let table = table();
    let pass = |out, now| match table.pass(&table.seek(key(0, 1), Event::Datagram), out, now) {
        Seen::Unknown(gap) => {
            _ = table.open((&table.seek(key(0, 1), Event::Datagram), gap), out, (0, 1), now)
        }
        seen => assert!(matches!(seen, Seen::Known(_)), "{seen:?}"),
    };
    pass(true, NOW);
    let behind = Tick::from_bits(NOW.to_bits() - 1);
    [false, true, false].into_iter().for_each(|out| pass(out, behind));
    assert_eq!(state(&table), State::Replied);
}

/// A burst that goes back to its ring repeats the reset.
#[test]
fn a_reset_before_any_answer_may_be_repeated_and_nothing_else_goes_on() {
    let (key, rst) = (key(0, 1), Event::Tcp(Segment::Rst));
    for (first, by_first) in [(Segment::Syn, false), (Segment::Syn, true), (Segment::Ack, true)] {
        let table = table();
        assert_eq!(
            table.open((&table.seek(key, Event::Tcp(first)), Gap::UNKNOWN), true, (0, 1), NOW),
            Opened::New
        );
        for _ in 0..3 {
            assert!(matches!(table.pass(&table.seek(key, rst), by_first, NOW), Seen::Known(_)));
        }
        for segment in [Segment::Ack, Segment::Fin, Segment::SynAck, Segment::Syn] {
            for from in [false, true] {
                let seen = table.pass(&table.seek(key, Event::Tcp(segment)), from, NOW);
                assert!(matches!(seen, Seen::Again(_)), "as if the connection was unknown");
            }
        }
        assert!(matches!(table.pass(&table.seek(key, rst), by_first, NOW), Seen::Known(_)));
        assert!(matches!(table.pass(&table.seek(key, rst), by_first, at(11)), Seen::Unknown(_)));
    }
    let table = table();
    assert_eq!(
        table.open((&table.seek(key, Event::Sctp(1)), Gap::UNKNOWN), true, (0, 1), NOW),
        Opened::New
    );
    for _ in 0..2 {
        assert!(matches!(table.pass(&table.seek(key, Event::Sctp(6)), false, NOW), Seen::Known(_)));
    }
    assert!(matches!(table.pass(&table.seek(key, Event::Sctp(2)), false, NOW), Seen::Again(_)));
}

#[test]
#[cfg_attr(
    miri,
    ignore = "thousands of connections, no other access to memory than in other tests"
)]
fn a_full_list_of_half_open_connections_gives_up_its_oldest() {
    let table = Connections::new(ConnectionsConfig::limited(2, [1, 2, 3, 4]));
    table.prepare(0);
    let key = |n: usize| {
        let remote = Place { address: n as u128, port: 9 };
        Key::new(&Parts { protocol: 6, remote, ..Parts::default() })
    };
    let open = |n| {
        table.open(
            (&table.seek(key(n), Event::Tcp(Segment::Syn)), Gap::UNKNOWN),
            false,
            (0, 1),
            NOW,
        )
    };
    for n in 0..=MAX_HALF_OPEN_PER_PORT {
        assert_eq!(open(n), Opened::New);
    }
    let is_known = |n| table.quoted(&key(n), NOW).is_some();
    assert!((0..CONNECTIONS_EVICTED).all(|n| !is_known(n)), "the oldest");
    assert!((CONNECTIONS_EVICTED..=MAX_HALF_OPEN_PER_PORT).all(is_known));
    assert_eq!(table.len(), MAX_HALF_OPEN_PER_PORT + 1 - CONNECTIONS_EVICTED);
}
