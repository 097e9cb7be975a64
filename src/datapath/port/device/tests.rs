//! An uplink with a device that gives every answer of a kernel: counts, calls, wake-ups, and bytes.

use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

use virtio_queue::desc::RawDescriptor;
use virtio_queue::desc::split::Descriptor;
use vm_memory::{
    Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion,
};

use super::fake::Fake;
use super::*;
use crate::capture::outcomes::Outcomes;
use crate::memory::{Mapping, MemTable, Region};
use crate::port::Port;
use crate::ring::{RingConfig, SplitRing};
use base::limits::{SNAPSHOT_LEN, TAP_GATHER_PIECES, TAP_LONG_FRAME};
use base::stats::Counter;
use sys::frame_io::{FrameBatch, Transfer};
use sys::fs::memfd;

/// Number of repetitions of each answer.
const TIMES: u64 = 1_000;
/// Number of frames in a burst.
const FRAMES: u64 = 8;

pub(super) fn uplink(queues: u16) -> Port {
    Port::device(0, "up", DevicePort::tap("t0", queues))
}

pub(super) fn tap(port: &Port) -> &DevicePort {
    match &port.endpoint {
        crate::port::Endpoint::Device(tap) => tap,
        crate::port::Endpoint::Guest(_) => unreachable!("made by `uplink`"),
    }
}

fn attach(port: &Port, device: &Arc<Fake>) {
    tap(port).attach(vec![Arc::clone(device) as Device], Offloads::ALL);
}

/// Returns a burst of `frames` frames of 60 bytes in private memory.
pub(super) fn small_burst(frames: u64) -> Burst {
    let mut burst = Burst::default();
    for i in 0..frames {
        assert!(burst.push_small(VnetHdr::plain(0), &[i as u8; 60]));
    }
    burst
}

/// Sends the whole burst from worker 0.
pub(super) fn send(port: &Port, burst: &Burst, batch: &mut FrameBatch) {
    let all: Vec<u8> = (0..burst.frames().len() as u8).collect();
    send_frames(port, burst, &all, batch);
}

/// Sends frames from worker 0, and checks that all frames are settled.
pub(super) fn send_frames(port: &Port, burst: &Burst, frames: &[u8], batch: &mut FrameBatch) {
    let (mut settled, outcomes) = (0, &mut Outcomes::default());
    tap(port).send(0, burst, (1, frames), batch, (port, outcomes), &mut |count| settled += count);
    assert_eq!(settled, frames.len());
}

/// Reads the first queue, and appends the reasons of rejected frames to `refused`.
fn receive(
    port: &Port,
    reader: &mut FrameReader,
    burst: &mut Burst,
    refused: &mut Vec<DropReason>,
) -> Polled {
    let state = tap(port).queues()[0].receive(reader, burst, tap(port), Bounds::default());
    assert_eq!(burst.taken(), burst.frames().len() + burst.rejected().count());
    refused.extend(burst.rejected());
    state
}

/// Checks a counter of drops, and that no other drop was counted.
fn assert_drops(port: &Port, reason: DropReason, on_queue: u64, on_port: u64) {
    let queue = &tap(port).queues()[0].output;
    assert_eq!((queue.drops.get(reason), queue.drops.total()), (on_queue, on_queue), "{reason:?}");
    let drops = &port.stats.drops;
    assert_eq!((drops.get(reason), drops.total()), (on_port, on_port), "{reason:?}");
}

#[test]
fn each_refused_write_is_counted_under_its_reason() {
    use DropReason::{TapDown, TapFull, TapRejected};
    let refused = Transfer::from_result;
    // A fault of a frame or a moment is met by each frame; a fault of the interface ends the burst.
    let table = [
        (refused(-1, libc::EAGAIN), TapFull, FRAMES),
        (refused(-1, libc::ENOBUFS), TapFull, FRAMES),
        (refused(-1, libc::ENOMEM), TapFull, FRAMES),
        (refused(-1, libc::EIO), TapDown, 1),
        (refused(-1, libc::EINVAL), TapRejected, FRAMES),
        (refused(-1, libc::EFAULT), TapRejected, FRAMES),
        (refused(0, 0), TapRejected, FRAMES),
    ];
    let (burst, mut batch) = (small_burst(FRAMES), FrameBatch::default());
    for (answer, reason, calls) in table {
        let (port, device) = (uplink(1), Fake::new(answer));
        attach(&port, &device);
        for _ in 0..TIMES {
            send(&port, &burst, &mut batch);
        }
        assert_eq!(device.counts(), (0, calls * TIMES), "{answer:?}");
        assert_drops(&port, reason, FRAMES * TIMES, 0);
        let output = &tap(&port).queues()[0].output;
        assert_eq!((output.frames.get(), output.bytes.get()), (0, 0));
        assert!(tap(&port).is_up() && !tap(&port).is_lost(), "{answer:?} is no loss");
        // The fault does not last.
        *lock(&device.answer) = Transfer::Done(0);
        send(&port, &burst, &mut batch);
        assert_eq!((output.frames.get(), output.bytes.get()), (FRAMES, 60 * FRAMES));
        assert_drops(&port, reason, FRAMES * TIMES, 0);
    }
}

