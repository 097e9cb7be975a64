//! The frame that is traced: given as bytes, or made of addresses, tag and length.

use std::net::IpAddr;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use crate::control::parameters::{ip, mac, number, wrong};
use api::wire::{Fault, Trace};
use base::frame::MacAddr;
use base::frame::ethernet::{self, Snapshot};
use base::frame::multicast::{self, Part};
use base::frame::protocol::{ICMPV6, TCP, UDP};
use base::limits::{MAX_FRAME_LEN, MAX_HEADERS_LEN, MAX_VLAN, MIN_FRAME_LEN, SNAPSHOT_LEN};
use base::stats::DropReason;
use switch::filter::packet::{Parsed, Unread, parse};
use switch::filter::rule::{ICMP, Protocol};
use switch::multicast::reach;
use switch::port_security::Headers;
use switch::{Reach, Reserved, Segment, Snooping, VlanId};
use sys::clock;

/// Flag of TCP, and types of ICMP and ICMPv6, that begin a connection.
const SYN: u8 = 2;
const ECHO: u8 = 8;
const ECHO_6: u8 = 128;

/// Length of a frame whose length is not given: a frame of a ping has 98 bytes.
const LENGTH: u64 = 98;

/// The frame that is traced.
pub struct Sample {
    /// The first bytes of the frame.
    pub(crate) bytes: Vec<u8>,
    /// The first bytes of the frame that a guard checks.
    pub(crate) guarded: Vec<u8>,
    /// Length of the frame in bytes.
    pub(crate) length: u32,
    /// The first bytes of the frame that filters judge; none if the client gave no IP packet.
    pub(crate) packet: Option<Vec<u8>>,
    /// True if the client gave the frame's bytes.
    pub(crate) is_given: bool,
    /// For the source and the destination: true if the address stands in for an address that the
    /// switch does not know.
    pub(crate) stands_in: [bool; 2],
}

impl Sample {
    /// Returns the frame that a client describes.
    pub(crate) fn new(given: &Trace) -> Result<Sample, Fault> {
        let Some(frame) = &given.frame else { return Sample::made(given) };
        let Trace { src, dst, ip, dst_ip, proto, vlan, sport, dport, .. } = given;
        let words = [("src", src), ("dst", dst), ("ip", ip), ("dst_ip", dst_ip), ("proto", proto)];
        let numbers = [("vlan", vlan), ("sport", sport), ("dport", dport)];
        let beside = words.iter().find(|part| part.1.is_some()).map(|part| part.0);
        let number_beside = numbers.iter().find(|part| part.1.is_some()).map(|part| part.0);
        if let Some(key) = beside.or(number_beside) {
            return Err(wrong(key, format!("{key} is part of frame"), ""));
        }
        let bytes = BASE64_STANDARD.decode(frame).unwrap_or_default();
        let (least, most) = (u64::from(MIN_FRAME_LEN), u64::from(MAX_FRAME_LEN));
        let known = bytes.len() as u64;
        if !(least..=most).contains(&known) {
            let text = format!("frame must be {least} to {most} bytes in base64");
            return Err(wrong("frame", text, frame));
        }
        let length = number(given.len.clone(), "len", known..=most)?.unwrap_or(known) as u32;
        let (guarded, stands_in) = (bytes.clone(), [false; 2]);
        let packet = Some(bytes.clone());
        Ok(Sample { guarded, packet, bytes, length, is_given: true, stands_in })
    }

    /// Returns a frame made of addresses, tag and length.
    fn made(given: &Trace) -> Result<Sample, Fault> {
        let address = |word: &Option<String>, key| match word {
            Some(word) => mac(word, key),
            None => Err(Fault::parameter(key, None)),
        };
        let (source, to) = (address(&given.src, "src")?, address(&given.dst, "dst")?);
        let ip = given.ip.as_deref().map(|word| ip(word, "ip")).transpose()?;
        let range = MIN_FRAME_LEN.into()..=MAX_FRAME_LEN.into();
        let length = number(given.len.clone(), "len", range)?.unwrap_or(LENGTH) as u32;
        let tag = number(given.vlan.clone(), "vlan", 0..=MAX_VLAN.into())?;
        let tag = tag.map(|vlan| [[0x81, 0], (vlan as VlanId).to_be_bytes()].concat());
        let rest = Reserved::usual(to).map_or(&[8, 0][..], |(_, rest)| rest);
        let bytes = [&to.0[..], &source.0, &tag.unwrap_or_default(), rest].concat();
        let (guarded, stands_in) = (headers(source, ip), [false; 2]);
        let packet = packet(given, [to, source], ip)?;
        Ok(Sample { bytes, guarded, packet, length, is_given: false, stands_in })
    }

    /// Returns the frame's source and destination.
    pub(crate) fn addresses(&self) -> (MacAddr, MacAddr) {
        let snapshot = self.snapshot();
        (ethernet::source(&snapshot), ethernet::destination(&snapshot))
    }

    /// Returns the packet that filters judge; none if the client gave no IP packet.
    pub(crate) fn parsed(&self) -> Option<Result<Parsed, Unread>> {
        let bytes = self.packet.as_deref()?;
        let len = if self.is_given { self.length as usize } else { bytes.len() };
        let bytes = &bytes[..bytes.len().min(MAX_HEADERS_LEN)];
        Some(parse(&Headers { bytes, whole: &[], len, sum_at: None, is_cut: false }))
    }

