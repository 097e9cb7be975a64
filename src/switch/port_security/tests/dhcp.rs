//! A client of DHCP or DHCPv6 behind a port asks for itself: its identity, addresses and subnet are
//! the port's, and servers can read its message in one way only.

use core::net::Ipv6Addr;
use std::cell::RefCell;

use super::frames::*;
use crate::port_security::*;
use base::frame::MacAddr;

const DISCOVER: u8 = 1;
const REQUEST: u8 = 3;
const DECLINE: u8 = 4;
const RELEASE: u8 = 7;
const INFORM: u8 = 8;

const KIND: u8 = 53;
const CLIENT_ID: u8 = 61;
const REQUESTED: u8 = 50;
const END: &[u8] = &[255];

fn option(code: u8, value: &[u8]) -> Vec<u8> {
    [&[code, value.len() as u8], value].concat()
}

/// Returns a client's message with these options and this end.
fn with_options(options: &[Vec<u8>], end: &[u8]) -> Vec<u8> {
    let mut message = bootp(1, OWN);
    message.pop();
    [message, options.concat(), end.to_vec()].concat()
}

fn to_server(message: &[u8]) -> Vec<u8> {
    from(OWN, ETHERTYPE_IPV4, &v4(OWN_IP, [255; 4], 17, 0, 0, &udp(68, 67, message)))
}

/// Returns a message of a type with further options.
fn message(kind: u8, options: &[Vec<u8>]) -> Vec<u8> {
    with_options(&[vec![option(KIND, &[kind])], options.to_vec()].concat(), END)
}

fn sent(kind: u8, options: &[Vec<u8>]) -> Vec<u8> {
    to_server(&message(kind, options))
}

/// Returns a message whose field at `at` is overwritten.
fn changed(kind: u8, at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut message = message(kind, &[]);
    message[at..at + bytes.len()].copy_from_slice(bytes);
    to_server(&message)
}

/// Returns the client identifier made of a link-layer address.
fn id_of(mac: MacAddr) -> Vec<u8> {
    option(CLIENT_ID, &[&[1], &mac.0[..]].concat())
}

/// DUIDs by time and address, and by address.
fn llt(mac: MacAddr) -> Vec<u8> {
    [&[0, 1, 0, 1, 9, 9, 9, 9], &mac.0[..]].concat()
}

fn ll(mac: MacAddr) -> Vec<u8> {
    [&[0, 3, 0, 1], &mac.0[..]].concat()
}

/// Returns the client identifier made of a DUID (RFC 4361).
fn id_of_duid(duid: &[u8]) -> Vec<u8> {
    option(CLIENT_ID, &[&[255, 0, 0, 0, 1], duid].concat())
}

#[test]
fn an_honest_client_is_served() {
    let prl = option(55, &[1, 3, 6, 15, 26]);
    let padded = [message(DISCOVER, &[]), vec![0; 60]].concat();
    all_are(
        &both(),
        Ok(()),
        &[
            ("discover", sent(DISCOVER, &[prl.clone(), option(12, b"vm1")])),
            ("request", sent(REQUEST, &[option(REQUESTED, &OTHER_IP), option(54, &OTHER_IP)])),
            ("renew", changed(REQUEST, 12, &OWN_IP)),
            ("release", changed(RELEASE, 12, &OWN_IP)),
            ("inform", changed(INFORM, 12, &OWN_IP)),
            ("decline", sent(DECLINE, &[option(REQUESTED, &OWN_IP)])),
            ("its own identifier", sent(DISCOVER, &[id_of(OWN)])),
            ("another kind of identifier", sent(DISCOVER, &[option(CLIENT_ID, b"\0machine")])),
            ("its own DUID", sent(DISCOVER, &[id_of_duid(&llt(OWN)), prl])),
            ("a DUID without an address", sent(DISCOVER, &[id_of_duid(&[0, 2, 0, 0, 0xab, 1])])),
            ("padding", to_server(&padded)),
            ("BOOTP", to_server(&with_options(&[], END))),
        ],
    );
    let own = [(1, ll(OWN)), (3, vec![0; 12]), (25, vec![1; 12]), (8, vec![0; 2])];
    let left = |address: &str| ia_with(5, &address.parse::<Ipv6Addr>().unwrap().octets());
    all_are(
        &both(),
        Ok(()),
        &[
            ("solicit", to_dhcpv6(1, &own)),
            ("a DUID by time", to_dhcpv6(1, &[(1, llt(OWN))])),
            ("a DUID without an address", to_dhcpv6(3, &[(1, vec![0, 4, 7, 7])])),
            ("release", to_dhcpv6(8, &[(1, ll(OWN)), (3, left(OWN_V6))])),
            ("information-request", to_dhcpv6(11, &[])),
        ],
    );
}

