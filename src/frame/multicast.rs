//! Messages by which hosts say what groups they are members of, and queriers ask for that: IGMP
//! (RFC 1112, 2236, 3376) and MLD (RFC 2710, 3810).
//!
//! What is read is what hosts and routers would obey: a message with a wrong checksum, or of MLD
//! with another hop limit than 1, without a router alert or from another address than a link's, is
//! [`Malformed`]. Sources are of no account: a host that wants a group from some of them wants it.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::checksum::Sum;
use super::ethernet::{
    DESTINATION_OPTIONS, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, FRAGMENT, HOP_BY_HOP,
    ICMPV6, ROUTING, Snapshot, l3_offset,
};

const IGMP: u8 = 2;
const AUTHENTICATION: u8 = 51;
const IGMP_QUERY: u8 = 0x11;
const MLD_QUERY: u8 = 130;
/// Tenths and thousandths of a second in a second: units of IGMP's and MLD's times.
const TENTHS: u32 = 10;
const THOUSANDTHS: u32 = 1_000;

/// A message that is cut off, contradicts itself, or is not to be obeyed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;

/// A message about groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message<'a> {
    /// A querier asks.
    Query(Query),
    /// A host says what it is a member of, or is no more.
    Report(Report<'a>),
}

/// What a querier asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Query {
    /// The querier's address; IGMP's may be 0.0.0.0, of one that takes part in no election.
    pub from: IpAddr,
    /// The group; all if none.
    pub group: Option<IpAddr>,
    /// Only about some sources of it.
    pub has_sources: bool,
    /// Routers are not to end a membership because of it.
    pub suppress: bool,
    /// For how many seconds hosts may wait with their answer, rounded up.
    pub response: u32,
    /// After how many seconds it asks again, if it says so.
    pub interval: Option<u32>,
    /// The version of IGMP or MLD.
    pub version: u8,
}

/// What a host says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Report<'a>(Groups<'a>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Groups<'a> {
    /// It leaves one: the querier asks whether others stay.
    None,
    One(IpAddr),
    /// Records, of groups with addresses of so many bytes. They were found to be whole.
    Records(&'a [u8], usize),
}

impl Report<'_> {
    /// The groups that the host is a member of.
    pub fn joined(&self) -> impl Iterator<Item = IpAddr> {
        let (mut one, mut records, width) = match self.0 {
            Groups::None => (None, &[][..], 4),
            Groups::One(group) => (Some(group), &[][..], 4),
            Groups::Records(records, width) => (None, records, width),
        };
        std::iter::from_fn(move || {
            while let Some((record, rest)) = split_record(records, width) {
                records = rest;
                let group = address(&record[4..4 + width]).filter(|_| is_joined(record));
                if group.is_some_and(|group| group.is_multicast()) {
                    return group;
                }
            }
            one.take()
        })
    }
}

/// Whether who sends this record is a member of its group. One that includes no source is not; one
/// that blocks some may or may not be.
fn is_joined(record: &[u8]) -> bool {
    let has_sources = record[2..4] != [0, 0];
    match record[0] {
        // MODE_IS_INCLUDE, CHANGE_TO_INCLUDE_MODE, ALLOW_NEW_SOURCES
        1 | 3 | 5 => has_sources,
        // MODE_IS_EXCLUDE, CHANGE_TO_EXCLUDE_MODE
        2 | 4 => true,
        _ => false,
    }
}

/// The first record of some, and what is behind it.
fn split_record(records: &[u8], width: usize) -> Option<(&[u8], &[u8])> {
    let [_, words, high, low, ..] = *records else { return None };
    let sources = usize::from(u16::from_be_bytes([high, low]));
    records.split_at_checked(4 + width + sources * width + 4 * usize::from(words))
}

/// An address of 4 or 16 bytes.
fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = || <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from);
    v4().or_else(|| <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from))
}

/// The EtherType of a frame, tags apart, and the offset of what follows.
fn network(snapshot: &Snapshot) -> (u16, usize) {
    let l3 = l3_offset(snapshot);
    (u16::from_be_bytes([snapshot[l3 - 2], snapshot[l3 - 1]]), l3)
}

