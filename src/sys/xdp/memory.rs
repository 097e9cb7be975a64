//! Private memory that the kernel copies frames to and from, in chunks of one frame each.
//!
//! A chunk belongs to this process or to the kernel. A receive chunk is the kernel's while it is in
//! the fill ring, and this process's from its descriptor in the receive ring until it is put into
//! the fill ring again. A send chunk is the kernel's from its descriptor in the transmit ring until
//! it comes back in the completion ring.

use std::io;
use std::ptr::NonNull;

use crate::pages::Pages;
use base::limits::{MAX_XDP_MTU, XDP_CHUNK, XDP_SHORT_CHUNK};

/// The chunks of one queue, unmapped on drop. The kernel holds the pages while a socket is open;
/// the rings, under their locks, tell who owns a chunk.
#[derive(Debug)]
pub(super) struct Memory {
    pages: Pages,
    chunks: u32,
    /// Length of a chunk in bytes, a power of two.
    chunk_bytes: usize,
}

impl Memory {
    /// Makes `chunks` chunks, each for a frame of an interface with this MTU.
    pub(super) fn new(chunks: u32, mtu: u32) -> io::Result<Memory> {
        let is_short = mtu <= mtu_of(XDP_SHORT_CHUNK);
        let chunk_bytes = if is_short { XDP_SHORT_CHUNK } else { XDP_CHUNK };
        let pages = Pages::anonymous(chunks as usize * chunk_bytes)?.in_huge_pages();
        Ok(Memory { pages, chunks, chunk_bytes })
    }

    /// Returns address and length of the memory.
    pub(super) fn place(&self) -> (u64, u64) {
        (self.pages.at().as_ptr() as u64, self.pages.bytes() as u64)
    }

    /// Returns the length of a chunk in bytes.
    pub(super) fn chunk_bytes(&self) -> usize {
        self.chunk_bytes
    }

    /// Returns the largest MTU of an interface whose frames fit a chunk.
    pub(super) fn mtu(&self) -> u32 {
        mtu_of(self.chunk_bytes)
    }

    /// Returns the address of a chunk, of [`Memory::chunk_bytes`] bytes.
    pub(super) fn chunk(&self, number: u32) -> NonNull<u8> {
        let number = number.min(self.chunks - 1) as usize;
        // SAFETY: `number` is less than the number of chunks, so the chunk lies in the mapping.
        unsafe { self.pages.at().add(number * self.chunk_bytes) }
    }

    /// Returns a chunk's address in the rings: its offset in the memory.
    pub(super) fn address(&self, number: u32) -> u64 {
        u64::from(number) * self.chunk_bytes as u64
    }

    /// Returns the chunk number of a ring address; the number may exceed the chunks.
    pub(super) fn number(&self, address: u64) -> u32 {
        u32::try_from(address >> self.chunk_bytes.trailing_zeros()).unwrap_or(u32::MAX)
    }

    /// Returns the address of a descriptor's frame and the frame's chunk; `None` if the frame does
    /// not lie in one chunk.
    pub(super) fn frame(&self, desc: &libc::xdp_desc) -> Option<(NonNull<u8>, u32)> {
        let chunk = self.number(desc.addr);
        let offset = desc.addr as usize & (self.chunk_bytes - 1);
        let fits = chunk < self.chunks && desc.len as usize <= self.chunk_bytes - offset;
        // SAFETY: the offset is less than a chunk.
        fits.then(|| (unsafe { self.chunk(chunk).add(offset) }, chunk))
    }
}

/// Returns the largest MTU of an interface whose frames fit chunks of `chunk_bytes` bytes.
fn mtu_of(chunk_bytes: usize) -> u32 {
    MAX_XDP_MTU as u32 - (XDP_CHUNK - chunk_bytes) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_lies_in_one_chunk_or_is_none() {
        for (mtu, bytes) in [(1500, XDP_SHORT_CHUNK), (1770, 2_048), (1771, XDP_CHUNK)] {
            let memory = Memory::new(4, mtu).unwrap();
            assert_eq!((memory.chunk_bytes(), memory.place().1), (bytes, 4 * bytes as u64));
            assert!(mtu <= memory.mtu());
            frames_of(&memory);
        }
    }

    fn frames_of(memory: &Memory) {
        let bytes = memory.chunk_bytes() as u32;
        let chunk = u64::from(bytes);
        let at = |addr, len| memory.frame(&libc::xdp_desc { addr, len, options: 0 });
        assert_eq!(at(0, 0).unwrap().1, 0);
        assert_eq!(at(0, bytes).unwrap().1, 0);
        let (place, number) = at(3 * chunk + 256, bytes - 256).unwrap();
        assert_eq!(number, 3);
        assert_eq!(place.as_ptr() as u64, memory.place().0 + memory.address(3) + 256);
        for (addr, len) in [
            (0, bytes + 1),
            (256, bytes - 255),
            (3 * chunk + 1, bytes),
            (chunk - 1, 2),
            (4 * chunk, 0),
            (u64::MAX, 0),
            (u64::MAX - 64, 64),
            (1 << 48, 60),
            (0, u32::MAX),
        ] {
            assert!(at(addr, len).is_none(), "{addr} {len}");
        }
    }
}
