//! How many entries the table, each port and each segment may hold.
//!
//! A guest that sends from a million source addresses may spoil its own learning, no other guest's:
//! the port cap keeps it from filling the table, and the first few entries of every port are
//! reserved, so that even many such guests together cannot keep a quiet one from being learned.
//! Segments likewise: behind one uplink are the networks of several tenants.
//!
//! What is refused is answered as [`Learn`] has it.
//!
//! Static entries count, and no cap is about them: beside those a port learns as many as its cap.
//!
//! Counts are taken before a word is stored and given back after it is cleared: a count may be
//! too high for a moment, never too low, so a cap is never exceeded.

use std::sync::OnceLock;

use super::super::sync::{AtomicU32, Ordering};
use super::{CacheLine, FdbConfig, Learn, PortId, Segment};
use base::limits::{FDB_MAX_BRIDGES, FDB_VLANS};

/// Entries of each VLAN of a bridge.
type Vlans = OnceLock<Box<[AtomicU32]>>;

struct PortQuota {
    entries: AtomicU32,
    /// Static ones among them, which the cap leaves out.
    configured: AtomicU32,
    cap: AtomicU32,
}

impl PortQuota {
    /// How many entries it may hold now.
    fn most(&self) -> u32 {
        let configured = self.configured.load(Ordering::Relaxed);
        self.cap.load(Ordering::Relaxed).saturating_add(configured)
    }
}

/// The counts. Their lines are apart from what lookups read: learning must not slow forwarding.
pub(super) struct Quota {
    table_cap: u32,
    reserved_per_port: u32,
    segment_cap: u32,
    reserved_per_segment: u32,
    total: CacheLine<AtomicU32>,
    ports: Vec<PortQuota>,
    /// By bridge. The default segment is not counted.
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
        // One of the table's size leaves the port what is reserved for it and for segments.
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

    /// Whether a move to this port would be refused. A port that does not exist is full.
    pub(super) fn is_port_full(&self, port: PortId) -> bool {
        let is_full = |quota: &PortQuota| quota.entries.load(Ordering::Relaxed) >= quota.most();
        self.ports.get(usize::from(port)).is_none_or(is_full)
    }

    /// True if another entry of this port is among those that are kept for the port.
    pub(super) fn has_reserve(&self, port: PortId) -> bool {
        self.of_port(port) < self.reserved_per_port
    }

    /// True if all entries of this port are among those that are kept for the port.
    pub(super) fn is_reserved(&self, port: PortId) -> bool {
        self.of_port(port) <= self.reserved_per_port
    }

    /// Why a new entry would be refused now, without taking it. Lets a port that hammers a full
    /// table be turned away without touching a lock.
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

    /// Counts an entry the administrator ordered; no cap applies.
    pub(super) fn take_static(&self, port: PortId, segment: Segment) {
        self.total.0.fetch_add(1, Ordering::Relaxed);
        self.add_configured(port);
        self.add_segment(segment);
    }

    /// Counts an entry that gives its place to one of another segment; refused, it keeps it.
    pub(super) fn change_segment(&self, from: Segment, to: Segment) -> Result<(), Learn> {
        self.take_segment(to)?;
        self.drop_segment(from);
        Ok(())
    }

    /// The same by configuration; no cap applies.
    pub(super) fn change_segment_static(&self, from: Segment, to: Segment) {
        self.add_segment(to);
        self.drop_segment(from);
    }

    /// Counts a learned entry that moves; refused, it stays where it is.
    pub(super) fn transfer(&self, from: PortId, to: PortId) -> Result<(), Learn> {
        self.take_port(to)?;
        self.drop_port(from);
        Ok(())
    }

    /// Counts a learned entry that becomes one by configuration; no cap applies.
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

    /// The count of a segment that is counted.
    fn of_segment(&self, segment: Segment) -> Option<&AtomicU32> {
        if segment == Segment::DEFAULT {
            return None;
        }
        let none = || (0..FDB_VLANS).map(|_| AtomicU32::new(0)).collect();
        let vlans = self.segments.get(usize::from(segment.bridge()))?.get_or_init(none);
        vlans.get(usize::from(segment.vlan()))
    }

    /// Takes room in a segment: how many it held, if it is counted.
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

/// Adds one unless the count has reached `cap`; tells the count before.
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

    /// Static entries neither need room below a cap nor take any.
    #[test]
    fn a_cap_is_about_learned_entries() {
        let quota = quota(100, 2, 0);
        let fill = || (0..10).filter(|_| quota.take(0, Segment::DEFAULT).is_ok()).count();
        (0..3).for_each(|_| quota.take_static(0, Segment::DEFAULT));
        assert_eq!((fill(), quota.of_port(0)), (2, 5));
        quota.give_back(0, Segment::DEFAULT, true);
        assert_eq!((fill(), quota.is_port_full(0)), (0, true));
        // A learned one that becomes static makes room for another.
        quota.transfer_static(0, 0);
        assert_eq!((fill(), quota.of_port(0)), (1, 5));
        quota.set_port_cap(0, 1);
        assert_eq!((fill(), quota.refusal(0, Segment::DEFAULT)), (0, Some(Learn::PortFull)));
        // As many as the table: what is reserved comes on top.
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

    /// A network that is large leaves room for the others, and costs the default segment nothing.
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
