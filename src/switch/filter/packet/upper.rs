//! What follows the headers of IP: TCP (RFC 9293), UDP (RFC 768), SCTP (RFC 9260) and ICMP.

use super::icmp;
use super::{Content, Ends, Packet, Parsed, Part, Segment, Unread};
use crate::filter::rule::{ICMP, SCTP};
use crate::port_security::Headers;
use base::frame::protocol::{ICMPV6, TCP, UDP};

pub(super) const TCP_HEADER: usize = 20;
pub(super) const UDP_HEADER: usize = 8;
/// The common header of SCTP, and that of the first chunk.
const SCTP_HEADER: usize = 12 + 4;

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;
const URG: u8 = 0x20;

/// What the headers of IP say.
pub(super) struct Network {
    pub(super) v6: bool,
    pub(super) vlan: u16,
    pub(super) l3: usize,
    pub(super) l4: usize,
    pub(super) protocol: u8,
    pub(super) from: u128,
    pub(super) to: u128,
    pub(super) part: Part,
    /// Begin of the data that was split into fragments; without fragments as `l4` or before.
    pub(super) data: usize,
    /// The packet has a fragment header of IPv6, perhaps as its only fragment.
    pub(super) has_fragment_header: bool,
    /// Time to live, or hop limit.
    pub(super) hops: u8,
}

/// Reads the transport or ICMP header, which follows the IP headers. `headers.len` is the packet's
/// end.
#[inline]
pub(super) fn parse(headers: &Headers<'_>, network: &Network) -> Result<Parsed, Unread> {
    let Network { v6, vlan, l3, l4, protocol, from, to, mut part, .. } = *network;
    if let Part::First { header_end, .. } = &mut part {
        *header_end = (l4 - network.data + header_of(protocol)) as u16;
    }
    let content = match part {
        Part::Later { begin, .. } if usize::from(begin) < header_of(protocol) => {
            return Err(Unread::Bad);
        }
        Part::Later { .. } => Content::Other,
        _ => match (protocol, v6) {
            (TCP, _) => tcp(headers, l4)?,
            (UDP, _) => udp(headers, l4)?,
            (SCTP, _) => sctp(headers, l4)?,
            (ICMP, false) | (ICMPV6, true) => match icmp::parse(headers, network)? {
                Some(content) => content,
                None => return Ok(Parsed::Neighbour),
            },
            _ => Content::Other,
        },
    };
    let (l3, l4) = (l3 as u16, l4 as u16);
    Ok(Parsed::Packet(Packet { v6, protocol, vlan, from, to, part, content, l3, l4 }))
}

/// Returns the bytes of a protocol's header that decide about the packet.
fn header_of(protocol: u8) -> usize {
    match protocol {
        TCP => TCP_HEADER,
        SCTP => SCTP_HEADER,
        _ => UDP_HEADER,
    }
}

/// Reads both ports.
#[inline(always)]
pub(super) fn ends(headers: &Headers<'_>, at: usize) -> Result<Ends, Unread> {
    Ok(Ends { from: headers.u16(at)?, to: headers.u16(at + 2)? })
}

/// Segments by the lower six bits of their flags; `None` for combinations without a meaning.
static SEGMENTS: [Option<Segment>; 64] = {
    let (mut segments, mut flags) = ([None; 64], 0);
    while flags < segments.len() {
        segments[flags] = read_flags(flags as u8);
        flags += 1;
    }
    segments
};

const fn read_flags(flags: u8) -> Option<Segment> {
    const SYN_ACK: u8 = SYN | ACK;
    const FIN_ACK: u8 = FIN | ACK;
    // Linux (`tcp_valid_flags`) refuses urgent data in these.
    if flags & URG != 0 && (flags & RST != 0 || flags & SYN_ACK == SYN_ACK) {
        return None;
    }
    match flags & (FIN | SYN | RST | ACK) {
        ACK => Some(Segment::Ack),
        SYN => Some(Segment::Syn),
        SYN_ACK => Some(Segment::SynAck),
        FIN_ACK => Some(Segment::Fin),
        flags if flags & !ACK == RST => Some(Segment::Rst),
        _ => None,
    }
}

/// Returns the segment that has these flags and data or not; `None` if the flags have no meaning.
#[inline(always)]
pub(super) fn segment(flags: u8, has_data: bool) -> Option<Segment> {
    let segment = SEGMENTS[usize::from(flags) % SEGMENTS.len()];
    if has_data && segment == Some(Segment::Ack) { Some(Segment::Data) } else { segment }
}

#[inline(always)]
fn tcp(headers: &Headers<'_>, at: usize) -> Result<Content, Unread> {
    let len = usize::from(headers.u8(at + 12)? >> 4) * 4;
    if len < TCP_HEADER || at + len > headers.len {
        return Err(Unread::Bad);
    }
    let flags = headers.u8(at + 13)?;
    let segment = segment(flags, at + len < headers.len).ok_or(Unread::Bad)?;
    Ok(Content::Tcp(ends(headers, at)?, segment))
}

fn udp(headers: &Headers<'_>, at: usize) -> Result<Content, Unread> {
    match at + UDP_HEADER <= headers.len {
        true => Ok(Content::Udp(ends(headers, at)?)),
        false => Err(Unread::Bad),
    }
}

fn sctp(headers: &Headers<'_>, at: usize) -> Result<Content, Unread> {
    match at + SCTP_HEADER <= headers.len {
        true => Ok(Content::Sctp(ends(headers, at)?, headers.u8(at + 12)?)),
        false => Err(Unread::Bad),
    }
}
