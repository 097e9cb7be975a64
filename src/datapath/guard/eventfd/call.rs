//! Call descriptors: the eventfds by which a front-end is notified, and the interrupts by which the
//! kernel's own driver is notified.
//!
//! A write to a call descriptor may block for ever, because the front-end can clear `O_NONBLOCK` at
//! any moment and fill the counter. A write may also cost milliseconds of processor time. So a
//! [`CallFd`] is only signalled through a [`SignalSlot`](super::SignalSlot) or
//! [`BlockedWriterWatch::signal_once`](super::BlockedWriterWatch::signal_once), which watch and
//! measure each write.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;

use super::SignalCost;
use sys::clock;
use sys::descriptor::set_nonblocking;
use sys::eventfd::has_room;
use sys::vduse::Served;

/// Outcome of sending a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignalResult {
    /// The counter went up by one.
    Sent,
    /// The counter is full: a signal is pending already, so no signal is lost.
    Full,
    /// The write blocked and was interrupted, or a write would block now: the front-end cleared
    /// `O_NONBLOCK` and filled the counter. No honest front-end does both; the caller should drop
    /// the front-end.
    Blocked,
    /// The signal was sent, but this write and earlier ones took so much processor time that the
    /// front-end must have put thousands of pollers on the descriptor. The caller should drop the
    /// front-end.
    ManyWaiters,
    /// Any other error, as errno.
    Failed(i32),
}

/// An eventfd that notifies a guest or its front-end, or the interrupt of a ring. Closed on drop.
/// Threads that may signal late hold the `CallFd` in an `Arc`, so that the descriptor's number is
/// not reused meanwhile.
#[derive(Debug)]
pub struct CallFd {
    target: SignalTarget,
    pub(super) cost: Arc<SignalCost>,
    owner: u64,
}

/// The way by which the switch notifies a driver.
#[derive(Debug)]
enum SignalTarget {
    /// The switch writes an eventfd of the front-end.
    Eventfd(OwnedFd),
    /// The switch interrupts the driver for this ring of a VDUSE device.
    Interrupt(Arc<dyn Served>, u32),
}

impl CallFd {
    /// Takes over `fd`, which the caller has checked to be an [eventfd](sys::eventfd::is_eventfd):
    /// a write to another kind of file could do anything. `cost` is shared by all call descriptors
    /// of the port; `owner` is the number of the session that received `fd`.
    pub(crate) fn new(fd: OwnedFd, cost: Arc<SignalCost>, owner: u64) -> CallFd {
        // Fails only on descriptors that are no eventfds. If a front-end clears the flag again, the
        // watch handles the blocked write.
        let _ = set_nonblocking(fd.as_fd());
        CallFd { target: SignalTarget::Eventfd(fd), cost, owner }
    }

    /// Notifies by the interrupt of ring `ring` of `device`. An interrupt never blocks: the kernel
    /// queues the interrupt.
    pub(crate) fn interrupt(
        device: Arc<dyn Served>,
        ring: u32,
        cost: Arc<SignalCost>,
        owner: u64,
    ) -> CallFd {
        CallFd { target: SignalTarget::Interrupt(device, ring), cost, owner }
    }

    /// True if notifications of the port have to wait, because earlier ones were slow or expensive.
    #[inline]
    pub(crate) fn waits(&self) -> bool {
        self.cost.is_watched() && self.cost.waits(clock::cycles())
    }

    /// Returns the number of cycles, from cycle `now` on, that notifications of the port have to
    /// wait.
    pub(crate) fn wait_left(&self, now: u64) -> u64 {
        self.cost.left(now)
    }

    /// Returns the measurements of writes to the port's call descriptors.
    pub(crate) fn cost(&self) -> &SignalCost {
        &self.cost
    }

    /// False for an interrupt: the kernel, which is trusted, queues each of them.
    pub(super) fn is_measured(&self) -> bool {
        matches!(self.target, SignalTarget::Eventfd(_))
    }

    /// Measures the port's next writes, for a second from cycle `now`: earlier writes lasted long.
    #[cold]
    pub(crate) fn watch_cost(&self, now: u64) {
        if self.is_measured() {
            self.cost.watch(now);
        }
    }

    /// Returns how near the port is to being dropped, in cycles; `None` while its writes are not
    /// measured.
    pub(crate) fn suspicion(&self) -> Option<u64> {
        self.cost.is_watched().then(|| self.cost.level(clock::cycles()))
    }

    /// Returns the number of the session that received the descriptor.
    pub(crate) fn owner(&self) -> u64 {
        self.owner
    }

    /// Returns the descriptor's number, for messages.
    pub(crate) fn number(&self) -> RawFd {
        match &self.target {
            SignalTarget::Eventfd(fd) => fd.as_raw_fd(),
            SignalTarget::Interrupt(device, _) => device.as_fd().as_raw_fd(),
        }
    }

    /// Returns the eventfd, for tests that change its flags.
    #[cfg(test)]
    pub(super) fn eventfd(&self) -> &OwnedFd {
        match &self.target {
            SignalTarget::Eventfd(fd) => fd,
            SignalTarget::Interrupt(..) => panic!("an interrupt"),
        }
    }

    /// Writes once. Only a watched thread may call this: the write may block for ever.
    pub(super) fn write(&self) -> SignalResult {
        let fd = match &self.target {
            SignalTarget::Eventfd(fd) => fd,
            SignalTarget::Interrupt(device, ring) => return interrupt(&**device, *ring),
        };
        // One system call: rustix does not repeat an interrupted call.
        match rustix::io::write(fd, &1u64.to_ne_bytes()) {
            Ok(_) => SignalResult::Sent,
            Err(Errno::AGAIN) => SignalResult::Full,
            // A write that finds room never returns EINTR, so this write blocked.
            Err(Errno::INTR) => SignalResult::Blocked,
            Err(error) => SignalResult::Failed(error.raw_os_error()),
        }
    }

    /// Returns the outcome that a write would have now; `None` for [`SignalResult::Sent`].
    pub(super) fn look(&self) -> Option<SignalResult> {
        let SignalTarget::Eventfd(fd) = &self.target else { return None };
        if has_room(self.number()) {
            return None;
        }
        let blocking = fcntl_getfl(fd).is_ok_and(|flags| !flags.contains(OFlags::NONBLOCK));
        Some(if blocking { SignalResult::Blocked } else { SignalResult::Full })
    }
}

#[cold]
#[inline(never)]
fn interrupt(device: &dyn Served, ring: u32) -> SignalResult {
    match device.interrupt(ring) {
        Ok(()) => SignalResult::Sent,
        Err(error) => SignalResult::Failed(error.raw_os_error().unwrap_or(0)),
    }
}
