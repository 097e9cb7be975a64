//! Snooping: when groups are limited, to which ports, and what the table has room for.

use std::collections::BTreeMap;

use super::*;
use base::limits::{MEMBERSHIP_SECONDS, QUERIER_SECONDS};

const A: Segment = Segment::new(0, 10);
const B: Segment = Segment::new(0, 20);
const UP: PortId = 0;
const START: u32 = 1_000;

fn group(n: u16) -> IpAddr {
    [239, 1, (n >> 8) as u8, n as u8].into()
}

fn general(response: u32) -> Query {
    let from = [10, 0, 0, 1].into();
    Query {
        from,
        group: None,
        has_sources: false,
        suppress: false,
        response,
        interval: None,
        version: 2,
    }
}

fn specific(n: u16) -> Query {
    Query { group: Some(group(n)), ..general(1) }
}

/// Returns a table in which a querier was heard and answered.
fn asked() -> Snooping {
    let all = Snooping::default();
    assert_eq!(all.query(A, UP, &general(1), START), Noted::Yes);
    all
}

fn join(all: &Snooping, segment: Segment, port: PortId, n: u16, now: u32) -> Noted {
    all.report(segment, port, [group(n)].into_iter(), now)
}

/// Returns which of ports 1 to 4, there since `since`, get a group's frames; `None` if all do.
fn members(all: &Snooping, segment: Segment, n: u16, since: u32, now: u32) -> Option<Vec<PortId>> {
    let limited = all.limited(segment, group(n), now)?;
    Some((1..5).filter(|port| all.takes(limited, *port, since)).collect())
}

#[test]
fn a_group_is_limited_once_a_query_was_answered() {
    let all = Snooping::default();
    assert_eq!(join(&all, A, 1, 1, START), Noted::Ignored, "without a querier");
    all.query(A, UP, &general(1), START);
    let known: Vec<_> = all.queriers(START).iter().map(|one| one.group.is_ipv4()).collect();
    assert_eq!(known, [true], "of IGMP alone");
    assert_eq!(join(&all, A, 1, 1, START + 1), Noted::Yes);
    assert_eq!(members(&all, A, 1, 1, START + 2), None, "others may answer still");
    assert_eq!(members(&all, A, 1, 1, START + 3), Some(vec![1]));
    assert_eq!(members(&all, A, 2, 1, START + 3), None, "a group without members");
    assert_eq!(members(&all, B, 1, 1, START + 3), None, "another VLAN");
    // A port that came after the query has not been asked.
    assert_eq!(members(&all, A, 1, START, START + 3), Some(vec![1, 2, 3, 4]));
    all.query(A, UP, &general(1), START + 100);
    assert_eq!(members(&all, A, 1, START + 50, START + 102), Some(vec![1, 2, 3, 4]));
    assert_eq!(members(&all, A, 1, START + 50, START + 103), Some(vec![1]));
}

#[test]
fn without_its_querier_a_group_is_flooded_again() {
    let all = asked();
    let end = START + QUERIER_SECONDS;
    join(&all, A, 1, 1, end - 1);
    assert_eq!(members(&all, A, 1, 1, end - 1), Some(vec![1]));
    assert_eq!(members(&all, A, 1, 1, end), None);
    // The querier comes back, and no earlier query counts.
    all.query(A, UP, &general(5), end + 5);
    assert_eq!(members(&all, A, 1, 1, end + 6), None);
    assert_eq!(members(&all, A, 1, 1, end + 12), Some(vec![1]));
}

#[test]
fn a_member_ages_and_reports_keep_it() {
    let all = asked();
    let mut now = START;
    join(&all, A, 1, 1, now);
    join(&all, A, 2, 1, now);
    for _ in 0..5 {
        now += 125;
        all.query(A, UP, &general(1), now);
        join(&all, A, 1, 1, now);
    }
    assert_eq!(members(&all, A, 1, 1, now), Some(vec![1]), "port 2 did not answer");
    all.sweep(now);
    assert_eq!(all.sizes(), (1, 1));
    let found = all.limited_by_mac(A, [1, 0, 0x5e, 1, 0, 1], now);
    assert_eq!(found.iter().map(|one| one.0).collect::<Vec<_>>(), [group(1)]);
    assert_eq!(members(&all, A, 1, 1, now + MEMBERSHIP_SECONDS), None);
    all.sweep(now + MEMBERSHIP_SECONDS);
    assert!((0..PLACES).all(|place| !all.table.is_used(place)));
    let accounts = all.accounts.lock().unwrap();
    assert!(accounts.count == 0 && accounts.segments.is_empty());
    assert!(accounts.groups.iter().all(|count| *count == 0));
    assert!(accounts.joined.iter().all(|count| *count == 0));
}

