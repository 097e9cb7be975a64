//! Faults from outside and from within: a kernel that refuses, front-ends that are killed or
//! stopped, a log that is never read, a worker that panics. Other ports lose nothing, and what
//! failed serves again.

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
