//! Sending frames to a device: each frame is copied to the worker's batch, and the device reports
//! the result of each frame.

use std::sync::atomic::Ordering;

use super::together::Run;
use super::{DevicePort, Lost, Reasons};
use crate::capture::outcomes::Outcomes;
use crate::port::Port;
use crate::ring::{Burst, EgressFrame};
use base::frame::{Offloads, VNET_HDR_LEN};
use base::limits::{BURST_FRAMES, TAP_GATHER_PIECES, TAP_LONG_FRAME};
use base::stats::{DropReason, QueueStats};
use switch::PortId;
use sys::frame_io::{FrameBatch, FrameIo, Transfer};

const NO_PIECE: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

impl DevicePort {
    /// Sends the listed frames of `burst`, which came `from` another port. Calls `settled` with the
    /// number of frames that were delivered or dropped, and counted. No frame is kept for later, so
    /// slow memory of another guest delays no frame that was taken.
    #[inline(never)]
    pub(crate) fn send(
        &self,
        worker: usize,
        burst: &Burst,
        (from, frames): (PortId, &[u8]),
        batch: &mut FrameBatch,
        (port, outcomes): (&Port, &mut Outcomes),
        settled: &mut dyn FnMut(usize),
    ) {
        let (queue, reasons) = (&self.queues[worker % self.queues.len()], self.backend.reasons());
        let attached = queue.attached();
        let Some(device) = attached.as_deref() else {
            port.drop_copies(&port.stats.drops, (from, frames), reasons.gone, outcomes);
            return settled(frames.len());
        };
        let takes = Offloads::from_bits(self.takes.load(Ordering::Relaxed));
        let output = &queue.output;
        let run = &Run::new(burst, frames, (takes, self.coalesce), &output.fallbacks);
        let sending = Sending {
            run,
            device: &**device,
            batch,
            entries: [Entry::Segment; BURST_FRAMES],
            port,
            from,
            outcomes,
            sent: Sent { output, settled, frames: 0, bytes: 0, coalesced: 0 },
            refused: 0,
            first_went: false,
            end: None,
            reasons,
        };
        if sending.send() {
            self.lose(queue, device, Lost::Gone);
        }
    }
}

/// The part of a run that a frame of the batch stands for.
#[derive(Clone, Copy)]
pub(super) enum Entry {
    /// A number of frames of the run: index of the first frame, and count.
    Frames(u8, u8),
    /// The first segment of a frame of the run.
    First(u8),
    /// A further segment of the frame before.
    Segment,
}

/// A run of frames on its way to a device.
pub(super) struct Sending<'a> {
    pub(super) run: &'a Run<'a>,
    device: &'a dyn FrameIo,
    batch: &'a mut FrameBatch,
    /// The entry of each frame in the batch.
    entries: [Entry; BURST_FRAMES],
    port: &'a Port,
    from: PortId,
    outcomes: &'a mut Outcomes,
    sent: Sent<'a>,
    /// Frames of packets that the device refused, as bits; these frames are sent one by one.
    refused: u64,
    /// The device took the first segment of the last flushed frame that was sent in segments.
    first_went: bool,
    /// Why the device takes no more frames.
    pub(super) end: Option<DropReason>,
    pub(super) reasons: Reasons,
}

