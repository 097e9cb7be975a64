//! Copies of frames between guests' memories, without and with a checksum.
//!
//! All code that copies a frame out of the switch, to a receive buffer, a device or a capture, uses
//! [`EgressFrame`]: this type alone knows how a frame changes on its way out.
//!
//! Guests change their memory during a copy. So guest memory is only accessed through raw pointers,
//! once for each byte: the summed bytes are the written bytes.

use super::burst::{Burst, Frame};
use super::chain::Piece;
use super::retag::Retagged;
use base::frame::checksum::Sum;
use base::frame::ethernet::TagEdit;
use base::frame::offload::{Offloads, Request};
use base::frame::vnet::VnetHdr;
use base::frame::{VNET_HDR_LEN, VNET_HDR_LEN_LEGACY};
use base::limits::SNAPSHOT_LEN;

/// A frame of a burst as it leaves the switch.
#[derive(Clone, Copy)]
pub struct EgressFrame<'a> {
    burst: &'a Burst,
    frame: &'a Frame,
    /// The frame's new head, if the frame leaves with another tag.
    retagged: Option<&'a Retagged>,
}

impl Burst {
    /// Lets the listed frames leave as `edit` says. No other frame may leave before the next call
    /// of `retag` or `keep_tags`.
    pub(crate) fn retag(&mut self, frames: &[u8], mut edit: impl FnMut(&Frame) -> TagEdit) {
        let mut edit = |index: &u8| edit(&self.frames[usize::from(*index)]);
        let (same, mut rest) = (frames.first().map(&mut edit), frames.iter().skip(1));
        let are_same = self.are_alike || rest.all(|index| Some(edit(index)) == same);
        self.tags.are_other = !are_same || same.is_some_and(|edit| edit != TagEdit::Keep);
        if !self.tags.are_other {
            return;
        }
        let (asks, same) = (self.needs_offloads(), same.filter(|_| are_same));
        for index in frames {
            let frame = &self.frames[usize::from(*index)];
            let request = if asks { frame.request() } else { Request::NONE };
            let head = &mut self.tags.heads[usize::from(*index)];
            head.set((&frame.snapshot, frame.len), request, same.unwrap_or_else(|| edit(index)));
        }
    }

    /// Lets all frames leave as they arrived.
    #[inline(always)]
    pub(crate) fn keep_tags(&mut self) {
        self.tags.are_other = false;
    }

    /// Becomes the first `most` bytes of each listed frame of burst `of`, as these frames leave,
    /// with headers that ask for nothing. The caller clears this burst before `of`: both may refer
    /// to the same memory.
    #[cold]
    pub(crate) fn excerpt(&mut self, of: &Burst, frames: &[u8], most: usize) {
        self.clear();
        for &index in frames {
            if self.push_beginning(of, index, most) {
                continue;
            }
            let frame = of.egress(index);
            let len = most.min(frame.len() as usize);
            // SAFETY: only this burst's frames refer to the bytes, which `clear` empties.
            let Some(to) = (unsafe { self.private.staging.take(len) }) else { break };
            let len = frame.copy_beginning(to) as u32;
            // SAFETY: `to` lies in the staging of this burst, which is neither written nor dropped
            // before the burst is cleared by another call of this function, or dropped with it.
            if !unsafe { self.push_private(VnetHdr::plain(0), to.as_mut_ptr(), len) } {
                break;
            }
        }
    }

    /// Adds a frame that the switch makes, with a header that asks for nothing; false if the burst
    /// is full.
    #[cold]
    pub(crate) fn push_own(&mut self, bytes: &[u8]) -> bool {
        // SAFETY: only this burst's frames refer to the bytes, which `clear` empties.
        let Some(to) = (unsafe { self.private.staging.take(bytes.len()) }) else { return false };
        to.copy_from_slice(bytes);
        // SAFETY: `to` lies in the staging of this burst, which is neither written nor dropped
        // before the burst is cleared, or dropped with it.
        unsafe { self.push_private(VnetHdr::plain(0), to.as_mut_ptr(), bytes.len() as u32) }
    }

