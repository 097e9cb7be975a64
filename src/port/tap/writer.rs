//! Frames to a TAP: as they lie in guest memory, or completed for a kernel that lacks an offload.

use crate::frame::checksum::Sum;
use crate::frame::offload::{NEEDS_CSUM, Request};
use crate::frame::segment::Segmenter;
use crate::frame::{Offloads, VNET_HDR_LEN, VnetHdr};
use crate::limits::{
    MAX_FRAME_LEN, MAX_HEADERS_LEN, SNAPSHOT_LEN, TAP_COPY_BYTES, TAP_GATHER_PIECES,
};
use crate::ring::{Burst, Frame, Piece};
use crate::stats::Fallbacks;
use crate::sys::tap::{FrameIo, TapIo};

/// A worker's room for writing to TAPs.
#[derive(Debug)]
pub struct TapWriter {
    pieces: Vec<libc::iovec>,
    /// A header that asks for nothing, except within a call, then as much of a frame as is copied.
    linear: Box<[u8]>,
    /// Header and headers of a segment.
    front: [u8; VNET_HDR_LEN + MAX_HEADERS_LEN],
}

// SAFETY: the pointers in `pieces` are only used within one call of `write`.
unsafe impl Send for TapWriter {}

/// Header and snapshot: what is sent from private memory of every frame.
const PRIVATE: usize = VNET_HDR_LEN + SNAPSHOT_LEN;

impl Default for TapWriter {
    fn default() -> TapWriter {
        let mut linear = vec![0; VNET_HDR_LEN + MAX_FRAME_LEN as usize].into_boxed_slice();
        linear[..VNET_HDR_LEN].copy_from_slice(&VnetHdr::plain(0).to_bytes());
        let front = [0; VNET_HDR_LEN + MAX_HEADERS_LEN];
        TapWriter { pieces: Vec::with_capacity(TAP_GATHER_PIECES + 2), linear, front }
    }
}

impl TapWriter {
    /// Writes one frame: header and snapshot from private memory, the rest from where it lies if
    /// it is long.
    #[inline]
    pub fn write(&mut self, device: &dyn FrameIo, burst: &Burst, frame: &Frame) -> TapIo {
        let more = burst.more(frame);
        // All of the snapshot, as a constant length is two moves; what is too much is overwritten
        // or not sent.
        self.linear[VNET_HDR_LEN..PRIVATE].copy_from_slice(&frame.snapshot);
        if frame.len as usize <= TAP_COPY_BYTES || more.len() > TAP_GATHER_PIECES {
            let len = self.linearize(frame, more);
            return device.write(&self.linear[..len]);
        }
        self.pieces.clear();
        self.add(self.linear.as_ptr(), PRIVATE);
        for piece in std::iter::once(&frame.rest).chain(more).filter(|piece| piece.len > 0) {
            self.add(piece.at, piece.len as usize);
        }
        // SAFETY: `linear` is private and lives across the call; the other pieces were translated
        // in the sender's memory, which the lock on its ring holds.
        unsafe { device.write_pieces(&self.pieces) }
    }

    /// Writes a frame of a burst that asks for offloads; `takes` is what the kernel has of them.
    pub fn write_asking(
        &mut self,
        device: &dyn FrameIo,
        burst: &Burst,
        frame: &Frame,
        takes: Offloads,
        fallbacks: &Fallbacks,
    ) -> TapIo {
        let request = frame.request();
        if takes.has(frame.needs) {
            let header = VnetHdr { num_buffers: [0; 2], ..frame.header };
            self.linear[..VNET_HDR_LEN].copy_from_slice(&header.to_bytes());
            let result = self.write(device, burst, frame);
            self.linear[..VNET_HDR_LEN].copy_from_slice(&VnetHdr::plain(0).to_bytes());
            return result;
        }
        if request.is_gso() {
            return self.write_segments(device, burst, frame, takes, fallbacks);
        }
        let len = self.copy(frame, burst);
        if request.header.flags & NEEDS_CSUM != 0 {
            self.finish_checksum(&request, len);
            fallbacks.checksummed.add_shared(1);
        }
        device.write(&self.linear[..len])
    }

