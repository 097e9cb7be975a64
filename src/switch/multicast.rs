//! Multicast snooping: decides which ports get the frames of a group (RFC 4541).
//!
//! A group is identified by bridge, VLAN and IP address, its members by port; sources are ignored.
//! Frames of a group are limited to the group's members and to ports with `multicast-router=on`,
//! but only where no frame can be lost by the limit:
//!
//! * A querier is heard in the segment, by a port that may have one: members then report again and
//!   again. Without a querier, hosts report when they join and never again.
//! * A port gets all frames until the hosts behind the port had the time to answer a query that was
//!   sent since the port came: a guest that migrates does not know that its switch is another one.
//! * The group has a member. Frames of all other groups are flooded, and always those of link-local
//!   groups ([`multicast::is_limitable`]).
//!
//! A leave ends no membership: the querier asks whether other hosts behind the port stay, and a
//! port that does not answer the query is no longer a member. A group that finds no room is not
//! limited, and a port that reports more groups than it may gets all frames: snooping costs
//! bandwidth and no frame.
//!
//! Forwarding reads the table without a lock (`table`). A writer holds a lock for one record at a
//! time. A worker only tries to get the lock, and a port writes at most
//! [`MEMBERSHIP_RECORDS_PER_SECOND`] records. Nothing is allocated after the start.
//!
//! [`multicast::is_limitable`]: base::frame::multicast::is_limitable

mod table;

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::collections::HashMap;
use std::sync::{PoisonError, TryLockError};

use super::fdb::PortId;
use super::segment::Segment;
use super::sync::{Mutex, MutexGuard, spin_loop};
use base::frame::multicast::{Message, Query, Refused, is_limitable, mac as address_of};
use base::limits::{
    MAX_GROUPS, MAX_GROUPS_PER_PORT, MAX_GROUPS_PER_SEGMENT, MAX_PORTS, MAX_QUERY_INTERVAL_SECONDS,
    MAX_QUERY_RESPONSE_SECONDS, MAX_SNOOPED_SEGMENTS, MEMBERSHIP_RECORDS_PER_SECOND,
    QUERY_GRACE_SECONDS, RESERVED_GROUPS_PER_SEGMENT, SNOOPING_LOCK_ATTEMPTS,
};
use base::stats::DropReason;
use table::{PLACES, Querier, Table};

/// Groups and their members; shared by all workers.
#[derive(Debug)]
pub struct Snooping {
    table: Table,
    accounts: Mutex<Accounts>,
}

/// The ports that a flooded frame reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// All ports of the frame's segment.
    All,
    /// Ports with multicast routers.
    Routers,
    /// Ports with multicast routers, and the members of the frame's group.
    Members(Limited),
}

/// A group that is limited to its members, as a worker remembers it through a burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limited {
    place: u16,
    /// Serial number of the group; another group in the same place has another number.
    pub serial: u32,
    /// Second of the querier's last query: ports that came before this second have been asked.
    asked: u32,
    /// Port of the querier; a port that frames from this port do not reach has not been asked.
    pub querier: PortId,
    /// The second in which the group was looked up.
    now: u32,
}

/// Outcome of a report or a query; of several records, the last outcome in this list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Noted {
    /// The message changes nothing.
    Ignored,
    /// The message is noted.
    Yes,
    /// Another thread holds the lock; the host or querier will repeat the message.
    Busy,
    /// There is no room for the group, member or querier.
    Full,
    /// The port has reported too often in this second.
    TooMany,
}

/// A member or a querier in a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Known {
    /// The segment.
    pub segment: Segment,
    /// The member's group; for a querier the unspecified address of its IP version.
    pub group: IpAddr,
    /// Port of the member or querier.
    pub port: PortId,
    /// True for a querier.
    pub is_querier: bool,
    /// Seconds since the member or querier was heard.
    pub age: u32,
    /// True if frames of the group can be limited; for a querier, if frames of any group can be.
    pub limits: bool,
}

/// Counts that only writers need.
#[derive(Debug)]
struct Accounts {
    /// Segments with a querier, and the number of each, which indexes the table's queriers.
    segments: HashMap<Segment, u16>,
    /// Groups of each segment, by the segment's number.
    groups: [usize; MAX_SNOOPED_SEGMENTS],
    /// Groups of all segments.
    count: usize,
    /// Memberships of each port.
    joined: Box<[u16]>,
    /// The second of each port's last record, and the records of that second.
    records: Box<[(u32, u32)]>,
    serial: u32,
}

