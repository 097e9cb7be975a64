//! Tests hand-made messages of IGMP and MLD: their meaning, and refused messages.

use super::*;
use crate::frame::samples::{igmp, mld, put_sum};
use crate::limits::SNAPSHOT_LEN;

const HOST: [u8; 4] = [10, 0, 0, 5];

fn v4(group: [u8; 4]) -> IpAddr {
    group.into()
}

fn v6(last: u16) -> IpAddr {
    [0xff05, 0, 0, 0, 0, 0, 0, last].into()
}

fn snapshot(frame: &[u8]) -> Snapshot {
    let mut bytes = [0; SNAPSHOT_LEN];
    let len = frame.len().min(SNAPSHOT_LEN);
    bytes[..len].copy_from_slice(&frame[..len]);
    bytes
}

fn link_local() -> Ipv6Addr {
    "fe80::5".parse().unwrap()
}

fn read(frame: &[u8]) -> Result<Option<Message<'_>>, Refused> {
    parse(&Part { bytes: frame, len: frame.len(), sum_at: None })
}

/// Parses a message in a frame without tags and extension headers, whose checksum is left to the
/// receiver.
fn read_unsummed(frame: &[u8]) -> Result<Option<Message<'_>>, Refused> {
    let sum_at = Some(if frame[12] == 8 { 40 } else { 64 });
    parse(&Part { bytes: frame, len: frame.len(), sum_at })
}

fn joined(frame: &[u8]) -> Vec<IpAddr> {
    match read(frame) {
        Ok(Some(Message::Report(report))) => report.joined().collect(),
        other => panic!("{other:?}"),
    }
}

fn query_of(frame: &[u8]) -> Query {
    match read(frame) {
        Ok(Some(Message::Query(query))) => query,
        other => panic!("{other:?}"),
    }
}

#[test]
fn reports_of_igmp_name_their_groups() {
    let group = [239, 1, 1, 1];
    for kind in [0x12, 0x16] {
        let frame = igmp(HOST, group, &[kind, 0, 0, 0, 239, 1, 1, 1]);
        assert!(may_be_message(&snapshot(&frame)));
        assert_eq!(joined(&frame), [v4(group)]);
    }
    assert_eq!(
        joined(&igmp(HOST, [224, 0, 0, 2], &[0x17, 0, 0, 0, 239, 1, 1, 1])),
        Vec::<IpAddr>::new()
    );
    // The six types of records, each without a source and with one.
    let mut message = vec![0x22, 0, 0, 0, 0, 0, 0, 12];
    for kind in 1..=6 {
        message.extend([kind, 0, 0, 0, 239, 0, 0, kind]);
        message.extend([kind, 0, 0, 1, 239, 0, 1, kind, 10, 0, 0, 9]);
    }
    let all = joined(&igmp(HOST, [224, 0, 0, 22], &message));
    let expected = [[0, 1, 1], [0, 0, 2], [0, 1, 2], [0, 1, 3], [0, 0, 4], [0, 1, 4], [0, 1, 5]];
    assert_eq!(all, expected.map(|[a, b, c]| v4([239, a, b, c])));
}

#[test]
fn reports_of_mld_name_their_groups() {
    let IpAddr::V6(group) = v6(7) else { unreachable!() };
    let one = [&[131, 0, 0, 0, 0, 0, 0, 0][..], &group.octets()].concat();
    for from in [link_local(), Ipv6Addr::UNSPECIFIED] {
        let frame = mld(from, group, &one);
        assert!(may_be_message(&snapshot(&frame)));
        assert_eq!(joined(&frame), [v6(7)]);
    }
    // More records than fit a snapshot or 256 bytes.
    let mut message = vec![143, 0, 0, 0, 0, 0, 0, 60];
    for n in 0..60 {
        let IpAddr::V6(group) = v6(n) else { unreachable!() };
        message.extend([4, 0, 0, 0]);
        message.extend(group.octets());
    }
    let all = "ff02::16".parse().unwrap();
    assert_eq!(joined(&mld(link_local(), all, &message)), (0..60).map(v6).collect::<Vec<_>>());
    for (at, what) in [(21, "hop limit"), (22, "a source that is no link's")] {
        let mut frame = mld(link_local(), group, &one);
        frame[at] ^= 0x40;
        assert_eq!(read_unsummed(&frame), Err(Malformed), "{what}");
    }
    let mut frame = mld(link_local(), group, &one);
    frame[56] = 1;
    assert_eq!(read_unsummed(&frame), Err(Malformed), "no router alert");
}

