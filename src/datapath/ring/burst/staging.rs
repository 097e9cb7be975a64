//! Private memory for frames of a burst.

use base::frame::ethernet::VLAN_TAG_LEN;
use base::limits::{BURST_BYTES, BURST_FRAMES, MAX_FRAME_LEN};

/// All of a burst, the frame that crosses the line included, and a VLAN tag more for each frame.
const ROOM: usize = (BURST_BYTES + MAX_FRAME_LEN) as usize + BURST_FRAMES * VLAN_TAG_LEN;

/// Memory that frames refer to by raw pointers until the burst is cleared. None is allocated before
/// the first use.
#[derive(Debug, Default)]
pub struct Staging {
    /// Read and written through pointers alone, which a reference to all of it would invalidate.
    memory: Vec<u8>,
    used: usize,
}

impl Staging {
    /// Forgets what was handed out.
    #[inline(always)]
    pub fn clear(&mut self) {
        self.used = 0;
    }

    /// The next `len` bytes, filled with older frames; none if so many are not left.
    ///
    /// # Safety
    /// Nothing refers to the bytes after the next `clear`, nor when this is dropped.
    pub unsafe fn take(&mut self, len: usize) -> Option<&'static mut [u8]> {
        if self.memory.is_empty() {
            self.memory = vec![0; ROOM];
        }
        let end = self.used.checked_add(len).filter(|end| *end <= self.memory.len())?;
        let at = self.memory.as_mut_ptr().wrapping_add(std::mem::replace(&mut self.used, end));
        // SAFETY: the bytes lie in `memory`, which is allocated once, and are handed out once
        // before `clear`.
        Some(unsafe { std::slice::from_raw_parts_mut(at, len) })
    }
}
