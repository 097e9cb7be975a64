//! Guests with different offloads on one switch, and packets between them whose way is known to
//! the byte.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use testkit::counters::Counters;
use testkit::frontend::feat;
use testkit::packet::{Ask, Kind, Packet, payload, verify_received};
use testkit::proc::Daemon;
use testkit::vm::{Vm, VmConfig};
use testkit::vnet::Header;

pub use testkit::SOON;

/// How long nothing may come where nothing must.
pub const QUIET: Duration = Duration::from_millis(30);
/// Receive buffers that frames under way may need: less than any receiver here has.
const WINDOW: usize = 200;
/// Payload of a mergeable receive buffer, at least.
const MERGEABLE: usize = 1500;

/// Payload of segments for a path of 576 bytes.
const SMALL: u16 = 524;

/// How much a guest acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    All,
    Csum,
    None,
}

pub const LEVELS: [Level; 3] = [Level::All, Level::Csum, Level::None];

impl Level {
    pub fn features(self) -> u64 {
        match self {
            Level::All => feat::OFFLOADS,
            Level::Csum => feat::CSUM | feat::GUEST_CSUM,
            Level::None => 0,
        }
    }
}

/// What the books of one receiver must show.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Work {
    pub checksummed: u64,
    pub segmented: u64,
    pub segments: u64,
    /// That found no room.
    pub segments_lost: u64,
}

impl Work {
    /// What the switch counted for a port.
    pub fn counted(c: &Counters, port: &str) -> Work {
        let sum = |key| c.sum(Some(port), "out", key);
        Work {
            checksummed: sum("checksummed"),
            segmented: sum("segmented"),
            segments: sum("segments"),
            segments_lost: sum("segments_lost"),
        }
    }

    /// What was done after `before`.
    pub fn since(self, before: Work) -> Work {
        Work {
            checksummed: self.checksummed - before.checksummed,
            segmented: self.segmented - before.segmented,
            segments: self.segments - before.segments,
            segments_lost: self.segments_lost - before.segments_lost,
        }
    }

    /// Enters what becomes of one packet.
    pub fn add(&mut self, ask: Ask, received: &[(Header, Vec<u8>)]) {
        if received.len() > 1 {
            self.segmented += 1;
            self.segments += received.len() as u64;
        } else if ask != Ask::Nothing && received[0].0 == Header::default() {
            self.checksummed += 1;
        }
    }
}

/// Frames that a port's receiver got, by the switch's books: a frame cut into segments is one frame
/// out, and several for the receiver.
pub fn delivered(c: &Counters, port: &str) -> u64 {
    let sum = |key| c.sum(Some(port), "out", key);
    sum("frames") - sum("segmented") + sum("segments")
}

/// A packet on its way to a receiver.
pub struct Sent {
    pub packet: Packet,
    pub ask: Ask,
}

impl Sent {
    /// With a payload of its own.
    pub fn new(kind: Kind, from: [u8; 6], to: [u8; 6], len: usize, ask: Ask) -> Sent {
        let seed = (len as u64) << 32 | u64::from(kind.gso_type()) << 8 | u64::from(kind.tags);
        Sent { packet: Packet::new(kind, from, to, &payload(seed, len)), ask }
    }

    /// What a sender with these features has to send of one kind.
    pub fn all(kind: Kind, features: u64, from: [u8; 6], to: [u8; 6]) -> Vec<Sent> {
        let may = |need: u64| features & need == need;
        let mss = kind.mss();
        let mut list: Vec<(usize, Ask)> = Vec::new();
        for len in [1, usize::from(mss) - 1, mss.into()] {
            list.push((len, Ask::Nothing));
            if may(feat::CSUM) {
                list.push((len, Ask::Sum));
            }
        }
        if may(kind.host_features()) {
            let longest = kind.longest();
            for size in [mss, SMALL] {
                let one = usize::from(size);
                for len in [1, one, one + 1, 2 * one, longest - longest % one, longest] {
                    list.push((len, Ask::Segments(size)));
                }
            }
        }
        list.into_iter().map(|(len, ask)| Sent::new(kind, from, to, len, ask)).collect()
    }
}

pub fn connect(d: &Daemon, id: u8, offloads: u64, mergeable: bool) -> Vm {
    Vm::connect(&d.socket(id.into()), VmConfig::with_offloads(id, offloads, mergeable))
}

