//! Groups, their members and queriers, as forwarding reads them: without a lock, and without
//! waiting for writers. Writers hold the lock of [`Snooping`].
//!
//! A group has a place, one of the [`WINDOW`] places that follow the group's keyed hash, and keeps
//! the place until the group has no member. A reader that misses a group read the table at a moment
//! when the group had no member. Each group has its own serial number; a reader reads a place's
//! serial number before and after the key, so the reader notices when another group takes the
//! place. The number is 0 while the key changes. All other values may be of different moments: each
//! value was true at one of them.
//!
//! [`Snooping`]: super::Snooping

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::hash::BuildHasher;

use super::super::fdb::PortId;
use super::super::segment::Segment;
use super::super::sync::Ordering::{Acquire, Relaxed, Release};
use super::super::sync::{AtomicU16, AtomicU32, AtomicU64, RandomState, fence};
use base::limits::{
    MAX_GROUPS, MAX_PORTS, MAX_SNOOPED_SEGMENTS, MEMBERSHIP_SECONDS, QUERIER_SECONDS,
    RESERVED_GROUPS_PER_SEGMENT,
};

/// Places for groups: twice the largest number of groups, those reserved for segments included.
pub const PLACES: usize =
    (2 * (MAX_GROUPS + MAX_SNOOPED_SEGMENTS * RESERVED_GROUPS_PER_SEGMENT)).next_power_of_two();
/// Places in which a group may be: their tags fill one cache line or two.
const WINDOW: usize = if PLACES < 16 { PLACES } else { 16 };
const WORDS: usize = MAX_PORTS / 64;
const V6: u64 = 1 << 32;

// A place is a `u16`.
const _: () = assert!(PLACES <= 1 << 16 && MAX_PORTS.is_multiple_of(64));

/// A querier of a segment, for IGMP or for MLD.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Querier {
    /// The port at which the querier was heard.
    pub(crate) port: PortId,
    /// Second of the last general query; 0 if there is no querier.
    pub(crate) heard: u32,
    /// Second of a general query that is being answered, and the second in which the time to answer
    /// ends.
    pub(crate) pending: (u32, u32),
    /// Second of the last general query whose time to answer has ended; 0 if there is none.
    pub(crate) asked: u32,
}

impl Querier {
    /// No querier.
    pub(crate) const NONE: Querier = Querier { port: 0, heard: 0, pending: (0, 0), asked: 0 };

    /// True if the querier is heard.
    pub(crate) fn is_present(&self, now: u32) -> bool {
        self.heard > 0 && now < self.heard.saturating_add(QUERIER_SECONDS)
    }

    /// Returns the second of the last query that all hosts had the time to answer; 0 if there is
    /// none.
    pub(crate) fn asked(&self, now: u32) -> u32 {
        if self.pending.1 <= now { self.pending.0.max(self.asked) } else { self.asked }
    }

    /// True if groups can be limited.
    pub(crate) fn limits(&self, now: u32) -> bool {
        self.is_present(now) && self.asked(now) > 0
    }
}

/// A [`Querier`] in atomics.
#[derive(Debug, Default)]
struct QuerierCell {
    port: AtomicU16,
    heard: AtomicU32,
    pending: AtomicU64,
    asked: AtomicU32,
}

#[derive(Debug, Default)]
struct GroupSlot {
    /// Serial number of the group in the place.
    serial: AtomicU32,
    /// Number of the group's segment.
    number: AtomicU16,
    key: [AtomicU64; 3],
    /// Ports with a report, a bit for each.
    members: [AtomicU64; WORDS],
    /// Second of a query about this group, and the second in which the time to answer ends; 0 if
    /// none.
    asked: AtomicU64,
}

/// The arrays of the table, indexed by place or by segment number.
#[derive(Debug)]
pub struct Table {
    hash: RandomState,
    /// A part of the hash of each place's group; 0 if the place is free.
    tags: Box<[AtomicU32]>,
    places: Box<[GroupSlot]>,
    /// Second of each port's last report about the group of each place; 0 if there is none.
    reports: Box<[AtomicU32]>,
    queriers: Box<[[QuerierCell; 2]]>,
}

