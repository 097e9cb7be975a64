//! What is read from frames, and what cannot be read.

use super::super::connections::{Event, Key};
use super::super::gate::first_fields;
use super::super::packet::{Content, Ends, Part, Segment, Unread};
use super::super::rule::Message;
use super::*;
use proptest::prelude::*;

fn unread(frame: &[u8]) -> Unread {
    packet::parse(&headers(frame)).expect_err("a frame that cannot be read")
}

fn key(frame: &[u8], direction: Direction) -> Key {
    packet(frame).key(3, direction).expect("a packet of a connection").0
}

#[test]
fn addresses_ports_and_flags_are_read() {
    let frame = tcp(("10.0.0.1", 1000), ("10.0.0.2", 80), SYN);
    let read = packet(&frame);
    assert_eq!((read.v6, read.protocol, read.vlan, read.part), (false, 6, 0, Part::Whole));
    assert_eq!((read.from, read.to), (0x0a00_0001, 0x0a00_0002));
    assert_eq!(read.content, Content::Tcp(Ends { from: 1000, to: 80 }, Segment::Syn));
    let read = packet(&udp(("fd00::1", 5), ("fd00::2", 53)));
    assert_eq!((read.v6, read.protocol), (true, 17));
    assert_eq!((read.from, read.to), (0xfd00 << 112 | 1, 0xfd00 << 112 | 2));
    assert_eq!(read.content, Content::Udp(Ends { from: 5, to: 53 }));
    let mut sctp = [0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 20].to_vec();
    sctp.extend([0; 16]);
    let read = packet(&ip("10.0.0.1", "10.0.0.2", 132, &sctp));
    assert_eq!(read.content, Content::Sctp(Ends { from: 1, to: 2 }, 1));
    let read = packet(&ip("10.0.0.1", "10.0.0.2", 47, &[]));
    assert_eq!((read.protocol, read.content), (47, Content::Other));
}

/// Which of the short way and the long way reads a frame makes no difference to the answer.
#[test]
fn the_short_way_reads_what_the_long_way_reads() {
    let mut random = Random(7);
    let (mut short, mut long) = (0, 0);
    for _ in 0..if cfg!(miri) { 200 } else { 100_000 } {
        let ends = (("10.0.0.1", random.below(3) as u16), ("10.0.0.2", 80));
        let flags = [SYN, SYN | ACK, ACK, FIN | ACK, RST][random.below(5)];
        let is_tcp = random.below(2) == 0;
        let mut frame = if is_tcp { tcp(ends.0, ends.1, flags) } else { udp(ends.0, ends.1) };
        for _ in 0..random.below(3) {
            let at = 12 + random.below(36) % (frame.len() - 12);
            frame[at] = random.below(256) as u8;
        }
        frame.extend(vec![0; random.below(3) * 9]);
        let len = 14 + random.below(frame.len() * 4);
        frame.truncate(len);
        let sum_at = [None, Some(50), Some(40), Some(34 + random.below(20))][random.below(4)];
        let Some(plain) = plain(&frame, sum_at) else {
            long += 1;
            continue;
        };
        short += 1;
        let bytes = &frame[..frame.len().min(SNAPSHOT_LEN)];
        let read = packet::parse(&Headers { bytes, sum_at, ..headers(&frame) });
        let Ok(Parsed::Packet(packet)) = read else { panic!("{read:?}: {frame:02x?}") };
        assert_eq!((packet.part, packet.l3, packet.l4, packet.vlan), (Part::Whole, 14, 34, 0));
        for direction in Direction::ALL {
            let key = plain.key(3, 0, direction);
            assert_eq!(packet.key(3, direction), Some((key, plain.event)), "{frame:02x?}");
            assert_eq!(first_fields(&key, direction), packet.fields(), "{frame:02x?}");
        }
    }
    assert!(short > long / 2 && long > short / 10, "{short} {long}");
}

