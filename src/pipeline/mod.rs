//! What becomes of a burst of frames, from the ring it is taken from to the rings it goes to.
//!
//! One worker has one [`Pipeline`] and works one burst at a time:
//!
//! * [`burst`] the story, top to bottom: take, classify, plan, deliver, complete;
//! * [`context`] a burst and all that is known of it, and where it is counted;
//! * [`classify`] what becomes of each frame;
//! * [`plan`] the burst sorted by destination;
//! * [`fit`] frames too big for where they go;
//! * [`backpressure`] frames that wait in their sender's ring for their receiver;
//! * [`deliver`] the runs of a plan into their ports;
//! * [`signals`] the signals owed to guests;
//! * [`account`] whose bursts took how much of the worker's time;
//! * [`at`] whose memory the worker is at, for other threads;
//! * [`stalls`] whose memory made the worker wait.

pub mod account;
pub mod at;
pub mod backpressure;
pub mod burst;
pub mod classify;
pub mod context;
pub mod deliver;
pub mod fit;
pub mod plan;
pub mod signals;
pub mod stalls;

use crate::port::{GuestPort, Port, PortTable};
use crate::switch::PortId;

pub use burst::{Pipeline, announce::Announcement};

/// The guest behind port `id`.
pub fn guest_of(ports: &PortTable, id: PortId) -> Option<(&Port, &GuestPort)> {
    let port = ports.get(id)?;
    port.as_guest().map(|guest| (port, guest))
}
