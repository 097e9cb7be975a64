//! Eventfds of front-ends, by which guests are notified. A front-end can make a write to its
//! eventfd block for ever, or take milliseconds of processor time, in a thread that serves other
//! ports too.
//!
//! * [`CallFd`] is the eventfd (in `call`). Nothing outside this module writes to it.
//! * [`SignalSlot`] and [`BlockedWriterWatch`] send signals (in `watch`): a watchdog interrupts a
//!   write that blocks.
//! * [`SignalCost`] has the cost of a port's writes (in `cost`): the port pays for expensive writes
//!   by a pause, and its front-end is dropped after many slow writes.

mod call;
mod cost;
mod watch;

pub(crate) use call::{CallFd, SignalResult};
pub(crate) use cost::{SignalCost, WriteCost};
pub use watch::BlockedWriterWatch;
pub(crate) use watch::SignalSlot;
pub(super) use watch::{RESCUE, prepare_thread};

#[cfg(test)]
mod tests;
