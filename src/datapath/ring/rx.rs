//! Delivers frames into a driver's receive queue, with one copy.
//!
//! The caller holds the ring's lock, which is a leaf: this code does not wait, makes no system call
//! and takes no other lock. The work is bounded by one burst (64 frames, 64 KiB plus one frame) and
//! by `MAX_RUN_DESCRIPTORS` descriptors.
//!
//! The fast path serves a frame that fits one descriptor: a loop over buffers whose heads,
//! descriptors and first cache lines were prefetched. The general path serves everything else
//! (merged buffers, chains, headers split over descriptors, small buffers); `fallback` serves a
//! frame that asks for offloads which the driver has not acknowledged. A frame that finds no room
//! leaves the ring unchanged: the ring's position advances only with a frame's last byte.

use virtio_queue::desc::split::Descriptor;

use super::burst::Burst;
use super::chain::{Access, ChainError, Gathered, Piece};
use super::copy::{EgressFrame, Writer, store_header};
use super::split::{RingError, SplitRing};
use base::frame::vnet::VnetHdr;
use base::frame::{VNET_HDR_LEN, VNET_HDR_LEN_LEGACY};
use base::limits::{BURST_FRAMES, MAX_MERGED_BUFFERS};
use sys::prefetch;

/// Result of delivering a run of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Delivered {
    /// Number of settled frames, in order from the run's first: delivered or dropped for good. The
    /// frames behind them are not delivered and may be tried again.
    pub settled: usize,
    /// Settled frames that were delivered.
    pub frames: u64,
    /// Bytes of the delivered frames.
    pub bytes: u64,
    /// Buffers that the ring took, unused ones included.
    pub(crate) buffers: u16,
    /// Settled frames that do not fit the ring's buffers: one bit per index in the run.
    pub no_fit: u64,
    /// Settled frames whose headers changed so that the frame cannot be segmented or checksummed:
    /// one bit per index in the run.
    pub bad_offload: u64,
    /// Buffers given back unused because of an invalid chain among them.
    pub bad_buffers: u64,
    /// Work of the switch in place of offloads that the driver did not acknowledge.
    pub fallbacks: Fallbacks,
    /// Cycles spent on missing pages under the receiver's buffers, if so many that the run ended
    /// early; otherwise 0. The frames from `settled` on are not delivered then.
    pub(crate) slow: u64,
    /// The driver asks to be signalled.
    pub signal: bool,
    /// The ring was found broken; frames from `settled` on are not delivered.
    pub broken: Option<RingError>,
}

/// Work of the switch on delivered frames in place of offloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fallbacks {
    /// Delivered frames whose checksum the switch completed.
    pub(crate) checksummed: u64,
    /// Delivered frames that the switch cut into segments.
    pub(crate) segmented: u64,
    /// Segments of the frames in `segmented` that were delivered.
    pub(crate) segments: u64,
    /// Segments of the frames in `segmented` that were not delivered.
    pub segments_lost: u64,
}

/// How many segments of a frame are delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Segmentation {
    /// All segments at once: the frame waits until there are buffers for all segments, unless the
    /// ring is too small for that.
    Whole,
    /// As many segments as there are buffers for, at most this number: the frame is not tried
    /// again.
    Part(u32),
}

/// Scratch memory of the general path; allocated once per worker.
#[derive(Debug)]
pub struct RxScratch {
    ahead: Box<Ahead>,
    gathered: Gathered,
}

impl Default for RxScratch {
    fn default() -> RxScratch {
        let at = std::ptr::null_mut();
        let empty = Buffer { head: 0, room: 0, at, desc: Descriptor::default() };
        RxScratch {
            ahead: Box::new(Ahead { buffers: [empty; BURST_FRAMES], next: 0, count: 0 }),
            gathered: Gathered::default(),
        }
    }
}

// SAFETY: the pointers in `ahead` are only dereferenced within one `deliver`, under the lock of the
// ring they came from.
unsafe impl Send for RxScratch {}

/// A buffer that was read and not taken.
#[derive(Debug, Clone, Copy)]
struct Buffer {
    head: u16,
    /// Bytes at `at` if the buffer is one plain writable descriptor, otherwise 0.
    room: u32,
    at: *mut u8,
    /// First descriptor.
    desc: Descriptor,
}