#[test]
fn queries_say_whom_and_for_how_long_they_ask() {
    let query = |tenths: u8, group: [u8; 4], more: &[u8]| {
        let message = [&[0x11, tenths, 0, 0][..], &group, more].concat();
        let to = if group == [0; 4] { [224, 0, 0, 1] } else { group };
        query_of(&igmp(HOST, to, &message))
    };
    let one = query(0, [0; 4], &[]);
    assert_eq!((one.version, one.response, one.interval, one.group), (1, 10, None, None));
    let two = query(95, [239, 1, 1, 1], &[]);
    assert_eq!((two.version, two.response, two.group), (2, 10, Some(v4([239, 1, 1, 1]))));
    let three = query(0x80, [0; 4], &[0x0a, 0x80, 0, 0]);
    assert_eq!((three.version, three.response, three.interval), (3, 13, Some(128)));
    assert!(three.suppress && !three.has_sources);
    let sources = query(100, [239, 1, 1, 1], &[2, 125, 0, 1, 10, 0, 0, 9]);
    assert!(sources.has_sources && !sources.suppress);
    let all: Ipv6Addr = "ff02::1".parse().unwrap();
    let message = [&[130, 0, 0, 0, 0x27, 0x10, 0, 0][..], &[0; 16], &[2, 125, 0, 0]].concat();
    let mld_query = query_of(&mld(link_local(), all, &message));
    assert_eq!((mld_query.version, mld_query.response, mld_query.interval), (2, 10, Some(125)));
    // Hosts ignore an MLD query from the unspecified address.
    assert_eq!(read(&mld(Ipv6Addr::UNSPECIFIED, all, &message)), Err(Malformed));
    let elsewhere = igmp(HOST, [239, 1, 1, 1], &[0x11, 100, 0, 0, 0, 0, 0, 0]);
    assert_eq!(read(&elsewhere), Err(Malformed), "not to all");
}

#[test]
fn what_is_cut_or_has_a_wrong_sum_is_malformed() {
    let message = [0x22, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0, 239, 1, 1, 1];
    let frame = igmp(HOST, [224, 0, 0, 22], &message);
    assert_eq!(joined(&[&frame[..], &[0; 9]].concat()), [v4([239, 1, 1, 1])], "padding");
    for len in 38..frame.len() {
        assert_eq!(read(&frame[..len]), Err(Malformed), "{len}");
    }
    // A message with another type, or with the type at another offset, is another message.
    for at in (14..frame.len()).filter(|at| ![14, 23, 38].contains(at)) {
        let mut wrong = frame.clone();
        wrong[at] ^= 1;
        assert_eq!(read(&wrong), Err(Malformed), "byte {at}");
    }
    let mut partial = frame.clone();
    partial[40] ^= 1;
    assert!(read_unsummed(&partial).is_ok(), "finished by its receiver");
    // The count exceeds the number of records.
    let many =
        igmp(HOST, [224, 0, 0, 22], &[0x22, 0, 0, 0, 0, 0, 0xff, 0xff, 4, 0, 0, 0, 239, 1, 1, 1]);
    assert_eq!(read(&many), Err(Malformed));
}

