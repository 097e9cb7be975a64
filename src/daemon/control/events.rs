//! Sends events to a client: the kept events first, then new events as they come.

use super::parameters::number;
use super::parts::Part;
use api::wire::{self, Event, EventList, Fault};
use base::limits::EVENTS_A_REPLY;
use datapath::events::{self, What};

/// A client that gets events.
#[derive(Debug)]
pub(crate) struct EventStream {
    /// The number of the last event that the client knows.
    after: u64,
    /// True if the client wants new events as well.
    follow: bool,
}

impl EventStream {
    /// Begins the answer to `Events`.
    pub(crate) fn new(given: wire::Events, events: &events::Events) -> Result<EventStream, Fault> {
        let last = events.last();
        let since = number(given.since, "since", 0..=u64::MAX)?.unwrap_or(last);
        // A number that was not reached yet is an earlier process's.
        let after = if since > last { 0 } else { since };
        Ok(EventStream { after, follow: given.follow.unwrap_or(true) })
    }

    /// Returns the next part of the answer; `label` returns the label of a port.
    pub(crate) fn part(
        &mut self,
        events: &events::Events,
        label: impl Fn(&str) -> Option<String>,
    ) -> Part {
        let told = events.after(self.after, EVENTS_A_REPLY);
        let last = told.events.last().map(|event| event.sequence);
        if last.is_none() && self.follow {
            return Part::Later(None);
        }
        self.after = last.unwrap_or(self.after);
        let shown = told.events.iter().map(|event| show(event, &label)).collect();
        let lost = Some(told.lost).filter(|lost| *lost > 0);
        let more = self.follow || self.after < events.last();
        Part::reply(&EventList { events: shown, lost }, more)
    }
}

/// Returns an event as clients see it.
fn show(event: &events::Event, label: impl Fn(&str) -> Option<String>) -> Event {
    let events::Event { sequence, time, monotonic, port, suppressed, what } = event;
    Event {
        sequence: *sequence,
        time: *time,
        monotonic: *monotonic,
        kind: what.kind().name.to_owned(),
        text: what.to_string(),
        port: port.clone(),
        label: port.as_deref().and_then(label),
        suppressed: Some(*suppressed).filter(|suppressed| *suppressed > 0),
        ..details(what)
    }
}

/// Returns the fields of an event besides its text.
fn details(what: &What) -> Event {
    serde_json::from_value(wire::json(what)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use base::limits::EVENTS_KEPT;
    use base::stats::{Direction, DropReason};
    use datapath::events::{Events, KINDS};
    use switch::port_security::Address;
    use switch::{Rule, Violation};
    use sys::waker::Waker;

    fn stream(parameters: Value, events: &Events) -> EventStream {
        EventStream::new(serde_json::from_value(parameters).unwrap(), events).unwrap()
    }

    fn part(stream: &mut EventStream, events: &Events) -> Option<(Vec<u64>, Value, bool)> {
        match stream.part(events, |_| None) {
            Part::Reply(reply, more) => {
                let all = reply["events"].as_array().unwrap().iter();
                let numbers = all.map(|event| event["sequence"].as_u64().unwrap()).collect();
                Some((numbers, reply["lost"].clone(), more))
            }
            Part::Later(None) => None,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_kept_comes_first_and_a_reader_that_is_slow_is_told_what_it_lost() {
        let events = Events::new(&Arc::new(Waker::new().unwrap()));
        let keep = |count: usize| (0..count).for_each(|_| events.tell(What::PortAdded));
        keep(EVENTS_A_REPLY + 2);
        let mut all = stream(json!({"since": 0, "follow": false}), &events);
        let mut new = stream(json!({}), &events);
        let mut some = stream(json!({"since": EVENTS_A_REPLY}), &events);
        assert!(part(&mut new, &events).is_none());
        let last = EVENTS_A_REPLY as u64 + 2;
        let first: Vec<u64> = (1..last - 1).collect();
        assert_eq!(part(&mut all, &events), Some((first, Value::Null, true)));
        let rest = vec![last - 1, last];
        assert_eq!(part(&mut all, &events), Some((rest.clone(), Value::Null, false)));
        assert_eq!(part(&mut some, &events), Some((rest, Value::Null, true)));
        keep(1);
        assert_eq!(part(&mut new, &events), Some((vec![last + 1], Value::Null, true)));
        keep(EVENTS_KEPT + 5);
        let (told, lost, more) = part(&mut new, &events).unwrap();
        assert_eq!((told[0], lost, more), (last + 7, 5.into(), true));
        // The client knows a number of an earlier process, which had more events.
        let mut other = stream(json!({"since": 1_000_000, "follow": false}), &events);
        assert_eq!(part(&mut other, &events).unwrap().0[0], last + 7);
    }

    #[test]
    fn the_fields_of_what_happens_are_told() {
        let mac = "52:54:00:00:00:01".parse().unwrap();
        let moved = details(&What::MacMoved { mac, from: Some("vm1".to_owned()), moves: 3 });
        let (mac, from) = (Some(mac.to_string()), Some("vm1".to_owned()));
        assert_eq!(moved, Event { mac, from, moves: Some(3), ..Event::default() });
        let (direction, reason) = (Direction::Out, DropReason::NoBuffer);
        let ended = details(&What::DropsEnded { direction, reason, frames: 7 });
        let (direction, reason) = (Some(direction), Some("no_buffer".to_owned()));
        assert_eq!(ended, Event { direction, reason, frames: Some(7), ..Event::default() });
        let refused = What::PlugRefused { file: "f".into(), uid: None, why: "w".into() };
        let (file, why) = (Some("f".to_owned()), Some("w".to_owned()));
        assert_eq!(details(&refused), Event { file, why: why.clone(), ..Event::default() });
        let violation = |rule, address| {
            details(&What::GuardViolation {
                violation: Violation { rule, address },
                dropped: true,
                frames: 3,
            })
        };
        let (dropped, frames) = (Some(true), Some(3));
        let expected = Event { rule: Some("ip".to_owned()), dropped, frames, ..Event::default() };
        let address = Address::Ip([10, 0, 0, 9].into());
        let with_address = Event { address: Some(address.to_string()), ..expected.clone() };
        assert_eq!(violation(Rule::Ip, address), with_address);
        assert_eq!(violation(Rule::Ip, Address::None), expected);
        let attached = details(&What::Attached { pid: 1, uid: 2, features: 1 << 63 });
        assert_eq!((attached.pid, attached.features), (Some(1), Some(1 << 63)));
        assert_eq!(details(&What::Detached), Event::default());
        assert_eq!(details(&What::DetachedBy { why: "w".into() }).why, why);
        assert_eq!(details(&What::PortAdded), Event::default());
    }

    #[test]
    fn the_page_has_every_kind() {
        let page = include_str!("../../../docs/events.md");
        for kind in KINDS {
            let row = format!("`{}` | ", kind.name);
            assert!(page.lines().any(|line| line.starts_with(&row)), "{kind:?}");
        }
    }
}
