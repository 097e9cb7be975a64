//! Threads against each other: promises that hold at any interleaving.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;

/// Address that stays on port 7 while everything around it changes.
const RESIDENT: u64 = 1_000_000;

/// Runs writers that share 64 addresses, and readers, until the writers are done.
fn contend(fdb: &Fdb, rounds: u64, read: impl Fn() + Sync) {
    let writers = AtomicUsize::new(3);
    thread::scope(|scope| {
        for writer in 0..3u64 {
            let writers = &writers;
            scope.spawn(move || {
                let mut random = Random(writer);
                for round in 0..rounds {
                    let mac = station(random.below(64));
                    fdb.learn(mac, random.below(6) as PortId, (round / 64) as u32);
                    match random.below(256) {
                        0 => drop(fdb.flush_port(random.below(6) as PortId)),
                        1 => drop(fdb.age((round / 64) as u32)),
                        _ => {}
                    }
                }
                writers.fetch_sub(1, Ordering::Relaxed);
            });
        }
        for _ in 0..2 {
            let (writers, read) = (&writers, &read);
            scope.spawn(move || {
                while writers.load(Ordering::Relaxed) > 0 {
                    read();
                }
            });
        }
    });
}

fn rounds() -> u64 {
    if cfg!(miri) { 20 } else { 50_000 }
}

/// A small table with short ages, so that all kinds of writes happen in every bucket.
fn crowded() -> Fdb {
    Fdb::new(FdbConfig { max_entries: 64, max_per_port: 20, age_seconds: 2, ..config() })
}

#[test]
fn threads_a_reader_never_misses_a_stable_entry() {
    let fdb = crowded();
    let mac = station(RESIDENT);
    fdb.insert_static(mac, 7).unwrap();
    contend(&fdb, rounds(), || assert_eq!(fdb.lookup(mac), Some(7)));
    assert_consistent(&fdb);
}

#[test]
fn threads_a_moving_entry_is_seen_on_one_port_or_the_other() {
    let fdb = table();
    let mac = station(RESIDENT);
    fdb.learn(mac, 6, 0);
    let done = AtomicBool::new(false);
    let start = Barrier::new(3);
    thread::scope(|scope| {
        scope.spawn(|| {
            start.wait();
            // One move a second: more moves would be held.
            for round in 0..10 * rounds() {
                fdb.learn(mac, 6 + (round % 2) as PortId, round as u32);
            }
            done.store(true, Ordering::Relaxed);
        });
        // Readers do nothing but look up, so that lookups fall anywhere within a move.
        for _ in 0..2 {
            scope.spawn(|| {
                start.wait();
                while !done.load(Ordering::Relaxed) {
                    assert!(matches!(fdb.lookup(mac), Some(6 | 7)));
                }
            });
        }
    });
    assert_consistent(&fdb);
}

#[test]
fn threads_one_address_inserted_by_many_is_one_entry() {
    let fdb = table();
    let addresses = if cfg!(miri) { 8 } else { 250 };
    let inserted = AtomicUsize::new(0);
    let insert_all = |port| {
        for mac in (0..addresses).map(station) {
            let mut learn = Learn::Busy;
            while learn == Learn::Busy {
                learn = fdb.learn(mac, port, 0);
            }
            if learn == Learn::Inserted {
                inserted.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    thread::scope(|scope| {
        for port in 0..4 {
            let insert_all = &insert_all;
            scope.spawn(move || insert_all(port));
        }
    });
    assert_eq!(inserted.load(Ordering::Relaxed), addresses as usize);
    assert_eq!(fdb.len(), addresses as usize);
    assert_consistent(&fdb);
}

#[test]
fn threads_a_new_generation_never_comes_with_an_old_port() {
    // Move n goes to port n % 8 and counts generation n. A reader that reads generation g, then the
    // port, then g again, may see move g or g + 1 (stored, not yet counted), never g - 1.
    let fdb = table();
    let mac = station(1);
    fdb.learn(mac, 0, 0);
    let done = AtomicBool::new(false);
    let start = Barrier::new(2);
    thread::scope(|scope| {
        scope.spawn(|| {
            start.wait();
            for n in 1..=10 * rounds() {
                // One move a second: more moves would be held.
                let moved = fdb.learn(mac, (n % 8) as PortId, n as u32);
                assert!(matches!(moved, Learn::Moved { .. }));
            }
            done.store(true, Ordering::Release);
        });
        scope.spawn(|| {
            start.wait();
            while !done.load(Ordering::Acquire) {
                let (before, port, after) = (fdb.generation(), fdb.lookup(mac), fdb.generation());
                let allowed = [before % 8, (before + 1) % 8].map(|n| Some(n as PortId));
                assert!(before != after || allowed.contains(&port), "{before}: {port:?}");
            }
        });
    });
}

#[test]
fn threads_a_refresh_and_a_sweep_never_both_win() {
    // An entry about to expire is refreshed and swept at the same moment. If the sweep is first,
    // the refresh must notice and insert the entry again: a learned address is in the table.
    let fdb = Fdb::new(FdbConfig { age_seconds: 1, ..config() });
    let mac = station(1);
    let start = Barrier::new(2);
    let rounds = if cfg!(miri) { 10 } else { 3_000 };
    thread::scope(|scope| {
        scope.spawn(|| {
            for now in (0..rounds).map(|round| round * 2) {
                start.wait();
                let learn = fdb.learn(mac, 0, now);
                start.wait();
                let kept = fdb.lookup(mac) == Some(0);
                assert!(kept || learn == Learn::Busy, "second {now}: {learn:?}, then gone");
                start.wait();
            }
        });
        scope.spawn(|| {
            for now in (0..rounds).map(|round| round * 2) {
                start.wait();
                fdb.age(now);
                start.wait();
                start.wait();
            }
        });
    });
}
