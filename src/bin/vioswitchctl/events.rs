//! `events`: what happened, and what happens.

use std::io::{self, Write};

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::args::Since;
use crate::client::Client;
use crate::failure::Failure;
use crate::show::{items, word};
use crate::{SWITCH, ask};

/// Events that `--follow` begins with, as journalctl(1) does.
const FIRST: u64 = 10;

/// Prints events as they come; with `follow` until the switch ends or nobody reads any more.
pub fn run(
    client: &mut Client,
    since: Option<Since>,
    follow: bool,
    as_json: bool,
) -> Result<(), Failure> {
    let since = match since {
        Some(Since::All) => 0,
        Some(Since::Number(number)) => number,
        None if follow => {
            let status = ask(client, "GetStatus", json!({}))?;
            status["events"].as_u64().unwrap_or(0).saturating_sub(FIRST)
        }
        None => 0,
    };
    // Nothing may happen for days.
    client.be_patient(follow)?;
    let parameters = json!({"since": since, "follow": follow});
    client.call_more_while(&format!("{SWITCH}.Events"), parameters, |part| {
        let lost = part["lost"].as_u64().unwrap_or(0);
        // Asking for all that is kept is no complaint about the rest.
        let lost = if lost > 0 && since > 0 { Some(lost) } else { None };
        // A closed pipe (`| head`) is the reader's choice, not an error.
        print(&part, lost, as_json).is_ok()
    })
}

fn print(part: &Value, lost: Option<u64>, as_json: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if let Some(lost) = lost {
        match as_json {
            true => writeln!(out, "{}", json!({"lost": lost}))?,
            false => writeln!(out, "[{lost} events are not kept any more]")?,
        }
    }
    for event in items(part, "events") {
        match as_json {
            true => writeln!(out, "{event}")?,
            false => writeln!(out, "{}", line(event))?,
        }
    }
    out.flush()
}

fn line(event: &Value) -> String {
    let time = time(event["time"].as_u64().unwrap_or(0));
    let port = match &event["port"] {
        Value::String(_) => format!("{}: ", word(&event["port"])),
        _ => String::new(),
    };
    let untold = match event["untold"].as_u64() {
        Some(untold) => format!(" [{untold} left out before it]"),
        None => String::new(),
    };
    format!("{time} {:>5}  {port}{}{untold}", word(&event["sequence"]), word(&event["text"]))
}

/// Microseconds since 1970 as date and time of UTC, to the millisecond.
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
        let event = json!({"sequence": 7, "time": 0, "port": "vm1", "text": "added\u{1b}",
            "untold": 2});
        let line = line(&event);
        assert_eq!(line, "1970-01-01T00:00:00.000Z     7  vm1: added [2 left out before it]");
    }
}
