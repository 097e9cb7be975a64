//! Frames of an honest guest pass; frames of a guest that gives foreign addresses do not.

mod dhcp;
mod frames;
mod hidden;

use core::net::Ipv6Addr;

use super::*;
use base::frame::MacAddr;
use frames::*;

#[test]
fn what_an_honest_guest_sends_passes() {
    let renew = udp(68, 67, &bootp(1, OWN));
    let reply = udp(4000, 4001, &[7; 30]);
    let (own, own_v6) = ((OWN, OWN_IP), [(1, OWN)]);
    let listener = [(0, options(1))];
    let report = icmp(143, &[0; 24], &[]);
    all_are(
        &both(),
        Ok(()),
        &[
            ("a request", arp_frame(1, own, (NO_MAC, OTHER_IP))),
            ("a reply", arp_frame(2, own, (OTHER, OTHER_IP))),
            ("a probe, RFC 5227", arp_frame(1, (OWN, NO_IP), (NO_MAC, OWN_IP))),
            ("an announcement, RFC 5227", arp_frame(1, own, (NO_MAC, OWN_IP))),
            ("gratuitous ARP", arp_frame(2, own, (OWN, OWN_IP))),
            (
                "RARP after a migration",
                from(OWN, ETHERTYPE_RARP, &arp(3, (OWN, NO_IP), (OWN, NO_IP))),
            ),
            ("TCP", from(OWN, ETHERTYPE_IPV4, &v4(OWN_IP, OTHER_IP, 6, 0, 0, &[9; 40]))),
            ("UDP", from(OWN, ETHERTYPE_IPV4, &v4(OWN_IP, OTHER_IP, 17, 0, 0, &reply))),
            ("options", from(OWN, ETHERTYPE_IPV4, &v4(OWN_IP, OTHER_IP, 17, 0, 40, &reply))),
            ("a fragment", from(OWN, ETHERTYPE_IPV4, &v4(OWN_IP, OTHER_IP, 17, 185, 0, &[0; 9]))),
            ("DHCP discover", discover(OWN, OWN)),
            ("DHCP renew", from(OWN, ETHERTYPE_IPV4, &v4(OWN_IP, OTHER_IP, 17, 0, 0, &renew))),
            (
                "IGMP without an address, RFC 3376",
                from(OWN, ETHERTYPE_IPV4, &v4(NO_IP, [224, 0, 0, 22], 2, 0, 4, &[0x22; 16])),
            ),
            ("DHCPv6 solicit", to_dhcpv6(1, &[])),
            ("TCP over IPv6", from(OWN, ETHERTYPE_IPV6, &v6(OWN_V6, &[], 6, &[9; 40]))),
            (
                "a fragment of IPv6",
                from(OWN, ETHERTYPE_IPV6, &v6(OWN_V6, &[(44, fragment(0x5a8))], 58, &[134; 40])),
            ),
            ("a long ping", from(OWN, ETHERTYPE_IPV6, &v6(OWN_V6, &[], 58, &[128; 900]))),
            ("DAD", nd(NONE, 135, OWN_V6, &[])),
            ("DAD of a link-local address", nd(NONE, 135, LINK, &[])),
            ("solicitation", nd(OWN_V6, 135, OTHER_V6, &own_v6)),
            ("advertisement", nd(LINK, 136, OWN_V6, &[(2, OWN)])),
            (
                "router solicitation",
                from(OWN, ETHERTYPE_IPV6, &v6(LINK, &[], 58, &icmp(133, &[0; 4], &own_v6))),
            ),
            (
                "the same without an address",
                from(OWN, ETHERTYPE_IPV6, &v6(NONE, &[], 58, &icmp(133, &[0; 4], &[]))),
            ),
            (
                "MLD without an address",
                from(OWN, ETHERTYPE_IPV6, &v6(NONE, &listener, 58, &report)),
            ),
        ],
    );
}