/// Prefetched buffers, in ring order from the ring's position. The worker keeps this memory:
/// clearing 1.5 KiB would cost a short run more than its copies.
#[derive(Debug)]
pub(super) struct Ahead {
    buffers: [Buffer; BURST_FRAMES],
    next: usize,
    count: usize,
}

impl Ahead {
    /// True if all prefetched buffers are taken.
    pub(super) fn is_used_up(&self) -> bool {
        self.next >= self.count
    }
}

/// A position of a ring, for [`SplitRing::back_to`].
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) avail: u16,
    used: u16,
}

/// Why a frame was not delivered.
pub(super) enum PutError {
    /// The driver has posted too few buffers.
    Empty,
    /// The frame will never fit this driver's buffers.
    NoFit,
    /// The frame's headers changed since they were examined.
    Changed,
    /// The buffers are so small, or so many are invalid, that no further frame is worth a try.
    TooManyDescriptors,
    /// Pages of the receiver's memory were missing, and providing them took this many cycles.
    Slow(u64),
    /// The ring broke the specification and cannot be read further.
    Broken(RingError),
}

impl SplitRing {
    /// Delivers the frames of `burst` that `run` lists, until buffers run out, and publishes them
    /// at once. `segmentation` says how many segments of a frame are delivered if this driver needs
    /// segments.
    pub fn deliver(
        &mut self,
        burst: &Burst,
        run: &[u8],
        scratch: &mut RxScratch,
        segmentation: Segmentation,
    ) -> Delivered {
        let (mut done, start) = (Delivered::default(), self.indices.next_avail);
        scratch.gathered.start(run.len());
        match self.look_ahead(run.len(), &mut scratch.ahead) {
            Ok(()) if burst.needs_offloads() => {
                self.put_run::<true, true>(burst, run, scratch, &mut done, segmentation)
            }
            Ok(()) if burst.tags.are_other => {
                self.put_run::<false, true>(burst, run, scratch, &mut done, segmentation)
            }
            Ok(()) => self.put_run::<false, false>(burst, run, scratch, &mut done, segmentation),
            Err(error) => done.broken = Some(error),
        }
        done.buffers = self.indices.next_avail.wrapping_sub(start);
        done.signal = self.publish();
        done
    }

    /// Delivers the frames of a run. With `OFFLOADS` each frame's own virtio-net header is
    /// delivered, otherwise a header that asks for nothing. With `TAGS` the frame's new head is
    /// delivered, otherwise the head that arrived.
    #[inline(always)]
    fn put_run<const OFFLOADS: bool, const TAGS: bool>(
        &mut self,
        burst: &Burst,
        run: &[u8],
        scratch: &mut RxScratch,
        done: &mut Delivered,
        segmentation: Segmentation,
    ) {
        let RxScratch { ahead, gathered } = scratch;
        while done.settled < run.len() {
            let left = &run[done.settled..];
            if usize::from(self.features.header_len) == VNET_HDR_LEN {
                self.put_plain::<VNET_HDR_LEN, OFFLOADS, TAGS>(burst, left, ahead, done);
            } else {
                self.put_plain::<VNET_HDR_LEN_LEGACY, OFFLOADS, TAGS>(burst, left, ahead, done);
            }
            let Some(&index) = run.get(done.settled) else { return };
            let frame = burst.egress(index);
            let put = if !OFFLOADS {
                self.put(frame, VnetHdr::plain(1), ahead, gathered, done)
            } else if self.features.offloads.has(frame.needs()) {
                self.put(frame, frame.header(), ahead, gathered, done)
            } else {
                self.put_other(frame, ahead, gathered, done, segmentation)
            };
            match put {
                Ok(()) => {
                    done.frames += 1;
                    done.bytes += u64::from(frame.len());
                    gathered.end_frame();
                }
                Err(PutError::Empty) => return,
                Err(PutError::NoFit) => done.no_fit |= 1 << done.settled,
                Err(PutError::Changed) => done.bad_offload |= 1 << done.settled,
                Err(PutError::TooManyDescriptors) => {
                    // Each further frame would cost hundreds of descriptors for nothing.
                    done.no_fit |= (done.settled..run.len()).fold(0, |bits, at| bits | 1 << at);
                    done.settled = run.len();
                    return;
                }
                Err(PutError::Slow(cycles)) => {
                    done.slow = cycles;
                    return;
                }
                Err(PutError::Broken(error)) => {
                    done.broken = Some(error);
                    return;
                }
            }
            done.settled += 1;
        }
    }

