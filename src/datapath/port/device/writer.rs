//! Frames to a device: as they lie in guest memory, or completed for one that lacks an offload.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, TryLockError};

use super::segments::count_segments;
use super::together::{Entries, Run, finish_checksum};
use super::{DevicePort, Lost, Reasons};
use crate::capture::outcomes::Outcomes;
use crate::port::Port;
use crate::ring::{Burst, EgressFrame};
use base::frame::ethernet::VLAN_TAG_LEN;
use base::frame::offload::NEEDS_CSUM;
use base::frame::segment::Segmenter;
use base::frame::{Offloads, VNET_HDR_LEN, VnetHdr};
use base::limits::{MAX_EGRESS_HEADERS_LEN, MAX_FRAME_LEN, TAP_COPY_BYTES, TAP_GATHER_PIECES};
use base::stats::{DropReason, Fallbacks, QueueStats};
use switch::PortId;
use sys::frame_io::{FrameBatch, FrameIo, Transfer};

/// A worker's room for writing to devices.
#[derive(Debug)]
pub struct FrameWriter {
    pieces: Vec<libc::iovec>,
    /// A header that asks for nothing, except within a call, then as much of a frame as is copied.
    pub(super) linear: Box<[u8]>,
    /// Header and headers of a segment.
    pub(super) front: [u8; VNET_HDR_LEN + MAX_EGRESS_HEADERS_LEN],
}

// SAFETY: the pointers in `pieces` are only used within one call of `write`.
unsafe impl Send for FrameWriter {}

impl Default for FrameWriter {
    fn default() -> FrameWriter {
        let mut linear =
            vec![0; VNET_HDR_LEN + MAX_FRAME_LEN as usize + VLAN_TAG_LEN].into_boxed_slice();
        linear[..VNET_HDR_LEN].copy_from_slice(&VnetHdr::plain(0).to_bytes());
        let front = [0; VNET_HDR_LEN + MAX_EGRESS_HEADERS_LEN];
        FrameWriter { pieces: Vec::with_capacity(TAP_GATHER_PIECES + 2), linear, front }
    }
}

impl DevicePort {
    /// Writes the listed frames of `burst`: together, if the device does that and no other worker
    /// is at it, else by one system call each or, of a frame that has to be cut into segments, for
    /// each of these. Calls `settled` with how many more are delivered or dropped, and counted.
    /// They came `from` another port. None is left behind for later, so that another guest's memory
    /// that comes slowly holds up no frame that was taken.
    #[inline(never)]
    pub fn send(
        &self,
        worker: usize,
        burst: &Burst,
        (from, frames): (PortId, &[u8]),
        writer: &mut FrameWriter,
        (port, outcomes): (&Port, &mut Outcomes),
        settled: &mut dyn FnMut(usize),
    ) {
        let (queue, reasons) = (&self.queues[worker % self.queues.len()], self.behind.reasons());
        let attached = queue.attached();
        let Some(device) = attached.as_deref() else {
            port.drop_copies(&port.stats.drops, (from, frames), reasons.gone, outcomes);
            return settled(frames.len());
        };
        let takes = Offloads::from_bits(self.takes.load(Ordering::Relaxed));
        let output = &queue.output;
        let run = &Run::new(burst, frames, (takes, self.coalesce), &output.fallbacks);
        let mut outlet = Outlet { device: &**device, writer, run };
        let sent = Sent { output, settled, frames: 0, bytes: 0, coalesced: 0 };
        let mut sending = Sending { run, port, from, reasons, outcomes, sent, done: 0, end: None };
        let shared = device.batch(worker / self.queues.len(), frames.len());
        let (mut batch, mut entries) = (shared.and_then(begin), Entries::default());
        let mut at = 0;
        while at < frames.len() {
            if let Some(batch) = &mut batch {
                if let Some(made) = batch.room().and_then(|room| run.collect(at, room)) {
                    batch.add(made.len);
                    entries.add(made.frames);
                    at += usize::from(made.frames);
                    continue;
                }
                if sending.cut(at, &mut **batch, &mut entries, &mut outlet) {
                    at += 1;
                    continue;
                }
                sending.flush(&mut **batch, &mut entries, &mut outlet);
            }
            if sending.end.is_some() {
                break;
            }
            let (result, count) = outlet.write(at);
            sending.settle_all(result, count, &mut outlet);
            at += usize::from(count);
        }
        if let Some(mut batch) = batch {
            sending.flush(&mut *batch, &mut entries, &mut outlet);
        }
        if sending.finish() {
            self.lose(queue, device, Lost::Gone);
        }
    }
}