    /// Copies all of a frame behind the header; returns the length with it.
    fn copy(&mut self, frame: &Frame, burst: &Burst) -> usize {
        self.linear[VNET_HDR_LEN..PRIVATE].copy_from_slice(&frame.snapshot);
        self.linearize(frame, burst.more(frame))
    }

    fn finish_checksum(&mut self, request: &Request, len: usize) {
        let (start, at) = (VNET_HDR_LEN + request.csum_start(), VNET_HDR_LEN + request.csum_at());
        let sum = self.linear.get(start..len).map(Sum::of).unwrap_or_default();
        if let Some(field) = self.linear.get_mut(at..at + 2) {
            field.copy_from_slice(&sum.checksum());
        }
    }

    /// Writes a frame as segments. It counts as written with the first of them.
    fn write_segments(
        &mut self,
        device: &dyn FrameIo,
        burst: &Burst,
        frame: &Frame,
        takes: Offloads,
        fallbacks: &Fallbacks,
    ) -> TapIo {
        let request = frame.request();
        let len = self.copy(frame, burst);
        let bytes = &self.linear[VNET_HDR_LEN..len];
        let headers = &bytes[..request.headers_len().min(bytes.len())];
        let Some(mut segmenter) = Segmenter::new(&request, headers, frame.len) else {
            return TapIo::Rejected(libc::EINVAL);
        };
        let (all, surplus) = (segmenter.segments(), segmenter.surplus());
        let mut made = 0;
        while made < all {
            let result = self.write_segment(device, &mut segmenter, made, takes);
            match result {
                TapIo::Done(_) => made += 1,
                _ if made == 0 => return result,
                _ => break,
            }
        }
        fallbacks.segmented.add_shared(1);
        fallbacks.segments.add_shared(made.into());
        fallbacks.segments_lost.add_shared(u64::from(all - made + surplus));
        TapIo::Done(len)
    }

    fn write_segment(
        &mut self,
        device: &dyn FrameIo,
        segmenter: &mut Segmenter,
        index: u32,
        takes: Offloads,
    ) -> TapIo {
        let (offset, len) = segmenter.payload(index);
        let start = VNET_HDR_LEN + offset as usize;
        let Some(payload) = self.linear.get(start..start + len as usize) else {
            return TapIo::Rejected(libc::EINVAL);
        };
        let (header, headers) = if takes.has(Offloads::CSUM) {
            (segmenter.partial_header(), segmenter.partial(index))
        } else {
            (VnetHdr::plain(0), segmenter.complete(index, Sum::of(payload)))
        };
        let header = VnetHdr { num_buffers: [0; 2], ..header };
        let front = VNET_HDR_LEN + headers.len();
        self.front[..VNET_HDR_LEN].copy_from_slice(&header.to_bytes());
        self.front[VNET_HDR_LEN..front].copy_from_slice(headers);
        let payload = payload.as_ptr();
        self.pieces.clear();
        self.add(self.front.as_ptr(), front);
        self.add(payload, len as usize);
        // SAFETY: both pieces are private memory that lives across the call.
        unsafe { device.write_pieces(&self.pieces) }
    }

    fn add(&mut self, at: *const u8, len: usize) {
        self.pieces.push(libc::iovec { iov_base: at.cast_mut().cast(), iov_len: len });
    }

    /// Copies what is behind the snapshot; returns the length with header and snapshot.
    #[inline]
    fn linearize(&mut self, frame: &Frame, more: &[Piece]) -> usize {
        let mut filled = VNET_HDR_LEN + (frame.len as usize).min(SNAPSHOT_LEN);
        for piece in std::iter::once(&frame.rest).chain(more) {
            let n = (piece.len as usize).min(self.linear.len() - filled);
            // SAFETY: the piece was translated in the sender's memory, which its lock holds; `n`
            // is at most what is left of `linear`.
            unsafe {
                std::ptr::copy_nonoverlapping(piece.at, self.linear.as_mut_ptr().add(filled), n);
            }
            filled += n;
        }
        filled
    }
}
