//! Tells the fate of a frame without learning its source.

use super::fdb::{PortId, Tick};
use super::policy::{Decision, DropCause, Ingress, Policy, PortView};
use super::segment::Station;

/// State of a frame's source address before the frame arrives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// No station can have the address: the frame is dropped.
    Bad,
    /// The address is on the frame's port; true if it is configured there.
    Here(bool),
    /// The address was learned on this other port, and moves here.
    Moves(PortId),
    /// The address is configured on this other port, and is not learned here. The frame goes on.
    Static(PortId),
    /// The address flaps, and is held at this other port for a while. The frame goes on.
    Held(PortId),
    /// The address is new and is learned, if there is room.
    New,
    /// The port has learned as many addresses as it may; this one is not learned. The frame goes
    /// on.
    Full,
    /// The port does not learn. The frame goes on.
    Off,
}

/// The switch's decisions about one frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trace {
    /// The decision about the source.
    pub source: Source,
    /// The decision about the destination.
    pub decision: Decision,
}

impl Trace {
    /// True if the destination is reserved, so that [`Policy::decide_reserved`] has the decision.
    pub fn is_reserved(&self) -> bool {
        self.decision == Decision::Drop(DropCause::ReservedAddress)
    }
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
        if !source.mac.is_station() {
            let decision = Decision::Drop(DropCause::BadSource);
            return Trace { source: Source::Bad, decision };
        }
        let known = match self.fdb.whose(source) {
            Some((port, is_static)) if port == ingress.port => Source::Here(is_static),
            Some((port, true)) => Source::Static(port),
            _ if !self.ports.learns(ingress.port) => Source::Off,
            _ if self.fdb.is_port_full(ingress.port) => Source::Full,
            Some((port, false)) => match self.fdb.held(source, ingress.port, now) {
                Some(at) => Source::Held(at),
                None => Source::Moves(port),
            },
            None => Source::New,
        };
        let decision = match known {
            // `decide` would find the source itself, which `admit_source` would have learned.
            Source::New | Source::Moves(_) if source == destination => {
                Decision::Drop(DropCause::Hairpin)
            }
            _ => self.decide(ingress, destination),
        };
        Trace { source: known, decision }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fdb, FdbConfig, PortKind, Rules};
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

    /// Addresses 1 and 2 are learned on ports 0 and 1, 3 on port 3, 4 on a port that is gone; 5 is
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
        let source =
            |mac: MacAddr| policy.trace(ingress, mac.into(), MacAddr::BROADCAST.into(), NOW).source;
        assert_eq!(source(station(1)), Source::Moves(0));
        assert_eq!(source(station(2)), Source::Here(false));
        assert_eq!(source(station(5)), Source::Here(true));
        assert_eq!(source(station(6)), Source::New);
        assert_eq!(source(MacAddr::BROADCAST), Source::Bad);
        let other = Ingress { port: 0, kind: PortKind::Guest };
        let spoofed = policy.trace(other, station(5).into(), MacAddr::BROADCAST.into(), NOW);
        assert_eq!(spoofed.source, Source::Static(1));
    }
}