    /// Adds the first `most` bytes, at least a snapshot, of frame `index` of another burst without
    /// copying the payload. False if these bytes lie in several pieces, or the frame has a new
    /// head.
    fn push_beginning(&mut self, of: &Burst, index: u8, most: usize) -> bool {
        let whole = &of.frames()[usize::from(index)];
        let behind = most.saturating_sub(SNAPSHOT_LEN) as u32;
        let has_more = whole.more.1 != 0 && behind > whole.rest.len;
        if of.tags.of(index).is_some() || has_more {
            return false;
        }
        self.push_excerpt(Frame {
            header: VnetHdr::plain(0),
            len: whole.len.min(most as u32),
            rest: Piece { len: whole.rest.len.min(behind), ..whole.rest },
            more: (0, 0),
            ..*whole
        })
    }

    /// Returns frame `index` as it leaves the switch.
    #[inline(always)]
    pub(crate) fn egress(&self, index: u8) -> EgressFrame<'_> {
        let frame = EgressFrame::new(self, &self.frames()[usize::from(index)]);
        EgressFrame { retagged: self.tags.of(index), ..frame }
    }
}

impl<'a> EgressFrame<'a> {
    /// Makes the egress frame of `frame`, a frame of `burst` that leaves as it arrived.
    #[inline(always)]
    pub(super) fn new(burst: &'a Burst, frame: &'a Frame) -> EgressFrame<'a> {
        EgressFrame { burst, frame, retagged: None }
    }

    /// Returns the frame's bytes.
    #[inline(always)]
    pub(crate) fn len(self) -> u32 {
        self.retagged.map_or(self.frame.len, |other| other.len)
    }

    /// Returns the frame's virtio-net header; see [`Frame::header`].
    #[inline(always)]
    pub(crate) fn header(self) -> VnetHdr {
        self.retagged.map_or(self.frame.header, Retagged::header)
    }

    /// Returns the offloads that a receiver must have acknowledged to get the frame with
    /// [`EgressFrame::header`]; valid only if the burst asks for offloads.
    #[inline(always)]
    pub(crate) fn needs(self) -> Offloads {
        self.retagged.map_or(self.frame.needs, Retagged::needs)
    }

    /// Returns the offloads that the frame asks for; valid only if the burst asks for offloads.
    pub(crate) fn request(self) -> Request {
        self.retagged.map_or_else(|| self.frame.request(), |other| other.request)
    }

    /// Returns the frame's first bytes, which are private.
    #[inline(always)]
    pub(crate) fn head(self) -> &'a [u8] {
        match self.retagged {
            Some(other) => other.head(),
            None => self.frame.head(),
        }
    }

    /// Returns the pieces behind [`EgressFrame::head`], in the sender's memory or private.
    pub(crate) fn payload(self) -> impl Iterator<Item = &'a Piece> {
        let pieces = std::iter::once(&self.frame.rest).chain(self.burst.more(self.frame));
        pieces.filter(|piece| piece.len > 0)
    }

    /// Copies the frame's first bytes to private memory: as many as `out` holds or the frame has.
    /// Returns their number.
    pub(crate) fn copy_beginning(self, out: &mut [u8]) -> usize {
        self.reader().read(out)
    }

    /// Returns a reader at the frame's first byte.
    pub(crate) fn reader(self) -> Reader<'a> {
        let EgressFrame { burst, frame, .. } = self;
        let head = self.head();
        let snapshot = Piece { at: head.as_ptr().cast_mut(), len: head.len() as u32 };
        Reader { snapshot, rest: frame.rest, more: burst.more(frame), index: 0, offset: 0 }
    }

    /// Copies the frame to `to`, in one piece.
    ///
    /// # Safety
    /// `to` is valid for writes of [`EgressFrame::len`] bytes. The frame's pieces are valid for
    /// reads, and head and pieces add up to this length.
    #[inline(always)]
    pub(super) unsafe fn copy_to(self, to: *mut u8) {
        let EgressFrame { burst, frame, retagged } = self;
        if let Some(other) = retagged {
            // SAFETY: the caller's promise.
            return unsafe { copy_retagged(to, other, self) };
        }
        // SAFETY: the caller's promise.
        unsafe {
            copy_front(to, frame);
            if frame.more.1 != 0 {
                let copied = SNAPSHOT_LEN + frame.rest.len as usize;
                copy_pieces(to.add(copied), burst.more(frame));
            }
        }
    }
}

/// Writes bytes one after another into the pieces of receive buffers.
#[derive(Clone)]
pub(super) struct Writer<'a> {
    pieces: &'a [Piece],
    index: usize,
    offset: usize,
}

