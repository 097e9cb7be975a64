//! Rules of the table, one test each; `model` and `threads` test combinations of rules.

use std::collections::HashSet;
use std::thread;

use super::*;
use base::frame::MacAddr;

mod flapping;
mod model;
mod threads;

const AGE: u32 = 300;

fn config() -> FdbConfig {
    FdbConfig {
        max_entries: 1024,
        max_per_port: 256,
        reserved_per_port: 0,
        max_per_segment: u32::MAX,
        reserved_per_segment: 0,
        age_seconds: AGE,
        damping: true,
        ports: 8,
        key: [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210],
    }
}

fn table() -> Fdb {
    Fdb::new(config())
}

fn station(n: u64) -> MacAddr {
    MacAddr::from_bits(0x5254_0000_0000 + n)
}

/// Returns the stamp of a frame at the beginning of a second.
fn bits(second: u32) -> u32 {
    Tick::from(second).to_bits()
}

/// Returns `count` addresses that share a bucket.
fn neighbours(fdb: &Fdb, count: usize) -> Vec<MacAddr> {
    let bucket = |mac| fdb.slots.bucket_of(fdb.slots.home(mac));
    let home = bucket(station(0).into());
    (0..).map(station).filter(|&mac| bucket(mac.into()) == home).take(count).collect()
}

/// Checks that counts and words agree, and that no address is in the table twice.
fn assert_consistent(fdb: &Fdb) {
    let entries = fdb.entries(0);
    let addresses: HashSet<MacAddr> = entries.iter().map(|entry| entry.station.mac).collect();
    assert_eq!(addresses.len(), entries.len(), "an address is there twice");
    assert_eq!(fdb.len(), entries.len());
    for port in 0..8 {
        let held = entries.iter().filter(|entry| entry.port == port).count();
        assert_eq!(fdb.port_len(port), held, "port {port}");
    }
    let in_runs = (0..fdb.shards.len()).map(|shard| fdb.lock(shard).iter().sum::<u32>());
    assert_eq!(in_runs.sum::<u32>() as usize, entries.len());
}

#[test]
fn fill_a_new_address_is_inserted_and_found() {
    let fdb = table();
    assert_eq!(fdb.lookup(station(1)), None);
    assert_eq!(fdb.learn(station(1), 3, 10), Learn::Inserted);
    assert_eq!(fdb.lookup(station(1)), Some(3));
    assert_eq!(fdb.lookup(station(2)), None);
    assert_eq!((fdb.len(), fdb.port_len(3)), (1, 1));
    assert_eq!(fdb.generation(), 0, "an insertion makes no answer wrong");
}

#[test]
fn prefetch_names_what_learning_and_looking_up_will_read() {
    let fdb = table();
    let asked = std::cell::RefCell::new(Vec::new());
    fdb.prefetch(station(1).into(), station(2).into(), |at| asked.borrow_mut().push(at));
    let [(word, stamp), (other, _)] =
        [1, 2].map(|n| fdb.slots.lines(fdb.slots.home(station(n).into())));
    assert_eq!(asked.into_inner(), [word, stamp, other]);
}

#[test]
fn a_table_is_large_beyond_the_limit() {
    let (max_entries, max_per_port) = (2 * FDB_PREFETCH_ENTRIES, 2 * FDB_PREFETCH_ENTRIES);
    let fdb = Fdb::new(FdbConfig { max_entries, max_per_port, ..config() });
    for n in 1..=u64::from(FDB_PREFETCH_ENTRIES) {
        fdb.learn(station(n), 1, 10);
        assert!(!fdb.is_large(), "{n}");
    }
    fdb.learn(station(0x80_0000), 1, 10);
    assert!(fdb.is_large());
}

#[test]
fn refresh_the_stamp_is_written_once_a_tick() {
    let fdb = table();
    fdb.learn(station(1), 3, 10);
    assert_eq!(fdb.learn(station(1), 3, Tick::new(10, 134_000_000)), Learn::Known);
    assert_eq!(fdb.learn(station(1), 3, Tick::new(10, 135_000_000)), Learn::Refreshed);
    assert_eq!(fdb.learn(station(1), 3, 11), Learn::Refreshed);
    assert_eq!(fdb.learn(station(1), 3, 11), Learn::Known);
    assert_eq!(fdb.generation(), 0);
}