/// Returns the ports that a message about groups reaches; `Ok(None)` if the message goes where its
/// addresses say, and an error is the reason of the drop. `may_query`: the ingress port may have a
/// querier or a multicast router. A host that hears a report would not report itself, and a querier
/// that hears a query would yield to a lower address (RFC 4541 section 2.1.1).
pub fn reach(
    message: &Result<Option<Message<'_>>, Refused>,
    may_query: bool,
) -> Result<Option<Reach>, DropReason> {
    match message {
        Ok(None) => Ok(None),
        Ok(Some(Message::Report(_))) => Ok(Some(Reach::Routers)),
        Ok(Some(_)) if may_query => Ok(Some(Reach::All)),
        Ok(Some(_)) => Err(DropReason::Querier),
        Err(_) => Err(DropReason::Membership),
    }
}

impl Default for Snooping {
    fn default() -> Snooping {
        let accounts = Accounts {
            // Twice the largest number of segments: a map that is at most half full never grows.
            segments: HashMap::with_capacity(2 * MAX_SNOOPED_SEGMENTS),
            groups: [0; MAX_SNOOPED_SEGMENTS],
            count: 0,
            joined: vec![0; MAX_PORTS].into(),
            records: vec![(0, 0); MAX_PORTS].into(),
            serial: 0,
        };
        Snooping { table: Table::default(), accounts: Mutex::new(accounts) }
    }
}

