//! Storage of the table: buckets of eight slots.
//!
//! A slot is a cache line: the word of its connection, the key, and the owner. Beside the slots is
//! a word of tags for each bucket: a byte of the hash for each used slot, 0 for an unused one (B.
//! Fan et al., "MemC3", NSDI 2013). A search reads the tags, and then only slots with the tag of
//! the key. The allocator returns zeroed memory, which has no pages until an entry is written.
//!
//! A slot's tag is set before the slot's word says that it is used, and cleared after: the thread
//! that has removed the connection clears the tag, and only a slot without a tag is given to
//! another connection.

use super::super::super::fdb::Tick;
use super::super::super::sync::{AtomicU64, Ordering, fence};
use super::key::{KEY_WORDS, Key};
use super::state::State;
use super::word::{VERSION_BITS, Word};

/// Slots in a bucket: as many as a word has bytes.
pub(super) const BUCKET_SLOTS: usize = size_of::<u64>();
/// Words of a slot, a cache line; the last one is not used.
const SLOT_WORDS: usize = 8;
/// Place of the owner among the words of a slot: behind its word and the key.
const OWNER: usize = 1 + KEY_WORDS;
const _: () = assert!(OWNER < SLOT_WORDS);
/// Bits of a hash that choose the second bucket begin here.
const SECOND_SHIFT: u32 = 24;
/// Bits of a hash that are the tag begin here.
const TAG_SHIFT: u32 = 57;
/// Bits of a reference to an entry: the version, then the slot.
const SLOT_SHIFT: u32 = 32;
/// The lowest and the highest bit of each byte; a tag has its highest bit set.
const LOWEST: u64 = 0x0101_0101_0101_0101;
const HIGHEST: u64 = LOWEST << 7;

/// An entry: its slot, and the version of the slot at the moment of the look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotRef(u64);

impl SlotRef {
    pub(super) fn new(slot: usize, version: u64) -> SlotRef {
        SlotRef((slot as u64) << SLOT_SHIFT | version)
    }

    #[inline(always)]
    pub(super) fn slot(self) -> usize {
        (self.0 >> SLOT_SHIFT) as usize
    }

    /// True if the slot has the same connection, by its word.
    #[inline(always)]
    pub(super) fn is(self, word: Word) -> bool {
        u64::from(self.0 as u32) == word.version()
    }

    /// Laps of a ring that the bits between version and slot can tell apart.
    pub(super) const LAPS: u64 = 1 << (SLOT_SHIFT - VERSION_BITS);

    /// Returns the entry's bits with those of a lap.
    #[inline(always)]
    pub(super) fn in_lap(self, lap: u64) -> u64 {
        self.0 | lap << VERSION_BITS
    }

    /// Returns the entry of [`SlotRef::in_lap`] if the lap is this one.
    #[inline(always)]
    pub(super) fn of_lap(bits: u64, lap: u64) -> Option<SlotRef> {
        let slot = SlotRef(bits & !((SlotRef::LAPS - 1) << VERSION_BITS));
        (slot.in_lap(lap) == bits).then_some(slot)
    }
}

/// By which rule a connection began, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Owner {
    pub(super) rule: u16,
    pub(super) generation: u32,
    /// The lower bits of the first packet's tick.
    begun: u16,
}

impl Owner {
    pub(super) fn new(rule: u16, generation: u32, now: Tick) -> Owner {
        Owner { rule, generation, begun: now.to_bits() as u16 }
    }

    fn from_bits(bits: u64) -> Owner {
        Owner { rule: bits as u16, begun: (bits >> 16) as u16, generation: (bits >> 32) as u32 }
    }

    fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.begun) << 16 | u64::from(self.rule)
    }

    /// True if the connection began more than `seconds` ago. The stamp wraps every 8,192 seconds;
    /// for some seconds after a wrap the answer is false, and a later packet makes the connection a
    /// stream. A worker whose clock is a second behind gets false too.
    #[inline(always)]
    pub(super) fn is_older(self, now: Tick, seconds: u32) -> bool {
        let ticks = u32::from((now.to_bits() as u16).wrapping_sub(self.begun));
        ticks > Tick::ticks(seconds) && ticks <= u32::from(u16::MAX) - Tick::ticks(1)
    }
}

