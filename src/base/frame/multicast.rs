//! Parses IGMP (RFC 1112, 2236, 3376) and MLD (RFC 2710, 3810): hosts report group memberships, and
//! queriers query memberships.
//!
//! A receiver finds a message by the IP headers, whatever the Ethernet destination is, behind VLAN
//! tags, LLC and extension headers, and in fragments; so does [`parse`]. [`parse`] accepts only a
//! canonical message: whole, sent to the Ethernet address of its group, with the right checksum,
//! and in MLD with a router alert, hop limit 1 and a link-local source. Any other message, and any
//! part of a packet that may hold a message, is [`Refused::Malformed`]. Source lists are ignored: a
//! host that wants a group from some sources wants the group.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::checksum::Sum;
use super::ethernet::{Snapshot, l3_offset};
use super::protocol::{
    DESTINATION_OPTIONS, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_QINQ, ETHERTYPE_VLAN, FRAGMENT,
    HOP_BY_HOP, ICMPV6, ROUTING, TCP, UDP,
};
use crate::limits::{MAX_HEADERS_LEN, MAX_MESSAGE_LEN};

const IGMP: u8 = 2;
/// More next headers that are followed by a next header.
const AUTHENTICATION: u8 = 51;
const MOBILITY: u8 = 135;
const HOST_IDENTITY: u8 = 139;
const SHIM6: u8 = 140;
/// Lower values of the type field are lengths of IEEE 802.2 frames.
const FIRST_ETHERTYPE: u16 = 0x600;
/// LLC headers that are followed by an EtherType: SNAP (RFC 1042), and IEEE 802.1H.
const SNAP: [[u8; 6]; 2] = [[0xaa, 0xaa, 3, 0, 0, 0], [0xaa, 0xaa, 3, 0, 0, 0xf8]];
const IPV6_HEADER: usize = 40;
const IGMP_QUERY: u8 = 0x11;
const MLD_QUERY: u8 = 130;
/// Time units of IGMP and of MLD, in units per second.
const TENTHS: u32 = 10;
const THOUSANDTHS: u32 = 1_000;

/// The reason why a frame gives no message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The first [`MAX_HEADERS_LEN`] bytes of the frame are needed.
    Short,
    /// All bytes of the frame, at most [`MAX_MESSAGE_LEN`], are needed.
    Whole,
    /// The message is not canonical, or the frame is a part of a message.
    Malformed,
}

use Refused::Malformed;

/// The first bytes of a frame, with the frame's length.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The first [`MAX_HEADERS_LEN`] bytes, or all bytes. With fewer bytes [`parse`] may return
    /// [`Refused::Short`].
    pub bytes: &'a [u8],
    /// Length of the whole frame in bytes.
    pub len: usize,
    /// Offset at which the device or the receiver will write a checksum.
    pub sum_at: Option<usize>,
}

/// A message about multicast groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message<'a> {
    /// A querier queries memberships.
    Query(Query),
    /// A host reports memberships, or leaves a group.
    Report(Report<'a>),
    /// A multicast router advertises itself, or ends (RFC 4286).
    Router,
}

/// A query of a querier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Query {
    /// The querier's address; 0.0.0.0 for an IGMP querier that takes no part in the election.
    pub from: IpAddr,
    /// The queried group; `None` in a general query.
    pub group: Option<IpAddr>,
    /// The query is about some sources of the group only.
    pub has_sources: bool,
    /// Suppress router-side processing: this query must not shorten a membership's timer.
    pub suppress: bool,
    /// Maximum response time in seconds, rounded up.
    pub response: u32,
    /// Query interval in seconds, if the query has one.
    pub interval: Option<u32>,
    /// The version of IGMP or MLD.
    pub version: u8,
}

/// A report of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Report<'a>(Groups<'a>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Groups<'a> {
    /// The host joins no group: it leaves a group, where the querier asks for other members, or
    /// solicits routers.
    None,
    /// The report is too long to be read.
    Unread,
    One(IpAddr),
    /// Group records, checked to be whole, and the length of an address in bytes.
    Records(&'a [u8], usize),
}

