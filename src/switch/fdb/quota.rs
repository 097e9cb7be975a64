//! Bounds the number of entries of the table, of each port and of each segment.
//!
//! A guest that sends from a million source addresses may harm its own learning only: the port cap
//! keeps the guest from filling the table, and the first few entries of every port are reserved, so
//! that even many such guests together cannot keep a quiet guest from being learned. Segments are
//! bounded in the same way: the networks of several tenants may be behind one uplink.
//!
//! Refusals are answered with [`Learn`].
//!
//! Static entries count, but no cap applies to them: a port learns as many entries as its cap
//! beside its static ones.
//!
//! An entry is counted before its word is stored, and until after its word is cleared. So a count
//! may be too high for a moment, never too low, and a cap is never exceeded.

use std::sync::OnceLock;

use super::super::segment::PortId;
use super::super::sync::{AtomicU32, Ordering};
use super::{CacheLine, FdbConfig, Learn, Segment};
use base::limits::{FDB_MAX_BRIDGES, FDB_VLANS};

/// Number of entries in each VLAN of a bridge.
type Vlans = OnceLock<Box<[AtomicU32]>>;

struct PortQuota {
    entries: AtomicU32,
    /// Number of static entries among them, to which the cap does not apply.
    configured: AtomicU32,
    cap: AtomicU32,
}

impl PortQuota {
    /// Returns the number of entries that the port may hold now.
    fn most(&self) -> u32 {
        let configured = self.configured.load(Ordering::Relaxed);
        self.cap.load(Ordering::Relaxed).saturating_add(configured)
    }
}

/// The counts, on other cache lines than the data of lookups: learning must not slow forwarding.
pub(super) struct Quota {
    table_cap: u32,
    reserved_per_port: u32,
    segment_cap: u32,
    reserved_per_segment: u32,
    /// Number of entries of the table.
    pub(super) total: CacheLine<AtomicU32>,
    ports: Vec<PortQuota>,
    /// Counts by bridge. Entries of the default segment are not counted here.
    segments: Vec<Vlans>,
}

impl Quota {
    pub(super) fn new(ports: usize, config: &FdbConfig) -> Quota {
        let cap = config.max_per_port;
        let number = AtomicU32::new;
        let port = || PortQuota { entries: number(0), configured: number(0), cap: number(cap) };
        Quota {
            table_cap: config.max_entries,
            reserved_per_port: config.reserved_per_port,
            segment_cap: config.max_per_segment,
            reserved_per_segment: config.reserved_per_segment,
            total: CacheLine(AtomicU32::new(0)),
            ports: (0..ports).map(|_| port()).collect(),
            segments: (0..FDB_MAX_BRIDGES).map(|_| Vlans::new()).collect(),
        }
    }

