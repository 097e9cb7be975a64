//! The sources that a worker looks at in each turn.

use std::collections::HashSet;
use std::ops::{Deref, DerefMut};

use crate::port::Next;
use crate::worker::Token;

/// A source with work, or that lately had some.
#[derive(Clone, Copy)]
pub(super) struct Ready {
    pub token: Token,
    /// How often in a row it was found empty.
    pub looks: u32,
    /// It is looked at again at this cycle at the latest, as no event may tell; 0: an event will.
    pub retry_at: u64,
}

/// Ready sources in the order in which they became ready, each once.
#[derive(Default)]
pub(super) struct ReadySources {
    list: Vec<Ready>,
    /// Those of the list: a thousand guests that answer a broadcast are not looked for one by one.
    listed: HashSet<Token>,
    /// Place of the source that is looked at next: a turn that is cut short is continued there.
    next: usize,
}

impl ReadySources {
    /// The source that is looked at next, after the last one again the first.
    #[inline(always)]
    pub fn next(&mut self) -> Option<Token> {
        if self.next >= self.list.len() {
            self.next = 0;
        }
        Some(self.list.get(self.next)?.token)
    }

    /// Notes what came of the look at that source; how often in a row it was found empty.
    #[inline(always)]
    pub fn note(&mut self, next: Next) -> u32 {
        let Some(ready) = self.list.get_mut(self.next) else { return 0 };
        match next {
            Next::More | Next::Last => ready.looks = 0,
            Next::Empty => ready.looks = ready.looks.saturating_add(1),
            _ => {}
        }
        ready.retry_at = match next {
            Next::At(cycle) | Next::Receiver(cycle) => cycle,
            _ => 0,
        };
        ready.looks
    }

    /// The source behind that one is looked at next.
    #[inline(always)]
    pub fn pass(&mut self) {
        self.next += 1;
    }

    /// The source waits for its next event, and the one behind it is looked at next.
    pub fn remove_next(&mut self) {
        self.remove(self.next);
    }

    /// True if the source is ready.
    pub fn contains(&self, token: Token) -> bool {
        self.listed.contains(&token)
    }

    /// The source has work.
    pub fn mark(&mut self, token: Token) {
        if self.listed.insert(token) {
            self.list.push(Ready { token, looks: 0, retry_at: 0 });
        } else if let Some(ready) = self.list.iter_mut().find(|ready| ready.token == token) {
            ready.looks = 0;
        }
    }

    /// The source in this place of the list waits for its next event.
    pub fn remove(&mut self, at: usize) {
        self.listed.remove(&self.list.remove(at).token);
    }

    /// Keeps those sources alone that `stays` says yes to.
    pub fn retain(&mut self, stays: impl Fn(Token) -> bool) {
        self.list.retain(|ready| stays(ready.token));
        self.listed.retain(|token| stays(*token));
    }

    /// Takes all sources.
    pub fn take(&mut self) -> Vec<Ready> {
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
