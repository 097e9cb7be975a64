//! Waiting until a port is as far as a client wants it.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::message::{Fault, Parameters};
use super::methods::unknown_port;
use super::parameters::{number, only, required, text};
use super::parts::Part;
use super::show;
use crate::config::Wrong;
use crate::limits::{CONTROL_WAIT_MAX, CONTROL_WAIT_STEP};
use crate::port::{Port, PortTable};

/// How far a front-end, or an interface, may be; a port that is further is that far too.
const STATES: [&str; 3] = ["listening", "negotiating", "attached"];

/// A client waits for a port.
#[derive(Debug)]
pub struct PortWait {
    name: String,
    /// Index in [`STATES`].
    wanted: usize,
    end: Instant,
}

impl PortWait {
    /// What `WaitForPort` asks for.
    pub fn new(mut parameters: Parameters) -> Result<PortWait, Fault> {
        only(&parameters, &["name", "state", "timeout_ms"])?;
        let name = required(&mut parameters, "name")?;
        let wanted = match text(&mut parameters, "state")? {
            None => STATES.len() - 1,
            Some(state) => STATES.iter().position(|known| *known == state).ok_or_else(|| {
                let text = format!("one of {}", STATES.join(", "));
                Fault::invalid(&Wrong { key: "state".to_owned(), text }, &state)
            })?,
        };
        let longest = u64::try_from(CONTROL_WAIT_MAX.as_millis()).unwrap_or(u64::MAX);
        let millis = number(&mut parameters, "timeout_ms", 0..=longest)?.unwrap_or(longest);
        Ok(PortWait { name, wanted, end: Instant::now() + Duration::from_millis(millis) })
    }

    /// The answer, if it is time for one.
    pub fn part(&self, ports: &PortTable, shown: impl Fn(&Port) -> Value) -> Part {
        let Some(port) = ports.named(&self.name) else {
            return Part::Fault(unknown_port(ports, &self.name));
        };
        let state = show::state(port);
        if STATES.iter().position(|known| *known == state).is_some_and(|at| at >= self.wanted) {
            return Part::Reply(json!({"port": shown(port)}), false);
        }
        let now = Instant::now();
        if now >= self.end {
            return Part::Fault(Fault::timed_out(state));
        }
        // Sessions do not say how far they are; a look costs less than a message of each would.
        Part::Later(Some(self.end.min(now + CONTROL_WAIT_STEP)))
    }
}
