//! Reads the first bytes of a frame: addresses, ports, and what the state of a connection needs.
//!
//! * A packet whose headers cannot be read to their end is refused ([`Unread::Bad`]): its receiver
//!   may read the headers differently. Such are headers beyond the first [`MAX_HEADERS_LEN`] bytes
//!   or beyond the end of the packet, a fragment that overlaps the header of its protocol (RFC
//!   3128), combinations of TCP flags without a meaning, and a checksum offload that would
//!   overwrite bytes that were read.
//! * For most frames the snapshot suffices; [`Unread::Short`] asks for the rest of
//!   [`MAX_HEADERS_LEN`].
//!
//! [`MAX_HEADERS_LEN`]: base::limits::MAX_HEADERS_LEN

mod icmp;
mod ipv4;
mod ipv6;
mod key;
mod plain;
mod upper;

use super::compiled::Fields;
pub use super::connections::Segment;
use super::rule::Message;
use crate::port_security::{Headers, Refused};
use base::frame::protocol::{
    ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_QINQ, ETHERTYPE_RARP, ETHERTYPE_VLAN,
};
pub use plain::Plain;

/// Why a packet cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unread {
    /// The first bytes of the frame are needed, as many as headers may have.
    Short,
    /// The packet breaks a rule of its protocol, or its headers are too long.
    Bad,
}

impl From<Refused> for Unread {
    fn from(refused: Refused) -> Unread {
        match refused {
            Refused::Short => Unread::Short,
            Refused::Whole | Refused::Broken(_) => Unread::Bad,
        }
    }
}

/// A frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parsed {
    /// ARP, neighbour discovery, or multicast listener discovery.
    Neighbour,
    /// Another type than IP.
    Foreign,
    /// An IP packet.
    Packet(Packet),
}

/// An IP packet, or a fragment of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet {
    /// The packet is of IPv6.
    pub v6: bool,
    /// IP protocol number; of a later fragment of IPv6 what the sender has written there, which its
    /// receiver ignores.
    pub protocol: u8,
    /// VLAN of the outer tag, or 0.
    pub vlan: u16,
    /// Source address as a number.
    pub from: u128,
    /// Destination address as a number.
    pub to: u128,
    /// Which part of the packet is in the frame.
    pub part: Part,
    /// The header behind those of IP.
    pub content: Content,
    /// Offset of the IP header in the frame.
    pub l3: u16,
    /// Offset in the frame of the transport or ICMP header.
    pub l4: u16,
}

/// A part of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The packet as a whole.
    Whole,
    /// The first fragment of a packet.
    First {
        /// Identification of the packet.
        id: u32,
        /// End of the headers that were read, in bytes of the data that was split into fragments.
        header_end: u16,
    },
    /// A later fragment, whose content is not known.
    Later {
        /// Identification of the packet.
        id: u32,
        /// Begin of the fragment, in bytes of the data that was split into fragments.
        begin: u16,
    },
}

/// The transport or ICMP header, which follows the IP headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// A segment of TCP.
    Tcp(Ends, Segment),
    /// A datagram of UDP.
    Udp(Ends),
    /// A packet of SCTP, with the type of its first chunk.
    Sctp(Ends, u8),
    /// A request of ICMP that has replies, or such a reply.
    Query {
        /// Type and code of the request, for replies too.
        request: Message,
        /// Type and code.
        message: Message,
        /// Identifier of the request and of its replies.
        id: u16,
    },
    /// An error of ICMP, and the packet that it quotes if that can be read.
    Error(Message, Option<Quoted>),
    /// Another message of ICMP.
    Message(Message),
    /// Any other protocol.
    Other,
}

/// Source and destination port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ends {
    /// The source port.
    pub from: u16,
    /// The destination port.
    pub to: u16,
}

/// The packet that an ICMP error quotes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quoted {
    /// IP protocol number.
    pub protocol: u8,
    /// Source address as a number: where the error must go.
    pub from: u128,
    /// Destination address as a number.
    pub to: u128,
    /// Ports, or the identifier of an ICMP request, and type and code of the request.
    pub ends: Ends,
    /// The quoted packet is a request of ICMP, or else a reply; false for other protocols.
    pub request: bool,
}

/// Reads a frame. `headers` has the frame's first bytes.
#[inline]
pub fn parse(headers: &Headers<'_>) -> Result<Parsed, Unread> {
    match headers.u16(12)? {
        ETHERTYPE_IPV4 => ipv4::parse(headers, 14, 0),
        ETHERTYPE_IPV6 => ipv6::parse(headers, 14, 0),
        other => parse_other(headers, other),
    }
}

/// Reads a frame other than an untagged IP packet.
#[inline(never)]
fn parse_other(headers: &Headers<'_>, mut ethertype: u16) -> Result<Parsed, Unread> {
    let (mut at, mut vlan) = (14, 0);
    while matches!(ethertype, ETHERTYPE_VLAN | ETHERTYPE_QINQ | 0x9100) {
        if at == 22 {
            return Err(Unread::Bad);
        }
        if at == 14 {
            vlan = headers.u16(at)? & 0xfff;
        }
        ethertype = headers.u16(at + 2)?;
        at += 4;
    }
    match ethertype {
        ETHERTYPE_IPV4 => ipv4::parse(headers, at, vlan),
        ETHERTYPE_IPV6 => ipv6::parse(headers, at, vlan),
        ETHERTYPE_ARP | ETHERTYPE_RARP => Ok(Parsed::Neighbour),
        _ => Ok(Parsed::Foreign),
    }
}

impl Packet {
    /// Fills an array before packets are read.
    pub const NONE: Packet = Packet {
        v6: false,
        protocol: 0,
        vlan: 0,
        from: 0,
        to: 0,
        part: Part::Whole,
        content: Content::Other,
        l3: 0,
        l4: 0,
    };

    /// Returns the fields that rules match.
    #[inline]
    pub fn fields(&self) -> Fields {
        let Ends { from: from_port, to: to_port } = match self.content {
            Content::Tcp(ends, _) | Content::Udp(ends) | Content::Sctp(ends, _) => ends,
            Content::Query { message, .. }
            | Content::Error(message, _)
            | Content::Message(message) => Ends { from: 0, to: message.ports().first },
            Content::Other => Ends { from: 0, to: 0 },
        };
        let Packet { v6, protocol, from, to, .. } = *self;
        Fields { v6, protocol, from, to, from_port, to_port }
    }
}
