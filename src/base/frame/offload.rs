//! What a virtio-net header asks of the receiver of the frame: a checksum to finish, a packet to
//! cut into segments (virtio 1.2 sections 5.1.6.2 and 5.1.6.4).
//!
//! A sender's header is a claim. [`check`] holds it to the sender's own features and to the bytes
//! of the frame, and answers with a header of our own making: only that one ever reaches a
//! receiver. What is nonsense is refused as a whole, as every receiver trusts its device: Linux
//! has had to learn to distrust these fields (`virtio_net_hdr_to_skb`), other systems have not.
//!
//! `hdr_len` is checked like Linux does (`tun_get_user`: not beyond the frame) and then computed
//! anew; section 5.1.6.2.1 forbids relying on it.

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

/// `VIRTIO_NET_HDR_GSO_TCPV4`, `_TCPV6`, `_UDP_L4` and the bit `_ECN`.
pub const GSO_TCPV4: u8 = 1;
/// See [`GSO_TCPV4`].
pub const GSO_TCPV6: u8 = 4;
/// See [`GSO_TCPV4`].
pub const GSO_UDP_L4: u8 = 5;
/// See [`GSO_TCPV4`].
pub const GSO_ECN: u8 = 0x80;

/// Where TCP and UDP keep their checksum.
pub(super) const TCP_CSUM: usize = 16;
pub(super) const UDP_CSUM: usize = 6;
/// Bytes of the headers without options.
pub(super) const IPV4_HEADER: usize = 20;
pub(super) const IPV6_HEADER: usize = 40;
pub(super) const TCP_HEADER: usize = 20;
pub(super) const UDP_HEADER: usize = 8;

/// A set of offloads: what a port has acknowledged, or what a frame asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Offloads(u8);

impl Offloads {
    /// None.
    pub const NONE: Offloads = Offloads(0);
    /// Checksums.
    pub const CSUM: Offloads = Offloads(1);
    /// TCP over IPv4 in packets of up to 64 KiB.
    pub const TSO4: Offloads = Offloads(2);
    /// TCP over IPv6 likewise.
    pub const TSO6: Offloads = Offloads(4);
    /// Either with CWR set (RFC 3168 section 6.1.2), which only the first segment may carry.
    pub const ECN: Offloads = Offloads(8);
    /// UDP over IPv4: several datagrams of one size in one packet.
    pub const USO4: Offloads = Offloads(16);
    /// UDP over IPv6 likewise.
    pub const USO6: Offloads = Offloads(32);
    /// Not an offload: what a frame needs that no receiver takes as it is.
    pub const NEVER: Offloads = Offloads(64);
    /// All there are.
    pub const ALL: Offloads = Offloads(63);

    /// Those of either set.
    #[inline(always)]
    pub const fn or(self, other: Offloads) -> Offloads {
        Offloads(self.0 | other.0)
    }

    /// Those of both sets.
    #[inline(always)]
    pub const fn and(self, other: Offloads) -> Offloads {
        Offloads(self.0 & other.0)
    }

    /// These less those of `other`.
    #[inline(always)]
    pub const fn without(self, other: Offloads) -> Offloads {
        Offloads(self.0 & !other.0)
    }

    /// As a number, to be stored.
    pub const fn to_bits(self) -> u8 {
        self.0
    }

    /// From a number; bits without a meaning are dropped.
    pub const fn from_bits(bits: u8) -> Offloads {
        Offloads(bits & Offloads::ALL.0)
    }

    /// True if every offload of `other` is among these.
    #[inline(always)]
    pub const fn has(self, other: Offloads) -> bool {
        other.0 & !self.0 == 0
    }

    /// True without any.
    #[inline(always)]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// The offloads that a frame asks for, checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The offloads that a receiver must have acknowledged to get the frame as it is.
    pub needs: Offloads,
    /// Offset of the network header, at most 22.
    pub l3: u8,
    /// The header for a receiver that has: `num_buffers` is 1, and `hdr_len` the length of all
    /// headers up to the payload if the frame is to be segmented, else 0.
    pub header: VnetHdr,
}

impl Request {
    /// Nothing.
    pub const NONE: Request = Request { needs: Offloads::NONE, l3: 0, header: VnetHdr::plain(1) };

    /// First byte that the checksum covers.
    #[inline(always)]
    pub const fn csum_start(&self) -> usize {
        u16::from_le_bytes(self.header.csum_start) as usize
    }

    /// Where in the frame the checksum stands.
    #[inline(always)]
    pub const fn csum_at(&self) -> usize {
        self.csum_start() + u16::from_le_bytes(self.header.csum_offset) as usize
    }

    /// Payload bytes of a segment; 0 if the frame is not to be segmented.
    #[inline(always)]
    pub const fn gso_size(&self) -> usize {
        u16::from_le_bytes(self.header.gso_size) as usize
    }

    /// Bytes of all headers of a frame to be segmented.
    #[inline(always)]
    pub const fn headers_len(&self) -> usize {
        u16::from_le_bytes(self.header.hdr_len) as usize
    }

    /// True if the frame is to be segmented.
    #[inline(always)]
    pub const fn is_gso(&self) -> bool {
        self.header.gso_type != 0
    }
}

/// Why there is no [`Request`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// More of the frame's first bytes are needed to tell.
    Short,
    /// The header contradicts the frame or the sender's features.
    Nonsense,
}

/// Checks what `header` asks for a frame of `len` bytes that begins with `bytes`: all of them, or
/// [`MAX_HEADERS_LEN`], or fewer and then the answer may be [`Refused::Short`]. `may` is what the
/// sender has acknowledged. A header that asks for nothing is answered with [`Request::NONE`].
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
        // One segment's worth is no GSO packet, whatever its header says.
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
    /// Of the whole frame.
    len: usize,
}

/// A frame down to its transport header.
struct Packet {
    l3: usize,
    /// Transport header, or what follows Ethernet if that is not IP.
    l4: usize,
    ethertype: u16,
    /// Protocol at `l4`; none if the packet is a fragment or not IP.
    proto: Option<u8>,
    fragment: bool,
}

/// The needs and the header length of a GSO packet.
struct Gso {
    needs: Offloads,
    headers: usize,
}

impl View<'_> {
    /// The error for bytes up to `end` that are not here: whether the frame, and what is looked at
    /// of it, goes that far.
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
        // Ends with the bytes: each header has at least eight.
        loop {
            match next {
                HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS => {
                    next = self.u8(at)?;
                    at += 8 + 8 * usize::from(self.u8(at + 1)?);
                }
                // Not authentication headers: no part of a packet has the digest of the whole.
                FRAGMENT => return Ok(Packet { l4: at, fragment: true, ..none }),
                proto => return Ok(Packet { l4: at, proto: Some(proto), ..none }),
            }
        }
    }

    /// The checksum must lie behind the network header, in the frame, and where its protocol has
    /// it. Protocols that are not looked into (tunnels, PPPoE) may have it anywhere there.
    fn check_sum(&self, packet: &Packet, start: usize, offset: usize) -> Result<(), Refused> {
        let end = start + offset + 2;
        let inside = start >= packet.l4 && end <= self.len.min(MAX_HEADERS_LEN);
        let placed = match packet.proto {
            Some(TCP) => start == packet.l4 && offset == TCP_CSUM,
            Some(UDP) if start == packet.l4 => offset == UDP_CSUM,
            // In a tunnel.
            Some(UDP) => start >= packet.l4 + UDP_HEADER,
            // A part of a packet has no sum of its own.
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
