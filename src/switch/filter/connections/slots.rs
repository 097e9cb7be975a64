//! Storage of the table: buckets of eight slots.
//!
//! A bucket is 56 words, seven cache lines: the words of eight slots, then for each slot the key
//! and its owner. The allocator returns zeroed memory, which has no pages until an entry is
//! written.

use super::super::super::fdb::Tick;
use super::super::super::sync::{AtomicU64, Ordering, fence};
use super::key::{KEY_WORDS, Key};
use super::state::State;
use super::word::Word;

/// Slots in a bucket.
pub(super) const BUCKET_SLOTS: usize = 8;
/// Words of a slot beside its state: the key and the owner.
const SLOT_WORDS: usize = KEY_WORDS + 1;
const BUCKET_WORDS: usize = BUCKET_SLOTS * (1 + SLOT_WORDS);
/// Words of a cache line.
const LINE: usize = 8;
/// Bits of a hash that choose the second bucket begin here.
const SECOND_SHIFT: u32 = 24;

/// An entry: its slot, and the version of the slot at the moment of the look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotRef(u64);

impl SlotRef {
    pub(super) fn new(slot: usize, version: u64) -> SlotRef {
        SlotRef((slot as u64) << 32 | version)
    }

    pub(super) fn slot(self) -> usize {
        (self.0 >> 32) as usize
    }

