//! The whole switch against a naive one: random operations of guests and front-ends, well-behaved
//! and not, and of the administrator (`bridge`, `vlan`, `isolated`, `pass` and others) are done to
//! the real daemon and to a map from address to port with the rules of docs/architecture.md. After
//! each, every guest must have exactly the frames it should have, in order, once and unchanged (I1
//! to I3), nothing else may be written to its memory (I4), every buffer must be back (I5); and the
//! daemon must have counted just that, by port and by reason.
//!
//! A list that fails is made shorter and printed, with the line that runs it again.
//!
//! - `VIOSWITCH_SEED=n` runs one seed.
//! - `VIOSWITCH_KEEP=3,17,20` keeps these operations of it only.
//! - `VIOSWITCH_LONG=1` runs half a million operations in each test, or for ten minutes.

mod compare;
mod guest;
mod lab;
mod moves;
mod naive;
mod op;
mod run;

use std::time::{Duration, Instant};

use lab::Mode;
use op::{MAKES, Op, PORTS};
use run::{Done, run, shrink};
use testkit::rounds;

/// Operations of one seed. A failure early in a list is seen no later for a longer list, and what
/// few operations lead to comes up in many short ones more often.
const OPS: usize = 400;
/// With ageing: few, as they must be done before anything ages by itself.
const AGEING_OPS: usize = 90;
const LONG_OPS: u64 = 500_000;
const LONG_TIME: Duration = Duration::from_secs(600);
/// Longer than ten minutes' worth of seeds.
const STRIDE: u64 = 1 << 20;

/// The operations of a seed: first all guests come, of some kind.
fn operations(seed: u64, ageing: bool) -> Vec<Op> {
    let kinds = MAKES.len() as u64;
    let make = |port: usize| MAKES[(seed.wrapping_add(port as u64 * 3) % kinds) as usize];
    let mut ops: Vec<Op> =
        (0..PORTS).map(|port| Op::Attach { port, make: Some(make(port)) }).collect();
    ops.extend(op::list(seed, if ageing { AGEING_OPS } else { OPS }, ageing));
    ops
}

fn from_env<T>(name: &str, read: impl Fn(&str) -> Option<T>) -> Option<T> {
    let text = std::env::var(name).ok()?;
    Some(read(&text).unwrap_or_else(|| panic!("{name}={text}")))
}

/// Runs one seed; panics with the shortest list that fails.
fn try_seed(test: &str, seed: u64, mode: Mode) -> Done {
    let all = operations(seed, mode.ageing);
    let list = |text: &str| text.split(',').map(|n| n.trim().parse().ok()).collect();
    let kept: Option<Vec<usize>> = from_env("VIOSWITCH_KEEP", list);
    let keep = kept.unwrap_or_else(|| (0..all.len()).collect());
    let ops: Vec<Op> = keep.iter().map(|&n| all[n].clone()).collect();
    let failure = match run(&ops, mode) {
        Ok(done) => return done,
        Err(failure) => failure,
    };
    let (found, first) = (failure.at, failure.what.clone());
    let (left, failure) = shrink(&ops, mode, failure);
    let shown: Vec<String> = left.iter().map(|&n| format!("    {:?}", ops[n])).collect();
    let numbers: Vec<String> = left.iter().map(|&n| keep[n].to_string()).collect();
    panic!(
        "seed {seed}, operation {found}: {first}\nof these {} operations, after number {}: {}\n{}\n\
         again: VIOSWITCH_SEED={seed} VIOSWITCH_KEEP={} cargo test --test model {test} -- --exact",
        left.len(),
        failure.at + 1,
        failure.what,
        shown.join("\n"),
        numbers.join(","),
    );
}

/// Seeds one after the other until there were enough operations.
fn explore(test: &str, mode: Mode, first: u64, seeds: u64) {
    if let Some(seed) = from_env("VIOSWITCH_SEED", |text| text.parse().ok()) {
        let mode = Mode { compare_every: 1, ..mode };
        println!("seed {seed}: {:?}", try_seed(test, seed, mode));
        return;
    }
    let (began, mut all, mut tried) = (Instant::now(), Done::default(), 0);
    let more = |all: &Done, tried| match testkit::long() && !mode.ageing {
        true => all.ops < LONG_OPS && began.elapsed() < LONG_TIME,
        false => tried < seeds,
    };
    while more(&all, tried) {
        let done = try_seed(test, first + tried, mode);
        all = Done { ops: all.ops + done.ops, frames: all.frames + done.frames };
        tried += 1;
    }
    let (Done { ops, frames }, took) = (all, began.elapsed().as_secs_f64());
    println!("{test}: {tried} seeds, {ops} operations, {frames} frames in {took:.1} s");
}

#[test]
fn one_worker_does_what_the_rules_say() {
    let mode = Mode { workers: 1, ageing: false, compare_every: 8 };
    explore("one_worker_does_what_the_rules_say", mode, 1, rounds(8, 24, 24));
}

#[test]
fn two_workers_do_what_the_rules_say() {
    let mode = Mode { workers: 2, ageing: false, compare_every: 8 };
    explore("two_workers_do_what_the_rules_say", mode, STRIDE, rounds(8, 24, 24));
}

#[test]
#[ignore = "full"]
fn addresses_age_as_the_rules_say() {
    let mode = Mode { workers: 2, ageing: true, compare_every: 8 };
    explore(
        "addresses_age_as_the_rules_say",
        mode,
        2 * STRIDE,
        if testkit::long() { 40 } else { 1 },
    );
}
