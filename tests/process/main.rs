//! The daemon as a process: how it is told what to do, what it says, how it starts and ends, and
//! how the next one takes over.

mod cli;
#[cfg(feature = "ctl")]
mod control;
mod first_hour;
mod handover;
mod hook;
mod lab;
mod lifetime;
mod metrics;
mod sockets;
mod surroundings;
#[cfg(feature = "ctl")]
mod system_calls;
