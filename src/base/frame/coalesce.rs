//! Merges consecutive segments of a TCP stream into one large packet, for devices that take large
//! packets. Linux does so with frames from a network card (GRO: `tcp_gro_receive`,
//! `inet_gro_receive`, `ipv6_gro_receive`).
//!
//! A merged packet, segmented as its header requests ([`super::segment`]), gives the original
//! segments byte for byte. So all headers must be equal, with these exceptions: lengths and
//! checksums may differ, sequence numbers and IPv4 identifications must be consecutive, and the
//! last segment may have PSH. A checksum is verified before it is dropped. Linux demands all this
//! too; Linux also merges packets with FIN, with extension headers, or with one identification for
//! all, which are not merged here.
//!
//! [`Kind::of`] and [`Order`] find segments by their first bytes; [`Packet`] merges segments in
//! private memory.

use super::VnetHdr;
use super::checksum::Sum;
use super::ethernet::l3_offset;
use super::offload::{
    GSO_TCPV4, GSO_TCPV6, IPV4_HEADER, IPV6_HEADER, NEEDS_CSUM, TCP_CSUM, TCP_HEADER,
};
use super::protocol::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, ICMPV6, TCP, UDP};
use crate::limits::{BURST_FRAMES, MIN_TCP_GSO_SIZE, TAP_PACKET_HEADERS};

const ICMP: u8 = 1;
/// Longest TCP header, in bytes.
const TCP_MOST: usize = 60;
const ACK: u8 = 0x10;
const PSH: u8 = 0x08;

/// The position of a frame in its TCP stream, as far as the frame's first bytes tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentPosition {
    /// Hash of addresses and ports. Two streams may have the same hash: [`Packet`] compares
    /// headers, and frames of one slot stay in order in any case.
    stream: u64,
    sequence: u32,
    /// Bytes of TCP header and payload.
    len: u32,
}

/// The TCP stream that a frame belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The frame belongs to no TCP stream.
    Other,
    /// The stream cannot be told: the frame may belong to any stream.
    Any,
    /// The frame is a segment of this stream, at this position.
    Segment(SegmentPosition),
}

impl Kind {
    /// Returns the kind of a frame that begins with `head`.
    #[inline]
    pub(crate) fn of(head: &[u8]) -> Kind {
        let l3 = l3_offset(head);
        let Some(&kind) = head.get(l3 - 2..).and_then(<[u8]>::first_chunk) else {
            return Kind::Other;
        };
        match u16::from_be_bytes(kind) {
            ETHERTYPE_IPV4 => Kind::of_v4(head, l3),
            ETHERTYPE_IPV6 => Kind::of_v6(head, l3),
            _ => Kind::Other,
        }
    }

    fn of_v4(head: &[u8], l3: usize) -> Kind {
        let Some((ip, tcp)) = split::<IPV4_HEADER>(head, l3) else { return Kind::Any };
        match ip[9] {
            TCP if ip[0] == 0x45 && fragment(ip) & 0x3fff == 0 => {}
            UDP | ICMP => return Kind::Other,
            _ => return Kind::Any,
        }
        let len = usize::from(u16::from_be_bytes([ip[2], ip[3]])).saturating_sub(IPV4_HEADER);
        SegmentPosition::find(&ip[12..20], tcp, len)
    }

    fn of_v6(head: &[u8], l3: usize) -> Kind {
        let Some((ip, tcp)) = split::<IPV6_HEADER>(head, l3) else { return Kind::Any };
        match ip[6] {
            TCP => {}
            UDP | ICMPV6 => return Kind::Other,
            _ => return Kind::Any,
        }
        SegmentPosition::find(&ip[8..40], tcp, usize::from(u16::from_be_bytes([ip[4], ip[5]])))
    }
}

/// Splits `head` at `l3` into a network header of `N` bytes and the bytes behind the header.
fn split<const N: usize>(head: &[u8], l3: usize) -> Option<(&[u8; N], &[u8])> {
    head.get(l3..)?.split_first_chunk::<N>()
}

/// Returns the fragment flags and the fragment offset of an IPv4 header.
fn fragment(ip: &[u8]) -> u16 {
    u16::from_be_bytes([ip[6], ip[7]])
}

