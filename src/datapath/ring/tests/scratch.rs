//! Workers keep their scratch memory from guest to guest. Whatever bytes are left in the scratch
//! memory, a guest gets equal frames: the ring reads no byte that was not written for this frame.

use super::*;
use crate::ring::{Burst, Delivered, RxScratch, Segmentation};
use base::frame::VnetHdr;
use base::frame::samples::{asking, tcp};
use base::limits::SNAPSHOT_LEN;
use base::stats::DropReason;

/// Addresses of the receiver's queue and buffers.
const RX_QUEUE: u64 = 0x1_1000;
const RX_DATA: u64 = 0x10_8000;

/// A frame, and the offsets at which it is cut into descriptors.
type Sent = (VnetHdr, Vec<u8>, &'static [usize]);

/// Frames for each path through the ring's code, and chains that are no frames.
fn frames() -> Vec<Sent> {
    let plain = VnetHdr::plain(0);
    let mut all: Vec<Sent> = Vec::new();
    for len in [14, 15, 33, 59, 63, 64, 65, 200, 1514] {
        for cuts in [&[][..], &[12], &[1, 2, 3, 13, 20, 25], &[12, 18]] {
            all.push((plain, frame(len as u8, len), cuts));
        }
    }
    for v6 in [false, true] {
        for cuts in [&[][..], &[12], &[12, 40, 70, 90], &[5, 30, 300]] {
            all.push((asking(v6, 0), tcp(v6, 1000), cuts));
            all.push((asking(v6, 500), tcp(v6, 2900), cuts));
        }
    }
    // One frame asks for an invalid offload, one is too short.
    all.push((asking(false, 1), frame(1, 100), &[12]));
    all.push((plain, frame(2, 5), &[3]));
    all
}

/// Outcome of a burst.
#[derive(Debug, PartialEq)]
struct Outcome {
    rejected: Vec<DropReason>,
    /// First bytes of each frame, including the hashed ones.
    snapshots: Vec<Vec<u8>>,
    done: Delivered,
    used: Vec<(u32, u32)>,
    memory: Vec<u8>,
}

/// Sends one frame, and poisons all scratch memory before each step.
fn outcome(sent: &Sent, takes: Offloads, room: u32, poison: u8) -> Outcome {
    let guest = Guest::new();
    let (tx, rx) = (guest.queue(), Queue::create(&guest.driver, RX_QUEUE, SIZE));
    let config = RingConfig { offloads: Offloads::ALL, ..guest.config(&tx) };
    let mut sender = SplitRing::start(Arc::clone(&guest.table), &config).unwrap();
    let config = RingConfig { offloads: takes, ..guest.config(&rx) };
    let mut receiver = SplitRing::start(Arc::clone(&guest.table), &config).unwrap();
    let (header, packet, cuts) = sent;
    let bytes = [&header.to_bytes()[..], packet].concat();
    let (mut from, mut at, mut count) = (0, DATA, 0);
    for &to in cuts.iter().chain([&bytes.len()]) {
        guest.write(at, &bytes[from..to]);
        let flags = if to < bytes.len() { NEXT } else { 0 };
        describe(&tx, count, &[desc(at, (to - from) as u32, flags, count + 1)]);
        at += (to - from) as u64 + 5;
        (from, count) = (to, count + 1);
    }
    offer(&tx, &[0]);
    for i in 0..SIZE {
        let at = RX_DATA + u64::from(i) * u64::from(room + 4);
        describe(&rx, i, &[desc(at, room, WRITE, 0)]);
    }
    offer(&rx, &(0..SIZE).collect::<Vec<_>>());
    let (mut burst, mut scratch) = (Burst::default(), RxScratch::default());
    burst.poison(poison);
    scratch.poison(poison);
    sender.take(&mut burst, 64).unwrap();
    let run: Vec<u8> = (0..burst.frames().len() as u8).collect();
    let done = receiver.deliver(&burst, &run, &mut scratch, Segmentation::Whole);
    sender.complete(&burst);
    Outcome {
        rejected: burst.rejected().collect(),
        snapshots: burst.frames().iter().map(|f| f.snapshot.to_vec()).collect(),
        done,
        used: used(&rx),
        memory: guest.read(0, MEMORY as usize),
    }
}

#[test]
fn shared_scratch_leaves_no_trace() {
    let (mut delivered, mut cut, mut summed) = (0, 0, 0);
    for sent in frames() {
        for takes in [Offloads::NONE, Offloads::CSUM, Offloads::ALL] {
            for room in [100, 2048] {
                let clean = outcome(&sent, takes, room, 0);
                for poison in [0x5a, 0xff] {
                    let same = outcome(&sent, takes, room, poison) == clean;
                    assert!(same, "{poison:#x} shows: {sent:?} to {takes:?}, buffers of {room}");
                }
                delivered += clean.done.frames;
                cut += clean.done.fallbacks.segmented;
                summed += clean.done.fallbacks.checksummed;
            }
        }
    }
    assert!(delivered > 200 && cut > 20 && summed > 10, "{delivered} {cut} {summed}");
}

#[test]
fn a_short_frame_is_not_followed_by_another_guest_s() {
    let guest = Guest::new();
    let queue = guest.queue();
    let mut ring = guest.start(&queue);
    let mut burst = Burst::default();
    burst.poison(0xaa);
    guest.write(DATA, &[0; 26]);
    describe(&queue, 0, &[desc(DATA, 5, NEXT, 1), desc(DATA + 5, 21, 0, 0)]);
    offer(&queue, &[0]);
    assert_eq!(ring.take(&mut burst, 64), Ok(1));
    assert_eq!(burst.frames()[0].snapshot, [0; SNAPSHOT_LEN]);
    let mut short = [1u8; 20];
    burst.clear();
    burst.poison(0xaa);
    // SAFETY: the frame outlives the burst's use.
    assert!(unsafe { burst.push_private(VnetHdr::plain(0), short.as_mut_ptr(), 20) });
    assert_eq!(burst.frames()[0].snapshot[20..], [0; SNAPSHOT_LEN - 20]);
}
