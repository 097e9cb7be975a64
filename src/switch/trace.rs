//! Decides about one frame without learning its source or counting, and names the ports, keys and
//! values that decide.

use super::fdb::{PortId, Tick};
use super::policy::{Decision, Flood, Ingress, Policy, PortPolicy, PortView};
use super::port_security::{self, Headers, Refused};
use super::ruling::{Ground, Note, Ruling};
use super::segment::{Segment, Station, VlanId, segment_name};
use base::frame::ethernet;
use base::stats::DropReason;

/// The switch's decisions about the addresses of one frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trace {
    /// The decision about the source.
    pub source: Ruling,
    /// The decision about the destination.
    pub decision: Decision,
}

impl<P: PortView + ?Sized> Policy<'_, P> {
    /// Returns the answers that [`Policy::admit_source`] and [`Policy::decide`] would give for a
    /// frame at `now`, in a table with room for the source.
    pub fn trace(
        &self,
        ingress: Ingress,
        source: Station,
        destination: Station,
        now: impl Into<Tick>,
    ) -> Trace {
        let ruling = self.source(ingress, source, now);
        let decision = match ruling.ground {
            _ if ruling.reason().is_some() => Decision::Drop(DropReason::BadSource),
            // `decide` would find the source itself, which `admit_source` would have learned.
            Ground::Note(Note::Learned | Note::Moves) if source == destination => {
                Decision::Drop(DropReason::Hairpin)
            }
            _ => self.decide(ingress, destination),
        };
        Trace { source: ruling, decision }
    }

    fn source(&self, ingress: Ingress, source: Station, now: impl Into<Tick>) -> Ruling {
        let Ingress { port, .. } = ingress;
        let of = |note| Ruling::passes(port, note).with("mac", source.mac);
        if !source.mac.is_station() {
            return Ruling::drops(port, DropReason::BadSource).with("mac", source.mac);
        }
        match self.fdb.whose(source) {
            Some((at, true)) if at == port => of(Note::StaticHere),
            Some((at, false)) if at == port => of(Note::KnownHere),
            Some((at, true)) => of(Note::StaticElsewhere).with_port("at", at),
            _ if !self.ports.policy(port).learns => of(Note::LearnOff),
            _ if self.fdb.is_port_full(port) => of(Note::Full),
            Some((from, false)) => match self.fdb.held(source, port, now) {
                Some(at) => of(Note::Held).with_port("at", at),
                None => of(Note::Moves).with_port("from", from),
            },
            None => of(Note::Learned),
        }
    }

    /// Returns the decision about a frame to `to` in words.
    pub fn destination(&self, ingress: Ingress, to: Station, decision: Decision) -> Ruling {
        let ruling = match decision {
            Decision::Unicast(at) => Ruling::passes(at, Note::Unicast),
            Decision::Flood(Flood::Group) => Ruling::passes(ingress.port, Note::FloodedGroup),
            Decision::Flood(Flood::Unknown) => Ruling::passes(ingress.port, Note::FloodedUnknown),
            Decision::Flood(Flood::Reserved(_)) => {
                Ruling::passes(ingress.port, Note::FloodedReserved)
            }
            Decision::Drop(reason) => {
                let egress = self.fdb.lookup(to).unwrap_or(ingress.port);
                Ruling::drops(egress, reason).with_port("other", ingress.port)
            }
        };
        ruling.with("mac", to.mac)
    }

    /// Returns everything in the settings of two ports that keeps frames in a VLAN of the first
    /// port from the second; without a VLAN, frames in any VLAN.
    pub fn between(&self, from: Ingress, to: Ingress, vlan: Option<VlanId>) -> Vec<Ruling> {
        let [sender, receiver] = [from, to].map(|end| self.ports.policy(end.port));
        let avoids =
            |reason| Ruling::avoids(to.port, Ground::Drop(reason)).with_port("other", from.port);
        let mut found = Vec::from_iter(apart((from.port, sender), (to.port, receiver), vlan));
        if !sender.reaches(receiver) {
            found.push(avoids(DropReason::Isolated));
        }
        if !self.rules.flood_reaches(from, to.port, to.kind) {
            found.push(avoids(DropReason::UplinkToUplink));
        }
        found
    }
}

/// Returns the difference of bridge or VLANs that keeps frames in a VLAN of port `from` from port
/// `to`.
fn apart(
    (from, sender): (PortId, &PortPolicy),
    (to, receiver): (PortId, &PortPolicy),
    vlan: Option<VlanId>,
) -> Option<Ruling> {
    let bridges = sender.bridge != receiver.bridge;
    let vlans = vlan.is_some_and(|vlan| !receiver.vlans.is_member(vlan));
    let with_vlans = vlans || bridges && sender.vlans != receiver.vlans;
    let [own, others] = [receiver, sender].map(|policy| {
        let bridge = bridges.then(|| format!("bridge={}", policy.bridge.name()));
        let parts = bridge.into_iter().chain(with_vlans.then(|| policy.vlans.to_string()));
        parts.collect::<Vec<_>>().join(" and ")
    });
    let ruling = Ruling::avoids(to, Ground::Note(Note::Apart)).with("own", own);
    (bridges || vlans).then(|| ruling.with_port("other", from).with("others", others))
}

