//! Messages that a guard refuses, each about addresses of its own, in the plain form in which a
//! host obeys them.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::host::{GROUP_4, HOST, HOST_6, victim, victim_6};

/// Stands in front of a message's number, where the message has room for a payload.
pub const MAGIC: [u8; 4] = *b"orac";
/// The protocol of packets that only say from which address they are (RFC 3692).
pub const ANY: u8 = 253;
const ICMP: u8 = 1;
pub const IGMP: u8 = 2;
const UDP: u8 = 17;
pub const ICMPV6: u8 = 58;
pub const VRRP: u8 = 112;

/// What a message is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    ArpReply,
    ArpRequest,
    ArpOtherMac,
    Source4,
    Source6,
    Solicitation,
    Advertisement,
    AdvertisementOtherMac,
    RouterAdvertisement,
    Redirect6,
    Redirect4,
    DhcpServer,
    DhcpOtherClient,
    DhcpRelayed,
    DhcpOtherIdentifier,
    Dhcpv6Server,
    Dhcpv6OtherClient,
    Vrrp4,
    Vrrp6,
    Hsrp,
    RouterDiscovery,
    MulticastRouter4,
    MulticastRouter6,
}

impl Kind {
    pub const ALL: [Kind; 23] = [
        Kind::ArpReply,
        Kind::ArpRequest,
        Kind::ArpOtherMac,
        Kind::Source4,
        Kind::Source6,
        Kind::Solicitation,
        Kind::Advertisement,
        Kind::AdvertisementOtherMac,
        Kind::RouterAdvertisement,
        Kind::Redirect6,
        Kind::Redirect4,
        Kind::DhcpServer,
        Kind::DhcpOtherClient,
        Kind::DhcpRelayed,
        Kind::DhcpOtherIdentifier,
        Kind::Dhcpv6Server,
        Kind::Dhcpv6OtherClient,
        Kind::Vrrp4,
        Kind::Vrrp6,
        Kind::Hsrp,
        Kind::RouterDiscovery,
        Kind::MulticastRouter4,
        Kind::MulticastRouter6,
    ];
}

/// A guest that sends messages.
#[derive(Clone, Copy, Debug)]
pub struct Station {
    pub number: u8,
}

/// A guest that sends nothing, in whose name others send.
pub const OTHER: Station = Station { number: 0xfe };

impl Station {
    pub fn mac(self) -> [u8; 6] {
        [0x52, 0x54, 0, 0x77, 0, self.number]
    }

    pub fn v4(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, self.number)
    }

    pub fn v6(self) -> Ipv6Addr {
        Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, self.number.into())
    }

    /// Addresses of its own, one for each message of a batch.
    pub fn v4_of(self, slot: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, self.number, slot as u8 + 1)
    }

    /// See [`Station::v4_of`].
    pub fn v6_of(self, slot: usize) -> Ipv6Addr {
        Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, self.number.into(), slot as u16 + 1)
    }

    pub fn link_local(self) -> Ipv6Addr {
        Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0x77, self.number.into())
    }

    /// What a message about a route of the host is about: an address behind this station.
    pub fn routed(self, number: u32) -> Ipv4Addr {
        let [_, a, b, c] = number.to_be_bytes();
        Ipv4Addr::new(self.number, a, b, c)
    }

    /// See [`Station::routed`].
    pub fn routed_6(self, number: u32) -> Ipv6Addr {
        let (high, low) = ((number >> 16) as u16, number as u16);
        Ipv6Addr::new(0x2001, 0xdb8, self.number.into(), 0, 0, 0, high, low)
    }
}

/// The prefix that an advertisement of a router is about.
pub fn prefix(number: u32) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb9, (number >> 16) as u16, number as u16, 0, 0, 0, 0)
}

/// A packet without its headers of IP, or ARP.
#[derive(Clone, Debug)]
pub enum Packet {
    Arp(Vec<u8>),
    V4 { from: Ipv4Addr, to: Ipv4Addr, protocol: u8, rest: Vec<u8> },
    V6 { from: Ipv6Addr, to: Ipv6Addr, protocol: u8, rest: Vec<u8> },
}

/// The complement of the sum of all 16-bit words.
pub fn checksum(parts: &[&[u8]]) -> u16 {
    let bytes = parts.concat();
    let word = |word: &[u8]| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0));
    let sum: u32 = bytes.chunks(2).map(word).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

