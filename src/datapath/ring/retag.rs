//! Frames that leave with another VLAN tag than they arrived with.
//!
//! The tag lies in the frame's head, which is a private copy. So the switch makes another head, a
//! VLAN tag longer or shorter, once for each port that the frame goes to. The payload stays where
//! it lies. The offsets in the virtio-net header move with the payload.

use base::frame::VnetHdr;
use base::frame::ethernet::{Snapshot, TagEdit, VLAN_TAG_LEN};
use base::frame::offload::{NEEDS_CSUM, Offloads, Request};
use base::limits::{BURST_FRAMES, SNAPSHOT_LEN};

/// Offset of a VLAN tag in a frame: behind the two addresses.
const TAG_AT: usize = 12;
const TAG_END: usize = TAG_AT + VLAN_TAG_LEN;
/// EtherType of a pushed tag.
const TAG_TYPE: [u8; 2] = [0x81, 0];

/// A frame's new head, length and offload request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Retagged {
    bytes: [u8; SNAPSHOT_LEN + VLAN_TAG_LEN],
    head: u8,
    /// Bytes of the whole frame.
    pub(super) len: u32,
    /// Offloads that the frame asks for, with the offsets of the new head.
    pub(super) request: Request,
}

const NOTHING: Retagged =
    Retagged { bytes: [0; SNAPSHOT_LEN + VLAN_TAG_LEN], head: 0, len: 0, request: Request::NONE };

/// The tags that the frames of a burst leave with, at the port that is being served.
#[derive(Debug)]
pub(super) struct Tags {
    /// The listed frames leave with the heads in `heads`; false if all leave as they arrived.
    pub(super) are_other: bool,
    /// New heads, by the index of the frame.
    pub(super) heads: Box<[Retagged; BURST_FRAMES]>,
}

impl Default for Tags {
    fn default() -> Tags {
        Tags { are_other: false, heads: Box::new([NOTHING; BURST_FRAMES]) }
    }
}

impl Tags {
    /// Returns the new head of frame `index`; `None` if the frame leaves as it arrived.
    #[inline(always)]
    pub(super) fn of(&self, index: u8) -> Option<&Retagged> {
        self.are_other.then(|| &self.heads[usize::from(index)])
    }
}

impl Retagged {
    /// Becomes the frame of `len` bytes that begins with `snapshot`, after `edit`. Copies the whole
    /// snapshot in moves of fixed sizes; bytes behind the frame's end are not sent.
    #[inline(always)]
    pub(super) fn set(
        &mut self,
        (snapshot, len): (&Snapshot, u32),
        request: Request,
        edit: TagEdit,
    ) {
        const BY: i32 = VLAN_TAG_LEN as i32;
        let bytes = &mut self.bytes;
        let by = match edit {
            TagEdit::Push(_) => {
                bytes[TAG_END..].copy_from_slice(&snapshot[TAG_AT..]);
                BY
            }
            TagEdit::Pop => {
                bytes[TAG_AT..SNAPSHOT_LEN - VLAN_TAG_LEN].copy_from_slice(&snapshot[TAG_END..]);
                -BY
            }
            TagEdit::Keep | TagEdit::Rewrite(_) => {
                bytes[TAG_AT..SNAPSHOT_LEN].copy_from_slice(&snapshot[TAG_AT..]);
                0
            }
        };
        bytes[..TAG_AT].copy_from_slice(&snapshot[..TAG_AT]);
        if let TagEdit::Push(tag) | TagEdit::Rewrite(tag) = edit {
            let ([a, b], [c, d]) = (TAG_TYPE, tag.to_be_bytes());
            bytes[TAG_AT..TAG_END].copy_from_slice(&[a, b, c, d]);
        }
        self.head = len.min(SNAPSHOT_LEN as u32).wrapping_add_signed(by) as u8;
        self.len = len.wrapping_add_signed(by);
        self.request = request;
        if !request.needs.is_empty() {
            self.move_offsets(by);
        }
    }

    /// Moves the offsets of everything behind the tag by `by` bytes.
    #[inline(never)]
    fn move_offsets(&mut self, by: i32) {
        let Request { l3, header, .. } = &mut self.request;
        let moved = |offset: [u8; 2]| {
            let offset = i32::from(u16::from_le_bytes(offset)) + by;
            u16::try_from(offset).unwrap_or(u16::MAX).to_le_bytes()
        };
        *l3 = (i32::from(*l3) + by) as u8;
        if header.flags & NEEDS_CSUM != 0 {
            header.csum_start = moved(header.csum_start);
        }
        if header.gso_type != 0 {
            header.hdr_len = moved(header.hdr_len);
        }
    }

    /// Returns the frame's first bytes.
    #[inline(always)]
    pub(super) fn head(&self) -> &[u8] {
        &self.bytes[..usize::from(self.head)]
    }

    pub(super) fn header(&self) -> VnetHdr {
        self.request.header
    }

    pub(super) fn needs(&self) -> Offloads {
        self.request.needs
    }
}
