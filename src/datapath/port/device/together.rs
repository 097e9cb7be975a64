//! Frames collected in private memory, to go to a device together or as one packet.

use crate::ring::{Burst, EgressFrame};
use base::frame::checksum::Sum;
use base::frame::coalesce::{Order, Packet, Written};
use base::frame::offload::{NEEDS_CSUM, Request};
use base::frame::{Offloads, VNET_HDR_LEN, VnetHdr};
use base::limits::{BURST_FRAMES, TAP_BATCH_ROOM};
use base::stats::Fallbacks;

/// What one write to a device takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Collected {
    /// Bytes, the header included.
    pub(super) len: usize,
    /// Frames.
    pub(super) frames: u8,
}

/// The frames of a run to a device, in the order in which they leave.
pub(super) struct Run<'a> {
    pub(super) burst: &'a Burst,
    /// What the device takes.
    pub(super) takes: Offloads,
    /// Where it is counted what is done in its stead.
    pub(super) fallbacks: &'a Fallbacks,
    frames: &'a [u8],
    order: Option<Order>,
}

impl<'a> Run<'a> {
    /// Of the listed frames; those of one TCP stream one behind the other, if the device takes
    /// packets of several segments and `coalesces`.
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

    /// All of them.
    pub(super) fn frames(&self) -> &[u8] {
        self.order.as_ref().map_or(self.frames, Order::frames)
    }

    /// From the `at`-th on those that may become one packet.
    fn stream(&self, at: usize) -> &[u8] {
        match &self.order {
            Some(order) => order.stream(at),
            None => self.frames.get(at..=at).unwrap_or_default(),
        }
    }

    /// True if the `at`-th frame may become a packet with others.
    pub(super) fn may_join(&self, at: usize) -> bool {
        self.order.as_ref().is_some_and(|order| order.stream(at).len() > 1)
    }

    /// Copies the `at`-th frame, and those behind it that become one packet with it, to `room`.
    /// None if it has to go by itself: it is long, or lacks an offload there.
    pub(super) fn collect(&self, at: usize, room: &mut [u8]) -> Option<Collected> {
        let (&first, others) = self.stream(at).split_first()?;
        let (header, bytes) = room.split_first_chunk_mut::<VNET_HDR_LEN>()?;
        let (mut collected, asked) = if others.is_empty() {
            let (len, asked) = self.copy(self.burst.egress(first), bytes)?;
            (Collected { len, frames: 1 }, asked)
        } else {
            let segment = self.copy_segment(self.burst.egress(first), &mut [], bytes)?;
            let alone = (Collected { len: segment.len, frames: 1 }, segment.header);
            let packet = Packet::begin(bytes, segment);
            packet.and_then(|packet| self.join(packet, others, bytes)).unwrap_or(alone)
        };
        *header = asked.to_bytes();
        collected.len += VNET_HDR_LEN;
        Some(collected)
    }

    /// Adds frames to the packet in `bytes`; what it comes to, and its header, if that is more than
    /// its first frame.
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
        let (len, frames) = (packet.len(), packet.segments() as u8);
        (frames > 1).then(|| (Collected { len, frames }, packet.finish(bytes)))
    }

    /// Copies a frame to `room`; its length and header. None if it has to go by itself.
    #[inline]
    fn copy(&self, frame: EgressFrame<'_>, room: &mut [u8]) -> Option<(usize, VnetHdr)> {
        let len = frame.len() as usize;
        let room = room.get_mut(..len).filter(|_| len <= TAP_BATCH_ROOM - VNET_HDR_LEN)?;
        if !self.burst.needs_offloads() {
            return Some((frame.copy_beginning(room), VnetHdr::plain(0)));
        }
        if self.takes.has(frame.needs()) {
            let header = VnetHdr { num_buffers: [0; 2], ..frame.header() };
            return Some((frame.copy_beginning(room), header));
        }
        self.copy_finished(frame, room)
    }

    /// Copies the first bytes of a segment to `front`, which they fill, and the others to `room`,
    /// and sums them on their way, which costs less than to do so later. None if it has to go by
    /// itself.
    #[inline]
    fn copy_segment(
        &self,
        frame: EgressFrame<'_>,
        front: &mut [u8],
        room: &mut [u8],
    ) -> Option<Written> {
        let len = frame.len() as usize;
        let room = room.get_mut(..len.checked_sub(front.len())?)?;
        if len > TAP_BATCH_ROOM - VNET_HDR_LEN {
            return None;
        }
        let mut header = VnetHdr::plain(0);
        if self.burst.needs_offloads() {
            header = VnetHdr { num_buffers: [0; 2], ..frame.header() };
            self.takes.has(frame.needs()).then_some(())?;
        }
        Some(Written { len, header, sum: frame.copy_summed([front, room]) })
    }

    /// The same of a frame whose checksum the device does not finish.
    #[inline(never)]
    fn copy_finished(&self, frame: EgressFrame<'_>, room: &mut [u8]) -> Option<(usize, VnetHdr)> {
        let request = frame.request();
        if request.is_gso() {
            return None;
        }
        let len = frame.copy_beginning(room);
        if request.header.flags & NEEDS_CSUM != 0 {
            finish_checksum(&request, &mut room[..len]);
            self.fallbacks.checksummed.add_shared(1);
        }
        Some((len, VnetHdr::plain(0)))
    }
}

/// Finishes the checksum that a frame asks for.
pub(super) fn finish_checksum(request: &Request, frame: &mut [u8]) {
    let (start, at) = (request.csum_start(), request.csum_at());
    let sum = frame.get(start..).map(Sum::of).unwrap_or_default();
    if let Some(field) = frame.get_mut(at..at + 2) {
        field.copy_from_slice(&sum.checksum());
    }
}

/// How many frames each entry of a batch stands for.
#[derive(Debug)]
pub(super) struct Entries {
    frames: [u8; BURST_FRAMES],
    count: usize,
}

impl Default for Entries {
    fn default() -> Entries {
        Entries { frames: [0; BURST_FRAMES], count: 0 }
    }
}

impl Entries {
    /// Notes one more entry.
    pub(super) fn add(&mut self, frames: u8) {
        if let Some(place) = self.frames.get_mut(self.count) {
            *place = frames;
            self.count += 1;
        }
    }

    /// All entries, which are forgotten.
    pub(super) fn take(&mut self) -> impl Iterator<Item = u8> + use<> {
        let count = std::mem::take(&mut self.count);
        self.frames.into_iter().take(count)
    }
}
