//! Which frames go into a receive ring now, and which may wait for its next buffers: the one place
//! that is asked, with the ring's lock held.

use super::credit::{Answer, Credit, Wait, WaitLimits};
use super::share::Shares;
use crate::switch::PortId;

/// What a receive ring knows of its senders.
#[derive(Debug, Default)]
pub struct Admission {
    shares: Shares,
    credit: Credit,
}

impl Admission {
    /// How many of the `frames` that `from` brings may be delivered; see [`Shares::allow`].
    #[inline(always)]
    pub fn admit(&mut self, from: PortId, frames: usize, free: impl FnOnce() -> u16) -> usize {
        self.shares.allow(from, frames, || free().into())
    }

    /// How many of the `frames` of `from` that wait for the ring may be delivered; see
    /// [`Shares::grant`].
    pub fn admit_waiting(&mut self, from: PortId, frames: usize, free: u16) -> usize {
        self.shares.grant(from, frames, free)
    }

    /// Records what the ring took of what `from` brought, and whether it ran out of buffers.
    #[inline(always)]
    pub fn took(&mut self, from: PortId, (frames, bytes): (u64, u64), buffers: u16, ran_out: bool) {
        self.shares.record(from, frames, buffers, ran_out);
        self.credit.took(self.shares.earned(from), frames, bytes);
    }

    /// Whether frames of `from` may go on waiting; charges for what they have waited.
    pub fn may_wait(&mut self, from: PortId, wait: Wait, limits: &WaitLimits) -> Answer {
        self.credit.ask(self.shares.earned(from), wait, limits)
    }

    /// Frames that so many buffers are likely to hold.
    pub fn frames_in(&self, buffers: u16) -> usize {
        self.shares.frames_in(buffers)
    }

    /// True if several send to the ring and it lately ran out of buffers.
    pub fn is_scarce(&self) -> bool {
        self.shares.is_scarce()
    }
}
