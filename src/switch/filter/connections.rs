//! The connections of all ports with a filter.
//!
//! [`Connections::pass`], the way of each packet, takes no lock: it finds the entry of a packet's
//! connection and exchanges one word. [`Connections::open`] holds the lock of the connection's
//! shard, so that a connection has one entry; a worker tries for a bounded time and then answers
//! [`Opened::Busy`]. Removal takes no lock either: who exchanges the word of an entry for an empty
//! one has removed the entry.
//!
//! A connection has two buckets of eight slots to choose from, both of one shard, and begins in the
//! emptier one (Y. Azar et al., "Balanced allocations", STOC 1994).
//!
//! A port may have a number of connections, so no port takes the entries of another. A connection
//! that is half-open, or has ended, makes room for a new one of its own port: the oldest first.

mod dump;
mod hash;
mod key;
mod listing;
mod quota;
mod slots;
mod state;
mod word;

use std::sync::{PoisonError, TryLockError};

use super::super::fdb::Tick;
use super::super::sync::{AtomicU64, Mutex, MutexGuard, Ordering, spin_loop};
use base::limits::{
    CONNECTION_LOCK_ATTEMPTS, CONNECTION_SHARDS, CONNECTION_SLOTS, HALF_OPEN_LOOKS,
    MAX_CONNECTIONS, MAX_CONNECTIONS_PER_PORT, RESERVED_CONNECTIONS_PER_PORT, STREAM_AFTER_SECONDS,
};
pub use dump::{Damaged, FORMAT_VERSION};
use hash::KeyHash;
pub use key::{Key, Parts, Place};
pub use listing::Connection;
use quota::{List, Quota};
pub use slots::SlotRef;
use slots::{Found, Home, Owner, Slots};
use state::Step;
pub use state::{Event, Segment, State};
use word::Word;

/// Exchanges that a packet tries for its connection's word. Each failure is another packet's
/// success, so the state is the other packet's then.
const EXCHANGES: usize = 4;

/// Configuration of a table. Has no `Debug`, since the key is secret.
#[derive(Clone, Copy)]
pub struct ConnectionsConfig {
    /// Connections of all ports; a full table still takes reserved ones.
    pub max_entries: u32,
    /// Connections of one port.
    pub max_per_port: u32,
    /// Connections that a port may have although the table is full.
    pub reserved_per_port: u32,
    /// Number of ports; port numbers are below it.
    pub ports: usize,
    /// Secret key of the hash: random per table in service, fixed in tests.
    pub key: [u64; 4],
}

impl ConnectionsConfig {
    /// Makes a configuration with the switch's limits.
    pub fn limited(ports: usize, key: [u64; 4]) -> ConnectionsConfig {
        ConnectionsConfig {
            max_entries: MAX_CONNECTIONS,
            max_per_port: MAX_CONNECTIONS_PER_PORT,
            reserved_per_port: RESERVED_CONNECTIONS_PER_PORT,
            ports,
            key,
        }
    }
}

/// The answer to a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// The packet belongs to no known connection.
    Unknown,
    /// The packet passes.
    Known(Known),
    /// The packet cannot belong to the connection with its key.
    Invalid,
    /// The packet begins a connection in the place of one that has ended.
    Again(SlotRef),
}

/// A connection that a packet belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    /// The entry.
    pub slot: SlotRef,
    /// The rule by which the connection began.
    pub rule: u16,
    /// Generation of the rules that permitted the connection.
    pub generation: u32,
    /// The VM behind the port sent the first packet.
    pub out: bool,
    /// The next packets of this kind pass in the same state until the tick ends.
    pub settled: bool,
}

/// The answer to the first packet of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Opened {
    /// The connection is in the table.
    New,
    /// Another thread was faster.
    Known,
    /// The port, or the table, has too many connections.
    Full,
    /// The lock was held for too long.
    Busy,
    /// Such a packet begins no connection.
    Invalid,
}

/// A table of connections.
pub struct Connections {
    slots: Slots,
    hash: KeyHash,
    shards: Vec<Mutex<()>>,
    quota: Quota,
    /// Changes when connections are removed before their time.
    generation: AtomicU64,
}