impl SegmentPosition {
    fn find(addresses: &[u8], tcp: &[u8], len: usize) -> Kind {
        let Some(first) = tcp.first_chunk::<8>() else { return Kind::Any };
        let [p, o, r, t, a, b, c, d] = *first;
        let ports = u32::from_ne_bytes([p, o, r, t]).into();
        let words = addresses.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word));
        let stream = words.fold(ports, |mixed: u64, word| {
            let product = (mixed ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            product ^ product >> 32
        });
        let sequence = u32::from_be_bytes([a, b, c, d]);
        Kind::Segment(SegmentPosition { stream, sequence, len: len as u32 })
    }

    /// Returns true if this segment may directly follow `before`. The length of `before`'s TCP
    /// header may be unknown, so every legal length is accepted.
    fn follows(&self, before: &SegmentPosition) -> bool {
        let payload = self.sequence.wrapping_sub(before.sequence);
        let headers = before.len.wrapping_sub(payload) as usize;
        (TCP_HEADER..=TCP_MOST).contains(&headers) && payload > 0 && self.stream == before.stream
    }

    /// Returns a number below [`BURST_FRAMES`] that is equal for all segments of a stream.
    fn slot(&self) -> usize {
        (self.stream >> 58) as usize % BURST_FRAMES
    }
}

/// The order in which the frames of a burst leave, so that consecutive segments of a stream are
/// adjacent. Frames of one stream keep their order.
#[derive(Debug)]
pub struct Order {
    frames: [u8; BURST_FRAMES],
    count: usize,
    /// Bit n: frame n directly follows frame n - 1 in its stream.
    follows: u64,
}

impl Order {
    /// Orders the listed frames, whose first bytes `head` returns; `None` if no two frames may be
    /// merged.
    pub fn of<'a>(frames: &[u8], head: impl Fn(u8) -> &'a [u8]) -> Option<Order> {
        const NONE: u8 = u8::MAX;
        let frames = &frames[..frames.len().min(BURST_FRAMES)];
        // `places` and `next`: position and successor of each frame. `last`: the last frame of each
        // slot.
        let mut places: [Option<SegmentPosition>; BURST_FRAMES] = [None; BURST_FRAMES];
        let (mut next, mut last) = ([NONE; BURST_FRAMES], [NONE; BURST_FRAMES]);
        let mut behind = 0u64;
        for (at, &index) in frames.iter().enumerate() {
            let place = match Kind::of(head(index)) {
                Kind::Other => continue,
                Kind::Any => {
                    last = [NONE; BURST_FRAMES];
                    continue;
                }
                Kind::Segment(place) => place,
            };
            let slot = &mut last[place.slot()];
            let before = places.get(usize::from(*slot)).copied().flatten();
            if before.is_some_and(|before| place.follows(&before)) {
                next[usize::from(*slot)] = at as u8;
                behind |= 1 << at;
            }
            places[at] = Some(place);
            *slot = at as u8;
        }
        if behind == 0 {
            return None;
        }
        let mut order = Order { frames: [0; BURST_FRAMES], count: 0, follows: 0 };
        for first in (0..frames.len()).filter(|at| behind >> at & 1 == 0) {
            let mut at = first;
            loop {
                order.follows |= u64::from(at != first) << order.count;
                order.frames[order.count] = frames[at];
                order.count += 1;
                match next[at] {
                    NONE => break,
                    behind => at = usize::from(behind),
                }
            }
        }
        Some(order)
    }

    /// Returns the frames in their order.
    pub fn frames(&self) -> &[u8] {
        &self.frames[..self.count]
    }

    /// Returns the `at`-th frame and the frames that directly follow it in its stream.
    pub fn stream(&self, at: usize) -> &[u8] {
        let count = 1 + (self.follows >> at >> 1).trailing_ones() as usize;
        self.frames().get(at..at + count).unwrap_or_default()
    }
}

/// A frame that was written to a buffer.
#[derive(Debug, Clone, Copy)]
pub struct Written {
    /// Length of the frame in bytes.
    pub len: usize,
    /// The virtio-net header of the frame.
    pub header: VnetHdr,
    /// The sum of the frame's bytes; not used if the header leaves the checksum to the receiver.
    pub sum: Sum,
}

/// A packet at the beginning of a buffer, to which segments are added.
#[derive(Debug)]
pub struct Packet {
    l3: usize,
    l4: usize,
    /// Length of all headers in bytes.
    headers: usize,
    /// Length of the packet in bytes.
    len: usize,
    /// Payload bytes of each segment except the last.
    size: usize,
    segments: u16,
    /// PSH flag of the last segment; 0 if not set.
    push: u8,
}

