//! A guest's memory makes a worker wait: how the wait is noticed, confined and paid for.
//!
//! A front-end can take away pages of the memory that it shares. A thread that then touches such a
//! page waits for the kernel: until a huge page is cleared (0.1 to 0.9 ms), or until a hole around
//! the page has been punched (*measured*: 90 ms for 0.5 GiB, 0.9 s for 6 GiB). The kernel offers no
//! access that does not wait, and all rings of the worker wait as well.
//!
//! * Each worker publishes whose memory it touches, and notices delays that page faults explain
//!   ([`Stalls`], in `delay`). Such a worker copies frames to private memory for a while, so that a
//!   delay has one cause.
//! * The watchdog finds a thread that is stuck (`guard::presence`), and [`Takeovers::relieve`]
//!   assigns a *reserve*: a thread that serves the worker's sources, epoll set and notes until the
//!   worker's own thread is back (in `takeover`; `worker::run` has the two threads' part).
//! * The rings of the VMs whose memory the stuck thread touches are suspended for all workers. When
//!   the thread is back, the port that caused the delay pays: by a pause, the second time by its
//!   session. The kernel's memory, behind a VDUSE device, blocks no thread: its rings go on.

mod delay;
mod takeover;

pub(crate) use delay::{Stall, Stalls};
pub(crate) use takeover::{Duty, Takeover, Takeovers};

#[cfg(test)]
mod tests;
