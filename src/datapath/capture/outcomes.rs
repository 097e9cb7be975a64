//! Records the outcome of each copy of a burst's frames, while a capture needs the outcomes.

use base::limits::CAPTURE_OUTCOMES;
use base::stats::DropReason;
use switch::PortId;

/// Outcome of one copy of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Index of the frame in its burst.
    pub frame: u8,
    /// The port that the copy was for.
    pub port: PortId,
    /// Why the copy did not arrive; `None` if it did.
    pub dropped: Option<DropReason>,
}

/// Outcomes of the copies of a burst's frames.
#[derive(Debug, Default)]
pub struct Outcomes {
    wanted: bool,
    /// A capture may look at frames of the burst, which are private then.
    pub may_look: bool,
    all: Vec<Outcome>,
    /// Outcomes beyond [`CAPTURE_OUTCOMES`].
    lost: u64,
    /// All dropped copies, whether a capture needs their outcomes or not.
    drops: u64,
}

impl Outcomes {
    /// Begins to record a burst that a capture needs.
    pub fn begin(&mut self) {
        (self.wanted, self.may_look) = (true, true);
        self.all.clear();
        self.lost = 0;
    }

    /// True if a capture needs the outcomes.
    #[inline(always)]
    pub fn are_wanted(&self) -> bool {
        self.wanted
    }

    /// Notes that frames were dropped on their way to a port.
    #[inline(always)]
    pub fn dropped(&mut self, frames: &[u8], port: PortId, reason: DropReason) {
        self.drops += frames.len() as u64;
        if self.wanted {
            frames.iter().for_each(|&frame| self.add(frame, port, Some(reason)));
        }
    }

    /// Returns the number of copies dropped on their way to ports since this was created.
    pub fn drops(&self) -> u64 {
        self.drops
    }

    /// Notes that a frame reached a port.
    #[inline(always)]
    pub fn delivered(&mut self, frame: u8, port: PortId) {
        if self.wanted {
            self.add(frame, port, None);
        }
    }

    #[cold]
    fn add(&mut self, frame: u8, port: PortId, dropped: Option<DropReason>) {
        if self.all.len() < CAPTURE_OUTCOMES {
            self.all.push(Outcome { frame, port, dropped });
        } else {
            self.lost += 1;
        }
    }

    /// Ends the record of a burst. Returns the outcomes sorted by frame, and the number of outcomes
    /// that were lost.
    pub fn end(&mut self) -> (&[Outcome], u64) {
        self.wanted = false;
        self.all.sort_by_key(|outcome| outcome.frame);
        (&self.all, self.lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_bounded_and_come_by_their_frames() {
        let mut outcomes = Outcomes::default();
        outcomes.dropped(&[0, 1], 1, DropReason::NoBuffer);
        outcomes.begin();
        assert_eq!(outcomes.end(), (&[][..], 0), "nobody wanted to know");
        assert_eq!(outcomes.drops(), 2, "but they are counted");
        outcomes.begin();
        outcomes.add(2, 1, None);
        outcomes.dropped(&[0, 1], 4, DropReason::NoBuffer);
        outcomes.add(0, 3, None);
        let places = |outcomes: &mut Outcomes| -> Vec<(u8, PortId)> {
            outcomes.end().0.iter().map(|one| (one.frame, one.port)).collect()
        };
        assert_eq!(places(&mut outcomes), [(0, 4), (0, 3), (1, 4), (2, 1)]);
        for _ in 0..CAPTURE_OUTCOMES {
            outcomes.add(0, 1, None);
        }
        assert_eq!(outcomes.end().1, 4);
        outcomes.begin();
        assert_eq!(places(&mut outcomes), []);
    }
}
