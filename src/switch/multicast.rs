//! Multicast snooping: which ports the frames of a group go to (RFC 4541).
//!
//! A group is known by its bridge, VLAN and IP address, its members by port; sources are of no
//! account. Frames of a group are limited to its members and to ports with `multicast-router=on`
//! only where nothing can be lost by it:
//!
//! * A querier is heard there, by a port that may have one: members report again and again. Without
//!   one, hosts report when they join and never again.
//! * A port gets all frames until hosts behind it had the time to answer a query that was sent
//!   since it came: a guest that migrates does not know that its switch is another one.
//! * The group has a member. All other groups are flooded, and always those of a link
//!   ([`multicast::is_limitable`]).
//!
//! A leave ends nothing: the querier asks whether others of that port stay, and who does not answer
//! that is a member no more. A group that finds no room is not limited, and a port that asks for
//! more than it may gets all frames: limits cost bandwidth and no frame.
//!
//! A worker tries to get the lock, and does without snooping where it does not. Nothing is
//! allocated after the start.
//!
//! [`multicast::is_limitable`]: crate::frame::multicast::is_limitable

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::collections::HashMap;
use std::sync::{
    PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError, TryLockResult,
};

use super::fdb::PortId;
use super::segment::Segment;
use crate::frame::multicast::{
    Malformed, Message, Query, is_limitable, mac as address_of, may_be_query,
};
use crate::limits::{
    MAX_GROUPS, MAX_GROUPS_PER_PORT, MAX_GROUPS_PER_SEGMENT, MAX_PORTS, MAX_QUERY_INTERVAL_SECONDS,
    MAX_QUERY_RESPONSE_SECONDS, MAX_SNOOPED_SEGMENTS, MEMBERSHIP_SECONDS, QUERIER_SECONDS,
    QUERY_GRACE_SECONDS, RESERVED_GROUPS_PER_SEGMENT, SNOOPING_LOCK_ATTEMPTS,
    SNOOPING_SWEEP_GROUPS,
};

/// Places for groups: those that all share, and those that segments keep.
const PLACES: usize = MAX_GROUPS + MAX_SNOOPED_SEGMENTS * RESERVED_GROUPS_PER_SEGMENT;
const WORDS: usize = MAX_PORTS / 64;

// A place is a `u16`.
const _: () = assert!(PLACES <= u16::MAX as usize && MAX_PORTS.is_multiple_of(64));

/// Groups and their members; shared by all workers.
#[derive(Debug)]
pub struct Snooping(RwLock<Table>);

/// Which ports a flooded frame reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// All of its segment.
    All,
    /// Those with multicast routers.
    Routers,
    /// All others.
    Hosts,
    /// None.
    None,
    /// These, and the members of its group.
    Members(Limited),
}

/// A group that is limited to its members, as a worker remembers it through a burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limited {
    place: u16,
    /// Of the group that has that place, and no other one.
    pub serial: u32,
    /// Ports that came before this second have been asked,
    asked: u32,
    /// unless nothing from this port reaches them.
    pub querier: PortId,
    /// The second of which all this is.
    now: u32,
}

/// What became of a report or a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Noted {
    /// It counts.
    Yes,
    /// There is no room for it.
    Full,
    /// Another thread holds the table; the host or querier says it again.
    Busy,
    /// Nothing follows from it.
    Ignored,
}

/// What is known of a port in a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Known {
    /// The segment.
    pub segment: Segment,
    /// The group of which there is a member; of a querier the address that stands for all groups
    /// of its protocol.
    pub group: IpAddr,
    /// Where it is.
    pub port: PortId,
    /// Whether it is a querier.
    pub is_querier: bool,
    /// Seconds since it was heard.
    pub age: u32,
    /// Whether frames of the group are limited; of a querier whether those of any can be.
    pub limits: bool,
}

/// A querier of a segment, for IGMP or for MLD.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Querier {
    /// The port where it was heard.
    port: PortId,
    /// The second of its last query to all.
    heard: u32,
    /// A query that is being answered, and when that is over.
    pending: Option<(u32, u32)>,
    /// The last query of which that is over; 0 if there is none.
    asked: u32,
}