impl Report<'_> {
    /// Returns true if the report was too long to be read, so that its groups are unknown.
    pub fn is_unread(&self) -> bool {
        self.0 == Groups::Unread
    }

    /// Returns the groups that the host is a member of.
    pub fn joined(&self) -> impl Iterator<Item = IpAddr> {
        let (mut one, mut records, width) = match self.0 {
            Groups::None | Groups::Unread => (None, &[][..], 4),
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

/// Returns true if the record's sender is a member of the record's group. A record that includes no
/// source is no membership; a record that blocks sources may be one.
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

/// Splits off the first group record; `None` if the record is not whole.
fn split_record(records: &[u8], width: usize) -> Option<(&[u8], &[u8])> {
    let [_, words, high, low, ..] = *records else { return None };
    let sources = usize::from(u16::from_be_bytes([high, low]));
    records.split_at_checked(4 + width + sources * width + 4 * usize::from(words))
}

/// Returns the IP address of 4 or 16 bytes.
fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = || <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from);
    v4().or_else(|| <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from))
}

/// Returns the EtherType behind the VLAN tags, and the offset of the network header.
fn network(snapshot: &Snapshot) -> (u16, usize) {
    let l3 = l3_offset(snapshot);
    (u16::from_be_bytes([snapshot[l3 - 2], snapshot[l3 - 1]]), l3)
}

/// Returns true if the only tag of a frame, if the frame has a tag, is the tag of its VLAN or of
/// no VLAN. Hosts behind another tag are queried separately.
pub fn is_of_vlan(snapshot: &Snapshot, vlan: u16) -> bool {
    let word = |at: usize| u16::from_be_bytes([snapshot[at], snapshot[at + 1]]);
    match l3_offset(snapshot) {
        14 => true,
        18 => word(12) == ETHERTYPE_VLAN && [0, vlan].contains(&(word(14) & 0xfff)),
        _ => false,
    }
}

/// Returns true if a frame may be a message or a part of a message. For most frames two or three
/// bytes, to which no checksum is written, suffice to return false.
#[inline(always)]
pub fn may_be_message(snapshot: &Snapshot) -> bool {
    match u16::from_be_bytes([snapshot[12], snapshot[13]]) {
        ETHERTYPE_IPV4 => snapshot[23] == IGMP,
        ETHERTYPE_IPV6 => !matches!(snapshot[20], TCP | UDP),
        kind => matches!(kind, ETHERTYPE_VLAN | ETHERTYPE_QINQ) || kind < FIRST_ETHERTYPE,
    }
}

/// Returns the group of a frame of `len` bytes if the frame may be limited to the group's members.
/// `None` if the frame must reach the whole link, or if the Ethernet address is not the group's.
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

/// Returns true if frames of a group may be limited to the group's members. Every station gets
/// 224.0.0.0/24 and the groups of an interface or a link (ff01::/16, ff02::/16): neighbour
/// discovery, routing protocols, mDNS (RFC 4541 sections 2.1.2 and 3).
pub fn is_limitable(group: &IpAddr) -> bool {
    match group {
        IpAddr::V4(group) => group.is_multicast() && group.octets()[..3] != [224, 0, 0],
        IpAddr::V6(group) => group.is_multicast() && group.octets()[1] & 0xf > 2,
    }
}

/// Returns the Ethernet address of a group (RFC 1112 section 6.4, RFC 2464 section 7).
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

/// Parses the message of a frame; `None` if the frame has no message that matters to snooping.
pub fn parse<'a>(part: &Part<'a>) -> Result<Option<Message<'a>>, Refused> {
    let Some((ethertype, l3)) = part.network()? else { return Ok(None) };
    match ethertype {
        ETHERTYPE_IPV4 => igmp(part, l3),
        ETHERTYPE_IPV6 => mld(part, l3),
        _ => Ok(None),
    }
}

impl<'a> Part<'a> {
    /// Returns `N` bytes from `at`; an error if bytes are missing or will be overwritten by a
    /// checksum.
    fn take<const N: usize>(&self, at: usize) -> Result<[u8; N], Refused> {
        let is_overwritten = self.sum_at.is_some_and(|sum| sum < at + N && at < sum + 2);
        match self.bytes.get(at..).and_then(<[u8]>::first_chunk::<N>) {
            Some(bytes) if !is_overwritten => Ok(*bytes),
            Some(_) => Err(Malformed),
            None => Err(self.missing(at + N)),
        }
    }

