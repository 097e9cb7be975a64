//! The forwarding table against a plain map: over any operations.
//!
//! The map does not know buckets and caps: what the table answers to a new address it may decide;
//! what follows from the answer has to hold for every address.

use std::collections::HashMap;

use base::frame::MacAddr;
use base::limits::{FDB_FLAPS, FDB_HOLD_SECONDS, FDB_SILENCE_SECONDS};
use switch::fdb::{EntryAge, Fdb, FdbConfig, Learn, StaticError, Tick};
use switch::{Segment, Station};

use super::input::Input;

const PORTS: u16 = 5;

/// Segments that addresses are in: the second and third look alike in an entry.
const SEGMENTS: [Segment; 4] =
    [Segment::DEFAULT, Segment::new(0, 10), Segment::new(0, 41), Segment::new(1, 10)];

/// What the map knows of an address.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Known {
    port: u16,
    /// Tick of the last frame; none for a configured one.
    stamp: Option<u32>,
}

/// Ticks in a second.
const SECOND: u32 = 8;

/// The moves of an address since it was quiet.
#[derive(Clone, Copy)]
struct Moves {
    /// The port that it was on before.
    origin: u16,
    /// How many there were in the last second of them.
    count: u32,
    /// The tick of the last one.
    last: u32,
    /// It was held, and its port was silent.
    lapsed: bool,
    /// Whom the hold refused last, and since when no other one.
    rival: (u16, u32),
}

impl Moves {
    fn new(origin: u16, count: u32, last: u32) -> Moves {
        Moves { origin, count, last, lapsed: false, rival: (origin, last) }
    }

    fn is_recent(&self, now: u32) -> bool {
        (self.last / SECOND).abs_diff(now / SECOND) <= FDB_HOLD_SECONDS
    }

    fn hold(&self, now: u32) -> bool {
        self.count == FDB_FLAPS && self.is_recent(now)
    }

    /// Of a hold: whether a frame from `port` ends it, when that of its own port was `seen`.
    fn lapses(&self, port: u16, seen: u32, now: u32) -> bool {
        let past = |since: u32| now.saturating_sub(since) > FDB_SILENCE_SECONDS * SECOND;
        self.rival.0 == port && past(self.rival.1) && past(seen)
    }

    /// A hold refuses `port`.
    fn contest(&mut self, port: u16, now: u32) {
        if self.rival.0 != port {
            let after = now.saturating_sub(self.last).min(255);
            self.rival = (port, self.last.saturating_add(after));
        }
    }

    /// With one more move.
    fn and(self, (from, to): (u16, u16), now: u32) -> Moves {
        let count = match () {
            () if self.lapsed && to == self.origin => FDB_FLAPS,
            () if self.last / SECOND == now / SECOND => self.count + 1,
            () => 1,
        };
        let lapsed = self.lapsed && count < FDB_FLAPS;
        let rival = match () {
            () if count < FDB_FLAPS => self.origin,
            () if to == self.origin => from,
            () => to,
        };
        Moves { lapsed, rival: (rival, now), ..Moves::new(self.origin, count, now) }
    }
}

/// The table, and what it should hold.
struct Both {
    fdb: Fdb,
    map: HashMap<Station, Known>,
    /// Of those that moved.
    moves: HashMap<Station, Moves>,
    config: FdbConfig,
    caps: [u32; PORTS as usize],
}