#[derive(Debug)]
struct Table {
    segments: HashMap<Segment, Side>,
    places: HashMap<(Segment, IpAddr), u16>,
    groups: Box<[Place]>,
    free: Vec<u16>,
    /// The second of each port's last report about the group of each place; 0 is none.
    reports: Vec<u32>,
    /// Memberships of each port.
    joined: Box<[u16]>,
    serial: u32,
}

/// A segment with a querier.
#[derive(Debug, Default)]
struct Side {
    v4: Option<Querier>,
    v6: Option<Querier>,
    groups: usize,
}

#[derive(Debug, Clone)]
struct Place {
    key: Option<(Segment, IpAddr)>,
    serial: u32,
    /// Ports with a report.
    members: [u64; WORDS],
    /// A query about this group, and until when it can be answered.
    asked: Option<(u32, u32)>,
}

const FREE: Place = Place { key: None, serial: 0, members: [0; WORDS], asked: None };

impl Querier {
    fn is_present(&self, now: u32) -> bool {
        now < self.heard.saturating_add(QUERIER_SECONDS)
    }

    /// The second of the last query that all have had the time to answer; 0 if there is none.
    fn asked(&self, now: u32) -> u32 {
        self.pending.filter(|(_, end)| *end <= now).map_or(self.asked, |(at, _)| at)
    }
}

impl Side {
    fn of(&self, group: &IpAddr) -> Option<&Querier> {
        if group.is_ipv4() { self.v4.as_ref() } else { self.v6.as_ref() }
    }
}

impl Default for Snooping {
    fn default() -> Snooping {
        Snooping(RwLock::new(Table {
            // Twice as many as there can be: a map that is half full at most never grows.
            segments: HashMap::with_capacity(2 * MAX_SNOOPED_SEGMENTS),
            places: HashMap::with_capacity(2 * PLACES),
            groups: vec![FREE; PLACES].into(),
            free: (0..PLACES as u16).rev().collect(),
            reports: vec![0; PLACES * MAX_PORTS],
            joined: vec![0; MAX_PORTS].into(),
            serial: 0,
        }))
    }
}

/// The table, unless another thread holds it for long.
fn attempt<T>(lock: impl Fn() -> TryLockResult<T>) -> Option<T> {
    (0..SNOOPING_LOCK_ATTEMPTS).find_map(|_| match lock() {
        Ok(table) => Some(table),
        Err(TryLockError::Poisoned(table)) => Some(table.into_inner()),
        Err(TryLockError::WouldBlock) => {
            std::hint::spin_loop();
            None
        }
    })
}