#[test]
fn flags_of_tcp_without_a_meaning_are_refused() {
    let with = |flags| tcp(("10.0.0.1", 1), ("10.0.0.2", 2), flags);
    for (flags, segment) in [
        (SYN, Segment::Syn),
        (SYN | ACK, Segment::SynAck),
        (FIN | ACK, Segment::Fin),
        (ACK, Segment::Ack),
        (ACK | 0x28, Segment::Ack),
        (RST, Segment::Rst),
        (RST | ACK, Segment::Rst),
        (SYN | 0xc0, Segment::Syn),
    ] {
        let ends = Ends { from: 1, to: 2 };
        assert_eq!(packet(&with(flags)).content, Content::Tcp(ends, segment), "{flags:#x}");
    }
    for flags in [0, FIN, SYN | FIN, SYN | RST, FIN | RST, SYN | FIN | ACK, 0x17, 0x28] {
        assert_eq!(unread(&with(flags)), Unread::Bad, "{flags:#x}");
    }
}

#[test]
fn tags_are_passed_and_the_outer_one_is_kept() {
    let plain = tcp(("10.0.0.1", 1), ("10.0.0.2", 2), SYN);
    let tagged = |tags: &[u8]| [&plain[..12], tags, &plain[12..]].concat();
    assert_eq!(packet(&tagged(&[0x81, 0, 0xe0, 5])).vlan, 5);
    assert_eq!(packet(&tagged(&[0x88, 0xa8, 0, 7, 0x81, 0, 0, 5])).vlan, 7);
    let three = [0x81, 0, 0, 5].repeat(3);
    assert_eq!(unread(&tagged(&three)), Unread::Bad);
    let key = |tag| key(&tagged(&[0x81, 0, 0, tag]), Out);
    assert_ne!(key(1), key(2), "a connection is in one VLAN");
}

#[test]
fn neighbours_pass_and_their_imitations_do_not() {
    let mut arp = vec![0xff; 12];
    arp.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    assert_eq!(parse(&arp), Parsed::Neighbour);
    let mut frame = icmp("fe80::1", "ff02::1", [135, 0], 0, &[0; 16]);
    assert!(matches!(packet(&frame).content, Content::Message(_)), "a hop limit of 64");
    frame[21] = 255;
    assert_eq!(parse(&frame), Parsed::Neighbour);
    let mut report = icmp("fe80::1", "ff02::16", [143, 0], 0, &[0; 16]);
    report[21] = 1;
    assert_eq!(parse(&report), Parsed::Neighbour);
    report[22] = 0x20;
    assert!(matches!(packet(&report).content, Content::Message(_)), "no link-local address");
    let mut report = icmp("fe80::1", "fd00::16", [143, 0], 0, &[0; 16]);
    report[21] = 1;
    assert!(matches!(packet(&report).content, Content::Message(_)), "no group");
    let solicitation = [&[58, 0, 0, 0, 1, 2, 3, 4][..], &frame[54..]].concat();
    let mut alone = ip("fe80::1", "ff02::1", 44, &solicitation);
    alone[21] = 255;
    assert!(matches!(packet(&alone).content, Content::Message(_)), "a fragment (RFC 6980)");
    let mut other = arp.clone();
    other[12..14].copy_from_slice(&[0x88, 0xcc]);
    assert_eq!(parse(&other), Parsed::Foreign);
}

