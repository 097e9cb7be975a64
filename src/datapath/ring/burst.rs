//! The frames that one source sends in one turn, and the facts known of each frame.
//!
//! A frame's first [`SNAPSHOT_LEN`] bytes and its virtio-net header are private copies. The switch
//! decides on these copies and delivers these copies, so a sender that rewrites its buffer does not
//! change checked bytes. If more of a frame's headers must be checked, for an offload
//! ([`Burst::examine`]), the port's security or multicast snooping ([`Burst::headers`],
//! [`Burst::message`]), these headers are copied to private memory too and delivered from there.
//! The rest of the payload stays in the sender's memory.

mod keep;
mod private;
mod staging;

use std::iter::repeat_n;

pub(crate) use keep::KeptFrames;
use virtio_queue::desc::split::Descriptor;

use self::staging::Staging;
use super::chain::{Piece, PieceBuf};
use super::retag::Tags;
use base::frame::ethernet::{Snapshot, TagBytes};
use base::frame::offload::{self, DATA_VALID, Offloads, Refused, Request};
use base::frame::vnet::VnetHdr;
use base::frame::{Load, VNET_HDR_LEN, VNET_HDR_LEN_LEGACY};
use base::limits::{BURST_FRAMES, BURST_PIECES, MAX_HEADERS_LEN, MIN_FRAME_LEN, SNAPSHOT_LEN};
use base::stats::DropReason;

/// One frame of a burst. The snapshot fills one cache line, the other fields share the next.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub struct Frame {
    /// The frame's first bytes; bytes beyond `len` are the sender's or zero, and mean nothing.
    pub snapshot: Snapshot,
    /// The virtio-net header: as the sender wrote it, zero-filled to 12 bytes. After
    /// [`Burst::examine`], if the burst [asks for offloads](Burst::needs_offloads), as a receiver
    /// may see it.
    pub header: VnetHdr,
    /// Bytes of the whole frame.
    pub len: u32,
    /// First piece of the payload behind the snapshot; most frames have no other.
    pub rest: Piece,
    /// Further pieces of the payload: start and count in the burst's piece list.
    pub(crate) more: (u16, u16),
    /// Index of the frame's head among the heads of the burst.
    pub position: u8,
    /// Offset of the network header; valid only in a frame that asks for an offload.
    pub l3: u8,
    /// Offloads that a receiver must have acknowledged to get the frame with its header; valid only
    /// if the burst asks for offloads.
    pub needs: Offloads,
}

impl Frame {
    /// Returns the snapshot, without the bytes beyond the frame's end.
    #[inline(always)]
    pub(crate) fn head(&self) -> &[u8] {
        &self.snapshot[..SNAPSHOT_LEN.min(self.len as usize)]
    }

    /// Returns the bytes that hold the frame's VLAN tag, if it has one.
    #[inline(always)]
    pub(crate) fn tag(&self) -> TagBytes {
        TagBytes::of(&self.snapshot, self.len)
    }

    /// Returns the frame's load on a wire, segments counted.
    pub(crate) fn load(&self) -> Load {
        Load::of(self.header, self.len)
    }

    /// Returns the offloads that the frame asks for; valid only if the burst asks for offloads.
    pub fn request(&self) -> Request {
        Request { needs: self.needs, l3: self.l3, header: self.header }
    }
}

const NO_FRAME: Frame = Frame {
    snapshot: [0; SNAPSHOT_LEN],
    header: VnetHdr::plain(0),
    len: 0,
    rest: Piece::EMPTY,
    more: (0, 0),
    position: 0,
    l3: 0,
    needs: Offloads::NONE,
};

/// Frames taken from one source and not completed yet; allocated once per worker.
#[derive(Debug)]
pub struct Burst {
    pub(super) frames: Box<[Frame; BURST_FRAMES]>,
    count: usize,
    pub(super) heads: [u16; BURST_FRAMES],
    pub(super) taken: usize,
    /// Flags and segmentation types of all headers, or'ed; 0 if no frame asks for an offload.
    asks: u16,
    rejected: Rejected,
    pub(super) pieces: PieceBuf,
    pub(super) left: ForSecondPass,
    pub(super) private: PrivateCopies,
    /// VLAN tags that frames leave with.
    pub(super) tags: Tags,
    /// All frames that may be forwarded have the same tag, or none has a tag.
    pub(crate) are_alike: bool,
}

/// Chains that are no frames, by their position in the burst.
#[derive(Debug)]
struct Rejected {
    list: [(u8, DropReason); BURST_FRAMES],
    count: usize,
}

