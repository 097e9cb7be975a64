//! Events for a client: those that are kept, then new ones as they come.

use super::parameters::number;
use super::parts::Part;
use crate::events::{self, Detached, What};
use crate::limits::EVENTS_A_REPLY;
use crate::wire::{self, Event, EventList, Fault};

/// A client that is told of events.
#[derive(Debug)]
pub struct EventStream {
    /// The number of the last one that it knows.
    after: u64,
    /// It wants new ones as well.
    follow: bool,
}

impl EventStream {
    /// What `Events` requests.
    pub fn new(given: wire::Events, events: &events::Events) -> Result<EventStream, Fault> {
        let last = events.last();
        let since = number(given.since, "since", 0..=u64::MAX)?.unwrap_or(last);
        // A number that was not reached yet is an earlier process's.
        let after = if since > last { 0 } else { since };
        Ok(EventStream { after, follow: given.follow.unwrap_or(true) })
    }

    /// The next part of the answer; `label` gives that of a port.
    pub fn part(
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

/// An event as clients see it.
fn show(event: &events::Event, label: impl Fn(&str) -> Option<String>) -> Event {
    let events::Event { sequence, time, monotonic, port, untold, what } = event;
    Event {
        sequence: *sequence,
        time: *time,
        monotonic: *monotonic,
        kind: what.kind().name.to_owned(),
        text: what.to_string(),
        port: port.clone(),
        label: port.as_deref().and_then(label),
        untold: Some(*untold).filter(|untold| *untold > 0),
        ..details(what.clone())
    }
}

/// What a kind of event has.
fn details(what: What) -> Event {
    let text = what.to_string();
    let mut told = Event::default();
    match what {
        What::Ready { .. } | What::Reloaded { .. } | What::PortAdded | What::PortDeleted => {}
        What::InterfaceGone | What::InterfaceBack | What::InterfaceDown | What::InterfaceUp => {}
        What::Degraded { why } | What::ReloadFailed { why } | What::Dropped { why } => {
            told.why = Some(why);
        }
        What::Recovered { code, seconds } => {
            (told.code, told.seconds) = (Some(code.to_owned()), Some(seconds));
        }
        What::Attached { pid, uid, features } => {
            (told.pid, told.uid, told.features) = (Some(pid), Some(uid), Some(features));
        }
        What::PortPlugged { uid } => told.uid = Some(uid),
        What::PlugRefused { file, uid, why } => {
            (told.file, told.uid, told.why) = (Some(file), uid, Some(why));
        }
        What::Connected { pid, uid } => (told.pid, told.uid) = (Some(pid), Some(uid)),
        What::Disconnected { why } => told.why = why,
        What::Detached(Detached::Left) => {}
        What::Detached(Detached::Error(why)) => told.why = Some(why),
        What::Detached(Detached::Panicked) => told.why = Some(text),
        What::RingBroken { ring, why } => {
            (told.ring, told.why) = (Some(ring as u64), Some(why));
        }
        What::Closed { seconds } => told.seconds = Some(seconds),
        What::MacMoved { mac, from, moves } => {
            (told.mac, told.from, told.moves) = (Some(mac.to_string()), from, Some(moves));
        }
        What::MacHeld { mac, at, frames } => {
            (told.mac, told.at, told.frames) = (Some(mac.to_string()), at, Some(frames));
        }
        What::GuardViolation { rule, address, dropped, frames } => {
            (told.rule, told.address) = (Some(rule.to_owned()), address);
            (told.dropped, told.frames) = (Some(dropped), Some(frames));
        }
        What::DropsBegan { direction, reason } => {
            (told.direction, told.reason) = (Some(direction), Some(reason.name().to_owned()));
        }
        What::DropsEnded { direction, reason, frames } => {
            (told.direction, told.frames) = (Some(direction), Some(frames));
            told.reason = Some(reason.name().to_owned());
        }
    }
    told
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::events::{Events, KINDS};
    use crate::limits::EVENTS_KEPT;
    use crate::sys::waker::Waker;

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
        // Of a process that had more.
        let mut other = stream(json!({"since": 1_000_000, "follow": false}), &events);
        assert_eq!(part(&mut other, &events).unwrap().0[0], last + 7);
    }

    /// The page names each kind with its number in the journal.
    #[test]
    fn the_page_has_every_message_id() {
        let page = include_str!("../../docs/events.md");
        for kind in KINDS {
            let row = format!("| `{}` | ", kind.name);
            let row = page.lines().find(|line| line.starts_with(&row)).expect(kind.name);
            assert!(row.ends_with(&format!("| `{}` |", kind.message_id)), "{kind:?}: {row}");
        }
    }
}