impl Snooping {
    /// Takes the lock, unless another thread holds the lock for long.
    fn try_lock(&self) -> Option<MutexGuard<'_, Accounts>> {
        (0..SNOOPING_LOCK_ATTEMPTS).find_map(|_| match self.accounts.try_lock() {
            Ok(accounts) => Some(accounts),
            Err(TryLockError::Poisoned(accounts)) => Some(accounts.into_inner()),
            Err(TryLockError::WouldBlock) => {
                spin_loop();
                None
            }
        })
    }

    fn lock(&self) -> MutexGuard<'_, Accounts> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how a group's frames are limited; `None` if they are not.
    pub fn limited(&self, segment: Segment, group: IpAddr, now: u32) -> Option<Limited> {
        let table = &self.table;
        let (place, serial) = table.find(segment, group)?;
        let querier = table.querier(place, &group).filter(|querier| querier.limits(now))?;
        let has_members = table.members(place).any(|port| table.is_member(place, port, now));
        let (asked, querier) = (querier.asked(now), querier.port);
        // A group that ended meanwhile has no member.
        let is_limited = has_members && table.has_serial(place, serial);
        is_limited.then_some(Limited { place: place as u16, serial, asked, querier, now })
    }

    /// Returns the limited groups that share an Ethernet address, in order; not for the data path.
    pub fn limited_by_mac(
        &self,
        segment: Segment,
        mac: [u8; 6],
        now: u32,
    ) -> Vec<(IpAddr, Limited)> {
        let all = (0..PLACES).filter_map(|place| self.table.group(place));
        let is_wanted = |one: &(Segment, IpAddr)| one.0 == segment && address_of(one.1) == mac;
        let mut groups: Vec<IpAddr> = all.filter(is_wanted).map(|one| one.1).collect();
        groups.sort();
        let limited = |group| Some((group, self.limited(segment, group, now)?));
        groups.into_iter().filter_map(limited).collect()
    }

    /// True if frames of a limited group go to a port, whose hosts have not changed since second
    /// `since`. Ports with multicast routers are not considered. Frames of a group that ended go to
    /// all ports.
    pub fn takes(&self, of: Limited, port: PortId, since: u32) -> bool {
        let place = usize::from(of.place);
        since >= of.asked
            || self.table.is_member(place, port, of.now)
            || !self.table.has_serial(place, of.serial)
    }

    /// Notes a query from a port that may have a querier.
    pub fn query(&self, segment: Segment, port: PortId, query: &Query, now: u32) -> Noted {
        match query.group {
            Some(_) if query.suppress || query.has_sources => Noted::Ignored,
            Some(group) => self.ask(segment, group, query.response, now),
            None => self.note_querier(segment, port, query, now),
        }
    }

    /// Notes that a port is a member of these groups, if the segment has a querier. After an answer
    /// other than [`Noted::Yes`] and [`Noted::Ignored`] the port's memberships are unknown: the
    /// caller must let the port get all frames until the port is asked again.
    pub fn report(
        &self,
        segment: Segment,
        port: PortId,
        groups: impl Iterator<Item = IpAddr>,
        now: u32,
    ) -> Noted {
        let mut noted = Noted::Ignored;
        for group in groups.filter(is_limitable) {
            // The lock is held for one record at a time, since other workers want the lock too.
            noted = noted.max(self.join(segment, group, port, now));
            if noted == Noted::TooMany {
                break;
            }
        }
        noted
    }

    /// Forgets a port's reports: another device is behind the port, or the port is in another
    /// segment.
    pub fn forget(&self, port: PortId) {
        for place in (0..PLACES).filter(|place| self.table.has_report(*place, port)) {
            self.lock().clear(&self.table, place, port);
        }
    }

    /// Removes ended memberships, groups and segments; not for the data path.
    pub fn sweep(&self, now: u32) {
        for place in (0..PLACES).filter(|place| self.table.is_used(*place)) {
            self.lock().sweep(&self.table, place, now);
        }
        let Accounts { segments, groups, .. } = &mut *self.lock();
        segments.retain(|_, number| {
            let is_used = |is_v4| self.table.querier_of(*number, is_v4).is_present(now);
            groups[usize::from(*number)] > 0 || is_used(true) || is_used(false)
        });
    }

    /// Returns all queriers that are heard; not for the data path.
    pub fn queriers(&self, now: u32) -> Vec<Known> {
        let accounts = self.lock();
        let queriers = accounts.segments.iter().flat_map(|(segment, number)| {
            let v4 = (IpAddr::V4(Ipv4Addr::UNSPECIFIED), self.table.querier_of(*number, true));
            let v6 = (IpAddr::V6(Ipv6Addr::UNSPECIFIED), self.table.querier_of(*number, false));
            [v4, v6].map(|(group, querier)| (*segment, group, querier))
        });
        let present = queriers.filter(|(.., querier)| querier.is_present(now));
        let known = present.map(|(segment, group, querier)| {
            let (age, limits) = (now.saturating_sub(querier.heard), querier.limits(now));
            Known { segment, group, port: querier.port, is_querier: true, age, limits }
        });
        let mut all: Vec<_> = known.collect();
        all.sort_unstable();
        all
    }

    /// Returns a page of at most `most` memberships that begins at position `at` (0 for the first
    /// page), and the position of the next page, if there is one. Too slow for the data path.
    pub fn memberships(&self, at: usize, most: usize, now: u32) -> (Vec<Known>, Option<usize>) {
        let mut found = Vec::new();
        for place in at / MAX_PORTS..PLACES {
            for known in self.known(place, now) {
                let position = place * MAX_PORTS + usize::from(known.port);
                if position >= at && found.len() == most {
                    return (found, Some(position));
                }
                found.extend(Some(known).filter(|_| position >= at));
            }
        }
        (found, None)
    }

    /// Returns the members of the group in a place.
    fn known(&self, place: usize, now: u32) -> impl Iterator<Item = Known> {
        let table = &self.table;
        table.group(place).into_iter().flat_map(move |(segment, group)| {
            let limits = table.querier(place, &group).is_some_and(|querier| querier.limits(now));
            let members = table.members(place);
            let members = members.filter(move |port| table.is_member(place, *port, now));
            members.map(move |port| {
                let age = now.saturating_sub(table.reported(place, port));
                Known { segment, group, port, is_querier: false, age, limits }
            })
        })
    }

    /// Returns the number of groups, and the number of memberships of ports in groups.
    pub fn sizes(&self) -> (usize, u64) {
        let accounts = self.lock();
        (accounts.count, accounts.joined.iter().map(|count| u64::from(*count)).sum())
    }

    fn note_querier(&self, segment: Segment, port: PortId, query: &Query, now: u32) -> Noted {
        let slow = query.interval.is_some_and(|seconds| seconds > MAX_QUERY_INTERVAL_SECONDS);
        if slow || query.response > MAX_QUERY_RESPONSE_SECONDS {
            return Noted::Ignored;
        }
        let Some(mut accounts) = self.try_lock() else { return Noted::Busy };
        let Some(number) = accounts.number(&self.table, segment) else { return Noted::Full };
        let is_v4 = query.from.is_ipv4();
        let known = self.table.querier_of(number, is_v4);
        let is_known = known.is_present(now);
        let asked = if is_known { known.asked(now) } else { 0 };
        let end = now + query.response + QUERY_GRACE_SECONDS;
        let running = is_known && known.pending.1 > now;
        let pending = if running { known.pending } else { (now, end) };
        self.table.set_querier(number, is_v4, &Querier { port, heard: now, pending, asked });
        Noted::Yes
    }

    /// Notes a query about one group: a port that does not answer is no longer a member.
    fn ask(&self, segment: Segment, group: IpAddr, response: u32, now: u32) -> Noted {
        let Some(_accounts) = self.try_lock() else { return Noted::Busy };
        let Some((place, _)) = self.table.find(segment, group) else { return Noted::Ignored };
        // Queriers send each such query twice: the first one counts, until both are answered.
        let (_, end) = self.table.asked(place);
        if end <= now {
            let response = response.min(MAX_QUERY_RESPONSE_SECONDS);
            self.table.set_asked(place, (now, now + 2 * response + QUERY_GRACE_SECONDS));
        }
        Noted::Yes
    }

    fn join(&self, segment: Segment, group: IpAddr, port: PortId, now: u32) -> Noted {
        let Some(mut accounts) = self.try_lock() else { return Noted::Busy };
        if !accounts.may_report(port, now) {
            return Noted::TooMany;
        }
        let table = &self.table;
        let number = accounts.segments.get(&segment).copied();
        let is_present = |number| table.querier_of(number, group.is_ipv4()).is_present(now);
        let Some(number) = number.filter(|number| is_present(*number)) else {
            return Noted::Ignored;
        };
        let place = table.find(segment, group).map(|(place, _)| place);
        let is_new = place.is_none_or(|place| !table.has_report(place, port));
        if is_new && accounts.joined[usize::from(port)] >= MAX_GROUPS_PER_PORT {
            return Noted::Full;
        }
        let place = place.or_else(|| accounts.open(table, (segment, number), group));
        let Some(place) = place else { return Noted::Full };
        table.set_report(place, port, now.max(1));
        accounts.joined[usize::from(port)] += u16::from(is_new);
        Noted::Yes
    }
}

