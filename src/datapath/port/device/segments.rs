//! Frames that a device takes as segments: made one by one, and written, or added to a batch.

use std::ops::Range;

use super::together::Entries;
use super::writer::{FrameWriter, Outlet, Sending};
use crate::ring::EgressFrame;
use base::frame::checksum::Sum;
use base::frame::segment::Segmenter;
use base::frame::{Offloads, VNET_HDR_LEN, VnetHdr};
use base::stats::Fallbacks;
use sys::frame_io::FrameBatch;

impl FrameWriter {
    /// Copies a frame that is cut into segments; none if it cannot be.
    pub(super) fn begin_segments(&mut self, frame: EgressFrame<'_>) -> Option<Segmenter> {
        let request = frame.request();
        let len = self.copy(frame);
        let bytes = &self.linear[VNET_HDR_LEN..len];
        let headers = &bytes[..request.headers_len().min(bytes.len())];
        Segmenter::new(&request, headers, frame.len())
    }

    /// Writes header and headers of a segment to `front`; their length, and where in `linear` its
    /// payload is.
    pub(super) fn make_segment(
        &mut self,
        segmenter: &mut Segmenter,
        index: u32,
        takes: Offloads,
    ) -> Option<(usize, Range<usize>)> {
        let (offset, len) = segmenter.payload(index);
        let start = VNET_HDR_LEN + offset as usize;
        let place = start..start + len as usize;
        let payload = self.linear.get(place.clone())?;
        let (header, headers) = if takes.has(Offloads::CSUM) {
            (segmenter.partial_header(), segmenter.partial(index))
        } else {
            (VnetHdr::plain(0), segmenter.complete(index, Sum::of(payload)))
        };
        let header = VnetHdr { num_buffers: [0; 2], ..header };
        let front = VNET_HDR_LEN + headers.len();
        self.front[..VNET_HDR_LEN].copy_from_slice(&header.to_bytes());
        self.front[VNET_HDR_LEN..front].copy_from_slice(headers);
        Some((front, place))
    }
}

/// Counts a frame of which `made` segments were written, and how many were not.
pub(super) fn count_segments(fallbacks: &Fallbacks, segmenter: &Segmenter, made: u32) {
    let lost = segmenter.segments() - made + segmenter.surplus();
    fallbacks.segmented.add_shared(1);
    fallbacks.segments.add_shared(made.into());
    fallbacks.segments_lost.add_shared(lost.into());
}

impl Sending<'_> {
    /// Adds the `at`-th frame to a batch as segments, if it has to be cut into some and they fit.
    /// It counts as written with the first of them; false if there is none.
    pub(super) fn cut(
        &mut self,
        at: usize,
        batch: &mut dyn FrameBatch,
        entries: &mut Entries,
        outlet: &mut Outlet,
    ) -> bool {
        let run = self.run;
        let asking = run.frames().get(at).filter(|_| run.burst.needs_offloads());
        let Some(frame) = asking.map(|index| run.burst.egress(*index)) else { return false };
        if !frame.request().is_gso() || run.takes.has(frame.needs()) {
            return false;
        }
        let Some(mut segmenter) = outlet.writer.begin_segments(frame) else { return false };
        let (all, mut made) = (segmenter.segments(), 0);
        while made < all && self.end.is_none() {
            let segment = outlet.writer.make_segment(&mut segmenter, made, run.takes);
            let Some((front, payload)) = segment else { break };
            if batch.room().is_none() {
                self.flush(batch, entries, outlet);
            }
            let len = front + payload.len();
            let Some(room) = batch.room().and_then(|room| room.get_mut(..len)) else { break };
            room[..front].copy_from_slice(&outlet.writer.front[..front]);
            room[front..].copy_from_slice(&outlet.writer.linear[payload]);
            batch.add(len);
            entries.add(u8::from(made == 0));
            made += 1;
        }
        if made > 0 {
            count_segments(run.fallbacks, &segmenter, made);
        }
        made > 0
    }
}