/// The right to use a batch, unless another thread has it.
fn begin(shared: &Mutex<dyn FrameBatch>) -> Option<MutexGuard<'_, dyn FrameBatch + 'static>> {
    let mut batch = match shared.try_lock() {
        Ok(batch) => batch,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => return None,
    };
    batch.begin();
    Some(batch)
}

/// What frames are written with that are not part of a batch.
pub(super) struct Outlet<'a> {
    device: &'a dyn FrameIo,
    pub(super) writer: &'a mut FrameWriter,
    run: &'a Run<'a>,
}

impl Outlet<'_> {
    /// Writes the `at`-th frame, and with it those that become one packet with it; how many frames
    /// the result is of.
    fn write(&mut self, at: usize) -> (Transfer, u8) {
        if !self.run.may_join(at) {
            return (self.write_alone(at), 1);
        }
        let linear = &mut self.writer.linear;
        let Some(made) = self.run.collect(at, linear) else { return (self.write_alone(at), 1) };
        let result = self.device.write(&linear[..made.len]).whole(made.len);
        linear[..VNET_HDR_LEN].copy_from_slice(&VnetHdr::plain(0).to_bytes());
        (result, made.frames)
    }

    /// Writes the `at`-th frame.
    fn write_alone(&mut self, at: usize) -> Transfer {
        let Outlet { device, writer, run } = self;
        let frame = run.burst.egress(run.frames()[at]);
        if run.burst.needs_offloads() {
            writer.write_asking(*device, frame, run.takes, run.fallbacks)
        } else {
            writer.write(*device, frame)
        }
    }
}

/// A run of frames on its way to a device.
pub(super) struct Sending<'a> {
    pub(super) run: &'a Run<'a>,
    port: &'a Port,
    from: PortId,
    reasons: Reasons,
    outcomes: &'a mut Outcomes,
    sent: Sent<'a>,
    /// So many of the frames are settled.
    done: usize,
    /// Why the device takes none of the rest.
    pub(super) end: Option<DropReason>,
}

impl Sending<'_> {
    /// Writes what is in a batch.
    pub(super) fn flush(
        &mut self,
        batch: &mut dyn FrameBatch,
        entries: &mut Entries,
        outlet: &mut Outlet,
    ) {
        let mut entries = entries.take();
        batch.flush(&mut |result| {
            let count = entries.next().unwrap_or_default();
            if count == 0 && !matches!(result, Transfer::Done(_)) {
                // A segment that is not the first of its frame.
                self.run.fallbacks.segments_lost.add_shared(1);
            }
            self.settle_all(result, count, outlet);
        });
    }

    /// Counts what came of the next `count` frames, which were written as one. Those of a packet
    /// that is refused are written by themselves.
    fn settle_all(&mut self, result: Transfer, count: u8, outlet: &mut Outlet) {
        let refused = count > 1 && result == Transfer::Rejected(libc::EINVAL);
        for _ in 0..count {
            self.settle(if refused { outlet.write_alone(self.done) } else { result });
        }
        if count > 1 && matches!(result, Transfer::Done(_)) {
            self.sent.coalesced += u64::from(count);
        }
    }

    /// Counts what came of the next frame.
    fn settle(&mut self, result: Transfer) {
        let Some(&index) = self.run.frames().get(self.done) else { return };
        let reasons = &self.reasons;
        let reason = match result {
            Transfer::Done(_) => {
                self.done += 1;
                self.sent.frames += 1;
                self.sent.bytes += u64::from(self.run.burst.egress(index).len());
                return self.outcomes.delivered(index, self.port.id);
            }
            Transfer::WouldBlock | Transfer::NoBuffers => reasons.full,
            Transfer::Down => reasons.down,
            Transfer::Gone => reasons.gone,
            Transfer::Rejected(_) | Transfer::Fault | Transfer::Eof => reasons.rejected,
        };
        // What is down or gone for this frame is so for the rest of the run too.
        if reason == reasons.down || reason == reasons.gone {
            self.end = Some(reason);
        }
        self.drop_next(1, reason);
    }

    /// Drops the next `count` frames.
    fn drop_next(&mut self, count: usize, reason: DropReason) {
        let dropped = &self.run.frames()[self.done..self.done + count];
        let drops = &self.sent.output.drops;
        self.port.drop_copies(drops, (self.from, dropped), reason, self.outcomes);
        self.done += count;
        (self.sent.settled)(count);
    }

    /// Drops what the device does not take any more; true if it is gone.
    fn finish(mut self) -> bool {
        let left = self.run.frames().len() - self.done;
        if let (Some(reason), true) = (self.end, left > 0) {
            self.drop_next(left, reason);
        }
        self.end == Some(self.reasons.gone)
    }
}

