//! Recent counts of a port: samples of its counters from the last minutes.
//!
//! Sampling may pause while nothing is counted: the last sample holds until the next sample.

use std::collections::VecDeque;

use base::limits::{SAMPLES_KEPT, SAMPLES_SPACING, SENDERS_KEPT};

/// Seconds by which present faults are judged.
pub const MOMENT: u32 = 10;
/// Seconds by which rates are judged.
pub const MINUTE: u32 = 60;
/// Seconds after which a single fault is forgotten.
pub const LATELY: u32 = 300;

const _: () = assert!(SAMPLES_KEPT as u32 * SAMPLES_SPACING >= LATELY);

/// Part of a sender's count that is left after each second: after eight seconds a third.
const FADING: (u64, u64) = (7, 8);
/// Seconds after which no count is left.
const FADED: u32 = 120;

/// Counters of a port for findings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Frames to the port.
    pub out: u64,
    /// Frames that found no room at the port.
    pub no_room: u64,
    /// Frames that were longer than the MTU.
    pub too_big: u64,
    /// Source addresses that found no place in the table.
    pub learn_refused: u64,
    /// Source addresses that are static at another port.
    pub learn_static: u64,
    /// Source addresses that are held at another port.
    pub learn_held: u64,
    /// Addresses that moved to the port from another port.
    pub moves: u64,
    /// Receive buffers that could not be used.
    pub bad_buffers: u64,
}

impl Counts {
    /// Returns the counts since `before`.
    pub(crate) fn since(self, before: Counts) -> Counts {
        Counts {
            out: self.out.saturating_sub(before.out),
            no_room: self.no_room.saturating_sub(before.no_room),
            too_big: self.too_big.saturating_sub(before.too_big),
            learn_refused: self.learn_refused.saturating_sub(before.learn_refused),
            learn_static: self.learn_static.saturating_sub(before.learn_static),
            learn_held: self.learn_held.saturating_sub(before.learn_held),
            moves: self.moves.saturating_sub(before.moves),
            bad_buffers: self.bad_buffers.saturating_sub(before.bad_buffers),
        }
    }
}

/// A port's counters at moments of the last minutes.
#[derive(Debug)]
pub struct History {
    /// Samples at least [`SAMPLES_SPACING`] seconds apart, the newest last.
    past: VecDeque<(u32, Counts)>,
    last: (u32, Counts),
}

impl History {
    /// Begins a history in second `now`; earlier counts do not belong to the history.
    pub fn new(now: u32, counts: Counts) -> History {
        History { past: VecDeque::from([(now, counts)]), last: (now, counts) }
    }

    /// Notes the counters in second `now`.
    pub fn note(&mut self, now: u32, counts: Counts) {
        // A pause counts with its beginning, as nothing was counted in the pause.
        let paused = now.saturating_sub(self.last.0) >= SAMPLES_SPACING;
        let newest = self.past.back().map_or(0, |(at, _)| *at);
        if paused && self.last.0 > newest {
            self.keep(self.last);
        }
        self.last = (now, counts);
        if now.saturating_sub(newest) >= SAMPLES_SPACING {
            self.keep(self.last);
        }
    }

    fn keep(&mut self, sample: (u32, Counts)) {
        if self.past.len() > SAMPLES_KEPT {
            self.past.pop_front();
        }
        self.past.push_back(sample);
    }

    /// Returns the counts of the last `seconds` before `now`, or a few more; counts since the
    /// beginning, if that is later.
    pub fn over(&self, seconds: u32, now: u32) -> Counts {
        let (last, counts) = self.last;
        let old = |at: u32| now.saturating_sub(at) >= seconds;
        if old(last) {
            return Counts::default();
        }
        let before = self.past.iter().rev().find(|(at, _)| old(*at)).or(self.past.front());
        counts.since(before.map_or(counts, |(_, counts)| *counts))
    }
}

