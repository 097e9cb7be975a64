//! The forwarding database: which port an address was last seen on.
//!
//! [`Fdb::lookup`], and [`Fdb::learn`] of a known address, take no lock. Writers (insert, move,
//! remove, age, flush) hold the lock of the bucket's shard, a leaf. A worker tries for a bounded
//! time and then answers [`Learn::Busy`]; the next frame learns instead. Readers may rely on three
//! promises:
//!
//! * An entry that stays is always found. A move is one store: a lookup sees the old or the new
//!   port.
//! * An address has at most one entry: every insertion looks again under the lock.
//! * A remembered answer is valid while [`Fdb::generation`] equals its value **before** the lookup:
//!   writers store the word first. Insertions do not change the generation, so "unknown address"
//!   must not be remembered beyond a burst.
//!
//! At the table cap a bucket of eight slots has one entry on average: 0.08 of 65,536 addresses find
//! no slot. Entries reserved for segments can raise the average to five: then one address of eight
//! finds no slot. An address without a slot displaces another one or floods, see `full`.

use std::sync::{PoisonError, TryLockError};

use super::segment::{Segment, Station};
use base::limits::{
    FDB_LOCK_ATTEMPTS, FDB_MAX_ENTRIES_LIMIT, FDB_MAX_PORTS, FDB_PREFETCH_ENTRIES, FDB_SHARDS,
    FDB_SWEEP_BUCKETS,
};

mod ageing;
mod answers;
mod config;
mod damping;
mod full;
mod quota;
mod slots;
#[cfg(test)]
mod tests;
mod tick;

use super::sync::{AtomicU64, Mutex, MutexGuard, Ordering, spin_loop};
pub use answers::{Entry, EntryAge, Learn, StaticError};
pub use config::FdbConfig;
use damping::Moves;
use quota::Quota;
use slots::{Found, Home, Slots, Word};
pub use tick::Tick;

pub use super::segment::PortId;

/// Stamp of an entry that the ageing sweep has claimed; such an entry can no longer be refreshed.
const EXPIRING: u32 = u32::MAX;
/// The latest stamp of an entry that is not claimed.
const LAST_TICK: Tick = Tick::from_bits(EXPIRING - 1);

/// Keeps data that writers change off the cache lines that lookups read.
#[repr(align(64))]
struct CacheLine<T>(T);

/// Number of entries in each run of [`FDB_SWEEP_BUCKETS`] buckets of one shard. A sweep skips empty
/// runs and leaves their memory untouched.
type Shard = CacheLine<Mutex<Vec<u32>>>;

/// A forwarding table; the module lists its promises.
pub struct Fdb {
    slots: Slots,
    /// Ticks for which an idle entry is kept; 0: for ever.
    age: u32,
    damping: bool,
    buckets_per_shard: usize,
    shards: Vec<Shard>,
    quota: Quota,
    generation: CacheLine<AtomicU64>,
}

impl Fdb {
    /// Makes an empty table. Sizes beyond [`FDB_MAX_ENTRIES_LIMIT`] and [`FDB_MAX_PORTS`] are
    /// reduced.
    pub fn new(config: FdbConfig) -> Fdb {
        let max_entries = config.max_entries.min(FDB_MAX_ENTRIES_LIMIT);
        let buckets = (max_entries as usize).next_power_of_two().max(FDB_SHARDS);
        let buckets_per_shard = buckets / FDB_SHARDS;
        let runs = buckets_per_shard.div_ceil(FDB_SWEEP_BUCKETS);
        let ports = config.ports.min(FDB_MAX_PORTS);
        Fdb {
            slots: Slots::new(buckets, config.key),
            age: Tick::ticks(config.age_seconds),
            damping: config.damping,
            buckets_per_shard,
            shards: (0..FDB_SHARDS).map(|_| CacheLine(Mutex::new(vec![0; runs]))).collect(),
            quota: Quota::new(ports, &FdbConfig { max_entries, ..config }),
            generation: CacheLine(AtomicU64::new(0)),
        }
    }

    /// Returns the port of an address.
    #[inline]
    pub fn lookup(&self, station: impl Into<Station>) -> Option<PortId> {
        self.slots.find(self.slots.home(station.into())).map(|found| found.word.port())
    }

    /// Returns the port of an address, and whether the address is configured there.
    pub fn whose(&self, station: impl Into<Station>) -> Option<(PortId, bool)> {
        let found = self.slots.find(self.slots.home(station.into()))?;
        Some((found.word.port(), found.word.is_static()))
    }

