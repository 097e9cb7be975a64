//! Segments a large TCP packet or a train of UDP datagrams for a receiver without the offload (TSO
//! and USO in software), header by header.
//!
//! A [`Segmenter`] has a copy of the packet's headers and tells which part of the payload goes into
//! which segment; of the payload a [`Segmenter`] needs only the sum. The headers of a segment are
//! those that Linux makes (`tcp_gso_segment`, `__udp_gso_segment`, `inet_gso_segment`): each
//! segment has its own lengths, IPv4 identification, sequence number and checksums; only the last
//! segment keeps FIN and PSH, and only the first segment keeps CWR.
//!
//! The headers were checked ([`super::offload::check`]), but most header bytes are read again from
//! guest memory after the check. So offsets and lengths come from the [`Request`] alone, bytes that
//! contradict the [`Request`] are refused, and all other bytes are only copied.

use super::VnetHdr;
use super::checksum::Sum;
use super::offload::{
    GSO_ECN, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, IPV4_HEADER, IPV6_HEADER, NEEDS_CSUM, Offloads,
    Request, TCP_CSUM, TCP_HEADER, UDP_CSUM, UDP_HEADER,
};
use crate::limits::{MAX_EGRESS_HEADERS_LEN, MAX_SEGMENTS};

/// Fields of an IPv4 header: total length, identification, checksum (RFC 791 section 3.1).
const IPV4_LENGTH: usize = 2;
const IPV4_ID: usize = 4;
const IPV4_CSUM: usize = 10;
/// Payload length of an IPv6 header (RFC 8200 section 3).
const IPV6_LENGTH: usize = 4;
/// Sequence number, data offset and flags of TCP (RFC 9293 section 3.1); length of UDP.
const TCP_SEQUENCE: usize = 4;
const TCP_DATA_OFFSET: usize = 12;
const TCP_FLAGS: usize = 13;
const UDP_LENGTH: usize = 4;

/// Flags of TCP.
const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;

/// A packet that is being segmented.
#[derive(Debug, Clone)]
pub struct Segmenter {
    /// Headers of the segment that was written last; of the whole packet at first.
    headers: [u8; MAX_EGRESS_HEADERS_LEN],
    headers_len: usize,
    /// Offset of the network header.
    l3: usize,
    /// Offset of the transport header.
    l4: usize,
    /// Payload bytes of the whole packet, more than [`Self::size`].
    payload: usize,
    /// Payload bytes of each segment except the last.
    size: usize,
    segments: usize,
    network: Network,
    transport: Transport,
    /// Sum of the pseudo-header without the length.
    pseudo: Sum,
    /// Sum of the transport header without the fields that differ between segments.
    header: Sum,
}

#[derive(Debug, Clone, Copy)]
enum Network {
    /// `header` is the sum of the header without the fields that differ between segments.
    V4 {
        id: u16,
        header: Sum,
    },
    V6,
}

#[derive(Debug, Clone, Copy)]
enum Transport {
    /// The fields of the whole packet. `offset` is kept because it is summed in one word with the
    /// flags.
    Tcp {
        sequence: u32,
        offset: u8,
        flags: u8,
    },
    Udp,
}

