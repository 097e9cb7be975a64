//! Taking frames from a driver's transmit queue, and giving the descriptors back.
//!
//! A burst is taken in two passes. The first reads heads and descriptors and translates them, so
//! that the cache misses of the frames' first lines overlap; the second copies each frame's
//! virtio-net header and first [`SNAPSHOT_LEN`] bytes into private memory. Decisions are made on
//! that snapshot and the snapshot is what gets delivered: the guest may rewrite its buffer at any
//! moment without changing what was checked. The rest of the payload stays where it is.
//!
//! Nothing moves until [`SplitRing::complete`]: a burst that is cut short simply ends earlier.

use virtio_queue::desc::split::Descriptor;

use super::chain::{ChainError, Direction, Piece, PieceBuf, load_indirect};
use super::split::{RingError, SplitRing, prefetch_read};
use crate::frame::ethernet::Snapshot;
use crate::frame::vnet::VnetHdr;
use crate::frame::{MacAddr, VNET_HDR_LEN, VNET_HDR_LEN_LEGACY};
use crate::limits::{
    BURST_BYTES, BURST_FRAMES, BURST_PIECES, MAX_CHAIN_DESCRIPTORS, MAX_FRAME_LEN, MIN_FRAME_LEN,
    PEEK_FRAMES, SNAPSHOT_LEN,
};
use crate::stats::DropReason;

/// One frame of a burst. The snapshot has a cache line of its own, the rest shares the next.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub struct Frame {
    /// The first bytes; beyond `len` their content is the sender's and means nothing.
    pub snapshot: Snapshot,
    /// The virtio-net header as the sender wrote it; zero-filled to 12 bytes.
    pub header: VnetHdr,
    /// Bytes of the whole frame.
    pub len: u32,
    /// Payload behind the snapshot: the first piece, which for most frames is all.
    pub rest: Piece,
    /// Further pieces: start and count in the burst's piece list.
    pub more: (u16, u16),
    /// Which of the burst's heads this frame came from.
    pub position: u8,
}

const NO_FRAME: Frame = Frame {
    snapshot: [0; SNAPSHOT_LEN],
    header: VnetHdr::plain(0),
    len: 0,
    rest: Piece::EMPTY,
    more: (0, 0),
    position: 0,
};

/// Bytes of a descriptor (virtio 1.2 section 2.7.5).
const DESCRIPTOR_LEN: u32 = 16;

/// Frames taken from one source and not completed yet; allocated once per worker.
#[derive(Debug)]
pub struct Burst {
    frames: Box<[Frame; BURST_FRAMES]>,
    count: usize,
    heads: [u16; BURST_FRAMES],
    taken: usize,
    rejected: [(u8, DropReason); BURST_FRAMES],
    rejects: usize,
    pieces: PieceBuf,
    /// Left by the first pass for the second; kept here as clearing it would cost a short burst
    /// more than its frames.
    found: Box<[Found; BURST_FRAMES]>,
    /// First descriptors of the chains that the second pass has to walk.
    chains: Box<[Descriptor; BURST_FRAMES]>,
}

// SAFETY: the pointers in frames and pieces are only dereferenced while the source's lock is held,
// which keeps the memory table they came from alive.
unsafe impl Send for Burst {}

impl Default for Burst {
    fn default() -> Burst {
        Burst {
            frames: Box::new([NO_FRAME; BURST_FRAMES]),
            count: 0,
            heads: [0; BURST_FRAMES],
            taken: 0,
            rejected: [(0, DropReason::BadChain); BURST_FRAMES],
            rejects: 0,
            pieces: PieceBuf::new(BURST_PIECES),
            found: Box::new([Found::CHAIN; BURST_FRAMES]),
            chains: Box::new([Descriptor::default(); BURST_FRAMES]),
        }
    }
}

impl Burst {
    /// Empties the burst.
    #[inline]
    pub fn clear(&mut self) {
        self.count = 0;
        self.taken = 0;
        self.rejects = 0;
        self.pieces.truncate(0);
    }

    /// The frames, in ring order.
    #[inline(always)]
    pub fn frames(&self) -> &[Frame] {
        &self.frames[..self.count]
    }

    /// Heads taken, frames and rejected chains together.
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// Chains among the heads taken that are no frames, with the reason.
    pub fn rejected(&self) -> impl Iterator<Item = DropReason> {
        self.rejected[..self.rejects].iter().map(|&(_, reason)| reason)
    }