impl Sending<'_> {
    /// Sends all frames. True if the device is gone.
    fn send(mut self) -> bool {
        self.batch.clear();
        let (mut at, all) = (0, self.run.frames().len());
        while at < all {
            at += self.add_next(at, true);
        }
        self.flush();
        while self.refused != 0 {
            let at = self.refused.trailing_zeros() as usize;
            self.refused &= self.refused - 1;
            self.add_next(at, false);
        }
        self.flush();
        self.end == Some(self.reasons.gone)
    }

    /// Adds the `at`-th frame, or drops it. With `others`, following frames that become one packet
    /// with this frame are added too. Returns the number of frames added or dropped.
    fn add_next(&mut self, at: usize, others: bool) -> usize {
        let (run, frame) = (self.run, self.run.frame(at));
        if run.cuts(frame) {
            self.add_segments(at);
            return 1;
        }
        if frame.len() as usize > TAP_LONG_FRAME
            && let Some(answer) = self.write_long(frame)
        {
            self.settle(at, 1, answer);
            return 1;
        }
        let room = self.room(VNET_HDR_LEN + frame.len() as usize);
        let collected = room.and_then(|room| match others {
            true => run.collect(at, room),
            false => run.collect_one(frame, room),
        });
        let Some(collected) = collected else {
            self.drop(at, 1, self.end.unwrap_or(self.reasons.rejected));
            return 1;
        };
        self.add(collected.len, Entry::Frames(at as u8, collected.frames));
        collected.frames.into()
    }

    /// Writes a long frame from the memory in which the frame is. None if the device does not
    /// support this or takes no more frames, if the frame needs changes, or if the frame is in too
    /// many pieces.
    #[inline(never)]
    fn write_long(&mut self, frame: EgressFrame<'_>) -> Option<Transfer> {
        let header = self.run.header(frame).filter(|_| self.device.gathers())?.to_bytes();
        let many = frame.payload().nth(TAP_GATHER_PIECES).is_some();
        self.flush();
        if many || self.end.is_some() {
            return None;
        }
        let head = [(header.as_ptr(), VNET_HDR_LEN), (frame.head().as_ptr(), frame.head().len())];
        let rest = frame.payload().map(|piece| (piece.at.cast_const(), piece.len as usize));
        let (mut pieces, mut count) = ([NO_PIECE; TAP_GATHER_PIECES + 2], 0);
        for (piece, (at, iov_len)) in pieces.iter_mut().zip(head.into_iter().chain(rest)) {
            *piece = libc::iovec { iov_base: at.cast_mut().cast(), iov_len };
            count += 1;
        }
        // SAFETY: header and head are private and live across the call; the other pieces were
        // translated in the sender's memory, which the lock on its ring holds.
        let answer = unsafe { self.device.write_pieces(&pieces[..count]) };
        Some(answer.whole(VNET_HDR_LEN + frame.len() as usize))
    }

    /// Returns room in the batch for at least `len` bytes; flushes the batch if necessary. None if
    /// the device takes no more frames.
    pub(super) fn room(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.batch.room(len).is_none() {
            self.flush();
        }
        self.batch.room(len).filter(|_| self.end.is_none())
    }

    /// Adds the `len` bytes in the room to the batch.
    pub(super) fn add(&mut self, len: usize, entry: Entry) {
        self.entries[self.batch.len()] = entry;
        self.batch.add(len);
    }

    /// Writes the batch to the device, and counts the results.
    pub(super) fn flush(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        self.device.flush(self.batch);
        for index in 0..self.batch.len() {
            let answer = self.batch.answered(index);
            match self.entries[index] {
                Entry::Frames(at, count) => self.settle(at.into(), count.into(), answer),
                Entry::First(at) => {
                    self.first_went = matches!(answer, Transfer::Done(_));
                    self.sent.output.fallbacks.segmented.add_shared(self.first_went.into());
                    self.settle(at.into(), 1, answer);
                    self.count_segment(answer);
                }
                Entry::Segment => self.count_segment(answer),
            }
        }
        self.batch.clear();
    }

    fn count_segment(&mut self, answer: Transfer) {
        match self.reason(answer) {
            None => self.sent.output.fallbacks.segments.add_shared(1),
            Some(_) => self.lose_segments(1),
        }
    }

    /// Counts segments of a frame that were not sent, if the frame's first segment was sent.
    pub(super) fn lose_segments(&self, count: u32) {
        if self.first_went {
            self.sent.output.fallbacks.segments_lost.add_shared(count.into());
        }
    }

    /// Counts the result of `count` frames that were written as one frame.
    fn settle(&mut self, at: usize, count: usize, answer: Transfer) {
        match self.reason(answer) {
            None => self.delivered(at, count),
            Some(_) if count > 1 && answer == Transfer::Rejected(libc::EINVAL) => {
                self.refused |= (u64::MAX >> (BURST_FRAMES - count)) << at;
            }
            Some(reason) => self.drop(at, count, reason),
        }
    }

    /// Returns the drop reason of an answer; none if the device took the frame. A device that is
    /// down or gone for one frame takes no more frames of the run.
    fn reason(&mut self, answer: Transfer) -> Option<DropReason> {
        let reasons = &self.reasons;
        match answer {
            Transfer::Done(_) => None,
            Transfer::WouldBlock | Transfer::NoBuffers => Some(reasons.full),
            Transfer::Down => Some(*self.end.insert(reasons.down)),
            Transfer::Gone => Some(*self.end.insert(reasons.gone)),
            Transfer::Rejected(_) | Transfer::Fault | Transfer::Eof => Some(reasons.rejected),
        }
    }

    fn delivered(&mut self, at: usize, count: usize) {
        for &index in &self.run.frames()[at..at + count] {
            self.sent.frames += 1;
            self.sent.bytes += u64::from(self.run.burst.egress(index).len());
            self.outcomes.delivered(index, self.port.id);
        }
        if count > 1 {
            self.sent.coalesced += count as u64;
        }
    }

    /// Drops `count` frames.
    pub(super) fn drop(&mut self, at: usize, count: usize, reason: DropReason) {
        let dropped = &self.run.frames()[at..at + count];
        let drops = &self.sent.output.drops;
        self.port.drop_copies(drops, (self.from, dropped), reason, self.outcomes);
        (self.sent.settled)(count);
    }
}

/// Frames of a run that were delivered to a device. Counted when the run ends, also by a panic,
/// because other workers write these counters too.
struct Sent<'a> {
    output: &'a QueueStats,
    settled: &'a mut dyn FnMut(usize),
    frames: u64,
    bytes: u64,
    coalesced: u64,
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        if self.coalesced > 0 {
            self.output.fallbacks.coalesced.add_shared(self.coalesced);
        }
        self.output.frames.add_shared(self.frames);
        self.output.bytes.add_shared(self.bytes);
        (self.settled)(self.frames as usize);
    }
}
