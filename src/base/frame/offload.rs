//! Checks the offloads that a virtio-net header requests of a frame's receiver: a checksum to
//! finish, a packet to segment (virtio 1.2 sections 5.1.6.2 and 5.1.6.4).
//!
//! A sender's header is not trusted. [`check`] compares the header with the sender's features and
//! the frame's bytes, and returns a new header; only the new header ever reaches a receiver. A
//! header with any wrong field is refused, because receivers trust their device: Linux has learned
//! to distrust these fields (`virtio_net_hdr_to_skb`), other systems have not.
//!
//! `hdr_len` must not exceed the frame, as in Linux (`tun_get_user`), and is then computed anew:
//! section 5.1.6.2.1 forbids relying on the sender's value.

use super::VnetHdr;
use super::ethernet::l3_offset;
use super::protocol::{
    DESTINATION_OPTIONS, ETHERTYPE_IPV4, ETHERTYPE_IPV6, FRAGMENT, HOP_BY_HOP, ROUTING, TCP, UDP,
};
use crate::limits::{MAX_DATAGRAMS, MAX_HEADERS_LEN, MIN_TCP_GSO_SIZE};

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`.
pub const NEEDS_CSUM: u8 = 1;
/// `VIRTIO_NET_HDR_F_DATA_VALID`.
pub const DATA_VALID: u8 = 2;

/// `VIRTIO_NET_HDR_GSO_TCPV4`.
pub const GSO_TCPV4: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_TCPV6`.
pub const GSO_TCPV6: u8 = 4;
/// `VIRTIO_NET_HDR_GSO_UDP_L4`.
pub const GSO_UDP_L4: u8 = 5;
/// `VIRTIO_NET_HDR_GSO_ECN`, a bit beside the type.
pub const GSO_ECN: u8 = 0x80;

/// Offset of the checksum in a TCP and in a UDP header.
pub(super) const TCP_CSUM: usize = 16;
pub(super) const UDP_CSUM: usize = 6;
/// Bytes of the headers, without options.
pub(super) const IPV4_HEADER: usize = 20;
pub(super) const IPV6_HEADER: usize = 40;
pub(super) const TCP_HEADER: usize = 20;
pub(super) const UDP_HEADER: usize = 8;

/// A set of offloads: acknowledged by a port, or requested by a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Offloads(u8);

impl Offloads {
    /// No offload.
    pub const NONE: Offloads = Offloads(0);
    /// Partial checksums.
    pub const CSUM: Offloads = Offloads(1);
    /// TCP over IPv4 in packets of up to 64 KiB.
    pub const TSO4: Offloads = Offloads(2);
    /// TCP over IPv6 in packets of up to 64 KiB.
    pub const TSO6: Offloads = Offloads(4);
    /// TSO with CWR set (RFC 3168 section 6.1.2), which only the first segment may carry.
    pub const ECN: Offloads = Offloads(8);
    /// UDP over IPv4: several datagrams of one size in one packet.
    pub const USO4: Offloads = Offloads(16);
    /// UDP over IPv6: several datagrams of one size in one packet.
    pub const USO6: Offloads = Offloads(32);
    /// No offload: a need of frames that no receiver takes unchanged.
    pub const NEVER: Offloads = Offloads(64);
    /// All offloads.
    pub const ALL: Offloads = Offloads(63);

    /// Returns the union of both sets.
    #[inline(always)]
    pub const fn or(self, other: Offloads) -> Offloads {
        Offloads(self.0 | other.0)
    }

    /// Returns the intersection of both sets.
    #[inline(always)]
    pub const fn and(self, other: Offloads) -> Offloads {
        Offloads(self.0 & other.0)
    }

    /// Returns the offloads of `self` that are not in `other`.
    #[inline(always)]
    pub const fn without(self, other: Offloads) -> Offloads {
        Offloads(self.0 & !other.0)
    }

    /// Returns the set as a number.
    pub const fn to_bits(self) -> u8 {
        self.0
    }

    /// Returns the set of a number; ignores bits that are no offload.
    pub const fn from_bits(bits: u8) -> Offloads {
        Offloads(bits & Offloads::ALL.0)
    }

    /// Returns true if every offload of `other` is in `self`.
    #[inline(always)]
    pub const fn has(self, other: Offloads) -> bool {
        other.0 & !self.0 == 0
    }

    /// Returns true if the set has no offload.
    #[inline(always)]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// The checked offload request of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The offloads that a receiver must have acknowledged to get the frame unchanged.
    pub needs: Offloads,
    /// Offset of the network header, at most 22.
    pub l3: u8,
    /// The header for a receiver with these offloads: `num_buffers` is 1, and `hdr_len` is the
    /// length of all headers if the frame is to be segmented, else 0.
    pub header: VnetHdr,
}

impl Request {
    /// No request.
    pub const NONE: Request = Request { needs: Offloads::NONE, l3: 0, header: VnetHdr::plain(1) };