/// Returns an identity association with one option, of 24 bytes.
fn ia_with(code: u16, value: &[u8]) -> Vec<u8> {
    let mut lease = value.to_vec();
    lease.resize(25, 0);
    let header = [code.to_be_bytes(), (lease.len() as u16).to_be_bytes()].concat();
    [vec![0; 12], header, lease].concat()
}

#[test]
fn another_s_identity_is_refused() {
    all_are(
        &both(),
        Err(Rule::Dhcp),
        &[
            ("identifier", sent(DISCOVER, &[id_of(OTHER)])),
            ("identifier, release", sent(RELEASE, &[id_of(OTHER)])),
            ("DUID by time", sent(DISCOVER, &[id_of_duid(&llt(OTHER))])),
            ("DUID", sent(DISCOVER, &[id_of_duid(&ll(OTHER))])),
            ("address of a release", changed(RELEASE, 12, &OTHER_IP)),
            ("address of a renewal", changed(REQUEST, 12, &OTHER_IP)),
            ("a declined address", sent(DECLINE, &[option(REQUESTED, &OTHER_IP)])),
        ],
    );
    let address = |address: &str| address.parse::<Ipv6Addr>().unwrap().octets();
    let prefix = [&[0; 9][..], &address("fd01::")].concat();
    all_are(
        &both(),
        Err(Rule::Dhcp),
        &[
            ("DUID", to_dhcpv6(1, &[(1, ll(OTHER))])),
            ("DUID by time", to_dhcpv6(8, &[(1, llt(OTHER))])),
            ("release", to_dhcpv6(8, &[(1, ll(OWN)), (3, ia_with(5, &address(OTHER_V6)))])),
            ("decline", to_dhcpv6(9, &[(3, ia_with(5, &address(OTHER_V6))), (1, ll(OWN))])),
            ("prefix", to_dhcpv6(8, &[(1, ll(OWN)), (25, ia_with(26, &prefix))])),
            ("associations", to_dhcpv6(1, &vec![(3, vec![0; 12]); 9])),
        ],
    );
    // Without a list of addresses, any address is the port's.
    let any = PortSecurity { ips: AllowedIps::new(&[]), ..both() };
    all_are(&any, Ok(()), &[("release", changed(RELEASE, 12, &OTHER_IP))]);
}

#[test]
fn a_client_is_no_relay_and_no_server() {
    let relayed = [
        ("giaddr", changed(DISCOVER, 24, &OTHER_IP)),
        ("hops", changed(DISCOVER, 3, &[1])),
        ("option 82", sent(DISCOVER, &[option(82, &[1, 2, 3, 4])])),
        ("option 82 twice", sent(DISCOVER, &[option(82, &[1]), option(82, &[1])])),
        ("an offer", sent(2, &[])),
        ("a lease query", sent(10, &[])),
        ("a kind of two bytes", to_server(&with_options(&[option(KIND, &[1, 1])], END))),
    ];
    let (server, other) =
        (Servers { dhcp: true, ..Servers::default() }, Servers { ra: true, ..Servers::default() });
    all_are(&both(), Err(Rule::Server), &relayed);
    all_are(&PortSecurity { servers: other, ..both() }, Err(Rule::Server), &relayed);
    all_are(&PortSecurity { servers: server, ..both() }, Ok(()), &relayed);
    let of_servers: Vec<_> = [0, 2, 7, 10, 12, 13, 14, 20, 99]
        .into_iter()
        .map(|kind| ("a message of DHCPv6", to_dhcpv6(kind, &[])))
        .collect();
    all_are(&both(), Err(Rule::Server), &of_servers);
    let server = Servers { dhcpv6: true, ..Servers::default() };
    all_are(&PortSecurity { servers: server, ..both() }, Ok(()), &of_servers);
}

