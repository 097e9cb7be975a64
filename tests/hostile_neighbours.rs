//! I7: what a hostile guest or front-end costs two honest guests beside it. They lose no frame,
//! their median latency at most doubles, no gap is longer than 100 ms, and they keep nine tenths of
//! their rate.
//!
//! `rings` has guests whose rings are costly to serve, `receivers` those that take nothing or
//! little, `shares` those that send what is costly to forward, `floods` those that send from
//! everywhere, `frontends` front-ends that storm, block and loop, `memory` guests whose memory
//! faults.
//!
//! One test at a time: they measure.

mod common;
#[path = "hostile_neighbours/floods.rs"]
mod floods;
#[path = "hostile_neighbours/frontends.rs"]
mod frontends;
#[path = "hostile_neighbours/memory.rs"]
mod memory;
#[path = "hostile_neighbours/receivers.rs"]
mod receivers;
#[path = "hostile_neighbours/rings.rs"]
mod rings;
#[path = "hostile_neighbours/shares.rs"]
mod shares;

use std::sync::{Mutex, MutexGuard};

/// For a test that measures, which all of them do.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