/// Left by the first pass over the ring for the second pass. Kept in the burst, as clearing this
/// memory would cost a short burst more than its frames.
#[derive(Debug)]
pub(super) struct ForSecondPass {
    /// Plain buffers.
    pub(crate) found: Box<[Found; BURST_FRAMES]>,
    /// First descriptors of the chains that the second pass has to walk.
    pub(crate) chains: Box<[Descriptor; BURST_FRAMES]>,
}

/// Private memory for bytes of frames.
#[derive(Debug)]
pub(super) struct PrivateCopies {
    /// First bytes of frames whose headers are longer than a snapshot, by the frame's position: a
    /// frame's index changes when another frame is rejected, its position does not.
    pub(super) headers: Box<[[u8; MAX_HEADERS_LEN]; BURST_FRAMES]>,
    /// All bytes of frames that were examined as a whole, by the frame's position; empty before the
    /// first such frame.
    pub(super) messages: Box<[u8]>,
    /// Memory for [`Burst::stage`]; allocated at the first use.
    pub(super) staging: Staging,
    /// Frames whose payload is in private memory already: one bit per index.
    pub(super) staged: u64,
}

// SAFETY: the pointers in frames and pieces are only dereferenced while the source's lock is held,
// which keeps the memory table behind the pointers alive, or point into memory of this burst or of
// kept frames, which outlive the delivery.
unsafe impl Send for Burst {}

impl Default for Burst {
    fn default() -> Burst {
        Burst {
            frames: Box::new([NO_FRAME; BURST_FRAMES]),
            count: 0,
            heads: [0; BURST_FRAMES],
            taken: 0,
            asks: 0,
            rejected: Rejected { list: [(0, DropReason::BadChain); BURST_FRAMES], count: 0 },
            // `private::extend` needs one more piece for a frame in one piece.
            pieces: PieceBuf::new(BURST_PIECES + BURST_FRAMES),
            left: ForSecondPass {
                found: Box::new([Found::CHAIN; BURST_FRAMES]),
                chains: Box::new([Descriptor::default(); BURST_FRAMES]),
            },
            private: PrivateCopies {
                headers: Box::new([[0; MAX_HEADERS_LEN]; BURST_FRAMES]),
                messages: Box::default(),
                staging: Staging::default(),
                staged: 0,
            },
            tags: Tags::default(),
            are_alike: false,
        }
    }
}

