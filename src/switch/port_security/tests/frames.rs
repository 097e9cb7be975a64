//! Frames of a guest, byte by byte, and the verdicts of the port's rules.

use core::net::Ipv6Addr;

use crate::port_security::*;
use base::frame::{MacAddr, Prefix};
use base::limits::{MAX_HEADERS_LEN, SNAPSHOT_LEN};

pub const OWN: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 1]);
pub const OTHER: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 2]);
pub(crate) const VIRTUAL: MacAddr = MacAddr([0, 0, 0x5e, 0, 1, 7]);
pub(crate) const NO_MAC: MacAddr = MacAddr([0; 6]);
pub const OWN_IP: [u8; 4] = [10, 0, 0, 1];
pub const OTHER_IP: [u8; 4] = [10, 0, 0, 2];
pub(crate) const NO_IP: [u8; 4] = [0; 4];
pub(crate) const OWN_V6: &str = "fd00::1";
pub(crate) const OTHER_V6: &str = "fd00::2";
pub(crate) const LINK: &str = "fe80::1";
pub const NONE: &str = "::";

pub fn rules(ips: &[&str]) -> PortSecurity {
    let list: Vec<Prefix> = ips.iter().map(|ip| ip.parse().unwrap()).collect();
    PortSecurity {
        enforced: true,
        macs: AllowedMacs::Only { list: [OWN].into(), vrrp: false },
        ips: AllowedIps::new(&list),
        servers: Servers::default(),
        ethertypes: Box::default(),
    }
}

/// Returns the rules of a port with an address of each IP version.
pub fn both() -> PortSecurity {
    rules(&["10.0.0.1", OWN_V6])
}

/// Returns the verdict that a worker reaches: with the snapshot, and with more bytes if the
/// snapshot is too short.
pub fn verdict(rules: &PortSecurity, frame: &[u8]) -> Result<(), Rule> {
    asking(rules, frame, None, false)
}

pub fn asking(
    rules: &PortSecurity,
    frame: &[u8],
    sum_at: Option<usize>,
    is_cut: bool,
) -> Result<(), Rule> {
    let with = |known: usize, whole| {
        let bytes = &frame[..frame.len().min(known)];
        check(rules, &Headers { bytes, whole, len: frame.len(), sum_at, is_cut }, &|_| true)
    };
    let all = with(MAX_HEADERS_LEN, frame);
    assert!(!matches!(all, Err(Refused::Short | Refused::Whole)), "there is no more");
    let headers = with(MAX_HEADERS_LEN, &[]);
    assert!(headers == Err(Refused::Whole) || headers == all, "{headers:?}, {all:?}");
    let early = with(SNAPSHOT_LEN, &[]);
    let asks = matches!(early, Err(Refused::Short | Refused::Whole));
    assert!(asks || early == headers, "{early:?}, {headers:?}");
    match all {
        Err(Refused::Broken(violation)) => Err(violation.rule),
        _ => Ok(()),
    }
}

pub fn ethernet(from: MacAddr, to: MacAddr, ethertype: u16, rest: &[u8]) -> Vec<u8> {
    [&to.0, &from.0, &ethertype.to_be_bytes()[..], rest].concat()
}

pub fn from(source: MacAddr, ethertype: u16, rest: &[u8]) -> Vec<u8> {
    ethernet(source, MacAddr::BROADCAST, ethertype, rest)
}

/// Returns an ARP packet of an operation, a sender and a target.
pub fn arp(op: u16, sender: (MacAddr, [u8; 4]), target: (MacAddr, [u8; 4])) -> Vec<u8> {
    let kind = [0, 1, 8, 0, 6, 4];
    let [op, one, other] = [&op.to_be_bytes()[..], &sender.0.0, &target.0.0];
    [&kind, op, one, &sender.1, other, &target.1].concat()
}

pub(crate) fn arp_frame(
    op: u16,
    sender: (MacAddr, [u8; 4]),
    target: (MacAddr, [u8; 4]),
) -> Vec<u8> {
    from(OWN, ETHERTYPE_ARP, &arp(op, sender, target))
}