impl<'a> Writer<'a> {
    /// Makes a writer at the first byte of `pieces`.
    pub(super) fn new(pieces: &'a [Piece]) -> Writer<'a> {
        Writer { pieces, index: 0, offset: 0 }
    }

    /// Returns the place of the next bytes that can be written at once, at most `most`; `None` at
    /// the end.
    fn room(&self, most: usize) -> Option<(*mut u8, usize)> {
        let piece = self.pieces.get(self.index)?;
        Some((piece.at.wrapping_add(self.offset), most.min(piece.len as usize - self.offset)))
    }

    /// Passes over `len` bytes.
    pub(super) fn skip(&mut self, mut len: usize) {
        while len > 0 {
            let Some((_, n)) = self.room(len) else { return };
            self.passed(n);
            len -= n;
        }
    }

    fn passed(&mut self, n: usize) {
        self.offset += n;
        if self.pieces.get(self.index).is_some_and(|piece| self.offset == piece.len as usize) {
            self.index += 1;
            self.offset = 0;
        }
    }

    /// Appends `len` bytes from `from`. Bytes that do not fit are not written; the caller gathered
    /// enough room.
    pub(super) fn write(&mut self, mut from: *const u8, mut len: usize) {
        while len > 0 {
            let Some((to, n)) = self.room(len) else { return };
            // SAFETY: `n` is at most what is left of the piece, which was translated in this
            // guest's memory, and of `from`, which the caller vouches for: its own stack, a
            // snapshot, or a translated piece of the sender.
            unsafe { std::ptr::copy_nonoverlapping(from, to, n) };
            from = from.wrapping_add(n);
            len -= n;
            self.passed(n);
        }
    }

    /// Appends the next `len` bytes of a frame and returns their sum. The caller gathered enough
    /// room.
    pub(super) fn write_summed(&mut self, from: &mut Reader<'_>, mut len: usize) -> Sum {
        let mut sum = Sum::default();
        let mut odd = false;
        while len > 0 {
            let Some((at, readable)) = from.bytes(len) else { break };
            let Some((to, n)) = self.room(readable) else { break };
            // SAFETY: `n` is at most what is left of both pieces; the one was translated in this
            // guest's memory, the other in the sender's, or is private.
            let part = unsafe { copy_summed(to, at, n) };
            sum = sum.plus_at(part, odd);
            odd ^= !n.is_multiple_of(2);
            self.passed(n);
            from.passed(n);
            len -= n;
        }
        sum
    }

    /// Appends the next `len` bytes of a frame. The caller gathered enough room.
    pub(super) fn write_from(&mut self, from: &mut Reader<'_>, mut len: usize) {
        while len > 0 {
            let Some((at, n)) = from.bytes(len) else { return };
            self.write(at, n);
            from.passed(n);
            len -= n;
        }
    }
}

/// Reads the bytes of a frame one after another.
pub struct Reader<'a> {
    snapshot: Piece,
    rest: Piece,
    more: &'a [Piece],
    /// Index of the piece being read: 0 is the snapshot, 1 the rest, then `more`.
    index: usize,
    offset: usize,
}

impl Reader<'_> {
    /// Returns the next bytes that can be read at once, at most `most`; `None` at the end.
    fn bytes(&mut self, most: usize) -> Option<(*const u8, usize)> {
        loop {
            let piece = match self.index {
                0 => self.snapshot,
                1 => self.rest,
                n => *self.more.get(n - 2)?,
            };
            let left = piece.len as usize - self.offset;
            if left > 0 {
                return Some((piece.at.wrapping_add(self.offset), most.min(left)));
            }
            self.index += 1;
            self.offset = 0;
        }
    }

    fn passed(&mut self, n: usize) {
        self.offset += n;
    }

    /// Copies the next bytes into private memory and returns their number; fills all of `out`
    /// unless the frame is shorter.
    pub(crate) fn read(&mut self, out: &mut [u8]) -> usize {
        let mut filled = 0;
        while filled < out.len() {
            let Some((at, n)) = self.bytes(out.len() - filled) else { break };
            // SAFETY: `n` is at most what is left of a piece of the frame and of `out`.
            unsafe { std::ptr::copy_nonoverlapping(at, out[filled..].as_mut_ptr(), n) };
            filled += n;
            self.passed(n);
        }
        filled
    }

    /// Copies the next bytes into private memory and returns their sum. Summing during the copy
    /// costs less than a second pass.
    pub(crate) fn read_summed(&mut self, out: &mut [u8]) -> Sum {
        let room = [Piece { at: out.as_mut_ptr(), len: out.len() as u32 }];
        Writer::new(&room).write_summed(self, out.len())
    }
}