    /// The pieces of `frame` behind its snapshot and its first rest piece.
    #[inline(always)]
    pub fn more(&self, frame: &Frame) -> &[Piece] {
        let (start, count) = (usize::from(frame.more.0), usize::from(frame.more.1));
        &self.pieces.as_slice()[start..start + count]
    }

    /// Gives frame `index` and everything behind it back to the source, as if never taken.
    pub fn cut(&mut self, index: usize) {
        let Some(frame) = self.frames().get(index) else {
            return;
        };
        let position = frame.position;
        self.taken = usize::from(position);
        self.count = index;
        while self.rejects > 0 && self.rejected[self.rejects - 1].0 >= position {
            self.rejects -= 1;
        }
    }

    /// Adds a frame that fits the snapshot; false if the burst is full or the frame too short or
    /// too long for that.
    pub fn push_small(&mut self, header: VnetHdr, bytes: &[u8]) -> bool {
        let fits = (MIN_FRAME_LEN as usize..=SNAPSHOT_LEN).contains(&bytes.len());
        if self.count == BURST_FRAMES || !fits {
            return false;
        }
        let frame = &mut self.frames[self.count];
        *frame = Frame { header, len: bytes.len() as u32, ..NO_FRAME };
        frame.snapshot[..bytes.len()].copy_from_slice(bytes);
        frame.position = self.taken as u8;
        self.count += 1;
        self.taken += 1;
        true
    }

    /// Adds a frame from private memory that stays valid until the burst is cleared: `len` bytes
    /// at `at`. False if the burst is full or the frame too short.
    ///
    /// # Safety
    /// `at` is valid for reads of `len` bytes until the burst is cleared.
    pub unsafe fn push_private(&mut self, header: VnetHdr, at: *mut u8, len: u32) -> bool {
        if self.count == BURST_FRAMES || len < MIN_FRAME_LEN {
            return false;
        }
        let frame = &mut self.frames[self.count];
        let first = (len as usize).min(SNAPSHOT_LEN);
        // SAFETY: the caller's promise for the source; the destination is SNAPSHOT_LEN long.
        unsafe { std::ptr::copy_nonoverlapping(at, frame.snapshot.as_mut_ptr(), first) };
        frame.header = header;
        frame.len = len;
        frame.rest = Piece { at: at.wrapping_add(first), len: len - first as u32 };
        frame.more = (0, 0);
        frame.position = self.taken as u8;
        self.count += 1;
        self.taken += 1;
        true
    }

    #[inline]
    fn reject(&mut self, position: usize, reason: DropReason) {
        self.rejected[self.rejects] = (position as u8, reason);
        self.rejects += 1;
    }

    /// A frame in one piece that [`SplitRing::find`] found plain: at least header and snapshot are
    /// readable there.
    #[inline(always)]
    fn push_plain<const HEADER_LEN: usize>(&mut self, position: usize, found: Found) {
        let frame = &mut self.frames[self.count];
        let len = found.len - HEADER_LEN as u32;
        let payload = found.at.wrapping_add(HEADER_LEN);
        frame.header = VnetHdr::from_bytes(load_header::<HEADER_LEN>(found.at));
        // A fixed-size copy is two vector moves where a variable one is a call. It may read past a
        // short frame into the sender's own memory; those bytes go nowhere.
        // SAFETY: HEADER_LEN + SNAPSHOT_LEN bytes from `found.at` lie in one mapped region of the
        // sender, as `find` made sure.
        unsafe {
            std::ptr::copy_nonoverlapping(payload, frame.snapshot.as_mut_ptr(), SNAPSHOT_LEN)
        };
        frame.len = len;
        frame.rest = Piece { at: payload, len };
        frame.rest.skip(SNAPSHOT_LEN as u32);
        frame.more = (0, 0);
        frame.position = position as u8;
        self.count += 1;
    }

    /// A chain whose first piece holds header and snapshot, as those of Linux do: headers there,
    /// payload in the next pieces. False if it is none.
    #[inline(always)]
    fn push_headed<const HEADER_LEN: usize>(
        &mut self,
        position: usize,
        start: usize,
        total: u64,
    ) -> bool {
        let piece = self.pieces.as_slice()[start];
        if (piece.len as usize) < HEADER_LEN + SNAPSHOT_LEN {
            return false;
        }
        self.push_plain::<HEADER_LEN>(position, Found { at: piece.at, len: piece.len });
        let frame = &mut self.frames[self.count - 1];
        frame.len = (total - HEADER_LEN as u64) as u32;
        let mut more = start + 1;
        if frame.rest.len == 0 && more < self.pieces.len() {
            frame.rest = self.pieces.as_slice()[more];
            more += 1;
        }
        frame.more = (more as u16, (self.pieces.len() - more) as u16);
        true
    }