/// Place of a connection: its shard, two buckets, and the tag, in each byte of the word.
#[derive(Clone, Copy)]
pub(super) struct Home {
    pub(super) shard: usize,
    buckets: [usize; 2],
    tag: u64,
}

impl Home {
    pub(super) const NONE: Home = Home { shard: 0, buckets: [0; 2], tag: 0 };
}

/// An entry of a key, with its word and owner at the moment of the look.
#[derive(Clone, Copy)]
pub(super) struct Found {
    pub(super) slot: usize,
    pub(super) word: Word,
    pub(super) owner: Owner,
}

/// The unused slots of a key's buckets, as a search for the key saw them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Vacancy {
    /// The highest bits of the bytes of unused slots, of both buckets.
    unused: [u64; 2],
    /// The search has compared no other slot: an entry that has timed out could have the key.
    is_sure: bool,
}

impl Vacancy {
    /// Nothing is known.
    pub(super) const UNKNOWN: Vacancy = Vacancy { unused: [0; 2], is_sure: false };
}

/// The buckets.
pub(super) struct Slots {
    /// Unused words in front of the first cache-line boundary.
    skip: usize,
    shards: usize,
    /// Buckets of a shard, a power of two.
    buckets: usize,
    words: Vec<AtomicU64>,
    /// The tags of each bucket.
    tags: Vec<AtomicU64>,
}

impl Slots {
    /// Makes empty buckets with room for `slots`, in so many shards, a power of two.
    pub(super) fn new(slots: usize, shards: usize) -> Slots {
        let buckets = slots.div_ceil(BUCKET_SLOTS * shards).next_power_of_two();
        let slots = buckets * shards * BUCKET_SLOTS;
        let (words, tags) = (zeroed((slots + 1) * SLOT_WORDS), zeroed(buckets * shards));
        let line = SLOT_WORDS * size_of::<u64>();
        let skip = words.as_ptr().addr().wrapping_neg() % line / size_of::<AtomicU64>();
        // A model's atomics are larger than a word.
        Slots { skip: skip.min(SLOT_WORDS - 1), shards, buckets, words, tags }
    }

    /// Returns the number of slots.
    pub(super) fn len(&self) -> usize {
        self.buckets * self.shards * BUCKET_SLOTS
    }

    #[inline(always)]
    pub(super) fn home(&self, hash: u64) -> Home {
        let (shard, mask) = (hash as usize & (self.shards - 1), self.buckets - 1);
        let first = shard * self.buckets;
        let bits = hash as usize >> self.shards.trailing_zeros();
        let second = (hash >> SECOND_SHIFT) as usize;
        Home {
            shard,
            buckets: [first + (bits & mask), first + (second & mask)],
            tag: ((hash >> TAG_SHIFT) * LOWEST) | HIGHEST,
        }
    }

    #[inline(always)]
    fn at(&self, index: usize) -> &AtomicU64 {
        &self.words[self.skip + index]
    }

    /// Returns the words of a slot.
    #[inline(always)]
    fn slot(&self, slot: usize) -> Option<&[AtomicU64; SLOT_WORDS]> {
        self.words.get(self.skip + slot * SLOT_WORDS..)?.first_chunk()
    }

    #[inline(always)]
    fn state(&self, slot: usize) -> &AtomicU64 {
        self.at(slot * SLOT_WORDS)
    }

    #[inline(always)]
    pub(super) fn word(&self, slot: usize) -> Word {
        Word(self.state(slot).load(Ordering::Acquire))
    }

    /// Returns the key of a slot. The caller has the shard's lock, or compares the slot's word.
    pub(super) fn key(&self, slot: usize) -> Key {
        let key = slot * SLOT_WORDS + 1;
        Key(std::array::from_fn(|n| self.at(key + n).load(Ordering::Relaxed)))
    }

    /// Returns key and owner of a slot whose word was `word`; `None` if the slot has got another
    /// connection.
    pub(super) fn entry(&self, slot: usize, word: Word) -> Option<(Key, Owner)> {
        let owner = self.at(slot * SLOT_WORDS + OWNER).load(Ordering::Relaxed);
        let entry = (self.key(slot), Owner::from_bits(owner));
        fence(Ordering::Acquire);
        Word(self.state(slot).load(Ordering::Relaxed)).is_same(word).then_some(entry)
    }

