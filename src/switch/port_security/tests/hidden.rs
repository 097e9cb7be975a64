//! Hidden bytes do not pass: behind headers, in fragments, or written later.

use super::frames::*;
use crate::port_security::*;

#[test]
fn extension_headers_hide_nothing() {
    let spoofed = icmp(136, &about(OTHER_V6), &[(2, OWN)]);
    let advertisement = icmp(134, &[0; 12], &[(1, OWN)]);
    let served = udp(547, 546, &[7; 20]);
    let packet = |headers: &[(u8, Vec<u8>)], proto, rest: &[u8]| {
        from(OWN, ETHERTYPE_IPV6, &v6(OWN_V6, headers, proto, rest))
    };
    let mut authentication = vec![0; 24];
    authentication[1] = 4;
    let chains: [Vec<(u8, Vec<u8>)>; 8] = [
        vec![(0, options(1))],
        vec![(60, options(2))],
        vec![(43, options(3))],
        vec![(51, authentication)],
        vec![(135, options(1)), (139, options(1)), (140, options(1))],
        vec![(0, options(1)), (60, options(1)), (43, options(1)), (60, options(1))],
        vec![(60, options(1)); 10],
        vec![(0, options(10))],
    ];
    for chain in chains {
        let what = format!("{chain:?}");
        all_are(&both(), Err(Rule::Nd), &[(&what, packet(&chain, 58, &spoofed))]);
        all_are(&both(), Err(Rule::Server), &[(&what, packet(&chain, 58, &advertisement))]);
        all_are(&both(), Err(Rule::Server), &[(&what, packet(&chain, 17, &served))]);
        all_are(&both(), Ok(()), &[(&what, packet(&chain, 6, &[0; 20]))]);
    }
    let own = icmp(136, &about(OWN_V6), &[(2, OWN)]);
    let cut = |bytes: usize| {
        let whole = packet(&[], 58, &own);
        whole[..whole.len() - bytes].to_vec()
    };
    let mut empty = own.clone();
    empty[25] = 0;
    let many = icmp(136, &about(OWN_V6), &[(2, OWN); 24]);
    all_are(
        &both(),
        Err(Rule::Headers),
        &[
            ("a chain beyond what is read", packet(&vec![(60, options(4)); 8], 6, &[0; 20])),
            ("a long header", packet(&[(60, options(30))], 58, &spoofed)),
            ("a chain that does not end", packet(&vec![(60, options(2)); 20], 58, &spoofed)),
            ("ND in the only fragment", packet(&[(44, fragment(0))], 58, &own)),
            ("ND in the first fragment", packet(&[(44, fragment(1))], 58, &own)),
            ("ND behind a fragment", packet(&[(44, fragment(1)), (60, options(1))], 58, &own)),
            ("a fragment that ends in its chain", packet(&[(44, fragment(1))], 60, &[])),
            ("a fragment without a type", packet(&[(44, fragment(1))], 58, &[])),
            ("an option cut off", cut(4)),
            ("a target cut off", cut(20)),
            ("an option without a length", packet(&[], 58, &empty)),
            ("options beyond what is read", packet(&[], 58, &many)),
            ("another version", from(OWN, ETHERTYPE_IPV6, &[0x45; 60])),
            ("half a header", from(OWN, ETHERTYPE_IPV6, &[0x60; 20])),
        ],
    );
}

/// A packet may claim to be shorter than its frame: receivers read only the packet's bytes.
#[test]
fn what_follows_a_packet_is_padding() {
    let mut frame = nd(OWN_V6, 136, OWN_V6, &[(2, OWN)]);
    frame.extend([2, 1, 9, 9, 9, 9, 9, 9]);
    all_are(&both(), Ok(()), &[("padding", frame.clone())]);
    frame[14 + 5] += 8;
    all_are(&both(), Err(Rule::Nd), &[("an option", frame.clone())]);
    frame[14 + 5] = 0;
    all_are(&both(), Err(Rule::Headers), &[("no length", frame)]);
}