#[test]
fn expire_an_entry_idle_for_more_than_its_age_goes() {
    let fdb = table();
    fdb.learn(station(1), 3, 10);
    fdb.learn(station(2), 3, 11);
    assert_eq!(fdb.age(10 + AGE), 0);
    assert_eq!(fdb.generation(), 0);
    assert_eq!(fdb.age(11 + AGE), 1);
    assert_eq!((fdb.lookup(station(1)), fdb.lookup(station(2))), (None, Some(3)));
    assert_eq!(fdb.generation(), 1);
    assert_eq!(fdb.learn(station(1), 4, 400), Learn::Inserted);
    assert_consistent(&fdb);
}

#[test]
fn expire_the_next_is_known_to_the_second() {
    let fdb = table();
    assert_eq!(fdb.next_expiry(5), 6 + AGE, "an address learned now");
    fdb.insert_static(station(9), 3).unwrap();
    fdb.learn(station(1), 3, 10);
    fdb.learn(station(2), 3, 11);
    fdb.learn(station(1), 3, 20);
    for now in [20, 11 + AGE] {
        assert_eq!(fdb.next_expiry(now), 12 + AGE);
        assert_eq!(fdb.age(now), 0);
    }
    assert_eq!(fdb.next_expiry(12 + AGE), 13 + AGE, "late, but never in the same second again");
    assert_eq!(fdb.age(12 + AGE), 1);
    assert_eq!(fdb.next_expiry(12 + AGE), 21 + AGE);
}

#[test]
fn expire_a_refreshed_entry_stays() {
    let fdb = table();
    fdb.learn(station(1), 3, 10);
    fdb.learn(station(1), 3, 10 + AGE);
    assert_eq!(fdb.age(10 + 2 * AGE), 0);
    assert_eq!(fdb.lookup(station(1)), Some(3));
}

#[test]
fn age_zero_means_never() {
    let fdb = Fdb::new(FdbConfig { age_seconds: 0, ..config() });
    fdb.learn(station(1), 3, 0);
    assert_eq!(fdb.age(u32::MAX), 0);
    assert_eq!(fdb.lookup(station(1)), Some(3));
}

#[test]
fn time_backwards_ages_nothing_at_once_and_everything_in_time() {
    let fdb = table();
    fdb.learn(station(1), 3, 90_000);
    fdb.learn(station(2), 3, 90_000);
    assert_eq!(fdb.age(100), 0);
    assert_eq!(fdb.learn(station(2), 3, 100 + AGE), Learn::Refreshed);
    assert_eq!(fdb.age(100 + AGE), 0);
    assert_eq!(fdb.age(101 + AGE), 1, "idle since the step, not since second 90000");
    assert_eq!(fdb.lookup(station(2)), Some(3));
}

#[test]
fn time_of_a_late_sweep_makes_no_entry_older() {
    let fdb = table();
    fdb.learn(station(1), 3, 50);
    assert_eq!(fdb.age(40), 0);
    assert_eq!(fdb.learn(station(1), 3, 50), Learn::Known, "the stamp is still 50");
}

#[test]
fn the_last_second_of_time_is_no_mark_of_expiry() {
    let fdb = table();
    assert_eq!(fdb.learn(station(1), 3, u32::MAX), Learn::Inserted);
    assert_eq!(fdb.learn(station(1), 3, u32::MAX), Learn::Known);
    assert_eq!(fdb.age(u32::MAX), 0);
}

#[test]
fn refresh_of_a_claimed_entry_is_left_to_the_lock() {
    let fdb = table();
    fdb.learn(station(1), 3, 10);
    let found = fdb.slots.find(fdb.slots.home(station(1).into())).unwrap();
    assert!(fdb.claim_if_idle(found.slot, bits(11 + AGE)));
    assert_eq!(fdb.refresh(found, (11 + AGE).into()), None);
}

