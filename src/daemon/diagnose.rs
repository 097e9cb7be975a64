//! Reads the facts of findings from the switch: its ports, and the samples of the thread `sampler`.
//!
//! Takes no lock that a worker waits for. So the switch cannot tell whether a ring is broken while
//! the ring is in use.

use std::cell::LazyCell;
use std::collections::HashSet;
use std::ops::Deref;

use super::desired::Unused;
use super::sampler::Seen;
use super::{Daemon, View};
use api::config::{Between, Oddity, Settings, Unread, between};
use api::diagnosis::facts::{
    self, Addresses, Condition, Degraded, Facts, Guest, Link, LinkState, Odd, Offloads, Recent,
    Refused,
};
use api::diagnosis::history::{LATELY, MINUTE, MOMENT};
use api::diagnosis::{self, Finding};
use base::frame::MacAddr;
use base::stats::{Direction, DropReason};
use datapath::port::{Port, PortTable};
use switch::{Membership, PortId, PortKind, Segment, Station, segment_name};
use sys::{clock, group, sandbox};

impl Daemon {
    /// Returns the state of the switch as a whole.
    pub(crate) fn condition(&self) -> Condition {
        let code = diagnosis::DEGRADED.name;
        let degraded = self.degradations().into_iter();
        let degraded = degraded.map(|one| Degraded { code, port: one.subject, why: one.text });
        Condition {
            degraded: degraded.collect(),
            unused: self.unused(),
            odd: self.odd(),
            refused_calls: sandbox::forbidden(),
            user: group::own_user(),
        }
    }

    /// Returns the parts of the kept file that have no effect.
    pub(super) fn unused(&self) -> Vec<Odd> {
        let unused = |Unused { name, entry, why }: &Unused| {
            let what = if entry.is_some() { "port" } else { "a change at port" };
            let cause = format!("{what} '{name}' is kept in ports.toml without effect: {why}");
            let (with, port) = (Vec::new(), name.clone());
            Odd { cause, with, command: format!("vioswitchctl port reset {name}"), port }
        };
        let unread = |Unread { name, why, .. }: &Unread| {
            let cause = format!("ports.toml has a part without effect: {why}");
            let command = match name {
                Some(name) => format!("vioswitchctl port reset {name}"),
                None => "journalctl -u vioswitchd -p warning".to_owned(),
            };
            let (with, port) = (Vec::new(), name.clone().unwrap_or_default());
            Odd { cause, with, command, port }
        };
        let desired = self.desired();
        desired.unused().map(unused).chain(desired.unread().iter().map(unread)).collect()
    }

    /// Returns the combinations of settings in which a setting has no effect, or another effect.
    fn odd(&self) -> Vec<Odd> {
        let desired = self.desired();
        let has_snooping = self.ports().snooping().is_some();
        let of_port = |settings: &Settings| {
            let odd = settings.oddities(has_snooping);
            let port = settings.name.clone();
            odd.into_iter().map(move |Oddity { cause, command }| {
                let (port, with) = (port.clone(), Vec::new());
                Odd { port, with, cause, command }
            })
        };
        let all = || desired.entries().values().map(|entry| &entry.settings);
        let several = between(all()).into_iter().filter_map(|Between { mut ports, oddity }| {
            let with = ports.split_off(1.min(ports.len()));
            let Oddity { cause, command } = oddity;
            Some(Odd { port: ports.pop()?, with, cause, command })
        });
        all().flat_map(of_port).chain(several).collect()
    }
}

impl View {
    /// Returns the findings of a switch in this condition, the worst first.
    pub(crate) fn diagnose(&self, condition: Condition) -> Vec<Finding> {
        let (ports, now) = (self.ports.present(), clock::coarse_seconds());
        // The held addresses of all ports are read at once: a table may have many entries, and
        // guests can make every port need the held addresses.
        let held = LazyCell::new(|| {
            let held = self.fdb.entries(now).into_iter().filter(|entry| entry.held);
            held.map(|entry| (entry.station.mac, entry.port)).collect()
        });
        let facts = Facts {
            condition,
            uplink_to_uplink: self.rules.uplink_to_uplink,
            addresses: self.fdb.len(),
            ports: ports.iter().map(|port| self.facts(&ports, port, &held, now)).collect(),
        };
        diagnosis::judge(&facts)
    }

    /// Returns the facts of a port. `held` has the addresses that are held now, each with its port.
    fn facts(
        &self,
        ports: &PortTable,
        port: &Port,
        held: &impl Deref<Target = HashSet<(MacAddr, PortId)>>,
        now: u32,
    ) -> facts::Port {
        let over = |seen: &Seen| [MOMENT, MINUTE, LATELY].map(|seconds| seen.over(seconds, now));
        let seen = self.samples.of(port, |seen| {
            let dropped: Vec<(DropReason, u64)> = seen.drops.lately(now).collect();
            (over(seen), seen.senders.lately(now), dropped)
        });
        let ([moment, minute, lately], senders, dropped) = seen.unwrap_or_default();
        facts::Port {
            name: port.name.clone(),
            link: link(port),
            mtu: port.mtu.get(),
            addresses: self.addresses_of(ports, port, held),
            is_disabled: !port.policy.get().forwards,
            segment: segment(ports, port),
            guest: Guest { memory_faults: guest_memory(port, &dropped), broken: broken(port) },
            refused: refused(port, &dropped),
            offloads: offloads(port),
            counts: Recent { moment, minute, lately },
            senders,
        }
    }

