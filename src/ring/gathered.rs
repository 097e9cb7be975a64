//! Buffers of a receive ring gathered for one frame, and touching memory before it is written.

use super::chain::{Piece, PieceBuf};
use crate::limits::{
    FEW_PIECES, FRAME_DESCRIPTORS, MAX_CHAIN_DESCRIPTORS, MAX_MERGED_BUFFERS, MAX_RUN_DESCRIPTORS,
    TOUCH_NANOS, TOUCH_PIECE_NANOS,
};
use crate::sys::clock;

/// Buffers gathered for one frame by the general path.
#[derive(Debug)]
pub(super) struct Gathered {
    pub(super) pieces: PieceBuf,
    /// Head and capacity of each.
    pub(super) buffers: Box<[(u16, u64)]>,
    /// Descriptors that may be walked for the run: one whole chain, and [`FRAME_DESCRIPTORS`] for
    /// each frame and segment. What a receiver posts, its sender's worker walks.
    pub(super) most_visited: u32,
    /// Buffers of the run are touched before they are written to, as some were slow.
    closely: bool,
    touched: Touched,
    /// When the first frame of the run that lay in several pieces was written; 0 before.
    since: u64,
}

impl Default for Gathered {
    fn default() -> Gathered {
        Gathered {
            pieces: PieceBuf::new(2 * MAX_CHAIN_DESCRIPTORS),
            buffers: vec![(0, 0); MAX_MERGED_BUFFERS].into_boxed_slice(),
            most_visited: 0,
            closely: false,
            touched: Touched::default(),
            since: 0,
        }
    }
}

impl Gathered {
    /// Starts a run of so many frames.
    pub(super) fn start(&mut self, frames: usize) {
        self.pieces.visited = 0;
        self.most_visited = MAX_CHAIN_DESCRIPTORS as u32;
        (self.closely, self.since, self.touched.spent) = (false, 0, 0);
        self.allow(FRAME_DESCRIPTORS * frames as u32);
    }

    /// Lets `more` descriptors be walked.
    pub(super) fn allow(&mut self, more: u32) {
        self.most_visited = self.most_visited.saturating_add(more).min(MAX_RUN_DESCRIPTORS);
    }

    /// True if the run has cost what it may.
    pub(super) fn is_spent(&self) -> bool {
        self.pieces.visited >= self.most_visited
    }

    /// Ends a frame that lay in several pieces: what was slow so far makes the rest of the run be
    /// looked at closely.
    pub(super) fn end_frame(&mut self) {
        let now = clock::cycles();
        if self.since == 0 {
            self.since = now;
        }
        self.closely |= clock::since(self.since, now) > self.touched.most;
    }

    /// Touches the memory that `need` bytes are to be written to, if the run is looked at closely
    /// or that memory is in more pieces than honest drivers post: each may lie on a page that is
    /// not there. The cycles that took, if it is not worth going on.
    pub(super) fn touch(&mut self, need: u64) -> Result<(), u64> {
        if !self.closely && self.pieces.as_slice().len() <= FEW_PIECES {
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

/// How long the buffers of a run took to come.
#[derive(Debug)]
struct Touched {
    /// [`TOUCH_NANOS`] and [`TOUCH_PIECE_NANOS`] in cycles, computed once.
    most: u64,
    most_of_piece: u64,
    /// Cycles that touching took since the run began.
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
    /// Reads the first and last byte of each piece, so that pages that are not there come now. The
    /// cycles that took since the run began, if it is not worth going on.
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

    /// Touches so many pieces, each of which takes so many cycles at least.
    fn touch(count: u64, takes: impl Fn(u64) -> u64) -> Result<(), u64> {
        let mut byte = 0u8;
        let piece = Piece { at: &raw mut byte, len: 1 };
        let pieces = (0..count).map(|place| {
            let start = clock::cycles();
            while clock::since(start, clock::cycles()) < takes(place) {}
            piece
        });
        // SAFETY: each piece is that byte.
        unsafe { Touched::default().touch(pieces) }
    }

    /// A thread that stands without a CPU, or waits for a hole that is being punched, does so once.
    #[test]
    fn many_slow_pieces_are_slow_memory_and_one_is_not() {
        let Touched { most, most_of_piece, .. } = Touched::default();
        assert!(touch(most.div_ceil(most_of_piece) + 1, |_| most_of_piece).is_err());
        let once = |place| if place == 50 { 20 * most_of_piece } else { 0 };
        assert!((0..20).any(|_| touch(1_000, once).is_ok()));
    }
}
