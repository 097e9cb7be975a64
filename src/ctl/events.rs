//! `vioswitchctl events`: prints past events and new events.

use std::io::{self, Write};

use api::wire::{self, Event, EventList, Events, GetStatus};
use base::words::counted;
use jiff::Timestamp;
use serde_json::json;

use crate::client::Client;
use crate::failure::Failure;
use crate::output::text;

/// Number of past events with which `--follow` begins, as in journalctl(1).
const FIRST: u64 = 10;

/// Prints events. With `follow`, continues until the switch ends or the reader of standard output
/// is gone.
pub fn run(
    client: &mut Client,
    since: Option<u64>,
    follow: bool,
    as_json: bool,
) -> Result<(), Failure> {
    let since = match since {
        Some(number) => number,
        None if follow => client.call(&GetStatus {})?.events.saturating_sub(FIRST),
        None => 0,
    };
    // A switch may have no event for days.
    client.be_patient(follow)?;
    let request = Events { since: Some(since.into()), follow: Some(follow) };
    client.parts(&request, |part| {
        // A user who asks for all kept events needs no note about events that are no longer kept.
        let lost = part.lost.filter(|lost| *lost > 0 && since > 0);
        // A closed pipe (`| head`) is the reader's choice, not an error.
        print(&part, lost, as_json).is_ok()
    })
}

fn print(part: &EventList, lost: Option<u64>, as_json: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if let Some(lost) = lost {
        match as_json {
            true => writeln!(out, "{}", json!({"lost": lost}))?,
            false => writeln!(out, "[{} no longer kept]", counted(lost, "event"))?,
        }
    }
    for event in &part.events {
        match as_json {
            true => writeln!(out, "{}", wire::json(event))?,
            false => writeln!(out, "{}", line(event))?,
        }
    }
    out.flush()
}

fn line(event: &Event) -> String {
    let port = event.port.as_ref().map_or_else(String::new, |port| format!("{port}: "));
    let suppressed =
        event.suppressed.map(|suppressed| format!(" [{suppressed} events left out before]"));
    let (time, sequence) = (time(event.time), event.sequence);
    let suppressed = suppressed.unwrap_or_default();
    text(format!("{time} {sequence:>5}  {port}{}{suppressed}", event.text))
}

/// Returns microseconds since 1970 as date and time of UTC, to the millisecond.
pub fn time(micros: u64) -> String {
    let time = i64::try_from(micros).ok().and_then(|at| Timestamp::from_microsecond(at).ok());
    format!("{:.3}", time.unwrap_or(Timestamp::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_utc() {
        for (seconds, told) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399, "2000-02-28T23:59:59.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (951_868_800, "2000-03-01T00:00:00.000Z"),
            (1_767_225_599, "2025-12-31T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(time(seconds * 1_000_000), told);
        }
        assert_eq!(time(1_234_567), "1970-01-01T00:00:01.234Z");
    }

    #[test]
    fn a_line_names_the_port_if_there_is_one() {
        let event = Event {
            sequence: 7,
            port: Some("vm1".to_owned()),
            text: "added\u{1b}".to_owned(),
            suppressed: Some(2),
            ..Event::default()
        };
        let line = line(&event);
        assert_eq!(line, "1970-01-01T00:00:00.000Z     7  vm1: added [2 events left out before]");
    }
}
