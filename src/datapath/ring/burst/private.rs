//! Bytes behind the snapshot that become private before the switch examines them.
//!
//! Each frame of a burst has a slot by the frame's position, which stays when another frame is
//! rejected. A frame whose bytes were copied to its slot refers to the slot, so that the switch
//! delivers the bytes that it checked.

use super::{Burst, Frame, gather_one};
use crate::ring::chain::Piece;
use base::limits::{BURST_FRAMES, MAX_HEADERS_LEN, MAX_MESSAGE_LEN, SNAPSHOT_LEN};

impl Burst {
    /// Returns the first [`MAX_HEADERS_LEN`] bytes of frame `index`, or the whole frame if shorter.
    /// From the first call on these bytes are private, and receivers get them. `None` if there is
    /// no room for another piece.
    pub(crate) fn headers(&mut self, index: usize) -> Option<&[u8]> {
        let Frame { len, rest, position, .. } = self.frames[index];
        let known = (len as usize).min(MAX_HEADERS_LEN);
        if known <= SNAPSHOT_LEN {
            return Some(self.frames[index].head());
        }
        // No reference to the slots: frames refer to the slots by raw pointers.
        let slots = (&raw mut *self.private.headers).cast::<[u8; MAX_HEADERS_LEN]>();
        let mut slot = slots.wrapping_add(usize::from(position) % BURST_FRAMES).cast::<u8>();
        if rest.at == self.message_slot(position).wrapping_add(SNAPSHOT_LEN) {
            slot = self.message_slot(position);
        } else if rest.at != slot.wrapping_add(SNAPSHOT_LEN) {
            // SAFETY: a position is the number of a head in the burst, and there are as many slots
            // as heads, so that no other frame refers to this slot.
            unsafe { self.extend(index, slot, MAX_HEADERS_LEN)? };
        }
        // SAFETY: the slot has at least `known` bytes, and nothing writes there while the burst is
        // borrowed.
        Some(unsafe { std::slice::from_raw_parts(slot, known) })
    }

    /// Returns all bytes of frame `index`. From the first call on these bytes are private, and
    /// receivers get them. `None` if the frame is longer than [`MAX_MESSAGE_LEN`] or there is no
    /// room for another piece.
    #[cold]
    pub(crate) fn message(&mut self, index: usize) -> Option<&[u8]> {
        let Frame { len, rest, position, .. } = self.frames[index];
        let len = len as usize;
        if len <= SNAPSHOT_LEN {
            return Some(self.frames[index].head());
        }
        if len > MAX_MESSAGE_LEN {
            return None;
        }
        if self.private.messages.is_empty() {
            self.private.messages = vec![0; MAX_MESSAGE_LEN * BURST_FRAMES].into_boxed_slice();
        }
        let slot = self.message_slot(position);
        if rest.at != slot.wrapping_add(SNAPSHOT_LEN) {
            // SAFETY: as in `headers`. No other frame refers to this slot of `messages`.
            unsafe { self.extend(index, slot, MAX_MESSAGE_LEN)? };
        }
        // SAFETY: the slot has at least `len` bytes, and nothing writes there while the burst is
        // borrowed.
        Some(unsafe { std::slice::from_raw_parts(slot, len) })
    }

    /// Returns the slot of a position in `messages`; null before `messages` is allocated.
    fn message_slot(&mut self, position: u8) -> *mut u8 {
        if self.private.messages.is_empty() {
            return std::ptr::null_mut();
        }
        // No reference to the slots: frames refer to the slots by raw pointers.
        let slots = (&raw mut *self.private.messages).cast::<u8>();
        slots.wrapping_add(usize::from(position) % BURST_FRAMES * MAX_MESSAGE_LEN)
    }

    /// Copies the first `limit` bytes of frame `index`, which is longer than a snapshot, to the
    /// slot at `at`; the frame refers to the slot then. `None` if there is no room for another
    /// piece; the frame is unchanged then.
    ///
    /// # Safety
    /// The slot at `at` has `limit` bytes, lives as long as the burst's frames, and no frame refers
    /// to it.
    unsafe fn extend(&mut self, index: usize, at: *mut u8, limit: usize) -> Option<()> {
        // SAFETY: the caller's promise.
        let slot = unsafe { std::slice::from_raw_parts_mut(at, limit) };
        let frame = &mut self.frames[index];
        let wanted = (frame.len as usize).min(limit);
        let mut rest = frame.rest;
        let (start, count) = (usize::from(frame.more.0), usize::from(frame.more.1));
        slot[..SNAPSHOT_LEN].copy_from_slice(&frame.snapshot);
        let mut filled = SNAPSHOT_LEN + gather_one(&mut rest, &mut slot[SNAPSHOT_LEN..wanted]);
        let mut next = start;
        while filled < wanted && next < start + count {
            rest = self.pieces.as_slice()[next];
            next += 1;
            filled += gather_one(&mut rest, &mut slot[filled..wanted]);
        }
        let mut left = start + count - next;
        if rest.len > 0 {
            // The rest of a partly copied piece takes that piece's place in the list, just before
            // the frame's other pieces. A frame in one piece has no place there, so the list has
            // room for one more piece of each frame.
            if next > 0 {
                next -= 1;
                self.pieces.as_mut_slice()[next] = rest;
            } else {
                next = self.pieces.len();
                self.pieces.push(rest).ok()?;
            }
            left += 1;
        }
        // The frame is read from the slot alone from here on; see `make_private` in `tx`.
        std::hint::black_box(slot);
        let at = at.wrapping_add(SNAPSHOT_LEN);
        frame.rest = Piece { at, len: (filled - SNAPSHOT_LEN) as u32 };
        frame.more = (next as u16, left as u16);
        Some(())
    }
}