/// What was delivered of a run to a device so far, counted when the run ends, which a panic may
/// bring about: other workers write these counters too.
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

impl FrameWriter {
    /// Writes one frame: header and first bytes from private memory, the rest from where it lies if
    /// it is long.
    #[inline]
    pub fn write(&mut self, device: &dyn FrameIo, frame: EgressFrame<'_>) -> Transfer {
        let together = frame.len() as usize <= TAP_COPY_BYTES
            || frame.payload().nth(TAP_GATHER_PIECES + 1).is_some();
        if together || !device.gathers() {
            let len = self.copy(frame);
            return device.write(&self.linear[..len]).whole(len);
        }
        let head = VNET_HDR_LEN + frame.head().len();
        self.linear[VNET_HDR_LEN..head].copy_from_slice(frame.head());
        self.pieces.clear();
        self.add(self.linear.as_ptr(), head);
        for piece in frame.payload() {
            self.add(piece.at, piece.len as usize);
        }
        // SAFETY: `linear` is private and lives across the call; the other pieces were translated
        // in the sender's memory, which the lock on its ring holds.
        let result = unsafe { device.write_pieces(&self.pieces) };
        result.whole(VNET_HDR_LEN + frame.len() as usize)
    }

    /// Writes a frame of a burst that asks for offloads; `takes` is what the device has of them.
    pub fn write_asking(
        &mut self,
        device: &dyn FrameIo,
        frame: EgressFrame<'_>,
        takes: Offloads,
        fallbacks: &Fallbacks,
    ) -> Transfer {
        let request = frame.request();
        if takes.has(frame.needs()) {
            let header = VnetHdr { num_buffers: [0; 2], ..frame.header() };
            self.linear[..VNET_HDR_LEN].copy_from_slice(&header.to_bytes());
            let result = self.write(device, frame);
            self.linear[..VNET_HDR_LEN].copy_from_slice(&VnetHdr::plain(0).to_bytes());
            return result;
        }
        if request.is_gso() {
            return self.write_segments(device, frame, takes, fallbacks);
        }
        let len = self.copy(frame);
        let sum = request.header.flags & NEEDS_CSUM != 0;
        if sum {
            finish_checksum(&request, &mut self.linear[VNET_HDR_LEN..len]);
        }
        let result = device.write(&self.linear[..len]).whole(len);
        if sum && matches!(result, Transfer::Done(_)) {
            fallbacks.checksummed.add_shared(1);
        }
        result
    }

    /// Copies all of a frame behind the header; returns the length with it.
    pub(super) fn copy(&mut self, frame: EgressFrame<'_>) -> usize {
        VNET_HDR_LEN + frame.copy_beginning(&mut self.linear[VNET_HDR_LEN..])
    }

    /// Writes a frame as segments. It counts as written with the first of them.
    fn write_segments(
        &mut self,
        device: &dyn FrameIo,
        frame: EgressFrame<'_>,
        takes: Offloads,
        fallbacks: &Fallbacks,
    ) -> Transfer {
        let Some(mut segmenter) = self.begin_segments(frame) else {
            return Transfer::Rejected(libc::EINVAL);
        };
        let all = segmenter.segments();
        let mut made = 0;
        while made < all {
            let result = self.write_segment(device, &mut segmenter, made, takes);
            match result {
                Transfer::Done(_) => made += 1,
                _ if made == 0 => return result,
                _ => break,
            }
        }
        count_segments(fallbacks, &segmenter, made);
        Transfer::Done(VNET_HDR_LEN + frame.len() as usize)
    }

    fn write_segment(
        &mut self,
        device: &dyn FrameIo,
        segmenter: &mut Segmenter,
        index: u32,
        takes: Offloads,
    ) -> Transfer {
        let Some((front, payload)) = self.make_segment(segmenter, index, takes) else {
            return Transfer::Rejected(libc::EINVAL);
        };
        let len = front + payload.len();
        let payload = self.linear[payload].as_ptr();
        self.pieces.clear();
        self.add(self.front.as_ptr(), front);
        self.add(payload, len - front);
        // SAFETY: both pieces are private memory that lives across the call.
        let result = unsafe { device.write_pieces(&self.pieces) };
        result.whole(len)
    }

    fn add(&mut self, at: *const u8, len: usize) {
        self.pieces.push(libc::iovec { iov_base: at.cast_mut().cast(), iov_len: len });
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd, RawFd};
    use std::sync::Mutex;

    use super::*;
    use base::frame::samples::{asking, check_whole, l4, ones, tcp};

