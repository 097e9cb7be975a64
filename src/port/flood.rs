//! What is left of a flood that has more receivers than a worker serves at once. A worker serves
//! the next ones in its next turn, and takes no frames from the same source before.
//!
//! The receivers are no list, which ports that come and go would make wrong, but how to find them
//! and where to go on: ports are served in the order of their numbers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::ring::KeptFrames;
use crate::switch::{Flood, Ingress, PortId, Reach, Segment};

/// What a flood's receivers are found by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scope {
    /// Where the frames came in.
    pub from: Ingress,
    /// Where they are.
    pub segment: Segment,
    /// Why they are flooded.
    pub flood: Flood,
    /// Which ports they reach.
    pub reach: Reach,
}

/// The rest of a flood.
#[derive(Debug)]
pub struct Remainder {
    /// The worker that began it. It goes on with it, as the owner of the ring does, which may have
    /// stopped or moved.
    pub worker: usize,
    /// The frames; their descriptors are back in the sender's ring.
    pub frames: KeptFrames,
    /// What the receivers are found by.
    pub scope: Scope,
    /// The first port that was not served.
    pub next: PortId,
    /// Of a guest: its port's.
    pub place: Option<FloodPlace>,
}

/// What a flood of a guest has while it goes on: one at a time, however many rings the guest sends
/// with, as it keeps frames in the switch's memory.
#[derive(Debug)]
pub struct FloodPlace(Arc<AtomicBool>);

impl FloodPlace {
    /// Takes the place, if it is free. The flag says that it is taken.
    pub fn take(taken: &Arc<AtomicBool>) -> Option<FloodPlace> {
        let was_free = !taken.swap(true, Ordering::Acquire);
        was_free.then(|| FloodPlace(Arc::clone(taken)))
    }
}

impl Drop for FloodPlace {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