impl Connections {
    /// Makes an empty table.
    pub fn new(config: ConnectionsConfig) -> Connections {
        let reserved = config.reserved_per_port.saturating_mul(config.ports as u32);
        let most = config.max_entries.saturating_add(reserved);
        let slots = most.saturating_mul(CONNECTION_SLOTS) as usize;
        Connections {
            slots: Slots::new(slots, CONNECTION_SHARDS),
            hash: KeyHash::new(config.key),
            shards: (0..CONNECTION_SHARDS).map(|_| Mutex::new(())).collect(),
            quota: Quota::new(&config),
            generation: AtomicU64::new(0),
        }
    }

    /// Allocates what a port needs. The caller calls this before the first frame of a port with a
    /// filter: a frame never allocates.
    pub fn prepare(&self, port: u16) {
        self.quota.prepare(port);
    }

    /// Returns a number that changes when connections are removed before their time. The caller
    /// reads the number before [`Connections::pass`] and forgets the answer when the number
    /// changes.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns the number of connections, those that have timed out included.
    pub fn len(&self) -> usize {
        self.quota.total() as usize
    }

    /// True if the table has no connection.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of connections of a port.
    pub fn port_len(&self, port: u16) -> usize {
        self.quota.of_port(port) as usize
    }

    #[inline]
    fn home(&self, key: &Key) -> Home {
        self.slots.home(self.hash.hash(key))
    }

    /// Finds a packet's connection and moves its state on. `out`: the VM behind the port sent the
    /// packet.
    #[inline]
    pub fn pass(&self, key: &Key, event: Event, out: bool, now: Tick) -> Seen {
        match self.slots.find(&self.home(key), key, now) {
            Some(found) => self.advance(found, key, event, out, now),
            None => Seen::Unknown,
        }
    }

    /// Returns the rule of a connection, whose state stays: for an ICMP error.
    pub fn quoted(&self, key: &Key, now: Tick) -> Option<Known> {
        let found = self.slots.find(&self.home(key), key, now)?;
        Some(self.known(found, found.word, false))
    }

    fn known(&self, Found { slot, owner, .. }: Found, word: Word, settled: bool) -> Known {
        let Owner { rule, generation, .. } = owner;
        let slot = SlotRef::new(slot, word.version());
        Known { slot, rule, generation, out: word.is_out(), settled }
    }

    #[inline]
    fn advance(&self, mut found: Found, key: &Key, event: Event, out: bool, now: Tick) -> Seen {
        for _ in 0..EXCHANGES {
            let before = found.word;
            let first = before.is_out() == out;
            let old = found.owner.is_older(now, STREAM_AFTER_SECONDS);
            let after = match before.state().next(event, first, old) {
                Step::To(state) => next_word(before, state, first, key.protocol(), now),
                Step::Ignored => return Seen::Known(self.known(found, before, false)),
                Step::Invalid => return Seen::Invalid,
                Step::Again => return Seen::Again(SlotRef::new(found.slot, before.version())),
            };
            if after == before {
                return Seen::Known(self.known(found, after, is_settled(after)));
            }
            match self.slots.exchange(found.slot, before, after) {
                Ok(()) => {
                    self.note_end(key.port(), found.slot, before, after);
                    return Seen::Known(self.known(found, after, is_settled(after)));
                }
                Err(word) if word.is_same(before) => found.word = word,
                // Removed meanwhile.
                Err(_) => return Seen::Unknown,
            }
        }
        Seen::Known(self.known(found, found.word, false))
    }

    /// Lists a connection that has ended just now.
    #[inline]
    fn note_end(&self, port: u16, slot: usize, before: Word, after: Word) {
        if after.state().is_over() && !before.state().is_over() {
            self.list(port, List::Ended, SlotRef::new(slot, after.version()));
        }
    }

    /// Lists a connection that makes room for others; the oldest one of a full list goes.
    #[cold]
    fn list(&self, port: u16, list: List, slot: SlotRef) {
        if let Some(oldest) = self.quota.push(port, list, slot) {
            self.evict(port, oldest);
        }
    }

    /// Removes the connection of a slot if it is still the one that was listed, and half-open or
    /// ended.
    fn evict(&self, port: u16, slot: SlotRef) -> bool {
        let word = self.slots.word(slot.slot());
        let goes = slot.is(word) && word.is_used() && !word.is_assured();
        goes && self.remove(port, slot.slot(), word)
    }

    /// Removes a connection whose word is still `word`.
    fn remove(&self, port: u16, slot: usize, word: Word) -> bool {
        let removed = self.slots.exchange(slot, word, word.cleared()).is_ok();
        if removed {
            self.quota.give_back(port);
        }
        removed
    }

