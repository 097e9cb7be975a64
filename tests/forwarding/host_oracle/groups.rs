//! Snooping beside a host that would obey: each message of IGMP, MLD and of multicast routers goes
//! in envelopes of all kinds from a guest to a host behind a TAP, through a switch without snooping
//! and through one with snooping. What the host obeys by the first switch shows that the messages
//! are ones; by the second switch no report reaches a host, and no query of a guest anybody.

mod member;
mod messages;

use std::collections::BTreeMap;
use std::time::Duration;

use testkit::frontend::feat;
use testkit::host::in_namespace;
use testkit::proc::{Daemon, wait_for};
use testkit::tx::TxRing;
use testkit::vm::{Vm, VmConfig};
use testkit::vnet::Header;
use testkit::{Rng, SOON, rounds};

use super::envelope::{self, Envelope, PLAIN};
use super::host::UPLINK;
use super::messages::{Station, honest};
use member::Member;
use messages::{Aim, Effect, GROUPS, Kind, Said, innocent, message, questions};

const QUERIER: Station = Station { number: 2 };
const GUEST: Station = Station { number: 12 };
/// Linux keeps 8 messages of MLD that it has not looked at.
const UNREAD: usize = 4;
/// Linux handles MLD in a workqueue (net/ipv6/mcast.c), which a loaded machine runs late.
const LATE: Duration = Duration::from_millis(200);
/// The number of the message that ends a batch.
const LAST: u32 = u32::MAX;

/// A message in its envelope.
struct Case {
    said: Said,
    envelope: Envelope,
}

impl Case {
    fn frames(&self) -> Vec<(Header, Vec<u8>)> {
        let [packet, decoy] = [message(&self.said, GUEST), innocent(&self.said, GUEST)];
        self.envelope.seal(GUEST.mac(), [&packet, &decoy], self.said.number)
    }
}

/// The switch between a querier, a guest and the host.
struct Lab {
    d: Daemon,
    querier: Vm,
    guest: Vm,
    host: Member,
}

fn send(ring: &mut TxRing, frames: impl IntoIterator<Item = (Header, Vec<u8>)>) {
    for (header, frame) in frames {
        ring.header = header.bytes(ring.header.len());
        assert!(ring.queue(&frame), "no room");
    }
    ring.ring.publish();
    ring.drain(SOON);
}

impl Lab {
    fn new(options: &[&str]) -> Lab {
        let tap = format!("--tap=up,ifname={UPLINK},multicast-router=off");
        let options = [&[tap.as_str()], options].concat();
        let d = Daemon::with_ports(&[",multicast-router=on", ""], &options);
        let host = Member::new();
        let offloads = feat::CSUM | feat::HOST_TSO4 | feat::HOST_TSO6 | feat::HOST_USO;
        let vm = |n: usize| {
            let mut config = VmConfig::with_offloads(n as u8, offloads, true);
            config.tx.buffers = 250;
            Vm::connect(&d.socket(n), config)
        };
        let [querier, guest] = [0, 1].map(vm);
        Lab { d, querier, guest, host }
    }

    /// Has the host answer a querier, so that it was the last one to report each group; again if
    /// the host hears a message of the last batch, or a question late.
    fn ask(&mut self, kind: Kind) {
        let is_still_idle = |host: &Member| {
            if !kind.is_v4() {
                std::thread::sleep(LATE);
            }
            host.is_idle()
        };
        let answers = (0..10).any(|_| {
            for question in questions(QUERIER) {
                let question = envelope::alert().seal(QUERIER.mac(), [&question; 2], 0);
                send(&mut self.querier.guest.tx[0], question);
            }
            wait_for(Duration::from_secs(1), || self.host.is_idle()) && is_still_idle(&self.host)
        });
        assert!(answers, "the host does not answer");
    }

