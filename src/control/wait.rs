//! Waiting until a port is as far as a client wants it.

use std::time::{Duration, Instant};

use super::methods::unknown_port;
use super::parameters::{number, wrong};
use super::parts::Part;
use super::show;
use crate::limits::{CONTROL_WAIT_MAX, CONTROL_WAIT_STEP};
use crate::port::{Port, PortTable};
use crate::wire::{self, Fault, State, SwitchError, WaitForPort, WaitedFor};

/// How far a front-end, or an interface, may be; a port that is further is that far too.
const STATES: [State; 3] = [State::Listening, State::Negotiating, State::Attached];

/// A client waits for a port.
#[derive(Debug)]
pub struct PortWait {
    name: String,
    /// One of [`STATES`].
    wanted: State,
    end: Instant,
}

impl PortWait {
    /// What `WaitForPort` requests.
    pub fn new(WaitForPort { name, state, timeout_ms }: WaitForPort) -> Result<PortWait, Fault> {
        let wanted = match state {
            None => State::Attached,
            Some(word) => {
                STATES.into_iter().find(|known| known.name() == word).ok_or_else(|| {
                    wrong("state", format!("one of {}", STATES.map(State::name).join(", ")), &word)
                })?
            }
        };
        let longest = u64::try_from(CONTROL_WAIT_MAX.as_millis()).unwrap_or(u64::MAX);
        let millis = number(timeout_ms, "timeout_ms", 0..=longest)?.unwrap_or(longest);
        Ok(PortWait { name, wanted, end: Instant::now() + Duration::from_millis(millis) })
    }

    /// The answer, if it is time for one.
    pub fn part(&self, ports: &PortTable, shown: impl Fn(&Port) -> wire::Port) -> Part {
        let Some(port) = ports.named(&self.name) else {
            return Part::Fault(unknown_port(ports, &self.name));
        };
        let state = show::state(port);
        if STATES.contains(&state) && state >= self.wanted {
            return Part::reply(&WaitedFor { port: shown(port) }, false);
        }
        let now = Instant::now();
        if now >= self.end {
            return Part::Fault(Fault::Switch(SwitchError::TimedOut { state }));
        }
        // Sessions do not say how far they are; a look costs less than a message of each would.
        Part::Later(Some(self.end.min(now + CONTROL_WAIT_STEP)))
    }
}