impl Burst {
    /// Empties the burst.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.count = 0;
        self.taken = 0;
        self.asks = 0;
        self.rejected.count = 0;
        self.pieces.truncate(0);
        self.pieces.linked = 0;
        self.are_alike = false;
        self.private.staged = 0;
        self.private.staging.clear();
        self.keep_tags();
    }

    /// Returns the frames, in ring order.
    #[inline(always)]
    pub fn frames(&self) -> &[Frame] {
        &self.frames[..self.count]
    }

    /// Returns the number of heads taken: frames and rejected chains.
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// Returns the bytes of all frames.
    pub(crate) fn bytes(&self) -> u64 {
        self.frames().iter().map(|frame| u64::from(frame.len)).sum()
    }

    /// Returns the number of ring descriptors behind the heads taken; too high if the burst was
    /// shortened.
    #[inline(always)]
    pub(crate) fn slots(&self) -> u32 {
        self.taken as u32 + self.pieces.linked
    }

    /// Returns the drop reason of each head taken that is not a frame.
    pub fn rejected(&self) -> impl Iterator<Item = DropReason> {
        self.rejected.list[..self.rejected.count].iter().map(|&(_, reason)| reason)
    }

    /// Returns the pieces of `frame` behind [`Frame::rest`].
    #[inline(always)]
    pub fn more(&self, frame: &Frame) -> &[Piece] {
        let (start, count) = (usize::from(frame.more.0), usize::from(frame.more.1));
        &self.pieces.as_slice()[start..start + count]
    }

    /// Gives frame `index` and every head behind it back to the source, as if never taken.
    pub fn give_back_from(&mut self, index: usize) {
        let Some(frame) = self.frames().get(index) else {
            return;
        };
        let position = frame.position;
        (self.taken, self.count) = (usize::from(position), index);
        self.give_back_rejected(position);
    }

    /// Gives all heads but the first `heads` back to the source, as if never taken.
    pub(crate) fn give_back_heads(&mut self, heads: usize) {
        let position = heads.min(self.taken) as u8;
        let count = self.frames().partition_point(|frame| frame.position < position);
        (self.taken, self.count) = (usize::from(position), count);
        self.give_back_rejected(position);
    }

    fn give_back_rejected(&mut self, position: u8) {
        while self.rejected.count > 0 && self.rejected.list[self.rejected.count - 1].0 >= position {
            self.rejected.count -= 1;
        }
    }

    /// Returns the load of each head taken, in ring order.
    pub(crate) fn loads(&self) -> impl Iterator<Item = Load> {
        let mut frames = self.frames().iter().peekable();
        (0..self.taken).map(move |position| {
            let frame = frames.next_if(|frame| usize::from(frame.position) == position);
            frame.map_or(Load::NO_FRAME, Frame::load)
        })
    }

    /// Returns the load of the heads that [`Burst::give_back_from`] gave back from a burst that had
    /// `frames` frames and `rejects` rejected chains.
    pub(crate) fn given_back_load(&self, frames: usize, rejects: usize) -> Load {
        let cut = &self.frames[self.count.min(frames)..frames];
        let rejected = repeat_n(Load::NO_FRAME, rejects.saturating_sub(self.rejected.count));
        cut.iter().map(Frame::load).chain(rejected).sum()
    }

    /// Adds a frame that fits the snapshot; false if the burst is full, or the frame is too short
    /// or longer than a snapshot.
    pub(crate) fn push_small(&mut self, header: VnetHdr, bytes: &[u8]) -> bool {
        let fits = (MIN_FRAME_LEN as usize..=SNAPSHOT_LEN).contains(&bytes.len());
        if self.count == BURST_FRAMES || !fits {
            return false;
        }
        let frame = &mut self.frames[self.count];
        *frame = Frame { header, len: bytes.len() as u32, ..NO_FRAME };
        self.asks |= asks(header);
        frame.snapshot[..bytes.len()].copy_from_slice(bytes);
        frame.position = self.taken as u8;
        self.count += 1;
        self.taken += 1;
        true
    }

    /// Adds a frame of another burst, or the beginning of a frame, that asks for no offload; false
    /// if the burst is full.
    pub(super) fn push_excerpt(&mut self, frame: Frame) -> bool {
        let is_full = self.count == BURST_FRAMES;
        if !is_full {
            self.frames[self.count] = Frame { position: self.taken as u8, ..frame };
            self.count += 1;
            self.taken += 1;
        }
        !is_full
    }

    /// Adds a frame of `len` bytes at `at`, in private memory. False if the burst is full or the
    /// frame too short.
    ///
    /// # Safety
    /// `at` is valid for reads of `len` bytes until the burst is cleared.
    pub(crate) unsafe fn push_private(&mut self, header: VnetHdr, at: *mut u8, len: u32) -> bool {
        if self.count == BURST_FRAMES || len < MIN_FRAME_LEN {
            return false;
        }
        let frame = &mut self.frames[self.count];
        let first = (len as usize).min(SNAPSHOT_LEN);
        // SAFETY: the caller's promise for the source; the destination is SNAPSHOT_LEN long.
        unsafe { std::ptr::copy_nonoverlapping(at, frame.snapshot.as_mut_ptr(), first) };
        forget(&mut frame.snapshot, first);
        frame.header = header;
        self.asks |= asks(header);
        frame.len = len;
        frame.rest = Piece { at: at.wrapping_add(first), len: len - first as u32 };
        frame.more = (0, 0);
        frame.position = self.taken as u8;
        self.count += 1;
        self.taken += 1;
        true
    }

    /// Copies the frames whose bits are set to private memory: from here on no byte of these frames
    /// is read from the sender's memory. Frames that are in private memory already stay there.
    #[cold]
    pub(crate) fn stage(&mut self, frames: u64) {
        let frames = frames & !self.private.staged;
        let staged = |(at, _): &(usize, &mut Frame)| frames >> at & 1 != 0;
        for (_, frame) in self.frames[..self.count].iter_mut().enumerate().filter(staged) {
            let (start, count) = (usize::from(frame.more.0), usize::from(frame.more.1));
            let more = &self.pieces.as_slice()[start..start + count];
            let len: usize = more.iter().fold(frame.rest.len as usize, |n, p| n + p.len as usize);
            // Never returns here: the staging has room for a whole burst.
            // SAFETY: only this burst's frames refer to the bytes, which `clear` empties.
            let Some(to) = (unsafe { self.private.staging.take(len) }) else { return };
            let mut filled = gather_one(&mut frame.rest, to);
            for mut piece in more.iter().copied() {
                filled += gather_one(&mut piece, &mut to[filled..]);
            }
            frame.rest = Piece { at: to.as_mut_ptr(), len: filled as u32 };
            frame.more = (0, 0);
        }
        self.private.staged |= frames;
    }

    /// True if a frame asks for an offload, so that virtio-net headers differ from frame to frame.
    /// After [`Burst::examine`] a receiver that acknowledged the frame's `needs` may see each
    /// header.
    #[inline(always)]
    pub fn needs_offloads(&self) -> bool {
        self.asks != 0
    }

    /// Checks the offloads that the frames ask for, if any does; `may` is the sender's acknowledged
    /// offloads. Rejects frames with invalid requests. `kernel` is true for frames of a TAP: the
    /// switch believes the kernel that a checksum is valid (`DATA_VALID`), and believes no guest.
    #[inline(always)]
    pub(crate) fn examine(&mut self, may: Offloads, kernel: bool) {
        let known = asks(VnetHdr { flags: offload::NEEDS_CSUM, ..VnetHdr::plain(0) });
        let valid = asks(VnetHdr { flags: DATA_VALID, ..VnetHdr::plain(0) });
        let types = asks(VnetHdr { gso_type: 0xff, ..VnetHdr::plain(0) });
        self.asks &= known | types | if kernel { valid } else { 0 };
        if self.asks != 0 {
            self.examine_each(may, kernel);
        }
    }

    #[inline(never)]
    fn examine_each(&mut self, may: Offloads, kernel: bool) {
        let mut kept = 0;
        for i in 0..self.count {
            let header = self.frames[i].header;
            match self.request_of(i, may) {
                Ok(request) => {
                    let frame = &mut self.frames[i];
                    (frame.needs, frame.l3, frame.header) =
                        (request.needs, request.l3, request.header);
                    if kernel && request.needs.is_empty() && header.flags & DATA_VALID != 0 {
                        frame.needs = Offloads::CSUM;
                        frame.header.flags = DATA_VALID;
                    }
                    if kept != i {
                        self.frames[kept] = self.frames[i];
                    }
                    kept += 1;
                }
                Err(_) => self.reject(self.frames[i].position.into(), DropReason::BadOffload),
            }
        }
        self.count = kept;
        self.rejected.list[..self.rejected.count].sort_unstable_by_key(|&(position, _)| position);
    }

    /// Checks the offloads that frame `index` asks for.
    fn request_of(&mut self, index: usize, may: Offloads) -> Result<Request, Refused> {
        let Frame { header, len, .. } = self.frames[index];
        match offload::check(header, self.frames[index].head(), len, may) {
            Err(Refused::Short) => {
                let headers = self.headers(index).ok_or(Refused::Nonsense)?;
                offload::check(header, headers, len, may)
            }
            answer => answer,
        }
    }

    /// Counts one more head that is not a frame, with its drop reason.
    pub(crate) fn refuse(&mut self, reason: DropReason) {
        self.reject(self.taken, reason);
        self.taken += 1;
    }

    #[inline]
    pub(super) fn reject(&mut self, position: usize, reason: DropReason) {
        self.rejected.list[self.rejected.count] = (position as u8, reason);
        self.rejected.count += 1;
    }

    /// Adds a frame in one piece that [`SplitRing::find`] found plain: at least header and snapshot
    /// are readable at `found.at`.
    #[inline(always)]
    pub(super) fn push_plain<const HEADER_LEN: usize>(&mut self, position: usize, found: Found) {
        let frame = &mut self.frames[self.count];
        let len = found.len - HEADER_LEN as u32;
        let payload = found.at.wrapping_add(HEADER_LEN);
        frame.header = VnetHdr::from_bytes(load_header::<HEADER_LEN>(found.at));
        self.asks |= asks(frame.header);
        // A copy of a fixed size is two vector moves; a copy of a variable size is a call. The copy
        // may read past a short frame into the sender's own memory; the bytes beyond `len` go
        // nowhere.
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

    /// Adds a chain whose first piece holds header and snapshot, as Linux sends: headers in the
    /// first piece, payload in the next pieces. False if the first piece is shorter.
    #[inline(always)]
    pub(super) fn push_headed<const HEADER_LEN: usize>(
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

    /// Adds a frame that is spread over the pieces from `start` to the end of the list.
    pub(super) fn push_pieces(
        &mut self,
        position: usize,
        header_len: u32,
        start: usize,
        total: u64,
    ) {
        let len = (total - u64::from(header_len)) as u32;
        let frame = &mut self.frames[self.count];
        let pieces = &mut self.pieces.as_mut_slice()[start..];
        let mut header = [0u8; VNET_HDR_LEN];
        let skip = gather(pieces, &mut header[..header_len as usize]);
        let pieces = &mut pieces[skip..];
        let first = (len as usize).min(SNAPSHOT_LEN);
        let skipped = gather(pieces, &mut frame.snapshot[..first]);
        forget(&mut frame.snapshot, first);
        let pieces = &pieces[skipped..];
        frame.header = VnetHdr::from_bytes(header);
        self.asks |= asks(frame.header);
        frame.len = len;
        frame.rest = pieces.first().copied().unwrap_or(Piece::EMPTY);
        let more = pieces.len().saturating_sub(1);
        frame.more = (self.pieces.len().saturating_sub(more) as u16, more as u16);
        frame.position = position as u8;
        self.count += 1;
    }
}

/// Zeroes the bytes that an earlier frame, maybe of another guest, left behind a short frame. These
/// bytes would not be sent but hashed, and the receive queue that the hash selects would tell the
/// sender of a frame with truncated headers some bits of them.
#[inline(always)]
fn forget(snapshot: &mut Snapshot, from: usize) {
    if from < SNAPSHOT_LEN {
        snapshot[from..].fill(0);
    }
}

/// Moves bytes of `piece` into `out` until one is used up; returns their number.
fn gather_one(piece: &mut Piece, out: &mut [u8]) -> usize {
    let n = out.len().min(piece.len as usize);
    // SAFETY: `n` is at most the piece's length, which was translated, and at most that of `out`.
    unsafe { std::ptr::copy_nonoverlapping(piece.at, out.as_mut_ptr(), n) };
    piece.skip(n as u32);
    n
}

/// Moves the first `out.len()` bytes of `pieces` into `out`; returns how many pieces are used up.
fn gather(pieces: &mut [Piece], out: &mut [u8]) -> usize {
    let mut filled = 0;
    let mut used_up = 0;
    for piece in pieces.iter_mut() {
        filled += gather_one(piece, &mut out[filled..]);
        if piece.len > 0 {
            break;
        }
        used_up += 1;
    }
    used_up
}

/// Reads the virtio-net header at `at`, zero-filled to 12 bytes. The length is a constant, since a
/// copy of a variable size would be a call.
#[inline(always)]
fn load_header<const HEADER_LEN: usize>(at: *const u8) -> [u8; VNET_HDR_LEN] {
    const { assert!(HEADER_LEN == VNET_HDR_LEN || HEADER_LEN == VNET_HDR_LEN_LEGACY) };
    let mut header = [0u8; VNET_HDR_LEN];
    // SAFETY: the caller translated at least HEADER_LEN bytes at `at`, which is at most the length
    // of `header`.
    unsafe { std::ptr::copy_nonoverlapping(at, header.as_mut_ptr(), HEADER_LEN) };
    header
}

/// A head as the first pass found it: one plain buffer, or a chain.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    /// The buffer's first byte; null if the head leads to a chain that the second pass walks.
    pub(super) at: *mut u8,
    /// The buffer's bytes, virtio-net header included.
    pub(super) len: u32,
}

