//! A guest's kick descriptor, and how its worker hears of it.
//!
//! To begin or end watching an eventfd takes the lock under which a write to it wakes everybody who
//! watches it. With a crowd of pollers that lasts for milliseconds (`guard::signal_cost`), and the
//! epoll set is locked meanwhile: its worker gets no events, and no other session changes it.
//!
//! So each kick has an epoll set of its own, and the worker's set watches that one. The session's
//! thread makes it and ends it, with nothing else locked, and pays for it as for signals. To watch
//! the set itself never waits, as no other process has it; so a ring can go to another worker at
//! any time.
//!
//! A write to the kick makes the set readable, which is an event of the worker's set, each time. No
//! thread takes events from the set itself. The kernel looks into it when the worker takes its own,
//! under its lock, so no worker may watch it when its end begins.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::MutexGuard;

use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

use crate::pipeline::signals::evict;
use crate::port::{Awaited, GuestPort, Port, RxState};
use crate::ring::SplitRing;
use base::limits::SIGNAL_MICROS;
use sys::clock;
use sys::eventfd::{drain, is_readable};
use sys::usage::cpu_micros;

/// The descriptor by which a ring is kicked, and the set that watches it.
#[derive(Debug)]
pub struct KickFd {
    set: Epoll,
    fd: OwnedFd,
}

impl KickFd {
    /// Watches an eventfd of a port's, in its session's thread.
    pub fn watch(fd: OwnedFd, port: &Port) -> io::Result<KickFd> {
        let set = Epoll::new()?;
        let event = EpollEvent::new(EventSet::IN | EventSet::EDGE_TRIGGERED, 0);
        measured(port, || set.ctl(ControlOperation::Add, fd.as_raw_fd(), event))?;
        Ok(KickFd { set, fd })
    }

    /// Ends that, in the same thread, when no worker watches it any more.
    pub fn unwatch(&self, port: &Port) {
        let none = EpollEvent::default();
        // Fails only if it was ended before.
        let _ =
            measured(port, || self.set.ctl(ControlOperation::Delete, self.fd.as_raw_fd(), none));
    }

    /// Takes its counter down to zero: what was kicked so far is forgotten.
    pub fn drain(&self) {
        drain(self.fd.as_raw_fd());
    }

    /// Events that a worker gets at once when it begins to watch it.
    pub fn counted(&self) -> u32 {
        u32::from(is_readable(self.fd.as_raw_fd()))
    }
}

/// What workers watch.
impl AsRawFd for KickFd {
    fn as_raw_fd(&self) -> RawFd {
        self.set.as_raw_fd()
    }
}

/// Does something with a kick descriptor of a port's and holds it against the port if it is slow.
fn measured<T>(port: &Port, work: impl FnOnce() -> T) -> T {
    let (used, began) = (cpu_micros(), clock::cycles());
    let done = work();
    let micros = cpu_micros().saturating_sub(used);
    if micros > SIGNAL_MICROS
        && let Some(guest) = port.as_guest()
    {
        let now = clock::cycles();
        let harmful = guest.signal_cost.took(micros, clock::since(began, now), now);
        if harmful && let Some(session) = guest.session() {
            evict(port, session, "its kick descriptor has too many waiters");
        }
    }
    done
}

/// A guest posted buffers to its receive queue: it can take frames from now on. Kicks stay
/// suppressed while it has held buffers, as no sender waits for more. Returns the workers that
/// waited for these.
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

/// A receive queue kicked without a single buffer since the start means that the guest writes to
/// other memory than we read: a front-end with private memory fails in no other visible way. Every
/// driver kicks it after its first buffers. Kicks of an empty transmit queue mean nothing: DPDK
/// makes one at each start (22.11, `virtio_dev_start`). True once per start.
fn never_moves(state: &mut RxState) -> bool {
    if state.side.stale_kicks > 0 {
        state.side.stale_kicks -= 1;
        return false;
    }
    state.vring.ring.as_mut().is_some_and(SplitRing::never_moved)
}

/// Logs; not to be called with a ring's lock held.
fn complain(port: &Port) {
    if port.log.allow() {
        log::warn!(
            "port {}: the guest kicks but its available ring never moves: is its memory shared \
             (QEMU: memory-backend-memfd with share=on)?",
            port.name
        );
    }
}
