//! Traces from one port to another port: chooses a frame that the first port could send to the
//! second, and lists everything that keeps the frame from the second port.

use super::sample::Sample;
use super::{Told, Way, hindrances, ingress, observer};
use crate::control::switch::Switch;
use api::wire::{Fault, Trace};
use base::frame::MacAddr;
use datapath::port::{Port, PortTable};
use switch::ruling::Ground;
use switch::{
    Decision, Entry, EntryAge, Flood, Membership, Note, Policy, PortPolicy, Ruling, Station, VlanId,
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

impl Told<'_> {
    /// Adds whether a frame that came in reaches the port `to`, or else everything that keeps the
    /// frame from the port.
    pub(super) fn toward(
        &mut self,
        policy: &Policy<'_, PortTable>,
        (port, to): (&Port, &Port),
        (destination, decision): (Station, Decision),
        way: Way<'_>,
    ) {
        let from = self.ports.policy(port.id);
        let between = policy.between(ingress(port), ingress(to), Some(way.vlan));
        let mut why: Vec<Ruling> = observer(self.ports, to.id).into_iter().chain(between).collect();
        if from.vlans.untagged().is_none() {
            self.add(&Ruling::passes(port.id, Note::TaggedOnly));
        }
        let ruling = policy.destination(ingress(port), destination, decision);
        match decision {
            Decision::Unicast(at) => {
                self.add(&ruling);
                why.extend(
                    (at != to.id).then(|| Ruling::avoids(to.id, Ground::Note(Note::OtherPort))),
                );
            }
            Decision::Flood(flood) => {
                let ruling = match flood {
                    Flood::Unknown if way.sample.stands_in[1] => {
                        Ruling::passes(to.id, Note::NoDestination)
                    }
                    _ => ruling,
                };
                self.flood(port, (ruling, destination.mac));
                let limited = self.limited(destination.segment, way.sample);
                why.extend(self.left_out(to, flood, limited.as_ref()));
            }
            Decision::Drop(reason) => {
                self.reason = Some(reason);
                if !why.iter().any(|known| known.ground == ruling.ground) {
                    self.add(&ruling);
                    why.push(Ruling::avoids(to.id, Ground::Note(Note::Nowhere)));
                }
            }
        }
        self.leaves(to, way, why);
    }

    /// Adds everything that would keep a frame from the port `to`, if the frame did come in.
    pub(super) fn behind(
        &mut self,
        policy: &Policy<'_, PortTable>,
        port: &Port,
        to: &Port,
        sample: &Sample,
    ) {
        let between = policy.between(ingress(port), ingress(to), None);
        let flood = self.ports.policy(to.id).avoids(to.id, Flood::Unknown);
        let flood = flood.filter(|_| sample.stands_in[1]);
        let why = observer(self.ports, to.id).into_iter().chain(between).chain(flood);
        let why: Vec<Ruling> = why.chain(hindrances(to, sample)).collect();
        if !why.is_empty() {
            self.misses(to, &why);
        }
    }
}
