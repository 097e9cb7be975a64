//! Multicast groups, as clients see them.

use std::net::IpAddr;

use super::methods::{Place, Switch};
use super::parts::Part;
use super::reload::List;
use crate::limits::CONTROL_ADDRESSES_A_REPLY;
use crate::port::{Port, PortTable};
use crate::switch::Known;
use crate::sys::clock;
use crate::wire::{Fault, GroupPort, GroupRole, Groups};

/// What is known of groups at a place. Members are many: they are read as the client takes them.
#[derive(Debug)]
pub struct GroupList {
    of: Place,
    /// Queriers and routers, as they were at first.
    first: List<GroupPort>,
    /// Where the next members are.
    next: usize,
}

impl Switch {
    /// Queriers, routers and members at a place.
    pub(super) fn groups(&self, of: Place) -> Result<GroupList, Fault> {
        let ports = self.view.ports.present();
        let Some(snooping) = ports.snooping() else {
            return Err(Fault::refused("vioswitchd runs without --multicast-snooping"));
        };
        let queriers = of.shown(&snooping.queriers(clock::coarse_seconds()), &ports);
        let is_router = |port: &Port| ports.may_route(port.id);
        let is_here = |port: &Port| of.has_port(port.id, ports.policy(port.id));
        let routers = ports.iter().filter(|port| is_router(port) && is_here(port));
        let routers = routers.map(|port| GroupPort {
            role: GroupRole::Router,
            port: port.name.clone(),
            ..GroupPort::default()
        });
        let first = List::new(queriers.into_iter().chain(routers).collect());
        Ok(GroupList { of, first, next: 0 })
    }
}

impl GroupList {
    /// The next part.
    pub fn part(&mut self, ports: &PortTable) -> Part {
        if !self.first.is_empty() {
            return self.first.part(|groups| Groups { groups }).followed();
        }
        let Some(snooping) = ports.snooping() else {
            return Part::reply(&Groups::default(), false);
        };
        let (now, most) = (clock::coarse_seconds(), CONTROL_ADDRESSES_A_REPLY);
        let (members, next) = snooping.memberships(self.next, most, now);
        self.next = next.unwrap_or_default();
        Part::reply(&Groups { groups: self.of.shown(&members, ports) }, next.is_some())
    }
}

impl Place {
    /// Those that are here.
    fn shown(&self, known: &[Known], ports: &PortTable) -> Vec<GroupPort> {
        let known = known.iter().filter(|one| self.has(one.port, one.segment));
        known.filter_map(|one| shown(one, ports)).collect()
    }
}

/// As it is told; nothing of a port that has gone since.
fn shown(one: &Known, ports: &PortTable) -> Option<GroupPort> {
    let port = ports.get(one.port)?.name.clone();
    let (asked, segment) = (ports.policy(one.port), one.segment);
    // Of a bridge that the port has left the number alone is known.
    let is_named = asked.segment(segment.vlan()) == segment && segment.bridge() != 0;
    let protocol = match one.group {
        IpAddr::V4(_) => "igmp",
        IpAddr::V6(_) => "mld",
    };
    Some(GroupPort {
        role: if one.is_querier { GroupRole::Querier } else { GroupRole::Member },
        port,
        bridge: is_named.then(|| asked.bridge.name().to_owned()),
        vlan: Some(segment.vlan()).filter(|vlan| *vlan != 0),
        group: (!one.is_querier).then(|| one.group.to_string()),
        protocol: one.is_querier.then(|| protocol.to_owned()),
        age: Some(one.age.into()),
        limited: Some(one.limits),
    })
}