/// The interface is gone: the first frame finds the loss, and the other frames are not tried.
#[test]
fn a_write_to_a_deleted_interface_loses_it_once() {
    let (port, device) = (uplink(1), Fake::errno(libc::EBADFD));
    let (burst, mut batch) = (small_burst(FRAMES), FrameBatch::default());
    attach(&port, &device);
    for _ in 0..TIMES {
        send(&port, &burst, &mut batch);
    }
    assert_eq!(device.counts(), (0, 1));
    assert_drops(&port, DropReason::TapGone, FRAMES, FRAMES * (TIMES - 1));
    assert!(tap(&port).is_lost() && !tap(&port).is_up());
}

#[test]
fn each_loss_is_told_and_mended() {
    let (port, mut batch, mut reader) = (uplink(1), FrameBatch::default(), FrameReader::default());
    let (burst, mut received) = (small_burst(FRAMES), Burst::default());
    let tap = tap(&port);
    for i in 0..TIMES {
        let answers = [Transfer::Gone, Transfer::Eof];
        let device = Fake::new(answers[i as usize % 2]);
        attach(&port, &device);
        assert!(tap.is_up() && !tap.is_lost());
        if i % 4 == 0 {
            send(&port, &burst, &mut batch);
            assert_eq!(device.counts(), (0, 1));
        } else {
            let state = tap.queues()[0].receive(&mut reader, &mut received, tap, Bounds::default());
            assert_eq!((state, device.counts()), (Polled::Unavailable, (1, 0)));
        }
        assert!(tap.is_lost() && !tap.is_up());
        tap.wait_lost(|| false);
        let kept = Arc::downgrade(&device);
        drop(device);
        assert!(kept.upgrade().is_some(), "not closed by a worker");
        tap.close_lost();
        assert!(kept.upgrade().is_none(), "closed by who asked");
    }
    assert_drops(&port, DropReason::TapGone, FRAMES * TIMES / 4, 0);
}

/// The kernel took a part of a write: the part is not the frame that was sent.
#[test]
fn a_short_write_is_a_drop() {
    let (port, device) = (uplink(1), Fake::new(Transfer::Done(0)));
    let (burst, mut batch) = (small_burst(FRAMES), FrameBatch::default());
    attach(&port, &device);
    for short in [1, 12, 60, 71] {
        device.short.store(short, Ordering::Relaxed);
        (0..TIMES).for_each(|_| send(&port, &burst, &mut batch));
    }
    assert_eq!(device.counts(), (0, 4 * FRAMES * TIMES), "one call a frame");
    assert_drops(&port, DropReason::TapRejected, 4 * FRAMES * TIMES, 0);
    assert!(tap(&port).is_up() && !tap(&port).is_lost());
    device.short.store(0, Ordering::Relaxed);
    send(&port, &burst, &mut batch);
    assert_eq!(tap(&port).queues()[0].output.frames.get(), FRAMES);
}

