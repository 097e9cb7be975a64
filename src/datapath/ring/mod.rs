//! Split virtqueues (virtio 1.2 section 2.7), from the device's side, on raw pointers.
//!
//! * [`split`] the ring in memory: every access to it, suppression of kicks, the second look, and
//!   when to signal;
//! * [`chain`] walks one descriptor chain, indirect tables included, in one pass;
//! * [`burst`] the frames of a turn;
//! * [`tx`] takes a burst of frames from a driver's transmit queue and completes it;
//! * [`rx`] delivers frames into a driver's receive queue;
//! * `fallback` the same for frames that ask for more than the driver has acknowledged;
//! * `copy` a frame as it leaves, from one guest's memory to another's;
//! * `retag` the same with another VLAN tag.
//!
//! Rules. A field of a ring is read exactly once per use: what was checked is what is used. A head
//! taken goes back exactly once, in ring order, on every path; nothing is half done when a ring's
//! lock is free. Used elements are written as they come and published once per burst. A ring that
//! breaks the specification in a way that leaves no valid head to return is *broken*: it is not
//! touched again until its driver restarts it.
//!
//! virtio-queue's `Queue` is not used for the rings themselves: it translates addresses several
//! times per frame and publishes every element (measured 67–131 ns a frame against 1.4–3 ns
//! here). Its descriptor type is, and its mock driver in the tests.

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

pub use crate::guard::CallFd;
pub use burst::{Burst, Frame, KeptFrames};
pub use chain::{ChainError, Piece, PieceBuf};
pub use copy::{EgressFrame, Reader};
pub use rx::{Cut, Delivered, RxScratch};
pub use split::{Position, RingConfig, RingError, SplitRing};
