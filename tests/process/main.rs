//! The daemon as a process: its configuration, its output, how it starts and ends, and how the next
//! one takes over.

mod cli;
#[cfg(feature = "ctl")]
mod control;
mod first_hour;
mod handover;
mod hook;
mod lab;
mod lifetime;
mod metrics;
#[cfg(feature = "ctl")]
mod sandbox;
mod sockets;
mod surroundings;
#[cfg(feature = "ctl")]
mod system_calls;
