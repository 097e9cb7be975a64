//! A guest behind a port with a guard sends packets that are cut on the way: each segment is a
//! frame that the guard lets pass by itself, and has the sender's bytes and no others.

use std::fmt;
use std::time::Duration;

use super::lab::{SOON, connect, introduce, send};
use testkit::Rng;
use testkit::frontend::feat;
use testkit::packet::{Ask, Kind, Packet, payload};
use testkit::proc::Daemon;
use testkit::vm::{Vm, VmConfig, mac_of};
use testkit::vnet::Header;

const BROADCAST: [u8; 6] = [0xff; 6];
/// Of whose addresses the frames are that the guard should drop.
const OTHER: [u8; 6] = [0x02, 0x56, 0x53, 0, 0, 9];
/// Ports of UDP that the guard looks at, and two that it does not.
const PORTS: [(u16, u16); 8] = [
    (4000, 5000),
    (68, 67),
    (67, 68),
    (4000, 67),
    (546, 547),
    (547, 546),
    (4000, 1985),
    (5353, 5353),
];
/// Bytes of one message of DHCP.
const MESSAGE: usize = 248;

/// A guarded sender and its receiver in one bridge, the same without a guard in another one. No
/// receiver has offloads.
struct Lab {
    d: Daemon,
    /// Sender and receiver, with and without a guard.
    pairs: [[Vm; 2]; 2],
}

impl Lab {
    fn new() -> Lab {
        let ips = "10.0.0.32,fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fd20";
        let guarded = format!(",mac=02:56:53:00:00:00,guard=on,allowed-ips={ips}");
        let d = Daemon::with_ports(&[&guarded, "", ",bridge=b", ",bridge=b"], &[]);
        let pairs = [0, 2].map(|id| {
            let mut simple = VmConfig::with_offloads(id + 1, 0, false);
            simple.size = 1024;
            let to = Vm::connect(&d.socket(usize::from(id) + 1), simple);
            let mut pair = [connect(&d, id, feat::OFFLOADS, true), to];
            if id > 0 {
                let [from, to] = &mut pair;
                introduce(&mut [from, to]);
            }
            pair
        });
        Lab { d, pairs }
    }

    /// Sends one frame, and takes what its receiver gets.
    fn pass(&mut self, pair: usize, header: &Header, frame: &[u8]) -> Vec<Vec<u8>> {
        let [from, to] = &mut self.pairs[pair];
        send(from, header, frame);
        from.tx[0].drain(SOON);
        to.rx[0].take(usize::MAX, Duration::ZERO).into_iter().map(|(_, frame)| frame).collect()
    }

    /// True if a segment passes the guard as a frame of its own.
    fn passes_alone(&mut self, segment: &[u8]) -> bool {
        self.pass(0, &Header::default(), segment) == [segment]
    }
}

/// Messages of a DHCP client in a row; those behind the first have another's hardware address.
fn messages(count: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for n in 0..count {
        let mut message = vec![0; MESSAGE];
        message[..3].copy_from_slice(&[1, 1, 6]);
        message[28..34].copy_from_slice(&if n == 0 { mac_of(0) } else { OTHER });
        message[236..244].copy_from_slice(&[99, 130, 83, 99, 53, 1, 1, 255]);
        out.extend(message);
    }
    out
}

/// A packet to be cut, with headers that lie now and then.
struct Case {
    header: Header,
    frame: Vec<u8>,
    headers_len: usize,
    /// The frame's headers are not what they were made.
    is_spoiled: bool,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let begins = &self.frame[..self.frame.len().min(160)];
        write!(f, "{:?} {begins:02x?}", self.header)
    }
}