/// The target.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let config = FdbConfig {
        max_entries: input.choose(&[4, 64, 16, 1024]),
        max_per_port: input.choose(&[8, 2, 64, 1000]),
        reserved_per_port: input.choose(&[0, 1, 4]),
        max_per_segment: 40,
        reserved_per_segment: 2,
        age_seconds: input.choose(&[3, 0, 300]),
        damping: true,
        ports: PORTS.into(),
        key: [input.u8().into(), 7],
    };
    let caps = [config.max_per_port; PORTS as usize];
    let mut both =
        Both { fdb: Fdb::new(config), map: HashMap::new(), moves: HashMap::new(), config, caps };
    let mut now = 100;
    for _ in 0..4000 {
        if input.is_empty() {
            break;
        }
        // Few addresses, so that they meet again; 1,000 fill buckets.
        let code = input.u8();
        let mac = match code & 0x30 {
            0 => MacAddr::from_bits(0x5254_0000_0000 + u64::from(input.u16() % 1000)),
            0x10 => MacAddr::from_bits(0x5254_0000_0000 + u64::from(input.u8() % 16)),
            0x20 => MacAddr::from_bits(u64::from(input.u16())),
            _ => MacAddr::from_bits(input.u64() >> 16),
        };
        let segment = SEGMENTS[usize::from(mac.0[5]) / 4 % SEGMENTS.len()];
        let station = Station::new(segment, mac);
        let port = u16::from(code >> 6) + u16::from(input.u8() % 2);
        match code & 0x0f {
            0..=6 => both.learn(station, port, now),
            7 => now = now.wrapping_add(input.u8().into()),
            8 => now = input.choose(&[0, u32::MAX, now.wrapping_sub(1), now / 2]),
            9 => both.age(now),
            10 => both.flush(port),
            11 => both.insert_static(station, port),
            12 => both.remove_static(station, port),
            13 => {
                let cap = u32::from(input.u8());
                both.fdb.set_port_cap(port, cap);
                both.caps[usize::from(port)] = cap;
            }
            14 => both.recognise(station, port),
            _ => both.compare(now),
        }
    }
    both.compare(now);
}

impl Both {
    fn learn(&mut self, station: Station, port: u16, now: u32) {
        let before = self.map.get(&station).copied();
        let (len, generation) = (self.fdb.len(), self.fdb.generation());
        let held = self.held(station, port, now.min(u32::MAX - 1));
        let tick = Tick::from_bits(now.min(u32::MAX - 1));
        assert_eq!(self.fdb.held(station, port, tick), held);
        let answer = self.fdb.learn(station, port, Tick::from_bits(now));
        let known = Known { port, stamp: Some(now.min(u32::MAX - 1)) };
        match answer {
            Learn::Known => {
                assert_eq!(before.map(|b| b.port), Some(port));
                let stamp = before.and_then(|b| b.stamp);
                assert!(stamp.is_none() || stamp == known.stamp);
            }
            Learn::Refreshed => {
                assert!(before.is_some_and(|b| b.port == port && b.stamp != known.stamp));
                self.map.insert(station, known);
            }
            Learn::Moved { from } => {
                assert!(before.is_some_and(|b| b.port == from && b.stamp.is_some()));
                assert!(from != port && held.is_none());
                self.note_move(station, from, port, now.min(u32::MAX - 1));
                self.map.insert(station, known);
            }
            Learn::Held { at } => self.stays(station, at, held, known),
            Learn::Inserted => {
                assert!(before.is_none() && station.mac.is_station());
                if self.fdb.len() == len {
                    self.forget_displaced(port);
                    assert_ne!(self.fdb.generation(), generation);
                }
                self.map.insert(station, known);
                // What was lowered meanwhile takes nothing away, and lets nothing in.
                let cap = self.caps[usize::from(port)];
                let is_limited = cap < self.config.max_entries && self.fdb.len() > len;
                assert!(!is_limited || self.learned(port) <= cap as usize);
            }
            Learn::Static => assert!(before.is_some_and(|b| b.stamp.is_none() && b.port != port)),
            Learn::NotStation => assert!(!station.mac.is_station()),
            Learn::TableFull => {
                assert!(before.is_none() && len >= self.config.max_entries as usize);
                assert!(self.of(port) >= self.config.reserved_per_port as usize);
                let reserved = self.config.reserved_per_segment as usize;
                let default = station.segment == Segment::DEFAULT;
                assert!(default || self.within(station.segment) >= reserved);
            }
            Learn::SegmentFull => {
                assert!(station.segment != Segment::DEFAULT);
                assert!(self.within(station.segment) >= self.config.max_per_segment as usize);
            }
            Learn::PortFull => {
                assert!(before.is_none_or(|b| b.port != port));
                assert!(self.learned(port) >= self.caps[usize::from(port)] as usize);
            }
            Learn::BucketFull => assert!(before.is_none() && self.map.len() >= 8),
            Learn::Off => panic!("it learns"),
            Learn::Busy => panic!("nobody else holds a lock"),
        }
        assert_eq!(self.fdb.lookup(station), self.map.get(&station).map(|known| known.port));
        assert_eq!(self.fdb.len(), self.map.len());
        if matches!(answer, Learn::Moved { .. }) {
            assert_ne!(self.fdb.generation(), generation, "a move makes answers wrong");
        }
    }