/// Returns an IPv4 packet; `fragment` is the field with flags and offset.
pub fn v4(
    source: [u8; 4],
    to: [u8; 4],
    proto: u8,
    fragment: u16,
    options: usize,
    rest: &[u8],
) -> Vec<u8> {
    let len = (20 + options + rest.len()) as u16;
    let mut packet = vec![0x45 + (options / 4) as u8, 0];
    packet.extend(len.to_be_bytes());
    packet.extend([0, 1]);
    packet.extend(fragment.to_be_bytes());
    packet.extend([64, proto, 0, 0]);
    packet.extend(source);
    packet.extend(to);
    packet.extend(vec![1; options]);
    packet.extend(rest);
    packet
}

pub fn udp(sport: u16, dport: u16, rest: &[u8]) -> Vec<u8> {
    let len = (8 + rest.len()) as u16;
    let mut all: Vec<u8> = [sport, dport, len, 0].iter().flat_map(|n| n.to_be_bytes()).collect();
    all.extend(rest);
    all
}

/// Returns a DHCP message without options.
pub fn bootp(op: u8, chaddr: MacAddr) -> Vec<u8> {
    let mut message = vec![0; 240];
    message[..3].copy_from_slice(&[op, 1, 6]);
    message[28..34].copy_from_slice(&chaddr.0);
    message[236..].copy_from_slice(&[99, 130, 83, 99]);
    message.push(255);
    message
}

/// Returns a DHCPv6 message of a type with options.
pub fn dhcpv6(kind: u8, options: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 1];
    for (code, value) in options {
        message.extend(code.to_be_bytes());
        message.extend((value.len() as u16).to_be_bytes());
        message.extend(value);
    }
    message
}

/// Returns a client's packet to DHCPv6 servers.
pub(crate) fn to_dhcpv6(kind: u8, options: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let datagram = udp(546, 547, &dhcpv6(kind, options));
    from(OWN, ETHERTYPE_IPV6, &v6(LINK, &[], 17, &datagram))
}

/// Returns a client's first message.
pub fn discover(source: MacAddr, chaddr: MacAddr) -> Vec<u8> {
    let datagram = udp(68, 67, &bootp(1, chaddr));
    from(source, ETHERTYPE_IPV4, &v4(NO_IP, [255; 4], 17, 0, 0, &datagram))
}

/// Returns an IPv6 packet with these extension headers: numbers and contents of at least eight
/// bytes.
pub fn v6(source: &str, headers: &[(u8, Vec<u8>)], proto: u8, rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    for (at, (_, content)) in headers.iter().enumerate() {
        let next = headers.get(at + 1).map_or(proto, |(number, _)| *number);
        body.extend([&[next][..], &content[1..]].concat());
    }
    body.extend(rest);
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend((body.len() as u16).to_be_bytes());
    packet.extend([headers.first().map_or(proto, |(number, _)| *number), 255]);
    packet.extend(source.parse::<Ipv6Addr>().unwrap().octets());
    packet.extend("ff02::1".parse::<Ipv6Addr>().unwrap().octets());
    packet.extend(body);
    packet
}

/// Returns the options of a hop-by-hop or destination header: so many times eight bytes.
pub fn options(eights: usize) -> Vec<u8> {
    let mut header = vec![0; 8 * eights];
    header[1] = eights as u8 - 1;
    header
}

/// Returns a fragment header with offset and flags.
pub fn fragment(field: u16) -> Vec<u8> {
    let [high, low] = field.to_be_bytes();
    vec![0, 0, high, low, 0, 0, 0, 1]
}

/// Returns an ICMPv6 message: type, body behind the checksum, link-layer options.
pub fn icmp(kind: u8, body: &[u8], macs: &[(u8, MacAddr)]) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0];
    message.extend(body);
    for (option, mac) in macs {
        message.extend([*option, 1]);
        message.extend(mac.0);
    }
    message
}

/// Returns the body of a message about a target.
pub fn about(target: &str) -> Vec<u8> {
    [&[0; 4][..], &target.parse::<Ipv6Addr>().unwrap().octets()].concat()
}

pub fn nd(source: &str, kind: u8, target: &str, macs: &[(u8, MacAddr)]) -> Vec<u8> {
    let message = icmp(kind, &about(target), macs);
    from(OWN, ETHERTYPE_IPV6, &v6(source, &[], 58, &message))
}