#[test]
fn the_source_address_is_the_port_s() {
    let arp = arp(1, (OWN, OWN_IP), (NO_MAC, OTHER_IP));
    let dad = v6(NONE, &[], 58, &icmp(135, &about(OWN_V6), &[]));
    all_are(
        &both(),
        Err(Rule::Mac),
        &[
            ("ARP", from(OTHER, ETHERTYPE_ARP, &arp)),
            // Exceptions excuse a field further in (CVE-2025-52889 and -52890).
            ("DHCP", discover(OTHER, OWN)),
            ("DAD", from(OTHER, ETHERTYPE_IPV6, &dad)),
            ("RARP", from(OTHER, ETHERTYPE_RARP, &frames::arp(3, (OWN, NO_IP), (OWN, NO_IP)))),
            ("a virtual router", from(VIRTUAL, 0x88b5, &[0; 46])),
            ("anything", from(OTHER, 0x88b5, &[0; 46])),
        ],
    );
}

#[test]
fn the_sender_of_arp_is_the_port_s() {
    let probe = |sender, target| arp_frame(1, (sender, NO_IP), (NO_MAC, target));
    all_are(
        &both(),
        Err(Rule::Arp),
        &[
            ("another's IP", arp_frame(1, (OWN, OTHER_IP), (NO_MAC, OWN_IP))),
            ("another's IP in a reply", arp_frame(2, (OWN, OTHER_IP), (OTHER, OTHER_IP))),
            ("another's MAC", arp_frame(2, (OTHER, OWN_IP), (OTHER, OTHER_IP))),
            ("a probe with another's MAC", probe(OTHER, OWN_IP)),
            ("a probe of another's address", probe(OWN, OTHER_IP)),
            ("a reply without an address", arp_frame(2, (OWN, NO_IP), (OTHER, OWN_IP))),
            ("all ones", arp_frame(1, (OWN, [255; 4]), (NO_MAC, OTHER_IP))),
        ],
    );
    let mut packet = arp(1, (OWN, OWN_IP), (NO_MAC, OTHER_IP));
    assert_eq!(verdict(&both(), &from(OWN, ETHERTYPE_ARP, &packet)), Ok(()));
    let short = from(OWN, ETHERTYPE_ARP, &packet[..16]);
    let spoofed = arp_frame(1, (OWN, OTHER_IP), (NO_MAC, OTHER_IP));
    packet[4] = 8;
    all_are(
        &both(),
        Err(Rule::Headers),
        &[
            ("other lengths", from(OWN, ETHERTYPE_ARP, &packet)),
            ("no target", arp_frame(1, (OWN, NO_IP), (NO_MAC, OWN_IP))[..38].to_vec()),
            ("no end", short),
        ],
    );
    let thrice = tagged(&spoofed, &[0x8100, 0x8100, 0x8100]);
    assert_eq!(verdict(&both(), &thrice), Err(Rule::Headers));
}

#[test]
fn rarp_asks_for_oneself() {
    let rarp = |op, sender, target| from(OWN, ETHERTYPE_RARP, &arp(op, sender, target));
    assert_eq!(verdict(&both(), &rarp(3, (OWN, OWN_IP), (OWN, OWN_IP))), Ok(()));
    all_are(
        &both(),
        Err(Rule::Rarp),
        &[
            ("another's MAC", rarp(3, (OTHER, NO_IP), (OWN, NO_IP))),
            ("for another", rarp(3, (OWN, NO_IP), (OTHER, NO_IP))),
            ("an answer", rarp(4, (OWN, OWN_IP), (OWN, OWN_IP))),
            ("another's IP", rarp(3, (OWN, OTHER_IP), (OWN, NO_IP))),
            ("another's IP for itself", rarp(3, (OWN, NO_IP), (OWN, OTHER_IP))),
        ],
    );
}

