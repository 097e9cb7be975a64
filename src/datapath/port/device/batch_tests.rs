//! An uplink that writes frames in batches: the counts, the order of frames, and interference by
//! another thread or a guest.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryRegion};

use super::fake::Fake;
use super::tests::{Sender, pattern, send, send_frames, small_burst, tap, uplink};
use super::*;
use crate::port::{Endpoint, Port};
use base::limits::{FRAME_BATCH_BYTES, SNAPSHOT_LEN, TAP_LONG_FRAME};
use sys::frame_io::FrameBatch;
use sys::tap_ring::Refused;

/// Frames that a device was given: together, or a single frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Given {
    Together(Vec<Vec<u8>>),
    Alone(Vec<u8>),
}

/// A device that takes frames in batches, and long frames from the memory in which they are.
pub(super) struct Together {
    /// The kernel's answers, one for each frame.
    answers: Mutex<VecDeque<Transfer>>,
    given: Mutex<Vec<Given>>,
    /// A file that is truncated when frames are written.
    vanishes: Mutex<Option<File>>,
}

impl Together {
    pub(super) fn attach(port: &Port, answers: &[Transfer]) -> Arc<Together> {
        Together::attach_with(port, answers, Offloads::ALL)
    }

    /// Attaches a device without offloads.
    pub(super) fn attach_without(port: &Port) -> Arc<Together> {
        Together::attach_with(port, &[], Offloads::NONE)
    }

    pub(super) fn attach_with(
        port: &Port,
        answers: &[Transfer],
        offloads: Offloads,
    ) -> Arc<Together> {
        let answers = Mutex::new(answers.iter().copied().collect());
        let device =
            Arc::new(Together { answers, given: Mutex::default(), vanishes: Mutex::default() });
        tap(port).attach(vec![Arc::clone(&device) as Device], offloads);
        device
    }

    fn answer(&self, len: usize) -> Transfer {
        lock(&self.answers).pop_front().unwrap_or(Transfer::Done(len))
    }

    pub(super) fn given(&self) -> Vec<Given> {
        std::mem::take(&mut lock(&self.given))
    }

    /// Returns the numbers of frames that were written together.
    pub(super) fn counts(&self) -> Vec<usize> {
        let count = |given: &Given| match given {
            Given::Together(frames) => frames.len(),
            Given::Alone(_) => 1,
        };
        self.given().iter().map(count).collect()
    }
}

impl AsRawFd for Together {
    fn as_raw_fd(&self) -> RawFd {
        -1
    }
}

impl FrameIo for Together {
    fn flush(&self, batch: &mut FrameBatch) {
        assert!(!batch.is_empty());
        let frames = (0..batch.len()).map(|index| batch.frame(index).to_vec()).collect();
        for index in 0..batch.len() {
            batch.answer(index, self.answer(batch.frame(index).len()));
        }
        lock(&self.given).push(Given::Together(frames));
        if let Some(file) = lock(&self.vanishes).take() {
            file.set_len(0).unwrap();
        }
    }

    fn gathers(&self) -> bool {
        true
    }

    unsafe fn write_pieces(&self, pieces: &[libc::iovec]) -> Transfer {
        let mut bytes = Vec::new();
        for piece in pieces {
            // SAFETY: the caller's promise for `pieces`.
            bytes.extend_from_slice(unsafe {
                std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), piece.iov_len)
            });
        }
        let answer = self.answer(bytes.len());
        lock(&self.given).push(Given::Alone(bytes));
        answer
    }

    fn failure(&self) -> Option<String> {
        Some("injected".to_owned())
    }

    fn read(&self, _: &mut [u8]) -> Transfer {
        Transfer::WouldBlock
    }
}

/// Returns the number of delivered frames, and the drops for each of `reasons`.
fn books(port: &Port, reasons: [DropReason; 4]) -> (u64, [u64; 4]) {
    let output = &tap(port).queues()[0].output;
    let drops = reasons.map(|reason| output.drops.get(reason));
    assert_eq!(output.drops.total(), drops.iter().sum::<u64>());
    assert_eq!(output.bytes.get(), 60 * output.frames.get());
    (output.frames.get(), drops)
}

