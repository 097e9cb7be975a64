//! Frames that leave with another VLAN tag than they came with.
//!
//! A frame's head is private, and a tag lies in it. So what leaves is another head of a few bytes
//! more or less, made once for each port that the frame goes to, in front of the payload where it
//! lies. What the virtio-net header says of offsets moves with it.

use crate::frame::VnetHdr;
use crate::frame::ethernet::{TagEdit, VLAN_TAG_LEN};
use crate::frame::offload::{NEEDS_CSUM, Offloads, Request};
use crate::limits::{BURST_FRAMES, SNAPSHOT_LEN};

/// Where a tag stands: behind the addresses.
const TAG_AT: usize = 12;
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
    /// A frame of `len` bytes that begins with `head` and asks for this.
    pub(super) fn new(head: &[u8], len: u32, request: Request, edit: TagEdit) -> Retagged {
        let (skipped, tag) = match edit {
            TagEdit::Keep => (0, None),
            TagEdit::Push(tag) => (0, Some(tag)),
            TagEdit::Pop => (VLAN_TAG_LEN, None),
            TagEdit::Rewrite(tag) => (VLAN_TAG_LEN, Some(tag)),
        };
        let mut new = Retagged { request, ..NOTHING };
        let (addresses, behind) = head.split_at(TAG_AT.min(head.len()));
        let mut at = new.append(0, addresses);
        if let Some(tag) = tag {
            at = new.append(at, &TAG_TYPE);
            at = new.append(at, &tag.to_be_bytes());
        }
        at = new.append(at, behind.get(skipped..).unwrap_or_default());
        new.head = at as u8;
        new.len = len - head.len() as u32 + at as u32;
        new.move_offsets(at as i32 - head.len() as i32);
        new
    }

    /// Adds bytes to the head behind the first `at`; where it ends then.
    fn append(&mut self, at: usize, bytes: &[u8]) -> usize {
        let end = at + bytes.len();
        self.bytes[at..end].copy_from_slice(bytes);
        end
    }

    /// Everything behind the tag has moved by so many bytes.
    fn move_offsets(&mut self, by: i32) {
        let Request { needs, l3, header } = &mut self.request;
        if needs.is_empty() {
            return;
        }
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
