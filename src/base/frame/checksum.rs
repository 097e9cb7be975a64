//! The Internet checksum: ones' complement sums over 16-bit words (RFC 1071).
//!
//! A [`Sum`] stays unfolded until its 16 bits are needed. The words of a [`Sum`] have the machine's
//! byte order: section 2(B) of the RFC shows that the byte order does not matter as long as words
//! are loaded and stored alike. [`Sum::plus`] and [`Sum::plus_at`] add the sums of parts, so that
//! bytes can be summed while they are copied.

/// An unfolded ones' complement sum: a number that is congruent to the sum of the words modulo
/// 65,535, and zero only if all words are zero.
///
/// 2^16 is 1 modulo 65,535, and so are 2^32 and 2^64. So halves and quarters of a wide word may be
/// added at any position, and a carry out of bit 63 is added at bit 0.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sum(u64);

impl Sum {
    /// The sum of no bytes.
    pub const ZERO: Sum = Sum(0);

    /// Sums `bytes`, which begin at an even position. An odd last byte is padded with a zero.
    #[inline]
    pub fn of(bytes: &[u8]) -> Sum {
        let (words, rest) = bytes.as_chunks::<8>();
        // A loop without carries compiles to two additions and a shift of SSE2 for 16 bytes.
        // `whole` overflows; the lost carries follow from the sum of the upper halves, which is
        // exact below 32 GiB.
        let (mut whole, mut upper) = (0u64, 0u64);
        for &word in words {
            let word = u64::from_ne_bytes(word);
            whole = whole.wrapping_add(word);
            upper = upper.wrapping_add(word >> 32);
        }
        let lower = whole.wrapping_sub(upper << 32);
        Sum(lower).plus(Sum(upper)).plus(Sum::of_rest(rest))
    }

    /// Sums at most seven bytes.
    #[inline(always)]
    fn of_rest(mut bytes: &[u8]) -> Sum {
        let mut sum = 0;
        if let Some((&four, rest)) = bytes.split_first_chunk() {
            sum += u64::from(u32::from_ne_bytes(four));
            bytes = rest;
        }
        if let Some((&two, rest)) = bytes.split_first_chunk() {
            sum += u64::from(u16::from_ne_bytes(two));
            bytes = rest;
        }
        if let [last] = *bytes {
            sum += u64::from(u16::from_ne_bytes([last, 0]));
        }
        Sum(sum)
    }

    /// Makes a sum of `raw`: the sum, without overflow, of 16-bit words in the machine's byte order
    /// or of 32-bit words of two 16-bit words each. Two lanes that sum the lower and the upper
    /// halves of 64-bit words are `from_raw(lower).plus(from_raw(upper))`.
    #[inline(always)]
    pub const fn from_raw(raw: u64) -> Sum {
        Sum(raw)
    }

    /// Returns the sum of `self` and `part`, whose bytes begin at an even position.
    #[inline(always)]
    #[must_use]
    pub const fn plus(self, part: Sum) -> Sum {
        let (sum, carry) = self.0.overflowing_add(part.0);
        // The addition cannot overflow: a sum with a carry is at most 2^64 - 2.
        Sum(sum + carry as u64)
    }

    /// Returns the sum of `self` and `part`, whose bytes begin at an odd position if `odd`.
    #[inline(always)]
    #[must_use]
    pub const fn plus_at(self, part: Sum, odd: bool) -> Sum {
        // Each byte of `part` is in the other half of a word (RFC 1071 section 2(B)).
        let part = if odd { Sum(part.fold().swap_bytes() as u64) } else { part };
        self.plus(part)
    }

    /// Adds a 16-bit number that the packet holds in network byte order at an even position.
    #[inline(always)]
    #[must_use]
    pub const fn word(self, value: u16) -> Sum {
        self.plus(Sum(value.to_be() as u64))
    }

    /// Subtracts a 16-bit number that was added before: adds its complement (RFC 1624, equation 3).
    #[inline(always)]
    #[must_use]
    pub const fn minus_word(self, value: u16) -> Sum {
        self.word(!value)
    }

    /// Subtracts `part`, which begins at an even position of the summed bytes: adds the complement
    /// of `part`. A difference of zero is represented as 65,535.
    #[inline(always)]
    #[must_use]
    pub(crate) const fn minus(self, part: Sum) -> Sum {
        self.plus(Sum(!part.fold() as u64))
    }

    /// Returns the 16 bits of the sum in the machine's byte order: zero only if every byte is zero.
    #[inline(always)]
    pub const fn fold(self) -> u16 {
        let halves = (self.0 >> 32) + (self.0 & 0xffff_ffff);
        // `halves` has at most 33 bits, `quarters` at most 18, and `sum` at most 17, whose lower 16
        // bits have room for the carry.
        let quarters = (halves >> 16) + (halves & 0xffff);
        let sum = (quarters >> 16) + (quarters & 0xffff);
        ((sum >> 16) + (sum & 0xffff)) as u16
    }

    /// Returns the folded sum in the bytes of a packet. If `self` is the sum of the pseudo-header,
    /// the bytes are the checksum field of a frame with `VIRTIO_NET_HDR_F_NEEDS_CSUM`.
    #[inline(always)]
    pub const fn to_bytes(self) -> [u8; 2] {
        self.fold().to_ne_bytes()
    }