    /// Prefetches up to `wanted` buffers from the ring's position, so that their cache misses
    /// overlap.
    #[inline(always)]
    pub(super) fn look_ahead(&mut self, wanted: usize, ahead: &mut Ahead) -> Result<(), RingError> {
        (ahead.next, ahead.count) = (0, 0);
        self.check_memory()?;
        let known = self.indices.avail_seen.wrapping_sub(self.indices.next_avail);
        let available = if usize::from(known) < wanted { self.refresh_available()? } else { known };
        let count = usize::from(available).min(wanted).min(BURST_FRAMES);
        for (i, buffer) in ahead.buffers[..count].iter_mut().enumerate() {
            let head = self.load_head(self.indices.next_avail.wrapping_add(i as u16));
            if head >= self.size() {
                return Err(RingError::Head { head, size: self.size() });
            }
            buffer.head = head;
            self.prefetch_descriptor(head);
        }
        for buffer in &mut ahead.buffers[..count] {
            let desc = self.load_descriptor(buffer.head);
            buffer.desc = desc;
            buffer.room = 0;
            // Only the WRITE flag: one plain buffer.
            if desc.flags() == 2
                && let Some(at) = self.memory.contiguous(desc.addr().0, desc.len())
            {
                (buffer.at, buffer.room) = (at, desc.len());
                prefetch::write(at);
                prefetch::write(at.wrapping_add(VNET_HDR_LEN));
            }
        }
        ahead.count = count;
        Ok(())
    }

    /// The fast path: delivers frames into one plain buffer each, up to the first frame that needs
    /// the general path.
    #[inline(always)]
    fn put_plain<const HEADER_LEN: usize, const OFFLOADS: bool, const TAGS: bool>(
        &mut self,
        burst: &Burst,
        run: &[u8],
        ahead: &mut Ahead,
        done: &mut Delivered,
    ) {
        let frames = burst.frames();
        let plain = VnetHdr::plain(1).to_bytes();
        // The general path may have advanced beyond the prefetched buffers.
        let ready = ahead.buffers.get(ahead.next..ahead.count).unwrap_or_default();
        let (mut count, mut bytes) = (0u16, 0u64);
        for (&index, buffer) in run.iter().zip(ready) {
            let frame = match TAGS {
                true => burst.egress(index),
                false => EgressFrame::new(burst, &frames[usize::from(index)]),
            };
            let need = HEADER_LEN as u32 + frame.len();
            if buffer.room < need || (OFFLOADS && !self.features.offloads.has(frame.needs())) {
                break;
            }
            let header = if OFFLOADS { frame.header().to_bytes() } else { plain };
            // SAFETY: `buffer.at` was translated for `buffer.room` bytes, at least `need`, in this
            // guest's memory, which `self.memory` keeps mapped; the frame's pieces lie in its
            // sender's memory or in staging, kept by the lock the worker holds on its source, and
            // add up to its length.
            unsafe {
                store_header::<HEADER_LEN>(buffer.at, &header);
                frame.copy_to(buffer.at.add(HEADER_LEN));
            }
            self.store_used(self.indices.next_used.wrapping_add(count), buffer.head, need);
            count += 1;
            bytes += u64::from(frame.len());
        }
        // Behind the loop, since a check in the loop would slow down all frames.
        if self.log.is_some() {
            let written = ready[..usize::from(count)].iter().zip(run);
            self.mark_frames(written.map(|(buffer, &index)| {
                (buffer.at, HEADER_LEN as u32 + burst.egress(index).len())
            }));
        }
        self.indices.next_used = self.indices.next_used.wrapping_add(count);
        self.indices.next_avail = self.indices.next_avail.wrapping_add(count);
        ahead.next += usize::from(count);
        done.settled += usize::from(count);
        done.frames += u64::from(count);
        done.bytes += bytes;
    }

