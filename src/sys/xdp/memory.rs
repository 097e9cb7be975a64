//! Memory of ours that the kernel copies frames to and from, in chunks of one frame each.
//!
//! A chunk is ours or the kernel's. One for receiving is the kernel's while it is in the fill ring,
//! and ours from its descriptor on, until it is put there again; one for sending is the kernel's
//! from its descriptor on until it comes in the completion ring.

use std::io;
use std::ptr::NonNull;

use crate::limits::XDP_CHUNK;
use crate::sys::pages::Pages;

/// The chunks of one socket, unmapped on drop. The kernel holds the pages for as long as the socket
/// is open; who owns a chunk is said by the rings, under their locks.
#[derive(Debug)]
pub(super) struct Memory {
    pages: Pages,
    chunks: u32,
}

impl Memory {
    pub(super) fn new(chunks: u32) -> io::Result<Memory> {
        Ok(Memory { pages: Pages::anonymous(chunks as usize * XDP_CHUNK)?, chunks })
    }

    /// Where it begins, and its length.
    pub(super) fn place(&self) -> (u64, u64) {
        (self.pages.at().as_ptr() as u64, self.pages.bytes() as u64)
    }

    /// A chunk of [`XDP_CHUNK`] bytes.
    pub(super) fn chunk(&self, number: u32) -> NonNull<u8> {
        let number = number.min(self.chunks - 1) as usize;
        // SAFETY: it lies in the mapping.
        unsafe { self.pages.at().add(number * XDP_CHUNK) }
    }

    /// The frame of a descriptor, and the chunk that it is in; none if it is not in one chunk.
    pub(super) fn frame(&self, desc: &libc::xdp_desc) -> Option<(NonNull<u8>, u32)> {
        let chunk = u32::try_from(desc.addr / XDP_CHUNK as u64).ok()?;
        let offset = (desc.addr % XDP_CHUNK as u64) as usize;
        let fits = chunk < self.chunks && desc.len as usize <= XDP_CHUNK - offset;
        // SAFETY: the offset is less than a chunk.
        fits.then(|| (unsafe { self.chunk(chunk).add(offset) }, chunk))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_lies_in_one_chunk_or_is_none() {
        let memory = Memory::new(4).unwrap();
        let chunk = XDP_CHUNK as u64;
        let at = |addr, len| memory.frame(&libc::xdp_desc { addr, len, options: 0 });
        assert_eq!(at(0, 0).unwrap().1, 0);
        assert_eq!(at(0, XDP_CHUNK as u32).unwrap().1, 0);
        let (place, number) = at(3 * chunk + 256, XDP_CHUNK as u32 - 256).unwrap();
        assert_eq!(number, 3);
        assert_eq!(place.as_ptr() as u64, memory.place().0 + 3 * chunk + 256);
        for (addr, len) in [
            (0, XDP_CHUNK as u32 + 1),
            (256, XDP_CHUNK as u32 - 255),
            (3 * chunk + 1, XDP_CHUNK as u32),
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