/// Any change of a message gives another message, none, or a malformed one.
#[test]
fn no_bytes_make_it_panic() {
    let mut state = 1u64;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize
    };
    let IpAddr::V6(group) = v6(7) else { unreachable!() };
    let samples = [
        igmp(HOST, [224, 0, 0, 22], &[0x22, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0, 239, 1, 1, 1]),
        igmp(HOST, [224, 0, 0, 1], &[0x11, 100, 0, 0, 0, 0, 0, 0, 2, 125, 0, 0]),
        mld(link_local(), group, &[&[131, 0, 0, 0, 0, 0, 0, 0][..], &group.octets()].concat()),
        mld(
            link_local(),
            group,
            &[&[143, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0][..], &group.octets()].concat(),
        ),
    ];
    for round in 0..200_000 {
        let mut frame = samples[round % samples.len()].clone();
        for _ in 0..=random() % 4 {
            let at = random() % frame.len();
            frame[at] = random() as u8;
        }
        frame.truncate(random() % frame.len() + 14);
        let bytes = &frame[..frame.len().min(64)];
        let _ = parse(&Part { bytes, len: frame.len(), sum_at: Some(random() % 100) });
        if let Ok(Some(Message::Report(report))) = read_unsummed(&frame) {
            assert!(report.joined().all(|group| group.is_multicast()));
        }
        super::group(&snapshot(&frame), frame.len() as u32);
        may_be_message(&snapshot(&frame));
    }
}

/// Returns a canonical message of each kind.
fn messages() -> Vec<Vec<u8>> {
    let v4 = [
        ([224, 0, 0, 1], &[0x11, 10, 0, 0, 0, 0, 0, 0][..]),
        ([224, 0, 0, 1], &[0x11, 10, 0, 0, 0, 0, 0, 0, 2, 125, 0, 0]),
        ([239, 1, 1, 1], &[0x12, 0, 0, 0, 239, 1, 1, 1]),
        ([239, 1, 1, 1], &[0x16, 0, 0, 0, 239, 1, 1, 1]),
        ([224, 0, 0, 2], &[0x17, 0, 0, 0, 239, 1, 1, 1]),
        ([224, 0, 0, 22], &[0x22, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0, 239, 1, 1, 1]),
        ([224, 0, 0, 106], &[0x30, 20, 0, 0, 0, 0, 0, 0]),
        ([224, 0, 0, 2], &[0x31, 0, 0, 0]),
        ([224, 0, 0, 106], &[0x32, 0, 0, 0]),
    ];
    let group: Ipv6Addr = "ff05::7".parse().unwrap();
    let one = |kind: u8| [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &group.octets()].concat();
    let mut query = one(130);
    query[8..].fill(0);
    let record = [&[143, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0][..], &group.octets()].concat();
    let v6 = [
        ("ff02::1", query),
        ("ff05::7", one(131)),
        ("ff02::2", one(132)),
        ("ff02::16", record),
        ("ff02::6a", vec![151, 20, 0, 0, 0, 0, 0, 0]),
        ("ff02::2", vec![152, 0, 0, 0]),
        ("ff02::6a", vec![153, 0, 0, 0]),
    ];
    let v4 = v4.into_iter().map(|(to, message)| igmp(HOST, to, message));
    let v6 = v6.into_iter().map(|(to, bytes)| mld(link_local(), to.parse().unwrap(), &bytes));
    v4.chain(v6).collect()
}

/// Returns the packet of an MLD frame with other headers in front of the message.
fn behind(frame: &[u8], first: u8, headers: &[u8]) -> Vec<u8> {
    let mut frame = [&frame[..54], headers, &frame[62..]].concat();
    frame[20] = first;
    let len = frame.len() as u16 - 54;
    frame[18..20].copy_from_slice(&len.to_be_bytes());
    frame
}