/// Copies `len` bytes and sums them in one pass. Each byte is read once, so the sum is that of the
/// written bytes even if the sender changes its memory meanwhile.
///
/// # Safety
/// `to` is valid for writes and `from` for reads of `len` bytes. The two must not overlap, or the
/// bytes and the sum are garbage.
pub(super) unsafe fn copy_summed(to: *mut u8, from: *const u8, len: usize) -> Sum {
    let whole = len / STEP * STEP;
    // SAFETY: the caller's promise; `whole` is at most `len`.
    let sum = unsafe { copy_steps(to, from, whole) };
    let mut tail = [0u8; STEP];
    let left = len - whole;
    // SAFETY: what is left is shorter than STEP; the caller's promise.
    unsafe {
        std::ptr::copy_nonoverlapping(from.add(whole), tail.as_mut_ptr(), left);
        std::ptr::copy_nonoverlapping(tail.as_ptr(), to.add(whole), left);
    }
    sum.plus(Sum::of(&tail[..left]))
}

/// Bytes that [`copy_steps`] moves per round.
const STEP: usize = 32;

/// Copies and sums whole steps. Written with vector intrinsics: the compiler keeps a plain loop
/// scalar, which takes 58 ns for 1,448 bytes instead of 34. No addition waits for a carry, as in
/// [`Sum::of`]: the sum of the lower halves is the sum of the words minus that of the upper halves,
/// which is exact below 32 GiB.
///
/// # Safety
/// The conditions of [`copy_summed`]; `len` is a multiple of STEP.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_steps(to: *mut u8, from: *const u8, len: usize) -> Sum {
    use std::arch::x86_64::{
        __m128i, _mm_add_epi64, _mm_loadu_si128, _mm_setzero_si128, _mm_srli_epi64,
        _mm_storeu_si128,
    };
    // SAFETY: SSE2 is part of x86-64. Loads and stores are unaligned ones inside `len` bytes, by
    // the caller's promise.
    unsafe {
        let (mut words, mut upper) = ([_mm_setzero_si128(); 2], [_mm_setzero_si128(); 2]);
        let mut at = 0;
        while at < len {
            for half in 0..2 {
                let data = _mm_loadu_si128(from.add(at + 16 * half).cast::<__m128i>());
                _mm_storeu_si128(to.add(at + 16 * half).cast::<__m128i>(), data);
                words[half] = _mm_add_epi64(words[half], data);
                upper[half] = _mm_add_epi64(upper[half], _mm_srli_epi64::<32>(data));
            }
            at += STEP;
        }
        let mut lanes = [0u64; 4];
        let all = lanes.as_mut_ptr().cast::<__m128i>();
        _mm_storeu_si128(all, _mm_add_epi64(words[0], words[1]));
        _mm_storeu_si128(all.add(1), _mm_add_epi64(upper[0], upper[1]));
        let (words, upper) = (lanes[0].wrapping_add(lanes[1]), lanes[2].wrapping_add(lanes[3]));
        Sum::from_raw(words.wrapping_sub(upper << 32)).plus(Sum::from_raw(upper))
    }
}

/// Copies and sums whole steps.
///
/// # Safety
/// The conditions of [`copy_summed`]; `len` is a multiple of STEP.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_steps(to: *mut u8, from: *const u8, len: usize) -> Sum {
    let mut sum = Sum::ZERO;
    for at in (0..len).step_by(STEP) {
        let mut step = [0u8; STEP];
        // SAFETY: the caller's promise; `at + STEP` is at most `len`.
        unsafe {
            std::ptr::copy_nonoverlapping(from.add(at), step.as_mut_ptr(), STEP);
            std::ptr::copy_nonoverlapping(step.as_ptr(), to.add(at), STEP);
        }
        sum = sum.plus(Sum::of(&step));
    }
    sum
}

/// Writes the header unless the buffer holds an equal header: drivers like DPDK keep the header in
/// the cache line before the payload and do not write it, so an equal header stays clean and
/// shared.
///
/// # Safety
/// `at` is valid for reads and writes of HEADER_LEN bytes.
#[inline(always)]
pub(super) unsafe fn store_header<const HEADER_LEN: usize>(
    at: *mut u8,
    header: &[u8; VNET_HDR_LEN],
) {
    const { assert!(HEADER_LEN == VNET_HDR_LEN || HEADER_LEN == VNET_HDR_LEN_LEGACY) };
    if HEADER_LEN == VNET_HDR_LEN {
        let mut there = [0u8; VNET_HDR_LEN];
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(at, there.as_mut_ptr(), VNET_HDR_LEN) };
        if there == *header {
            return;
        }
    }
    // SAFETY: the caller's promise; HEADER_LEN is at most the header's length.
    unsafe { std::ptr::copy_nonoverlapping(header.as_ptr(), at, HEADER_LEN) };
}