#[test]
fn each_refused_read_costs_a_bounded_number_of_calls() {
    let refused = |errno| Transfer::from_result(-1, errno);
    let most = BURST_FRAMES as u64;
    // Answer, result for the queue, calls a turn, frames counted.
    let table = [
        (refused(libc::EAGAIN), Polled::Empty, 1, 0),
        (refused(libc::EIO), Polled::Empty, 1, 0),
        (refused(libc::ENOBUFS), Polled::RetryNow, 1, 0),
        (refused(libc::ENOMEM), Polled::RetryNow, 1, 0),
        (refused(libc::EINVAL), Polled::Empty, most, most),
        (refused(libc::EFAULT), Polled::Empty, most, most),
    ];
    let (mut reader, mut burst) = (FrameReader::default(), Burst::default());
    for (answer, state, calls, lost) in table {
        let (port, device) = (uplink(1), Fake::new(answer));
        attach(&port, &device);
        let mut refused = Vec::new();
        for n in 1..=TIMES {
            assert_eq!(receive(&port, &mut reader, &mut burst, &mut refused), state, "{answer:?}");
            let counts = (device.counts(), burst.frames().len());
            assert_eq!(counts, ((n * calls, 0), 0), "{answer:?}");
        }
        assert_eq!(refused.len() as u64, lost * TIMES);
        assert!(refused.iter().all(|reason| *reason == DropReason::TapRejected));
        assert!(tap(&port).is_up() && !tap(&port).is_lost(), "{answer:?} is no loss");
        // The fault does not last.
        *lock(&device.answer) = Transfer::WouldBlock;
        (0..3).for_each(|_| device.queue(&[0; 72]));
        let state = receive(&port, &mut reader, &mut burst, &mut refused);
        assert_eq!((state, burst.frames().len()), (Polled::Empty, 3));
    }
}

/// A refused frame is off the queue. Frames behind it bring no event of their own, and no later
/// frame does once the queue is full: all frames are read in one turn.
#[test]
fn what_is_behind_a_refused_frame_is_read() {
    let (port, device) = (uplink(1), Fake::new(Transfer::WouldBlock));
    let (mut reader, mut burst) = (FrameReader::default(), Burst::default());
    attach(&port, &device);
    let mut refused = Vec::new();
    for _ in 0..TIMES {
        for errno in [libc::EINVAL, libc::EFAULT] {
            device.queue(&[0; 72]);
            lock(&device.queued).push_back(Err(Transfer::from_result(-1, errno)));
            device.queue(&[0; 72]);
        }
        let state = receive(&port, &mut reader, &mut burst, &mut refused);
        assert_eq!((state, burst.frames().len()), (Polled::Empty, 4));
        assert!(lock(&device.queued).is_empty());
    }
    assert_eq!(refused, [DropReason::TapRejected; 2 * TIMES as usize]);
}

#[test]
fn a_read_from_a_deleted_interface_loses_it_once() {
    for answer in [Transfer::from_result(-1, libc::EBADFD), Transfer::from_result(0, 0)] {
        let (port, device) = (uplink(1), Fake::new(answer));
        let (mut reader, mut burst) = (FrameReader::default(), Burst::default());
        attach(&port, &device);
        device.queue(&[0; 72]);
        let queue = &tap(&port).queues()[0];
        for n in 0..TIMES {
            let state = queue.receive(&mut reader, &mut burst, tap(&port), Bounds::default());
            assert_eq!(
                (state, burst.taken()),
                (Polled::Unavailable, usize::from(n == 0)),
                "{answer:?}"
            );
        }
        assert_eq!(device.counts(), (2, 0), "one frame, one answer, and then never again");
        assert!(tap(&port).is_lost() && !tap(&port).is_up());
    }
}

#[test]
fn short_and_overlong_reads_are_drops() {
    let (port, device) = (uplink(1), Fake::new(Transfer::WouldBlock));
    let (mut reader, mut burst) = (FrameReader::default(), Burst::default());
    attach(&port, &device);
    let mut refused = Vec::new();
    // Shorter than a header, then shorter than an Ethernet header behind the header.
    for len in 1..12 + 14 {
        (0..TIMES).for_each(|_| device.queue(&vec![0; len]));
        // 64 reads at a time, none of which is a frame.
        while receive(&port, &mut reader, &mut burst, &mut refused) == Polled::More {
            assert!(burst.frames().is_empty(), "{len}");
        }
        assert_eq!(std::mem::take(&mut refused), [DropReason::TooShort; TIMES as usize], "{len}");
    }
    let reads = device.counts().0;
    assert_eq!(reads, 25 * (TIMES + 1), "one call a frame, and one that finds nothing");
    // A frame as long as the buffer may have been longer.
    for len in [MAX_FRAME_LEN as usize + 1, SLOT, SLOT + 1] {
        device.queue(&vec![0; 12 + len]);
        let state = receive(&port, &mut reader, &mut burst, &mut refused);
        assert_eq!((state, burst.frames().len()), (Polled::More, 0), "{len}");
        receive(&port, &mut reader, &mut burst, &mut refused);
    }
    assert_eq!(refused, [DropReason::TooLong; 3]);
}