/// Returns the frame in each encapsulation in which a host or a bridge may find the message
/// although the message is not canonical.
fn hidden(frame: &[u8]) -> Vec<(String, Vec<u8>)> {
    let to = [
        [0xff; 6],
        [3, 0, 0, 0, 0, 1],
        [2, 0, 0, 0, 0, 9],
        [0x33, 0x33, 0, 0, 9, 9],
        [1, 0, 0x5e, 9, 9, 9],
    ];
    let mut all: Vec<(String, Vec<u8>)> = Vec::new();
    for to in to {
        for tags in [&[][..], &[0x81, 0, 0, 5], &[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6, 0x81, 0, 0, 7]] {
            let bytes = [&to[..], &frame[6..12], tags, &frame[12..]].concat();
            all.push((format!("to {to:02x?}, tags {tags:02x?}"), bytes));
        }
    }
    let len = (frame.len() as u16 - 6).to_be_bytes();
    for oui in [[0; 3], [0, 0, 0xf8]] {
        let llc = [&frame[..12], &len, &[0xaa, 0xaa, 3], &oui, &frame[12..]].concat();
        all.push((format!("SNAP {oui:?}"), llc));
    }
    let mut wrong = frame.to_vec();
    *wrong.last_mut().unwrap() ^= 1;
    all.push(("wrong sum".into(), wrong));
    if frame[12] == 8 {
        for (word, bits) in [("first", 0x2000u16), ("later", 2), ("middle", 0x2002)] {
            let mut part = frame.to_vec();
            part[20..22].copy_from_slice(&bits.to_be_bytes());
            put_sum(&mut part[14..38], 10, Sum::ZERO);
            all.push((format!("{word} fragment"), part));
        }
        return all;
    }
    let (hop, alert) = (0, [58, 0, 5, 2, 0, 0, 1, 0]);
    let options = |next: u8| [next, 0, 1, 4, 0, 0, 0, 0];
    let chain = |parts: &[&[u8]]| parts.concat();
    let long = [&[58, 40][..], &[0; 326]].concat();
    for (word, first, headers) in [
        ("no hop-by-hop", 58, vec![]),
        ("no alert", hop, options(58).to_vec()),
        ("destination options", 60, options(58).to_vec()),
        ("routing", 43, options(58).to_vec()),
        ("mobility", 135, options(58).to_vec()),
        ("authentication", 51, [&[58, 2][..], &[0; 14]].concat()),
        ("two headers", hop, chain(&[&[60, 0, 5, 2, 0, 0, 1, 0], &options(58)])),
        ("two hop-by-hop", hop, chain(&[&[0, 0, 5, 2, 0, 0, 1, 0], &alert])),
        ("longer than the first bytes", 60, long),
        ("atomic fragment", 44, vec![58, 0, 0, 0, 0, 0, 0, 1]),
        ("alert and atomic", hop, chain(&[&[44, 0, 5, 2, 0, 0, 1, 0], &[58, 0, 0, 0, 0, 0, 0, 1]])),
        ("first fragment", 44, vec![58, 0, 0, 1, 0, 0, 0, 1]),
        ("alert and first", hop, chain(&[&[44, 0, 5, 2, 0, 0, 1, 0], &[58, 0, 0, 1, 0, 0, 0, 1]])),
    ] {
        all.push((word.into(), behind(frame, first, &headers)));
    }
    // The headers continue in the next fragment; other headers follow the end of this fragment.
    let cut = chain(&[&[60, 0, 0, 1, 0, 0, 0, 1], &options(60), &options(17)]);
    let mut cut = behind(frame, 44, &cut);
    cut[18..20].copy_from_slice(&16u16.to_be_bytes());
    all.push(("headers cut off".into(), cut));
    all
}