#[test]
fn a_message_that_servers_may_read_differently_is_refused() {
    let long = [vec![option(224, &[0; 255]); 5], vec![option(225, &[0; 100])]].concat();
    let mut cookie = message(DISCOVER, &[]);
    cookie[236] = 0;
    let mut short = sent(DISCOVER, &[]);
    short[14 + 20 + 5] -= 2;
    let mut beyond = sent(DISCOVER, &[]);
    beyond[14 + 20 + 4] += 1;
    all_are(
        &both(),
        Err(Rule::Headers),
        &[
            ("no end", to_server(&with_options(&[option(KIND, &[1])], &[]))),
            ("an option cut off", to_server(&with_options(&[option(KIND, &[1])], &[61, 7, 1]))),
            ("two identifiers", sent(DISCOVER, &[id_of(OWN), id_of(OWN)])),
            ("two kinds", sent(DISCOVER, &[option(KIND, &[RELEASE])])),
            ("overload", sent(DISCOVER, &[option(52, &[1])])),
            ("a decline of nothing", sent(DECLINE, &[])),
            ("a decline of half an address", sent(DECLINE, &[option(REQUESTED, &[10, 0])])),
            ("another cookie", to_server(&cookie)),
            ("an end behind the datagram", short),
            ("a datagram behind the frame", beyond),
            ("a long message", sent(DISCOVER, &long)),
            ("no options", to_server(&bootp(1, OWN)[..200])),
        ],
    );
    assert_eq!(verdict(&both(), &sent(DISCOVER, &long[..4])), Ok(()));
    let mut cut = dhcpv6(1, &[(1, ll(OWN))]);
    cut.push(0);
    let datagram = udp(546, 547, &cut);
    all_are(
        &both(),
        Err(Rule::Headers),
        &[
            ("two DUIDs", to_dhcpv6(1, &[(1, ll(OWN)), (1, ll(OWN))])),
            ("a long DUID", to_dhcpv6(1, &[(1, vec![9; 131])])),
            ("half a DUID", to_dhcpv6(1, &[(1, vec![0, 3, 0, 1, 7])])),
            ("half an association", to_dhcpv6(1, &[(3, vec![0; 11])])),
            (
                "half an address",
                to_dhcpv6(8, &[(3, [vec![0; 12], vec![0, 5, 0, 2, 1, 1]].concat())]),
            ),
            ("half an option", from(OWN, ETHERTYPE_IPV6, &v6(LINK, &[], 17, &datagram))),
            ("no transaction", from(OWN, ETHERTYPE_IPV6, &v6(LINK, &[], 17, &udp(546, 547, &[1])))),
        ],
    );
}

/// A client's identity is noted once for each message, and the answer decides.
#[test]
fn identifiers_are_noted() {
    let noted = |frame: &[u8], room: bool| {
        let seen = RefCell::new(Vec::new());
        let note = |identifier: &[&[u8]]| {
            seen.borrow_mut().push(identifier.concat());
            room
        };
        let frame =
            Headers { bytes: frame, whole: frame, len: frame.len(), sum_at: None, is_cut: false };
        let verdict = check(&both(), &frame, &note).map_err(|_| ());
        (seen.into_inner(), verdict)
    };
    assert_eq!(noted(&sent(DISCOVER, &[]), true), (vec![], Ok(())), "its address is known");
    assert_eq!(noted(&sent(DISCOVER, &[id_of(OWN)]), true), (vec![], Ok(())));
    let opaque = sent(DISCOVER, &[option(CLIENT_ID, b"\0machine")]);
    assert_eq!(noted(&opaque, true), (vec![b"\0machine".to_vec()], Ok(())));
    assert_eq!(noted(&opaque, false).1, Err(()), "one too many");
    let own = sent(DISCOVER, &[id_of_duid(&ll(OWN))]);
    assert_eq!(noted(&own, true).0.len(), 1, "it has any number of IAIDs");
    let ia = |iaid: u8| [vec![iaid; 4], vec![0; 8]].concat();
    let solicit = to_dhcpv6(1, &[(1, ll(OWN)), (3, ia(1)), (25, ia(2))]);
    let each = [1, 2].map(|iaid| [ll(OWN), vec![iaid; 4]].concat());
    assert_eq!(noted(&solicit, true), (each.to_vec(), Ok(())));
    assert_eq!(noted(&solicit, false).1, Err(()));
}

/// A checksum is completed after the message was checked.
#[test]
fn no_checksum_is_written_over_an_option() {
    let frame = sent(DISCOVER, &[id_of(OWN)]);
    for sum in 14 + 20 + 8..frame.len() - 2 {
        assert_eq!(asking(&both(), &frame, Some(sum), false), Err(Rule::Headers), "{sum}");
    }
    assert_eq!(asking(&both(), &frame, Some(14 + 20 + 6), false), Ok(()));
}