    /// Returns the port at which a flapping address is held, or would be held by a move to `port`
    /// at `now`; `None` if a frame from `port` may move the address.
    pub fn held(
        &self,
        station: impl Into<Station>,
        port: PortId,
        now: impl Into<Tick>,
    ) -> Option<PortId> {
        let found = self.slots.find(self.slots.home(station.into()))?;
        let (at, moves, now) = (found.word.port(), self.slots.moves(found.slot), now.into());
        if at == port || found.word.is_static() || !self.damping {
            return None;
        }
        if moves.hold(now) {
            return (!moves.lapse(port, self.seen(found.slot), now)).then_some(at);
        }
        let next = moves.and(at, port, now);
        (next.hold(now) && next.origin() != port).then(|| next.origin())
    }

    /// Returns the answer for a source address on a port that does not learn.
    pub fn recognise(&self, station: impl Into<Station>, port: PortId) -> Learn {
        match self.whose(station) {
            Some((owner, true)) if owner == port => Learn::Known,
            Some((_, true)) => Learn::Static,
            _ => Learn::Off,
        }
    }

    /// True if [`Fdb::prefetch`] pays: the table is larger than a core's nearest cache.
    #[inline(always)]
    pub fn is_large(&self) -> bool {
        self.quota.total.0.load(Ordering::Relaxed) > FDB_PREFETCH_ENTRIES
    }

    /// Calls `read` with the memory that [`Fdb::learn`] reads for the source and [`Fdb::lookup`]
    /// for the destination. The caller prefetches a whole burst before its first frame, so that the
    /// cache misses overlap; otherwise each would wait for the branches of the frame before.
    #[inline(always)]
    pub fn prefetch(&self, source: Station, destination: Station, read: impl Fn(*const u8)) {
        let (word, stamp) = self.slots.lines(self.slots.home(source));
        read(word);
        read(stamp);
        read(self.slots.lines(self.slots.home(destination)).0);
    }

    /// Learns that a frame from `station` arrived on `port` at `now`.
    #[inline]
    pub fn learn(&self, station: impl Into<Station>, port: PortId, now: impl Into<Tick>) -> Learn {
        let station = station.into();
        let home = self.slots.home(station);
        let now = now.into().min(LAST_TICK);
        match self.slots.find(home) {
            Some(found) if found.word.port() == port => {
                self.refresh(found, now).unwrap_or_else(|| self.learn_locked(station, port, now))
            }
            Some(found) => self.learn_elsewhere(found, station, port, now),
            None => self.learn_new(station, port, now),
        }
    }

    /// Renews the stamp of a known entry; `None` if the slot is changing its entry.
    #[inline]
    fn refresh(&self, found: Found, now: Tick) -> Option<Learn> {
        let seen = self.slots.stamp(found.slot).load(Ordering::Relaxed);
        if seen == now.to_bits() || found.word.is_static() {
            return Some(Learn::Known);
        }
        if seen == EXPIRING {
            return None;
        }
        // Any other tick is written, an earlier one too: if time steps back, the stamps of live
        // entries follow.
        self.restamp(found.slot, seen, now.to_bits()).then_some(Learn::Refreshed)
    }

    /// Replaces the stamp of a slot unless the stamp is no longer `seen`.
    ///
    /// A compare-exchange: a refresh and the claim of an ageing sweep may meet, and one of them
    /// must fail. After a plain store the sweep would remove an entry that was just refreshed. If
    /// the slot was reused since the caller's look, the exchange fails, or at worst gives the entry
    /// of another address the right time.
    #[inline]
    fn restamp(&self, slot: usize, seen: u32, stamp: u32) -> bool {
        let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
        self.slots.stamp(slot).compare_exchange(seen, stamp, success, failure).is_ok()
    }

    /// Learns a new address. Refusals that need no lock come first, so that a guest with a million
    /// addresses causes its neighbours no lock traffic.
    #[cold]
    fn learn_new(&self, station: Station, port: PortId, now: Tick) -> Learn {
        if !station.mac.is_station() {
            return Learn::NotStation;
        }
        self.quota
            .refusal(port, station.segment)
            .unwrap_or_else(|| self.learn_locked(station, port, now))
    }

    /// Learns an address of another port. Refusals that need no lock come first.
    #[cold]
    fn learn_elsewhere(&self, found: Found, station: Station, port: PortId, now: Tick) -> Learn {
        if found.word.is_static() {
            Learn::Static
        } else if self.quota.is_port_full(port) {
            Learn::PortFull
        } else if self.keeps(found.slot, port, now) {
            Learn::Held { at: found.word.port() }
        } else {
            self.learn_locked(station, port, now)
        }
    }