    /// Marks the written bytes in the dirty log: start address and length of each frame.
    #[cold]
    fn mark_frames(&self, written: impl Iterator<Item = (*mut u8, u32)>) {
        written.for_each(|(at, len)| self.mark_payload(at, u64::from(len)));
    }

    /// The general path: gathers buffers for one frame, writes the header and the frame, and
    /// returns the buffers in order.
    #[inline(never)]
    pub(super) fn put(
        &mut self,
        frame: EgressFrame<'_>,
        header: VnetHdr,
        ahead: &mut Ahead,
        gathered: &mut Gathered,
        done: &mut Delivered,
    ) -> Result<(), PutError> {
        let need = u64::from(self.features.header_len) + u64::from(frame.len());
        let count = self.gather_good(need, ahead, gathered, done)?;
        let mut to = Writer::new(gathered.pieces.as_slice());
        self.write_header(&mut to, header, count);
        to.write_from(&mut frame.reader(), frame.len() as usize);
        self.take_gathered(need, count, ahead, gathered);
        Ok(())
    }

    /// Writes the virtio-net header of a frame that lies in `count` buffers.
    pub(super) fn write_header(&self, to: &mut Writer<'_>, header: VnetHdr, count: usize) {
        let merged = if self.features.mergeable { count as u16 } else { 1 };
        let header = VnetHdr { num_buffers: merged.to_le_bytes(), ..header };
        to.write(header.to_bytes().as_ptr(), usize::from(self.features.header_len));
    }

    /// Returns the first `count` gathered buffers as used; their first `need` bytes were written.
    pub(super) fn take_gathered(
        &mut self,
        need: u64,
        count: usize,
        ahead: &mut Ahead,
        gathered: &Gathered,
    ) {
        if self.log.is_some() {
            self.mark_written(gathered, need);
        }
        let mut left = need;
        for &(head, capacity) in &gathered.buffers[..count] {
            let len = left.min(capacity);
            left -= len;
            self.push_used(head, len as u32);
        }
        self.advance(count, ahead);
    }

    /// Gathers valid buffers for `need` bytes and returns their number. Gives invalid buffers back.
    pub(super) fn gather_good(
        &mut self,
        need: u64,
        ahead: &mut Ahead,
        gathered: &mut Gathered,
        done: &mut Delivered,
    ) -> Result<usize, PutError> {
        loop {
            match self.gather(need, ahead, gathered) {
                Ok(count) => {
                    gathered.touch(need).map_err(PutError::Slow)?;
                    return Ok(count);
                }
                Err(Gather::NoRoom(reason)) => return Err(reason),
                // An invalid buffer goes back unused, together with the buffers gathered before it,
                // as merged buffers must be consecutive. Each round consumes a buffer, so the loop
                // ends with the ring.
                Err(Gather::Bad(count)) => {
                    self.give_back(&gathered.buffers[..count], ahead);
                    done.bad_buffers += count as u64;
                    if done.bad_buffers > MAX_MERGED_BUFFERS as u64 {
                        return Err(PutError::TooManyDescriptors);
                    }
                }
            }
        }
    }

    /// Returns the ring's position, for [`SplitRing::back_to`] before a publication.
    pub(super) fn place(&self) -> Place {
        Place { avail: self.indices.next_avail, used: self.indices.next_used }
    }

    /// Gives back the buffers taken since `place`.
    pub(super) fn back_to(&mut self, place: Place, ahead: &mut Ahead) {
        (self.indices.next_avail, self.indices.next_used) = (place.avail, place.used);
        // The prefetched buffers may begin at another position.
        (ahead.next, ahead.count) = (0, 0);
    }

