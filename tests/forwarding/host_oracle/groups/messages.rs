//! Messages of IGMP and MLD, each about a group of its own, in the plain form in which a host obeys
//! them, and questions that a querier asks.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::super::host::{HOST, HOST_6};
use super::super::messages::{ICMPV6, IGMP, Packet, Station, tagged, v4, v6};

/// Groups that a host is a member of, each for one message of a batch.
pub const GROUPS: usize = 250;

/// What a message is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    Report1,
    Report2,
    Report3,
    Leave2,
    Query1,
    Query2,
    Query3,
    QueryAll3,
    RouterAdvertisement4,
    RouterSolicitation4,
    RouterTermination4,
    MldReport1,
    MldReport2,
    MldDone,
    MldQuery1,
    MldQuery2,
    MldQueryAll2,
    RouterAdvertisement6,
    RouterSolicitation6,
    RouterTermination6,
}

/// What a host that obeys a message does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// A member does not answer, as another one has.
    Suppressed,
    /// A member is going to answer. One question about all groups counts for its whole batch.
    Asked,
    /// A program reads the message.
    Read,
}

impl Kind {
    pub const ALL: [Kind; 20] = [
        Kind::Report1,
        Kind::Report2,
        Kind::Report3,
        Kind::Leave2,
        Kind::Query1,
        Kind::Query2,
        Kind::Query3,
        Kind::QueryAll3,
        Kind::RouterAdvertisement4,
        Kind::RouterSolicitation4,
        Kind::RouterTermination4,
        Kind::MldReport1,
        Kind::MldReport2,
        Kind::MldDone,
        Kind::MldQuery1,
        Kind::MldQuery2,
        Kind::MldQueryAll2,
        Kind::RouterAdvertisement6,
        Kind::RouterSolicitation6,
        Kind::RouterTermination6,
    ];

    pub fn is_v4(self) -> bool {
        self < Kind::MldReport1
    }

    pub fn effect(self) -> Effect {
        match self {
            Kind::Report1 | Kind::Report2 | Kind::MldReport1 => Effect::Suppressed,
            Kind::Query1 | Kind::Query2 | Kind::Query3 | Kind::QueryAll3 => Effect::Asked,
            Kind::MldQuery1 | Kind::MldQuery2 | Kind::MldQueryAll2 => Effect::Asked,
            _ => Effect::Read,
        }
    }
}

/// For which address of IP a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Aim {
    /// That of its kind.
    Fitting,
    /// All hosts of the link.
    All,
    /// The host's own.
    Host,
}

/// A message without what stands around it.
#[derive(Clone, Copy, Debug)]
pub struct Said {
    pub kind: Kind,
    pub aim: Aim,
    /// Bytes behind the message that its length counts.
    pub more: usize,
    /// The group.
    pub slot: usize,
    pub number: u32,
}

pub fn group(slot: usize) -> Ipv4Addr {
    Ipv4Addr::new(239, 77, 0, slot as u8 + 1)
}

/// See [`group`].
pub fn group_6(slot: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0x77, slot as u16 + 1)
}

pub const ALL_HOSTS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);
pub const ALL_ROUTERS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 2);
/// To which hosts report by IGMPv3.
pub const IGMP_ROUTERS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 22);
/// Of routers that say that they are there.
pub const ALL_SNOOPERS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 106);

/// A group of all of a link.
pub const fn link_group(last: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, last)
}

/// The same message as [`message`] has, of a kind that concerns nobody.
pub fn innocent(said: &Said, station: Station) -> Packet {
    match message(said, station) {
        Packet::V4 { from, to, mut rest, .. } => {
            // Of multicast routing (RFC 1075).
            rest[0] = 0x13;
            v4(from, to, IGMP, rest)
        }
        Packet::V6 { from, to, mut rest, .. } => {
            // A ping.
            (rest[0], rest[1]) = (128, 0);
            v6(from, to, ICMPV6, rest)
        }
        packet => packet,
    }
}

pub fn message(said: &Said, station: Station) -> Packet {
    let Said { kind, aim, slot, number, .. } = *said;
    let (fitting, fitting_6, mut rest) = if kind.is_v4() {
        let (to, rest) = igmp(kind, slot, number);
        (to, Ipv6Addr::UNSPECIFIED, rest)
    } else {
        let (to, rest) = mld(kind, slot, number);
        (ALL_HOSTS, to, rest)
    };
    rest.extend(vec![0; said.more]);
    if kind.is_v4() {
        let to = match aim {
            Aim::Fitting => fitting,
            Aim::All => ALL_HOSTS,
            Aim::Host => HOST,
        };
        return v4(station.v4(), to, IGMP, rest);
    }
    let to = match aim {
        Aim::Fitting => fitting_6,
        Aim::All => link_group(1),
        Aim::Host => HOST_6,
    };
    v6(station.link_local(), to, ICMPV6, rest)
}