    /// It is held `at` a port, where `held` is due.
    fn stays(&mut self, station: Station, at: u16, held: Option<u16>, known: Known) {
        let (from, now) = (self.map[&station].port, known.stamp.expect("a tick"));
        let moves = self.moves.get_mut(&station).filter(|moves| moves.hold(now));
        let began = moves.is_none();
        match moves {
            Some(moves) => moves.contest(known.port, now),
            None => self.note_move(station, from, known.port, now),
        }
        // Its origin may have no room.
        assert!(held == Some(at) || held.is_some() && at == from && began);
        assert!(held == Some(at) || self.is_full(held.expect("a port")));
        if at != from {
            self.map.insert(station, Known { port: at, ..known });
        }
    }

    /// Where an address is held, or would be by a frame from `port`.
    fn held(&self, station: Station, port: u16, now: u32) -> Option<u16> {
        let known = self.map.get(&station).filter(|known| known.port != port)?;
        let seen = known.stamp?;
        let moves = self.moves.get(&station).filter(|moves| moves.is_recent(now))?;
        if moves.hold(now) {
            return (!moves.lapses(port, seen, now)).then_some(known.port);
        }
        let next = moves.and((known.port, port), now);
        (next.hold(now) && next.origin != port).then_some(next.origin)
    }

    fn note_move(&mut self, station: Station, from: u16, to: u16, now: u32) {
        let next = match self.moves.get(&station).filter(|moves| moves.is_recent(now)) {
            // The hold has ended.
            Some(moves) if moves.hold(now) => {
                Moves { lapsed: true, ..Moves::new(moves.origin, 0, now) }
            }
            Some(moves) => moves.and((from, to), now),
            None => Moves::new(from, 1, now),
        };
        self.moves.insert(station, next);
    }

    fn is_full(&self, port: u16) -> bool {
        let cap = self.caps[usize::from(port)];
        cap < self.config.max_entries && self.learned(port) >= cap as usize
    }

    /// Of what is not in the map nothing is known.
    fn forget(&mut self, port: Option<u16>) {
        let map = &self.map;
        self.moves.retain(|station, moves| {
            Some(moves.origin) != port && map.get(station).is_some_and(|k| k.stamp.is_some())
        });
    }

    /// A frame on a port that does not learn.
    fn recognise(&self, station: Station, port: u16) {
        let known = self.map.get(&station);
        assert_eq!(self.fdb.lookup(station), known.map(|known| known.port));
        let expected = match known {
            Some(Known { port: owner, stamp: None }) if *owner == port => Learn::Known,
            Some(Known { stamp: None, .. }) => Learn::Static,
            _ => Learn::Off,
        };
        assert_eq!(self.fdb.recognise(station, port), expected);
        assert_eq!(self.fdb.is_port_full(port), self.is_full(port));
    }

    /// A full bucket gave up an entry of the same port: exactly one.
    fn forget_displaced(&mut self, port: u16) {
        let gone: Vec<Station> =
            self.map.keys().copied().filter(|&one| self.fdb.lookup(one).is_none()).collect();
        assert_eq!(gone.len(), 1);
        let known = self.map.remove(&gone[0]);
        assert!(known.is_some_and(|known| known.port == port && known.stamp.is_some()));
        self.forget(None);
    }