    /// Begins a connection. `rule` of the rules of `generation` permits it.
    pub fn open(
        &self,
        key: &Key,
        event: Event,
        out: bool,
        (rule, generation): (u16, u32),
        now: Tick,
    ) -> Opened {
        let Some(state) = State::first(event) else { return Opened::Invalid };
        let home = self.home(key);
        let Some(_guard) = self.lock_briefly(home.shard) else { return Opened::Busy };
        let port = key.port();
        // One that has timed out is found too: a key has one entry.
        if let Some(found) = self.slots.find(&home, key, Tick::default())
            && !(found.word.is_expired(now) && self.remove(port, found.slot, found.word))
        {
            return Opened::Known;
        }
        let has_room = self.quota.take(port) || (self.make_room(port) && self.quota.take(port));
        if !has_room {
            return Opened::Full;
        }
        let Some(slot) = self.free_slot(&home, port, now) else {
            self.quota.give_back(port);
            return Opened::Full;
        };
        let deadline = after(now, state.seconds(key.protocol(), false));
        let owner = Owner::new(rule, generation, now);
        let version = self.slots.write(slot, &home, key, owner, (out, state, deadline));
        self.list(port, List::HalfOpen, SlotRef::new(slot, version));
        Opened::New
    }

    /// Removes the oldest connection of a port that has ended or is half-open.
    #[cold]
    fn make_room(&self, port: u16) -> bool {
        for list in [List::Ended, List::HalfOpen] {
            for _ in 0..HALF_OPEN_LOOKS {
                let Some(oldest) = self.quota.pop(port, list) else { break };
                if self.evict(port, oldest) {
                    return true;
                }
            }
        }
        false
    }

    /// Returns an unused slot of one of two buckets, or one whose connection has timed out or, of
    /// the same port, makes room. The caller has the shard's lock.
    fn free_slot(&self, home: &Home, port: u16, now: Tick) -> Option<usize> {
        if let Some(free) = self.slots.free(home) {
            return Some(free);
        }
        let mut all = self.slots.of(home);
        all.find(|&slot| {
            let word = self.slots.word(slot);
            let owner = self.slots.key(slot).port();
            let goes = word.is_expired(now) || (owner == port && !word.is_assured());
            goes && self.remove(owner, slot, word)
        })
    }

    /// Notes that the rules of `generation` permit a connection, by `rule`.
    pub fn renew(&self, known: &Known, rule: u16, generation: u32) {
        self.slots.renew(known, rule, generation);
    }

    /// Removes a connection, unless its slot has got another one. Returns true if it was there.
    pub fn end(&self, key: &Key, slot: SlotRef) -> bool {
        for _ in 0..EXCHANGES {
            let word = self.slots.word(slot.slot());
            if !word.is_used() || !slot.is(word) {
                return false;
            }
            if self.remove(key.port(), slot.slot(), word) {
                return true;
            }
        }
        false
    }

    /// Waits for a shard's lock as long as a running holder has it.
    fn lock_briefly(&self, shard: usize) -> Option<MutexGuard<'_, ()>> {
        for _ in 0..CONNECTION_LOCK_ATTEMPTS {
            match self.shards.get(shard)?.try_lock() {
                Ok(guard) => return Some(guard),
                // A poisoned lock is usable: each entry is whole at any moment.
                Err(TryLockError::Poisoned(poison)) => return Some(poison.into_inner()),
                Err(TryLockError::WouldBlock) => spin_loop(),
            }
        }
        None
    }

    /// Waits for a shard's lock. For control threads.
    fn lock(&self, shard: usize) -> MutexGuard<'_, ()> {
        self.shards[shard % self.shards.len()].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the tick so many seconds after another.
pub(super) fn after(now: Tick, seconds: u32) -> Tick {
    Tick::from_bits(now.to_bits().saturating_add(Tick::ticks(seconds)))
}

/// Returns the word after a packet that moves the connection to `state`.
#[inline]
fn next_word(before: Word, state: State, first: bool, protocol: u8, now: Tick) -> Word {
    let word = if first { before } else { before.replied() };
    let word = word.with(state, after(now, state.seconds(protocol, word.is_replied())));
    match state {
        State::Established | State::Association | State::Stream => word.assured(word.is_replied()),
        _ if state.is_over() => word.assured(false),
        _ => word,
    }
}

/// True if packets of the same kind leave the word as it is until the tick ends.
#[inline]
fn is_settled(word: Word) -> bool {
    matches!(word.state(), State::Established | State::Stream | State::Unreplied | State::Replied)
}
