//! Messages by which hosts say what groups they are members of, and queriers ask for that: IGMP
//! (RFC 1112, 2236, 3376) and MLD (RFC 2710, 3810).
//!
//! A receiver finds a message by the headers of IP, whatever the Ethernet destination is, behind
//! VLAN tags, LLC and extension headers, and in fragments. So does [`parse`]. Only a canonical
//! message is read: whole, for the Ethernet address of its group, with the right checksum, and of
//! MLD with a router alert, hop limit 1 and the address of a link as its source. Any other message
//! is [`Refused::Malformed`], as is a part of a packet that may hold one. Sources are of no
//! account: a host that wants a group from some of them wants it.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::checksum::Sum;
use super::ethernet::{Snapshot, l3_offset};
use super::protocol::{
    DESTINATION_OPTIONS, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_QINQ, ETHERTYPE_VLAN, FRAGMENT,
    HOP_BY_HOP, ICMPV6, ROUTING, TCP, UDP,
};
use crate::limits::{MAX_HEADERS_LEN, MAX_MESSAGE_LEN};

const IGMP: u8 = 2;
/// Further next headers that another one follows.
const AUTHENTICATION: u8 = 51;
const MOBILITY: u8 = 135;
const HOST_IDENTITY: u8 = 139;
const SHIM6: u8 = 140;
/// Types below are lengths of frames of IEEE 802.2.
const FIRST_ETHERTYPE: u16 = 0x600;
/// LLC of frames with an EtherType behind it: SNAP (RFC 1042), and that of IEEE 802.1H.
const SNAP: [[u8; 6]; 2] = [[0xaa, 0xaa, 3, 0, 0, 0], [0xaa, 0xaa, 3, 0, 0, 0xf8]];
const IPV6_HEADER: usize = 40;
const IGMP_QUERY: u8 = 0x11;
const MLD_QUERY: u8 = 130;
/// Tenths and thousandths of a second in a second: units of IGMP's and MLD's times.
const TENTHS: u32 = 10;
const THOUSANDTHS: u32 = 1_000;

/// Why there is no message, or not yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The first [`MAX_HEADERS_LEN`] bytes of the frame are needed to say.
    Short,
    /// All bytes of the frame, which has at most [`MAX_MESSAGE_LEN`], are needed to say.
    Whole,
    /// A message that is not canonical, or a part of one.
    Malformed,
}

use Refused::Malformed;

/// The first bytes of a frame.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The first [`MAX_HEADERS_LEN`] bytes, or all bytes; or fewer, and then the answer may be
    /// [`Refused::Short`].
    pub bytes: &'a [u8],
    /// Bytes of the whole frame.
    pub len: usize,
    /// Where a checksum is written by whoever delivers or receives the frame.
    pub sum_at: Option<usize>,
}

/// A message about groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message<'a> {
    /// A querier asks.
    Query(Query),
    /// A host says what it is a member of, or is no more.
    Report(Report<'a>),
    /// A multicast router says that it is there, or goes (RFC 4286).
    Router,
}

/// A query of a querier.
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

/// A report of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Report<'a>(Groups<'a>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Groups<'a> {
    /// It leaves one, and the querier asks whether others stay; or it looks for routers.
    None,
    /// The report is too long to be read.
    Unread,
    One(IpAddr),
    /// Records, of groups with addresses of so many bytes. They were found to be whole.
    Records(&'a [u8], usize),
}

impl Report<'_> {
    /// Returns true if the groups are not known.
    pub fn is_unread(&self) -> bool {
        self.0 == Groups::Unread
    }

    /// The groups that the host is a member of.
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

/// Returns true if the sender of this record is a member of the group. A record that includes no
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

/// Returns true if a group may be limited to its members. 224.0.0.0/24 and the groups of an
/// interface or a link (ff01::/16, ff02::/16) are for all: neighbour discovery, routing protocols,
/// mDNS (RFC 4541 sections 2.1.2 and 3).
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

/// Reads the message of a frame. Nothing if the frame has none that concerns snooping.
pub fn parse<'a>(part: &Part<'a>) -> Result<Option<Message<'a>>, Refused> {
    let Some((ethertype, l3)) = part.network()? else { return Ok(None) };
    match ethertype {
        ETHERTYPE_IPV4 => igmp(part, l3),
        ETHERTYPE_IPV6 => mld(part, l3),
        _ => Ok(None),
    }
}

impl<'a> Part<'a> {
    /// `N` bytes from `at`.
    fn take<const N: usize>(&self, at: usize) -> Result<[u8; N], Refused> {
        let is_overwritten = self.sum_at.is_some_and(|sum| sum < at + N && at < sum + 2);
        match self.bytes.get(at..).and_then(<[u8]>::first_chunk::<N>) {
            Some(bytes) if !is_overwritten => Ok(*bytes),
            Some(_) => Err(Malformed),
            None => Err(self.missing(at + N)),
        }
    }

    /// The error for bytes up to `end` that are not here.
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

    /// The EtherType behind all tags and LLC, and the offset of what follows; nothing of a frame
    /// that ends before.
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

    /// The packet at `l3` of `len` bytes. Nothing if it is too long to be read.
    fn packet(&self, l3: usize, len: usize) -> Result<Option<&'a [u8]>, Refused> {
        let bytes: &'a [u8] = self.bytes;
        match bytes.get(l3..l3 + len) {
            Some(packet) => Ok(Some(packet)),
            None if l3 + len <= self.len && self.len > MAX_MESSAGE_LEN => Ok(None),
            None => Err(self.missing(l3 + len)),
        }
    }

    /// Follows the headers of the IPv6 packet at `l3` to a message of ICMPv6: its offset, and
    /// whether it is behind hop-by-hop options alone.
    fn icmpv6(&self, l3: usize) -> Result<Option<(usize, bool)>, Refused> {
        let (first, start) = (self.u8(l3 + 6)?, l3 + IPV6_HEADER);
        let (mut next, mut at, mut headers) = (first, start, 0);
        // A receiver reads nothing behind the end of a fragment.
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
                        // A later fragment is nothing without the first one, which says what the
                        // packet is: a host discards fragments that overlap (RFC 5722).
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
    // Other types pass: they are of multicast routing (RFC 4541 section 2.1.1).
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

/// The answer for a message that is too long to be read.
fn unread<'a>(is_report: bool) -> Result<Option<Message<'a>>, Refused> {
    is_report.then_some(Some(Message::Report(Report(Groups::Unread)))).ok_or(Malformed)
}

fn igmp_query(
    message: &[u8],
    from: Ipv4Addr,
    to: Ipv4Addr,
    group: Option<IpAddr>,
) -> Result<Query, Refused> {
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

/// The end of a query: the flag that memberships must not end, the interval, and the flag that
/// sources follow.
type More = (bool, u32, bool);

/// Reads flags and robustness, interval, the number of sources, and these.
fn query_of_sources(end: &[u8], width: usize) -> Result<More, Refused> {
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
    // A host without an address yet reports from none (RFC 3590).
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

/// Returns true if hop-by-hop options have a router alert for MLD (RFC 2711).
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
