//! Waits until a port has the state that a client wants.

use std::time::{Duration, Instant};

use super::methods::Answer;
use super::parameters::{number, wrong};
use super::parts::Part;
use super::show;
use api::wire::{self, Fault, State, SwitchError, WaitForPort, WaitedFor};
use base::limits::{CONTROL_WAIT_MAX, CONTROL_WAIT_STEP};

/// Begins the answer to `WaitForPort`.
pub fn wait_for_port(given: WaitForPort) -> Result<Answer, Fault> {
    let WaitForPort { name, state, timeout_ms } = given;
    let wanted = match state {
        None => State::Attached,
        Some(word) => wire::awaited(&word).ok_or_else(|| {
            let names = wire::AWAITED.map(|(state, _)| state.name()).join(", ");
            wrong("state", format!("state must be one of {names}"), &word)
        })?,
    };
    let longest = u64::try_from(CONTROL_WAIT_MAX.as_millis()).unwrap_or(u64::MAX);
    let millis = number(timeout_ms, "timeout_ms", 0..=longest)?.unwrap_or(longest);
    let end = Instant::now() + Duration::from_millis(millis);
    Ok(Answer::parts(move |switch| {
        let port = switch.named(&name)?;
        let state = show::state(&port);
        let is_on_the_way = wire::AWAITED.iter().any(|(one, _)| *one == state);
        if is_on_the_way && state >= wanted {
            return Ok(Part::reply(&WaitedFor { port: switch.show(&port) }, false));
        }
        let now = Instant::now();
        if now >= end {
            return Err(Fault::Switch(SwitchError::TimedOut { state }));
        }
        // No event reports the end of the wait: a ring that starts, a session that ends.
        Ok(Part::Later(Some(end.min(now + CONTROL_WAIT_STEP))))
    }))
}
