//! The story of one frame: may it come in, who sent it, where does it go.
//!
//! In the order of IEEE Std 802.1Q-2018, clause 8.6: the source is admitted and learned, then the
//! reserved addresses are filtered, the destination is resolved, and what may leave by the
//! resolved port is forwarded; what no port is known for is flooded.
//!
//! Everything here is a function of its arguments and the table. The caller counts drops and
//! refused learning from the answers; it calls [`Policy::admit_source`] and [`Policy::decide`]
//! where what it remembers of a burst (`memo.rs`) does not answer.

use super::fdb::{Fdb, Learn, PortId};
use super::port_security::PortSecurity;
use super::segment::{Bridge, Segment, Station, VlanId};
use super::vlan::Membership;

/// What stands behind a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortKind {
    /// A VM.
    Guest,
    /// A network of unknown size, usually a TAP in a bridge.
    Uplink,
}

/// The caller's table of ports, as far as a decision needs it.
pub trait PortView {
    /// The kind of a port, or `None` if there is no such port (any more).
    fn kind(&self, port: PortId) -> Option<PortKind>;

    /// Whether frames of a segment leave by a port.
    fn is_member(&self, port: PortId, segment: Segment) -> bool;

    /// Whether the sources of a port's frames are learned.
    fn learns(&self, port: PortId) -> bool;

    /// Whether a port is one of those that do not reach each other.
    fn is_isolated(&self, port: PortId) -> bool;
}

/// A slice indexed by port number.
#[cfg(test)]
impl PortView for [Option<PortKind>] {
    fn kind(&self, port: PortId) -> Option<PortKind> {
        self.get(usize::from(port)).copied().flatten()
    }

    fn is_member(&self, _: PortId, segment: Segment) -> bool {
        segment == Segment::DEFAULT
    }

    fn learns(&self, _: PortId) -> bool {
        true
    }

    fn is_isolated(&self, _: PortId) -> bool {
        false
    }
}

/// The port a frame came in on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ingress {
    /// Its number.
    pub port: PortId,
    /// Its kind.
    pub kind: PortKind,
}

/// What the administrator asks of a port beyond forwarding. Of a table of ports that asks for
/// nothing a burst pays nothing for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortPolicy {
    /// Frames for addresses that no port is known for go there too.
    pub flood_unknown: bool,
    /// Frames pass; otherwise none does, in either direction.
    pub forwards: bool,
    /// The sources of its frames are learned.
    pub learns: bool,
    /// It does not reach the other ports of which this is asked, nor they it.
    pub isolated: bool,
    /// Only so much of what it sends is flooded.
    pub limits_floods: bool,
    /// The bridge that it is a port of.
    pub bridge: Bridge,
    /// The VLANs of that bridge that it is a member of.
    pub vlans: Membership,
    /// What it may send; none if that is anything.
    pub security: Option<PortSecurity>,
    /// It gets the copies of a mirror, and takes part in no forwarding.
    pub observes: bool,
}

impl PortPolicy {
    /// Nothing is asked.
    pub const PLAIN: PortPolicy = PortPolicy {
        flood_unknown: true,
        forwards: true,
        learns: true,
        isolated: false,
        limits_floods: false,
        bridge: Bridge::DEFAULT,
        vlans: Membership::Opaque,
        security: None,
        observes: false,
    };

    /// Whether such floods go there.
    pub fn takes(&self, flood: Flood) -> bool {
        self.forwards && (flood == Flood::Group || self.flood_unknown)
    }

    /// Whether frames go from here to a port of which this is asked, as far as isolation says.
    pub fn reaches(&self, other: &PortPolicy) -> bool {
        !(self.isolated && other.isolated)
    }

    /// Whether frames from there are looked at one by one.
    #[inline(always)]
    pub fn screens(&self) -> bool {
        self.vlans != Membership::Opaque || self.security.is_some() || self.observes
    }

    /// A VLAN of its bridge.
    #[inline(always)]
    pub fn segment(&self, vlan: VlanId) -> Segment {
        Segment::new(self.bridge.number(), vlan)
    }

