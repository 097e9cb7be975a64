//! Walks one descriptor chain into a list of memory pieces, in one pass and without allocation.
//!
//! Every descriptor is read once. The length of a chain is bounded: by the size of the ring (the
//! specification's bound, which also ends loops) and, in an indirect table, by
//! [`MAX_CHAIN_DESCRIPTORS`]. Linux may put more descriptors into an indirect table than the ring
//! has, so the ring's size does not bound indirect tables.
//!
//! `Gathered` holds the chains that a driver posted to receive one frame.

use virtio_queue::desc::split::Descriptor;

use super::split::{SplitRing, load_descriptor_words};
use base::limits::{
    FEW_PIECES, FRAME_DESCRIPTORS, MAX_CHAIN_DESCRIPTORS, MAX_MERGED_BUFFERS, MAX_RUN_DESCRIPTORS,
    TOUCH_NANOS, TOUCH_PIECE_NANOS,
};
use base::stats::DropReason;
use sys::clock;

/// Why a chain cannot serve as a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChainError {
    /// A descriptor or indirect table points outside the guest's memory.
    Address,
    /// A loop, too many descriptors, or a malformed indirect table.
    Shape,
    /// A descriptor has the wrong direction.
    Direction,
    /// The caller's piece buffer is full; the chain may be fine.
    NoRoom,
}

impl ChainError {
    /// Returns the drop counter of this error.
    pub(crate) fn reason(self) -> DropReason {
        match self {
            ChainError::Address => DropReason::BadAddress,
            ChainError::Shape | ChainError::NoRoom => DropReason::BadChain,
            ChainError::Direction => DropReason::BadDirection,
        }
    }
}

/// Contiguous bytes of guest memory.
#[derive(Debug, Clone, Copy)]
pub struct Piece {
    /// First byte; valid while the memory table that translated the address is held.
    pub at: *mut u8,
    /// Bytes.
    pub len: u32,
}

impl Piece {
    /// A piece without bytes.
    pub(crate) const EMPTY: Piece = Piece { at: std::ptr::null_mut(), len: 0 };

    /// Drops the first `n` bytes, at most all of them.
    #[inline(always)]
    pub(crate) fn skip(&mut self, n: u32) {
        let n = n.min(self.len);
        self.at = self.at.wrapping_add(n as usize);
        self.len -= n;
    }
}

/// A fixed-capacity list of pieces, allocated once per worker.
#[derive(Debug)]
pub(crate) struct PieceBuf {
    pieces: Box<[Piece]>,
    len: usize,
    /// Descriptors read so far, empty ones included, plus one for each further region that a
    /// descriptor reaches into: the work of walking chains.
    pub(super) visited: u32,
    /// Descriptors of the ring's own table that were reached by another descriptor's `next`.
    pub(super) linked: u32,
}

// SAFETY: a `PieceBuf` only stores addresses; code that dereferences an address follows the lock
// and table rules of `ring`.
unsafe impl Send for PieceBuf {}

impl PieceBuf {
    /// Makes room for `capacity` pieces.
    pub(crate) fn new(capacity: usize) -> PieceBuf {
        PieceBuf {
            pieces: vec![Piece::EMPTY; capacity].into_boxed_slice(),
            len: 0,
            visited: 0,
            linked: 0,
        }
    }

    /// Returns the number of pieces in the list.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Forgets all pieces from index `len` on.
    #[inline(always)]
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Returns the pieces.
    #[inline(always)]
    pub(crate) fn as_slice(&self) -> &[Piece] {
        &self.pieces[..self.len]
    }

    /// Returns the pieces, to change them.
    #[inline(always)]
    pub(crate) fn as_mut_slice(&mut self) -> &mut [Piece] {
        &mut self.pieces[..self.len]
    }

    /// Adds a piece; fails with [`ChainError::NoRoom`] if the list is full.
    #[inline(always)]
    pub(crate) fn push(&mut self, piece: Piece) -> Result<(), ChainError> {
        let slot = self.pieces.get_mut(self.len).ok_or(ChainError::NoRoom)?;
        *slot = piece;
        self.len += 1;
        Ok(())
    }
}

#[cfg(test)]
impl PieceBuf {
    /// Writes `piece` to every unused place.
    pub(super) fn poison(&mut self, piece: Piece) {
        let len = self.len;
        self.pieces[len..].fill(piece);
    }
}

/// Which side may access a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The device reads: a transmit queue.
    Readable,
    /// The device writes: a receive queue.
    Writable,
}

