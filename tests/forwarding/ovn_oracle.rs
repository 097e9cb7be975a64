//! Guards by OVN's port security: the same seeded frames come in by guarded ports of OVN, over Open
//! vSwitch's own datapath, and of this switch, and the same arrive. Where this switch differs is
//! listed with the reason; a difference that is not listed, or that no frame shows, fails.

mod differences;
mod frames;
pub mod ovn;

use std::collections::{BTreeMap, HashSet};

use testkit::SOON;
use testkit::proc::Daemon;
use testkit::vm::{Vm, VmConfig};
use testkit::{Rng, long, skip};

use differences::{Direction, LIST};
use frames::{Frame, Profile};
use ovn::Ovn;

/// Frames that are sent at once; a dummy device's queue has a hundred.
const BATCH: usize = 64;

const PROFILES: [Profile; 4] = [
    Profile { number: 1, v4: false, v6: false },
    Profile { number: 2, v4: true, v6: false },
    Profile { number: 3, v4: false, v6: true },
    Profile { number: 4, v4: true, v6: true },
];

/// This switch with the same ports.
struct Ours {
    d: Daemon,
    senders: Vec<Vm>,
    receiver: Vm,
}

impl Ours {
    fn start() -> Ours {
        let keys = PROFILES.map(|profile| {
            let ips = match profile.is_free() {
                true => String::new(),
                false => format!(",allowed-ips={}", profile.ips().join(",")),
            };
            format!(",mac={},guard=on,isolated=on{ips}", profile.mac())
        });
        let keys: Vec<&str> = keys.iter().map(String::as_str).chain([""]).collect();
        let d = Daemon::with_ports(&keys, &[]);
        let guest = |at: usize| Vm::connect(&d.socket(at), VmConfig::new(at as u8));
        let senders = (0..PROFILES.len()).map(guest).collect();
        let receiver = guest(PROFILES.len());
        Ours { d, senders, receiver }
    }

    /// Sends frames; what the receiver gets of them. The last one must be among it.
    fn pass(&mut self, sender: usize, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let ring = &mut self.senders[sender].tx[0];
        for frame in frames {
            assert!(ring.queue(frame), "no room");
        }
        ring.ring.publish();
        ring.drain(SOON);
        let (last, mut got) = (frames.last().expect("a frame"), Vec::new());
        while got.last() != Some(last) {
            let came = self.receiver.rx[0].take(1, SOON);
            assert_eq!(came.len(), 1, "the last frame did not come: {last:02x?}");
            got.extend(came.into_iter().map(|(_, frame)| frame));
        }
        got
    }
}

/// A destination of no port, which is flooded, and of no other frame.
fn destination(rng: &mut Rng, number: u64) -> [u8; 6] {
    let [.., a, b, c, d] = number.to_be_bytes();
    let [first, second] = [[0x33, 0x33], [0x03, 0], [0x02, 0x0f]][rng.below(3) as usize];
    [first, second, a, b, c, d]
}

/// The frames of a batch, and which of them arrived here and there.
struct Batch {
    frames: Vec<Frame>,
    here: HashSet<Vec<u8>>,
    there: HashSet<Vec<u8>>,
}

/// Counts the frames, and those that differ by the entry of the list.
#[derive(Default)]
struct Books {
    frames: usize,
    here: usize,
    there: usize,
    listed: BTreeMap<usize, usize>,
    unlisted: BTreeMap<String, (usize, String)>,
}

impl Books {
    fn enter(&mut self, profile: Profile, batch: &Batch) {
        for frame in &batch.frames {
            let ours = batch.here.contains(&frame.bytes);
            let theirs = batch.there.contains(&frame.bytes);
            self.frames += 1;
            self.here += usize::from(ours);
            self.there += usize::from(theirs);
            if ours && frame.spoofs {
                self.note("passes with another's address", profile, frame);
            }
            if !ours && frame.is_honest() {
                self.note("is dropped, and any guest sends it", profile, frame);
            }
            let direction = match (ours, theirs) {
                (true, false) => Direction::Laxer,
                (false, true) => Direction::Stricter,
                _ => continue,
            };
            match LIST.iter().position(|entry| entry.applies(direction, profile, frame)) {
                Some(at) => *self.listed.entry(at).or_default() += 1,
                None => self.note(&format!("{direction:?}"), profile, frame),
            }
        }
    }

    /// A frame that fails the test: what is wrong, and one of its kind in full.
    fn note(&mut self, wrong: &str, profile: Profile, frame: &Frame) {
        let what = format!("{wrong}: {} {:?}", profile.name(), frame.marks);
        let hex: String = frame.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        self.unlisted.entry(what).or_insert((0, hex)).0 += 1;
    }

    fn judge(&self, seed: u64) {
        println!("{} frames: {} arrive here, {} there", self.frames, self.here, self.there);
        let count = |at| self.listed.get(&at).copied().unwrap_or_default();
        for (at, entry) in LIST.iter().enumerate() {
            println!("{:6} {:?}: {}", count(at), entry.direction, entry.why);
        }
        let unlisted = &self.unlisted;
        assert!(unlisted.is_empty(), "VIOSWITCH_SEED={seed}: not listed: {unlisted:#?}");
        let never = LIST.iter().enumerate().find(|(at, _)| count(*at) == 0);
        assert!(never.is_none(), "no frame shows: {:?}", never.map(|(_, entry)| entry.why));
    }
}

#[test]
#[ignore = "full"]
fn guarded_ports_let_pass_what_ovn_lets_pass() {
    if let Some(missing) = ovn::missing() {
        return skip(&missing);
    }
    let seed = std::env::var("VIOSWITCH_SEED").map_or(1, |seed| seed.parse().expect("a number"));
    let batches = if long() { 1600 } else { 160 };
    let names = PROFILES.map(|profile| {
        let security = [vec![profile.mac()], profile.ips()].concat().join(" ");
        (profile.name(), security)
    });
    let mut ovn = Ovn::start(&names.each_ref().map(|(name, security)| (*name, security.as_str())));
    let mut ours = Ours::start();
    let (mut rng, mut books, mut number) = (Rng::new(seed), Books::default(), 0);
    for batch in 0..batches {
        let at = batch % PROFILES.len();
        let profile = PROFILES[at];
        let mut next = |rng: &mut Rng| {
            number += 1;
            destination(rng, number)
        };
        let frames: Vec<Frame> = (0..BATCH)
            .map(|_| {
                let to = next(&mut rng);
                frames::any(&mut rng, profile, to)
            })
            .collect();
        let mut sent: Vec<Vec<u8>> = frames.iter().map(|frame| frame.bytes.clone()).collect();
        sent.push(frames::honest(profile, next(&mut rng)));
        let here = ours.pass(at, &sent).into_iter().collect();
        let there = ovn.pass(profile.name(), &sent).into_iter().collect();
        books.enter(profile, &Batch { frames, here, there });
    }
    books.judge(seed);
    ours.d.stop();
}