impl Segmenter {
    /// Makes a segmenter for a frame of `len` bytes; `headers` are the first
    /// [`Request::headers_len`] bytes. `None` if the frame is not to be segmented, or if request,
    /// headers and length contradict each other because the sender changed the headers after the
    /// check.
    pub fn new(request: &Request, headers: &[u8], len: u32) -> Option<Segmenter> {
        let (v4, tcp) = kind(request)?;
        let (l3, l4) = (usize::from(request.l3), request.csum_start());
        let headers_len = request.headers_len();
        let payload = (len as usize).checked_sub(headers_len).filter(|&n| n > 0)?;
        let size = Some(request.gso_size()).filter(|&n| n > 0)?;
        let network = l4.checked_sub(l3)?;
        let transport = headers_len.checked_sub(l4)?;
        // The lengths of the headers fit their protocols.
        let least = if v4 { IPV4_HEADER } else { IPV6_HEADER };
        let sound = network >= least
            && if tcp { transport >= TCP_HEADER } else { transport == UDP_HEADER }
            && request.csum_at() == l4 + if tcp { TCP_CSUM } else { UDP_CSUM };
        // The IP length of the whole packet fits 16 bits, so the lengths of all segments fit too.
        let unsaid = l3 + if v4 { 0 } else { IPV6_HEADER };
        if !sound || len as usize > unsaid + usize::from(u16::MAX) {
            return None;
        }
        let mut own = [0; MAX_EGRESS_HEADERS_LEN];
        own.get_mut(..headers_len)?.copy_from_slice(headers.get(..headers_len)?);
        let mut segmenter = Segmenter {
            headers: own,
            headers_len,
            l3,
            l4,
            payload,
            size,
            segments: payload.div_ceil(size),
            network: Network::V6,
            transport: Transport::Udp,
            pseudo: Sum::ZERO,
            header: Sum::ZERO,
        };
        segmenter.network = segmenter.network(v4)?;
        segmenter.transport = segmenter.transport(tcp)?;
        segmenter.sum_up(len as usize);
        Some(segmenter)
    }

    /// Reads the network header; `None` if its length or version changed after the check.
    fn network(&self, v4: bool) -> Option<Network> {
        let first = self.headers[self.l3];
        if !v4 {
            return (first >> 4 == 6).then_some(Network::V6);
        }
        let length = self.l4 - self.l3;
        if first >> 4 != 4 || usize::from(first & 0xf) * 4 != length {
            return None;
        }
        let id = u16::from_be_bytes(self.field(self.l3 + IPV4_ID));
        let header = Sum::of(&self.headers[self.l3..self.l4])
            .minus_word(u16::from_be_bytes(self.field(self.l3 + IPV4_LENGTH)))
            .minus_word(id)
            .minus_word(u16::from_be_bytes(self.field(self.l3 + IPV4_CSUM)));
        Some(Network::V4 { id, header })
    }

    /// Reads the transport header; `None` if its length changed after the check.
    fn transport(&self, tcp: bool) -> Option<Transport> {
        if !tcp {
            return Some(Transport::Udp);
        }
        let offset = self.headers[self.l4 + TCP_DATA_OFFSET];
        if usize::from(offset >> 4) * 4 != self.headers_len - self.l4 {
            return None;
        }
        let sequence = u32::from_be_bytes(self.field(self.l4 + TCP_SEQUENCE));
        Some(Transport::Tcp { sequence, offset, flags: self.headers[self.l4 + TCP_FLAGS] })
    }

    /// Sums the fields that all segments have in common.
    fn sum_up(&mut self, len: usize) {
        // The checksum field holds the pseudo-header's sum, with the length of the whole packet.
        let field = u16::from_be_bytes(self.field(self.csum_at()));
        self.pseudo = Sum::ZERO.word(field).minus_word((len - self.l4) as u16);
        self.header = Sum::of(&self.headers[self.l4..self.headers_len]).minus_word(field);
        self.header = match self.transport {
            Transport::Tcp { sequence, offset, flags } => self
                .header
                .minus_word((sequence >> 16) as u16)
                .minus_word(sequence as u16)
                .minus_word(u16::from_be_bytes([offset, flags])),
            Transport::Udp => {
                self.header.minus_word(u16::from_be_bytes(self.field(self.l4 + UDP_LENGTH)))
            }
        };
    }

    /// Returns the number of segments, at most [`MAX_SEGMENTS`]; see [`Segmenter::surplus`].
    #[inline]
    pub fn segments(&self) -> u32 {
        self.segments.min(MAX_SEGMENTS as usize) as u32
    }

