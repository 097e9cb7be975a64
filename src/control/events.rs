//! Events for a client: those that are kept, then new ones as they come.

use serde_json::{Value, json};

use super::message::{Fault, Parameters};
use super::parameters::{flag, number, only};
use super::parts::Part;
use crate::events::{Detached, Event, Events, What};
use crate::limits::EVENTS_A_REPLY;

/// A client that is told of events.
#[derive(Debug)]
pub struct EventStream {
    /// The number of the last one that it knows.
    after: u64,
    /// It wants new ones as well.
    follow: bool,
}

impl EventStream {
    /// What `Events` asks for.
    pub fn new(mut parameters: Parameters, events: &Events) -> Result<EventStream, Fault> {
        only(&parameters, &["since", "follow"])?;
        let last = events.last();
        let since = number(&mut parameters, "since", 0..=u64::MAX)?.unwrap_or(last);
        // A number that was not reached yet is an earlier process's.
        let after = if since > last { 0 } else { since };
        Ok(EventStream { after, follow: flag(&mut parameters, "follow")?.unwrap_or(true) })
    }

    /// The next part of the answer.
    /// `label` tells that of a port.
    pub fn part(&mut self, events: &Events, label: impl Fn(&str) -> Option<String>) -> Part {
        let told = events.after(self.after, EVENTS_A_REPLY);
        let last = told.events.last().map(|event| event.sequence);
        if last.is_none() && self.follow {
            return Part::Later(None);
        }
        self.after = last.unwrap_or(self.after);
        let shown: Vec<Value> = told.events.iter().map(|event| show(event, &label)).collect();
        let mut reply = json!({"events": shown});
        if told.lost > 0 {
            reply["lost"] = told.lost.into();
        }
        Part::Reply(reply, self.follow || self.after < events.last())
    }
}

/// An event as clients are told.
fn show(event: &Event, label: impl Fn(&str) -> Option<String>) -> Value {
    let Event { sequence, time, monotonic, port, untold, what } = event;
    let mut told = json!({
        "sequence": sequence,
        "time": time,
        "monotonic": monotonic,
        "kind": what.kind().name,
        "text": what.to_string(),
    });
    if let Some(port) = port {
        told["port"] = port.as_str().into();
        if let Some(label) = label(port) {
            told["label"] = label.into();
        }
    }
    if *untold > 0 {
        told["untold"] = (*untold).into();
    }
    let details = match what {
        What::Ready { .. } | What::Reloaded { .. } | What::PortAdded | What::PortDeleted => {
            json!({})
        }
        What::InterfaceGone | What::InterfaceBack | What::InterfaceDown | What::InterfaceUp => {
            json!({})
        }
        What::Degraded { why } | What::ReloadFailed { why } | What::Dropped { why } => {
            json!({"why": why})
        }
        What::Recovered { code, seconds } => json!({"code": code, "seconds": seconds}),
        What::Attached { pid, uid, features } => {
            json!({"pid": pid, "uid": uid, "features": features})
        }
        What::PortPlugged { uid } => json!({"uid": uid}),
        What::PlugRefused { file, uid: Some(uid), why } => {
            json!({"file": file, "uid": uid, "why": why})
        }
        What::PlugRefused { file, uid: None, why } => json!({"file": file, "why": why}),
        What::Connected { pid, uid } => json!({"pid": pid, "uid": uid}),
        What::Detached(Detached::Left) | What::Disconnected { why: None } => json!({}),
        What::Detached(Detached::Error(why)) | What::Disconnected { why: Some(why) } => {
            json!({"why": why})
        }
        What::Detached(Detached::Panicked) => json!({"why": what.to_string()}),
        What::RingBroken { ring, why } => json!({"ring": ring, "why": why}),
        What::Closed { seconds } => json!({"seconds": seconds}),
        What::MacMoved { mac, from, moves } => {
            json!({"mac": mac.to_string(), "from": from, "moves": moves})
        }
        What::DropsBegan { direction, reason } => {
            json!({"direction": direction.name(), "reason": reason.name()})
        }
        What::DropsEnded { direction, reason, frames } => {
            json!({"direction": direction.name(), "reason": reason.name(), "frames": frames})
        }
    };
    if let (Value::Object(told), Value::Object(mut details)) = (&mut told, details) {
        told.append(&mut details);
    }
    told
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::events::KINDS;
    use crate::limits::EVENTS_KEPT;
    use crate::sys::waker::Waker;

    fn stream(parameters: Value, events: &Events) -> EventStream {
        let Value::Object(parameters) = parameters else { panic!("no parameters") };
        EventStream::new(parameters, events).unwrap()
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

    #[test]
    fn the_interface_lists_every_kind() {
        let interface = include_str!("../../docs/io.vioswitch.Switch.varlink");
        let (_, rest) = interface.split_once("type EventKind (").unwrap();
        let listed: Vec<&str> = rest.split(')').next().unwrap().split(',').map(str::trim).collect();
        let mut kinds: Vec<&str> = KINDS.iter().map(|kind| kind.name).collect();
        kinds.dedup();
        assert_eq!(listed, kinds);
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