    /// True if an entry of another port is held there; notes `port` as contesting the entry.
    ///
    /// Takes no lock, since a contesting port may send frame after frame. The exchange fails if the
    /// moves have changed meanwhile; the next frame notes the port then.
    fn keeps(&self, slot: usize, port: PortId, now: Tick) -> bool {
        let moves = self.slots.moves(slot);
        if !moves.hold(now) || moves.lapse(port, self.seen(slot), now) {
            return false;
        }
        self.slots.exchange_moves(slot, moves, moves.contested(port, now));
        true
    }

    /// Returns the tick at which the entry's port last sent from the entry's address.
    fn seen(&self, slot: usize) -> Tick {
        Tick::from_bits(self.slots.stamp(slot).load(Ordering::Relaxed))
    }

    /// Learns under the shard's lock, where no other thread inserts, moves or removes in this
    /// bucket.
    #[cold]
    fn learn_locked(&self, station: Station, port: PortId, now: Tick) -> Learn {
        let home = self.slots.home(station);
        let Some(mut shard) = self.lock_briefly(self.shard_of(home)) else {
            return Learn::Busy;
        };
        // Looks again: the bucket may have changed since the scan without the lock.
        match self.slots.find(home) {
            Some(found) if found.word.port() == port => {
                // No sweep can have claimed the entry: a claim needs this lock.
                self.slots.stamp(found.slot).store(now.to_bits(), Ordering::Relaxed);
                Learn::Refreshed
            }
            Some(found) if found.word.is_static() => Learn::Static,
            Some(found) => self.relocate(found, station, port, now),
            None => self.insert(&mut shard[self.run_of(home)], home, station, port, now),
        }
    }

    /// Moves an entry to `port`, or back to its origin if the address flaps.
    fn relocate(&self, found: Found, station: Station, port: PortId, now: Tick) -> Learn {
        let (from, before) = (found.word.port(), self.slots.moves(found.slot));
        if before.hold(now) {
            return self.end_hold(found, self.seen(found.slot), station, port, now);
        }
        let moves = if self.damping { before.and(from, port, now) } else { Moves::NONE };
        let held = moves.hold(now);
        let to = if held { moves.origin() } else { port };
        if to != from
            && let Err(refusal) = self.quota.transfer(from, to)
        {
            if !held {
                return refusal;
            }
            self.slots.set_moves(found.slot, moves);
            return Learn::Held { at: from };
        }
        self.slots.set_moves(found.slot, moves);
        if to != from {
            self.write(found.slot, station.segment, Word::learned(station, to), now.to_bits());
            self.count_generation();
        }
        if to == port { Learn::Moved { from } } else { Learn::Held { at: to } }
    }

    /// Moves an entry to `port` if the entry's hold lapses: the entry's own port last sent at
    /// `seen`, and has not sent since.
    fn end_hold(
        &self,
        found: Found,
        seen: Tick,
        station: Station,
        port: PortId,
        now: Tick,
    ) -> Learn {
        let (at, moves) = (found.word.port(), self.slots.moves(found.slot));
        // Exchanged, since the entry's port refreshes without the lock: if both come at once, one
        // fails.
        if !moves.lapse(port, seen, now) || !self.restamp(found.slot, seen.to_bits(), now.to_bits())
        {
            return Learn::Held { at };
        }
        if let Err(refusal) = self.quota.transfer(at, port) {
            return refusal;
        }
        self.slots.set_moves(found.slot, moves.lapsed(now));
        self.write(found.slot, station.segment, Word::learned(station, port), now.to_bits());
        self.count_generation();
        Learn::Moved { from: at }
    }

    fn insert(
        &self,
        run: &mut u32,
        home: Home,
        station: Station,
        port: PortId,
        now: Tick,
    ) -> Learn {
        let Some(free) = self.slots.bucket(home).find(|slot| slot.word == Word::EMPTY) else {
            return self.insert_in_full(home, station, port, now);
        };
        if let Err(refusal) = self.quota.take(port, station.segment) {
            return refusal;
        }
        *run += 1;
        self.write(free.slot, station.segment, Word::learned(station, port), now.to_bits());
        Learn::Inserted
    }