#[test]
fn refresh_and_claim_that_saw_the_same_stamp_do_not_both_succeed() {
    let fdb = table();
    fdb.learn(station(1), 3, 10);
    let slot = fdb.slots.find(fdb.slots.home(station(1).into())).unwrap().slot;
    assert!(fdb.claim_if_idle(slot, bits(11 + AGE)));
    assert!(
        !fdb.restamp(slot, bits(10), bits(11 + AGE)),
        "a refresh that saw second 10 comes too late"
    );
    fdb.learn(station(2), 3, 10);
    let slot = fdb.slots.find(fdb.slots.home(station(2).into())).unwrap().slot;
    assert!(fdb.restamp(slot, bits(10), bits(11 + AGE)));
    assert!(!fdb.restamp(slot, bits(10), EXPIRING), "a claim that saw second 10 comes too late");
}

#[test]
fn move_the_entry_follows_its_station() {
    let fdb = table();
    fdb.learn(station(1), 3, 10);
    assert_eq!(fdb.learn(station(1), 4, 10), Learn::Moved { from: 3 });
    assert_eq!(fdb.lookup(station(1)), Some(4));
    assert_eq!((fdb.len(), fdb.port_len(3), fdb.port_len(4)), (1, 0, 1));
    assert_eq!(fdb.generation(), 1);
    assert_eq!(fdb.age(10 + AGE), 0, "a move is a sign of life");
}

#[test]
fn cap_a_full_port_learns_no_more_and_takes_nothing_from_others() {
    let fdb = Fdb::new(FdbConfig { max_per_port: 2, ..config() });
    fdb.learn(station(1), 3, 0);
    fdb.learn(station(2), 3, 0);
    assert_eq!(fdb.learn(station(3), 3, 0), Learn::PortFull);
    assert_eq!(fdb.learn(station(4), 4, 0), Learn::Inserted);
    assert_eq!(fdb.learn(station(4), 3, 0), Learn::PortFull, "not by moving it either");
    assert_eq!(fdb.lookup(station(4)), Some(4));
    assert_eq!(fdb.learn(station(1), 3, 1), Learn::Refreshed, "what it has stays fresh");
    fdb.flush_port(3);
    assert_eq!(fdb.learn(station(3), 3, 0), Learn::Inserted);
    assert_consistent(&fdb);
}

#[test]
fn cap_of_one_port_can_be_raised() {
    let fdb = Fdb::new(FdbConfig { max_per_port: 1, ..config() });
    fdb.set_port_cap(4, 3);
    for n in 0..5 {
        fdb.learn(station(n), 3, 0);
        fdb.learn(station(10 + n), 4, 0);
    }
    assert_eq!((fdb.port_len(3), fdb.port_len(4)), (1, 3));
}

/// A cap below the number of a port's entries removes none, and admits none.
#[test]
fn cap_of_one_port_can_be_lowered() {
    let fdb = Fdb::new(FdbConfig { age_seconds: 10, ..config() });
    (0..5).for_each(|n| _ = fdb.learn(station(n), 3, n as u32));
    fdb.insert_static(station(9), 3).unwrap();
    fdb.set_port_cap(3, 2);
    assert_eq!(fdb.learn(station(5), 3, 5), Learn::PortFull);
    assert_eq!(fdb.learn(station(4), 3, 20), Learn::Refreshed, "what it has stays");
    assert_eq!((fdb.age(20), fdb.port_len(3)), (4, 2));
    assert_eq!(fdb.learn(station(5), 3, 20), Learn::Inserted);
    assert_eq!(fdb.learn(station(6), 3, 20), Learn::PortFull);
    assert!(fdb.remove_static(station(9), 3));
    assert_eq!(fdb.learn(station(9), 3, 20), Learn::PortFull, "a static one had no room there");
    assert_consistent(&fdb);
}

/// A port that does not learn knows its static addresses only.
#[test]
fn what_is_not_learned_is_recognised() {
    let fdb = Fdb::new(config());
    fdb.insert_static(station(1), 3).unwrap();
    fdb.insert_static(station(2), 4).unwrap();
    fdb.learn(station(3), 3, 0);
    let generation = fdb.generation();
    let known = [1, 2, 3, 4].map(|n| fdb.recognise(station(n), 3));
    assert_eq!(known, [Learn::Known, Learn::Static, Learn::Off, Learn::Off]);
    assert_eq!((fdb.len(), fdb.generation()), (3, generation));
    assert!(!Learn::Off.is_in_table());
}