    /// A kernel that keeps what it is given, and after `limit` frames has no memory.
    struct Kernel {
        frames: Mutex<Vec<(VnetHdr, Vec<u8>)>>,
        limit: usize,
    }

    impl AsRawFd for Kernel {
        fn as_raw_fd(&self) -> RawFd {
            -1
        }
    }

    impl FrameIo for Kernel {
        fn write(&self, bytes: &[u8]) -> Transfer {
            let mut frames = self.frames.lock().unwrap();
            if frames.len() == self.limit {
                return Transfer::NoBuffers;
            }
            let (header, frame) = bytes.split_first_chunk().unwrap();
            frames.push((VnetHdr::from_bytes(*header), frame.to_vec()));
            Transfer::Done(bytes.len())
        }

        unsafe fn write_pieces(&self, pieces: &[libc::iovec]) -> Transfer {
            let mut bytes = Vec::new();
            for piece in pieces {
                // SAFETY: the caller's promise for `pieces`.
                bytes.extend_from_slice(unsafe {
                    std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), piece.iov_len)
                });
            }
            self.write(&bytes)
        }

        fn read(&self, _: &mut [u8]) -> Transfer {
            Transfer::WouldBlock
        }
    }

    /// What a write came to, the frames that arrived, and the counts.
    type Outcome = (Transfer, Vec<(VnetHdr, Vec<u8>)>, [u64; 4]);

    /// Writes a TCP packet, then one that asks for nothing.
    fn write(v6: bool, mss: u16, payload: usize, takes: Offloads, limit: usize) -> Outcome {
        let kernel = Kernel { frames: Mutex::default(), limit };
        let (mut packet, mut plain) = (tcp(v6, payload), vec![7; 100]);
        let mut burst = Burst::default();
        let (mut writer, counts) = (FrameWriter::default(), Fallbacks::default());
        // SAFETY: both frames outlive the burst's use.
        let pushed = unsafe {
            burst.push_private(asking(v6, mss), packet.as_mut_ptr(), packet.len() as u32)
                && burst.push_private(VnetHdr::plain(0), plain.as_mut_ptr(), 100)
        };
        assert!(pushed);
        burst.examine(Offloads::ALL, false);
        assert_eq!(burst.frames().len(), 2);
        let mut write = |index| writer.write_asking(&kernel, burst.egress(index), takes, &counts);
        let result = write(0);
        write(1);
        let counts = [
            counts.checksummed.get(),
            counts.segmented.get(),
            counts.segments.get(),
            counts.segments_lost.get(),
        ];
        let mut frames = kernel.frames.into_inner().unwrap();
        if frames.len() < limit {
            assert_eq!(frames.pop(), Some((VnetHdr::plain(0), vec![7; 100])));
        }
        (result, frames, counts)
    }

    #[test]
    fn a_kernel_that_can_gets_the_request() {
        for (v6, mss, payload) in [(false, 0, 50), (true, 0, 1400), (false, 1448, 60_000)] {
            let (_, frames, counts) = write(v6, mss, payload, Offloads::ALL, 9);
            let [(header, got)] = &frames[..] else { panic!("{} frames", frames.len()) };
            let headers = if mss > 0 { l4(v6) as u16 + 32 } else { 0 };
            let expected = VnetHdr { hdr_len: headers.to_le_bytes(), ..asking(v6, mss) };
            assert_eq!((header, counts), (&expected, [0; 4]));
            assert!(*got == tcp(v6, payload));
        }
    }

    #[test]
    fn a_kernel_that_cannot_gets_complete_frames() {
        for v6 in [false, true] {
            let (_, frames, counts) = write(v6, 0, 1001, Offloads::NONE, 9);
            assert_eq!((frames.len(), counts), (1, [1, 0, 0, 0]));
            check_whole(&frames[0].1, v6);
            assert!(frames[0].0 == VnetHdr::plain(0));
            for takes in [Offloads::NONE, Offloads::CSUM] {
                let (_, frames, counts) = write(v6, 1000, 4500, takes, 9);
                assert_eq!((frames.len(), counts), (5, [0, 1, 5, 0]));
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

    #[test]
    fn segments_that_are_refused_are_counted() {
        let (result, frames, counts) = write(false, 1000, 4500, Offloads::NONE, 2);
        assert!(matches!(result, Transfer::Done(_)));
        assert_eq!((frames.len(), counts), (2, [0, 1, 2, 3]));
        let (result, _, counts) = write(false, 1000, 4500, Offloads::NONE, 0);
        assert_eq!((result, counts), (Transfer::NoBuffers, [0; 4]));
    }
}
