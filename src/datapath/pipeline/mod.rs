//! The way of a burst of frames from the source's ring to the rings of the receivers.
//!
//! A worker has one [`Pipeline`] and processes one burst at a time:
//!
//! * [`burst`] one burst, step by step: take, classify, plan, deliver, complete;
//! * [`guard`] port security: frames that the port may not send;
//! * `answers` answers to rejected packets;
//! * [`filter`] filters: packets that rules and connections do not let pass;
//! * `arrival` a burst that came in, and its frames that guard or filter refuse;
//! * [`multicast`] snooping of IGMP and MLD;
//! * [`classify`] admission, learning and destination of each frame;
//! * [`screen`] VLAN membership and tags at ingress and egress;
//! * [`flood`] the receivers of a flood, and how many a worker serves in a turn;
//! * [`egress`] limits of an egress port: MTU, tags and rate;
//! * [`plan`] the burst sorted by destination;
//! * [`backpressure`] frames that wait in their sender's ring for their receiver;
//! * [`rate_out`] frames beyond the rate of their egress port;
//! * [`deliver`] delivery of the runs of a plan to their ports;
//! * [`signals`] signals to guests.

mod answers;
mod arrival;
pub(crate) mod backpressure;
pub mod burst;
pub mod classify;
pub mod deliver;
pub mod egress;
pub mod filter;
pub mod flood;
pub mod guard;
pub mod multicast;
pub mod plan;
pub mod rate_out;
pub mod screen;
pub mod signals;
mod tallies;

pub use burst::Pipeline;
pub(crate) use burst::announce::Announcement;