    /// A frame spread over the pieces from `start` to the end of the list.
    fn push_pieces(&mut self, position: usize, header_len: u32, start: usize, total: u64) {
        let len = (total - u64::from(header_len)) as u32;
        let frame = &mut self.frames[self.count];
        let pieces = &mut self.pieces.as_mut_slice()[start..];
        let mut header = [0u8; VNET_HDR_LEN];
        let skip = gather(pieces, &mut header[..header_len as usize]);
        let pieces = &mut pieces[skip..];
        let first = (len as usize).min(SNAPSHOT_LEN);
        let skipped = gather(pieces, &mut frame.snapshot[..first]);
        let pieces = &pieces[skipped..];
        frame.header = VnetHdr::from_bytes(header);
        frame.len = len;
        frame.rest = pieces.first().copied().unwrap_or(Piece::EMPTY);
        let more = pieces.len().saturating_sub(1);
        frame.more = (self.pieces.len().saturating_sub(more) as u16, more as u16);
        frame.position = position as u8;
        self.count += 1;
    }
}

/// Moves the first `out.len()` bytes of `pieces` into `out`; returns how many pieces are used up.
fn gather(pieces: &mut [Piece], out: &mut [u8]) -> usize {
    let mut filled = 0;
    let mut used_up = 0;
    for piece in pieces.iter_mut() {
        let n = (out.len() - filled).min(piece.len as usize);
        // SAFETY: `n` is at most the piece's length, which was translated, and at most what is
        // left of `out`.
        unsafe { std::ptr::copy_nonoverlapping(piece.at, out.as_mut_ptr().add(filled), n) };
        filled += n;
        piece.skip(n as u32);
        if piece.len > 0 {
            break;
        }
        used_up += 1;
    }
    used_up
}

/// The virtio-net header at `at`, zero-filled to 12 bytes. The length is a constant, as a copy of a
/// variable one would be a call.
#[inline(always)]
fn load_header<const HEADER_LEN: usize>(at: *const u8) -> [u8; VNET_HDR_LEN] {
    const { assert!(HEADER_LEN == VNET_HDR_LEN || HEADER_LEN == VNET_HDR_LEN_LEGACY) };
    let mut header = [0u8; VNET_HDR_LEN];
    // SAFETY: the caller translated at least HEADER_LEN bytes at `at`, which is at most the length
    // of `header`.
    unsafe { std::ptr::copy_nonoverlapping(at, header.as_mut_ptr(), HEADER_LEN) };
    header
}

/// What the first pass leaves for the second: one plain buffer.
#[derive(Debug, Clone, Copy)]
struct Found {
    /// Its first byte; null if it is anything else, to be walked.
    at: *mut u8,
    /// Its bytes, virtio-net header included.
    len: u32,
}

impl Found {
    const CHAIN: Found = Found { at: std::ptr::null_mut(), len: 0 };
}

/// What the first pass found.
struct Seen {
    /// Heads that the budget lets into the burst at most; chains may turn out longer than their
    /// first descriptor.
    count: usize,
    /// Bytes of their first descriptors.
    bytes: u32,
    /// All are plain buffers.
    plain: bool,
}

impl SplitRing {
    /// Number of heads the driver has made available and we have not taken.
    #[inline(always)]
    pub(super) fn available(&mut self) -> Result<u16, RingError> {
        let known = self.avail_seen.wrapping_sub(self.next_avail);
        if known != 0 {
            return Ok(known);
        }
        self.refresh_available()
    }

    /// As [`SplitRing::available`], after reading avail.idx again.
    #[inline(always)]
    pub(super) fn refresh_available(&mut self) -> Result<u16, RingError> {
        let idx = self.load_avail_idx();
        let ahead = idx.wrapping_sub(self.next_avail);
        if ahead > self.size() {
            return Err(RingError::AvailIndex { ahead, size: self.size() });
        }
        self.avail_seen = idx;
        Ok(ahead)
    }

