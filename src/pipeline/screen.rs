//! Whether a frame may come in by its port and leave by another, as far as their policies say so,
//! and with what VLAN tag.
//!
//! A frame is looked at in its private snapshot, so that the answer is the same as often as it is
//! asked for: what segment a frame is in is not kept for each.

use crate::frame::ethernet::TagEdit;
use crate::limits::SNAPSHOT_LEN;
use crate::port::PortTable;
use crate::ring::{Burst, Frame};
use crate::stats::DropReason;
use crate::switch::{Membership, PortId, PortPolicy, VlanId};

/// The first bytes of a frame.
fn head(frame: &Frame) -> &[u8] {
    &frame.snapshot[..SNAPSHOT_LEN.min(frame.len as usize)]
}

/// The VLAN in which a frame comes in by a port with this policy; an error if it may not.
#[inline(never)]
pub fn admit(asked: &PortPolicy, frame: &Frame) -> Result<VlanId, DropReason> {
    asked.vlans.classify(head(frame)).ok_or(DropReason::Vlan)
}

/// The VLANs of the ports that frames go from and to.
#[derive(Clone, Copy)]
pub struct Passage<'a> {
    from: &'a Membership,
    to: &'a Membership,
}

impl<'a> Passage<'a> {
    /// From one port to another.
    pub fn new(ports: &'a PortTable, from: PortId, to: PortId) -> Passage<'a> {
        Passage { from: &ports.policy(from).vlans, to: &ports.policy(to).vlans }
    }

    /// True if each frame passes as it is.
    pub fn is_open(self) -> bool {
        matches!((self.from, self.to), (Membership::Opaque, Membership::Opaque))
    }

    /// With what tag a frame that came in leaves; nothing if it may not leave.
    pub fn edit(self, frame: &Frame) -> Option<TagEdit> {
        let head = head(frame);
        self.to.edit(self.from.classify(head)?, head)
    }

    /// Has frames leave with the tags that they should have. All of them may leave.
    #[inline(never)]
    pub fn tag(self, burst: &mut Burst, frames: &[u8]) {
        match self.is_open() {
            true => burst.keep_tags(),
            false => burst.retag(frames, |frame| self.edit(frame).unwrap_or(TagEdit::Keep)),
        }
    }
}
