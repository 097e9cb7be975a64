//! The table of ports.
//!
//! A [`PortTable`] has the ports of one moment and never changes. [`Ports`] publishes the present
//! table; each new or removed port makes a new table. A worker keeps a table and checks once a
//! turn, with one load, whether its table is still the present table. So a burst sees one set of
//! ports from beginning to end, without a lock.
//!
//! A port's number is used again when no worker has a table any more in which the number is another
//! port's; [`Ports::free`] checks this. Session numbers are unique in the process
//! ([`GuestPort::session`]), so a message for a port's last session never reaches the next session.
//!
//! [`GuestPort::session`]: super::GuestPort::session

use std::collections::HashMap;
use std::ops::Index;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{GuestPort, Port};
use crate::capture::Capture;
use crate::capture::observer::Observer;
use base::limits::{MAX_CAPTURES, MAX_PORTS};
use base::stats::MirrorStats;
use switch::filter::PortFilter;
use switch::mirror::{Mirror, Watch};
use switch::{Limited, PortId, PortKind, PortPolicy, PortView, Reach, Snooping};

/// The ports of one moment, by number.
#[derive(Debug, Clone)]
pub struct PortTable {
    serial: u64,
    /// Policies by port number; empty if all ports are plain.
    policies: Box<[Arc<PortPolicy>]>,
    /// A port has a rate.
    pub(crate) is_limited: bool,
    /// The active captures, then the mirrors whose ports exist.
    observers: Box<[Observer]>,
    /// The configured mirrors.
    mirrors: Arc<[Mirror]>,
    mirror_stats: Arc<[Arc<MirrorStats>]>,
    /// Filters, by the names of their ports; the policies of present ports have them too.
    filters: Arc<HashMap<String, Arc<PortFilter>>>,
    /// Multicast groups and members, if snooping is on.
    snooping: Option<Arc<Snooping>>,
    /// Ports by number; none where a port was removed.
    slots: Box<[Option<Arc<Port>>]>,
}

impl PortTable {
    /// Returns the port with number `id`, if there is one.
    #[inline(always)]
    pub fn get(&self, id: PortId) -> Option<&Port> {
        self.slots.get(usize::from(id))?.as_deref()
    }

    /// True if a port has a filter, or gets one when the port is added.
    pub fn has_filters(&self) -> bool {
        !self.filters.is_empty()
    }

    /// Returns the port with number `id` as a shared pointer, if there is one.
    pub fn shared(&self, id: PortId) -> Option<&Arc<Port>> {
        self.slots.get(usize::from(id))?.as_ref()
    }

    /// Returns the port with number `id` and its guest, if the port is a guest's.
    #[inline(always)]
    pub(crate) fn guest(&self, id: PortId) -> Option<(&Port, &GuestPort)> {
        let port = self.get(id)?;
        port.as_guest().map(|guest| (port, guest))
    }

    /// Returns the port with name `name`.
    pub fn named(&self, name: &str) -> Option<&Arc<Port>> {
        self.iter().find(|port| port.name == name)
    }