impl Packet {
    /// Begins a packet with the segment at the beginning of `buffer`; `None` if no segment may be
    /// added to the packet.
    pub fn begin(buffer: &[u8], segment: Written) -> Option<Packet> {
        let packet = Packet::of(buffer.get(..segment.len)?, segment)?;
        (packet.push == 0 && packet.size >= MIN_TCP_GSO_SIZE.into()).then_some(packet)
    }

    /// Describes a segment that begins with `first`, which holds at least all headers; `None` if
    /// the segment may not be merged.
    fn of(first: &[u8], segment: Written) -> Option<Packet> {
        let l3 = l3_offset(first);
        let ip = first.get(l3..)?;
        let kind = u16::from_be_bytes(*first.get(l3 - 2..)?.first_chunk()?);
        let (network, total) = match kind {
            ETHERTYPE_IPV4 => {
                let ip = ip.first_chunk::<IPV4_HEADER>()?;
                let plain = ip[0] == 0x45 && ip[9] == TCP && fragment(ip) & !0x4000 == 0;
                let sound = plain && Sum::of(ip).fold() == u16::MAX;
                (IPV4_HEADER, sound.then(|| u16::from_be_bytes([ip[2], ip[3]]).into())?)
            }
            ETHERTYPE_IPV6 => {
                let ip = ip.first_chunk::<IPV6_HEADER>()?;
                let plain = ip[0] >> 4 == 6 && ip[6] == TCP;
                let payload = usize::from(u16::from_be_bytes([ip[4], ip[5]]));
                (IPV6_HEADER, plain.then_some(IPV6_HEADER + payload)?)
            }
            _ => return None,
        };
        let l4 = l3 + network;
        let tcp = first.get(l4..)?.first_chunk::<TCP_HEADER>()?;
        let (offset, flags) = (usize::from(tcp[12] >> 4) * 4, tcp[13]);
        let headers = l4 + offset;
        let size = segment.len.checked_sub(headers).filter(|&size| size > 0)?;
        let sound = offset >= TCP_HEADER && headers <= TAP_PACKET_HEADERS.min(first.len());
        let fits = l3 + total == segment.len && total <= usize::from(u16::MAX);
        if !sound || !fits || flags & !PSH != ACK {
            return None;
        }
        let push = flags & PSH;
        let packet = Packet { l3, l4, headers, len: segment.len, size, segments: 1, push };
        packet.is_summed(first, segment).then_some(packet)
    }

    /// Returns true if the TCP checksum is right, or left to the receiver.
    fn is_summed(&self, first: &[u8], Written { header, sum, .. }: Written) -> bool {
        let pseudo = self.pseudo(first, self.len);
        let right = if header.flags & NEEDS_CSUM != 0 {
            let field = [header.csum_start, header.csum_offset].map(u16::from_le_bytes);
            field.map(usize::from) == [self.l4, TCP_CSUM]
                && first[self.l4 + TCP_CSUM..].starts_with(&pseudo.to_bytes())
        } else {
            pseudo.plus(sum.minus(Sum::of(&first[..self.l4]))).fold() == u16::MAX
        };
        right && header.gso_type == 0
    }

    /// Returns the sum of the pseudo-header for a packet of `len` bytes.
    fn pseudo(&self, bytes: &[u8], len: usize) -> Sum {
        let addresses = if self.is_v4() { self.l3 + 12 } else { self.l3 + 8 };
        Sum::of(&bytes[addresses..self.l4]).word(TCP.into()).word((len - self.l4) as u16)
    }

    fn is_v4(&self) -> bool {
        self.l4 - self.l3 == IPV4_HEADER
    }

    /// Returns the length of the packet in bytes.
    #[expect(clippy::len_without_is_empty, reason = "no packet is empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the number of segments in the packet.
    pub fn segments(&self) -> u16 {
        self.segments
    }

    /// Returns true if the packet has room for another segment of `len` bytes.
    pub fn may_take(&self, len: usize) -> bool {
        let all = self.len + len - self.headers.min(len);
        self.push == 0
            && (self.len - self.headers).is_multiple_of(self.size)
            && all - self.l3 <= u16::MAX.into()
    }