impl SplitRing {
    /// Appends the pieces of a chain to `out` and returns the chain's bytes. `first` is the
    /// descriptor at the chain's head. On an error `out` may hold pieces of the chain.
    pub(super) fn walk(
        &mut self,
        first: Descriptor,
        access: Access,
        out: &mut PieceBuf,
    ) -> Result<u64, ChainError> {
        let limit = usize::from(self.size()).min(MAX_CHAIN_DESCRIPTORS);
        let mut total = 0u64;
        let mut desc = first;
        for _ in 0..limit {
            if desc.refers_to_indirect_table() {
                // Section 2.7.5.3.1: a table must not be followed by another descriptor.
                if desc.has_next() {
                    return Err(ChainError::Shape);
                }
                return Ok(total + self.walk_indirect(desc, access, out)?);
            }
            total += self.add(desc, access, out)?;
            if !desc.has_next() {
                return Ok(total);
            }
            if desc.next() >= self.size() {
                return Err(ChainError::Shape);
            }
            out.linked = out.linked.wrapping_add(1);
            desc = self.load_descriptor(desc.next());
        }
        Err(ChainError::Shape)
    }

    fn walk_indirect(
        &mut self,
        table: Descriptor,
        access: Access,
        out: &mut PieceBuf,
    ) -> Result<u64, ChainError> {
        let count = table.len() / 16;
        if count == 0 || !table.len().is_multiple_of(16) {
            return Err(ChainError::Shape);
        }
        let base =
            self.memory.contiguous(table.addr().0, table.len()).ok_or(ChainError::Address)?;
        let mut total = 0u64;
        let mut index = 0u32;
        for _ in 0..(count as usize).min(MAX_CHAIN_DESCRIPTORS) {
            let desc = load_indirect(base.wrapping_add(16 * index as usize));
            if desc.refers_to_indirect_table() {
                return Err(ChainError::Shape);
            }
            total += self.add(desc, access, out)?;
            if !desc.has_next() {
                return Ok(total);
            }
            index = u32::from(desc.next());
            if index >= count {
                return Err(ChainError::Shape);
            }
        }
        Err(ChainError::Shape)
    }

    /// Adds one buffer descriptor to `out`: one piece for each region that the buffer spans.
    #[inline]
    fn add(
        &mut self,
        desc: Descriptor,
        access: Access,
        out: &mut PieceBuf,
    ) -> Result<u64, ChainError> {
        out.visited = out.visited.wrapping_add(1);
        if desc.is_write_only() != (access == Access::Writable) {
            return Err(ChainError::Direction);
        }
        let mut gpa = desc.addr().0;
        let mut left = desc.len();
        while left > 0 {
            let (at, room) = self.memory.run_at(gpa).ok_or(ChainError::Address)?;
            let len = u64::from(left).min(room) as u32;
            out.push(Piece { at, len })?;
            left -= len;
            gpa = gpa.checked_add(u64::from(len)).ok_or(ChainError::Address)?;
            // A front-end may split memory into hundreds of regions, and each costs a search.
            out.visited = out.visited.wrapping_add(u32::from(left > 0));
        }
        Ok(u64::from(desc.len()))
    }
}

/// Reads one entry of an indirect table. The specification demands no alignment of tables. An
/// unaligned entry is read byte by byte, which is slow; no known driver needs this.
pub(super) fn load_indirect(at: *const u8) -> Descriptor {
    if (at as usize).is_multiple_of(8) {
        // SAFETY: the caller resolved the whole table in one region and bounded the index; the
        // pointer is 8-aligned by the check above.
        return unsafe { load_descriptor_words(at) };
    }
    let mut bytes = [0u8; 16];
    for (i, byte) in bytes.iter_mut().enumerate() {
        // SAFETY: as above, without an alignment requirement.
        *byte = unsafe { at.add(i).read_volatile() };
    }
    let [a0, a1, a2, a3, a4, a5, a6, a7, l0, l1, l2, l3, f0, f1, n0, n1] = bytes;
    Descriptor::new(
        u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
        u32::from_le_bytes([l0, l1, l2, l3]),
        u16::from_le_bytes([f0, f1]),
        u16::from_le_bytes([n0, n1]),
    )
}

/// Buffers that the general path gathered for one frame.
#[derive(Debug)]
pub(super) struct Gathered {
    pub(super) pieces: PieceBuf,
    /// Head and capacity in bytes of each buffer.
    pub(super) buffers: Box<[(u16, u64)]>,
    /// Most descriptors that the run may walk: one whole chain, and [`FRAME_DESCRIPTORS`] for each
    /// frame and segment. A bound is needed because the sender's worker walks the chains that a
    /// receiver posts.
    pub(super) most_visited: u32,
    /// The run was slow, so further buffers of the run are touched before they are written to.
    touches_first: bool,
    touched: Touched,
    /// Cycle at which the run's first frame of the general path was written; 0 before.
    since: u64,
}

