//! A device that lends its memory, as with XDP: frames taken, counts, and the lifetime of the
//! device; and frames that need offloads which the device lacks.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize};

use super::batch_tests::{Given, Together};
use super::tests::{send, tap};
use super::*;
use crate::port::Port;
use base::frame::samples::{asking, check_whole, tcp};
use sys::frame_io::{FrameBatch, Taken};

/// Frames that wait in the device's own memory.
#[derive(Default)]
struct Lender {
    frames: Vec<Vec<u8>>,
    next: AtomicUsize,
    lost: u64,
    gone: AtomicBool,
    /// Largest MTU that the device was opened for, if it can be opened for a larger MTU.
    most: Option<u32>,
}

impl AsRawFd for Lender {
    fn as_raw_fd(&self) -> RawFd {
        -1
    }
}

impl FrameInbox for Lender {
    fn take(&self, each: &mut dyn FnMut(*mut u8, u32) -> bool) -> Taken {
        while let Some(frame) = self.frames.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            if !each(frame.as_ptr().cast_mut(), frame.len() as u32) {
                return Taken { more: true, lost: self.lost };
            }
        }
        Taken { more: false, lost: self.lost }
    }
}

impl FrameIo for Lender {
    fn inbox(&self) -> Option<&dyn FrameInbox> {
        Some(self)
    }

    fn is_gone(&self) -> bool {
        self.gone.swap(false, Ordering::Relaxed)
    }

    fn is_outgrown(&self, mtu: u32) -> bool {
        self.most.is_some_and(|most| mtu > most)
    }

    fn flush(&self, batch: &mut FrameBatch) {
        batch.write_each(|_| Transfer::Gone);
    }

    fn read(&self, _: &mut [u8]) -> Transfer {
        unreachable!("it lends")
    }
}

fn port() -> Port {
    Port::device(0, "up", DevicePort::xdp("x0", 1, Mode::Auto))
}

fn attach(port: &Port, lender: Lender) -> Arc<Lender> {
    let lender = Arc::new(lender);
    tap(port).attach(vec![Arc::clone(&lender) as Device], Offloads::NONE);
    lender
}

#[test]
fn frames_are_delivered_from_where_they_lie_in_bursts() {
    let port = port();
    let frames: Vec<_> = (0..150u8).map(|n| vec![n; 100]).collect();
    let lender = attach(&port, Lender { frames, ..Lender::default() });
    let (mut reader, mut burst) = (FrameReader::default(), Burst::default());
    let queue = &tap(&port).queues()[0];
    let mut came = 0;
    loop {
        let next = queue.receive(&mut reader, &mut burst, tap(&port), Bounds::default());
        assert!(Arc::strong_count(&lender) > 2, "it stays while its frames are in use");
        for index in 0..burst.frames().len() {
            let frame = burst.egress(index as u8);
            let piece = frame.payload().next().expect("behind the snapshot");
            let own = &lender.frames[came][base::limits::SNAPSHOT_LEN..];
            assert_eq!((piece.at.cast_const(), piece.len as usize), (own.as_ptr(), own.len()));
            assert_eq!(frame.head()[0], came as u8);
            came += 1;
        }
        reader.release();
        assert_eq!(Arc::strong_count(&lender), 2);
        if next != Polled::More {
            assert_eq!(next, Polled::Empty);
            break;
        }
        assert_eq!(burst.taken(), BURST_FRAMES);
    }
    assert_eq!(came, 150);
    let next = queue.receive(&mut reader, &mut burst, tap(&port), Bounds::default());
    assert_eq!((next, Arc::strong_count(&lender)), (Polled::Empty, 2), "nothing is in use");
    assert_eq!(queue.input.drops.total(), 0);
}

