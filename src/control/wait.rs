//! Waiting until a port is as far as a client wants it.

use std::time::{Duration, Instant};

use super::methods::Answer;
use super::parameters::{number, wrong};
use super::parts::Part;
use super::show;
use crate::limits::{CONTROL_WAIT_MAX, CONTROL_WAIT_STEP};
use crate::wire::{Fault, State, SwitchError, WaitForPort, WaitedFor};

/// How far a front-end, or an interface, may be; a port that is further is that far too.
const STATES: [State; 3] = [State::Listening, State::Negotiating, State::Attached];

/// What `WaitForPort` requests.
pub fn wait_for_port(given: WaitForPort) -> Result<Answer, Fault> {
    let WaitForPort { name, state, timeout_ms } = given;
    let wanted = match state {
        None => State::Attached,
        Some(word) => STATES.into_iter().find(|known| known.name() == word).ok_or_else(|| {
            wrong("state", format!("one of {}", STATES.map(State::name).join(", ")), &word)
        })?,
    };
    let longest = u64::try_from(CONTROL_WAIT_MAX.as_millis()).unwrap_or(u64::MAX);
    let millis = number(timeout_ms, "timeout_ms", 0..=longest)?.unwrap_or(longest);
    let end = Instant::now() + Duration::from_millis(millis);
    Ok(Answer::parts(move |switch| {
        let port = switch.named(&name)?;
        let state = show::state(&port);
        if STATES.contains(&state) && state >= wanted {
            return Ok(Part::reply(&WaitedFor { port: switch.show(&port) }, false));
        }
        let now = Instant::now();
        if now >= end {
            return Err(Fault::Switch(SwitchError::TimedOut { state }));
        }
        // What ends the wait is not reported: a ring that starts, a session that ends.
        Ok(Part::Later(Some(end.min(now + CONTROL_WAIT_STEP))))
    }))
}
