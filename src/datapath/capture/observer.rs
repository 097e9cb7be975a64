//! Observers: who gets copies of frames that other ports send and receive.

use std::sync::Arc;

use super::Capture;
use super::outcomes::Sighting;
use base::stats::Direction;
use switch::mirror::Watch;

/// Receiver of copies of observed frames.
#[derive(Debug, Clone)]
pub enum Observer {
    /// A client, which collects copies from a capture.
    Client(Arc<Capture>),
    /// The port of a mirror, to which copies are delivered.
    Port(Watch),
}

impl Observer {
    /// True if the observer gets a copy of this sighting. A mirror copies neither rejected chains
    /// nor frames that did not arrive at the mirrored port.
    pub(crate) fn wants(&self, seen: &Sighting) -> bool {
        match (self, seen.direction) {
            (Observer::Client(capture), _) => capture.wants(seen.port, seen.dropped),
            (Observer::Port(watch), Direction::In) => {
                watch.takes_in(seen.port) && seen.frame != Sighting::NO_FRAME
            }
            (Observer::Port(watch), Direction::Out) => {
                watch.takes_out(seen.port) && seen.dropped.is_none()
            }
        }
    }
}