impl PortPolicy {
    /// Returns the VLAN in which a frame that begins with `bytes` comes in by `port`, and the
    /// decision unless the VLAN and the bridge are the default. The error drops the frame.
    pub fn entry(&self, port: PortId, bytes: &[u8]) -> Result<(VlanId, Option<Ruling>), Ruling> {
        let Some(vlan) = self.vlans.classify(bytes) else {
            let frame = match ethernet::vlan_tag(bytes).map(|tag| tag & 0xfff) {
                Some(tag) => format!("a frame with the tag of VLAN {tag}"),
                None if ethernet::is_service_tagged(bytes, 12) => {
                    "a frame with a provider's tag".to_owned()
                }
                None => "a frame without a tag".to_owned(),
            };
            let ruling = Ruling::drops(port, DropReason::Vlan).with("own", &self.vlans);
            return Err(ruling.with("frame", frame));
        };
        let is_default = self.segment(vlan) == Segment::DEFAULT;
        let ruling = Ruling::passes(port, Note::InSegment);
        let ruling = ruling.with("segment", segment_name(self.bridge.name(), vlan));
        Ok((vlan, (!is_default).then_some(ruling)))
    }

    /// Returns the decision of the guard of `port` about a frame; none without a guard. `is_given`:
    /// the headers are a frame's, and not made of its addresses.
    pub fn guarded(&self, port: PortId, frame: &Headers<'_>, is_given: bool) -> Option<Ruling> {
        let rules = self.security.as_ref()?;
        let guard = if rules.enforced { "guard=on" } else { "guard=log" };
        // A traced frame is not sent, so the frame adds no DHCP client to the port.
        Some(match port_security::check(rules, frame, &|_| true) {
            Ok(()) => {
                let servers = match rules.servers.names().join(",") {
                    none if none.is_empty() => none,
                    servers => format!(", allow-server={servers}"),
                };
                let what = if is_given { "the frame is" } else { "the source addresses are" };
                let ruling = Ruling::passes(port, Note::Allowed).with("what", what);
                ruling.with("guard", format!("{guard}{servers}"))
            }
            Err(Refused::Short | Refused::Whole) => {
                Ruling::passes(port, Note::Unread).with("guard", guard)
            }
            Err(Refused::Broken(violation)) if rules.enforced => {
                Ruling::drops(port, DropReason::Guard).with("why", violation)
            }
            Err(Refused::Broken(violation)) => {
                Ruling::passes(port, Note::Counted).with("why", violation)
            }
        })
    }

    /// Returns why a flood leaves out `port`, unless the port forwards nothing at all.
    pub fn avoids(&self, port: PortId, flood: Flood) -> Option<Ruling> {
        let ruling = match flood {
            Flood::Reserved(protocol) => {
                Ruling::avoids(port, Ground::Note(Note::PassOff)).with("protocol", protocol)
            }
            Flood::Group | Flood::Unknown => Ruling::avoids(port, Ground::Note(Note::FloodOff)),
        };
        (self.forwards && !self.takes(flood)).then_some(ruling)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bridge, Fdb, FdbConfig, Membership, PortKind, Rules};
    use base::frame::MacAddr;

    const NOW: u32 = 10;
    const KINDS: [Option<PortKind>; 5] = [
        Some(PortKind::Guest),
        Some(PortKind::Guest),
        Some(PortKind::Uplink),
        Some(PortKind::Uplink),
        None,
    ];

    fn station(n: u8) -> MacAddr {
        MacAddr([2, 0, 0, 0, 0, n])
    }

    /// Addresses 1 and 2 are learned on ports 0 and 1, 3 on port 3, 4 on a deleted port; 5 is
    /// configured on port 1.
    fn table() -> Fdb {
        let fdb = Fdb::new(FdbConfig {
            max_entries: 64,
            max_per_port: 16,
            reserved_per_port: 0,
            max_per_segment: u32::MAX,
            reserved_per_segment: 0,
            age_seconds: 300,
            damping: true,
            ports: 5,
            key: [1, 2],
        });
        for (n, port) in [(1, 0), (2, 1), (3, 3), (4, 4)] {
            assert!(fdb.learn(station(n), port, NOW).is_in_table());
        }
        fdb.insert_static(station(5), 1).unwrap();
        fdb
    }