/// A queue that a reader and writers lose at once is reported once; a replaced device does not take
/// its successor out of service.
#[test]
fn a_late_failure_does_not_hurt_the_successor() {
    let (port, first) = (uplink(1), Fake::errno(libc::EBADFD));
    attach(&port, &first);
    let tap = tap(&port);
    let old = tap.queues()[0].device().unwrap();
    let (entered, left) = (Counter::default(), AtomicBool::new(false));
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                tap.lose(&tap.queues()[0], &old, Lost::Gone);
                entered.add_shared(1);
            });
        }
        scope.spawn(|| {
            tap.wait_lost(|| false);
            left.store(true, Ordering::Relaxed);
        });
    });
    assert!(left.load(Ordering::Relaxed) && tap.is_lost());
    assert_eq!(lock(&tap.loss).dead.len(), 1);
    let second = Fake::new(Transfer::WouldBlock);
    attach(&port, &second);
    tap.lose(&tap.queues()[0], &old, Lost::Gone);
    assert!(tap.is_up() && !tap.is_lost());
    assert!(Arc::ptr_eq(&tap.queues()[0].device().unwrap(), &(second as Device)));
}

/// Losses and attachments in any order by three threads: at every moment, a queue is without its
/// device if and only if the port reports a loss.
#[test]
fn losing_and_attaching_do_not_mix() {
    let port = uplink(2);
    let tap = tap(&port);
    let devices = || (0..2).map(|_| Fake::new(Transfer::Gone) as Device).collect();
    tap.attach(devices(), Offloads::ALL);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for queue in tap.queues() {
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    if let Some(device) = queue.device() {
                        tap.lose(queue, &device, Lost::Gone);
                    }
                }
            });
        }
        for _ in 0..20 * TIMES {
            tap.wait_lost(|| false);
            tap.attach(devices(), Offloads::ALL);
            let loss = lock(&tap.loss);
            let without = tap.queues().iter().any(|queue| queue.device().is_none());
            if loss.lost.is_some() != without {
                stop.store(true, Ordering::Relaxed);
            }
            assert_eq!(loss.lost.is_some(), without);
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn whoever_waits_for_a_loss_is_woken() {
    let (port, device) = (uplink(1), Fake::errno(libc::EBADFD));
    let (burst, mut batch) = (small_burst(1), FrameBatch::default());
    let stopped = AtomicBool::new(false);
    let tap = tap(&port);
    for _ in 0..100 {
        attach(&port, &device);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| tap.wait_lost(|| false));
            send(&port, &burst, &mut batch);
            waiter.join().unwrap();
        });
        // The thread that stops the process ends a wait without a loss.
        attach(&port, &device);
        stopped.store(false, Ordering::Relaxed);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| tap.wait_lost(|| stopped.load(Ordering::Relaxed)));
            stopped.store(true, Ordering::Relaxed);
            tap.wake();
            waiter.join().unwrap();
        });
        assert!(!tap.is_lost());
    }
}

/// Closing an interface can take long, so a worker's burst is never the last holder of a device.
#[test]
fn a_lost_device_is_closed_by_who_asks_for_it() {
    let (port, device) = (uplink(1), Fake::errno(libc::EBADFD));
    attach(&port, &device);
    let tap = tap(&port);
    let held = tap.queues()[0].device().unwrap();
    let weak = Arc::downgrade(&device);
    drop(device);
    tap.lose(&tap.queues()[0], &held, Lost::Gone);
    let (tell, told) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            told.recv().unwrap();
            assert_eq!(Arc::strong_count(&held), 2, "the worker lets go first");
        });
        tell.send(()).unwrap();
        tap.close_lost();
        assert!(weak.upgrade().is_none());
    });
}

/// A guest's transmit ring over memory of its own, for frames in pieces.
pub(super) struct Sender {
    pub(super) memory: GuestMemoryMmap<()>,
    pub(super) truncated: Arc<AtomicBool>,
    ring: SplitRing,
    pub(super) burst: Burst,
}

const DESC: u64 = 0x1000;
const AVAIL: u64 = 0x8000;
const USED: u64 = 0xc000;
const DATA: u64 = 0x2_0000;
const RING: u16 = 1024;

