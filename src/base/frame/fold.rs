//! Folded multiplication: the step of the hashes of addresses and flows.

/// Fractional digits of π: words without a pattern. The words that multiply are odd, so that a
/// multiplication loses no bit of the other factor.
pub const PI: [u64; 5] = [
    0x243f_6a88_85a3_08d3,
    0x1319_8a2e_0370_7345,
    0xa409_3822_299f_31d1,
    0x082e_fa98_ec4e_6c89,
    0x4528_21e6_38d0_1377,
];

/// Multiplies to 128 bits and returns the XOR of both halves, as wyhash and foldhash do.
#[inline(always)]
pub fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}