#[test]
fn cap_a_full_table_keeps_the_reserve_of_each_port() {
    let caps = FdbConfig { max_entries: 8, max_per_port: 6, reserved_per_port: 2, ..config() };
    let fdb = Fdb::new(caps);
    for n in 0..20 {
        fdb.learn(station(n), 0, 0);
        fdb.learn(station(100 + n), 1, 0);
    }
    assert_eq!((fdb.port_len(0), fdb.port_len(1), fdb.len()), (4, 4, 8));
    for port in 2..8 {
        let base = u64::from(port) * 1000;
        assert_eq!(fdb.learn(station(base), port, 0), Learn::Inserted);
        assert_eq!(fdb.learn(station(base + 1), port, 0), Learn::Inserted);
        assert_eq!(fdb.learn(station(base + 2), port, 0), Learn::TableFull);
    }
    assert_eq!(fdb.len(), 8 + 6 * 2);
    assert_eq!(fdb.learn(station(0), 2, 0), Learn::Moved { from: 0 }, "a move needs no room");
    assert_consistent(&fdb);
}

#[test]
fn cap_a_port_that_does_not_exist_learns_nothing() {
    let fdb = table();
    for port in [8, 0x7fff, 0x8000, u16::MAX] {
        assert_eq!(fdb.learn(station(1), port, 0), Learn::PortFull);
        assert_eq!(fdb.insert_static(station(1), port), Err(StaticError::NoSuchPort(port)));
        assert_eq!((fdb.flush_port(port), fdb.port_len(port)), (0, 0));
    }
    assert!(fdb.is_empty());
}

#[test]
fn zero_and_group_addresses_are_never_stored() {
    let fdb = table();
    for mac in [MacAddr::default(), MacAddr::BROADCAST, MacAddr([1, 0, 0x5e, 0, 0, 1])] {
        assert_eq!(fdb.learn(mac, 0, 0), Learn::NotStation);
        assert_eq!(fdb.insert_static(mac, 0), Err(StaticError::NotStation(mac)));
        assert_eq!(fdb.lookup(mac), None);
    }
    assert!(fdb.is_empty());
}

#[test]
fn flush_takes_the_learned_entries_of_one_port() {
    let fdb = table();
    for n in 0..100 {
        fdb.learn(station(n), (n % 2) as PortId, 0);
    }
    fdb.insert_static(station(200), 1).unwrap();
    let before = fdb.generation();
    assert_eq!(fdb.flush_port(1), 50);
    assert!(fdb.generation() > before);
    assert_eq!((fdb.port_len(0), fdb.port_len(1)), (50, 1));
    assert_eq!(fdb.lookup(station(1)), None);
    assert_eq!(fdb.lookup(station(200)), Some(1));
    let after = fdb.generation();
    assert_eq!(fdb.flush_port(1), 0);
    assert_eq!(fdb.generation(), after, "nothing changed");
    assert_consistent(&fdb);
}

#[test]
fn static_entries_neither_age_nor_move() {
    let fdb = table();
    fdb.insert_static(station(1), 3).unwrap();
    assert_eq!(fdb.learn(station(1), 4, 0), Learn::Static);
    assert_eq!(fdb.learn(station(1), 3, 0), Learn::Known, "its own port may send from it");
    assert_eq!(fdb.age(u32::MAX), 0);
    assert_eq!(fdb.lookup(station(1)), Some(3));
}

#[test]
fn static_takes_over_what_was_learned() {
    let fdb = table();
    fdb.learn(station(1), 4, 0);
    fdb.insert_static(station(1), 3).unwrap();
    assert_eq!(fdb.lookup(station(1)), Some(3));
    assert_eq!((fdb.len(), fdb.port_len(3), fdb.port_len(4)), (1, 1, 0));
    assert_eq!(fdb.generation(), 1);
}

