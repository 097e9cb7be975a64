//! Frames that found no room at a port, counted by the port that sent them.
//!
//! The fairness account of a receive ring ([`super::admission`]) has no such counts: it favours
//! senders that got less, and a TAP or a stream has no account. So each drop for want of room is
//! counted here, by the sender's port, in 4 KiB for each port. The sampler takes the counts.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use base::limits::MAX_PORTS;
use switch::PortId;

/// Frames that found no room, by the number of the sender's port.
#[derive(Debug)]
pub struct DroppedFrom {
    /// True if a count is not zero.
    any: AtomicBool,
    frames: Box<[AtomicU32]>,
}

impl Default for DroppedFrom {
    fn default() -> DroppedFrom {
        let frames = (0..MAX_PORTS).map(|_| AtomicU32::new(0)).collect();
        DroppedFrom { any: AtomicBool::new(false), frames }
    }
}

impl DroppedFrom {
    /// Counts frames that port `port` sent.
    pub fn add(&self, port: PortId, frames: usize) {
        if let Some(count) = self.frames.get(usize::from(port)) {
            count.fetch_add(frames as u32, Ordering::Relaxed);
            self.any.store(true, Ordering::Release);
        }
    }

    /// Calls `each` for each sender with frames since the last call.
    pub fn take(&self, mut each: impl FnMut(PortId, u32)) {
        if !self.any.swap(false, Ordering::Acquire) {
            return;
        }
        for (port, count) in self.frames.iter().enumerate() {
            if count.load(Ordering::Relaxed) != 0 {
                each(port as PortId, count.swap(0, Ordering::Relaxed));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_taken_once() {
        let dropped = DroppedFrom::default();
        let taken = || {
            let mut all = Vec::new();
            dropped.take(|port, frames| all.push((port, frames)));
            all
        };
        assert_eq!(taken(), []);
        for (port, frames) in [(7, 3), (0, 1), (7, 64), (PortId::MAX, 5)] {
            dropped.add(port, frames);
        }
        assert_eq!(taken(), [(0, 1), (7, 67)]);
        assert_eq!(taken(), []);
    }
}
