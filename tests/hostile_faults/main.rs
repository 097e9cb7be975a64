//! Faults from outside and from within: a kernel that refuses, front-ends that are killed or
//! stopped, a log that nobody reads, a worker that panics. Whoever is not concerned loses nothing,
//! and what failed serves again.

mod clock;
mod front_ends;
mod injected;
mod lab;
mod panics;
mod process;
mod scale;
mod slow_calls;
mod stdio;
mod tap;
