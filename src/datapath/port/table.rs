//! Which ports there are.
//!
//! A [`PortTable`] is the ports of one moment and never changes. [`Ports`] publishes the present
//! one: a port that comes or goes makes another table. Workers hold a table of their own and look
//! once a turn, with one load, whether it is still the present one; so a burst sees one set of
//! ports from its beginning to its end, and no lock is taken for that.
//!
//! A number is used again when no worker has a table any more in which it was another port's:
//! [`Ports::free`] asks for that. Sessions are numbered through the life of the process
//! ([`GuestPort::session`]), so what was meant for a port's last session never meets its successor.
//!
//! [`GuestPort::session`]: super::GuestPort::session

use std::ops::Index;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{GuestPort, Port};
use crate::capture::Capture;
use base::limits::{MAX_CAPTURES, MAX_PORTS};
use base::stats::MirrorStats;
use switch::mirror::{Mirror, Watch};
use switch::{
    Limited, PortId, PortKind, PortPolicy, PortView, Reach, ReservedSet, Segment, Snooping,
};

/// The ports of one moment, by number.
#[derive(Debug, Clone)]
pub struct PortTable {
    serial: u64,
    /// What is asked of each, by number; of none if the table is plain.
    policies: Box<[Arc<PortPolicy>]>,
    /// Some have a rate.
    limited: bool,
    /// The captures that want copies of their frames.
    captures: Box<[Arc<Capture>]>,
    /// The mirrors that are wanted, and those whose ports are there.
    mirrors: Arc<[Mirror]>,
    mirror_stats: Arc<[Arc<MirrorStats>]>,
    watches: Box<[Watch]>,
    /// Which ports the frames of groups go to, if that is asked.
    snooping: Option<Arc<Snooping>>,
    /// There are captures or such mirrors.
    observed: bool,
    /// Numbers that no port has lie between those in use where a port has gone.
    slots: Box<[Option<Arc<Port>>]>,
}

impl PortTable {
    /// A port, if there is one of this number.
    #[inline(always)]
    pub fn get(&self, id: PortId) -> Option<&Port> {
        self.slots.get(usize::from(id))?.as_deref()
    }

    /// The same to be kept.
    pub fn shared(&self, id: PortId) -> Option<&Arc<Port>> {
        self.slots.get(usize::from(id))?.as_ref()
    }

    /// The guest behind a port.
    #[inline(always)]
    pub fn guest(&self, id: PortId) -> Option<(&Port, &GuestPort)> {
        let port = self.get(id)?;
        port.as_guest().map(|guest| (port, guest))
    }

    /// The port of this name.
    pub fn named(&self, name: &str) -> Option<&Arc<Port>> {
        self.iter().find(|port| port.name == name)
    }

