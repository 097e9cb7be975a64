//! Runs a list of operations, and makes a list that fails shorter.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::time::{Duration, Instant};

use super::lab::{self, Lab, Mode};
use super::moves;
use super::op::Op;

/// How long a failing list is made shorter.
const SHRINK: Duration = Duration::from_secs(60);

/// Runs of a list that fails while it is in doubt what the switch learned.
const TRIES: u32 = 8;

/// What a run that found nothing did.
#[derive(Clone, Copy, Default, Debug)]
pub struct Done {
    pub ops: u64,
    pub frames: u64,
}

#[derive(Debug)]
pub struct Failure {
    /// Number of the operation after which it was seen.
    pub at: usize,
    pub what: String,
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Keeps what a panic on this thread says instead of printing it: most come from shrinking.
fn catch_words() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if QUIET.get() {
                SAID.set(info.to_string());
            } else {
                loud(info);
            }
        }));
    });
}

/// Runs `f`; what it panicked with, if it did.
fn caught<R>(f: impl FnOnce() -> R) -> Result<R, String> {
    catch_words();
    QUIET.set(true);
    let result = catch_unwind(AssertUnwindSafe(f));
    QUIET.set(false);
    result.map_err(|_| SAID.take())
}

/// Runs a list against a daemon of its own; again if it is not known whether it may fail.
pub fn run(ops: &[Op], mode: Mode) -> Result<Done, Failure> {
    for _ in 0..TRIES {
        moves::take_doubt();
        let done = once(ops, mode);
        if done.is_ok() || !moves::take_doubt() {
            return done;
        }
    }
    once(ops, mode)
}

fn once(ops: &[Op], mode: Mode) -> Result<Done, Failure> {
    let mut d = lab::subject(mode);
    let at = Cell::new(0);
    let ran = caught(|| {
        let mut lab = Lab::new(&mut d, mode);
        for (n, op) in ops.iter().enumerate() {
            at.set(n);
            lab.step(op);
        }
        let frames = lab.frames;
        lab.finish();
        frames
    });
    let fail = |what| Failure { at: at.get(), what };
    if ran.is_err() && d.alive() && d.report().sum(None, "", "learn_busy") > 0 {
        moves::doubt();
    }
    let frames = ran.map_err(fail)?;
    caught(|| d.stop()).map_err(fail)?;
    Ok(Done { ops: ops.len() as u64, frames })
}

/// Leaves out of a failing list whatever it fails without: halves, quarters, and so on. Answers the
/// numbers of what is left, and the last failure.
pub fn shrink(ops: &[Op], mode: Mode, first: Failure) -> (Vec<usize>, Failure) {
    let end = Instant::now() + SHRINK;
    // To see it with the operation that does it.
    let mode = Mode { compare_every: 1, ..mode };
    let fails = |keep: &[usize]| {
        let some: Vec<Op> = keep.iter().map(|&n| ops[n].clone()).collect();
        run(&some, mode).err()
    };
    let mut keep: Vec<usize> = (0..=first.at.min(ops.len() - 1)).collect();
    let mut last = first;
    let mut part = keep.len();
    while part > 0 && Instant::now() < end {
        let mut from = 0;
        while from < keep.len() && Instant::now() < end {
            let mut fewer = keep.clone();
            fewer.drain(from..(from + part).min(keep.len()));
            match fails(&fewer) {
                Some(failure) => {
                    fewer.truncate(failure.at + 1);
                    (keep, last) = (fewer, failure);
                }
                None => from += part,
            }
        }
        part /= 2;
    }
    (keep, last)
}
