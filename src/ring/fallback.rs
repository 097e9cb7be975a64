//! Frames for a driver that has not acknowledged what they ask for: the checksum is finished, the
//! packet cut into segments, straight into the receive buffers.
//!
//! The headers are copied into private memory, once, and written from there with their new fields;
//! the payload goes from buffer to buffer and is summed on its way. A receiver that finishes
//! checksums itself gets its segments without.
//!
//! What `offload::check` has read of the headers is private since, if it lay in the snapshot or was
//! made private then. The rest (TCP's options, say) is read here for the first time, and means
//! nothing; a header that is another one now is a counted drop.

use super::burst::{Burst, Frame};
use super::copy::{Reader, Writer};
use super::rx::{Ahead, Delivered, Gathered, NoRoom};
use super::split::SplitRing;
use crate::frame::checksum::Sum;
use crate::frame::offload::{NEEDS_CSUM, Offloads};
use crate::frame::segment::Segmenter;
use crate::frame::vnet::VnetHdr;
use crate::limits::MAX_HEADERS_LEN;

/// A packet and how much of it has become segments.
struct Cut<'a> {
    segmenter: Segmenter,
    /// At the next segment's payload.
    payload: Reader<'a>,
    /// Segments to deliver.
    wanted: u32,
    made: u32,
}

impl SplitRing {
    /// Delivers a frame that asks for something this driver has not acknowledged. See
    /// [`SplitRing::deliver`] for `last`.
    #[inline(never)]
    pub(super) fn put_other(
        &mut self,
        burst: &Burst,
        frame: &Frame,
        ahead: &mut Ahead,
        gathered: &mut Gathered,
        done: &mut Delivered,
        last: bool,
    ) -> Result<(), NoRoom> {
        let request = frame.request();
        if request.is_gso() {
            let place = self.place(ahead);
            let bad_buffers = done.bad_buffers;
            let put = self.put_segments(burst, frame, ahead, gathered, done, last);
            if put.is_err() {
                // As if nothing had been tried.
                self.back_to(place, ahead);
                done.bad_buffers = bad_buffers;
            }
            put
        } else if request.header.flags & NEEDS_CSUM != 0 {
            self.put_checksummed(burst, frame, ahead, gathered, done)
        } else {
            // Its checksum is known to be right, which this driver does not want to know.
            self.put(burst, frame, VnetHdr::plain(1), ahead, gathered, done)
        }
    }

    fn put_checksummed(
        &mut self,
        burst: &Burst,
        frame: &Frame,
        ahead: &mut Ahead,
        gathered: &mut Gathered,
        done: &mut Delivered,
    ) -> Result<(), NoRoom> {
        let need = u64::from(self.header_len) + u64::from(frame.len);
        let count = self.gather_good(need, ahead, gathered, done)?;
        let request = frame.request();
        let mut bytes = [0u8; MAX_HEADERS_LEN];
        let mut from = Reader::new(burst, frame);
        let first = from.read(&mut bytes);
        let (start, at) = (request.csum_start(), request.csum_at());
        // Both lie inside, or the request would have been refused.
        let Some(covered) = bytes[..first].get(start..) else { return Err(NoRoom::Changed) };
        let mut to = Writer::new(gathered.pieces.as_slice());
        self.write_header(&mut to, VnetHdr::plain(1), count);
        let mut front = to.clone();
        to.skip(first);
        let rest = to.write_summed(&mut from, frame.len as usize - first);
        let sum = Sum::of(covered).plus_at(rest, !(first - start).is_multiple_of(2));
        if let Some(field) = bytes.get_mut(at..at + 2) {
            field.copy_from_slice(&sum.checksum());
        }
        front.write(bytes.as_ptr(), first);
        self.take_gathered(need, count, ahead, gathered);
        done.checksummed += 1;
        Ok(())
    }

    fn put_segments(
        &mut self,
        burst: &Burst,
        frame: &Frame,
        ahead: &mut Ahead,
        gathered: &mut Gathered,
        done: &mut Delivered,
        last: bool,
    ) -> Result<(), NoRoom> {
        let request = frame.request();
        let mut headers = [0u8; MAX_HEADERS_LEN];
        let mut payload = Reader::new(burst, frame);
        let len = payload.read(&mut headers[..request.headers_len().min(MAX_HEADERS_LEN)]);
        let Some(segmenter) = Segmenter::new(&request, &headers[..len], frame.len) else {
            return Err(NoRoom::Changed);
        };
        let (wanted, surplus) = (segmenter.segments(), segmenter.surplus());
        // What can never be delivered as a whole is worth more in part: TCP sends the rest again.
        let part = last || wanted > u32::from(self.size());
        if !part && u32::from(self.offered()) < wanted {
            return Err(NoRoom::Empty);
        }
        let mut cut = Cut { segmenter, payload, wanted, made: 0 };
        while cut.made < cut.wanted {
            match self.put_segment(&mut cut, ahead, gathered, done) {
                Err(NoRoom::Empty) if part && cut.made > 0 => break,
                put => put?,
            }
            cut.made += 1;
        }
        done.segmented += 1;
        done.segments += u64::from(cut.made);
        done.segments_lost += u64::from(wanted - cut.made + surplus);
        Ok(())
    }

    /// Delivers the next segment.
    fn put_segment(
        &mut self,
        cut: &mut Cut<'_>,
        ahead: &mut Ahead,
        gathered: &mut Gathered,
        done: &mut Delivered,
    ) -> Result<(), NoRoom> {
        let (_, len) = cut.segmenter.payload(cut.made);
        let front_len = cut.segmenter.headers_len();
        let need = u64::from(self.header_len) + front_len as u64 + u64::from(len);
        let count = self.gather_good(need, ahead, gathered, done)?;
        let mut to = Writer::new(gathered.pieces.as_slice());
        let mut front = to.clone();
        to.skip(usize::from(self.header_len) + front_len);
        let (header, bytes) = if self.offloads.has(Offloads::CSUM) {
            to.write_from(&mut cut.payload, len as usize);
            (cut.segmenter.partial_header(), cut.segmenter.partial(cut.made))
        } else {
            let sum = to.write_summed(&mut cut.payload, len as usize);
            (VnetHdr::plain(1), cut.segmenter.complete(cut.made, sum))
        };
        self.write_header(&mut front, header, count);
        front.write(bytes.as_ptr(), bytes.len());
        self.take_gathered(need, count, ahead, gathered);
        Ok(())
    }
}