impl Default for Table {
    fn default() -> Table {
        // Zeroed memory that is not touched before use, as in `fdb::slots`.
        let reports = vec![0u32; PLACES * MAX_PORTS].into_iter().map(AtomicU32::new).collect();
        let queriers = (0..MAX_SNOOPED_SEGMENTS).map(|_| Default::default()).collect();
        Table {
            hash: RandomState::new(),
            tags: (0..PLACES).map(|_| AtomicU32::new(0)).collect(),
            places: (0..PLACES).map(|_| GroupSlot::default()).collect(),
            reports,
            queriers,
        }
    }
}

fn key_of(segment: Segment, group: IpAddr) -> [u64; 3] {
    let segment = u64::from(segment.to_bits());
    match group {
        IpAddr::V4(group) => [segment, 0, u64::from(group.to_bits())],
        IpAddr::V6(group) => [segment | V6, (group.to_bits() >> 64) as u64, group.to_bits() as u64],
    }
}

fn pair(value: u64) -> (u32, u32) {
    ((value >> 32) as u32, value as u32)
}

impl Table {
    /// Returns the first place of a group's window, and the group's tag.
    fn home(&self, key: &[u64; 3]) -> (usize, u32) {
        let hash = self.hash.hash_one(key);
        (hash as usize % PLACES, (hash >> 32) as u32 | 1)
    }

    fn window(first: usize) -> impl Iterator<Item = usize> {
        (first..first + WINDOW).map(|place| place % PLACES)
    }

    /// Returns the key and the serial number of the group in a place.
    fn key(&self, place: usize) -> ([u64; 3], u32) {
        let GroupSlot { serial, key, .. } = &self.places[place];
        let serial = serial.load(Acquire);
        (key.each_ref().map(|word| word.load(Relaxed)), serial)
    }

    /// True if the group of this serial number still has the place. The caller asks after its
    /// reads.
    pub(crate) fn has_serial(&self, place: usize, serial: u32) -> bool {
        fence(Acquire);
        // In this order: a reader that saw the place free never finds the old group there again.
        serial != 0 && self.is_used(place) && self.places[place].serial.load(Relaxed) == serial
    }

    /// True if a group has the place.
    pub(crate) fn is_used(&self, place: usize) -> bool {
        self.tags[place].load(Acquire) != 0
    }

    /// Returns the place of a group, and the group's serial number.
    pub(crate) fn find(&self, segment: Segment, group: IpAddr) -> Option<(usize, u32)> {
        let wanted = key_of(segment, group);
        let (first, tag) = self.home(&wanted);
        Table::window(first).find_map(|place| {
            if self.tags[place].load(Acquire) != tag {
                return None;
            }
            let (key, serial) = self.key(place);
            (key == wanted && self.has_serial(place, serial)).then_some((place, serial))
        })
    }

    /// Returns the group in a place.
    pub(crate) fn group(&self, place: usize) -> Option<(Segment, IpAddr)> {
        if !self.is_used(place) {
            return None;
        }
        let (key, serial) = self.key(place);
        let [first, high, low] = key;
        let group = match first & V6 {
            0 => IpAddr::V4(Ipv4Addr::from_bits(low as u32)),
            _ => IpAddr::V6(Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low))),
        };
        let known = (Segment::from_bits(first as u32), group);
        self.has_serial(place, serial).then_some(known)
    }

    /// Returns the ports with a report about the group of a place.
    pub(crate) fn members(&self, place: usize) -> impl Iterator<Item = PortId> {
        let words = self.places[place].members.iter().enumerate();
        words.flat_map(|(at, word)| {
            let mut bits = word.load(Relaxed);
            std::iter::from_fn(move || {
                let bit = (bits != 0).then(|| bits.trailing_zeros())?;
                bits &= bits - 1;
                Some((64 * at) as PortId + bit as PortId)
            })
        })
    }

    /// Returns the second of a port's last report about the group of a place; 0 if there is none.
    pub(crate) fn reported(&self, place: usize, port: PortId) -> u32 {
        self.reports[place * MAX_PORTS + usize::from(port)].load(Relaxed)
    }

    /// True if the port has reported the group of a place.
    pub(crate) fn has_report(&self, place: usize, port: PortId) -> bool {
        let word = self.places[place].members[usize::from(port) / 64].load(Relaxed);
        word >> (port % 64) & 1 != 0
    }

    /// True if a port that reported is still a member.
    pub(crate) fn is_member(&self, place: usize, port: PortId, now: u32) -> bool {
        let reported = self.reported(place, port);
        let (asked, end) = self.asked(place);
        let has_answered = reported >= asked || now < end;
        has_answered && reported > 0 && now < reported.saturating_add(MEMBERSHIP_SECONDS)
    }

    /// Returns the second of a query about the group of a place, and the second in which the time
    /// to answer ends; zeros if there is no query.
    pub(crate) fn asked(&self, place: usize) -> (u32, u32) {
        pair(self.places[place].asked.load(Relaxed))
    }

    /// Returns the querier for the group of a place, if there is one.
    pub(crate) fn querier(&self, place: usize, group: &IpAddr) -> Option<Querier> {
        let number = self.places[place].number.load(Relaxed);
        Some(self.querier_of(number, group.is_ipv4())).filter(|querier| querier.heard > 0)
    }

    /// Returns the querier of a segment, by the segment's number, for IGMP or MLD.
    pub(crate) fn querier_of(&self, number: u16, is_v4: bool) -> Querier {
        let cell = &self.queriers[usize::from(number)][usize::from(is_v4)];
        Querier {
            heard: cell.heard.load(Relaxed),
            pending: pair(cell.pending.load(Acquire)),
            asked: cell.asked.load(Relaxed),
            port: cell.port.load(Relaxed),
        }
    }
}

