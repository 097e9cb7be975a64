//! Buffers of a receive ring gathered for one frame, and touching memory before it is written.

use super::chain::{Piece, PieceBuf};
use crate::limits::{
    FEW_PIECES, FRAME_DESCRIPTORS, MAX_CHAIN_DESCRIPTORS, MAX_MERGED_BUFFERS, MAX_RUN_DESCRIPTORS,
    TOUCH_NANOS, TOUCH_PIECES,
};
use crate::sys::clock;
use crate::sys::usage::Usage;

/// Buffers gathered for one frame by the general path.
#[derive(Debug)]
pub(super) struct Gathered {
    pub(super) pieces: PieceBuf,
    /// Head and capacity of each.
    pub(super) buffers: Box<[(u16, u64)]>,
    /// Descriptors that may be walked for the run: one whole chain, and [`FRAME_DESCRIPTORS`] for
    /// each frame and segment. What a receiver posts, its sender's worker walks.
    pub(super) most_visited: u32,
    /// Buffers of the run are touched before they are written to.
    closely: bool,
    pub(super) touched: Touched,
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

    /// Lets the buffers of this run be touched before they are written to, or not at first.
    pub(super) fn look_closely(&mut self, closely: bool) {
        (self.closely, self.since) = (closely, 0);
        (self.touched.began, self.touched.spent) = (None, 0);
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
pub(super) struct Touched {
    /// [`TOUCH_NANOS`] in cycles, asked once: each frame in several pieces is compared with it.
    most: u64,
    /// When the first was touched, and what the thread had used by then.
    began: Option<(u64, Usage)>,
    /// Cycles that touching took since, as far as is known without asking the kernel.
    spent: u64,
}

impl Default for Touched {
    fn default() -> Touched {
        Touched { most: clock::cycles_for_work(TOUCH_NANOS), began: None, spent: 0 }
    }
}

impl Touched {
    /// Reads the first and last byte of each piece, so that pages that are not there come now. The
    /// cycles that took since the run began, as far as page faults explain them, if it is not worth
    /// going on.
    ///
    /// # Safety
    /// The pieces are not empty, and mapped.
    #[cold]
    pub(super) unsafe fn touch(&mut self, pieces: impl Iterator<Item = Piece>) -> Result<(), u64> {
        let (began, before) = *self.began.get_or_insert_with(|| (clock::cycles(), Usage::now()));
        let mut last = clock::cycles();
        for (i, Piece { at, len }) in pieces.enumerate() {
            // SAFETY: the caller's promise.
            unsafe {
                at.read_volatile();
                at.add(len as usize - 1).read_volatile();
            }
            if i % TOUCH_PIECES != 0 {
                continue;
            }
            let now = clock::cycles();
            self.spent += clock::since(std::mem::replace(&mut last, now), now);
            if self.spent > self.most {
                let passed = clock::time_of(clock::since(began, now)).as_nanos() as u64;
                let waited = Usage::now().since(&before).waited_for_memory(passed);
                self.spent = self.spent.min(clock::cycles_in(waited));
            }
            if self.spent > self.most {
                return Err(self.spent);
            }
        }
        Ok(())
    }
}
