//! A guest's kick descriptor, and the way in which a worker gets its events.
//!
//! Adding an eventfd to an epoll set, or removing it, takes the lock under which a write to the
//! eventfd wakes all its waiters. With a crowd of waiters a write takes milliseconds
//! (`guard::eventfd`). Meanwhile the epoll set is locked: its worker gets no events, and no
//! other session can change the set.
//!
//! So each kick descriptor has an inner epoll set, and the worker's set watches the inner set. The
//! session's thread creates and ends the inner set with nothing else locked, and the port pays for
//! the time as for signals. Watching the inner set never waits, since no other process has it. So a
//! ring can move to another worker at any time.
//!
//! Each write to the kick descriptor makes the inner set readable, which is an event of the
//! worker's set. No thread takes events from the inner set. When a worker takes events, the kernel
//! polls the inner set under the inner set's lock. So no worker may watch the inner set when its
//! end begins.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::MutexGuard;

use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

use crate::port::{Awaited, GuestPort, Port, RxState};
use crate::ring::SplitRing;
use base::limits::SIGNAL_MICROS;
use sys::clock;
use sys::eventfd::{drain, is_readable};
use sys::usage::cpu_micros;

/// A ring's kick descriptor, and the inner epoll set that watches the descriptor.
#[derive(Debug)]
pub struct KickFd {
    set: Epoll,
    fd: OwnedFd,
}

impl KickFd {
    /// Watches an eventfd of `port`. Called by the session's thread.
    pub(crate) fn watch(fd: OwnedFd, port: &Port) -> io::Result<KickFd> {
        let set = Epoll::new()?;
        let event = EpollEvent::new(EventSet::IN | EventSet::EDGE_TRIGGERED, 0);
        measured(port, || set.ctl(ControlOperation::Add, fd.as_raw_fd(), event))?;
        Ok(KickFd { set, fd })
    }

    /// Stops watching the eventfd. Called by the session's thread, when no worker watches the inner
    /// set.
    pub(crate) fn unwatch(&self, port: &Port) {
        let none = EpollEvent::default();
        // Fails only if the watch has ended before.
        let _ =
            measured(port, || self.set.ctl(ControlOperation::Delete, self.fd.as_raw_fd(), none));
    }

    /// Resets the eventfd's counter to zero: earlier kicks are forgotten.
    pub(crate) fn drain(&self) {
        drain(self.fd.as_raw_fd());
    }

    /// Returns the number of events that a worker gets at once when it begins to watch: 1 if the
    /// eventfd is readable, otherwise 0.
    pub(crate) fn counted(&self) -> u32 {
        u32::from(is_readable(self.fd.as_raw_fd()))
    }
}

/// The descriptor that workers watch: the inner epoll set.
impl AsRawFd for KickFd {
    fn as_raw_fd(&self) -> RawFd {
        self.set.as_raw_fd()
    }
}

/// Runs `work` on a kick descriptor of `port`, and charges the port if much CPU time was used.
fn measured<T>(port: &Port, work: impl FnOnce() -> T) -> T {
    let (used, began) = (cpu_micros(), clock::cycles());
    let done = work();
    let micros = cpu_micros().saturating_sub(used);
    if micros > SIGNAL_MICROS
        && let Some(guest) = port.as_guest()
    {
        let now = clock::cycles();
        let harmful = guest.signal_cost.record(micros, clock::since(began, now), now);
        if harmful && let Some(session) = guest.session() {
            port.evict(session, "its kick descriptor has too many waiters");
        }
    }
    done
}

/// Handles a kick of a guest's receive queue: the guest posted buffers, so the queue can take
/// frames. Kicks stay suppressed while the queue has buffers, as no sender waits for more. Returns
/// the workers that waited for buffers.
pub(super) fn receive_kick(
    port: &Port,
    guest: &GuestPort,
    index: usize,
    mut state: MutexGuard<'_, RxState>,
    kicked: bool,
) -> Awaited {
    let mut waiting = Awaited::default();
    guest.rx[index].stats.kicks.add(kicked.into());
    let suspicious = kicked && never_moves(&mut state);
    let RxState { vring, side, .. } = &mut *state;
    if let Some(ring) = vring.running()
        && (ring.has_work() || ring.enable_kicks())
    {
        ring.suppress_kicks();
        if guest.active() == 0 {
            port.begin();
        }
        guest.set_active(index, true);
        waiting = std::mem::take(&mut side.awaited);
    }
    drop(state);
    if suspicious {
        complain(port);
    }
    waiting
}

/// True, once per start, if a guest kicks a receive queue that has never had a buffer since its
/// start. Such a guest writes to memory other than the shared memory: a front-end with private
/// memory fails in no other visible way. Every driver kicks the receive queue after its first
/// buffers. Kicks of an empty transmit queue mean nothing: DPDK makes one at each start (22.11,
/// `virtio_dev_start`).
fn never_moves(state: &mut RxState) -> bool {
    if state.side.stale_kicks > 0 {
        state.side.stale_kicks -= 1;
        return false;
    }
    state.vring.ring.as_mut().is_some_and(SplitRing::never_moved)
}

/// Logs that a guest's memory seems not to be shared. Not called with a ring's lock held.
fn complain(port: &Port) {
    if port.reports.log.allow() {
        log::warn!(
            "port {}: the guest kicks but its available ring never moves: is its memory shared \
             (QEMU: memory-backend-memfd with share=on)?",
            port.name
        );
    }
}
