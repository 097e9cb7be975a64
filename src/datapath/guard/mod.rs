//! What keeps the harm that a front-end or a client does with itself: writes that block,
//! notifications and closes that take long, memory that vanishes, lines and calls without end. Each
//! file tells the attack, what was measured, and what stands against it.

pub mod blocked_writers;
pub mod bucket;
pub mod call;
pub mod client_socket;
pub mod disposal;
mod presence;
pub mod sigbus;
mod signal_cost;

pub use blocked_writers::{BlockedWriterWatch, SignalSlot};
pub use call::{CallFd, SignalResult};
pub use presence::{IsStalled, NOWHERE, OnStall, Stalled};
pub use signal_cost::{SignalCost, Took};