    /// Returns the offset of the first byte that the checksum covers.
    #[inline(always)]
    pub const fn csum_start(&self) -> usize {
        u16::from_le_bytes(self.header.csum_start) as usize
    }

    /// Returns the offset of the checksum field in the frame.
    #[inline(always)]
    pub const fn csum_at(&self) -> usize {
        self.csum_start() + u16::from_le_bytes(self.header.csum_offset) as usize
    }

    /// Returns the payload bytes of a segment; 0 if the frame is not to be segmented.
    #[inline(always)]
    pub const fn gso_size(&self) -> usize {
        u16::from_le_bytes(self.header.gso_size) as usize
    }

    /// Returns the length of all headers in bytes, of a frame to be segmented.
    #[inline(always)]
    pub const fn headers_len(&self) -> usize {
        u16::from_le_bytes(self.header.hdr_len) as usize
    }

    /// Returns true if the frame is to be segmented.
    #[inline(always)]
    pub const fn is_gso(&self) -> bool {
        self.header.gso_type != 0
    }
}

/// The reason why a header gives no [`Request`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// More of the frame's first bytes are needed.
    Short,
    /// The header contradicts the frame or the sender's features.
    Nonsense,
}

/// Checks the request of `header` for a frame of `len` bytes that begins with `bytes`: all bytes,
/// or [`MAX_HEADERS_LEN`]. With fewer bytes the result may be [`Refused::Short`]. `may` holds the
/// offloads that the sender has acknowledged. A header without a request gives [`Request::NONE`].
pub fn check(header: VnetHdr, bytes: &[u8], len: u32, may: Offloads) -> Result<Request, Refused> {
    if header.is_plain() {
        return Ok(Request::NONE);
    }
    let len = len as usize;
    let sum = header.flags & NEEDS_CSUM != 0 && may.has(Offloads::CSUM);
    if !sum || usize::from(u16::from_le_bytes(header.hdr_len)) > len {
        return Err(Refused::Nonsense);
    }
    let view = View { bytes, len };
    let packet = view.packet()?;
    let start = usize::from(u16::from_le_bytes(header.csum_start));
    let offset = usize::from(u16::from_le_bytes(header.csum_offset));
    view.check_sum(&packet, start, offset)?;
    let plain = VnetHdr {
        flags: NEEDS_CSUM,
        csum_start: header.csum_start,
        csum_offset: header.csum_offset,
        ..VnetHdr::plain(1)
    };
    let mut request = Request { needs: Offloads::CSUM, l3: packet.l3 as u8, header: plain };
    if header.gso_type != 0 {
        let kind = view.check_gso(&packet, &header, start, may)?;
        let size = usize::from(u16::from_le_bytes(header.gso_size));
        // A packet that fits one segment is no GSO packet, whatever its header says.
        if len - kind.headers > size {
            request.needs = kind.needs;
            request.header.gso_type = header.gso_type;
            request.header.gso_size = header.gso_size;
            request.header.hdr_len = (kind.headers as u16).to_le_bytes();
            if header.gso_type == GSO_UDP_L4 && len - kind.headers > MAX_DATAGRAMS * size {
                request.needs = kind.needs.or(Offloads::NEVER);
            }
        }
    }
    Ok(request)
}

/// The first bytes of a frame.
struct View<'a> {
    bytes: &'a [u8],
    /// Length of the whole frame in bytes.
    len: usize,
}

/// The headers of a frame, down to the transport header.
struct Packet {
    l3: usize,
    /// Offset of the transport header, or of the bytes behind Ethernet if they are not IP.
    l4: usize,
    ethertype: u16,
    /// Protocol at `l4`; `None` if the packet is a fragment or not IP.
    proto: Option<u8>,
    fragment: bool,
}

/// The needs and the header length of a GSO packet.
struct Gso {
    needs: Offloads,
    headers: usize,
}

