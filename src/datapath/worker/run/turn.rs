//! The state of a turn, and the ready sources of a worker, which a turn passes over once.

use std::collections::HashSet;
use std::ops::{Deref, DerefMut};

use crate::port::Polled;
use crate::worker::Token;
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
    pub(crate) fn count(&mut self, next: Polled) -> bool {
        match next {
            Polled::More
            | Polled::Drained
            | Polled::Locked
            | Polled::Throttled
            | Polled::RetryNow => {
                self.working += 1;
            }
            Polled::RetryAt(_) => self.waiting += 1,
            Polled::WaitsForReceiver(_) => {
                self.waiting += 1;
                self.receivers = true;
            }
            Polled::Empty | Polled::Unavailable => {}
        }
        matches!(next, Polled::More | Polled::Drained)
    }
}

/// A source with work, or that lately had work.
#[derive(Clone, Copy)]
pub(super) struct Ready {
    pub(crate) token: Token,
    /// Number of consecutive looks that found the source empty.
    pub(crate) looks: u32,
    /// Latest cycle for the next look, since no event may come; 0 if an event will come.
    pub(crate) retry_at: u64,
}

/// Ready sources, each once, in the order in which they became ready.
#[derive(Default)]
pub(super) struct ReadySources {
    list: Vec<Ready>,
    /// The tokens in the list: no search of the list when a thousand guests answer a broadcast.
    listed: HashSet<Token>,
    /// Index of the source for the next look, where the next turn continues an unfinished turn.
    next: usize,
}

impl ReadySources {
    /// Returns the source for the next look; the first source follows the last.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> Option<Token> {
        if self.next >= self.list.len() {
            self.next = 0;
        }
        Some(self.list.get(self.next)?.token)
    }

    /// Notes the result of a look at that source. Returns the number of consecutive looks that
    /// found the source empty.
    #[inline(always)]
    pub(crate) fn note(&mut self, next: Polled) -> u32 {
        let Some(ready) = self.list.get_mut(self.next) else { return 0 };
        match next {
            Polled::More | Polled::Drained => ready.looks = 0,
            Polled::Empty => ready.looks = ready.looks.saturating_add(1),
            _ => {}
        }
        ready.retry_at = match next {
            Polled::RetryAt(cycle) | Polled::WaitsForReceiver(cycle) => cycle,
            _ => 0,
        };
        ready.looks
    }

    /// Continues with the following source. Removes the source of the last look unless it `stays`;
    /// a removed source waits for an event.
    #[inline(always)]
    pub(crate) fn advance(&mut self, stays: bool) {
        if stays {
            self.next += 1;
        } else {
            self.remove(self.next);
        }
    }

    /// True if the source is ready.
    pub(crate) fn contains(&self, token: Token) -> bool {
        self.listed.contains(&token)
    }

    /// Makes a source ready, which has work.
    pub(crate) fn mark(&mut self, token: Token) {
        if self.listed.insert(token) {
            self.list.push(Ready { token, looks: 0, retry_at: 0 });
        } else if let Some(ready) = self.list.iter_mut().find(|ready| ready.token == token) {
            ready.looks = 0;
        }
    }

    /// Removes the source at index `at`, which waits for an event.
    pub(crate) fn remove(&mut self, at: usize) {
        self.listed.remove(&self.list.remove(at).token);
    }

    /// Keeps only the sources for which `stays` returns true.
    pub(crate) fn retain(&mut self, stays: impl Fn(Token) -> bool) {
        self.list.retain(|ready| stays(ready.token));
        self.listed.retain(|token| stays(*token));
    }

    /// Takes all sources.
    pub(crate) fn take(&mut self) -> Vec<Ready> {
        self.listed.clear();
        std::mem::take(&mut self.list)
    }
}

impl Deref for ReadySources {
    type Target = [Ready];

    fn deref(&self) -> &[Ready] {
        &self.list
    }
}

impl DerefMut for ReadySources {
    fn deref_mut(&mut self) -> &mut [Ready] {
        &mut self.list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(ready: &ReadySources) -> Vec<Token> {
        ready.iter().map(|ready| ready.token).collect()
    }

    #[test]
    fn a_source_is_listed_once_and_again_when_it_was_removed() {
        let mut ready = ReadySources::default();
        let token = |port| Token::Transmit(port, 0);
        for port in [1, 2, 1, 3] {
            ready.mark(token(port));
        }
        assert_eq!(sources(&ready), [1, 2, 3].map(token));
        ready[0].looks = 5;
        ready.mark(token(1));
        assert_eq!(ready[0].looks, 0, "it has work");
        ready.remove(1);
        assert!(ready.contains(token(1)) && !ready.contains(token(2)));
        ready.mark(token(2));
        assert_eq!(sources(&ready), [1, 3, 2].map(token));
        ready.retain(|source| source != token(3));
        ready.mark(token(3));
        assert_eq!(sources(&ready), [1, 2, 3].map(token));
        assert_eq!(ready.take().len(), 3);
        assert!(ready.is_empty() && !ready.contains(token(1)));
    }
}