    /// Returns the headers that a guard checks.
    pub(crate) fn headers(&self) -> Headers<'_> {
        let whole = &self.guarded[..];
        let bytes = &whole[..whole.len().min(MAX_HEADERS_LEN)];
        let len = if self.is_given { self.length as usize } else { bytes.len() };
        Headers { bytes, whole, len, sum_at: None, is_cut: false }
    }

    fn snapshot(&self) -> Snapshot {
        let mut snapshot = [0; SNAPSHOT_LEN];
        snapshot.iter_mut().zip(&self.bytes).for_each(|(to, byte)| *to = *byte);
        snapshot
    }

    /// Returns the ports of the segment that the frame reaches by multicast snooping, and the group
    /// if snooping limits the frame's group to its members. Returns `None` if the frame is neither
    /// for such a group nor a message of IGMP or MLD: the frame reaches all ports of the segment.
    pub(crate) fn reach(
        &self,
        snooping: &Snooping,
        segment: Segment,
    ) -> Option<(Option<IpAddr>, Reach)> {
        let (now, snapshot) = (clock::coarse_seconds(), self.snapshot());
        let (_, to) = self.addresses();
        if !self.is_given {
            let groups = snooping.limited_by_mac(segment, to.0, now);
            let &(group, limited) = groups.first()?;
            return Some((Some(group), Reach::Members(limited)));
        }
        if let Ok(Some(reach)) = self.message(true) {
            return Some((None, reach));
        }
        if !to.is_group() || !multicast::is_of_vlan(&snapshot, segment.vlan()) {
            return None;
        }
        let group = multicast::group(&snapshot, self.length)?;
        let limited = snooping.limited(segment, group, now)?;
        Some((Some(group), Reach::Members(limited)))
    }

    /// Returns where snooping sends the frame as a message about groups; none if the frame is no
    /// such message. `may_query` is true if the frame's port may have a querier.
    pub(crate) fn message(&self, may_query: bool) -> Result<Option<Reach>, DropReason> {
        let part = Part { bytes: &self.bytes, len: self.bytes.len(), sum_at: None };
        match self.is_given && multicast::may_be_message(&self.snapshot()) {
            true => reach(&multicast::parse(&part), may_query),
            false => Ok(None),
        }
    }
}

/// Returns a packet that begins a connection, as the client describes it; none without `dst_ip`.
/// `macs` are destination and source of the frame.
fn packet(
    given: &Trace,
    macs: [MacAddr; 2],
    source: Option<IpAddr>,
) -> Result<Option<Vec<u8>>, Fault> {
    let (mut sport, mut dport) = (0, 0);
    for (port, value, key) in
        [(&mut sport, &given.sport, "sport"), (&mut dport, &given.dport, "dport")]
    {
        *port = number(value.clone(), key, 0..=u16::MAX.into())?.unwrap_or(0) as u16;
    }
    let protocol = match given.proto.as_deref() {
        None => Protocol::Number(TCP),
        Some(word) => match word.parse() {
            Ok(protocol) => protocol,
            Err(_) => return Err(wrong("proto", "proto must be such as tcp or 47".into(), word)),
        },
    };
    let Some(word) = given.dst_ip.as_deref() else {
        let beside = given.proto.is_some() || given.sport.is_some() || given.dport.is_some();
        return match beside {
            true => Err(wrong("dst_ip", "proto, sport and dport need dst_ip".to_owned(), "")),
            false => Ok(None),
        };
    };
    let to = ip(word, "dst_ip")?;
    let mut body = [sport.to_be_bytes(), dport.to_be_bytes()].concat();
    let message = protocol.message();
    let protocol = protocol.number();
    match protocol {
        TCP => body.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, SYN, 0, 0, 0, 0, 0, 0]),
        UDP => body.extend([0, 8, 0, 0]),
        ICMP | ICMPV6 => {
            let request = if protocol == ICMP { ECHO } else { ECHO_6 };
            let kind = message.map_or(request, |message| message.kind);
            let code = message.and_then(|message| message.code).unwrap_or(0);
            body = vec![kind, code, 0, 0, 0, 0, 0, 0];
        }
        _ => body.extend([0; 16]),
    }
    let mut bytes = macs.map(|mac| mac.0).concat();
    match (source, to) {
        (Some(IpAddr::V4(from)), IpAddr::V4(to)) => {
            let [high, low] = (20 + body.len() as u16).to_be_bytes();
            bytes.extend([8, 0, 0x45, 0, high, low, 0, 0, 0, 0, 64, protocol, 0, 0]);
            bytes.extend([from.octets(), to.octets()].concat());
        }
        (Some(IpAddr::V6(from)), IpAddr::V6(to)) => {
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, body.len() as u8, protocol, 64]);
            bytes.extend([from.octets(), to.octets()].concat());
        }
        _ => {
            let text = "dst_ip needs ip, and both must be of IPv4 or of IPv6".to_owned();
            return Err(wrong("dst_ip", text, word));
        }
    }
    bytes.extend(body);
    Ok(Some(bytes))
}

/// Returns the first bytes of a frame from `source`; with `ip`, of a frame of TCP.
fn headers(source: MacAddr, ip: Option<IpAddr>) -> Vec<u8> {
    let mut bytes = [[0; 6], source.0].concat();
    match ip {
        // A request of RARP for its own address, in which a guard finds no other address.
        None => {
            bytes.extend([0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3]);
            (0..2).for_each(|_| bytes.extend([&source.0[..], &[0; 4]].concat()));
        }
        Some(IpAddr::V4(ip)) => {
            bytes.extend([8, 0, 0x45, 0, 0, 20, 0, 0, 0, 0, 64, 6, 0, 0]);
            bytes.extend(ip.octets());
            bytes.extend([0; 4]);
        }
        Some(IpAddr::V6(ip)) => {
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 6, 64]);
            bytes.extend(ip.octets());
            bytes.extend([0; 16]);
        }
    }
    bytes
}