    #[test]
    fn a_trace_says_what_forwarding_does() {
        let reserved = MacAddr([1, 0x80, 0xc2, 0, 0, 1]);
        let mut addresses: Vec<MacAddr> = (0..7).map(station).collect();
        addresses.extend([MacAddr::BROADCAST, MacAddr([0; 6]), reserved]);
        for uplink_to_uplink in [false, true] {
            for (port, kind) in KINDS.iter().enumerate().filter_map(|(n, kind)| Some((n, (*kind)?)))
            {
                let ingress = Ingress { port: port as PortId, kind };
                for &source in &addresses {
                    for &destination in &addresses {
                        let fdb = table();
                        let rules = Rules { uplink_to_uplink };
                        let policy = Policy { fdb: &fdb, ports: &KINDS[..], rules };
                        let told = policy.trace(ingress, source.into(), destination.into(), NOW);
                        assert_eq!(
                            policy.trace(ingress, source.into(), destination.into(), NOW),
                            told
                        );
                        let done = match policy.admit_source(ingress, source.into(), NOW) {
                            Ok(_) => policy.decide(ingress, destination.into()),
                            Err(cause) => Decision::Drop(cause),
                        };
                        let what = format!("{source} to {destination} from {port}: {told:?}");
                        assert_eq!(told.decision, done, "{what}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_known_of_a_source_is_told() {
        let fdb = table();
        let policy = Policy { fdb: &fdb, ports: &KINDS[..], rules: Rules::default() };
        let ingress = Ingress { port: 1, kind: PortKind::Guest };
        let source = |mac: MacAddr| {
            let to = MacAddr::BROADCAST.into();
            policy.trace(ingress, mac.into(), to, NOW).source.words(|port| format!("'p{port}'"))
        };
        for (mac, words) in [
            (station(1), "was seen on 'p0', and moves here"),
            (station(2), "is known here"),
            (station(5), "is configured here"),
            (station(6), "is new, and is learned here"),
            (MacAddr::BROADCAST, "is zero or a group address"),
        ] {
            assert_eq!(source(mac), format!("{mac} {words}"));
        }
        let other = Ingress { port: 0, kind: PortKind::Guest };
        let spoofed = policy.trace(other, station(5).into(), MacAddr::BROADCAST.into(), NOW);
        let elsewhere = Ruling::passes(0, Note::StaticElsewhere).with("mac", station(5));
        assert_eq!(spoofed.source, elsewhere.with_port("at", 1));
    }

    /// Two ports with settings.
    impl PortView for [PortPolicy; 2] {
        fn kind(&self, _: PortId) -> Option<PortKind> {
            Some(PortKind::Guest)
        }

        fn policy(&self, port: PortId) -> &PortPolicy {
            &self[usize::from(port)]
        }
    }

    /// `Policy::between` finds an obstacle between two ports exactly if a flood or a unicast frame
    /// does not pass.
    #[test]
    fn an_explanation_has_an_obstacle_exactly_if_no_frame_passes() {
        let access = |vlan| PortPolicy { vlans: Membership::Access(vlan), ..PortPolicy::PLAIN };
        let settings = [
            PortPolicy::PLAIN,
            PortPolicy { isolated: true, ..PortPolicy::PLAIN },
            PortPolicy { flood_unknown: false, ..PortPolicy::PLAIN },
            PortPolicy { bridge: Bridge::named("explained").unwrap(), ..PortPolicy::PLAIN },
            access(10),
            PortPolicy { isolated: true, ..access(10) },
            access(20),
        ];
        let (from, to) = (0, 1);
        for (sender, receiver) in settings.iter().flat_map(|a| settings.iter().map(move |b| (a, b)))
        {
            let ports = [sender.clone(), receiver.clone()];
            let fdb = table();
            let policy = Policy { fdb: &fdb, ports: &ports, rules: Rules::default() };
            let [ingress, egress] = [from, to].map(|port| Ingress { port, kind: PortKind::Guest });
            let segment = sender.untagged().unwrap();
            let found = policy.between(ingress, egress, Some(segment.vlan()));
            let reaches = sender.reaches(receiver) && receiver.is_member(segment);
            assert_eq!(found.is_empty(), reaches, "{sender:?} {receiver:?}");
            let flood = Flood::Unknown;
            assert_eq!(receiver.avoids(to, flood).is_none(), receiver.takes(flood));
            // The ports' entries are in the segment, as if the receiver had been a member.
            let known = Station::new(segment, station(9));
            fdb.learn(known, to, NOW);
            let is_sent = policy.decide(ingress, known) == Decision::Unicast(to);
            assert_eq!(is_sent, reaches, "{sender:?} {receiver:?}");
            assert!(found.iter().all(|one| one.reason().is_none()), "a flood drops nothing");
        }
    }
}