    /// Returns the error for missing bytes up to `end`.
    #[cold]
    fn missing(&self, end: usize) -> Refused {
        match end <= self.len {
            true if end <= MAX_HEADERS_LEN && self.bytes.len() < MAX_HEADERS_LEN => Refused::Short,
            true if self.len <= MAX_MESSAGE_LEN => Refused::Whole,
            _ => Malformed,
        }
    }

    fn u8(&self, at: usize) -> Result<u8, Refused> {
        self.take::<1>(at).map(|[byte]| byte)
    }

    fn u16(&self, at: usize) -> Result<u16, Refused> {
        self.take(at).map(u16::from_be_bytes)
    }

    /// Returns the EtherType behind all tags and LLC, and the offset of the next header; `None` if
    /// the frame ends before, or has no EtherType.
    fn network(&self) -> Result<Option<(u16, usize)>, Refused> {
        let mut at = 12;
        while at + 2 <= self.len {
            match self.u16(at)? {
                ETHERTYPE_VLAN | ETHERTYPE_QINQ => at += 4,
                length if length < FIRST_ETHERTYPE && at + 8 <= self.len => {
                    if !SNAP.contains(&self.take(at + 2)?) {
                        return Ok(None);
                    }
                    at += 8;
                }
                kind => return Ok(Some((kind, at + 2))),
            }
        }
        Ok(None)
    }

    /// Returns true if only tags precede the packet at `l3`, and the frame is for the Ethernet
    /// address of this group.
    fn is_for(&self, group: IpAddr, l3: usize) -> bool {
        let type_at = |at: usize| self.u16(at).unwrap_or(0);
        let is_tag = |at: &usize| matches!(type_at(*at), ETHERTYPE_VLAN | ETHERTYPE_QINQ);
        let tags = (12..l3 - 2).step_by(4);
        tags.clone().all(|at| is_tag(&at))
            && 14 + 4 * tags.count() == l3
            && group.is_multicast()
            && self.bytes.first_chunk() == Some(&mac(group))
    }

    /// Returns the packet of `len` bytes at `l3`; `None` if the frame is too long to be read.
    fn packet(&self, l3: usize, len: usize) -> Result<Option<&'a [u8]>, Refused> {
        let bytes: &'a [u8] = self.bytes;
        match bytes.get(l3..l3 + len) {
            Some(packet) => Ok(Some(packet)),
            None if l3 + len <= self.len && self.len > MAX_MESSAGE_LEN => Ok(None),
            None => Err(self.missing(l3 + len)),
        }
    }

    /// Follows the headers of the IPv6 packet at `l3`. Returns the offset of an ICMPv6 message, and
    /// true if only hop-by-hop options precede the message; `None` for other protocols.
    fn icmpv6(&self, l3: usize) -> Result<Option<(usize, bool)>, Refused> {
        let (first, start) = (self.u8(l3 + 6)?, l3 + IPV6_HEADER);
        let (mut next, mut at, mut headers) = (first, start, 0);
        // A receiver reads no header behind the end of a fragment.
        let mut end = usize::MAX;
        loop {
            if at >= end {
                return Err(Malformed);
            }
            headers += 1;
            match next {
                ICMPV6 => return Ok(Some((at, first == HOP_BY_HOP && headers == 2))),
                HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS | MOBILITY | HOST_IDENTITY | SHIM6 => {
                    next = self.u8(at)?;
                    at += 8 + 8 * usize::from(self.u8(at + 1)?);
                }
                AUTHENTICATION => {
                    next = self.u8(at)?;
                    at += 8 + 4 * usize::from(self.u8(at + 1)?);
                }
                FRAGMENT => {
                    next = self.u8(at)?;
                    let offset = self.u16(at + 2)?;
                    if offset & 0xfff8 != 0 {
                        // The first fragment tells the packet's protocol, and hosts discard
                        // overlapping fragments (RFC 5722), so later fragments may pass.
                        return Ok(None);
                    }
                    at += 8;
                    if offset & 1 != 0 {
                        end = start + usize::from(self.u16(l3 + 4)?);
                    }
                }
                _ => return Ok(None),
            }
        }
    }
}