#[test]
fn what_is_no_frame_and_what_found_no_room_is_counted() {
    let port = port();
    let frames = vec![vec![1; 13], vec![2; 60], vec![], vec![3; MAX_FRAME_LEN as usize + 1]];
    attach(&port, Lender { frames, lost: 5, ..Lender::default() });
    let (mut reader, mut burst) = (FrameReader::default(), Burst::default());
    let queue = &tap(&port).queues()[0];
    let next = queue.receive(&mut reader, &mut burst, tap(&port), Bounds::default());
    assert_eq!(
        (next, burst.frames().len(), burst.taken()),
        (Polled::More, 1, 4),
        "64 KiB are enough"
    );
    let rejected: Vec<_> = burst.rejected().collect();
    assert_eq!(rejected, [DropReason::TooShort, DropReason::TooShort, DropReason::TooLong]);
    let input = &queue.input;
    assert_eq!((input.frames.get(), input.drops.get(DropReason::XdpFull)), (5, 5));
}

#[test]
fn a_rate_bounds_what_is_taken() {
    let port = port();
    let frames = vec![vec![0; 100]; 20];
    attach(&port, Lender { frames, ..Lender::default() });
    let (mut reader, mut burst) = (FrameReader::default(), Burst::default());
    let queue = &tap(&port).queues()[0];
    let bounds = Bounds { end: Some(0), room: None };
    let next = queue.receive(&mut reader, &mut burst, tap(&port), bounds);
    assert_eq!((next, burst.taken()), (Polled::More, 1), "the time is over after one");
}

/// The descriptor of a deleted interface reports no event.
#[test]
fn a_loss_without_an_event_is_found() {
    let port = port();
    let lender = attach(&port, Lender::default());
    tap(&port).look(None);
    assert!(!tap(&port).is_lost());
    lender.gone.store(true, Ordering::Relaxed);
    tap(&port).look(None);
    assert!(tap(&port).is_lost() && !tap(&port).is_up());
    drop(lender);
    tap(&port).close_lost();
}

/// The reason of a loss stays known until the device is attached again.
#[test]
fn a_queue_is_given_up_when_the_mtu_outgrows_it() {
    let port = port();
    attach(&port, Lender { most: Some(1770), ..Lender::default() });
    tap(&port).look(Some(1770));
    assert_eq!(tap(&port).lost(), None);
    tap(&port).look(Some(1771));
    assert_eq!((tap(&port).lost(), tap(&port).is_up()), (Some(Lost::Outgrown), false));
    tap(&port).give_up();
    assert_eq!(tap(&port).lost(), Some(Lost::Outgrown), "the reason stays");
    tap(&port).close_lost();
    attach(&port, Lender::default());
    tap(&port).look(Some(9000));
    assert_eq!(tap(&port).lost(), None);
}

/// Sends a burst with frames that leave a checksum, or the whole segmentation, to the device.
#[test]
fn checksums_and_segments_are_made_before_and_go_together() {
    for v6 in [false, true] {
        let port = port();
        let device = Together::attach_without(&port);
        let mut packets = [tcp(v6, 500), tcp(v6, 4_500), vec![7; 100], tcp(v6, 90_000 / 2)];
        let asked = [asking(v6, 0), asking(v6, 1000), VnetHdr::plain(0), asking(v6, 1000)];
        let mut burst = Burst::default();
        for (packet, header) in packets.iter_mut().zip(asked) {
            let (at, len) = (packet.as_mut_ptr(), packet.len() as u32);
            // SAFETY: the packets outlive the burst.
            assert!(unsafe { burst.push_private(header, at, len) });
        }
        burst.examine(Offloads::ALL, false);
        send(&port, &burst, &mut FrameBatch::default());
        let given = device.given();
        let frames: Vec<_> = given
            .iter()
            .flat_map(|given| match given {
                Given::Together(frames) => frames.clone(),
                Given::Alone(frame) => panic!("{} bytes alone", frame.len()),
            })
            .collect();
        assert_eq!((given.len(), frames.len()), (1, 1 + 5 + 1 + 45));
        for (at, frame) in frames.iter().enumerate() {
            assert_eq!(frame[..12], [0; 12], "nothing is left to others");
            if at != 6 {
                check_whole(&frame[12..], v6);
            }
        }
        let output = &tap(&port).queues()[0].output;
        let done = &output.fallbacks;
        let counts = [&done.checksummed, &done.segmented, &done.segments, &done.segments_lost];
        assert_eq!(counts.map(|count| count.get()), [1, 2, 50, 0]);
        assert_eq!((output.frames.get(), output.drops.total()), (4, 0));
    }
}
