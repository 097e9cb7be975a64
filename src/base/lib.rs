//! Limits, frames as bytes, counters and words, for all crates of vioswitch. No I/O, no clock.

#![forbid(unsafe_code)]

// Sets signals, umask and environment as tests rely on them.
#[cfg(test)]
use testkit as _;

#[macro_use]
pub mod words;

pub mod budget;
pub mod frame;
pub mod limits;
pub mod stats;