impl Accounts {
    /// Counts a record of a port; false if the port has written too many in this second.
    fn may_report(&mut self, port: PortId, now: u32) -> bool {
        let (second, count) = &mut self.records[usize::from(port)];
        if *second != now {
            (*second, *count) = (now, 0);
        }
        *count += u32::from(*count < MEMBERSHIP_RECORDS_PER_SECOND + 1);
        *count <= MEMBERSHIP_RECORDS_PER_SECOND
    }

    /// Returns the number of a segment, and gives the segment a number if it has none; `None` if
    /// all numbers are in use.
    fn number(&mut self, table: &Table, segment: Segment) -> Option<u16> {
        if let Some(number) = self.segments.get(&segment) {
            return Some(*number);
        }
        let is_free = |number: &u16| self.segments.values().all(|used| used != number);
        let number = (0..MAX_SNOOPED_SEGMENTS as u16).find(is_free)?;
        for is_v4 in [true, false] {
            table.set_querier(number, is_v4, &Querier::NONE);
        }
        self.segments.insert(segment, number);
        Some(number)
    }

    /// Gives a group a place, if its segment may have one more group.
    fn open(
        &mut self,
        table: &Table,
        (segment, number): (Segment, u16),
        group: IpAddr,
    ) -> Option<usize> {
        let is_full = self.count >= MAX_GROUPS;
        let most = if is_full { RESERVED_GROUPS_PER_SEGMENT } else { MAX_GROUPS_PER_SEGMENT };
        if self.groups[usize::from(number)] >= most {
            return None;
        }
        // Serial number 0 stands for no group.
        let serial = self.serial.wrapping_add(1).max(1);
        let place = table.open(segment, group, number, serial)?;
        self.serial = serial;
        self.groups[usize::from(number)] += 1;
        self.count += 1;
        Some(place)
    }

    /// Ends a membership; the group keeps its place.
    fn clear(&mut self, table: &Table, place: usize, port: PortId) {
        if table.has_report(place, port) {
            table.clear_report(place, port);
            self.joined[usize::from(port)] -= 1;
        }
    }

    fn sweep(&mut self, table: &Table, place: usize, now: u32) {
        for port in table.members(place).filter(|port| !table.is_member(place, *port, now)) {
            self.clear(table, place, port);
        }
        if table.is_used(place) && table.members(place).next().is_none() {
            let number = table.close(place);
            self.groups[usize::from(number)] -= 1;
            self.count -= 1;
        }
    }
}

#[cfg(test)]
mod tests;
