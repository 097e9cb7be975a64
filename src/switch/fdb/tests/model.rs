//! Random operations on the table and on a plain map must give equal answers.

use std::collections::HashMap;

use super::*;
use base::limits::{FDB_FLAPS, FDB_HOLD_SECONDS, FDB_SILENCE_SECONDS};

/// The table's rules over a plain map.
struct Model {
    entries: HashMap<MacAddr, Modelled>,
    caps: [u32; 5],
}

#[derive(Clone)]
struct Modelled {
    port: PortId,
    stamp: u32,
    configured: bool,
    moves: Option<Flaps>,
}

/// Record of an entry's moves.
#[derive(Clone)]
struct Flaps {
    /// The port that had the entry before the moves.
    origin: PortId,
    /// The second of each move.
    seconds: Vec<u32>,
    /// The second in which a hold lapsed.
    lapsed: Option<u32>,
    /// The port that contests a hold, and the second since when it does so alone.
    rival: (PortId, u32),
}

impl Flaps {
    fn begin(origin: PortId) -> Flaps {
        Flaps { origin, seconds: Vec::new(), lapsed: None, rival: (origin, 0) }
    }

    /// Returns the number of moves in second `now`.
    fn in_second(&self, now: u32) -> usize {
        self.seconds.iter().filter(|second| **second == now).count()
    }

    fn last(&self) -> Option<u32> {
        self.seconds.last().copied().or(self.lapsed)
    }
}

impl Modelled {
    fn new(port: PortId, stamp: u32, configured: bool) -> Modelled {
        Modelled { port, stamp, configured, moves: None }
    }

    /// True if the entry moved so often in one second that it stays.
    fn is_held(&self, now: u32) -> bool {
        let flaps = self.moves.as_ref();
        flaps.zip(flaps.and_then(Flaps::last)).is_some_and(|(flaps, last)| {
            flaps.in_second(last) >= FDB_FLAPS as usize && now - last <= FDB_HOLD_SECONDS
        })
    }

    /// True if a hold refuses `port`; otherwise the hold ends.
    fn is_refused(&mut self, port: PortId, now: u32) -> bool {
        let (stamp, Some(flaps)) = (self.stamp, self.moves.as_mut()) else { return false };
        if flaps.rival.0 != port {
            flaps.rival = (port, now);
            return true;
        }
        // In whole seconds, a difference of two means that at least one second has passed.
        if now - flaps.rival.1 <= FDB_SILENCE_SECONDS || now - stamp <= FDB_SILENCE_SECONDS {
            return true;
        }
        *flaps = Flaps { lapsed: Some(now), ..Flaps::begin(flaps.origin) };
        false
    }

    /// Moves the entry to `to`, or to its origin if that was one move too many. Returns the new
    /// port.
    fn leaves(&mut self, to: PortId, now: u32) -> Option<PortId> {
        let old = |flaps: &Flaps| flaps.last().is_none_or(|last| now - last > FDB_HOLD_SECONDS);
        if self.moves.as_ref().is_none_or(old) {
            self.moves = Some(Flaps::begin(self.port));
        }
        let (from, flaps) = (self.port, self.moves.as_mut()?);
        let origin = flaps.origin;
        let count = if flaps.lapsed.is_some() && to == origin { FDB_FLAPS } else { 1 };
        flaps.seconds.extend((0..count).map(|_| now));
        if flaps.in_second(now) < FDB_FLAPS as usize {
            return None;
        }
        (flaps.lapsed, flaps.rival) = (None, (if to == origin { from } else { to }, now));
        Some(origin)
    }
}

const MODEL_CAPS: FdbConfig = FdbConfig {
    max_entries: 40,
    max_per_port: 14,
    reserved_per_port: 3,
    max_per_segment: u32::MAX,
    reserved_per_segment: 0,
    age_seconds: 20,
    damping: true,
    ports: 5,
    key: [7, 8],
};

impl Model {
    fn new() -> Model {
        Model { entries: HashMap::new(), caps: [MODEL_CAPS.max_per_port; 5] }
    }

    /// True if a port has learned as many as it may; static entries do not count.
    fn is_full(&self, port: PortId) -> bool {
        let learned = self.entries.values().filter(|entry| entry.port == port && !entry.configured);
        learned.count() as u32 >= self.caps[usize::from(port)]
    }

    fn held(&self, port: PortId) -> u32 {
        self.entries.values().filter(|entry| entry.port == port).count() as u32
    }