    /// Returns all ports, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Port>> {
        self.slots.iter().flatten()
    }

    /// Returns the ports with numbers from `start` on, in order.
    pub(crate) fn iter_from(&self, start: PortId) -> impl Iterator<Item = &Arc<Port>> {
        self.slots.get(usize::from(start)..).unwrap_or_default().iter().flatten()
    }

    /// Returns the end of the range of port numbers.
    pub fn numbers(&self) -> usize {
        self.slots.len()
    }

    /// True if all ports have the plain policy.
    #[inline(always)]
    pub(crate) fn is_plain(&self) -> bool {
        self.policies.is_empty()
    }

    /// Returns the policy of a port in this table.
    #[inline(always)]
    pub fn policy(&self, id: PortId) -> &PortPolicy {
        self.policies.get(usize::from(id)).map_or(&PortPolicy::PLAIN, Arc::as_ref)
    }

    /// True if frames are captured or mirrored.
    #[inline(always)]
    pub(crate) fn is_observed(&self) -> bool {
        !self.observers.is_empty()
    }

    /// Returns the receivers of copies: the active captures, then the mirrors whose ports exist.
    pub(crate) fn observers(&self) -> &[Observer] {
        &self.observers
    }

    /// Returns the configured mirrors.
    pub fn mirrors(&self) -> &[Mirror] {
        &self.mirrors
    }

    /// Returns the counters of the configured mirrors, in the order of the mirrors.
    pub fn mirror_stats(&self) -> &[Arc<MirrorStats>] {
        &self.mirror_stats
    }

    /// Returns the mirrors whose ports exist.
    pub fn watches(&self) -> impl Iterator<Item = &Watch> {
        self.observers.iter().filter_map(|observer| match observer {
            Observer::Port(watch) => Some(watch),
            Observer::Client(_) => None,
        })
    }

    /// Returns the active captures.
    pub(crate) fn captures(&self) -> impl Iterator<Item = &Arc<Capture>> {
        self.observers.iter().filter_map(|observer| match observer {
            Observer::Client(capture) => Some(capture),
            Observer::Port(_) => None,
        })
    }

    /// Returns the multicast groups and members, if snooping is on.
    #[inline(always)]
    pub fn snooping(&self) -> Option<&Snooping> {
        self.snooping.as_deref()
    }

    /// True if multicast routers and queriers may be behind a port.
    pub fn may_route(&self, id: PortId) -> bool {
        self.policy(id).may_route(self[id].kind())
    }

    /// Removes from the ports that a flood reaches the ports that a frame with `reach` does not
    /// reach.
    #[inline]
    pub fn keep_reached(&self, reach: Reach, ports: &mut Vec<PortId>) {
        if reach != Reach::All {
            self.keep_some(reach, ports);
        }
    }

    #[inline(never)]
    fn keep_some(&self, reach: Reach, ports: &mut Vec<PortId>) {
        match reach {
            Reach::All => {}
            Reach::Routers => ports.retain(|id| self.may_route(*id)),
            Reach::Members(of) => self.keep_members(of, ports),
        }
    }

    /// Keeps the ports that get frames of a limited group.
    fn keep_members(&self, of: Limited, ports: &mut Vec<PortId>) {
        let Some(snooping) = self.snooping() else { return };
        let since = |id: PortId| self[id].life.since.load(Ordering::Relaxed);
        // A port that the querier does not reach cannot answer the querier.
        let hears = |id: PortId| self.policy(of.querier).reaches(self.policy(id));
        let takes = |id: PortId| snooping.takes(of, id, since(id));
        ports.retain(|id| self.may_route(*id) || !hears(*id) || takes(*id));
    }

    /// Returns the table with the given multicast groups and members.
    #[must_use]
    pub fn with_snooping(self, snooping: Option<Arc<Snooping>>) -> PortTable {
        PortTable { snooping, ..self }
    }

    /// Returns a table with the ports `ports`, and otherwise the state of this table.
    fn with(&self, ports: impl Iterator<Item = Arc<Port>>) -> PortTable {
        let (mirrors, mirror_stats) = (Arc::clone(&self.mirrors), Arc::clone(&self.mirror_stats));
        let (filters, snooping) = (Arc::clone(&self.filters), self.snooping.clone());
        let table = PortTable { mirrors, mirror_stats, filters, snooping, ..ports.collect() };
        table.filtered().observed(self.captures())
    }

    /// Returns the table with each port's filter in the policy of the port. A table of plain ports
    /// has no policies, so the first filter also makes a policy for each port.
    fn filtered(mut self) -> PortTable {
        for (at, slot) in self.slots.iter().enumerate() {
            let filter = slot.as_ref().and_then(|port| self.filters.get(&port.name));
            let Some(filter) = filter else { continue };
            filter.connections.prepare(at as PortId);
            if self.policies.is_empty() {
                self.policies = self.own_policies().collect();
            }
            Arc::make_mut(&mut self.policies[at]).filter = Some(Arc::clone(filter));
        }
        self
    }

    /// Returns the policy of each port, by number.
    fn own_policies(&self) -> impl Iterator<Item = Arc<PortPolicy>> {
        let own = |slot: &Option<Arc<Port>>| slot.as_ref().map(|port| port.policy.get());
        self.slots.iter().map(move |slot| own(slot).unwrap_or_default())
    }

    /// Returns the table with the observers `captures` and with the mirrors whose ports exist. A
    /// port that gets mirrored copies has no other traffic.
    fn observed<'c>(mut self, captures: impl Iterator<Item = &'c Arc<Capture>>) -> PortTable {
        let number = |name: &str| self.named(name).map(|port| port.id);
        let found = self.mirrors.iter().enumerate().filter_map(|(place, mirror)| {
            let (from, to) = (number(&mirror.from)?, number(&mirror.to)?);
            Some(Watch { name: mirror.name.clone(), place, from, to, frames: mirror.frames })
        });
        let captures = captures.cloned().map(Observer::Client);
        self.observers = captures.chain(found.map(Observer::Port)).collect();
        for observer in &self.observers {
            let Observer::Port(watch) = observer else { continue };
            if self.policies.is_empty() {
                self.policies = self.own_policies().collect();
            }
            if let Some(policy) = self.policies.get_mut(usize::from(watch.to)) {
                Arc::make_mut(policy).observes = true;
            }
        }
        self
    }

    /// Returns the table's serial number; a later table has a higher number.
    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }

    /// True if port number `id` means one port object in both tables.
    pub(crate) fn agrees(&self, other: &PortTable, id: PortId) -> bool {
        match (self.shared(id), other.shared(id)) {
            (Some(here), Some(there)) => Arc::ptr_eq(here, there),
            _ => false,
        }
    }
}

