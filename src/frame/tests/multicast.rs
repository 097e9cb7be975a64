//! Messages of IGMP and MLD, made by hand: what they say, and those that are not obeyed.

use super::*;
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

fn put_sum(bytes: &mut [u8], at: usize, before: Sum) {
    bytes[at..at + 2].fill(0);
    let sum = !before.plus(Sum::of(bytes)).fold();
    bytes[at..at + 2].copy_from_slice(&sum.to_ne_bytes());
}

/// A frame of IGMP, with a router alert.
pub fn igmp(from: [u8; 4], to: [u8; 4], message: &[u8]) -> Vec<u8> {
    let mut message = message.to_vec();
    put_sum(&mut message, 2, Sum::ZERO);
    let len = 24 + message.len() as u8;
    let mut head = vec![0x46, 0xc0, 0, len, 0, 0, 0x40, 0, 1, 2, 0, 0];
    head.extend([from, to].concat());
    head.extend([0x94, 4, 0, 0]);
    put_sum(&mut head, 10, Sum::ZERO);
    [&super::mac(to.into())[..], &[2, 0, 0, 0, 0, 1, 8, 0], &head, &message].concat()
}

/// A frame of MLD.
pub fn mld(from: Ipv6Addr, to: Ipv6Addr, message: &[u8]) -> Vec<u8> {
    let mut message = message.to_vec();
    let len = message.len() as u16 + 8;
    let mut head = vec![0x60, 0, 0, 0, (len >> 8) as u8, len as u8, 0, 1];
    head.extend(from.octets());
    head.extend(to.octets());
    let pseudo = Sum::of(&head[8..]).word(message.len() as u16).word(58);
    put_sum(&mut message, 2, pseudo);
    head.extend([58, 0, 5, 2, 0, 0, 1, 0]);
    [&super::mac(to.into())[..], &[2, 0, 0, 0, 0, 1, 0x86, 0xdd], &head, &message].concat()
}

fn link_local() -> Ipv6Addr {
    "fe80::5".parse().unwrap()
}

fn joined(frame: &[u8]) -> Vec<IpAddr> {
    match parse(frame, true) {
        Ok(Some(Message::Report(report))) => report.joined().collect(),
        other => panic!("{other:?}"),
    }
}

fn query_of(frame: &[u8]) -> Query {
    match parse(frame, true) {
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
    // Of the six kinds of records: without a source and with one.
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
    // More records than a snapshot or 256 bytes hold.
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
        assert_eq!(parse(&frame, false), Err(Malformed), "{what}");
    }
    let mut frame = mld(link_local(), group, &one);
    frame[56] = 1;
    assert_eq!(parse(&frame, false), Err(Malformed), "no router alert");
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
    // Hosts do not obey it.
    assert_eq!(parse(&mld(Ipv6Addr::UNSPECIFIED, all, &message), true), Err(Malformed));
    let elsewhere = igmp(HOST, [239, 1, 1, 1], &[0x11, 100, 0, 0, 0, 0, 0, 0]);
    assert_eq!(parse(&elsewhere, true), Err(Malformed), "not to all");
}

#[test]
fn what_is_cut_or_has_a_wrong_sum_is_malformed() {
    let message = [0x22, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0, 239, 1, 1, 1];
    let frame = igmp(HOST, [224, 0, 0, 22], &message);
    assert_eq!(joined(&[&frame[..], &[0; 9]].concat()), [v4([239, 1, 1, 1])], "padding");
    for len in 38..frame.len() {
        assert_eq!(parse(&frame[..len], true), Err(Malformed), "{len}");
    }
    for at in (14..frame.len()).filter(|at| *at != 23) {
        let mut wrong = frame.clone();
        wrong[at] ^= 1;
        assert_eq!(parse(&wrong, true), Err(Malformed), "byte {at}");
    }
    let mut partial = frame.clone();
    partial[40] ^= 1;
    assert!(parse(&partial, false).is_ok(), "finished by its receiver");
    // More records than there are.
    let many =
        igmp(HOST, [224, 0, 0, 22], &[0x22, 0, 0, 0, 0, 0, 0xff, 0xff, 4, 0, 0, 0, 239, 1, 1, 1]);
    assert_eq!(parse(&many, true), Err(Malformed));
}

/// Any change of any message makes it another one, none or malformed, and nothing else.
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
        if let Ok(Some(Message::Report(report))) = parse(&frame, false) {
            assert!(report.joined().all(|group| group.is_multicast()));
        }
        super::group(&snapshot(&frame), frame.len() as u32);
        may_be_message(&snapshot(&frame));
        may_be_query(&frame);
    }
}

/// What is malformed here may be a query for a bridge that is less strict.
#[test]
fn what_others_may_take_for_a_query_is_known() {
    let all = ["ff02::1".parse().unwrap(), "ff02::16".parse().unwrap()];
    let ask = mld(link_local(), all[0], &[130, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let report = mld(link_local(), all[1], &[143, 0, 0, 0, 0, 0, 0, 0]);
    let behind = |frame: &[u8], next: u8, header: &[u8]| {
        // Hop-by-hop options have the next header and eight bytes.
        let mut frame = [&frame[..62], header, &frame[62..]].concat();
        (frame[54], frame[62]) = (next, 58);
        frame[19] += header.len() as u8;
        frame
    };
    let options = [0, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for (next, header) in [
        (60, &options[..8]),
        (60, &options[..]),
        (43, &options[..8]),
        (44, &[0; 8][..]),
        (51, &[0, 2, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0][..]),
    ] {
        let (mut ask, mut report) = (behind(&ask, next, header), behind(&report, next, header));
        if next == 60 || next == 43 {
            (ask[63], report[63]) = (header.len() as u8 / 8 - 1, header.len() as u8 / 8 - 1);
        }
        assert!(!matches!(parse(&ask, true), Ok(Some(_))), "{next}");
        assert!(may_be_query(&ask) && !may_be_query(&report), "{next}: {ask:02x?}");
        (0..ask.len()).for_each(|len| assert!(!may_be_query(&ask[..len]) || len > 62));
    }
    let mut ask = igmp(HOST, [224, 0, 0, 1], &[0x11, 10, 0, 0, 0, 0, 0, 0]);
    ask[20] = 0x20;
    put_sum(&mut ask[14..38], 10, Sum::ZERO);
    assert_eq!(parse(&ask, true), Err(Malformed), "a fragment");
    assert!(may_be_query(&ask) && !may_be_query(&ask[..38]));
    let other = igmp(HOST, [224, 0, 0, 13], &[0x14, 0, 0, 0, 0, 0, 0, 0]);
    assert!(parse(&other, true) == Ok(None) && !may_be_query(&other), "PIM");
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

/// Hosts behind a tag that is payload are not those that a querier without it asked.
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
