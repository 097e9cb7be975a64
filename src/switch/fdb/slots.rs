//! Storage of the forwarding table: words, time stamps, and how they are laid out in memory.
//!
//! A word is one table entry in one atomic: 48 bits of address, 5 bits of segment, one bit
//! "static", 10 bits of port. Zero is an empty slot; no entry is zero, because the zero address is
//! never stored. An entry therefore changes in one store, and a reader sees the old entry or the
//! new one, whole.
//!
//! Five zero bits mean the default segment. The numbers of other segments are in an array beside
//! the words. A slot passes from one segment to another through an empty word. A reader that has
//! found a segment's number loads the word again: if the word is unchanged, number and word belong
//! together.
//!
//! A bucket is the eight slots of one cache line. A probe never leaves its bucket, so a lookup
//! costs at most one miss, and one shard lock covers everything that an insertion may touch.
//!
//! A third array has the moves of each entry ([`Moves`]).
//!
//! The allocator returns zeroed memory, which stays untouched, and thus without pages, until an
//! entry is written; a table of ten addresses costs ten pages, not 12 MiB.
//!
//! # Hash
//!
//! A keyed hash of address and segment chooses the bucket. A guest chooses its addresses freely. A
//! guest that knew which addresses share a bucket could fill the bucket of its neighbour, whose
//! frames would then always flood. So the hash has a random key per table, never shown outside, and
//! two rounds of folded multiplication (64 × 64 → 128 bits, high half xor low half), the
//! construction of wyhash and foldhash. One round would not suffice: the hashes of addresses that
//! differ by a little still differ by a little times the key.

use super::super::segment::{PortId, Segment, Station};
use super::super::sync::{AtomicU32, AtomicU64, Ordering};
use super::damping::Moves;
use base::frame::MacAddr;
use base::frame::fold::{PI, fold};
use base::limits::FDB_MAX_PORTS;

/// Slots in a bucket: 8 × 8 bytes are one cache line of x86-64 and arm64.
pub(super) const BUCKET_SLOTS: usize = 8;
/// Bytes of a cache line.
const LINE: usize = 64;
/// Number of low bits of a word that are not the address.
const KEY_SHIFT: u32 = 16;
/// Number of low bits of a word that are neither the address nor the segment.
const TAIL_BITS: u32 = 11;
const TAIL_MASK: u64 = 0x7ff;
const STATIC_BIT: u64 = 0x400;
const PORT_MASK: u64 = 0x3ff;
const _: () = assert!(FDB_MAX_PORTS as u64 == PORT_MASK + 1);
/// Number of values that a word's segment bits have beside zero, the default segment.
const MARKS: u32 = 31;

/// One entry, or [`Word::EMPTY`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Word(u64);

impl Word {
    pub(super) const EMPTY: Word = Word(0);

    pub(super) fn learned(station: Station, port: PortId) -> Word {
        Word(key(station) | u64::from(port) & PORT_MASK)
    }

    pub(super) fn configured(station: Station, port: PortId) -> Word {
        Word(Word::learned(station, port).0 | STATIC_BIT)
    }

    pub(super) fn mac(self) -> MacAddr {
        let [_, _, a, b, c, d, e, f] = self.0.to_le_bytes();
        MacAddr([a, b, c, d, e, f])
    }

    /// True for an entry of the default segment; for others the array beside the words has the
    /// number.
    fn is_default(self) -> bool {
        self.0 >> TAIL_BITS & u64::from(MARKS) == 0
    }

    #[inline(always)]
    pub(super) fn port(self) -> PortId {
        (self.0 & PORT_MASK) as PortId
    }

    #[inline(always)]
    pub(super) fn is_static(self) -> bool {
        self.0 & STATIC_BIT != 0
    }
}

/// Returns the address as a number below 2^48, first octet least significant: one load of a word
/// and one of a half-word, without swapping bytes, whose order does not matter here.
#[inline(always)]
fn pack(mac: MacAddr) -> u64 {
    let [a, b, c, d, e, f] = mac.0;
    u64::from(u32::from_le_bytes([a, b, c, d])) | u64::from(u16::from_le_bytes([e, f])) << 32
}

