//! A guard beside a host that would obey: each message that a guard refuses goes, in envelopes of
//! all kinds, to the host behind a TAP, by a port without a guard and by a guarded one. What the
//! host obeys by the first port shows that the messages are ones; by the second port it must obey
//! none.

mod envelope;
mod groups;
mod host;
pub mod messages;

use std::collections::BTreeMap;

use testkit::frontend::feat;
use testkit::host::in_namespace;
use testkit::proc::Daemon;
use testkit::vm::{Vm, VmConfig};
use testkit::vnet::Header;
use testkit::{Rng, SOON, rounds};

use envelope::{Envelope, PLAIN};
use host::{Host, SLOTS, Sent, UPLINK, named};
use messages::{Kind, Station, honest, innocent, message};

const FREE: Station = Station { number: 11 };
const GUARDED: Station = Station { number: 12 };
/// The number of the message that ends a batch.
const LAST: u32 = u32::MAX;

/// A message in its envelope.
struct Case {
    sent: Sent,
    envelope: Envelope,
}

impl Case {
    fn frames(&self, station: Station) -> Vec<(Header, Vec<u8>)> {
        let Sent { kind, slot, number } = self.sent;
        let [packet, decoy] = [message, innocent].map(|make| make(kind, station, slot, number));
        self.envelope.seal(station.mac(), [&packet, &decoy], number)
    }
}

/// The switch between two guests and the host.
struct Lab {
    d: Daemon,
    guests: [Vm; 2],
    host: Host,
}

impl Lab {
    fn new() -> Lab {
        let (mac, number) = (named(GUARDED.mac()), GUARDED.number);
        let ips = [
            GUARDED.v4().to_string(),
            GUARDED.v6().to_string(),
            format!("10.77.{number}.0/24"),
            format!("fd77::{number:x}:0/112"),
        ];
        let keys = format!(",isolated=on,guard=on,mac={mac},allowed-ips={}", ips.join(","));
        let tap = format!("--tap=up,ifname={UPLINK}");
        let d = Daemon::with_ports(&[",isolated=on", &keys], &[&tap]);
        let host = Host::new(&[FREE, GUARDED]);
        let offloads = feat::CSUM | feat::HOST_TSO4 | feat::HOST_TSO6 | feat::HOST_USO;
        let config = |n: usize| {
            let mut config = VmConfig::with_offloads(n as u8, offloads, true);
            config.tx.buffers = 128;
            config
        };
        let guests = [0, 1].map(|n| Vm::connect(&d.socket(n), config(n)));
        Lab { d, guests, host }
    }

    /// Sends the messages of a batch from a station; which of them the host obeys.
    fn obeys(&mut self, station: Station, cases: &[Case]) -> Vec<bool> {
        self.host.reset();
        let ring = &mut self.guests[usize::from(station.number == GUARDED.number)].tx[0];
        let last = honest(station, LAST);
        let last = PLAIN.seal(station.mac(), [&last, &last], LAST);
        let frames = cases.iter().flat_map(|case| case.frames(station)).chain(last);
        for chunk in frames.collect::<Vec<_>>().chunks(64) {
            for (header, frame) in chunk {
                ring.header = header.bytes(ring.header.len());
                assert!(ring.queue(frame), "no room");
            }
            ring.ring.publish();
            ring.drain(SOON);
        }
        self.host.read.wait_for(LAST);
        let sent: Vec<Sent> = cases.iter().map(|case| case.sent).collect();
        self.host.obeyed(station, &sent)
    }
}

/// What the host did of all cases.
#[derive(Default)]
struct Books {
    cases: BTreeMap<Kind, (usize, usize)>,
    wrong: Vec<String>,
}

impl Books {
    fn enter(&mut self, lab: &mut Lab, cases: &[Case]) {
        let free = lab.obeys(FREE, cases);
        let guarded = lab.obeys(GUARDED, cases);
        for (case, (free, guarded)) in cases.iter().zip(free.into_iter().zip(guarded)) {
            let count = self.cases.entry(case.sent.kind).or_default();
            count.0 += 1;
            count.1 += usize::from(free);
            if guarded {
                let hex = |(_, frame): (Header, Vec<u8>)| -> String {
                    frame.iter().map(|byte| format!("{byte:02x}")).collect()
                };
                let frames: Vec<String> = case.frames(GUARDED).into_iter().map(hex).collect();
                self.wrong.push(format!("{:?} {:?}: {frames:?}", case.sent, case.envelope));
            }
        }
    }

    fn judge(&self) {
        for (kind, (sent, obeyed)) in &self.cases {
            println!("{kind:?}: {sent} sent, {obeyed} obeyed without a guard");
        }
        let count = self.wrong.len();
        let some = self.wrong.iter().take(20).cloned().collect::<Vec<_>>().join("\n");
        assert!(count == 0, "the guard lets {count} messages pass that the host obeys:\n{some}");
        for kind in Kind::ALL {
            let obeyed = self.cases.get(&kind).map_or(0, |count| count.1);
            assert!(obeyed > 0, "the host obeys no {kind:?}: it shows nothing");
        }
    }
}

/// Runs all of these, each kind of message in each envelope.
fn run(envelopes: impl Iterator<Item = (Kind, Envelope)>) {
    let (mut lab, mut books) = (Lab::new(), Books::default());
    let mut cases = Vec::new();
    for (number, (kind, envelope)) in envelopes.enumerate() {
        let sent = Sent { kind, slot: cases.len(), number: number as u32 };
        cases.push(Case { sent, envelope });
        if cases.len() == SLOTS {
            books.enter(&mut lab, &std::mem::take(&mut cases));
        }
    }
    books.enter(&mut lab, &cases);
    lab.d.stop();
    books.judge();
}

#[test]
fn a_host_obeys_no_message_that_a_guard_refuses() {
    in_namespace(|| {
        let singles = envelope::singles(&PLAIN);
        run(Kind::ALL.iter().flat_map(|kind| singles.iter().map(|one| (*kind, one.clone()))));
    });
}

#[test]
#[ignore = "full"]
fn a_host_obeys_no_message_in_any_envelope_that_a_guard_refuses() {
    in_namespace(|| {
        let seed = std::env::var("VIOSWITCH_SEED").map_or(1, |n| n.parse().expect("a number"));
        println!("VIOSWITCH_SEED={seed}");
        let mut rng = Rng::new(seed);
        run((0..rounds(2_000, 2_000, 100_000)).map(|_| {
            let kind = Kind::ALL[rng.below(Kind::ALL.len() as u64) as usize];
            (kind, envelope::any(&mut rng, &PLAIN))
        }));
    });
}
