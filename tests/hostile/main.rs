//! Hostile guests and front-ends, by what they attack with: chains and rings, messages,
//! memory, streams. What they cost their neighbours is measured in tests/timing, what
//! the system refuses is in tests/hostile_faults.

mod hostile;
mod hostile_datagrams;
mod hostile_memory;
mod hostile_protocol;
mod hostile_rings;
mod hostile_streams;