    fn learn(&mut self, mac: MacAddr, port: PortId, now: u32) -> Learn {
        let (held, is_full) = (self.held(port), self.is_full(port));
        let total = self.entries.len() as u32;
        if let Some(entry) = self.entries.get_mut(&mac) {
            if entry.port == port {
                let fresh = entry.configured || entry.stamp == now;
                entry.stamp = now;
                return if fresh { Learn::Known } else { Learn::Refreshed };
            }
            if entry.configured {
                return Learn::Static;
            }
            if is_full {
                return Learn::PortFull;
            }
            let from = entry.port;
            if entry.is_held(now) {
                if entry.is_refused(port, now) {
                    return Learn::Held { at: from };
                }
                (entry.port, entry.stamp) = (port, now);
                return Learn::Moved { from };
            }
            let to = entry.leaves(port, now).unwrap_or(port);
            if to == from || to != port && self.is_full(to) {
                return Learn::Held { at: from };
            }
            let entry = self.entries.get_mut(&mac).expect("as before");
            (entry.port, entry.stamp) = (to, now);
            return if to == port { Learn::Moved { from } } else { Learn::Held { at: to } };
        }
        if is_full {
            return Learn::PortFull;
        }
        if held >= MODEL_CAPS.reserved_per_port && total >= MODEL_CAPS.max_entries {
            return Learn::TableFull;
        }
        self.entries.insert(mac, Modelled::new(port, now, false));
        Learn::Inserted
    }

    fn insert_static(&mut self, mac: MacAddr, port: PortId) -> Result<(), StaticError> {
        if let Some(entry) = self.entries.get(&mac).filter(|entry| entry.configured) {
            let taken = StaticError::Taken { mac, port: entry.port };
            return if entry.port == port { Ok(()) } else { Err(taken) };
        }
        self.entries.insert(mac, Modelled::new(port, 0, true));
        Ok(())
    }

    fn remove_where(&mut self, doomed: impl Fn(&MacAddr, &Modelled) -> bool) -> usize {
        let before = self.entries.len();
        self.entries.retain(|mac, entry| !doomed(mac, entry));
        before - self.entries.len()
    }
}

/// Runs one random operation on both; the answers must be equal.
fn step_both(fdb: &Fdb, model: &mut Model, random: &mut Random, (stations, now): (u64, u32)) {
    let (mac, port) = (station(random.below(stations)), random.below(5) as PortId);
    match random.below(100) {
        0..70 => assert_eq!(fdb.learn(mac, port, now), model.learn(mac, port, now)),
        70..90 => {
            let expected = model.entries.get(&mac).map(|entry| entry.port);
            assert_eq!(fdb.lookup(mac), expected);
        }
        90..93 => assert_eq!(fdb.insert_static(mac, port), model.insert_static(mac, port)),
        93..97 => {
            let mine = |m: &MacAddr, e: &Modelled| *m == mac && e.configured && e.port == port;
            assert_eq!(fdb.remove_static(mac, port), model.remove_where(mine) == 1);
        }
        97 if random.below(3) == 0 => {
            let cap = random.below(MODEL_CAPS.max_per_port.into()) as u32;
            fdb.set_port_cap(port, cap);
            model.caps[usize::from(port)] = cap;
        }
        97 => {
            let learned = |_: &MacAddr, e: &Modelled| !e.configured && e.port == port;
            assert_eq!(fdb.flush_port(port), model.remove_where(learned));
            // No address goes back to a flushed port.
            let of = |entry: &&mut Modelled| entry.moves.as_ref().is_some_and(|m| m.origin == port);
            model.entries.values_mut().filter(of).for_each(|entry| entry.moves = None);
        }
        _ => {
            let age = MODEL_CAPS.age_seconds;
            let old = |_: &MacAddr, e: &Modelled| !e.configured && now - e.stamp > age;
            assert_eq!(fdb.age(now), model.remove_where(old));
        }
    }
    assert_eq!(fdb.lookup(mac), model.entries.get(&mac).map(|entry| entry.port), "{mac}");
    assert_eq!(fdb.len(), model.entries.len());
}

#[test]
fn random_operations_agree_with_a_plain_map() {
    let (seeds, steps) = if cfg!(miri) { (2, 400) } else { (20, 5_000) };
    for seed in 0..seeds {
        let (fdb, mut model, mut random) = (Fdb::new(MODEL_CAPS), Model::new(), Random(seed));
        // With few stations many of them flap.
        let stations = if seed % 2 == 0 { 60 } else { 4 };
        let mut held = 0;
        let mut remembered: HashMap<MacAddr, (PortId, u64)> = HashMap::new();
        for step in 0..steps {
            let now = 1000 + step / 20;
            step_both(&fdb, &mut model, &mut random, (stations, now));
            let mac = station(random.below(stations));
            held += fdb.entries(now).iter().filter(|entry| entry.held).count();
            let (generation, answer) = (fdb.generation(), fdb.lookup(mac));
            match remembered.get(&mac) {
                Some(&(port, at)) if at == generation => {
                    assert_eq!(answer, Some(port), "a remembered answer went wrong unnoticed");
                }
                _ => drop(answer.map(|port| remembered.insert(mac, (port, generation)))),
            }
        }
        for entry in fdb.entries(0) {
            assert_eq!(model.entries.get(&entry.station.mac).map(|e| e.port), Some(entry.port));
        }
        assert_eq!(fdb.len(), model.entries.len());
        assert!(stations > 4 || held > 0 || cfg!(miri), "no address flapped");
    }
}
