//! The connections of all ports with a filter.
//!
//! [`Connections::pass`], the way of each packet, takes no lock: it finds the entry of a packet's
//! connection and exchanges one word. [`Connections::open`] holds the lock of the connection's
//! shard, so that a connection has one entry; a worker tries for a bounded time and then answers
//! [`Opened::Busy`]. A shard counts the connections that have begun: with an equal count, what
//! `pass` has seen without the lock is still so, and `open` need not search again. Removal takes no
//! lock either: the thread that exchanges an entry's word for an empty word has removed the entry.
//!
//! A connection has two buckets of eight slots to choose from, both of one shard, and begins in the
//! emptier one (Y. Azar et al., "Balanced allocations", STOC 1994).
//!
//! The number of a port's connections is bounded: by a limit, and by the room that is left in the
//! table. A port may have no more connections than the table has room for others, so that a table
//! of which some ports want all still has room for the next port (A. K. Choudhury, E. L. Hahne,
//! "Dynamic queue length thresholds for shared-memory packet switches", IEEE/ACM Transactions on
//! Networking 6(2), 1998). A connection that is half-open, or has ended, makes room for a new
//! connection of its own port: the oldest first.

mod config;
mod dump;
mod hash;
mod key;
mod listing;
mod moves;
mod page;
mod quota;
mod ring;
mod slots;
mod state;
mod word;

use std::sync::{PoisonError, TryLockError};

use super::super::fdb::Tick;
use super::super::sync::{AtomicU64, Mutex, MutexGuard, Ordering, spin_loop};
use base::limits::{
    CONNECTION_LOCK_ATTEMPTS, CONNECTION_SHARDS, CONNECTION_SLOTS, HALF_OPEN_LOOKS,
    STREAM_AFTER_SECONDS,
};
pub use config::ConnectionsConfig;
#[cfg(test)]
pub use dump::resum;
pub use dump::{Damaged, FORMAT_VERSION, Orphans};
use hash::KeyHash;
pub use key::{Key, Parts, Place};
pub use listing::Connection;
use moves::Move;
use quota::{List, Quota};
use ring::Oldest;
pub use slots::SlotRef;
use slots::{Found, Home, Owner, Slots, Vacancy};
use state::Step;
pub use state::{Ending, Event, Segment, State};
use word::Word;

/// Exchanges that a packet tries for its connection's word. If an exchange fails, another packet
/// has changed the word; after the last failure the state of that packet stays.
const EXCHANGES: usize = 4;

/// The answer to a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// The packet belongs to no known connection.
    Unknown(Gap),
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
    /// The entry, if the next packets of this kind leave it as it is until the tick ends.
    pub settled: Option<Moment>,
}

/// An entry at a moment: [`Connections::is_still`] tells whether it has changed since.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moment {
    slot: usize,
    word: u64,
}

impl Moment {
    /// No entry.
    pub const NONE: Moment = Moment { slot: 0, word: 0 };
}

/// The answer to the first packet of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Opened {
    /// The connection is in the table.
    New,
    /// Another thread has begun this connection meanwhile.
    Known,
    /// The port, or the table, has too many connections.
    Full,
    /// The lock was held for too long.
    Busy,
    /// Such a packet begins no connection.
    Invalid,
}

/// A packet's connection as the table looks for it.
#[derive(Clone, Copy)]
pub struct Sought {
    /// The key of the connection.
    pub key: Key,
    /// What the packet does to the connection's state.
    pub event: Event,
    home: Home,
    /// The slot that probably has the connection's entry.
    slot: Option<usize>,
}

impl Sought {
    /// Fills an array before packets are read.
    pub const NONE: Sought =
        Sought { key: Key::NONE, event: Event::Datagram, home: Home::NONE, slot: None };
}

/// Where [`Connections::pass`] has found no connection, for [`Connections::open`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gap {
    vacancy: Vacancy,
    /// Connections that had begun in the shard before the search.
    begun: u64,
}