impl Snooping {
    fn try_read(&self) -> Option<RwLockReadGuard<'_, Table>> {
        attempt(|| self.0.try_read())
    }

    fn try_write(&self) -> Option<RwLockWriteGuard<'_, Table>> {
        attempt(|| self.0.try_write())
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// How a group's frames are limited; nothing if they are not.
    pub fn limited(&self, segment: Segment, group: IpAddr, now: u32) -> Option<Limited> {
        let table = self.try_read()?;
        let querier = table.segments.get(&segment)?.of(&group)?;
        let asked = querier.is_present(now).then(|| querier.asked(now)).filter(|at| *at > 0)?;
        let querier = querier.port;
        let place = *table.places.get(&(segment, group))?;
        let serial = table.groups[usize::from(place)].serial;
        let has_members = table.members(place).any(|port| table.is_member(place, port, now));
        has_members.then_some(Limited { place, serial, asked, querier, now })
    }

    /// The limited groups that have an Ethernet address in common, in order.
    pub fn limited_by_mac(
        &self,
        segment: Segment,
        mac: [u8; 6],
        now: u32,
    ) -> Vec<(IpAddr, Limited)> {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let all = table.places.keys().filter(|key| key.0 == segment);
        let mut groups: Vec<_> =
            all.map(|key| key.1).filter(|one| address_of(*one) == mac).collect();
        drop(table);
        groups.sort();
        let limited = |group| Some((group, self.limited(segment, group, now)?));
        groups.into_iter().filter_map(limited).collect()
    }

    /// Asks which ports the frames of a limited group go to, routers apart: `ask` is called with
    /// what answers that for a port, and for the second since when it is what it is.
    pub fn members(&self, of: Limited, ask: impl FnOnce(&dyn Fn(PortId, u32) -> bool)) {
        match self.try_read() {
            Some(table) => ask(&|port, since| since >= of.asked || table.takes(of, port)),
            None => ask(&|_, _| true),
        }
    }

    /// Whether reports of a segment go to routers only: others that hear one would not report
    /// (RFC 4541 section 2.1.1). So it is while the table is busy: that is safe in any case.
    pub fn has_querier(&self, segment: Segment, is_v4: bool, now: u32) -> bool {
        let Some(table) = self.try_read() else { return true };
        let side = table.segments.get(&segment);
        let querier = side.and_then(|side| if is_v4 { side.v4.as_ref() } else { side.v6.as_ref() });
        querier.is_some_and(|querier| querier.is_present(now))
    }

    /// Which ports a frame reaches that may be a message about groups, from a port that may have a
    /// querier or not; nothing if it is none. It begins with these bytes, which say this.
    pub fn reach(
        &self,
        segment: Segment,
        (bytes, message): (&[u8], Result<Option<Message<'_>>, Malformed>),
        may_query: bool,
        now: u32,
    ) -> Option<Reach> {
        let is_v4 = bytes.first() == Some(&1);
        let has_querier = || self.has_querier(segment, is_v4, now);
        let is_query = match message {
            Ok(Some(Message::Report(_))) if has_querier() => return Some(Reach::Routers),
            Ok(Some(Message::Report(_))) => return Some(Reach::All),
            Ok(Some(Message::Query(_))) if may_query => return Some(Reach::All),
            Ok(Some(Message::Query(_))) => true,
            Ok(None) | Err(Malformed) => !may_query && may_be_query(bytes),
        };
        // One that does not count is not heard by queriers, which would yield to a lower address,
        // nor makes hosts speak another version.
        is_query.then(|| if has_querier() { Reach::None } else { Reach::Hosts })
    }

    /// Notes a query from a port that may have a querier.
    pub fn query(&self, segment: Segment, port: PortId, query: &Query, now: u32) -> Noted {
        let Some(mut table) = self.try_write() else { return Noted::Busy };
        match query.group {
            Some(_) if query.suppress || query.has_sources => Noted::Ignored,
            Some(group) => table.ask(segment, group, query.response, now),
            None => table.note_querier(segment, port, query, now),
        }
    }

    /// Notes that a port is a member of these groups, as far as there is a querier. Of a port for
    /// which there is no room it is not known what it is a member of.
    pub fn report(
        &self,
        segment: Segment,
        port: PortId,
        groups: impl Iterator<Item = IpAddr>,
        now: u32,
    ) -> Noted {
        let Some(mut table) = self.try_write() else { return Noted::Busy };
        let mut noted = Noted::Ignored;
        for group in groups.filter(is_limitable) {
            noted = match (table.join(segment, group, port, now), noted) {
                (Noted::Full, _) | (_, Noted::Full) => Noted::Full,
                (Noted::Yes, _) | (_, Noted::Yes) => Noted::Yes,
                _ => Noted::Ignored,
            };
        }
        noted
    }

    /// Begins anew with a port: what is behind it is another one, or in another segment.
    pub fn forget(&self, port: PortId) {
        let has_none = |table: &Table| table.joined[usize::from(port)] == 0;
        if has_none(&self.0.read().unwrap_or_else(PoisonError::into_inner)) {
            return;
        }
        let mut table = self.write();
        for place in 0..PLACES as u16 {
            table.clear(place, port);
        }
    }

    /// Removes what ended; not part of the data path.
    pub fn sweep(&self, now: u32) {
        for first in (0..PLACES).step_by(SNOOPING_SWEEP_GROUPS) {
            let mut table = self.write();
            (first..PLACES.min(first + SNOOPING_SWEEP_GROUPS))
                .for_each(|place| table.sweep(place as u16, now));
        }
        let present = |querier: &Option<Querier>| querier.is_some_and(|one| one.is_present(now));
        let is_used = |side: &Side| side.groups > 0 || present(&side.v4) || present(&side.v6);
        self.write().segments.retain(|_, side| is_used(side));
    }

    /// All queriers that are heard; not part of the data path.
    pub fn queriers(&self, now: u32) -> Vec<Known> {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let queriers = table.segments.iter().flat_map(|(segment, side)| {
            let v4 = side.v4.map(|querier| (IpAddr::V4(Ipv4Addr::UNSPECIFIED), querier));
            let v6 = side.v6.map(|querier| (IpAddr::V6(Ipv6Addr::UNSPECIFIED), querier));
            v4.into_iter().chain(v6).map(|(group, querier)| (*segment, group, querier))
        });
        let present = queriers.filter(|(.., querier)| querier.is_present(now));
        let known = present.map(|(segment, group, querier)| {
            let (age, limits) = (now.saturating_sub(querier.heard), querier.asked(now) > 0);
            Known { segment, group, port: querier.port, is_querier: true, age, limits }
        });
        let mut all: Vec<_> = known.collect();
        all.sort_unstable();
        all
    }

    /// Members of groups, `most` of them from a position on, 0 at first, and the next position if
    /// there are more. Not part of the data path: others wait for [`SNOOPING_SWEEP_GROUPS`] places
    /// at most.
    pub fn memberships(&self, mut at: usize, most: usize, now: u32) -> (Vec<Known>, Option<usize>) {
        let mut found = Vec::new();
        while at < PLACES * MAX_PORTS {
            let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
            let first = at / MAX_PORTS;
            for place in first..PLACES.min(first + SNOOPING_SWEEP_GROUPS) {
                for known in table.known(place as u16, now) {
                    let position = place * MAX_PORTS + usize::from(known.port);
                    if position >= at && found.len() == most {
                        return (found, Some(position));
                    }
                    found.extend(Some(known).filter(|_| position >= at));
                }
                at = (place + 1) * MAX_PORTS;
            }
        }
        (found, None)
    }

    /// How many groups there are, and how many memberships of ports in them.
    pub fn sizes(&self) -> (usize, u64) {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        (table.places.len(), table.joined.iter().map(|count| u64::from(*count)).sum())
    }
}

