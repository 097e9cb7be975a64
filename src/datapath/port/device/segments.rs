//! Segmentation of frames for a device that takes only segments. The segments are made in the
//! batch.

use super::writer::{Entry, Sending};
use base::frame::segment::Segmenter;
use base::frame::{Offloads, VNET_HDR_LEN, VnetHdr};
use base::limits::MAX_EGRESS_HEADERS_LEN;

impl Sending<'_> {
    /// Adds the `at`-th frame as segments. The result of the first segment decides whether the
    /// frame counts as delivered or dropped.
    pub(super) fn add_segments(&mut self, at: usize) {
        let (frame, takes) = (self.run.frame(at), self.run.takes);
        let (request, mut payload) = (frame.request(), frame.reader());
        let mut headers = [0; MAX_EGRESS_HEADERS_LEN];
        let len = payload.read(&mut headers[..request.headers_len().min(MAX_EGRESS_HEADERS_LEN)]);
        let Some(mut segmenter) = Segmenter::new(&request, &headers[..len], frame.len()) else {
            return self.drop(at, 1, self.reasons.rejected);
        };
        let all = segmenter.segments();
        let mut made = 0;
        while made < all {
            let front = VNET_HDR_LEN + segmenter.headers_len();
            let len = front + segmenter.payload(made).1 as usize;
            let Some(room) = self.room(len) else { break };
            let (front, rest) = room[..len].split_at_mut(front);
            let sum = payload.read_summed(rest);
            let (header, headers) = if takes.has(Offloads::CSUM) {
                (segmenter.partial_header(), segmenter.partial(made))
            } else {
                (VnetHdr::plain(0), segmenter.complete(made, sum))
            };
            let header = VnetHdr { num_buffers: [0; 2], ..header };
            front[..VNET_HDR_LEN].copy_from_slice(&header.to_bytes());
            front[VNET_HDR_LEN..].copy_from_slice(headers);
            self.add(len, if made == 0 { Entry::First(at as u8) } else { Entry::Segment });
            made += 1;
        }
        match all - made + segmenter.surplus() {
            _ if made == 0 => self.drop(at, 1, self.end.unwrap_or(self.reasons.rejected)),
            0 => {}
            lost => {
                // The answer for the first segment tells whether the frame is delivered.
                self.flush();
                self.lose_segments(lost);
            }
        }
    }
}
