//! Lists filters with the counts of their rules, and connections, for clients.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::methods::Answer;
use super::parts::Part;
use super::switch::Switch;
use crate::filters::{Filters, now};
use api::config::{Entry, Kind};
use api::wire::{self, ConnectionsEnded, Fault, FlushConnections, ListConnections, ListFilters};
use base::frame::protocol::{ICMPV6, TCP, UDP};
use base::limits::{CONTROL_ADDRESSES_A_REPLY, CONTROL_SLOTS_A_REPLY};
use switch::filter::compiled::Origin;
use switch::filter::connections::{Connection, Place};

/// Protocols with a name; those of [`PORTS`] have ports.
const PROTOCOLS: [(u8, &str); 5] =
    [(TCP, "tcp"), (UDP, "udp"), (SCTP, "sctp"), (ICMP, "icmp"), (ICMPV6, "icmp6")];
const PORTS: [u8; 3] = [TCP, UDP, SCTP];
const SCTP: u8 = 132;
const ICMP: u8 = 1;

impl Switch {
    /// Answers `ListFilters`: a filter in each part, with the counts of the present moment.
    pub(super) fn filters(&self, given: &ListFilters) -> Result<Answer, Fault> {
        let ListFilters { name, port } = given;
        if let Some(port) = port {
            self.named(port)?;
        }
        let daemon = self.daemon();
        let entries = daemon.desired().entries().values();
        let is_wanted = |entry: &&Entry| {
            let settings = &entry.settings;
            settings.kind == Kind::Filter && name.as_ref().is_none_or(|name| *name == settings.name)
        };
        let names = entries.filter(is_wanted).map(|entry| entry.settings.name.clone());
        let names: Vec<String> = names.collect();
        if let (true, Some(name)) = (names.is_empty(), name) {
            return Err(Fault::refused(&format!("there is no filter {name:?}")));
        }
        let (mut names, port) = (names.into_iter(), port.clone());
        Ok(Answer::parts(move |switch| {
            let filters = names.next().and_then(|name| switch.filter(&name, port.as_deref()));
            let filters = filters.into_iter().collect();
            Ok(Part::reply(&wire::Filters { filters }, names.len() > 0))
        }))
    }

    /// Returns a filter with the counts of all its ports, or of one; `None` if the filter is gone.
    fn filter(&self, name: &str, port: Option<&str>) -> Option<wire::Filter> {
        let daemon = self.daemon();
        let Entry { settings, origin, .. } = daemon.desired().get(name)?;
        let counts = daemon.filters.tally(name, settings.rules.len(), port);
        let rules = settings.rules.iter().zip(&counts.rules);
        let defaults = ["in", "out"].iter().zip(&counts.defaults);
        let verdict = |verdict: &Option<_>| verdict.as_ref().map(ToString::to_string);
        Some(wire::Filter {
            name: name.to_owned(),
            origin: origin.name().to_owned(),
            default_in: verdict(&settings.default_in),
            default_out: verdict(&settings.default_out),
            ports: daemon.desired().users_of(name).into_iter().map(str::to_owned).collect(),
            rules: rules.map(|(rule, counts)| counted(rule, *counts)).collect(),
            defaults: defaults.map(|(way, counts)| counted(way, *counts)).collect(),
        })
    }

    /// Answers `ListConnections`. Connections are many: each part is read when the client takes it.
    pub(super) fn connections(&self, given: &ListConnections) -> Result<Answer, Fault> {
        let port = given.port.as_ref().map(|name| self.named(name)).transpose()?;
        let (port, mut from) = (port.map(|port| port.id), 0);
        Ok(Answer::parts(move |switch| {
            let table = switch.daemon().filters.connections().cloned();
            let Some(table) = table else {
                return Ok(Part::reply(&wire::Connections::default(), false));
            };
            let part = (from, CONTROL_SLOTS_A_REPLY, CONTROL_ADDRESSES_A_REPLY);
            let (entries, next) = table.page(port, part, now());
            from = next.unwrap_or_default();
            let connections = switch.shown(&entries);
            Ok(Part::reply(&wire::Connections { connections }, next.is_some()))
        }))
    }

    /// Answers `FlushConnections`.
    pub(super) fn flush_connections(
        &self,
        given: &FlushConnections,
    ) -> Result<ConnectionsEnded, Fault> {
        let port = given.port.as_ref().map(|name| self.named(name)).transpose()?;
        let port = port.map(|port| port.id);
        let table = self.daemon().filters.connections().cloned();
        let flush =
            |parts: &switch::filter::connections::Parts| port.is_none_or(|port| port == parts.port);
        let ended = table.map_or(0, |table| table.flush(flush));
        Ok(ConnectionsEnded { ended: ended as u64 })
    }

    /// Returns connections as clients see them, without those whose port is gone.
    fn shown(&self, entries: &[Connection]) -> Vec<wire::Connection> {
        let (daemon, ports) = (self.daemon(), self.view.ports.present());
        let shown = |entry: &Connection| {
            let port = &ports.get(entry.parts.port)?.name;
            Some(wire::Connection {
                port: port.clone(),
                ..connection(entry, port, &daemon.filters)
            })
        };
        entries.iter().filter_map(shown).collect()
    }
}

fn counted(rule: &impl ToString, [frames, bytes, connections]: [u64; 3]) -> wire::FilterRule {
    wire::FilterRule { rule: rule.to_string(), frames, bytes, connections }
}

fn connection(entry: &Connection, port: &str, filters: &Filters) -> wire::Connection {
    let parts = &entry.parts;
    let protocol = PROTOCOLS.iter().find(|(number, _)| *number == parts.protocol);
    let address = |place: Place| match parts.v6 {
        true => IpAddr::V6(Ipv6Addr::from_bits(place.address)),
        false => IpAddr::V4(Ipv4Addr::from_bits(place.address as u32)),
    };
    let has_ports = PORTS.contains(&parts.protocol);
    let is_query = parts.protocol == if parts.v6 { ICMPV6 } else { ICMP };
    let origin = filters.origin_of(port, entry.generation, entry.rule);
    let (filter, rule) = match origin {
        Some((filter, Origin::Rule { rule, .. })) => (Some(filter), Some(u64::from(rule) + 1)),
        Some((filter, Origin::Default(_))) => (Some(filter), None),
        None => (None, None),
    };
    wire::Connection {
        vlan: Some(parts.vlan).filter(|vlan| *vlan != 0),
        protocol: protocol.map_or(parts.protocol.to_string(), |(_, name)| (*name).to_owned()),
        local: address(parts.local).to_string(),
        local_port: has_ports.then_some(parts.local.port),
        remote: address(parts.remote).to_string(),
        remote_port: has_ports.then_some(parts.remote.port),
        id: is_query.then_some(parts.local.port),
        outgoing: entry.out,
        state: entry.state.name().to_owned(),
        replied: entry.replied,
        seconds: entry.seconds.into(),
        filter: filter.map(str::to_owned),
        rule,
        ..wire::Connection::default()
    }
}