/// A sender to a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sender {
    /// Name of the port that the frames came from.
    pub port: String,
    /// Frames from this sender that found no room.
    pub frames: u64,
}

/// Senders whose frames found no room at a port; older frames count less.
#[derive(Debug, Default)]
pub struct Senders {
    at: u32,
    /// Senders, with most frames first.
    all: Vec<Sender>,
}

impl Senders {
    /// Adds frames that found no room since the last call.
    pub fn note(&mut self, now: u32, more: impl Iterator<Item = Sender>) {
        self.all = self.lately(now);
        self.at = now;
        for one in more {
            match self.all.iter_mut().find(|known| known.port == one.port) {
                Some(known) => known.frames += one.frames,
                None => self.all.push(one),
            }
        }
        self.all.sort_by_key(|one| std::cmp::Reverse(one.frames));
        self.all.truncate(SENDERS_KEPT);
    }

    /// Returns the senders that still count in second `now`, the most frames first.
    pub fn lately(&self, now: u32) -> Vec<Sender> {
        let seconds = now.saturating_sub(self.at);
        if seconds >= FADED {
            return Vec::new();
        }
        let (left, of) = FADING;
        let fade = |frames: u64| (0..seconds).fold(frames, |frames, _| frames * left / of);
        let all = self.all.iter().map(|one| Sender { frames: fade(one.frames), ..one.clone() });
        all.filter(|one| one.frames > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn out(out: u64) -> Counts {
        Counts { out, ..Counts::default() }
    }

    #[test]
    fn a_window_has_what_was_counted_in_it() {
        let mut history = History::new(100, out(1_000_000));
        for now in 101..=1_000u32 {
            history.note(now, out(1_000_000 + 10 * u64::from(now - 100)));
        }
        for seconds in [MOMENT, MINUTE, LATELY] {
            let counted = history.over(seconds, 1_000).out;
            let most = 10 * u64::from(seconds + SAMPLES_SPACING);
            assert!((10 * u64::from(seconds)..=most).contains(&counted), "{seconds}: {counted}");
        }
        assert!(history.past.len() <= SAMPLES_KEPT + 1);
        // No frame was counted since the last sample.
        assert_eq!(history.over(MOMENT, 1_010), out(0));
        assert!(history.over(MINUTE, 1_010).out > 0);
        assert_eq!(history.over(MINUTE, 1_060), out(0));
    }

    #[test]
    fn before_the_beginning_nothing_was_counted() {
        let mut history = History::new(7, out(50));
        assert_eq!(history.over(MOMENT, 7), out(0));
        history.note(8, out(51));
        assert_eq!(history.over(LATELY, 9), out(1));
    }

    /// A pause does not change earlier counts.
    #[test]
    fn what_was_counted_before_a_pause_is_not_of_after_it() {
        let mut history = History::new(0, out(0));
        for now in 1..=4 {
            history.note(now, out(100 * u64::from(now)));
        }
        history.note(10_000, out(401));
        assert_eq!(history.over(MOMENT, 10_000), out(1));
        assert_eq!(history.over(LATELY, 10_000), out(1));
    }

    #[test]
    fn who_sent_most_comes_first_and_fades() {
        let sender = |port: &str, frames| Sender { port: port.to_owned(), frames };
        let mut senders = Senders::default();
        senders.note(10, [sender("a", 10), sender("b", 800)].into_iter());
        senders.note(11, [sender("a", 2_000)].into_iter());
        assert_eq!(senders.lately(11), [sender("a", 2_008), sender("b", 700)]);
        assert!(senders.lately(30).iter().all(|one| one.frames < 300));
        assert_eq!(senders.lately(11 + FADED), []);
        let many = (0..100).map(|n| sender(&format!("p{n}"), n + 1));
        senders.note(200, many);
        let told = senders.lately(200);
        assert_eq!((told.len(), told[0].frames), (SENDERS_KEPT, 100));
    }
}