    /// Returns the port of a slot's connection whose word was `word`; `None` if the slot has got
    /// another connection.
    #[inline(always)]
    pub(super) fn port(&self, slot: usize, word: Word) -> Option<u16> {
        let last = self.at(slot * SLOT_WORDS + KEY_WORDS).load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let is_same = Word(self.state(slot).load(Ordering::Relaxed)).is_same(word);
        is_same.then_some(Key([0, 0, 0, 0, last]).port())
    }

    #[inline(always)]
    fn tags(&self, bucket: usize) -> u64 {
        self.tags.get(bucket).map_or(0, |tags| tags.load(Ordering::Acquire))
    }

    /// True if the slot has a tag: other slots have no connection.
    #[inline]
    pub(super) fn has_tag(&self, slot: usize) -> bool {
        self.tags(slot / BUCKET_SLOTS) & byte(slot) != 0
    }

    /// Returns the first slot that may have a key's entry, and the address of that slot, or of the
    /// slot that the key would get.
    #[inline(always)]
    pub(super) fn look(&self, home: &Home) -> (Option<usize>, Option<*const u8>) {
        let tags = home.buckets.map(|bucket| self.tags(bucket));
        let [first, second] = tags.map(|tags| equal_bytes(tags, home.tag));
        let slot = match (first, second) {
            (0, 0) => None,
            (0, bits) => Some(home.slot(1, bits)),
            (bits, _) => Some(home.slot(0, bits)),
        };
        let near = slot.or_else(|| emptier(home, tags.map(|tags| !tags & HIGHEST)));
        let address = |slot| Some(std::ptr::from_ref(self.slot(slot)?).cast());
        (slot, near.and_then(address))
    }

    /// Finds the entry of a key.
    #[inline(always)]
    pub(super) fn find(&self, home: &Home, key: &Key, now: Tick) -> Option<Found> {
        self.search(home, key, now).ok()
    }

    /// Finds the entry of a key, or the unused slots of its buckets.
    #[inline]
    pub(super) fn search(&self, home: &Home, key: &Key, now: Tick) -> Result<Found, Vacancy> {
        let mut vacancy = Vacancy { unused: [0; 2], is_sure: true };
        for (n, unused) in vacancy.unused.iter_mut().enumerate() {
            let tags = self.tags(home.buckets[n]);
            *unused = !tags & HIGHEST;
            let mut equal = equal_bytes(tags, home.tag);
            while equal != 0 {
                if let Some(found) = self.compare(home.slot(n, equal), key, now) {
                    return Ok(found);
                }
                vacancy.is_sure = false;
                equal &= equal - 1;
            }
        }
        Err(vacancy)
    }

    /// Returns the entry of a slot if it has this key and has not timed out.
    #[inline]
    pub(super) fn compare(&self, slot: usize, key: &Key, now: Tick) -> Option<Found> {
        let [state, words @ .., owner, _] = self.slot(slot)?;
        let word = Word(state.load(Ordering::Acquire));
        if !word.is_used() || word.is_expired(now) {
            return None;
        }
        let pairs = words.iter().zip(&key.0);
        let differs = pairs.fold(0, |bits, (a, b)| bits | (a.load(Ordering::Relaxed) ^ b));
        let owner = Owner::from_bits(owner.load(Ordering::Relaxed));
        // The key was read between two looks at the word: if a writer had changed a part of the key
        // that was read, this look would show the writer's version.
        fence(Ordering::Acquire);
        let again = Word(state.load(Ordering::Relaxed));
        (differs == 0 && again.is_same(word)).then_some(Found { slot, word: again, owner })
    }

    /// Replaces a word unless it is no longer `before`; the error is the word.
    #[inline]
    pub(super) fn exchange(&self, slot: usize, before: Word, after: Word) -> Result<(), Word> {
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        let exchanged = self.state(slot).compare_exchange(before.0, after.0, success, failure);
        exchanged.map(|_| ()).map_err(Word)
    }

    /// Removes the connection of a slot whose word is still `word`; false if it is not.
    #[inline]
    pub(super) fn remove(&self, slot: usize, word: Word) -> bool {
        let is_removed = self.exchange(slot, word, word.cleared()).is_ok();
        if is_removed && let Some(tags) = self.tags.get(slot / BUCKET_SLOTS) {
            // Until here the slot's tag keeps the slot from another connection.
            tags.fetch_and(!byte(slot), Ordering::Release);
        }
        is_removed
    }