#[test]
fn who_does_not_answer_a_query_about_the_group_is_a_member_no_more() {
    let all = asked();
    [1, 2].into_iter().for_each(|port| _ = join(&all, A, port, 1, START + 3));
    let now = START + 10;
    let quiet = Query { suppress: true, ..specific(1) };
    assert_eq!(all.query(A, UP, &quiet, now), Noted::Ignored);
    assert_eq!(all.query(A, UP, &specific(1), now), Noted::Yes);
    all.query(A, UP, &specific(1), now + 1);
    join(&all, A, 2, 1, now + 1);
    assert_eq!(members(&all, A, 1, 1, now + 3), Some(vec![1, 2]));
    assert_eq!(members(&all, A, 1, 1, now + 4), Some(vec![2]));
}

#[test]
fn what_left_is_no_member() {
    let all = asked();
    [1, 2].into_iter().for_each(|port| _ = join(&all, A, port, 1, START + 3));
    all.forget(1);
    assert_eq!(members(&all, A, 1, 1, START + 4), Some(vec![2]));
}

#[test]
fn a_querier_that_asks_too_rarely_does_not_count() {
    let all = Snooping::default();
    let rare = Query { interval: Some(126), ..general(1) };
    assert_eq!(all.query(A, UP, &rare, START), Noted::Ignored);
    assert_eq!(all.query(A, UP, &general(11), START), Noted::Ignored);
    assert!(all.queriers(START).is_empty());
}

/// A guest that joins a million groups fills its own quota. In a full table a new group leaves the
/// other groups as they are, and the reserved room of other segments.
/// others as they are, and room for theirs.
#[test]
fn quotas_keep_room_for_others_and_push_none_out() {
    let all = asked();
    all.query(B, UP, &general(1), START);
    join(&all, A, 1, 60_000, START);
    let capacity = all.accounts.lock().unwrap().segments.capacity();
    for n in 0..1_000_000u32 {
        let address = IpAddr::from((0xe100_0000 + n).to_be_bytes());
        let noted = all.report(A, 2, [address].into_iter(), START);
        assert_eq!(noted == Noted::Yes, n < u32::from(MAX_GROUPS_PER_PORT), "{n}");
    }
    assert_eq!(join(&all, A, 1, 1, START), Noted::Yes);
    // With other ports the segment is filled, and with other segments the table.
    for (n, port) in (0..4_000).map(|n| (n, 3 + n / 200)) {
        join(&all, A, port, n, START);
    }
    assert_eq!(join(&all, A, 40, 50_000, START), Noted::Full);
    for segment in (100..200).map(|vlan| Segment::new(0, vlan)) {
        all.query(segment, UP, &general(1), START);
        (0..100).for_each(|n| _ = join(&all, segment, 100 + n / 10 + segment.vlan(), n, START));
    }
    for n in 0..RESERVED_GROUPS_PER_SEGMENT as u16 {
        assert_eq!(join(&all, B, 1_000, n, START), Noted::Yes, "{n}");
    }
    assert_eq!(join(&all, B, 1_000, 100, START), Noted::Full);
    assert_eq!(members(&all, A, 60_000, 1, START + 3), Some(vec![1]));
    assert_eq!(members(&all, B, 100, 1, START + 3), None, "no room, no limit");
    assert_eq!(all.accounts.lock().unwrap().segments.capacity(), capacity, "nothing was allocated");
}

/// A place that another group has taken is not mistaken for the first group's.
#[test]
fn what_was_found_is_not_another_groups() {
    let all = asked();
    join(&all, A, 1, 1, START + 3);
    let found = all.limited(A, group(1), START + 4).unwrap();
    all.forget(1);
    all.sweep(START + 4);
    assert!((1..5).all(|port| all.takes(found, port, 1)), "a group that ended");
    // Another group gets the place. A port may report so many groups in a second.
    let now = |n: u16| START + 4 + u32::from(n) / 1_000;
    let other = (2..).find(|n| {
        let now = now(*n);
        join(&all, A, 2, *n, now);
        let place = all.limited(A, group(*n), now).unwrap().place;
        if place != found.place {
            all.forget(2);
            all.sweep(now);
        }
        place == found.place
    });
    assert!(other.is_some() && (1..5).all(|port| all.takes(found, port, 1)));
    let other = other.unwrap();
    assert_eq!(members(&all, A, other, 1, now(other)), Some(vec![2]));
}