impl Found {
    pub(super) const CHAIN: Found = Found { at: std::ptr::null_mut(), len: 0 };
}

#[cfg(test)]
impl Burst {
    /// Fills everything that [`Burst::clear`] does not clear with `byte`, and pointers with an
    /// address at which nothing is mapped.
    pub(super) fn poison(&mut self, byte: u8) {
        let len = u32::from_ne_bytes([byte; 4]);
        let piece = Piece { at: std::ptr::without_provenance_mut(8), len };
        self.frames.fill(Frame {
            snapshot: [byte; SNAPSHOT_LEN],
            header: VnetHdr::from_bytes([byte; VNET_HDR_LEN]),
            len,
            rest: piece,
            more: (u16::from(byte), u16::from(byte)),
            position: byte,
            l3: byte,
            needs: Offloads::from_bits(byte),
        });
        self.heads.fill(u16::from(byte));
        self.rejected.list.fill((byte, DropReason::TapGone));
        self.pieces.poison(piece);
        self.private.headers.fill([byte; MAX_HEADERS_LEN]);
        self.private.messages.fill(byte);
        self.left.found.fill(Found { at: piece.at, len });
        self.left.chains.fill(Descriptor::new(u64::from(len), len, len as u16, len as u16));
    }
}

/// Returns the flags and the segmentation type of a header as bits that can be or'ed.
#[inline(always)]
fn asks(header: VnetHdr) -> u16 {
    u16::from_le_bytes([header.flags, header.gso_type])
}