    /// All ports, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Port>> {
        self.slots.iter().flatten()
    }

    /// Those from this number on.
    pub fn iter_from(&self, start: PortId) -> impl Iterator<Item = &Arc<Port>> {
        self.slots.get(usize::from(start)..).unwrap_or_default().iter().flatten()
    }

    /// Ports have numbers below this.
    pub fn numbers(&self) -> usize {
        self.slots.len()
    }

    /// True if a port has a rate.
    #[inline(always)]
    pub fn is_limited(&self) -> bool {
        self.limited
    }

    /// True if nothing is asked of any port.
    #[inline(always)]
    pub fn is_plain(&self) -> bool {
        self.policies.is_empty()
    }

    /// What is asked of a port of this table.
    #[inline(always)]
    pub fn policy(&self, id: PortId) -> &PortPolicy {
        self.policies.get(usize::from(id)).map_or(&PortPolicy::PLAIN, Arc::as_ref)
    }

    /// True if frames are captured or mirrored.
    #[inline(always)]
    pub fn is_observed(&self) -> bool {
        self.observed
    }

    /// True if frames are captured.
    pub fn is_captured(&self) -> bool {
        !self.captures.is_empty()
    }

    /// The mirrors that are wanted.
    pub fn mirrors(&self) -> &[Mirror] {
        &self.mirrors
    }

    /// What is counted of each of them, in their order.
    pub fn mirror_stats(&self) -> &[Arc<MirrorStats>] {
        &self.mirror_stats
    }

    /// The mirrors whose ports are there.
    pub fn watches(&self) -> &[Watch] {
        &self.watches
    }

    /// The captures that want copies of frames.
    pub fn captures(&self) -> impl Iterator<Item = &Capture> {
        self.captures.iter().map(Arc::as_ref)
    }

    /// Groups and their members, if frames of groups go to these alone.
    #[inline(always)]
    pub fn snooping(&self) -> Option<&Snooping> {
        self.snooping.as_deref()
    }

    /// Whether multicast routers and queriers may be behind a port.
    pub fn may_route(&self, id: PortId) -> bool {
        self.policy(id).may_route(self[id].kind())
    }

    /// Keeps of the ports that a flood reaches those that a frame reaches.
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

    /// Keeps of these ports those that get the frames of a limited group.
    fn keep_members(&self, of: Limited, ports: &mut Vec<PortId>) {
        let Some(snooping) = self.snooping() else { return };
        let since = |id: PortId| self[id].since.load(Ordering::Relaxed);
        // Who does not hear the querier does not answer it.
        let hears = |id: PortId| self.policy(of.querier).reaches(self.policy(id));
        let takes = |id: PortId| snooping.takes(of, id, since(id));
        ports.retain(|id| self.may_route(*id) || !hears(*id) || takes(*id));
    }

    /// With groups and their members.
    #[must_use]
    pub fn with_snooping(self, snooping: Option<Arc<Snooping>>) -> PortTable {
        PortTable { snooping, ..self }
    }

    /// These ports instead, with all else as it is here.
    fn with(&self, ports: impl Iterator<Item = Arc<Port>>) -> PortTable {
        let (captures, mirrors) = (self.captures.clone(), Arc::clone(&self.mirrors));
        let (snooping, mirror_stats) = (self.snooping.clone(), Arc::clone(&self.mirror_stats));
        PortTable { captures, mirrors, mirror_stats, snooping, ..ports.collect() }.observed()
    }

    /// With its mirrors resolved. A port that gets their copies does nothing else.
    fn observed(mut self) -> PortTable {
        let number = |name: &str| self.named(name).map(|port| port.id);
        let found = self.mirrors.iter().enumerate().filter_map(|(place, mirror)| {
            let (from, to) = (number(&mirror.from)?, number(&mirror.to)?);
            Some(Watch { name: mirror.name.clone(), place, from, to, frames: mirror.frames })
        });
        self.watches = found.collect();
        self.observed = !self.captures.is_empty() || !self.watches.is_empty();
        for watch in &self.watches {
            let policy = self.slots.iter().map(|slot| slot.as_ref().map(|port| port.policy.get()));
            if self.policies.is_empty() {
                self.policies = policy.map(Option::unwrap_or_default).collect();
            }
            if let Some(policy) = self.policies.get_mut(usize::from(watch.to)) {
                Arc::make_mut(policy).observes = true;
            }
        }
        self
    }

    /// Counts the tables of a process: a later one has a higher number.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// True if a port is the same one in both tables, and not another one of its number.
    pub fn agrees(&self, other: &PortTable, id: PortId) -> bool {
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

/// Ports by their numbers; the last one of a number stays.
impl FromIterator<Arc<Port>> for PortTable {
    fn from_iter<T: IntoIterator<Item = Arc<Port>>>(ports: T) -> PortTable {
        let mut slots = Vec::new();
        for port in ports {
            let at = usize::from(port.id);
            slots.resize(slots.len().max(at + 1), None);
            slots[at] = Some(port);
        }
        let asked = |slot: &Option<Arc<Port>>| match slot {
            Some(port) => port.policy.get(),
            None => Arc::default(),
        };
        let mut policies: Box<[_]> = slots.iter().map(asked).collect();
        if policies.iter().all(|policy| **policy == PortPolicy::PLAIN) {
            policies = Box::default();
        }
        let limited = slots.iter().flatten().any(|port| port.rates.are_on());
        PortTable {
            serial: 0,
            policies,
            limited,
            captures: Box::default(),
            mirrors: Arc::default(),
            mirror_stats: Arc::default(),
            watches: Box::default(),
            snooping: None,
            observed: false,
            slots: slots.into(),
        }
    }
}

/// The port that a decision of this turn names: decisions are made from the table, so that it is
/// there. It panics otherwise.
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

    #[inline]
    fn is_member(&self, port: PortId, segment: Segment) -> bool {
        self.policy(port).is_member(segment)
    }

    #[inline]
    fn learns(&self, port: PortId) -> bool {
        self.policy(port).learns
    }

    #[inline]
    fn is_isolated(&self, port: PortId) -> bool {
        self.policy(port).isolated
    }

    #[inline]
    fn passes(&self, port: PortId) -> ReservedSet {
        self.policy(port).passes
    }
}

