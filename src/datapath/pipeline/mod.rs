//! What becomes of a burst of frames, from the ring it is taken from to the rings it goes to.
//!
//! One worker has one [`Pipeline`] and works one burst at a time:
//!
//! * [`burst`] the story, top to bottom: take, classify, plan, deliver, complete;
//! * [`guard`] frames whose sender is not the port's;
//! * [`classify`] what becomes of each frame;
//! * [`screen`] what the policies of its ports say, and its VLAN tag;
//! * [`flood`] who receives a flood, and how many at once;
//! * [`egress`] which frames may leave by a port;
//! * [`plan`] the burst sorted by destination;
//! * [`backpressure`] frames that wait in their sender's ring for their receiver;
//! * [`rate_out`] frames beyond the rate of the port that they go to;
//! * [`deliver`] the runs of a plan into their ports;
//! * [`signals`] the signals owed to guests;
//! * [`stalls`] whose memory the worker is at, and whose made it wait.

mod arrival;
pub mod backpressure;
pub mod burst;
pub mod classify;
pub mod deliver;
pub mod egress;
pub mod flood;
pub mod guard;
pub mod multicast;
pub mod plan;
pub mod rate_out;
pub mod screen;
pub mod signals;
pub mod stalls;

pub use burst::{Pipeline, announce::Announcement};