#[test]
fn static_belongs_to_one_port() {
    let fdb = table();
    let mac = station(1);
    fdb.insert_static(mac, 3).unwrap();
    fdb.insert_static(mac, 3).unwrap();
    assert_eq!(fdb.len(), 1);
    assert_eq!(fdb.insert_static(mac, 4), Err(StaticError::Taken { mac, port: 3 }));
    assert!(!fdb.remove_static(mac, 4));
    assert!(fdb.remove_static(mac, 3));
    assert_eq!((fdb.lookup(mac), fdb.generation()), (None, 2));
    assert_eq!(fdb.learn(mac, 4, 0), Learn::Inserted);
    assert!(!fdb.remove_static(mac, 4), "learned, not configured");
}

#[test]
fn static_ignores_caps() {
    let fdb = Fdb::new(FdbConfig { max_entries: 1, max_per_port: 1, ..config() });
    fdb.learn(station(1), 3, 0);
    assert_eq!(fdb.insert_static(station(2), 3), Ok(()));
    assert_eq!((fdb.len(), fdb.port_len(3)), (2, 2));
}

#[test]
fn bucket_full_evicts_the_ports_own_oldest() {
    let fdb = table();
    let macs = neighbours(&fdb, 9);
    for (i, &mac) in macs[..8].iter().enumerate() {
        // Ports 0 and 1 in turn; port 1's oldest entry is 3, refreshed last is entry 1.
        fdb.learn(mac, (i % 2) as PortId, i as u32);
    }
    fdb.learn(macs[1], 1, 50);
    let before = fdb.generation();
    assert_eq!(fdb.learn(macs[8], 1, 60), Learn::Inserted);
    assert_eq!(fdb.lookup(macs[8]), Some(1));
    assert_eq!(fdb.lookup(macs[3]), None);
    assert_eq!(fdb.lookup(macs[0]), Some(0), "older, but not its own");
    assert_eq!(fdb.generation(), before + 1);
    assert_eq!(fdb.len(), 8);
    assert_consistent(&fdb);
}

#[test]
fn bucket_full_of_others_refuses() {
    let fdb = table();
    let macs = neighbours(&fdb, 9);
    for &mac in &macs[..7] {
        fdb.learn(mac, 0, 0);
    }
    fdb.insert_static(macs[7], 1).unwrap();
    assert_eq!(fdb.learn(macs[8], 1, 0), Learn::BucketFull, "its own static entry stays");
    assert!(macs[..8].iter().all(|&mac| fdb.lookup(mac).is_some()));
    assert_eq!(fdb.lookup(macs[8]), None);
}

/// An uplink teaches as many addresses as the table and the VLANs behind the uplink may hold: each
/// other port still gets its reserved entries.
#[test]
fn bucket_full_of_many_yields_to_those_that_are_kept() {
    let fdb = Fdb::new(FdbConfig::limited(256, AGE, config().key));
    fdb.set_port_cap(0, u32::MAX);
    (0..65_536).for_each(|n| _ = fdb.learn(station(n), 0, 0));
    for vlan in 1..=4_094 {
        let (segment, base) = (Segment::new(0, vlan), 10_000_000 + 64 * u64::from(vlan));
        let there = |n| Station { segment, mac: station(base + n) };
        (0..64).for_each(|n| _ = fdb.learn(there(n), 0, 0));
    }
    assert!(fdb.len() > 300_000, "{}", fdb.len());
    let of = |port: PortId, n: u64| station(1_000_000 + 100 * u64::from(port) + n);
    let all = || (1..256).flat_map(|port| (0..16).map(move |n| (port, of(port, n))));
    let refused = all().filter(|(port, mac)| fdb.learn(*mac, *port, 0) != Learn::Inserted).count();
    let lost = all().filter(|(port, mac)| fdb.lookup(*mac) != Some(*port)).count();
    assert_eq!((refused, lost), (0, 0));
    // A seventeenth address is not learned if there is no room.
    let more = |port: &PortId| fdb.learn(of(*port, 16), *port, 0);
    let answers: Vec<Learn> = (1..256).map(|port| more(&port)).collect();
    assert!(answers.iter().all(|answer| *answer == Learn::TableFull), "{answers:?}");
    assert_consistent(&fdb);
}