impl Default for Gathered {
    fn default() -> Gathered {
        Gathered {
            pieces: PieceBuf::new(2 * MAX_CHAIN_DESCRIPTORS),
            buffers: vec![(0, 0); MAX_MERGED_BUFFERS].into_boxed_slice(),
            most_visited: 0,
            touches_first: false,
            touched: Touched::default(),
            since: 0,
        }
    }
}

impl Gathered {
    /// Starts a run of `frames` frames.
    pub(super) fn start(&mut self, frames: usize) {
        self.pieces.visited = 0;
        self.most_visited = MAX_CHAIN_DESCRIPTORS as u32;
        (self.touches_first, self.since, self.touched.spent) = (false, 0, 0);
        self.allow(FRAME_DESCRIPTORS * frames as u32);
    }

    /// Permits `more` further descriptors, up to [`MAX_RUN_DESCRIPTORS`].
    pub(super) fn allow(&mut self, more: u32) {
        self.most_visited = self.most_visited.saturating_add(more).min(MAX_RUN_DESCRIPTORS);
    }

    /// True if the run has walked all descriptors that it may.
    pub(super) fn is_spent(&self) -> bool {
        self.pieces.visited >= self.most_visited
    }

    /// Ends a frame of the general path. If the run's frames of the general path have taken longer
    /// than [`TOUCH_NANOS`], the buffers of the run's further frames are touched before they are
    /// written to.
    pub(super) fn end_frame(&mut self) {
        let now = clock::cycles();
        if self.since == 0 {
            self.since = now;
        }
        self.touches_first |= clock::since(self.since, now) > self.touched.most;
    }

    /// Touches the memory that `need` bytes are to be written to, if the run was slow so far or the
    /// memory lies in more pieces than honest drivers post: each piece may lie on a page that is
    /// not present. Returns the cycles spent as an error if touching took too long.
    pub(super) fn touch(&mut self, need: u64) -> Result<(), u64> {
        if !self.touches_first && self.pieces.as_slice().len() <= FEW_PIECES {
            return Ok(());
        }
        let mut left = need;
        let pieces = self.pieces.as_slice().iter().map_while(|piece| {
            let len = left.min(u64::from(piece.len)) as u32;
            left -= u64::from(len);
            (len > 0).then_some(Piece { at: piece.at, len })
        });
        // SAFETY: the pieces were translated in the memory that the ring keeps mapped.
        unsafe { self.touched.touch(pieces) }
    }
}

/// Time that touching the buffers of a run took, and its bounds.
#[derive(Debug)]
struct Touched {
    /// [`TOUCH_NANOS`] and [`TOUCH_PIECE_NANOS`] in cycles, computed once.
    most: u64,
    most_of_piece: u64,
    /// Cycles that touching took since the run began; one piece counts `most_of_piece` at most.
    spent: u64,
}

impl Default for Touched {
    fn default() -> Touched {
        Touched {
            most: clock::cycles_for_work(TOUCH_NANOS),
            most_of_piece: clock::cycles_for_work(TOUCH_PIECE_NANOS),
            spent: 0,
        }
    }
}

impl Touched {
    /// Reads the first and last byte of each piece, so that the kernel provides missing pages now.
    /// Returns the cycles spent since the run began as an error if they exceed `most`.
    ///
    /// # Safety
    /// The pieces are not empty, and mapped.
    #[cold]
    unsafe fn touch(&mut self, pieces: impl Iterator<Item = Piece>) -> Result<(), u64> {
        let mut last = clock::cycles();
        for Piece { at, len } in pieces {
            // SAFETY: the caller's promise.
            unsafe {
                at.read_volatile();
                at.add(len as usize - 1).read_volatile();
            }
            let now = clock::cycles();
            let took = clock::since(std::mem::replace(&mut last, now), now);
            self.spent += took.min(self.most_of_piece);
            if self.spent > self.most {
                return Err(self.spent);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Touches `count` pieces; piece n takes `takes(n)` cycles at least.
    fn touch(count: u64, takes: impl Fn(u64) -> u64) -> Result<(), u64> {
        let mut byte = 0u8;
        let piece = Piece { at: &raw mut byte, len: 1 };
        let pieces = (0..count).map(|place| {
            let start = clock::cycles();
            while clock::since(start, clock::cycles()) < takes(place) {}
            piece
        });
        // SAFETY: each piece is `byte`.
        unsafe { Touched::default().touch(pieces) }
    }

    /// A thread that lacks a CPU, or waits for a hole that is being punched, waits at one piece
    /// only.
    #[test]
    fn many_slow_pieces_are_slow_memory_and_one_is_not() {
        let Touched { most, most_of_piece, .. } = Touched::default();
        assert!(touch(most.div_ceil(most_of_piece) + 1, |_| most_of_piece).is_err());
        let once = |place| if place == 50 { 20 * most_of_piece } else { 0 };
        assert!((0..20).any(|_| touch(1_000, once).is_ok()));
    }
}
