//! Waits, on behalf of a client, for a port whose socket is being opened.
//!
//! The socket's path may lead to a file system that never answers, so a separate thread follows the
//! path, opens the socket and adds the port. After [`SOCKET_OPEN_TIMEOUT`] the client learns that
//! the file system does not answer, and the port does not come later either.

use std::time::Instant;

use super::parts::{Part, found};
use super::switch::Switch;
use crate::opening::{place_to_open, time_to_open};
use crate::{NewPort, Permit, PortError, add};
use api::wire::{Fault, WasReset};
use base::limits::{CONTROL_WAIT_STEP, SOCKET_OPEN_TIMEOUT};
use switch::PortId;
use sys::blocking::{NotBegun, Task};

/// A port that a client wants.
#[derive(Debug)]
pub struct AddRequest {
    pub(super) new: NewPort,
    /// True if the request succeeds when the switch has a port with equal settings.
    pub(super) may_exist: bool,
    /// True if the client named no socket, so that an existing port may have any socket.
    pub(super) any_socket: bool,
}

/// A client's wait for a new port.
#[derive(Debug)]
pub(crate) struct AddWait {
    wanted: AddRequest,
    /// The end of the client's wait.
    end: Instant,
    permit: Permit,
    begun: Result<Task<Result<PortId, PortError>>, NotBegun>,
}

impl AddWait {
    /// Begins to add a port that has a socket or a VDUSE device.
    pub(super) fn new(wanted: AddRequest, switch: &Switch) -> AddWait {
        let path = place_to_open(wanted.new.settings());
        let end = Instant::now() + path.map_or(SOCKET_OPEN_TIMEOUT, |path| time_to_open(&path));
        let begun = Err(NotBegun::Busy);
        let mut wait = AddWait { wanted, end, permit: Permit::until(end), begun };
        wait.begin(switch);
        wait
    }

    fn begin(&mut self, switch: &Switch) {
        let new = self.wanted.new.clone();
        let Some(path) = place_to_open(new.settings()) else { return };
        let (daemon, permit) = (switch.shared_daemon(), self.permit.clone());
        let work = move || add(&daemon, &new, &permit);
        self.begun = switch.view.opens.begin(&path, &switch.wakeup, work);
    }

    /// Returns the answer, if the result is known or the wait is over.
    pub(super) fn part(&mut self, switch: &Switch) -> Result<Part, Fault> {
        if self.begun.is_err() {
            self.begin(switch);
        }
        if let Some(added) = found(&self.begun)? {
            let added = switch.added(&self.wanted, added.map(Some))?;
            return Ok(match self.wanted.new {
                NewPort::Configured(_) => Part::reply(&WasReset::default(), false),
                _ => Part::reply(&added, false),
            });
        }
        let now = Instant::now();
        if now < self.end {
            return Ok(Part::Later(Some(self.end)));
        }
        if !self.permit.revoke() {
            // The socket is open, and the thread is about to add the port.
            return Ok(Part::Later(Some(now + CONTROL_WAIT_STEP)));
        }
        let begun = std::mem::replace(&mut self.begun, Err(NotBegun::Busy));
        let settings = self.wanted.new.settings();
        let why = begun.err().unwrap_or(NotBegun::Busy);
        let path = place_to_open(settings).unwrap_or_default();
        Err(switch.fault(&settings.name, &PortError::unanswered(path, why)))
    }
}