#[test]
fn the_source_of_ip_is_the_port_s() {
    let dhcp = udp(68, 67, &bootp(1, OWN));
    let packet = |source, to, proto, fragment: u16, rest: &[u8]| {
        from(OWN, ETHERTYPE_IPV4, &v4(source, to, proto, fragment, 0, rest))
    };
    let six = |source, proto, rest: &[u8]| from(OWN, ETHERTYPE_IPV6, &v6(source, &[], proto, rest));
    all_are(
        &both(),
        Err(Rule::Ip),
        &[
            ("TCP", packet(OTHER_IP, OWN_IP, 6, 0, &[0; 40])),
            ("a fragment", packet(OTHER_IP, OWN_IP, 17, 100, &[0; 40])),
            ("no address", packet(NO_IP, [255; 4], 6, 0, &[0; 40])),
            ("no address, UDP", packet(NO_IP, [255; 4], 17, 0, &udp(68, 68 + 1, &[0; 300]))),
            ("DHCP without an address to one", packet(NO_IP, OTHER_IP, 17, 0, &dhcp)),
            ("DHCP from another's", packet(OTHER_IP, [255; 4], 17, 0, &dhcp)),
            ("a group", packet([224, 0, 0, 1], OWN_IP, 6, 0, &[0; 40])),
            ("IPv6", six(OTHER_V6, 6, &[0; 40])),
            ("IPv6 without an address", six(NONE, 6, &[0; 40])),
            ("a ping without an address", six(NONE, 58, &[128; 40])),
            ("DHCPv6 from another's", six(OTHER_V6, 17, &udp(546, 547, &dhcpv6(1, &[])))),
            ("an advertisement from none", nd(NONE, 136, OWN_V6, &[(2, OWN)])),
            ("DAD with a link-layer address", nd(NONE, 135, OWN_V6, &[(1, OWN)])),
            ("solicitation from another's", nd(OTHER_V6, 135, OWN_V6, &[(1, OWN)])),
            ("mapped", six("::ffff:10.0.0.1", 6, &[0; 40])),
        ],
    );
}

/// RFC 2710 section 8, RFC 4861 sections 4.1 and 4.3: a station without an address sends to groups.
#[test]
fn without_an_address_of_ipv6_a_guest_sends_to_groups_only() {
    let solicitation = icmp(133, &[0; 4], &[]);
    let report = icmp(143, &[0; 24], &[]);
    for frame in [
        nd(NONE, 135, OWN_V6, &[]),
        from(OWN, ETHERTYPE_IPV6, &v6(NONE, &[], 58, &solicitation)),
        from(OWN, ETHERTYPE_IPV6, &v6(NONE, &[], 58, &report)),
    ] {
        assert_eq!(verdict(&both(), &frame), Ok(()));
        let mut to_one = frame;
        to_one[14 + 24..14 + 40].copy_from_slice(&OTHER_V6.parse::<Ipv6Addr>().unwrap().octets());
        all_are(&both(), Err(Rule::Ip), &[("to one", to_one)]);
    }
}

#[test]
fn a_list_of_one_version_has_no_other() {
    let (four, six) = (rules(&["10.0.0.0/8"]), rules(&["fd00::/8"]));
    let report = v6(NONE, &[(0, options(1))], 58, &icmp(143, &[0; 24], &[]));
    let tcp = from(OWN, ETHERTYPE_IPV6, &v6(LINK, &[], 6, &[0; 40]));
    let dad = nd(NONE, 135, LINK, &[]);
    assert_eq!(verdict(&four, &discover(OWN, OWN)), Ok(()));
    assert_eq!(verdict(&six, &dad), Ok(()));
    let mld = from(OWN, ETHERTYPE_IPV6, &report);
    all_are(&four, Err(Rule::Version), &[("MLD", mld), ("TCP", tcp), ("DAD", dad)]);
    let probe = arp_frame(1, (OWN, NO_IP), (NO_MAC, OWN_IP));
    all_are(&six, Err(Rule::Version), &[("DHCP", discover(OWN, OWN)), ("a probe", probe)]);
    // A frame that breaks another rule is still refused for the other rule.
    let router = from(OWN, ETHERTYPE_IPV6, &v6(LINK, &[], 58, &icmp(134, &[0; 12], &[])));
    all_are(&four, Err(Rule::Server), &[("an advertisement", router)]);
}

