//! Size limits of the table: of the whole and of a port; and each port's list of connections that
//! make room for others.

use std::collections::VecDeque;
use std::sync::{OnceLock, TryLockError};

use super::super::super::sync::{AtomicU32, Mutex, Ordering, spin_loop};
use super::config::ConnectionsConfig;
use super::slots::SlotRef;
use base::limits::{CONNECTION_LOCK_ATTEMPTS, CONNECTIONS_EVICTED, MAX_HALF_OPEN_PER_PORT};

const _: () = assert!(CONNECTIONS_EVICTED < MAX_HALF_OPEN_PER_PORT);

/// Counts of connections.
pub(super) struct Quota {
    total: AtomicU32,
    total_cap: u32,
    port_cap: u32,
    reserved: u32,
    ports: Vec<PortQuota>,
}

/// Connections of one port.
struct PortQuota {
    count: AtomicU32,
    /// Connections that are half-open, or were when they were listed; the oldest first.
    half_open: Fifo,
    /// Connections that have ended.
    ended: Fifo,
}

/// A bounded list of entries, the oldest first. The same slot is in the list twice if a second
/// connection got it. The memory is allocated before the port's first frame.
#[derive(Default)]
struct Fifo(OnceLock<Mutex<VecDeque<SlotRef>>>);

/// Another thread keeps a list locked, or the port has no lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Locked;

/// The lists of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum List {
    HalfOpen,
    Ended,
}

impl Quota {
    pub(super) fn new(config: &ConnectionsConfig) -> Quota {
        let port = || PortQuota {
            count: AtomicU32::new(0),
            half_open: Fifo::default(),
            ended: Fifo::default(),
        };
        Quota {
            total: AtomicU32::new(0),
            total_cap: config.max_entries,
            port_cap: config.max_per_port,
            reserved: config.reserved_per_port,
            ports: (0..config.ports).map(|_| port()).collect(),
        }
    }

    /// Takes room for a connection of a port; false if there is none.
    pub(super) fn take(&self, port: u16) -> bool {
        let Some(quota) = self.ports.get(usize::from(port)) else { return false };
        let Some(before) = count_up_below(&quota.count, self.port_cap) else { return false };
        if before < self.reserved {
            self.total.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        // A port takes no more than it leaves for others: see the head of `connections.rs`.
        let left = self.total_cap.saturating_sub(self.total.load(Ordering::Relaxed));
        let room = before < left && count_up_below(&self.total, self.total_cap).is_some();
        if !room {
            quota.count.fetch_sub(1, Ordering::Relaxed);
        }
        room
    }

    pub(super) fn give_back(&self, port: u16) {
        if let Some(quota) = self.ports.get(usize::from(port)) {
            quota.count.fetch_sub(1, Ordering::Relaxed);
            self.total.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(super) fn total(&self) -> u32 {
        self.total.load(Ordering::Relaxed)
    }

    pub(super) fn of_port(&self, port: u16) -> u32 {
        self.ports.get(usize::from(port)).map_or(0, |quota| quota.count.load(Ordering::Relaxed))
    }

    /// Allocates the lists of a port. A control thread calls this before the port's first frame.
    pub(super) fn prepare(&self, port: u16) {
        for list in [List::HalfOpen, List::Ended] {
            if let Some(Fifo(list)) = self.list(port, list) {
                list.get_or_init(|| Mutex::new(VecDeque::with_capacity(MAX_HALF_OPEN_PER_PORT)));
            }
        }
    }

    fn list(&self, port: u16, list: List) -> Option<&Fifo> {
        let quota = self.ports.get(usize::from(port))?;
        Some(match list {
            List::HalfOpen => &quota.half_open,
            List::Ended => &quota.ended,
        })
    }

    /// Adds a slot to a list of a port. If the list was full, removes its oldest slots and returns
    /// them: the caller removes these connections. An error if another thread keeps the list
    /// locked.
    pub(super) fn push(
        &self,
        port: u16,
        list: List,
        slot: SlotRef,
    ) -> Result<Option<[SlotRef; CONNECTIONS_EVICTED]>, Locked> {
        let pushed = self.list(port, list).ok_or(Locked)?.with(|slots| {
            let is_full = slots.len() == MAX_HALF_OPEN_PER_PORT;
            let oldest = is_full.then(|| {
                let mut oldest = slots.drain(..CONNECTIONS_EVICTED);
                std::array::from_fn(|_| oldest.next().unwrap_or(slot))
            });
            slots.push_back(slot);
            oldest
        });
        pushed.ok_or(Locked)
    }

    /// Removes the oldest slot from a list of a port.
    pub(super) fn pop(&self, port: u16, list: List) -> Option<SlotRef> {
        self.list(port, list)?.with(VecDeque::pop_front)?
    }
}

impl Fifo {
    /// Calls `work` with the list, if the list is allocated and no other thread keeps it for long.
    fn with<T>(&self, work: impl FnOnce(&mut VecDeque<SlotRef>) -> T) -> Option<T> {
        let list = self.0.get()?;
        for _ in 0..CONNECTION_LOCK_ATTEMPTS {
            match list.try_lock() {
                Ok(mut slots) => return Some(work(&mut slots)),
                Err(TryLockError::Poisoned(poison)) => return Some(work(&mut poison.into_inner())),
                Err(TryLockError::WouldBlock) => spin_loop(),
            }
        }
        None
    }
}

/// Adds one unless the count has reached `cap`; returns the count before.
fn count_up_below(count: &AtomicU32, cap: u32) -> Option<u32> {
    let up = |n: u32| (n < cap).then(|| n + 1);
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, up).ok()
}