#[test]
fn each_frame_of_a_batch_is_counted_by_its_answer() {
    use DropReason::{TapDown, TapFull, TapGone, TapRejected};
    use Transfer::{Done, Down, Eof, Fault, Gone, NoBuffers, Rejected, WouldBlock};
    let (d, refused) = (Done(72), Rejected(libc::EINVAL));
    let table = [
        ([d, d, d, d, d, d, d, d], (8, [0, 0, 0, 0])),
        ([d, refused, d, WouldBlock, Eof, NoBuffers, Fault, d], (3, [2, 3, 0, 0])),
        ([d, d, d, d, d, Down, Down, Down], (5, [0, 0, 3, 0])),
        // The interface is up again before the batch ends.
        ([d, Down, Down, d, d, d, refused, d], (5, [0, 1, 2, 0])),
        ([d, d, refused, Gone, Gone, Gone, Gone, Gone], (2, [0, 1, 0, 5])),
    ];
    for (answers, expected) in table {
        let port = uplink(1);
        let device = Together::attach(&port, &answers);
        send(&port, &small_burst(8), &mut FrameBatch::default());
        assert_eq!(books(&port, [TapFull, TapRejected, TapDown, TapGone]), expected);
        assert_eq!(device.counts(), [8]);
        assert_eq!(tap(&port).is_lost(), answers.contains(&Gone), "{answers:?}");
    }
}

/// Long frames are written alone, after the frames before them.
#[test]
fn frames_leave_in_the_order_in_which_they_came() {
    let port = uplink(1);
    let device = Together::attach(&port, &[]);
    let lens = [60, 61, TAP_LONG_FRAME, TAP_LONG_FRAME + 1, 62, 63, 60_000];
    let mut frames: Vec<_> = lens.iter().map(|&len| pattern(len)).collect();
    let mut burst = Burst::default();
    for frame in &mut frames {
        // SAFETY: the frames outlive the burst's use.
        assert!(unsafe {
            burst.push_private(VnetHdr::plain(0), frame.as_mut_ptr(), frame.len() as u32)
        });
    }
    send(&port, &burst, &mut FrameBatch::default());
    let sent = |range: std::ops::Range<usize>| {
        frames[range].iter().map(|frame| [&[0; 12][..], frame].concat()).collect::<Vec<_>>()
    };
    let alone = |at: usize| Given::Alone(sent(at..at + 1).remove(0));
    let together = |range| Given::Together(sent(range));
    assert!(device.given() == [together(0..3), alone(3), together(4..6), alone(6)]);
}

/// A device that is down or gone for a batch takes neither the long frame behind the batch nor
/// later frames.
#[test]
fn nothing_is_written_after_a_batch_that_found_the_device_gone() {
    for (answer, reason) in
        [(Transfer::Gone, DropReason::TapGone), (Transfer::Down, DropReason::TapDown)]
    {
        let port = uplink(1);
        let device = Together::attach(&port, &[answer; 3]);
        let (mut frames, mut burst) = (vec![pattern(60); 8], Burst::default());
        frames[3] = pattern(TAP_LONG_FRAME + 1);
        for frame in &mut frames {
            // SAFETY: the frames outlive the burst's use.
            assert!(unsafe {
                burst.push_private(VnetHdr::plain(0), frame.as_mut_ptr(), frame.len() as u32)
            });
        }
        send(&port, &burst, &mut FrameBatch::default());
        assert_eq!(device.counts(), [3]);
        let output = &tap(&port).queues()[0].output;
        assert_eq!((output.frames.get(), output.drops.get(reason)), (0, 8));
    }
}