    /// Collects buffers until they hold `need` bytes. Returns their number; `gathered` holds their
    /// pieces and heads.
    fn gather(
        &mut self,
        need: u64,
        ahead: &Ahead,
        gathered: &mut Gathered,
    ) -> Result<usize, Gather> {
        gathered.pieces.truncate(0);
        // One plain buffer that `look_ahead` translated already.
        if let Some(buffer) = ahead.buffers[..ahead.count].get(ahead.next)
            && u64::from(buffer.room) >= need
            && gathered.pieces.push(Piece { at: buffer.at, len: buffer.room }).is_ok()
        {
            gathered.buffers[0] = (buffer.head, u64::from(buffer.room));
            return Ok(1);
        }
        let mut capacity = 0u64;
        let mut count = 0usize;
        while capacity < need {
            if count > 0 && !self.features.mergeable {
                return Err(Gather::NoRoom(PutError::NoFit));
            }
            if count == MAX_MERGED_BUFFERS || gathered.is_spent() {
                return Err(Gather::NoRoom(PutError::TooManyDescriptors));
            }
            let (head, desc) = self.buffer_at(count, ahead)?;
            gathered.buffers[count] = (head, 0);
            count += 1;
            let room = match self.walk(desc, Access::Writable, &mut gathered.pieces) {
                Ok(room) => room,
                Err(ChainError::NoRoom) if count > 1 => {
                    return Err(Gather::NoRoom(PutError::TooManyDescriptors));
                }
                Err(_) => return Err(Gather::Bad(count)),
            };
            // The header must lie in the first buffer; an empty buffer would make no progress.
            let least = if count == 1 { u64::from(self.features.header_len) } else { 1 };
            if room < least {
                return Err(Gather::Bad(count));
            }
            gathered.buffers[count - 1].1 = room;
            capacity = capacity.saturating_add(room);
        }
        Ok(count)
    }

    /// Returns head and first descriptor of the buffer `offset` behind the ring's position, each
    /// read once.
    fn buffer_at(&mut self, offset: usize, ahead: &Ahead) -> Result<(u16, Descriptor), Gather> {
        if let Some(buffer) = ahead.buffers[..ahead.count].get(ahead.next + offset) {
            return Ok((buffer.head, buffer.desc));
        }
        let seen = usize::from(self.indices.avail_seen.wrapping_sub(self.indices.next_avail));
        if offset >= seen {
            let now = self
                .refresh_available()
                .map_err(|error| Gather::NoRoom(PutError::Broken(error)))?;
            if offset >= usize::from(now) {
                return Err(Gather::NoRoom(PutError::Empty));
            }
        }
        let head = self.load_head(self.indices.next_avail.wrapping_add(offset as u16));
        if head >= self.size() {
            return Err(Gather::NoRoom(PutError::Broken(RingError::Head {
                head,
                size: self.size(),
            })));
        }
        Ok((head, self.load_descriptor(head)))
    }

    /// Gives buffers back unused.
    fn give_back(&mut self, buffers: &[(u16, u64)], ahead: &mut Ahead) {
        for &(head, _) in buffers {
            self.push_used(head, 0);
        }
        self.advance(buffers.len(), ahead);
    }

    fn advance(&mut self, count: usize, ahead: &mut Ahead) {
        self.indices.next_avail = self.indices.next_avail.wrapping_add(count as u16);
        ahead.next += count;
    }

    /// Marks the first `need` bytes of the gathered pieces in the dirty log.
    fn mark_written(&self, gathered: &Gathered, need: u64) {
        let mut left = need;
        for piece in gathered.pieces.as_slice() {
            let len = left.min(u64::from(piece.len));
            self.mark_payload(piece.at, len);
            left -= len;
            if left == 0 {
                return;
            }
        }
    }
}

#[cfg(test)]
impl RxScratch {
    /// Returns the number of the receiver's descriptors that the last run walked.
    pub(super) fn walked(&self) -> u32 {
        self.gathered.pieces.visited
    }

    /// Fills all numbers with `byte`, and pointers with an address at which nothing is mapped.
    pub(super) fn poison(&mut self, byte: u8) {
        let (at, len) = (std::ptr::without_provenance_mut(8), u32::from_ne_bytes([byte; 4]));
        let desc = Descriptor::new(u64::from(len), len, len as u16, len as u16);
        self.ahead.buffers.fill(Buffer { head: len as u16, room: len, at, desc });
        (self.ahead.next, self.ahead.count) = (usize::from(byte), usize::from(byte));
        self.gathered.pieces.truncate(0);
        self.gathered.pieces.poison(Piece { at, len });
        self.gathered.buffers.fill((len as u16, u64::from(len)));
        self.gathered.most_visited = len;
    }
}

/// Why [`SplitRing::gather`] stopped.
enum Gather {
    NoRoom(PutError),
    /// The last of this many buffers is invalid.
    Bad(usize),
}