/// Returns address and segment as a word holds them.
#[inline(always)]
fn key(Station { segment, mac }: Station) -> u64 {
    let mark = match segment.to_bits() {
        0 => 0,
        number => 1 + number % MARKS,
    };
    pack(mac) << KEY_SHIFT | u64::from(mark) << TAIL_BITS
}

/// 2^32 divided by the golden ratio, odd: Knuth's multiplicative hash.
const GOLDEN: u32 = 0x9e37_79b1;

/// The secret offset and the two secret multipliers of one table.
#[derive(Clone, Copy)]
struct MacHash {
    offset: u64,
    first: u64,
    second: u64,
}

impl MacHash {
    fn new(key: [u64; 2]) -> MacHash {
        MacHash {
            offset: key[0] ^ PI[0],
            // Odd, so that no bit of the input is multiplied away.
            first: (key[1] ^ PI[1]) | 1,
            second: (key[0].rotate_left(32) ^ key[1] ^ PI[2]) | 1,
        }
    }

    /// Returns 64 well-mixed bits of an address, given as a number below 2^48, and the number of
    /// its segment. Segment 0 does not change the hash of the address.
    #[inline(always)]
    fn hash(&self, mac_bits: u64, segment: u32) -> u64 {
        // Consecutive numbers differ in the upper half of the product.
        let segment = u64::from(segment.wrapping_mul(GOLDEN) >> 16) << 48;
        fold(fold(mac_bits ^ segment ^ self.offset, self.first), self.second)
    }
}

/// Place of a station: its bucket's first slot, and its bits in a word.
#[derive(Clone, Copy)]
pub(super) struct Home {
    first: usize,
    key: u64,
    segment: Segment,
}

/// An occupied slot with its word at the moment of the scan.
#[derive(Clone, Copy)]
pub(super) struct Found {
    pub(super) slot: usize,
    pub(super) word: Word,
}

/// The arrays, indexed by the number of a slot.
pub(super) struct Slots {
    hash: MacHash,
    bucket_mask: usize,
    /// Unused slots in front of the first cache-line boundary of `words`.
    skip: usize,
    words: Vec<AtomicU64>,
    stamps: Vec<AtomicU32>,
    /// Segment numbers of words that are not in the default segment.
    segments: Vec<AtomicU32>,
    moves: Vec<AtomicU64>,
}

impl Slots {
    /// Makes empty arrays; `buckets` must be a power of two.
    pub(super) fn new(buckets: usize, key: [u64; 2]) -> Slots {
        // A large allocation starts 16 bytes into a page, and safe Rust has no lazily zeroed array
        // of a 64-byte-aligned type: so there is one bucket more, and the first slots are skipped.
        let length = (buckets + 1) * BUCKET_SLOTS;
        // `vec![0; n]` asks for zeroed memory without touching it, and the map is done in place:
        // optimised builds reduce the map to nothing, so the memory stays without pages.
        let pairs = || vec![0u64; length].into_iter().map(AtomicU64::new).collect();
        let (words, moves): (Vec<AtomicU64>, Vec<AtomicU64>) = (pairs(), pairs());
        let numbers = || vec![0u32; length].into_iter().map(AtomicU32::new).collect();
        let (stamps, segments) = (numbers(), numbers());
        let skip = words.as_ptr().addr().wrapping_neg() % LINE / size_of::<AtomicU64>();
        let (hash, bucket_mask) = (MacHash::new(key), buckets - 1);
        Slots { hash, bucket_mask, skip, words, stamps, segments, moves }
    }

    #[inline(always)]
    pub(super) fn home(&self, station: Station) -> Home {
        let Station { segment, mac } = station;
        let hash = self.hash.hash(pack(mac), segment.to_bits());
        let bucket = hash as usize & self.bucket_mask;
        Home { first: self.skip + bucket * BUCKET_SLOTS, key: key(station), segment }
    }

    pub(super) fn bucket_of(&self, home: Home) -> usize {
        (home.first - self.skip) / BUCKET_SLOTS
    }

    /// Returns the slots of a run of buckets.
    pub(super) fn slots_of(&self, first_bucket: usize, buckets: usize) -> std::ops::Range<usize> {
        let first = self.skip + first_bucket * BUCKET_SLOTS;
        first..first + buckets * BUCKET_SLOTS
    }

