//! Threads against each other: promises that hold at any interleaving.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::connections::{Connections, Event, Gap, Key, Parts, Place, Seen, Segment};
use super::*;

fn key(port: u16, n: usize) -> Key {
    let remote = Place { address: n as u128, port: 1000 };
    Key::new(&Parts { port, protocol: 6, remote, ..Parts::default() })
}

/// A connection that stays is always found, and the counts agree with the entries in the end.
#[test]
fn an_open_connection_is_found_in_a_flood() {
    let table = Connections::new(CONFIG);
    (0..4).for_each(|port| table.prepare(port));
    let now = Tick::from(1000);
    let open = |key: &Key, event| {
        let sought = table.seek(*key, event);
        match table.pass(&sought, false, now) {
            Seen::Unknown(gap) => table.open((&sought, gap), false, (0, 1), now),
            _ => table.open((&sought, Gap::UNKNOWN), false, (0, 1), now),
        }
    };
    let resident = key(0, 1_000_000);
    open(&resident, Event::Tcp(Segment::Syn));
    table.pass(&table.seek(resident, Event::Tcp(Segment::SynAck)), true, now);
    table.pass(&table.seek(resident, Event::Tcp(Segment::Ack)), false, now);
    let rounds = if cfg!(miri) { 100 } else { 30_000 };
    let busy = AtomicUsize::new(3);
    std::thread::scope(|scope| {
        for writer in 0..3u64 {
            let (table, busy, open) = (&table, &busy, &open);
            scope.spawn(move || {
                let mut random = Random(writer);
                for _ in 0..rounds {
                    let key = key(random.below(2) as u16, random.below(40));
                    match random.below(100) {
                        0 => {
                            let wanted = |of: &Parts| of.port == 1 || of.remote.address < 20;
                            table.flush(wanted);
                        }
                        1..40 => {
                            table.pass(&table.seek(key, Event::Tcp(Segment::Rst)), true, now);
                        }
                        _ => {
                            open(&key, Event::Tcp(Segment::Syn));
                        }
                    }
                }
                busy.fetch_sub(1, Ordering::Relaxed);
            });
        }
        scope.spawn(|| {
            while busy.load(Ordering::Relaxed) > 0 {
                let seen = table.pass(&table.seek(resident, Event::Tcp(Segment::Ack)), true, now);
                assert!(matches!(seen, Seen::Known(_)), "{seen:?}");
            }
        });
    });
    let entries = table.entries(None, now);
    assert_eq!(entries.len(), table.len());
    for port in 0..2 {
        let held = entries.iter().filter(|entry| entry.parts.port == port).count();
        assert_eq!(table.port_len(port), held, "port {port}");
    }
    let keys: std::collections::HashSet<_> = entries.iter().map(|e| Key::new(&e.parts)).collect();
    assert_eq!(keys.len(), entries.len(), "a connection twice");
}