impl Table {
    fn reported(&self, place: u16, port: PortId) -> u32 {
        self.reports[usize::from(place) * MAX_PORTS + usize::from(port)]
    }

    /// The ports with a report about a group.
    fn members(&self, place: u16) -> impl Iterator<Item = PortId> + use<> {
        let words = self.groups[usize::from(place)].members;
        words.into_iter().enumerate().flat_map(|(at, mut bits)| {
            std::iter::from_fn(move || {
                let bit = (bits != 0).then(|| bits.trailing_zeros())?;
                bits &= bits - 1;
                Some((64 * at) as PortId + bit as PortId)
            })
        })
    }

    /// Whether a port that reported is a member still.
    fn is_member(&self, place: u16, port: PortId, now: u32) -> bool {
        let reported = self.reported(place, port);
        let answered = match self.groups[usize::from(place)].asked {
            Some((at, end)) => reported >= at || now < end,
            None => true,
        };
        answered && reported > 0 && now < reported.saturating_add(MEMBERSHIP_SECONDS)
    }

    /// The members of a group.
    fn known(&self, place: u16, now: u32) -> impl Iterator<Item = Known> {
        let key = self.groups[usize::from(place)].key;
        let limits = key.is_some_and(|(segment, group)| {
            let querier = self.segments.get(&segment).and_then(|side| side.of(&group));
            querier.is_some_and(|one| one.is_present(now) && one.asked(now) > 0)
        });
        let members = key.into_iter().flat_map(move |key| {
            self.members(place).map(move |port| (key, port, self.reported(place, port)))
        });
        let members = members.filter(move |(_, port, _)| self.is_member(place, *port, now));
        members.map(move |((segment, group), port, reported)| {
            let age = now.saturating_sub(reported);
            Known { segment, group, port, is_querier: false, age, limits }
        })
    }

    fn takes(&self, of: Limited, port: PortId) -> bool {
        self.groups[usize::from(of.place)].serial != of.serial
            || self.is_member(of.place, port, of.now)
    }

