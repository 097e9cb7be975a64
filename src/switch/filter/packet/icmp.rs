//! ICMP (RFC 792) and ICMPv6 (RFC 4443).

use super::upper::{Network, ends};
use super::{Content, Ends, Part, Quoted, Unread, ipv4, ipv6};
use crate::filter::rule::{ICMP, Message, SCTP};
use crate::port_security::Headers;
use base::frame::protocol::{ICMPV6, TCP, UDP};

/// Bytes in front of the body of a message, and the shortest message of ICMPv6 that has a body.
const HEADER: usize = 8;

/// Requests with the types of their replies: echo, timestamp, information and address mask (RFC
/// 792, 950); echo and node information (RFC 4443, 4620).
const QUERIES: [(u8, u8); 4] = [(8, 0), (13, 14), (15, 16), (17, 18)];
const QUERIES_6: [(u8, u8); 2] = [(128, 129), (139, 140)];
/// Errors, which quote a packet: unreachable, source quench, redirect, time exceeded, parameter
/// problem; unreachable, too big, time exceeded, parameter problem.
const ERRORS: [u8; 5] = [3, 4, 5, 11, 12];
const ERRORS_6: [u8; 4] = [1, 2, 3, 4];

/// Messages of neighbour discovery (RFC 4861), valid with a hop limit of 255 and without a fragment
/// header (RFC 6980).
const NEIGHBOUR_DISCOVERY: std::ops::RangeInclusive<u8> = 133..=137;
/// Messages of multicast listener discovery (RFC 2710, 3810), sent to a group with a hop limit of 1
/// from a link-local address or none.
const LISTENER_DISCOVERY: [u8; 4] = [130, 131, 132, 143];

/// Reads a message. Returns `None` for a message of neighbour discovery or listener discovery.
pub(super) fn parse(headers: &Headers<'_>, network: &Network) -> Result<Option<Content>, Unread> {
    let &Network { v6, l4: at, part, .. } = network;
    if at + HEADER > headers.len {
        return short(headers, network);
    }
    let message = Message { kind: headers.u8(at)?, code: Some(headers.u8(at + 1)?) };
    if v6 && !network.has_fragment_header && is_discovery(message.kind, network) {
        return Ok(None);
    }
    let queries: &[(u8, u8)] = if v6 { &QUERIES_6 } else { &QUERIES };
    let query = queries.iter().find(|(request, reply)| [*request, *reply].contains(&message.kind));
    if let Some((request, _)) = query {
        let request = Message { kind: *request, code: message.code };
        let id = headers.u16(at + 4)?;
        return Ok(Some(Content::Query { request, message, id }));
    }
    let errors: &[u8] = if v6 { &ERRORS_6 } else { &ERRORS };
    if !errors.contains(&message.kind) {
        return Ok(Some(Content::Message(message)));
    }
    // Another fragment could change the quoted packet.
    if part != Part::Whole {
        return Err(Unread::Bad);
    }
    Ok(Some(Content::Error(message, quoted(headers, at + HEADER, v6)?)))
}

/// Reads a message without a body, such as a router solicitation of IPv4 without its last bytes.
fn short(headers: &Headers<'_>, network: &Network) -> Result<Option<Content>, Unread> {
    let at = network.l4;
    if at + 4 > headers.len || network.part != Part::Whole {
        return Err(Unread::Bad);
    }
    let message = Message { kind: headers.u8(at)?, code: Some(headers.u8(at + 1)?) };
    Ok(Some(Content::Message(message)))
}

fn is_discovery(kind: u8, network: &Network) -> bool {
    let link_local = network.from == 0 || network.from >> 118 == 0xfe80 >> 6;
    match network.hops {
        255 => NEIGHBOUR_DISCOVERY.contains(&kind),
        1 => LISTENER_DISCOVERY.contains(&kind) && link_local && network.to >> 120 == 0xff,
        _ => false,
    }
}

/// Reads the packet that an error quotes; none if it is no packet of a connection, or its beginning
/// is not quoted.
fn quoted(headers: &Headers<'_>, at: usize, v6: bool) -> Result<Option<Quoted>, Unread> {
    match read(headers, at, v6) {
        Ok(quoted) => Ok(quoted),
        Err(Unread::Short) => Err(Unread::Short),
        Err(Unread::Bad) => Ok(None),
    }
}

fn read(headers: &Headers<'_>, at: usize, v6: bool) -> Result<Option<Quoted>, Unread> {
    let network = match v6 {
        true => ipv6::headers(headers, at, 0)?,
        false => ipv4::header(headers, at, 0)?.network,
    };
    let Network { l4, protocol, from, to, part, .. } = network;
    if matches!(part, Part::Later { .. }) {
        return Ok(None);
    }
    let quoted = |ends, request| Some(Quoted { protocol, from, to, ends, request });
    match protocol {
        TCP | UDP | SCTP => Ok(quoted(ends(headers, l4)?, false)),
        ICMP | ICMPV6 if (protocol == ICMPV6) == v6 => {
            let kind = headers.u8(l4)?;
            let id = headers.u16(l4 + 4)?;
            let queries: &[(u8, u8)] = if v6 { &QUERIES_6 } else { &QUERIES };
            let query = queries.iter().find(|(request, reply)| [*request, *reply].contains(&kind));
            // Errors about errors do not exist.
            let code = headers.u8(l4 + 1)?;
            Ok(query.and_then(|(request, _)| {
                let message = Message { kind: *request, code: Some(code) };
                let ends = Ends { from: id, to: message.ports().first };
                quoted(ends, kind == *request)
            }))
        }
        _ => Ok(quoted(Ends { from: 0, to: 0 }, false)),
    }
}