fn igmp(kind: Kind, slot: usize, number: u32) -> (Ipv4Addr, Vec<u8>) {
    let (group, tag) = (group(slot), tagged(number));
    let plain = |kind: u8, code: u8, group: Ipv4Addr, more: &[u8]| {
        [&[kind, code, 0, 0][..], &group.octets(), more].concat()
    };
    let none = Ipv4Addr::UNSPECIFIED;
    match kind {
        Kind::Report1 => (group, plain(0x12, 0, group, &[])),
        Kind::Report2 => (group, plain(0x16, 0, group, &[])),
        Kind::Report3 => {
            // One record, behind whose group stand two words for nobody.
            let record = [&[4, 2, 0, 0][..], &group.octets(), &tag].concat();
            (IGMP_ROUTERS, plain(0x22, 0, Ipv4Addr::new(0, 0, 0, 1), &record))
        }
        Kind::Leave2 => (ALL_ROUTERS, plain(0x17, 0, group, &tag)),
        Kind::Query1 => (ALL_HOSTS, plain(0x11, 0, none, &[])),
        // For the longest time, so that the answers do not come before they are looked for.
        Kind::Query2 => (group, plain(0x11, 255, group, &[])),
        Kind::Query3 => (group, plain(0x11, 255, group, &[2, 125, 0, 0])),
        Kind::QueryAll3 => (ALL_HOSTS, plain(0x11, 255, none, &[2, 125, 0, 0])),
        Kind::RouterAdvertisement4 => (ALL_SNOOPERS, plain(0x30, 20, none, &tag)),
        Kind::RouterSolicitation4 => (ALL_ROUTERS, [&[0x31, 0, 0, 0][..], &tag].concat()),
        Kind::RouterTermination4 => (ALL_SNOOPERS, [&[0x32, 0, 0, 0][..], &tag].concat()),
        _ => unreachable!("{kind:?}"),
    }
}

fn mld(kind: Kind, slot: usize, number: u32) -> (Ipv6Addr, Vec<u8>) {
    let (group, tag) = (group_6(slot), tagged(number));
    let plain = |kind: u8, delay: u16, group: Ipv6Addr, more: &[u8]| {
        let [high, low] = delay.to_be_bytes();
        [&[kind, 0, 0, 0, high, low, 0, 0][..], &group.octets(), more].concat()
    };
    let none = Ipv6Addr::UNSPECIFIED;
    match kind {
        Kind::MldReport1 => (group, plain(131, 0, group, &[])),
        Kind::MldReport2 => {
            let record = [&[4, 2, 0, 0][..], &group.octets(), &tag].concat();
            (link_group(0x16), [&[143, 0, 0, 0, 0, 0, 0, 1][..], &record].concat())
        }
        Kind::MldDone => (link_group(2), plain(132, 0, group, &tag)),
        Kind::MldQuery1 => (group, plain(130, 0xffff, group, &[])),
        Kind::MldQuery2 => (group, plain(130, 0x7fff, group, &[2, 125, 0, 0])),
        Kind::MldQueryAll2 => (link_group(1), plain(130, 0x7fff, none, &[2, 125, 0, 0])),
        Kind::RouterAdvertisement6 => {
            (link_group(0x6a), [&[151, 20, 0, 0, 0, 0, 0, 0][..], &tag].concat())
        }
        Kind::RouterSolicitation6 => (link_group(2), [&[152, 0, 0, 0][..], &tag].concat()),
        Kind::RouterTermination6 => (link_group(0x6a), [&[153, 0, 0, 0][..], &tag].concat()),
        _ => unreachable!("{kind:?}"),
    }
}

/// Questions about all groups, which hosts answer within a tenth of a second.
pub fn questions(querier: Station) -> [Packet; 2] {
    let message = [0x11, 1, 0, 0, 0, 0, 0, 0].to_vec();
    let mut message_6 = vec![0; 24];
    (message_6[0], message_6[5]) = (130, 100);
    let to = link_group(1);
    [v4(querier.v4(), ALL_HOSTS, IGMP, message), v6(querier.link_local(), to, ICMPV6, message_6)]
}
