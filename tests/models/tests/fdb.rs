//! The forwarding table: its own code, under every interleaving. And under every reordering that
//! loom tries, up to four preemptions.

use loom::sync::Arc;
use loom::thread;
use vioswitch_models::frame::MacAddr;
use vioswitch_models::loomed;
use vioswitch_models::switch::fdb::{Fdb, FdbConfig, Learn};
use vioswitch_models::switch::segment::{Segment, Station};

const AGE: u32 = 3;

/// Two preemptions find all but the rarest faults; four are as many as take some seconds.
fn model(check: impl Fn() + Sync + Send + 'static) {
    loomed::model(4, check);
}

fn table() -> Arc<Fdb> {
    Arc::new(Fdb::new(FdbConfig {
        max_entries: 1,
        max_per_port: 8,
        reserved_per_port: 8,
        max_per_segment: u32::MAX,
        reserved_per_segment: 0,
        age_seconds: AGE,
        damping: true,
        ports: 4,
        key: [1, 2],
    }))
}

fn station(n: u64) -> MacAddr {
    MacAddr::from_bits(0x5254_0000_0000 + n)
}

/// Counts agree with the words, and no address is there twice.
fn assert_consistent(fdb: &Fdb) {
    let entries = fdb.entries(0);
    for (i, entry) in entries.iter().enumerate() {
        let twice = entries[..i].iter().any(|other| other.station == entry.station);
        assert!(!twice, "an address twice");
    }
    assert_eq!(fdb.len(), entries.len());
    for port in 0..4 {
        let held = entries.iter().filter(|entry| entry.port == port).count();
        assert_eq!(fdb.port_len(port), held, "port {port}");
    }
}

/// What stays is found, whatever comes and goes in the slots around it.
#[test]
fn a_stable_entry_is_never_missed() {
    model(|| {
        let fdb = table();
        fdb.learn(station(1), 1, 0);
        fdb.learn(station(2), 2, 0);
        let writer = {
            let fdb = Arc::clone(&fdb);
            thread::spawn(move || {
                // In front of it, and behind it.
                fdb.flush_port(1);
                fdb.learn(station(3), 3, 0);
            })
        };
        assert_eq!(fdb.lookup(station(2)), Some(2));
        assert_eq!(fdb.learn(station(2), 2, 0), Learn::Known);
        writer.join().unwrap();
        assert_eq!(fdb.lookup(station(2)), Some(2));
        assert_consistent(&fdb);
    });
}

/// A move shows the old port or the new one, and never the old one after the new.
#[test]
fn a_move_shows_the_old_or_the_new_port() {
    model(|| {
        let fdb = table();
        fdb.learn(station(1), 1, 0);
        let writer = {
            let fdb = Arc::clone(&fdb);
            thread::spawn(move || assert_eq!(fdb.learn(station(1), 2, 0), Learn::Moved { from: 1 }))
        };
        let first = fdb.lookup(station(1)).expect("never a gap");
        let second = fdb.lookup(station(1)).expect("never a gap");
        assert!(matches!((first, second), (1, 1 | 2) | (2, 2)), "{first}, then {second}");
        writer.join().unwrap();
        assert_eq!(fdb.lookup(station(1)), Some(2));
        assert_consistent(&fdb);
    });
}

/// Two segments that look alike in an entry.
fn alike() -> [Station; 2] {
    [(0, 5), (1, 1)].map(|(bridge, vlan)| Station::new(Segment::new(bridge, vlan), station(1)))
}

/// A slot passes from one segment to another: neither ever has the other's port.
#[test]
fn a_segment_never_has_the_port_of_another() {
    model(|| {
        let (fdb, [one, other]) = (table(), alike());
        fdb.learn(one, 1, 0);
        let writer = {
            let fdb = Arc::clone(&fdb);
            thread::spawn(move || {
                fdb.flush_port(1);
                fdb.learn(other, 2, 0);
            })
        };
        assert!(matches!(fdb.lookup(one), Some(1) | None));
        assert!(matches!(fdb.lookup(other), Some(2) | None));
        writer.join().unwrap();
        assert_eq!((fdb.lookup(one), fdb.lookup(other)), (None, Some(2)));
        assert_consistent(&fdb);
    });
}

/// In a segment too a move shows the old port or the new one, and no gap.
#[test]
fn a_move_in_a_segment_shows_the_old_or_the_new_port() {
    model(|| {
        let (fdb, [one, _]) = (table(), alike());
        fdb.learn(one, 1, 0);
        let writer = {
            let fdb = Arc::clone(&fdb);
            thread::spawn(move || assert_eq!(fdb.learn(one, 2, 0), Learn::Moved { from: 1 }))
        };
        let first = fdb.lookup(one).expect("never a gap");
        let second = fdb.lookup(one).expect("never a gap");
        assert!(matches!((first, second), (1, 1 | 2) | (2, 2)), "{first}, then {second}");
        writer.join().unwrap();
        assert_consistent(&fdb);
    });
}

