//! Frames that go to many ports.

use crate::limits::{BURST_FRAMES, MAX_PORTS};
use crate::switch::PortId;

/// Frames of one burst that go to the same ports, a copy to each.
#[derive(Debug)]
pub struct Fan {
    frames: [u8; BURST_FRAMES],
    count: usize,
    /// Found when the first frame comes.
    targets: Vec<PortId>,
}

impl Default for Fan {
    fn default() -> Fan {
        Fan { frames: [0; BURST_FRAMES], count: 0, targets: Vec::with_capacity(MAX_PORTS) }
    }
}

impl Fan {
    /// Empties the fan.
    #[inline(always)]
    pub fn clear(&mut self) {
        self.count = 0;
        self.targets.clear();
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

    /// The same, to be found.
    pub fn targets_mut(&mut self) -> &mut Vec<PortId> {
        &mut self.targets
    }

    /// Takes the frames from index `end` on out.
    pub fn truncate(&mut self, end: u8) {
        self.count = self.frames().partition_point(|&frame| frame < end);
    }
}
