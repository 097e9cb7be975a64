//! Keyed hash of a connection: chooses shard, buckets and fingerprint.
//!
//! Guests and their peers choose addresses and ports freely; with a hash that they knew they could
//! fill one bucket. The key is random per table and never shown outside; folded multiplication is
//! the construction of wyhash, as for addresses in the forwarding table.

use super::key::Key;
use base::frame::fold::{PI, fold};

/// The secret words of one table.
#[derive(Clone, Copy)]
pub(super) struct KeyHash([u64; 5]);

impl KeyHash {
    pub(super) fn new(key: [u64; 4]) -> KeyHash {
        let [a, b, c, d] = key;
        KeyHash([a ^ PI[0], b ^ PI[1], c ^ PI[2], d ^ PI[3], (a.rotate_left(32) ^ c ^ PI[4]) | 1])
    }

    /// Returns 64 well-mixed bits.
    #[inline]
    pub(super) fn hash(&self, key: &Key) -> u64 {
        let (Key(words), secret) = (key, &self.0);
        let local = fold(words[0] ^ secret[0], words[1] ^ secret[1]);
        let remote = fold(words[2] ^ secret[2], words[3] ^ secret[3]);
        let ends = fold(local ^ words[4] ^ secret[1], remote ^ secret[4]);
        fold(ends ^ words[4].rotate_left(32), secret[4])
    }
}

#[cfg(test)]
mod tests {
    use super::super::key::{Parts, Place};
    use super::*;

    /// Chi-square of 16 connections per bucket on average: mean 4095, deviation about 90.
    #[test]
    #[cfg_attr(miri, ignore = "statistics over many hashes, no memory access to check")]
    fn connections_as_machines_number_them_spread_like_random_ones() {
        const BUCKETS: usize = 4096;
        for secret in [[0; 4], [1, 2, 3, 4], [u64::MAX; 4]] {
            let hash = KeyHash::new(secret);
            let local = Place { address: 0x0a00_0001, port: 443 };
            let patterns: [&dyn Fn(u64) -> Place; 3] = [
                &|n| Place { address: 0x0a00_0002, port: n as u16 },
                &|n| Place { address: 0x0a00_0000 + u128::from(n), port: 1024 },
                &|n| Place { address: u128::from(n) << 64 | 1, port: (n >> 8) as u16 },
            ];
            for (number, pattern) in patterns.iter().enumerate() {
                for shift in [0, 20, 52] {
                    let mut load = vec![0u32; BUCKETS];
                    for n in 0..BUCKETS as u64 * 16 {
                        let parts = Parts { local, remote: pattern(n), ..Parts::default() };
                        let hash = hash.hash(&Key::new(&parts)) >> shift;
                        load[hash as usize % BUCKETS] += 1;
                    }
                    let chi: f64 = load.iter().map(|&n| (f64::from(n) - 16.0).powi(2) / 16.0).sum();
                    let case = format!("{secret:x?}, pattern {number}, from bit {shift}: {chi}");
                    assert!((3375.0..4815.0).contains(&chi), "{case}");
                }
            }
        }
    }
}
