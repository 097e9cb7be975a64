//! The newest events are kept, the others are counted.

use std::time::{Duration, Instant};

use super::*;
use switch::Rule;

fn events() -> Arc<Events> {
    Arc::new(Events::new(&Arc::new(Waker::new().unwrap())))
}

fn numbers(told: &Told) -> Vec<u64> {
    told.events.iter().map(|event| event.sequence).collect()
}

#[test]
fn each_kind_has_a_name_and_a_number_of_its_own() {
    for kind in KINDS {
        let same = |other: &&Kind| other.name == kind.name;
        let id = |other: &&Kind| other.message_id == kind.message_id;
        assert_eq!(KINDS.iter().filter(same).count(), KINDS.iter().filter(id).count());
        assert!(KINDS.iter().filter(same).all(|other| other == kind));
        let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        assert!(kind.message_id.len() == 32 && kind.message_id.bytes().all(hex), "{kind:?}");
    }
}

/// The event of a broken rule has the sentence about the rule.
#[test]
fn a_broken_rule_is_told_as_elsewhere() {
    let address = Address::Ip([10, 0, 0, 9].into());
    let violation = Violation { rule: Rule::Ip, address };
    let what = What::GuardViolation { violation, dropped: false, frames: 3 };
    let told = format!("guard: {violation} (rule ip), the last of 3 (not dropped)");
    assert_eq!(what.to_string(), told);
    assert!(told.contains("10.0.0.9 is not allowed as a source address"), "{told}");
}

#[test]
fn the_newest_are_kept_and_the_rest_is_counted() {
    let events = events();
    assert_eq!(events.after(0, 9), Told { lost: 0, events: vec![] });
    for _ in 0..EVENTS_KEPT + 10 {
        events.keep(None, 0, What::PortAdded);
    }
    let last = EVENTS_KEPT as u64 + 10;
    assert_eq!(events.last(), last);
    let told = events.after(0, 3);
    assert_eq!((told.lost, numbers(&told)), (10, vec![11, 12, 13]));
    let told = events.after(13, 2);
    assert_eq!((told.lost, numbers(&told)), (0, vec![14, 15]));
    let told = events.after(last - 1, 100);
    assert_eq!((told.lost, numbers(&told)), (0, vec![last]));
    for after in [last, u64::MAX] {
        assert_eq!(events.after(after, 100), Told { lost: 0, events: vec![] });
    }
    assert_eq!(events.ring().events.len(), EVENTS_KEPT);
}

#[test]
fn a_port_tells_so_much_and_counts_the_rest() {
    let events = events();
    let port = PortEvents::new(Some(&events));
    for _ in 0..100 {
        port.tell("a", What::Detached, false);
    }
    let told = events.after(0, 1_000).events;
    let few = PORT_EVENT_BURST as usize..=PORT_EVENT_BURST as usize + 2;
    assert!(few.contains(&told.len()), "{}", told.len());
    port.tell_surely("a", What::PortDeleted);
    let all = events.after(0, 1_000).events;
    let suppressed: u64 = all.iter().map(|event| event.suppressed).sum();
    assert_eq!(suppressed as usize + all.len(), 101);
    let last = all.last().unwrap();
    assert_eq!((last.port.as_deref(), &last.what), (Some("a"), &What::PortDeleted));
}

/// A client's thread may lose its CPU while it copies events.
#[test]
fn who_tells_does_not_wait_for_who_reads() {
    let events = events();
    let port = PortEvents::new(Some(&events));
    let reading = events.ring();
    let waits = std::thread::scope(|scope| {
        let told = scope.spawn(|| {
            for _ in 0..EVENTS_QUEUED + 5 {
                port.tell_surely("a", What::PortAdded);
            }
        });
        let end = Instant::now() + Duration::from_secs(60);
        while !told.is_finished() && Instant::now() < end {
            std::thread::yield_now();
        }
        let waits = !told.is_finished();
        drop(reading);
        waits
    });
    assert!(!waits, "for the reader");
    port.tell_surely("a", What::PortDeleted);
    let all = events.after(0, 1_000).events;
    assert_eq!(all.len(), EVENTS_QUEUED + 1);
    let last = all.last().unwrap();
    assert_eq!((last.sequence, last.suppressed, &last.what), (65, 5, &What::PortDeleted));
}

#[test]
fn a_reason_is_bounded() {
    assert_eq!(reason("ü"), "ü");
    let long = reason("ü".repeat(10_000));
    assert_eq!(long.chars().count(), EVENT_TEXT_CHARS + 3);
}