#[test]
fn frames_of_other_types_need_a_list() {
    let spoofed = arp(2, (OWN, OTHER_IP), (OTHER, OTHER_IP));
    let packet = v4(OTHER_IP, OWN_IP, 1, 0, 0, &[8; 20]);
    let snap = [&[0xaa, 0xaa, 3, 0, 0, 0, 8, 6], &spoofed[..]].concat();
    let frames = [
        ("a protocol", from(OWN, 0x88b5, &[0; 46]), 0x88b5),
        ("an old tag", from(OWN, 0x9200, &[&[0, 5, 8, 6], &spoofed[..]].concat()), 0x9200),
        ("MPLS", from(OWN, 0x8847, &[&[0, 0, 1, 64], &packet[..]].concat()), 0x8847),
        ("PPPoE", from(OWN, 0x8863, &[0x11, 7, 0, 0, 0, 0]), 0x8863),
        ("LLC", from(OWN, 39, &[0xe0, 0xe0, 3, 1, 2, 3]), LLC),
        ("IP in LLC", from(OWN, 40, &[&[6, 6, 3], &packet[..]].concat()), LLC),
        ("SNAP", from(OWN, 36, &snap), LLC),
        ("SNAP, a wrong length", from(OWN, 1535, &snap), LLC),
        ("a length without LLC", from(OWN, 0, &[]), LLC),
    ];
    for (what, frame, ethertype) in frames {
        let lists = |ethertype| PortSecurity { ethertypes: [ethertype].into(), ..both() };
        all_are(&both(), Err(Rule::Ethertype), &[(what, frame.clone())]);
        all_are(&lists(0x88b6), Err(Rule::Ethertype), &[(what, frame.clone())]);
        all_are(&lists(ethertype), Ok(()), &[(what, frame)]);
    }
    // The list does not exempt types that are checked.
    let all = PortSecurity { ethertypes: [ETHERTYPE_ARP, LLC].into(), ..both() };
    all_are(&all, Err(Rule::Arp), &[("ARP", from(OWN, ETHERTYPE_ARP, &spoofed))]);
}

/// A host reports its groups by IGMP, also before it has an address.
#[test]
fn a_station_without_an_address_says_which_groups_it_is_in() {
    let group = [224, 0, 0, 22];
    let igmp = |kind, to| from(OWN, ETHERTYPE_IPV4, &v4(NO_IP, to, 2, 0, 4, &[kind; 16]));
    for kind in [0x12, 0x16, 0x17, 0x22] {
        all_are(&both(), Ok(()), &[("a report", igmp(kind, group))]);
        all_are(&both(), Err(Rule::Ip), &[("to a station", igmp(kind, OTHER_IP))]);
    }
    all_are(&both(), Err(Rule::Ip), &[("a query", igmp(0x11, group))]);
    let other = from(OWN, ETHERTYPE_IPV4, &v4(OTHER_IP, group, 2, 0, 4, &[0x22; 16]));
    all_are(&both(), Err(Rule::Ip), &[("another's", other)]);
}

#[test]
fn link_local_addresses_are_any_unless_the_list_has_some() {
    let named = rules(&[OWN_V6, "fe80::5"]);
    let tcp = |source| from(OWN, ETHERTYPE_IPV6, &v6(source, &[], 6, &[0; 40]));
    assert_eq!(verdict(&both(), &tcp(LINK)), Ok(()));
    assert_eq!(verdict(&both(), &tcp("febf:ffff::1")), Ok(()));
    assert_eq!(verdict(&both(), &tcp("fec0::1")), Err(Rule::Ip));
    assert_eq!(verdict(&named, &tcp("fe80::5")), Ok(()));
    assert_eq!(verdict(&named, &tcp(LINK)), Err(Rule::Ip));
    assert_eq!(verdict(&named, &nd("fe80::5", 136, LINK, &[(2, OWN)])), Err(Rule::Nd));
}

#[test]
fn a_prefix_of_all_has_no_address_that_is_none() {
    let all = rules(&["0.0.0.0/0", "::/0"]);
    let tcp = |source| from(OWN, ETHERTYPE_IPV4, &v4(source, OWN_IP, 6, 0, 0, &[0; 40]));
    let six = |source| from(OWN, ETHERTYPE_IPV6, &v6(source, &[], 6, &[0; 40]));
    assert_eq!(verdict(&all, &tcp(OTHER_IP)), Ok(()));
    assert_eq!(verdict(&all, &six(OTHER_V6)), Ok(()));
    for source in [NO_IP, [255; 4], [239, 1, 1, 1]] {
        assert_eq!(verdict(&all, &tcp(source)), Err(Rule::Ip), "{source:?}");
    }
    for source in [NONE, "ff02::1"] {
        assert_eq!(verdict(&all, &six(source)), Err(Rule::Ip), "{source}");
    }
    assert_eq!(verdict(&all, &discover(OWN, OTHER)), Err(Rule::Dhcp));
}

