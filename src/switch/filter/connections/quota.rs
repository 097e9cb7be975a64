//! Size limits of the table: of the whole and of a port; and each port's lists of connections that
//! make room for others.

use super::super::super::sync::{AtomicU32, Ordering};
use super::config::ConnectionsConfig;
use super::ring::{Oldest, Ring};
use super::slots::SlotRef;

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
    /// Connections that are half-open, or were when they were listed; the oldest first. The same
    /// slot is in the list twice if a second connection got it.
    half_open: Ring,
    /// Connections that have ended.
    ended: Ring,
}

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
            half_open: Ring::default(),
            ended: Ring::default(),
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
        [List::HalfOpen, List::Ended]
            .iter()
            .filter_map(|l| self.list(port, *l))
            .for_each(Ring::prepare);
    }

    #[inline(always)]
    fn list(&self, port: u16, list: List) -> Option<&Ring> {
        let quota = self.ports.get(usize::from(port))?;
        Some(match list {
            List::HalfOpen => &quota.half_open,
            List::Ended => &quota.ended,
        })
    }

    /// Adds a slot to a list of a port. If the list was full, removes its oldest slots and returns
    /// them: the caller removes these connections. The outer `None`: the port has no lists.
    #[inline(always)]
    pub(super) fn push(&self, port: u16, list: List, slot: SlotRef) -> Option<Option<Oldest>> {
        self.list(port, list)?.push(slot)
    }

    /// Removes the oldest slot from a list of a port.
    pub(super) fn pop(&self, port: u16, list: List) -> Option<SlotRef> {
        self.list(port, list)?.pop()
    }
}

/// Adds one unless the count has reached `cap`; returns the count before.
fn count_up_below(count: &AtomicU32, cap: u32) -> Option<u32> {
    let up = |n: u32| (n < cap).then(|| n + 1);
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, up).ok()
}