    fn note_querier(&mut self, segment: Segment, port: PortId, query: &Query, now: u32) -> Noted {
        let slow = query.interval.is_some_and(|seconds| seconds > MAX_QUERY_INTERVAL_SECONDS);
        if slow || query.response > MAX_QUERY_RESPONSE_SECONDS {
            return Noted::Ignored;
        }
        if !self.segments.contains_key(&segment) && self.segments.len() == MAX_SNOOPED_SEGMENTS {
            return Noted::Full;
        }
        let side = self.segments.entry(segment).or_default();
        let place = if query.from.is_ipv4() { &mut side.v4 } else { &mut side.v6 };
        let known = place.filter(|querier| querier.is_present(now));
        let asked = known.map_or(0, |querier| querier.asked(now));
        let running = known.and_then(|one| one.pending).filter(|(_, end)| *end > now);
        let pending = running.or(Some((now, now + query.response + QUERY_GRACE_SECONDS)));
        *place = Some(Querier { port, heard: now, pending, asked });
        Noted::Yes
    }

    /// A query about one group: who does not answer it is a member no more.
    fn ask(&mut self, segment: Segment, group: IpAddr, response: u32, now: u32) -> Noted {
        let Some(place) = self.places.get(&(segment, group)) else { return Noted::Ignored };
        let asked = &mut self.groups[usize::from(*place)].asked;
        // It is sent twice: the first one counts, until both are answered.
        if asked.is_none_or(|(_, end)| end <= now) {
            let response = response.min(MAX_QUERY_RESPONSE_SECONDS);
            *asked = Some((now, now + 2 * response + QUERY_GRACE_SECONDS));
        }
        Noted::Yes
    }

    fn join(&mut self, segment: Segment, group: IpAddr, port: PortId, now: u32) -> Noted {
        let querier = self.segments.get(&segment).and_then(|side| side.of(&group));
        if !querier.is_some_and(|querier| querier.is_present(now)) {
            return Noted::Ignored;
        }
        let place = self.places.get(&(segment, group)).copied();
        let (word, bit) = (usize::from(port) / 64, 1 << (port % 64));
        let is_new = place.is_none_or(|at| self.groups[usize::from(at)].members[word] & bit == 0);
        if is_new && self.joined[usize::from(port)] >= MAX_GROUPS_PER_PORT {
            return Noted::Full;
        }
        let Some(place) = place.or_else(|| self.open(segment, group)) else { return Noted::Full };
        self.reports[usize::from(place) * MAX_PORTS + usize::from(port)] = now.max(1);
        if is_new {
            self.groups[usize::from(place)].members[word] |= bit;
            self.joined[usize::from(port)] += 1;
        }
        Noted::Yes
    }

    /// Makes room for a group, if its segment may have one more.
    fn open(&mut self, segment: Segment, group: IpAddr) -> Option<u16> {
        let side = self.segments.get_mut(&segment)?;
        let is_full = self.places.len() >= MAX_GROUPS;
        let most = if is_full { RESERVED_GROUPS_PER_SEGMENT } else { MAX_GROUPS_PER_SEGMENT };
        if side.groups >= most {
            return None;
        }
        let place = self.free.pop()?;
        side.groups += 1;
        self.serial = self.serial.wrapping_add(1);
        let key = Some((segment, group));
        self.groups[usize::from(place)] = Place { key, serial: self.serial, ..FREE };
        self.places.insert((segment, group), place);
        Some(place)
    }

    /// Ends a membership; the group is as it was otherwise.
    fn clear(&mut self, place: u16, port: PortId) {
        let (word, bit) = (usize::from(port) / 64, 1 << (port % 64));
        let members = &mut self.groups[usize::from(place)].members[word];
        if *members & bit != 0 {
            *members &= !bit;
            self.reports[usize::from(place) * MAX_PORTS + usize::from(port)] = 0;
            self.joined[usize::from(port)] -= 1;
        }
    }

    fn sweep(&mut self, place: u16, now: u32) {
        let Some(key) = self.groups[usize::from(place)].key else { return };
        for port in self.members(place) {
            if !self.is_member(place, port, now) {
                self.clear(place, port);
            }
        }
        if self.groups[usize::from(place)].members == [0; WORDS] {
            self.groups[usize::from(place)] = FREE;
            self.places.remove(&key);
            self.free.push(place);
            if let Some(side) = self.segments.get_mut(&key.0) {
                side.groups -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests;