#[test]
fn extension_headers_are_followed() {
    let tcp = tcp(("fd00::1", 1), ("fd00::2", 2), SYN)[54..].to_vec();
    let with =
        |first: u8, extra: &[u8]| ip("fd00::1", "fd00::2", first, &[extra, &tcp[..]].concat());
    for (first, extra) in [
        (0, &[6, 0, 0, 0, 0, 0, 0, 0][..]),
        (60, &[6, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        (51, &[6, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        (0, &[43, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]),
        // A fragment that is alone is a whole packet (RFC 6946).
        (44, &[6, 0, 0, 0, 1, 2, 3, 4]),
    ] {
        let read = packet(&with(first, extra));
        assert_eq!((read.protocol, read.part), (6, Part::Whole), "{first}");
        assert!(matches!(read.content, Content::Tcp(..)), "{first}");
    }
    let read = packet(&with(44, &[6, 0, 0, 1, 1, 2, 3, 4]));
    assert_eq!(read.part, Part::First { id: 0x0102_0304, header_end: 20 });
    let twice = [44, 0, 0, 1, 1, 2, 3, 4, 6, 0, 0, 1, 1, 2, 3, 4];
    assert_eq!(unread(&with(44, &twice)), Unread::Bad);
    let long = [60, 31].iter().copied().chain([0; 254]).collect::<Vec<_>>();
    assert_eq!(unread(&with(60, &long)), Unread::Bad, "beyond what is read");
    assert_eq!(unread(&ip("fd00::1", "fd00::2", 60, &[6, 3])), Unread::Bad, "beyond the end");
}

/// Sets the fragment word of an IPv4 packet.
fn fragment(mut frame: Vec<u8>, word: u16) -> Vec<u8> {
    frame[20..22].copy_from_slice(&word.to_be_bytes());
    frame
}

#[test]
fn a_fragment_is_the_first_or_says_nothing() {
    let frame = tcp(("10.0.0.1", 1), ("10.0.0.2", 2), SYN);
    assert_eq!(packet(&fragment(frame.clone(), 0x4000)).part, Part::Whole);
    assert_eq!(
        packet(&fragment(frame.clone(), 0x2000)).part,
        Part::First { id: 7, header_end: 20 }
    );
    let later = packet(&fragment(frame.clone(), 0x2003));
    assert_eq!((later.part, later.content), (Part::Later { id: 7, begin: 24 }, Content::Other));
    assert_eq!(later.key(0, Out), None);
    // RFC 3128: a second fragment that replaces the flags of the first.
    for offset in [1, 2] {
        assert_eq!(unread(&fragment(frame.clone(), offset)), Unread::Bad, "{offset}");
    }
    let short = ip("10.0.0.1", "10.0.0.2", 6, &frame[34..50]);
    assert_eq!(unread(&fragment(short, 0x2000)), Unread::Bad, "a tiny first fragment");
    let quote = error("10.0.0.1", "10.0.0.2", [3, 3], &frame);
    assert_eq!(unread(&fragment(quote, 0x2000)), Unread::Bad, "the rest may change the quote");
}

#[test]
fn lengths_that_lie_are_refused() {
    let frame = udp(("10.0.0.1", 1), ("10.0.0.2", 2));
    for (at, value) in [(14, 0x55), (14, 0x44), (14, 0x4f), (16, 1), (17, 19), (17, 27)] {
        let mut wrong = frame.clone();
        wrong[at] = value;
        assert_eq!(unread(&wrong), Unread::Bad, "octet {at}");
    }
    for len in 0..frame.len() {
        assert_eq!(unread(&frame[..len]), Unread::Bad, "{len}");
    }
    // Padding is not read: the UDP header is behind the packet's end.
    let mut padded = frame.clone();
    padded[17] = 22;
    assert_eq!(unread(&padded), Unread::Bad);
    let mut offset = tcp(("10.0.0.1", 1), ("10.0.0.2", 2), SYN);
    offset[46] = 0x60;
    assert_eq!(unread(&offset), Unread::Bad);
}

#[test]
fn a_checksum_may_not_be_written_over_what_was_read() {
    let frame = tcp(("10.0.0.1", 1), ("10.0.0.2", 2), SYN);
    let at = |sum: usize| packet::parse(&Headers { sum_at: Some(sum), ..headers(&frame) });
    assert!(at(34 + 16).is_ok());
    for sum in [12, 23, 26, 33, 34, 36, 46, 47] {
        assert_eq!(at(sum), Err(Unread::Bad), "{sum}");
    }
}

#[test]
fn both_directions_of_a_connection_have_one_key() {
    let request = tcp(("10.0.0.1", 1000), ("10.0.0.2", 80), SYN);
    let answer = tcp(("10.0.0.2", 80), ("10.0.0.1", 1000), SYN | ACK);
    assert_eq!(key(&request, Out), key(&answer, In));
    assert_ne!(key(&request, Out), key(&request, In), "of the other end");
    let event = packet(&answer).key(3, In).unwrap().1;
    assert_eq!(event, Event::Tcp(Segment::SynAck));
    let ask = |from, to, kind| icmp(from, to, [kind, 0], 77, &[]);
    let asked = key(&ask("10.0.0.1", "10.0.0.2", 8), Out);
    assert_eq!(asked, key(&ask("10.0.0.2", "10.0.0.1", 0), In));
    assert_ne!(asked, key(&ask("10.0.0.2", "10.0.0.1", 8), In), "a request of the other end");
    let parts = asked.parts();
    assert_eq!((parts.port, parts.local.port, parts.remote.port), (3, 77, 8 << 8));
}

#[test]
fn an_error_belongs_to_the_packet_that_it_quotes() {
    for (sent, kinds) in [
        (udp(("10.0.0.1", 1000), ("10.0.0.9", 53)), [3, 11]),
        (udp(("fd00::1", 1000), ("fd00::9", 53)), [1, 2]),
        (icmp("10.0.0.1", "10.0.0.9", [8, 0], 5, &[]), [3, 11]),
        (icmp("fd00::1", "fd00::9", [128, 0], 5, &[]), [1, 3]),
        (ip("10.0.0.1", "10.0.0.9", 47, &[0; 8]), [3, 11]),
    ] {
        let v6 = sent[12] == 0x86;
        let (router, sender, other) = if v6 {
            ("fd00::f", "fd00::1", "fd00::2")
        } else {
            ("10.9.9.9", "10.0.0.1", "10.0.0.2")
        };
        for kind in kinds {
            let answer = packet(&error(router, sender, [kind, 0], &sent));
            assert_eq!(answer.quoted_key(3, In), Some(key(&sent, Out)), "{kind}");
            assert_eq!(answer.key(3, In), None);
            let astray = packet(&error(router, other, [kind, 0], &sent));
            assert_eq!(astray.quoted_key(3, In), None, "to another than the sender");
        }
    }
    let cut = icmp("10.9.9.9", "10.0.0.1", [3, 3], 0, &[0x45, 0]);
    let message = Message { kind: 3, code: Some(3) };
    assert_eq!(packet(&cut).content, Content::Error(message, None));
}

#[test]
fn a_snapshot_asks_for_more_if_it_is_too_short() {
    let frame = tcp(("fd00::1", 1), ("fd00::2", 2), SYN);
    let first = Headers { bytes: &frame[..64], ..headers(&frame) };
    assert_eq!(packet::parse(&first), Err(Unread::Short));
}

proptest! {
    /// Nothing panics, and an answer does not depend on how many of the first bytes are there.
    #[test]
    fn any_bytes_are_read_or_refused(
        mut bytes in proptest::collection::vec(any::<u8>(), 14..300),
        kind in 0usize..3,
        changes in proptest::collection::vec((12usize..100, any::<u8>()), 0..6),
        base in 0usize..4,
    ) {
        if kind > 0 {
            let sent = udp(("10.0.0.1", 1), ("10.0.0.2", 2));
            bytes = match base {
                0 => tcp(("10.0.0.1", 1), ("10.0.0.2", 2), SYN),
                1 => udp(("fd00::1", 1), ("fd00::2", 2)),
                2 => error("10.0.0.9", "10.0.0.1", [3, 3], &sent),
                _ => ip("fd00::1", "fd00::2", 44, &[6, 0, 0, 1, 0, 0, 0, 1, 0, 1, 0, 2]),
            };
            for (at, value) in changes {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = value;
                }
            }
        }
        let whole = packet::parse(&headers(&bytes));
        prop_assert_ne!(whole, Err(Unread::Short));
        for len in 0..bytes.len().min(256) {
            let some = packet::parse(&Headers { bytes: &bytes[..len], ..headers(&bytes) });
            let fits = some == whole || some == Err(Unread::Short);
            prop_assert!(fits, "{} {:?} {:?}", len, some, whole);
        }
        if let Ok(Parsed::Packet(packet)) = whole {
            for direction in Direction::ALL {
                let _ = (packet.key(1, direction), packet.quoted_key(1, direction));
            }
            let mut out = [0; base::limits::MAX_REJECT_LEN];
            let len = super::super::reject::answer(&headers(&bytes), &packet, &mut out);
            prop_assert!(len.is_none_or(|len| len <= out.len()));
        }
    }
}

/// Open vSwitch and nftables end at these headers too.
#[test]
fn mobility_and_host_identity_are_protocols() {
    for protocol in [135, 139, 140] {
        let read = packet(&ip("fd00::1", "fd00::2", protocol, &[59, 0, 0, 0, 0, 0, 0, 0]));
        assert_eq!((read.protocol, read.content), (protocol, Content::Other));
    }
}