/// The first fragment has all headers (RFC 7112): bytes behind its end look like a header, and the
/// next fragment has the real one.
#[test]
fn headers_do_not_hide_in_the_next_fragment() {
    let chain = [(44, fragment(1)), (60, options(1))];
    let first = |proto, rest: &[u8], payload: u8| {
        let mut frame = from(OWN, ETHERTYPE_IPV6, &v6(OWN_V6, &chain, proto, rest));
        frame[14 + 5] = payload;
        frame
    };
    let tcp = |payload| first(6, &[0; 24], payload);
    all_are(&both(), Ok(()), &[("all of it", tcp(16 + 24)), ("a header of UDP's size", tcp(24))]);
    let asks = udp(5000, 547, &[1; 16]);
    all_are(
        &both(),
        Err(Rule::Headers),
        &[
            ("the end of the chain", tcp(16)),
            ("a header of the chain", tcp(8)),
            ("an echo request", first(58, &[128; 24], 16)),
            ("ports", first(17, &udp(5000, 5001, &[0; 16]), 16)),
            ("a message to a DHCPv6 server", first(17, &asks, 24)),
        ],
    );
}

#[test]
fn a_dhcp_client_asks_for_itself() {
    let message = |op, chaddr| udp(68, 67, &bootp(op, chaddr));
    let packet = |fragment, options, datagram: &[u8]| {
        from(OWN, ETHERTYPE_IPV4, &v4(OWN_IP, OTHER_IP, 17, fragment, options, datagram))
    };
    let mut hardware = message(1, OWN);
    hardware[9] = 32;
    let asks = udp(1068, 67, &bootp(1, OTHER));
    all_are(
        &both(),
        Err(Rule::Dhcp),
        &[
            ("discover", discover(OWN, OTHER)),
            ("renew", packet(0, 0, &message(1, OTHER))),
            ("behind options", packet(0, 40, &message(1, OTHER))),
            ("from another port", packet(0, 0, &asks)),
            ("other hardware", packet(0, 0, &hardware)),
        ],
    );
    all_are(
        &both(),
        Err(Rule::Headers),
        &[
            ("the first fragment", packet(0x2000, 0, &message(1, OWN)[..16])),
            ("no end", packet(0, 0, &message(1, OWN)[..30])),
            ("no ports", packet(0, 0, &[0; 3])),
            ("a short header", from(OWN, ETHERTYPE_IPV4, &[0x44; 60])),
            ("another version", from(OWN, ETHERTYPE_IPV4, &[0x65; 60])),
            ("half a header", from(OWN, ETHERTYPE_IPV4, &[0x45; 10])),
        ],
    );
    // Of several datagrams in one packet only the first is at hand.
    let frame = packet(0, 0, &message(1, OWN));
    assert_eq!(asking(&both(), &frame, None, true), Err(Rule::Headers));
    let other = packet(0, 0, &udp(5000, 5001, &[0; 300]));
    assert_eq!(asking(&both(), &other, None, true), Ok(()));
    assert_eq!(asking(&both(), &to_dhcpv6(1, &[]), None, true), Err(Rule::Headers));
}

#[test]
fn there_are_no_servers_but_those_allowed() {
    for (servers, frames) in served() {
        for (n, frame) in frames.into_iter().enumerate() {
            let what = format!("{n} of {servers:?}");
            for rules in [both(), PortSecurity { ips: AllowedIps::new(&[]), ..both() }] {
                all_are(&rules, Err(Rule::Server), &[(&what, frame.clone())]);
                all_are(&PortSecurity { servers, ..rules }, Ok(()), &[(&what, frame.clone())]);
            }
        }
    }
    // A router sends its own addresses.
    let rules = PortSecurity { servers: Servers { ra: true, ..Servers::default() }, ..both() };
    let message = icmp(134, &[0; 12], &[(1, OTHER)]);
    let advertisement = from(OWN, ETHERTYPE_IPV6, &v6(LINK, &[], 58, &message));
    all_are(&rules, Err(Rule::Nd), &[("another's MAC", advertisement)]);
    let rules = PortSecurity { servers: Servers { dhcp: true, ..Servers::default() }, ..both() };
    let datagram = udp(67, 68, &bootp(2, OTHER));
    let offer = from(OWN, ETHERTYPE_IPV4, &v4(OTHER_IP, OWN_IP, 17, 0, 0, &datagram));
    all_are(&rules, Err(Rule::Ip), &[("another's IP", offer)]);
}

