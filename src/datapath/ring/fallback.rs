//! Frames for a driver that has not acknowledged the offloads that the frames ask for: the switch
//! completes the checksum or cuts the packet into segments, straight into the receive buffers.
//!
//! The headers are copied into private memory once, and written from there with their new fields.
//! The payload is copied from buffer to buffer and summed during the copy, which costs less than
//! the copy itself. A receiver that acknowledged GUEST_CSUM is told that the checksum is valid.
//!
//! The headers that `offload::check` has read are private: they lay in the snapshot, or the burst
//! copied them. The other header bytes (TCP options, for example) are read here for the first time
//! and decide nothing. A frame whose headers have changed since the check is a counted drop.

use super::chain::Gathered;
use super::copy::{EgressFrame, Reader, Writer};
use super::rx::{Ahead, Delivered, PutError, Segmentation};
use super::split::SplitRing;
use base::frame::checksum::Sum;
use base::frame::offload::{DATA_VALID, NEEDS_CSUM, Offloads};
use base::frame::segment::Segmenter;
use base::frame::vnet::VnetHdr;
use base::limits::{FRAME_DESCRIPTORS, MAX_EGRESS_HEADERS_LEN, MAX_MERGED_BUFFERS};

/// A packet and the number of segments made of it.
struct Progress<'a> {
    segmenter: Segmenter,
    /// Reads the payload of the next segment.
    payload: Reader<'a>,
    made: u32,
}

impl SplitRing {
    /// Delivers a frame that asks for offloads which this driver has not acknowledged.
    #[inline(never)]
    pub(super) fn put_other(
        &mut self,
        frame: EgressFrame<'_>,
        ahead: &mut Ahead,
        gathered: &mut Gathered,
        done: &mut Delivered,
        segmentation: Segmentation,
    ) -> Result<(), PutError> {
        let request = frame.request();
        if request.is_gso() {
            let place = self.place();
            let bad_buffers = done.bad_buffers;
            let put = self.put_segments(frame, ahead, gathered, done, segmentation);
            if put.is_err() {
                // Restores the state before the attempt.
                self.back_to(place, ahead);
                done.bad_buffers = bad_buffers;
            }
            put
        } else if request.header.flags & NEEDS_CSUM != 0 {
            self.put_checksummed(frame, ahead, gathered, done)
        } else {
            // The checksum is known to be valid, but this driver has not acknowledged GUEST_CSUM.
            self.put(frame, VnetHdr::plain(1), ahead, gathered, done)
        }
    }

    fn put_checksummed(
        &mut self,
        frame: EgressFrame<'_>,
        ahead: &mut Ahead,
        gathered: &mut Gathered,
        done: &mut Delivered,
    ) -> Result<(), PutError> {
        let need = u64::from(self.features.header_len) + u64::from(frame.len());
        let count = self.gather_good(need, ahead, gathered, done)?;
        let request = frame.request();
        let mut bytes = [0u8; MAX_EGRESS_HEADERS_LEN];
        let mut from = frame.reader();
        let first = from.read(&mut bytes);
        let (start, at) = (request.csum_start(), request.csum_at());
        // `offload::check` refused every request whose offsets lie outside of the headers.
        let Some(covered) = bytes[..first].get(start..) else { return Err(PutError::Changed) };
        let mut to = Writer::new(gathered.pieces.as_slice());
        self.write_header(&mut to, VnetHdr::plain(1), count);
        let mut front = to.clone();
        to.skip(first);
        let rest = to.write_summed(&mut from, frame.len() as usize - first);
        let sum = Sum::of(covered).plus_at(rest, !(first - start).is_multiple_of(2));
        if let Some(field) = bytes.get_mut(at..at + 2) {
            field.copy_from_slice(&sum.checksum());
        }
        front.write(bytes.as_ptr(), first);
        self.take_gathered(need, count, ahead, gathered);
        done.fallbacks.checksummed += 1;
        Ok(())
    }

    fn put_segments(
        &mut self,
        frame: EgressFrame<'_>,
        ahead: &mut Ahead,
        gathered: &mut Gathered,
        done: &mut Delivered,
        segmentation: Segmentation,
    ) -> Result<(), PutError> {
        let request = frame.request();
        let mut headers = [0u8; MAX_EGRESS_HEADERS_LEN];
        let mut payload = frame.reader();
        let len = payload.read(&mut headers[..request.headers_len().min(MAX_EGRESS_HEADERS_LEN)]);
        let Some(segmenter) = Segmenter::new(&request, &headers[..len], frame.len()) else {
            return Err(PutError::Changed);
        };
        let all = segmenter.segments();
        // A packet with more segments than the ring has buffers can never be delivered whole. A
        // part is better than nothing: TCP sends the rest again.
        let (part, wanted) = match segmentation {
            Segmentation::Whole => (all > u32::from(self.size()), all),
            Segmentation::Part(most) => (true, all.min(most)),
        };
        if !part && u32::from(self.offered()) < wanted {
            return Err(PutError::Empty);
        }
        let surplus = all - wanted + segmenter.surplus();
        // Buffers are bounded by those of the packet in one piece plus one for each segment: a
        // receiver that posts a large ring of tiny buffers must not keep the worker walking the
        // ring.
        let (start, most) = (self.place().avail, wanted + MAX_MERGED_BUFFERS as u32);
        // Descriptors are bounded for the same reason.
        gathered.allow(FRAME_DESCRIPTORS * wanted);
        let mut progress = Progress { segmenter, payload, made: 0 };
        while progress.made < wanted {
            if ahead.is_used_up()
                && let Err(error) = self.look_ahead((wanted - progress.made) as usize, ahead)
            {
                return Err(PutError::Broken(error));
            }
            if u32::from(self.place().avail.wrapping_sub(start)) > most {
                return Err(PutError::TooManyDescriptors);
            }
            match self.put_segment(&mut progress, ahead, gathered, done) {
                Err(PutError::Empty) if part && progress.made > 0 => break,
                put => put?,
            }
            progress.made += 1;
        }
        done.fallbacks.segmented += 1;
        done.fallbacks.segments += u64::from(progress.made);
        done.fallbacks.segments_lost += u64::from(wanted - progress.made + surplus);
        Ok(())
    }

    /// Delivers the next segment.
    fn put_segment(
        &mut self,
        progress: &mut Progress<'_>,
        ahead: &mut Ahead,
        gathered: &mut Gathered,
        done: &mut Delivered,
    ) -> Result<(), PutError> {
        let (_, len) = progress.segmenter.payload(progress.made);
        let front_len = progress.segmenter.headers_len();
        let need = u64::from(self.features.header_len) + front_len as u64 + u64::from(len);
        let count = self.gather_good(need, ahead, gathered, done)?;
        let mut to = Writer::new(gathered.pieces.as_slice());
        let mut front = to.clone();
        to.skip(usize::from(self.features.header_len) + front_len);
        let sum = to.write_summed(&mut progress.payload, len as usize);
        let bytes = progress.segmenter.complete(progress.made, sum);
        let flags = if self.features.offloads.has(Offloads::CSUM) { DATA_VALID } else { 0 };
        let header = VnetHdr { flags, ..VnetHdr::plain(1) };
        self.write_header(&mut front, header, count);
        front.write(bytes.as_ptr(), bytes.len());
        self.take_gathered(need, count, ahead, gathered);
        Ok(())
    }
}
