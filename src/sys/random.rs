//! Random numbers from the kernel.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

/// 128 random bits.
pub fn key() -> io::Result<[u64; 2]> {
    let mut bytes = [0; 16];
    // Up to 256 bytes are never returned in part (getrandom(2)).
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    let number = u128::from_ne_bytes(bytes);
    Ok([number as u64, (number >> 64) as u64])
}