    /// Returns the entry of the address at `home`, if there is one.
    ///
    /// The scan skips empty slots: entries are removed in any order, and an entry that stays must
    /// be found while its neighbours go. Word xor key is below 2^16 exactly for the wanted address.
    /// The scan stops at the match: buckets fill from the front and most hold one entry, so the
    /// scan took
    /// 2.0, 2.4 and 7.2 ns with 10, 1000 and 65536 addresses in random order, and a branch-free
    /// look at all eight slots 5.2, 7.5 and 10.4 (EPYC; a locked hash map 16 to 21).
    ///
    /// Acquire pairs with [`Slots::set`]: a reader that sees the word sees the stamp stored before
    /// it.
    #[inline(always)]
    pub(super) fn find(&self, home: Home) -> Option<Found> {
        let bucket = self.words.get(home.first..home.first + BUCKET_SLOTS)?;
        for (i, word) in bucket.iter().enumerate() {
            let word = word.load(Ordering::Acquire);
            if word ^ home.key <= TAIL_MASK {
                let found = Found { slot: home.first + i, word: Word(word) };
                if home.segment != Segment::DEFAULT {
                    match self.of_segment(found, home) {
                        Some(found) => return Some(found),
                        None => continue,
                    }
                }
                // The zero address matches every empty slot, and never has an entry.
                return (found.word != Word::EMPTY).then_some(found);
            }
        }
        None
    }

    /// Returns the entry with its present word, if it is of the segment of `home`.
    #[inline(never)]
    fn of_segment(&self, mut found: Found, home: Home) -> Option<Found> {
        // Each further round sees a word that changed meanwhile.
        loop {
            // Acquire: a reader that sees the next segment's number sees the empty word before it.
            let segment = self.segments[found.slot].load(Ordering::Acquire);
            if segment != home.segment.to_bits() {
                return None;
            }
            let word = self.word(found.slot);
            if word == found.word {
                return Some(found);
            }
            if word.0 ^ home.key > TAIL_MASK {
                return None;
            }
            found.word = word;
        }
    }

    /// Returns the segment of an entry; only with the shard's lock held.
    pub(super) fn segment(&self, found: Found) -> Segment {
        match found.word.is_default() {
            true => Segment::DEFAULT,
            false => Segment::from_bits(self.segments[found.slot].load(Ordering::Relaxed)),
        }
    }

    /// Returns the addresses of the bucket's words and stamps, for a prefetch: a line and half a
    /// line.
    #[inline(always)]
    pub(super) fn lines(&self, home: Home) -> (*const u8, *const u8) {
        let words = self.words.as_ptr().wrapping_add(home.first);
        (words.cast(), self.stamps.as_ptr().wrapping_add(home.first).cast())
    }