    /// Returns the facts of a port's addresses. `all_held` has the addresses that are held now,
    /// each with its port.
    fn addresses_of(
        &self,
        ports: &PortTable,
        port: &Port,
        all_held: &impl Deref<Target = HashSet<(MacAddr, PortId)>>,
    ) -> Addresses {
        let name = |id| ports.get(id).map(|port| port.name.clone());
        let foreign = port.observed.last_seen.foreign().and_then(|mac| {
            let segment = ports.policy(port.id).untagged()?;
            let (owner, is_static) = self.fdb.whose(Station::new(segment, mac))?;
            Some((mac, name(owner).filter(|_| is_static && owner != port.id)?))
        });
        let last = port.observed.last_seen.held();
        let held = last.and_then(|(mac, at)| Some((mac, name(at)?, all_held.contains(&(mac, at)))));
        let moved =
            port.observed.last_seen.moved().and_then(|(mac, from)| Some((mac, name(from)?)));
        Addresses {
            count: self.fdb.port_len(port.id),
            is_full: self.fdb.is_port_full(port.id),
            foreign,
            moved,
            held,
        }
    }
}

/// Returns the segment of a port's untagged frames, and whether the frames reach other ports and an
/// uplink; none for the default segment.
fn segment(ports: &PortTable, port: &Port) -> Option<facts::Segment> {
    let own = ports.policy(port.id);
    let segment = own.untagged().filter(|segment| *segment != Segment::DEFAULT)?;
    let name = segment_name(own.bridge.name(), segment.vlan());
    let mut found = facts::Segment { name, is_shared: false, is_cut_off: false };
    let mut leads_out = false;
    for other in ports.iter().filter(|other| ports.policy(other.id).bridge == own.bridge) {
        let is_member = ports.policy(other.id).is_member(segment);
        let is_uplink = other.kind() == PortKind::Uplink;
        let is_trunk = matches!(ports.policy(other.id).vlans, Membership::Trunk { .. });
        found.is_shared |= is_member && other.id != port.id;
        found.is_cut_off |= is_uplink;
        leads_out |= is_member && (is_uplink || is_trunk);
    }
    found.is_cut_off &= !leads_out;
    Some(found)
}

fn link(port: &Port) -> Option<Link> {
    // A degradation reports a port that is left out.
    let (_, interface) = port.as_uplink().filter(|_| !port.is_left_out())?;
    let state = match port.is_up() {
        false => LinkState::Gone,
        true if port.mtu.link_is_down() => LinkState::Down,
        true => LinkState::Up,
    };
    // A bridge that keeps VLANs apart may keep its ports apart.
    let bridge = port.mtu.bridge().filter(|bridge| !bridge.filters_vlans);
    let bridge =
        bridge.map(|bridge| facts::Bridge { index: bridge.index, name: bridge.name.to_string() });
    let is_tap = port.kind_name() == "tap";
    Some(Link { interface: interface.to_owned(), is_tap, state, bridge })
}

fn guest_memory(port: &Port, dropped: &[(DropReason, u64)]) -> facts::Memory {
    let Some(faults) = port.as_guest().map(|guest| &guest.memory_faults) else {
        return facts::Memory::default();
    };
    let outside = dropped.iter().filter(|(reason, _)| *reason == DropReason::BadAddress);
    facts::Memory {
        missing: faults.is_missing(),
        all_on_disk: faults.is_all_on_disk(),
        on_disk: faults.on_disk(),
        outside: outside.map(|(_, frames)| frames).sum(),
    }
}

fn refused(port: &Port, dropped: &[(DropReason, u64)]) -> Option<Refused> {
    let refusals = dropped.iter().filter(|(reason, _)| reason.is_refusal());
    let &(reason, frames) = refusals.max_by_key(|(_, frames)| *frames)?;
    let violation = port.observed.last_seen.violation().filter(|_| reason == DropReason::Guard);
    Some(Refused { reason, frames, violation: violation.map(|last| last.to_string()) })
}

/// Returns the indexes of the broken rings. Looks at no ring of a port that never counted a broken
/// ring.
fn broken(port: &Port) -> Vec<usize> {
    let Some(guest) = port.as_guest().filter(|_| port.stats.rings_broken.get() > 0) else {
        return Vec::new();
    };
    let pairs = guest.rx.iter().zip(&guest.tx);
    let rings = pairs.flat_map(|(rx, tx)| [rx.is_broken(), tx.is_broken()]).enumerate();
    rings.filter(|(_, broken)| *broken).map(|(index, _)| index).collect()
}

fn offloads(port: &Port) -> Offloads {
    let mut all = Offloads::default();
    port.each_queue(&mut |direction, _, stats| {
        if direction == Direction::Out {
            all.frames += stats.frames.get();
            all.checksummed += stats.fallbacks.checksummed.get();
            all.segmented += stats.fallbacks.segmented.get();
            all.segments += stats.fallbacks.segments.get();
        }
    });
    all
}