    /// Returns the number of segments beyond [`MAX_SEGMENTS`], which the caller drops and counts.
    #[inline]
    pub fn surplus(&self) -> u32 {
        self.segments.saturating_sub(MAX_SEGMENTS as usize) as u32
    }

    /// Returns the offset in the frame, and the length in bytes, of a segment's payload; length 0
    /// if the segment does not exist.
    #[inline]
    pub fn payload(&self, index: u32) -> (u32, u32) {
        let from = (index as usize).saturating_mul(self.size).min(self.payload);
        let len = (self.payload - from).min(self.size);
        ((self.headers_len + from) as u32, len as u32)
    }

    /// Returns the length of each segment's headers in bytes.
    #[inline]
    pub fn headers_len(&self) -> usize {
        self.headers_len
    }

    /// Returns the headers of a segment with all checksums; `payload` is the sum of the segment's
    /// payload.
    #[inline]
    pub fn complete(&mut self, index: u32, payload: Sum) -> &[u8] {
        let (length, differing) = self.write(index);
        // The headers have an even length, so the payload begins at an even position.
        let sum = self.pseudo.word(length).plus(self.header).plus(differing).plus(payload);
        self.put(self.csum_at(), sum.checksum());
        &self.headers[..self.headers_len]
    }

    /// Returns the headers of a segment whose TCP or UDP checksum is left to the receiver, who
    /// needs [`Segmenter::partial_header`] for that.
    #[inline]
    pub fn partial(&mut self, index: u32) -> &[u8] {
        let (length, _) = self.write(index);
        self.put(self.csum_at(), self.pseudo.word(length).to_bytes());
        &self.headers[..self.headers_len]
    }

    /// Returns the virtio-net header for each segment of [`Segmenter::partial`].
    #[inline]
    pub fn partial_header(&self) -> VnetHdr {
        VnetHdr {
            flags: NEEDS_CSUM,
            csum_start: (self.l4 as u16).to_le_bytes(),
            csum_offset: ((self.csum_at() - self.l4) as u16).to_le_bytes(),
            ..VnetHdr::plain(1)
        }
    }

    /// Writes a segment's fields except the transport checksum. Returns the length in the
    /// pseudo-header, and the sum of the transport header's fields that differ between segments.
    #[inline]
    fn write(&mut self, index: u32) -> (u16, Sum) {
        let (_, payload) = self.payload(index);
        let end = self.headers_len + payload as usize;
        self.write_network(index, end);
        let length = (end - self.l4) as u16;
        (length, self.write_transport(index, length))
    }

    /// Writes a segment's network header; `end` is the length of the segment's frame.
    #[inline]
    fn write_network(&mut self, index: u32, end: usize) {
        match self.network {
            Network::V4 { id, header } => {
                let length = (end - self.l3) as u16;
                let id = id.wrapping_add(index as u16);
                self.put(self.l3 + IPV4_LENGTH, length.to_be_bytes());
                self.put(self.l3 + IPV4_ID, id.to_be_bytes());
                self.put(self.l3 + IPV4_CSUM, header.word(length).word(id).header_checksum());
            }
            Network::V6 => {
                let length = (end - self.l3 - IPV6_HEADER) as u16;
                self.put(self.l3 + IPV6_LENGTH, length.to_be_bytes());
            }
        }
    }

    /// Writes a segment's transport header, and returns the sum of the written fields. `length` is
    /// the segment's length from the transport header.
    #[inline]
    fn write_transport(&mut self, index: u32, length: u16) -> Sum {
        match self.transport {
            Transport::Tcp { sequence, offset, mut flags } => {
                let sequence = sequence.wrapping_add(index.wrapping_mul(self.size as u32));
                if index != 0 {
                    flags &= !CWR;
                }
                if index as usize + 1 != self.segments {
                    flags &= !(FIN | PSH);
                }
                self.put(self.l4 + TCP_SEQUENCE, sequence.to_be_bytes());
                self.put(self.l4 + TCP_FLAGS, [flags]);
                Sum::ZERO
                    .word((sequence >> 16) as u16)
                    .word(sequence as u16)
                    .word(u16::from_be_bytes([offset, flags]))
            }
            Transport::Udp => {
                self.put(self.l4 + UDP_LENGTH, length.to_be_bytes());
                Sum::ZERO.word(length)
            }
        }
    }

