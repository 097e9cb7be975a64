//! Frames in the form in which a device takes them: unchanged, with offloads done, or several
//! frames as one packet.

use crate::ring::{Burst, EgressFrame};
use base::frame::checksum::Sum;
use base::frame::coalesce::{Order, Packet, Written};
use base::frame::offload::{NEEDS_CSUM, Request};
use base::frame::{Offloads, VNET_HDR_LEN, VnetHdr};
use base::stats::Fallbacks;

/// Frames of a run that became one frame of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Collected {
    /// Length in bytes, with the virtio-net header.
    pub(super) len: usize,
    /// Number of frames.
    pub(super) frames: u8,
}

/// The frames of a run to a device, in the order in which they leave.
pub(super) struct Run<'a> {
    pub(super) burst: &'a Burst,
    /// Offloads that the device takes.
    pub(super) takes: Offloads,
    /// Counters of offloads that the switch does because the device does not take them.
    pub(super) fallbacks: &'a Fallbacks,
    frames: &'a [u8],
    order: Option<Order>,
}

impl<'a> Run<'a> {
    /// Creates a run of the listed frames. If the device takes packets of several segments and the
    /// port `coalesces`, frames of one TCP stream follow one another.
    pub(super) fn new(
        burst: &'a Burst,
        frames: &'a [u8],
        (takes, coalesces): (Offloads, bool),
        fallbacks: &'a Fallbacks,
    ) -> Run<'a> {
        let packets = takes.has(Offloads::CSUM.or(Offloads::TSO4).or(Offloads::TSO6));
        let all = burst.frames();
        let order = (coalesces && packets && frames.len() > 1)
            .then(|| Order::of(frames, |index| all[usize::from(index)].head()));
        Run { burst, takes, fallbacks, frames, order: order.flatten() }
    }

    /// Returns all frames of the run.
    pub(super) fn frames(&self) -> &[u8] {
        self.order.as_ref().map_or(self.frames, Order::frames)
    }

    /// Returns the `at`-th frame.
    pub(super) fn frame(&self, at: usize) -> EgressFrame<'a> {
        self.burst.egress(self.frames()[at])
    }

    /// Returns the frames behind the `at`-th frame that may become one packet with this frame.
    fn others(&self, at: usize) -> &[u8] {
        self.order.as_ref().and_then(|order| order.stream(at).get(1..)).unwrap_or_default()
    }

    /// Returns the header with which a frame leaves; none if the device does not take the frame
    /// unchanged.
    #[inline]
    pub(super) fn header(&self, frame: EgressFrame<'_>) -> Option<VnetHdr> {
        if !self.burst.needs_offloads() {
            return Some(VnetHdr::plain(0));
        }
        let taken = self.takes.has(frame.needs());
        taken.then(|| VnetHdr { num_buffers: [0; 2], ..frame.header() })
    }

    /// True if the device takes a frame only as segments.
    pub(super) fn cuts(&self, frame: EgressFrame<'_>) -> bool {
        self.header(frame).is_none() && frame.request().is_gso()
    }

    /// Copies the `at`-th frame to `room`, with the following frames that become one packet with
    /// this frame. `room` is long enough for the `at`-th frame.
    #[inline]
    pub(super) fn collect(&self, at: usize, room: &mut [u8]) -> Option<Collected> {
        let (frame, others) = (self.frame(at), self.others(at));
        if others.is_empty() {
            return self.collect_one(frame, room);
        }
        self.collect_packet(frame, others, room).or_else(|| self.collect_one(frame, room))
    }

    /// Copies one frame.
    #[inline]
    pub(super) fn collect_one(&self, frame: EgressFrame<'_>, room: &mut [u8]) -> Option<Collected> {
        let (header, bytes) = room.split_first_chunk_mut::<VNET_HDR_LEN>()?;
        let bytes = bytes.get_mut(..frame.len() as usize)?;
        frame.copy_beginning(bytes);
        let asked = self.header(frame).unwrap_or_else(|| {
            self.finish(&frame.request(), bytes);
            VnetHdr::plain(0)
        });
        *header = asked.to_bytes();
        Some(Collected { len: VNET_HDR_LEN + bytes.len(), frames: 1 })
    }

    /// Copies a frame, and the following frames that become one packet with this frame. None if no
    /// frame joins.
    fn collect_packet(
        &self,
        frame: EgressFrame<'_>,
        others: &[u8],
        room: &mut [u8],
    ) -> Option<Collected> {
        let (header, bytes) = room.split_first_chunk_mut::<VNET_HDR_LEN>()?;
        let segment = self.copy_segment(frame, &mut [], bytes)?;
        let (collected, asked) = self.join(Packet::begin(bytes, segment)?, others, bytes)?;
        *header = asked.to_bytes();
        Some(collected)
    }

    /// Adds frames to the packet in `bytes`. Returns the packet and its header; none if no frame
    /// joined.
    fn join(
        &self,
        mut packet: Packet,
        others: &[u8],
        bytes: &mut [u8],
    ) -> Option<(Collected, VnetHdr)> {
        for &index in others {
            let frame = self.burst.egress(index);
            let fits = packet.may_take(frame.len() as usize)
                && packet.add(bytes, |front, room| self.copy_segment(frame, front, room));
            if !fits {
                break;
            }
        }
        let (len, frames) = (VNET_HDR_LEN + packet.len(), packet.segments() as u8);
        (frames > 1).then(|| (Collected { len, frames }, packet.finish(bytes)))
    }

    /// Copies the first bytes of a segment to `front`, which they fill, and the other bytes to
    /// `room`. None if there is no room, or the device does not take the segment unchanged.
    #[inline]
    fn copy_segment(
        &self,
        frame: EgressFrame<'_>,
        front: &mut [u8],
        room: &mut [u8],
    ) -> Option<Written> {
        let len = frame.len() as usize;
        let room = room.get_mut(..len.checked_sub(front.len())?)?;
        let header = self.header(frame)?;
        let (mut reader, odd) = (frame.reader(), !front.len().is_multiple_of(2));
        let sum = reader.read_summed(front);
        Some(Written { len, header, sum: sum.plus_at(reader.read_summed(room), odd) })
    }

    /// Completes the checksum that a frame asks for, if it asks for a checksum.
    #[inline(never)]
    fn finish(&self, request: &Request, frame: &mut [u8]) {
        if request.header.flags & NEEDS_CSUM == 0 {
            return;
        }
        let (start, at) = (request.csum_start(), request.csum_at());
        let sum = frame.get(start..).map(Sum::of).unwrap_or_default();
        if let Some(field) = frame.get_mut(at..at + 2) {
            field.copy_from_slice(&sum.checksum());
        }
        self.fallbacks.checksummed.add_shared(1);
    }
}