/// Whether a frame's only tag, if it has one, is that of its VLAN or of none. Hosts behind another
/// tag are others, which are asked apart.
pub fn is_of_vlan(snapshot: &Snapshot, vlan: u16) -> bool {
    let word = |at: usize| u16::from_be_bytes([snapshot[at], snapshot[at + 1]]);
    match l3_offset(snapshot) {
        14 => true,
        18 => word(12) == ETHERTYPE_VLAN && [0, vlan].contains(&(word(14) & 0xfff)),
        _ => false,
    }
}

/// Whether a frame may carry a [`Message`]. Its bytes may be fewer than a snapshot has.
pub fn may_be_message(snapshot: &Snapshot) -> bool {
    let (ethertype, l3) = network(snapshot);
    match ethertype {
        ETHERTYPE_IPV4 => snapshot[l3 + 9] == IGMP,
        ETHERTYPE_IPV6 => snapshot[l3 + 6] == HOP_BY_HOP,
        _ => false,
    }
}

/// The group that a frame of `len` bytes is for, if that can be limited to its members: none of
/// what has to reach all of a link, whoever asked for it, and none whose addresses of Ethernet and
/// IP are not of one group.
pub fn group(snapshot: &Snapshot, len: u32) -> Option<IpAddr> {
    let (ethertype, l3) = network(snapshot);
    let (at, width) = match ethertype {
        ETHERTYPE_IPV4 => (l3 + 16, 4),
        ETHERTYPE_IPV6 => (l3 + 24, 16),
        _ => return None,
    };
    let bytes = snapshot.get(at..at + width).filter(|_| len as usize >= at + width)?;
    let group = address(bytes).filter(is_limitable)?;
    (mac(group) == snapshot[..6]).then_some(group)
}

/// Whether a group may be limited to its members. 224.0.0.0/24 and the groups of an interface or a
/// link (ff01::/16, ff02::/16) are for all: neighbour discovery, routing protocols, mDNS (RFC 4541
/// sections 2.1.2 and 3).
pub fn is_limitable(group: &IpAddr) -> bool {
    match group {
        IpAddr::V4(group) => group.is_multicast() && group.octets()[..3] != [224, 0, 0],
        IpAddr::V6(group) => group.is_multicast() && group.octets()[1] & 0xf > 2,
    }
}

/// The address of Ethernet that a group's frames have (RFC 1112 section 6.4, RFC 2464 section 7).
pub fn mac(group: IpAddr) -> [u8; 6] {
    match group {
        IpAddr::V4(group) => {
            let [_, b, c, d] = group.octets();
            [1, 0, 0x5e, b & 0x7f, c, d]
        }
        IpAddr::V6(group) => {
            let o = group.octets();
            [0x33, 0x33, o[12], o[13], o[14], o[15]]
        }
    }
}

/// Reads a whole frame that [`may_be_message`]. Nothing if it is none, or of an unknown type.
/// `summed` is false of one whose checksum is to be finished by its receiver.
pub fn parse(frame: &[u8], summed: bool) -> Result<Option<Message<'_>>, Malformed> {
    let l3 = l3_offset(frame);
    let Some((head, packet)) = frame.split_at_checked(l3) else { return Ok(None) };
    match head.last_chunk().map(|word| u16::from_be_bytes(*word)) {
        Some(ETHERTYPE_IPV4) => igmp(packet, summed),
        Some(ETHERTYPE_IPV6) => mld(packet, summed),
        _ => Ok(None),
    }
}

/// Whether a frame that [`may_be_message`], and is none for [`parse`], may be a query for others:
/// Linux's bridge reads behind more extension headers, and takes fragments for whole packets.
pub fn may_be_query(frame: &[u8]) -> bool {
    let Some((head, packet)) = frame.split_at_checked(l3_offset(frame)) else { return false };
    let (message, query) = match head.last_chunk().map(|word| u16::from_be_bytes(*word)) {
        Some(ETHERTYPE_IPV4) => {
            let header = packet.first().map_or(0, |first| usize::from(first & 0xf) * 4);
            (packet.get(header..), IGMP_QUERY)
        }
        Some(ETHERTYPE_IPV6) => (icmpv6(packet), MLD_QUERY),
        _ => return false,
    };
    message.and_then(<[u8]>::first) == Some(&query)
}

