//! Decisions about one frame, in cases.

use super::*;
use crate::fdb::FdbConfig;
use base::frame::MacAddr;

const GUEST_A: Ingress = Ingress { port: 0, kind: PortKind::Guest };
const GUEST_B: Ingress = Ingress { port: 1, kind: PortKind::Guest };
const UPLINK_C: Ingress = Ingress { port: 2, kind: PortKind::Uplink };
const UPLINK_D: Ingress = Ingress { port: 3, kind: PortKind::Uplink };
const ALL: [Ingress; 4] = [GUEST_A, GUEST_B, UPLINK_C, UPLINK_D];
const NOW: u32 = 1000;

/// The answer to one frame.
#[derive(PartialEq, Eq, Debug)]
struct Verdict {
    /// The answer about the source; `None` if the frame was dropped before.
    learned: Option<Learn>,
    /// The decision about the destination.
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
            damping: true,
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

/// Four guests with settings.
impl PortView for [PortPolicy; 4] {
    fn kind(&self, _: PortId) -> Option<PortKind> {
        Some(PortKind::Guest)
    }

    fn policy(&self, port: PortId) -> &PortPolicy {
        &self[usize::from(port)]
    }
}

/// Two isolated ports do not reach each other and any other pair does, as in Linux's bridge.
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
                true => Decision::Drop(DropReason::Isolated),
                false => Decision::Unicast(to),
            };
            assert_eq!(decision, expected, "{from} to {to}");
            let [a, b] = [from, to].map(|port| &ports[usize::from(port)]);
            assert_eq!(a.reaches(b), !both);
        }
    }
}

/// A port that does not learn knows its configured addresses only.
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
    assert_eq!(policy.admit_source(GUEST_A, group, NOW), Err(DropReason::BadSource));
    // An address that was learned elsewhere stays there.
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
        assert_eq!(verdict.decision, Decision::Drop(DropReason::Reserved), "{to}");
        assert_eq!(verdict.learned, Some(Learn::Inserted));
    }
}

/// A protocol that the ingress port passes is flooded to ports that pass it too.
#[test]
fn a_protocol_passes_between_ports_that_both_pass_it() {
    let passes = |protocols: &[Reserved]| {
        let mut policy = PortPolicy::PLAIN;
        protocols.iter().for_each(|protocol| policy.passes.add(*protocol));
        policy
    };
    let ports = [&Reserved::ALL[..], &[Reserved::Lldp], &[Reserved::Stp], &[]].map(passes);
    let bench = Bench::new();
    let policy = Policy { fdb: &bench.fdb, ports: &ports, rules: Rules::default() };
    let dropped = Decision::Drop(DropReason::Reserved);
    for protocol in Reserved::ALL {
        let last = [0x0e, 2, 0][protocol as usize];
        let to = MacAddr([0x01, 0x80, 0xc2, 0, 0, last]);
        let rest = Reserved::usual(to).expect("a protocol").1;
        let frame = [&to.0[..], &station(1).0, rest].concat();
        for (port, asked) in ports.iter().enumerate() {
            let ingress = Ingress { port: port as PortId, kind: PortKind::Guest };
            let flood = Flood::Reserved(protocol);
            let expected =
                if asked.passes.has(protocol) { Decision::Flood(flood) } else { dropped };
            assert_eq!(policy.decide_reserved(ingress, &frame), expected, "{protocol:?} {port}");
            assert_eq!(asked.takes(flood), asked.passes.has(protocol));
            // No other frame to the reserved address passes.
            let other = [&to.0[..], &station(1).0, &[0x88, 0x08, 0, 1]].concat();
            assert_eq!(policy.decide_reserved(ingress, &other), dropped);
        }
    }
}

#[test]
fn each_flood_has_a_number_of_its_own() {
    let reserved = Reserved::ALL.map(Flood::Reserved);
    let all: Vec<Flood> = [Flood::Group, Flood::Unknown].into_iter().chain(reserved).collect();
    for (number, flood) in all.into_iter().enumerate() {
        assert_eq!(flood.number() as usize, number);
        assert_eq!(flood.number() >> Flood::BITS, 0);
    }
}

#[test]
fn a_source_no_station_has_is_dropped_and_not_learned() {
    let bench = Bench::new();
    let multicast = MacAddr([0x01, 0, 0x5e, 0, 0, 1]);
    for source in [MacAddr([0; 6]), multicast, MacAddr::BROADCAST] {
        let verdict = bench.forward(GUEST_A, source, station(1));
        let dropped = Decision::Drop(DropReason::BadSource);
        assert_eq!(verdict, Verdict { learned: None, decision: dropped }, "{source}");
    }
    assert!(bench.fdb.is_empty());
}

#[test]
fn a_frame_does_not_go_back_where_it_came_from() {
    let bench = Bench::new();
    bench.forward(GUEST_A, station(1), MacAddr::BROADCAST);
    let verdict = bench.forward(GUEST_A, station(2), station(1));
    assert_eq!(verdict.decision, Decision::Drop(DropReason::Hairpin));
}

#[test]
fn uplink_to_uplink_is_dropped_unless_allowed() {
    let mut bench = Bench::new();
    bench.forward(UPLINK_D, station(4), MacAddr::BROADCAST);
    let verdict = bench.forward(UPLINK_C, station(3), station(4));
    assert_eq!(verdict.decision, Decision::Drop(DropReason::UplinkToUplink));
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