    fn of(&self, port: u16) -> usize {
        self.map.values().filter(|known| known.port == port).count()
    }

    /// Without the static ones.
    fn learned(&self, port: u16) -> usize {
        let here = |known: &&Known| known.port == port && known.stamp.is_some();
        self.map.values().filter(here).count()
    }

    fn within(&self, segment: Segment) -> usize {
        self.map.keys().filter(|station| station.segment == segment).count()
    }

    fn age(&mut self, now: u32) {
        let limit = self.config.age_seconds * SECOND;
        let now = now.min(u32::MAX - 1);
        let before = self.map.len();
        if limit != 0 {
            self.map.retain(|_, known| match &mut known.stamp {
                None => true,
                Some(stamp) if *stamp <= now => now - *stamp <= limit,
                Some(stamp) => {
                    // Time went back: the age counts from here.
                    if *stamp - now > limit {
                        *stamp = now;
                    }
                    true
                }
            });
        }
        assert_eq!(self.fdb.age(Tick::from_bits(now)), before - self.map.len());
        self.forget(None);
    }

    fn flush(&mut self, port: u16) {
        let before = self.map.len();
        self.map.retain(|_, known| known.port != port || known.stamp.is_none());
        assert_eq!(self.fdb.flush_port(port), before - self.map.len());
        self.forget(Some(port));
    }

    fn insert_static(&mut self, station: Station, port: u16) {
        let before = self.map.get(&station).copied();
        let len = self.fdb.len();
        match self.fdb.insert_static(station, port) {
            Ok(()) => {
                assert!(station.mac.is_station() && port < PORTS);
                if before.is_none() && self.fdb.len() == len {
                    let gone: Vec<Station> = self.map.keys().copied().collect();
                    let gone: Vec<Station> =
                        gone.into_iter().filter(|&m| self.fdb.lookup(m).is_none()).collect();
                    assert_eq!(gone.len(), 1);
                    assert!(self.map.remove(&gone[0]).is_some_and(|k| k.stamp.is_some()));
                }
                self.map.insert(station, Known { port, stamp: None });
                self.forget(None);
            }
            Err(StaticError::NotStation(_)) => assert!(!station.mac.is_station()),
            Err(StaticError::NoSuchPort(_)) => assert!(port >= PORTS),
            Err(StaticError::Taken { port: owner, .. }) => {
                assert_eq!(before, Some(Known { port: owner, stamp: None }));
                assert_ne!(owner, port);
            }
            Err(StaticError::BucketFull(_)) => {
                assert!(self.map.values().filter(|known| known.stamp.is_none()).count() >= 8);
            }
        }
    }

    fn remove_static(&mut self, station: Station, port: u16) {
        let there = self.map.get(&station) == Some(&Known { port, stamp: None });
        assert_eq!(self.fdb.remove_static(station, port), there);
        if there {
            self.map.remove(&station);
        }
    }

    /// All entries, and all counts.
    fn compare(&self, now: u32) {
        let entries = self.fdb.entries(Tick::from_bits(now));
        assert_eq!(entries.len(), self.map.len());
        for entry in entries {
            let known = self.map.get(&entry.station).expect("an entry nobody made");
            assert_eq!(entry.port, known.port);
            let moves = self.moves.get(&entry.station);
            assert_eq!(entry.held, moves.is_some_and(|moves| moves.hold(now)));
            match (entry.age, known.stamp) {
                (EntryAge::Static, None) => {}
                (EntryAge::Idle(idle), Some(stamp)) => {
                    assert_eq!(idle, (now / SECOND).saturating_sub(stamp / SECOND));
                }
                other => panic!("{:?}: {other:?}", entry.station),
            }
        }
        assert_eq!(self.fdb.len(), self.map.len());
        for port in 0..PORTS {
            assert_eq!(self.fdb.port_len(port), self.of(port));
        }
        for (station, known) in &self.map {
            assert_eq!(self.fdb.lookup(*station), Some(known.port));
        }
    }
}
