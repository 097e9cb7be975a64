//! Defences that confine the harm of a hostile front-end or client to its own port or connection:
//! against writes that block, notifications and closes that take long, memory that vanishes, and
//! floods of log lines and control calls. Each file names the attack, the measurements and the
//! defence.

pub mod bucket;
pub mod client_socket;
pub mod disposal;
pub mod eventfd;
mod presence;
pub mod sigbus;

pub use eventfd::BlockedWriterWatch;
pub(crate) use eventfd::{CallFd, SignalCost, SignalResult, SignalSlot, WriteCost};
pub(crate) use presence::{IsStuck, NOWHERE, Presence, StuckThread};
