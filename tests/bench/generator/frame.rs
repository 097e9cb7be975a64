//! The generator's frames: written and checked with 64-bit stores and loads.
//!
//! ```text
//!  0  destination   6  source   12  type 0x88b5   14  magic
//! 16  sender u16   18  length u16   20  sequence number u32   24  time u64 (ticks)   32  pattern
//! ```
//!
//! Numbers are in host order. The pattern starts from a hash of all fields before it, so that it
//! proves them too: a frame with another frame's head, or with a changed one, does not pass.

use std::ptr::{read_unaligned, write_unaligned};

/// Bytes before the pattern: the shortest frame.
pub const HEAD: u32 = 32;
/// Longest frame: jumbo Ethernet.
pub const LONGEST: u32 = 9018;

/// Ethertype 0x88b5 (IEEE 802, local experiments) and a magic number, as bytes 12 to 15.
const MEASURED: u32 = u32::from_le_bytes([0x88, 0xb5, b'v', b'L']);
/// The same for frames that only tell the switch an address.
const ANNOUNCED: u32 = u32::from_le_bytes([0x88, 0xb5, b'v', b'A']);

/// The low 48 bits of a word.
const MASK48: u64 = (1 << 48) - 1;
/// All ones.
pub const BROADCAST: u64 = MASK48;

/// Odd, from the golden ratio: spreads the bits of what it is multiplied by.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Address `index` of a port, as the low 48 bits of a word in memory order.
pub fn address(port: u16, index: u16) -> u64 {
    let [p, q] = port.to_be_bytes();
    let [i, j] = index.to_be_bytes();
    u64::from_le_bytes([0x02, 0x76, p, q, i, j, 0, 0])
}

/// What a port accepts as a destination: its own addresses, or broadcasts.
#[derive(Clone, Copy)]
pub struct Accept {
    mask: u64,
    value: u64,
}

impl Accept {
    pub fn own(port: u16) -> Accept {
        Accept { mask: 0xffff_ffff, value: address(port, 0) & 0xffff_ffff }
    }

    pub fn broadcast() -> Accept {
        Accept { mask: MASK48, value: BROADCAST }
    }
}

/// The two words of addresses and type.
#[derive(Clone, Copy)]
pub struct Addresses {
    first: u64,
    second: u64,
}

impl Addresses {
    #[inline(always)]
    pub fn new(destination: u64, source: u64) -> Addresses {
        Addresses {
            first: destination | source << 48,
            second: source >> 16 | u64::from(MEASURED) << 32,
        }
    }

    /// Marks the frame as an announcement.
    pub fn announcing(self) -> Addresses {
        let second = self.second & 0xffff_ffff | u64::from(ANNOUNCED) << 32;
        Addresses { first: self.first, second }
    }
}

/// Who sent a frame, as which, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    pub sender: u16,
    pub sequence: u32,
    pub ticks: u64,
}

/// The first word of the pattern.
#[inline(always)]
fn seed(words: [u64; 4]) -> u64 {
    let [a, b, c, d] = words;
    (a ^ b.rotate_left(17) ^ c.rotate_left(31) ^ d).wrapping_mul(SPREAD)
}

/// Writes a frame of `len` bytes, its pattern only if `TOUCH`.
///
/// # Safety
/// `p` must be writable for `len` bytes, and `len` at least [`HEAD`].
#[inline(always)]
pub unsafe fn write<const TOUCH: bool>(p: *mut u8, len: u32, to: Addresses, stamp: Stamp) {
    let who = u64::from(stamp.sender) | u64::from(len) << 16 | u64::from(stamp.sequence) << 32;
    let head = [to.first, to.second, who, stamp.ticks];
    // SAFETY: the caller vouches for `len` bytes, and the head is 32 of them.
    unsafe {
        write_unaligned(p.cast(), head);
        if TOUCH {
            write_pattern(p.add(32), len as usize - 32, seed(head));
        }
    }
}

/// # Safety
/// `p` must be writable for `len` bytes.
#[inline(always)]
unsafe fn write_pattern(p: *mut u8, len: usize, seed: u64) {
    // SAFETY: all offsets written are below `len`; AVX2 is there where it is used.
    unsafe {
        if len == 28 {
            // The 60-byte frame, without loops.
            write_unaligned(p.cast(), [seed, next(seed, 1), next(seed, 2)]);
            write_unaligned(p.add(24).cast(), next(seed, 3) as u32);
            return;
        }
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            return write_blocks_avx2(p, len, seed);
        }
        write_blocks(p, len, seed);
    }
}

/// # Safety
/// As [`write_pattern`], on a CPU with AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn write_blocks_avx2(p: *mut u8, len: usize, seed: u64) {
    // SAFETY: the caller vouches for the bytes.
    unsafe { write_blocks(p, len, seed) }
}

/// # Safety
/// As [`write_pattern`].
#[inline(always)]
unsafe fn write_blocks(p: *mut u8, len: usize, seed: u64) {
    let mut block = first_block(seed);
    let whole = len / 64;
    for i in 0..whole {
        // SAFETY: block `i` lies below `len`.
        unsafe { write_unaligned(p.add(64 * i).cast(), block) };
        block = block.map(|word| word.wrapping_add(8u64.wrapping_mul(SPREAD)));
    }
    let rest = block.as_ptr().cast::<u8>();
    // SAFETY: less than a block is left of `len`.
    unsafe { std::ptr::copy_nonoverlapping(rest, p.add(64 * whole), len % 64) };
}

