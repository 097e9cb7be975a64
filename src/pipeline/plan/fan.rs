//! Frames that go to many ports.

use crate::limits::{BURST_FRAMES, MAX_PORTS};
use crate::switch::PortId;

/// Frames of one burst that go to the same ports, a copy to each.
#[derive(Debug)]
pub struct Fan {
    /// What ports these are, as a number.
    pub(super) key: u32,
    frames: [u8; BURST_FRAMES],
    count: usize,
    targets: Vec<PortId>,
}

impl Default for Fan {
    fn default() -> Fan {
        let targets = Vec::with_capacity(MAX_PORTS);
        Fan { key: 0, frames: [0; BURST_FRAMES], count: 0, targets }
    }
}

impl Fan {
    /// Empties the fan, and has `find` find the ports of `key`.
    pub(super) fn restart(&mut self, key: u32, find: impl FnOnce(&mut Vec<PortId>)) {
        (self.key, self.count) = (key, 0);
        self.targets.clear();
        find(&mut self.targets);
    }

    /// Appends a frame.
    #[inline]
    pub fn push(&mut self, index: u8) {
        self.frames[self.count] = index;
        self.count += 1;
    }

    /// The frames, in order.
    #[inline(always)]
    pub fn frames(&self) -> &[u8] {
        &self.frames[..self.count]
    }

    /// The ports they go to.
    pub fn targets(&self) -> &[PortId] {
        &self.targets
    }

    /// Takes the frames from index `end` on out.
    pub fn truncate(&mut self, end: u8) {
        self.count = self.frames().partition_point(|&frame| frame < end);
    }
}