/// The message with its checksum, which is at `at`.
fn summed(mut rest: Vec<u8>, at: usize, pseudo: &[&[u8]]) -> Vec<u8> {
    let sum = match checksum(&[&pseudo.concat(), &rest]) {
        0 => 0xffff,
        sum => sum,
    };
    rest[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    rest
}

pub fn v4(from: Ipv4Addr, to: Ipv4Addr, protocol: u8, rest: Vec<u8>) -> Packet {
    let len = (rest.len() as u16).to_be_bytes();
    let pseudo = [&from.octets()[..], &to.octets(), &[0, protocol], &len];
    let rest = match protocol {
        UDP => summed(rest, 6, &pseudo),
        ICMP | IGMP => summed(rest, 2, &[]),
        VRRP => summed(rest, 6, &pseudo),
        _ => rest,
    };
    Packet::V4 { from, to, protocol, rest }
}

pub fn v6(from: Ipv6Addr, to: Ipv6Addr, protocol: u8, rest: Vec<u8>) -> Packet {
    let len = (rest.len() as u32).to_be_bytes();
    let pseudo = [&from.octets()[..], &to.octets(), &len, &[0, 0, 0, protocol]];
    let at = if protocol == ICMPV6 { 2 } else { 6 };
    let rest = if protocol == ANY { rest } else { summed(rest, at, &pseudo) };
    Packet::V6 { from, to, protocol, rest }
}

fn udp(from: u16, to: u16, rest: &[u8]) -> Vec<u8> {
    let words = [from, to, 8 + rest.len() as u16, 0];
    [&words.map(u16::to_be_bytes).concat()[..], rest].concat()
}

fn link_option(kind: u8, mac: [u8; 6]) -> Vec<u8> {
    [&[kind, 1][..], &mac].concat()
}

/// A message of DHCP with the number as its transaction, and with the magic word as a host name.
fn bootp(operation: u8, mac: [u8; 6], relay: Ipv4Addr, options: &[u8], number: u32) -> Vec<u8> {
    let mut message = vec![0; 236];
    message[..3].copy_from_slice(&[operation, 1, 6]);
    message[24..28].copy_from_slice(&relay.octets());
    message[28..34].copy_from_slice(&mac);
    message.extend([99, 130, 83, 99]);
    message.extend([53, 1, if operation == 1 { 1 } else { 2 }]);
    message.extend(options);
    message.extend([12, 8]);
    message.extend(tagged(number));
    message.push(255);
    message
}

fn dhcpv6(kind: u8, mac: [u8; 6], number: u32) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 1, 0, 1, 0, 10, 0, 3, 0, 1];
    message.extend(mac);
    // An option of this number is nobody's (RFC 8415 section 24).
    message.extend([0xff, 0xf0, 0, 8]);
    message.extend(tagged(number));
    message
}

/// A message of ICMPv6.
fn icmpv6(from: Ipv6Addr, to: Ipv6Addr, kind: u8, body: &[&[u8]]) -> Packet {
    v6(from, to, ICMPV6, [&[kind, 0, 0, 0][..], &body.concat()].concat())
}

/// What a socket recognises a message by.
pub fn tagged(number: u32) -> Vec<u8> {
    [MAGIC, number.to_be_bytes()].concat()
}

