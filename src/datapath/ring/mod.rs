//! Split virtqueues (virtio 1.2 section 2.7), from the device's side, on raw pointers.
//!
//! * [`split`] is the ring in memory: every access to the ring's fields, suppression of kicks, the
//!   check for new buffers before a worker sleeps, and the decision to signal;
//! * [`chain`] walks one descriptor chain, indirect tables included, in one pass;
//! * [`burst`] holds the frames of a turn;
//! * [`tx`] takes a burst of frames from a driver's transmit queue and completes the burst;
//! * [`rx`] delivers frames into a driver's receive queue;
//! * `fallback` delivers frames that ask for offloads which the driver has not acknowledged;
//! * `copy` copies a frame that leaves the switch from one guest's memory to another's;
//! * `retag` changes the VLAN tag of a frame that leaves the switch.
//!
//! Rules. The device reads a field of a ring exactly once per use, so that the checked value is the
//! used value. The device returns each head exactly once, in ring order, on every path; no chain is
//! half done while a ring's lock is free. The device writes used elements one by one and publishes
//! used.idx once per burst. A ring that breaks the specification and leaves no valid head to return
//! is *broken*: the device does not touch a broken ring before the driver restarts the ring.
//!
//! virtio-queue's `Queue` does not serve the rings: `Queue` translates addresses several times per
//! frame and publishes every element (measured 67–131 ns a frame against 1.4–3 ns here).
//! virtio-queue's descriptor type serves here, and virtio-queue's mock driver serves the tests.

pub mod burst;
pub mod chain;
mod copy;
mod fallback;
mod retag;
pub mod rx;
pub mod split;
pub mod tx;

#[cfg(test)]
pub(crate) mod tests;

pub(crate) use crate::guard::CallFd;
pub(crate) use burst::KeptFrames;
pub use burst::{Burst, Frame};
pub use chain::Piece;
pub(crate) use copy::EgressFrame;
pub use copy::Reader;
pub use rx::{Delivered, RxScratch, Segmentation};
pub(crate) use split::Position;
pub use split::{RingConfig, RingError, SplitRing};