    /// Returns the bytes of a TCP or UDP checksum, if `self` is the sum of all covered bytes. To
    /// finish a checksum that a sender left (virtio 1.2 section 5.1.6.2), sum from `csum_start` to
    /// the frame's end, checksum field included: the field holds the pseudo-header's sum.
    ///
    /// Zero is sent as 0xffff, which a receiver's calculation cannot tell from zero: in UDP a zero
    /// field means "no checksum" (RFC 768), and other protocols accept both. Linux replaces zero
    /// for every protocol too (`skb_checksum_help`).
    #[inline(always)]
    pub const fn checksum(self) -> [u8; 2] {
        match !self.fold() {
            0 => [0xff; 2],
            sum => sum.to_ne_bytes(),
        }
    }

    /// Returns the bytes of an IPv4 header's checksum, if `self` is the sum of the header without
    /// its checksum field.
    #[inline(always)]
    pub const fn header_checksum(self) -> [u8; 2] {
        (!self.fold()).to_ne_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums two bytes at a time, as in RFC 1071 section 4.1; in network byte order.
    fn slow(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |&b| u32::from(b));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    /// Returns pseudo-random bytes.
    fn noise(len: usize) -> Vec<u8> {
        let mut seed = len as u64;
        let next = |_| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 56) as u8
        };
        (0..len).map(next).collect()
    }

    #[test]
    fn the_example_of_the_rfc() {
        // RFC 1071 section 3.
        let sum = Sum::of(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(sum.to_bytes(), [0xdd, 0xf2]);
        assert_eq!(sum.checksum(), [0x22, 0x0d]);
        assert_eq!(sum.header_checksum(), [0x22, 0x0d]);
    }

    #[test]
    fn every_length_and_alignment_is_summed_like_word_by_word() {
        let bytes = noise(if cfg!(miri) { 70 } else { 700 });
        for from in 0..9 {
            for to in from..bytes.len() {
                let bytes = &bytes[from..to];
                assert_eq!(Sum::of(bytes).to_bytes(), slow(bytes).to_be_bytes(), "{from}..{to}");
            }
        }
    }

    #[test]
    fn carries_are_not_lost() {
        let most = if cfg!(miri) { 64 } else { 1 << 20 };
        for len in [2, 6, 8, 64, 65_535, 65_536, 1 << 20].into_iter().filter(|&len| len <= most) {
            let bytes = vec![0xff; len];
            assert_eq!(Sum::of(&bytes).to_bytes(), slow(&bytes).to_be_bytes(), "{len}");
        }
        let most = Sum::from_raw(u64::MAX);
        assert_eq!(most.plus(most).fold(), 0xffff);
        assert_eq!(most.plus(Sum::from_raw(1)).fold(), 1);
        let edges = [0, 1, 0xffff, 0x1_0000, 0x1_fffe, 0xffff_0001, u64::MAX - 1, u64::MAX];
        // The chained number carries at the last addition too.
        for raw in edges.into_iter().chain([0x8000_0000_8000_ffff]) {
            let fold = u64::from(Sum::from_raw(raw).fold());
            assert_eq!(fold % 0xffff, raw % 0xffff, "{raw:#x}");
            assert_eq!(fold == 0, raw == 0, "{raw:#x}");
        }
    }

    #[test]
    fn parts_make_up_the_whole_wherever_they_begin() {
        let bytes = noise(333);
        let whole = Sum::of(&bytes).fold();
        for first in 0..bytes.len() {
            for second in [first, first + 1, first + 16, first + 77] {
                let second = second.min(bytes.len());
                let sum = Sum::of(&bytes[..first])
                    .plus_at(Sum::of(&bytes[first..second]), first % 2 == 1)
                    .plus_at(Sum::of(&bytes[second..]), second % 2 == 1);
                assert_eq!(sum.fold(), whole, "{first}, {second}");
            }
        }
    }

    #[test]
    fn lanes_of_a_wide_sum_are_a_sum() {
        let bytes = noise(800);
        let (mut lower, mut upper) = (0, 0);
        for word in bytes.as_chunks::<8>().0 {
            let word = u64::from_ne_bytes(*word);
            lower += word & 0xffff_ffff;
            upper += word >> 32;
        }
        let sum = Sum::from_raw(lower).plus(Sum::from_raw(upper));
        assert_eq!(sum.fold(), Sum::of(&bytes).fold());
    }

    #[test]
    fn words_are_added_and_taken_away() {
        let sum = Sum::of(&[0x12, 0x34, 0xfe, 0xdc]);
        for value in (0..=u16::MAX).step_by(if cfg!(miri) { 0xfff } else { 1 }) {
            let more = sum.word(value);
            assert_eq!(more.fold(), sum.plus(Sum::of(&value.to_be_bytes())).fold());
            assert_eq!(more.minus_word(value).fold(), sum.fold());
        }
        // The difference is zero, in one of the two zeros of ones' complement.
        assert_eq!(Sum::ZERO.word(7).minus_word(7).fold(), 0xffff);
    }

    #[test]
    fn no_checksum_is_zero_but_an_ipv4_headers() {
        for sum in (0..=u16::MAX).step_by(if cfg!(miri) { 0xfff } else { 1 }) {
            let whole = Sum::ZERO.word(sum);
            let expected = if sum == 0xffff { 0xffff } else { !sum };
            assert_eq!(whole.checksum(), expected.to_be_bytes());
            assert_eq!(whole.header_checksum(), (!sum).to_be_bytes());
            assert_eq!(whole.plus(Sum::of(&whole.checksum())).fold(), 0xffff);
        }
    }
}
