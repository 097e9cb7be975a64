//! Takes frames from a driver's transmit queue, and gives the descriptors back.
//!
//! A burst is taken in two passes. The first pass reads heads and descriptors and translates their
//! addresses, so that the cache misses of the frames' first lines overlap. The second pass copies
//! each frame's virtio-net header and first [`SNAPSHOT_LEN`] bytes into private memory; see
//! `burst`.
//!
//! The ring does not move before [`SplitRing::complete`], so a burst can be shortened at any time.

use virtio_queue::desc::split::Descriptor;

use super::burst::{Burst, Found};
use super::chain::{Access, ChainError};
use super::split::{RingError, SplitRing};
use base::frame::{VNET_HDR_LEN, VNET_HDR_LEN_LEGACY};
use base::limits::{
    BURST_BYTES, BURST_FRAMES, BURST_PIECES, EXCESS_DESCRIPTOR_BYTES, FRAME_DESCRIPTORS,
    MAX_CHAIN_DESCRIPTORS, MAX_FRAME_LEN, MIN_FRAME_LEN, SNAPSHOT_LEN,
};
use base::stats::DropReason;
use sys::prefetch;

/// Bytes of a descriptor (virtio 1.2 section 2.7.5).
const DESCRIPTOR_LEN: u32 = 16;

/// Result of the first pass.
struct Seen {
    /// Most heads that [`BURST_BYTES`] lets into the burst; the second pass may take fewer, since a
    /// chain may be longer than its first descriptor.
    count: usize,
    /// Sum of the lengths of the heads' first descriptors.
    bytes: u32,
    /// Every head is one plain descriptor.
    plain: bool,
}

impl SplitRing {
    /// Reads avail.idx again and returns the number of heads that are not taken yet.
    #[inline(always)]
    pub(super) fn refresh_available(&mut self) -> Result<u16, RingError> {
        let idx = self.load_avail_idx();
        let ahead = idx.wrapping_sub(self.indices.next_avail);
        if ahead > self.size() {
            return Err(RingError::AvailIndex { ahead, size: self.size() });
        }
        self.indices.avail_seen = idx;
        Ok(ahead)
    }

    /// True if heads seen at the last read of avail.idx are not taken yet.
    #[inline(always)]
    pub(crate) fn has_more(&self) -> bool {
        self.indices.avail_seen != self.indices.next_avail
    }

    /// True if avail.idx, read now, is ahead of the next head to take.
    #[inline(always)]
    pub fn has_work(&self) -> bool {
        self.load_avail_idx() != self.indices.next_avail
    }

    /// Returns the number of buffers that the driver offers now; 0 also if avail.idx makes no
    /// sense, which the next call of [`SplitRing::take`] reports.
    #[inline(always)]
    pub(crate) fn offered(&mut self) -> u16 {
        self.refresh_available().unwrap_or(0)
    }

    /// Reads avail.idx.
    pub(crate) fn avail_idx(&self) -> u16 {
        self.load_avail_idx()
    }

    /// Takes up to `limit` frames into the empty `burst`, at most 64 and [`BURST_BYTES`]; the frame
    /// that crosses that limit is still taken. The limit bounds a burst; `port::quantum` bounds the
    /// cost of a turn. The ring does not move before [`SplitRing::complete`].
    ///
    /// Not inlined: an inlined loop shared its registers with the caller and took 4 % more
    /// instructions a frame.
    #[inline(never)]
    pub fn take(&mut self, burst: &mut Burst, limit: usize) -> Result<usize, RingError> {
        burst.clear();
        self.check_memory()?;
        let n = usize::from(self.refresh_available()?).min(limit).min(BURST_FRAMES);
        if n == 0 {
            return Ok(0);
        }
        for i in 0..n {
            let head = self.load_head(self.indices.next_avail.wrapping_add(i as u16));
            if head >= self.size() {
                return Err(RingError::Head { head, size: self.size() });
            }
            burst.heads[i] = head;
            self.prefetch_descriptor(head);
        }
        let seen = self.find(burst, n);
        if !seen.plain {
            self.take_mixed(burst, seen.count);
        } else if usize::from(self.features.header_len) == VNET_HDR_LEN {
            SplitRing::take_plain::<VNET_HDR_LEN>(burst, seen.count);
        } else {
            SplitRing::take_plain::<VNET_HDR_LEN_LEGACY>(burst, seen.count);
        }
        make_private(burst);
        burst.examine(self.features.offloads, false);
        Ok(burst.taken)
    }