/// Copies pieces to `to`, one behind the other.
///
/// # Safety
/// `to` is valid for writes of as many bytes as the pieces have; the pieces are valid for reads.
#[inline(never)]
unsafe fn copy_pieces(mut to: *mut u8, pieces: &[Piece]) {
    for piece in pieces {
        // SAFETY: the caller's promise.
        unsafe {
            std::ptr::copy_nonoverlapping(piece.at, to, piece.len as usize);
            to = to.add(piece.len as usize);
        }
    }
}

/// Copies a frame with a new head to `to`.
///
/// # Safety
/// The conditions of [`EgressFrame::copy_to`].
#[inline(always)]
unsafe fn copy_retagged(to: *mut u8, other: &Retagged, frame: EgressFrame<'_>) {
    let EgressFrame { burst, frame, .. } = frame;
    let (from, len) = (other.head().as_ptr(), other.head().len());
    // SAFETY: the caller's promise; head and pieces add up to the frame's length. Every branch
    // writes bytes 0..len of the head only; see `copy_front` for the overlapping moves.
    unsafe {
        if len >= 32 {
            std::ptr::copy_nonoverlapping(from, to, 32);
            if len >= 64 {
                std::ptr::copy_nonoverlapping(from.add(32), to.add(32), 32);
            }
            std::ptr::copy_nonoverlapping(from.add(len - 32), to.add(len - 32), 32);
        } else {
            std::ptr::copy_nonoverlapping(from, to, len);
        }
        let rest = frame.rest.len as usize;
        if rest > 0 {
            std::ptr::copy_nonoverlapping(frame.rest.at, to.add(len), rest);
        }
        if frame.more.1 != 0 {
            copy_pieces(to.add(len + rest), burst.more(frame));
        }
    }
}

/// Copies a frame's snapshot and the first piece behind it to `to`.
///
/// # Safety
/// `to` is valid for writes of `frame.len` bytes, and the frame's rest for reads.
#[inline(always)]
unsafe fn copy_front(to: *mut u8, frame: &Frame) {
    let from = frame.snapshot.as_ptr();
    let len = frame.len as usize;
    // SAFETY: the snapshot holds the first min(len, 64) bytes, `rest` the others; every branch
    // writes bytes 0..len only. Sizes below 64 are two overlapping moves of a fixed size, where a
    // variable copy would be a call.
    unsafe {
        if len >= SNAPSHOT_LEN {
            std::ptr::copy_nonoverlapping(from, to, SNAPSHOT_LEN);
            let rest = frame.rest.len as usize;
            if rest > 0 {
                std::ptr::copy_nonoverlapping(frame.rest.at, to.add(SNAPSHOT_LEN), rest);
            }
        } else if len >= 32 {
            std::ptr::copy_nonoverlapping(from, to, 32);
            std::ptr::copy_nonoverlapping(from.add(len - 32), to.add(len - 32), 32);
        } else if len >= 16 {
            std::ptr::copy_nonoverlapping(from, to, 16);
            std::ptr::copy_nonoverlapping(from.add(len - 16), to.add(len - 16), 16);
        } else {
            std::ptr::copy_nonoverlapping(from, to, len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_copied_is_summed_at_every_length_and_place() {
        let source: Vec<u8> =
            (0..3000u32).map(|i| (i.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect();
        let ones = vec![0xffu8; 3000];
        for bytes in [&source, &ones] {
            for len in (0..200).chain([1447, 1448, 1449, 2048]) {
                for (from, to) in [(0, 0), (1, 0), (7, 3), (16, 5)] {
                    let mut copy = vec![0u8; to + len + 1];
                    // SAFETY: both slices have more than `len` bytes.
                    let sum = unsafe {
                        copy_summed(copy[to..].as_mut_ptr(), bytes[from..].as_ptr(), len)
                    };
                    let expected = &bytes[from..from + len];
                    assert_eq!(sum.fold(), Sum::of(expected).fold(), "{len} from {from}");
                    assert!(copy[to..to + len] == *expected && copy[to + len] == 0);
                    assert!(copy[..to].iter().all(|&byte| byte == 0));
                }
            }
        }
    }
}