/// An encapsulated message is never canonical and never overlooked.
#[test]
fn a_message_is_found_in_each_wrapping() {
    for frame in messages() {
        assert!(matches!(read(&frame), Ok(Some(_))), "{frame:02x?}");
        for (word, bytes) in hidden(&frame) {
            let case = format!("{word}: {bytes:02x?}");
            assert!(may_be_message(&snapshot(&bytes)), "{case}");
            assert_eq!(read(&bytes), Err(Malformed), "{case}");
            // Fewer bytes give the same result, or a request for more bytes.
            for known in [64, 256] {
                let known = bytes.len().min(known);
                let part = Part { bytes: &bytes[..known], len: bytes.len(), sum_at: None };
                let is_right = match parse(&part) {
                    Err(Malformed) => true,
                    Err(Refused::Short) => known == 64 && bytes.len() > 64,
                    Err(Refused::Whole) => known < bytes.len(),
                    Ok(_) => false,
                };
                assert!(is_right, "{case}");
            }
        }
    }
}

/// The device that delivers a frame may write a checksum over the message type.
#[test]
fn what_a_checksum_is_written_over_is_not_read() {
    let frame = mld(link_local(), "ff02::16".parse().unwrap(), &[143, 0, 0, 0, 0, 0, 0, 0]);
    let with = |sum_at| parse(&Part { bytes: &frame, len: frame.len(), sum_at: Some(sum_at) });
    assert!(with(64).is_ok(), "the message's");
    for at in [53, 54, 55, 61, 62, 66] {
        assert_eq!(with(at), Err(Malformed), "{at}");
    }
}

#[test]
fn a_report_too_long_to_be_read_is_for_routers() {
    let mut message = vec![0x22, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0, 239, 1, 1, 1];
    message.resize(3_000, 0);
    let long = |mut frame: Vec<u8>, len: u16, at: usize| {
        frame[at..at + 2].copy_from_slice(&len.to_be_bytes());
        let part = Part { bytes: &frame[..64], len: frame.len(), sum_at: None };
        parse(&part).map(|message| {
            message.map(|one| match one {
                Message::Report(report) => report.is_unread() && report.joined().next().is_none(),
                _ => panic!("{one:?}"),
            })
        })
    };
    assert_eq!(long(igmp(HOST, [224, 0, 0, 22], &message), 3_024, 16), Ok(Some(true)));
    message[0] = 0x11;
    assert_eq!(long(igmp(HOST, [224, 0, 0, 1], &message), 3_024, 16), Err(Malformed), "a query");
    let message = [&[143, 0, 0, 0, 0, 0, 0, 0][..], &[0; 2_992]].concat();
    let all = "ff02::16".parse().unwrap();
    assert_eq!(long(mld(link_local(), all, &message), 3_008, 18), Ok(Some(true)));
}

