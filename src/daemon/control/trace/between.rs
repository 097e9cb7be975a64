//! Traces from one port to another port: chooses a frame that the first port could send to the
//! second, and lists everything that keeps the frame from the second port.

use super::sample::Sample;
use super::{Told, Way, hindrances, quote};
use crate::control::methods::Switch;
use api::wire::{Fault, Trace};
use base::frame::MacAddr;
use base::stats::DropReason;
use datapath::port::{Port, PortTable};
use switch::{
    Decision, DropCause, Entry, EntryAge, Flood, Ingress, Membership, Policy, PortPolicy, VlanId,
};
use sys::clock;

/// Stand in for a source and a destination that the switch does not know.
const UNKNOWN: [MacAddr; 2] =
    [MacAddr([2, 0x76, 0x73, 0x77, 0, 1]), MacAddr([2, 0x76, 0x73, 0x77, 0, 2])];

impl Switch {
    /// Returns the frame of a trace between two ports. If the client gives no VLAN or address,
    /// chooses a VLAN that both ports have, and the addresses that were heard last on the ports.
    pub(super) fn between(
        &self,
        ports: &PortTable,
        (port, to): (&Port, &Port),
        given: &Trace,
    ) -> Result<Sample, Fault> {
        if given.frame.is_some() {
            return Sample::new(given);
        }
        let [from_policy, to_policy] = [port, to].map(|port| ports.policy(port.id));
        let entries = self.view.fdb.entries(clock::coarse_seconds());
        let known = [newest(&entries, port, &given.src), newest(&entries, to, &given.dst)];
        let vlan = vlan(from_policy, to_policy, &known);
        let segment = from_policy.segment(vlan);
        let address = |at: usize, word: &Option<String>| {
            let here = known[at].iter().find(|entry| entry.station.segment == segment);
            // A source that is known in another VLAN serves as well.
            let elsewhere = known[at].first().filter(|_| at == 0);
            let found = here.or(elsewhere).map(|entry| entry.station.mac);
            match word {
                Some(word) => (false, word.clone()),
                None => (found.is_none(), found.unwrap_or(UNKNOWN[at]).to_string()),
            }
        };
        let [(no_source, src), (no_destination, dst)] =
            [address(0, &given.src), address(1, &given.dst)];
        let tag = (from_policy.vlans.untagged() != Some(vlan)).then(|| vlan.into());
        let vlan = given.vlan.clone().or(tag);
        let filled = Trace { src: Some(src), dst: Some(dst), vlan, ..given.clone() };
        let sample = Sample::new(&filled)?;
        Ok(Sample { stands_in: [no_source, no_destination], ..sample })
    }
}

/// Returns the addresses on a port, or only the given address: the address heard last comes first.
fn newest<'e>(entries: &'e [Entry], port: &Port, given: &Option<String>) -> Vec<&'e Entry> {
    let mac: Option<MacAddr> = given.as_deref().and_then(|word| word.parse().ok());
    let is = |entry: &&Entry| mac.is_none_or(|mac| entry.station.mac == mac);
    let own = entries.iter().filter(|entry| entry.port == port.id);
    let mut own: Vec<&Entry> = own.filter(is).collect();
    // A static address may have no station yet.
    own.sort_by_key(|entry| match entry.age {
        EntryAge::Idle(seconds) => seconds,
        EntryAge::Static => u32::MAX,
    });
    own
}

/// Returns the VLAN of a frame from one port to another, where these addresses are known: a VLAN
/// that both ports have, or else the first VLAN of the sender.
fn vlan(from: &PortPolicy, to: &PortPolicy, [sources, destinations]: &[Vec<&Entry>; 2]) -> VlanId {
    let untagged = from.vlans.untagged();
    let common = |vlan: VlanId| from.vlans.is_member(vlan) && to.is_member(from.segment(vlan));
    let heard = destinations.iter().chain(sources);
    let heard = heard.filter(|entry| entry.station.segment.bridge() == from.bridge.number());
    let all = untagged.into_iter().chain(heard.map(|entry| entry.station.segment.vlan()));
    let trunk = match &from.vlans {
        Membership::Trunk { tagged, .. } => tagged.ranges(),
        _ => Vec::new(),
    };
    let first = trunk.first().map(|range| range.0);
    let listed = trunk.into_iter().flat_map(|(first, last)| first..=last);
    all.chain(listed).find(|vlan| common(*vlan)).or(untagged).or(first).unwrap_or(0)
}

