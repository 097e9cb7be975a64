//! Frames that ask for offloads, and devices with and without these offloads: frames written, and
//! counts.

use super::batch_tests::{Given, Together};
use super::tests::{send, tap, uplink};
use super::*;
use base::frame::offload::NEEDS_CSUM;
use base::frame::samples::{asking, check_whole, l4, ones, tcp};
use base::stats::Counter;
use sys::frame_io::FrameBatch;

/// Header and frame.
type Sent = (VnetHdr, Vec<u8>);

/// Sends a TCP packet, then a frame that asks for no offload. Returns the frames that the device
/// got of the packet, and the counts: checksummed, segmented, segments, lost segments, frames.
fn sent(
    (v6, mss, payload): (bool, u16, usize),
    takes: Offloads,
    answers: &[Transfer],
) -> (Vec<Sent>, [u64; 5]) {
    let port = uplink(1);
    let device = Together::attach_with(&port, answers, takes);
    let (mut packet, mut plain) = (tcp(v6, payload), vec![7; 100]);
    let mut burst = Burst::default();
    // SAFETY: both frames outlive the burst's use.
    let pushed = unsafe {
        burst.push_private(asking(v6, mss), packet.as_mut_ptr(), packet.len() as u32)
            && burst.push_private(VnetHdr::plain(0), plain.as_mut_ptr(), 100)
    };
    assert!(pushed);
    burst.examine(Offloads::ALL, false);
    assert_eq!(burst.frames().len(), 2);
    send(&port, &burst, &mut FrameBatch::default());
    let output = &tap(&port).queues()[0].output;
    assert_eq!(output.frames.get() + output.drops.total(), 2);
    let done = &output.fallbacks;
    let counters =
        [&done.checksummed, &done.segmented, &done.segments, &done.segments_lost, &output.frames];
    let mut frames: Vec<Sent> = Vec::new();
    for given in device.given() {
        let given = match given {
            Given::Together(frames) => frames,
            Given::Alone(frame) => vec![frame],
        };
        let split = |bytes: &Vec<u8>| {
            let (header, frame) = bytes.split_first_chunk().unwrap();
            (VnetHdr::from_bytes(*header), frame.to_vec())
        };
        frames.extend(given.iter().map(split));
    }
    if output.drops.get(DropReason::TapGone) == 0 {
        assert_eq!(frames.pop(), Some((VnetHdr::plain(0), vec![7; 100])));
    }
    (frames, counters.map(Counter::get))
}

#[test]
fn a_device_that_can_gets_the_request() {
    for (v6, mss, payload) in [(false, 0, 50), (true, 0, 1400), (false, 1448, 60_000)] {
        let (frames, counts) = sent((v6, mss, payload), Offloads::ALL, &[]);
        let [(header, got)] = &frames[..] else { panic!("{} frames", frames.len()) };
        let headers = if mss > 0 { l4(v6) as u16 + 32 } else { 0 };
        let expected = VnetHdr { hdr_len: headers.to_le_bytes(), ..asking(v6, mss) };
        assert_eq!((header, counts), (&expected, [0, 0, 0, 0, 2]));
        assert!(*got == tcp(v6, payload));
    }
}

#[test]
fn a_device_that_cannot_gets_complete_frames() {
    for v6 in [false, true] {
        let (frames, counts) = sent((v6, 0, 1001), Offloads::NONE, &[]);
        assert_eq!((frames.len(), counts), (1, [1, 0, 0, 0, 2]));
        check_whole(&frames[0].1, v6);
        assert!(frames[0].0 == VnetHdr::plain(0));
        for takes in [Offloads::NONE, Offloads::CSUM] {
            let (frames, counts) = sent((v6, 1000, 4500), takes, &[]);
            assert_eq!((frames.len(), counts), (5, [0, 1, 5, 0, 2]));
            for (header, mut segment) in frames {
                assert_eq!(header.flags, if takes.is_empty() { 0 } else { NEEDS_CSUM });
                if !takes.is_empty() {
                    let sum = !ones(0, &segment[l4(v6)..]) as u16;
                    segment[l4(v6) + 16..l4(v6) + 18].copy_from_slice(&sum.to_be_bytes());
                }
                check_whole(&segment, v6);
            }
        }
    }
}

/// Segments of a dropped packet are not lost segments, although the first segment of the next
/// packet is in the same batch.
#[test]
fn a_dropped_packet_loses_no_segments() {
    let port = uplink(1);
    let segment = |len: usize| Transfer::Done(12 + 66 + len);
    let answers = [&[Transfer::NoBuffers; 120][..], &[segment(500); 2]].concat();
    Together::attach_with(&port, &answers, Offloads::NONE);
    let (mut long, mut short) = (tcp(false, 60_000), tcp(false, 1_000));
    let mut burst = Burst::default();
    for packet in [&mut long, &mut short] {
        let len = packet.len() as u32;
        // SAFETY: both packets outlive the burst's use.
        assert!(unsafe { burst.push_private(asking(false, 500), packet.as_mut_ptr(), len) });
    }
    burst.examine(Offloads::ALL, false);
    send(&port, &burst, &mut FrameBatch::default());
    let output = &tap(&port).queues()[0].output;
    let done = &output.fallbacks;
    let counters = [&done.segmented, &done.segments, &done.segments_lost, &output.frames];
    assert_eq!(counters.map(Counter::get), [1, 2, 0, 1]);
    assert_eq!(output.drops.total(), 1);
}

/// A packet whose segments need several batches arrives whole.
#[test]
fn more_segments_than_a_batch_has_room_for() {
    let (frames, counts) = sent((false, 500, 60_000), Offloads::NONE, &[]);
    assert_eq!((frames.len(), counts), (120, [0, 1, 120, 0, 2]));
    frames.iter().for_each(|(_, segment)| check_whole(segment, false));
    let payload: Vec<u8> = frames.iter().flat_map(|(_, segment)| segment[66..].to_vec()).collect();
    assert!(payload == tcp(false, 60_000)[66..]);
}

/// A packet is delivered or dropped with its first segment; other refused segments are counted.
#[test]
fn segments_that_are_refused_are_counted() {
    let (done, full) = (Transfer::Done(12 + 66 + 1000), Transfer::NoBuffers);
    let packet = (false, 1000, 4500);
    let (_, counts) = sent(packet, Offloads::NONE, &[done, done, full, full, full]);
    assert_eq!(counts, [0, 1, 2, 3, 2]);
    let (_, counts) = sent(packet, Offloads::NONE, &[full; 5]);
    assert_eq!(counts, [0, 0, 0, 0, 1]);
    let (_, counts) = sent(packet, Offloads::NONE, &[Transfer::Gone; 6]);
    assert_eq!(counts, [0; 5]);
    // The device goes away between two batches.
    let answers = [&[Transfer::Done(12 + 66 + 500); 60][..], &[Transfer::Gone; 4]].concat();
    let (_, counts) = sent((false, 500, 60_000), Offloads::NONE, &answers);
    assert_eq!(counts, [0, 1, 60, 60, 1]);
}
