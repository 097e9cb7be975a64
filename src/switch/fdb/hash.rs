//! Keyed hash of a 48-bit address: chooses the bucket.
//!
//! A guest chooses its addresses freely. A guest that knew which addresses share a bucket could
//! fill the bucket of its neighbour, whose frames would then always flood. So the hash has a random
//! key per table, never shown outside, and two rounds of folded multiplication (64 × 64 → 128 bits,
//! high half xor low half), the construction of wyhash and foldhash. One round would not suffice:
//! the hashes of addresses that differ by a little still differ by a little times the key.

use base::frame::fold::{PI, fold};

/// 2^32 divided by the golden ratio, odd: Knuth's multiplicative hash.
const GOLDEN: u32 = 0x9e37_79b1;

/// The secret offset and the two secret multipliers of one table.
#[derive(Clone, Copy)]
pub(super) struct MacHash {
    offset: u64,
    first: u64,
    second: u64,
}

impl MacHash {
    pub(super) fn new(key: [u64; 2]) -> MacHash {
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
    pub(super) fn hash(&self, mac_bits: u64, segment: u32) -> u64 {
        // Consecutive numbers differ in the upper half of the product.
        let segment = u64::from(segment.wrapping_mul(GOLDEN) >> 16) << 48;
        fold(fold(mac_bits ^ segment ^ self.offset, self.first), self.second)
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
}