    /// Ties an address to a port until removed: no other port can learn the address. Replaces a
    /// learned entry. Caps do not apply to configured entries, which count nevertheless.
    pub fn insert_static(
        &self,
        station: impl Into<Station>,
        port: PortId,
    ) -> Result<(), StaticError> {
        let station @ Station { segment, mac } = station.into();
        if !mac.is_station() {
            return Err(StaticError::NotStation(mac));
        }
        if !self.quota.knows(port) {
            return Err(StaticError::NoSuchPort(port));
        }
        let home = self.slots.home(station);
        let mut shard = self.lock(self.shard_of(home));
        let slot = match self.slots.find(home) {
            Some(found) if found.word == Word::configured(station, port) => return Ok(()),
            Some(found) if found.word.is_static() => {
                return Err(StaticError::Taken { mac, port: found.word.port() });
            }
            Some(found) => {
                self.quota.transfer_static(found.word.port(), port);
                found.slot
            }
            None => self.slot_for_static(&mut shard[self.run_of(home)], home, station, port)?,
        };
        self.slots.set_moves(slot, Moves::NONE);
        self.write(slot, segment, Word::configured(station, port), 0);
        self.count_generation();
        Ok(())
    }

    /// Returns an empty slot, or the slot of the oldest learned entry of any port: configuration
    /// has precedence over learning.
    fn slot_for_static(
        &self,
        run: &mut u32,
        home: Home,
        station: Station,
        port: PortId,
    ) -> Result<usize, StaticError> {
        if let Some(free) = self.slots.bucket(home).find(|slot| slot.word == Word::EMPTY) {
            self.quota.take_static(port, station.segment);
            *run += 1;
            return Ok(free.slot);
        }
        let victim =
            self.oldest_learned(home, |_| true).ok_or(StaticError::BucketFull(station.mac))?;
        self.quota.transfer_static(victim.word.port(), port);
        self.quota.change_segment_static(self.slots.segment(victim), station.segment);
        Ok(victim.slot)
    }

    /// Removes the port's static entry for an address; false if there is none.
    pub fn remove_static(&self, station: impl Into<Station>, port: PortId) -> bool {
        let station = station.into();
        let home = self.slots.home(station);
        let mut shard = self.lock(self.shard_of(home));
        match self.slots.find(home) {
            Some(found) if found.word == Word::configured(station, port) => {
                self.clear(&mut shard[self.run_of(home)], found);
                self.count_generation();
                true
            }
            _ => false,
        }
    }

    /// Removes the learned entries of a port; static entries stay. Returns their number.
    ///
    /// For a port that is about to go: the caller calls this when no worker can learn for the port.
    pub fn flush_port(&self, port: PortId) -> usize {
        self.flush(|of, _| of == port)
    }

    /// Removes the learned entries of the ports and segments for which `wanted` is true, and
    /// forgets that addresses moved away from there; static entries stay. Returns the number of
    /// removed entries.
    pub fn flush(&self, wanted: impl Fn(PortId, Segment) -> bool) -> usize {
        self.sweep(|found| {
            let segment = self.slots.segment(found);
            self.forget_origin(found, |origin| wanted(origin, segment));
            !found.word.is_static() && wanted(found.word.port(), segment)
        })
    }

    /// Forgets an entry's origin if the origin is gone, so that no address goes back there.
    fn forget_origin(&self, found: Found, gone: impl Fn(PortId) -> bool) {
        let moves = self.slots.moves(found.slot);
        if moves != Moves::NONE && gone(moves.origin()) {
            self.slots.set_moves(found.slot, Moves::NONE);
        }
    }

    /// Removes all entries of a deleted port, static ones too. Returns their number.
    ///
    /// The caller calls this when no worker can learn for the port.
    pub fn close_port(&self, port: PortId) -> usize {
        self.sweep(|found| {
            self.forget_origin(found, |origin| origin == port);
            found.word.port() == port
        })
    }

    /// Returns a number that changes whenever a remembered answer of [`Fdb::lookup`] may have
    /// become wrong. The caller reads the number before the lookup.
    #[inline]
    pub fn generation(&self) -> u64 {
        // Acquire: a reader that sees the new number sees the change behind it.
        self.generation.0.load(Ordering::Acquire)
    }

    /// Sets the number of entries that one port may learn; a cap of the table's size means no cap.
    /// A port that has learned more keeps its entries until they age.
    pub fn set_port_cap(&self, port: PortId, cap: u32) {
        self.quota.set_port_cap(port, cap);
    }

    /// Returns the number of entries in the table, static ones included.
    pub fn len(&self) -> usize {
        self.quota.total() as usize
    }

