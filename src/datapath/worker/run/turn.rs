//! What a worker knows of a turn, one pass over its ready sources.

use crate::port::Next;
use base::limits::TURN_NANOS;
use sys::clock;

/// The present turn of a worker, or the last one.
pub(super) struct Turn {
    /// The loop's one reading of the cycle counter: when the present iteration began.
    pub now: u64,
    /// Sources that have frames, or competed for the turn in another way.
    pub working: usize,
    /// Sources that wait for something.
    pub waiting: usize,
    /// Some of them wait for their receivers.
    pub receivers: bool,
    /// Several sources wanted the last turn: each gets its quantum only.
    pub contended: bool,
    /// … and all of them were throttled.
    pub idle: bool,
    /// [`TURN_NANOS`] in cycles.
    pub longest: u64,
}

impl Turn {
    /// Before the first turn, at cycle `now`.
    pub fn new(now: u64) -> Turn {
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

    /// Counts a source by what came of the look at it; true if it had frames.
    #[inline(always)]
    pub fn count(&mut self, next: Next) -> bool {
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

    /// Ends a turn in which frames were `found` or not, and which a device's burst ended before it
    /// came to all sources if it `is_cut`.
    pub fn end(&mut self, found: bool, is_cut: bool) {
        // Throttled ones compete too: a turn in which all do must not forgive what they owe. Nor
        // must one that a device's long burst ended before it came to the others.
        self.contended = self.working > 1 || (is_cut && self.contended);
        self.idle = self.contended && !found;
    }
}