    /// Returns all slots of the bucket with their words, empty ones too.
    pub(super) fn bucket(&self, home: Home) -> impl Iterator<Item = Found> + '_ {
        (home.first..home.first + BUCKET_SLOTS).map(|slot| Found { slot, word: self.word(slot) })
    }

    pub(super) fn word(&self, slot: usize) -> Word {
        Word(self.words[slot].load(Ordering::Acquire))
    }

    /// Stores a word; only with the shard's lock held: two writers could store one address twice.
    pub(super) fn set(&self, slot: usize, word: Word) {
        self.words[slot].store(word.0, Ordering::Release);
    }

    /// Prepares a slot for an entry of this segment; only with the shard's lock held.
    pub(super) fn enter(&self, slot: usize, segment: Segment) {
        let number = &self.segments[slot];
        if segment != Segment::DEFAULT && number.load(Ordering::Relaxed) != segment.to_bits() {
            self.set(slot, Word::EMPTY);
            number.store(segment.to_bits(), Ordering::Release);
        }
    }

    /// Returns the last moves of the entry in a slot. Without the shard's lock the moves may be
    /// those of the slot's entry before or after: then one frame is answered by another address's
    /// moves.
    pub(super) fn moves(&self, slot: usize) -> Moves {
        Moves(self.moves[slot].load(Ordering::Relaxed))
    }

    /// Stores an entry's moves; only with the shard's lock held, and before the next entry's word,
    /// whose store publishes the moves. Equal moves are not stored, so that unused memory stays
    /// untouched.
    pub(super) fn set_moves(&self, slot: usize, moves: Moves) {
        if self.moves(slot) != moves {
            self.moves[slot].store(moves.0, Ordering::Relaxed);
        }
    }

    /// Replaces the moves if they are still `seen`. Takes no lock: the lock's holder may overwrite
    /// them.
    pub(super) fn exchange_moves(&self, slot: usize, seen: Moves, moves: Moves) {
        if seen != moves {
            let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
            let _ = self.moves[slot].compare_exchange(seen.0, moves.0, success, failure);
        }
    }

    #[inline(always)]
    pub(super) fn stamp(&self, slot: usize) -> &AtomicU32 {
        &self.stamps[slot]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUCKETS: usize = 4096;

    /// Chi-square of 16 addresses per bucket on average: mean 4095, deviation about 90.
    fn chi_square(hash: MacHash, address: impl Fn(u64) -> u64) -> f64 {
        let mut load = vec![0u32; BUCKETS];
        let count = BUCKETS as u64 * 16;
        for i in 0..count {
            load[hash.hash(address(i), 0) as usize % BUCKETS] += 1;
        }
        load.iter().map(|&n| (f64::from(n) - 16.0).powi(2) / 16.0).sum()
    }

    #[test]
    #[cfg_attr(miri, ignore = "statistics over 3 million hashes, no memory access to check")]
    fn addresses_as_hypervisors_number_them_spread_like_random_ones() {
        for key in [[0, 0], [1, 0], [0, 1], [u64::MAX; 2], [0x0123_4567_89ab_cdef, 0xfeed]] {
            let hash = MacHash::new(key);
            let patterns: [(&str, &dyn Fn(u64) -> u64); 4] = [
                ("sequential", &|i| 0x5254_0000_0000 + i),
                ("stride 256", &|i| 0x5254_0000_0000 + (i << 8)),
                ("high bytes", &|i| (i << 32) | 2),
                ("bit reversed", &|i| i.reverse_bits() >> 16),
            ];
            for (name, pattern) in patterns {
                let chi = chi_square(hash, pattern);
                // 8 deviations either way: too even a distribution would show structure as well.
                assert!((3375.0..4815.0).contains(&chi), "{name} {key:x?}: {chi}");
            }
        }
    }

    #[test]
    fn another_key_gives_other_neighbours() {
        let (one, two) = (MacHash::new([1, 2]), MacHash::new([3, 4]));
        let mates = |hash: MacHash| {
            let home = hash.hash(7, 0) % 16;
            (0..256).filter(|&mac| hash.hash(mac, 0) % 16 == home).collect::<Vec<u64>>()
        };
        assert_ne!(mates(one), mates(two));
    }

    #[test]
    fn a_word_gives_back_what_it_was_made_of() {
        let mac = MacAddr([0xfe, 0xff, 0xff, 0xff, 0xff, 0xff]);
        for (port, segment) in [(0, 0), (1, 1), (0x3ff, 0), (0x3ff, u32::MAX)] {
            let station = Station::new(Segment::from_bits(segment), mac);
            let (learned, configured) =
                (Word::learned(station, port), Word::configured(station, port));
            assert_eq!(learned.is_default(), segment == 0);
            assert_eq!((learned.mac(), learned.port(), learned.is_static()), (mac, port, false));
            assert_eq!(
                (configured.mac(), configured.port(), configured.is_static()),
                (mac, port, true)
            );
        }
    }

    #[test]
    fn every_bucket_is_one_cache_line() {
        for buckets in [64, 128, 4096] {
            let slots = Slots::new(buckets, [0; 2]);
            assert_eq!(slots.words[slots.skip..].as_ptr().addr() % LINE, 0);
            assert!(slots.slots_of(0, buckets).end <= slots.words.len());
        }
    }

    #[test]
    fn the_last_slot_of_a_bucket_is_found_behind_seven_empty_ones() {
        let slots = Slots::new(64, [0; 2]);
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        let home = slots.home(mac.into());
        assert!(slots.find(home).is_none());
        let last = home.first + BUCKET_SLOTS - 1;
        slots.set(last, Word::configured(mac.into(), 9));
        let found = slots.find(home).map(|found| (found.slot, found.word));
        assert_eq!(found, Some((last, Word::configured(mac.into(), 9))));
    }

    #[test]
    fn the_zero_address_matches_no_empty_slot() {
        let slots = Slots::new(64, [0; 2]);
        let home = slots.home(Station::default());
        assert!(slots.find(home).is_none());
    }
}