/// Large pings, neighbour discovery, tunnels and other protocols behind extension headers.
#[test]
fn what_is_no_message_passes() {
    let to: Ipv6Addr = "ff02::1".parse().unwrap();
    let ping = mld(link_local(), to, &[128, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    let options = |next: u8| [next, 0, 1, 4, 0, 0, 0, 0];
    let routing = mld(link_local(), to, &[155, 0, 0, 0, 0, 0, 0, 0]);
    let frames = [
        behind(&ping, 58, &[]),
        behind(&ping, 60, &options(58)),
        behind(&ping, 44, &[58, 0, 0, 1, 0, 0, 0, 1]),
        behind(&ping, 44, &[58, 0, 0, 0x10, 0, 0, 0, 1]),
        behind(&ping, 0, &[&[44, 0, 5, 2, 0, 0, 1, 0][..], &[58, 0, 0, 0x11, 0, 0, 0, 1]].concat()),
        behind(&ping, 44, &[17, 0, 0, 0x10, 0, 0, 0, 1]),
        behind(&ping, 0, &options(17)),
        behind(&ping, 50, &[]),
        behind(&ping, 59, &[]),
        behind(&ping, 41, &[]),
        behind(&routing, 58, &[]),
        igmp(HOST, [224, 0, 0, 13], &[0x14, 0, 0, 0, 0, 0, 0, 0]),
        igmp(HOST, [224, 0, 0, 4], &[0x13, 1, 0, 0, 0, 0, 0, 0]),
        igmp(HOST, [10, 0, 0, 7], &[0x1f, 1, 0, 0, 0, 0, 0, 0]),
        [&[0xff; 12][..], &[0, 38, 0x42, 0x42, 3, 0, 0], &[0; 40]].concat(),
        [&[0xff; 12][..], &[0x81, 0, 0, 1]].concat(),
        [&[0xff; 12][..], &[0x81, 0, 0, 1, 8, 6], &[0; 40]].concat(),
    ];
    for frame in frames {
        assert_eq!(read(&frame), Ok(None), "{frame:02x?}");
    }
    let kinds =
        [(0x0800, 23, 6), (0x0800, 23, 17), (0x86dd, 20, 6), (0x86dd, 20, 17), (0x0806, 20, 0)];
    for (kind, at, protocol) in kinds {
        let mut bytes = [0; SNAPSHOT_LEN];
        bytes[12..14].copy_from_slice(&u16::to_be_bytes(kind));
        bytes[at] = protocol;
        assert!(!may_be_message(&bytes), "{kind:x}, {protocol}");
    }
}

#[test]
fn groups_of_a_link_and_of_other_addresses_are_not_limited() {
    let frame = |mac: [u8; 6], to: [u8; 4]| {
        let ip =
            [&[0x45, 0, 0, 28, 0, 0, 0, 0, 1, 17, 0, 0, 10, 0, 0, 1][..], &to, &[0; 8]].concat();
        [&mac[..], &[2, 0, 0, 0, 0, 1, 8, 0], &ip].concat()
    };
    let group_of = |mac, to| {
        let frame = frame(mac, to);
        super::group(&snapshot(&frame), frame.len() as u32)
    };
    let mine = [239, 129, 1, 1];
    assert_eq!(group_of([1, 0, 0x5e, 1, 1, 1], mine), Some(v4(mine)));
    assert_eq!(group_of([1, 0, 0x5e, 1, 1, 2], mine), None, "another group's");
    assert_eq!(group_of([1, 0, 0x5e, 0, 0, 251], [224, 0, 0, 251]), None, "mDNS");
    assert_eq!(group_of([0xff; 6], mine), None);
    let tagged = frame([1, 0, 0x5e, 1, 1, 1], mine);
    let tagged = [&tagged[..12], &[0x81, 0, 0, 10], &tagged[12..]].concat();
    assert_eq!(super::group(&snapshot(&tagged), tagged.len() as u32), Some(v4(mine)));
    assert_eq!(super::group(&snapshot(&tagged), 36), None, "cut off");
    for (word, limited) in [
        ("ff02::fb", false),
        ("ff02::1:ff00:1", false),
        ("ff01::1", false),
        ("ff05::2", true),
        ("ff3e::1", true),
    ] {
        assert_eq!(is_limitable(&word.parse().unwrap()), limited, "{word}");
    }
}

/// Hosts behind a further tag do not receive the query of a querier without the tag.
#[test]
fn a_tag_is_that_of_the_vlan_or_the_frame_is_of_others() {
    let tagged = |tags: &[u8]| {
        let frame = [&[1, 0, 0x5e, 1, 1, 1, 2, 0, 0, 0, 0, 1][..], tags, &[8, 0, 0x45]].concat();
        [0, 10].map(|vlan| is_of_vlan(&snapshot(&frame), vlan))
    };
    assert_eq!(tagged(&[]), [true, true]);
    assert_eq!(tagged(&[0x81, 0, 0xe0, 0]), [true, true], "a priority");
    assert_eq!(tagged(&[0x81, 0, 0xe0, 10]), [false, true]);
    assert_eq!(tagged(&[0x81, 0, 0, 20]), [false, false]);
    assert_eq!(tagged(&[0x88, 0xa8, 0, 10]), [false, false]);
    assert_eq!(tagged(&[0x81, 0, 0, 10, 0x81, 0, 0, 10]), [false, false]);
}
