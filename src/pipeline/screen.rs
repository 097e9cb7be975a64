//! Whether a frame may come in by its port and leave by another, as far as their policies say so,
//! and with what VLAN tag.
//!
//! A frame is looked at in its private snapshot, so that the answer is the same as often as it is
//! asked for: what segment a frame is in is not kept for each.

use crate::frame::ethernet::{self, TagEdit};
use crate::port::PortTable;
use crate::ring::{Burst, Frame};
use crate::stats::DropReason;
use crate::switch::{Membership, PortId, PortPolicy, VlanId};

/// Whether a frame begins with a tag that may be a VLAN's.
#[inline(always)]
fn is_tagged(frame: &Frame) -> bool {
    // A comparison less than of both types: 0x8100 and 0x88a8.
    matches!(frame.snapshot[12], 0x81 | 0x88) && ethernet::is_tagged(&frame.snapshot, 12)
}

/// The VLAN in which a frame comes in by a port with this policy; an error if it may not.
#[inline(always)]
pub fn admit(asked: &PortPolicy, frame: &Frame) -> Result<VlanId, DropReason> {
    if asked.observes {
        return Err(DropReason::Observer);
    }
    let vlan =
        if is_tagged(frame) { asked.vlans.classify(frame.head()) } else { asked.vlans.untagged() };
    vlan.ok_or(DropReason::Vlan)
}

/// The VLANs of the ports that frames go from and to.
#[derive(Clone, Copy)]
pub struct Passage<'a> {
    from: &'a Membership,
    to: &'a Membership,
    /// What becomes of a frame without a tag; nothing if it may not leave.
    untagged: Option<TagEdit>,
}

impl<'a> Passage<'a> {
    /// From one port to another.
    pub fn new(ports: &'a PortTable, from: PortId, to: PortId) -> Passage<'a> {
        let (from, to) = (&ports.policy(from).vlans, &ports.policy(to).vlans);
        let untagged = from.untagged().and_then(|vlan| to.edit(vlan, &[]));
        Passage { from, to, untagged }
    }

    /// True if frames leave as they came, whatever their tags.
    pub fn is_open(self) -> bool {
        matches!((self.from, self.to), (Membership::Opaque, Membership::Opaque))
    }

    /// True if all of these frames may leave.
    pub fn takes(self, burst: &Burst, frames: &[u8]) -> bool {
        let plain = |index: &u8| !is_tagged(&burst.frames()[usize::from(*index)]);
        self.is_open() || self.untagged.is_some() && frames.iter().all(plain)
    }

    /// With what tag a frame that came in leaves; nothing if it may not leave.
    #[inline(always)]
    pub fn edit(self, frame: &Frame) -> Option<TagEdit> {
        if is_tagged(frame) && !self.is_open() { self.edit_tagged(frame) } else { self.untagged }
    }

    #[inline(never)]
    fn edit_tagged(self, frame: &Frame) -> Option<TagEdit> {
        let head = frame.head();
        self.to.edit(self.from.classify(head)?, head)
    }

    /// Has frames leave with the tags that they should have. All of them may leave.
    #[inline(never)]
    pub fn tag(self, burst: &mut Burst, frames: &[u8]) {
        let keeps = self.untagged == Some(TagEdit::Keep) && self.takes(burst, frames);
        match keeps {
            true => burst.keep_tags(),
            false => burst.retag(frames, |frame| self.edit(frame).unwrap_or(TagEdit::Keep)),
        }
    }
}
