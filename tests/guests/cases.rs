//! Cases that share guests, as a boot is what costs.
//!
//! Each has a name and fails by itself: it is named in the end, its own words are in the output,
//! and the cases after it get guests of their own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use super::progress;

/// Something that guests go through, and what it is called.
pub type Case<T> = (&'static str, fn(&mut T));

/// Runs the cases one after the other on what `start` makes, which `finish` ends. `None` of `start`
/// is a machine that lacks a part, and was said.
pub fn run<T>(mut start: impl FnMut() -> Option<T>, cases: &[Case<T>], finish: impl FnOnce(T)) {
    let mut guests = None;
    let mut failed = Vec::new();
    for (name, case) in cases {
        let Some(mut now) = guests.take().or_else(&mut start) else { return };
        let began = Instant::now();
        // Guests of a failed case go while it unwinds, and then say what they know.
        let after = catch_unwind(AssertUnwindSafe(move || {
            case(&mut now);
            now
        }));
        let said = if after.is_ok() { "passed" } else { "FAILED" };
        progress(&format!("{name}: {said} in {:.1} s", began.elapsed().as_secs_f32()));
        match after {
            Ok(now) => guests = Some(now),
            Err(_) => failed.push(*name),
        }
    }
    if let Some(guests) = guests {
        finish(guests);
    }
    assert!(failed.is_empty(), "failed: {}", failed.join(", "));
}