/// Every guest broadcasts once, so that the switch knows where each is.
pub fn introduce(vms: &mut [&mut Vm]) {
    for i in 0..vms.len() {
        let hello = [&[0xff; 6][..], &vms[i].mac(), &[0x88, 0xb5], &[0; 46]].concat();
        send(vms[i], &Header::default(), &hello);
        vms[i].tx[0].drain(SOON);
        for (_, vm) in vms.iter_mut().enumerate().filter(|(j, _)| *j != i) {
            let got = vm.rx[0].take(1, SOON);
            assert!(got.len() == 1 && got[0].1 == hello, "guest {}: hello of {i}", vm.cfg.id);
        }
    }
}

/// One frame with its virtio-net header into a guest's ring.
pub fn send(vm: &mut Vm, header: &Header, frame: &[u8]) {
    let len = vm.cfg.header_len();
    vm.tx[0].header = header.bytes(len);
    vm.tx[0].send_waiting(frame, SOON);
}

/// Sends packets and checks what arrives: all of it, in order, each byte and each header.
pub fn exchange(from: &mut Vm, to: &mut Vm, packets: &[Sent], work: &mut Work) {
    exchange_by(|header, frame| send(from, header, frame), to, packets, work);
    from.tx[0].drain(SOON);
}

/// The same for any sender.
pub fn exchange_by(
    mut send: impl FnMut(&Header, &[u8]),
    to: &mut Vm,
    packets: &[Sent],
    work: &mut Work,
) {
    let features = to.cfg.features;
    let mut queue = packets.iter().peekable();
    while queue.peek().is_some() {
        let (mut expected, mut weight) = (Vec::new(), 0);
        while let Some(sent) = queue.peek() {
            let frames = sent.packet.received(sent.ask, features);
            let need: usize = frames.iter().map(|(_, f)| f.len().div_ceil(MERGEABLE)).sum();
            if weight > 0 && weight + need > WINDOW {
                break;
            }
            weight += need;
            work.add(sent.ask, &frames);
            expected.push((queue.next().expect("peeked"), frames));
        }
        for (sent, _) in &expected {
            let (header, frame) = sent.packet.sent(sent.ask);
            send(&header, &frame);
        }
        for (sent, frames) in &expected {
            receive(to, sent, frames);
        }
    }
}

/// Takes what must come of one packet.
fn receive(to: &mut Vm, sent: &Sent, frames: &[(Header, Vec<u8>)]) {
    let Sent { packet, ask } = sent;
    let what = || format!("{:?} {ask:?}, payload {}", packet.kind, packet.payload.len());
    let got = to.rx[0].take(frames.len(), SOON);
    assert_eq!(got.len(), frames.len(), "{}: frames", what());
    for (i, ((header, frame), (want_header, want))) in got.iter().zip(frames).enumerate() {
        assert_eq!(header.request(), *want_header, "{} frame {i}: header", what());
        let differs = frame.iter().zip(want).position(|(a, b)| a != b);
        let same = differs.is_none() && frame.len() == want.len();
        assert!(
            same,
            "{} frame {i}: {} bytes of {}, different at {differs:?}\n{:02x?}\n{:02x?}",
            what(),
            frame.len(),
            want.len(),
            &frame[..frame.len().min(96)],
            &want[..want.len().min(96)]
        );
        let sound = verify_received(header, frame);
        assert!(sound.is_ok(), "{} frame {i}: {sound:?}", what());
    }
}

/// Tells another thread to end, after a panic too.
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Nothing is left over, nothing was lost, all is accounted for.
pub fn finish(d: Daemon, vms: Vec<Vm>) {
    std::thread::sleep(QUIET);
    for mut vm in vms {
        let stray = vm.rx[0].take(1, Duration::ZERO);
        assert!(stray.is_empty(), "guest {}: a frame nobody sent: {stray:02x?}", vm.cfg.id);
        assert!(vm.no_errors(), "guest {}: error reported", vm.cfg.id);
    }
    let c = d.counters();
    c.balance();
    assert_eq!(c.drops(None, "in") + c.drops(None, "out") + c.drops(None, ""), 0, "{c:#?}");
    d.stop();
}