fn igmp<'a>(part: &Part<'a>, l3: usize) -> Result<Option<Message<'a>>, Refused> {
    if part.u8(l3 + 9)? != IGMP {
        return Ok(None);
    }
    let first = part.u8(l3)?;
    let header = usize::from(first & 0xf) * 4;
    let is_whole = part.u16(l3 + 6)? & 0x3fff == 0;
    if first >> 4 != 4 || header < 20 || !is_whole {
        return Err(Malformed);
    }
    let kind = part.u8(l3 + header)?;
    // Messages of other types pass: they belong to multicast routing (RFC 4541 section 2.1.1).
    if !matches!(kind, IGMP_QUERY | 0x12 | 0x16 | 0x17 | 0x22 | 0x30..=0x32) {
        return Ok(None);
    }
    let address_at = |at| part.take::<4>(at).map(Ipv4Addr::from);
    let (from, to) = (address_at(l3 + 12)?, address_at(l3 + 16)?);
    let is_sum = part.sum_at.is_none_or(|at| at == l3 + header + 2);
    if !part.is_for(to.into(), l3) || !is_sum {
        return Err(Malformed);
    }
    let Some(packet) = part.packet(l3, part.u16(l3 + 2)?.into())? else {
        return unread(matches!(kind, 0x12 | 0x16 | 0x17 | 0x22));
    };
    let (header, message) = packet.split_at_checked(header).ok_or(Malformed)?;
    let is_right = |bytes: &[u8]| Sum::of(bytes).fold() == 0xffff;
    let is_cut = message.len() < 4 || !is_right(header);
    if is_cut || part.sum_at.is_none() && !is_right(message) {
        return Err(Malformed);
    }
    let group = message.get(4..8).and_then(address).filter(|group| !group.is_unspecified());
    let joined = || group.filter(IpAddr::is_multicast).ok_or(Malformed);
    Ok(Some(match kind {
        0x30 | 0x32 => Message::Router,
        0x31 => Message::Report(Report(Groups::None)),
        _ if message.len() < 8 => return Err(Malformed),
        IGMP_QUERY => Message::Query(igmp_query(message, from, to, group)?),
        0x12 | 0x16 => Message::Report(Report(Groups::One(joined()?))),
        0x22 => Message::Report(Report(records(message, 4)?)),
        _ => Message::Report(Report(Groups::None)),
    }))
}

/// Returns the result for a message that is too long to be read.
fn unread<'a>(is_report: bool) -> Result<Option<Message<'a>>, Refused> {
    is_report.then_some(Some(Message::Report(Report(Groups::Unread)))).ok_or(Malformed)
}

fn igmp_query(
    message: &[u8],
    from: Ipv4Addr,
    to: Ipv4Addr,
    group: Option<IpAddr>,
) -> Result<Query, Refused> {
    // Length and code tell the version (RFC 3376 section 7.1).
    let (version, tenths) = match (message.len(), message[1]) {
        (8, 0) => (1, 100),
        (8, code) => (2, code.into()),
        (12.., code) => (3, from_code(code.into(), 4)),
        _ => return Err(Malformed),
    };
    let more = if version == 3 { Some(query_of_sources(&message[8..], 4)?) } else { None };
    query((from.into(), to.into()), group, (version, tenths.div_ceil(TENTHS)), more)
}

/// The fields of a version 3 (IGMP) or version 2 (MLD) query: the suppress flag, the query interval
/// in seconds, and true if sources follow.
type More = (bool, u32, bool);

/// Parses the end of a query: flags and robustness, interval, number of sources, sources of `width`
/// bytes.
fn query_of_sources(end: &[u8], width: usize) -> Result<More, Refused> {
    let [flags, code, high, low, sources @ ..] = end else { return Err(Malformed) };
    let count = usize::from(u16::from_be_bytes([*high, *low]));
    if sources.len() < count * width {
        return Err(Malformed);
    }
    Ok((flags & 8 != 0, from_code((*code).into(), 4), count > 0))
}

/// Decodes a number of RFC 3376 section 4.1.1 and RFC 3810 section 5.1.3: a code in the upper half
/// of the range is an exponent of three bits and a mantissa of `bits` bits.
fn from_code(code: u32, bits: u32) -> u32 {
    if code < 1 << (bits + 3) {
        return code;
    }
    let mantissa = code & ((1 << bits) - 1) | 1 << bits;
    mantissa << ((code >> bits & 7) + 3)
}

