//! Multicast groups, as clients see them.

use std::net::IpAddr;

use super::methods::{Place, Switch};
use crate::port::{Port, PortTable};
use crate::switch::Known;
use crate::sys::clock;
use crate::wire::{Fault, GroupPort, GroupRole};

impl Switch {
    /// Queriers, routers and members at a place.
    pub(super) fn groups(&self, of: &Place) -> Result<Vec<GroupPort>, Fault> {
        let ports = self.view.ports.present();
        let Some(snooping) = ports.snooping() else {
            return Err(Fault::refused("vioswitchd runs without --multicast-snooping"));
        };
        let known = snooping.known(clock::coarse_seconds());
        let known = known.iter().filter(|one| of.has(one.port, one.segment));
        let known: Vec<_> = known.filter_map(|one| shown(one, &ports)).collect();
        let is_router = |port: &Port| ports.may_route(port.id);
        let is_here = |port: &Port| of.has_port(port.id, ports.policy(port.id));
        let routers = ports.iter().filter(|port| is_router(port) && is_here(port));
        let routers = routers.map(|port| GroupPort {
            role: GroupRole::Router,
            port: port.name.clone(),
            ..GroupPort::default()
        });
        let (queriers, members): (Vec<_>, Vec<_>) =
            known.into_iter().partition(|one| one.role == GroupRole::Querier);
        Ok(queriers.into_iter().chain(routers).chain(members).collect())
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
