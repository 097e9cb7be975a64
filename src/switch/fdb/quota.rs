//! How many entries the table and each port may hold.
//!
//! A guest that sends from a million source addresses may spoil its own learning, no other guest's:
//! the port cap keeps it from filling the table, and the first few entries of every port are
//! reserved, so that even many such guests together cannot keep a quiet one from being learned.
//!
//! What is refused is answered as [`Learn`] has it.
//!
//! Counts are taken before a word is stored and given back after it is cleared: a count may be
//! too high for a moment, never too low, so a cap is never exceeded.

use super::sync::{AtomicU32, Ordering};
use super::{CacheLine, Learn, PortId};

struct PortQuota {
    entries: AtomicU32,
    cap: AtomicU32,
}

/// The counts. Their lines are apart from what lookups read: learning must not slow forwarding.
pub(super) struct Quota {
    table_cap: u32,
    reserved_per_port: u32,
    total: CacheLine<AtomicU32>,
    ports: Vec<PortQuota>,
}

impl Quota {
    pub(super) fn new(ports: usize, table_cap: u32, port_cap: u32, reserved: u32) -> Quota {
        let port = || PortQuota { entries: AtomicU32::new(0), cap: AtomicU32::new(port_cap) };
        Quota {
            table_cap,
            reserved_per_port: reserved,
            total: CacheLine(AtomicU32::new(0)),
            ports: (0..ports).map(|_| port()).collect(),
        }
    }

    pub(super) fn set_port_cap(&self, port: PortId, cap: u32) {
        if let Some(quota) = self.ports.get(usize::from(port)) {
            quota.cap.store(cap, Ordering::Relaxed);
        }
    }

    pub(super) fn knows(&self, port: PortId) -> bool {
        usize::from(port) < self.ports.len()
    }

    pub(super) fn total(&self) -> u32 {
        self.total.0.load(Ordering::Relaxed)
    }

    pub(super) fn of_port(&self, port: PortId) -> u32 {
        self.ports.get(usize::from(port)).map_or(0, |quota| quota.entries.load(Ordering::Relaxed))
    }

    /// Whether a move to this port would be refused. A port that does not exist is full.
    pub(super) fn is_port_full(&self, port: PortId) -> bool {
        self.ports.get(usize::from(port)).is_none_or(|quota| {
            quota.entries.load(Ordering::Relaxed) >= quota.cap.load(Ordering::Relaxed)
        })
    }

    /// Why a new entry would be refused now, without taking it. Lets a port that hammers a full
    /// table be turned away without touching a lock.
    pub(super) fn refusal(&self, port: PortId) -> Option<Learn> {
        if self.is_port_full(port) {
            return Some(Learn::PortFull);
        }
        let reserved = self.of_port(port) < self.reserved_per_port;
        (!reserved && self.total() >= self.table_cap).then_some(Learn::TableFull)
    }

    /// Takes room for one new entry.
    ///
    /// The table holds at most `table_cap + ports × reserved_per_port` entries: an entry beyond
    /// `table_cap` is always among its port's reserved ones.
    pub(super) fn take(&self, port: PortId) -> Result<(), Learn> {
        let before = self.take_port(port)?;
        if before < self.reserved_per_port {
            self.total.0.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        if count_up_below(&self.total.0, self.table_cap).is_none() {
            self.drop_port(port);
            return Err(Learn::TableFull);
        }
        Ok(())
    }

    /// Counts an entry the administrator ordered; no cap applies.
    pub(super) fn take_static(&self, port: PortId) {
        self.total.0.fetch_add(1, Ordering::Relaxed);
        self.add_port(port);
    }

    /// Counts a learned entry that moves; refused, it stays where it is.
    pub(super) fn transfer(&self, from: PortId, to: PortId) -> Result<(), Learn> {
        self.take_port(to)?;
        self.drop_port(from);
        Ok(())
    }

    /// Counts an entry that moves by configuration; no cap applies.
    pub(super) fn transfer_static(&self, from: PortId, to: PortId) {
        self.add_port(to);
        self.drop_port(from);
    }

    pub(super) fn give_back(&self, port: PortId) {
        self.drop_port(port);
        self.total.0.fetch_sub(1, Ordering::Relaxed);
    }

    fn take_port(&self, port: PortId) -> Result<u32, Learn> {
        let quota = self.ports.get(usize::from(port)).ok_or(Learn::PortFull)?;
        count_up_below(&quota.entries, quota.cap.load(Ordering::Relaxed)).ok_or(Learn::PortFull)
    }

    fn add_port(&self, port: PortId) {
        if let Some(quota) = self.ports.get(usize::from(port)) {
            quota.entries.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn drop_port(&self, port: PortId) {
        if let Some(quota) = self.ports.get(usize::from(port)) {
            quota.entries.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Adds one unless the count has reached `cap`; tells the count before.
fn count_up_below(count: &AtomicU32, cap: u32) -> Option<u32> {
    let up = |n: u32| (n < cap).then(|| n + 1);
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, up).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_the_table_cap_a_port_gets_its_reserve_and_no_more() {
        let quota = Quota::new(2, 4, 100, 2);
        let taken = |port| (0..10).filter(|_| quota.take(port).is_ok()).count();
        assert_eq!((taken(0), taken(1)), (4, 2));
        assert_eq!(quota.take(1), Err(Learn::TableFull));
        assert_eq!(quota.refusal(1), Some(Learn::TableFull));
    }

    #[test]
    fn a_refused_entry_takes_nothing() {
        let quota = Quota::new(2, 3, 2, 0);
        assert_eq!([quota.take(0), quota.take(0), quota.take(1)], [Ok(()); 3]);
        assert_eq!(quota.take(0), Err(Learn::PortFull));
        assert_eq!(quota.take(1), Err(Learn::TableFull));
        assert_eq!(quota.transfer(1, 0), Err(Learn::PortFull));
        assert_eq!(quota.take(2), Err(Learn::PortFull), "no such port");
        assert_eq!((quota.total(), quota.of_port(0), quota.of_port(1)), (3, 2, 1));
    }

    #[test]
    fn caps_hold_exactly_when_ports_fill_from_many_threads() {
        let quota = Quota::new(2, 1000, 70, 0);
        let taken = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (quota, taken) = (&quota, &taken);
                scope.spawn(move || {
                    let granted = (0..100).filter(|_| quota.take(thread % 2).is_ok()).count();
                    taken.fetch_add(granted as u32, Ordering::Relaxed);
                });
            }
        });
        assert_eq!((quota.of_port(0), quota.of_port(1), quota.total()), (70, 70, 140));
        assert_eq!(taken.into_inner(), 140);
    }
}