    /// Returns the offset of the transport checksum.
    #[inline(always)]
    fn csum_at(&self) -> usize {
        self.l4
            + match self.transport {
                Transport::Tcp { .. } => TCP_CSUM,
                Transport::Udp => UDP_CSUM,
            }
    }

    /// Returns bytes of the headers; zeros beyond [`MAX_EGRESS_HEADERS_LEN`].
    #[inline(always)]
    fn field<const N: usize>(&self, at: usize) -> [u8; N] {
        self.headers.get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or([0; N])
    }

    #[inline(always)]
    fn put<const N: usize>(&mut self, at: usize, bytes: [u8; N]) {
        // `new` has checked all offsets, but the compiler does not know that.
        if let Some(field) = self.headers.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
            *field = bytes;
        }
    }
}

/// Returns two flags of a request to segment, IPv4 and TCP; `None` if the request is another one.
fn kind(request: &Request) -> Option<(bool, bool)> {
    let needs = |offload| request.needs.has(offload);
    match request.header.gso_type & !GSO_ECN {
        GSO_TCPV4 if needs(Offloads::TSO4) => Some((true, true)),
        GSO_TCPV6 if needs(Offloads::TSO6) => Some((false, true)),
        GSO_UDP_L4 if needs(Offloads::USO4) => Some((true, false)),
        GSO_UDP_L4 if needs(Offloads::USO6) => Some((false, false)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::offload::{Refused, check};

    /// Returns a frame of IPv4 and TCP without options, with FIN, PSH, ACK and CWR, its length for
    /// 3,000 bytes of payload, and its virtio-net header.
    fn tcp4() -> (Vec<u8>, u32, VnetHdr) {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
        let len = (14 + 40 + 3000) as u32;
        let [high, low] = (len as u16 - 14).to_be_bytes();
        frame.extend([0x45, 0, high, low, 0xff, 0xff, 0x40, 0]);
        frame.extend([64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([0x12, 0x34, 0, 80, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1]);
        frame.extend([0x50, 0x99, 1, 0]);
        let pseudo = Sum::of(&frame[26..34]).word(6).word((len - 34) as u16);
        frame.extend(pseudo.to_bytes());
        frame.extend([0, 0]);
        let header = VnetHdr {
            flags: NEEDS_CSUM,
            gso_type: GSO_TCPV4 | GSO_ECN,
            gso_size: 1448u16.to_le_bytes(),
            csum_start: 34u16.to_le_bytes(),
            csum_offset: 16u16.to_le_bytes(),
            ..VnetHdr::plain(0)
        };
        (frame, len, header)
    }

    fn request(frame: &[u8], len: u32, header: VnetHdr) -> Result<Request, Refused> {
        check(header, frame, len, Offloads::ALL)
    }

    #[test]
    fn a_packet_becomes_its_segments() {
        let (frame, len, header) = tcp4();
        let request = request(&frame, len, header).expect("sound");
        let mut segmenter = Segmenter::new(&request, &frame, len).expect("sound");
        assert_eq!((segmenter.segments(), segmenter.surplus()), (3, 0));
        let parts = [0, 1, 2, 3].map(|i| segmenter.payload(i));
        assert_eq!(parts, [(54, 1448), (1502, 1448), (2950, 104), (3054, 0)]);

        let expected = [
            (1488u16, 0xffffu16, 0xffff_ffffu32, 0x90u8),
            (1488, 0, 1447, 0x10),
            (144, 1, 2895, 0x19),
        ];
        for (i, (length, id, sequence, flags)) in (0..).zip(expected) {
            let payload = Sum::of(&vec![i as u8 + 1; usize::from(length) - 40]);
            let headers = segmenter.complete(i, payload);
            assert_eq!(headers.len(), 54);
            assert_eq!(headers[16..18], length.to_be_bytes());
            assert_eq!(headers[18..20], id.to_be_bytes());
            assert_eq!(headers[38..42], sequence.to_be_bytes());
            assert_eq!(headers[47], flags);
            // RFC 1071: the sum over everything with the checksum is all ones.
            assert_eq!(Sum::of(&headers[14..34]).fold(), 0xffff);
            let pseudo = Sum::of(&headers[26..34]).word(6).word(length - 20);
            assert_eq!(pseudo.plus(Sum::of(&headers[34..])).plus(payload).fold(), 0xffff);

            let headers = segmenter.partial(i);
            assert_eq!(headers[50..52], pseudo.to_bytes());
        }
        let partial = segmenter.partial_header().to_bytes();
        assert_eq!(partial, [1, 0, 0, 0, 0, 0, 34, 0, 16, 0, 1, 0]);
    }

    /// Most headers are read again from guest memory after the check: whatever they are then,
    /// segments have the checked lengths.
    #[test]
    fn headers_that_changed_meanwhile_are_refused_or_harmless() {
        let (frame, len, header) = tcp4();
        let request = request(&frame, len, header).expect("sound");
        let mut refused = Vec::new();
        for at in 0..frame.len() {
            for bits in 1..=u8::MAX {
                let mut changed = frame.clone();
                changed[at] ^= bits;
                let Some(mut segmenter) = Segmenter::new(&request, &changed, len) else {
                    refused.push((at, bits));
                    continue;
                };
                for index in [0, 2] {
                    let payload = segmenter.payload(index).1;
                    let headers = segmenter.complete(index, Sum::ZERO);
                    assert_eq!(headers[16..18], (40 + payload as u16).to_be_bytes(), "{at}");
                    assert_eq!((headers[14], headers[46] >> 4), (0x45, 5), "{at}");
                }
            }
        }
        // The refused changes: version and length of IPv4, length of TCP.
        let expected = (1..=u8::MAX).map(|bits| (14, bits));
        let expected = expected.chain((1..=u8::MAX).filter(|b| b >> 4 != 0).map(|b| (46, b)));
        assert_eq!(refused, expected.collect::<Vec<_>>());
    }

    #[test]
    fn contradictions_are_refused() {
        let (frame, len, header) = tcp4();
        let good = request(&frame, len, header).expect("sound");
        let with = |change: &dyn Fn(&mut Request)| {
            let mut request = good;
            change(&mut request);
            request
        };
        let none = |name: &str, request: &Request, headers: &[u8], len: u32| {
            assert!(Segmenter::new(request, headers, len).is_none(), "{name}");
        };
        none("fewer bytes than headers", &good, &frame[..53], len);
        none("headers and no payload", &good, &frame, 54);
        none("shorter than its headers", &good, &frame, 20);
        none("longer than IPv4 can say", &good, &frame, 14 + 65_536);
        none("nothing asked for", &Request::NONE, &frame, len);
        none("another type", &with(&|r| r.header.gso_type = GSO_TCPV6), &frame, len);
        none("no type", &with(&|r| r.header.gso_type = 0), &frame, len);
        none("UDP", &with(&|r| r.header.gso_type = GSO_UDP_L4), &frame, len);
        none("no size", &with(&|r| r.header.gso_size = [0; 2]), &frame, len);
        none("no headers", &with(&|r| r.header.hdr_len = [0; 2]), &frame, len);
        none("all is headers", &with(&|r| r.header.hdr_len = [0, 1]), &[0; 300], len);
        none("more headers than kept", &with(&|r| r.header.hdr_len = [1, 1]), &[0; 300], len);
        none("a wider header", &with(&|r| r.header.hdr_len = [55, 0]), &frame, len);
        none("another sum", &with(&|r| r.header.csum_offset = [6, 0]), &frame, len);
        none("sum before the packet", &with(&|r| r.header.csum_start = [4, 0]), &frame, len);
        none("sum in the packet's header", &with(&|r| r.header.csum_start = [33, 0]), &frame, len);
        none("sum far away", &with(&|r| r.header.csum_start = [0xff, 0xff]), &frame, len);
        let udp = |headers: u8| {
            with(&|r| {
                r.needs = Offloads::USO4;
                r.header.gso_type = GSO_UDP_L4;
                r.header.csum_offset = [6, 0];
                r.header.hdr_len = [headers, 0];
            })
        };
        assert!(Segmenter::new(&udp(42), &frame, len).is_some());
        none("a wider UDP header", &udp(43), &frame, len);
        none("another network header", &with(&|r| r.l3 = 18), &frame, len);
        none("network header far away", &with(&|r| r.l3 = 255), &frame, len);
    }

    /// No field of a request, alone or with another field, leads outside the headers.
    #[test]
    fn no_request_panics() {
        // Offsets of IPv4 and IPv6 behind 14 and 22 bytes of Ethernet, and of their transport
        // headers.
        let values = [0, 1, 6, 14, 16, 34, 42, 54, 62, 78, 86, 255, 256, 257, 65_535u16];
        let values = values.map(u16::to_le_bytes);
        let (mut accepted, sizes) = ([0; 3], [(1u16, 2000), (9, 65_589), (65_535, u32::MAX)]);
        // IP versions 4 and 6; version 6 with TCP headers of 24 bytes.
        let first = [(Offloads::USO4, 0x45), (Offloads::USO6, 0x65), (Offloads::TSO6, 0x65)];
        for (kind, (offload, byte)) in first.into_iter().enumerate() {
            let gso_type = if offload == Offloads::TSO6 { GSO_TCPV6 } else { GSO_UDP_L4 };
            let mut try_all = |csum_start, csum_offset, hdr_len, l3| {
                for (size, len) in sizes {
                    let header = VnetHdr {
                        gso_type,
                        hdr_len,
                        gso_size: size.to_le_bytes(),
                        csum_start,
                        csum_offset,
                        ..VnetHdr::plain(1)
                    };
                    let request = Request { needs: offload, l3, header };
                    let bytes = [byte; MAX_EGRESS_HEADERS_LEN];
                    let Some(mut segmenter) = Segmenter::new(&request, &bytes, len) else {
                        continue;
                    };
                    accepted[kind] += 1;
                    for index in [0, segmenter.segments() - 1, segmenter.segments(), u32::MAX] {
                        segmenter.payload(index);
                        segmenter.complete(index, Sum::from_raw(u64::MAX));
                        segmenter.partial(index);
                    }
                }
            };
            for start in values {
                for offset in values {
                    for hdr_len in values {
                        for l3 in [0, 14, 22, 255] {
                            try_all(start, offset, hdr_len, l3);
                        }
                    }
                }
            }
        }
        assert!(accepted.iter().all(|&n| n > 0), "{accepted:?}: the table is broken");
    }

    #[test]
    fn more_segments_than_a_receiver_is_held_for_are_surplus() {
        let (mut frame, len, mut header) = tcp4();
        header.gso_size = [8, 0];
        let long = 54 + 8 * MAX_SEGMENTS + 17;
        frame[16..18].copy_from_slice(&((long - 14) as u16).to_be_bytes());
        let request = request(&frame, long, header).expect("sound");
        let mut segmenter = Segmenter::new(&request, &frame, long).expect("sound");
        assert_eq!((segmenter.segments(), segmenter.surplus()), (MAX_SEGMENTS, 3));
        // FIN and PSH belong to a segment that is dropped.
        assert_eq!(segmenter.complete(MAX_SEGMENTS - 1, Sum::ZERO)[47], 0x10);
        assert_eq!(segmenter.payload(MAX_SEGMENTS + 2), (long - 1, 1));
        assert!(len < long);
    }
}
