//! Frames that leave with another VLAN tag than they came with.
//!
//! A frame's head is private, and a tag lies in it. So what leaves is another head of a few bytes
//! more or less, made once for each port that the frame goes to, in front of the payload where it
//! lies. What the virtio-net header says of offsets moves with it.

use base::frame::VnetHdr;
use base::frame::ethernet::{Snapshot, TagEdit, VLAN_TAG_LEN};
use base::frame::offload::{NEEDS_CSUM, Offloads, Request};
use base::limits::{BURST_FRAMES, SNAPSHOT_LEN};

/// Where a tag stands: behind the addresses.
const TAG_AT: usize = 12;
const TAG_END: usize = TAG_AT + VLAN_TAG_LEN;
/// The type of the tag that is pushed.
const TAG_TYPE: [u8; 2] = [0x81, 0];

/// How a frame leaves.
#[derive(Debug, Clone, Copy)]
pub(super) struct Retagged {
    bytes: [u8; SNAPSHOT_LEN + VLAN_TAG_LEN],
    head: u8,
    /// Bytes of the whole frame.
    pub(super) len: u32,
    /// What it asks for.
    pub(super) request: Request,
}

const NOTHING: Retagged =
    Retagged { bytes: [0; SNAPSHOT_LEN + VLAN_TAG_LEN], head: 0, len: 0, request: Request::NONE };

/// How the frames that are being delivered leave, by the port that they go to now.
#[derive(Debug)]
pub(super) struct Tags {
    /// With other heads than they came with: all of them or none.
    pub(super) are_other: bool,
    /// These heads, by the number of the frame.
    pub(super) heads: Box<[Retagged; BURST_FRAMES]>,
}

impl Default for Tags {
    fn default() -> Tags {
        Tags { are_other: false, heads: Box::new([NOTHING; BURST_FRAMES]) }
    }
}

impl Tags {
    /// How a frame of these leaves, if not as it came.
    #[inline(always)]
    pub(super) fn of(&self, index: u8) -> Option<&Retagged> {
        self.are_other.then(|| &self.heads[usize::from(index)])
    }
}

impl Retagged {
    /// Becomes a frame of `len` bytes that asks for this. Its head is copied in moves of fixed
    /// sizes, as much as a snapshot has: what is behind the frame's end is not sent.
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

    /// Everything behind the tag has moved by so many bytes.
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

    /// Its first bytes.
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