    /// Sends the messages of a batch; which of them the host obeys.
    fn obeys(&mut self, cases: &[Case]) -> Vec<bool> {
        let kind = cases[0].said.kind;
        if kind.effect() != Effect::Read {
            self.ask(kind);
        }
        self.host.read.forget();
        let ring = &mut self.guest.guest.tx[0];
        for cases in cases.chunks(UNREAD) {
            send(ring, cases.iter().flat_map(Case::frames));
            if !kind.is_v4() {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        let last = honest(GUEST, LAST);
        send(ring, PLAIN.seal(GUEST.mac(), [&last; 2], LAST));
        self.host.read.wait_for(LAST);
        let said: Vec<Said> = cases.iter().map(|case| case.said).collect();
        if !kind.is_v4() && kind.effect() != Effect::Read {
            wait_for(Duration::from_secs(1), || self.host.obeyed(&said).contains(&true));
            std::thread::sleep(LATE);
        }
        self.host.obeyed(&said)
    }
}

/// Which of all cases a host obeys behind a switch with these options.
fn obeyed(batches: &[Vec<Case>], options: &[&str]) -> Vec<Vec<bool>> {
    let mut found = Vec::new();
    in_namespace(|| {
        let mut lab = Lab::new(options);
        found = batches.iter().map(|cases| lab.obeys(cases)).collect();
        lab.d.stop();
    });
    found
}

/// Runs all of these; each batch has one kind.
fn run(cases: impl Iterator<Item = (Kind, Aim, usize, Envelope)>) {
    let mut batches: Vec<Vec<Case>> = Vec::new();
    let mut open: BTreeMap<Kind, Vec<Case>> = BTreeMap::new();
    for (number, (kind, aim, more, envelope)) in cases.enumerate() {
        let batch = open.entry(kind).or_default();
        let said = Said { kind, aim, more, slot: batch.len(), number: number as u32 };
        batch.push(Case { said, envelope });
        if batch.len() == GROUPS {
            batches.push(std::mem::take(batch));
        }
    }
    batches.extend(open.into_values().filter(|batch| !batch.is_empty()));
    // Once a host heard a query of IGMPv1 it takes others for such ones, about all groups.
    batches.sort_by_key(|batch| batch[0].said.kind == Kind::Query1);
    let control = obeyed(&batches, &[]);
    let snooped = obeyed(&batches, &["--multicast-snooping"]);
    judge(&batches, &control, &snooped);
}

fn judge(batches: &[Vec<Case>], control: &[Vec<bool>], snooped: &[Vec<bool>]) {
    let mut counts: BTreeMap<Kind, (usize, usize)> = BTreeMap::new();
    let mut wrong = Vec::new();
    let results = control.iter().flatten().zip(snooped.iter().flatten());
    for (case, (control, snooped)) in batches.iter().flatten().zip(results) {
        let count = counts.entry(case.said.kind).or_default();
        count.0 += 1;
        count.1 += usize::from(*control);
        if *snooped {
            let hex = |(_, frame): (Header, Vec<u8>)| -> String {
                frame.iter().map(|byte| format!("{byte:02x}")).collect()
            };
            let frames: Vec<String> = case.frames().into_iter().map(hex).collect();
            wrong.push(format!("{:?} {:?}: {frames:?}", case.said, case.envelope));
        }
    }
    for (kind, (sent, obeyed)) in &counts {
        println!("{kind:?}: {sent} sent, {obeyed} obeyed without snooping");
    }
    let (count, some) =
        (wrong.len(), wrong.iter().take(20).cloned().collect::<Vec<_>>().join("\n"));
    assert!(count == 0, "snooping lets {count} messages pass that the host obeys:\n{some}");
    for kind in Kind::ALL {
        let obeyed = counts.get(&kind).map_or(0, |count| count.1);
        assert!(obeyed > 0, "the host obeys no {kind:?}: it shows nothing");
    }
}

const LENGTHS: [usize; 5] = [1, 4, 8, 300, 1_600];

#[test]
fn a_host_hears_no_report_and_no_query_of_a_guest() {
    let bases = [envelope::alert(), PLAIN];
    let of = |kind: Kind| {
        let plain = bases.iter().flat_map(envelope::singles);
        let plain = plain.map(move |one| (kind, Aim::Fitting, 0, one));
        let aims = [Aim::All, Aim::Host].into_iter();
        let aims = aims.flat_map(move |aim| {
            let all = envelope::singles(&envelope::alert()).into_iter();
            all.filter(|one| one.cut == envelope::Cut::Whole).map(move |one| (kind, aim, 0, one))
        });
        let long = LENGTHS.map(|more| (kind, Aim::Fitting, more, envelope::alert()));
        plain.chain(aims).chain(long)
    };
    run(Kind::ALL.into_iter().flat_map(of));
}

#[test]
#[ignore = "full"]
fn a_host_hears_no_report_and_no_query_of_a_guest_in_any_envelope() {
    let seed = std::env::var("VIOSWITCH_SEED").map_or(1, |n| n.parse().expect("a number"));
    println!("VIOSWITCH_SEED={seed}");
    let mut rng = Rng::new(seed);
    run((0..rounds(2_000, 2_000, 100_000)).map(|_| {
        let kind = Kind::ALL[rng.below(Kind::ALL.len() as u64) as usize];
        let aim = [Aim::Fitting, Aim::Fitting, Aim::All, Aim::Host][rng.below(4) as usize];
        let more = if rng.below(6) == 0 { LENGTHS[rng.below(5) as usize] } else { 0 };
        let base = if rng.below(4) == 0 { PLAIN } else { envelope::alert() };
        (kind, aim, more, envelope::any(&mut rng, &base))
    }));
}
