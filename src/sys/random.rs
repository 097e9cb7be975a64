//! Random numbers from the kernel.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

/// Returns 128 random bits.
pub fn key() -> io::Result<[u64; 2]> {
    let mut bytes = [0; 16];
    // getrandom(2) never returns a part of up to 256 bytes.
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    let number = u128::from_ne_bytes(bytes);
    Ok([number as u64, (number >> 64) as u64])
}