/// An answer may be remembered while the generation is what it was before the lookup.
#[test]
fn a_remembered_answer_is_as_good_as_its_generation() {
    model(|| {
        let fdb = table();
        fdb.learn(station(1), 1, 0);
        let writer = {
            let fdb = Arc::clone(&fdb);
            thread::spawn(move || {
                fdb.learn(station(1), 2, 0);
            })
        };
        let generation = fdb.generation();
        let answer = fdb.lookup(station(1));
        // Who sees the new number sees the change it was counted for.
        if generation == 1 {
            assert_eq!(answer, Some(2));
        }
        writer.join().unwrap();
        if fdb.generation() == generation {
            assert_eq!(fdb.lookup(station(1)), answer);
        }
    });
}

/// Two ports learn one new address at once: it is one entry, of either.
#[test]
fn one_address_is_one_entry() {
    model(|| {
        let fdb = table();
        let other = {
            let fdb = Arc::clone(&fdb);
            thread::spawn(move || fdb.learn(station(1), 1, 0))
        };
        let mine = fdb.learn(station(1), 2, 0);
        let other = other.join().unwrap();
        let known = |answer| matches!(answer, Learn::Inserted | Learn::Moved { .. } | Learn::Busy);
        assert!(known(mine) && known(other), "{mine:?}, {other:?}");
        assert!(mine != Learn::Busy || other != Learn::Busy, "somebody holds the lock");
        assert_eq!(fdb.len(), 1);
        assert_consistent(&fdb);
    });
}

/// A frame comes in while the sweep finds its source too old: an answer that it is known is true
/// afterwards.
#[test]
fn what_was_refreshed_is_not_aged() {
    model(|| {
        let fdb = table();
        fdb.learn(station(1), 1, 0);
        let sweep = {
            let fdb = Arc::clone(&fdb);
            thread::spawn(move || fdb.age(AGE + 1))
        };
        let answer = fdb.learn(station(1), 1, AGE + 1);
        let gone = sweep.join().unwrap();
        match answer {
            Learn::Refreshed => assert_eq!(gone, 0),
            Learn::Inserted => assert_eq!(gone, 1),
            Learn::Busy => assert_eq!(gone, 1),
            other => panic!("{other:?}"),
        }
        let there = answer.is_in_table();
        assert_eq!(fdb.lookup(station(1)), there.then_some(1));
        assert_consistent(&fdb);
    });
}

/// The port of an address that is held sends again while another one's frame ends the hold: an
/// answer that the address is known here is true afterwards, or the generation has changed.
#[test]
fn a_hold_ends_for_one_port_only() {
    model(|| {
        let fdb = table();
        fdb.learn(station(1), 1, 10);
        (0..4).for_each(|n| _ = fdb.learn(station(1), [2, 1][n % 2], 10));
        assert_eq!(fdb.learn(station(1), 2, 10), Learn::Held { at: 1 });
        assert_eq!(fdb.learn(station(1), 2, 10), Learn::Held { at: 1 });
        let generation = fdb.generation();
        let rival = {
            let fdb = Arc::clone(&fdb);
            thread::spawn(move || fdb.learn(station(1), 2, 12))
        };
        let owner = fdb.learn(station(1), 1, 12);
        let rival = rival.join().unwrap();
        match (owner, rival) {
            // The owner's frame was first, or took the address back and began another hold.
            (Learn::Refreshed, Learn::Held { at: 1 }) => {
                assert_eq!((fdb.lookup(station(1)), fdb.generation()), (Some(1), generation));
            }
            (Learn::Moved { from: 2 }, Learn::Moved { from: 1 }) => {
                assert_eq!(fdb.lookup(station(1)), Some(1));
            }
            // It found the other one's stamp, or the lock taken: what it remembers is void.
            (Learn::Known | Learn::Busy, Learn::Moved { from: 1 }) => {
                assert_eq!(fdb.lookup(station(1)), Some(2));
                assert_ne!(fdb.generation(), generation);
            }
            other => panic!("{other:?}"),
        }
        assert_consistent(&fdb);
    });
}

/// A port goes while one of its addresses appears elsewhere.
#[test]
fn a_flush_takes_no_entry_of_another_port() {
    model(|| {
        let fdb = table();
        fdb.learn(station(1), 1, 0);
        let flush = {
            let fdb = Arc::clone(&fdb);
            thread::spawn(move || fdb.flush_port(1))
        };
        let answer = fdb.learn(station(1), 2, 0);
        flush.join().unwrap();
        assert_eq!(fdb.port_len(1), 0);
        assert_eq!(fdb.lookup(station(1)), answer.is_in_table().then_some(2));
        assert_consistent(&fdb);
    });
}

/// Who sees an entry sees its time, not that of the slot's last tenant.
#[test]
fn an_entry_comes_with_its_time() {
    model(|| {
        let fdb = table();
        fdb.learn(station(1), 1, 0);
        assert_eq!(fdb.age(AGE + 1), 1);
        let writer = {
            let fdb = Arc::clone(&fdb);
            thread::spawn(move || assert_eq!(fdb.learn(station(2), 2, 10), Learn::Inserted))
        };
        if fdb.lookup(station(2)).is_some() {
            assert_eq!(fdb.learn(station(2), 2, 10), Learn::Known);
        }
        writer.join().unwrap();
    });
}
