//! Addresses that move, by the rules of docs/architecture.md: one that moves five times in a second
//! goes back to where it was before it moved at all, and stays there for ten seconds.
//!
//! The switch counts seconds of a clock that this reads too. It may have read it before or after:
//! where that could make a difference there is *doubt*, and a run that fails says nothing. So it is
//! where a thread held the table while a worker wanted to learn.

use std::cell::Cell;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use vioswitch::limits::{FDB_FLAPS, FDB_HOLD_SECONDS};

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
    pub origin: Option<usize>,
    seconds: Vec<u32>,
}

impl Moves {
    /// It was seen elsewhere than on port `from`, where it is, and there is room for it.
    pub fn one_more(&mut self, from: usize) -> Goes {
        let now = second();
        let Some(&last) = self.seconds.last() else {
            (self.origin, self.seconds) = (Some(from), vec![now]);
            return Goes::There;
        };
        let flaps = |seconds: &[u32], of| seconds.iter().filter(|second| **second == of).count();
        let many = FDB_FLAPS as usize;
        if now - last > FDB_HOLD_SECONDS {
            *self = Moves::default();
            return self.one_more(from);
        }
        if flaps(&self.seconds, last) >= many {
            return Goes::Nowhere;
        }
        self.seconds.push(now);
        match self.origin {
            Some(origin) if flaps(&self.seconds, now) >= many => Goes::Back(origin),
            _ => Goes::There,
        }
    }

    /// A port is gone: nothing goes back there.
    pub fn forget(&mut self, port: usize) {
        if self.origin == Some(port) {
            *self = Moves::default();
        }
    }
}