impl Default for PortTable {
    fn default() -> PortTable {
        std::iter::empty().collect()
    }
}

/// Collects ports by number; a later port replaces an earlier port with its number.
impl FromIterator<Arc<Port>> for PortTable {
    fn from_iter<T: IntoIterator<Item = Arc<Port>>>(ports: T) -> PortTable {
        let mut slots = Vec::new();
        for port in ports {
            let at = usize::from(port.id);
            slots.resize(slots.len().max(at + 1), None);
            slots[at] = Some(port);
        }
        let policy_of = |slot: &Option<Arc<Port>>| match slot {
            Some(port) => port.policy.get(),
            None => Arc::default(),
        };
        let mut policies: Box<[_]> = slots.iter().map(policy_of).collect();
        if policies.iter().all(|policy| **policy == PortPolicy::PLAIN) {
            policies = Box::default();
        }
        let is_limited = slots.iter().flatten().any(|port| port.rates.are_on());
        PortTable {
            serial: 0,
            policies,
            is_limited,
            observers: Box::default(),
            mirrors: Arc::default(),
            mirror_stats: Arc::default(),
            filters: Arc::default(),
            snooping: None,
            slots: slots.into(),
        }
    }
}

/// Returns the port that a decision names. Panics without such a port: decisions are made from the
/// table of the turn.
impl Index<PortId> for PortTable {
    type Output = Port;

    #[inline(always)]
    fn index(&self, id: PortId) -> &Port {
        self.get(id).expect("a decision names a port of its table")
    }
}

impl PortView for PortTable {
    #[inline]
    fn kind(&self, port: PortId) -> Option<PortKind> {
        self.get(port).map(Port::kind)
    }

    #[inline(always)]
    fn policy(&self, port: PortId) -> &PortPolicy {
        PortTable::policy(self, port)
    }
}

/// The ports of a process: the present table, and its serial number for a check without a lock.
#[derive(Debug, Default)]
pub struct Ports {
    present: Mutex<Arc<PortTable>>,
    serial: AtomicU64,
}

/// Error: there are [`MAX_PORTS`] ports already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("there are {MAX_PORTS} ports and taps already")]
pub struct Full;

impl Ports {
    /// Publishes the first table.
    pub fn new(table: PortTable) -> Ports {
        Ports { serial: AtomicU64::new(table.serial), present: Mutex::new(Arc::new(table)) }
    }

    /// Returns the present table.
    pub fn present(&self) -> Arc<PortTable> {
        Arc::clone(&self.lock())
    }

    /// True if `table` is the present table.
    #[inline(always)]
    pub(crate) fn is_present(&self, table: &PortTable) -> bool {
        // Acquire: a thread that sees the serial number sees all that was done before the
        // publication.
        self.serial.load(Ordering::Acquire) == table.serial
    }

    /// Returns the lowest number that no port has and for which `usable` returns true.
    pub fn free(&self, usable: impl Fn(PortId) -> bool) -> Result<PortId, Full> {
        let table = self.present();
        let free = |id: &PortId| table.get(*id).is_none() && usable(*id);
        (0..MAX_PORTS as PortId).find(free).ok_or(Full)
    }

    /// Publishes a table with `port` at its number. Returns the table's serial number.
    pub fn add(&self, port: Arc<Port>) -> u64 {
        self.publish(|table| table.with(table.iter().cloned().chain([port])))
    }

    /// Publishes a table without port `id`. Returns the table's serial number.
    pub fn remove(&self, id: PortId) -> u64 {
        self.publish(|table| {
            table.captures().for_each(|capture| capture.forget(id));
            table.with(table.iter().filter(|port| port.id != id).cloned())
        })
    }

    /// Publishes a table with `capture`. False if there are [`MAX_CAPTURES`] captures already.
    pub fn begin_capture(&self, capture: &Arc<Capture>) -> bool {
        let mut present = self.lock();
        let room = present.captures().count() < MAX_CAPTURES;
        if room {
            let next = PortTable::clone(&present).observed(present.captures().chain([capture]));
            self.replace(&mut present, next);
        }
        room
    }

    /// Publishes a table without `capture`.
    pub fn end_capture(&self, capture: &Arc<Capture>) {
        self.publish(|table| {
            let others = table.captures().filter(|other| !Arc::ptr_eq(other, capture));
            table.clone().observed(others)
        });
    }

