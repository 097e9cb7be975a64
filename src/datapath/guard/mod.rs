//! Defences that confine the harm of a hostile front-end or client to its own port or connection:
//! against writes that block, notifications and closes that take long, memory that vanishes, and
//! floods of log lines and control calls. Each file names the attack, the measurements and the
//! defence.

pub mod blocked_writers;
pub mod bucket;
pub mod call;
pub mod client_socket;
pub mod disposal;
mod presence;
pub mod sigbus;
mod signal_cost;

pub use blocked_writers::BlockedWriterWatch;
pub(crate) use blocked_writers::SignalSlot;
pub(crate) use call::{CallFd, SignalResult};
pub(crate) use presence::{IsStalled, NOWHERE, Presence, Stalled};
pub(crate) use signal_cost::{SignalCost, WriteCost};
