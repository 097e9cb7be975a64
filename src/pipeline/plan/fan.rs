//! Frames that go to many ports.

use std::cmp::Ordering;

use super::Run;
use crate::limits::{BURST_FRAMES, MAX_PORTS};
use crate::switch::PortId;

/// Frames of one burst that go to the same ports, a copy to each.
#[derive(Debug)]
pub struct Fan {
    frames: [u8; BURST_FRAMES],
    count: usize,
    /// Found when the first frame comes.
    targets: Vec<PortId>,
    /// How far delivering has come: targets dealt with, and frames that the present one counted.
    dealt_with: usize,
    counted: usize,
}

/// What delivering a fan needs.
pub struct Fanning<'a> {
    /// The frames, in order.
    pub frames: &'a [u8],
    /// The ports they go to.
    pub targets: &'a [PortId],
    /// Room for the run of one of these.
    pub run: &'a mut Run,
    /// How far it has come.
    pub progress: Progress<'a>,
}

/// How far delivering a fan has come, for the case that it comes no further.
pub struct Progress<'a> {
    dealt_with: &'a mut usize,
    counted: &'a mut usize,
}

impl Progress<'_> {
    /// The present target has counted so many frames.
    pub fn counted(&mut self, frames: usize) {
        *self.counted = frames;
    }

    /// … and so many more.
    pub fn count(&mut self, frames: usize) {
        *self.counted += frames;
    }

    /// The present target is dealt with.
    pub fn next_target(&mut self) {
        *self.dealt_with += 1;
        *self.counted = 0;
    }
}

impl Default for Fan {
    fn default() -> Fan {
        Fan {
            frames: [0; BURST_FRAMES],
            count: 0,
            targets: Vec::with_capacity(MAX_PORTS),
            dealt_with: 0,
            counted: 0,
        }
    }
}

impl Fan {
    /// Empties the fan.
    #[inline(always)]
    pub fn clear(&mut self) {
        self.count = 0;
        self.targets.clear();
        (self.dealt_with, self.counted) = (0, 0);
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

    /// What delivering needs; `run` is room for it.
    pub fn fanning<'a>(&'a mut self, run: &'a mut Run) -> Fanning<'a> {
        let Fan { frames, count, targets, dealt_with, counted } = self;
        let progress = Progress { dealt_with, counted };
        Fanning { frames: &frames[..*count], targets, run, progress }
    }

    /// Takes the frames from index `end` on out; returns how many they are.
    pub fn truncate(&mut self, end: u8) -> usize {
        let left = self.frames().partition_point(|&frame| frame < end);
        std::mem::replace(&mut self.count, left) - left
    }

    /// The copies that no port has counted, by port.
    pub fn each_lost(&self, lost: &mut impl FnMut(PortId, usize)) {
        for (place, &target) in self.targets.iter().enumerate() {
            match place.cmp(&self.dealt_with) {
                Ordering::Less => {}
                Ordering::Equal => lost(target, self.count.saturating_sub(self.counted)),
                Ordering::Greater => lost(target, self.count),
            }
        }
    }
}