/// A checksum is written at delivery, after the frame was checked.
#[test]
fn no_checksum_is_written_over_what_was_read() {
    let frames = [
        arp_frame(1, (OWN, OWN_IP), (NO_MAC, OTHER_IP)),
        nd(OWN_V6, 136, OWN_V6, &[(2, OWN)]),
        discover(OWN, OWN),
    ];
    // The sender's addresses; target and option; the client's address.
    let fields: [&[std::ops::Range<usize>]; 3] =
        [&[22..28, 28..32], &[62..78, 78..80, 80..86], &[70..76, 43..45]];
    for (frame, fields) in frames.iter().zip(fields) {
        assert_eq!(verdict(&both(), frame), Ok(()));
        for sum in 14..frame.len() - 2 {
            let hit = fields.iter().any(|field| sum + 1 >= field.start && sum < field.end);
            let answer = asking(&both(), frame, Some(sum), false);
            assert!(!hit || answer == Err(Rule::Headers), "{sum}: {answer:?}");
        }
    }
    // Where ICMPv6 and UDP have their checksums.
    assert_eq!(asking(&both(), &frames[1], Some(56), false), Ok(()));
    assert_eq!(asking(&both(), &frames[2], Some(40), false), Ok(()));
}

/// A generator of bytes without a pattern.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) ^ (self.0 << 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// Any bytes have a verdict, which does not depend on how many bytes were at hand. Half of the
/// frames are valid frames with some bytes changed, which are read further than random bytes.
#[test]
fn any_frame_has_an_answer() {
    let all: Vec<Vec<u8>> = served().into_iter().flat_map(|(_, frames)| frames).collect();
    let more = [
        discover(OWN, OWN),
        to_dhcpv6(1, &[(1, vec![0; 12]), (3, vec![0; 12])]),
        nd(OWN_V6, 136, OWN_V6, &[(2, OWN)]),
    ];
    let known: Vec<Vec<u8>> = all.into_iter().chain(more).collect();
    let servers = Servers { dhcp: true, dhcpv6: true, ra: true, vrrp: true };
    let lists = [both(), rules(&[]), PortSecurity { servers, ..both() }];
    let (mut random, mut refused) = (Random(1), 0);
    let rounds = if cfg!(miri) { 500 } else { 100_000 };
    for round in 0..rounds {
        let mut frame = known[random.below(known.len())].clone();
        if round % 2 == 0 {
            frame = (0..14 + random.below(400)).map(|_| random.next() as u8).collect();
            let kinds = [0x0800, 0x0806, 0x8035, 0x86dd, 0x8100, 0x88a8, 40];
            let kind: u16 = kinds[random.below(kinds.len())];
            frame[6..12].copy_from_slice(&OWN.0);
            frame[12..14].copy_from_slice(&kind.to_be_bytes());
        }
        for _ in 0..random.below(6) {
            let at = 12 + random.below(frame.len() - 12);
            frame[at] = random.next() as u8;
        }
        frame.truncate(14 + random.below(frame.len()));
        let sum_at = [None, Some(14 + random.below(300))][random.below(2)];
        let rules = &lists[random.below(lists.len())];
        let is_cut = random.below(8) == 0;
        refused += usize::from(asking(rules, &frame, sum_at, is_cut).is_err());
    }
    assert!((rounds / 10..rounds).contains(&refused), "{refused} of {rounds}");
}
