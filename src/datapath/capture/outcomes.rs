//! Records where the frames of a burst were seen, while an observer needs the record.

use base::limits::CAPTURE_OUTCOMES;
use base::stats::{Direction, DropReason};
use switch::PortId;

/// A frame at a port: at the frame's source, or at one of the frame's receivers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sighting {
    /// Index of the frame in its burst; [`Sighting::NO_FRAME`] for a rejected chain.
    pub(crate) frame: u8,
    /// The port.
    pub(crate) port: PortId,
    /// Whether the port sent or received the frame.
    pub(crate) direction: Direction,
    /// Why the frame was dropped at the port; `None` if the frame was not dropped.
    pub(crate) dropped: Option<DropReason>,
}

impl Sighting {
    /// Stands for the index of something that was no frame.
    pub(crate) const NO_FRAME: u8 = u8::MAX;
}

/// Outcomes of the copies of a burst's frames.
#[derive(Debug, Default)]
pub struct Outcomes {
    /// An observer needs the outcomes.
    pub(crate) are_wanted: bool,
    /// A capture may look at frames of the burst, which are private then.
    pub(crate) may_look: bool,
    all: Vec<Sighting>,
    /// Outcomes beyond [`CAPTURE_OUTCOMES`].
    lost: u64,
    /// All dropped copies, whether an observer needs their outcomes or not.
    drops: u64,
}

impl Outcomes {
    /// Begins to record a burst that an observer needs.
    pub(crate) fn begin(&mut self) {
        (self.are_wanted, self.may_look) = (true, false);
        self.all.clear();
        self.lost = 0;
    }

    /// Ends the record of a burst that no observer needs.
    pub(crate) fn give_up(&mut self) {
        self.are_wanted = false;
    }

    /// Notes that frames were dropped on their way to a port.
    #[inline(always)]
    pub(crate) fn dropped(&mut self, frames: &[u8], port: PortId, reason: DropReason) {
        self.drops += frames.len() as u64;
        if self.are_wanted {
            frames.iter().for_each(|&frame| self.add(frame, port, Some(reason)));
        }
    }

    /// Returns the number of copies dropped on their way to ports since this was created.
    pub(crate) fn drops(&self) -> u64 {
        self.drops
    }

    /// Notes that a frame reached a port.
    #[inline(always)]
    pub(crate) fn delivered(&mut self, frame: u8, port: PortId) {
        if self.are_wanted {
            self.add(frame, port, None);
        }
    }

    #[cold]
    fn add(&mut self, frame: u8, port: PortId, dropped: Option<DropReason>) {
        if self.all.len() < CAPTURE_OUTCOMES {
            self.all.push(Sighting { frame, port, direction: Direction::Out, dropped });
        } else {
            self.lost += 1;
        }
    }

    /// Ends the record of a burst of `frames` frames, and adds the frames `received` from the
    /// source. Returns all sightings and the number of outcomes that were lost. With `sort` the
    /// sightings are sorted by frame, each frame at its source first.
    pub(crate) fn end(
        &mut self,
        frames: usize,
        received: impl Iterator<Item = Sighting>,
        sort: bool,
    ) -> (&[Sighting], u64) {
        self.are_wanted = false;
        // Later frames were given back to the source.
        self.all.retain(|seen| usize::from(seen.frame) < frames);
        self.all.extend(received);
        if sort {
            self.all.sort_by_key(|seen| (seen.frame, seen.direction == Direction::Out));
        }
        (&self.all, self.lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::iter::empty;

    #[test]
    fn outcomes_are_bounded_and_come_by_their_frames() {
        let mut outcomes = Outcomes::default();
        outcomes.dropped(&[0, 1], 1, DropReason::NoBuffer);
        outcomes.begin();
        assert_eq!(outcomes.end(3, empty(), true), (&[][..], 0), "nobody wanted to know");
        assert_eq!(outcomes.drops(), 2, "but they are counted");
        outcomes.begin();
        outcomes.add(2, 1, None);
        outcomes.dropped(&[0, 1], 4, DropReason::NoBuffer);
        outcomes.add(0, 3, None);
        outcomes.add(3, 1, None);
        let received = [0, 1, 2, Sighting::NO_FRAME].map(|frame| Sighting {
            frame,
            port: 9,
            direction: Direction::In,
            dropped: None,
        });
        let (seen, lost) = outcomes.end(3, received.into_iter(), true);
        let places: Vec<(u8, PortId)> = seen.iter().map(|one| (one.frame, one.port)).collect();
        let last = (Sighting::NO_FRAME, 9);
        assert_eq!(places, [(0, 9), (0, 4), (0, 3), (1, 9), (1, 4), (2, 9), (2, 1), last]);
        assert_eq!(lost, 0);
        outcomes.begin();
        for _ in 0..CAPTURE_OUTCOMES + 4 {
            outcomes.add(0, 1, None);
        }
        assert_eq!(outcomes.end(3, empty(), true).1, 4);
        outcomes.begin();
        assert!(outcomes.end(3, empty(), true).0.is_empty());
    }
}