/// A message from a station; `number` is of no other message, `slot` of no other one of a batch.
pub fn message(kind: Kind, station: Station, slot: usize, number: u32) -> Packet {
    let (own, own_mac) = (station.v4(), station.mac());
    let (own_6, link) = (station.v6(), station.link_local());
    let (all_6, tag) = (Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1), tagged(number));
    let other_mac = OTHER.mac();
    let arp = |operation, mac: [u8; 6], address: Ipv4Addr| {
        let head = [0, 1, 8, 0, 6, 4, 0, operation];
        let sender = [&mac[..], &address.octets()].concat();
        Packet::Arp([&head[..], &sender, &[0; 6], &HOST.octets()].concat())
    };
    let none = Ipv4Addr::UNSPECIFIED;
    let asks = |message: Vec<u8>| v4(none, Ipv4Addr::BROADCAST, UDP, udp(68, 67, &message));
    match kind {
        Kind::ArpReply => arp(2, own_mac, victim(slot)),
        Kind::ArpRequest => arp(1, own_mac, victim(slot)),
        Kind::ArpOtherMac => arp(2, other_mac, station.v4_of(slot)),
        Kind::Source4 => v4(victim(slot), HOST, ANY, tag),
        Kind::Source6 => v6(victim_6(slot), HOST_6, ANY, tag),
        Kind::Solicitation => {
            let body = [&[0; 4][..], &HOST_6.octets(), &link_option(1, own_mac)];
            icmpv6(victim_6(slot), HOST_6, 135, &body)
        }
        Kind::Advertisement => {
            let target = victim_6(slot).octets();
            icmpv6(own_6, all_6, 136, &[&[0x20, 0, 0, 0], &target, &link_option(2, own_mac)])
        }
        Kind::AdvertisementOtherMac => {
            let target = station.v6_of(slot).octets();
            icmpv6(own_6, all_6, 136, &[&[0x20, 0, 0, 0], &target, &link_option(2, other_mac)])
        }
        Kind::RouterAdvertisement => {
            // On the link, valid for 60 s.
            let option = [3, 4, 64, 0x80, 0, 0, 0, 60, 0, 0, 0, 60, 0, 0, 0, 0];
            icmpv6(link, all_6, 134, &[&[64, 0, 0, 0], &[0; 8], &option, &prefix(number).octets()])
        }
        Kind::Redirect6 => {
            let (target, to) = (other_router(slot), station.routed_6(number));
            let option = link_option(2, other_mac);
            icmpv6(link, HOST_6, 137, &[&[0; 4], &target.octets(), &to.octets(), &option])
        }
        Kind::Redirect4 => {
            // About an answer to a ping, which needs no socket.
            let inner = [0x45, 0, 0, 28, 0, 0, 0, 0, 64, ICMP, 0, 0];
            let ends = [HOST.octets(), station.routed(number).octets()].concat();
            let head = [&[5, 1, 0, 0][..], &victim(slot).octets()].concat();
            v4(own, HOST, ICMP, [&head[..], &inner, &ends, &[0; 8]].concat())
        }
        Kind::DhcpServer => {
            let offer = bootp(2, own_mac, none, &[], number);
            v4(own, Ipv4Addr::BROADCAST, UDP, udp(67, 68, &offer))
        }
        Kind::DhcpOtherClient => asks(bootp(1, other_mac, none, &[], number)),
        Kind::DhcpRelayed => asks(bootp(1, own_mac, victim(slot), &[], number)),
        Kind::DhcpOtherIdentifier => {
            let option = [&[61, 7, 1][..], &other_mac].concat();
            asks(bootp(1, own_mac, none, &option, number))
        }
        Kind::Dhcpv6Server => v6(link, all_6, UDP, udp(547, 546, &dhcpv6(2, own_mac, number))),
        Kind::Dhcpv6OtherClient => {
            v6(link, all_6, UDP, udp(546, 547, &dhcpv6(1, other_mac, number)))
        }
        Kind::Vrrp4 => v4(own, GROUP_4, VRRP, [&[0x31, 1, 255, 1, 0, 1, 0, 0][..], &tag].concat()),
        Kind::Vrrp6 => v6(link, all_6, VRRP, [&[0x31, 1, 255, 1, 0, 1, 0, 0][..], &tag].concat()),
        Kind::Hsrp => v4(own, GROUP_4, UDP, udp(1985, 1985, &tag)),
        Kind::RouterDiscovery => {
            v4(own, GROUP_4, ICMP, [&[9, 0, 0, 0, 1, 2, 7, 8][..], &tag].concat())
        }
        Kind::MulticastRouter4 => {
            v4(own, GROUP_4, IGMP, [&[0x30, 20, 0, 0, 0, 0, 0, 0][..], &tag].concat())
        }
        Kind::MulticastRouter6 => icmpv6(link, all_6, 151, &[&[0; 4], &tag]),
    }
}

/// What a guard might take a message for that has it in fragments: a message of the same kind and
/// length that a guard lets pass, or the message itself.
pub fn innocent(kind: Kind, station: Station, slot: usize, number: u32) -> Packet {
    let own = station.mac();
    let none = Ipv4Addr::UNSPECIFIED;
    let asks = |options: &[u8]| {
        let message = bootp(1, own, none, options, number);
        v4(none, Ipv4Addr::BROADCAST, UDP, udp(68, 67, &message))
    };
    let (own_6, link) = (station.v6(), station.link_local());
    let all_6 = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    match kind {
        Kind::DhcpOtherClient | Kind::DhcpRelayed => asks(&[]),
        Kind::DhcpOtherIdentifier => asks(&[&[61, 7, 1][..], &own].concat()),
        Kind::Dhcpv6OtherClient => v6(link, all_6, UDP, udp(546, 547, &dhcpv6(1, own, number))),
        Kind::Advertisement | Kind::AdvertisementOtherMac => {
            let target = station.v6_of(slot).octets();
            icmpv6(own_6, all_6, 136, &[&[0x20, 0, 0, 0], &target, &link_option(2, own)])
        }
        kind => message(kind, station, slot, number),
    }
}

/// To whom a redirect leads.
pub fn other_router(slot: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0xfe, slot as u16)
}

/// A message that any guest may send.
pub fn honest(station: Station, number: u32) -> Packet {
    v4(station.v4(), HOST, ANY, tagged(number))
}