    /// True if the driver has made something available.
    #[inline(always)]
    pub fn has_work(&self) -> bool {
        self.load_avail_idx() != self.next_avail
    }

    /// Buffers the driver offers now; 0 too for an index that makes no sense, which taking the next
    /// one reports.
    #[inline(always)]
    pub fn offered(&mut self) -> u16 {
        self.refresh_available().unwrap_or(0)
    }

    /// avail.idx as the driver has it now.
    pub fn avail_idx(&self) -> u16 {
        self.load_avail_idx()
    }

    /// Takes up to `limit` frames, at most 64 and [`BURST_BYTES`], into the empty `burst`. The
    /// frame that crosses the line is still taken, and its excess comes off the next burst (deficit
    /// round robin, Shreedhar and Varghese 1995), so rings that take turns get equal parts whatever
    /// the size of their frames. The ring does not move before [`SplitRing::complete`].
    pub fn take(&mut self, burst: &mut Burst, limit: usize) -> Result<usize, RingError> {
        burst.clear();
        self.check_memory()?;
        let n = usize::from(self.refresh_available()?).min(limit).min(BURST_FRAMES);
        if n == 0 {
            return Ok(0);
        }
        for i in 0..n {
            let head = self.load_head(self.next_avail.wrapping_add(i as u16));
            if head >= self.size() {
                return Err(RingError::Head { head, size: self.size() });
            }
            burst.heads[i] = head;
            self.prefetch_descriptor(head);
        }
        // A frame a burst is always taken, or a maximal one would leave nothing for the next turn.
        let budget = BURST_BYTES.saturating_sub(self.overdrawn).max(1);
        let seen = self.find(burst, n, budget);
        let mut bytes = seen.bytes;
        if !seen.plain {
            bytes = self.take_mixed(burst, seen.count, budget);
        } else if usize::from(self.header_len) == VNET_HDR_LEN {
            SplitRing::take_plain::<VNET_HDR_LEN>(burst, seen.count);
        } else {
            SplitRing::take_plain::<VNET_HDR_LEN_LEGACY>(burst, seen.count);
        }
        self.overdrawn = bytes.saturating_sub(budget);
        settle(burst);
        Ok(burst.taken)
    }

    /// Second pass over plain buffers.
    #[inline(always)]
    fn take_plain<const HEADER_LEN: usize>(burst: &mut Burst, count: usize) {
        for i in 0..count {
            burst.push_plain::<HEADER_LEN>(i, burst.found[i]);
        }
        burst.taken = count;
    }

    /// Second pass where chains are to be walked; returns the bytes they and the others add up to.
    #[inline(never)]
    fn take_mixed(&mut self, burst: &mut Burst, count: usize, budget: u32) -> u32 {
        let mut bytes = 0u32;
        for i in 0..count {
            let found = burst.found[i];
            if found.at.is_null() {
                match self.take_chain(burst, i, burst.chains[i]) {
                    Some(cost) => bytes += cost,
                    None => break,
                }
            } else {
                bytes += found.len;
                if usize::from(self.header_len) == VNET_HDR_LEN {
                    burst.push_plain::<VNET_HDR_LEN>(i, found);
                } else {
                    burst.push_plain::<VNET_HDR_LEN_LEGACY>(i, found);
                }
            }
            burst.taken = i + 1;
            if bytes >= budget {
                break;
            }
        }
        bytes
    }

    /// True if the frames that the driver made available behind the first `skip` go to `address`,
    /// as far as [`PEEK_FRAMES`]. A glance that decides about waiting and nothing else: each is
    /// looked at again, and checked, when it is taken.
    #[inline(never)]
    pub fn all_go_to(&mut self, address: MacAddr, skip: usize) -> bool {
        let Ok(available) = self.refresh_available() else { return false };
        let end = usize::from(available).min(skip + PEEK_FRAMES);
        (skip..end).all(|offset| {
            let head = self.load_head(self.next_avail.wrapping_add(offset as u16));
            head < self.size() && self.glance(head) == Some(address)
        })
    }