/// Writers' functions; the caller holds the lock of [`super::Snooping`].
impl Table {
    /// Gives a group a place; `None` if all places of the group's window are taken.
    pub(crate) fn open(
        &self,
        segment: Segment,
        group: IpAddr,
        number: u16,
        serial: u32,
    ) -> Option<usize> {
        let key = key_of(segment, group);
        let (first, tag) = self.home(&key);
        let place = Table::window(first).find(|place| !self.is_used(*place))?;
        let at = &self.places[place];
        // A reader that sees a word of the new key sees at its second look another serial number
        // than the old one; and a reader that sees the new serial number sees the new key.
        at.serial.store(0, Relaxed);
        fence(Release);
        at.key.iter().zip(key).for_each(|(word, value)| word.store(value, Relaxed));
        at.serial.store(serial, Release);
        at.number.store(number, Relaxed);
        at.asked.store(0, Relaxed);
        self.tags[place].store(tag, Release);
        Some(place)
    }

    /// Frees the place of a group without members. Returns the number of the group's segment.
    pub(crate) fn close(&self, place: usize) -> u16 {
        self.tags[place].store(0, Release);
        self.places[place].number.load(Relaxed)
    }

    /// Notes a port's report about the group of a place.
    pub(crate) fn set_report(&self, place: usize, port: PortId, now: u32) {
        self.reports[place * MAX_PORTS + usize::from(port)].store(now, Relaxed);
        let word = &self.places[place].members[usize::from(port) / 64];
        word.store(word.load(Relaxed) | 1 << (port % 64), Relaxed);
    }

    /// Ends a port's membership in the group of a place.
    pub(crate) fn clear_report(&self, place: usize, port: PortId) {
        let word = &self.places[place].members[usize::from(port) / 64];
        word.store(word.load(Relaxed) & !(1 << (port % 64)), Relaxed);
        self.reports[place * MAX_PORTS + usize::from(port)].store(0, Relaxed);
    }

    /// Notes a query about the group of a place.
    pub(crate) fn set_asked(&self, place: usize, (at, end): (u32, u32)) {
        self.places[place].asked.store(u64::from(at) << 32 | u64::from(end), Relaxed);
    }

    /// Stores the querier of a segment, by the segment's number.
    pub(crate) fn set_querier(&self, number: u16, is_v4: bool, querier: &Querier) {
        let cell = &self.queriers[usize::from(number)][usize::from(is_v4)];
        let (at, end) = querier.pending;
        cell.port.store(querier.port, Relaxed);
        // Before `pending`: a reader that sees the new `pending` sees this `asked`.
        cell.asked.store(querier.asked, Relaxed);
        cell.pending.store(u64::from(at) << 32 | u64::from(end), Release);
        cell.heard.store(querier.heard, Relaxed);
    }
}
