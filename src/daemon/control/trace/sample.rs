//! The frame that is traced: given as bytes, or made of addresses, tag and length.

use std::net::IpAddr;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use crate::control::parameters::{ip, mac, number, wrong};
use api::wire::{Fault, Trace};
use base::frame::MacAddr;
use base::frame::ethernet::{self, Snapshot};
use base::frame::multicast::{self, Part};
use base::limits::{MAX_FRAME_LEN, MAX_VLAN, MIN_FRAME_LEN, SNAPSHOT_LEN};
use switch::multicast::{Barred, reach};
use switch::{Reach, Reserved, Segment, Snooping, VlanId};
use sys::clock;

/// A frame of a ping has 98 bytes.
const LENGTH: u64 = 98;

/// The frame that is traced.
pub struct Sample {
    /// Its first bytes.
    pub bytes: Vec<u8>,
    /// The first bytes of one that a guard looks at.
    pub guarded: Vec<u8>,
    /// Its length in bytes.
    pub length: u32,
    /// The client gave its bytes.
    pub is_given: bool,
    /// The source and the destination stand in for addresses that the switch does not know.
    pub stands_in: [bool; 2],
}

impl Sample {
    /// The frame that a client describes.
    pub fn new(given: &Trace) -> Result<Sample, Fault> {
        let Some(frame) = &given.frame else { return Sample::made(given) };
        let parts = [("src", &given.src), ("dst", &given.dst), ("ip", &given.ip)];
        let beside = parts.iter().find(|part| part.1.is_some()).map(|part| part.0);
        if let Some(key) = beside.or(given.vlan.as_ref().map(|_| "vlan")) {
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
        Ok(Sample { guarded, bytes, length, is_given: true, stands_in })
    }

    /// Of addresses, tag and length.
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
        Ok(Sample { bytes, guarded, length, is_given: false, stands_in })
    }

    /// Its source and its destination.
    pub fn addresses(&self) -> (MacAddr, MacAddr) {
        let snapshot = self.snapshot();
        (ethernet::source(&snapshot), ethernet::destination(&snapshot))
    }

    fn snapshot(&self) -> Snapshot {
        let mut snapshot = [0; SNAPSHOT_LEN];
        snapshot.iter_mut().zip(&self.bytes).for_each(|(to, byte)| *to = *byte);
        snapshot
    }

    /// The ports that it reaches of those of its segment, if not all, as it is for a group or a
    /// message about groups.
    pub fn reach(&self, snooping: &Snooping, segment: Segment) -> Option<(Option<IpAddr>, Reach)> {
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

    /// Where snooping sends the frame as a message about groups, from a port that may have a
    /// querier or not; nothing if the frame is none.
    pub fn message(&self, may_query: bool) -> Result<Option<Reach>, Barred> {
        let part = Part { bytes: &self.bytes, len: self.bytes.len(), sum_at: None };
        match self.is_given && multicast::may_be_message(&self.snapshot()) {
            true => reach(&multicast::parse(&part), may_query),
            false => Ok(None),
        }
    }
}

/// The first bytes of a frame from there, of TCP if it is one of IP.
fn headers(source: MacAddr, ip: Option<IpAddr>) -> Vec<u8> {
    let mut bytes = [[0; 6], source.0].concat();
    match ip {
        // A request of RARP for itself, in which a guard finds no other address.
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