/// Returns the frame with VLAN tags.
pub fn tagged(frame: &[u8], tags: &[u16]) -> Vec<u8> {
    let tags = tags.iter().flat_map(|tag| [tag.to_be_bytes(), [0, 5]].concat());
    [&frame[..12], &tags.collect::<Vec<_>>(), &frame[12..]].concat()
}

/// Checks that each frame, plain and behind one and two tags, has this verdict.
pub(crate) fn all_are(
    rules: &PortSecurity,
    expected: Result<(), Rule>,
    frames: &[(&str, Vec<u8>)],
) {
    for (what, frame) in frames {
        for tags in [&[][..], &[0x8100], &[0x88a8], &[0x88a8, 0x8100], &[0x8100, 0x8100]] {
            assert_eq!(verdict(rules, &tagged(frame, tags)), expected, "{what}, tags {tags:x?}");
        }
    }
}

/// Returns frames of servers, with the permissions that allow them.
pub fn served() -> [(Servers, Vec<Vec<u8>>); 4] {
    let four = |sport, dport, op, chaddr| {
        let datagram = udp(sport, dport, &bootp(op, chaddr));
        from(OWN, ETHERTYPE_IPV4, &v4(OWN_IP, OTHER_IP, 17, 0, 0, &datagram))
    };
    let first = &udp(67, 68, &bootp(2, OTHER))[..24];
    let six = |headers: &[(u8, Vec<u8>)], proto, rest: &[u8]| {
        from(OWN, ETHERTYPE_IPV6, &v6(LINK, headers, proto, rest))
    };
    let redirect = [about(OTHER_V6), vec![0; 16]].concat();
    let first_of = [(44, fragment(1))];
    let routed = |protocol, rest: &[u8]| {
        from(OWN, ETHERTYPE_IPV4, &v4(OWN_IP, [224, 0, 0, 18], protocol, 0, 0, rest))
    };
    [
        (
            Servers { dhcp: true, ..Servers::default() },
            vec![
                four(67, 68, 2, OTHER),
                four(4011, 68, 2, OTHER),
                four(67, 67, 1, OTHER),
                four(68, 67, 2, OTHER),
                from(OWN, ETHERTYPE_IPV4, &v4(OWN_IP, OTHER_IP, 17, 0x2000, 0, first)),
            ],
        ),
        (
            Servers { dhcpv6: true, ..Servers::default() },
            vec![
                six(&[], 17, &udp(547, 546, &[7; 30])),
                six(&[], 17, &udp(999, 546, &[2; 30])),
                six(&[], 17, &udp(546, 547, &[12; 30])),
                six(&[(0, options(1))], 17, &udp(547, 546, &[7; 30])),
                six(&first_of, 17, &udp(547, 546, &[7; 30])),
            ],
        ),
        (
            Servers { ra: true, ..Servers::default() },
            vec![
                six(&[], 58, &icmp(134, &[0; 12], &[(1, OWN)])),
                six(&[(60, options(1))], 58, &icmp(134, &[0; 12], &[])),
                six(&[], 58, &icmp(137, &redirect, &[(2, OTHER)])),
                six(&[(0, options(1))], 58, &icmp(151, &[0; 4], &[])),
                six(&[(0, options(1))], 58, &icmp(153, &[0; 4], &[])),
                routed(1, &[5, 1, 0, 0, 10, 0, 0, 1]),
                routed(1, &[9, 0, 0, 0, 1, 2, 7, 8]),
                routed(2, &[0x30, 20, 0, 0, 0, 0, 0, 0]),
                routed(2, &[0x32, 0, 0, 0]),
            ],
        ),
        (
            Servers { vrrp: true, ..Servers::default() },
            vec![
                routed(112, &[0x21, 1, 255, 1, 0, 1, 0, 0]),
                six(&[], 112, &[0x31, 1, 255, 1, 0, 1, 0, 0]),
                routed(17, &udp(1985, 1985, &[0; 20])),
                routed(17, &udp(3222, 3222, &[0; 20])),
                six(&[], 17, &udp(2029, 2029, &[0; 20])),
            ],
        ),
    ]
}
