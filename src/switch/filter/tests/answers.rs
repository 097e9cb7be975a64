//! Answers to rejected packets, read by etherparse.

use super::super::reject::{Allowance, answer};
use super::*;
use base::limits::MAX_REJECT_LEN;
use etherparse::{NetHeaders, PacketHeaders, TransportHeader};

fn answer_to(frame: &[u8]) -> Option<Vec<u8>> {
    let mut out = [0; MAX_REJECT_LEN];
    let len = answer(&headers(frame), &packet(frame), &mut out)?;
    Some(out[..len].to_vec())
}

/// Checks lengths, checksums and addresses; returns the transport header and what follows.
fn read(answer: &[u8]) -> (TransportHeader, Vec<u8>) {
    assert_eq!(answer[..12], [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2], "back to the sender");
    let read = PacketHeaders::from_ethernet_slice(answer).unwrap();
    let (net, transport) = (read.net.unwrap(), read.transport.unwrap());
    let payload = read.payload.slice().to_vec();
    match &net {
        NetHeaders::Ipv4(ip, _) => {
            assert_eq!((ip.source, ip.destination), ([10, 0, 0, 2], [10, 0, 0, 1]));
            assert_eq!(ip.header_checksum, ip.calc_header_checksum());
            let sum = match &transport {
                TransportHeader::Tcp(tcp) => (tcp.calc_checksum_ipv4(ip, &payload), tcp.checksum),
                TransportHeader::Icmpv4(icmp) => {
                    (Ok(icmp.icmp_type.calc_checksum(&payload)), icmp.checksum)
                }
                other => panic!("{other:?}"),
            };
            assert_eq!(sum.0, Ok(sum.1));
        }
        NetHeaders::Ipv6(ip, _) => {
            assert_eq!((ip.source[15], ip.destination[15]), (2, 1));
            let sum = match &transport {
                TransportHeader::Tcp(tcp) => {
                    (tcp.calc_checksum_ipv6(ip, &payload).ok(), tcp.checksum)
                }
                TransportHeader::Icmpv6(icmp) => {
                    let (from, to) = (ip.source, ip.destination);
                    (icmp.icmp_type.calc_checksum(from, to, &payload).ok(), icmp.checksum)
                }
                other => panic!("{other:?}"),
            };
            assert_eq!(sum.0, Some(sum.1));
        }
        NetHeaders::Arp(_) => panic!("{net:?}"),
    }
    (transport, payload)
}

#[test]
fn a_connection_of_tcp_is_reset() {
    for (from, to) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
        let mut asked = tcp((from, 1000), (to, 80), SYN);
        let (TransportHeader::Tcp(reset), _) = read(&answer_to(&asked).unwrap()) else { panic!() };
        assert_eq!((reset.source_port, reset.destination_port), (80, 1000));
        assert!(reset.rst && reset.ack && !reset.syn);
        assert_eq!((reset.sequence_number, reset.acknowledgment_number), (0, 10));
        let flags = asked.len() - 7;
        asked[flags] = ACK;
        let (TransportHeader::Tcp(reset), _) = read(&answer_to(&asked).unwrap()) else { panic!() };
        assert!(reset.rst && !reset.ack);
        assert_eq!(reset.sequence_number, 5);
    }
}

#[test]
fn other_packets_are_answered_by_an_error_that_quotes_them() {
    for (from, to) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
        let asked = udp((from, 1000), (to, 53));
        let (transport, quoted) = read(&answer_to(&asked).unwrap());
        assert_eq!(quoted, asked[14..]);
        match transport {
            TransportHeader::Icmpv4(icmp) => {
                assert_eq!(icmp.icmp_type.header_len(), 8);
                assert_eq!(answer_to(&asked).unwrap()[34..36], [3, 13]);
            }
            TransportHeader::Icmpv6(_) => {
                assert_eq!(answer_to(&asked).unwrap()[54..56], [1, 1]);
            }
            other => panic!("{other:?}"),
        }
        let mut long = ip(from, to, 47, &[7; 400]);
        let (_, quoted) = read(&answer_to(&long).unwrap());
        assert_eq!((quoted.len(), &quoted[..]), (128, &long[14..142]));
        long.splice(12..12, [0x81, 0, 0, 5]);
        let tagged = answer_to(&long).unwrap();
        assert_eq!(tagged[12..16], [0x81, 0, 0, 5]);
    }
}

#[test]
fn what_could_answer_back_or_goes_to_many_gets_no_answer() {
    let sent = udp(("10.0.0.1", 1), ("10.0.0.2", 2));
    let mut fragment = sent.clone();
    fragment[21] = 9;
    let mut to_group = sent.clone();
    to_group[0] = 3;
    for frame in [
        tcp(("10.0.0.1", 1), ("10.0.0.2", 2), RST),
        error("10.0.0.1", "10.0.0.2", [3, 3], &udp(("10.0.0.2", 1), ("10.0.0.3", 2))),
        udp(("10.0.0.1", 1), ("224.0.0.1", 2)),
        udp(("10.0.0.1", 1), ("255.255.255.255", 2)),
        udp(("0.0.0.0", 68), ("10.0.0.2", 67)),
        udp(("fd00::1", 1), ("ff02::1", 2)),
        udp(("::", 1), ("fd00::1", 2)),
        fragment,
        to_group,
    ] {
        assert_eq!(answer_to(&frame), None, "{frame:02x?}");
    }
}

#[test]
fn answers_are_limited() {
    let mut allowance = Allowance::new(100, 50);
    let mut taken = |now| (0..1000).filter(|_| allowance.take(Tick::from(now))).count();
    assert_eq!([taken(1000), taken(1000), taken(1001), taken(1001)], [50, 0, 50, 0]);
    let mut slow = Allowance::new(2, 1);
    let times = (0..80).filter(|tick| slow.take(Tick::from_bits(8000 + tick))).count();
    assert_eq!(times, 20, "two a second for ten seconds");
    assert!(!slow.take(Tick::default()), "a clock that is behind earns nothing");
    assert!(!slow.take(Tick::from_bits(8079)), "nor when it comes back");
}