/// What follows all extension headers, if that is ICMPv6.
fn icmpv6(packet: &[u8]) -> Option<&[u8]> {
    let (mut next, mut rest) = (*packet.get(6)?, packet.get(40..)?);
    while next != ICMPV6 {
        let units = usize::from(*rest.get(1)?);
        let len = match next {
            HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS => 8 * (units + 1),
            FRAGMENT => 8,
            AUTHENTICATION => 4 * (units + 2),
            _ => return None,
        };
        (next, rest) = (rest[0], rest.get(len..)?);
    }
    Some(rest)
}

fn igmp(packet: &[u8], summed: bool) -> Result<Option<Message<'_>>, Malformed> {
    let Some(head) = packet.first_chunk::<20>() else { return Err(Malformed) };
    if head[9] != IGMP {
        return Ok(None);
    }
    let header = usize::from(head[0] & 0xf) * 4;
    let total = usize::from(u16::from_be_bytes([head[2], head[3]]));
    let whole = u16::from_be_bytes([head[6], head[7]]) & 0x3fff == 0;
    if head[0] >> 4 != 4 || header < 20 || !whole {
        return Err(Malformed);
    }
    let packet = packet.get(..total).ok_or(Malformed)?;
    let (header, message) = packet.split_at_checked(header).ok_or(Malformed)?;
    let is_right = |bytes: &[u8]| Sum::of(bytes).fold() == 0xffff;
    if message.len() < 8 || !is_right(header) || summed && !is_right(message) {
        return Err(Malformed);
    }
    let word = |at: usize| Ipv4Addr::from([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let (from, to) = (word(12), word(16));
    let group = Ipv4Addr::from([message[4], message[5], message[6], message[7]]);
    let group = (!group.is_unspecified()).then_some(IpAddr::V4(group));
    Ok(Some(match message[0] {
        IGMP_QUERY => Message::Query(igmp_query(message, from, to, group)?),
        0x12 | 0x16 => {
            let group = group.filter(IpAddr::is_multicast).ok_or(Malformed)?;
            Message::Report(Report(Groups::One(group)))
        }
        0x17 => Message::Report(Report(Groups::None)),
        0x22 => Message::Report(Report(records(message, 4)?)),
        _ => return Ok(None),
    }))
}

fn igmp_query(
    message: &[u8],
    from: Ipv4Addr,
    to: Ipv4Addr,
    group: Option<IpAddr>,
) -> Result<Query, Malformed> {
    // By length and code: RFC 3376 section 7.1.
    let (version, tenths) = match (message.len(), message[1]) {
        (8, 0) => (1, 100),
        (8, code) => (2, code.into()),
        (12.., code) => (3, from_code(code.into(), 4)),
        _ => return Err(Malformed),
    };
    let more = if version == 3 { Some(query_of_sources(&message[8..], 4)?) } else { None };
    query((from.into(), to.into()), group, (version, tenths.div_ceil(TENTHS)), more)
}

/// What the end of a query says: not to end memberships, the interval, and whether there are
/// sources.
type More = (bool, u32, bool);

/// Reads flags and robustness, interval, the number of sources, and these.
fn query_of_sources(end: &[u8], width: usize) -> Result<More, Malformed> {
    let [flags, code, high, low, sources @ ..] = end else { return Err(Malformed) };
    let count = usize::from(u16::from_be_bytes([*high, *low]));
    if sources.len() < count * width {
        return Err(Malformed);
    }
    Ok((flags & 8 != 0, from_code((*code).into(), 4), count > 0))
}

/// A number as RFC 3376 section 4.1.1 and RFC 3810 section 5.1.3 write it: above half of its range
/// as an exponent of three bits and a mantissa of `bits`.
fn from_code(code: u32, bits: u32) -> u32 {
    if code < 1 << (bits + 3) {
        return code;
    }
    let mantissa = code & ((1 << bits) - 1) | 1 << bits;
    mantissa << ((code >> bits & 7) + 3)
}

/// A query that goes where hosts hear it: to all of them, or to the group.
fn query(
    (from, to): (IpAddr, IpAddr),
    group: Option<IpAddr>,
    (version, response): (u8, u32),
    more: Option<More>,
) -> Result<Query, Malformed> {
    let all = match from {
        IpAddr::V4(_) => IpAddr::from([224, 0, 0, 1]),
        IpAddr::V6(_) => IpAddr::from([0xff02, 0, 0, 0, 0, 0, 0, 1]),
    };
    let is_heard = match group {
        None => to == all,
        Some(group) => group.is_multicast() && (to == group || to == all),
    };
    let (suppress, interval, has_sources) = more.unwrap_or_default();
    let interval = more.map(|_| interval);
    let query = Query { from, group, has_sources, suppress, response, interval, version };
    is_heard.then_some(query).ok_or(Malformed)
}

fn records(message: &[u8], width: usize) -> Result<Groups<'_>, Malformed> {
    let [.., high, low] = message[..8] else { return Err(Malformed) };
    let count = u16::from_be_bytes([high, low]);
    let mut rest = &message[8..];
    for _ in 0..count {
        (_, rest) = split_record(rest, width).ok_or(Malformed)?;
    }
    let len = message.len() - 8 - rest.len();
    Ok(Groups::Records(&message[8..8 + len], width))
}