impl Gap {
    /// Nothing is known: [`Connections::open`] searches.
    pub const UNKNOWN: Gap = Gap { vacancy: Vacancy::UNKNOWN, begun: 0 };
}

/// A part of the table.
struct Shard {
    /// Held by the thread that begins a connection.
    lock: Mutex<()>,
    /// Connections that have begun. Changed with the lock.
    begun: AtomicU64,
}

impl Shard {
    fn new() -> Shard {
        Shard { lock: Mutex::new(()), begun: AtomicU64::new(0) }
    }

    /// Counts a connection that has begun. The caller has the lock.
    fn count(&self) {
        // A search that begins with this count sees the connection's entry, which was written
        // before.
        let begun = self.begun.load(Ordering::Relaxed);
        self.begun.store(begun.wrapping_add(1), Ordering::Release);
    }
}

/// A table of connections.
pub struct Connections {
    slots: Slots,
    hash: KeyHash,
    shards: Vec<Shard>,
    quota: Quota,
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
            shards: (0..CONNECTION_SHARDS).map(|_| Shard::new()).collect(),
            quota: Quota::new(&config),
        }
    }

    /// Allocates what a port needs. The caller calls this before the first frame of a port with a
    /// filter: a frame never allocates.
    pub fn prepare(&self, port: u16) {
        self.quota.prepare(port);
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

    /// Returns where a packet's connection belongs.
    #[inline]
    pub fn seek(&self, key: Key, event: Event) -> Sought {
        let home = self.home(&key);
        Sought { key, event, home, slot: None }
    }

    /// Looks where a packet's connection probably is, and calls `read` with the memory that
    /// [`Connections::pass`] or [`Connections::open`] uses. The caller prefetches for the packets
    /// behind the one that it judges, so that the cache misses overlap.
    #[inline(always)]
    pub fn prefetch(&self, sought: &mut Sought, read: impl Fn(*const u8)) {
        let (slot, near) = self.slots.look(&sought.home);
        sought.slot = slot;
        near.into_iter().for_each(read);
    }

    /// Finds a packet's connection and moves its state on. `out`: the VM behind the port sent the
    /// packet.
    #[inline]
    pub fn pass(&self, sought: &Sought, out: bool, now: Tick) -> Seen {
        let Sought { key, event, home, slot } = sought;
        if let Some(slot) = *slot
            && let Some(found) = self.slots.compare(slot, key, now)
        {
            return self.advance(found, key, *event, out, now);
        }
        // Loaded before the search: an entry that the search does not see is not counted.
        let begun = self.shards[home.shard].begun.load(Ordering::Acquire);
        match self.slots.search(home, key, now) {
            Ok(found) => self.advance(found, key, *event, out, now),
            Err(vacancy) => Seen::Unknown(Gap { vacancy, begun }),
        }
    }

    /// Returns the rule of a connection, whose state stays: for an ICMP error.
    pub fn quoted(&self, key: &Key, now: Tick) -> Option<Known> {
        let found = self.slots.find(&self.home(key), key, now)?;
        (!found.word.is_forgotten()).then(|| self.known(found, found.word))
    }

    fn known(&self, Found { slot, owner, .. }: Found, word: Word) -> Known {
        let Owner { rule, generation, .. } = owner;
        let slot = SlotRef::new(slot, word.version());
        Known { slot, rule, generation, out: word.is_out(), settled: None }
    }

    /// Returns the answer to a packet that has left the entry's word as `word`.
    #[inline]
    fn passed(&self, found: Found, word: Word) -> Seen {
        let settled = is_settled(word).then_some(Moment { slot: found.slot, word: word.0 });
        Seen::Known(Known { settled, ..self.known(found, word) })
    }

    /// True if an entry is as it was at a moment.
    #[inline(always)]
    pub fn is_still(&self, moment: Moment) -> bool {
        self.slots.word(moment.slot).0 == moment.word
    }

    #[inline]
    fn advance(&self, found: Found, key: &Key, event: Event, out: bool, now: Tick) -> Seen {
        if let Event::Tcp(segment) = event
            && let before = found.word
            && let Some((done, after)) = Move::of(segment, before.is_out() == out, before, now)
            && (after == before || self.slots.exchange(found.slot, before, after).is_ok())
        {
            if done.ends {
                self.list(key.port(), List::Ended, SlotRef::new(found.slot, after.version()));
            }
            return self.passed(found, after);
        }
        self.advance_slowly(found, key, event, out, now)
    }

    #[inline(never)]
    fn advance_slowly(
        &self,
        mut found: Found,
        key: &Key,
        event: Event,
        out: bool,
        now: Tick,
    ) -> Seen {
        for _ in 0..EXCHANGES {
            let before = found.word;
            if before.is_forgotten() && !event.is_abort() {
                // Linux has forgotten such a connection. Here the reset may be repeated.
                return Seen::Again(SlotRef::new(found.slot, before.version()));
            }
            let first = before.is_out() == out;
            let old = found.owner.is_older(now, STREAM_AFTER_SECONDS);
            let (step, ending) = before.state().step(event, first, old, before.ending());
            let after = match step {
                Step::To(next) => {
                    // An abort is no reply.
                    let replies = !first && !event.is_abort();
                    next_word(before, next, replies, key.protocol(), now).with_ending(ending)
                }
                Step::Ignored => return Seen::Known(self.known(found, before)),
                Step::Invalid => return Seen::Invalid,
                Step::Again => return Seen::Again(SlotRef::new(found.slot, before.version())),
            };
            if after == before {
                return self.passed(found, after);
            }
            match self.slots.exchange(found.slot, before, after) {
                Ok(()) => {
                    self.note_end(key.port(), found.slot, before, after);
                    return self.passed(found, after);
                }
                Err(word) if word.is_same(before) => found.word = word,
                // Removed meanwhile.
                Err(_) => return Seen::Unknown(Gap::UNKNOWN),
            }
        }
        Seen::Known(self.known(found, found.word))
    }

    /// Adds a connection that this packet has ended to its port's list of ended connections.
    #[inline]
    fn note_end(&self, port: u16, slot: usize, before: Word, after: Word) {
        if after.state().is_over() && !before.state().is_over() {
            self.list(port, List::Ended, SlotRef::new(slot, after.version()));
        }
    }

    /// Adds a connection to a list of those that make room for others; if the list is full, removes
    /// the list's oldest connections. False if the port has no lists.
    #[inline]
    fn list(&self, port: u16, list: List, slot: SlotRef) -> bool {
        let pushed = self.quota.push(port, list, slot);
        if let Some(Some(oldest)) = &pushed {
            self.evict_all(port, oldest);
        }
        pushed.is_some()
    }

    /// Removes the listed connections of a port as [`Connections::evict`] does, but not those that
    /// a forged RST may have ended: a forger could fill the list. The words are in memory that was
    /// not used for long: all are read before one is needed.
    #[inline(never)]
    fn evict_all(&self, port: u16, listed: &Oldest) {
        let words = listed.map(|slot| slot.map(|slot| (slot, self.slots.word(slot.slot()))));
        for (slot, word) in words.into_iter().flatten() {
            if self.port_of(slot, word) == Some(port) && !word.may_go_on() {
                self.remove(port, slot.slot(), word);
            }
        }
    }

    /// Removes the connection of a slot if it is still the one that `port` listed, and half-open or
    /// ended. Versions of a slot repeat, so the key must be of the port too.
    pub(super) fn evict(&self, port: u16, slot: SlotRef) -> bool {
        let word = self.slots.word(slot.slot());
        self.port_of(slot, word) == Some(port) && self.remove(port, slot.slot(), word)
    }

    /// Returns the port of a listed connection that is half-open or has ended, and whose word is
    /// `word`; `None` if the slot has another connection.
    fn port_of(&self, slot: SlotRef, word: Word) -> Option<u16> {
        let goes = slot.is(word) && word.is_used() && !word.is_assured();
        goes.then(|| self.slots.port(slot.slot(), word))?
    }

    /// Removes a connection whose word is still `word`.
    fn remove(&self, port: u16, slot: usize, word: Word) -> bool {
        let removed = self.slots.remove(slot, word);
        if removed {
            self.quota.give_back(port);
        }
        removed
    }

    /// Begins a connection. `rule` of the rules of `generation` permits it. `gap`: what
    /// [`Connections::pass`] has seen for the packet.
    pub fn open(
        &self,
        (sought, gap): (&Sought, Gap),
        out: bool,
        (rule, generation): (u16, u32),
        now: Tick,
    ) -> Opened {
        let Sought { key, event, home, .. } = sought;
        let Some(state) = State::first(*event) else { return Opened::Invalid };
        let Some(_guard) = self.lock_briefly(home.shard) else { return Opened::Busy };
        let port = key.port();
        let seen = match self.shards[home.shard].begun.load(Ordering::Relaxed) == gap.begun {
            true => self.slots.seen_free(home, gap.vacancy),
            false => None,
        };
        // The search also finds an entry that has timed out, since a key may have only one entry.
        if seen.is_none()
            && let Some(found) = self.slots.find(home, key, Tick::default())
            && !(found.word.is_expired(now) && self.remove(port, found.slot, found.word))
        {
            return Opened::Known;
        }
        let has_room = self.quota.take(port) || (self.make_room(port) && self.quota.take(port));
        if !has_room {
            return Opened::Full;
        }
        let Some(slot) = seen.or_else(|| self.free_slot(home, port, now)) else {
            self.quota.give_back(port);
            return Opened::Full;
        };
        let deadline = after(now, state.seconds(key.protocol(), false));
        let owner = Owner::new(rule, generation, now);
        let version = self.write(slot, sought, owner, (out, state, deadline));
        let slot = SlotRef::new(slot, version);
        if !self.list(port, List::HalfOpen, slot) {
            // A half-open connection could not make room for others.
            self.end(key, slot);
            return Opened::Busy;
        }
        Opened::New
    }

    /// Writes an entry into an unused slot; returns the version. The caller has the shard's lock.
    fn write(
        &self,
        slot: usize,
        Sought { key, home, .. }: &Sought,
        owner: Owner,
        state: (bool, State, Tick),
    ) -> u64 {
        let version = self.slots.write(slot, home, key, owner, state);
        self.shards[home.shard].count();
        version
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
            word.is_used() && goes && self.remove(owner, slot, word)
        })
    }

    /// Notes that the rules of `generation` permit a connection, by `rule`.
    pub fn renew(&self, known: &Known, rule: u16, generation: u32) {
        let before = (known.rule, known.generation);
        self.slots.renew(known.slot, before, (rule, generation));
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
            match self.shards.get(shard)?.lock.try_lock() {
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
        self.shards[shard % self.shards.len()].lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the tick so many seconds after another.
pub(super) fn after(now: Tick, seconds: u32) -> Tick {
    Tick::from_bits(now.to_bits().saturating_add(Tick::ticks(seconds)))
}

/// Returns the word after a packet that moves the connection to `state`.
#[inline]
fn next_word(before: Word, state: State, replies: bool, protocol: u8, now: Tick) -> Word {
    let word = if replies { before.replied() } else { before };
    let word = word.with(state, after(now, state.seconds(protocol, word.is_replied())));
    if state.is_open() {
        word.assured(word.is_replied())
    } else if state.is_over() {
        word.assured(false)
    } else {
        word
    }
}

/// True if packets of the same kind leave the word as it is until the tick ends.
#[inline]
fn is_settled(word: Word) -> bool {
    matches!(word.state(), State::Established | State::Stream | State::Unreplied | State::Replied)
}