impl View<'_> {
    /// Returns the error for missing bytes up to `end`: [`Refused::Short`] if the frame, limited to
    /// [`MAX_HEADERS_LEN`], has these bytes.
    fn missing(&self, end: usize) -> Refused {
        let ever = end <= self.len.min(MAX_HEADERS_LEN);
        if ever { Refused::Short } else { Refused::Nonsense }
    }

    fn u8(&self, at: usize) -> Result<u8, Refused> {
        self.bytes.get(at).copied().ok_or_else(|| self.missing(at + 1))
    }

    fn u16(&self, at: usize) -> Result<u16, Refused> {
        let two = self.bytes.get(at..).and_then(<[u8]>::first_chunk::<2>);
        two.map(|&b| u16::from_be_bytes(b)).ok_or_else(|| self.missing(at + 2))
    }

    fn packet(&self) -> Result<Packet, Refused> {
        let l3 = l3_offset(self.bytes);
        let ethertype = self.u16(l3 - 2)?;
        let none = Packet { l3, l4: l3, ethertype, proto: None, fragment: false };
        match ethertype {
            ETHERTYPE_IPV4 => self.ipv4(none),
            ETHERTYPE_IPV6 => self.ipv6(none),
            _ => Ok(none),
        }
    }

    fn ipv4(&self, none: Packet) -> Result<Packet, Refused> {
        let l3 = none.l3;
        let first = self.u8(l3)?;
        let header = usize::from(first & 0xf) * 4;
        if first >> 4 != 4 || header < IPV4_HEADER {
            return Err(Refused::Nonsense);
        }
        // MF, or an offset.
        let fragment = self.u16(l3 + 6)? & 0x3fff != 0;
        let proto = Some(self.u8(l3 + 9)?).filter(|_| !fragment);
        Ok(Packet { l4: l3 + header, proto, fragment, ..none })
    }

    fn ipv6(&self, none: Packet) -> Result<Packet, Refused> {
        if self.u8(none.l3)? >> 4 != 6 {
            return Err(Refused::Nonsense);
        }
        let mut next = self.u8(none.l3 + 6)?;
        let mut at = none.l3 + IPV6_HEADER;
        // The loop ends with the bytes: each header has at least eight bytes.
        loop {
            match next {
                HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS => {
                    next = self.u8(at)?;
                    at += 8 + 8 * usize::from(self.u8(at + 1)?);
                }
                // Authentication headers are not skipped: a segment cannot have the digest of the
                // whole packet.
                FRAGMENT => return Ok(Packet { l4: at, fragment: true, ..none }),
                proto => return Ok(Packet { l4: at, proto: Some(proto), ..none }),
            }
        }
    }

    /// Checks that the checksum field is behind the network header, in the frame, and at the
    /// position that its protocol demands. Protocols that are not parsed (tunnels, PPPoE) may have
    /// a checksum at any position behind the network header.
    fn check_sum(&self, packet: &Packet, start: usize, offset: usize) -> Result<(), Refused> {
        let end = start + offset + 2;
        let inside = start >= packet.l4 && end <= self.len.min(MAX_HEADERS_LEN);
        let placed = match packet.proto {
            Some(TCP) => start == packet.l4 && offset == TCP_CSUM,
            Some(UDP) if start == packet.l4 => offset == UDP_CSUM,
            // The checksum is in a tunnel.
            Some(UDP) => start >= packet.l4 + UDP_HEADER,
            // A fragment has no checksum of its own.
            _ => !packet.fragment,
        };
        if !inside || !placed {
            return Err(Refused::Nonsense);
        }
        if end > self.bytes.len() { Err(self.missing(end)) } else { Ok(()) }
    }

    fn check_gso(
        &self,
        packet: &Packet,
        header: &VnetHdr,
        start: usize,
        may: Offloads,
    ) -> Result<Gso, Refused> {
        let ecn = if header.gso_type & GSO_ECN != 0 { Offloads::ECN } else { Offloads::NONE };
        let v4 = packet.ethertype == ETHERTYPE_IPV4;
        let (needs, proto, least) = match (header.gso_type & !GSO_ECN, v4) {
            (GSO_TCPV4, true) => (Offloads::TSO4.or(ecn), TCP, MIN_TCP_GSO_SIZE),
            (GSO_TCPV6, false) => (Offloads::TSO6.or(ecn), TCP, MIN_TCP_GSO_SIZE),
            (GSO_UDP_L4, true) if ecn.is_empty() => (Offloads::USO4, UDP, 1),
            (GSO_UDP_L4, false) if ecn.is_empty() => (Offloads::USO6, UDP, 1),
            _ => return Err(Refused::Nonsense),
        };
        let sound = packet.proto == Some(proto)
            && start == packet.l4
            && u16::from_le_bytes(header.gso_size) >= least
            && may.has(needs);
        if !sound {
            return Err(Refused::Nonsense);
        }
        let transport = match proto {
            TCP => usize::from(self.u8(packet.l4 + 12)? >> 4) * 4,
            _ => UDP_HEADER,
        };
        let headers = packet.l4 + transport;
        let whole = transport >= if proto == TCP { TCP_HEADER } else { UDP_HEADER };
        if !whole || headers >= self.len || headers > MAX_HEADERS_LEN {
            return Err(Refused::Nonsense);
        }
        self.check_lengths(packet, proto)?;
        Ok(Gso { needs: needs.or(Offloads::CSUM), headers })
    }

    /// Refuses a packet to be segmented whose length fields are wrong: receivers and the sum of the
    /// pseudo-header rely on these fields.
    fn check_lengths(&self, packet: &Packet, proto: u8) -> Result<(), Refused> {
        let (field, from) = match packet.ethertype {
            ETHERTYPE_IPV4 => (self.u16(packet.l3 + 2)?, packet.l3),
            _ => (self.u16(packet.l3 + 4)?, packet.l3 + IPV6_HEADER),
        };
        let mut sound = usize::from(field) == self.len - from;
        if proto == UDP {
            sound &= usize::from(self.u16(packet.l4 + 4)?) == self.len - packet.l4;
        }
        if sound { Ok(()) } else { Err(Refused::Nonsense) }
    }
}

#[cfg(test)]
mod tests;