    /// Where its frames without a tag are, and its static addresses.
    pub fn untagged(&self) -> Option<Segment> {
        self.vlans.untagged().map(|vlan| self.segment(vlan))
    }

    /// Whether frames of a segment leave by it.
    pub fn is_member(&self, segment: Segment) -> bool {
        !self.observes
            && segment.bridge() == self.bridge.number()
            && self.vlans.is_member(segment.vlan())
    }
}

impl Default for PortPolicy {
    fn default() -> PortPolicy {
        PortPolicy::PLAIN
    }
}

/// Why a frame is flooded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flood {
    /// It is for all stations, or for a group.
    Group,
    /// No port is known to have its destination address.
    Unknown,
}

/// What the administrator allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rules {
    /// Forward from uplink to uplink. Off by default: two TAPs in one bridge are a loop.
    pub uplink_to_uplink: bool,
}

/// Where a frame goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// To this port alone.
    Unicast(PortId),
    /// To every port that [`Rules::flood_reaches`] and that takes such floods.
    Flood(Flood),
    /// Nowhere.
    Drop(DropCause),
}

/// Why a frame goes nowhere. A drop is an outcome, not an error: the caller counts it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DropCause {
    /// The destination is one a bridge must not forward (01:80:c2:00:00:00 to 0f).
    ReservedAddress,
    /// The source is zero or a group address: no station sends that, and answers to it flood.
    BadSource,
    /// The destination is on the port the frame came from.
    Hairpin,
    /// From one uplink to another, which the rules do not allow.
    UplinkToUplink,
    /// From one isolated port to another.
    Isolated,
    /// One of its ports does not forward ([`PortPolicy`]).
    AdminDown,
    /// Its VLAN tag is none that may come in, or leave.
    Vlan,
}

impl Rules {
    /// Whether a flood from `ingress` goes out of `egress`: never back where it came from, and
    /// from uplink to uplink only if allowed.
    #[inline]
    pub fn flood_reaches(self, ingress: Ingress, egress: PortId, egress_kind: PortKind) -> bool {
        egress != ingress.port && self.allow(ingress.kind, egress_kind)
    }

    #[inline]
    fn allow(self, ingress: PortKind, egress: PortKind) -> bool {
        self.uplink_to_uplink || ingress != PortKind::Uplink || egress != PortKind::Uplink
    }
}

/// What decisions are made from: the table, the ports and the rules of one moment.
pub struct Policy<'a, P: PortView + ?Sized> {
    /// Where addresses live.
    pub fdb: &'a Fdb,
    /// What the ports are.
    pub ports: &'a P,
    /// What is allowed.
    pub rules: Rules,
}

