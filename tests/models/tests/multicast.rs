//! Snooping's groups: their own code, under every interleaving of workers that look up groups, note
//! reports and queries, or end memberships. And under every reordering that loom tries, up to three
//! preemptions.

use core::net::IpAddr;

use loom::sync::Arc;
use loom::thread;
use vioswitch_models::frame::multicast::Query;
use vioswitch_models::limits::MEMBERSHIP_SECONDS;
use vioswitch_models::loomed;
use vioswitch_models::switch::fdb::PortId;
use vioswitch_models::switch::multicast::{Noted, Snooping};
use vioswitch_models::switch::segment::Segment;

const SEGMENT: Segment = Segment::new(0, 10);
const QUERIER: PortId = 0;
const MEMBER: PortId = 1;
const OTHER: PortId = 2;
/// A port that is no member of any group.
const NOBODY: PortId = 3;
const START: u32 = 1_000;
/// When all had the time to answer the first query.
const ANSWERED: u32 = START + 3;

fn model(check: impl Fn() + Sync + Send + 'static) {
    loomed::model(3, check);
}

/// Groups one of which takes the place of the first one at least, as there are four places.
const GROUPS: [u8; 5] = [1, 2, 3, 4, 5];

fn group(n: u8) -> IpAddr {
    [239, 1, 1, n].into()
}

fn query(all: &Snooping, about: Option<u8>, now: u32) -> Noted {
    let query = Query {
        from: [10, 0, 0, 1].into(),
        group: about.map(group),
        has_sources: false,
        suppress: false,
        response: 1,
        interval: None,
        version: 2,
    };
    all.query(SEGMENT, QUERIER, &query, now)
}

fn join(all: &Snooping, port: PortId, n: u8, now: u32) -> Noted {
    all.report(SEGMENT, port, [group(n)].into_iter(), now)
}

/// A table in which a querier was heard, and a port has reported a group.
fn asked() -> Arc<Snooping> {
    let all = Arc::new(Snooping::default());
    assert_eq!(query(&all, None, START), Noted::Yes);
    assert_eq!(join(&all, MEMBER, 1, START + 1), Noted::Yes);
    all
}

/// Which of these ports get a group's frames; nothing if all do.
fn receivers<const N: usize>(
    all: &Snooping,
    n: u8,
    ports: [PortId; N],
    now: u32,
) -> Option<[bool; N]> {
    let limited = all.limited(SEGMENT, group(n), now)?;
    Some(ports.map(|port| all.takes(limited, port, 1)))
}

/// The counts agree with the members.
fn assert_consistent(all: &Snooping, now: u32) {
    let (known, more) = all.memberships(0, usize::MAX, now);
    assert_eq!(more, None);
    let (groups, memberships) = all.sizes();
    assert_eq!(memberships, known.len() as u64);
    let mut found: Vec<IpAddr> = known.iter().map(|one| one.group).collect();
    found.dedup();
    assert_eq!(groups, found.len());
}

/// A group that has a member is limited to it, whatever comes and goes around it: other groups, and
/// another member of its own.
#[test]
fn a_member_is_found_while_others_come_and_go() {
    for other in &GROUPS {
        model(move || {
            let all = asked();
            let writer = {
                let all = Arc::clone(&all);
                thread::spawn(move || {
                    join(&all, OTHER, *other, ANSWERED);
                    all.forget(OTHER);
                    all.sweep(ANSWERED);
                })
            };
            let found = receivers(&all, 1, [MEMBER, NOBODY], ANSWERED);
            assert_eq!(found, Some([true, false]));
            writer.join().unwrap();
            assert_consistent(&all, ANSWERED);
        });
    }
}

/// While the querier asks again, about all groups or about this one, the answers to its first
/// query count.
#[test]
fn a_query_makes_no_group_undecided() {
    for about in [None, Some(1)] {
        model(move || {
            let all = asked();
            let now = START + 20;
            let writer = {
                let all = Arc::clone(&all);
                thread::spawn(move || assert_eq!(query(&all, about, now), Noted::Yes))
            };
            assert_eq!(receivers(&all, 1, [MEMBER, NOBODY], now), Some([true, false]));
            writer.join().unwrap();
            assert_eq!(receivers(&all, 1, [MEMBER, NOBODY], now), Some([true, false]));
        });
    }
}

/// A group ends and another one gets its place, while a worker that knows what `find` found has
/// frames.
fn hand_over<T: 'static>(find: fn(&Snooping) -> T, check: fn(&Snooping, T, u8)) {
    for other in &GROUPS[1..] {
        model(move || {
            let all = asked();
            let found = find(&all);
            let writer = {
                let all = Arc::clone(&all);
                thread::spawn(move || {
                    all.forget(MEMBER);
                    all.sweep(ANSWERED);
                    assert_eq!(join(&all, OTHER, *other, ANSWERED), Noted::Yes);
                })
            };
            check(&all, found, *other);
            writer.join().unwrap();
            assert_eq!(receivers(&all, 1, [OTHER, NOBODY], ANSWERED), None);
            assert_eq!(receivers(&all, *other, [OTHER, NOBODY], ANSWERED), Some([true, false]));
            assert_consistent(&all, ANSWERED);
        });
    }
}

/// Frames of a group that ended reach the other group's member only with all others.
#[test]
fn a_group_that_ended_is_not_limited_to_members_of_the_next() {
    let find = |all: &Snooping| all.limited(SEGMENT, group(1), ANSWERED).expect("limited");
    hand_over(find, |all, limited, _| {
        let [is_other, is_nobody] = [OTHER, NOBODY].map(|port| all.takes(limited, port, 1));
        assert!(!is_other || is_nobody);
    });
}

#[test]
fn a_group_that_began_is_limited_to_its_own_member() {
    hand_over(
        |_| (),
        |all, (), other| {
            if let Some(found) = receivers(all, other, [OTHER, NOBODY], ANSWERED) {
                assert_eq!(found, [true, false]);
            }
        },
    );
}

/// A report comes while the membership is found to have ended: who was told that it counts is a
/// member afterwards.
#[test]
fn a_report_that_counts_is_not_swept() {
    model(|| {
        let all = asked();
        let now = START + 1 + MEMBERSHIP_SECONDS;
        assert_eq!(query(&all, None, now - 10), Noted::Yes);
        let sweep = {
            let all = Arc::clone(&all);
            thread::spawn(move || all.sweep(now))
        };
        let noted = join(&all, MEMBER, 1, now);
        sweep.join().unwrap();
        let found = receivers(&all, 1, [MEMBER, NOBODY], now);
        match noted {
            Noted::Yes => assert_eq!(found, Some([true, false])),
            // Without a member the group is flooded.
            Noted::Busy => assert_eq!(found, None),
            other => panic!("{other:?}"),
        }
        assert_consistent(&all, now);
    });
}

/// Two ports report at once, one of them a new group: nothing is counted twice or lost.
#[test]
fn two_reports_are_two_memberships() {
    for other in [1, 2] {
        model(move || {
            let all = asked();
            let writer = {
                let all = Arc::clone(&all);
                thread::spawn(move || join(&all, OTHER, other, ANSWERED))
            };
            let mine = join(&all, NOBODY, 2, ANSWERED);
            let noted = [mine, writer.join().unwrap()];
            assert!(noted.iter().all(|one| matches!(one, Noted::Yes | Noted::Busy)), "{noted:?}");
            let count = noted.iter().filter(|one| **one == Noted::Yes).count() as u64;
            assert!(count > 0, "somebody holds the lock");
            assert_eq!(all.sizes().1, 1 + count);
            assert_consistent(&all, ANSWERED);
        });
    }
}