    /// Second pass for a burst of plain buffers.
    #[inline(always)]
    fn take_plain<const HEADER_LEN: usize>(burst: &mut Burst, count: usize) {
        for i in 0..count {
            burst.push_plain::<HEADER_LEN>(i, burst.left.found[i]);
        }
        burst.taken = count;
    }

    /// Second pass for a burst with descriptor chains.
    #[inline(never)]
    fn take_mixed(&mut self, burst: &mut Burst, count: usize) {
        let mut bytes = 0u32;
        for i in 0..count {
            let found = burst.left.found[i];
            if found.at.is_null() {
                match self.take_chain(burst, i, burst.left.chains[i]) {
                    Some(cost) => bytes += cost,
                    None => break,
                }
            } else {
                bytes += found.len;
                if usize::from(self.features.header_len) == VNET_HDR_LEN {
                    burst.push_plain::<VNET_HDR_LEN>(i, found);
                } else {
                    burst.push_plain::<VNET_HDR_LEN_LEGACY>(i, found);
                }
            }
            burst.taken = i + 1;
            if bytes >= BURST_BYTES {
                break;
            }
        }
    }

    /// First pass: reads and translates the first descriptor of each head.
    #[inline(always)]
    fn find(&mut self, burst: &mut Burst, count: usize) -> Seen {
        let header_len = u32::from(self.features.header_len);
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
                prefetch::read(at);
                prefetch::read(at.wrapping_add(VNET_HDR_LEN + SNAPSHOT_LEN - 1));
                burst.left.found[i] = Found { at, len };
            } else {
                burst.left.found[i] = Found::CHAIN;
                burst.left.chains[i] = desc;
                seen.plain = false;
            }
            seen.bytes = seen.bytes.saturating_add(len);
            seen.count = i + 1;
            if seen.bytes >= BURST_BYTES {
                break;
            }
        }
        seen
    }

    /// Takes a chain that is not one plain descriptor. Returns the chain's cost in bytes, the work
    /// of reading the descriptors included; a rejected chain costs its descriptors' work too.
    /// `None` if the chain must wait for the next burst.
    fn take_chain(&mut self, burst: &mut Burst, position: usize, first: Descriptor) -> Option<u32> {
        let start = burst.pieces.len();
        // A chain may need every piece of the list; the first chain of a burst gets the whole list.
        if start > 0 && start + MAX_CHAIN_DESCRIPTORS > BURST_PIECES {
            return None;
        }
        let header_len = u32::from(self.features.header_len);
        let before = burst.pieces.visited;
        let walked = self.walk(first, Access::Readable, &mut burst.pieces);
        let visited = burst.pieces.visited.wrapping_sub(before);
        let excess = visited.saturating_sub(FRAME_DESCRIPTORS);
        let cost = DESCRIPTOR_LEN * visited + EXCESS_DESCRIPTOR_BYTES * excess;
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

    /// Gives up to `limit` heads back unread, at most those of one burst, and publishes them.
    /// Returns the number of heads, and whether the driver asks to be signalled. Descriptors are
    /// not read, so discarding a chain costs no more than discarding a frame. Calls `count` with
    /// the number before the driver sees a head, so that each head that the driver sees is counted.
    pub(crate) fn discard(
        &mut self,
        limit: usize,
        count: impl FnOnce(usize),
    ) -> Result<(usize, bool), RingError> {
        self.check_memory()?;
        let taken = usize::from(self.refresh_available()?).min(limit).min(BURST_FRAMES);
        for i in 0..taken {
            let head = self.load_head(self.indices.next_avail.wrapping_add(i as u16));
            if head >= self.size() {
                return Err(RingError::Head { head, size: self.size() });
            }
            self.store_used(self.indices.next_used.wrapping_add(i as u16), head, 0);
        }
        self.indices.next_used = self.indices.next_used.wrapping_add(taken as u16);
        self.indices.next_avail = self.indices.next_avail.wrapping_add(taken as u16);
        count(taken);
        Ok((taken, self.publish()))
    }

    /// Gives every head of the burst back, in ring order, and publishes all at once. True if the
    /// driver asks to be signalled.
    pub fn complete(&mut self, burst: &Burst) -> bool {
        for &head in &burst.heads[..burst.taken] {
            self.push_used(head, 0);
        }
        self.indices.next_avail = self.indices.next_avail.wrapping_add(burst.taken as u16);
        self.publish()
    }
}

/// Forbids the compiler to read the snapshots from guest memory again. The snapshots were copied by
/// plain loads, which a compiler that assumes no concurrent writer may repeat; an opaque access to
/// the whole burst makes the private copies the only source.
#[inline(always)]
fn make_private(burst: &mut Burst) {
    std::hint::black_box(&mut *burst.frames);
}
