//! Frames that outlive their burst.

use super::{Burst, Frame, NO_FRAME, gather_one};
use crate::ring::chain::Piece;
use base::frame::ethernet::Snapshot;
use base::frame::{Offloads, VnetHdr};
use base::limits::BURST_FRAMES;

/// Private copies of some frames of a burst, with all that is known of the frames.
#[derive(Debug)]
pub struct KeptFrames {
    frames: Box<[Kept]>,
    /// The bytes behind the snapshots, frame after frame.
    bytes: Box<[u8]>,
    asks: u16,
}

#[derive(Debug)]
struct Kept {
    snapshot: Snapshot,
    header: VnetHdr,
    len: u32,
    /// Number of bytes in [`KeptFrames::bytes`] that belong to the frame.
    behind: usize,
    l3: u8,
    needs: Offloads,
}

impl Burst {
    /// Copies the listed frames.
    #[cold]
    pub(crate) fn keep(&self, frames: &[u8]) -> KeptFrames {
        let listed = || frames.iter().map(|&index| &self.frames()[usize::from(index)]);
        let pieces = |frame: &Frame| {
            let more = self.more(frame).iter().copied();
            std::iter::once(frame.rest).chain(more).collect::<Vec<Piece>>()
        };
        let len = |frame| pieces(frame).iter().map(|piece| piece.len as usize).sum::<usize>();
        let mut bytes = vec![0; listed().map(len).sum()].into_boxed_slice();
        let mut filled = 0;
        let keep = |frame: &Frame| {
            let start = filled;
            for mut piece in pieces(frame) {
                filled += gather_one(&mut piece, &mut bytes[filled..]);
            }
            let Frame { snapshot, header, len, l3, needs, .. } = *frame;
            Kept { snapshot, header, len, behind: filled - start, l3, needs }
        };
        KeptFrames { frames: listed().map(keep).collect(), bytes, asks: self.asks }
    }

    /// Fills the burst with kept frames, as if the burst had just been taken and examined. The
    /// burst refers to the memory of `kept` until the burst is cleared.
    #[cold]
    pub(crate) fn restore(&mut self, kept: &mut KeptFrames) {
        self.clear();
        // All frames are in private memory already.
        self.private.staged = u64::MAX;
        self.asks = kept.asks;
        let mut at = kept.bytes.as_mut_ptr();
        for (place, frame) in kept.frames.iter().take(BURST_FRAMES).enumerate() {
            let Kept { snapshot, header, len, behind, l3, needs } = *frame;
            let rest = Piece { at, len: behind as u32 };
            let position = place as u8;
            self.frames[place] =
                Frame { snapshot, header, len, rest, position, l3, needs, ..NO_FRAME };
            (self.count, self.taken) = (place + 1, place + 1);
            at = at.wrapping_add(behind);
        }
    }
}
