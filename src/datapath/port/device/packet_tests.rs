//! TCP segments that leave as one packet: the choice of segments, and their fate if the kernel
//! refuses such packets.

use super::batch_tests::{Given, Together};
use super::tests::{send, tap, uplink};
use super::*;
use crate::port::Port;
use base::frame::samples::segments;
use sys::frame_io::FrameBatch;

/// Returns a burst of frames that outlive the burst.
fn burst_of(frames: &mut [Vec<u8>]) -> Burst {
    let mut burst = Burst::default();
    for frame in frames {
        let (at, len) = (frame.as_mut_ptr(), frame.len() as u32);
        // SAFETY: the caller keeps the frames.
        assert!(unsafe { burst.push_private(VnetHdr::plain(0), at, len) });
    }
    burst
}

/// Returns the frames that the device got.
fn given(port: &Port, answers: &[Transfer], frames: &[Vec<u8>]) -> Vec<Given> {
    let device = Together::attach(port, answers);
    send(port, &burst_of(&mut frames.to_vec()), &mut FrameBatch::default());
    device.given()
}

fn plain(frame: &[u8]) -> Vec<u8> {
    [&[0; 12][..], frame].concat()
}

/// Checks that a header and a frame stand for `segments`, as the receiver's kernel reads them.
fn check_packet(given: &[u8], segments: &[Vec<u8>]) {
    let (header, packet) = given.split_first_chunk().unwrap();
    let header = VnetHdr::from_bytes(*header);
    assert_eq!((header.flags, header.gso_type, header.gso_size), (1, 1, 1448u16.to_le_bytes()));
    let payload: Vec<u8> = segments.iter().flat_map(|segment| &segment[66..]).copied().collect();
    assert!(packet[66..] == payload[..]);
}

/// Returns the output's counts: frames, bytes, and frames that left in packets.
fn counted(port: &Port) -> (u64, u64, u64) {
    let output = &tap(port).queues()[0].output;
    assert_eq!(output.drops.total(), 0);
    (output.frames.get(), output.bytes.get(), output.fallbacks.coalesced.get())
}

#[test]
fn segments_of_streams_that_take_turns_leave_as_packets() {
    let (one, two) = (segments(1, 20, 1448), segments(2, 20, 1448));
    let port = uplink(1);
    let both: Vec<_> = one.iter().zip(&two).flat_map(|(a, b)| [a.clone(), b.clone()]).collect();
    let [Given::Together(frames)] = &given(&port, &[], &both)[..] else { panic!("not together") };
    let [a, b] = &frames[..] else { panic!("{} frames", frames.len()) };
    check_packet(a, &one);
    check_packet(b, &two);
    assert_eq!(counted(&port), (40, 40 * 1514, 40));
}

#[test]
fn two_segments_leave_as_a_packet() {
    let (all, port) = (segments(1, 2, 1448), uplink(1));
    let [Given::Together(packets)] = &given(&port, &[], &all)[..] else { panic!("not together") };
    let [packet] = &packets[..] else { panic!("not one") };
    check_packet(packet, &all);
    assert_eq!(counted(&port), (2, 2 * 1514, 2));
}

#[test]
fn what_is_around_segments_stays_as_it_is() {
    let (mut frames, port) = (segments(1, 4, 1448), uplink(1));
    frames.insert(0, vec![0xff; 60]);
    frames.insert(3, vec![0xee; 9001]);
    frames.push(vec![0xdd; 61]);
    let found = given(&port, &[], &frames);
    let [Given::Together(first), Given::Alone(long), Given::Together(last)] = &found[..] else {
        panic!("{} times", found.len())
    };
    assert!(first[0] == plain(&frames[0]) && *long == plain(&frames[3]));
    assert!(*last == [plain(&frames[6])]);
    check_packet(&first[1], &[&frames[1..3], &frames[4..6]].concat());
    assert_eq!(counted(&port).0, 7);
}

/// A packet that the kernel refuses is sent as its segments, and no segment is lost.
#[test]
fn a_packet_that_is_refused_leaves_as_its_segments() {
    let frames = [segments(1, 10, 1448), segments(2, 10, 1448)].concat();
    let port = uplink(1);
    let refused = Transfer::Rejected(libc::EINVAL);
    let found = given(&port, &[refused, Transfer::Done(12 + 66 + 10 * 1448)], &frames);
    let alone: Vec<_> = frames[..10].iter().map(|frame| plain(frame)).collect();
    let [Given::Together(packets), Given::Together(segments)] = &found[..] else {
        panic!("{} times", found.len())
    };
    check_packet(&packets[1], &frames[10..]);
    assert!(*segments == alone);
    assert_eq!(counted(&port), (20, 20 * 1514, 10));
}

/// The loss of a packet is the loss of each of its segments.
#[test]
fn a_packet_that_is_dropped_counts_as_its_segments() {
    for (answer, reason) in [
        (Transfer::NoBuffers, DropReason::TapFull),
        (Transfer::Down, DropReason::TapDown),
        (Transfer::Gone, DropReason::TapGone),
    ] {
        let (frames, port) = (segments(1, 8, 1448), uplink(1));
        given(&port, &[answer], &frames);
        let output = &tap(&port).queues()[0].output;
        assert_eq!((output.frames.get(), output.drops.get(reason)), (0, 8));
        assert_eq!(tap(&port).is_lost(), answer == Transfer::Gone);
    }
}

#[test]
fn segments_go_by_themselves_where_they_have_to() {
    let frames = segments(1, 8, 1448);
    let each: Vec<_> = frames.iter().map(|frame| plain(frame)).collect();
    let off = Port::device(0, "up", DevicePort::tap("t0", 1).writing_by(Io::Auto, false));
    assert!(given(&off, &[], &frames) == [Given::Together(each.clone())]);
    let port = uplink(1);
    let device = Together::attach(&port, &[]);
    for takes in [Offloads::NONE, Offloads::CSUM, Offloads::CSUM.or(Offloads::TSO4)] {
        tap(&port).takes.store(takes.to_bits(), Ordering::Relaxed);
        send(&port, &burst_of(&mut frames.clone()), &mut FrameBatch::default());
        assert!(device.given() == [Given::Together(each.clone())]);
    }
    assert_eq!(counted(&port).2, 0);
}