/// The ports of a process: the present table, and a number to see that it is the present one.
#[derive(Debug, Default)]
pub struct Ports {
    present: Mutex<Arc<PortTable>>,
    serial: AtomicU64,
}

/// There are [`MAX_PORTS`] ports already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("there are {MAX_PORTS} ports and taps already")]
pub struct Full;

impl Ports {
    /// Begins with a table.
    pub fn new(table: PortTable) -> Ports {
        Ports { serial: AtomicU64::new(table.serial), present: Mutex::new(Arc::new(table)) }
    }

    /// The present table.
    pub fn present(&self) -> Arc<PortTable> {
        Arc::clone(&self.lock())
    }

    /// True if a table is the present one.
    #[inline(always)]
    pub fn is_present(&self, table: &PortTable) -> bool {
        // Acquire: what was done before a table was published is seen by who sees its number.
        self.serial.load(Ordering::Acquire) == table.serial
    }

    /// The lowest number that no port has and that `usable` says yes to.
    pub fn free(&self, usable: impl Fn(PortId) -> bool) -> Result<PortId, Full> {
        let table = self.present();
        let free = |id: &PortId| table.get(*id).is_none() && usable(*id);
        (0..MAX_PORTS as PortId).find(free).ok_or(Full)
    }

    /// Publishes a table with this port in the place of its number; the table's serial number.
    pub fn add(&self, port: Arc<Port>) -> u64 {
        self.publish(|table| table.with(table.iter().cloned().chain([port])))
    }

    /// Publishes a table without the port of this number; the table's serial number.
    pub fn remove(&self, id: PortId) -> u64 {
        self.publish(|table| {
            table.captures().for_each(|capture| capture.forget(id));
            table.with(table.iter().filter(|port| port.id != id).cloned())
        })
    }

    /// Publishes a table by which copies of frames are left with `capture`, if there are fewer than
    /// [`MAX_CAPTURES`]; otherwise false.
    pub fn begin_capture(&self, capture: &Arc<Capture>) -> bool {
        let mut present = self.lock();
        let room = present.captures.len() < MAX_CAPTURES;
        if room {
            let captures = present.captures.iter().chain([capture]).cloned().collect();
            let next = PortTable { captures, ..PortTable::clone(&present) }.observed();
            self.replace(&mut present, next);
        }
        room
    }

    /// Publishes a table by which no copies are left with `capture` any more.
    pub fn end_capture(&self, capture: &Arc<Capture>) {
        self.publish(|table| {
            let others = table.captures.iter().filter(|other| !Arc::ptr_eq(other, capture));
            PortTable { captures: others.cloned().collect(), ..table.clone() }.observed()
        });
    }

    /// Publishes a table with these mirrors, unless the present one has them; true if it did.
    pub fn set_mirrors(&self, mirrors: Vec<Mirror>) -> bool {
        let mut present = self.lock();
        let new = present.mirrors[..] != mirrors[..];
        if new {
            let all = present.iter().cloned();
            let captures = present.captures.clone();
            let snooping = present.snooping.clone();
            // What was counted of a mirror stays as long as one has its name.
            let old = present.mirrors.iter().zip(present.mirror_stats.iter());
            let mirror_stats = mirrors.iter().map(|mirror| {
                let known = old.clone().find(|(other, _)| other.name == mirror.name);
                known.map(|(_, stats)| Arc::clone(stats)).unwrap_or_default()
            });
            let mirror_stats = mirror_stats.collect();
            let mirrors = mirrors.into();
            let next = PortTable { captures, mirrors, mirror_stats, snooping, ..all.collect() };
            self.replace(&mut present, next.observed());
        }
        new
    }

    /// Publishes a table of the same ports, of which something else is asked now.
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
        // Poison is no concern: the table is replaced in one step.
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

    /// Who is refused costs the workers no table.
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