/// Words 0 to 7 of the pattern; eight at a time become vector instructions.
#[inline(always)]
fn first_block(seed: u64) -> [u64; 8] {
    [0, 1, 2, 3, 4, 5, 6, 7].map(|i| next(seed, i))
}

#[inline(always)]
fn next(seed: u64, i: u64) -> u64 {
    seed.wrapping_add(i.wrapping_mul(SPREAD))
}

/// What a received frame turned out to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// A good frame for this port.
    Good(Stamp),
    /// One of ours for another port.
    Flooded,
    /// An announcement of this sender.
    Announced(u16),
    /// Nothing of ours.
    Foreign,
    /// Ours, but of the wrong length or with the wrong contents.
    Corrupt,
}

/// Judges a frame of `len` bytes, its pattern only if `TOUCH`.
///
/// # Safety
/// `p` must be readable for `len` bytes.
#[inline(always)]
pub unsafe fn check<const TOUCH: bool>(p: *const u8, len: usize, accept: Accept) -> Found {
    if len < HEAD as usize {
        return Found::Corrupt;
    }
    // SAFETY: `len` bytes are readable, and the head is 32 of them.
    let head: [u64; 4] = unsafe { read_unaligned(p.cast()) };
    let [first, second, who, ticks] = head;
    let good = (first & accept.mask == accept.value)
        & ((second >> 32) as u32 == MEASURED)
        & (usize::from((who >> 16) as u16) == len);
    if !good {
        return judge(head, len, accept);
    }
    // SAFETY: the pattern is the rest of the frame.
    if TOUCH && !unsafe { has_pattern(p.add(32), len - 32, seed(head)) } {
        return Found::Corrupt;
    }
    Found::Good(Stamp { sender: who as u16, sequence: (who >> 32) as u32, ticks })
}

#[cold]
fn judge(head: [u64; 4], len: usize, accept: Accept) -> Found {
    let [first, second, who, _] = head;
    match (second >> 32) as u32 {
        ANNOUNCED => Found::Announced(who as u16),
        MEASURED if usize::from((who >> 16) as u16) != len => Found::Corrupt,
        MEASURED if first & accept.mask != accept.value => Found::Flooded,
        _ => Found::Foreign,
    }
}

/// # Safety
/// `p` must be readable for `len` bytes.
#[inline(always)]
unsafe fn has_pattern(p: *const u8, len: usize, seed: u64) -> bool {
    // SAFETY: all offsets read are below `len`.
    unsafe {
        if len == 28 {
            let words: [u64; 3] = read_unaligned(p.cast());
            let tail: u32 = read_unaligned(p.add(24).cast());
            let [a, b, c] = words;
            let wrong = (a ^ seed) | (b ^ next(seed, 1)) | (c ^ next(seed, 2));
            return (wrong == 0) & (tail == next(seed, 3) as u32);
        }
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            return has_blocks_avx2(p, len, seed);
        }
        has_blocks(p, len, seed)
    }
}

/// # Safety
/// As [`has_pattern`], on a CPU with AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn has_blocks_avx2(p: *const u8, len: usize, seed: u64) -> bool {
    // SAFETY: the caller vouches for the bytes.
    unsafe { has_blocks(p, len, seed) }
}

/// # Safety
/// As [`has_pattern`].
#[inline(always)]
unsafe fn has_blocks(p: *const u8, len: usize, seed: u64) -> bool {
    let mut block = first_block(seed);
    let mut wrong = [0u64; 8];
    let whole = len / 64;
    for i in 0..whole {
        // SAFETY: block `i` lies below `len`.
        let got: [u64; 8] = unsafe { read_unaligned(p.add(64 * i).cast()) };
        for ((wrong, got), word) in wrong.iter_mut().zip(got).zip(&mut block) {
            *wrong |= got ^ *word;
            *word = word.wrapping_add(8u64.wrapping_mul(SPREAD));
        }
    }
    let mut got = block;
    // SAFETY: less than a block is left of `len`; the rest of `got` stays as expected.
    unsafe {
        let rest = got.as_mut_ptr().cast::<u8>();
        std::ptr::copy_nonoverlapping(p.add(64 * whole), rest, len % 64);
    }
    wrong == [0; 8] && got == block
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every byte of a frame but those of the time in it is proven by the check.
    #[test]
    fn each_changed_byte_is_found() {
        for len in [32, 60, 61, 64, 97, 590, 1514] {
            let to = Addresses::new(address(1, 0), address(0, 0));
            let stamp = Stamp { sender: 0, sequence: 7, ticks: 9 };
            let mut bytes = vec![0u8; len];
            // SAFETY: the vector is `len` bytes long, here and below.
            unsafe { write::<true>(bytes.as_mut_ptr(), len as u32, to, stamp) };
            // SAFETY: as above.
            let judge = |b: &[u8]| unsafe { check::<true>(b.as_ptr(), b.len(), Accept::own(1)) };
            assert_eq!(judge(&bytes), Found::Good(stamp));
            for at in if len == 32 { 0..4 } else { 0..len } {
                bytes[at] ^= 0x10;
                assert_ne!(judge(&bytes), Found::Good(stamp), "byte {at} of {len}");
                bytes[at] ^= 0x10;
            }
            assert_eq!(judge(&bytes[..len - 1]), Found::Corrupt);
        }
    }
}