impl Sender {
    pub(super) fn new() -> Sender {
        let len = 1 << 20;
        let fd = memfd("sender", len).unwrap();
        let file = FileOffset::new(File::from(fd.try_clone().unwrap()), 0);
        let ranges = [(GuestAddress(0), len as usize, Some(file))];
        let memory = GuestMemoryMmap::from_ranges_with_files(ranges).unwrap();
        let truncated = Arc::default();
        let mapping = Arc::new(Mapping::new(fd, 0, len, &truncated).unwrap());
        let region = Region { gpa: 0, uva: 0, offset: 0, mapping };
        let table = Arc::new(MemTable::new(vec![region], &truncated).unwrap());
        let config = RingConfig {
            size: RING,
            desc: DESC,
            avail: AVAIL,
            used: USED,
            event_idx: false,
            header_len: 12,
            mergeable: true,
            offloads: Offloads::NONE,
        };
        let ring = SplitRing::start(table, &config).unwrap();
        Sender { memory, truncated, ring, burst: Burst::default() }
    }

    /// Takes one frame that is in `pieces` pieces behind its header, in all parts of the memory.
    pub(super) fn take(&mut self, frame: &[u8], pieces: usize) {
        let mut at = DATA;
        let mut rest = frame;
        // The header asks for no offload, so its other fields mean nothing.
        let mut header = [0xee; 12];
        header[1] = 0;
        for i in 0..=pieces {
            let take = if i == pieces { rest.len() } else { frame.len() / pieces };
            let (piece, tail) = if i == 0 { (&header[..], rest) } else { rest.split_at(take) };
            rest = tail;
            self.memory.write_slice(piece, GuestAddress(at)).unwrap();
            let flags = u16::from(i < pieces);
            let desc = Descriptor::new(at, piece.len() as u32, flags, i as u16 + 1);
            let place = GuestAddress(DESC + 16 * i as u64);
            self.memory.write_obj(RawDescriptor::from(desc), place).unwrap();
            at += piece.len() as u64 + 5;
        }
        let taken = self.ring.base();
        let slot = AVAIL + 4 + 2 * u64::from(taken % RING);
        self.memory.write_obj(0u16, GuestAddress(slot)).unwrap();
        self.memory.write_obj((taken + 1).to_le(), GuestAddress(AVAIL + 2)).unwrap();
        assert_eq!(self.ring.take(&mut self.burst, 64), Ok(1));
        assert_eq!(self.burst.frames().len(), 1, "{} bytes in {pieces}", frame.len());
    }
}

pub(super) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u32).wrapping_mul(0x9e37_79b1).to_le_bytes()[3]).collect()
}

#[test]
fn frames_in_pieces_arrive_whole_and_many_pieces_as_one() {
    let (port, device, mut batch) =
        (uplink(1), Fake::new(Transfer::Done(0)), FrameBatch::default());
    attach(&port, &device);
    let mut sender = Sender::new();
    let gather = TAP_GATHER_PIECES;
    let counts = [1, 2, 3, gather - 1, gather, gather + 1, gather + 2, gather + 3, 200, 1000];
    let copy = TAP_LONG_FRAME;
    for len in
        [14, 63, 64, 65, 66, 100, 1_514, copy, copy + 1, 9_014, 65_549, MAX_FRAME_LEN as usize]
    {
        let frame = pattern(len);
        for &count in counts.iter().filter(|&&count| count <= len) {
            sender.take(&frame, count);
            send_frames(&port, &sender.burst, &[0], &mut batch);
            let (written, pieces) = (lock(&device.written), lock(&device.pieces));
            // The header is the switch's, not the sender's.
            assert_eq!(written[..12], [0; 12], "{len} in {count}");
            assert_eq!(written[12..], frame, "{len} in {count}");
            let payload = sender.burst.egress(0).payload().count();
            // A frame that is short, or in many pieces, is copied together.
            let copied = len <= TAP_LONG_FRAME || payload > gather;
            assert_eq!(pieces.len(), if copied { 1 } else { 2 + payload }, "{len} in {count}");
            assert!(pieces.iter().all(|&len| len > 0));
            drop((written, pieces));
            sender.ring.complete(&sender.burst);
        }
    }
    assert_eq!(tap(&port).queues()[0].output.drops.total(), 0);
}