    /// Destination of the chain at `head` if its first descriptor, direct or in a table, holds it.
    fn glance(&mut self, head: u16) -> Option<MacAddr> {
        let mut desc = self.load_descriptor(head);
        if desc.refers_to_indirect_table() {
            let table = self.memory.contiguous(desc.addr().0, DESCRIPTOR_LEN)?;
            desc = load_indirect(table);
        }
        let need = u32::from(self.header_len) + MIN_FRAME_LEN;
        if desc.len() < need {
            return None;
        }
        let at = self.memory.contiguous(desc.addr().0, need)?;
        let mut octets = [0u8; 6];
        // SAFETY: `need` bytes from `at` were translated, and the address ends before them.
        unsafe {
            let address = at.add(usize::from(self.header_len));
            std::ptr::copy_nonoverlapping(address, octets.as_mut_ptr(), octets.len());
        }
        Some(MacAddr(octets))
    }

    /// First pass: reads and translates the first descriptor of each head.
    #[inline(always)]
    fn find(&mut self, burst: &mut Burst, count: usize, budget: u32) -> Seen {
        let header_len = u32::from(self.header_len);
        let least = u64::from(header_len) + SNAPSHOT_LEN as u64;
        // One comparison: lengths below the shortest wrap around to large numbers.
        let shortest = header_len + MIN_FRAME_LEN;
        let plausible = |len: u32| len.wrapping_sub(shortest) <= MAX_FRAME_LEN - MIN_FRAME_LEN;
        let mut seen = Seen { count: 0, bytes: 0, plain: true };
        for i in 0..count {
            let desc = self.load_descriptor(burst.heads[i]);
            let len = desc.len();
            if desc.flags() == 0
                && plausible(len)
                && let Some((at, room)) = self.memory.run_at(desc.addr().0)
                && u64::from(len).max(least) <= room
            {
                prefetch_read(at);
                prefetch_read(at.wrapping_add(VNET_HDR_LEN + SNAPSHOT_LEN - 1));
                burst.found[i] = Found { at, len };
            } else {
                burst.found[i] = Found::CHAIN;
                burst.chains[i] = desc;
                seen.plain = false;
            }
            seen.bytes = seen.bytes.saturating_add(len);
            seen.count = i + 1;
            if seen.bytes >= budget {
                break;
            }
        }
        seen
    }

    /// Takes a chain that is not one plain descriptor. Returns the bytes it stands for, those of
    /// its descriptors included: the work of a chain that is rejected at its end counts too. `None`
    /// if it must wait for the next burst.
    fn take_chain(&mut self, burst: &mut Burst, position: usize, first: Descriptor) -> Option<u32> {
        let start = burst.pieces.len();
        // A chain may need every piece there is; it gets them all as the first of a burst.
        if start > 0 && start + MAX_CHAIN_DESCRIPTORS > BURST_PIECES {
            return None;
        }
        let header_len = u32::from(self.header_len);
        let before = burst.pieces.visited;
        let walked = self.walk(first, Direction::Readable, &mut burst.pieces);
        let cost = DESCRIPTOR_LEN * burst.pieces.visited.wrapping_sub(before);
        let reject = match walked {
            Ok(total) if total < u64::from(header_len + MIN_FRAME_LEN) => DropReason::TooShort,
            Ok(total) if total > u64::from(header_len + MAX_FRAME_LEN) => DropReason::TooLong,
            Ok(total) => {
                let headed = if header_len as usize == VNET_HDR_LEN {
                    burst.push_headed::<VNET_HDR_LEN>(position, start, total)
                } else {
                    burst.push_headed::<VNET_HDR_LEN_LEGACY>(position, start, total)
                };
                if !headed {
                    burst.push_pieces(position, header_len, start, total);
                }
                return Some(cost + total as u32);
            }
            Err(ChainError::NoRoom) if start > 0 => {
                burst.pieces.truncate(start);
                return None;
            }
            Err(error) => error.reason(),
        };
        burst.reject(position, reject);
        burst.pieces.truncate(start);
        Some(cost)
    }

    /// Gives every head of the burst back, in ring order, and publishes them at once; true if the
    /// driver wants to be signalled for it.
    pub fn complete(&mut self, burst: &Burst) -> bool {
        for &head in &burst.heads[..burst.taken] {
            self.push_used(head, 0);
        }
        self.next_avail = self.next_avail.wrapping_add(burst.taken as u16);
        self.publish()
    }
}

/// From here on the snapshots may not be read from guest memory again. The copies above are plain
/// ones, which a compiler that assumes no concurrent writer could in theory repeat; an opaque
/// access to the whole burst makes the private copy the only source.
#[inline(always)]
fn settle(burst: &mut Burst) {
    std::hint::black_box(&mut burst.frames);
}
