//! State of a turn: one pass over the ready sources of a worker.

use crate::port::Next;
use base::limits::TURN_NANOS;
use sys::clock;

/// State of the present turn, or of the last turn between two turns.
pub(super) struct Turn {
    /// Cycle at which the present iteration of the loop began; read once an iteration.
    pub(crate) now: u64,
    /// Number of sources that have frames, or compete for the turn for another reason.
    pub(crate) working: usize,
    /// Number of sources that wait.
    pub(crate) waiting: usize,
    /// A source waits for its receiver.
    pub(crate) receivers: bool,
    /// Several sources competed for the last turn: each gets only its quantum.
    pub(crate) contended: bool,
    /// All sources of a contended turn were throttled.
    pub(crate) idle: bool,
    /// [`TURN_NANOS`] in cycles.
    pub(crate) longest: u64,
}

impl Turn {
    /// Creates the state before the first turn, at cycle `now`.
    pub(crate) fn new(now: u64) -> Turn {
        let longest = clock::cycles_in(TURN_NANOS);
        Turn {
            now,
            working: 0,
            waiting: 0,
            receivers: false,
            contended: false,
            idle: false,
            longest,
        }
    }

    /// Counts a source by the result of the look. True if the source had frames.
    #[inline(always)]
    pub(crate) fn count(&mut self, next: Next) -> bool {
        match next {
            Next::More | Next::Last | Next::Locked | Next::Throttled | Next::Again => {
                self.working += 1;
            }
            Next::At(_) => self.waiting += 1,
            Next::Receiver(_) => {
                self.waiting += 1;
                self.receivers = true;
            }
            Next::Empty | Next::Gone => {}
        }
        matches!(next, Next::More | Next::Last)
    }

    /// Ends a turn. `found`: a source had frames. `is_cut`: a device's burst ended the turn before
    /// all sources were looked at.
    pub(crate) fn end(&mut self, found: bool, is_cut: bool) {
        // Throttled sources compete, too: a turn in which all sources are throttled must not
        // forgive their deficits. Nor must a turn that a device's long burst cut short.
        self.contended = self.working > 1 || (is_cut && self.contended);
        self.idle = self.contended && !found;
    }
}
