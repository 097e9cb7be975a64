//! Faults from outside and from within: a kernel that refuses, front-ends that are killed or
//! stopped, a log that nobody reads, a worker that panics. Whoever is not concerned loses nothing,
//! and what failed serves again.

#[path = "hostile_faults/clock.rs"]
mod clock;
mod common;
#[path = "hostile_faults/front_ends.rs"]
mod front_ends;
#[path = "uplink/host.rs"]
mod host;
#[path = "hostile_faults/injected.rs"]
mod injected;
#[path = "hostile_faults/lab.rs"]
mod lab;
#[path = "hostile_faults/panics.rs"]
mod panics;
#[path = "hostile_faults/process.rs"]
mod process;
#[path = "hostile_faults/scale.rs"]
mod scale;
#[path = "hostile_faults/stdio.rs"]
mod stdio;
#[path = "hostile_faults/tap.rs"]
mod tap;
