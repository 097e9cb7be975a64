//! Random numbers from the kernel.

use std::io;

/// 128 random bits.
pub fn key() -> io::Result<[u64; 2]> {
    let mut key = [0u64; 2];
    // SAFETY: the buffer is 16 bytes, live and writable.
    let got = unsafe { libc::getrandom(key.as_mut_ptr().cast(), 16, 0) };
    // Up to 256 bytes are never returned in part (getrandom(2)).
    if got == 16 { Ok(key) } else { Err(io::Error::last_os_error()) }
}