/// The switch copies short frames, and not the kernel: if a guest takes its memory away during the
/// copy, the frame loses bytes, and no other port is affected.
#[test]
fn memory_that_is_gone_under_a_copy_is_survived() {
    let (port, device, mut batch) =
        (uplink(1), Fake::new(Transfer::Done(0)), FrameBatch::default());
    attach(&port, &device);
    for (len, pieces) in [(TAP_LONG_FRAME, 1), (60_000, 200)] {
        let (mut sender, frame) = (Sender::new(), pattern(len));
        sender.take(&frame, pieces);
        let region = sender.memory.find_region(GuestAddress(0)).unwrap();
        region.file_offset().unwrap().file().set_len(0).unwrap();
        send_frames(&port, &sender.burst, &[0], &mut batch);
        let written = lock(&device.written);
        assert_eq!(written[12..12 + SNAPSHOT_LEN], frame[..SNAPSHOT_LEN], "copied before");
        assert!(written[12 + SNAPSHOT_LEN..] == vec![0; len - SNAPSHOT_LEN], "{len} in {pieces}");
        assert!(sender.truncated.load(Ordering::Relaxed), "the ring's owner is told");
    }
}

/// Frames of every length leave in one piece and come in again in one piece.
#[test]
fn frames_of_every_length_cross_unchanged() {
    let (port, device) = (uplink(1), Fake::new(Transfer::Done(0)));
    let (mut batch, mut reader) = (FrameBatch::default(), FrameReader::default());
    attach(&port, &device);
    let mut frame = pattern(MAX_FRAME_LEN as usize);
    let mut burst = Burst::default();
    let queue = &tap(&port).queues()[0];
    for len in 14..=MAX_FRAME_LEN {
        burst.clear();
        // SAFETY: `frame` is longer, and neither moved nor written while the burst is used.
        let taken = unsafe { burst.push_private(VnetHdr::plain(9), frame.as_mut_ptr(), len) };
        assert!(taken, "{len}");
        send_frames(&port, &burst, &[0], &mut batch);
        let written = std::mem::take(&mut *lock(&device.written));
        assert_eq!(written[..12], [0; 12], "{len}");
        assert!(written[12..] == frame[..len as usize], "{len}: bytes to the TAP");

        device.queue(&written);
        *lock(&device.answer) = Transfer::WouldBlock;
        queue.receive(&mut reader, &mut burst, tap(&port), Bounds::default());
        *lock(&device.answer) = Transfer::Done(0);
        assert_eq!(burst.rejected().count(), 0);
        let [read] = burst.frames() else { panic!("{len}: {} frames", burst.frames().len()) };
        assert!(read.len == len && read.header.is_plain() && burst.more(read).is_empty());
        let first = (len as usize).min(SNAPSHOT_LEN);
        assert_eq!(read.snapshot[..first], frame[..first], "{len}");
        // SAFETY: the frame lies in the reader's staging until the next `receive`.
        let rest = unsafe { std::slice::from_raw_parts(read.rest.at, read.rest.len as usize) };
        assert!(rest == &frame[first..len as usize], "{len}: bytes from the TAP");
    }
    let count = u64::from(MAX_FRAME_LEN - 13);
    assert_eq!((queue.output.frames.get(), queue.output.drops.total()), (count, 0));
    assert_eq!(queue.output.bytes.get(), (14..=u64::from(MAX_FRAME_LEN)).sum::<u64>());
}

/// A burst holds 64 frames, or 64 KiB and the frame that crosses the line.
#[test]
fn bursts_from_a_tap_are_bounded() {
    let (port, device) = (uplink(1), Fake::new(Transfer::WouldBlock));
    let (mut reader, mut burst) = (FrameReader::default(), Burst::default());
    attach(&port, &device);
    for (len, expected) in [(60, 64), (1514, 44), (30_000, 3), (65_549, 1)] {
        (0..100).for_each(|_| device.queue(&vec![0; 12 + len]));
        let queue = &tap(&port).queues()[0];
        let state = queue.receive(&mut reader, &mut burst, tap(&port), Bounds::default());
        assert_eq!((state, burst.frames().len()), (Polled::More, expected), "{len}");
        lock(&device.queued).clear();
    }
}

/// A stuck thread keeps the queue in the middle of a burst, and a thread that panics does not:
/// frames of a queue stay in order.
#[test]
fn a_queue_is_read_by_one_thread_at_a_time() {
    let queue = DeviceQueue::default();
    let reading = queue.reading();
    assert!(reading.is_some() && queue.reading().is_none());
    drop(reading);
    let panicked = std::thread::scope(|scope| {
        let burst = scope.spawn(|| {
            let _reading = queue.reading();
            panic!("injected: in a burst");
        });
        burst.join().is_err()
    });
    assert!(panicked && queue.reading().is_some());
}