#[test]
fn bucket_full_yields_to_configuration_but_not_to_nine_of_them() {
    let fdb = table();
    let macs = neighbours(&fdb, 17);
    for (i, &mac) in macs[..8].iter().enumerate() {
        fdb.learn(mac, 0, 10 - i as u32);
    }
    for &mac in &macs[8..16] {
        assert_eq!(fdb.insert_static(mac, 1), Ok(()));
    }
    assert!(macs[..8].iter().all(|&mac| fdb.lookup(mac).is_none()));
    assert_eq!(fdb.insert_static(macs[16], 1), Err(StaticError::BucketFull(macs[16])));
    assert_eq!((fdb.len(), fdb.port_len(0), fdb.port_len(1)), (8, 0, 8));
    assert_consistent(&fdb);
}

#[test]
fn a_worker_does_not_wait_for_a_held_shard() {
    let fdb = table();
    fdb.learn(station(1), 3, 0);
    let shard = fdb.lock(fdb.shard_of(fdb.slots.home(station(1).into())));
    assert_eq!(fdb.learn(station(1), 4, 0), Learn::Busy);
    assert_eq!(fdb.lookup(station(1)), Some(3));
    assert_eq!(fdb.learn(station(1), 3, 1), Learn::Refreshed, "known needs no lock");
    drop(shard);
    assert_eq!(fdb.learn(station(1), 4, 0), Learn::Moved { from: 3 });
}

#[test]
fn a_poisoned_shard_goes_on() {
    let fdb = table();
    let shard = fdb.shard_of(fdb.slots.home(station(1).into()));
    thread::scope(|scope| {
        let holder = scope.spawn(|| {
            let _guard = fdb.lock(shard);
            std::panic::resume_unwind(Box::new("dies with the lock held"));
        });
        assert!(holder.join().is_err());
    });
    assert_eq!(fdb.learn(station(1), 3, 0), Learn::Inserted);
    assert_eq!(fdb.flush_port(3), 1);
}

#[test]
#[cfg_attr(miri, ignore = "many insertions; the paths are those of the smaller tests")]
fn sweeps_reach_every_run_of_every_shard() {
    // Four runs a shard; both kinds of sweep must find the entries that the runs count.
    let shape = FdbConfig { max_entries: 16_384, max_per_port: 16_384, ..config() };
    let fdb = Fdb::new(shape);
    for n in 0..10_000 {
        fdb.learn(station(n), (n % 8) as PortId, (n % 2) as u32);
    }
    assert_consistent(&fdb);
    assert_eq!(fdb.age(AGE + 1), 5_000);
    assert_consistent(&fdb);
    let first = fdb.flush_port(0);
    let flushed = first + fdb.flush(|_, _| true);
    assert_eq!((flushed, fdb.len()), (5_000, 0));
}

#[test]
fn entries_tell_address_port_and_age() {
    let fdb = table();
    fdb.learn(station(1), 3, 10);
    fdb.insert_static(station(2), 4).unwrap();
    let mut entries = fdb.entries(25);
    entries.sort_by_key(|entry| entry.port);
    let held = false;
    let learned = Entry { station: station(1).into(), port: 3, age: EntryAge::Idle(15), held };
    let configured = Entry { station: station(2).into(), port: 4, age: EntryAge::Static, held };
    assert_eq!(entries, [learned, configured]);
}

#[test]
#[cfg_attr(miri, ignore = "64 Ki insertions; the paths are those of the smaller tests")]
fn the_default_table_holds_its_cap_of_sequential_addresses() {
    let caps = FdbConfig { max_entries: 65_536, max_per_port: 65_536, ..config() };
    let fdb = Fdb::new(FdbConfig { key: [42, 43], ..caps });
    let refused =
        (0..65_536).filter(|&n| fdb.learn(station(n), (n % 8) as PortId, 0) != Learn::Inserted);
    // 0.08 on average over keys, see the module's description.
    assert!(refused.count() <= 2);
    assert_eq!(fdb.learn(station(70_000), 0, 0), Learn::TableFull);
}

/// SplitMix64 (Steele, Lea and Flood 2014): small, seeded, good enough for tests.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}