fn mld(packet: &[u8], summed: bool) -> Result<Option<Message<'_>>, Malformed> {
    let Some((head, rest)) = packet.split_first_chunk::<40>() else { return Err(Malformed) };
    // What follows hop-by-hop options that is not ICMPv6 is none of ours.
    let [next, words, ..] = *rest else { return Ok(None) };
    let options = 8 * (usize::from(words) + 1);
    if head[6] != HOP_BY_HOP || next != ICMPV6 {
        return Ok(None);
    }
    let total = usize::from(u16::from_be_bytes([head[4], head[5]]));
    let Some((options, message)) = rest.get(..total).and_then(|all| all.split_at_checked(options))
    else {
        return Err(Malformed);
    };
    if !message.first().is_some_and(|kind| matches!(kind, MLD_QUERY..=132 | 143)) {
        return Ok(None);
    }
    let half = |at: usize| {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&head[at..at + 16]);
        Ipv6Addr::from(bytes)
    };
    let (from, to) = (half(8), half(24));
    if message.len() < 8 || head[0] >> 4 != 6 || head[7] != 1 || !has_router_alert(options) {
        return Err(Malformed);
    }
    let pseudo = Sum::of(&head[8..]).word(message.len() as u16).word(ICMPV6.into());
    if summed && pseudo.plus(Sum::of(message)).fold() != 0xffff {
        return Err(Malformed);
    }
    // A host without an address yet reports from none (RFC 3590).
    let is_query = message[0] == MLD_QUERY;
    if !(from.is_unicast_link_local() || from.is_unspecified() && !is_query) {
        return Err(Malformed);
    }
    if message[0] == 143 {
        return Ok(Some(Message::Report(Report(records(message, 16)?))));
    }
    let group = message.get(8..24).and_then(address).ok_or(Malformed)?;
    let group = (!group.is_unspecified()).then_some(group);
    Ok(Some(match message[0] {
        MLD_QUERY => Message::Query(mld_query(message, from, to, group)?),
        131 => {
            let group = group.filter(IpAddr::is_multicast).ok_or(Malformed)?;
            Message::Report(Report(Groups::One(group)))
        }
        _ => Message::Report(Report(Groups::None)),
    }))
}

fn mld_query(
    message: &[u8],
    from: Ipv6Addr,
    to: Ipv6Addr,
    group: Option<IpAddr>,
) -> Result<Query, Malformed> {
    let code = u32::from(u16::from_be_bytes([message[4], message[5]]));
    let (version, more) = match message.len() {
        24 => (1, None),
        28.. => (2, Some(query_of_sources(&message[24..], 16)?)),
        _ => return Err(Malformed),
    };
    let code = if version == 2 { from_code(code, 12) } else { code };
    query((from.into(), to.into()), group, (version, code.div_ceil(THOUSANDTHS)), more)
}

/// Whether hop-by-hop options have a router alert for MLD (RFC 2711).
fn has_router_alert(options: &[u8]) -> bool {
    let mut rest = options.get(2..).unwrap_or_default();
    loop {
        rest = match *rest {
            [5, 2, 0, 0, ..] => return true,
            [0, ref after @ ..] => after,
            [_, len, ref after @ ..] => match after.get(usize::from(len)..) {
                Some(after) => after,
                None => return false,
            },
            _ => return false,
        };
    }
}

#[cfg(test)]
#[path = "tests/multicast.rs"]
mod tests;