    /// True if the table has no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of entries of a port, static ones included.
    pub fn port_len(&self, port: PortId) -> usize {
        self.quota.of_port(port) as usize
    }

    /// True if the port has learned as many addresses as it may.
    pub fn is_port_full(&self, port: PortId) -> bool {
        self.quota.is_port_full(port)
    }

    /// Returns all entries, unsorted. Each entry was in the table at some moment of the call.
    pub fn entries(&self, now: impl Into<Tick>) -> Vec<Entry> {
        let now = now.into();
        // Room for entries learned meanwhile: the vector should not grow under a shard's lock.
        let mut entries = Vec::with_capacity(self.len() + self.len() / 8 + 64);
        self.sweep(|found| {
            let age = match found.word.is_static() {
                true => EntryAge::Static,
                false => {
                    EntryAge::Idle(now.second().saturating_sub(self.seen(found.slot).second()))
                }
            };
            let station = Station::new(self.slots.segment(found), found.word.mac());
            let held = self.slots.moves(found.slot).hold(now);
            entries.push(Entry { station, port: found.word.port(), age, held });
            false
        });
        entries
    }

    /// Visits every entry and removes those for which `doomed` is true. Returns their number.
    fn sweep(&self, mut doomed: impl FnMut(Found) -> bool) -> usize {
        let mut removed = 0;
        for shard in 0..self.shards.len() {
            let mut run = 0;
            loop {
                // The lock is released after each run, so that workers can learn in between.
                let mut entries = self.lock(shard);
                let Some(empty) = entries[run..].iter().position(|&n| n > 0) else {
                    break;
                };
                run += empty;
                removed += self.sweep_run(&mut entries[run], shard, run, &mut doomed);
                run += 1;
            }
        }
        removed
    }

    fn sweep_run(
        &self,
        entries: &mut u32,
        shard: usize,
        run: usize,
        doomed: &mut impl FnMut(Found) -> bool,
    ) -> usize {
        let first = shard * self.buckets_per_shard + run * FDB_SWEEP_BUCKETS;
        let buckets = FDB_SWEEP_BUCKETS.min(self.buckets_per_shard);
        let mut removed = 0;
        for slot in self.slots.slots_of(first, buckets) {
            let found = Found { slot, word: self.slots.word(slot) };
            if found.word != Word::EMPTY && doomed(found) {
                self.clear(entries, found);
                removed += 1;
            }
        }
        if removed > 0 {
            self.count_generation();
        }
        removed
    }

    /// Writes an entry, the stamp before the word: a reader that sees the word (Acquire) sees the
    /// stamp, so a new entry never looks as old as the slot's last entry.
    fn write(&self, slot: usize, segment: Segment, word: Word, stamp: u32) {
        self.slots.enter(slot, segment);
        self.slots.stamp(slot).store(stamp, Ordering::Relaxed);
        self.slots.set(slot, word);
    }

    fn clear(&self, run: &mut u32, found: Found) {
        let segment = self.slots.segment(found);
        self.slots.set_moves(found.slot, Moves::NONE);
        self.slots.set(found.slot, Word::EMPTY);
        self.quota.give_back(found.word.port(), segment, found.word.is_static());
        *run -= 1;
    }

    /// Changes the generation, always after the word was stored: a reader that saw the new
    /// generation with an old word would keep the wrong answer until the next change.
    fn count_generation(&self) {
        self.generation.0.fetch_add(1, Ordering::Release);
    }

    fn shard_of(&self, home: Home) -> usize {
        self.slots.bucket_of(home) / self.buckets_per_shard
    }

    fn run_of(&self, home: Home) -> usize {
        self.slots.bucket_of(home) % self.buckets_per_shard / FDB_SWEEP_BUCKETS
    }

    /// Waits for a shard's lock. For control threads; holders of the lock never wait for anything.
    fn lock(&self, shard: usize) -> MutexGuard<'_, Vec<u32>> {
        // A poisoned lock is usable: each word is whole at any moment.
        self.shards[shard].0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tries to lock a shard, about as long as a running holder keeps the lock. For workers.
    fn lock_briefly(&self, shard: usize) -> Option<MutexGuard<'_, Vec<u32>>> {
        for _ in 0..FDB_LOCK_ATTEMPTS {
            match self.shards[shard].0.try_lock() {
                Ok(guard) => return Some(guard),
                Err(TryLockError::Poisoned(poison)) => return Some(poison.into_inner()),
                Err(TryLockError::WouldBlock) => spin_loop(),
            }
        }
        None
    }
}