/// Returns the query if hosts receive it: the destination is the all-hosts group or the queried
/// group.
fn query(
    (from, to): (IpAddr, IpAddr),
    group: Option<IpAddr>,
    (version, response): (u8, u32),
    more: Option<More>,
) -> Result<Query, Refused> {
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

fn records(message: &[u8], width: usize) -> Result<Groups<'_>, Refused> {
    let [.., high, low] = message[..8] else { return Err(Malformed) };
    let count = u16::from_be_bytes([high, low]);
    let mut rest = &message[8..];
    for _ in 0..count {
        (_, rest) = split_record(rest, width).ok_or(Malformed)?;
    }
    let len = message.len() - 8 - rest.len();
    Ok(Groups::Records(&message[8..8 + len], width))
}

fn mld<'a>(part: &Part<'a>, l3: usize) -> Result<Option<Message<'a>>, Refused> {
    let Some((at, is_behind_options)) = part.icmpv6(l3)? else { return Ok(None) };
    let kind = part.u8(at)?;
    if !matches!(kind, MLD_QUERY..=132 | 143 | 151..=153) {
        return Ok(None);
    }
    let address_at = |at| part.take::<16>(at).map(Ipv6Addr::from);
    let (from, to) = (address_at(l3 + 8)?, address_at(l3 + 24)?);
    let is_sum = part.sum_at.is_none_or(|sum| sum == at + 2);
    if !is_behind_options || !part.is_for(to.into(), l3) || !is_sum {
        return Err(Malformed);
    }
    let len = IPV6_HEADER + usize::from(part.u16(l3 + 4)?);
    let Some(packet) = part.packet(l3, len)? else {
        return unread(matches!(kind, 131 | 132 | 143));
    };
    let (head, message) = packet.split_at_checked(at - l3).ok_or(Malformed)?;
    let options = &head[IPV6_HEADER..];
    if message.len() < 4 || head[0] >> 4 != 6 || head[7] != 1 || !has_router_alert(options) {
        return Err(Malformed);
    }
    let addresses = Sum::of(&head[8..IPV6_HEADER]);
    let pseudo = addresses.word(message.len() as u16).word(ICMPV6.into());
    if part.sum_at.is_none() && pseudo.plus(Sum::of(message)).fold() != 0xffff {
        return Err(Malformed);
    }
    // A host that has no address yet sends reports from the unspecified address (RFC 3590).
    let is_host = matches!(kind, 131 | 132 | 143 | 152);
    if !(from.is_unicast_link_local() || from.is_unspecified() && is_host) {
        return Err(Malformed);
    }
    let group = || message.get(8..24).and_then(address).ok_or(Malformed);
    Ok(Some(match kind {
        151 | 153 => Message::Router,
        152 => Message::Report(Report(Groups::None)),
        _ if message.len() < 8 => return Err(Malformed),
        143 => Message::Report(Report(records(message, 16)?)),
        MLD_QUERY => {
            let group = Some(group()?).filter(|group| !group.is_unspecified());
            Message::Query(mld_query(message, from, to, group)?)
        }
        131 => {
            let group = Some(group()?).filter(IpAddr::is_multicast).ok_or(Malformed)?;
            Message::Report(Report(Groups::One(group)))
        }
        _ => Message::Report(Report(group().map(|_| Groups::None)?)),
    }))
}

fn mld_query(
    message: &[u8],
    from: Ipv6Addr,
    to: Ipv6Addr,
    group: Option<IpAddr>,
) -> Result<Query, Refused> {
    let code = u32::from(u16::from_be_bytes([message[4], message[5]]));
    let (version, more) = match message.len() {
        24 => (1, None),
        28.. => (2, Some(query_of_sources(&message[24..], 16)?)),
        _ => return Err(Malformed),
    };
    let code = if version == 2 { from_code(code, 12) } else { code };
    query((from.into(), to.into()), group, (version, code.div_ceil(THOUSANDTHS)), more)
}

/// Returns true if the hop-by-hop options hold a router alert for MLD (RFC 2711).
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