    pub(super) fn set_port_cap(&self, port: PortId, cap: u32) {
        // A cap of the table's size must not refuse entries reserved for the port and for segments.
        let cap = if cap >= self.table_cap { u32::MAX } else { cap };
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

    /// True if the port would refuse a moving entry. A port that does not exist is full.
    pub(super) fn is_port_full(&self, port: PortId) -> bool {
        let is_full = |quota: &PortQuota| quota.entries.load(Ordering::Relaxed) >= quota.most();
        self.ports.get(usize::from(port)).is_none_or(is_full)
    }

    /// True if one more entry of this port would be among the entries reserved for the port.
    pub(super) fn has_reserve(&self, port: PortId) -> bool {
        self.of_port(port) < self.reserved_per_port
    }

    /// True if all entries of this port are among the entries reserved for the port.
    pub(super) fn is_reserved(&self, port: PortId) -> bool {
        self.of_port(port) <= self.reserved_per_port
    }

    /// Returns why a new entry would be refused now, without taking room. So a port that hammers a
    /// full table is refused without a lock.
    pub(super) fn refusal(&self, port: PortId, segment: Segment) -> Option<Learn> {
        if self.is_port_full(port) {
            return Some(Learn::PortFull);
        }
        let in_segment = self.of_segment(segment).map(|count| count.load(Ordering::Relaxed));
        if in_segment.is_some_and(|count| count >= self.segment_cap) {
            return Some(Learn::SegmentFull);
        }
        let reserved = self.has_reserve(port)
            || in_segment.is_some_and(|count| count < self.reserved_per_segment);
        (!reserved && self.total() >= self.table_cap).then_some(Learn::TableFull)
    }

    /// Takes room for one new entry.
    ///
    /// The table holds at most `table_cap + ports × reserved_per_port + segments ×
    /// reserved_per_segment` entries: an entry beyond `table_cap` is always among the reserved ones
    /// of its port or its segment.
    pub(super) fn take(&self, port: PortId, segment: Segment) -> Result<(), Learn> {
        let before = self.take_port(port)?;
        let Ok(in_segment) = self.take_segment(segment) else {
            self.drop_port(port);
            return Err(Learn::SegmentFull);
        };
        let reserved = before < self.reserved_per_port
            || in_segment.is_some_and(|count| count < self.reserved_per_segment);
        if reserved {
            self.total.0.fetch_add(1, Ordering::Relaxed);
        } else if count_up_below(&self.total.0, self.table_cap).is_none() {
            self.drop_port(port);
            self.drop_segment(segment);
            return Err(Learn::TableFull);
        }
        Ok(())
    }

    /// Takes room for one new static entry; no cap applies.
    pub(super) fn take_static(&self, port: PortId, segment: Segment) {
        self.total.0.fetch_add(1, Ordering::Relaxed);
        self.add_configured(port);
        self.add_segment(segment);
    }

    /// Counts an entry that is displaced by an entry of another segment; after a refusal it stays.
    pub(super) fn change_segment(&self, from: Segment, to: Segment) -> Result<(), Learn> {
        self.take_segment(to)?;
        self.drop_segment(from);
        Ok(())
    }

    /// Counts an entry that is displaced by a static entry of another segment; no cap applies.
    pub(super) fn change_segment_static(&self, from: Segment, to: Segment) {
        self.add_segment(to);
        self.drop_segment(from);
    }

    /// Counts a learned entry that moves to another port; after a refusal it stays.
    pub(super) fn transfer(&self, from: PortId, to: PortId) -> Result<(), Learn> {
        self.take_port(to)?;
        self.drop_port(from);
        Ok(())
    }

    /// Counts a learned entry that becomes a static one of port `to`; no cap applies.
    pub(super) fn transfer_static(&self, from: PortId, to: PortId) {
        self.add_configured(to);
        self.drop_port(from);
    }

    pub(super) fn give_back(&self, port: PortId, segment: Segment, is_static: bool) {
        if is_static && let Some(quota) = self.ports.get(usize::from(port)) {
            quota.configured.fetch_sub(1, Ordering::Relaxed);
        }
        self.drop_port(port);
        self.drop_segment(segment);
        self.total.0.fetch_sub(1, Ordering::Relaxed);
    }

    fn take_port(&self, port: PortId) -> Result<u32, Learn> {
        let quota = self.ports.get(usize::from(port)).ok_or(Learn::PortFull)?;
        count_up_below(&quota.entries, quota.most()).ok_or(Learn::PortFull)
    }

    /// Returns the count of a segment; `None` for the default segment, which is not counted.
    fn of_segment(&self, segment: Segment) -> Option<&AtomicU32> {
        if segment == Segment::DEFAULT {
            return None;
        }
        let none = || (0..FDB_VLANS).map(|_| AtomicU32::new(0)).collect();
        let vlans = self.segments.get(usize::from(segment.bridge()))?.get_or_init(none);
        vlans.get(usize::from(segment.vlan()))
    }

    /// Takes room in a segment. Returns the number of entries before; `None` if it is not counted.
    fn take_segment(&self, segment: Segment) -> Result<Option<u32>, Learn> {
        let count = self.of_segment(segment);
        let taken = count.map(|count| count_up_below(count, self.segment_cap));
        taken.map_or(Ok(None), |before| before.map(Some).ok_or(Learn::SegmentFull))
    }

    fn add_segment(&self, segment: Segment) {
        if let Some(count) = self.of_segment(segment) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn drop_segment(&self, segment: Segment) {
        if let Some(count) = self.of_segment(segment) {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn add_configured(&self, port: PortId) {
        if let Some(quota) = self.ports.get(usize::from(port)) {
            quota.entries.fetch_add(1, Ordering::Relaxed);
            quota.configured.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn drop_port(&self, port: PortId) {
        if let Some(quota) = self.ports.get(usize::from(port)) {
            quota.entries.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Adds one unless the count has reached `cap`; returns the count before.
fn count_up_below(count: &AtomicU32, cap: u32) -> Option<u32> {
    let up = |n: u32| (n < cap).then(|| n + 1);
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, up).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(table_cap: u32, port_cap: u32, reserved: u32) -> Quota {
        Quota::new(
            2,
            &FdbConfig {
                max_entries: table_cap,
                max_per_port: port_cap,
                reserved_per_port: reserved,
                max_per_segment: 3,
                reserved_per_segment: 2,
                age_seconds: 300,
                damping: true,
                ports: 2,
                key: [0; 2],
            },
        )
    }

    #[test]
    fn beyond_the_table_cap_a_port_gets_its_reserve_and_no_more() {
        let quota = quota(4, 100, 2);
        let taken = |port| (0..10).filter(|_| quota.take(port, Segment::DEFAULT).is_ok()).count();
        assert_eq!((taken(0), taken(1)), (4, 2));
        assert_eq!(quota.take(1, Segment::DEFAULT), Err(Learn::TableFull));
        assert_eq!(quota.refusal(1, Segment::DEFAULT), Some(Learn::TableFull));
    }

    #[test]
    fn a_refused_entry_takes_nothing() {
        let quota = quota(3, 2, 0);
        assert_eq!(
            [
                quota.take(0, Segment::DEFAULT),
                quota.take(0, Segment::DEFAULT),
                quota.take(1, Segment::DEFAULT)
            ],
            [Ok(()); 3]
        );
        assert_eq!(quota.take(0, Segment::DEFAULT), Err(Learn::PortFull));
        assert_eq!(quota.take(1, Segment::DEFAULT), Err(Learn::TableFull));
        assert_eq!(quota.transfer(1, 0), Err(Learn::PortFull));
        assert_eq!(quota.take(2, Segment::DEFAULT), Err(Learn::PortFull), "no such port");
        assert_eq!((quota.total(), quota.of_port(0), quota.of_port(1)), (3, 2, 1));
    }

    /// Static entries need no room below a cap, and take none.
    #[test]
    fn a_cap_is_about_learned_entries() {
        let quota = quota(100, 2, 0);
        let fill = || (0..10).filter(|_| quota.take(0, Segment::DEFAULT).is_ok()).count();
        (0..3).for_each(|_| quota.take_static(0, Segment::DEFAULT));
        assert_eq!((fill(), quota.of_port(0)), (2, 5));
        quota.give_back(0, Segment::DEFAULT, true);
        assert_eq!((fill(), quota.is_port_full(0)), (0, true));
        // A learned entry that becomes static makes room for another.
        quota.transfer_static(0, 0);
        assert_eq!((fill(), quota.of_port(0)), (1, 5));
        quota.set_port_cap(0, 1);
        assert_eq!((fill(), quota.refusal(0, Segment::DEFAULT)), (0, Some(Learn::PortFull)));
        // A cap of the table's size: reserved entries come on top.
        quota.set_port_cap(0, 100);
        assert!(!quota.is_port_full(0) && quota.ports[0].most() == u32::MAX);
    }

    #[test]
    fn caps_hold_exactly_when_ports_fill_from_many_threads() {
        let quota = quota(1000, 70, 0);
        let taken = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (quota, taken) = (&quota, &taken);
                scope.spawn(move || {
                    let granted = (0..100)
                        .filter(|_| quota.take(thread % 2, Segment::DEFAULT).is_ok())
                        .count();
                    taken.fetch_add(granted as u32, Ordering::Relaxed);
                });
            }
        });
        assert_eq!((quota.of_port(0), quota.of_port(1), quota.total()), (70, 70, 140));
        assert_eq!(taken.into_inner(), 140);
    }

    /// A large network leaves room for others, and costs the default segment nothing.
    #[test]
    fn a_segment_gets_its_reserve_and_never_more_than_its_cap() {
        let quota = quota(4, 100, 0);
        let [a, b] = [1, 2].map(|vlan| Segment::new(1, vlan));
        let taken = |segment| (0..10).filter(|_| quota.take(0, segment).is_ok()).count();
        assert_eq!((taken(a), taken(Segment::DEFAULT), taken(b)), (3, 1, 2));
        assert_eq!(quota.refusal(0, a), Some(Learn::SegmentFull));
        assert_eq!(quota.refusal(0, b), Some(Learn::TableFull));
        assert_eq!(quota.change_segment(b, a), Err(Learn::SegmentFull));
        quota.give_back(0, a, false);
        assert_eq!(
            (quota.refusal(0, a), quota.change_segment(b, a)),
            (Some(Learn::TableFull), Ok(()))
        );
        assert_eq!((quota.take(0, b), quota.total()), (Ok(()), 6));
    }
}