/// A port reports 10^6 groups in a second: its allowed number counts, and other ports' reports too.
#[test]
fn a_port_reports_so_many_groups_in_a_second_and_no_more() {
    let all = asked();
    let groups =
        |n: u32| (0..180).map(move |i| IpAddr::from((0xefc8_0000 + n * 180 + i).to_be_bytes()));
    let mut counts = BTreeMap::new();
    for n in 0..1_000_000 / 180 {
        *counts.entry(all.report(A, 1, groups(n), START)).or_insert(0) += 1;
    }
    let of = |noted| counts.get(&noted).copied().unwrap_or(0);
    assert_eq!((of(Noted::Yes), of(Noted::Full), of(Noted::Busy)), (1, 10, 0));
    assert_eq!(of(Noted::TooMany), 1_000_000 / 180 - 11);
    assert_eq!(join(&all, A, 2, 1, START), Noted::Yes, "of another port");
    assert_eq!(join(&all, A, 1, 1, START), Noted::TooMany);
    assert_eq!(join(&all, A, 1, 1, START + 1), Noted::Full, "its groups, in the next second");
}

/// Ports that report without a pause, each as much as it may, do not delay forwarding: a group of
/// another segment, and a group of their own segment, is limited to its member each time.
#[test]
fn look_ups_are_decided_while_others_report() {
    let all = asked();
    all.query(B, UP, &general(1), START);
    for segment in [A, B] {
        join(&all, segment, 1, 1, START + 1);
    }
    let now = START + 3;
    let stop = std::sync::atomic::AtomicBool::new(false);
    let is_over = || stop.load(std::sync::atomic::Ordering::Relaxed);
    let look_up = |count: usize| {
        let look = |n: usize| members(&all, [A, B][n % 2], 1, 1, now) == Some(vec![1]);
        (0..count).filter(|n| !look(*n)).count()
    };
    assert_eq!(look_up(10_000), 0, "control");
    let undecided = std::thread::scope(|scope| {
        for writer in 0..2u16 {
            let all = &all;
            scope.spawn(move || {
                for round in 0u32.. {
                    // Groups come and go, so that places change hands.
                    let (port, at) =
                        (10 + (round % 500) as PortId + 500 * writer, now + round / 500);
                    let groups = (0..180).map(|n| group(n + 10 + 200 * writer));
                    assert_ne!(all.report(A, port, groups, at), Noted::TooMany);
                    all.forget(port);
                    all.sweep(now);
                    if is_over() {
                        break;
                    }
                }
            });
        }
        let undecided = look_up(200_000);
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        undecided
    });
    assert_eq!(undecided, 0);
}

/// Returns queriers and members.
fn known(all: &Snooping, now: u32) -> Vec<Known> {
    let (members, more) = all.memberships(0, usize::MAX, now);
    assert_eq!(more, None);
    [all.queriers(now), members].concat()
}

/// With as many memberships as ports may have, no part is longer than asked for, and the parts
/// together are complete.
#[test]
fn members_come_in_parts() {
    let all = asked();
    for group in 0..255 {
        (0..MAX_PORTS as PortId).for_each(|port| _ = join(&all, A, port, group, START + 1));
    }
    let (_, count) = all.sizes();
    assert!(count > 200_000, "{count}");
    let (mut position, mut found) = (Some(0), Vec::new());
    while let Some(at) = position {
        let (part, next) = all.memberships(at, 1_000, START + 2);
        assert!(part.len() == 1_000 || next.is_none() && part.len() < 1_000);
        found.extend(part);
        position = next;
    }
    assert_eq!(found.len() as u64, count);
    found.dedup();
    assert_eq!(found.len() as u64, count, "none twice");
}

#[test]
fn all_that_is_known_is_told() {
    let all = asked();
    join(&all, A, 2, 7, START + 1);
    join(&all, A, 1, 7, START + 2);
    let told = |now| {
        let known = known(&all, now);
        let of = |one: &Known| (one.port, one.is_querier, one.age, one.limits);
        assert!(known.iter().all(|one| one.segment == A));
        known.iter().map(of).collect::<Vec<_>>()
    };
    // The querier's address sorts before those of groups.
    let waits = [(UP, true, 2, false), (1, false, 0, false), (2, false, 1, false)];
    assert_eq!(told(START + 2), waits);
    let limits = [(UP, true, 4, true), (1, false, 2, true), (2, false, 3, true)];
    assert_eq!(told(START + 4), limits);
    // A port that does not answer is no member, even before the sweep removes it.
    all.query(A, UP, &specific(7), START + 5);
    join(&all, A, 1, 7, START + 6);
    let of_7: Vec<PortId> = known(&all, START + 20).iter().map(|one| one.port).collect();
    assert_eq!(of_7, [UP, 1]);
    // Everything ends with the querier except memberships; their groups are flooded.
    assert_eq!(told(START + 5 + QUERIER_SECONDS), [(1, false, QUERIER_SECONDS - 1, false)]);
}