    /// Returns an unused slot of the emptier bucket.
    pub(super) fn free(&self, home: &Home) -> Option<usize> {
        emptier(home, home.buckets.map(|bucket| !self.tags(bucket) & HIGHEST))
    }

    /// Returns an unused slot of the emptier bucket, by a search for a key without an entry; the
    /// slot is still unused and the key still without an entry if no connection has begun in the
    /// shard since. `None` if the search does not tell.
    #[inline]
    pub(super) fn seen_free(&self, home: &Home, seen: Vacancy) -> Option<usize> {
        emptier(home, seen.unused).filter(|_| seen.is_sure)
    }

    /// Returns the slots of both buckets.
    pub(super) fn of(&self, home: &Home) -> impl Iterator<Item = usize> {
        let slots = |bucket: usize| bucket * BUCKET_SLOTS..(bucket + 1) * BUCKET_SLOTS;
        home.buckets.into_iter().flat_map(slots)
    }

    /// Writes an entry into an unused slot; returns the version. The caller has the shard's lock,
    /// and only a holder of the lock gives an unused slot to a connection.
    pub(super) fn write(
        &self,
        slot: usize,
        home: &Home,
        key: &Key,
        owner: Owner,
        (out, state, deadline): (bool, State, Tick),
    ) -> u64 {
        let Some([at, words @ .., of, _]) = self.slot(slot) else { return 0 };
        let before = Word(at.load(Ordering::Acquire));
        let word = before.begin(out, state, deadline);
        if let Some(tags) = self.tags.get(slot / BUCKET_SLOTS) {
            tags.fetch_or(home.tag & byte(slot), Ordering::Relaxed);
        }
        // The version changes before the key: see `compare`.
        at.store(before.claimed().0, Ordering::Relaxed);
        fence(Ordering::Release);
        for (place, part) in words.iter().zip(&key.0) {
            place.store(*part, Ordering::Relaxed);
        }
        of.store(owner.to_bits(), Ordering::Relaxed);
        at.store(word.0, Ordering::Release);
        word.version()
    }

    /// Changes rule and generation of an entry, unless its slot has got another owner.
    pub(super) fn renew(&self, slot: SlotRef, from: (u16, u32), (rule, generation): (u16, u32)) {
        let owner = self.at(slot.slot() * SLOT_WORDS + OWNER);
        let bits = owner.load(Ordering::Relaxed);
        let before = Owner::from_bits(bits);
        if (before.rule, before.generation) == from && slot.is(self.word(slot.slot())) {
            let after = Owner { rule, generation, ..before }.to_bits();
            // If the exchange fails, another packet has asked the rules and has written its answer.
            let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
            let _ = owner.compare_exchange(bits, after, success, failure);
        }
    }
}

impl Home {
    /// Returns the slot of bucket 0 or 1 whose byte has the lowest bit that is set.
    #[inline(always)]
    fn slot(&self, n: usize, bits: u64) -> usize {
        self.buckets[n] * BUCKET_SLOTS + bits.trailing_zeros() as usize / 8
    }
}

/// Allocates words of zero. The allocator gets zeroed pages from the kernel, and no page is touched
/// before its first use; likewise in the forwarding table.
pub(super) fn zeroed(len: usize) -> Vec<AtomicU64> {
    vec![0u64; len].into_iter().map(AtomicU64::new).collect()
}

/// Returns the bits of a slot's tag among the tags of its bucket.
#[inline(always)]
fn byte(slot: usize) -> u64 {
    0xff << (slot % BUCKET_SLOTS * 8)
}

/// Returns the highest bits of the bytes that are equal to those of `tag`. A byte above an equal
/// one may be taken for equal.
#[inline(always)]
fn equal_bytes(tags: u64, tag: u64) -> u64 {
    let differ = tags ^ tag;
    differ.wrapping_sub(LOWEST) & !differ & HIGHEST
}

/// Returns the first unused slot of the bucket that has more of these.
#[inline(always)]
fn emptier(home: &Home, unused: [u64; 2]) -> Option<usize> {
    let [one, other] = unused;
    let n = usize::from(one.count_ones() < other.count_ones());
    let bits = unused[n];
    (bits != 0).then(|| home.slot(n, bits))
}