impl Told {
    /// Adds whether a frame that came in reaches the port `to`, or else everything that keeps the
    /// frame from the port.
    pub(super) fn toward(
        &mut self,
        policy: &Policy<'_, PortTable>,
        (port, to): (&Port, &Port),
        (destination, decision): (MacAddr, Decision),
        way: Way<'_>,
    ) {
        let ports = policy.ports;
        let (from_policy, to_policy) = (ports.policy(port.id), ports.policy(to.id));
        let mut why = apart(ports, (port, from_policy), (to, to_policy), Some(way.vlan));
        if from_policy.vlans.untagged().is_none() {
            let port = quote(port);
            self.step(format!("{port} is a trunk without native: only tagged frames come in"));
        }
        match decision {
            Decision::Unicast(at) => {
                let at = &ports[at];
                self.step(format!(
                    "{destination} is on {}: the frame is sent there alone",
                    quote(at)
                ));
                if at.id != to.id {
                    why.push("the frame is for another port".to_owned());
                }
            }
            Decision::Flood(flood) => {
                self.flood(port, (destination, flood, way.sample.stands_in[1].then_some(to)));
                let segment = from_policy.segment(way.vlan);
                let limited = self.limited(ports, segment, way.sample);
                let reached = |reached: &Vec<_>| reached.contains(&to.id);
                let limited = limited.filter(|(all, _)| !reached(all));
                why.extend(limited.map(|(_, text)| text.to_owned()));
                if to_policy.forwards && !to_policy.takes(flood) {
                    why.push(match flood {
                        Flood::Reserved(protocol) => format!("it does not pass {protocol}"),
                        _ => "it has flood=off".to_owned(),
                    });
                }
            }
            // The steps about both ports have given the reason.
            Decision::Drop(DropCause::Isolated) => self.reason = Some(DropReason::Isolated),
            Decision::Drop(DropCause::UplinkToUplink) => {
                self.reason = Some(DropReason::UplinkToUplink);
            }
            Decision::Drop(cause) => {
                self.dropped(destination, cause);
                why.push("the frame goes nowhere".to_owned());
            }
        }
        let ingress = Ingress { port: port.id, kind: port.kind() };
        if !policy.rules.flood_reaches(ingress, to.id, to.kind()) {
            why.push("both are uplinks, and uplink-to-uplink is off".to_owned());
        }
        self.leaves(to, to_policy, way, why);
    }

    /// Adds everything that would keep a frame from the port `to`, if the frame did come in.
    pub(super) fn behind(&mut self, ports: &PortTable, port: &Port, to: &Port, sample: &Sample) {
        let policies = (ports.policy(port.id), ports.policy(to.id));
        let mut why = apart(ports, (port, policies.0), (to, policies.1), None);
        let found = hindrances(to, sample);
        if sample.stands_in[1] && !policies.1.flood_unknown {
            why.push("it has flood=off".to_owned());
        }
        why.extend(found.into_iter().map(|(text, _)| text));
        if !why.is_empty() {
            self.step(format!("not to {}: {}", quote(to), why.join("; ")));
        }
    }
}

/// Returns the settings that keep two ports apart; `vlan` is the frame's VLAN, if the frame came
/// in.
fn apart(
    ports: &PortTable,
    (port, from): (&Port, &PortPolicy),
    (to, policy): (&Port, &PortPolicy),
    vlan: Option<VlanId>,
) -> Vec<String> {
    let mut why = Vec::new();
    if let Some(watch) = ports.watches().find(|watch| watch.to == to.id) {
        why.push(format!("it gets the copies of mirror '{}', and nothing else", watch.name));
    }
    let bridges = from.bridge.number() != policy.bridge.number();
    let vlans = vlan.is_some_and(|vlan| !policy.vlans.is_member(vlan));
    if bridges || vlans {
        let differs = bridges && from.vlans != policy.vlans || vlans;
        let [own, other] = [policy, from].map(|policy| place(policy, bridges, differs));
        why.push(format!("it has {own}, {} has {other}", quote(port)));
    }
    if !from.reaches(policy) {
        why.push("both have isolated=on".to_owned());
    }
    why
}

/// Returns the bridge and the VLANs of a port, as its settings name them.
fn place(policy: &PortPolicy, with_bridge: bool, with_vlans: bool) -> String {
    let bridge = with_bridge.then(|| format!("bridge={}", policy.bridge.name()));
    let vlans = with_vlans.then(|| match &policy.vlans {
        Membership::Opaque => "no vlan".to_owned(),
        Membership::Access(vlan) => format!("vlan={vlan}"),
        Membership::Trunk { tagged, native: None } => format!("trunk={tagged}"),
        Membership::Trunk { tagged, native: Some(native) } => {
            format!("trunk={tagged} native={native}")
        }
    });
    let parts: Vec<String> = bridge.into_iter().chain(vlans).collect();
    parts.join(" and ")
}