/// Frames that do not fit into a batch leave in order with the next batch, and each batch is full.
#[test]
fn a_full_batch_leaves_before_the_next_frame() {
    let port = uplink(1);
    let device = Together::attach(&port, &[]);
    let mut frames: Vec<_> = (0..40).map(|n| pattern(4_000 + n)).collect();
    let mut burst = Burst::default();
    for frame in &mut frames {
        let (at, len) = (frame.as_mut_ptr(), frame.len() as u32);
        // SAFETY: the frames outlive the burst's use.
        assert!(unsafe { burst.push_private(VnetHdr::plain(0), at, len) });
    }
    send(&port, &burst, &mut FrameBatch::default());
    let given = device.given();
    let [Given::Together(first), Given::Together(last)] = &given[..] else {
        panic!("{} times", given.len())
    };
    let bytes: usize = first.iter().map(Vec::len).sum();
    assert!(bytes > FRAME_BATCH_BYTES - 2 * 4_096 && bytes <= FRAME_BATCH_BYTES, "{bytes}");
    let sent = first.iter().chain(last).map(|frame| &frame[12..]);
    assert!(sent.eq(frames.iter().map(|frame| &frame[..])));
}

/// A guest takes its memory away between two batches: the frames of the first batch arrive
/// unchanged, the frames of the second batch without the bytes that were not copied yet.
#[test]
fn memory_that_vanishes_costs_no_frame() {
    let (port, frame) = (uplink(1), pattern(4_000));
    let device = Together::attach(&port, &[]);
    let mut sender = Sender::new();
    sender.take(&frame, 1);
    let region = sender.memory.find_region(GuestAddress(0)).unwrap();
    let file = region.file_offset().unwrap().file().try_clone().unwrap();
    *lock(&device.vanishes) = Some(file);
    send_frames(&port, &sender.burst, &[0; 40], &mut FrameBatch::default());
    let given = device.given();
    let [Given::Together(first), Given::Together(last)] = &given[..] else {
        panic!("{} times", given.len())
    };
    assert!(first.iter().all(|got| got[12..] == frame));
    for got in last {
        assert_eq!(got[12..12 + SNAPSHOT_LEN], frame[..SNAPSHOT_LEN]);
        assert!(got[12 + SNAPSHOT_LEN..] == vec![0; 4_000 - SNAPSHOT_LEN]);
    }
    assert!(sender.truncated.load(Ordering::Relaxed), "the ring's owner is told");
    assert_eq!(tap(&port).queues()[0].output.frames.get(), 40);
}

/// The port reports how frames are written, and why not in the better way.
#[test]
fn a_port_says_how_its_frames_are_written() {
    let port = uplink(1);
    let now = |device: &DevicePort| device.writes().map(|now| (now.io, now.why, now.reason));
    let gone = "its interface is not attached";
    assert_eq!(now(tap(&port)), Some(("write", None, gone)));
    Together::attach(&port, &[]);
    assert_eq!(now(tap(&port)), Some(("write", Some("injected".to_owned()), gone)));
    let why = Some(Refused::Call("io_uring_setup", libc::EPERM).to_string());
    tap(&port).set_refused(why.clone());
    assert_eq!(now(tap(&port)), Some(("write", why, gone)));
    let plain = DevicePort::tap("t0", 1).writing_by(Io::Write, true);
    assert_eq!(now(&plain), Some(("write", None, "io=write")));
    assert_eq!(now(&DevicePort::stream()), None);
}

#[test]
fn a_port_by_xdp_says_where_its_program_runs() {
    let why = Some("no such thing".to_owned());
    for (mode, refused, io, reason) in [
        (Mode::Auto, None, "native", "mode=auto, and its driver can"),
        (Mode::Auto, why.clone(), "generic", "mode=auto, and its driver can"),
        (Mode::Native, None, "native", "mode=native"),
        (Mode::Generic, None, "generic", "mode=generic"),
    ] {
        let port = Port::device(0, "up", DevicePort::xdp("x0", 1, mode));
        let Endpoint::Device(device) = &port.endpoint else { panic!("a device") };
        assert_eq!(device.writes().unwrap().reason, "its interface is not attached");
        device.set_refused(refused.clone());
        device.attach(vec![Fake::new(Transfer::WouldBlock)], Offloads::NONE);
        let now = device.writes().unwrap();
        assert_eq!((now.io, now.why, now.reason), (io, refused, reason));
    }
}
