//! Multicast groups, as clients see them.

use std::net::IpAddr;

use super::methods::{Answer, Selection};
use super::parts::Part;
use super::switch::Switch;
use api::wire::{Fault, GroupPort, GroupRole, Groups};
use base::limits::{CONTROL_ADDRESSES_A_REPLY, CONTROL_PORTS_A_REPLY};
use datapath::port::{Port, PortTable};
use switch::Known;
use sys::clock;

impl Switch {
    /// Answers `ListGroups` with the queriers and routers at a place, as they are now, and with the
    /// members. Members are many: each part is read when the client takes it.
    pub(super) fn groups(&self, of: Selection) -> Result<Answer, Fault> {
        let ports = self.view.ports.present();
        let Some(snooping) = ports.snooping() else {
            return Err(Fault::refused("vioswitchd runs without --multicast-snooping"));
        };
        let mut first = of.shown(&snooping.queriers(clock::coarse_seconds()), &ports);
        let is_router = |port: &Port| ports.may_route(port.id);
        let is_here = |port: &Port| of.has_port(port.id, ports.policy(port.id));
        let routers = ports.iter().filter(|port| is_router(port) && is_here(port));
        first.extend(routers.map(|port| GroupPort {
            role: GroupRole::Router,
            port: port.name.clone(),
            ..GroupPort::default()
        }));
        let (mut first, mut at) = (first.into_iter(), 0);
        Ok(Answer::parts(move |switch| {
            if first.len() > 0 {
                let groups = first.by_ref().take(CONTROL_PORTS_A_REPLY).collect();
                return Ok(Part::reply(&Groups { groups }, true));
            }
            let ports = switch.view.ports.present();
            let Some(snooping) = ports.snooping() else {
                return Ok(Part::reply(&Groups::default(), false));
            };
            let (now, most) = (clock::coarse_seconds(), CONTROL_ADDRESSES_A_REPLY);
            let (members, next) = snooping.memberships(at, most, now);
            at = next.unwrap_or_default();
            Ok(Part::reply(&Groups { groups: of.shown(&members, &ports) }, next.is_some()))
        }))
    }
}

impl Selection {
    /// Returns the ports of a group that exist.
    fn shown(&self, known: &[Known], ports: &PortTable) -> Vec<GroupPort> {
        let known = known.iter().filter(|one| self.has(one.port, one.segment));
        known.filter_map(|one| shown(one, ports)).collect()
    }
}

/// Returns a member as clients get it; nothing for a deleted port.
fn shown(one: &Known, ports: &PortTable) -> Option<GroupPort> {
    let port = ports.get(one.port)?.name.clone();
    let (policy, segment) = (ports.policy(one.port), one.segment);
    // Of a bridge that the port has left only the number is known.
    let is_named = policy.segment(segment.vlan()) == segment && segment.bridge() != 0;
    let protocol = match one.group {
        IpAddr::V4(_) => "igmp",
        IpAddr::V6(_) => "mld",
    };
    Some(GroupPort {
        role: if one.is_querier { GroupRole::Querier } else { GroupRole::Member },
        port,
        bridge: is_named.then(|| policy.bridge.name().to_owned()),
        vlan: Some(segment.vlan()).filter(|vlan| *vlan != 0),
        group: (!one.is_querier).then(|| one.group.to_string()),
        protocol: one.is_querier.then(|| protocol.to_owned()),
        age: Some(one.age.into()),
        limited: Some(one.limits),
    })
}