impl<P: PortView + ?Sized> Policy<'_, P> {
    /// Refuses a frame whose source no station can have; learns the source otherwise.
    ///
    /// A source that is not learned, because the table is full, because it is configured for
    /// another port, or because the port does not learn, is no reason to drop the frame: answers to
    /// it go elsewhere or flood.
    #[inline]
    pub fn admit_source(
        &self,
        ingress: Ingress,
        source: Station,
        now: u32,
    ) -> Result<Learn, DropCause> {
        if !source.mac.is_station() {
            return Err(DropCause::BadSource);
        }
        match self.ports.learns(ingress.port) {
            true => Ok(self.fdb.learn(source, ingress.port, now)),
            false => Ok(self.fdb.recognise(source, ingress.port)),
        }
    }

    /// Where a frame with this destination goes, its source being admitted.
    #[inline]
    pub fn decide(&self, ingress: Ingress, destination: Station) -> Decision {
        if destination.mac.is_group() {
            return match destination.mac.is_bridge_reserved() {
                true => Decision::Drop(DropCause::ReservedAddress),
                false => Decision::Flood(Flood::Group),
            };
        }
        let Some(egress) = self.fdb.lookup(destination) else {
            return Decision::Flood(Flood::Unknown);
        };
        if egress == ingress.port {
            return Decision::Drop(DropCause::Hairpin);
        }
        match self.ports.kind(egress) {
            // The port is gone and its addresses are about to be flushed: none is known.
            None => Decision::Flood(Flood::Unknown),
            // It has left the segment since it was learned there.
            Some(_) if !self.ports.is_member(egress, destination.segment) => {
                Decision::Flood(Flood::Unknown)
            }
            Some(kind) if !self.rules.allow(ingress.kind, kind) => {
                Decision::Drop(DropCause::UplinkToUplink)
            }
            Some(_) if self.ports.is_isolated(ingress.port) && self.ports.is_isolated(egress) => {
                Decision::Drop(DropCause::Isolated)
            }
            Some(_) => Decision::Unicast(egress),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::MacAddr;
    use crate::switch::fdb::FdbConfig;

    const GUEST_A: Ingress = Ingress { port: 0, kind: PortKind::Guest };
    const GUEST_B: Ingress = Ingress { port: 1, kind: PortKind::Guest };
    const UPLINK_C: Ingress = Ingress { port: 2, kind: PortKind::Uplink };
    const UPLINK_D: Ingress = Ingress { port: 3, kind: PortKind::Uplink };
    const ALL: [Ingress; 4] = [GUEST_A, GUEST_B, UPLINK_C, UPLINK_D];
    const NOW: u32 = 1000;

    /// The answer to one frame.
    #[derive(PartialEq, Eq, Debug)]
    struct Verdict {
        /// What became of the source; `None` if the frame was dropped before.
        learned: Option<Learn>,
        /// Where the frame goes.
        decision: Decision,
    }

    /// A switch of two guests and two uplinks.
    struct Bench {
        fdb: Fdb,
        ports: Vec<Option<PortKind>>,
        rules: Rules,
    }

    impl Bench {
        fn new() -> Bench {
            Bench::with_port_cap(16)
        }

        fn with_port_cap(max_per_port: u32) -> Bench {
            let fdb = Fdb::new(FdbConfig {
                max_entries: 64,
                max_per_port,
                reserved_per_port: 0,
                max_per_segment: u32::MAX,
                reserved_per_segment: 0,
                age_seconds: 300,
                ports: 4,
                key: [1, 2],
            });
            let ports = ALL.iter().map(|port| Some(port.kind)).collect();
            Bench { fdb, ports, rules: Rules::default() }
        }

        fn policy(&self) -> Policy<'_, [Option<PortKind>]> {
            Policy { fdb: &self.fdb, ports: &self.ports, rules: self.rules }
        }

        fn forward(&self, ingress: Ingress, source: MacAddr, destination: MacAddr) -> Verdict {
            let policy = self.policy();
            match policy.admit_source(ingress, source.into(), NOW) {
                Err(cause) => Verdict { learned: None, decision: Decision::Drop(cause) },
                Ok(learn) => {
                    let decision = policy.decide(ingress, destination.into());
                    Verdict { learned: Some(learn), decision }
                }
            }
        }
    }

    fn station(n: u8) -> MacAddr {
        MacAddr([0x52, 0x54, 0, 0, 0, n])
    }

    /// Four guests of which something is asked.
    impl PortView for [PortPolicy; 4] {
        fn kind(&self, _: PortId) -> Option<PortKind> {
            Some(PortKind::Guest)
        }

        fn is_member(&self, port: PortId, segment: Segment) -> bool {
            self[usize::from(port)].is_member(segment)
        }

        fn learns(&self, port: PortId) -> bool {
            self[usize::from(port)].learns
        }

        fn is_isolated(&self, port: PortId) -> bool {
            self[usize::from(port)].isolated
        }
    }

    /// As of Linux's bridge: two isolated ports do not reach each other, any other pair does.
    #[test]
    fn isolated_ports_do_not_reach_each_other_and_all_others() {
        let of = |isolated| PortPolicy { isolated, ..PortPolicy::PLAIN };
        let ports = [true, true, false, false].map(of);
        let bench = Bench::new();
        let policy = Policy { fdb: &bench.fdb, ports: &ports, rules: Rules::default() };
        (0..4).for_each(|port| _ = bench.fdb.learn(station(port), port.into(), NOW));
        for from in 0..4 {
            for to in (0..4).filter(|to| *to != from) {
                let ingress = Ingress { port: from, kind: PortKind::Guest };
                let both = from < 2 && to < 2;
                let decision = policy.decide(ingress, station(to as u8).into());
                let expected = match both {
                    true => Decision::Drop(DropCause::Isolated),
                    false => Decision::Unicast(to),
                };
                assert_eq!(decision, expected, "{from} to {to}");
                let [a, b] = [from, to].map(|port| &ports[usize::from(port)]);
                assert_eq!(a.reaches(b), !both);
            }
        }
    }

    /// Sticky: what is configured for a port is known there, and nothing else is.
    #[test]
    fn a_port_that_does_not_learn_knows_its_static_addresses() {
        let mut ports = [(); 4].map(|()| PortPolicy::PLAIN);
        ports[0].learns = false;
        let bench = Bench::new();
        let policy = Policy { fdb: &bench.fdb, ports: &ports, rules: Rules::default() };
        bench.fdb.insert_static(station(1), 0).unwrap();
        bench.fdb.insert_static(station(2), 1).unwrap();
        let admit = |n: u8| policy.admit_source(GUEST_A, station(n).into(), NOW);
        let known = [1, 2, 3].map(admit);
        assert_eq!(known, [Ok(Learn::Known), Ok(Learn::Static), Ok(Learn::Off)]);
        let group = MacAddr::BROADCAST.into();
        assert_eq!(policy.admit_source(GUEST_A, group, NOW), Err(DropCause::BadSource));
        // What was learned elsewhere stays there.
        bench.fdb.learn(station(3), 1, NOW);
        assert_eq!((admit(3), bench.fdb.lookup(station(3))), (Ok(Learn::Off), Some(1)));
        assert_eq!(policy.admit_source(GUEST_B, station(4).into(), NOW), Ok(Learn::Inserted));
    }

    #[test]
    fn an_answer_goes_to_the_port_that_asked_only() {
        let bench = Bench::new();
        let asked = bench.forward(GUEST_A, station(1), MacAddr::BROADCAST);
        assert_eq!(asked.decision, Decision::Flood(Flood::Group));
        assert_eq!(asked.learned, Some(Learn::Inserted));
        let answered = bench.forward(GUEST_B, station(2), station(1));
        assert_eq!(answered.decision, Decision::Unicast(GUEST_A.port));
        let again = bench.forward(GUEST_A, station(1), station(2));
        assert_eq!(again.decision, Decision::Unicast(GUEST_B.port));
        assert_eq!(again.learned, Some(Learn::Known));
    }

    #[test]
    fn unknown_unicast_multicast_and_broadcast_flood() {
        let bench = Bench::new();
        let multicast = MacAddr([0x33, 0x33, 0, 0, 0, 1]);
        let beyond_reserved = MacAddr([0x01, 0x80, 0xc2, 0, 0, 0x10]);
        let (group, unknown) = (Flood::Group, Flood::Unknown);
        for (to, why) in [
            (station(9), unknown),
            (multicast, group),
            (beyond_reserved, group),
            (MacAddr::BROADCAST, group),
            (MacAddr([0; 6]), unknown),
        ] {
            let verdict = bench.forward(GUEST_A, station(1), to);
            assert_eq!(verdict.decision, Decision::Flood(why), "{to}");
        }
    }

    #[test]
    fn reserved_addresses_are_not_forwarded_and_their_sender_is_learned() {
        let bench = Bench::new();
        for last in 0..=0x0f {
            let to = MacAddr([0x01, 0x80, 0xc2, 0, 0, last]);
            let verdict = bench.forward(GUEST_A, station(last + 1), to);
            assert_eq!(verdict.decision, Decision::Drop(DropCause::ReservedAddress), "{to}");
            assert_eq!(verdict.learned, Some(Learn::Inserted));
        }
    }

    #[test]
    fn a_source_no_station_has_is_dropped_and_not_learned() {
        let bench = Bench::new();
        let multicast = MacAddr([0x01, 0, 0x5e, 0, 0, 1]);
        for source in [MacAddr([0; 6]), multicast, MacAddr::BROADCAST] {
            let verdict = bench.forward(GUEST_A, source, station(1));
            let dropped = Decision::Drop(DropCause::BadSource);
            assert_eq!(verdict, Verdict { learned: None, decision: dropped }, "{source}");
        }
        assert!(bench.fdb.is_empty());
    }

    #[test]
    fn a_frame_does_not_go_back_where_it_came_from() {
        let bench = Bench::new();
        bench.forward(GUEST_A, station(1), MacAddr::BROADCAST);
        let verdict = bench.forward(GUEST_A, station(2), station(1));
        assert_eq!(verdict.decision, Decision::Drop(DropCause::Hairpin));
    }

    #[test]
    fn uplink_to_uplink_is_dropped_unless_allowed() {
        let mut bench = Bench::new();
        bench.forward(UPLINK_D, station(4), MacAddr::BROADCAST);
        let verdict = bench.forward(UPLINK_C, station(3), station(4));
        assert_eq!(verdict.decision, Decision::Drop(DropCause::UplinkToUplink));
        let from_guest = bench.forward(GUEST_A, station(1), station(4));
        assert_eq!(from_guest.decision, Decision::Unicast(UPLINK_D.port));
        bench.rules.uplink_to_uplink = true;
        let verdict = bench.forward(UPLINK_C, station(3), station(4));
        assert_eq!(verdict.decision, Decision::Unicast(UPLINK_D.port));
    }

    #[test]
    fn a_flood_reaches_all_but_its_ingress_and_other_uplinks() {
        let reached = |rules: Rules, from: Ingress| {
            let out = |to: &Ingress| rules.flood_reaches(from, to.port, to.kind);
            ALL.map(|to| out(&to))
        };
        let closed = Rules::default();
        assert_eq!(reached(closed, GUEST_A), [false, true, true, true]);
        assert_eq!(reached(closed, UPLINK_C), [true, true, false, false]);
        let open = Rules { uplink_to_uplink: true };
        assert_eq!(reached(open, UPLINK_C), [true, true, false, true]);
        assert_eq!(reached(open, UPLINK_D), [true, true, true, false]);
    }

    #[test]
    fn another_ports_static_source_is_forwarded_but_not_learned() {
        let bench = Bench::new();
        bench.fdb.insert_static(station(1), GUEST_A.port).unwrap();
        bench.forward(UPLINK_C, station(3), MacAddr::BROADCAST);
        let spoofed = bench.forward(GUEST_B, station(1), station(3));
        assert_eq!(spoofed.learned, Some(Learn::Static));
        assert_eq!(spoofed.decision, Decision::Unicast(UPLINK_C.port));
        assert_eq!(bench.fdb.lookup(station(1)), Some(GUEST_A.port));
    }

    #[test]
    fn a_refused_source_is_reported_and_the_frame_still_forwarded() {
        let bench = Bench::with_port_cap(1);
        bench.forward(GUEST_A, station(1), MacAddr::BROADCAST);
        bench.forward(GUEST_B, station(2), MacAddr::BROADCAST);
        let refused = bench.forward(GUEST_A, station(3), station(2));
        assert_eq!(refused.learned, Some(Learn::PortFull));
        assert_eq!(refused.decision, Decision::Unicast(GUEST_B.port));
    }

    #[test]
    fn an_address_of_a_port_that_is_gone_floods() {
        let mut bench = Bench::new();
        bench.forward(GUEST_B, station(2), MacAddr::BROADCAST);
        bench.ports[usize::from(GUEST_B.port)] = None;
        let verdict = bench.forward(GUEST_A, station(1), station(2));
        assert_eq!(verdict.decision, Decision::Flood(Flood::Unknown));
    }
}