#[test]
fn neighbour_discovery_names_the_port_s_addresses() {
    let rs = |mac| v6(LINK, &[], 58, &icmp(133, &[0; 4], &[(1, mac)]));
    let second = [(14, OWN), (1, OWN), (1, OTHER)];
    let inverse = v6(LINK, &[], 58, &icmp(142, &[0; 4], &[(1, OTHER)]));
    all_are(
        &both(),
        Err(Rule::Nd),
        &[
            ("solicitation", nd(OWN_V6, 135, OTHER_V6, &[(1, OTHER)])),
            ("a second option", nd(OWN_V6, 135, OTHER_V6, &second)),
            ("the option of the other kind", nd(OWN_V6, 135, OTHER_V6, &[(2, OTHER)])),
            ("advertisement", nd(OWN_V6, 136, OWN_V6, &[(2, OTHER)])),
            ("of another's address", nd(OWN_V6, 136, OTHER_V6, &[(2, OWN)])),
            ("of another's address, no option", nd(OWN_V6, 136, OTHER_V6, &[])),
            ("DAD for another's address", nd(NONE, 135, OTHER_V6, &[])),
            ("DAD with another's MAC", nd(NONE, 135, OWN_V6, &[(1, OTHER)])),
            ("router solicitation", from(OWN, ETHERTYPE_IPV6, &rs(OTHER))),
            ("inverse discovery", from(OWN, ETHERTYPE_IPV6, &inverse)),
        ],
    );
}

#[test]
fn virtual_routers_have_addresses_of_their_own_kind() {
    let list = [OWN].into();
    let rules = PortSecurity { macs: AllowedMacs::Only { list, vrrp: true }, ..both() };
    let announces = arp(1, (VIRTUAL, OWN_IP), (NO_MAC, OWN_IP));
    let spoofs = arp(1, (VIRTUAL, OTHER_IP), (NO_MAC, OTHER_IP));
    let six = MacAddr([0, 0, 0x5e, 0, 2, 9]);
    let target = icmp(136, &about(OWN_V6), &[(2, six)]);
    let other = icmp(136, &about(OTHER_V6), &[(2, six)]);
    let packet = |message: &[u8]| from(six, ETHERTYPE_IPV6, &v6(OWN_V6, &[], 58, message));
    all_are(
        &rules,
        Ok(()),
        &[
            (
                "advertisement",
                from(VIRTUAL, ETHERTYPE_IPV4, &v4(OWN_IP, OTHER_IP, 112, 0, 0, &[0])),
            ),
            ("ARP", from(VIRTUAL, ETHERTYPE_ARP, &announces)),
            ("ARP from its own", from(OWN, ETHERTYPE_ARP, &announces)),
            ("ND", packet(&target)),
        ],
    );
    // An allowed link-layer address excuses no IP address.
    all_are(&rules, Err(Rule::Arp), &[("ARP", from(VIRTUAL, ETHERTYPE_ARP, &spoofs))]);
    all_are(&rules, Err(Rule::Nd), &[("ND", packet(&other))]);
    for mac in [[0, 0, 0x5e, 0, 1, 0], [0, 0, 0x5e, 0, 3, 1], [0, 0, 0x5e, 1, 1, 1]] {
        let frame = from(MacAddr(mac), 0x88b5, &[0; 46]);
        assert_eq!(verdict(&rules, &frame), Err(Rule::Mac), "{mac:x?}");
    }
}

/// Without a list, link-layer addresses inside a frame must be the frame's source.
#[test]
fn without_a_list_a_frame_does_not_contradict_itself() {
    let rules = PortSecurity { macs: AllowedMacs::Any, ips: AllowedIps::new(&[]), ..both() };
    let of = |mac: MacAddr, sender: MacAddr| {
        let solicits = icmp(135, &about(OTHER_V6), &[(1, sender)]);
        let ip = v6(OTHER_V6, &[], 58, &solicits);
        [
            (Rule::Arp, from(mac, ETHERTYPE_ARP, &arp(1, (sender, OTHER_IP), (NO_MAC, OWN_IP)))),
            (Rule::Rarp, from(mac, ETHERTYPE_RARP, &arp(3, (sender, NO_IP), (sender, NO_IP)))),
            (Rule::Nd, from(mac, ETHERTYPE_IPV6, &ip)),
            (Rule::Dhcp, discover(mac, sender)),
        ]
    };
    for (rule, frame) in of(OTHER, OTHER) {
        all_are(&rules, Ok(()), &[(rule.name(), frame)]);
    }
    for (rule, frame) in of(OTHER, OWN) {
        all_are(&rules, Err(rule), &[(rule.name(), frame)]);
    }
}