fn case(rng: &mut Rng) -> Case {
    let any = |rng: &mut Rng, values: &[u16]| values[rng.below(values.len() as u64) as usize];
    let kinds: Vec<Kind> = Kind::all().collect();
    let kind = kinds[rng.below(kinds.len() as u64) as usize];
    let size = any(rng, &[8, 20, MESSAGE as u16, MESSAGE as u16, 524, 1448]);
    let content = match rng.below(2) {
        0 => messages(1 + rng.below(8) as usize),
        _ => payload(rng.next(), 1 + rng.below(150 * u64::from(size.min(100))) as usize),
    };
    let ip_of = if rng.below(4) == 0 { OTHER } else { mac_of(0) };
    let packet = Packet::new(kind, ip_of, BROADCAST, &content);
    let (mut header, mut frame) = packet.sent(Ask::Segments(size));
    let source = if rng.below(8) == 0 { OTHER } else { mac_of(0) };
    frame[6..12].copy_from_slice(&source);
    if kind.udp {
        let (from, to) = PORTS[rng.below(PORTS.len() as u64) as usize];
        frame[packet.start..][..2].copy_from_slice(&from.to_be_bytes());
        frame[packet.start + 2..][..2].copy_from_slice(&to.to_be_bytes());
    }
    let (len, headers_len) = (frame.len() as u16, packet.headers_len());
    let mut is_spoiled = false;
    for _ in 0..rng.below(3) {
        let near = |good: u16, by: u64| good.wrapping_add(by as u16).wrapping_sub(4);
        let by = rng.below(9);
        match rng.below(7) {
            0 => header.hdr_len = any(rng, &[0, 14, 34, len, u16::MAX, near(header.hdr_len, by)]),
            1 => header.csum_start = any(rng, &[0, 14, 22, 26, near(header.csum_start, by)]),
            2 => header.csum_offset = any(rng, &[0, 6, 16, near(header.csum_offset, by)]),
            3 => header.gso_size = any(rng, &[0, 1, 7, 8, len, u16::MAX]),
            4 => header.gso_type = any(rng, &[0, 1, 3, 4, 5, 0x81, 0x84, 0x85]) as u8,
            5 => header.flags = any(rng, &[0, 1, 2, 3]) as u8,
            _ => {
                // Any byte of the headers behind the Ethernet addresses.
                let at = 12 + rng.below(headers_len as u64 - 12) as usize;
                frame[at] ^= 1 << rng.below(8);
                is_spoiled = true;
            }
        }
    }
    Case { header, frame, headers_len, is_spoiled }
}

/// The payloads of segments follow one another in the frame that was sent. A flooded copy may end
/// early.
fn check_bytes(segments: &[Vec<u8>], sent: &Case) {
    let mut at = sent.headers_len;
    for segment in segments {
        let payload = &segment[sent.headers_len..];
        assert!(sent.frame[at..].starts_with(payload), "{sent}: bytes of others at {at}");
        at += payload.len();
    }
}

/// Random packets and headers: what is cut passes the guard in pieces, too. Without a guard pieces
/// arrive that it refuses.
#[test]
fn no_segment_passes_that_the_guard_refuses() {
    let mut lab = Lab::new();
    let seed = std::env::var("VIOSWITCH_SEED").map_or(1, |n| n.parse().expect("a number"));
    let mut rng = Rng::new(seed);
    let (mut cut, mut refused, mut hidden, mut dropped) = (0, 0, 0, 0);
    let cases = testkit::rounds(2_000, 10_000, 200_000);
    for n in 0..cases {
        let case = case(&mut rng);
        let passed = lab.pass(0, &case.header, &case.frame);
        let free = lab.pass(1, &case.header, &case.frame);
        assert!(passed.is_empty() || passed == free, "{n}: {case}");
        dropped += usize::from(passed.is_empty() && !free.is_empty());
        for segment in &passed {
            assert!(lab.passes_alone(segment), "{n}: {case}: refused alone {segment:02x?}");
        }
        if free.len() < 2 {
            continue;
        }
        if !case.is_spoiled {
            check_bytes(&free, &case);
        }
        cut += passed.len().saturating_sub(1);
        if passed.is_empty() {
            let alone: Vec<bool> = free.iter().map(|segment| lab.passes_alone(segment)).collect();
            refused += usize::from(!alone[0]);
            // What a guard lets pass that reads the beginning alone.
            hidden += usize::from(alone[0] && alone.contains(&false));
        }
    }
    println!("{cut} segments passed; of {dropped} packets that the guard dropped");
    println!("{refused} break a rule with the first segment, {hidden} with later ones alone");
    assert!(cut > 100 && refused > 50 && hidden > 5, "{cut} {refused} {hidden}");
    let c = lab.d.counters();
    c.balance();
    assert!(c.sum(Some("p0"), "in", "drop.guard") > 100, "{c:#?}");
    drop(lab.pairs);
    lab.d.stop();
}