    /// Adds a segment to the packet at the beginning of `buffer`. `write` gets room for the
    /// segment's headers and room for the payload behind the packet, and returns a description of
    /// the written segment, or `None`. Returns false, and leaves the packet unchanged, if there is
    /// no segment or the segment may not be merged.
    pub fn add(
        &mut self,
        buffer: &mut [u8],
        write: impl FnOnce(&mut [u8], &mut [u8]) -> Option<Written>,
    ) -> bool {
        let mut headers = [0; TAP_PACKET_HEADERS];
        let headers = &mut headers[..self.headers];
        let (packet, room) = buffer.split_at_mut(self.len);
        let segment = write(headers, room);
        let added = segment.and_then(|segment| Packet::of(headers, segment));
        let Some(added) = added.filter(|added| self.accepts(packet, added, headers)) else {
            return false;
        };
        self.len += added.size;
        self.segments += 1;
        self.push = added.push;
        true
    }

    /// Returns true if a segment with these headers directly follows the packet, which begins with
    /// `first`.
    fn accepts(&self, first: &[u8], other: &Packet, headers: &mut [u8]) -> bool {
        let same_place = (other.l3, other.l4, other.headers) == (self.l3, self.l4, self.headers);
        let fits = same_place && other.size <= self.size && self.may_take(other.len);
        fits && self.is_behind(first, headers)
    }

    /// Returns true if the headers `next` directly follow the packet's headers `first`. Overwrites
    /// in `next` the fields that may differ with the packet's.
    fn is_behind(&self, first: &[u8], next: &mut [u8]) -> bool {
        let (l3, l4) = (self.l3, self.l4);
        let id = |ip: &[u8]| u16::from_be_bytes([ip[l3 + 4], ip[l3 + 5]]);
        let sequence =
            |tcp: &[u8]| u32::from_be_bytes([tcp[l4 + 4], tcp[l4 + 5], tcp[l4 + 6], tcp[l4 + 7]]);
        let due = sequence(first).wrapping_add((self.len - self.headers) as u32);
        let is_due = sequence(next) == due
            && (!self.is_v4() || id(next) == id(first).wrapping_add(self.segments));
        let mut any = |from: usize, to: usize| next[from..to].copy_from_slice(&first[from..to]);
        if self.is_v4() {
            // Length and identification, then checksum.
            any(l3 + 2, l3 + 6);
            any(l3 + 10, l3 + 12);
        } else {
            any(l3 + 4, l3 + 6);
        }
        // Sequence number, then flags, which `Packet::of` checked, then checksum.
        any(l4 + 4, l4 + 8);
        any(l4 + 13, l4 + 14);
        any(l4 + TCP_CSUM, l4 + TCP_CSUM + 2);
        is_due && first.starts_with(next)
    }

    /// Writes the headers of the whole packet to `buffer`; returns the packet's virtio-net header.
    pub fn finish(self, buffer: &mut [u8]) -> VnetHdr {
        let (l3, l4) = (self.l3, self.l4);
        let mut put = |at: usize, word: [u8; 2]| buffer[at..at + 2].copy_from_slice(&word);
        if self.is_v4() {
            put(l3 + 2, ((self.len - l3) as u16).to_be_bytes());
            put(l3 + 10, [0; 2]);
            let sum = Sum::of(&buffer[l3..l4]).header_checksum();
            buffer[l3 + 10..l3 + 12].copy_from_slice(&sum);
        } else {
            put(l3 + 4, ((self.len - l4) as u16).to_be_bytes());
        }
        buffer[l4 + 13] |= self.push;
        let sum = self.pseudo(buffer, self.len).to_bytes();
        buffer[l4 + TCP_CSUM..l4 + TCP_CSUM + 2].copy_from_slice(&sum);
        VnetHdr {
            flags: NEEDS_CSUM,
            gso_type: if self.is_v4() { GSO_TCPV4 } else { GSO_TCPV6 },
            hdr_len: (self.headers as u16).to_le_bytes(),
            gso_size: (self.size as u16).to_le_bytes(),
            csum_start: (l4 as u16).to_le_bytes(),
            csum_offset: (TCP_CSUM as u16).to_le_bytes(),
            num_buffers: [0; 2],
        }
    }
}

#[cfg(test)]
#[path = "tests/coalesce.rs"]
mod tests;
