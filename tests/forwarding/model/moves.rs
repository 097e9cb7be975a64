//! Addresses that move, by the rules of docs/architecture.md: one that moves five times in a second
//! goes back to where it was before it moved at all, and stays there for ten seconds, or until one
//! other port alone has sent from it for a second.
//!
//! The switch counts seconds of a clock that this reads too. It may have read it before or after:
//! where that could make a difference there is *doubt*, and a run that fails says nothing. So it is
//! where a thread held the table while a worker wanted to learn.

use std::cell::Cell;
use std::time::Duration;

use base::limits::{FDB_FLAPS, FDB_HOLD_SECONDS, FDB_SILENCE_SECONDS};
use rustix::time::{ClockId, clock_gettime};

/// An operation begins so long after a second's beginning: a worker may have read the clock before
/// it had to wait for a CPU ...
const EARLY: Duration = Duration::from_millis(50);
/// ... and so long before its end.
const LATE: Duration = Duration::from_millis(100);

thread_local! {
    static SECOND: Cell<u32> = const { Cell::new(0) };
    static DOUBT: Cell<bool> = const { Cell::new(false) };
}

/// The switch's clock.
fn clock() -> (u32, Duration) {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    (now.tv_sec as u32, Duration::from_nanos(now.tv_nsec as u64))
}

/// An operation begins.
pub fn begin() {
    loop {
        let (second, part) = clock();
        let left = Duration::from_secs(1).saturating_sub(part);
        if part >= EARLY && left > LATE {
            SECOND.set(second);
            return;
        }
        let early = EARLY.saturating_sub(part);
        std::thread::sleep(if early.is_zero() { left + EARLY } else { early });
    }
}

/// Whether there was doubt since this was asked last.
pub fn take_doubt() -> bool {
    DOUBT.take()
}

/// A run that fails says nothing.
pub fn doubt() {
    DOUBT.set(true);
}

/// The second in which an address is about to move.
fn second() -> u32 {
    let now = clock().0;
    DOUBT.set(DOUBT.get() || now != SECOND.get());
    now
}

/// Whether a second has passed since then, by the switch's clock.
fn is_past(since: Duration) -> bool {
    let silence = Duration::from_secs(FDB_SILENCE_SECONDS.into());
    let passed = now().saturating_sub(since);
    // The switch takes a tick more, and may have read the clock before or after.
    let doubtful = silence.saturating_sub(EARLY)..silence + 4 * LATE;
    DOUBT.set(DOUBT.get() || doubtful.contains(&passed));
    passed > silence
}

/// The switch's time.
pub fn now() -> Duration {
    let (second, part) = clock();
    Duration::from_secs(second.into()) + part
}

/// Where an address goes.
pub enum Goes {
    There,
    /// To its first port.
    Back(usize),
    Nowhere,
}

/// The moves of an address.
#[derive(Clone, Default)]
pub struct Moves {
    /// None if it has not moved.
    pub origin: Option<usize>,
    last: u32,
    /// How many there were in the last second of them.
    count: u32,
    /// It was held, and its port was silent.
    lapsed: bool,
    /// Whom the hold refused last, and since when no other one.
    rival: Option<(usize, Duration)>,
}

impl Moves {
    /// It was seen on port `to`, where there is room for it, and not on port `from`, where it is
    /// and was seen last at `heard`.
    pub fn one_more(&mut self, from: usize, to: usize, heard: Duration) -> Goes {
        let second = second();
        let many = FDB_FLAPS;
        let Some(origin) = self.origin.filter(|_| second - self.last <= FDB_HOLD_SECONDS) else {
            *self = Moves { origin: Some(from), last: second, count: 1, ..Moves::default() };
            return Goes::There;
        };
        if self.count >= many {
            let Some((_, since)) = self.rival.filter(|(rival, _)| *rival == to) else {
                self.rival = Some((to, now()));
                return Goes::Nowhere;
            };
            if !is_past(since) || !is_past(heard) {
                return Goes::Nowhere;
            }
            let moves = Moves { origin: self.origin, last: second, ..Moves::default() };
            *self = Moves { lapsed: true, ..moves };
            return Goes::There;
        }
        self.count = match () {
            () if self.lapsed && to == origin => many,
            () if self.last == second => self.count + 1,
            () => 1,
        };
        self.last = second;
        if self.count < many {
            return Goes::There;
        }
        let rival = if to == origin { from } else { to };
        (self.lapsed, self.rival) = (false, Some((rival, now())));
        Goes::Back(origin)
    }

    /// A port is gone: nothing goes back there.
    pub fn forget(&mut self, port: usize) {
        if self.origin == Some(port) {
            *self = Moves::default();
        }
    }
}