    /// Publishes a table with the mirrors `mirrors`. False if the present table has these mirrors.
    pub fn set_mirrors(&self, mirrors: Vec<Mirror>) -> bool {
        let mut present = self.lock();
        let new = present.mirrors[..] != mirrors[..];
        if new {
            // The counters of a mirror stay as long as a mirror has its name.
            let old = present.mirrors.iter().zip(present.mirror_stats.iter());
            let mirror_stats = mirrors.iter().map(|mirror| {
                let known = old.clone().find(|(other, _)| other.name == mirror.name);
                known.map(|(_, stats)| Arc::clone(stats)).unwrap_or_default()
            });
            let (mirrors, mirror_stats) = (mirrors[..].into(), mirror_stats.collect());
            let next = PortTable { mirrors, mirror_stats, ..PortTable::clone(&present) };
            let next = next.with(present.iter().cloned());
            self.replace(&mut present, next);
        }
        new
    }

    /// Publishes a table with these filters, by the names of ports. One table replaces all filters,
    /// so no frame meets old and new filters together. A filter whose port does not exist takes
    /// effect when the port is added.
    pub fn set_filters(&self, filters: HashMap<String, Arc<PortFilter>>) {
        let mut present = self.lock();
        if *present.filters != filters {
            let table = PortTable { filters: Arc::new(filters), ..PortTable::clone(&present) };
            let next = table.with(present.iter().cloned());
            self.replace(&mut present, next);
        }
    }

    /// Publishes a table of the present ports with their present policies and rates.
    pub fn renew(&self) -> u64 {
        self.publish(|table| table.with(table.iter().cloned()))
    }

    fn publish(&self, change: impl FnOnce(&PortTable) -> PortTable) -> u64 {
        let mut present = self.lock();
        let next = change(&present);
        self.replace(&mut present, next)
    }

    fn replace(&self, present: &mut Arc<PortTable>, next: PortTable) -> u64 {
        let serial = present.serial + 1;
        *present = Arc::new(PortTable { serial, ..next });
        self.serial.store(serial, Ordering::Release);
        serial
    }

    fn lock(&self) -> MutexGuard<'_, Arc<PortTable>> {
        // A poisoned lock is harmless: the table is replaced in one step.
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::Wanted;

    fn port(id: PortId, name: &str) -> Arc<Port> {
        Arc::new(Port::guest(id, name, 1))
    }

    fn names(table: &PortTable) -> Vec<&str> {
        table.iter().map(|port| port.name.as_str()).collect()
    }

    #[test]
    fn a_table_stays_as_it_is_while_ports_come_and_go() {
        let ports = Ports::new([port(0, "a"), port(1, "b")].into_iter().collect());
        let first = ports.present();
        assert!(ports.is_present(&first));
        assert_eq!(ports.remove(0), 1);
        assert!(!ports.is_present(&first));
        assert_eq!(names(&first), ["a", "b"]);
        let second = ports.present();
        assert_eq!(names(&second), ["b"]);
        assert_eq!((second.kind(0), second.kind(1)), (None, Some(PortKind::Guest)));
        assert!(second.named("a").is_none() && second.named("b").is_some());
        ports.add(port(3, "d"));
        assert_eq!(ports.add(port(0, "other")), 3);
        let last = ports.present();
        assert_eq!(names(&last), ["other", "b", "d"]);
        assert!(last.get(2).is_none() && last.get(PortId::MAX).is_none());
        assert!(!last.agrees(&first, 0), "another port of this number");
        assert!(last.agrees(&first, 1) && !last.agrees(&first, 3) && !last.agrees(&first, 9));
    }

    /// A refused capture publishes no table.
    #[test]
    fn there_are_so_many_captures_and_no_more() {
        let ports = Ports::new([port(0, "a")].into_iter().collect());
        let wanted = || Wanted { ports: vec![], drops_only: false, filter: None, snaplen: 1 };
        let all: Vec<_> = (0..=MAX_CAPTURES).map(|_| Arc::new(Capture::new(wanted(), 1))).collect();
        let begun: Vec<bool> = all.iter().map(|one| ports.begin_capture(one)).collect();
        assert_eq!(begun.iter().filter(|begun| **begun).count(), MAX_CAPTURES);
        assert!(!begun[MAX_CAPTURES]);
        let table = ports.present();
        assert_eq!((table.serial(), table.captures().count()), (MAX_CAPTURES as u64, MAX_CAPTURES));
        ports.end_capture(&all[0]);
        assert!(ports.begin_capture(&all[MAX_CAPTURES]));
        assert_eq!(names(&ports.present()), ["a"]);
    }

    #[test]
    fn the_lowest_usable_number_is_next() {
        let ports = Ports::new([port(0, "a"), port(2, "c")].into_iter().collect());
        assert_eq!(ports.free(|_| true), Ok(1));
        assert_eq!(ports.free(|id| id != 1), Ok(3));
        assert_eq!(ports.free(|_| false), Err(Full));
    }
}