    /// True if the slot has the same connection, by its word.
    pub(super) fn is(self, word: Word) -> bool {
        self.0 as u32 == word.version() as u32
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

/// Place of a connection: its shard, two buckets, and the fingerprint.
#[derive(Clone, Copy)]
pub(super) struct Home {
    pub(super) shard: usize,
    buckets: [usize; 2],
    fingerprint: u64,
}

impl Home {
    pub(super) const NONE: Home = Home { shard: 0, buckets: [0; 2], fingerprint: 0 };
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
    /// Bits of the unused slots of both buckets.
    unused: [u8; 2],
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
}

impl Slots {
    /// Makes empty buckets with room for `slots`, in so many shards, a power of two.
    pub(super) fn new(slots: usize, shards: usize) -> Slots {
        let buckets = slots.div_ceil(BUCKET_SLOTS * shards).next_power_of_two();
        let length = buckets * shards * BUCKET_WORDS + LINE;
        // The allocator gets zeroed pages from the kernel, and no page is touched before its first
        // use; likewise in the forwarding table.
        let words: Vec<AtomicU64> = vec![0u64; length].into_iter().map(AtomicU64::new).collect();
        let skip = words.as_ptr().addr().wrapping_neg() % (LINE * 8) / size_of::<AtomicU64>();
        // A model's atomics are larger than a word.
        Slots { skip: skip.min(LINE - 1), shards, buckets, words }
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
            fingerprint: Word::fingerprint(hash),
        }
    }

    #[inline(always)]
    fn at(&self, index: usize) -> &AtomicU64 {
        &self.words[self.skip + index]
    }

    #[inline(always)]
    fn state(&self, slot: usize) -> &AtomicU64 {
        self.at(slot / BUCKET_SLOTS * BUCKET_WORDS + slot % BUCKET_SLOTS)
    }

    /// Returns the first word of a slot's key.
    #[inline(always)]
    fn body(slot: usize) -> usize {
        slot / BUCKET_SLOTS * BUCKET_WORDS + BUCKET_SLOTS + slot % BUCKET_SLOTS * SLOT_WORDS
    }

    #[inline(always)]
    pub(super) fn word(&self, slot: usize) -> Word {
        Word(self.state(slot).load(Ordering::Acquire))
    }

    /// Returns the key of a slot. The caller has the shard's lock, or compares the slot's word.
    #[inline(always)]
    pub(super) fn key(&self, slot: usize) -> Key {
        let body = Slots::body(slot);
        Key(std::array::from_fn(|n| self.at(body + n).load(Ordering::Relaxed)))
    }

    /// Returns key and owner of a slot whose word was `word`; `None` if the slot has got another
    /// connection.
    pub(super) fn entry(&self, slot: usize, word: Word) -> Option<(Key, Owner)> {
        let entry = (self.key(slot), self.owner(slot));
        fence(Ordering::Acquire);
        Word(self.state(slot).load(Ordering::Relaxed)).is_same(word).then_some(entry)
    }

    fn owner(&self, slot: usize) -> Owner {
        let owner = self.at(Slots::body(slot) + KEY_WORDS);
        Owner::from_bits(owner.load(Ordering::Relaxed))
    }

    /// Returns the addresses of the words of both buckets.
    #[inline(always)]
    pub(super) fn lines(&self, home: &Home) -> impl Iterator<Item = *const u8> {
        let words = |bucket: usize| self.words.get(self.skip + bucket * BUCKET_WORDS);
        home.buckets.into_iter().filter_map(words).map(|word| std::ptr::from_ref(word).cast())
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
        for (bucket, unused) in home.buckets.iter().zip(&mut vacancy.unused) {
            let first = self.skip + bucket * BUCKET_WORDS;
            let states = self.words.get(first..).and_then(<[_]>::first_chunk::<BUCKET_SLOTS>);
            let Some(states) = states else { return Err(Vacancy::UNKNOWN) };
            for (n, state) in states.iter().enumerate() {
                let word = Word(state.load(Ordering::Relaxed));
                *unused |= u8::from(!word.is_used()) << n;
                if word.has(home.fingerprint) {
                    if let Some(found) = self.compare(bucket * BUCKET_SLOTS + n, home, key, now) {
                        return Ok(found);
                    }
                    vacancy.is_sure = false;
                }
            }
        }
        Err(vacancy)
    }

    /// Returns the entry of a slot if it has this key and has not timed out.
    #[inline(never)]
    fn compare(&self, slot: usize, home: &Home, key: &Key, now: Tick) -> Option<Found> {
        let word = self.word(slot);
        if !word.has(home.fingerprint) || word.is_expired(now) {
            return None;
        }
        let (found, owner) = (self.key(slot), self.owner(slot));
        // The key was read between two looks at the word: if a writer had changed a part of the key
        // that was read, this look would show the writer's version.
        fence(Ordering::Acquire);
        let again = Word(self.state(slot).load(Ordering::Relaxed));
        (found == *key && again.is_same(word)).then_some(Found { slot, word: again, owner })
    }

    /// Replaces a word unless it is no longer `before`; the error is the word.
    #[inline]
    pub(super) fn exchange(&self, slot: usize, before: Word, after: Word) -> Result<(), Word> {
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        let exchanged = self.state(slot).compare_exchange(before.0, after.0, success, failure);
        exchanged.map(|_| ()).map_err(Word)
    }

    /// Returns an unused slot of the emptier bucket.
    pub(super) fn free(&self, home: &Home) -> Option<usize> {
        let unused = home.buckets.map(|bucket| {
            let slots = (0..BUCKET_SLOTS).map(|n| self.word(bucket * BUCKET_SLOTS + n));
            slots.enumerate().fold(0, |bits, (n, word)| bits | u8::from(!word.is_used()) << n)
        });
        emptier(home, unused)
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
        let before = self.word(slot);
        let word = before.begin(home.fingerprint, out, state, deadline);
        // The version changes before the key: see `compare`.
        self.state(slot).store(before.claimed().0, Ordering::Relaxed);
        fence(Ordering::Release);
        let body = Slots::body(slot);
        for (n, part) in key.0.iter().enumerate() {
            self.at(body + n).store(*part, Ordering::Relaxed);
        }
        self.at(body + KEY_WORDS).store(owner.to_bits(), Ordering::Relaxed);
        self.state(slot).store(word.0, Ordering::Release);
        word.version()
    }

    /// Changes rule and generation of an entry, unless its slot has got another owner.
    pub(super) fn renew(&self, slot: SlotRef, from: (u16, u32), (rule, generation): (u16, u32)) {
        let owner = self.at(Slots::body(slot.slot()) + KEY_WORDS);
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

/// Returns the first unused slot of the bucket that has more of these.
#[inline]
fn emptier(home: &Home, unused: [u8; 2]) -> Option<usize> {
    let [one, other] = unused;
    let n = usize::from(one.count_ones() < other.count_ones());
    let bits = unused[n];
    (bits != 0).then(|| home.buckets[n] * BUCKET_SLOTS + bits.trailing_zeros() as usize)
}
