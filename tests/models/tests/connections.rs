//! The table of connections: its own code, under every interleaving. And under every reordering
//! that loom tries, up to three preemptions.

use loom::sync::Arc;
use loom::thread;
use vioswitch_models::loomed;
use vioswitch_models::switch::fdb::Tick;
use vioswitch_models::switch::filter::connections::{
    Connections, ConnectionsConfig, Event, Gap, Key, Opened, Parts, Place, Seen, Segment,
};

const NOW: Tick = Tick::from_bits(8000);

fn model(check: impl Fn() + Sync + Send + 'static) {
    loomed::model(3, check);
}

/// A table of eight slots, which are both buckets of every connection.
fn table() -> Arc<Connections> {
    let table = Connections::new(ConnectionsConfig {
        max_entries: 6,
        max_per_port: 6,
        reserved_per_port: 1,
        ports: 2,
        key: [1, 2, 3, 4],
    });
    table.prepare(0);
    Arc::new(table)
}

fn key(n: u16) -> Key {
    let remote = Place { address: 7, port: n };
    Key::new(&Parts { protocol: 6, remote, ..Parts::default() })
}

fn open(table: &Connections, n: u16, segment: Segment) -> Opened {
    table.open((&table.seek(key(n), Event::Tcp(segment)), Gap::UNKNOWN), false, (n, 1), NOW)
}

/// Begins a connection as a worker does: by what the search has seen.
fn begin(table: &Connections, n: u16) -> Opened {
    let sought = table.seek(key(n), Event::Tcp(Segment::Syn));
    match table.pass(&sought, false, NOW) {
        Seen::Unknown(gap) => table.open((&sought, gap), false, (n, 1), NOW),
        _ => Opened::Known,
    }
}

fn pass(table: &Connections, n: u16, segment: Segment, out: bool) -> Seen {
    table.pass(&table.seek(key(n), Event::Tcp(segment)), out, NOW)
}

/// Counts agree with the entries, and no connection is there twice.
fn assert_consistent(table: &Connections) {
    let entries = table.entries(None, NOW);
    for (i, entry) in entries.iter().enumerate() {
        let twice = entries[..i].iter().any(|other| other.parts == entry.parts);
        assert!(!twice, "a connection twice");
    }
    assert_eq!((table.len(), table.port_len(0)), (entries.len(), entries.len()));
}

/// A packet never meets the entry of another connection, while the other connection is given the
/// slot, and the reverse.
#[test]
fn a_packet_meets_its_own_connection() {
    for (n, out) in [(1, true), (2, false)] {
        model(move || {
            let table = table();
            open(&table, 1, Segment::Ack);
            let writer = {
                let table = Arc::clone(&table);
                thread::spawn(move || {
                    table.flush(|_| true);
                    open(&table, 2, Segment::Ack);
                })
            };
            match pass(&table, n, Segment::Ack, out) {
                Seen::Known(known) => assert_eq!(known.rule, n),
                other => assert!(matches!(other, Seen::Unknown(_))),
            }
            writer.join().unwrap();
            assert_consistent(&table);
        });
    }
}

/// Two workers see the first packet of a connection: it has one entry.
#[test]
fn a_connection_has_one_entry() {
    model(|| {
        let table = table();
        let other = {
            let table = Arc::clone(&table);
            thread::spawn(move || begin(&table, 1))
        };
        let mine = begin(&table, 1);
        let theirs = other.join().unwrap();
        assert!([mine, theirs].contains(&Opened::New), "{mine:?} {theirs:?}");
        assert_ne!((mine, theirs), (Opened::New, Opened::New));
        assert_consistent(&table);
    });
}

/// Two workers see the same slot unused, each for another connection.
#[test]
fn a_slot_goes_to_one_connection() {
    model(|| {
        let table = table();
        let other = {
            let table = Arc::clone(&table);
            thread::spawn(move || begin(&table, 1))
        };
        let opened = [begin(&table, 2), other.join().unwrap()];
        let new = opened.iter().filter(|one| **one == Opened::New).count();
        assert!(new > 0 && !opened.contains(&Opened::Full), "{opened:?}");
        assert_eq!(table.len(), new);
        assert_consistent(&table);
    });
}

/// Segments of both ends at once: the state is that of some order.
#[test]
fn both_ends_move_the_state_on() {
    model(|| {
        let table = table();
        open(&table, 1, Segment::Ack);
        let other = {
            let table = Arc::clone(&table);
            thread::spawn(move || pass(&table, 1, Segment::Fin, true))
        };
        let mine = pass(&table, 1, Segment::Fin, false);
        let theirs = other.join().unwrap();
        assert!(matches!((mine, theirs), (Seen::Known(_), Seen::Known(_))));
        let entry = table.entries(None, NOW)[0];
        assert_eq!((entry.state.name(), entry.replied), ("last-ack", true));
    });
}

/// A connection that is pushed out while it opens is gone or open, and counted once.
#[test]
fn making_room_meets_the_answer() {
    model(|| {
        let table = table();
        open(&table, 1, Segment::Syn);
        open(&table, 2, Segment::Syn);
        let other = {
            let table = Arc::clone(&table);
            // The list of half-open connections is full: the oldest goes.
            thread::spawn(move || open(&table, 3, Segment::Syn))
        };
        let answered = pass(&table, 1, Segment::SynAck, true);
        other.join().unwrap();
        assert!(matches!(answered, Seen::Known(_) | Seen::Unknown(_)));
        assert_consistent(&table);
    });
}

/// Two workers list connections in a full list: each takes other connections, which are counted
/// once, and the new ones stay.
#[test]
fn a_full_list_meets_two_workers() {
    model(|| {
        let table = table();
        open(&table, 1, Segment::Syn);
        open(&table, 2, Segment::Syn);
        let other = {
            let table = Arc::clone(&table);
            thread::spawn(move || open(&table, 3, Segment::Syn))
        };
        let opened = [open(&table, 4, Segment::Syn), other.join().unwrap()];
        assert_consistent(&table);
        let left = table.entries(None, NOW);
        for (n, opened) in [(4, opened[0]), (3, opened[1])] {
            let stays = left.iter().any(|entry| entry.parts.remote.port == n);
            assert_eq!(stays, opened == Opened::New, "{n} {opened:?}");
        }
    });
}
