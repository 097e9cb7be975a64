//! Private memory for frames of a burst.

use base::frame::ethernet::VLAN_TAG_LEN;
use base::limits::{BURST_BYTES, BURST_FRAMES, MAX_FRAME_LEN};

/// Bytes of a whole burst, the frame that crosses the limit included, plus a VLAN tag a frame.
const ROOM: usize = (BURST_BYTES + MAX_FRAME_LEN) as usize + BURST_FRAMES * VLAN_TAG_LEN;

/// Memory that frames refer to by raw pointers until the burst is cleared. Allocated at the first
/// use.
#[derive(Debug, Default)]
pub(crate) struct Staging {
    /// Accessed by raw pointers alone: a reference to the whole memory would invalidate the
    /// pointers.
    memory: Vec<u8>,
    used: usize,
}

impl Staging {
    /// Takes back all bytes that [`Staging::take`] returned.
    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        self.used = 0;
    }

    /// Returns the next `len` bytes, which hold bytes of older frames; `None` if fewer are left.
    ///
    /// # Safety
    /// Nothing refers to the bytes after the next `clear`, nor after the `Staging` is dropped.
    pub(crate) unsafe fn take(&mut self, len: usize) -> Option<&'static mut [u8]> {
        if self.memory.is_empty() {
            self.memory = vec![0; ROOM];
        }
        let end = self.used.checked_add(len).filter(|end| *end <= self.memory.len())?;
        let at = self.memory.as_mut_ptr().wrapping_add(std::mem::replace(&mut self.used, end));
        // SAFETY: the bytes lie in `memory`, which is allocated once; `used` moves past the bytes,
        // so they are returned once before `clear`.
        Some(unsafe { std::slice::from_raw_parts_mut(at, len) })
    }
}
